"""Pages: the rows behind predictions (text, images, tables), and the comparison of methods. Everything is escaped."""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from assay.attribution.chunks import write_whole
from assay.attribution.comparison import Comparison
from assay.attribution.errors import AttributionError, ShapeMismatch
from assay.attribution.plots import as_images

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}
h2{font-size:1.1rem;margin:2rem 0 .4rem}table{border-collapse:collapse;margin:.4rem 0 1rem}
td,th{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}.up{background:#e8f4ea}.down{background:#fbeaea}
img{image-rendering:pixelated;width:64px;border:1px solid #ccc}img.plot{width:auto;border:0;max-width:100%}
small{color:#666}"""


def explain_html(
    attributor: Any, X_test: Any, targets: Any, X_train: Any, y_train: Any, *, k: int = 5, kind: str = "table",
    texts: Sequence[str] = (), test_texts: Sequence[str] = (), classes: Sequence[Any] = (),
        features: Sequence[str] = (),
    path: str | os.PathLike[str] | None = None,
) -> str:  # fmt: skip
    """A page with the strongest proponents and opponents of each test row.

    Parameters
    ----------
    attributor : fitted Attributor
    kind : {"text", "image", "table"}
        How rows are shown; texts need ``texts`` (training rows) and ``test_texts``.
    classes : sequence, optional
        Names of the labels.
    path : path, optional
        Where to write it.

    Returns
    -------
    str
        The page.

    Raises
    ------
    AttributionError, ShapeMismatch
    """
    if kind not in ("text", "image", "table"):
        raise AttributionError(f"kind is text, image or table, not {kind!r}")
    if kind == "text" and (len(texts) != len(X_train) or len(test_texts) != len(X_test)):
        raise ShapeMismatch(
            f"{len(texts)} texts for {len(X_train)} training rows, {len(test_texts)} for {len(X_test)} test rows"
        )
    k = min(k, len(X_train))
    up, up_scores = attributor.top_k(X_test, targets, k)
    down, down_scores = attributor.top_k(X_test, targets, k, lowest=True)
    tests, rows = _Shown(kind, X_test, test_texts, features), _Shown(kind, X_train, texts, features)
    parts = [
        f"<h1>Rows behind predictions</h1><p>{html.escape(type(attributor).__name__)}; positive "
        f"scores raise the explained "
        f"number of the test row. <small>{len(X_train):,} training rows</small></p>"
    ]
    for t in range(len(X_test)):
        target = "" if targets is None else f", explained: {_name(np.asarray(targets)[t], classes)}"
        parts.append(f"<h2>Test row {t}{target}</h2>{tests.cell(t)}")
        for title, style, indices, scores in (
            ("proponents", "up", up[t], up_scores[t]), ("opponents", "down", down[t], down_scores[t]),
        ):  # fmt: skip
            parts.append(f'<table class="{style}"><tr><th>{title}</th><th>row</th><th>label</th><th>score</th></tr>')
            for i, score in zip(indices, scores, strict=True):
                label = _name(np.asarray(y_train)[i], classes) if np.ndim(y_train) == 1 else ""
                parts.append(
                    f'<tr><td>{rows.cell(int(i))}</td><td class="n">{int(i)}</td><td>{label}</td>'
                    f'<td class="n">{score:+.4g}</td></tr>'
                )
            parts.append("</table>")
    page = _page("Rows behind predictions", "".join(parts))
    if path is not None:
        target_path = Path(path)
        target_path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target_path, lambda part: part.write_text(page, encoding="utf-8"))
    return page


class _Shown:
    """One row as HTML."""

    def __init__(self, kind: str, X: Any, texts: Sequence[str], features: Sequence[str]) -> None:
        self.kind, self.texts, self.features = kind, texts, features
        self.values = as_images(X) if kind == "image" else np.asarray(X.detach().cpu() if hasattr(X, "detach") else X)

    def cell(self, i: int) -> str:
        if self.kind == "text":
            return html.escape(self.texts[i])
        if self.kind == "image":
            return f'<img alt="row {i}" src="data:image/png;base64,{_png(self.values[i])}">'
        row = self.values[i].ravel()
        names = self.features if len(self.features) == len(row) else [f"x{j}" for j in range(len(row))]
        largest = np.argsort(-np.abs(row), kind="stable")[:8]
        return ", ".join(f"{html.escape(str(names[j]))} = {row[j]:.3g}" for j in largest)


def _name(label: Any, classes: Sequence[Any]) -> str:
    if len(classes) and np.issubdtype(np.asarray(label).dtype, np.integer) and 0 <= int(label) < len(classes):
        return html.escape(str(classes[int(label)]))
    return html.escape(str(label))


def _png(image: np.ndarray) -> str:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray((255 * (1 - image if image.ndim == 2 else image)).astype(np.uint8)).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><body>{body}</body></html>"
    )


def write_report(
    found: Comparison, folder: str | os.PathLike[str], *, title: str = "Attribution methods compared"
) -> Path:
    """Write ``report.html`` and ``results.json`` into a folder.

    The page has the table with intervals and ranks, tests against the best, and plots.
    """
    from matplotlib.figure import Figure

    from assay.attribution.plots import plot_comparison, plot_tradeoff

    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    write_whole(root / "results.json", lambda part: part.write_text(found.to_json()))
    means, winners = found.mean_rank(), found.winners()
    best = {metric: found.best(metric) for metric in found.metrics}
    parts = [f"<h1>{html.escape(title)}</h1>", "<table><tr><th>method</th>"]
    parts += [f"<th>{html.escape(m.replace('_', ' '))}</th>" for m in found.metrics]
    parts.append("<th>mean rank</th></tr>")
    for method in means:
        parts.append(f"<tr><td>{html.escape(method)}</td>")
        for metric in found.metrics:
            result = found.results[method].get(metric)
            if result is None:
                parts.append("<td>-</td>")
                continue
            bold = ("<b>", "</b>") if method in best[metric] else ("", "")
            parts.append(
                f'<td class="n">{bold[0]}{result.score:.3f}{bold[1]}<br><small>[{result.ci[0]:.3f}, {result.ci[1]:.3f}]'
                f"<br>normalised {result.normalized:.2f}</small></td>"
            )
        parts.append(f'<td class="n">{means[method]:.1f}</td></tr>')
    parts.append(
        "</table><h2>Who is best, and who cannot be told from it</h2>"
        "<p>Paired bootstrap over the test rows, at 5 % for all pairs of methods of a metric together (Holm).</p><ul>"
    )
    for metric, first in winners.items():
        same = found.indistinct(metric)[1:]
        tail = f"; not told apart: {', '.join(map(html.escape, same))}" if same else "; all others are worse"
        parts.append(f"<li>{html.escape(metric)}: {html.escape(first)}{tail}</li>")
    parts.append("</ul>")
    figures: list[Figure] = [plot_comparison(found).figure]
    if len(found.metrics) > 1:
        figures.append(plot_tradeoff(found, found.metrics[0], found.metrics[1]).figure)
    for figure in figures:
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=120)
        parts.append(
            f'<p><img class="plot" alt="" src="data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"></p>'
        )
    page = _page(title, "".join(parts))
    return write_whole(root / "report.html", lambda part: part.write_text(page, encoding="utf-8"))
