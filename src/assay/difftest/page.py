"""The report as one HTML page with nothing to load: timeline of error over tolerance, heat maps, evidence."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from assay.difftest.check import Result, Verdict
from assay.difftest.names import Name
from assay.difftest.report import excess_by_module, floors_table
from assay.difftest.store import Trace, write_text

_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>difftest: {{ result.verdict }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { --ink:#1c2330; --soft:#5b6574; --line:#dde2ea; --bad:#b3261e; --good:#1b6e4b; --part:#8a5a00; --paper:#fff; }
body { font:15px/1.5 system-ui,sans-serif; color:var(--ink); background:var(--paper); margin:0 auto; max-width:1180px; padding:24px; }
h1 { font-size:24px; margin:0 0 4px; } h2 { font-size:18px; margin:32px 0 8px; }
.verdict { font-weight:600; } .FAIL { color:var(--bad); } .PASS { color:var(--good); } .partial { color:var(--part); }
.soft { color:var(--soft); } code { font-size:13px; overflow-wrap:anywhere; }
table { border-collapse:collapse; font-size:13px; } td,th { padding:3px 10px 3px 0; text-align:left; border-bottom:1px solid var(--line); vertical-align:top; }
td.n,th.n { text-align:right; font-variant-numeric:tabular-nums; }
.root { border-left:4px solid var(--bad); padding:6px 0 6px 14px; margin:10px 0; }
.scroll { overflow-x:auto; } svg text { font:11px system-ui,sans-serif; fill:var(--ink); }
ul { margin:4px 0; padding-left:20px; }
</style></head><body>
<h1>Distributed run against reference: <span class="verdict {{ css }}">{{ result.verdict }}</span></h1>
<p class="soft">{{ compared }} tensors compared, {{ wrong }} wrong. Reference <code>{{ result.reference }}</code>, candidate <code>{{ result.candidate }}</code>.</p>
{% if roots %}<h2>What is wrong</h2>
{% for f in roots %}<div class="root"><b>{{ f.kind }}</b> <span class="soft">({{ f.category }}, confidence {{ '%.0f' % (100 * f.confidence) }} %)</span><br>
<code>{{ f.name }}</code>{% if f.ranks %} <span class="soft">on ranks {{ f.ranks | join(', ') }}</span>{% endif %}
<ul>{% for e in f.evidence %}<li>{{ e }}</li>{% endfor %}</ul></div>{% endfor %}
{% if consequences %}<p class="soft">{{ consequences }} more findings follow from these.</p>{% endif %}{% endif %}
<h2>Error over tolerance, in the order of execution</h2>
<p class="soft">Each dot is a tensor; above the line it is wrong. Dots of zero error lie on the lower edge. Hover for the name.</p>
<div class="scroll">{{ timeline }}</div>
<h2>Modules and phases</h2>
<p class="soft">Largest error over tolerance.</p>
<div class="scroll">{{ modules }}</div>
{% if ranks %}<h2>Ranks and modules</h2><p class="soft">Relative error of each rank's part of the wrong tensors, over tolerance.</p>
<div class="scroll">{{ ranks }}</div>{% endif %}
<h2>Detection floor</h2>
<p class="soft">The smallest relative effect on a tensor that this comparison would have seen; the ten largest.</p>
<table><tr><th>tensor</th><th class="n">floor</th><th class="n">error</th></tr>
{% for name, low, error in floors %}<tr><td><code>{{ name }}</code></td><td class="n">{{ '%.3g' % low }}</td><td class="n">{{ '%.3g' % error }}</td></tr>{% endfor %}</table>
{% if result.coverage %}<h2>What the inputs reach</h2><table>
{% for k, v in result.coverage.holes.items() %}<tr><td class="FAIL">hole</td><td>{{ k }}</td><td>{{ v }}</td></tr>{% endfor %}
{% for k, v in result.coverage.touched.items() %}<tr><td>touched</td><td>{{ k }}</td><td>{{ v }}</td></tr>{% endfor %}</table>{% endif %}
{% if result.not_compared %}<h2>Not compared</h2><p><code>{{ result.not_compared[:40] | join(', ') }}</code>{% if result.not_compared | length > 40 %} and {{ result.not_compared | length - 40 }} more{% endif %}</p>{% endif %}
{% if result.notes %}<h2>Notes</h2><ul>{% for n in result.notes %}<li>{{ n }}</li>{% endfor %}</ul>{% endif %}
</body></html>
"""


def render(result: Result) -> str:
    """The page as text. What comes from traces is escaped."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    roots = [f for f in result.findings if not f.consequence][:12]
    compared = [v for v in result.verdicts if v.status != "left out"]
    css = result.verdict.split(" ")[0] + (" partial" if result.verdict.endswith("(partial)") else "")
    return environment.from_string(_TEMPLATE).render(
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
            f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{"#b3261e" if power == 0 else "#dde2ea"}"/>'
        )
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    before = ""
    for i, v in enumerate(shown):
        n = Name.parse(v.name)
        x = left + inner_w * (i + 0.5) / max(len(shown), 1)
        part = "parameters" if n.phase == "param" else "optimizer" if n.phase.startswith(("optim", "param_after")) else (
            f"micro-batch {n.microbatch}" if n.microbatch is not None else "gradients")  # fmt: skip
        if part != before:
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - bottom}" stroke="#eef1f5"/>')
            parts.append(f'<text x="{x + 2:.1f}" y="{height - 8}">{html.escape(part)}</text>')
            before = part
        value = max(v.excess, 10.0 if v.status == "wrong" and v.relative <= v.tolerance else 0.0)
        y = top + inner_h * (1 - _height(value))
        colour = "#b3261e" if v.status == "wrong" else "#3b6ea8"
        title = html.escape(f"{v.name}: error {v.relative:.3g}, tolerance {v.tolerance:.3g}")
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}" fill-opacity="0.75"><title>{title}</title></circle>'
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
                f'<rect x="{x}" y="{y}" width="{cell_w - 2}" height="{cell_h - 2}" fill="{_colour(value)}"><title>{title}</title></rect>'
            )
    y = top + cell_h * len(rows) + 12
    for k, value in enumerate((1e-3, 1e-2, 0.1, 0.99, 3.0, 30.0, 1e3, 1e5)):
        parts.append(f'<rect x="{left + 60 * k}" y="{y}" width="14" height="12" fill="{_colour(value)}"/>')
        parts.append(f'<text x="{left + 60 * k + 18}" y="{y + 10}">{"1" if value == 0.99 else f"{value:g}"}</text>')
    return "".join([*parts, "</svg>"])


def rank_errors(result: Result, *, limit: int = 60) -> dict[tuple[str, str], float]:
    """(module and phase, rank) -> relative error over tolerance, of the first wrong tensors; empty without the traces."""
    from assay.difftest.check import _Comparison
    from assay.difftest.tolerance import Tolerance

    wrong = [v for v in result.verdicts if v.status == "wrong" and "recompute" not in v.name]
    if not wrong or not Path(result.reference).is_dir() or not Path(result.candidate).is_dir():
        return {}
    state: Any = _Comparison(Trace.open(result.reference), Trace.open(result.candidate), Tolerance(), False)
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
