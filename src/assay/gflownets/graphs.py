"""All DAGs of a few variables, and exact posteriors over them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from assay.gflownets.errors import NotEnumerable
from assay.gflownets.metrics import GraphMarginals, graph_marginals

_COUNTS = {1: 1, 2: 3, 3: 25, 4: 543, 5: 29_281, 6: 3_781_503}


@lru_cache(maxsize=4)
def all_parents(d: int) -> Int[np.ndarray, "graphs d"]:
    """Parent sets (bit masks) of every DAG over d variables.

    Graphs grow node by node in the order of their last sink: each DAG is met once, as a product of parent sets whose
    graph has no cycle. Acyclicity is tested for all graphs at once, by taking sources away.

    Raises
    ------
    NotEnumerable
        For d > 5 (there are 3,781,503 DAGs over six variables, out of 2**30 candidates).

    >>> [len(all_parents(d)) for d in (1, 2, 3, 4)]
    [1, 3, 25, 543]
    """
    if d > 5:
        raise NotEnumerable(_COUNTS.get(d, float("inf")), _COUNTS[5])
    graphs = np.zeros((1, 0), np.int8)
    # variable by variable, dropping candidates with a cycle among the variables so far as soon as it is there
    for j in range(d):
        sets = np.array([s for s in range(1 << d) if not s >> j & 1], np.int8)
        graphs = np.concatenate([np.repeat(graphs, len(sets), 0), np.tile(sets, len(graphs))[:, None]], axis=1)
        graphs = graphs[_acyclic(graphs, d)]
    return graphs.astype(np.int64)


def _acyclic(parents: np.ndarray, d: int) -> np.ndarray:
    """Whether the variables that have parents so far form no cycle."""
    k = parents.shape[1]
    left = np.full(len(parents), (1 << k) - 1, np.int8)
    for _ in range(k):
        for j in range(k):
            bit = np.int8(1 << j)
            free = ((parents[:, j] & left) == 0) & (left & bit != 0)
            left = np.where(free, left & ~bit, left)
    return left == 0


def adjacency(parents: Int[np.ndarray, "graphs d"]) -> Bool[np.ndarray, "graphs d d"]:
    """Adjacency matrices (i -> j at [i, j]) of parent sets."""
    d = parents.shape[1]
    return (parents[:, None, :] >> np.arange(d)[None, :, None]) & 1 == 1


class Posterior(NamedTuple):
    """A distribution over DAGs.

    Attributes
    ----------
    graphs : bool[graphs, d, d]
    log_p : float64[graphs]
    log_z : float
        NaN where it is not known.
    names : tuple of str
    """

    graphs: Bool[np.ndarray, "graphs d d"]
    log_p: Float[np.ndarray, " graphs"]
    log_z: float
    names: tuple[str, ...]

    def marginals(self) -> GraphMarginals:
        """Probabilities of edges, paths and Markov blankets."""
        return graph_marginals(self.graphs, np.exp(self.log_p))

    def edge_probs(self) -> Float[np.ndarray, "d d"]:
        """P(i -> j)."""
        return self.marginals().edge

    def best(self) -> list[tuple[str, str]]:
        """Edges of the most probable graph."""
        return [(self.names[i], self.names[j]) for i, j in np.argwhere(self.graphs[int(np.argmax(self.log_p))])]


def exact_posterior(table: Float[np.ndarray, "d sets"], names: tuple[str, ...] = ()) -> Posterior:
    """Posterior over all DAGs from local scores, d <= 5.

    Raises
    ------
    NotEnumerable

    Examples
    --------
    >>> from assay.gflownets.rewards import bge_table
    >>> i = np.arange(1, 11)
    >>> X = np.stack([np.sin(i), np.cos(i) + 0.5 * np.sin(i), np.sin(2 * i)], 1)
    >>> found = exact_posterior(bge_table(X))
    >>> round(found.log_z, 3), round(float(found.edge_probs()[0, 1]), 3)
    (-39.871, 0.343)
    """
    table = np.asarray(table, np.float64)
    d = len(table)
    parents = all_parents(d)
    score = table[np.arange(d), parents].sum(1)
    top = score.max()
    log_z = float(np.log(np.exp(score - top).sum()) + top)
    return Posterior(adjacency(parents), score - log_z, log_z, names or tuple(f"x{i}" for i in range(d)))
