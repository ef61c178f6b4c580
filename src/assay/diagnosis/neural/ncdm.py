"""NCDM and its kin with knowledge impact, CDMFKC."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.diagnosis.neural.base import NeuralModel, choice
from assay.diagnosis.neural.layers import Head, PosMLP, Tables

POSITIVE = ("abs", "clip")


class NCDMHead(Head):
    """x = disc_j * q_j ∘ (mastery - sig(B_j)), then non-negative layers (NCDM, AAAI 2020)."""

    def __init__(
        self,
        q: Tensor,
        hidden: tuple[int, ...],
        dropout: float,
        scale: float,
        positive: str,
        activation: str = "sigmoid",
    ) -> None:
        super().__init__(q, q.shape[1])
        k = q.shape[1]
        self.table("difficulty", k)
        self.table("discrimination", 1)
        self.scale = scale
        self.layers = PosMLP((k, *hidden, 1), dropout=dropout, mode=positive, activation=activation)

    def from_mastery(self, mastery: Tensor, item: Tensor, tables: Tables | None = None) -> Tensor:
        disc = self.scale * torch.sigmoid(self.row("discrimination", item, tables))
        difficulty = torch.sigmoid(self.row("difficulty", item, tables))
        logit: Tensor = self.layers(disc * (mastery - difficulty) * self.q[item])
        return logit


class NCDM(NeuralModel):
    """Neural cognitive diagnosis (Wang et al., AAAI 2020): mastery and difficulty a skill, met by non-negative layers.

    Parameters
    ----------
    hidden : tuple of int
    dropout : float
    scale : float
        Factor of the discrimination, 1 or 10.
    positive : {"abs", "clip"}
        How weights are kept non-negative.
    epochs, lr, batch_size, weight_decay, stopping, patience, seed, device, checkpoint
        See `NeuralModel`.

    Examples
    --------
    >>> from assay.diagnosis import NCDM, simulate_platform
    >>> split = simulate_platform(200, 20, 3, density=1.0, seed=0).data.split("student", seed=0)
    >>> model = NCDM(hidden=(32, 16), dropout=0.0, lr=0.02, stopping="fixed(5)").fit(split.train)
    >>> model.mastery_.shape, len(model.history_), bool(model.history_[-1, 0] < model.history_[0, 0])
    ((200, 3), 5, True)
    """

    def __init__(
        self,
        hidden: tuple[int, ...] = (512, 256),
        dropout: float = 0.5,
        scale: float = 1.0,
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
        self.hidden = hidden
        self.dropout = dropout
        self.scale = scale
        self.positive = positive

    def _head(self, q: Tensor) -> Head:
        return NCDMHead(
            q,
            tuple(self.hidden),
            self.dropout,
            self.scale,
            choice(self.positive, POSITIVE, "way to keep weights positive"),
        )


class CDMFKCHead(NCDMHead):
    """x = disc (mastery + g - sig(B)) ∘ q, with impact g = sig(.5 sig(h_j) + .5 sig(B_j) sig(D_j)) (CDMFKC 2022)."""

    def __init__(self, q: Tensor, hidden: tuple[int, ...], dropout: float, scale: float, positive: str) -> None:
        super().__init__(q, hidden, dropout, scale, positive)
        self.table("impact", q.shape[1])

    def from_mastery(self, mastery: Tensor, item: Tensor, tables: Tables | None = None) -> Tensor:
        d = torch.sigmoid(self.row("discrimination", item, tables))
        b = torch.sigmoid(self.row("difficulty", item, tables))
        g = torch.sigmoid(0.5 * torch.sigmoid(self.row("impact", item, tables)) + 0.5 * b * d)
        logit: Tensor = self.layers(self.scale * d * (mastery + g - b) * self.q[item])
        return logit


class CDMFKC(NCDM):
    """NCDM with an impact of each skill on each item (Li et al. 2022); parameters as in `NCDM`."""

    def _head(self, q: Tensor) -> Head:
        return CDMFKCHead(
            q,
            tuple(self.hidden),
            self.dropout,
            self.scale,
            choice(self.positive, POSITIVE, "way to keep weights positive"),
        )
