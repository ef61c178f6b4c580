"""Trained samplers against the oracles: exact log Z and distances on every small environment and objective."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

_spec = importlib.util.spec_from_file_location("gflownets_conftest", Path(__file__).with_name("conftest.py"))
_shared = sys.modules.setdefault("gflownets_conftest", importlib.util.module_from_spec(_spec))
if not hasattr(_shared, "ENVIRONMENTS"):
    _spec.loader.exec_module(_shared)
ENVIRONMENTS, graph_of = _shared.ENVIRONMENTS, _shared.graph_of

from assay.gflownets import GFlowNet, Hypergrid, Linear, PhyloTree, StateGraph, Trainer  # noqa: E402
from assay.gflownets.errors import GFlowNetError  # noqa: E402

OBJECTIVES = ("tb", "vargrad", "db", "subtb", "fm", "fldb", "flsubtb", "soft_dqn", "munchausen_dqn")
# Modified detailed balance needs states that all may stop, and all have a reward.
CASES = [*itertools.product(ENVIRONMENTS, OBJECTIVES), ("grid", "mdb"), ("dag", "mdb")]


def network(name: str) -> dict:
    """A small network that suits an environment."""
    if name == "phylo":
        return {"net": "pairs", "net_options": {"dim": 16, "layers": 1, "heads": 2}}
    return {"net_options": {"hidden": 64}}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "objective"), CASES)
def test_every_objective_on_every_environment(name, objective):
    """2,000 updates of 16 (4,000 for FL-DB, whose target network follows over 200 updates): total variation below .05,
    log Z within .1 of the exact one."""
    updates = 4000 if objective == "fldb" else 2000
    gfn = GFlowNet(
        ENVIRONMENTS[name],
        objective,
        lr=Linear(5e-3, 1e-4, updates),
        log_z_lr=Linear(0.1, 1e-3, updates),
        explore=Linear(0.2, 0.02, updates * 3 // 4),
        **network(name),
    ).fit(updates)
    gfn._graph = graph_of(name)
    assert gfn.total_variation() < 0.05
    assert gfn.log_z == pytest.approx(graph_of(name).log_z, abs=0.1)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_terminal_states_have_numbers_of_their_own_and_can_be_read_back(name):
    env, graph = ENVIRONMENTS[name], graph_of(name)
    states = graph.terminal_states
    numbers = np.asarray(jax.vmap(lambda s: env.index(s))(states))
    assert len(np.unique(numbers)) == graph.n_terminal
    assert numbers.min() >= 0
    full = {"append", "prepend_append", "any_order", "grid", "ising", "permutation", "tree", "phylo"}
    if name in full:  # every number below the size of the space is taken
        assert numbers.max() == graph.n_terminal - 1
    again = env.states_of(env.objects(states))
    assert (graph.terminal_number(again) == np.arange(graph.n_terminal)).all()


def test_more_trees_than_numbers():
    env = PhyloTree(np.full((12, 3), 1))
    with pytest.raises(GFlowNetError, match="n <= 11"):
        env.index(env.reset())


@pytest.mark.parametrize(
    "name", [n if n in ("grid", "insert_variable") else pytest.param(n, marks=pytest.mark.slow) for n in ENVIRONMENTS]
)
def test_log_prob_agrees_with_dynamic_programming(name):
    gfn = GFlowNet(ENVIRONMENTS[name], "tb", seed=2, **network(name))
    gfn._graph = graph = graph_of(name)
    exact = graph.log_terminal(graph.log_pf(gfn.model.net))
    chosen = np.linspace(0, graph.n_terminal - 1, 8).astype(int)
    objects = [graph.env.objects(graph.terminal_states)[i] for i in chosen]
    mean, se = gfn.log_prob(objects, n=60)
    assert (np.abs(mean - exact[chosen]) < 5 * se + 1e-3).all()
    one, none = gfn.log_prob(objects, n=1)
    assert one.shape == mean.shape
    assert np.isnan(none).all()


def test_dynamic_programming_on_160_000_cells():
    """4D side 20: the size of the published grid; its time is a line of the race."""
    graph = StateGraph(Hypergrid(4, 20))
    assert (graph.n_terminal, len(graph)) == (160_000, 320_000)
    assert graph.log_z == pytest.approx(8.643297, abs=1e-6)
    trainer = Trainer(Hypergrid(4, 20), config=None)
    p = np.exp(graph.log_terminal(graph.log_pf(trainer.model(trainer.init(0)).net)))
    assert p.sum() == pytest.approx(1.0, abs=1e-6)
    assert repr(graph) == "StateGraph(Hypergrid: 320,000 states, 768,000 edges, 160,000 terminal)"
