"""Figures of distributions over numbers."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr

Rows = Float[np.ndarray, " rows"]


def crps_gaussian(mean: Rows, sd: Rows, y: Rows) -> Rows:
    """Continuous ranked probability score of a normal forecast, in the unit of y (Gneiting and Raftery, 2007).

    >>> crps_gaussian(np.array([0.0]), np.array([1.0]), np.array([0.0])).round(6).tolist()
    [0.233695]
    """
    z = (y - mean) / sd
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return np.asarray(sd * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi)))


def crps_sample(draws: Float[np.ndarray, "rows draws"], y: Rows) -> Rows:
    """CRPS of an empirical distribution: ``mean |x - y| - 1/2 mean |x - x'|``."""
    x = np.sort(draws, axis=1)
    n = x.shape[1]
    spread = x @ (2 * np.arange(1, n + 1) - n - 1) / n**2
    return np.asarray(np.abs(x - y[:, None]).mean(1) - spread)


def interval_score(lower: Rows, upper: Rows, y: Rows, alpha: float) -> Rows:
    """Width plus ``2 / alpha`` times the distance by which y is missed (Gneiting and Raftery, 2007, eq. 43).

    >>> interval_score(np.array([0.0]), np.array([1.0]), np.array([1.5]), 0.1).tolist()
    [11.0]
    """
    return np.asarray((upper - lower) + 2 / alpha * (np.maximum(lower - y, 0) + np.maximum(y - upper, 0)))


def pit(mean: Rows, sd: Rows, y: Rows) -> Rows:
    """Probability integral transform of normal forecasts: uniform where they are calibrated."""
    return np.asarray(ndtr((y - mean) / sd))
