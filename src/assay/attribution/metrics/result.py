"""`MetricResult`: a score with its interval, chance level, ceiling and normalised form, and the paired test of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.attribution.errors import AttributionError, NoEligibleSamples, ShapeMismatch

REPLICATES = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class MetricResult:
    """One metric of one method.

    Attributes
    ----------
    name : str
    score : float
    per_sample : array (T,)
        Value of each test row (bad row, for mislabelling), NaN where it was dropped.
    ci : tuple of float
        95 % interval.
    chance : float
        Expected score of random attributions.
    ceiling : float
        Best score that can be had (for metrics where low is good the lowest); NaN where it is not known.
    n_used, n_dropped : int
    direction : {"higher", "lower"}
    extras : dict
        Further figures (average precision, precision at p, a curve).
    """

    name: str
    score: float
    per_sample: Float[np.ndarray, " t"]
    ci: tuple[float, float]
    chance: float
    ceiling: float
    n_used: int
    n_dropped: int = 0
    direction: str = "higher"
    extras: dict[str, Any] = field(default_factory=dict)

    @property
    def normalized(self) -> float:
        """``(score - chance) / (ceiling - chance)``, not clipped; NaN without a ceiling."""
        width = self.ceiling - self.chance
        return float((self.score - self.chance) / width) if width != 0 else float("nan")

    def __str__(self) -> str:
        return (
            f"{self.name} {self.score:.3f} [{self.ci[0]:.3f}, {self.ci[1]:.3f}], chance {self.chance:.3f}, "
            f"ceiling {self.ceiling:.3f}, normalised {self.normalized:.3f}, {self.n_used} rows"
            + (f" ({self.n_dropped} dropped)" if self.n_dropped else "")
        )

    def to_json(self) -> dict[str, Any]:
        """Plain form, without the values of the rows."""
        return {
            "name": self.name, "score": self.score, "ci": list(self.ci), "chance": self.chance,
            "ceiling": None if np.isnan(self.ceiling) else self.ceiling,
            "normalized": None if np.isnan(self.normalized) else self.normalized, "n_used": self.n_used,
            "n_dropped": self.n_dropped, "direction": self.direction,
        }  # fmt: skip


def from_rows(
    name: str, per_sample: Any, chance: float, ceiling: float, *, direction: str = "higher",
    extras: dict[str, Any] | None = None, why_dropped: str = "every test row was filtered out",
) -> MetricResult:  # fmt: skip
    """A result whose score is the mean over test rows, with a bootstrap interval over them.

    Raises
    ------
    NoEligibleSamples
        If no row is left.
    """
    values = np.asarray(per_sample, dtype=float)
    used = ~np.isnan(values)
    if not used.any():
        raise NoEligibleSamples(f"{name}: {why_dropped} ({len(values)} rows)")
    kept = values[used]
    return MetricResult(
        name, float(kept.mean()), values, bootstrap(kept), float(chance), float(ceiling), int(used.sum()),
        int((~used).sum()), direction, extras or {},
    )  # fmt: skip


def bootstrap(
    values: Any,
    statistic: Callable[[np.ndarray], np.ndarray] | None = None,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of the mean (or of ``statistic``, applied along the last axis), resampling the values.

    >>> low, high = bootstrap([0.0, 1.0] * 50)
    >>> 0.39 < low < 0.5 < high < 0.61
    True
    """
    kept = np.asarray(values, dtype=float)
    rng = np.random.default_rng(seed)
    if statistic is None:
        draws = _resampled_means(kept, replicates, rng)
    else:
        draws = statistic(kept[rng.integers(0, len(kept), (replicates, len(kept)))])
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _resampled_means(values: np.ndarray, replicates: int, rng: np.random.Generator) -> np.ndarray:
    """Means of samples with replacement, a few hundred samples at a time."""
    step = max(1, 1_000_000 // len(values))
    parts = []
    for low in range(0, replicates, step):
        size = (min(step, replicates - low), len(values))
        parts.append(values[rng.integers(0, len(values), size, dtype=np.int32)].mean(1))
    return np.concatenate(parts)


@dataclass(frozen=True)
class PairedTest:
    """Difference of two methods on the same test rows (first minus second), its interval and two-sided p-value."""

    difference: float
    ci: tuple[float, float]
    p_value: float
    n: int


def paired_test(a: MetricResult, b: MetricResult, replicates: int = 10_000, seed: int = 0) -> PairedTest:
    """Paired bootstrap over the test rows that both used.

    The p-value is twice the smaller share of replicates on either side of zero, at least ``1 / replicates``.

    Raises
    ------
    ShapeMismatch
        If the two have other numbers of rows, or none in common.
    AttributionError
        If they are of different metrics.

    Examples
    --------
    >>> one = from_rows("x", [0.2, 0.4, 0.9, 0.7], 0.0, 1.0)
    >>> paired_test(one, one).p_value
    1.0
    """
    if a.name != b.name:
        raise AttributionError(f"a paired test needs one metric, not {a.name!r} and {b.name!r}")
    if len(a.per_sample) != len(b.per_sample):
        raise ShapeMismatch(f"{len(a.per_sample)} and {len(b.per_sample)} test rows: not the same ones")
    gaps = a.per_sample - b.per_sample
    gaps = gaps[~np.isnan(gaps)]
    if not len(gaps):
        raise ShapeMismatch("the two results have no test row in common")
    if (gaps == 0).all():
        return PairedTest(0.0, (0.0, 0.0), 1.0, len(gaps))
    rng = np.random.default_rng(seed)
    draws = _resampled_means(gaps, replicates, rng)
    p = 2 * min((draws <= 0).mean(), (draws >= 0).mean())
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return PairedTest(float(gaps.mean()), (float(low), float(high)), float(np.clip(p, 1 / replicates, 1)), len(gaps))


def paired_p_values(
    results: Sequence[MetricResult], replicates: int = 10_000, seed: int = 0
) -> dict[tuple[int, int], float]:
    """Two-sided p-values of all pairs of results of one metric, from one set of resampled test rows.

    Pairs whose rows are not the same in number, or have none in common, are left out. The least p-value that can come
    out is ``1 / replicates``; take more replicates than there are pairs over the level.
    """
    found: dict[tuple[int, int], float] = {}
    first = results[0].per_sample
    used = ~np.isnan(first)
    same = [len(r.per_sample) == len(first) and (~np.isnan(r.per_sample) == used).all() for r in results]
    values = np.stack([r.per_sample[used] for r, fine in zip(results, same, strict=True) if fine])
    place = np.cumsum(same) - 1
    draws = np.empty((replicates, len(values)))
    rng = np.random.default_rng(seed)
    step = max(1, 1_000_000 // values.shape[1])
    for low in range(0, replicates, step):
        rows = min(step, replicates - low)
        index = rng.integers(0, values.shape[1], (rows, values.shape[1]))
        index += values.shape[1] * np.arange(rows)[:, None]
        counts = np.bincount(index.ravel(), minlength=rows * values.shape[1]).reshape(rows, -1)
        draws[low : low + rows] = counts @ values.T
    for i, a in enumerate(results):
        for j in range(i + 1, len(results)):
            b = results[j]
            if same[i] and same[j]:
                gap = draws[:, place[i]] - draws[:, place[j]]
                p = 2 * min((gap <= 0).mean(), (gap >= 0).mean())
                found[i, j] = float(np.clip(p, 1 / replicates, 1))
            elif len(a.per_sample) == len(b.per_sample) and not np.isnan(a.per_sample - b.per_sample).all():
                found[i, j] = paired_test(a, b, replicates, seed).p_value
    return found


def holm(p_values: Any) -> Float[np.ndarray, " k"]:
    """p-values adjusted for their number by Holm's step-down method (Holm, 1979).

    >>> holm([0.04, 0.01, 0.02]).round(3).tolist()
    [0.04, 0.03, 0.04]
    """
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    out = np.empty_like(p)
    out[order] = np.minimum(stepped, 1)
    return out


def as_matrix(scores: Any, X_test: Any = None, targets: Any = None, *, n_train: int | None = None) -> np.ndarray:
    """A (T, N) matrix, or what an attributor says about test rows.

    Raises
    ------
    ShapeMismatch
    NonFiniteAttribution
    """
    from assay.attribution.errors import NonFiniteAttribution

    if hasattr(scores, "attribute"):
        if X_test is None:
            raise AttributionError("an attributor needs X_test; or give its matrix")
        scores = scores.attribute(X_test, targets)
    if hasattr(scores, "detach"):
        scores = scores.detach().cpu().numpy()
    matrix = np.asarray(scores)
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu":
        raise ShapeMismatch(f"attributions are numbers (test rows, training rows), not {matrix.dtype}{matrix.shape}")
    if n_train is not None and matrix.shape[1] != n_train:
        turned = "; it looks transposed" if matrix.shape[0] == n_train else ""
        raise ShapeMismatch(f"attributions are for {matrix.shape[1]} training rows, there are {n_train}{turned}")
    finite = np.isfinite(matrix).all(1)
    if not finite.all():
        bad = np.flatnonzero(~finite)
        raise NonFiniteAttribution(
            f"attributions of test rows {bad[:5].tolist()} are not finite ({len(bad)} rows in all)"
        )
    return matrix


def check_rows(what: str, values: Sequence[Any] | np.ndarray, n: int) -> np.ndarray:
    """An array with as many entries as there are rows.

    Raises
    ------
    ShapeMismatch
    """
    array = np.asarray(values.cpu() if hasattr(values, "cpu") else values)
    if array.ndim != 1 or len(array) != n:
        raise ShapeMismatch(f"{what} has shape {array.shape}, expected ({n},)")
    return array
