"""RCD: relation-map driven cognitive diagnosis (Gao et al., SIGIR 2021)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.diagnosis.errors import DiagnosisError
from assay.diagnosis.graph.attention import GraphAttention
from assay.diagnosis.graph.sparse import Pattern
from assay.diagnosis.hierarchy import Hierarchy
from assay.diagnosis.neural.base import NeuralModel, choice, plateau
from assay.diagnosis.neural.latent import KSCDHead
from assay.diagnosis.neural.layers import Head
from assay.diagnosis.neural.ncdm import POSITIVE
from assay.diagnosis.responses import ResponseData

LARGEST_BATCH = 65_536
# (map, source, target): students, items, skills
_MAPS = (
    ("answered_by", "item", "student"),
    ("answers", "student", "item"),
    ("needs", "skill", "item"),
    ("needed_by", "item", "skill"),
    ("before", "skill", "skill"),
    ("similar", "skill", "skill"),
)


def graph_batch(n: int) -> int:
    """Answers a batch: a twentieth of all (256 to 65,536), because the graph is propagated once a batch.

    With batches of a fixed size the cost of an epoch would grow with the square of the answers.
    """
    return max(256, min(LARGEST_BATCH, n // 20))


class _Layer(nn.Module):
    """One round of messages; a node adds its incoming maps, weighted by a softmax over their scores."""

    def __init__(self, dim: int, maps: Sequence[tuple[str, str, str]]) -> None:
        super().__init__()
        self.maps = tuple(maps)
        self.attention = nn.ModuleDict({name: GraphAttention(dim) for name, _, _ in maps})
        self.score = nn.ModuleDict({name: nn.Linear(2 * dim, 1) for name, _, _ in maps})

    def forward(self, nodes: dict[str, Tensor], edges: dict[str, Pattern]) -> dict[str, Tensor]:
        out = {}
        for kind, old in nodes.items():
            messages, scores = [], []
            for name, source, target in self.maps:
                if target == kind:
                    message = self.attention[name](nodes[source], old, edges[name])
                    messages.append(message)
                    scores.append(self.score[name](torch.cat([old, message], dim=1)))
            if not messages:
                out[kind] = old
                continue
            weight = torch.softmax(torch.cat(scores, dim=1), dim=1)
            out[kind] = old + sum(weight[:, [m]] * message for m, message in enumerate(messages))
        return out


class _Network(nn.Module):
    def __init__(self, head: KSCDHead, n_students: int, layers: int, maps: Sequence[tuple[str, str, str]]) -> None:
        super().__init__()
        n_items, k = head.q.shape
        self.head = head
        self.student = nn.Parameter(nn.init.xavier_normal_(torch.empty(n_students, k)))
        self.item = nn.Parameter(nn.init.xavier_normal_(torch.empty(n_items, k)))
        self.skill = nn.Parameter(nn.init.xavier_normal_(torch.empty(k, k)))
        self.layers = nn.ModuleList(_Layer(k, maps) for _ in range(layers))

    def propagate(self, edges: dict[str, Pattern]) -> dict[str, Tensor]:
        nodes: dict[str, Tensor] = {"student": self.student, "item": self.item, "skill": self.skill}
        for layer in self.layers:
            nodes = layer(nodes, edges)
        return nodes


class RCD(NeuralModel):
    """Students, items and skills as nodes; messages along who answered what, what needs what, what comes before what.

    Only training answers are edges. After training, the nodes' last embeddings are kept: a student's is the state that
    new students are scored by.

    Parameters
    ----------
    prerequisites : sequence of (int, int), optional
        Directed pairs (skill, skill that builds on it); default: those of the data. Without any, that map is left out.
    similar : sequence of (int, int)
        Undirected pairs of skills.
    layers : int
    positive : {"abs", "clip"}
    epochs, lr, batch_size, weight_decay, stopping, patience, seed, device, checkpoint
        See `NeuralModel`; the graph is propagated once a batch, so batches are large (a twentieth of the answers, 256
        to 65,536).
    """

    def __init__(
        self,
        prerequisites: Sequence[tuple[int, int]] | None = None,
        similar: Sequence[tuple[int, int]] = (),
        layers: int = 2,
        positive: str = "abs",
        epochs: int = 100,
        lr: float = 0.01,
        batch_size: int | None = None,
        weight_decay: float = 0.0,
        stopping: str = "valid_logloss",
        patience: int = 10,
        seed: int = 0,
        device: str = "cpu",
        checkpoint: str | None = None,
    ) -> None:
        super().__init__(epochs, lr, batch_size, weight_decay, stopping, patience, seed, device, checkpoint)
        self.prerequisites = prerequisites
        self.similar = similar
        self.layers = layers
        self.positive = positive

    def _head(self, q: Tensor) -> Head:
        return KSCDHead(
            q, q.shape[1], "sigmoid", choice(self.positive, POSITIVE, "way to keep weights positive"), direct=True
        )

    def _edges(self, data: ResponseData) -> dict[str, Pattern]:
        before = Hierarchy(
            data.n_kcs, data.prerequisites if self.prerequisites is None else self.prerequisites, data.kc_names
        ).edges
        if any(not 0 <= k < data.n_kcs for pair in self.similar for k in pair):
            raise DiagnosisError(
                f"similar={self.similar!r} names a skill that does not exist; there are {data.n_kcs}, from 0"
            )
        answers = np.stack([data.student, data.item]).astype(np.int64)
        needs = np.stack(np.nonzero(self.q_))
        similar = [*self.similar, *((b, a) for a, b in self.similar)]
        tables = {
            "answers": answers,
            "answered_by": answers[::-1],
            "needed_by": needs,
            "needs": needs[::-1],
            "before": np.array(before, dtype=np.int64).reshape(-1, 2).T,
            "similar": np.array(similar, dtype=np.int64).reshape(-1, 2).T,
        }
        size = {"student": data.n_students, "item": data.n_items, "skill": data.n_kcs}
        found = {}
        for name, source, target in _MAPS:
            if tables[name].size:
                column, row = (torch.as_tensor(np.ascontiguousarray(e), device=self.device) for e in tables[name])
                found[name] = Pattern(row, column, (size[target], size[source]))
        return found

    def _fit(self, data: ResponseData, valid: ResponseData | None) -> None:
        fit, valid = self._with_validation(data, valid)
        if self.layers < 1:
            raise DiagnosisError(f"layers={self.layers} must be at least 1")
        with self._own_randomness():
            head = self._head(torch.as_tensor(self.q_, dtype=torch.float32))
            assert isinstance(head, KSCDHead)
            edges = self._edges(fit)
            network = _Network(head, data.n_students, self.layers, [m for m in _MAPS if m[0] in edges]).to(self.device)
            head.items["latent"].requires_grad_(False)  # replaced by the nodes
            head.skills.requires_grad_(False)
            student, item, y = self._tensors(fit)

            def batch_loss(batch: Tensor) -> Tensor:
                nodes = network.propagate(edges)
                logits = head(
                    F.embedding(student[batch], nodes["student"]),
                    item[batch],
                    {"latent": nodes["item"], "skills": nodes["skill"]},
                )
                return F.binary_cross_entropy_with_logits(logits, y[batch])

            def validate() -> dict[str, float]:
                with torch.no_grad():
                    nodes = network.propagate(edges)
                return self._validate(
                    head, nodes["student"], valid, {"latent": nodes["item"], "skills": nodes["skill"]}
                )

            generator = torch.Generator().manual_seed(self.seed)
            self.history_, self.best_epoch_ = self._trainer(len(fit), graph_batch(len(fit))).run(
                network, len(fit), batch_loss, validate, generator, after_step=head.clip, plateau=plateau(fit, valid)
            )
            with torch.no_grad():
                nodes = network.propagate(edges)
                head.items["latent"].copy_(nodes["item"])
                head.skills.copy_(nodes["skill"])
        self._keep(head, nodes["student"], data)
