"""The report as one HTML page with nothing to load: timeline of error over tolerance, heat maps, evidence."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from assay.difftest.check import Result, Verdict
from assay.difftest.names import Name
from assay.difftest.report import excess_by_module, floors_table
from assay.difftest.store import Trace
from assay.difftest.writer import write_text


def render(result: Result) -> str:
    """The page as text. What comes from traces is escaped."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    roots = [f for f in result.findings if not f.consequence][:12]
    compared = [v for v in result.verdicts if v.status != "left out"]
    css = result.verdict.split(" ")[0] + (" partial" if result.verdict.endswith("(partial)") else "")
    template = (Path(__file__).parent / "page.html.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        result=result, css=css, roots=roots, consequences=len(result.findings) - len(roots), compared=len(compared),
        wrong=sum(v.status == "wrong" for v in compared), timeline=Markup(timeline_svg(result)),
        modules=Markup(heat_svg(*excess_by_module(result))), ranks=Markup(_rank_svg(result)),
        floors=floors_table(result, top=10),
    )  # fmt: skip


def save_html(result: Result, path: str | Path) -> Path:
    """Write the page."""
    return write_text(Path(path), render(result))


def _height(value: float) -> float:
    """Position on a logarithmic scale from 1e-3 to 1e6 of the tolerance, 0 to 1."""
    value = min(max(value, 1e-3), 1e6)
    return (math.log10(value) + 3) / 9


def _colour(value: float) -> str:
    """Pale blue far below the tolerance, through yellow at it, to dark red."""
    if value != value:
        return "#f3f4f6"
    if value <= 1.0:
        share = _height(value) * 3
        return f"hsl(210,45%,{96 - 26 * min(share, 1.0):.0f}%)"
    share = min(math.log10(value) / 4, 1.0)
    return f"hsl({40 - 38 * share:.0f},85%,{62 - 24 * share:.0f}%)"


def timeline_svg(result: Result, *, width: int = 1120, height: int = 260) -> str:
    """Error over tolerance of every tensor in the order of execution."""
    import html

    shown = [v for v in result.verdicts if v.status != "left out"]
    left, right, top, bottom = 52, 8, 10, 24
    inner_w, inner_h = width - left - right, height - top - bottom
    parts = [f'<svg role="img" aria-label="timeline" width="{width}" height="{height}" viewBox="0 0 {width} {height}">']
    for power in range(-3, 7, 3):
        y = top + inner_h * (1 - _height(10.0**power))
        label = "1" if power == 0 else f"1e{power}"
        parts.append(
            f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{"#b3261e" if power == 0 else "#dde2ea"}"/>'
        )
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    before = ""
    for i, v in enumerate(shown):
        n = Name.parse(v.name)
        x = left + inner_w * (i + 0.5) / max(len(shown), 1)
        part = "gradients" if n.microbatch is None else f"micro-batch {n.microbatch}"
        if n.phase == "param":
            part = "parameters"
        elif n.phase.startswith(("optim", "param_after")):
            part = "optimizer"
        if part != before:
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - bottom}" stroke="#eef1f5"/>')
            parts.append(f'<text x="{x + 2:.1f}" y="{height - 8}">{html.escape(part)}</text>')
            before = part
        value = max(v.excess, 10.0 if v.status == "wrong" and v.relative <= v.tolerance else 0.0)
        y = top + inner_h * (1 - _height(value))
        colour = "#b3261e" if v.status == "wrong" else "#3b6ea8"
        title = html.escape(f"{v.name}: error {v.relative:.3g}, tolerance {v.tolerance:.3g}")
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}" fill-opacity="0.75">'
            f"<title>{title}</title></circle>"
        )
    return "".join([*parts, "</svg>"])


def heat_svg(rows: list[str], columns: list[str], values: dict[tuple[str, str], float]) -> str:
    """A heat map with a legend."""
    import html

    cell_w, cell_h, left, top = 74, 17, 290, 22
    width, height = left + max(cell_w * len(columns), 500) + 12, top + cell_h * len(rows) + 34
    parts = [f'<svg role="img" aria-label="heat map" width="{width}" height="{height}" viewBox="0 0 {width} {height}">']
    for j, column in enumerate(columns):
        parts.append(
            f'<text x="{left + cell_w * (j + 0.5)}" y="{top - 7}" text-anchor="middle">{html.escape(column)}</text>'
        )
    for i, row in enumerate(rows):
        y = top + cell_h * i
        parts.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{html.escape(row[-48:])}</text>')
        for j, column in enumerate(columns):
            value = values.get((row, column), math.nan)
            if value != value:
                continue
            title = html.escape(f"{row}, {column}: {value:.3g}")
            x = left + cell_w * j
            parts.append(
                f'<rect x="{x}" y="{y}" width="{cell_w - 2}" height="{cell_h - 2}" fill="{_colour(value)}">'
                f"<title>{title}</title></rect>"
            )
    y = top + cell_h * len(rows) + 12
    for k, value in enumerate((1e-3, 1e-2, 0.1, 0.99, 3.0, 30.0, 1e3, 1e5)):
        parts.append(f'<rect x="{left + 60 * k}" y="{y}" width="14" height="12" fill="{_colour(value)}"/>')
        parts.append(f'<text x="{left + 60 * k + 18}" y="{y + 10}">{"1" if value == 0.99 else f"{value:g}"}</text>')
    return "".join([*parts, "</svg>"])


def rank_errors(result: Result, *, limit: int = 60) -> dict[tuple[str, str], float]:
    """(module and phase, rank) -> error over tolerance, of the first wrong tensors; empty without the traces."""
    from assay.difftest.check import Comparison
    from assay.difftest.tolerance import Tolerance

    wrong = [v for v in result.verdicts if v.status == "wrong" and "recompute" not in v.name]
    if not wrong or not Path(result.reference).is_dir() or not Path(result.candidate).is_dir():
        return {}
    state: Any = Comparison(Trace.open(result.reference), Trace.open(result.candidate), Tolerance(), False)
    found: dict[tuple[str, str], float] = {}
    for v in wrong[:limit]:
        if (
            v.name not in state.candidate_names
            or state.candidate.level(v.name) != "full"
            or state.reference.level(v.name) != "full"
        ):
            continue
        n = Name.parse(v.name)
        try:
            errors = state.by_rank(v.name)
        except ValueError:
            continue
        for rank, error in errors.items():
            key = (f"{n.module} {n.phase}", f"rank {rank}")
            found[key] = max(found.get(key, 0.0), min(_excess(v, error), 1e6))
    return found


def _excess(v: Verdict, error: float) -> float:
    return error / v.tolerance if v.tolerance else (math.inf if error else 0.0)


def _rank_svg(result: Result) -> str:
    values = rank_errors(result)
    if not values:
        return ""
    rows = list(dict.fromkeys(r for r, _ in values))
    columns = sorted({c for _, c in values}, key=lambda c: int(c.split()[1]))
    return heat_svg(rows, columns, values)
