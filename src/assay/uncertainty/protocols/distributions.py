"""First-order data: predictions, credal sets and conformal sets against true distributions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from assay.uncertainty import metrics as m
from assay.uncertainty.conformal.classification import SplitConformal
from assay.uncertainty.credal import enclosing, hull_coverage, interval_coverage
from assay.uncertainty.errors import TargetShape
from assay.uncertainty.measures import quantify
from assay.uncertainty.measures.sample import shannon
from assay.uncertainty.protocols.result import Array, Result, spearman
from assay.uncertainty.representations import Hull, Intervals, LevelSet, Representation, Sample, ScoreBall, TVBall
from assay.uncertainty.simplex import as_probabilities


def first_order(
    rep: Representation,
    target: ArrayLike,
    *,
    epsilon: float = 0.0005,
    draws: int = 10,
    bins: int = 15,
    resamples: int = 200,
    seed: int = 0,
) -> Result:
    """Predictions against true distributions.

    Parameters
    ----------
    rep : Representation
        A credal set, or a second-order distribution, whose hull (members) or mean is then looked at.
    target : array_like, (rows, classes)
    epsilon : float
        L1 distance to a hull that still counts as inside.
    draws, bins : int
        Of the calibration error with labels drawn from the targets.

    Returns
    -------
    Result
        ``tv, l1, kl`` of the mean prediction; ``ece``; ``coverage`` and ``efficiency`` of sets;
        ``aleatoric_correlation`` (Spearman, aleatoric uncertainty with the target's entropy) and
        ``epistemic_correlation`` (epistemic uncertainty with the excess risk ``KL(target || mean)``).

    Raises
    ------
    TargetShape
        If the targets are labels.
    """
    p = np.asarray(rep.mean())
    if np.asarray(target).shape != p.shape:
        raise TargetShape(
            f"first-order targets of shape {p.shape} are needed, not {np.asarray(target).shape} (labels?)"
        )
    y = as_probabilities(target, what="targets")
    rows: dict[str, Array] = {"l1": np.abs(p - y).sum(1)}
    rows["tv"] = rows["l1"] / 2
    rows["kl"] = (y * (np.log(np.maximum(y, 1e-300)) - np.log(np.maximum(p, 1e-12)))).sum(1)
    if isinstance(rep, (Intervals, TVBall, LevelSet, ScoreBall)):
        box = enclosing(rep)
        if isinstance(rep, Intervals):
            inside = interval_coverage(box, y)
        else:
            inside = rows["tv"] <= rep.radius + 1e-12 if isinstance(rep, TVBall) else rep.covers(y)
        rows["coverage"] = inside.astype(np.float64)
        rows["efficiency"] = 1 - (box.upper - box.lower).mean(1)
    elif isinstance(rep, (Hull, Sample)):
        hull = rep if isinstance(rep, Hull) else Hull(rep.probs)
        box = hull.intervals()
        rows["coverage"] = hull_coverage(hull, y, epsilon=epsilon).astype(np.float64)
        rows["efficiency"] = 1 - (box.upper - box.lower).mean(1)
    parts = quantify(rep)
    if parts.aleatoric is not None:
        rows["aleatoric"] = parts.aleatoric
    if parts.epistemic is not None:
        rows["epistemic"] = parts.epistemic
    rng = np.random.default_rng(seed)
    drawn = (np.cumsum(y, 1)[None] < rng.random((draws, len(y), 1))).sum(-1).clip(max=y.shape[1] - 1)
    rows["probability"] = p
    rows["target_entropy"], rows["drawn"] = shannon(y), drawn.T.astype(np.float64)
    return Result.judged(partial(_scores, bins=bins), rows, resamples=resamples, seed=seed)


MEANS = ("tv", "l1", "kl", "coverage", "efficiency")


def _scores(rows: Mapping[str, Array], *, bins: int) -> dict[str, float]:
    out = {name: float(rows[name].mean()) for name in MEANS if name in rows}
    labels = rows["drawn"].astype(np.int64).T
    out["ece"] = float(np.mean([m.expected_calibration_error(rows["probability"], d, bins=bins) for d in labels]))
    if "aleatoric" in rows:
        out["aleatoric_correlation"] = spearman(rows["aleatoric"], rows["target_entropy"])
    if "epistemic" in rows:
        out["epistemic_correlation"] = spearman(rows["epistemic"], rows["kl"])
    return out


def first_order_conformal(
    probs: ArrayLike,
    target: ArrayLike,
    *,
    score: str = "aps",
    alpha: float = 0.1,
    splits: int = 10,
    randomized: bool = True,
    seed: int = 0,
) -> Result:
    """Label sets calibrated on labels drawn from the targets, judged by the true mass they hold; half of the rows
    calibrate.

    Returns
    -------
    Result
        ``marginal_coverage, conditional_satisfaction, set_size``, means over the splits; intervals over the splits.
        Splits take the place of rows: two methods with the same seed are compared split by split.

    Raises
    ------
    TargetShape
        If the shapes differ.
    """
    p, y = as_probabilities(probs), as_probabilities(target, what="targets")
    if p.shape != y.shape:
        raise TargetShape(f"probabilities {p.shape} and first-order targets {y.shape} must have one shape")
    rng = np.random.default_rng(seed)
    found: list[dict[str, float]] = []
    for _ in range(splits):
        order = rng.permutation(len(p))
        cal, test = order[: len(p) // 2], order[len(p) // 2 :]
        labels = (np.cumsum(y[cal], 1) < rng.random((len(cal), 1))).sum(1).clip(max=p.shape[1] - 1)
        method = SplitConformal(score, alpha, randomized=randomized, random_state=int(rng.integers(2**31)))
        found.append(m.first_order_coverage(method.fit(p[cal], labels).predict(p[test]), y[test], alpha))
    rows = {name: np.array([f[name] for f in found]) for name in found[0]}
    made = Result.judged(_means, rows, resamples=0)
    made.n = len(p)
    for name, v in rows.items():
        reach = 1.96 * float(v.std(ddof=1)) / np.sqrt(splits) if splits > 1 else np.nan
        made.ci[name] = (made.scores[name] - reach, made.scores[name] + reach)
    return made


def _means(rows: Mapping[str, Array]) -> dict[str, float]:
    return {name: float(v.mean()) for name, v in rows.items()}
