"""Small environments of every kind, and public files that may be missing."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest

from assay.gflownets import (
    DAG,
    Constraints,
    Hypergrid,
    Ising,
    PerfectTree,
    Permutation,
    PhyloTree,
    Sequence,
    SetBuilder,
    StateGraph,
    TableReward,
)


@pytest.fixture(autouse=True)
def quick_compilation(request):
    """Nearly all of these tests' time goes into compiling small programs, which run for milliseconds; long ones are
    compiled in full. The option is put back after each test, since other fields' tests may share the process."""
    if request.node.get_closest_marker("slow"):
        yield
        return
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def letters(tokens):
    """A reward that tells positions and letters apart; the empty place counts nothing."""
    weights = np.array([0.3, 0.7, 0.2, 0.5], np.float32)
    return ((tokens < 2) * (tokens + 1) * weights[: tokens.shape[0]]).sum()


def _environments():
    rng = np.random.default_rng(0)
    return {
        "grid": Hypergrid(2, 5),
        "append": Sequence("AB", 3, letters),
        "append_variable": Sequence("AB", 3, letters, variable=True),
        "prepend_append": Sequence("AB", 3, letters, "prepend_append"),
        "insert_variable": Sequence("AB", 3, letters, "insert", variable=True),
        "any_order": Sequence("AB", 3, letters, "any_order"),
        "constrained": Sequence("AB", 4, letters, constraints=Constraints(("AA",), {1: "B"}, {"B": (2, 3)})),
        "ising": Ising(np.array([[0, 0.3, -0.2], [0.3, 0, 0.5], [-0.2, 0.5, 0]])),
        "set": SetBuilder(5, 3, lambda chosen: 1.0 * chosen[0] + 0.5 * chosen[3]),
        "permutation": Permutation(4, lambda order: 0.5 * order[0]),
        "tree": PerfectTree(np.arange(8) * 0.2),
        "table": TableReward([("a", 1), ("a", 2), ("b", 2)], [0.0, 1.0, 2.0]),
        "dag": DAG(rng.normal(size=(3, 8))),
        "phylo": PhyloTree(rng.choice([1, 2, 4, 8], (5, 12)), C=10.0),
    }


ENVIRONMENTS = _environments()


@cache
def graph_of(name: str) -> StateGraph:
    """The state graph of one of the small environments, enumerated once."""
    return StateGraph(ENVIRONMENTS[name])


@pytest.fixture
def public():
    """Call a loader, or skip with the name of the file where it is not on this machine."""
    from assay.core.errors import DataError

    def get(load, *args, **kwargs):
        try:
            return load(*args, **kwargs)
        except DataError as error:
            pytest.skip(str(error))

    return get
