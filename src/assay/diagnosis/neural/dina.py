"""DINA by gradient: any number of skills, answers in batches."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.diagnosis.neural.base import NeuralModel
from assay.diagnosis.neural.layers import Head, Tables

HOTTEST, COLDEST = 1.0, 0.1


class GradientDINAHead(Head):
    """P = (1 - s)^n g^(1 - n), n = prod_k sig(theta_k / T)^q_jk; s and g in (0, 1/2), so P never falls with a mastery.

    T goes from 1 to .1 by equal factors over ``anneal`` epochs: soft skills that gradients pass through become nearly
    0 or 1. An item whose skills are all mastered is right with 1 - s, one with a skill at 0 with g (a straight-through
    estimator of the product leaves a skill that is not mastered at 1/2).
    """

    temperature: Tensor

    def __init__(self, q: Tensor, anneal: int) -> None:
        super().__init__(q, q.shape[1])
        self.table("guess", 1)
        self.table("slip", 1)
        with torch.no_grad():
            for table in self.items.values():
                table.sub_(0.4)  # both near .2
        self.register_buffer("temperature", torch.tensor(HOTTEST))
        self.factor = (COLDEST / HOTTEST) ** (1 / max(1, anneal))

    def next_epoch(self) -> None:
        self.temperature.mul_(self.factor).clamp_(min=COLDEST)

    def mastery(self, states: Tensor) -> Tensor:
        return torch.sigmoid(states / self.temperature)

    def item_params(self, item: Tensor, tables: Tables | None = None) -> tuple[Tensor, Tensor]:
        """Guess and slip."""
        guess, slip = (torch.sigmoid(self.row(name, item, tables).squeeze(1)) / 2 for name in ("guess", "slip"))
        return guess, slip

    def from_mastery(self, mastery: Tensor, item: Tensor, tables: Tables | None = None) -> Tensor:
        guess, slip = self.item_params(item, tables)
        n = torch.exp((torch.log(mastery.clamp_min(1e-12)) * self.q[item]).sum(1))
        return torch.logit(torch.exp(n * torch.log1p(-slip) + (1 - n) * torch.log(guess)), eps=1e-6)


class GradientDINA(NeuralModel):
    """DINA with abilities behind the skills, trained like a network: for more skills than `DINA` can enumerate.

    `DINA` (exact up to 15 skills, variational beyond) is the better estimate where it fits in memory; this form scales
    with answers, not with classes. Its guesses and slips come out too small, because skills between 0 and 1 explain
    part of the noise.

    Parameters
    ----------
    anneal : int
        Epochs over which the skills harden.
    epochs, lr, batch_size, weight_decay, stopping, patience, seed, device, checkpoint
        See `NeuralModel`.

    Attributes
    ----------
    item_params_ : float64[J, 2]
        Guess and slip.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.diagnosis import GradientDINA, simulate_platform
    >>> made = simulate_platform(200, 36, 18, density=1.0, slip=0.1, guess=0.1, seed=0)
    >>> model = GradientDINA(lr=0.05, stopping="fixed(20)").fit(made.data)
    >>> bool(np.mean((model.mastery_ > 0.5) == (made.alpha > 0.5)) > 0.8)
    True
    """

    def __init__(
        self,
        anneal: int = 40,
        epochs: int = 200,
        lr: float = 0.02,
        batch_size: int | None = None,
        weight_decay: float = 0.0,
        stopping: str = "valid_logloss",
        patience: int = 10,
        seed: int = 0,
        device: str = "cpu",
        checkpoint: str | None = None,
    ) -> None:
        super().__init__(epochs, lr, batch_size, weight_decay, stopping, patience, seed, device, checkpoint)
        self.anneal = anneal

    def _head(self, q: Tensor) -> Head:
        return GradientDINAHead(q, self.anneal)

    @property
    def item_params_(self) -> NDArray[np.float64]:
        head = self.network
        assert isinstance(head, GradientDINAHead)
        with torch.no_grad():
            both = head.item_params(torch.arange(len(self.q_), device=self.device))
        return torch.stack(both, dim=1).numpy(force=True).astype(np.float64)
