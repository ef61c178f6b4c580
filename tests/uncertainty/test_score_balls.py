"""Sets of a score at most: bounds against random members, against general solvers, and in closed form."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog, minimize
from scipy.stats import entropy as scipy_entropy
from scipy.stats import wasserstein_distance

from assay.uncertainty import (
    ConformalCredalSet,
    EmptyCredalSet,
    NotSupported,
    ScoreBall,
    UncertaintyError,
    e_admissible,
    first_order,
    gamma_maximin,
    hartley,
    lower_entropy,
    quantify,
    upper_entropy,
)
from assay.uncertainty.credal import enclosing, expectation_bounds, lower_probability, zero_one_bounds
from assay.uncertainty.credal.score_balls import score_of, wasserstein_upper
from assay.uncertainty.measures.sample import shannon

SCORES = ("kl", "inner", "wasserstein")


def balls(score, n, k, seed=0):
    """Balls of many sizes, from nearly a point to nearly the simplex."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(k), n)
    top = {"kl": -np.log(p.min(1)), "inner": 1 - p.min(1), "wasserstein": np.full(n, (k - 1) / 2)}[score]
    radius = rng.random(n) ** 2 * top
    return ScoreBall(p, np.maximum(radius, 1 - p.max(1) + 1e-6) if score == "inner" else radius, score)


def members(ball, row, n, seed=1):
    """Distributions of one set: random ones, drawn towards the prediction (or its corner) until they are inside."""
    rng = np.random.default_rng(seed)
    k = ball.n_classes
    q = np.concatenate([rng.dirichlet(np.full(k, a), n // 3) for a in (0.2, 1.0, 5.0)] + [np.eye(k)])
    start = ball.center[row] if ball.score != "inner" else np.eye(k)[ball.center[row].argmax()]
    low, high = np.zeros(len(q)), np.ones(len(q))
    for _ in range(60):
        middle = (low + high) / 2
        at = start + middle[:, None] * (q - start)
        fits = score_of(ball.score, ball.center[row], at) <= ball.radius[row]
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return start + low[:, None] * (q - start)


def test_scores_equal_those_of_scipy():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(5), (2, 20))
    np.testing.assert_allclose(score_of("kl", p, q), [scipy_entropy(b, a) for a, b in zip(p, q, strict=True)])
    steps = np.arange(5)
    by_scipy = [wasserstein_distance(steps, steps, a, b) for a, b in zip(p, q, strict=True)]
    np.testing.assert_allclose(score_of("wasserstein", p, q), by_scipy)
    assert score_of("kl", np.array([1.0, 0.0]), np.array([0.5, 0.5])) == np.inf


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("k", [2, 3, 5])
def test_no_member_is_outside_the_bounds_and_the_bounds_are_reached(score, k):
    ball = balls(score, 25, k)
    low, high = lower_entropy(ball), upper_entropy(ball)
    box = enclosing(ball)
    values = np.random.default_rng(2).normal(size=k)
    least, most = expectation_bounds(ball, values)
    worst, sure = zero_one_bounds(ball)
    for i in range(25):
        q = members(ball, i, 3000)
        h, e, top = shannon(q), q @ values, 1 - q.max(1)
        assert h.min() >= low[i] - 1e-7
        assert h.max() <= high[i] + 1e-7
        assert (q >= box.lower[i] - 1e-7).all() and (q <= box.upper[i] + 1e-7).all()
        assert e.min() >= least[i] - 1e-7 and e.max() <= most[i] + 1e-7
        assert top.max() <= worst[i] + 1e-7 and top.min() >= sure[i] - 1e-7
        if k == 2:  # an interval, which the members fill
            assert h.min() <= low[i] + 1e-4 and h.max() >= high[i] - 2e-3
        assert e.min() <= least[i] + 0.35 and e.max() >= most[i] - 0.35


@pytest.mark.parametrize("score", SCORES)
def test_entropies_equal_those_of_a_general_solver(score):
    ball = balls(score, 6, 4, seed=3)
    low, high = lower_entropy(ball), upper_entropy(ball)
    directions = ((-1, high), (1, low)) if score != "inner" else ((-1, high),)  # the lowest is 0, at a corner
    for i, (p, r) in enumerate(zip(ball.center, ball.radius, strict=True)):
        inside = {"type": "ineq", "fun": lambda q, p=p, r=r: r - score_of(score, p, np.maximum(q, 1e-300))}
        if score == "wasserstein":  # smooth rows in place of the absolute values
            signs = np.array(np.meshgrid(*[[-1, 1]] * 3)).reshape(3, -1).T
            inside["fun"] = lambda q, p=p, r=r, s=signs: r - s @ np.cumsum(q - p)[:-1]
        whole = {"type": "eq", "fun": lambda q: q.sum() - 1}
        for sign, value in ((sign, values[i]) for sign, values in directions):
            best = np.inf
            for start in [p, *members(ball, i, 3 if sign < 0 else 9)]:
                found = minimize(
                    lambda q, sign=sign: sign * shannon(np.maximum(q, 0)), start, bounds=[(1e-9, 1)] * 4,
                    constraints=[inside, whole], method="SLSQP", options={"ftol": 1e-13, "maxiter": 300},
                )  # fmt: skip
                if found.success and np.min(inside["fun"](found.x)) > -1e-8:
                    best = min(best, found.fun)
            if sign < 0:
                assert -best == pytest.approx(value, abs=2e-5)
            else:
                assert value - 2e-6 <= best
                assert best <= value + 5e-2  # a concave minimum has traps for the solver


def test_closed_forms():
    # KL with two classes is an interval; at the radius log(1/p) its end is the corner.
    ball = ScoreBall([[0.8, 0.2]], -np.log(0.8) + 1e-12, "kl")
    assert lower_entropy(ball)[0] == pytest.approx(0, abs=1e-9)
    assert enclosing(ball).upper[0, 0] == pytest.approx(1)
    # Half a step over three ordered classes: from the even distribution all of it goes to one end or to the middle.
    even = ScoreBall([[1 / 3, 1 / 3, 1 / 3]], 1 / 6, "wasserstein")
    assert enclosing(even).upper[0] == pytest.approx([1 / 2, 1 / 2, 1 / 2])
    assert enclosing(even).lower[0] == pytest.approx([1 / 6, 1 / 6, 1 / 6])
    assert lower_entropy(even)[0] == pytest.approx(shannon(np.array([1 / 2, 1 / 3, 1 / 6])))
    assert upper_entropy(even)[0] == pytest.approx(np.log(3))
    # Inner product: 0.5 q1 + 0.3 q2 + 0.2 q3 >= 0.4.
    half = ScoreBall([[0.5, 0.3, 0.2]], 0.6, "inner")
    assert enclosing(half).upper[0] == pytest.approx([1, 1 / 2, 1 / 3])
    assert enclosing(half).lower[0] == pytest.approx([1 / 2, 0, 0])
    assert lower_entropy(half)[0] == 0
    # a radius of 0 is the point, and one without end the whole simplex
    for score in ("kl", "wasserstein"):
        point = quantify(ScoreBall([[0.5, 0.3, 0.2]], 0.0, score))
        assert point.total[0] == pytest.approx(point.aleatoric[0], abs=1e-6)
        whole = quantify(ScoreBall([[0.5, 0.3, 0.2]], np.inf, score))
        assert (whole.total[0], whole.aleatoric[0]) == (pytest.approx(np.log(3)), 0)


def test_sharpening_stops_at_ties():
    ball = ScoreBall([[0.4, 0.4, 0.2]], 0.5, "kl")  # log(1 / 0.8) < 0.5 < log(1 / 0.4)
    assert lower_entropy(ball)[0] == pytest.approx(-np.log(0.4) - 0.5)


def test_wasserstein_upper_entropy_is_certified():
    rng = np.random.default_rng(5)
    p, r = rng.dirichlet(np.ones(7) * 0.5, 300), rng.random(300) * 1.5
    _, gap = wasserstein_upper(p, r)
    assert gap.max() <= 1e-8


@pytest.mark.parametrize("score", SCORES)
def test_lower_probabilities_are_those_of_the_events(score):
    ball = balls(score, 6, 4, seed=6)
    found = lower_probability(ball)
    for event in range(16):
        inside = np.array([(event >> j) & 1 for j in range(4)], dtype=float)
        np.testing.assert_allclose(found[:, event], expectation_bounds(ball, inside)[0], atol=1e-7)
    assert (hartley(ball) >= -1e-9).all()
    parts = quantify(ball, "hartley")
    np.testing.assert_allclose(parts.total, parts.aleatoric + parts.epistemic)


def test_wasserstein_expectations_by_linear_programs():
    ball = balls("wasserstein", 20, 5, seed=7)
    value = np.random.default_rng(8).normal(size=5)
    low, _ = expectation_bounds(ball, value)
    distance = np.abs(np.arange(5)[:, None] - np.arange(5)).ravel()
    for p, r, found in zip(ball.center, ball.radius, low, strict=True):  # a plan from p (rows) to q (columns)
        leaves = np.kron(np.eye(5), np.ones(5))
        program = linprog(np.tile(value, 5), A_ub=distance[None], b_ub=[r], A_eq=leaves, b_eq=p)
        assert found == pytest.approx(program.fun, abs=1e-8)


def test_decisions_and_errors():
    half = ScoreBall([[0.5, 0.3, 0.2]], 0.6, "inner")
    assert gamma_maximin(half).tolist() == [0]
    assert e_admissible(half).tolist() == [[True, True, False]]
    near = ScoreBall([[0.5, 0.3, 0.2]], 0.1, "wasserstein")
    assert e_admissible(near).tolist() == [[True, True, False]]
    with pytest.raises(NotSupported, match="polytope"):
        e_admissible(ScoreBall([[0.5, 0.5]], 0.1, "kl"))
    with pytest.raises(EmptyCredalSet, match="row 1"):
        ScoreBall([[0.9, 0.1], [0.5, 0.5]], 0.3, "inner")
    with pytest.raises(NotSupported, match="at most 8"):
        lower_entropy(ScoreBall(np.full((1, 9), 1 / 9), 0.1, "wasserstein"))
    with pytest.raises(UncertaintyError, match="score"):
        ScoreBall([[0.5, 0.5]], 0.1, "hellinger")


@pytest.mark.parametrize("score", ["tv", *SCORES])
def test_conformal_sets_are_the_balls_themselves(score):
    rng = np.random.default_rng(9)
    p = rng.dirichlet(np.ones(4), 900)
    y = np.array([rng.dirichlet(15 * row + 0.1) for row in p])
    method = ConformalCredalSet(score, alpha=0.1).fit(p[:500], y[:500])
    sets = method.predict(p[500:])
    found = first_order(sets, y[500:], resamples=0)
    assert found.scores["coverage"] == pytest.approx(method.covers(p[500:], y[500:]).mean(), abs=1e-12)
    assert found.scores["coverage"] == pytest.approx(0.9, abs=0.065)
    parts = quantify(sets)
    assert (parts.epistemic >= 0).all()
    boxed = quantify(enclosing(sets))
    assert (boxed.total >= parts.total - 1e-7).all()
    assert (boxed.aleatoric <= parts.aleatoric + 1e-7).all()
    assert boxed.epistemic.mean() > parts.epistemic.mean() + (1e-3 if score != "inner" else 0)
