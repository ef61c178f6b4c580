"""The report: one HTML page that needs nothing but a browser.

Everything that is shown stands in the page itself: figures as tables, charts as Vega-Lite specifications with the
JavaScript that draws them, the table of runs as JSON. Names come from users; they are escaped by the template, and in
JSON every ``<`` is written as an escape. The content security policy of the page forbids other scripts and any loading.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import math
import os
import uuid
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.errors import AssayError, StoreError
from assay.core.report import charts, tables
from assay.core.report.runs import POINTS, TRACEBACK_CHARACTERS, environment, runs_table, to_json

if TYPE_CHECKING:
    from assay.core.benchmark import Metric
    from assay.core.results import Results
    from assay.core.results.outcomes import Leaderboard, Ranks
    from assay.core.run import RunRecord

MAX_CURVE_CHARTS = 24
MAX_PANELS = 10
MAX_FAILURES = 100
MAX_HEAT_METHODS = 60


def write_report(path: str | Path, results: Sequence[Results], title: str | None = None) -> Path:
    """Write one self-contained page about the results of one or more benchmarks.

    The page holds at most 20,000 runs of a benchmark (failed ones, then those of the lowest seeds), details of 2,000 of
    them and 150,000 points of their curves, and says so where it leaves something out. Leaderboards and tests are
    always over all runs.

    Parameters
    ----------
    path : path
        The file; its folder is made. Written to a temporary name and renamed.
    results : sequence of Results
    title : str, optional
        Default: the title of the benchmark.

    Returns
    -------
    Path

    Raises
    ------
    AssayError
        If there is nothing to report on.
    StoreError
        If the file cannot be written.
    """
    if not results:
        raise AssayError("a report needs the results of at least one benchmark")
    if not any(len(r) for r in results):
        raise AssayError(results[0].empty_message)
    text = render(results, title)
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(text.encode("utf-8", "replace"))
        os.replace(temporary, target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"cannot write the report {target}: {error.strerror or error}") from error
    return target


def render(results: Sequence[Results], title: str | None = None) -> str:
    """The page as text."""
    import jinja2
    from markupsafe import Markup

    specs: list[charts.Spec] = []
    sections = [_section(r, f"b{i}", specs) for i, r in enumerate(results)]
    bundle, script = _bundle(), _file("page.js")
    allowed = " ".join(f"'sha256-{_hash(text)}'" for text in (bundle, script))
    policy = (
        f"default-src 'none'; script-src 'unsafe-eval' {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    benchmarks = [r.benchmark for r in results]
    default = benchmarks[0].title or benchmarks[0].name
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["prose"] = lambda text: text.replace("p = ", "p\u00a0=\u00a0").replace("p < ", "p\u00a0<\u00a0")
    return environment.from_string(_file("page.html.jinja")).render(
        title=title or (default if len(results) == 1 else f"Results of {len(results)} benchmarks"),
        lead=benchmarks[0].description if len(results) == 1 else "",
        facts=_facts(results),
        sections=sections,
        policy=policy,
        css=Markup(_file("page.css")),
        charts=to_json(specs),
        bundle=Markup(bundle),
        script=Markup(script),
        version=_version(),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


# -- the parts of a page ---------------------------------------------------------------------------------------------


def _section(results: Results, name: str, specs: list[charts.Spec]) -> dict[str, Any]:
    benchmark = results.benchmark
    section: dict[str, Any] = {
        "id": name,
        "title": benchmark.title or benchmark.name,
        "description": benchmark.description,
        "runs": len(results),
        "failed": len(results.failed_keys),
        "parts": [],
        "panels": [],
    }
    if not len(results):
        section |= {"verdict": results.empty_message, "summary": "No runs.", "provenance": None}
        section["panels"] = [
            {"id": f"{name}-m0", "heading": "", "verdict": results.empty_message, "notes": [], "rows": []}
        ]
        return section
    section["summary"] = _summary(results)
    known = [metric for metric in benchmark.metrics.values() if results.cells.scores(metric).n.any()] or [
        benchmark.metric
    ]
    panels = enumerate(known[:MAX_PANELS])
    section["panels"] = [_panel(results, metric, f"{name}-m{i}", specs) for i, metric in panels]
    section["more_metrics"] = "; ".join(metric.title for metric in known[MAX_PANELS:])
    section["verdict"] = section["panels"][0]["verdict"]
    section |= _curves(results, section["panels"][0]["order"], specs)
    section |= _failures(results)
    section |= runs_table(results)
    section["provenance"] = _provenance(results, section.pop("records"))
    first = section["panels"][0]
    parts = {
        "verdict": "Verdict", "leaderboard": first["rows"] and "Leaderboard", "tasks": first["heat"] and "Tasks",
        "ranks": first["ranks"] and "Ranks", "cost": first["cost_chart"] is not None and "Seconds",
        "curves": section["curves"] and "Curves", "failures": section["failures"] and "Failures", "runs": "Runs",
        "provenance": "Provenance",
    }  # fmt: skip
    section["parts"] = [{"id": part, "title": words} for part, words in parts.items() if words]
    return section


def _panel(results: Results, metric: Metric, name: str, specs: list[charts.Spec]) -> dict[str, Any]:
    board = results.leaderboard(metric.name)
    panel: dict[str, Any] = {
        "id": name,
        "heading": tables.metric_heading(metric),
        "order": [row.method for row in board.rows],
        "verdict": board.verdict,
        "notes": [{"text": note, "bad": "failed" in note} for note in board.notes],
        "heat": None,
        "ranks": None,
        "no_ranks": "",
        "board_chart": None,
        "cost_chart": None,
    }
    panel |= _board(board)
    if not any(row.rank for row in board.rows):
        return panel
    cells = results.cells
    dots = charts.dots_of(cells.methods, cells.m, cells.scores(metric).values) if len(board.tasks) == 1 else []
    panel["board_chart"] = _add(specs, charts.leaderboard_chart(board, dots))
    left = sum(row.rank is not None for row in board.rows) - charts.MAX_METHODS
    panel["board_note"] = "Dots are means, lines their 95% intervals" + (", ticks single runs." if dots else ".")
    if left > 0:
        panel["board_note"] += f" The best {charts.MAX_METHODS} are drawn; {left} more are in the table."
    if len(board.tasks) > 1:
        panel["heat"] = _heat(results, board, metric)
        try:
            panel["ranks"] = _ranks(results.ranks(metric.name), specs)
        except AssayError as error:
            panel["no_ranks"] = f"No ranks over tasks: {error}."
    panel["cost_chart"] = _add(specs, charts.cost_chart(board))
    return panel


def _board(board: Leaderboard) -> dict[str, Any]:
    several = len(board.tasks) > 1
    methods = board.benchmark.methods
    columns = [
        ("", "num"),
        ("method", "name"),
        ("mean", "num mean"),
        ("95% interval", "num"),
        ("against the first", "against"),
    ]
    columns += [("mean rank", "num")] if several else []
    columns += [("runs", "num"), ("failed", "num"), ("seconds", "num")]
    rows = []
    for row in board.rows:
        tags = []
        known = methods.get(row.method)
        if known is not None and known.baseline:
            tags.append({"text": "baseline", "bad": False, "title": ""})
        if row.gaps:
            tags.append({"text": "incomplete", "bad": True, "title": "; ".join(map(str, row.gaps))})
        texts = [
            tables.UNKNOWN if row.rank is None else str(row.rank),
            row.method,
            tables.value_text(row.mean, board.metric),
            tables.interval_text(row.low, row.high, board.metric),
            tables.against_first(row),
        ]
        texts += [tables.value_text(row.mean_rank, ".2f")] if several else []
        texts += [str(row.runs), str(row.failed), tables.seconds_text(row.wall_seconds)]
        styles = [cls for _, cls in columns]
        if row.failed:
            styles[-2] += " bad"
        cells = [
            {"text": text, "cls": cls, "tags": tags if j == 1 else []}
            for j, (text, cls) in enumerate(zip(texts, styles))
        ]
        rows.append({"cells": cells, "leading": row.rank is not None and row.apart is False})
    where = f"the task {board.tasks[0]}" if not several else f"{len(board.tasks)} tasks"
    return {
        "columns": [{"title": title, "cls": cls} for title, cls in columns],
        "rows": rows,
        "caption": f"Mean over {where}, best first. Bold: the first, and what is not told apart from it. "
        "P-values are adjusted after Holm.",
    }


def _heat(results: Results, board: Leaderboard, metric: Metric) -> dict[str, Any]:
    scores = results.table(metric.name)
    order = [results.methods.index(row.method) for row in board.rows][:MAX_HEAT_METHODS]
    rows = []
    for t, task in enumerate(scores.tasks):
        signed = scores.mean[t] if metric.higher_is_better else -scores.mean[t]
        there = signed[~np.isnan(signed)]
        low, span = (float(there.min()), float(np.ptp(there))) if len(there) else (0.0, 0.0)
        cells: list[dict[str, Any]] = []
        for m in order:
            mean, half = float(scores.mean[t, m]), float(scores.high[t, m] - scores.low[t, m]) / 2
            failed = int(scores.failed[t, m])
            if math.isnan(mean):
                cells.append(
                    {
                        "none": True,
                        "text": tables.UNKNOWN,
                        "under": [f"{failed} failed" if failed else ""],
                        "best": False,
                    }
                )
                continue
            under = "" if math.isnan(half) else f"± {half:{metric.format}}"
            shade = (signed[m] - low) / span if span else 1.0
            best = scores.apart[t, m] == 0
            text = tables.value_text(mean, metric)
            lines = [under, f"{failed} failed" if failed else ""]
            cells.append({"none": False, "text": text, "under": lines, "best": best, "shade": f"{shade:.3f}"})
        rows.append({"task": task, "cells": cells})
    left = len(results.methods) - len(order)
    note = f"{left} methods further down the leaderboard are not shown." if left > 0 else ""
    untested = int(np.count_nonzero((scores.apart < 0) & (scores.n > 0)))
    if untested:
        note += f" In {untested} of {np.count_nonzero(scores.n)} cells there are too few seeds to tell."
    return {"methods": [scores.methods[m] for m in order], "rows": rows, "note": note}


def _ranks(ranks: Ranks, specs: list[charts.Spec]) -> dict[str, Any]:
    small = len(ranks.methods) <= 20
    wins = [
        {
            "method": a,
            "cells": [
                tables.UNKNOWN if i == j else "·".join(map(str, ranks.wins[i, j])) for j in range(len(ranks.methods))
            ],
        }
        for i, a in enumerate(ranks.methods)
    ]
    return {
        "text": str(ranks), "left_out": ", ".join(ranks.left_out), "chart": _add(specs, charts.rank_chart(ranks)),
        "methods": ranks.methods, "wins": wins if small else None,
    }  # fmt: skip


def _curves(results: Results, order: list[str], specs: list[charts.Spec]) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    left = 0
    metrics = results.benchmark.metrics
    colours = charts.palette(results.methods)
    for task in results.tasks:
        for name in results.curve_names(task):
            if len(found) == MAX_CURVE_CHARTS:
                left += 1
                continue
            curves = results.curves(name, task, points=POINTS)
            y_title = metrics[name].title if name in metrics else name
            chart = _add(specs, charts.curve_chart(curves, order, colours, y_title))
            found.append({"chart": chart, "label": f"{name}, {task}"})
    note = f"The {charts.MAX_LINES} best methods are drawn." if len(order) > charts.MAX_LINES else ""
    note += f" {left} more curves were kept by the runs and are not on this page." if left else ""
    return {"curves": found, "curve_note": note.strip()}


def _failures(results: Results) -> dict[str, Any]:
    columns = results.columns
    at = np.flatnonzero(results.cells.failed)
    groups: dict[tuple[str, str, str], list[int]] = {}
    for i in at:
        key = (columns["method"][i], columns["task"][i], str(columns["failure"][i] or ""))
        groups.setdefault(key, []).append(int(i))
    found = []
    for (method, task, message), members in list(groups.items())[:MAX_FAILURES]:
        record = results.store.read(results.benchmark.name, str(columns["key"][members[0]]))
        failure = record.failure if record is not None else None
        seeds = [str(columns["seed"][i]) for i in members]
        more = f" and {len(seeds) - 20} more" if len(seeds) > 20 else ""
        found.append(
            {
                "method": method,
                "task": task,
                "seeds": f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds[:20])}{more}",
                "message": f"{failure.type}: {message}" if failure else message,
                "traceback": failure.traceback[-TRACEBACK_CHARACTERS:] if failure else "",
            }
        )
    text = f"{len(at)} of {len(results)} runs failed."
    if len(groups) > len(found):
        text += f" {len(found)} kinds of {len(groups)} are shown."
    elif len(found) < len(at):
        text += " Those of one method on one task with one message are shown together, with the traceback of the first."
    return {"failures": found, "failure_text": text}


def _provenance(results: Results, records: Sequence[RunRecord]) -> dict[str, Any]:
    environments = Counter(tuple(environment(record).items()) for record in records)
    rows = [dict(key) | {"runs": count} for key, count in environments.most_common(20)]
    said = []
    if len(environments) > 1:
        said.append(f"The runs were made in {len(environments)} environments; see whether they may be compared.")
    columns = results.columns
    tasks = []
    for t, task in enumerate(results.tasks):
        prints = sorted({str(f) for f in columns["data"][results.cells.t == t] if f})
        if len(prints) > 1:
            said.append(f"Runs on {task} saw {len(prints)} different data.")
        known = results.benchmark.tasks.get(task)
        tasks.append(
            {
                "name": task,
                "title": known.title if known else "",
                "fingerprint": ", ".join(p[:16] for p in prints) or tables.UNKNOWN,
                "licence": (known.licence if known else "") or tables.UNKNOWN,
                "citation": (known.citation if known else "") or tables.UNKNOWN,
            }
        )
    some = "" if len(records) == len(results) else f", from the {len(records)} runs that can be opened on this page"
    return {
        "environments": rows, "tasks": tasks, "warnings": said,
        "caption": f"Protocol version {results.benchmark.version} of {results.benchmark.name}{some}",
    }  # fmt: skip


# -- facts -----------------------------------------------------------------------------------------------------------


def _facts(results: Sequence[Results]) -> list[tuple[str, str]]:
    full = [r for r in results if len(r)]
    runs, failed = sum(map(len, full)), sum(len(r.failed_keys) for r in full)
    compared = [_count(sum(len(r.methods) for r in full), "method"), _count(sum(len(r.tasks) for r in full), "task")]
    if len(full) == 1:
        compared.append(_count(len(set(full[0].columns["seed"].tolist())), "seed"))
    else:
        compared.insert(0, _count(len(full), "benchmark"))
    last = full[0].store.read(full[0].benchmark.name, str(full[0].columns["key"][-1]))
    facts = [
        ("Compared", ", ".join(compared)),
        ("Runs", f"{runs:,}" + (f", {failed:,} of them failed" if failed else "")),
        ("When", _when(full)),
        ("Work", _duration(sum(float(np.nansum(r.columns["wall_seconds"])) for r in full))),
    ]
    if last is not None:
        place = environment(last)
        facts += [("Machine", place["machine"]), ("Versions", f"Python {place['python']}, {place['packages']}")]
    return facts


def _summary(results: Results) -> str:
    failed = len(results.failed_keys)
    parts = [
        _count(len(results.methods), "method"), _count(len(results.tasks), "task"), f"{_count(len(results), 'run')}",
        f"{failed} failed" if failed else "", _when([results]),
    ]  # fmt: skip
    return ", ".join(part for part in parts if part)


def _when(results: Sequence[Results]) -> str:
    days = sorted(str(s)[:10] for r in results for s in r.columns["started"] if s)
    if not days:
        return tables.UNKNOWN
    return days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} seconds of runs"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes of runs"
    return f"{seconds / 3600:,.1f} hours of runs"


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


# -- pieces of text --------------------------------------------------------------------------------------------------


def _add(specs: list[charts.Spec], spec: charts.Spec) -> int:
    specs.append(spec)
    return len(specs) - 1


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@lru_cache(maxsize=1)
def _bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script."""
    import vl_convert

    text: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub lacks the default
    return text


@lru_cache(maxsize=8)
def _file(name: str) -> str:
    return resources.files("assay.core.report").joinpath(name).read_text(encoding="utf-8")


def _version() -> str:
    try:
        return importlib.metadata.version("assay")
    except importlib.metadata.PackageNotFoundError:
        return ""
