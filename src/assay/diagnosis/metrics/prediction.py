"""How well right and wrong answers are foretold."""

from __future__ import annotations

import warnings

import numpy as np
from jaxtyping import Float, Integer
from scipy.stats import rankdata

from assay.diagnosis.errors import DiagnosisError, UndefinedMetric
from assay.diagnosis.responses import ResponseData

Answers = Integer[np.ndarray, " n"]
Probabilities = Float[np.ndarray, " n"]


def auc(correct: Answers, p: Probabilities) -> float:
    """Area under the ROC curve, ties counted half; NaN with a warning where all answers are right, or all wrong.

    >>> auc(np.array([0, 1, 1, 0]), np.array([0.1, 0.9, 0.4, 0.4]))
    0.875
    """
    _same_length(correct, p)
    n1 = int((correct == 1).sum())
    n0 = len(correct) - n1
    if not n1 or not n0:
        warnings.warn("AUC needs right and wrong answers; there is only one kind", UndefinedMetric, stacklevel=2)
        return float("nan")
    ranks = rankdata(p)
    return float((ranks[correct == 1].sum() - n1 * (n1 + 1) / 2) / (n1 * n0))


def accuracy(correct: Answers, p: Probabilities) -> float:
    """Share of answers on the right side of one half."""
    _same_length(correct, p)
    return float(np.mean((p >= 0.5) == (correct == 1))) if len(p) else float("nan")


def rmse(correct: Answers, p: Probabilities) -> float:
    """Root mean squared difference of answer and probability."""
    _same_length(correct, p)
    return float(np.sqrt(np.mean((p.astype(np.float64) - correct) ** 2))) if len(p) else float("nan")


def log_loss(correct: Answers, p: Probabilities) -> float:
    """Mean negative log-probability of the answers, probabilities kept 1e-7 off 0 and 1."""
    _same_length(correct, p)
    q = np.clip(p.astype(np.float64), 1e-7, 1 - 1e-7)
    return float(-np.mean(np.where(correct == 1, np.log(q), np.log1p(-q)))) if len(p) else float("nan")


def calibration_error(correct: Answers, p: Probabilities, *, bins: int = 15) -> float:
    """Expected calibration error (Naeini et al. 2015) over equally wide bins.

    >>> calibration_error(np.array([1, 0, 1, 1]), np.array([0.75, 0.75, 0.75, 0.75]))
    0.0
    """
    _same_length(correct, p)
    if not len(p):
        return float("nan")
    bin_ = np.minimum((p * bins).astype(np.int64), bins - 1)
    n = np.bincount(bin_, minlength=bins)
    gap = np.bincount(bin_, p - correct.astype(np.float64), bins)
    return float(np.abs(gap[n > 0]).sum() / len(p))


def kc_auc(data: ResponseData, p: Probabilities) -> float:
    """Mean over skills of the AUC on answers that need the skill; skills with one kind of answer are left out."""
    _same_length(data.correct, p)
    rows, skill = data.per_skill()
    values = []
    for k in range(data.n_kcs):
        at = rows[skill == k]
        y = data.correct[at]
        if 0 < y.sum() < len(y):
            values.append(auc(y, p[at]))
    return float(np.mean(values)) if values else float("nan")


def _same_length(correct: np.ndarray, p: np.ndarray) -> None:
    if len(correct) != len(p):
        raise DiagnosisError(f"there are {len(correct)} answers and {len(p)} probabilities")
