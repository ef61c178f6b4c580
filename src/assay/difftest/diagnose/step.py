"""What is seen only over a whole step: parameters that did not move, a norm that leaves gradients out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from assay.difftest.diagnose.structure import COMPUTE, MISSING
from assay.difftest.metrics import distance, eps_of
from assay.difftest.names import Name

if TYPE_CHECKING:
    from assay.difftest.check import Comparison, Finding, Result


def whole_step_rules(state: Comparison, result: Result) -> list[Finding]:
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
            Finding(verdict.name, n.module, n.phase, "not updated", ranks_of(state, verdict.name), 1.0,
                    verdict.tolerance, [text, others], MISSING, 0.95, order=verdict.order)
        )  # fmt: skip
    for f in [f for f in found if f.kind == "not updated"][1:]:
        f.consequence = True
    return found


def _norm_counts(state: Comparison, result: Result) -> list[Finding]:
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
        f = Finding(verdict.name, n.module, n.phase, "norm counts", ranks_of(state, verdict.name), gaps[1], limit, [],
                    COMPUTE, 0.9, order=verdict.order)  # fmt: skip
        f.evidence.append(
            f"all {len(names)} gradients are right; their squared norms add up to {rest[1][1]:.9g}, the square is "
            f"{rest[1][0]:.9g}"
        )
        whose(state, names, rest[1][1] - rest[1][0], f)
        found.append(f)
    return found


def whose(state: Comparison, names: list[str], gap: float, f: Finding) -> None:
    """Name the parameters whose parts come nearest to a gap in the squared norm."""
    by_kind: dict[str, float] = {}
    for name in names:
        kind = re.sub(r"\.\d+\.", ".*.", Name.parse(name).parameter)
        by_kind[kind] = by_kind.get(kind, 0.0) + part_of(state, name, gap)
    kind, part = min(by_kind.items(), key=lambda p: abs(p[1] - gap))
    if abs(part - gap) < 0.2 * abs(gap):
        f.evidence.append(
            f"the difference is what a rank's part of {kind} contributes ({part:.3g}): it is not counted on all ranks"
        )
    else:
        name = min(names, key=lambda x: abs(part_of(state, x, gap) - gap))
        f.evidence.append(f"the difference ({gap:.3g}) comes nearest to a part of {Name.parse(name).parameter}")


def ranks_of(state: Comparison, name: str) -> tuple[int, ...]:
    return tuple(f.rank for f, _ in state.candidate.entries(name)) if name in state.candidate_names else ()


def part_of(state: Comparison, name: str, gap: float) -> float:
    """Squared norm of a gradient that is missing if only the first rank's shard is counted."""
    distinct: dict[object, float] = {}
    for p in state.pieces(name):
        distinct.setdefault(
            p.spec.index(state.reference.shape(name), p.coords).key, float(p.tensor.double().square().sum())
        )
    total = list(distinct.values())
    return sum(total[1:]) if len(total) > 1 else sum(total)
