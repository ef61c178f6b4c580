"""Properties of a diagnosis: monotone, identifiable, not smoothed away, reliable, borne out by held-out answers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.stats import spearmanr

from assay.diagnosis.errors import UndefinedMetric
from assay.diagnosis.responses import ResponseData

if TYPE_CHECKING:
    from assay.diagnosis.estimator import DiagnosisModel

Mastery = Float[np.ndarray, "students skills"]


def monotonicity_violations(
    predict: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]],
    mastery: Mastery,
    q: NDArray[np.bool_],
    rng: np.random.Generator,
    *,
    probes: int = 10_000,
    step: float = 0.05,
    tolerance: float = 1e-6,
) -> float:
    """Share of probes (student, item, required skill) where raising the skill's mastery lowers the prediction.

    Parameters
    ----------
    predict : callable
        ``(mastery[m, K], item[m]) -> probability[m]``: the model's head.
    mastery : float[S, K]
        Where probes start.
    step : float
        How far mastery is raised (to at most 1).
    """
    item, skill = np.nonzero(q)
    at = rng.integers(0, len(item), probes)
    low = mastery[rng.integers(0, len(mastery), probes)].astype(np.float64).copy()
    high = low.copy()
    high[np.arange(probes), skill[at]] = np.minimum(1, high[np.arange(probes), skill[at]] + step)
    return float(np.mean(predict(high, item[at]) < predict(low, item[at]) - tolerance))


def identifiability(mastery: Mastery, data: ResponseData) -> float:
    """Mean of 1 / (1 + ||F_a - F_b||_1)^2 over pairs of students with identical answers (ID-CDF); NaN if there is no
    such pair.
    """
    order = np.lexsort((data.item, data.student))
    key = data.item[order].astype(np.int64) * 2 + data.correct[order]
    bounds = np.searchsorted(data.student[order], np.arange(data.n_students + 1))
    groups: dict[bytes, list[int]] = {}
    for i in range(data.n_students):
        if bounds[i] < bounds[i + 1]:
            groups.setdefault(key[bounds[i] : bounds[i + 1]].tobytes(), []).append(i)
    total = pairs = 0.0
    for members in groups.values():
        if len(members) > 1:
            part = mastery[members].astype(np.float64)
            distance = np.abs(part[:, None, :] - part[None, :, :]).sum(-1)
            upper = np.triu_indices(len(members), 1)
            total += float((1 / (1 + distance[upper]) ** 2).sum())
            pairs += len(upper[0])
    return total / pairs if pairs else float("nan")


def mean_distance(
    mastery: Mastery, rng: np.random.Generator | None = None, *, samples: int = 100_000, block: int = 512
) -> float:
    """Mean L2 distance between students (MAD): exact up to 3,000 students, else over sampled pairs. Near 0: smoothed
    away.
    """
    f = mastery.astype(np.float64)
    n = len(f)
    if n < 2:
        return float("nan")
    if n <= 3000 or rng is None:
        square = (f**2).sum(1)
        total = 0.0
        for start in range(0, n, block):
            part = slice(start, start + block)
            d2 = square[part, None] + square[None, :] - 2 * f[part] @ f.T
            total += float(np.sqrt(np.maximum(d2, 0)).sum())
        return total / (n * (n - 1))
    a, b = rng.integers(0, n, samples), rng.integers(0, n - 1, samples)
    b += b >= a
    return float(np.sqrt(((f[a] - f[b]) ** 2).sum(1)).mean())


def normalised_distance(mastery: Mastery, rng: np.random.Generator | None = None) -> float:
    """`mean_distance` after each skill is stretched to the range 0 to 1, over sqrt(K) (MND)."""
    low, high = mastery.min(0), mastery.max(0)
    scaled = (mastery - low) / np.maximum(high - low, 1e-12)
    return mean_distance(scaled.astype(np.float64), rng) / float(np.sqrt(mastery.shape[1]))


def split_half_reliability(
    model: DiagnosisModel, data: ResponseData, rng: np.random.Generator
) -> Float[np.ndarray, " skills"]:
    """Reliability of each skill: fit on two random halves of each student's answers, Spearman between halves, stepped
    up to full
    length by Spearman-Brown; NaN where a half is constant."""
    order = rng.permutation(len(data))
    order = order[np.argsort(data.student[order], kind="stable")]
    start = np.searchsorted(data.student[order], np.arange(data.n_students))
    place = np.arange(len(data)) - start[data.student[order]]
    half = np.empty(len(data), dtype=bool)
    half[order] = place % 2 == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        first, second = (model.clone().fit(data.take(mask)).mastery_ for mask in (half, ~half))
    return np.array([_stepped_up(_spearman(first[:, k], second[:, k])) for k in range(data.n_kcs)])


def mastery_vs_heldout(mastery: Mastery, data: ResponseData, *, at_least: int = 3) -> float:
    """Mean over skills of the Spearman correlation of mastery with held-out accuracy on the skill's items, over
    students with enough answers.
    """
    rows, skill = data.per_skill()
    cell = data.student[rows].astype(np.int64) * data.n_kcs + skill
    size = data.n_students * data.n_kcs
    n = np.bincount(cell, minlength=size).reshape(-1, data.n_kcs)
    right = np.bincount(cell, data.correct[rows], size).reshape(-1, data.n_kcs)
    values = []
    for k in range(data.n_kcs):
        enough = n[:, k] >= at_least
        if enough.sum() > 2:
            values.append(_spearman(mastery[enough, k], right[enough, k] / n[enough, k]))
    values = [v for v in values if np.isfinite(v)]
    if not values:
        warnings.warn(f"no skill has students with {at_least} held-out answers", UndefinedMetric, stacklevel=2)
        return float("nan")
    return float(np.mean(values))


def _spearman(a: NDArray[Any], b: NDArray[Any]) -> float:
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(spearmanr(a, b).statistic)


def _stepped_up(r: float) -> float:
    return 2 * r / (1 + r) if r > -1 else float("nan")
