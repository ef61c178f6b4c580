"""Scores of multi-label verdicts, and how far human annotators agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.shapes.errors import LabelSchemaError, ShapeError


def krippendorff_alpha(ratings: Float[np.ndarray, "coders units"]) -> float:
    """Krippendorff's alpha for nominal values; NaN is missing.

    Examples
    --------
    >>> n = np.nan
    >>> round(krippendorff_alpha(np.array([[1.0, 2, n], [1, 2, 3], [n, 2, 3]])), 3)
    1.0
    """
    values = np.unique(ratings[~np.isnan(ratings)])
    counts = np.stack([(ratings == v).sum(axis=0) for v in values], axis=1).astype(np.float64)
    per_unit = counts.sum(axis=1)
    counts, per_unit = counts[per_unit >= 2], per_unit[per_unit >= 2]
    if not len(counts):
        return float("nan")
    total = per_unit.sum()
    agree = (counts * (counts - 1)).sum(axis=1) / (per_unit - 1)
    observed = 1 - agree.sum() / total
    margin = counts.sum(axis=0)
    expected = 1 - (margin * (margin - 1)).sum() / (total * (total - 1))
    return 1.0 if expected == 0 else float(1 - observed / expected)


def pairwise_kappa(ratings: Float[np.ndarray, "coders units"]) -> Float[np.ndarray, "coders coders"]:
    """Cohen's kappa of each two coders over the units that both rated; NaN where there are none."""
    k = len(ratings)
    out = np.eye(k)
    for i in range(k):
        for j in range(i):
            both = ~np.isnan(ratings[i]) & ~np.isnan(ratings[j])
            a, b = ratings[i][both], ratings[j][both]
            if not len(a):
                out[i, j] = out[j, i] = np.nan
                continue
            values = np.unique(np.concatenate([a, b]))
            agree = np.mean(a == b)
            chance = sum(np.mean(a == v) * np.mean(b == v) for v in values)
            out[i, j] = out[j, i] = 1.0 if chance == 1 else (agree - chance) / (1 - chance)
    return out


def label_scores(
    pred: Float[np.ndarray, "n c"], true: Float[np.ndarray, "n c"], threshold: float = 0.5
) -> dict[str, float]:
    """Scores of multi-label probabilities against hard or soft labels in [0, 1].

    Returns
    -------
    dict
        ``macro_f1, micro_f1, subset_accuracy`` after both are cut at ``threshold``; ``brier``; ``kl`` (mean Bernoulli
        divergence of the labels from the predictions, these clipped to [0.01, 0.99]); ``auroc_<i>`` by class (NaN where
        one class is absent).
    """
    p, y = np.asarray(pred, dtype=np.float64), np.asarray(true, dtype=np.float64)
    if p.shape != y.shape:
        raise ShapeError(f"predictions {p.shape} and labels {y.shape} must have one shape, data sets by labels")
    hard, truth = p >= threshold, y >= threshold
    tp, fp, fn = (hard & truth).sum(axis=0), (hard & ~truth).sum(axis=0), (~hard & truth).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        f1 = np.where(2 * tp + fp + fn > 0, 2 * tp / (2 * tp + fp + fn), 1.0)
    whole = 2 * tp.sum() + fp.sum() + fn.sum()
    clipped = np.clip(p, 0.01, 0.99)
    with np.errstate(divide="ignore", invalid="ignore"):
        kl = np.where(y > 0, y * np.log(y / clipped), 0) + np.where(y < 1, (1 - y) * np.log((1 - y) / (1 - clipped)), 0)
    out = {
        "macro_f1": float(f1.mean()),
        "micro_f1": float(2 * tp.sum() / whole) if whole else 1.0,
        "subset_accuracy": float((hard == truth).all(axis=1).mean()),
        "brier": float(((p - y) ** 2).mean()),
        "kl": float(kl.mean()),
    }
    from scipy.stats import rankdata

    for c in range(p.shape[1]):
        positive = truth[:, c]
        m = int(positive.sum())
        k = len(positive) - m
        out[f"auroc_{c}"] = (
            float((rankdata(p[:, c])[positive].sum() - m * (m + 1) / 2) / (m * k)) if m and k else float("nan")
        )
    return out


def score_labels(pred: Any, annotations: Any, labels: Sequence[str] | None = None) -> dict[str, float]:
    """A method's labels against annotators, beside the human ceiling.

    Parameters
    ----------
    pred : dict of data set id to dict of label to score
    annotations : DataFrame
        One row a data set and annotator: ``dataset_id``, ``annotator`` and one boolean column a label.

    Returns
    -------
    dict
        `label_scores` against the mean over annotators; ``human_macro_f1``, ``human_brier``: leave-one-annotator-out
        means; and ``alpha_<label>``, Krippendorff's.

    Raises
    ------
    LabelSchemaError
    """
    from assay.shapes.synthetic import LABELS

    names = list(labels or LABELS)
    for column in ("dataset_id", "annotator", *names):
        if column not in annotations.columns:
            raise LabelSchemaError(column)
    ids = [i for i in dict.fromkeys(annotations["dataset_id"].tolist()) if i in pred]
    if not ids:
        raise LabelSchemaError("dataset_id", "names none of the data sets that were predicted")
    coders = list(dict.fromkeys(annotations["annotator"].tolist()))
    cube = np.full((len(coders), len(ids), len(names)), np.nan)
    row_of, coder_of = {v: i for i, v in enumerate(ids)}, {v: i for i, v in enumerate(coders)}
    for dataset, coder, *values in annotations[["dataset_id", "annotator", *names]].itertuples(index=False):
        if dataset in row_of:
            cube[coder_of[coder], row_of[dataset]] = [float(v) for v in values]
    with np.errstate(invalid="ignore"):
        soft = np.nansum(cube, axis=0) / np.maximum((~np.isnan(cube)).sum(axis=0), 1)
    scores = np.array([[float(pred[i].get(name, 0.0)) for name in names] for i in ids])
    out = label_scores(scores, soft)
    human = []
    for c in range(len(coders)):
        rated = ~np.isnan(cube[c]).any(axis=1)
        others = np.delete(cube, c, axis=0)
        known = rated & (~np.isnan(others)).any(axis=(0, 2))
        if known.any():
            rest = np.nansum(others[:, known], axis=0) / np.maximum((~np.isnan(others[:, known])).sum(axis=0), 1)
            human.append(label_scores(cube[c][known], rest))
    for name in ("macro_f1", "brier", "subset_accuracy"):
        out[f"human_{name}"] = float(np.mean([h[name] for h in human])) if human else float("nan")
    for j, name in enumerate(names):
        out[f"alpha_{name}"] = krippendorff_alpha(cube[:, :, j])
    return out
