"""What a trained sampler gives: samples with their weights, and a report."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from assay.gflownets.envs.base import State
from assay.gflownets.metrics import Bounds


class Samples(NamedTuple):
    """What was sampled.

    Attributes
    ----------
    objects : list
    log_r, log_pf, log_pb : float64[n]
        Log reward, and log probability of the trajectory forward and backward.
    log_w : float64[n]
        Importance weights log R + log P_B - log P_F: their exponentials average to Z.
    lengths : int[n]
    states : State
    """

    objects: list[Any]
    log_r: Float[np.ndarray, " n"]
    log_pf: Float[np.ndarray, " n"]
    log_pb: Float[np.ndarray, " n"]
    log_w: Float[np.ndarray, " n"]
    lengths: Int[np.ndarray, " n"]
    states: State

    def resample(self, n: int, rng: np.random.Generator) -> list[Any]:
        """Objects drawn by importance weight: nearer to the target than the policy is."""
        w = np.exp(self.log_w - self.log_w.max())
        return [self.objects[i] for i in rng.choice(len(w), n, p=w / w.sum())]


class Report(NamedTuple):
    """Where training stands.

    Attributes
    ----------
    steps : int
    seconds : float
        Spent in training.
    log_z : float
        The model's own.
    bounds : Bounds
    mean_log_r, best_log_r : float
    total_variation : float or None
        Exact, where the space is small enough.
    exact_log_z : float or None
    """

    steps: int
    seconds: float
    log_z: float
    bounds: Bounds
    mean_log_r: float
    best_log_r: float
    total_variation: float | None
    exact_log_z: float | None

    def __str__(self) -> str:
        b = self.bounds
        lines = [
            f"updates          {self.steps:,} ({self.seconds:.1f} s)",
            f"log Z            {self.log_z:.4f}"
            + ("" if self.exact_log_z is None else f" (exact {self.exact_log_z:.4f})"),
            f"bounds           {b.lower.value:.4f} +- {b.lower.se:.4f} .. {b.upper.value:.4f} +- {b.upper.se:.4f}",
            f"log Z, weighted  {b.log_z.value:.4f} +- {b.log_z.se:.4f} ({b.effective_samples:.0f} effective of "
            f"{b.lower.n})",
            f"total variation  at most about {b.total_variation.value:.4f} +- {b.total_variation.se:.4f}"
            + ("" if self.total_variation is None else f" (exact {self.total_variation:.4f})"),
            f"log reward       mean {self.mean_log_r:.4f}, best {self.best_log_r:.4f}",
        ]
        return "\n".join(lines)
