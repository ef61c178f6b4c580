"""Rules on values: factors, sums with wrong weights, and norms."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from assay.difftest.diagnose.step import whose
from assay.difftest.diagnose.structure import COMMUNICATION, COMPUTE, set_kind
from assay.difftest.metrics import distance
from assay.difftest.names import Name

if TYPE_CHECKING:
    from assay.difftest.check import Comparison, Finding, Result, Verdict


def rule_gnorm(state: Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """Gradients are right, their norm is not: some are counted twice, or not at all."""
    if f.phase != "gnorm":
        return False
    step = Name.parse(v.name).step
    grads = [x for x in result.verdicts if Name.parse(x.name).phase == "main_grad" and Name.parse(x.name).step == step]
    if not grads or any(x.status == "wrong" for x in grads):
        return False
    right, wrong = _scalar(state, v.name)
    gap = right**2 - wrong**2
    f.evidence.append(f"all {len(grads)} gradients are right; squared norm {wrong**2:.6g} instead of {right**2:.6g}")
    whose(state, [x.name for x in grads], gap, f)
    return set_kind(f, "norm counts", COMPUTE, 0.9)


def _scalar(state: Comparison, name: str) -> tuple[float, float]:
    right = float(state.reference.tensor(name))
    merged = state.candidate.merged(name, ())
    return right, float(merged.tensor) if merged.tensor is not None else math.nan


def rule_untied(state: Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """Only the tied weight is off after the step."""
    n = Name.parse(v.name)
    if n.phase != "param_after" or not state.reference.meta.get("tied"):
        return False
    wrong = {Name.parse(x.name).parameter for x in result.verdicts if x.status == "wrong" and "param_after" in x.name}
    if wrong != {n.parameter} or "embed" not in n.parameter:
        return False
    return set_kind(f, "untied", COMPUTE, 0.7, "the tied weight is the only one that is wrong after the step")


def rule_accumulation(state: Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """Gradients of the micro-batches are right, their sum is not."""
    n = Name.parse(v.name)
    if n.phase != "main_grad":
        return False
    locals_ = [
        x
        for x in result.verdicts
        if (m := Name.parse(x.name)).phase == "grad" and m.parameter == n.parameter and m.step == n.step
    ]
    if not locals_ or any(x.status == "wrong" for x in locals_) or len(locals_) < 2:
        return False
    reference = state.reference.tensor(v.name)
    candidate = state.candidate.merged(v.name, reference.shape).tensor
    if candidate is None:
        return False
    parts = torch.stack([state.reference.tensor(x.name).double().reshape(-1) for x in locals_], 1)
    weights = torch.linalg.lstsq(parts, candidate.double().reshape(-1, 1)).solution.reshape(-1)
    rest = candidate.double().reshape(-1) - parts @ weights
    fits = float(torch.linalg.vector_norm(rest) / torch.linalg.vector_norm(candidate.double()))
    even = float(weights.max() - weights.min()) < 0.02
    if fits > 0.05 or even:
        return False
    text = (
        "sum with weights "
        + ", ".join(f"{w:.2f}" for w in weights.tolist())
        + " of the micro-batches, each gradient right"
    )
    return set_kind(f, "accumulation", COMPUTE, 0.9, text)


def rule_loss(state: Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """Losses of the tokens are right, their mean is not."""
    if f.phase != "loss":
        return False
    n = Name.parse(v.name)
    same = [x for x in result.verdicts if (m := Name.parse(x.name)).step == n.step and m.microbatch == n.microbatch]
    tokens = [x for x in same if Name.parse(x.name).phase == "out"]
    if not tokens or any(x.status == "wrong" for x in tokens):
        return False
    f.evidence.append("the losses of the tokens are right, their mean is not")
    # the gradient of the tokens' losses is the weight that each has
    for x in [x for x in same if Name.parse(x.name).phase == "gout" and x.status == "wrong"][:1]:
        if _by_rank_scale(state, x, f) or rule_scale(state, result, x, f):
            return True
    return set_kind(f, "scale", COMPUTE, 0.7, f"the loss is {v.scale:.5g} times the reference's")


def rule_scale(state: Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """The candidate is a multiple of the reference."""
    if not math.isfinite(v.scale) or v.norm == 0 or not math.isfinite(v.relative):
        return False
    rest = math.sqrt(max(v.relative**2 - (v.scale - 1.0) ** 2, 0.0))
    exact = max(4 * v.tolerance, 1e-5)
    if abs(v.scale - 1.0) < max(v.tolerance, 1e-6) or rest > max(exact * abs(v.scale), 0.05 * abs(v.scale - 1)):
        return _by_rank_scale(state, v, f)
    sizes = {axis: n for file in state.candidate.files for axis, (_, n) in file.coords.items() if n > 1}
    sizes["micro-batches"] = len({Name.parse(x.name).microbatch for x in result.verdicts} - {None})
    guesses = {f"{axis} = {n}": float(n) for axis, n in sizes.items()} | {
        f"1/{axis} = 1/{n}": 1.0 / n for axis, n in sizes.items()
    }
    near = [
        text for text, value in guesses.items() if value != 1.0 and abs(v.scale / value - 1) < max(1e-2, v.tolerance)
    ]
    text = f"the tensor is {v.scale:.5g} times the reference"
    hint = f"as much as {' or '.join(near)}" if near else "no size of an axis"
    phase = Name.parse(v.name).phase
    wrong = [x for x in result.verdicts if x.status == "wrong" and Name.parse(x.name).phase == phase]
    alike = sum(1 for x in wrong if math.isfinite(x.scale) and abs(x.scale / v.scale - 1) < 0.02)
    return set_kind(
        f,
        "scale",
        COMPUTE,
        0.9 if near else 0.6,
        text,
        hint,
        f"{alike} of {len(wrong)} wrong tensors of this phase have that factor",
    )


def _by_rank_scale(state: Comparison, v: Verdict, f: Finding) -> bool:
    """Each rank's part is a multiple of its own."""
    factors = {}
    reference = state.reference.tensor(v.name) if state.reference.level(v.name) == "full" else None
    if reference is None or reference.ndim == 0 or not reference.is_floating_point():
        return False
    if state.candidate.level(v.name) != "full":
        return False
    for p in state.pieces(v.name):
        if p.spec.partial_axes:
            return False
        part = p.spec.index(tuple(reference.shape), p.coords).take(reference)
        gap = distance(part, p.tensor.reshape(part.shape))
        if not gap.reference or gap.bad:
            return False
        rest = math.sqrt(max(gap.relative**2 - (gap.scale - 1) ** 2, 0.0))
        if rest > max(0.02 * abs(gap.scale - 1), 4 * v.tolerance):
            return False
        factors[p.rank] = gap.scale
    if len({round(x, 4) for x in factors.values()}) < 2:
        return False
    text = "each rank's part is off by a factor of its own: " + ", ".join(
        f"rank {r} {x:.4g}" for r, x in factors.items()
    )
    return set_kind(f, "scale by rank", COMPUTE, 0.85, text, "look for a local count where a global one belongs")


def rule_weight_gradient(state: Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """The gradient of a weight is wrong although what it is made of, input and output gradient, is right."""
    n = Name.parse(v.name)
    if n.phase not in ("grad", "main_grad"):
        return False
    own = [
        x
        for x in result.verdicts
        if (m := Name.parse(x.name)).module == n.module and m.step == n.step and m.phase in ("in", "gout", "gin")
    ]
    if not own or any(x.status == "wrong" for x in own):
        return False
    bias = [
        x
        for x in result.verdicts
        if Name.parse(x.name).phase == n.phase and Name.parse(x.name).module == n.module and x.name != v.name
    ]
    if bias and all(x.status == "ok" for x in bias):
        f.evidence.append("other parameters of the module are right")
    if n.slot != "weight":
        return False
    text = "input, output gradient and input gradient of the module are right, the weight's gradient is not"
    return set_kind(
        f,
        "wrong weight gradient",
        COMMUNICATION,
        0.7,
        text,
        "what the weight gradient reads (a gathered input) was overwritten or is stale",
    )
