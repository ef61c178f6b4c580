"""Measures of a sample of distributions: arrays ``(n, M, K)`` and weights in, three arrays ``(n)`` out.

For an entropy ``G`` of a proper score, ``TU = G(mean)``, ``AU = mean G``, ``EU = TU - AU`` (Hofman, Sale and
Huellermeier, 2024).
Distances are not additive (Sale et al., UAI 2024).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

Members = Float[np.ndarray, "rows members classes"]
Weights = Float[np.ndarray, " members"] | Float[np.ndarray, "rows members"] | None
Rows = Float[np.ndarray, " rows"]
Three = tuple[Rows, Rows, Rows]

_TINY = 1e-300


def mean_of(p: Members, w: Weights) -> Float[np.ndarray, "rows classes"]:
    """Weighted mean over the members."""
    if w is None:
        # einsum walks the rows once; sum over a middle axis of ten is three times slower.
        return np.asarray(np.einsum("nmk->nk", p) / p.shape[1])
    return np.asarray(np.einsum("nmk,m->nk" if w.ndim == 1 else "nmk,nm->nk", p, w))


def average(values: Float[np.ndarray, "rows members"], w: Weights) -> Rows:
    """Weighted mean over the members of one value each."""
    if w is None:
        return np.asarray(values.mean(axis=1))
    return np.asarray(values @ w if w.ndim == 1 else np.einsum("nm,nm->n", values, w))


def shannon(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropy in nats over the last axis."""
    return np.asarray(-np.einsum("...k,...k->...", p, np.log(np.maximum(p, _TINY))))


def gini(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropy of the Brier score, ``1 - sum p^2``."""
    return np.asarray(1 - np.einsum("...k,...k->...", p, p))


def zero_one(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropy of the zero-one loss, ``1 - max p``."""
    return np.asarray(1 - p.max(axis=-1))


def spherical(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropy of the spherical score, ``1 - |p|``."""
    return np.asarray(1 - np.sqrt(np.einsum("...k,...k->...", p, p)))


def label_variance(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Variance of the class number 1 ... K."""
    k = np.arange(1, p.shape[-1] + 1, dtype=np.float64)
    mean = p @ k
    return np.asarray(np.maximum(p @ (k * k) - mean * mean, 0.0))


def cumulative(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distribution function at the K - 1 cut points of ordered classes."""
    return np.clip(np.cumsum(p, axis=-1)[..., :-1], 0.0, 1.0)


def binary_entropy(f: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropy in nats of a coin with probability f, cell by cell."""
    g = 1 - f
    return np.asarray(-(f * np.log(np.maximum(f, _TINY)) + g * np.log(np.maximum(g, _TINY))))


def ordinal_entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum over cut points of the binary entropy of the distribution function."""
    return np.asarray(binary_entropy(cumulative(p)).sum(-1))


def ordinal_variance(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum over cut points of ``F (1 - F)``."""
    f = cumulative(p)
    return np.asarray((f * (1 - f)).sum(-1))


def labelwise(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum over classes of the binary entropy of one class against the rest (Sale et al., 2024)."""
    return np.asarray(binary_entropy(np.clip(p, 0.0, 1.0)).sum(-1))


GENERATORS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "entropy": shannon,
    "brier": gini,
    "zero_one": zero_one,
    "spherical": spherical,
    "variance": label_variance,
    "ordinal_entropy": ordinal_entropy,
    "ordinal_variance": ordinal_variance,
    "labelwise": labelwise,
}
MEASURES = (*GENERATORS, "tv")


def additive(p: Members, w: Weights, measure: str) -> Three:
    """``TU = G(mean), AU = mean G, EU = TU - AU`` for the entropy G of that name."""
    if measure == "entropy":
        return entropy_three(p, w)
    generator = GENERATORS[measure]
    total = generator(mean_of(p, w))
    aleatoric = average(generator(p), w)
    return _differences(total, aleatoric)


def entropy_three(p: Members, w: Weights, scratch: NDArray[np.float64] | None = None) -> Three:
    """The three entropies from one logarithm of the array, kept in ``scratch`` if that is given."""
    n, m, k = p.shape
    logs = np.empty_like(p) if scratch is None else scratch[:n]
    if p.size and p.min() > 0:
        np.log(p, out=logs)
    else:
        np.log(np.maximum(p, _TINY, out=logs), out=logs)
    if w is None:
        aleatoric = np.einsum("ij,ij->i", p.reshape(n, m * k), logs.reshape(n, m * k)) / -m
    elif w.ndim == 1:
        aleatoric = -np.einsum("nmk,nmk->nm", p, logs) @ w
    else:
        aleatoric = -np.einsum("nmk,nmk,nm->n", p, logs, w)
    return _differences(shannon(mean_of(p, w)), aleatoric)


def _differences(total: Rows, aleatoric: Rows) -> Three:
    epistemic = total - aleatoric
    # A concave G makes the difference non-negative; rounding may leave -1e-16.
    np.maximum(epistemic, 0.0, out=epistemic)
    return total, aleatoric, epistemic


def total_variation(p: Members, w: Weights) -> Three:
    """``TU = 1 - max mean, AU = mean(1 - max), EU = min_q mean TV(theta, q)`` over the simplex.

    The minimiser is a quantile of every class at one common level t. With ``S(t)`` the sum over classes of their
    t-quantiles, the minimum is ``integral of (1 - S(t))^+ dt``: for equal weights ``mean_j (1 - S_j)^+``, where ``S_j``
    is the sum over classes of the j-th smallest member. (Our derivation, by duality from the pinball form of the
    absolute error; it agrees with the linear program to its tolerance.)
    """
    total = zero_one(mean_of(p, w))
    aleatoric = average(zero_one(p), w)
    n, m, k = p.shape
    if w is None:
        ordered = np.sort(p.transpose(0, 2, 1).reshape(n * k, m), axis=-1)
        sums = ordered.reshape(n, k, m).sum(axis=1)
        return total, aleatoric, np.maximum(1 - sums, 0.0).mean(axis=1)
    order = np.argsort(p, axis=1, kind="stable")
    ordered = np.take_along_axis(p, order, axis=1)
    weights = np.broadcast_to(w if w.ndim == 2 else w[None, :], (n, m))
    reached = np.cumsum(np.take_along_axis(np.broadcast_to(weights[:, :, None], p.shape), order, axis=1), axis=1)
    levels = reached[:, :-1].reshape(n, -1)  # at these levels a class steps up to its next member
    jumps = np.diff(ordered, axis=1).reshape(n, -1)
    by_level = np.argsort(levels, axis=1, kind="stable")
    levels = np.take_along_axis(levels, by_level, axis=1)
    sums = ordered[:, 0].sum(-1)[:, None] + np.cumsum(np.take_along_axis(jumps, by_level, axis=1), axis=1)
    sums = np.concatenate([ordered[:, 0].sum(-1)[:, None], sums], axis=1)
    ends = np.concatenate([np.zeros((n, 1)), levels, np.ones((n, 1))], axis=1)
    return total, aleatoric, (np.maximum(1 - sums, 0.0) * np.diff(ends, axis=1)).sum(axis=1)
