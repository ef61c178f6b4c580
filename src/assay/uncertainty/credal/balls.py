"""Entropy over total-variation balls and Dirichlet level sets, on the sets themselves and not on a box around them."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import lambertw

from assay.uncertainty.errors import NotSupported
from assay.uncertainty.measures.sample import shannon

Distributions = Float[np.ndarray, "rows classes"]
Rows = Float[np.ndarray, " rows"]
_FLOOR = 1e-12


def tv_lower_point(center: Distributions, radius: Rows) -> Distributions:
    """The point of least entropy of a TV ball: mass ``min(r, 1 - max)`` moved from the smallest entries to the largest.

    Any other point of the ball is majorised by it.

    >>> tv_lower_point(np.full((1, 4), 0.25), np.array([0.2])).round(2).tolist()
    [[0.45, 0.25, 0.25, 0.05]]
    """
    order = np.argsort(-center, axis=1, kind="stable")
    p = np.take_along_axis(center, order, axis=1)
    move = np.minimum(radius, 1 - p[:, 0])
    left = move.copy()
    for j in range(p.shape[1] - 1, 0, -1):
        taken = np.minimum(p[:, j], left)
        p[:, j] -= taken
        left -= taken
    p[:, 0] += move - left
    out = np.empty_like(p)
    np.put_along_axis(out, order, p, axis=1)
    return out


def tv_upper_point(center: Distributions, radius: Rows) -> Distributions:
    """The point of largest entropy: the small entries filled up to one level, the large ones cut to another, mass r
    each."""
    k = center.shape[1]
    ascending = np.sort(center, axis=1)
    counts = np.arange(1, k + 1)
    # Mass needed to fill the j smallest up to the (j + 1)-th; mass given by cutting the j largest down to the next.
    fill = ascending * counts - np.cumsum(ascending, axis=1)
    j = (fill <= radius[:, None]).sum(axis=1) - 1
    rows = np.arange(len(center))
    low = (radius + np.cumsum(ascending, axis=1)[rows, j]) / (j + 1)
    descending = ascending[:, ::-1]
    cut = np.cumsum(descending, axis=1) - descending * counts
    j = (cut <= radius[:, None]).sum(axis=1) - 1
    high = (np.cumsum(descending, axis=1)[rows, j] - radius) / (j + 1)
    meets = low >= high - 1e-15
    p = np.clip(center, low[:, None], np.maximum(high, low)[:, None])
    p[meets] = 1 / k
    return np.asarray(p)


def tv_entropy(center: Distributions, radius: Rows) -> tuple[Rows, Rows]:
    """Lower and upper entropy of TV balls, in nats; both exact."""
    return np.maximum(shannon(tv_lower_point(center, radius)), 0.0), shannon(tv_upper_point(center, radius))


def level_mode(alpha: Distributions, tau: Rows) -> tuple[Distributions, Rows]:
    """Mode m and divergence rho: the level set is ``{q: KL(m || q) <= rho}``.

    Raises
    ------
    NotSupported
        If some alpha is below 1: the set is then not convex (the density has no interior mode).
    """
    if (alpha < 1).any():
        row = int(np.argwhere(alpha < 1)[0, 0])
        raise NotSupported("entropy", f"a Dirichlet level set with alpha below 1 (row {row})", (), "it is not convex")
    strength = (alpha - 1).sum(-1)
    flat = strength <= 0
    mode = np.where(flat[:, None], 1 / alpha.shape[1], (alpha - 1) / np.where(flat, 1, strength)[:, None])
    rho = np.where(flat, np.inf, -np.log(tau) / np.where(flat, 1, strength))
    return mode, np.maximum(rho, 0.0)


def level_box(mode: Distributions, rho: Rows) -> tuple[Distributions, Distributions]:
    """Smallest and largest value of each class over ``KL(mode || q) <= rho``: the others keep their ratios, so one
    equation a bound."""

    def divergence(q: NDArray[np.float64]) -> NDArray[np.float64]:
        with np.errstate(divide="ignore", invalid="ignore"):
            first = np.where(mode > 0, mode * (np.log(mode) - np.log(q)), 0.0)
            rest = np.where(mode < 1, (1 - mode) * (np.log1p(-mode) - np.log1p(-q)), 0.0)
        return np.asarray(first + rest)

    ends = []
    for edge in (0.0, 1.0):
        inside, outside = mode.copy(), np.full_like(mode, edge)
        for _ in range(100):
            middle = (inside + outside) / 2
            fits = divergence(middle) <= rho[:, None]
            inside, outside = np.where(fits, middle, inside), np.where(fits, outside, middle)
        ends.append(np.where(np.isinf(rho)[:, None], edge, inside))
    return ends[0], ends[1]


def level_upper(mode: Distributions, rho: Rows) -> tuple[Rows, Rows]:
    """Largest entropy over ``KL(mode || q) <= rho`` and its duality gap.

    At the optimum ``lam m_k / q_k - log q_k = c``, that is ``q_k = lam m_k / W(lam m_k e^c)`` with Lambert's W; two
    nested bisections find c (sum one) and lam (the divergence). Any lam gives the dual bound that makes the gap.
    """
    n, k = mode.shape
    uniform = np.full(k, 1 / k)
    at_uniform = np.where(mode > 0, mode * (np.log(np.maximum(mode, 1e-300)) + np.log(k)), 0.0).sum(1)
    easy = at_uniform <= rho
    value, gap = np.full(n, np.log(k)), np.zeros(n)
    hard = np.flatnonzero(~easy)
    pointwise = hard[rho[hard] == 0]
    value[pointwise] = shannon(mode[pointwise])
    hard = hard[rho[hard] > 0]
    if not len(hard):
        return value, gap
    m, r = mode[hard], rho[hard]
    low, high = np.full(len(hard), -30.0), np.full(len(hard), 30.0)
    q = np.tile(uniform, (len(hard), 1))
    for _ in range(80):
        middle = (low + high) / 2
        q = _at_multiplier(m, np.exp(middle))
        with np.errstate(divide="ignore"):
            too_far = (
                np.where(m > 0, m * (np.log(np.maximum(m, 1e-300)) - np.log(np.maximum(q, 1e-300))), 0.0).sum(1) > r
            )
        low, high = np.where(too_far, middle, low), np.where(too_far, high, middle)
    lam = np.exp(high)
    q = _at_multiplier(m, lam)
    kl = np.where(m > 0, m * (np.log(np.maximum(m, 1e-300)) - np.log(np.maximum(q, 1e-300))), 0.0).sum(1)
    value[hard] = shannon(q)
    # q maximises H - lam KL over the simplex: H(q) + lam (rho - KL(q)) bounds the optimum from above.
    gap[hard] = np.maximum(lam * (r - kl), 0.0)
    return value, gap


def _at_multiplier(mode: Distributions, lam: Rows) -> Distributions:
    """The q of one multiplier: bisection over c, then normalised."""
    log_z = np.log(np.maximum(mode, 1e-300)) + np.log(lam)[:, None]
    low, high = np.full(len(mode), -5.0), lam + 800.0

    def point(c: Rows) -> Distributions:
        # W(e^t) for t = log(lam m) + c: scipy's W where e^t is finite, its expansion above (Wright's omega function).
        t = log_z + c[:, None]
        w = np.where(t < 700, np.real(lambertw(np.exp(np.minimum(t, 700)))), 0.0)
        big = t >= 700
        if big.any():
            far = t[big]
            guess = far - np.log(far)
            for _ in range(5):
                guess = guess - (guess + np.log(guess) - far) / (1 + 1 / guess)
            w[big] = guess
        with np.errstate(divide="ignore", invalid="ignore"):
            q = np.where(t < -690, np.exp(-c)[:, None], np.exp(log_z) / np.maximum(w, 1e-300))
        return np.asarray(q)

    for _ in range(100):
        middle = (low + high) / 2
        above = point(middle).sum(1) > 1  # q falls with c
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    q = point((low + high) / 2)
    return np.asarray(q / q.sum(1, keepdims=True))


def level_minimum(gain: Distributions, mode: Distributions, rho: Rows) -> Distributions:
    """The q of ``KL(mode || q) <= rho`` with the least ``gain . q``: ``q_k ~ m_k / (gain_k - nu)``, one bisection over
    nu.

    Entries of the mode below 1e-12 count as 1e-12.
    """
    m = np.maximum(mode, _FLOOR)
    m = m / m.sum(1, keepdims=True)
    smallest = gain.min(1)
    spread = np.maximum(np.ptp(gain, axis=1), 1e-300)
    low, high = np.full(len(m), -40.0), np.full(len(m), 40.0)  # log of (smallest gain - nu) / spread

    def point(d: Rows) -> Distributions:
        q = m / (gain - smallest[:, None] + (np.exp(d) * spread)[:, None])
        return np.asarray(q / q.sum(1, keepdims=True))

    for _ in range(100):
        middle = (low + high) / 2
        too_far = (m * (np.log(m) - np.log(np.maximum(point(middle), 1e-300)))).sum(1) > rho
        low, high = np.where(too_far, middle, low), np.where(too_far, high, middle)
    return point(high)


def level_lower(mode: Distributions, rho: Rows, *, rounds: int = 50) -> tuple[Rows, Rows]:
    """A small entropy over the level set, found from K starts, and the box value, which bounds the minimum from below.

    There is no closed form for this concave minimisation: one start a class (the point where that class is largest),
    then full linearised steps, each of which lowers the entropy. The value is not certified.

    Returns
    -------
    value, bound : float64[rows]
        The true minimum lies in ``[bound, value]``.
    """
    from assay.uncertainty.credal.intervals import lower_entropy_intervals

    n, k = mode.shape
    best = shannon(mode)
    whole = np.isinf(rho)
    finite = np.where(whole, 1.0, rho)
    for start in range(k):
        gain = np.zeros((n, k))
        gain[:, start] = -1.0
        q = level_minimum(gain, mode, finite)
        value = shannon(q)
        for _ in range(rounds):
            q = level_minimum(-np.log(np.maximum(q, 1e-300)), mode, finite)
            lower = shannon(q)
            settled = np.abs(lower - value) < 1e-12
            value = np.minimum(value, lower)
            if settled.all():
                break
        best = np.minimum(best, value)
    low, high = level_box(mode, rho)
    bound = lower_entropy_intervals(low, high)
    return np.where(whole, 0.0, np.maximum(best, bound)), np.where(whole, 0.0, bound)
