"""The common way to look for bugs, as a baseline: watch the loss curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass
class LossMonitor:
    """Alarm where a loss curve leaves the spread of reference curves with other seeds.

    Parameters
    ----------
    sigmas : float
        Width of the band in standard deviations over seeds.
    window : int
        Steps over which curves are averaged first.
    patience : int
        Averaged steps outside the band, one after the other, that raise the alarm.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> seeds = 5 + 0.01 * rng.standard_normal((3, 200))
    >>> monitor = LossMonitor().fit(seeds)
    >>> monitor.alarm(5 + 0.01 * rng.standard_normal(200)), monitor.alarm(np.full(200, 5.5))
    (None, 0)
    """

    sigmas: float = 3.0
    window: int = 10
    patience: int = 3

    def fit(self, curves: Float[np.ndarray, "seeds steps"]) -> LossMonitor:
        """Learn the band from reference runs of several seeds."""
        smooth = self._smooth(np.asarray(curves, float))
        self.mean_ = smooth.mean(0)
        self.spread_ = smooth.std(0, ddof=1) if len(smooth) > 1 else np.zeros(smooth.shape[1])
        return self

    def alarm(self, curve: Sequence[float] | np.ndarray) -> int | None:
        """First (averaged) step of a run outside the band; None where there is none."""
        smooth = self._smooth(np.asarray(curve, float)[None])[0]
        n = min(len(smooth), len(self.mean_))
        outside = ~(np.abs(smooth[:n] - self.mean_[:n]) <= self.sigmas * self.spread_[:n])
        run = 0
        for i, out in enumerate(outside):
            run = run + 1 if out else 0
            if run >= min(self.patience, n):
                return i - run + 1
        return None

    def _smooth(self, curves: np.ndarray) -> np.ndarray:
        width = min(self.window, curves.shape[1])
        usable = curves.shape[1] // width * width
        return curves[:, :usable].reshape(len(curves), -1, width).mean(-1)
