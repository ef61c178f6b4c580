"""Calibration and sharpness of class probabilities. Labels are codes ``(n)`` or distributions ``(n, K)``."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from assay.uncertainty.errors import TargetShape, UncertaintyError
from assay.uncertainty.measures.sample import shannon

Probs = Float[np.ndarray, "rows classes"]
Labels = Int[np.ndarray, " rows"] | Float[np.ndarray, "rows classes"]


def onehot(y: ArrayLike, p: Probs) -> Probs:
    """Labels as distributions.

    Raises
    ------
    TargetShape
    """
    values = np.asarray(y)
    if values.shape == p.shape:
        return values.astype(np.float64)
    if values.ndim != 1 or len(values) != len(p) or values.dtype.kind not in "iu":
        raise TargetShape(
            f"labels of shape {values.shape} ({values.dtype}) do not fit probabilities of shape {p.shape}"
        )
    if len(values) and (values.min() < 0 or values.max() >= p.shape[1]):
        raise TargetShape(f"labels run from {values.min()} to {values.max()}; the codes are 0 ... {p.shape[1] - 1}")
    return np.eye(p.shape[1])[values]


def log_loss(p: Probs, y: Labels) -> float:
    """Mean ``-sum_k y_k log p_k`` in nats."""
    return float(-(onehot(y, p) * np.log(np.maximum(p, 1e-300))).sum(1).mean())


def brier_score(p: Probs, y: Labels) -> float:
    """Mean squared distance to the label, summed over the classes (0 to 2)."""
    return float(((p - onehot(y, p)) ** 2).sum(1).mean())


def sharpness(p: Probs) -> float:
    """Mean entropy of the forecasts in nats; lower is sharper."""
    return float(shannon(p).mean())


def _bin_of(confidence: Float[np.ndarray, " rows"], bins: int, mass: str) -> Int[np.ndarray, " rows"]:
    if bins < 1:
        raise UncertaintyError(f"bins is at least 1, not {bins}")
    if mass == "width":
        # A confidence of exactly 1 belongs to the last bin.
        return np.minimum((confidence * bins).astype(np.int64), bins - 1)
    if mass == "equal":
        # Equal values share a bin, so the answer does not depend on the order of rows.
        edges = np.quantile(confidence, np.linspace(0, 1, bins + 1)[1:-1])
        return np.searchsorted(edges, confidence, side="right")
    raise UncertaintyError(f"mass is 'width' or 'equal', not {mass!r}")


def reliability(
    confidence: Float[np.ndarray, " rows"], correct: Float[np.ndarray, " rows"], *, bins: int = 15, mass: str = "width"
) -> tuple[Float[np.ndarray, " bins"], Float[np.ndarray, " bins"], Int[np.ndarray, " bins"]]:  # fmt: skip
    """Mean confidence, mean accuracy and count of each bin; NaN for empty bins."""
    c, hit = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    if c.shape != hit.shape or c.ndim != 1:
        raise TargetShape(f"confidence {c.shape} and correct {hit.shape}: one of both a row is needed")
    which = _bin_of(c, bins, mass)
    count = np.bincount(which, minlength=bins)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.bincount(which, c, bins) / count, np.bincount(which, hit, bins) / count, count


def calibration_error(
    confidence: Float[np.ndarray, " rows"],
    correct: Float[np.ndarray, " rows"],
    *,
    bins: int = 15,
    mass: str = "width",
    norm: str = "l1",
) -> float:
    """Gap between confidence and accuracy over bins: mean (``l1``, ECE), root mean square (``l2``) or largest
    (``max``)."""
    c, a, n = reliability(confidence, correct, bins=bins, mass=mass)
    there = n > 0
    gap, share = np.abs(c - a)[there], n[there] / n.sum()
    if norm not in ("l1", "l2", "max"):
        raise UncertaintyError(f"norm is 'l1', 'l2' or 'max', not {norm!r}")
    return float(share @ gap if norm == "l1" else np.sqrt(share @ gap**2) if norm == "l2" else gap.max())


def expected_calibration_error(p: Probs, y: Labels, *, bins: int = 15, mass: str = "width", norm: str = "l1") -> float:
    """Of the top class (Naeini et al., AAAI 2015); with a distribution as label, accuracy is its mass on that class.

    >>> expected_calibration_error(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0, 1]))
    0.5
    """
    top = p.argmax(1)
    return calibration_error(p.max(1), onehot(y, p)[np.arange(len(p)), top], bins=bins, mass=mass, norm=norm)


def classwise_calibration_error(p: Probs, y: Labels, *, bins: int = 15, mass: str = "width") -> float:
    """Mean over classes of the calibration error of that class's probability (Kull et al., 2019); ``mass="equal"``
    is adaptive (ACE)."""
    t = onehot(y, p)
    return float(np.mean([calibration_error(p[:, k], t[:, k], bins=bins, mass=mass) for k in range(p.shape[1])]))


def ks_calibration_error(p: Probs, y: Labels) -> float:
    """Largest gap between the cumulative sums of confidence and accuracy by rising confidence, no bins (Gupta et
    al., ICLR 2021)."""
    confidence = p.max(1)
    hit = onehot(y, p)[np.arange(len(p)), p.argmax(1)]
    order = np.argsort(confidence, kind="stable")
    gaps = np.cumsum((confidence - hit)[order]) / len(p)
    ends = np.append(np.diff(confidence[order]) > 0, True)  # only where a group of ties is complete
    return float(np.abs(gaps[ends]).max())


def brier_parts(
    forecast: Float[np.ndarray, " rows"], event: Float[np.ndarray, " rows"], *, bins: int | None = None
) -> dict[str, float]:
    """Murphy's decomposition of a binary Brier score: ``brier = reliability - resolution + uncertainty + variance - 2
    covariance``.

    Parameters
    ----------
    bins : int, optional
        Equal-width bins; then the within-bin variance of the forecasts and their covariance with the events are needed
        for an equation (Stephenson, Coelho and Jolliffe, 2008). None groups by distinct forecasts, where both are 0.

    Examples
    --------
    >>> parts = brier_parts(np.array([0.2, 0.2, 0.8, 0.8]), np.array([0.0, 1.0, 1.0, 1.0]))
    >>> {k: round(v, 4) for k, v in parts.items() if v}
    {'brier': 0.19, 'reliability': 0.065, 'resolution': 0.0625, 'uncertainty': 0.1875}
    """
    f, o = np.asarray(forecast, dtype=np.float64), np.asarray(event, dtype=np.float64)
    if f.shape != o.shape or f.ndim != 1 or not len(f):
        raise TargetShape(f"forecasts {f.shape} and events {o.shape}: one of both a row is needed")
    group = np.unique(f, return_inverse=True)[1] if bins is None else _bin_of(f, bins, "width")
    n = np.bincount(group)
    group, n = np.unique(group, return_inverse=True)[1], n[n > 0]
    share = n / len(f)
    mean_f, mean_o, base = np.bincount(group, f) / n, np.bincount(group, o) / n, o.mean()
    return {
        "brier": float(((f - o) ** 2).mean()),
        "reliability": float(share @ (mean_f - mean_o) ** 2),
        "resolution": float(share @ (mean_o - base) ** 2),
        "uncertainty": float(base * (1 - base)),
        "variance": float(((f - mean_f[group]) ** 2).mean()) if bins is not None else 0.0,
        "covariance": float(((f - mean_f[group]) * (o - mean_o[group])).mean()) if bins is not None else 0.0,
    }
