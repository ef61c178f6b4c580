"""Hedge weights over the heads of a network whose every layer predicts."""

from __future__ import annotations

from typing import Any

import torch

from assay.streams.jit import njit


@njit
def hedge(weights, losses, discount, smoothing):
    """One Hedge step in place: ``a_l <- max(a_l b^loss_l, s / L)``, then renormalise.

    The sum is 1 afterwards, and no weight is below ``s / (L (1 + s))``: before the last division every weight is at
    least s / L, and their sum at most 1 + s (Sahoo et al., IJCAI 2018, algorithm 1, with the floor of equation 9).

    Parameters
    ----------
    weights, losses : float64[L]
    discount : float
        b, in (0, 1).
    smoothing : float
        s, in [0, 1].

    Examples
    --------
    >>> import numpy as np
    >>> weights = np.array([0.5, 0.5])
    >>> hedge(weights, np.array([0.0, 1.0]), 0.5, 0.2)
    >>> weights.round(4).tolist()
    [0.6667, 0.3333]
    """
    floor = smoothing / len(weights)
    total = 0.0
    for l in range(len(weights)):
        weights[l] = max(weights[l] * discount ** losses[l], floor)
        total += weights[l]
    for l in range(len(weights)):
        weights[l] /= total


def hedge_tensor(weights: torch.Tensor, losses: torch.Tensor, discount: float, smoothing: float) -> Any:
    """`hedge` on tensors; returns the new weights."""
    weights = torch.clamp(weights * discount**losses, min=smoothing / len(weights))
    return weights / weights.sum()
