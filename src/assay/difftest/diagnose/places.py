"""Rules on places: slices in another order, missing shares, rows, masks, ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from assay.difftest.collectives import odd_ones
from assay.difftest.diagnose.structure import COMPUTE, MISSING, set_kind
from assay.difftest.metrics import distance, rank_correlation
from assay.difftest.names import Name

if TYPE_CHECKING:
    from assay.difftest.check import Comparison, Finding, Result, Verdict


def rule_permutation(state: Comparison, result: Result, v: Verdict, f: Finding) -> bool:
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
            return set_kind(
                f, "permutation", COMPUTE, 0.9, text, f"rank correlation {rank_correlation(reference, candidate):.2f}"
            )
    return False


def _both(state: Comparison, v: Verdict) -> tuple[Tensor | None, Tensor | None]:
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


def rule_missing_sum(state: Comparison, result: Result, v: Verdict, f: Finding) -> bool:
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
    return set_kind(f, "missing reduction", MISSING, 0.85, f"the ranks' tensors add up to the reference (to {gap:.1g})")


def rule_mask(state: Comparison, result: Result, v: Verdict, f: Finding) -> bool:
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
    return set_kind(f, kind, COMPUTE, 0.85, text, *([where] if where else []), "a mask or an offset")


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


def rule_rows(state: Comparison, result: Result, v: Verdict, f: Finding) -> bool:
    """Few rows carry the whole error."""
    reference, candidate = _both(state, v)
    if reference is None or candidate is None or reference.ndim == 0 or not math.isfinite(v.relative):
        return False
    if not reference.is_floating_point():
        return set_kind(f, "wrong rows", COMPUTE, 0.6, "decisions differ for some tokens")
    where = _rows(reference, candidate, v.tolerance)
    if not where:
        return False
    shares = state.by_rank(v.name)
    guilty = [r for r, e in shares.items() if e > v.tolerance]
    if guilty and len(guilty) < len(shares):
        f.ranks = tuple(guilty)
        where += f"; only on ranks {guilty}"
    return set_kind(f, "wrong rows", COMPUTE, 0.75, where, "a mask or an offset")


def rule_rank(state: Comparison, result: Result, v: Verdict, f: Finding) -> bool:
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


def _missing_partial(state: Comparison, v: Verdict, f: Finding) -> bool:
    """A forward tensor that is the same on all ranks but lacks a reduction that its layers have."""
    odd = [o for o in odd_ones(state.candidate.collectives()) if f.module in o and ": no " in o]
    if not odd:
        return False
    return set_kind(f, "missing reduction", MISSING, 0.8, odd[0])
