"""Reports of a comparison: terminal, JSON, HTML, JUnit."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from assay.difftest.check import Result, Verdict
from assay.difftest.names import Name
from assay.difftest.writer import write_text

PHASE_ORDER = (
    "param",
    "in",
    "out",
    "mark",
    "loss",
    "gout",
    "gin",
    "grad",
    "main_grad",
    "gnorm",
    "optim",
    "param_after",
)


def summary(result: Result, *, limit: int = 8) -> str:
    """The outcome in words.

    Parameters
    ----------
    result : Result
    limit : int
        Findings shown in full.
    """
    compared = [v for v in result.verdicts if v.status != "left out"]
    lines = [f"{result.verdict}: {len(compared)} tensors compared, {sum(v.status == 'wrong' for v in compared)} wrong"]
    roots = [f for f in result.findings if not f.consequence]
    for i, f in enumerate(roots[:limit]):
        head = "first wrong" if i == 0 else "also"
        ranks = f", ranks {list(f.ranks)}" if f.ranks else ""
        lines += [f"{head}: {f.name}{ranks}", f"  {f.kind} ({f.category}, confidence {f.confidence:.0%})"]
        lines += [f"  - {e}" for e in f.evidence]
    rest = len(result.findings) - len(roots[:limit])
    if rest > 0:
        lines.append(f"{rest} more findings follow from these")
    if result.ok and compared:
        worst = max(compared, key=lambda v: v.excess)
        lines.append(f"closest to its tolerance: {worst.name}, {worst.relative:.3g} of {worst.tolerance:.3g}")
    if result.not_compared:
        lines.append(
            f"{len(result.not_compared)} tensors of the reference were not compared, first {result.not_compared[0]}"
        )
    if result.flips:
        lines.append(f"{sum(f.legal for f in result.flips)} routing choices flipped at near ties")
    if result.coverage is not None:
        lines += [f"not reached by the inputs: {k} ({v})" for k, v in result.coverage.holes.items()]
    lines += [f"note: {n}" for n in result.notes[:10]]
    return "\n".join(lines)


def floors_table(result: Result, *, top: int = 20) -> list[tuple[str, float, float]]:
    """(name, detection floor, error) of the tensors in which the largest effects could hide, worst first."""
    kept = [v for v in result.verdicts if v.status != "left out" and math.isfinite(v.floor) and v.reason != "exact"]
    kept.sort(key=lambda v: -v.floor)
    return [(v.name, v.floor, v.relative) for v in kept[:top]]


def save_json(result: Result, path: str | Path) -> Path:
    """Everything as JSON."""
    return write_text(Path(path), json.dumps(_finite(result.to_json()), indent=1))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


def save_junit(result: Result, path: str | Path, *, name: str = "difftest") -> Path:
    """One test case a module and phase; a failure holds the finding."""
    groups: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for v in result.verdicts:
        n = Name.parse(v.name)
        groups[n.module, n.phase].append(v)
    findings: dict[tuple[str, str], Any] = {}
    for f in result.findings:
        findings.setdefault((f.module, f.phase), f)
    keys = list(dict.fromkeys([*groups, *findings]))
    suite = ElementTree.Element(
        "testsuite", name=name, tests=str(len(keys)), failures=str(len(findings)), errors="0",
        skipped=str(sum(all(v.status == "left out" for v in groups.get(k, [])) and k in groups for k in keys)),
    )  # fmt: skip
    for module, phase in keys:
        case = ElementTree.SubElement(suite, "testcase", classname=f"{name}.{module}", name=phase)
        finding = findings.get((module, phase))
        verdicts = groups.get((module, phase), [])
        if finding is not None:
            kind = "consequence" if finding.consequence else finding.kind
            failure = ElementTree.SubElement(case, "failure", type=kind, message=_printable(str(finding)))
            failure.text = _printable("\n".join(finding.evidence))
        elif verdicts and all(v.status == "left out" for v in verdicts):
            ElementTree.SubElement(case, "skipped", message=_printable(verdicts[0].note))
    text = ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)
    return write_text(Path(path), text)


def _printable(text: str) -> str:
    return "".join(c if c >= " " or c in "\n\t" else "?" for c in text)


def gate(result: Result, *, junit: str | Path | None = None, allow_partial: bool = True) -> int:
    """Exit code for continuous integration: 0 nothing found, 1 a finding; 2 is for comparisons that are not valid.

    Parameters
    ----------
    result : Result
    junit : path, optional
        File to write.
    allow_partial : bool
        Whether ``PASS (partial)`` passes; if not, it gives 2.

    Examples
    --------
    >>> gate(Result([], []))
    0
    >>> gate(Result([], [], not_compared=["0/0/out/a/0"]), allow_partial=False)
    2
    """
    if junit is not None:
        save_junit(result, junit)
    if result.findings:
        return 1
    return 2 if result.partial and not allow_partial else 0


def excess_by_module(result: Result) -> tuple[list[str], list[str], dict[tuple[str, str], float]]:
    """Modules in order of execution, phases, and the largest error over tolerance of each pair."""
    modules: list[str] = []
    phases: list[str] = []
    worst: dict[tuple[str, str], float] = {}
    for v in result.verdicts:
        n = Name.parse(v.name)
        phase = "optim" if n.phase.startswith("optim.") else n.phase
        if v.status == "left out":
            continue
        if n.module not in modules:
            modules.append(n.module)
        if phase not in phases:
            phases.append(phase)
        value = max(v.excess, 10.0 if v.status == "wrong" else 0.0)
        worst[n.module, phase] = max(worst.get((n.module, phase), 0.0), min(value, 1e6))
    places = {p: i for i, p in enumerate(PHASE_ORDER)}
    phases.sort(key=lambda p: places.get(p.split("+")[0], 99))
    ran = [
        Name.parse(v.name).module for v in result.verdicts if Name.parse(v.name).phase in ("in", "out", "gin", "gout")
    ]
    first = {module: i for i, module in reversed(list(enumerate(ran)))}
    modules.sort(key=lambda m: (m == "model", first.get(m, len(ran))))
    return modules, phases, worst
