"""The bugs and the correct configurations, run and judged."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from assay.difftest.check import Result, compare
from assay.difftest.store import Trace
from assay.difftest.tensors import coverage
from assay.difftest.testbed.bugs import BUGS, Bug
from assay.difftest.testbed.config import Config, Layout
from assay.difftest.testbed.launch import launch, reference_tolerance, routing_of, run_reference
from assay.difftest.testbed.pool import Pool
from assay.difftest.tolerance import Tolerance

MOE = {"experts": 8, "ffn": 64}


@dataclass
class Case:
    """One comparison of the test bed."""

    result: Result
    loss: float
    reference_loss: float
    seconds: float
    tolerance: Tolerance


@dataclass
class References:
    """References and tolerances by configuration, made once."""

    folder: Path
    known: dict[Config, tuple[Trace, Tolerance]] = field(default_factory=dict)

    def get(self, config: Config, **options: Any) -> tuple[Trace, Tolerance]:
        """Trace and tolerance of a configuration."""
        if config not in self.known:
            reference = run_reference(config, self.folder / f"reference{len(self.known)}")
            self.known[config] = (reference, reference_tolerance(config, reference, **options))
        return self.known[config]

    def forget(self) -> None:
        """Drop them and their files."""
        import shutil

        for trace, _ in self.known.values():
            shutil.rmtree(trace.folder, ignore_errors=True)
        self.known.clear()


def total_loss(trace: Trace, step: int = 0) -> float:
    """Loss of a step from the marks of its micro-batches."""
    names = [n for n in trace.names() if n.startswith(f"{step}/") and "/loss/model/" in n]
    return float(sum(float(t) for n in names if (t := trace.merged(n, ()).tensor) is not None))


def compare_case(
    config: Config, layout: Layout, folder: Path, *, bug: int | None = None, pool: Pool | None = None, **options: Any
) -> Case:
    """Reference, tolerances, candidate, comparison; the traces and ``tolerance.json`` stay in ``folder``."""
    layout.check(config)
    started = time.perf_counter()
    reference = run_reference(config, folder / "reference")
    tolerance = reference_tolerance(config, reference)
    tolerance.save(folder / "tolerance.json")
    candidate = launch(config, layout, folder / "candidate", bug=bug, reference=reference.folder, pool=pool, **options)
    experts: dict[str, torch.Tensor] = {}
    for key, chosen in routing_of(reference).items():
        layer = key.split("/")[0]
        experts[layer] = torch.cat([experts[layer], chosen]) if layer in experts else chosen
    reached = coverage(
        config.data(), vocab=config.vocab, tp=layout.tp, cp=layout.cp, dp=layout.dp, experts=experts or None,
        n_experts=config.experts,
    )  # fmt: skip
    result = compare(reference, candidate, tolerance, coverage=reached)
    return Case(result, total_loss(candidate), total_loss(reference), time.perf_counter() - started, tolerance)


@dataclass
class Outcome:
    """How a case was judged.

    Attributes
    ----------
    key : str
    bug : int
        0 for a correct configuration.
    found : bool
    module, kind, diagnosis : bool
        The first finding names the right tensor; the right class; an accepted diagnosis.
    findings : int
    first, said : str
    seconds : float
    error : str
    """

    key: str
    bug: int
    found: bool
    module: bool
    kind: bool
    diagnosis: bool
    findings: int
    first: str
    said: str
    seconds: float
    error: str = ""


def judge(bug: Bug, result: Result) -> tuple[bool, bool, bool]:
    """(right first tensor, right class, accepted diagnosis)."""
    if not result.findings:
        return False, False, False
    first = result.findings[0]
    place = "/".join(first.name.split("/")[2:])
    return re.match(bug.first, place) is not None, first.category == bug.kind, first.kind in bug.diagnoses


def case_key(config: Config, layout: Layout, bug: int = 0) -> str:
    """Name of a case in a file of results."""
    what = f"bug {bug}" if bug else "correct"
    return f"{what} {layout} {config.dtype}{' moe' if config.experts else ''} seed {config.seed}"


def run_case(
    config: Config, layout: Layout, references: References, *, bug: int = 0, pool: Pool | None = None
) -> Outcome:
    """One case, judged."""
    key = case_key(config, layout, bug)
    started = time.perf_counter()
    try:
        reference, tolerance = references.get(config)
        with tempfile.TemporaryDirectory(dir=references.folder) as out:
            candidate = launch(config, layout, out, bug=bug or None, reference=reference.folder, pool=pool)
            result = compare(reference, candidate, tolerance)
    except Exception as error:
        return Outcome(
            key,
            bug,
            False,
            False,
            False,
            False,
            0,
            "",
            "",
            time.perf_counter() - started,
            f"{type(error).__name__}: {error}",
        )
    good = judge(BUGS[bug], result) if bug else (False, False, False)
    first = result.findings[0] if result.findings else None
    return Outcome(
        key, bug, first is not None, *good, len(result.findings), first.name if first else "",
        f"{first.kind} ({first.category})" if first else "", time.perf_counter() - started,
    )  # fmt: skip


def grid(
    *, seeds: Iterable[int] = range(3), dtypes: Iterable[str] = ("fp32", "bf16", "fp8")
) -> list[tuple[Config, Layout]]:
    """Correct configurations: every axis, pairs and triples of them, in three precisions and three seeds."""
    # three networks, so that many layouts share a reference: plain; with all that is optional; with experts
    rich = {"tied": True, "sinks": True, "smoothing": 0.1, "dropout": 0.1, "vocab": 509}
    layouts: list[tuple[Layout, dict[str, Any]]] = [
        *((layout, {"kv_heads": 4}) for layout in (
            Layout(tp=2), Layout(tp=2, sp=True), Layout(tp=4, sp=True), Layout(dp=2, zero=True), Layout(cp=2),
            Layout(cp=4), Layout(pp=2), Layout(tp=2, recompute="layer"), Layout(tp=2, dp=2, zero=True, sp=True),
            Layout(dp=2, fsdp=True),
        )),
        *((layout, rich) for layout in (
            Layout(pp=2, vpp=2), Layout(tp=2, cp=2), Layout(pp=2, tp=2, sp=True), Layout(dp=2, cp=2, zero=True),
            Layout(cp=2, cp_kind="gather"),
        )),
        *((layout, MOE) for layout in (Layout(tp=2, sp=True), Layout(dp=2, ep=2), Layout(tp=2, dp=2, ep=2, sp=True))),
    ]  # fmt: skip
    base = {"width": 64, "ffn": 128, "seq": 32}
    cases = []
    for dtype in dtypes:
        for seed in seeds:
            cases += [(Config(dtype=dtype, seed=seed, **{**base, **changes}), layout) for layout, changes in layouts]
    # those of one configuration follow each other and share its reference
    places = {config: i for i, (config, _) in reversed(list(enumerate(cases)))}
    cases.sort(key=lambda case: places[case[0]])
    return cases


def _kept(path: Path | None) -> dict[str, Outcome]:
    known: dict[str, Outcome] = {}
    if path is not None and path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                outcome = Outcome(**json.loads(line))
            except (json.JSONDecodeError, TypeError):
                continue
            known[outcome.key] = outcome
    return known


def _keep(path: Path | None, outcome: Outcome) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
            file.flush()
            os.fsync(file.fileno())


def run_bugs(
    numbers: Iterable[int] | None = None, *, out: Path | None = None, echo: Callable[[str], Any] = print, seed: int = 0
) -> int:
    """Every bug in the smallest layout that shows it; 0 if at least 24 of 26 are located and 22 classified."""
    chosen = list(numbers or BUGS)
    known = _kept(out)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder, Pool(2) as pool:
        references = References(Path(folder))
        for number in chosen:
            bug = BUGS[number]
            config = bug.settings(seed=seed)
            key = case_key(config, bug.layout, number)
            outcome = known.get(key)
            if outcome is None:
                outcome = run_case(config, bug.layout, references, bug=number, pool=pool)
                _keep(out, outcome)
            outcomes.append(outcome)
            words = "located" if outcome.module else "found elsewhere" if outcome.found else "missed"
            kind = ", kind right" if outcome.kind else ", kind wrong" if outcome.found else ""
            echo(
                f"bug {number:2d} {words}{kind}: {outcome.first or outcome.error} {outcome.said} "
                f"({outcome.seconds:.1f} s)"
            )
    n = len(outcomes)
    located, kinds, said = (sum(getattr(o, k) for o in outcomes) for k in ("module", "kind", "diagnosis"))
    echo(
        f"{sum(o.found for o in outcomes)} of {n} found, {located} located, {kinds} of the right kind, {said} diagnosed"
    )
    return 0 if located >= 24 / 26 * n and kinds >= 22 / 26 * n else 1


def run_grid(
    *, seeds: Iterable[int] = range(3), dtypes: Iterable[str] = ("fp32", "bf16", "fp8"), out: Path | None = None,
    echo: Callable[[str], Any] = print, limit: int | None = None,
) -> int:  # fmt: skip
    """The correct configurations; 0 if nothing is found in any. ``limit``: most that are run anew."""
    known = _kept(out)
    outcomes = []
    fresh = 0
    with tempfile.TemporaryDirectory() as folder, Pool(2) as pool:
        references = References(Path(folder))
        before: Config | None = None
        for config, layout in grid(seeds=seeds, dtypes=dtypes):
            if before is not None and before != config:
                references.forget()
            before = config
            key = case_key(config, layout)
            outcome = known.get(key)
            if outcome is None and limit is not None and fresh >= limit:
                continue
            if outcome is None:
                fresh += 1
                outcome = run_case(config, layout, references, pool=pool)
                _keep(out, outcome)
            outcomes.append(outcome)
            if outcome.findings or outcome.error:
                echo(f"{key}: {outcome.findings} findings, first {outcome.first} {outcome.said} {outcome.error}")
    false = sum(bool(o.findings) for o in outcomes)
    failed = sum(bool(o.error) for o in outcomes)
    echo(f"{len(outcomes)} correct configurations: {false} with findings, {failed} did not run")
    return 0 if not false and not failed else 1
