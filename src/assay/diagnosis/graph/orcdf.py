"""ORCDF: a diagnosis that resists oversmoothing (Qian et al., KDD 2024)."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.diagnosis.errors import DiagnosisError
from assay.diagnosis.graph.rcd import graph_batch
from assay.diagnosis.graph.sparse import Pattern
from assay.diagnosis.neural.base import NeuralModel, choice, plateau
from assay.diagnosis.neural.layers import Head, PosMLP, Tables
from assay.diagnosis.neural.ncdm import POSITIVE, NCDMHead
from assay.diagnosis.responses import ResponseData

HEADS = ("ncdm", "kancd", "mirt")
CONTRAST_NODES = 1024
CENTRE_ON = 4096  # answers


class _Graph:
    """A symmetric graph over students, items and skills with self loops, normalised by degrees; edges only."""

    def __init__(self, pairs: Tensor, n: int) -> None:
        loops = torch.arange(n, device=pairs.device)
        row = torch.cat([pairs[0], pairs[1], loops])
        column = torch.cat([pairs[1], pairs[0], loops])
        degree = torch.bincount(row, minlength=n).float()
        self.value = torch.rsqrt(degree[row]) * torch.rsqrt(degree[column])
        self.pattern = Pattern(row, column, (n, n))

    def thinned(self, keep: float) -> Tensor:
        """Values with edges dropped at random and the others scaled, where ``keep`` < 1."""
        if keep == 1:
            return self.value
        return self.value * (torch.rand(len(self.value), device=self.value.device) < keep) / keep


class _InnerProductHead(Head):
    """sum_k softplus(a_jk) q_jk mastery_k - b_j: the MIRT head."""

    def __init__(self, q: Tensor) -> None:
        super().__init__(q, q.shape[1])
        self.table("difficulty", q.shape[1])
        self.table("intercept", 1)

    def from_mastery(self, mastery: Tensor, item: Tensor, tables: Tables | None = None) -> Tensor:
        slope = F.softplus(self.row("difficulty", item, tables)) * self.q[item]
        return (4 * slope * mastery).sum(1) - self.row("intercept", item, tables).squeeze(1)


class _KaNCDLayersHead(NCDMHead):
    """The head of NCDM with KaNCD's tanh layers."""

    def __init__(self, q: Tensor, hidden: tuple[int, ...], dropout: float, scale: float, positive: str) -> None:
        super().__init__(q, hidden, dropout, scale, positive)
        self.layers = PosMLP((q.shape[1], *hidden, 1), activation="tanh", dropout=dropout, mode=positive)


class _Network(nn.Module):
    """X_l = W [R X_{l-1} ; W' X_{l-1}] on the graphs of right (R) and wrong (W') answers; the mean of the layers;
    linear to K.
    """

    def __init__(self, head: Head, n_students: int, dim: int, layers: int) -> None:
        super().__init__()
        n_items, k = head.q.shape
        self.head = head
        self.sizes = (n_students, n_items, k)
        self.nodes = nn.Parameter(nn.init.xavier_normal_(torch.empty(sum(self.sizes), dim)))
        self.mix = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(layers))
        self.to_student, self.to_item = nn.Linear(dim, k), nn.Linear(dim, k)
        for layer in (*self.mix, self.to_student, self.to_item):
            nn.init.xavier_normal_(layer.weight)

    def propagate(self, right: _Graph, wrong: _Graph, keep: float = 1.0) -> Tensor:
        """Mean of the embeddings of all layers; one draw of dropped edges serves them all."""
        sides = [(graph.pattern, graph.thinned(keep)) for graph in (right, wrong)]
        x = self.nodes
        total = x
        for layer in self.mix:
            x = layer(torch.cat([pattern.product(value, x) for pattern, value in sides], dim=1))
            total = total + x
        return total / (len(self.mix) + 1)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        s, j, _ = self.sizes
        return self.to_student(x[:s]), self.to_item(x[s : s + j])


class ORCDF(NeuralModel):
    """Two graphs, of right and of wrong answers, with a contrast between the answers as given and with a tenth of
    them flipped.

    Matrices are sparse: memory is linear in answers, where dense ones take (S + J + K)^2 numbers.

    Parameters
    ----------
    dim : int
        Size of a node's embedding.
    layers : int
    head : {"ncdm", "kancd", "mirt"}
    flip : float
        Share of answers flipped in the second view, drawn anew each epoch.
    temperature, weight : float
        Of the InfoNCE loss between the views, over at most 1,024 students and items a batch.
    keep : float
        Share of edges kept in a training step.
    hidden, dropout, scale, positive
        As in `NCDM`.
    epochs, lr, batch_size, weight_decay, stopping, patience, seed, device, checkpoint
        See `NeuralModel`; the graph is propagated once a batch (see `RCD`).
    """

    def __init__(
        self,
        dim: int = 32,
        layers: int = 3,
        head: str = "ncdm",
        flip: float = 0.1,
        temperature: float = 0.8,
        weight: float = 1e-2,
        keep: float = 0.9,
        hidden: tuple[int, ...] = (256, 128),
        dropout: float = 0.2,
        scale: float = 10.0,
        positive: str = "abs",
        epochs: int = 100,
        lr: float = 0.003,
        batch_size: int | None = None,
        weight_decay: float = 0.0,
        stopping: str = "valid_logloss",
        patience: int = 10,
        seed: int = 0,
        device: str = "cpu",
        checkpoint: str | None = None,
    ) -> None:
        super().__init__(epochs, lr, batch_size, weight_decay, stopping, patience, seed, device, checkpoint)
        self.dim = dim
        self.layers = layers
        self.head = head
        self.flip = flip
        self.temperature = temperature
        self.weight = weight
        self.keep = keep
        self.hidden = hidden
        self.dropout = dropout
        self.scale = scale
        self.positive = positive

    def _head(self, q: Tensor) -> Head:
        choice(self.positive, POSITIVE, "way to keep weights positive")
        kind = choice(self.head, HEADS, "head")
        if kind == "mirt":
            return _InnerProductHead(q)
        form = NCDMHead if kind == "ncdm" else _KaNCDLayersHead
        return form(q, tuple(self.hidden), self.dropout, self.scale, self.positive)

    def _graphs(self, data: ResponseData, correct: Tensor) -> tuple[_Graph, _Graph]:
        s, j, k = data.n_students, data.n_items, data.n_kcs
        pairs = torch.as_tensor(np.stack([data.student.astype(np.int64), data.item + s]), device=self.device)
        needs = torch.as_tensor(np.stack(np.nonzero(self.q_)), device=self.device) + torch.tensor(
            [[s], [s + j]], device=self.device
        )
        right, wrong = (_Graph(torch.cat([pairs[:, mask], needs], dim=1), s + j + k) for mask in (correct, ~correct))
        return right, wrong

    def _contrast(self, a: Tensor, b: Tensor) -> Tensor:
        at = torch.randperm(len(a), device=a.device)[:CONTRAST_NODES]
        similarity = F.normalize(a[at], dim=1) @ F.normalize(b[at], dim=1).T / self.temperature
        return F.cross_entropy(similarity, torch.arange(len(at), device=a.device))

    @torch.no_grad()
    def _centre(self, network: _Network, right: _Graph, wrong: _Graph, student: Tensor, item: Tensor) -> None:
        """Shift the last bias so that the first predictions are right on average.

        Non-negative layers start far above that. Embeddings shared by all nodes would pay for it: within a few steps
        they run to hundreds, where every mastery is exactly 0 or 1 [our design].
        """
        if not isinstance(network.head, NCDMHead):
            return
        states, difficulty = network.project(network.propagate(right, wrong))
        network.head.eval()
        logits = network.head(states[student], item, {"difficulty": difficulty})
        bias = network.head.layers.layers[-1].bias
        assert isinstance(bias, Tensor)
        bias += float(np.log(self.mean_ / (1 - self.mean_))) - logits.mean()

    def _fit(self, data: ResponseData, valid: ResponseData | None) -> None:
        fit, valid = self._with_validation(data, valid)
        if not (0 <= self.flip < 1 and 0 < self.keep <= 1 and self.temperature > 0 and self.layers >= 1):
            raise DiagnosisError(
                f"flip={self.flip}, keep={self.keep}, temperature={self.temperature}, layers={self.layers} are "
                "out of range"
            )
        with self._own_randomness():
            head = self._head(torch.as_tensor(self.q_, dtype=torch.float32))
            network = _Network(head, data.n_students, self.dim, self.layers).to(self.device)
            head.items["difficulty"].requires_grad_(False)  # replaced by the nodes
            student, item, y = self._tensors(fit)
            right, wrong = self._graphs(fit, y == 1)
            self._centre(network, right, wrong, student[:CENTRE_ON], item[:CENTRE_ON])
            views: list[tuple[_Graph, _Graph]] = []

            def before_epoch() -> None:
                flipped = torch.rand(len(y), device=self.device) < self.flip
                views[:] = [self._graphs(fit, (y == 1) ^ flipped)]

            def batch_loss(batch: Tensor) -> Tensor:
                x = network.propagate(right, wrong, self.keep)
                states, difficulty = network.project(x)
                logits = head(F.embedding(student[batch], states), item[batch], {"difficulty": difficulty})
                loss = F.binary_cross_entropy_with_logits(logits, y[batch])
                if self.weight:
                    other = network.propagate(*views[0], self.keep)
                    s, j, _ = network.sizes
                    loss = loss + self.weight * (
                        self._contrast(x[:s], other[:s]) + self._contrast(x[s : s + j], other[s : s + j])
                    )
                return loss

            def final() -> tuple[Tensor, Tensor]:
                with torch.no_grad():
                    return network.project(network.propagate(right, wrong))

            def validate() -> dict[str, float]:
                states, difficulty = final()
                return self._validate(head, states, valid, {"difficulty": difficulty})

            generator = torch.Generator().manual_seed(self.seed)
            self.history_, self.best_epoch_ = self._trainer(len(fit), graph_batch(len(fit))).run(
                network,
                len(fit),
                batch_loss,
                validate,
                generator,
                after_step=head.clip,
                before_epoch=before_epoch,
                plateau=plateau(fit, valid),
            )
            states, difficulty = final()
            with torch.no_grad():
                head.items["difficulty"].copy_(difficulty)
        self._keep(head, states, data)
