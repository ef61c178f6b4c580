"""Adaptive conformal inference for streams that drift (Gibbs and Candes, NeurIPS 2021)."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.uncertainty.conformal.quantile import check_alpha
from assay.uncertainty.errors import UncertaintyError


class AdaptiveConformal:
    """The level is moved after each row, ``alpha_t+1 = alpha_t + gamma (alpha - miss_t)``, so long-run coverage holds
    under drift.

    Scores are kept in a window. `threshold` is what a set is made from; then tell the score of what happened with
    `update`.

    Parameters
    ----------
    alpha, gamma : float
        Long-run share of misses; step size.
    window : int
        Scores kept.

    Attributes
    ----------
    level : float
        Current alpha_t; below 0 the next set is infinite, above 1 empty.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> method = AdaptiveConformal(alpha=0.1, gamma=0.02, window=200)
    >>> # five times wider after row 2000
    >>> scores = np.abs(rng.normal(size=4000)) * np.where(np.arange(4000) < 2000, 1, 5)
    >>> misses = [method.update(float(s)) for s in scores]
    >>> round(float(np.mean(misses[2000:])), 2)
    0.1
    """

    def __init__(self, alpha: float = 0.1, *, gamma: float = 0.01, window: int = 500) -> None:
        check_alpha(alpha)
        if not gamma >= 0 or window < 1:
            raise UncertaintyError(f"gamma is at least 0 and window at least 1, not {gamma} and {window}")
        self.alpha, self.gamma, self.window = alpha, gamma, window
        self.level = alpha
        self._scores: deque[float] = deque(maxlen=window)

    def threshold(self) -> float:
        """Scores up to this are in the next set."""
        n = len(self._scores)
        if self.level >= 1:
            return -np.inf
        k = int(np.ceil((n + 1) * (1 - self.level) - 1e-9))
        if k > n:
            return np.inf
        return float(np.partition(np.fromiter(self._scores, np.float64, n), k - 1)[k - 1])

    def update(self, score: float) -> bool:
        """Tell the score of the true outcome; returns whether the set had missed it."""
        if not np.isfinite(score):
            raise UncertaintyError(f"the score of row {len(self._scores)} is {score}")
        missed = bool(score > self.threshold())
        self.level += self.gamma * (self.alpha - missed)
        self._scores.append(float(score))
        return missed

    def run(self, scores: ArrayLike) -> dict[str, NDArray[Any]]:
        """Over a whole stream: thresholds, misses and levels, row by row."""
        thresholds, misses, levels = [], [], []
        for s in np.asarray(scores, dtype=np.float64):
            thresholds.append(self.threshold())
            levels.append(self.level)
            misses.append(self.update(float(s)))
        return {"threshold": np.array(thresholds), "miss": np.array(misses), "level": np.array(levels)}
