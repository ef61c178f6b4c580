"""Bounds over any credal set: entropies, probabilities of events, expectations."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.uncertainty.credal import score_balls
from assay.uncertainty.credal.balls import (
    level_box,
    level_lower,
    level_minimum,
    level_mode,
    level_upper,
    tv_entropy,
    tv_upper_point,
)
from assay.uncertainty.credal.hull import GAP, lower_entropy_hull, upper_entropy_hull
from assay.uncertainty.credal.intervals import lower_entropy_intervals, upper_entropy_intervals
from assay.uncertainty.errors import NotSupported, UncertaintyError
from assay.uncertainty.measures.sample import shannon
from assay.uncertainty.representations import Hull, Intervals, LevelSet, ScoreBall, TVBall

CredalSet = Intervals | Hull | TVBall | LevelSet | ScoreBall
Array = NDArray[np.float64]
HARTLEY_CLASSES = 16


def upper_entropy(rep: CredalSet, *, chunk: int | None = None) -> Array:
    """Largest Shannon entropy over each set, in nats.

    Exact for intervals, TV balls and the sets of the scores KL and inner product; for hulls, level sets and Wasserstein
    balls within a certified gap of 1e-8.

    Examples
    --------
    >>> upper_entropy(Intervals([[0.2, 0.2, 0.2]], [[0.5, 0.5, 0.5]])).round(6).tolist()
    [1.098612]
    """
    k = rep.n_classes
    if isinstance(rep, Intervals):
        value = upper_entropy_intervals(rep.lower.reshape(-1, k), rep.upper.reshape(-1, k), chunk)
    elif isinstance(rep, Hull):
        vertices = rep.vertices.reshape(-1, rep.vertices.shape[-2], k)
        if not rep.convex:
            value = shannon(vertices).max(axis=1)
        else:
            value, gap = upper_entropy_hull(vertices)
            _certified(gap)
    elif isinstance(rep, TVBall):
        value = tv_entropy(rep.center.reshape(-1, k), rep.radius.reshape(-1))[1]
    elif isinstance(rep, ScoreBall):
        center, radius = _flat(rep)
        if rep.score == "wasserstein":
            value, gap = score_balls.wasserstein_upper(center, radius)
            _certified(gap)
        else:
            value = (score_balls.kl_upper if rep.score == "kl" else score_balls.inner_upper)(center, radius)
    else:
        value, gap = level_upper(*level_mode(rep.alpha.reshape(-1, k), rep.tau.reshape(-1)))
        _certified(gap)
    return np.asarray(value).reshape(rep.batch_shape)


def lower_entropy(rep: CredalSet, *, chunk: int | None = None) -> Array:
    """Smallest Shannon entropy over each set, in nats.

    Exact for intervals, hulls, TV balls and the sets of scores (`ScoreBall`; Wasserstein balls up to 8 classes). For
    level sets the best of K starts (see `level_lower`).

    Raises
    ------
    NotSupported
    """
    del chunk  # the enumeration sizes its own blocks
    k = rep.n_classes
    if isinstance(rep, Intervals):
        value = lower_entropy_intervals(rep.lower.reshape(-1, k), rep.upper.reshape(-1, k))
    elif isinstance(rep, Hull):
        value = lower_entropy_hull(rep.vertices.reshape(-1, rep.vertices.shape[-2], k))
    elif isinstance(rep, TVBall):
        value = tv_entropy(rep.center.reshape(-1, k), rep.radius.reshape(-1))[0]
    elif isinstance(rep, ScoreBall):
        center, radius = _flat(rep)
        if rep.score == "inner":  # the corner of the likeliest class is in every such set
            value = np.zeros(len(center))
        else:
            value = (score_balls.kl_lower if rep.score == "kl" else score_balls.wasserstein_lower)(center, radius)
    else:
        value, _ = level_lower(*level_mode(rep.alpha.reshape(-1, k), rep.tau.reshape(-1)))
    return np.asarray(value).reshape(rep.batch_shape)


def _flat(rep: ScoreBall) -> tuple[Array, Array]:
    return rep.center.reshape(-1, rep.n_classes), rep.radius.reshape(-1)


def _certified(gap: Array) -> None:
    if gap.max(initial=0.0) > GAP:
        row = int(gap.argmax())
        raise UncertaintyError(
            f"row {row}: the upper entropy is certified to {gap[row]:.2g} only (goal {GAP}); "
            "are its vertices distributions?"
        )


def enclosing(rep: CredalSet) -> Intervals:
    """The tightest probability intervals around each set."""
    if isinstance(rep, Intervals):
        return rep.reachable()
    if isinstance(rep, (Hull, TVBall)):
        return rep.intervals()
    if isinstance(rep, ScoreBall):
        center, radius = _flat(rep)
        if rep.score == "kl":
            low, high = score_balls.kl_box(center, radius)
        elif rep.score == "wasserstein":
            low, high = score_balls.wasserstein_box(center, radius)
        else:
            one = np.eye(rep.n_classes, dtype=bool)
            low = np.stack([score_balls.inner_least_probability(center, radius, a) for a in one], axis=1)
            high = 1 - np.stack([score_balls.inner_least_probability(center, radius, ~a) for a in one], axis=1)
        shape = rep.center.shape
        return Intervals(low.reshape(shape), high.reshape(shape)).named(rep.classes, rep.index)
    k = rep.n_classes
    low, high = level_box(*level_mode(rep.alpha.reshape(-1, k), rep.tau.reshape(-1)))
    return Intervals(low.reshape(rep.alpha.shape), high.reshape(rep.alpha.shape)).named(rep.classes, rep.index)


def dominance_set(rep: CredalSet) -> NDArray[np.bool_]:
    """Classes whose upper probability reaches the largest lower one: ``{k: u_k >= max_j l_j}``, a mask ``(..., K)``."""
    box = enclosing(rep)
    return np.asarray(box.upper >= box.lower.max(-1, keepdims=True))


def lower_probability(rep: CredalSet, *, force: bool = False) -> Array:
    """Lower probability of all ``2^K`` events, ``float64[rows, 2^K]``; bit k of an event's number is class k.

    Raises
    ------
    NotSupported
        For more than 16 classes (unless forced), and for level sets, whose lower probabilities have no short form.
    """
    k = rep.n_classes
    if k > HARTLEY_CLASSES and not force:
        raise NotSupported(
            "hartley",
            f"{k} classes",
            (),
            f"it takes 2^{k} numbers a row (force=True lifts the limit of {HARTLEY_CLASSES})",
        )
    events = ((np.arange(2**k)[:, None] >> np.arange(k)) & 1).astype(np.float64)
    if isinstance(rep, Intervals):
        box = rep.reachable()
        l, u = box.lower.reshape(-1, k), box.upper.reshape(-1, k)
        return np.clip(np.maximum(l @ events.T, 1 - u @ (1 - events).T), 0, 1)
    if isinstance(rep, Hull):
        vertices = rep.vertices.reshape(-1, rep.vertices.shape[-2], k)
        return np.clip(np.stack([(v @ events.T).min(0) for v in vertices]), 0, 1)
    if isinstance(rep, TVBall):
        value = np.maximum(rep.center.reshape(-1, k) @ events.T - rep.radius.reshape(-1, 1), 0)
        value[:, -1] = 1.0
        return np.asarray(value)
    if isinstance(rep, ScoreBall):
        center, radius = _flat(rep)
        if rep.score == "kl":
            value = score_balls.kl_box(np.clip(center @ events.T, 0, 1), radius)[0]
        elif rep.score == "inner":
            masks = events.astype(bool)
            value = np.stack([score_balls.inner_least_probability(center, radius, a) for a in masks], axis=1)
        else:
            value = np.stack([score_balls.wasserstein_least(center, radius, a) for a in events], axis=1)
        value[:, 0], value[:, -1] = 0.0, 1.0
        return np.clip(value, 0, 1)
    raise NotSupported("hartley", "LevelSet", ("entropy", "spread", "imprecision"))


def hartley(rep: CredalSet, *, force: bool = False) -> Array:
    """Generalised Hartley measure ``sum_A m(A) log |A|`` in nats, m the Moebius inverse of the lower probability.

    (Abellan and Moral, 2000.) The masses of a set that is no belief function may be negative; the measure is defined
    all the same.

    Examples
    --------
    >>> hartley(Intervals([[0.2, 0.2, 0.2]], [[0.5, 0.5, 0.5]])).round(6).tolist()
    [0.317805]
    """
    mass = lower_probability(rep, force=force)
    k = rep.n_classes
    cube = mass.reshape(-1, *([2] * k)).copy()
    for axis in range(1, k + 1):
        upper_half: list[Any] = [slice(None)] * (k + 1)
        lower_half = upper_half.copy()
        upper_half[axis], lower_half[axis] = 1, 0
        cube[tuple(upper_half)] -= cube[tuple(lower_half)]
    sizes = np.array([bin(a).count("1") for a in range(2**k)])
    logs = np.log(np.maximum(sizes, 1))
    return np.asarray(cube.reshape(-1, 2**k) @ logs).reshape(rep.batch_shape)


def zero_one_bounds(rep: CredalSet) -> tuple[Array, Array]:
    """Largest and smallest value of ``1 - max p`` over each set.

    Raises
    ------
    NotSupported
        For level sets.
    """
    k = rep.n_classes
    if isinstance(rep, LevelSet):
        raise NotSupported("zero_one", "LevelSet", ("entropy", "spread", "imprecision"))
    top = enclosing(rep).upper.max(-1)
    if isinstance(rep, Intervals):
        from assay.uncertainty.credal.intervals import upper_point

        box = rep.reachable()
        flattest = upper_point(box.lower.reshape(-1, k).copy(), box.upper.reshape(-1, k).copy())
        smallest_top = flattest.max(-1)
    elif isinstance(rep, TVBall):
        smallest_top = tv_upper_point(rep.center.reshape(-1, k), rep.radius.reshape(-1)).max(-1)
    elif isinstance(rep, ScoreBall):
        center, radius = _flat(rep)
        if rep.score == "wasserstein":
            smallest_top = np.array([_least_peak(c, r) for c, r in zip(center, radius, strict=True)])
        else:
            smallest_top = (score_balls.kl_flattest if rep.score == "kl" else score_balls.inner_flattest)(
                center, radius
            )
    else:
        vertices = rep.vertices.reshape(-1, rep.vertices.shape[-2], k)
        smallest_top = vertices.max(-1).min(-1) if not rep.convex else np.array([_least_maximum(v) for v in vertices])
    return 1 - np.asarray(smallest_top).reshape(rep.batch_shape), 1 - top


def _least_maximum(vertices: Array) -> float:
    from scipy.optimize import linprog

    m, k = vertices.shape
    found = linprog(
        np.append(np.zeros(m), 1.0), A_ub=np.hstack([vertices.T, -np.ones((k, 1))]), b_ub=np.zeros(k),
        A_eq=np.append(np.ones(m), 0.0)[None], b_eq=[1.0], bounds=[(0, None)] * (m + 1),
    )  # fmt: skip
    return float(found.fun)


def _least_peak(center: Array, radius: float) -> float:
    """Smallest possible largest probability of a Wasserstein ball: a linear program."""
    from scipy.optimize import linprog

    a_ub, b_ub = wasserstein_program(center, radius)
    k, more = len(center), a_ub.shape[1] - len(center)
    peak = np.concatenate([np.eye(k), np.zeros((k, more)), -np.ones((k, 1))], axis=1)
    a = np.concatenate([np.concatenate([a_ub, np.zeros((len(a_ub), 1))], axis=1), peak])
    cost, one = np.zeros(k + more + 1), np.zeros(k + more + 1)
    cost[-1], one[:k] = 1.0, 1.0
    found = linprog(cost, A_ub=a, b_ub=np.append(b_ub, np.zeros(k)), A_eq=one[None], b_eq=[1.0])
    return float(found.fun)


def wasserstein_program(center: Array, radius: float) -> tuple[Array, Array]:
    """Rows ``A x <= b`` that say, for ``x = (q, |F_q - F_p|)``, that q is within the radius."""
    k = len(center)
    tail = np.tril(np.ones((k - 1, k)))
    goal = tail @ center
    none = np.zeros((1, k))
    a = np.block([[tail, -np.eye(k - 1)], [-tail, -np.eye(k - 1)], [none, np.ones((1, k - 1))]])
    return a, np.concatenate([goal, -goal, [min(radius, float(k))]])


def expectation_bounds(rep: CredalSet, values: ArrayLike) -> tuple[Array, Array]:
    """Smallest and largest expectation of ``values (K)`` or ``(K, A)`` over each set: ``(..., )`` or ``(..., A)``;
    exact.

    Examples
    --------
    >>> low, high = expectation_bounds(TVBall([[0.5, 0.3, 0.2]], 0.1), [1.0, 2.0, 3.0])
    >>> low.round(6).tolist(), high.round(6).tolist()
    ([1.5], [1.9])
    """
    v = np.asarray(values, dtype=np.float64)
    if v.shape[0] != rep.n_classes:
        raise UncertaintyError(f"values have {v.shape[0]} rows, the sets {rep.n_classes} classes")
    columns = v.reshape(len(v), -1)
    low = np.stack([_least(rep, c) for c in columns.T], -1)
    high = -np.stack([_least(rep, -c) for c in columns.T], -1)
    shape = (*rep.batch_shape, *v.shape[1:])
    return low.reshape(shape), high.reshape(shape)


def _least(rep: CredalSet, value: Array) -> Array:
    k = rep.n_classes
    order = np.argsort(value, kind="stable")
    if isinstance(rep, Intervals):
        l, u = rep.lower.reshape(-1, k), rep.upper.reshape(-1, k)
        p = l.copy()
        left = 1 - l.sum(1)
        for j in order:  # the cheapest class first
            add = np.minimum(u[:, j] - l[:, j], left)
            p[:, j] += add
            left -= add
        return np.asarray(p @ value)
    if isinstance(rep, Hull):
        return np.asarray((rep.vertices.reshape(-1, rep.vertices.shape[-2], k) @ value).min(1))
    if isinstance(rep, TVBall):
        p = rep.center.reshape(-1, k).copy()
        left = np.minimum(rep.radius.reshape(-1), 1 - p[:, order[0]])
        p[:, order[0]] += left
        for j in itertools.islice(reversed(order), k - 1):
            taken = np.minimum(p[:, j], left)
            p[:, j] -= taken
            left = left - taken
        return np.asarray(p @ value)
    if isinstance(rep, ScoreBall):
        least = {
            "kl": score_balls.kl_least, "inner": score_balls.inner_least, "wasserstein": score_balls.wasserstein_least
        }  # fmt: skip
        return least[rep.score](*_flat(rep), value)
    mode, rho = level_mode(rep.alpha.reshape(-1, k), rep.tau.reshape(-1))
    point = level_minimum(np.tile(value, (len(mode), 1)), mode, np.where(np.isinf(rho), 1e3, rho))
    return np.asarray(np.where(np.isinf(rho), value.min(), point @ value))
