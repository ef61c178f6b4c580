"""Selective prediction: losses of the rows kept when the most uncertain are turned away. Ties count in expectation
over their orders."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from assay.uncertainty.errors import TargetShape

Rows = Float[np.ndarray, " rows"]


def kept_losses(uncertainty: Rows, loss: Rows) -> Rows:
    """Expected sum of the losses of the k most certain rows, k = 1 ... n: ``float64[n]``.

    Within a group of tied rows every order is equally likely, so each of its places has the group's mean loss.
    """
    u, values = np.asarray(uncertainty, dtype=np.float64), np.asarray(loss, dtype=np.float64)
    if u.shape != values.shape or u.ndim != 1 or not len(u):
        raise TargetShape(
            f"uncertainty {u.shape} and loss {values.shape}: one of both a row is needed, at least one row"
        )
    if np.isnan(u).any() or not np.isfinite(values).all():
        raise TargetShape("uncertainties must not be NaN, and losses must be finite")
    _, group, counts = np.unique(u, return_inverse=True, return_counts=True)
    means = np.bincount(group, weights=values) / counts
    return np.cumsum(np.repeat(means, counts))


def risk_coverage_curve(uncertainty: Rows, loss: Rows) -> tuple[Rows, Rows]:
    """Coverage ``k / n`` and the mean loss of the k most certain rows."""
    sums = kept_losses(uncertainty, loss)
    k = np.arange(1, len(sums) + 1)
    return k / len(sums), sums / k


def aurc(uncertainty: Rows, loss: Rows) -> float:
    """Area under the risk-coverage curve: the mean over k of the mean loss of the k most certain rows (Geifman and
    El-Yaniv, 2017).

    Examples
    --------
    >>> u = np.arange(10.0)
    >>> round(aurc(u, np.array([0.0] * 8 + [1.0, 1.0])), 7)
    0.0311111
    >>> round(aurc(np.zeros(10), np.array([1.0, 1.0] + [0.0] * 8)), 7)
    0.2
    """
    return float(risk_coverage_curve(uncertainty, loss)[1].mean())


def excess_aurc(uncertainty: Rows, loss: Rows) -> float:
    """AURC minus that of the perfect order (Geifman, Uziel and El-Yaniv, 2019)."""
    return aurc(uncertainty, loss) - aurc(np.asarray(loss, dtype=np.float64), loss)


def augrc(uncertainty: Rows, loss: Rows) -> float:
    """Area under the generalised risk curve: mean over k of (sum of the losses of the k most certain) / n (Traub et
    al., 2024)."""
    sums = kept_losses(uncertainty, loss)
    return float(sums.mean() / len(sums))


def rejection_area(uncertainty: Rows, loss: Rows) -> float:
    """Area under the accuracy-rejection curve, ``1 - AURC`` for losses of 0 and 1."""
    return 1 - aurc(uncertainty, loss)


def risk_at_coverage(uncertainty: Rows, loss: Rows, coverage: float) -> float:
    """Mean loss of the ``ceil(coverage n)`` most certain rows."""
    if not 0 < coverage <= 1:
        raise TargetShape(f"coverage lies in (0, 1], not {coverage}")
    _, risk = risk_coverage_curve(uncertainty, loss)
    return float(risk[int(np.ceil(coverage * len(risk) - 1e-9)) - 1])


def coverage_at_risk(uncertainty: Rows, loss: Rows, risk: float) -> float:
    """Largest coverage at which the mean loss is at most ``risk``; 0 if there is none."""
    coverage, values = risk_coverage_curve(uncertainty, loss)
    fits = np.flatnonzero(values <= risk + 1e-12)
    return float(coverage[fits[-1]]) if len(fits) else 0.0


def aurc_by_row(uncertainty: Rows, loss: Rows) -> Rows:
    """What each row adds to the AURC, times the number of rows: the mean is the AURC.

    A row at place i of n counts in the means of the k most certain for all k >= i, so with ``1/i + ... + 1/n`` times
    its loss; tied rows share the mean weight of their places.

    >>> u, loss = np.arange(10.0), np.array([0.0] * 8 + [1.0, 1.0])
    >>> round(float(aurc_by_row(u, loss).mean()), 7) == round(aurc(u, loss), 7)
    True
    """
    u, values = np.asarray(uncertainty, dtype=np.float64), np.asarray(loss, dtype=np.float64)
    n = len(u)
    weight = np.cumsum(1 / np.arange(n, 0, -1.0))[::-1]
    _, group, counts = np.unique(u, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    sums = np.concatenate([[0.0], np.cumsum(weight)])
    shared = (sums[ends] - sums[ends - counts]) / counts
    return np.asarray(values * shared[group])
