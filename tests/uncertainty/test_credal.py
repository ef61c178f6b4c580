"""Credal sets against enumeration, linear programs and random search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from assay.uncertainty import Hull, Intervals, LevelSet, TVBall, e_admissible, gamma_maximin, hartley, quantify
from assay.uncertainty.credal import dominance_set, enclosing, expectation_bounds, lower_probability, zero_one_bounds
from assay.uncertainty.credal.balls import level_lower, level_mode, level_upper, tv_entropy
from assay.uncertainty.credal.hull import upper_entropy_hull
from assay.uncertainty.credal.intervals import _enumerated, branch_and_bound, reach, upper_entropy_intervals
from assay.uncertainty.measures.sample import shannon


def boxes(seed, n, k, width=0.3):
    rng = np.random.default_rng(seed)
    c = rng.dirichlet(np.ones(k), n)
    return reach(np.maximum(c - rng.random((n, k)) * width, 0), np.minimum(c + rng.random((n, k)) * width, 1))


@given(seed=st.integers(0, 10_000), k=st.integers(2, 8))
@settings(max_examples=25, deadline=None)
def test_branch_and_bound_equals_enumeration(seed, k):
    low, high = boxes(seed, 4, k)
    found = [branch_and_bound(a, b) for a, b in zip(low, high, strict=True)]
    np.testing.assert_allclose(found, _enumerated(low, high), atol=1e-11)


def test_branch_and_bound_of_many_classes_is_below_every_vertex_tried():
    low, high = boxes(1, 3, 30, width=0.1)
    rng = np.random.default_rng(0)
    for a, b in zip(low, high, strict=True):
        found = branch_and_bound(a, b)
        for _ in range(300):
            p, left = a.copy(), 1 - a.sum()
            for j in rng.permutation(30):
                add = min(b[j] - a[j], left)
                p[j] += add
                left -= add
            assert found <= shannon(p) + 1e-12


@given(seed=st.integers(0, 10_000), k=st.integers(2, 12))
@settings(max_examples=25, deadline=None)
def test_water_filling_satisfies_its_conditions(seed, k):
    from assay.uncertainty.credal.intervals import upper_point

    low, high = boxes(seed, 5, k)
    p = upper_point(low.copy(), high.copy())
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-12)
    for row, a, b in zip(p, low, high, strict=True):
        inside = (row > a + 1e-12) & (row < b - 1e-12)
        if inside.any():  # a common level; classes held by a bound are on the right side of it
            level = row[inside][0]
            np.testing.assert_allclose(row[inside], level, atol=1e-12)
            assert (row[row <= a + 1e-12] >= level - 1e-12).all()
            assert (row[(row >= b - 1e-12) & (b > a + 1e-12)] <= level + 1e-12).all()


def test_degenerate_intervals():
    point = Intervals([[0.2, 0.3, 0.5]], [[0.2, 0.3, 0.5]])
    parts = quantify(point)
    assert parts.total[0] == pytest.approx(shannon(point.lower)[0], abs=1e-12)
    assert parts.epistemic[0] == pytest.approx(0, abs=1e-12)
    vacuous = quantify(Intervals(np.zeros((1, 4)), np.ones((1, 4))))
    assert (vacuous.total[0], vacuous.aleatoric[0]) == (pytest.approx(np.log(4)), 0)


def test_hull_entropy_against_a_general_solver():
    rng = np.random.default_rng(2)
    vertices = rng.dirichlet(np.ones(4) * 0.5, (30, 5))
    value, gap = upper_entropy_hull(vertices)
    assert gap.max() <= 1e-8
    for v, best in zip(vertices, value, strict=True):
        found = minimize(
            lambda x, v=v: -shannon(np.maximum(x @ v, 1e-300)),
            np.full(5, 0.2),
            bounds=[(0, 1)] * 5,
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-12, "maxiter": 500},
        )
        assert best == pytest.approx(-found.fun, abs=2e-6)


def test_hull_entropy_with_equal_vertices_and_zero_classes():
    vertices = np.zeros((3, 6, 5))
    vertices[:, :, 0] = 1.0
    vertices[1, 3:] = np.eye(5)[1]
    vertices[2] = np.eye(5)[[0, 1, 2, 3, 4, 0]]
    value, gap = upper_entropy_hull(vertices)
    assert value == pytest.approx([0, np.log(2), np.log(5)], abs=1e-8)
    assert gap.max() <= 1e-8


def test_tv_balls_against_random_members_and_majorisation():
    rng = np.random.default_rng(3)
    center, radius = rng.dirichlet(np.ones(5), 3000), rng.random(3000) * 0.5
    low, high = tv_entropy(center, radius)
    assert (low <= shannon(center) + 1e-12).all()
    assert (high >= shannon(center) - 1e-12).all()
    for _ in range(50):
        q = rng.dirichlet(np.ones(5), 3000)
        far = np.abs(q - center).sum(1) / 2
        share = np.minimum(1, radius / far)[:, None]
        h = shannon(center + share * (q - center))
        assert (h >= low - 1e-10).all()
        assert (h <= high + 1e-10).all()


def test_tv_lower_entropy_equals_the_best_vertex():
    rng = np.random.default_rng(4)
    center, radius = rng.dirichlet(np.ones(4), 200), rng.random(200) * 0.4
    low, _ = tv_entropy(center, radius)
    from itertools import permutations

    best = np.full(200, np.inf)
    for order in permutations(range(4)):  # give to the first, take from the others in this order
        p, left = center.copy(), np.minimum(radius, 1 - center[:, order[0]])
        p[:, order[0]] += left
        for j in order[1:]:
            taken = np.minimum(p[:, j], left)
            p[:, j] -= taken
            left = left - taken
        best = np.minimum(best, shannon(p))
    np.testing.assert_allclose(low, best, atol=1e-12)


def test_level_sets_against_random_search():
    rng = np.random.default_rng(5)
    alpha, tau = 1 + rng.gamma(2, 3, (20, 3)), rng.uniform(0.05, 0.95, 20)
    mode, rho = level_mode(alpha, tau)
    upper, gap = level_upper(mode, rho)
    lower, bound = level_lower(mode, rho)
    assert gap.max() <= 1e-8
    assert (bound <= lower + 1e-12).all()
    q = rng.dirichlet(np.ones(3), 60_000)
    h = shannon(q)
    for i in range(20):
        inside = (mode[i] * np.log(mode[i] / q)).sum(1) <= rho[i]
        assert h[inside].max() <= upper[i] + 1e-9
        assert h[inside].min() >= lower[i] - 1e-6
        assert h[inside].max() >= upper[i] - 0.02
        assert h[inside].min() <= lower[i] + 0.02


def test_a_flat_dirichlet_makes_the_whole_simplex():
    parts = quantify(LevelSet([[1.0, 1.0, 1.0]], 0.5))
    assert parts.total[0] == pytest.approx(np.log(3))
    assert parts.aleatoric[0] == 0


def test_lower_probabilities_and_hartley_by_linear_programs():
    low, high = boxes(6, 5, 4)
    found = lower_probability(Intervals(low, high))
    for row, a, b in zip(found, low, high, strict=True):
        for event in range(16):
            inside = [(event >> j) & 1 for j in range(4)]
            program = linprog(inside, A_eq=np.ones((1, 4)), b_eq=[1], bounds=list(zip(a, b, strict=True)))
            assert row[event] == pytest.approx(program.fun, abs=1e-9)
    center = np.random.default_rng(7).dirichlet(np.ones(3), 4)
    ball = TVBall(center, 0.1)
    for i, row in enumerate(lower_probability(ball)):
        for event in range(1, 7):
            inside = np.array([(event >> j) & 1 for j in range(3)], dtype=float)
            assert row[event] == pytest.approx(expectation_bounds(ball, inside)[0][i], abs=1e-12)
    assert (hartley(ball) >= 0).all()


def test_expectations_of_all_sets_contain_those_of_their_members():
    rng = np.random.default_rng(8)
    value = rng.normal(size=(4, 2))
    vertices = rng.dirichlet(np.ones(4), (6, 5))
    hull = Hull(vertices)
    low, high = expectation_bounds(hull, value)
    mixed = np.einsum("nmk,nm->nk", vertices, rng.dirichlet(np.ones(5), 6)) @ value
    assert ((low <= mixed) & (mixed <= high)).all()
    box_low, box_high = expectation_bounds(enclosing(hull), value)
    assert ((box_low <= low + 1e-12) & (high <= box_high + 1e-12)).all()
    level = LevelSet(1 + rng.gamma(2, 2, (6, 4)), 0.3)
    mode, _ = level_mode(level.alpha, level.tau)
    low, high = expectation_bounds(level, value)
    assert ((low <= mode @ value + 1e-9) & (mode @ value <= high + 1e-9)).all()


def test_decisions():
    box = Intervals([[0.3, 0.1, 0.1]], [[0.7, 0.5, 0.3]])
    assert dominance_set(box).tolist() == [[True, True, True]]
    assert gamma_maximin(box).tolist() == [0]
    assert e_admissible(box).tolist() == [[True, True, False]]
    # dominated by no class alone, yet best for no distribution: class 2 needs p2 >= p0, p1; p2 <= .3 < .3 + ... with
    # p0 >= .3
    loss = np.array([[0, 1, 0.2], [1, 0, 0.2], [1, 1, 0.2]])
    assert gamma_maximin(box, cost=loss).tolist() == [2]
    ball = TVBall([[0.5, 0.3, 0.2]], 0.1)
    assert e_admissible(ball).tolist() == [[True, True, False]]
    assert e_admissible(Hull([[[0.5, 0.3, 0.2], [0.3, 0.5, 0.2]]])).tolist() == [[True, True, False]]


def test_zero_one_bounds():
    rng = np.random.default_rng(9)
    vertices = rng.dirichlet(np.ones(3), (10, 4))
    for rep in (Hull(vertices), enclosing(Hull(vertices)), TVBall(vertices[:, 0], 0.15)):
        high, low = zero_one_bounds(rep)
        assert (low <= high + 1e-12).all()
        assert (high <= 2 / 3 + 1e-12).all()
        value = 1 - rep.mean().max(1)
        assert ((low - 1e-12 <= value) & (value <= high + 1e-12)).all()


def test_chunks_change_nothing():
    low, high = boxes(10, 500, 6)
    np.testing.assert_array_equal(upper_entropy_intervals(low, high, 7), upper_entropy_intervals(low, high))
