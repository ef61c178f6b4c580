"""Environments: state graphs as pure functions."""

from assay.gflownets.envs.base import Environment, ObsSpec
from assay.gflownets.envs.constraints import Automaton, Constraints
from assay.gflownets.envs.dag import DAG, DAGState
from assay.gflownets.envs.grid import GridState, Hypergrid
from assay.gflownets.envs.ising import Ising, IsingState, torus
from assay.gflownets.envs.phylo import PhyloState, PhyloTree
from assay.gflownets.envs.sequence import Sequence, SequenceState
from assay.gflownets.envs.sets import PerfectTree, Permutation, SetBuilder
from assay.gflownets.envs.table import TableReward, TableState

__all__ = [
    "DAG",
    "Automaton",
    "Constraints",
    "DAGState",
    "Environment",
    "GridState",
    "Hypergrid",
    "Ising",
    "IsingState",
    "ObsSpec",
    "PerfectTree",
    "Permutation",
    "PhyloState",
    "PhyloTree",
    "Sequence",
    "SequenceState",
    "SetBuilder",
    "TableReward",
    "TableState",
    "torus",
]
