"""The single-file recipes: their losses are the library's, and they find the target."""

from __future__ import annotations

from importlib import import_module

import jax.numpy as jnp
import numpy as np
import pytest

from assay.gflownets import make_objective
from assay.gflownets.rollout import Evaluation

NAMES = ("tb", "vargrad", "subtb", "db", "fm", "fldb", "mdb", "soft_dqn")


def recipe(name: str):
    return import_module(f"assay.gflownets.recipes.{name}")


@pytest.fixture(scope="module")
def e() -> Evaluation:
    """Random numbers for trajectories of 2 to 5 steps; flows are log R at the end, and 0 after it."""
    rng = np.random.default_rng(0)
    T, B = 5, 6
    lengths = np.array([2, 5, 3, 4, 5, 2])
    t = np.arange(T + 1)[:, None]
    step = t[:-1] < lengths
    log_r = rng.normal(size=B)
    flow = np.where(t < lengths, rng.normal(size=(T + 1, B)), np.where(t == lengths, log_r, 0.0))
    potential = np.where(t < lengths, rng.normal(size=(T + 1, B)), log_r)
    on = [np.where(step, rng.normal(size=(T, B)), 0.0) for _ in range(3)]
    values = (on[0], on[1], flow, on[2], rng.normal(size=(T + 1, B)), -rng.random((T + 1, B)), potential)
    last = step & (t[:-1] == lengths - 1)
    return Evaluation(*(jnp.asarray(x) for x in (*values, step, last, log_r)))


def test_losses_are_those_of_the_library(e):
    log_z = jnp.asarray(0.7)
    ends = np.arange(6)[:, None] >= np.asarray(e.step).sum(0)
    held = jnp.where(ends, e.log_r, e.log_flow)  # recipes repeat log R after the end
    rest = jnp.where(ends, 0.0, e.log_flow)
    found = {
        "tb": recipe("tb").loss(log_z, e.log_pf, e.log_pb, e.log_r),
        "vargrad": recipe("vargrad").loss(e.log_pf, e.log_pb, e.log_r),
        "db": recipe("db").loss(held, e.log_pf, e.log_pb, e.step),
        "subtb": recipe("subtb").loss(held, e.log_pf, e.log_pb, e.step, 0.9),
        "fldb": recipe("fldb").loss(rest, e.log_pf, e.log_pb, -e.potential, e.step),
        "fm": recipe("fm").loss(e.log_flow[1:], jnp.where(e.last, e.log_r, e.soft_value[1:]), e.step),
        "soft_dqn": recipe("soft_dqn").loss(e.q_taken, e.soft_value[1:], e.log_pb, e.log_r, e.last, e.step, 5.0),
        "mdb": recipe("mdb").loss(
            e.potential[1:] - e.potential[:-1], e.log_pb, e.log_pf, e.log_stop[:-1], e.log_stop[1:], e.step & ~e.last
        ),
    }
    for name in NAMES:
        options = {"regression": "squared"} if name == "fldb" else {}
        expected = make_objective(name, **options)(e, log_z)
        assert float(found[name]) == pytest.approx(float(expected), rel=2e-6), name
        assert float(expected) > 0.01


def test_a_recipe_finds_the_target():
    found = recipe("tb").train(recipe("tb").Settings(side=4, steps=800, hidden=32, lr=5e-3))
    assert found.total_variation < 0.02
    assert found.log_z == pytest.approx(found.exact_log_z, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_finds_the_target(name):
    """4,000 updates of 16: the 8 x 8 grid, for modified detailed balance the 25 graphs of three variables."""
    found = recipe(name).train()
    assert found.total_variation < 0.03
    assert found.log_z == pytest.approx(found.exact_log_z, abs=0.05)
