"""Sets of all distributions whose score against a prediction is at most a radius: exact bounds on the sets themselves.

The scores are those of first-order conformal prediction (Javanmardi, Stutz and Huellermeier, 2024) beside total
variation: ``KL(q || p)``, ``1 - p . q``, and the Wasserstein-1 distance over ordered classes in steps. The closed forms
are ours:

- KL: the largest entropy is at ``q ~ p^t`` with t in [0, 1]. On the sphere the entropy is ``-sum q log p - r``, so the
  smallest is at ``q ~ p^t`` with t above 1, the point where the linear function ``q . log p`` is largest (or 0, once a
  corner of the simplex is within the radius).
- Inner product: a half-space. The largest entropy is at ``q ~ exp(mu p)``; if the set is not empty it holds the corner
  of the likeliest class, so the smallest is 0.
- Wasserstein: a polytope. The smallest entropy is at one of its corners, which are enumerated; the largest comes from
  a barrier method on the dual with a duality gap.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax, xlogy

from assay.uncertainty.errors import NotSupported
from assay.uncertainty.measures.sample import shannon

Distributions = Float[np.ndarray, "rows classes"]
Rows = Float[np.ndarray, " rows"]
Array = NDArray[np.float64]
ENUMERATED = 8  # ordered classes up to which corners are enumerated
_TINY = 1e-300


def divergence(q: Array, p: Array) -> Array:
    """``KL(q || p)`` over the last axis; infinite where p is 0 and q is not."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(q > 0, xlogy(q, q) - xlogy(q, p), 0.0)
    return np.asarray(np.maximum(terms.sum(-1), 0.0))


def wasserstein(q: Array, p: Array) -> Array:
    """Wasserstein-1 distance over ordered classes, in steps: 0 ... K - 1."""
    return np.asarray(np.abs(np.cumsum(q - p, axis=-1)[..., :-1]).sum(-1))


def score_of(score: str, p: Array, q: Array) -> Array:
    """Score of distributions q under predictions p."""
    if score == "kl":
        return divergence(q, p)
    return np.asarray(1 - (p * q).sum(-1)) if score == "inner" else wasserstein(q, p)


def _bisect(good: Callable[[Rows], NDArray[np.bool_]], inside: Rows, outside: Rows, rounds: int = 80) -> Rows:
    """The last point, going from ``inside`` to ``outside``, at which ``good`` holds."""
    a, b = inside.copy(), outside.copy()
    for _ in range(rounds):
        middle = (a + b) / 2
        fits = good(middle)
        a, b = np.where(fits, middle, a), np.where(fits, b, middle)
    return a


def _power(p: Array, t: Rows) -> Array:
    """``p^t``, normalised; classes of probability 0 stay 0."""
    with np.errstate(divide="ignore"):
        logs = np.log(p)
    scaled = np.where(p > 0, t[:, None] * np.where(p > 0, logs, 0.0), -np.inf)
    return np.asarray(softmax(scaled, axis=1))


# -- Kullback-Leibler ------------------------------------------------------------------------------------------------


def kl_upper(p: Distributions, radius: Rows) -> Rows:
    """Largest entropy over ``KL(q || p) <= radius``."""
    t = _bisect(lambda t: divergence(_power(p, t), p) <= radius, np.ones(len(p)), np.zeros(len(p)))
    t = np.where(divergence(_power(p, np.zeros(len(p))), p) <= radius, 0.0, t)
    value = shannon(_power(p, t))
    return np.asarray(np.where(np.isinf(radius), np.log(p.shape[1]), value))


def kl_lower(p: Distributions, radius: Rows) -> Rows:
    """Smallest entropy over ``KL(q || p) <= radius``.

    >>> kl_lower(np.array([[0.5, 0.5], [0.5, 0.5]]), np.array([0.0, 0.7])).round(6).tolist()
    [0.693147, 0.0]
    """
    top = p.max(1)
    ties = (p == top[:, None]).sum(1)
    # With m equal largest entries, sharpening stops at the even distribution over them, log(1 / (m top)) away.
    far = radius >= -np.log(ties * top)
    limit = np.where(far, 0.0, radius)
    s = _bisect(
        lambda s: divergence(_power(p, 1 / np.maximum(1 - s, 1e-12)), p) <= limit, np.zeros(len(p)), np.ones(len(p))
    )
    at = _power(p, 1 / np.maximum(1 - s, 1e-12))
    linear = np.where(far, np.log(top), np.where(at > 0, xlogy(at, p), 0.0).sum(1))
    return np.asarray(np.maximum(-linear - radius, 0.0))


def kl_box(p: Array, radius: Array) -> tuple[Array, Array]:
    """Smallest and largest ``q(A)`` for events of probability p, arrays ``(rows, events)``.

    The classes of an event keep their ratios, so one binary divergence gives a bound.
    """
    r = radius[:, None]

    def binary(q: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            a = np.where(q > 0, xlogy(q, q) - xlogy(q, p), 0.0)
            b = np.where(q < 1, xlogy(1 - q, 1 - q) - xlogy(1 - q, 1 - p), 0.0)
        return np.asarray(a + b)

    ends = []
    for edge in (0.0, 1.0):
        inside, outside = np.array(p, dtype=np.float64), np.full(p.shape, edge)
        reached = binary(outside) <= r
        for _ in range(80):
            middle = (inside + outside) / 2
            fits = binary(middle) <= r
            inside, outside = np.where(fits, middle, inside), np.where(fits, outside, middle)
        ends.append(np.where(reached | np.isinf(r), edge, inside))
    return ends[0], ends[1]


def kl_least(p: Distributions, radius: Rows, value: Array) -> Rows:
    """Smallest expectation of ``value (K)``: exponential tilting ``q ~ p exp(-s value)``."""
    span = float(np.ptp(value)) or 1.0
    with np.errstate(divide="ignore"):
        logs = np.log(p)

    def tilted(u: Rows) -> Array:
        s = u / np.maximum(1 - u, 1e-12) / span
        return np.asarray(softmax(logs - s[:, None] * (value - value.min()), axis=1))

    u = _bisect(lambda u: divergence(tilted(u), p) <= radius, np.zeros(len(p)), np.ones(len(p)))
    found = tilted(u) @ value
    least = np.where(p > 0, value, np.inf).min(1)
    mass = (p * (value == least[:, None])).sum(1)
    found = np.where(radius >= -np.log(np.maximum(mass, _TINY)), least, found)
    return np.asarray(np.where(np.isinf(radius), value.min(), found))


def kl_flattest(p: Distributions, radius: Rows) -> Rows:
    """Smallest possible largest probability: ``q = min(c p, cap)``, with the least cap within the radius."""
    n, k = p.shape
    order = np.sort(p, axis=1)[:, ::-1]
    tails = np.concatenate([np.cumsum(order[:, ::-1], axis=1)[:, ::-1], np.zeros((n, 1))], axis=1)

    def capped(cap: Rows) -> Array:
        # The j largest are at the cap, the others are scaled by c = (1 - j cap) / (their mass): the first j that fits.
        q = np.zeros((n, k))
        done = np.zeros(n, dtype=bool)
        for j in range(k):
            rest = np.maximum(1 - j * cap, 0)
            c = rest / np.maximum(tails[:, j], _TINY)
            fits = ~done & (c * order[:, j] <= cap + 1e-15)
            made = np.concatenate([np.repeat(cap[:, None], j, axis=1), c[:, None] * order[:, j:]], axis=1)
            q[fits] = made[fits]
            done |= fits
        q[~done] = 1 / k
        return q

    support = (p > 0).sum(1)
    cap = _bisect(lambda cap: divergence(capped(cap), order) <= radius, order[:, 0].copy(), 1 / support)
    cap = np.where(-np.log(support) - np.where(p > 0, np.log(np.maximum(p, _TINY)), 0).sum(1) / support <= radius,
                   1 / support, cap)  # fmt: skip
    return np.asarray(np.where(np.isinf(radius), 1 / k, cap))


# -- inner product ---------------------------------------------------------------------------------------------------


def inner_upper(p: Distributions, radius: Rows) -> Rows:
    """Largest entropy over ``p . q >= 1 - radius``."""
    goal = 1 - radius
    # The tilt of largest use: beyond it the distribution is even over the likeliest classes.
    u = _bisect(lambda u: (_tilt(p, u) * p).sum(1) < goal, np.zeros(len(p)), np.ones(len(p)))
    value = shannon(_tilt(p, u))
    value = np.where(p.mean(1) >= goal, np.log(p.shape[1]), value)
    ties = (p == p.max(1, keepdims=True)).sum(1)
    return np.asarray(np.where(goal >= p.max(1) - 1e-15, np.log(ties), value))


def _tilt(p: Array, u: Rows) -> Array:
    return np.asarray(softmax((u / np.maximum(1 - u, 1e-12))[:, None] * p, axis=1))


def inner_least_probability(p: Array, radius: Rows, inside: NDArray[np.bool_]) -> Rows:
    """Smallest probability of an event: mass goes to the likeliest class outside it as far as the score allows."""
    goal = 1 - radius
    if inside.all():
        return np.ones(len(p))
    if not inside.any():
        return np.zeros(len(p))
    a, b = p[:, inside].max(1), p[:, ~inside].max(1)
    share = (goal - b) / np.where(a > b, a - b, 1.0)
    return np.asarray(np.where(b >= goal, 0.0, np.clip(share, 0, 1)))


def inner_least(p: Array, radius: Rows, value: Array) -> Rows:
    """Smallest expectation of ``value (K)``: at one class, or at two that meet the bound exactly."""
    goal = (1 - radius)[:, None, None]
    a, b = p[:, :, None], p[:, None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(a != b, (goal - b) / (a - b), 0.0)  # of the first class
    fits = (a >= goal) & (b < goal)
    mixed = np.where(fits, share * value[:, None] + (1 - share) * value[None, :], np.inf)
    single = np.where(p >= 1 - radius[:, None] - 1e-15, value, np.inf)
    return np.asarray(np.minimum(mixed.min((1, 2)), single.min(1)))


def inner_flattest(p: Array, radius: Rows) -> Rows:
    """Smallest possible largest probability: the likeliest classes are filled to one cap."""
    k = p.shape[1]
    order = np.sort(p, axis=1)[:, ::-1]

    def reached(cap: Rows) -> NDArray[np.bool_]:
        filled = np.clip(1 - cap[:, None] * np.arange(k), 0, cap[:, None])
        return np.asarray((filled * order).sum(1) >= 1 - radius - 1e-15)

    cap = _bisect(reached, np.ones(len(p)), np.full(len(p), 1 / k))
    return np.asarray(np.where(reached(np.full(len(p), 1 / k)), 1 / k, cap))


# -- Wasserstein -----------------------------------------------------------------------------------------------------


def wasserstein_box(p: Array, radius: Rows) -> tuple[Array, Array]:
    """Smallest and largest value of each class: mass leaves by one step, and comes from the nearest classes first."""
    k = p.shape[1]
    low = np.maximum(p - radius[:, None], 0.0) if k > 1 else p
    high = p.copy()
    for j in range(k):
        left = radius.copy()
        for i in sorted(range(k), key=lambda i, j=j: abs(i - j)):  # type: ignore[misc]
            if i == j:
                continue
            step = abs(i - j)
            moved = np.minimum(p[:, i], left / step)
            high[:, j] += moved
            left -= moved * step
    return low, np.minimum(high, 1.0)


def wasserstein_least(p: Array, radius: Rows, value: Array) -> Rows:
    """Smallest expectation of ``value (K)``, by the dual over the price of a step, which is piecewise linear: all its
    kinks are tried."""
    k = len(value)
    steps = np.abs(np.arange(k)[:, None] - np.arange(k))  # [to, from]
    prices = {0.0}
    for source in range(k):
        for i in range(k):
            for j in range(i + 1, k):
                if steps[i, source] != steps[j, source]:
                    price = (value[j] - value[i]) / (steps[i, source] - steps[j, source])
                    if price > 0:
                        prices.add(float(price))
    finite = np.where(np.isinf(radius), 0.0, radius)
    best = np.full(len(p), -np.inf)
    for price in prices:
        cheapest = (value[:, None] + price * steps).min(0)
        best = np.maximum(best, p @ cheapest - price * finite)
    return np.asarray(np.where(np.isinf(radius), value.min(), best))


@lru_cache(maxsize=16)
def _patterns(places: int) -> tuple[tuple[tuple[tuple[int, int], ...], tuple[int | str, ...]], ...]:
    """Ways in which a corner may look: runs of equal cumulative probability, each held at 0, at 1, or at one of the
    prediction's own values, but for one run that is free."""
    out = []
    for cuts in product((False, True), repeat=places - 1):
        runs, start = [], 0
        for i, cut in enumerate(cuts, 1):
            if cut:
                runs.append((start, i))
                start = i
        runs.append((start, places))
        for free in range(len(runs)):
            choices: list[list[int | str]] = []
            for number, (a, b) in enumerate(runs):
                if number == free:
                    choices.append(["free"])
                    continue
                held: list[int | str] = list(range(a, b))
                if number == 0:
                    held.append("zero")
                if number == len(runs) - 1:
                    held.append("one")
                choices.append(held)
            out += [(tuple(runs), chosen) for chosen in product(*choices)]
    return tuple(out)


def wasserstein_lower(p: Distributions, radius: Rows) -> Rows:
    """Smallest entropy over a Wasserstein ball, over all corners.

    Raises
    ------
    NotSupported
        For more than 8 classes, whose corners are too many.
    """
    n, k = p.shape
    if k > ENUMERATED:
        raise NotSupported(
            "entropy", f"a Wasserstein ball over {k} ordered classes", (), "its corners are listed for at most 8; take "
            "its intervals()",
        )  # fmt: skip
    grid = np.arange(k)
    corner = (np.abs(grid[:, None] - grid) @ p.T).min(0) <= radius + 1e-15  # a single class is within reach
    best = shannon(p)
    cumulative = np.cumsum(p, axis=1)[:, :-1]
    for runs, held in _patterns(k - 1) if k > 1 else ():
        f = np.empty((n, k - 1))
        spent = np.zeros(n)
        free = (0, 0)
        for (a, b), what in zip(runs, held, strict=True):
            if what == "free":
                free = (a, b)
                continue
            if isinstance(what, int):
                level = cumulative[:, what]
            else:
                level = np.full(n, float(what == "one"))
            f[:, a:b] = level[:, None]
            spent += np.abs(level[:, None] - cumulative[:, a:b]).sum(1)
        a, b = free
        left = radius - spent
        below = f[:, a - 1] if a > 0 else np.zeros(n)
        above = f[:, b] if b < k - 1 else np.ones(n)
        part = cumulative[:, a:b]
        sums = np.concatenate([np.zeros((n, 1)), np.cumsum(part, axis=1)], axis=1)
        m = b - a
        for j in range(m + 1):  # j of the run's values lie below the level
            slope = 2 * j - m
            if slope == 0:
                continue
            level = (left + 2 * sums[:, j] - sums[:, m]) / slope
            low = part[:, j - 1] if j > 0 else np.full(n, -np.inf)
            high = part[:, j] if j < m else np.full(n, np.inf)
            fits = (left >= 0) & (level >= np.maximum(low, below) - 1e-12) & (level <= np.minimum(high, above) + 1e-12)
            if not fits.any():
                continue
            f[:, a:b] = np.clip(level, below, above)[:, None]
            edges = np.concatenate([np.zeros((n, 1)), f, np.ones((n, 1))], axis=1)
            q = np.diff(edges, axis=1)
            fits &= (q >= -1e-12).all(1)
            value = shannon(np.maximum(q[fits], 0.0))
            best[fits] = np.minimum(best[fits], value)
    return np.asarray(np.where(corner, 0.0, np.maximum(best, 0.0)))


def wasserstein_upper(p: Distributions, radius: Rows, *, gap: float = 1e-9) -> tuple[Rows, Rows]:
    """Largest entropy over a Wasserstein ball, and its duality gap.

    The dual is ``min logsumexp(-phi) + p . phi + lam r`` over potentials whose steps are at most lam (Kantorovich and
    Rubinstein); a log barrier takes it to the optimum. The primal point ``q ~ exp(-phi)`` is drawn towards p until it
    is within the radius, so the gap is certified whatever the solver did.
    """
    n, k = p.shape
    value, gaps = np.full(n, np.log(k)), np.zeros(n)
    near = wasserstein(np.full((n, k), 1 / k), p) > radius
    still = near & (radius <= 0)
    value[still] = shannon(p[still])
    rows = np.flatnonzero(near & (radius > 0))
    if len(rows):
        value[rows], gaps[rows] = _barrier(p[rows], radius[rows], gap)
    return value, gaps


def _barrier(p: Array, r: Rows, gap: float) -> tuple[Rows, Rows]:
    n, k = p.shape
    steps = k - 1
    tail = (np.arange(k)[:, None] > np.arange(steps)).astype(np.float64)  # phi = tail @ d
    d, lam, t = np.zeros((n, steps)), np.ones(n), np.full(n, 1.0)
    goal = np.cumsum(p, axis=1)[:, :-1]
    best, bound = shannon(p), np.full(n, np.inf)

    def dual(d: Array, lam: Rows) -> Rows:
        phi = d @ tail.T
        return np.asarray(logsumexp(-phi, axis=1) + (p * phi).sum(1) + lam * r)

    def objective(d: Array, lam: Rows) -> Rows:
        room = np.stack([lam[:, None] - d, lam[:, None] + d])
        with np.errstate(invalid="ignore", divide="ignore"):
            wall = -np.log(room).sum((0, 2))
        bad = (room <= 0).any((0, 2))
        return np.asarray(np.where(bad, np.inf, t * dual(d, lam) + np.where(bad, 0.0, wall)))

    for _ in range(400):
        q = softmax(-(d @ tail.T), axis=1)
        excess = wasserstein(q, p)
        share = np.minimum(1.0, r / np.maximum(excess, _TINY))[:, None]
        inside = p + share * (q - p)
        best = np.maximum(best, shannon(inside))
        bound = np.minimum(bound, dual(d, np.maximum(np.abs(d).max(1), 0.0)))
        going = bound - best > gap
        if not going.any():
            break
        up, down = lam[:, None] - d, lam[:, None] + d
        grad = np.empty((n, steps + 1))
        grad[:, :steps] = t[:, None] * (np.cumsum(q, axis=1)[:, :-1] - goal) + 1 / up - 1 / down
        grad[:, steps] = t * r - (1 / up + 1 / down).sum(1)
        hess = np.zeros((n, steps + 1, steps + 1))
        covariance = q[:, :, None] * np.eye(k) - q[:, :, None] * q[:, None, :]
        hess[:, :steps, :steps] = t[:, None, None] * np.einsum("ki,nkl,lj->nij", tail, covariance, tail)
        curve, cross = 1 / up**2 + 1 / down**2, -1 / up**2 + 1 / down**2
        at = np.arange(steps)
        hess[:, at, at] += curve
        hess[:, :steps, steps] = hess[:, steps, :steps] = cross
        hess[:, steps, steps] = curve.sum(1)
        move = -np.linalg.solve(hess, grad[..., None])[..., 0]
        decrement = -(grad * move).sum(1)
        size = np.ones(n)
        now = objective(d, lam)
        for _ in range(40):
            trial = objective(d + size[:, None] * move[:, :steps], lam + size * move[:, steps])
            worse = ~(trial <= now - 1e-4 * size * np.maximum(decrement, 0.0) + 1e-12 * np.abs(now)) & going
            if not worse.any():
                break
            size = np.where(worse, size / 2, size)
        size = np.where(going, size, 0.0)
        d, lam = d + size[:, None] * move[:, :steps], lam + size * move[:, steps]
        t = np.where((decrement < 0.5) & going, t * 8, t)
    return best, np.maximum(bound - best, 0.0)
