"""One static HTML file: the skeleton over the cells (hover for figures), persistence, and the verdict with its reasons.

The drawing is SVG written here; a few lines of script move the tooltip and switch the colour of the cells. Nothing is
loaded from elsewhere, so the file can be mailed.
"""

# ruff: noqa: E501  (lines of markup)

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.shapes.errors import ShapeError
from assay.shapes.files import written_whole
from assay.shapes.plots import curves_on, flat_embedding
from assay.shapes.skeleton import Skeleton, points_along

if TYPE_CHECKING:
    from assay.shapes.classify import ShapeReport

MOST_CELLS = 4000
SIZE = (640, 520)
PALETTE = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#e15759", "#bab0ac", "#86bcb6")

STYLE = """
:root{--ink:#1d2330;--soft:#5c6678;--line:#d9dee7;--paper:#fff;--wash:#f5f7fa;--red:#b2182b}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ef;--soft:#a3adbd;--line:#39414f;--paper:#171b22;--wash:#1f252e;--red:#ef6a74}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1180px;margin:0 auto;padding:24px 20px 60px}h1{font-size:22px;margin:0 0 2px}h2{font-size:15px;margin:22px 0 8px}
.soft{color:var(--soft)}.grid{display:grid;grid-template-columns:minmax(0,640px) minmax(300px,1fr);gap:28px}
@media(max-width:900px){.grid{grid-template-columns:minmax(0,1fr)}}svg{width:100%;height:auto;background:var(--wash);border-radius:6px}
.row{margin:0 0 10px}.name{display:flex;justify-content:space-between;font-weight:600}.bar{height:7px;background:var(--line);border-radius:4px}
.bar i{display:block;height:7px;border-radius:4px;background:var(--soft)}.yes .bar i{background:var(--red)}.why{font-size:13px;color:var(--soft)}
table{border-collapse:collapse;font-size:13px;width:100%}th{text-align:left;color:var(--soft);font-weight:500}td,th{padding:4px 10px 4px 0;border-bottom:1px solid var(--line)}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}.warn{border-left:3px solid #d08700;padding:4px 10px;background:var(--wash);font-size:13px;margin:6px 0}
.do{border-left:3px solid var(--red);padding:6px 10px;background:var(--wash);margin:6px 0}
#tip{position:fixed;pointer-events:none;display:none;background:var(--ink);color:var(--paper);font-size:12px;padding:4px 8px;border-radius:4px}
button{font:inherit;font-size:12px;border:1px solid var(--line);background:var(--paper);color:var(--ink);border-radius:4px;padding:2px 8px;cursor:pointer;margin-right:4px}
button[aria-pressed=true]{border-color:var(--red);color:var(--red)}.edge{fill:none;stroke:var(--red);stroke-linecap:round}.halo{fill:none;stroke:var(--wash);stroke-linecap:round}
.scroll{overflow-x:auto}.key span{display:inline-block;margin-right:12px;font-size:12px}.key i{display:inline-block;width:9px;height:9px;border-radius:5px;margin-right:4px}
"""

SCRIPT = """
const tip=document.getElementById('tip');
document.querySelectorAll('[data-tip]').forEach(e=>{
 e.addEventListener('mousemove',m=>{tip.style.display='block';tip.style.left=Math.min(m.clientX+12,innerWidth-230)+'px';tip.style.top=(m.clientY+12)+'px';tip.textContent=e.dataset.tip});
 e.addEventListener('mouseleave',()=>tip.style.display='none')});
document.querySelectorAll('button[data-color]').forEach(b=>b.addEventListener('click',()=>{
 document.querySelectorAll('button[data-color]').forEach(o=>o.setAttribute('aria-pressed',o===b));
 document.querySelectorAll('.key').forEach(k=>k.hidden=k.dataset.of!==b.dataset.color);
 document.querySelectorAll('#cells circle').forEach(c=>c.setAttribute('fill',c.dataset[b.dataset.color]))}));
"""


def write_report(
    path: str | Path,
    report: ShapeReport,
    embedding: NDArray[Any] | None = None,
    colors: Mapping[str, Any] | None = None,
) -> None:
    """The page of a `ShapeReport`.

    Parameters
    ----------
    path : path
    report : ShapeReport
    embedding : array[n, 2], optional
        Of all cells; default: the first two working axes.
    colors : dict of str to array[n], optional
        Columns (cell type, batch, time) that the cells can be coloured by, beside edge and position.

    Raises
    ------
    ShapeError
        If an embedding or a column does not have one row a cell.
    """
    tower = report.tower
    rows = tower.prepared_.cell_of
    inside = np.flatnonzero(rows >= 0)
    cells = tower.prepared_.X[rows[inside]]
    if embedding is not None and (np.ndim(embedding) != 2 or len(embedding) != len(rows)):
        raise ShapeError(f"the embedding needs two columns and one row for each of the {len(rows)} cells")
    flat = flat_embedding(cells) if embedding is None else np.asarray(embedding, dtype=np.float64)[inside, :2]
    hues = {
        "edge": [_hue(e, c) for e, c in zip(tower.edge_of_cell_[inside], tower.component_[inside], strict=True)],
        "position": [_ramp(x) for x in _unit(tower.lens_[inside])],
    }
    keys, titles = [], {"edge": "edges", "position": "position"}
    for number, (name, values) in enumerate((colors or {}).items()):
        if len(values) != len(rows):
            raise ShapeError(f"column {name!r} needs one value for each of the {len(rows)} cells, not {len(values)}")
        hues[f"c{number}"], key = _column(np.asarray(values)[inside])
        titles[f"c{number}"] = name
        keys.append(f"<p class='key soft' data-of=c{number} hidden>{key}</p>")
    buttons = "".join(
        f"<button data-color={key} aria-pressed={'true' if key == 'edge' else 'false'}>{html.escape(title)}</button>"
        for key, title in titles.items()
    )
    picture = _picture(tower.working_skeleton_, cells, flat, hues)
    body = [
        f"<h1>Shape: {html.escape(', '.join(report.labels))}</h1>",
        f"<div class=soft>{len(rows):,} cells, {html.escape(_ranks(report))}, {html.escape(repr(report.skeleton)[9:-1])}</div>",
        "<div class=grid><section><h2>Skeleton</h2>",
        f"<p>{buttons}<span class=soft> hover a curve or a vertex</span></p>",
        *keys,
        picture,
        "<h2>Persistence</h2>",
        _persistence(tower.persistence_),
        "</section><section><h2>Verdict</h2>",
    ]
    for name in sorted(report.scores, key=lambda k: -report.scores[k]):
        score = report.scores[name]
        body.append(
            f"<div class='row {'yes' if score >= 0.5 else ''}'><div class=name><span>{name}</span><span>{score:.2f}</span></div>"
            f"<div class=bar><i style='width:{100 * score:.0f}%'></i></div><div class=why>{html.escape(report.evidence[name])}</div></div>"
        )
    if report.model:
        body.append("<p class=soft>Model: " + ", ".join(f"{k} {v:.2f}" for k, v in report.model.items()) + "</p>")
    body.append(
        "<h2>What fits</h2>" + "".join(f"<div class=do>{html.escape(line)}</div>" for line in report.recommendation)
    )
    if report.warnings:
        body.append(
            "<h2>Warnings</h2>" + "".join(f"<div class=warn>{html.escape(line)}</div>" for line in report.warnings)
        )
    if report.stability:
        body.append(
            "<h2>Stability</h2><p>Refits with the same topology: "
            + ", ".join(f"{k} {v:.0%}" for k, v in report.stability.items())
            + "</p>"
        )
    body.append(
        "</section></div><h2>Regions</h2>"
        + _table(report.regions, ("region", "kind", "cells", "share", "tube", "confidence"))
    )
    body.append(
        "<h2>Components</h2>"
        + _table(
            report.components,
            ("component", "cells", "share", "shape", "leaves", "branch_points", "loops", "tube", "explained", "lens"),
        )
    )
    body.append(
        "<p class=soft>tube: length of the skeleton over twice the root mean square distance of its cells to it. explained: share of the "
        "variance. confidence: share of 80 % subsamples in which the feature came back. persistence: share of the lens range times the root "
        "of the share of cells.</p>"
    )
    _write(path, "".join(body))


def _ranks(report: ShapeReport) -> str:
    rank = report.rank
    return (
        f"working rank {rank['working']} ({rank['above_threshold']} singular values above the threshold, {rank['permutation']} above shuffled columns)"
        if rank
        else f"working rank {report.tower.prepared_.rank}"
    )


def write_skeleton(path: str | Path, skeleton: Skeleton, embedding: NDArray[Any] | None = None) -> None:
    """The page of a skeleton alone, over cells of its own space where they are given."""
    if embedding is None:
        points = (
            np.concatenate([points_along(p, np.linspace(0, 1, 40)) for p in skeleton.paths])
            if skeleton.paths
            else skeleton.vertices
        )
        cells = points.astype(np.float64)
    else:
        cells = np.asarray(embedding, dtype=np.float64)
    flat = flat_embedding(cells)
    picture = _picture(skeleton, cells, flat, {"edge": ["#9aa4b2"] * len(cells)})
    _write(path, f"<h1>Skeleton</h1><div class=soft>{html.escape(repr(skeleton)[9:-1])}</div>{picture}")


def _write(path: str | Path, body: str) -> None:
    text = (
        "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>Shape</title><style>{STYLE}</style></head><body><main>{body}</main><div id=tip></div><script>{SCRIPT}</script></body></html>"
    )
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _picture(skeleton: Skeleton, cells: NDArray[Any], flat: NDArray[Any], colors: dict[str, list[str]]) -> str:
    curves, vertices = curves_on(skeleton, cells, flat)
    low, high = view(flat, np.concatenate([vertices, *curves]))
    span = np.maximum(high - low, 1e-12)
    width, height = SIZE
    outside = int(((flat < low) | (flat > high)).any(axis=1).sum())

    def place(points: NDArray[Any]) -> NDArray[np.float64]:
        unit = np.clip((np.asarray(points) - low) / span, 0.0, 1.0)
        return np.stack([16 + unit[:, 0] * (width - 32), height - 16 - unit[:, 1] * (height - 32)], axis=1)

    shown = np.arange(len(flat))
    if len(flat) > MOST_CELLS:
        shown = np.sort(np.random.default_rng(0).choice(len(flat), MOST_CELLS, replace=False))
    first = next(iter(colors))
    xy = place(flat[shown])
    dots = "".join(
        f"<circle cx={x:.1f} cy={y:.1f} r=2 fill='{colors[first][i]}' "
        + " ".join(f"data-{k}='{v[i]}'" for k, v in colors.items())
        + "/>"
        for i, (x, y) in zip(shown, xy, strict=True)
    )
    lines, halos = [], []
    assert (
        skeleton.mass is not None
        and skeleton.length is not None
        and skeleton.width is not None
        and skeleton.confidence is not None
    )
    top = float(skeleton.mass.max()) if len(curves) else 1.0
    for e, curve in enumerate(curves):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in place(curve))
        thick = 2 + 3 * float(skeleton.mass[e]) / max(top, 1e-12)
        c = float(skeleton.confidence[e])
        text = (
            f"edge {e}: {skeleton.mass[e]:.1%} of the cells, length {skeleton.length[e]:.3g}, width {skeleton.width[e]:.2g}"
            + ("" if np.isnan(c) else f", confidence {c:.0%}")
        )
        halos.append(f"<polyline class=halo points='{points}' stroke-width={thick + 3:.1f} />")
        dash = " stroke-dasharray='6 5'" if c < 0.8 else ""
        lines.append(f"<polyline class=edge points='{points}' stroke-width={thick:.1f}{dash} data-tip='{text}' />")
    degree = skeleton.degrees()
    knots = "".join(
        f"<circle cx={x:.1f} cy={y:.1f} r={7 if degree[v] >= 3 else 5} fill='{'#7f0d1d' if degree[v] >= 3 else '#fff'}' stroke='#7f0d1d' stroke-width=2 "
        f"data-tip='vertex {v}: {_vertex_kind(int(degree[v]))}'/>"
        for v, (x, y) in enumerate(place(vertices))
    )
    return (
        f"<svg viewBox='0 0 {width} {height}' role=img aria-label='skeleton over cells'><g id=cells fill-opacity=.65>{dots}</g>{''.join(halos)}{''.join(lines)}{knots}</svg>"
        + (
            f"<p class=why>{outside} far {'cell is' if outside == 1 else 'cells are'} drawn on the border.</p>"
            if outside
            else ""
        )
    )


def view(flat: NDArray[Any], drawn: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Least and greatest coordinates of a picture: of the middle 98 % of the cells with a quarter more on each side, as
    far as there are cells, and of all that is drawn.

    Examples
    --------
    >>> cells = np.append(np.linspace(0, 1, 1000), 50.0)[:, None] * np.ones(2)
    >>> [bound.round(1).tolist() for bound in view(cells, cells[:1])]
    [[0.0, 0.0], [1.2, 1.2]]
    """
    inner = np.quantile(flat, [0.01, 0.99], axis=0)
    margin = 0.25 * (inner[1] - inner[0])
    low = np.minimum(np.maximum(inner[0] - margin, flat.min(axis=0)), drawn.min(axis=0))
    high = np.maximum(np.minimum(inner[1] + margin, flat.max(axis=0)), drawn.max(axis=0))
    return low, high


def _vertex_kind(degree: int) -> str:
    return {0: "a cluster of its own", 1: "an end", 2: "a point of a loop"}.get(
        degree, f"branch point of degree {degree}"
    )


def _persistence(rows: NDArray[Any]) -> str:
    if not len(rows):
        return "<p class=soft>no feature</p>"
    rows = np.sort(rows, order="persistence")[::-1][:20]
    top = float(max(rows["persistence"].max(), rows["floor"].max()))
    step, left, width = 22, 190, SIZE[0]
    parts = []
    for i, row in enumerate(rows):
        y = 16 + i * step
        x = left + (width - left - 20) * row["persistence"] / top
        f = left + (width - left - 20) * row["floor"] / top
        hue = "#4393c3" if row["kind"] == "leaf" else "#d6604d"
        text = f"{row['kind']} of component {row['component']}"
        more = "" if np.isnan(row["confidence"]) else f", back in {row['confidence']:.0%} of bootstraps"
        tip = f"persistence {row['persistence']:.3f}, floor {row['floor']:.3f}, {row['mass']:.0%} of the cells{more}"
        parts.append(
            f"<text x=8 y={y + 4} font-size=12 fill=currentColor>{text}</text><line x1={left} x2={x:.1f} y1={y} y2={y} stroke='{hue}' stroke-width=4 />"
            f"<line x1={f:.1f} x2={f:.1f} y1={y - 8} y2={y + 8} stroke=currentColor stroke-width=2 />"
            f"<circle cx={x:.1f} cy={y} r=6 fill='{hue if row['confirmed'] else '#fff'}' stroke='{hue}' stroke-width=2 data-tip='{tip}'/>"
        )
    return (
        f"<svg viewBox='0 0 {width} {step * len(rows) + 12}' role=img aria-label=persistence>{''.join(parts)}</svg>"
        "<p class=why>Upright bar: what Gaussian clouds leave (99th percentile). Filled: confirmed.</p>"
    )


def _table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> str:
    def cell(value: Any) -> str:
        if isinstance(value, float):
            return f"<td class=n>{value:.2f}</td>"
        if isinstance(value, int):
            return f"<td class=n>{value:,}</td>"
        return f"<td>{html.escape(str(value))}</td>"

    numeric = {c for c in columns if rows and isinstance(rows[0].get(c), (int, float))}
    head = "".join(f"<th{' class=n' if c in numeric else ''}>{c.replace('_', ' ')}</th>" for c in columns)
    lines = "".join("<tr>" + "".join(cell(row.get(c, "")) for c in columns) + "</tr>" for row in rows[:60])
    return f"<div class=scroll><table><tr>{head}</tr>{lines}</table></div>"


def _column(values: NDArray[Any]) -> tuple[list[str], str]:
    """Colours of a column of numbers or categories, and its key."""
    if values.dtype.kind in "biuf" and len(np.unique(values)) > 12:
        numbers = values.astype(np.float64)
        low, high = np.nanmin(numbers), np.nanmax(numbers)
        key = f"<i style='background:{_ramp(0.0)}'></i>{low:.4g} &ndash; {high:.4g} <i style='background:{_ramp(1.0)}'></i>"
        return [_ramp(x) for x in _unit(numbers)], key
    names, codes = np.unique(values.astype(str), return_inverse=True)
    hues = [PALETTE[code % len(PALETTE)] for code in codes]
    key = "".join(
        f"<span><i style='background:{PALETTE[i % len(PALETTE)]}'></i>{html.escape(name)}</span>"
        for i, name in enumerate(names[:40].tolist())
    )
    return hues, key


def _hue(edge: int, component: int) -> str:
    return PALETTE[(edge if edge >= 0 else component + 5) % len(PALETTE)]


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = np.nanmin(values), np.nanmax(values)
    return np.nan_to_num((values - low) / max(high - low, 1e-12))


def _ramp(x: float) -> str:
    stops = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]])
    r, g, b = (round(float(np.interp(x * 4, np.arange(5), stops[:, j]))) for j in range(3))
    return f"#{r:02x}{g:02x}{b:02x}"
