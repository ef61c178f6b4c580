"""Find silent bugs in distributed training by comparing it with a trusted reference.

Run one step on the reference and one on the distributed side, each inside `trace`; `compare` lines the tensors up under
one name and shape, judges each by a tolerance that follows from rounding, and names the first module that is wrong.

>>> import tempfile
>>> from torch import nn
>>> import torch
>>> from assay.difftest import Trace, compare, estimate_tolerance, trace
>>> model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
>>> x = torch.linspace(-1, 1, 32).reshape(4, 8)
>>> step = lambda: model(x).square().mean().backward()
>>> tolerance = estimate_tolerance(step, model)                      # how far rounding alone moves each tensor
>>> reference, candidate = tempfile.mkdtemp(), tempfile.mkdtemp()
>>> with trace(model, reference):
...     step()
>>> model.zero_grad()
>>> with trace(model, candidate):                                    # the other side: here with a factor too much
...     (2 * model(x).square().mean()).backward()
>>> result = compare(Trace.open(reference), Trace.open(candidate), tolerance)
>>> print(result.verdict, result.findings[0].name, result.findings[0].kind)
FAIL 0/0/gout/2/0 scale
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from assay.difftest.errors import (
    AmbiguousName,
    CoverageHole,
    DiffTestError,
    LaunchError,
    NondeterministicReference,
    NotComparable,
    ReplicaConflict,
    ShardSpecError,
    StepMismatch,
    TraceCorrupt,
    Undecided,
    UnmappedName,
)

if TYPE_CHECKING:
    from assay.difftest.check import Finding, Result, Verdict, compare, default_tolerance
    from assay.difftest.collect import Tracer, mark, trace
    from assay.difftest.collectives import odd_ones
    from assay.difftest.converters import convert, load_dcp, load_deepspeed, load_pt, load_sglang
    from assay.difftest.depth import cut_layers, forward_of_first
    from assay.difftest.events import losses_from_tensorboard
    from assay.difftest.isolation import Isolated, isolate
    from assay.difftest.lattice import Bisection, bisect
    from assay.difftest.metrics import distance, eps_of
    from assay.difftest.monitor import LossMonitor
    from assay.difftest.names import (
        Microbatch,
        Name,
        NameMap,
        Rule,
        Split,
        Stage,
        grouped_qkv,
        halves,
        preset,
        unstacked,
    )
    from assay.difftest.page import render, save_html
    from assay.difftest.plots import plot_depth, plot_timeline
    from assay.difftest.report import gate, save_json, save_junit, summary
    from assay.difftest.shards import (
        Experts,
        Flat,
        Grouped,
        Interleave,
        Partial,
        Piece,
        Replicate,
        Shard,
        ShardSpec,
        ZigZag,
        merge,
        spec_of,
    )
    from assay.difftest.sketch import Digest, digest
    from assay.difftest.state import gather_state, scatter_state
    from assay.difftest.store import Trace
    from assay.difftest.tensors import (
        Batch,
        Coverage,
        coverage,
        coverage_batch,
        dropout_mask,
        fill_parameters,
        generate,
        relative_error,
    )
    from assay.difftest.tolerance import (
        Tolerance,
        condition_number,
        estimate_tolerance,
        replay_tolerance,
        theory_tolerance,
    )

# torch is imported when one of these is used.
_LAZY = {
    **dict.fromkeys(("Finding", "Result", "Verdict", "compare", "default_tolerance"), "check"),
    **dict.fromkeys(("Tracer", "mark", "trace"), "collect"),
    "odd_ones": "collectives",
    **dict.fromkeys(("convert", "load_dcp", "load_deepspeed", "load_pt", "load_sglang"), "converters"),
    "losses_from_tensorboard": "events",
    **dict.fromkeys(("cut_layers", "forward_of_first"), "depth"),
    **dict.fromkeys(("Isolated", "isolate"), "isolation"),
    **dict.fromkeys(("Bisection", "bisect"), "lattice"),
    **dict.fromkeys(("distance", "eps_of"), "metrics"),
    "LossMonitor": "monitor",
    **dict.fromkeys(
        ("Microbatch", "Name", "NameMap", "Rule", "Split", "Stage", "grouped_qkv", "halves", "preset", "unstacked"),
        "names",
    ),
    **dict.fromkeys(("render", "save_html"), "page"),
    **dict.fromkeys(("plot_depth", "plot_timeline"), "plots"),
    **dict.fromkeys(("gate", "save_json", "save_junit", "summary"), "report"),
    **dict.fromkeys(
        ("Experts", "Flat", "Grouped", "Interleave", "Partial", "Piece", "Replicate", "Shard", "ShardSpec", "ZigZag",
         "merge", "spec_of"), "shards",
    ),
    **dict.fromkeys(("Digest", "digest"), "sketch"),
    **dict.fromkeys(("gather_state", "scatter_state"), "state"),
    "Trace": "store",
    **dict.fromkeys(
        ("Batch", "Coverage", "coverage", "coverage_batch", "dropout_mask", "fill_parameters", "generate",
         "relative_error"), "tensors",
    ),
    **dict.fromkeys(
        ("Tolerance", "condition_number", "estimate_tolerance", "replay_tolerance", "theory_tolerance"), "tolerance"
    ),
}  # fmt: skip

__all__ = [
    "AmbiguousName",
    "Batch",
    "Bisection",
    "Coverage",
    "CoverageHole",
    "DiffTestError",
    "Digest",
    "Experts",
    "Finding",
    "Flat",
    "Grouped",
    "Interleave",
    "Isolated",
    "LaunchError",
    "LossMonitor",
    "Microbatch",
    "Name",
    "NameMap",
    "NondeterministicReference",
    "NotComparable",
    "Partial",
    "Piece",
    "ReplicaConflict",
    "Replicate",
    "Result",
    "Rule",
    "Shard",
    "ShardSpec",
    "ShardSpecError",
    "Split",
    "Stage",
    "StepMismatch",
    "Tolerance",
    "Trace",
    "TraceCorrupt",
    "Tracer",
    "Undecided",
    "UnmappedName",
    "Verdict",
    "ZigZag",
    "bisect",
    "compare",
    "condition_number",
    "convert",
    "coverage",
    "coverage_batch",
    "cut_layers",
    "default_tolerance",
    "digest",
    "distance",
    "dropout_mask",
    "eps_of",
    "estimate_tolerance",
    "fill_parameters",
    "forward_of_first",
    "gate",
    "gather_state",
    "generate",
    "grouped_qkv",
    "halves",
    "isolate",
    "load_dcp",
    "load_deepspeed",
    "load_pt",
    "load_sglang",
    "losses_from_tensorboard",
    "mark",
    "merge",
    "odd_ones",
    "plot_depth",
    "plot_timeline",
    "preset",
    "relative_error",
    "render",
    "replay_tolerance",
    "save_html",
    "save_json",
    "save_junit",
    "scatter_state",
    "spec_of",
    "summary",
    "theory_tolerance",
    "trace",
    "unstacked",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"assay.difftest.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
