"""Agreement of rankings, of difficulties with ratings, of classifications with truth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import kendalltau

from assay.diagnosis.errors import DiagnosisError

Ratings = Sequence[tuple[int, int, float]]


def pairwise_accuracy(score: Float[np.ndarray, " items"], ratings: Ratings) -> float:
    """Share of rated pairs (a, b, how much harder b is) that a difficulty orders alike; ties of the rating are left
    out, ties of the
    score count half.

    >>> pairwise_accuracy(np.array([0.1, 0.5, 0.5]), [(0, 1, 2.0), (1, 2, 1.0), (0, 2, 0.0)])
    0.75
    """
    a, b, r = _columns(ratings)
    keep = r != 0
    if not keep.any():
        return float("nan")
    d = np.sign(score[b[keep]] - score[a[keep]])
    return float(np.mean(np.where(d == 0, 0.5, d == np.sign(r[keep]))))


def difficulty_agreement(score: Float[np.ndarray, " items"], ratings: Ratings) -> dict[str, float]:
    """Kendall's tau-b of difficulty differences with ratings, pairwise accuracy, and how many pairs were used."""
    a, b, r = _columns(ratings)
    keep = r != 0
    tau = kendalltau(score[b[keep]] - score[a[keep]], r[keep]).statistic if keep.sum() > 1 else np.nan
    return {
        "kendall_tau": float(tau),
        "pairwise_accuracy": pairwise_accuracy(score, ratings),
        "pairs": float(keep.sum()),
    }


def rank_agreement(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """Do two figures rank methods alike: Kendall's tau, whether the winner changes, and the place of the first's
    winner by the second.

    >>> rank_agreement([0.9, 0.8, 0.7], [0.5, 0.6, 0.7])
    {'kendall_tau': -1.0, 'winner_changes': 1.0, 'place_of_winner': 3.0}
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    keep = np.isfinite(a) & np.isfinite(b)
    a, b = a[keep], b[keep]
    if len(a) < 2:
        return {"kendall_tau": float("nan"), "winner_changes": float("nan"), "place_of_winner": float("nan")}
    winner = int(a.argmax())
    place = 1 + int((b > b[winner]).sum())
    return {
        "kendall_tau": float(kendalltau(a, b).statistic),
        "winner_changes": float(place > 1),
        "place_of_winner": float(place),
    }


def kappa(
    mastered: Bool[np.ndarray, "students skills"], truth: Bool[np.ndarray, "students skills"]
) -> dict[str, float]:
    """Cohen's kappa over all cells, accuracy of a skill and of the whole pattern, against known classes."""
    if mastered.shape != truth.shape:
        raise DiagnosisError(f"mastery is {list(mastered.shape)} and the truth {list(truth.shape)}")
    agree = float(np.mean(mastered == truth))
    p, t = float(mastered.mean()), float(truth.mean())
    chance = p * t + (1 - p) * (1 - t)
    return {
        "accuracy": agree,
        "kappa": (agree - chance) / (1 - chance) if chance < 1 else float("nan"),
        "pattern_accuracy": float(np.mean((mastered == truth).all(1))),
    }


def _columns(ratings: Ratings) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if not len(ratings):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    a, b, r = zip(*ratings, strict=True)
    return np.array(a, dtype=np.int64), np.array(b, dtype=np.int64), np.array(r, dtype=np.float64)
