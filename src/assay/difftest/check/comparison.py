"""One pass over two traces: every tensor judged, in the order of execution."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.difftest.check.result import Verdict
from assay.difftest.errors import (
    NotComparable,
    ReplicaConflict,
    ShardSpecError,
)
from assay.difftest.metrics import Distance, block_errors, distance, eps_of
from assay.difftest.names import Name
from assay.difftest.routing import Flips, compare_choices
from assay.difftest.samples import held_samples, sample_indices
from assay.difftest.shards import Merged, Piece, Problem, ShardSpec, merge
from assay.difftest.store import Trace
from assay.difftest.tolerance import Tolerance

LAYER = re.compile(r"(.*?(?:layers|blocks|h)\.\d+)(?:\.|$)")


class Comparison:
    """One pass over two traces."""

    def __init__(self, reference: Trace, candidate: Trace, tolerance: Tolerance, strict: bool) -> None:
        self.reference, self.candidate, self.tolerance, self.strict = reference, candidate, tolerance, strict
        self.verdicts: list[Verdict] = []
        self.absent: list[str] = []
        self.notes: list[str] = []
        self.flips: list[Flips] = []
        self.candidate_names = set(candidate.names())
        self.layers_there = {m[1] for n in self.candidate_names if (m := LAYER.match(Name.parse(n).module)) is not None}
        self.missing_layers: dict[str, int] = {}
        self.dead = bool(candidate.missing_ranks())
        self._flipped: dict[tuple[int, int | None], Tensor] = {}

    # --- what makes a comparison invalid ---------------------------------------------------------------------

    def check_start(self, names: Sequence[str]) -> None:
        """Inputs and initial weights must be the same, or nothing after them says anything."""
        first: dict[tuple[int, int | None], str] = {}
        for name in names:
            n = Name.parse(name)
            if n.phase == "in" and name in self.candidate_names:
                entry = self.reference.entries(name)[0][1]
                if not eps_of(entry.dtype):
                    first.setdefault((n.step, n.microbatch), name)
        for name in first.values():
            reference, merged = self.pair(name)
            if reference is None or merged.tensor is None or merged.problems or reference.shape != merged.tensor.shape:
                continue
            differ = float((reference != merged.tensor).double().mean())
            if differ > 0.5:
                raise NotComparable(
                    f"{name}: {differ:.0%} of the input differs; feed both sides the same data (same batch, same order)"
                )
        params = [n for n in names if Name.parse(n).phase == "param" and Name.parse(n).step == self.reference.steps[0]]
        different, seen = [], 0
        for name in params:
            if name not in self.candidate_names or self.reference.level(name) != "full":
                continue
            reference, merged = self.pair(name)
            if reference is None or merged.tensor is None or merged.tensor.shape != reference.shape:
                continue
            if merged.problems:
                continue
            seen += 1
            if distance(reference, merged.tensor).relative > max(1e-6, 0.5 * eps_of(reference.dtype)):
                different.append(name)
        if seen and len(different) > 0.5 * seen:
            raise NotComparable(
                f"{len(different)} of {seen} initial parameters differ, first {different[0]}; copy the reference's "
                "weights into the candidate (scatter_state) or load one checkpoint on both sides"
            )

    # --- one tensor ---------------------------------------------------------------------------------------------

    def pair(self, name: str) -> tuple[Tensor | None, Merged]:
        """The whole tensor of both sides."""
        if self.reference.level(name) != "full":
            return None, Merged(None)
        reference = self.reference.tensor(name)
        try:
            return reference, merge(self.candidate.pieces(name), tuple(reference.shape))
        except ShardSpecError as error:
            raise ShardSpecError(f"{name}: {error}; mend the specification that was given for it") from error

    def one(self, name: str, order: int) -> Verdict | None:
        """Verdict on one tensor; None where it is another name of one that was compared."""
        n = Name.parse(name)
        if n.recompute:
            return None
        if name not in self.candidate_names:
            return self._missing(n, name, order)
        target = self.reference.alias(name)
        if target and self.candidate.alias(name) == target:
            return None
        level = self.candidate.level(name)
        if "digest" in (level, self.reference.level(name)):
            return self._digest(name, order)
        if "sample" in (level, self.reference.level(name)):
            return self._sample(name, order)
        reference, merged = self.pair(name)
        assert reference is not None
        entry = self.candidate.entries(name)[0][1]
        limit, reason = self._limit(name, entry.dtype)
        problems = self._kept(merged.problems, name, limit)
        if self.dead and any(p.kind == "missing region" for p in problems):
            return self._what_is_left(name, order, limit, reason)
        if self.strict and any(p.kind == "replica conflict" for p in problems):
            raise ReplicaConflict(f"{name}: {problems[0].message}")
        if merged.tensor is None:
            return Verdict(name, order, math.inf, limit, reason, "wrong", problems=problems)
        if tuple(merged.tensor.shape) != tuple(reference.shape):
            text = f"the candidate's is {list(merged.tensor.shape)}, the reference's {list(reference.shape)}"
            return Verdict(name, order, math.inf, limit, reason, "wrong", problems=[Problem("shape mismatch", text)])
        if not reference.is_floating_point():
            return self._discrete(name, n, order, reference, merged.tensor, problems)
        left, right, note = self._without_flips(n, reference, merged.tensor)
        if left is None or right is None:
            return Verdict(name, order, 0.0, limit, reason, "left out", note=note)
        gap = distance(left, right)
        relative, wrong = self._judge(name, gap, limit)
        status = "wrong" if wrong or problems else "ok"
        if gap.both_bad:
            note = f"both non-finite in {gap.both_bad} elements"
            status = "wrong"
        elif gap.bad:
            note = f"{gap.bad} elements are finite on one side only"
        return Verdict(
            name, order, relative, limit, reason, status, gap.reference, gap.largest, gap.cosine,
            gap.scale if math.isfinite(gap.scale) else 0.0, problems, note,
        )  # fmt: skip

    def _limit(self, name: str, dtype: str = "float32") -> tuple[float, str]:
        """Tolerance of a tensor; one that the reference holds under another name has that name's."""
        known = self.tolerance.relative
        for _ in range(8):
            target = self.reference.alias(name) if name not in known else ""
            if not target:
                break
            name = target
        return self.tolerance.of(name, dtype)

    def _judge(self, name: str, gap: Distance, limit: float) -> tuple[float, bool]:
        if gap.reference == 0.0 and not gap.bad:
            allowed = self.tolerance.absolute.get(name, 0.0)
            return (0.0, False) if gap.error <= allowed else (math.inf, True)
        return gap.relative, not gap.relative <= limit

    def _what_is_left(self, name: str, order: int, limit: float, reason: str) -> Verdict:
        """Where a rank died: the parts of the others, each against its part of the reference."""
        errors = self.by_rank(name)
        if not errors:
            return Verdict(name, order, 0.0, limit, reason, "left out", note="contributions of a dead rank are missing")
        worst = max(errors.values())
        note = f"only the parts of ranks {sorted(errors)}"
        return Verdict(name, order, worst, limit, reason, "wrong" if not worst <= limit else "ok", note=note)

    def _kept(self, problems: Sequence[Problem], name: str, limit: float) -> list[Problem]:
        """Copies that differ by less than the tolerance are a note, not a finding (unless they were marked exact)."""
        exact = any(f.entries[name].exact for f in self.candidate.files if name in f.entries)
        kept = []
        for p in problems:
            if p.kind == "replica conflict" and not exact and p.relative <= limit:
                note = f"{name}: copies differ by {p.relative:.2g}, within the tolerance of {limit:.2g}"
                if len(self.notes) < 50:
                    self.notes.append(note)
                continue
            kept.append(p)
        return kept

    def _missing(self, n: Name, name: str, order: int) -> Verdict | None:
        match = LAYER.match(n.module)
        if match is not None and match[1] not in self.layers_there:
            if match[1] in self.missing_layers:
                return None
            self.missing_layers[match[1]] = order
            problem = Problem("missing layer", f"no rank has {match[1]}")
            return Verdict(name, order, math.inf, 0.0, "structure", "wrong", problems=[problem])
        if n.phase == "param" and any("/param/" in c for c in self.candidate_names):
            problem = Problem("missing parameter", f"no rank has the parameter {n.parameter}")
            return Verdict(name, order, math.inf, 0.0, "structure", "wrong", problems=[problem])
        if n.module != "model" and self.reference.alias(name) == "":
            self.absent.append(name)
        return None

    def _digest(self, name: str, order: int) -> Verdict | None:
        limit, reason = self._limit(name)
        reference, candidate, problems = self._digests(name)
        if reference is None or candidate is None:
            self.absent.append(name)
            return None
        gap = reference.distance(candidate)
        relative = gap / reference.norm if reference.norm else (0.0 if gap == 0 else math.inf)
        bad = reference.bad != candidate.bad
        # a sketch knows the norm to 4.4 %; a tenth more than the tolerance is no evidence
        wrong = relative > 1.1 * limit or bad
        kept = self._kept(problems, name, limit)
        note = f"{candidate.bad} elements are not finite, in the reference {reference.bad}" if bad else "digest"
        mine, own = reference.sketch[0], candidate.sketch[0]
        scale = float(torch.dot(mine, own) / torch.dot(mine, mine)) if reference.norm else 1.0
        return Verdict(name, order, relative, limit, reason, "wrong" if wrong or kept else "ok", reference.norm,
                       scale=scale, problems=kept, note=note)  # fmt: skip

    def _digests(self, name: str) -> tuple[Any, Any, list[Problem]]:
        from assay.difftest.sketch import digest

        made: list[Any] = []
        problems: list[Problem] = []
        for side in (self.reference, self.candidate):
            if side.level(name) == "digest":
                one, found = side.digest(name)
                made.append(one)
                problems += found if side is self.candidate else []
            elif side.level(name) == "full":
                whole = side.merged(name, self.reference.shape(name))
                made.append(digest(whole.tensor) if whole.tensor is not None else None)
                problems += whole.problems if side is self.candidate else []
            else:
                made.append(None)
        return made[0], made[1], problems

    def _sample(self, name: str, order: int) -> Verdict | None:
        limit, reason = self._limit(name)
        sides = []
        problems: list[Problem] = []
        for side in (self.reference, self.candidate):
            values, conflict = _sampled_values(side, name)
            sides.append(values)
            problems += conflict if side is self.candidate else []
        if sides[0] is None or sides[1] is None or sides[0].shape != sides[1].shape:
            self.absent.append(name)
            return None
        gap = distance(sides[0], sides[1])
        relative, wrong = self._judge(
            name, gap, 1.3 * limit
        )  # 1024 of many elements: the norm is known to a few per cent
        kept = self._kept(problems, name, limit)
        return Verdict(name, order, relative, limit, reason, "wrong" if wrong or kept else "ok", gap.reference,
                       gap.largest, gap.cosine, gap.scale, kept, "sample")  # fmt: skip

    def _discrete(
        self, name: str, n: Name, order: int, reference: Tensor, candidate: Tensor, problems: list[Problem]
    ) -> Verdict:
        if torch.equal(reference, candidate):
            return Verdict(name, order, 0.0, 0.0, "exact", "wrong" if problems else "ok", problems=problems)
        logits_name = name.replace(f"/{n.slot}", "/logits") if n.phase == "mark" else ""
        flips = None
        if (
            logits_name
            and logits_name in self.candidate_names
            and logits_name in self.reference
            and reference.dtype == torch.int64
        ):
            limit, _ = self._limit(logits_name)
            logits = self.reference.tensor(logits_name)
            if logits.ndim == reference.ndim and logits.shape[:-1] == reference.shape[:-1]:
                flips = compare_choices(name, reference, candidate, logits, limit)
        share = float((reference != candidate).double().mean())
        if flips is not None and not flips.illegal:
            self.flips.append(flips)
            if flips.tokens is not None:
                key = (n.step, n.microbatch)
                self._flipped[key] = self._flipped.get(key, torch.zeros_like(flips.tokens)) | flips.tokens
            return Verdict(name, order, 0.0, 0.0, "near ties", "wrong" if problems else "ok", problems=problems,
                           note=f"{flips.legal} choices flipped at near ties")  # fmt: skip
        note = f"{share:.1%} of the entries differ" + (
            f"; {flips.illegal} choices differ without a near tie" if flips else ""
        )
        return Verdict(
            name, order, share, 0.0, "exact", "wrong", float(reference.numel()) ** 0.5, problems=problems, note=note
        )

    def _without_flips(self, n: Name, reference: Tensor, candidate: Tensor) -> tuple[Tensor | None, Tensor | None, str]:
        """Leave out what a legal flip of routing changed: later tokens of its sequence, and sums over tokens."""
        tokens = self._flipped.get((n.step, n.microbatch))
        if tokens is None:
            if n.microbatch is None and any(step == n.step for step, _ in self._flipped) and n.phase != "param":
                return None, None, "a routing choice flipped; replay the reference's routing to compare this"
            return reference, candidate, ""
        if n.phase not in ("in", "out", "mark") or reference.shape[: tokens.ndim] != tokens.shape:
            return None, None, "a routing choice flipped; replay the reference's routing to compare this"
        keep = tokens.cumsum(-1) == 0
        return reference[keep], candidate[keep], f"{int((~keep).sum())} tokens left out after flips"

    # --- recompute ------------------------------------------------------------------------------------------------

    def recompute(self, order: int) -> None:
        """The second pass of checkpointed parts against the first, on the candidate alone."""
        for name in self.candidate.names():
            n = Name.parse(name)
            if not n.recompute:
                continue
            first = str(n.first_pass())
            if first not in self.candidate_names:
                continue
            worst = 0.0
            ranks = []
            firsts = {f.rank: (f, e) for f, e in self.candidate.entries(first)}
            for file, entry in self.candidate.entries(name):
                if file.rank not in firsts or entry.level != "full":
                    continue
                a = self.candidate.local(*firsts[file.rank])
                b = self.candidate.local(file, entry)
                if a.shape == b.shape and not torch.equal(a, b):
                    gap = distance(a, b)
                    if gap.error or gap.bad:
                        worst = max(worst, gap.relative)
                        ranks.append(file.rank)
            if ranks:
                at = next((v.order for v in self.verdicts if v.name == first), order)
                text = f"the second pass differs from the first on ranks {ranks} by {worst:.3g}"
                problem = Problem("recompute differs", text, tuple(ranks), relative=worst)
                self.verdicts.append(Verdict(name, at, worst, 0.0, "bitwise", "wrong", problems=[problem]))

    # --- evidence ---------------------------------------------------------------------------------------------------

    def by_rank(self, name: str) -> dict[int, float]:
        """Relative error of each rank's part."""
        reference = self.reference.tensor(name)
        found = {}
        for file, entry in self.candidate.entries(name):
            spec = ShardSpec.parse(file.entries[name].spec or entry.spec)
            if spec.partial_axes:
                continue
            local = self.candidate.local(file, entry)
            part = spec.index(tuple(reference.shape), file.coords).take(reference)
            if part.numel() == local.numel() and part.numel():
                scaled = local.reshape(part.shape) * spec.scale if spec.scale != 1.0 else local.reshape(part.shape)
                found[file.rank] = distance(part, scaled).relative
        return found

    def pieces(self, name: str) -> list[Piece]:
        """The candidate's parts."""
        return self.candidate.pieces(name)

    def shares(self, name: str, dim: int) -> Tensor | None:
        """Relative error of each slice along a dimension."""
        reference, merged = self.pair(name)
        if reference is None or merged.tensor is None or dim >= reference.ndim:
            return None
        return block_errors(reference, merged.tensor, dim)


def _sampled_values(side: Trace, name: str) -> tuple[Tensor | None, list[Problem]]:
    shape = side.shape(name)
    wanted = sample_indices(shape)
    if side.level(name) == "full":
        merged = side.merged(name)
        if merged.tensor is None:
            return None, merged.problems
        return merged.tensor.reshape(-1)[torch.from_numpy(wanted)].double(), merged.problems
    values = torch.full((len(wanted),), math.nan, dtype=torch.float64)
    sums: dict[int, Tensor] = {}
    problems: list[Problem] = []
    seen: dict[Any, tuple[int, Tensor]] = {}
    partial = False
    for file, entry in side.entries(name):
        spec = ShardSpec.parse(entry.spec)
        stored = side.local(file, entry)
        key: tuple[Any, ...] = (spec.index(shape, file.coords).key,)
        key += tuple(file.coords.get(a, (0, 1))[0] for a in spec.partial_axes)
        if key in seen:
            if not torch.equal(seen[key][1], stored):
                gap = distance(seen[key][1], stored)
                text = f"copies on ranks {seen[key][0]} and {file.rank} must be equal"
                problems.append(
                    Problem("replica conflict", text, (seen[key][0], file.rank), (), gap.largest, gap.relative)
                )
            continue
        seen[key] = (file.rank, stored)
        _, held = held_samples(spec.index(shape, file.coords))
        at = torch.from_numpy(np.searchsorted(wanted, held))
        if spec.partial_axes:
            partial = True
            sums[file.rank] = torch.zeros_like(values).index_put_((at,), stored.double())
        else:
            values[at] = stored.double()
    if partial:
        values = torch.stack(list(sums.values())).sum(0)
    if bool(torch.isnan(values).any()) and not partial:
        problems.append(Problem("missing region", f"{int(torch.isnan(values).sum())} sampled elements are on no rank"))
        values = values.nan_to_num(0.0)
    return values, problems
