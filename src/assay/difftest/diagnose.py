"""From the form of an error to words: which kind of mistake makes tensors differ like this.

Each rule looks at one thing and says what it saw. They are tried in order; the first that holds names the finding.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from assay.difftest.collectives import odd_ones
from assay.difftest.metrics import distance, eps_of, rank_correlation
from assay.difftest.names import Name

if TYPE_CHECKING:
    from assay.difftest.check import Finding, Result, Verdict, _Comparison

COMPUTE, COMMUNICATION, MISSING = "wrong computation", "wrong communication", "missing communication"


def diagnose(state: _Comparison, result: Result) -> list[Finding]:
    """Findings in order; all but the first and what stands by itself are consequences."""
    from assay.difftest.check import Finding

    wrong = [v for v in result.verdicts if v.status == "wrong"]
    extra = _whole_step_rules(state, result)
    if not wrong and not extra:
        return []
    findings: list[Finding] = []
    for i, verdict in enumerate(wrong):
        n = Name.parse(verdict.name)
        finding = Finding(
            verdict.name, n.module, n.phase, "wrong value", (), verdict.relative, verdict.tolerance, [], COMPUTE, 0.3,
            consequence=i > 0 and not _stands_alone(verdict, wrong[:i]), order=verdict.order,
        )  # fmt: skip
        if not finding.consequence or i < 3:
            _explain(state, result, verdict, finding)
        findings.append(finding)
    findings = sorted([*extra, *findings], key=lambda f: (f.order, f.consequence))
    for i, f in enumerate(findings):
        if i and f.consequence is False and findings[0].order < f.order and findings[0].kind == f.kind == "not updated":
            f.consequence = True
    odd = odd_ones(state.candidate.collectives())
    if odd and findings:
        module = findings[0].module
        near = [o for o in odd if module.split(".")[0] in o or re.escape(module) in o] or odd
        findings[0].evidence += [f"collectives: {o}" for o in near[:2]]
    return findings


def _stands_alone(verdict: Verdict, before: list[Verdict]) -> bool:
    """Copies that differ, and second passes that differ, stand by themselves if they are the first such."""
    if not verdict.problems:
        return False
    kind = verdict.problems[0].kind
    return not any(p.kind == kind for v in before for p in v.problems)


def _whole_step_rules(state: _Comparison, result: Result) -> list[Finding]:
    """Parameters that did not move although the reference's did."""
    from assay.difftest.check import Finding

    found: list[Finding] = _norm_counts(state, result)
    by_name = {v.name: v for v in result.verdicts}
    unmoved, moved = [], 0
    for verdict in result.verdicts:
        n = Name.parse(verdict.name)
        if n.phase != "param_after":
            continue
        before = str(Name(n.step, None, "param", n.module, n.slot))
        levels = {
            side.level(x) for side in (state.reference, state.candidate) for x in (verdict.name, before) if x in side
        }
        if before not in by_name or levels != {"full"}:
            continue
        old, new = state.reference.tensor(before), state.reference.tensor(verdict.name)
        if torch.equal(old, new):
            continue
        own = state.candidate.merged(before, old.shape).tensor, state.candidate.merged(verdict.name, old.shape).tensor
        if own[0] is None or own[1] is None:
            continue
        if torch.equal(own[0], own[1]):
            unmoved.append((verdict, n, distance(old, new).relative))
        else:
            moved += 1
    for verdict, n, change in unmoved:
        text = f"param_after equals param bit by bit, the reference's changed by {change:.2g}"
        others = f"{len(unmoved)} of {len(unmoved) + moved} parameters did not move"
        found.append(
            Finding(verdict.name, n.module, n.phase, "not updated", _ranks(state, verdict.name), 1.0, verdict.tolerance,
                    [text, others], MISSING, 0.95, order=verdict.order)
        )  # fmt: skip
    for f in [f for f in found if f.kind == "not updated"][1:]:
        f.consequence = True
    return found


def _norm_counts(state: _Comparison, result: Result) -> list[Finding]:
    """The gradient norm against the norm of the candidate's own gradients: does it count each parameter once?

    This sees what the comparison with the reference cannot: a small part that is missing from a norm.
    """
    from assay.difftest.check import Finding

    found: list[Finding] = []
    for verdict in [] if state.dead else result.verdicts:
        n = Name.parse(verdict.name)
        if n.phase != "gnorm" or verdict.status == "wrong":
            continue
        grads = [x for x in result.verdicts if (m := Name.parse(x.name)).phase == "main_grad" and m.step == n.step]
        names = [x.name for x in grads if x.status == "ok"]
        if not names or len(names) < len(grads) or any(state.candidate.level(x) != "full" for x in names):
            continue
        rest = []
        for side in (state.reference, state.candidate):
            norm = side.merged(verdict.name, ()).tensor
            parts = [side.merged(x, state.reference.shape(x)).tensor for x in names]
            if norm is None or any(p is None for p in parts):
                break
            total = sum(float(p.double().square().sum()) for p in parts if p is not None)
            rest.append((float(norm.double()) ** 2, total))
        if len(rest) < 2 or not all(total for _, total in rest):
            continue
        gaps = [abs(square - total) / total for square, total in rest]
        own = eps_of(state.candidate.entries(verdict.name)[0][1].dtype)
        limit = max(16 * own, 8 * gaps[0], 1e-12)
        if gaps[0] > 1e-3 or gaps[1] <= limit:  # the reference's own norm is of something else (clipped, other norm)
            continue
        f = Finding(verdict.name, n.module, n.phase, "norm counts", _ranks(state, verdict.name), gaps[1], limit, [],
                    COMPUTE, 0.9, order=verdict.order)  # fmt: skip
        f.evidence.append(
            f"all {len(names)} gradients are right; their squared norms add up to {rest[1][1]:.9g}, the square is "
            f"{rest[1][0]:.9g}"
        )
        _whose(state, names, rest[1][1] - rest[1][0], f)
        found.append(f)
    return found


def _whose(state: _Comparison, names: list[str], gap: float, f: Finding) -> None:
    """Name the parameters whose parts come nearest to a gap in the squared norm."""
    by_kind: dict[str, float] = {}
    for name in names:
        kind = re.sub(r"\.\d+\.", ".*.", Name.parse(name).parameter)
        by_kind[kind] = by_kind.get(kind, 0.0) + _part(state, name, gap)
    kind, part = min(by_kind.items(), key=lambda p: abs(p[1] - gap))
    if abs(part - gap) < 0.2 * abs(gap):
        f.evidence.append(
            f"the difference is what a rank's part of {kind} contributes ({part:.3g}): it is not counted on all ranks"
        )
    else:
        name = min(names, key=lambda x: abs(_part(state, x, gap) - gap))
        f.evidence.append(f"the difference ({gap:.3g}) comes nearest to a part of {Name.parse(name).parameter}")


def _ranks(state: _Comparison, name: str) -> tuple[int, ...]:
    return tuple(f.rank for f, _ in state.candidate.entries(name)) if name in state.candidate_names else ()


Rule = Callable[["_Comparison", "Result", "Verdict", "Finding"], bool]


def _explain(state: _Comparison, result: Result, verdict: Verdict, finding: Finding) -> None:
    limit = f"relative error {verdict.relative:.3g}, tolerance {verdict.tolerance:.3g} ({verdict.reason})"
    finding.evidence.append(limit)
    if verdict.note:
        finding.evidence.append(verdict.note)
    finding.ranks = _ranks(state, verdict.name)
    full = all(
        verdict.name in side and side.level(verdict.name) == "full" for side in (state.reference, state.candidate)
    )
    structural = any(p.kind != "replica conflict" for p in verdict.problems)
    for rule in RULES if full or structural else WITHOUT_TENSORS:
        if rule(state, result, verdict, finding):
            return


def _set(f: Finding, kind: str, category: str, confidence: float, *evidence: str) -> bool:
    f.kind, f.category, f.confidence = kind, category, confidence
    f.evidence += evidence
    return True


def rule_recompute(state: _Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """The second pass of a checkpointed part is not the first."""
    problem = next((p for p in v.problems if p.kind == "recompute differs"), None)
    if problem is None:
        return False
    f.ranks = problem.ranks
    what = "FP8 state" if state.reference.meta.get("dtype") == "fp8" else "input, random state or FP8 state"
    return _set(f, "recompute differs", COMPUTE, 0.9, problem.message, f"look at the {what} of the recomputation")


def rule_layers(state: _Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """Whole layers are nowhere."""
    problem = next((p for p in v.problems if p.kind in ("missing layer", "missing parameter")), None)
    if problem is None:
        return False
    layers = ", ".join(state.missing_layers)
    kind = "missing layers" if problem.kind == "missing layer" else "missing parameter"
    return _set(
        f, kind, COMPUTE, 0.95, problem.message, f"missing: {layers}" if layers else "look at the split into stages"
    )


def rule_region(state: _Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """Parts of a tensor are on no rank, or on two."""
    problem = next((p for p in v.problems if p.kind in ("missing region", "double cover", "shape mismatch")), None)
    if problem is None:
        return False
    f.ranks = problem.ranks or f.ranks
    return _set(f, problem.kind, COMPUTE, 0.8, problem.message)


def rule_replica(state: _Comparison, result: Result, v: Verdict, f: Finding) -> bool:
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
        return _set(
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
        return _set(f, "untied", COMPUTE, 0.9, text, "copies of a tied weight on two stages went apart")
    if n.phase in ("main_grad", "grad"):
        sums = _missing_sum(state, v)
        return _set(
            f, "missing reduction", MISSING, 0.9, text, *([sums] if sums else []), f"reduce this gradient over {axes}"
        )
    if n.phase.startswith(("param", "optim.")):
        return _set(f, "missing reduction", MISSING, 0.6, text, f"the update differs along {axes}")
    if n.phase in ("gnorm", "loss"):
        return _set(f, "norm counts" if n.phase == "gnorm" else "scale by rank", COMPUTE, 0.6, text)
    return _set(
        f, "missing reduction", MISSING, 0.8, text, f"ranks along {axes} hold different values where they must agree"
    )


def _missing_sum(state: _Comparison, v: Verdict) -> str:
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


def rule_gnorm(state: _Comparison, result: Result, v: Verdict, f: Finding) -> bool:
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
    _whose(state, [x.name for x in grads], gap, f)
    return _set(f, "norm counts", COMPUTE, 0.9)


def _part(state: _Comparison, name: str, gap: float) -> float:
    """Squared norm of a gradient that is missing if only the first rank's shard is counted."""
    distinct: dict[object, float] = {}
    for p in state.pieces(name):
        distinct.setdefault(
            p.spec.index(state.reference.shape(name), p.coords).key, float(p.tensor.double().square().sum())
        )
    total = list(distinct.values())
    return sum(total[1:]) if len(total) > 1 else sum(total)


def _scalar(state: _Comparison, name: str) -> tuple[float, float]:
    right = float(state.reference.tensor(name))
    merged = state.candidate.merged(name, ())
    return right, float(merged.tensor) if merged.tensor is not None else math.nan


def rule_untied(state: _Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """Only the tied weight is off after the step."""
    n = Name.parse(v.name)
    if n.phase != "param_after" or not state.reference.meta.get("tied"):
        return False
    wrong = {Name.parse(x.name).parameter for x in result.verdicts if x.status == "wrong" and "param_after" in x.name}
    if wrong != {n.parameter} or "embed" not in n.parameter:
        return False
    return _set(f, "untied", COMPUTE, 0.7, "the tied weight is the only one that is wrong after the step")


def rule_accumulation(state: _Comparison, result: Result, v: Verdict, f: Finding) -> bool:
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
    return _set(f, "accumulation", COMPUTE, 0.9, text)


def rule_loss(state: _Comparison, result: Result, v: Verdict, f: Finding) -> bool:
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
    return _set(f, "scale", COMPUTE, 0.7, f"the loss is {v.scale:.5g} times the reference's")


def rule_scale(state: _Comparison, result: Result, v: Verdict, f: Finding) -> bool:
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
    return _set(
        f,
        "scale",
        COMPUTE,
        0.9 if near else 0.6,
        text,
        hint,
        f"{alike} of {len(wrong)} wrong tensors of this phase have that factor",
    )


def _by_rank_scale(state: _Comparison, v: Verdict, f: Finding) -> bool:
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
    return _set(f, "scale by rank", COMPUTE, 0.85, text, "look for a local count where a global one belongs")


def rule_weight_gradient(state: _Comparison, result: Result, v: Verdict, f: Finding) -> bool:
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
    return _set(
        f,
        "wrong weight gradient",
        COMMUNICATION,
        0.7,
        text,
        "what the weight gradient reads (a gathered input) was overwritten or is stale",
    )


def rule_permutation(state: _Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """The same slices in another order."""
    reference, candidate = _both(state, v)
    if reference is None or candidate is None or reference.ndim == 0:
        return False
    if (
        not math.isfinite(v.relative)
        or abs(float(torch.linalg.vector_norm(candidate.double())) / max(v.norm, 1e-300) - 1) > 1e-2
    ):
        return False
    for dim in range(min(reference.ndim, 4)):
        a = reference.double().movedim(dim, 0).reshape(reference.shape[dim], -1)
        b = candidate.double().movedim(dim, 0).reshape(a.shape)
        if a.shape[0] < 2 or a.shape[0] > 4096 or a.shape[1] < 2:
            continue
        match = torch.cdist(b, a).argmin(1)
        matched = distance(a[match], b).relative
        moved = torch.nonzero(match != torch.arange(len(match)))[:, 0].tolist()
        good = matched <= max(v.tolerance, 1e-6) and matched < 0.2 * v.relative
        if good and moved and len(set(match.tolist())) == len(match):
            text = f"{len(moved)} of {len(match)} slices of dimension {dim} are in another place: " + ", ".join(
                f"{i} holds {int(match[i])}" for i in moved[:4]
            )
            return _set(
                f, "permutation", COMPUTE, 0.9, text, f"rank correlation {rank_correlation(reference, candidate):.2f}"
            )
    return False


def _both(state: _Comparison, v: Verdict) -> tuple[Tensor | None, Tensor | None]:
    if (
        v.name not in state.candidate_names
        or state.reference.level(v.name) != "full"
        or state.candidate.level(v.name) != "full"
    ):
        return None, None
    reference = state.reference.tensor(v.name)
    merged = state.candidate.merged(v.name, reference.shape)
    if merged.tensor is None or merged.tensor.shape != reference.shape:
        return None, None
    return reference, merged.tensor


def rule_missing_sum(state: _Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """Each rank holds its own share of a sum."""
    reference, _ = _both(state, v)
    if reference is None or not reference.is_floating_point():
        return False
    distinct = [p.tensor for p in state.pieces(v.name) if p.tensor.shape == reference.shape and not p.spec.partial_axes]
    if len(distinct) < 2 or all(torch.equal(distinct[0], d) for d in distinct):
        return False
    gap = distance(reference.double(), torch.stack([d.double() for d in distinct]).sum(0)).relative
    if gap > 0.1:
        return False
    return _set(f, "missing reduction", MISSING, 0.85, f"the ranks' tensors add up to the reference (to {gap:.1g})")


def rule_mask(state: _Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """Elements are zero on one side only."""
    reference, candidate = _both(state, v)
    if reference is None or candidate is None or not reference.is_floating_point():
        return False
    a, b = reference == 0, candidate == 0
    lost, won = int((b & ~a).sum()), int((a & ~b).sum())
    both = ~a & ~b
    if lost + won == 0 or not bool(both.any()):
        return False
    rest = distance(reference[both], candidate[both]).relative
    if rest > max(v.tolerance, 1e-6) * 4:
        return False
    where = _rows(reference, candidate, v.tolerance)
    text = f"{lost} elements are zero here and not in the reference, {won} the other way; the rest is right"
    kind = "wrong rows" if where else "wrong mask"
    return _set(f, kind, COMPUTE, 0.85, text, *([where] if where else []), "a mask or an offset")


def _rows(reference: Tensor, candidate: Tensor, limit: float) -> str:
    """The few slices that carry the whole error, if it is few."""
    lead = reference.reshape(-1, reference.shape[-1]) if reference.ndim > 1 else reference[:, None]
    other = candidate.reshape(lead.shape)
    gap = torch.linalg.vector_norm((other - lead).double(), dim=1)
    norm = torch.linalg.vector_norm(lead.double(), dim=1).clamp(min=1e-300)
    typical = float(norm.median())
    bad = torch.nonzero(
        gap > max(10 * limit, 1e-6) * torch.maximum(norm, torch.tensor(typical * 0.1, dtype=norm.dtype))
    )[:, 0]
    if len(bad) == 0 or len(bad) > 0.6 * len(gap):
        return ""
    rest = torch.ones(len(gap), dtype=torch.bool)
    rest[bad] = False
    clean = float(torch.linalg.vector_norm(gap[rest])) <= max(4 * limit, 1e-6) * float(
        torch.linalg.vector_norm(norm[rest])
    )
    if not clean:
        return ""
    shape = reference.shape[:-1] if reference.ndim > 1 else reference.shape
    places = [tuple(int(i) for i in torch.unravel_index(torch.tensor(int(k)), shape)) for k in bad[:4]]
    return f"{len(bad)} of {len(gap)} rows carry the error, first at {', '.join(map(str, places))}"


def rule_rows(state: _Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """Few rows carry the whole error."""
    reference, candidate = _both(state, v)
    if reference is None or candidate is None or reference.ndim == 0 or not math.isfinite(v.relative):
        return False
    if not reference.is_floating_point():
        return _set(f, "wrong rows", COMPUTE, 0.6, "decisions differ for some tokens")
    where = _rows(reference, candidate, v.tolerance)
    if not where:
        return False
    shares = state.by_rank(v.name)
    guilty = [r for r, e in shares.items() if e > v.tolerance]
    if guilty and len(guilty) < len(shares):
        f.ranks = tuple(guilty)
        where += f"; only on ranks {guilty}"
    return _set(f, "wrong rows", COMPUTE, 0.75, where, "a mask or an offset")


def rule_rank(state: _Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """Which ranks have the error, for what no rule named."""
    if v.name not in state.candidate_names or state.reference.level(v.name) != "full" or not math.isfinite(v.relative):
        return False
    if _missing_partial(state, v, f):
        return True
    n = Name.parse(v.name)
    if n.phase == "in" and not any(x.status == "wrong" and x.order < v.order for x in result.verdicts):
        producers = [x for x in result.verdicts if Name.parse(x.name).phase == "out" and x.order < v.order]
        if producers and all(x.status == "ok" for x in producers):
            f.kind, f.confidence = "wrong input", 0.7
            f.evidence.append("all outputs before it are right: the module is fed the wrong tensor")
    if state.candidate.level(v.name) == "full":
        shares = state.by_rank(v.name)
        guilty = [r for r, e in shares.items() if not e <= v.tolerance]
        if guilty:
            f.ranks = tuple(guilty)
            f.evidence.append("error by rank: " + ", ".join(f"{r}: {e:.2g}" for r, e in list(shares.items())[:8]))
    f.evidence.append(f"cosine {v.cosine:.4f}, best factor {v.scale:.4g}, largest difference {v.largest:.3g}")
    return True


def _missing_partial(state: _Comparison, v: Verdict, f: Finding) -> bool:
    """A forward tensor that is the same on all ranks but lacks a reduction that its layers have."""
    odd = [o for o in odd_ones(state.candidate.collectives()) if f.module in o and ": no " in o]
    if not odd:
        return False
    return _set(f, "missing reduction", MISSING, 0.8, odd[0])


WITHOUT_TENSORS: list[Rule] = [rule_recompute, rule_layers, rule_region, rule_replica, rule_scale]
RULES: list[Rule] = [
    rule_recompute, rule_layers, rule_region, rule_replica, rule_loss, rule_gnorm, rule_untied, rule_accumulation,
    rule_permutation, rule_missing_sum, rule_scale, rule_mask, rule_rows, rule_weight_gradient, rule_rank,
]  # fmt: skip
