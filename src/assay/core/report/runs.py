"""The table of runs of the report page, as JSON that a script of the page reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.report import charts, tables
from assay.core.results import kept

if TYPE_CHECKING:
    from assay.core.results import Results
    from assay.core.run import RunRecord

MAX_RUNS = 20_000
MAX_DETAILS = 2_000
MAX_CURVE_POINTS = 150_000
TRACEBACK_CHARACTERS = 8_000
POINTS = 80


def runs_table(results: Results) -> dict[str, Any]:
    """The table of runs as JSON: columns for all, details for some, repeated texts once."""
    columns, cells, metrics = results.columns, results.cells, list(results.benchmark.metrics.values())
    # Where not all fit, failed runs come first, then the lowest seeds: every cell keeps some.
    by_need = np.lexsort((np.arange(len(results)), columns["seed"], ~cells.failed))
    chosen = np.sort(by_need[:MAX_RUNS])
    detailed = set(by_need[:MAX_DETAILS].tolist())
    statuses = ["ok", "failed", "skipped"]
    shared = {kind: _Shared() for kind in ("params", "warnings", "artifacts", "environments", "fingerprints")}
    details: list[dict[str, Any] | None] = []
    records: list[RunRecord] = []
    room = [MAX_CURVE_POINTS]
    without_curves = 0
    for i in chosen:
        key = str(columns["key"][i])
        record = results.store.read(results.benchmark.name, key) if int(i) in detailed else None
        if record is None:
            details.append(None)
            continue
        records.append(record)
        detail = _detail(record, shared)
        curves = _run_curves(results, key, room) if "curves.json" in record.artifacts else []
        detail["curves"] = curves or []
        detail["curves_left_out"] = curves is None
        without_curves += curves is None
        details.append(detail)
    data = {
        "tasks": results.tasks, "methods": results.methods, "statuses": statuses,
        "task": cells.t[chosen].tolist(), "method": cells.m[chosen].tolist(), "seed": columns["seed"][chosen].tolist(),
        "status": [statuses.index(s) for s in columns["status"][chosen]],
        "seconds": [charts.number(v, 4) for v in columns["wall_seconds"][chosen]],
        "metrics": [
            {
                "heading": tables.metric_heading(metric), "format": metric.format,
                "values": [charts.number(v) for v in cells.scores(metric).values[chosen]],
            }
            for metric in metrics
        ],
        "details": details, **{kind: table.values for kind, table in shared.items()},
    }  # fmt: skip
    notes = []
    if len(chosen) < len(results):
        notes.append(
            f"{len(chosen)} of {len(results)} runs are in this table: failed ones, then those of the lowest seeds."
        )
    if len(records) < len(chosen):
        notes.append(f"{len(records)} can be opened in full.")
    if without_curves:
        notes.append(f"Curves of {without_curves} runs are left out to keep the page small.")
    return {"table": to_json(data), "run_note": " ".join(notes), "records": records}


def _detail(record: RunRecord, shared: dict[str, _Shared]) -> dict[str, Any]:
    failure = record.failure
    return {
        "key": record.key, "started": record.started, "cpu": charts.number(record.cpu_seconds, 4) or 0.0,
        "memory": record.peak_memory_bytes,
        "params": shared["params"].add(record.params), "task_params": shared["params"].add(record.task_params),
        "data": shared["fingerprints"].add(record.data_fingerprint),
        "environment": shared["environments"].add(environment(record)),
        "warnings": [shared["warnings"].add(text) for text in record.warnings],
        "artifacts": shared["artifacts"].add(record.artifacts),
        "failure": failure and {
            "type": failure.type, "message": failure.message, "traceback": failure.traceback[-TRACEBACK_CHARACTERS:],
        },
    }  # fmt: skip


def _run_curves(results: Results, key: str, room: list[int]) -> list[dict[str, Any]] | None:
    """Curves of a run, thinned; None if the page has no room left for them."""
    found = []
    for name, curve in kept.read_curves(results.store.run_folder(results.benchmark.name, key)).items():
        x, y = kept.ordered(curve["x"], curve["y"])
        if not len(x):
            continue
        at = kept.thinned(x, POINTS)
        if len(at) > room[0]:
            return None
        room[0] -= len(at)
        found.append(
            {
                "name": name,
                "x_label": curve.get("x_label", "step"),
                "x": [charts.number(v, 5) for v in x[at]],
                "y": [charts.number(v, 4) for v in y[at]],
            }
        )
    return found


class _Shared:
    """Values that many runs have in common, each kept once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._index: dict[str, int] = {}

    def add(self, value: Any) -> int:
        text = json.dumps(value, sort_keys=True, default=str)
        if text not in self._index:
            self._index[text] = len(self.values)
            self.values.append(value)
        return self._index[text]


def environment(record: RunRecord) -> dict[str, str]:
    """Machine and versions of a run, as texts."""
    p = record.provenance
    parts = [p.platform, p.processor, f"{p.cores} cores" if p.cores else ""]
    return {
        "machine": ", ".join(part for part in parts if part),
        "python": p.python,
        "packages": ", ".join(f"{name} {version}" for name, version in sorted(p.versions.items())),
        "device": p.device,
    }


def to_json(value: Any) -> Any:
    """JSON that may stand in a script element: nothing in it can end the element or begin a comment."""
    from markupsafe import Markup

    text = json.dumps(value, separators=(",", ":"), allow_nan=False, default=str)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
