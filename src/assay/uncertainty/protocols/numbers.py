"""Regression: normal predictions against numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from assay.uncertainty import metrics as m
from assay.uncertainty.errors import TargetShape
from assay.uncertainty.measures import quantify
from assay.uncertainty.protocols.result import Array, Result
from assay.uncertainty.representations import GaussianSample, NormalInverseGamma


def regression_quality(
    rep: GaussianSample | NormalInverseGamma, y: ArrayLike, *, alpha: float = 0.1, resamples: int = 200, seed: int = 0
) -> Result:
    """Normal predictions (their first two moments) against numbers.

    Returns
    -------
    Result
        ``rmse, crps, nll, interval_score, coverage, aurc`` (squared error ordered by total variance).

    Raises
    ------
    TargetShape
        If there is not one number a row.
    """
    from scipy.stats import norm

    values = np.asarray(y, dtype=np.float64)
    mean, parts = np.asarray(rep.mean()), quantify(rep, "variance")
    if values.shape != mean.shape:
        raise TargetShape(f"{mean.shape} predictions and {values.shape} targets")
    variance = np.maximum(parts.get("total"), 1e-12)
    sd = np.sqrt(variance)
    z = float(norm.ppf(1 - alpha / 2))
    rows = {
        "squared": (values - mean) ** 2,
        "crps": m.crps_gaussian(mean, sd, values),
        "nll": -norm.logpdf(values, mean, sd),
        "interval_score": m.interval_score(mean - z * sd, mean + z * sd, values, alpha),
        "coverage": (np.abs(values - mean) <= z * sd).astype(np.float64),
        "uncertainty": variance,
    }
    return Result.judged(_scores, rows, resamples=resamples, seed=seed)


def _scores(rows: Mapping[str, Array]) -> dict[str, float]:
    means = {name: float(rows[name].mean()) for name in ("crps", "nll", "interval_score", "coverage")}
    return {
        "rmse": float(np.sqrt(rows["squared"].mean())),
        **means,
        "aurc": m.aurc(rows["uncertainty"], rows["squared"]),
    }
