"""The one number that all split-conformal methods share: an order statistic, taken by its index."""

from __future__ import annotations

import math
import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.uncertainty.errors import TooFewCalibration, UncertaintyError


def conformal_rank(n: int, alpha: float) -> int:
    """``k = ceil((n + 1)(1 - alpha))``, safe against rounding: the 1e-9 undoes what 1 - alpha loses in floats.

    Examples
    --------
    >>> conformal_rank(9, 0.1), conformal_rank(8, 0.1), conformal_rank(99, 0.1)
    (9, 9, 90)
    """
    check_alpha(alpha)
    return math.ceil((n + 1) * (1 - alpha) - 1e-9)


def conformal_quantile(scores: ArrayLike, alpha: float, *, where: str = "") -> float:
    """The k-th smallest calibration score; plus infinity, with a warning, where k is above n.

    (Vovk, Gammerman and Shafer, 2005.) No quantile level is handed to a library, whose rounding may shift the index by
    one.

    Warns
    -----
    TooFewCalibration

    Examples
    --------
    >>> conformal_quantile(np.arange(1.0, 100.0), 0.1)
    90.0
    """
    values = np.asarray(scores, dtype=np.float64).ravel()
    if np.isnan(values).any():
        raise UncertaintyError(f"calibration score {int(np.isnan(values).argmax())} is NaN")
    n = len(values)
    k = conformal_rank(n, alpha)
    if k > n:
        least = math.ceil((1 - alpha) / alpha - 1e-9)
        warnings.warn(
            f"{n} calibration rows{where} are too few for alpha={alpha:g}: at least {least} are needed, "
            "so sets are infinite",
            TooFewCalibration, stacklevel=3,
        )  # fmt: skip
        return math.inf
    return float(np.partition(values, k - 1)[k - 1])


def grouped_quantiles(
    scores: NDArray[np.float64], groups: NDArray[np.int64], n_groups: int, alpha: float, names: list[str]
) -> NDArray[np.float64]:
    """One quantile a group."""
    return np.array([conformal_quantile(scores[groups == g], alpha, where=f" of {names[g]}") for g in range(n_groups)])


def check_alpha(alpha: float) -> None:
    """Raise unless 0 < alpha < 1."""
    if not 0 < alpha < 1:
        raise UncertaintyError(f"alpha, the share of misses, lies between 0 and 1, not {alpha}")
