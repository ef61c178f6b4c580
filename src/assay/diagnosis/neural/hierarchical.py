"""HierCDF: mastery flows down a graph of prerequisites (Li et al., KDD 2022)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from assay.diagnosis.hierarchy import Hierarchy
from assay.diagnosis.neural.base import NeuralModel, choice
from assay.diagnosis.neural.layers import Head, PosLinear, PosMLP, Tables
from assay.diagnosis.neural.ncdm import POSITIVE
from assay.diagnosis.responses import ResponseData

FORMS = ("mirt", "irt", "ncd")


def hierarchical_mastery(prior: Tensor, given: Tensor, without: Tensor, hierarchy: Hierarchy) -> Tensor:
    """Mastery of all skills, ``[n, K]``.

    A root has its prior. Another skill: prod over its n parents p of [c+^(1/n) m_p + c-^(1/n) (1 - m_p)]. Enumerating
    the 2^n states of the parents gives the same sum, because the probability of a state is a product over independent
    parents and the condition of the skill is a product too; the sum of the products is the product of the sums, O(n).

    Parameters
    ----------
    prior : Tensor [n, K]
        Used at roots.
    given, without : Tensor [n, edges]
        c+ and c- of each edge, in (0, 1): mastery of the skill if the parent is mastered, and if not.

    Examples
    --------
    >>> h = Hierarchy(2, [(0, 1)])
    >>> hierarchical_mastery(torch.tensor([[0.5, 0.0]]), torch.tensor([[0.9]]), torch.tensor([[0.1]]), h).tolist()
    [[0.5, 0.5]]
    """
    columns: list[Tensor | None] = [None] * hierarchy.n_kcs
    place = {edge: e for e, edge in enumerate(hierarchy.edges)}
    for k in hierarchy.order:
        parents = hierarchy.parents(k)
        if not parents:
            columns[k] = prior[:, k]
            continue
        value = torch.ones_like(prior[:, k])
        for p in parents:
            e = place[(p, k)]
            m = columns[p]
            assert m is not None
            value = value * (given[:, e] ** (1 / len(parents)) * m + without[:, e] ** (1 / len(parents)) * (1 - m))
        columns[k] = value
    return torch.stack([c for c in columns if c is not None], dim=1)


class HierCDFHead(Head):
    """u = tanh(PosLin(m ∘ q)), v = sig(PosLin(sig(diff) ∘ q)), logit = u . v - sig(disc); or an irt or ncd form of
    it.
    """

    def __init__(self, q: Tensor, hierarchy: Hierarchy, hidden: int, form: str, positive: str, weight: float) -> None:
        k, edges = q.shape[1], len(hierarchy.edges)
        super().__init__(q, k + 2 * edges)
        self.hierarchy, self.form, self.weight, self.edges = hierarchy, form, weight, edges
        self.table("difficulty", k)
        self.table("discrimination", 1)
        self.of_mastery = PosLinear(k, 1 if form == "irt" else hidden, mode=positive)
        self.of_difficulty = PosLinear(k, 1 if form == "irt" else hidden, mode=positive)
        if form == "ncd":
            self.layers = PosMLP((hidden, max(2, hidden // 2), 1), dropout=0.0, mode=positive)
        with torch.no_grad():  # products of many inputs start near 0 or 1 otherwise
            nn.init.xavier_normal_(self.of_mastery.weight, gain=2.0).abs_()

    def initial_states(self, n: int) -> Tensor:
        states = super().initial_states(n)
        k = self.q.shape[1]
        states[:, k : k + self.edges] += 1.5
        states[:, k + self.edges :] -= 1.5
        return states

    def mastery(self, states: Tensor) -> Tensor:
        k = self.q.shape[1]
        if not self.edges:
            return torch.sigmoid(states)
        given, without = torch.sigmoid(states[:, k : k + self.edges]), torch.sigmoid(states[:, k + self.edges :])
        return hierarchical_mastery(torch.sigmoid(states[:, :k]), given, without, self.hierarchy)

    def from_mastery(self, mastery: Tensor, item: Tensor, tables: Tables | None = None) -> Tensor:
        q = self.q[item]
        difficulty = torch.sigmoid(self.row("difficulty", item, tables)) * q
        disc = self.row("discrimination", item, tables)
        if self.form == "irt":
            out: Tensor = (
                torch.sigmoid(disc.squeeze(1))
                * 4
                * (self.of_mastery(mastery * q) - self.of_difficulty(difficulty)).squeeze(1)
            )
            return out
        u, v = torch.tanh(self.of_mastery(mastery * q)), torch.sigmoid(self.of_difficulty(difficulty))
        if self.form == "ncd":
            logit: Tensor = self.layers((u - v) * torch.sigmoid(disc))
            return logit
        return (u * v).sum(1) - torch.sigmoid(disc).squeeze(1)

    def penalty(self, states: Tensor) -> Tensor | None:
        if not self.edges or not self.weight:
            return None
        k = self.q.shape[1]
        given, without = torch.sigmoid(states[:, k : k + self.edges]), torch.sigmoid(states[:, k + self.edges :])
        return self.weight * torch.relu(without - given).sum()


class HierCDF(NeuralModel):
    """Mastery conditioned on prerequisites, with a chance of each skill given its parents for each student.

    Parameters
    ----------
    hierarchy : sequence of (int, int), optional
        Pairs (skill, skill that builds on it); default: ``prerequisites`` of the data.
    hidden : int
        Width of the meeting of mastery and difficulty (edustudio's is 1).
    form : {"mirt", "irt", "ncd"}
    weight : float
        Of the loss sum relu(c- - c+): without a parent a skill should not be likelier.
    positive : {"abs", "clip"}
    epochs, lr, batch_size, weight_decay, stopping, patience, seed, device, checkpoint
        See `NeuralModel`.

    Raises
    ------
    CyclicHierarchy
    """

    def __init__(
        self,
        hierarchy: Sequence[tuple[int, int]] | None = None,
        hidden: int = 16,
        form: str = "mirt",
        weight: float = 0.001,
        positive: str = "abs",
        epochs: int = 200,
        lr: float = 0.002,
        batch_size: int | None = None,
        weight_decay: float = 0.0,
        stopping: str = "valid_logloss",
        patience: int = 10,
        seed: int = 0,
        device: str = "cpu",
        checkpoint: str | None = None,
    ) -> None:
        super().__init__(epochs, lr, batch_size, weight_decay, stopping, patience, seed, device, checkpoint)
        self.hierarchy = hierarchy
        self.hidden = hidden
        self.form = form
        self.weight = weight
        self.positive = positive

    def _fit(self, data: ResponseData, valid: ResponseData | None) -> None:
        self.edges_ = [list(e) for e in (data.prerequisites if self.hierarchy is None else self.hierarchy)]
        super()._fit(data, valid)

    def _head(self, q: Tensor) -> Head:
        choice(self.positive, POSITIVE, "way to keep weights positive")
        names = [str(n) for n in getattr(self, "kc_names_", [])] or None
        hierarchy = Hierarchy(q.shape[1], [(a, b) for a, b in self.edges_], names)
        return HierCDFHead(q, hierarchy, self.hidden, choice(self.form, FORMS, "form"), self.positive, self.weight)
