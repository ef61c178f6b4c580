"""Detection of foreign inputs (or of errors): scores are higher for what is to be detected. Ties count half."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from assay.uncertainty.errors import TargetShape

Rows = Float[np.ndarray, " rows"]
Others = Float[np.ndarray, " others"]


def _both(inside: Rows, outside: Others) -> tuple[Rows, Others]:
    a, b = np.asarray(inside, dtype=np.float64).ravel(), np.asarray(outside, dtype=np.float64).ravel()
    if not len(a) or not len(b):
        raise TargetShape(f"both groups need rows; there are {len(a)} inside and {len(b)} outside")
    if np.isnan(a).any() or np.isnan(b).any():
        raise TargetShape("scores must not be NaN")
    return a, b


def auroc(inside: Rows, outside: Others) -> float:
    """Probability that a foreign row scores higher than a familiar one, ties half (Mann-Whitney).

    >>> auroc(np.zeros(5), np.zeros(3))
    0.5
    """
    from scipy.stats import rankdata

    a, b = _both(inside, outside)
    ranks = rankdata(np.concatenate([a, b]))
    return float((ranks[len(a) :].sum() - len(b) * (len(b) + 1) / 2) / (len(a) * len(b)))


def aupr(inside: Rows, outside: Others) -> float:
    """Average precision of detecting the second group; tied rows enter together, so constant scores give the
    prevalence."""
    a, b = _both(inside, outside)
    values = np.concatenate([a, b])
    positive = np.concatenate([np.zeros(len(a)), np.ones(len(b))])
    _, group, counts = np.unique(-values, return_inverse=True, return_counts=True)
    hits = np.bincount(group, weights=positive)
    precision = np.cumsum(hits) / np.cumsum(counts)
    return float(hits @ precision / len(b))


def fpr_at_tpr(inside: Rows, outside: Others, tpr: float = 0.95) -> float:
    """Share of familiar rows flagged at the highest threshold that flags at least ``tpr`` of the foreign ones.

    >>> fpr_at_tpr(np.zeros(5), np.zeros(3))
    1.0
    """
    a, b = _both(inside, outside)
    k = int(np.ceil(tpr * len(b) - 1e-9))
    threshold = np.sort(b)[::-1][max(k, 1) - 1]
    return float((a >= threshold).mean())


def detection_error(inside: Rows, outside: Others) -> float:
    """Least mean of the two error rates over all thresholds (Liang, Li and Srikant, ICLR 2018)."""
    a, b = _both(inside, outside)
    a, b = np.sort(a), np.sort(b)
    thresholds = np.append(np.unique(np.concatenate([a, b])), np.inf)
    false = 1 - np.searchsorted(a, thresholds, side="left") / len(a)
    missed = np.searchsorted(b, thresholds, side="left") / len(b)
    return float((0.5 * (false + missed)).min())


def detection_scores(inside: Rows, outside: Others) -> dict[str, float]:
    """All of them; ``aupr_in`` detects the familiar rows by low scores."""
    return {
        "auroc": auroc(inside, outside),
        "aupr_out": aupr(inside, outside),
        "aupr_in": aupr(-np.asarray(outside, dtype=np.float64), -np.asarray(inside, dtype=np.float64)),
        "fpr95": fpr_at_tpr(inside, outside),
        "detection_error": detection_error(inside, outside),
    }
