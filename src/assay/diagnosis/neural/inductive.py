"""ID-CDF: mastery is a function of the row of answers, so that new students need no training."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.diagnosis.neural.base import NeuralModel, plateau
from assay.diagnosis.neural.layers import Head, PosLinear, PosMLP, Tables, dropout
from assay.diagnosis.responses import ResponseData

DRAWS = 16


class _Rows:
    """Answers as bags: the columns and signs (+1 right, -1 wrong) of each row, in csr order."""

    def __init__(self, row: NDArray[Any], column: NDArray[Any], correct: NDArray[Any], n: int, device: str) -> None:
        order = np.lexsort((column, row))
        self.column = torch.as_tensor(column[order].astype(np.int64), device=device)
        self.sign = torch.as_tensor(np.where(correct[order] == 1, 1.0, -1.0).astype(np.float32), device=device)
        counts = np.bincount(row, minlength=n)
        self.counts = torch.as_tensor(counts, device=device)
        self.start = torch.as_tensor(np.cumsum(counts) - counts, device=device)

    def bags(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Columns, signs and where each bag begins, for some rows."""
        counts = self.counts[rows]
        offsets = torch.cumsum(counts, 0) - counts
        at = torch.repeat_interleave(self.start[rows] - offsets, counts) + torch.arange(
            int(counts.sum()), device=rows.device
        )
        return self.column[at], self.sign[at], offsets


class _Encoder(nn.Module):
    """Row -> hidden -> K, sigmoids. The first layer sums the columns of the answers given, so its cost is theirs, not
    the row's length.
    """

    def __init__(self, inputs: int, sizes: tuple[int, ...], k: int, *, positive: bool, dropout: float) -> None:
        super().__init__()
        self.positive, self.dropout = positive, dropout
        self.first = nn.Parameter(nn.init.xavier_normal_(torch.empty(inputs, sizes[0])))
        self.bias = nn.Parameter(torch.zeros(sizes[0]))
        kind = PosLinear if positive else nn.Linear
        self.layers = nn.ModuleList(kind(a, b) for a, b in zip(sizes, (*sizes[1:], k), strict=True))

    def forward(self, column: Tensor, sign: Tensor, offsets: Tensor) -> Tensor:
        weight = self.first.abs() if self.positive else self.first
        x = torch.sigmoid(F.embedding_bag(column, weight, offsets, mode="sum", per_sample_weights=sign) + self.bias)
        for layer in self.layers:
            x = torch.sigmoid(layer(dropout(x, self.dropout, self.training)))
        return x


class IDCDFHead(Head):
    """Non-negative 64-32-1 on Lin(theta ∘ q) - Lin(psi ∘ q); both linear maps non-negative [our design: monotone
    otherwise fails].
    """

    def __init__(self, q: Tensor, dropout: float) -> None:
        super().__init__(q, q.shape[1])
        k = q.shape[1]
        self.table("psi", k)
        self.of_theta, self.of_psi = PosLinear(k, 64, bias=False), PosLinear(k, 64, bias=False)
        self.layers = PosMLP((64, 32, 1), dropout=dropout)

    def mastery(self, states: Tensor) -> Tensor:
        return states

    def from_mastery(self, mastery: Tensor, item: Tensor, tables: Tables | None = None) -> Tensor:
        q = self.q[item]
        logit: Tensor = self.layers(self.of_theta(mastery * q) - self.of_psi(self.row("psi", item, tables) * q))
        return logit


class _Module(nn.Module):
    def __init__(self, head: IDCDFHead, students: _Encoder, items: _Encoder) -> None:
        super().__init__()
        self.head, self.students, self.items = head, students, items


class IDCDF(NeuralModel):
    """Identifiable cognitive diagnosis (Li et al. 2024): equal rows of answers get equal mastery; new students need
    no training.

    theta_i = f(row of answers, +1 right, -1 wrong, 0 not given), f non-negative, so more right answers never lower
    mastery; an item's psi_j is a function of its column. Only training answers enter rows and columns. The uncertainty
    of mastery is the root mean squared change when half of a student's answers are left out at random (delete-half
    jackknife, 16 draws) [our design].

    Parameters
    ----------
    student_hidden, item_hidden : tuple of int
        Hidden sizes of the two encoders.
    dropout : float
    epochs, lr, batch_size, weight_decay, stopping, patience, seed, device, checkpoint
        See `NeuralModel`.
    """

    def __init__(
        self,
        student_hidden: tuple[int, ...] = (256,),
        item_hidden: tuple[int, ...] = (512, 256),
        dropout: float = 0.0,
        epochs: int = 50,
        lr: float = 1e-4,
        batch_size: int | None = None,
        weight_decay: float = 0.0,
        stopping: str = "valid_logloss",
        patience: int = 10,
        seed: int = 0,
        device: str = "cpu",
        checkpoint: str | None = None,
    ) -> None:
        super().__init__(epochs, lr, batch_size, weight_decay, stopping, patience, seed, device, checkpoint)
        self.student_hidden = student_hidden
        self.item_hidden = item_hidden
        self.dropout = dropout

    def _head(self, q: Tensor) -> Head:
        return IDCDFHead(q, self.dropout)

    def _encoder(self, n_items: int, k: int) -> _Encoder:
        return _Encoder(n_items, tuple(self.student_hidden), k, positive=True, dropout=self.dropout)

    def _fit(self, data: ResponseData, valid: ResponseData | None) -> None:
        fit, valid = self._with_validation(data, valid)
        with self._own_randomness():
            head = self._head(torch.as_tensor(self.q_, dtype=torch.float32))
            assert isinstance(head, IDCDFHead)
            k = data.n_kcs
            items = _Encoder(data.n_students, tuple(self.item_hidden), k, positive=False, dropout=self.dropout)
            module = _Module(head, self._encoder(data.n_items, k), items).to(self.device)
            head.items["psi"].requires_grad_(False)  # filled from the columns
            by_student = _Rows(fit.student, fit.item, fit.correct, data.n_students, self.device)
            by_item = _Rows(fit.item, fit.student, fit.correct, data.n_items, self.device)
            student, item, y = self._tensors(fit)

            def batch_loss(batch: Tensor) -> Tensor:
                who, at = torch.unique(student[batch], return_inverse=True)
                what, place = torch.unique(item[batch], return_inverse=True)
                theta = module.students(*by_student.bags(who))[at]
                psi = module.items(*by_item.bags(what))
                q = head.q[item[batch]]
                logits = head.layers(head.of_theta(theta * q) - head.of_psi(psi[place] * q))
                return F.binary_cross_entropy_with_logits(logits, y[batch])

            def fill() -> Tensor:
                with torch.no_grad():
                    module.eval()
                    head.items["psi"].copy_(module.items(*by_item.bags(torch.arange(data.n_items, device=self.device))))
                    theta: Tensor = module.students(*by_student.bags(torch.arange(data.n_students, device=self.device)))
                return theta

            generator = torch.Generator().manual_seed(self.seed)
            self.history_, self.best_epoch_ = self._trainer(len(fit)).run(
                module,
                len(fit),
                batch_loss,
                lambda: self._validate(head, fill(), valid),
                generator,
                plateau=plateau(fit, valid),
            )
            states = fill()
        self._rows_encoder = module.students.eval().requires_grad_(False)
        self._keep(head, states, fit)
        self.n_params_ = sum(p.numel() for p in module.parameters())

    def _encode(self, data: ResponseData) -> NDArray[Any]:
        rows = _Rows(data.student, data.item, data.correct, data.n_students, self.device)
        with torch.no_grad():
            theta = self._rows_encoder(*rows.bags(torch.arange(data.n_students, device=self.device)))
        return theta.numpy(force=True).astype(np.float64)

    def _state_sd(self, states: NDArray[Any], data: ResponseData) -> NDArray[Any]:
        rng = np.random.default_rng(self.seed)
        total = np.zeros_like(states)
        for _ in range(DRAWS):
            total += (self._encode(data.take(rng.random(len(data)) < 0.5)) - states) ** 2
        sd: NDArray[Any] = np.sqrt(total / DRAWS)
        return sd

    def sample_states(self, rng: np.random.Generator) -> NDArray[Any]:
        drawn = super().sample_states(rng)
        d = self._network.state_dim
        drawn[:, :d] = np.clip(drawn[:, :d], 0, 1)
        return drawn

    def _estimate(self, data: ResponseData) -> NDArray[Any]:
        states = self._encode(data)
        return np.hstack([states, self._state_sd(states, data)])

    def extend_items(self, data: ResponseData, *, steps: int = 300, lr: float = 0.05) -> Any:
        model = super().extend_items(data, steps=steps, lr=lr)
        encoder = self._encoder(data.n_items, data.n_kcs)
        state = self._rows_encoder.state_dict()
        old = state["first"]  # a new item says nothing about mastery until the model is fitted again
        state["first"] = torch.cat([old, torch.zeros(data.n_items - len(old), old.shape[1], device=old.device)])
        encoder.load_state_dict(state)
        model._rows_encoder = encoder.to(self.device).eval().requires_grad_(False)
        return model

    def _learned(self) -> dict[str, Any]:
        return super()._learned() | {
            f"encoder.{n}": v.numpy(force=True) for n, v in self._rows_encoder.state_dict().items()
        }

    def _restore(self, learned: dict[str, Any]) -> None:
        encoder = {
            n.removeprefix("encoder."): torch.as_tensor(v) for n, v in learned.items() if n.startswith("encoder.")
        }
        super()._restore({n: v for n, v in learned.items() if not n.startswith("encoder.")})
        self._rows_encoder = self._encoder(len(self.q_), self.q_.shape[1])
        self._rows_encoder.load_state_dict(encoder)
        self._rows_encoder = self._rows_encoder.to(self.device).eval().requires_grad_(False)
