"""Selective prediction, and detection of foreign inputs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from assay.uncertainty import metrics as m
from assay.uncertainty.errors import TargetShape
from assay.uncertainty.protocols.result import Array, Result


def selective_prediction(
    uncertainty: ArrayLike,
    loss: ArrayLike,
    *,
    coverage: float = 0.8,
    risk: float = 0.05,
    resamples: int = 200,
    seed: int = 0,
) -> Result:
    """How well an uncertainty orders rows for turning some away.

    Parameters
    ----------
    uncertainty : array_like, (rows)
        Higher is less sure.
    loss : array_like, (rows)
        Loss of the prediction (bool: wrong or not); rows with NaN are left out and counted.
    coverage, risk : float
        Where the curve is read: risk at that coverage, coverage at that risk.

    Returns
    -------
    Result
        Scores ``aurc, excess_aurc, augrc, rejection_area, error_auroc, risk, risk_at_coverage, coverage_at_risk``.

    Raises
    ------
    TargetShape
        If the two are not one value a row each.

    Examples
    --------
    >>> result = selective_prediction(np.arange(10), [0] * 8 + [1, 1])
    >>> {k: round(result.scores[k], 4) for k in ("aurc", "excess_aurc", "augrc", "error_auroc")}
    {'aurc': 0.0311, 'excess_aurc': 0.0, 'augrc': 0.03, 'error_auroc': 1.0}
    """
    u, l = np.asarray(uncertainty, dtype=np.float64), np.asarray(loss, dtype=np.float64)
    if u.shape != l.shape or u.ndim != 1:
        raise TargetShape(f"uncertainty {u.shape} and loss {l.shape}: one of both a row is needed")
    known = ~np.isnan(l)
    u, l = u[known], l[known]
    x, y = m.risk_coverage_curve(u, l)
    return Result.judged(
        partial(_selective, coverage=coverage, risk=risk),
        {"uncertainty": u, "loss": l},
        curves={"risk_coverage": (x, y), "accuracy_rejection": (1 - x[::-1], 1 - y[::-1])},
        dropped=int((~known).sum()),
        resamples=resamples,
        seed=seed,
    )


def _selective(rows: Mapping[str, Array], *, coverage: float, risk: float) -> dict[str, float]:
    u, l = rows["uncertainty"], rows["loss"]
    wrong = l > 0
    binary = bool(np.isin(l, (0, 1)).all())
    both = binary and wrong.any() and not wrong.all()
    return {
        "aurc": m.aurc(u, l),
        "excess_aurc": m.excess_aurc(u, l),
        "augrc": m.augrc(u, l),
        "rejection_area": m.rejection_area(u, l) if binary else float("nan"),
        "error_auroc": m.auroc(u[~wrong], u[wrong]) if both else float("nan"),
        "risk": float(l.mean()),
        "risk_at_coverage": m.risk_at_coverage(u, l, coverage),
        "coverage_at_risk": m.coverage_at_risk(u, l, risk),
    }


def ood_detection(inside: ArrayLike, outside: ArrayLike, *, resamples: int = 200, seed: int = 0) -> Result:
    """How well an uncertainty tells foreign inputs from familiar ones.

    Each group is resampled within itself for the intervals.

    Returns
    -------
    Result
        Scores ``auroc, aupr_out, aupr_in, fpr95, detection_error``; ties count half.

    Examples
    --------
    >>> result = ood_detection(np.zeros(50), np.zeros(50))
    >>> result.scores["auroc"], result.scores["aupr_out"], result.scores["fpr95"]
    (0.5, 0.5, 1.0)
    """
    a, b = np.asarray(inside, dtype=np.float64).ravel(), np.asarray(outside, dtype=np.float64).ravel()
    foreign = np.concatenate([np.zeros(len(a)), np.ones(len(b))])
    thresholds = np.unique(np.concatenate([a, b]))[::-1]
    false = np.array([0.0, *(1 - np.searchsorted(np.sort(a), thresholds, side="left") / max(len(a), 1))])
    true = np.array([0.0, *(1 - np.searchsorted(np.sort(b), thresholds, side="left") / max(len(b), 1))])
    return Result.judged(
        _detection,
        {"uncertainty": np.concatenate([a, b]), "outside": foreign},
        curves={"roc": (false, true)},
        strata=foreign.astype(np.int64),
        resamples=resamples,
        seed=seed,
    )


def _detection(rows: Mapping[str, Array]) -> dict[str, float]:
    outside = rows["outside"] == 1
    return m.detection_scores(rows["uncertainty"][~outside], rows["uncertainty"][outside])
