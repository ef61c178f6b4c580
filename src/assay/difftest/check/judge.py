"""Compare a candidate's trace with the reference's: structure first, then every tensor."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assay.difftest.check.comparison import Comparison
from assay.difftest.check.result import Result
from assay.difftest.check.resume import Resume
from assay.difftest.errors import (
    StepMismatch,
    UnmappedName,
)
from assay.difftest.metrics import eps_of
from assay.difftest.names import Name
from assay.difftest.store import Trace
from assay.difftest.tolerance import Tolerance


def compare(
    reference: Trace, candidate: Trace, tolerance: Tolerance | None = None, *, strict: bool = False,
    allow_extra: bool = False, include: Sequence[str] = (), exclude: Sequence[str] = (),
    resume: str | Path | None = None,
    coverage: Any = None, stop_after: int | None = None,
) -> Result:  # fmt: skip
    """Compare two traces.

    Parameters
    ----------
    reference, candidate : Trace
        The reference may itself be distributed.
    tolerance : Tolerance, optional
        From `estimate_tolerance`; without it every tensor may be off by 16 eps of the lowest type among the outputs.
    strict : bool
        Raise at the first replica conflict.
    allow_extra : bool
        Let the candidate have modules and parameters that the reference has not.
    include, exclude : sequence of str
        Patterns searched in names.
    resume : path, optional
        File of verdicts that is written along the way; what it holds is not compared again.
    coverage : Coverage, optional
        What the inputs touch; holes make a pass partial.
    stop_after : int, optional
        End after so many wrong tensors.

    Raises
    ------
    StepMismatch
        Steps, micro-batches or tokens differ.
    NotComparable
        Inputs or initial weights differ.
    UnmappedName
        The candidate has a name that the reference does not know.
    ReplicaConflict
        With ``strict``.

    Examples
    --------
    >>> import tempfile, torch
    >>> from assay.difftest import trace
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    >>> folders = [tempfile.mkdtemp(), tempfile.mkdtemp()]
    >>> for folder, factor in zip(folders, (1.0, 2.0)):
    ...     model.zero_grad()
    ...     with trace(model, folder):
    ...         (factor * model(torch.ones(2, 4)).sum()).backward()
    >>> result = compare(Trace.open(folders[0]), Trace.open(folders[1]))
    >>> result.findings[0].phase, result.findings[0].module, result.findings[0].kind
    ('gout', '1', 'scale')
    """
    from assay.difftest.diagnose import diagnose

    tolerance = tolerance or default_tolerance(reference)
    _check_steps(reference, candidate)
    names = _chosen(reference.names(), include, exclude)
    _check_names(reference, candidate, allow_extra)
    state = Comparison(reference, candidate, tolerance, strict)
    state.check_start(names)
    done = Resume(resume)
    for order, name in enumerate(names):
        verdict = done.get(name)
        if verdict is None:
            verdict = state.one(name, order)
            if verdict is not None:
                done.put(verdict)
        if verdict is not None:
            state.verdicts.append(verdict)
            if verdict.status == "wrong" and stop_after is not None:
                stop_after -= 1
                if stop_after <= 0:
                    break
    state.recompute(len(names))
    done.close()
    result = Result(
        [], sorted(state.verdicts, key=lambda v: v.order), state.absent, state.notes, state.flips,
        candidate.missing_ranks(), str(reference.folder), str(candidate.folder), coverage,
    )  # fmt: skip
    for rank in result.dead_ranks:
        result.notes.append(f"rank {rank} left no complete file; the others were compared")
    for file in candidate.files:
        result.notes += [n for n in file.notes if n not in result.notes]
    result.findings = diagnose(state, result)
    return result


def default_tolerance(reference: Trace) -> Tolerance:
    """16 eps of the lowest floating type among module outputs, for every tensor."""
    types = {eps_of(e.dtype) for f in reference.files for n, e in f.entries.items() if "/out/" in n and eps_of(e.dtype)}
    return Tolerance(eps=max(types, default=2.0**-23))


def _chosen(names: Sequence[str], include: Sequence[str], exclude: Sequence[str]) -> list[str]:
    kept = [n for n in names if not include or any(re.search(p, n) for p in include)]
    return [n for n in kept if not any(re.search(p, n) for p in exclude)]


def _check_steps(reference: Trace, candidate: Trace) -> None:
    if reference.steps != candidate.steps:
        raise StepMismatch(
            f"the reference has steps {reference.steps}, the candidate {candidate.steps}; trace the same steps"
        )
    for key, word in (("tokens", "tokens"), ("microbatches", "micro-batches"), ("seed", "seed")):
        a, b = reference.meta.get(key), candidate.meta.get(key)
        if a is not None and b is not None and a != b:
            raise StepMismatch(f"the reference has {a} {word} a step, the candidate {b}")
    counts = []
    for side in (reference, candidate):
        seen = {
            (n.step, n.microbatch)
            for n in map(Name.parse, side.names())
            if n.microbatch is not None and n.phase in ("in", "out")
        }
        counts.append(Counter(step for step, _ in seen))
    if counts[0] != counts[1] and counts[0] and counts[1]:
        step = next(s for s in counts[0] if counts[0][s] != counts[1].get(s))
        raise StepMismatch(
            f"step {step} has {counts[0][step]} micro-batches in the reference and {counts[1].get(step, 0)} in the "
            "candidate"
        )


def _check_names(reference: Trace, candidate: Trace, allow_extra: bool) -> None:
    if allow_extra:
        return
    from difflib import get_close_matches

    known_modules = {Name.parse(n).module for n in reference.names()}
    known_parameters = {Name.parse(n).parameter for n in reference.names() if "/param/" in n}
    for name in candidate.names():
        n = Name.parse(name)
        if (
            n.phase in ("param", "param_after", "grad", "main_grad")
            and n.parameter not in known_parameters
            and known_parameters
        ):
            near = get_close_matches(n.parameter, sorted(known_parameters), n=3, cutoff=0.4)
            hint = f"did you mean {', '.join(near)}?" if near else "add a name rule, or (pattern, None) to leave it out"
            raise UnmappedName(f"the candidate's parameter {n.parameter!r} is not in the reference; {hint}")
        if n.phase in ("in", "out") and n.module not in known_modules:
            near = get_close_matches(n.module, sorted(known_modules), n=3, cutoff=0.4)
            hint = f"did you mean {', '.join(near)}?" if near else "add a name rule, or (pattern, None) to leave it out"
            raise UnmappedName(f"the candidate's module {n.module!r} is not in the reference; {hint}")
