"""Rules on structure: passes, layers, regions and copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from assay.difftest.metrics import distance
from assay.difftest.names import Name

if TYPE_CHECKING:
    from assay.difftest.check import Comparison, Finding, Result, Verdict


COMPUTE, COMMUNICATION, MISSING = "wrong computation", "wrong communication", "missing communication"


Rule = Callable[["Comparison", "Result", "Verdict", "Finding"], bool]


def set_kind(f: Finding, kind: str, category: str, confidence: float, *evidence: str) -> bool:
    f.kind, f.category, f.confidence = kind, category, confidence
    f.evidence += evidence
    return True


def rule_recompute(state: Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """The second pass of a checkpointed part is not the first."""
    problem = next((p for p in v.problems if p.kind == "recompute differs"), None)
    if problem is None:
        return False
    f.ranks = problem.ranks
    what = "FP8 state" if state.reference.meta.get("dtype") == "fp8" else "input, random state or FP8 state"
    return set_kind(f, "recompute differs", COMPUTE, 0.9, problem.message, f"look at the {what} of the recomputation")


def rule_layers(state: Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """Whole layers are nowhere."""
    problem = next((p for p in v.problems if p.kind in ("missing layer", "missing parameter")), None)
    if problem is None:
        return False
    layers = ", ".join(state.missing_layers)
    kind = "missing layers" if problem.kind == "missing layer" else "missing parameter"
    return set_kind(
        f, kind, COMPUTE, 0.95, problem.message, f"missing: {layers}" if layers else "look at the split into stages"
    )


def rule_region(state: Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """Parts of a tensor are on no rank, or on two."""
    problem = next((p for p in v.problems if p.kind in ("missing region", "double cover", "shape mismatch")), None)
    if problem is None:
        return False
    f.ranks = problem.ranks or f.ranks
    return set_kind(f, problem.kind, COMPUTE, 0.8, problem.message)


def rule_replica(state: Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """Copies differ."""
    problem = next((p for p in v.problems if p.kind == "replica conflict"), None)
    if problem is None:
        return False
    f.ranks = problem.ranks
    n = Name.parse(v.name)
    axes = "/".join(problem.axes) or "its group"
    text = f"{problem.message} (along {axes})"
    if v.relative <= v.tolerance:
        f.rel_error = problem.relative
    if "scale" in n.slot and n.phase.startswith("mark"):
        return set_kind(
            f,
            "wrong amax group",
            COMMUNICATION,
            0.9,
            text,
            "a scale must be the same on all ranks that read the payload",
        )
    if ("pp" in problem.axes and n.phase in ("param_after", "main_grad", "grad")) or (
        n.phase.startswith("optim.") and "pp" in problem.axes
    ):
        return set_kind(f, "untied", COMPUTE, 0.9, text, "copies of a tied weight on two stages went apart")
    if n.phase in ("main_grad", "grad"):
        sums = _missing_sum(state, v)
        return set_kind(
            f, "missing reduction", MISSING, 0.9, text, *([sums] if sums else []), f"reduce this gradient over {axes}"
        )
    if n.phase.startswith(("param", "optim.")):
        return set_kind(f, "missing reduction", MISSING, 0.6, text, f"the update differs along {axes}")
    if n.phase in ("gnorm", "loss"):
        return set_kind(f, "norm counts" if n.phase == "gnorm" else "scale by rank", COMPUTE, 0.6, text)
    return set_kind(
        f, "missing reduction", MISSING, 0.8, text, f"ranks along {axes} hold different values where they must agree"
    )


def _missing_sum(state: Comparison, v: Verdict) -> str:
    """Whether the copies add up to the reference."""
    if state.reference.level(v.name) != "full" or state.candidate.level(v.name) != "full":
        return ""
    reference = state.reference.tensor(v.name)
    pieces = state.pieces(v.name)
    parts = [p for p in pieces if p.tensor.numel() == reference.numel()]
    distinct: list[Tensor] = []
    for p in parts:
        if not any(torch.equal(p.tensor, d) for d in distinct):
            distinct.append(p.tensor)
    if len(distinct) < 2:
        return ""
    total = torch.stack([d.double().reshape(reference.shape) for d in distinct]).sum(0)
    gap = distance(reference.double(), total).relative
    return f"the {len(distinct)} differing copies add up to the reference (to {gap:.1g})" if gap < 0.02 else ""
