"""GFlowNets in JAX: diverse samples in proportion to a reward, from combinatorial spaces.

>>> from assay.gflownets import GFlowNet, Hypergrid
>>> gfn = GFlowNet(Hypergrid(2, 8), "tb", explore=0.05, lr=2e-3).fit(1500)
>>> bool(gfn.total_variation() < 0.1)        # exact, by dynamic programming
True

Your own sequences, with a reward in plain Python:

>>> from assay.gflownets import SequenceProblem
>>> def gc(sequences):
...     return [1.0 + s.count("G") + s.count("C") for s in sequences]
>>> samples = SequenceProblem("ACGT", 6, gc, log=False).fit(200, net_options={"hidden": 32}).sample(3)
>>> [len(s) for s in samples.objects]
[6, 6, 6]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from assay.gflownets.errors import (
    BadAlignment,
    CheckpointMismatch,
    DeadEnd,
    DivergedLoss,
    DuplicateTaxa,
    GFlowNetError,
    MaskMismatch,
    NonPositiveReward,
    NotEnumerable,
    RewardShape,
)

if TYPE_CHECKING:
    from assay.gflownets.buffers import Replay
    from assay.gflownets.check import check_env
    from assay.gflownets.conditions import Preference, Temperature
    from assay.gflownets.energy import learn_couplings
    from assay.gflownets.envs import (
        DAG,
        Constraints,
        Environment,
        Hypergrid,
        Ising,
        PerfectTree,
        Permutation,
        PhyloTree,
        Sequence,
        SetBuilder,
        TableReward,
    )
    from assay.gflownets.exact import StateGraph
    from assay.gflownets.graphs import Posterior, exact_posterior
    from assay.gflownets.model import GFlowNet
    from assay.gflownets.objectives import OBJECTIVES, make_objective
    from assay.gflownets.problems import (
        DAGProblem,
        IsingProblem,
        PhyloProblem,
        SequenceProblem,
        TableProblem,
        bit_sequences,
        peptides,
        phylogeny,
        proteins,
        qm9_small,
        tfbind8,
    )
    from assay.gflownets.results import Samples
    from assay.gflownets.schedules import Constant, Cosine, Exponential, Linear
    from assay.gflownets.train import Config, Trainer, compile_cache
    from assay.gflownets.trees import read_alignment

# What needs JAX is imported when it is used.
_LAZY = {
    "GFlowNet": "model",
    "Samples": "results",
    **dict.fromkeys(
        (
            "SequenceProblem",
            "DAGProblem",
            "PhyloProblem",
            "TableProblem",
            "IsingProblem",
            "tfbind8",
            "qm9_small",
            "bit_sequences",
            "peptides",
            "proteins",
            "phylogeny",
        ),
        "problems",
    ),
    **dict.fromkeys(
        (
            "Environment",
            "Hypergrid",
            "Sequence",
            "DAG",
            "PhyloTree",
            "Ising",
            "SetBuilder",
            "Permutation",
            "PerfectTree",
            "TableReward",
            "Constraints",
        ),
        "envs",
    ),
    **dict.fromkeys(("OBJECTIVES", "make_objective"), "objectives"),
    **dict.fromkeys(("Constant", "Linear", "Exponential", "Cosine"), "schedules"),
    **dict.fromkeys(("Temperature", "Preference"), "conditions"),
    **dict.fromkeys(("Trainer", "Config", "compile_cache"), "train"),
    **dict.fromkeys(("Posterior", "exact_posterior"), "graphs"),
    "Replay": "buffers",
    "StateGraph": "exact",
    "check_env": "check",
    "learn_couplings": "energy",
    "read_alignment": "trees",
}

__all__ = [
    "DAG",
    "OBJECTIVES",
    "BadAlignment",
    "CheckpointMismatch",
    "Config",
    "Constant",
    "Constraints",
    "Cosine",
    "DAGProblem",
    "DeadEnd",
    "DivergedLoss",
    "DuplicateTaxa",
    "Environment",
    "Exponential",
    "GFlowNet",
    "GFlowNetError",
    "Hypergrid",
    "Ising",
    "IsingProblem",
    "Linear",
    "MaskMismatch",
    "NonPositiveReward",
    "NotEnumerable",
    "PerfectTree",
    "Permutation",
    "PhyloProblem",
    "PhyloTree",
    "Posterior",
    "Preference",
    "Replay",
    "RewardShape",
    "Samples",
    "Sequence",
    "SequenceProblem",
    "SetBuilder",
    "StateGraph",
    "TableProblem",
    "TableReward",
    "Temperature",
    "Trainer",
    "bit_sequences",
    "check_env",
    "compile_cache",
    "exact_posterior",
    "learn_couplings",
    "make_objective",
    "peptides",
    "phylogeny",
    "proteins",
    "qm9_small",
    "read_alignment",
    "tfbind8",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"assay.gflownets.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
