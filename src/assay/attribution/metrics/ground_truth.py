"""Metrics that retrain: LDS and its noise ceiling, leave-one-out correlation, brittleness, removal and addition
curves."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import kendalltau, rankdata

from assay.attribution.chunks import GroundTruth
from assay.attribution.errors import AttributionError, ConstantOutput, ConstantOutputWarning, ShapeMismatch
from assay.attribution.farm import RetrainingFarm
from assay.attribution.metrics.result import MetricResult, as_matrix, check_rows, from_rows
from assay.attribution.subsets import leave_out


def rank_correlation(a: Any, b: Any, kind: str = "spearman") -> Float[np.ndarray, " rows"]:
    """Correlation of each row of a with the same row of b; NaN where one of them does not vary.

    Examples
    --------
    >>> rank_correlation([[1, 2, 3], [1, 1, 1]], [[10, 20, 15], [1, 2, 3]]).tolist()
    [0.5, nan]
    """
    a, b = np.atleast_2d(np.asarray(a, dtype=float)), np.atleast_2d(np.asarray(b, dtype=float))
    if kind == "kendall":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.array([kendalltau(x, y).statistic for x, y in zip(a, b, strict=True)])
    if kind != "spearman":
        raise AttributionError(f"correlation is spearman or kendall, not {kind!r}")
    x, y = rankdata(a, axis=1), rankdata(b, axis=1)
    x, y = x - x.mean(1, keepdims=True), y - y.mean(1, keepdims=True)
    bottom = np.sqrt((x**2).sum(1) * (y**2).sum(1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(bottom > 0, np.clip((x * y).sum(1) / bottom, -1, 1), np.nan)


def noise_ceiling(truth: GroundTruth, kind: str = "spearman") -> tuple[float, float]:
    """Reliability of the ground truth and the LDS that a perfect method would reach.

    r is the mean over test rows (and pairs of seeds) of the correlation between outputs of the same subsets trained
    from different seeds. The outputs of one training correlate with their expectation by ``sqrt(r)``; the mean of k
    trainings by ``sqrt(k r / (1 + (k - 1) r))`` (Spearman-Brown).

    Returns
    -------
    reliability : float
        r.
    ceiling : float
        For the mean of the trainings that ``truth`` holds.

    Raises
    ------
    AttributionError
        If there is one training a subset only.
    """
    k = len(truth.repeats)
    if k < 2:
        raise AttributionError("the noise ceiling needs each subset trained from two seeds: RetrainingFarm(n_seeds=2)")
    pairs = [rank_correlation(truth.repeats[i].T, truth.repeats[j].T, kind) for i in range(k) for j in range(i + 1, k)]
    r = float(np.nanmean(pairs))
    return r, float(np.sqrt(max(k * r / (1 + (k - 1) * r), 0.0)))


def lds(
    attributions: Any, truth: GroundTruth, *, X_test: Any = None, targets: Any = None, correlation: str = "spearman"
) -> MetricResult:
    """Linear datamodelling score (Park et al., 2023).

    For each test row the correlation, over subsets, of the retrained models' output with the sum of the attributions of
    the rows in the subset; the mean over test rows.

    Parameters
    ----------
    attributions : array (T, N) or Attributor
    truth : GroundTruth
        From `RetrainingFarm.run`. With ``n_seeds`` of at least 2 the ceiling is the noise ceiling, else 1.
    correlation : {"spearman", "kendall"}

    Raises
    ------
    ShapeMismatch
    ConstantOutput
        If outputs or sums do not vary for any test row; rows for which they do not are dropped, counted and warned of.

    Examples
    --------
    >>> subsets = np.array([[0, 1], [0, 2], [1, 2]], dtype=np.int32)
    >>> weight = np.array([[3.0, 1.0, -1.0]])
    >>> outputs = np.stack([weight[:, s].sum(1) for s in subsets]).astype("float32")
    >>> truth = GroundTruth(subsets, outputs, outputs[None], outputs[None], (0,), 3)
    >>> lds(weight, truth).score
    1.0
    """
    matrix = as_matrix(attributions, X_test, targets, n_train=truth.n_train)
    if len(matrix) != truth.outputs.shape[1]:
        raise ShapeMismatch(
            f"attributions are for {len(matrix)} test rows, the ground truth for {truth.outputs.shape[1]}"
        )
    predicted = truth.counts().astype(np.float64) @ matrix.T.astype(np.float64)
    # sums over a subset differ by rounding alone where all scores are equal: that is no variation
    spread = np.ptp(predicted, axis=0) <= 1e-9 * np.abs(predicted).max(0, initial=0)
    values = rank_correlation(truth.outputs.T, predicted.T, correlation)
    values[spread] = np.nan
    _warn_constant("LDS", values)
    reliability = None
    ceiling = 1.0
    if len(truth.repeats) > 1:
        reliability, ceiling = noise_ceiling(truth, correlation)
    return from_rows("lds", values, 0.0, ceiling, extras={"reliability": reliability, "subsets": len(truth.subsets)})


def _warn_constant(name: str, values: np.ndarray) -> None:
    dropped = int(np.isnan(values).sum())
    if dropped == len(values):
        raise ConstantOutput(f"{name}: outputs or scores do not vary on any of {dropped} test rows")
    if dropped:
        warnings.warn(
            f"{name}: {dropped} of {len(values)} test rows were dropped, because outputs or scores do not vary there",
            ConstantOutputWarning, stacklevel=3,
        )  # fmt: skip


def leave_one_out_truth(
    farm: RetrainingFarm, X: Any, y: Any, X_test: Any, y_test: Any, rows: Any = None
) -> tuple[Float[np.ndarray, "t r"], np.ndarray]:
    """``f - f_{-i}`` (test rows, left-out rows) by retraining, and the rows that were left out."""
    left = np.arange(len(X)) if rows is None else np.asarray(rows)
    truth = farm.run(X, y, X_test, y_test, subsets=leave_out(len(X), [[int(i)] for i in left] + [[]]))
    return (truth.outputs[-1] - truth.outputs[:-1]).T, left


def loo_correlation(
    attributions: Any, truth: Any, *, rows: Any = None, X_test: Any = None, targets: Any = None,
    correlation: str = "spearman", ceiling: float = 1.0,
) -> MetricResult:  # fmt: skip
    """Correlation of attributions with exact leave-one-out effects, over training rows, for each test row.

    Parameters
    ----------
    truth : array (T, R)
        ``f(x_t) - f_{-i}(x_t)`` from `leave_one_out_truth` or `ExactLOO`.
    rows : int array (R,), optional
        The training rows of its columns; default all.
    """
    matrix = as_matrix(attributions, X_test, targets)
    effects = np.asarray(truth, dtype=float)
    chosen = np.arange(matrix.shape[1]) if rows is None else np.asarray(rows)
    if effects.shape != (len(matrix), len(chosen)):
        raise ShapeMismatch(f"leave-one-out effects have shape {effects.shape}, expected {(len(matrix), len(chosen))}")
    values = rank_correlation(matrix[:, chosen], effects, correlation)
    _warn_constant("LOO correlation", values)
    return from_rows("loo_correlation", values, 0.0, ceiling)


def brittleness(
    attributions: Any, farm: RetrainingFarm, X: Any, y: Any, X_test: Any, y_test: Any, *, k: int | Sequence[int] = 20,
    chance_seed: int = 0, targets: Any = None,
) -> MetricResult:  # fmt: skip
    """Share of test rows whose prediction flips once their top-k proponents are removed and the model is trained again.

    Only test rows that the model on all rows predicts right count (Ilyas et al., 2022). With several k the mean is
    taken. Chance is measured: k random rows of any class are removed instead.

    Raises
    ------
    NoEligibleSamples
        If no test row is predicted right.
    """
    n = len(X)
    matrix = as_matrix(attributions, X_test, y_test if targets is None else targets, n_train=n)
    labels = check_rows("y_test", y_test, len(matrix))
    sizes = [k] if isinstance(k, int) else list(k)
    if not all(0 < s < n for s in sizes):
        raise AttributionError(f"k is at least 1 and below {n} (training rows), not {sizes}")
    order = np.argsort(-matrix, axis=1, kind="stable")
    rng = np.random.default_rng(chance_seed)
    by_size: dict[int, float] = {}
    flipped = np.zeros(len(matrix))
    lucky = np.zeros(len(matrix))
    right: np.ndarray | None = None
    for size in sizes:
        chosen = [row[:size] for row in order] + [rng.permutation(n)[:size] for _ in matrix]
        truth = farm.run(X, y, X_test, y_test, subsets=leave_out(n, [*chosen, []]))
        seen = truth.predictions[0]
        right = seen[-1] == labels
        at = np.arange(len(matrix))
        gone = seen[at, at] != labels
        flipped += gone / len(sizes)
        lucky += (seen[at + len(matrix), at] != labels) / len(sizes)
        by_size[size] = float(gone[right].mean()) if right.any() else float("nan")
    assert right is not None
    return from_rows(
        "brittleness", np.where(right, flipped, np.nan), float(lucky[right].mean()) if right.any() else 0.0, 1.0,
        extras={"by_k": by_size}, why_dropped="the model predicts no test row right",
    )  # fmt: skip


def point_removal(
    values: Any, farm: RetrainingFarm, X: Any, y: Any, X_test: Any, y_test: Any, *, mode: str = "remove_high",
    fractions: Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.5), chance_seed: int = 0,
) -> MetricResult:  # fmt: skip
    """Accuracy while training rows are removed (or added) in the order of their values, mean over the fractions.

    Parameters
    ----------
    values : array (N,) or (T, N), or Attributor
        One value a training row; a matrix is summed over its test rows.
    mode : {"remove_high", "remove_low", "add_high", "add_low"}
        Low is good for "remove_high" and "add_low", high for the others.
    fractions : sequence of float
        Shares of the rows that are removed (or present).

    Returns
    -------
    MetricResult
        ``extras["curve"]`` holds ``(fraction, accuracy, accuracy with random order)``.
    """
    if mode not in ("remove_high", "remove_low", "add_high", "add_low"):
        raise AttributionError(f"mode is remove_high, remove_low, add_high or add_low, not {mode!r}")
    if hasattr(values, "attribute_set"):
        values = values.attribute_set(X_test, y_test)
    array = np.asarray(values, dtype=float)
    worth = array.sum(0) if array.ndim == 2 else array
    n = len(X)
    check_rows("values", worth, n)
    order = np.argsort(-worth if mode.endswith("high") else worth, kind="stable")
    shuffled = np.random.default_rng(chance_seed).permutation(n)
    labels = check_rows("y_test", y_test, len(X_test))
    groups: list[Any] = []
    for fraction in fractions:
        if not 0 < fraction < 1:
            raise AttributionError(f"fractions lie between 0 and 1, not {fraction}")
        size = max(1, min(n - 1, round(fraction * n)))
        for ranking in (order, shuffled):
            groups.append(ranking[:size] if mode.startswith("remove") else ranking[size:])
    truth = farm.run(X, y, X_test, y_test, subsets=leave_out(n, groups))
    hits = (truth.predictions == labels).mean(0)  # over seeds: (models, T)
    mine, chance = hits[0::2], hits[1::2]
    low_is_good = mode in ("remove_high", "add_low")
    curve = [(f, float(a.mean()), float(b.mean())) for f, a, b in zip(fractions, mine, chance, strict=True)]
    return from_rows(
        f"point_{mode}", mine.mean(0), float(chance.mean()), 0.0 if low_is_good else 1.0,
        direction="lower" if low_is_good else "higher", extras={"curve": curve},
    )  # fmt: skip
