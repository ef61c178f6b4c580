"""Plots: normalised scores of methods, trade-offs of two metrics, curves, and the rows behind a prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.attribution.errors import AttributionError

if TYPE_CHECKING:
    from assay.attribution.comparison import Comparison


def plot_comparison(found: Comparison, *, ax: Any = None, value: str = "normalized") -> Any:
    """Heat map of scores, methods by mean rank; the best of each metric is framed.

    Parameters
    ----------
    value : {"normalized", "score"}

    Returns
    -------
    matplotlib.axes.Axes
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    methods, metrics = list(found.mean_rank()), found.metrics
    table = np.full((len(methods), len(metrics)), np.nan)
    for i, method in enumerate(methods):
        for j, metric in enumerate(metrics):
            result = found.results[method].get(metric)
            if result is not None:
                table[i, j] = result.normalized if value == "normalized" else result.score
    if ax is None:
        ax = Figure(figsize=(1.1 * len(metrics) + 2.2, 0.42 * len(methods) + 1.4), layout="constrained").subplots()
    image = ax.imshow(table, cmap="PuOr", vmin=-1, vmax=1, aspect="auto")
    best = {metric: found.best(metric) for metric in metrics}
    for i, method in enumerate(methods):
        for j, metric in enumerate(metrics):
            if np.isfinite(table[i, j]):
                dark = abs(table[i, j]) > 0.6
                ax.text(
                    j, i, f"{table[i, j]:.2f}", ha="center", va="center", color="white" if dark else "black", size=9
                )
            if method in best[metric]:
                ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, lw=2))
    ax.set_xticks(range(len(metrics)), [m.replace("_", " ") for m in metrics], rotation=35, ha="right")
    ax.set_yticks(range(len(methods)), methods)
    ax.figure.colorbar(image, ax=ax, label="normalised score" if value == "normalized" else "score")
    return ax


def plot_tradeoff(found: Comparison, x: str, y: str, *, ax: Any = None) -> Any:
    """Methods in the plane of two metrics, with 95 % intervals.

    Raises
    ------
    AttributionError
        If no method has both.
    """
    from matplotlib.figure import Figure

    both = [m for m in found.methods if x in found.results[m] and y in found.results[m]]
    if not both:
        raise AttributionError(f"no method has both {x!r} and {y!r}")
    if ax is None:
        ax = Figure(figsize=(5.2, 4), layout="constrained").subplots()
    for method in both:
        a, b = found.results[method][x], found.results[method][y]
        ax.errorbar(
            a.score, b.score, xerr=[[a.score - a.ci[0]], [a.ci[1] - a.score]], yerr=[[b.score - b.ci[0]],
                [b.ci[1] - b.score]],
            fmt="o", lw=1, ms=4,
        )  # fmt: skip
        ax.annotate(method, (a.score, b.score), xytext=(5, 4), textcoords="offset points", size=8)
    ax.set_xlabel(x.replace("_", " "))
    ax.set_ylabel(y.replace("_", " "))
    ax.grid(alpha=0.3)
    return ax


def tradeoff_chart(found: Comparison, x: str, y: str) -> Any:
    """The same for a page (Altair), with the figures on hover."""
    import altair as alt

    rows = [
        {
            "method": m, x: found.results[m][x].score, y: found.results[m][y].score,
            "x low": found.results[m][x].ci[0], "x high": found.results[m][x].ci[1],
            "y low": found.results[m][y].ci[0], "y high": found.results[m][y].ci[1],
        }
        for m in found.methods
        if x in found.results[m] and y in found.results[m]
    ]  # fmt: skip
    base = alt.Chart(alt.Data(values=rows))
    px, py = alt.X(f"{x}:Q", scale=alt.Scale(zero=False)), alt.Y(f"{y}:Q", scale=alt.Scale(zero=False))
    points = base.mark_circle(size=70).encode(x=px, y=py, color="method:N", tooltip=["method:N", f"{x}:Q", f"{y}:Q"])
    across = base.mark_rule(opacity=0.4).encode(x="x low:Q", x2="x high:Q", y=py, color="method:N")
    along = base.mark_rule(opacity=0.4).encode(y="y low:Q", y2="y high:Q", x=px, color="method:N")
    names = base.mark_text(dx=6, dy=-8, align="left", size=10).encode(x=px, y=py, text="method:N")
    return (across + along + points + names).properties(width=420, height=320)


def plot_curve(curves: Mapping[str, Any], *, x_label: str, y_label: str, chance: Any = None, ax: Any = None) -> Any:
    """Lines by name: ``{name: y}`` over equal steps to 1, or ``{name: (x, y)}``; ``chance`` is drawn dashed."""
    from matplotlib.figure import Figure

    if ax is None:
        ax = Figure(figsize=(5, 3.4), layout="constrained").subplots()
    for name, curve in curves.items():
        x, y = curve if isinstance(curve, tuple) else (np.arange(1, len(curve) + 1) / len(curve), curve)
        ax.plot(x, y, label=name, lw=1.5)
    if chance is not None:
        x, y = chance if isinstance(chance, tuple) else ([0, 1], [0, 1])
        ax.plot(x, y, "k--", lw=1, label="random order")
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.legend(fontsize=8, frameon=False)
    ax.grid(alpha=0.3)
    return ax


def plot_rows(
    test: Any, train: Any, indices: Any, scores: Any, *, titles: Sequence[str] = (), labels: Any = None, fig: Any = None
) -> Any:
    """Images: one line a test row, first itself, then the training rows of ``indices`` (T, k) with their scores.

    Images may be (n, h, w), (n, c, h, w) or flattened squares.
    """
    from matplotlib.figure import Figure

    shown, known = as_images(test), as_images(train)
    indices, scores = np.asarray(indices), np.asarray(scores)
    if fig is None:
        fig = Figure(figsize=(1.1 * (indices.shape[1] + 1), 1.35 * len(shown)), layout="constrained")
    axes = np.atleast_2d(fig.subplots(len(shown), indices.shape[1] + 1, squeeze=False))
    for t, row in enumerate(axes):
        row[0].imshow(shown[t], cmap="gray_r", vmin=0, vmax=1)
        row[0].set_title(titles[t] if titles else "test row", size=8)
        for k, ax in enumerate(row[1:]):
            i = int(indices[t, k])
            ax.imshow(known[i], cmap="gray_r", vmin=0, vmax=1)
            name = f"{labels[i]}: " if labels is not None else ""
            ax.set_title(f"{name}{scores[t, k]:+.2g}", size=8)
        for ax in row:
            ax.set_xticks([])
            ax.set_yticks([])
    return fig


def as_images(X: Any) -> np.ndarray:
    """Images (n, h, w) or (n, h, w, 3) in 0..1 for showing.

    Raises
    ------
    AttributionError
        If rows cannot be images.
    """
    array = np.asarray(X.detach().cpu() if hasattr(X, "detach") else X, dtype=float)
    if array.ndim == 2:
        side = round(array.shape[1] ** 0.5)
        if side * side != array.shape[1]:
            raise AttributionError(f"rows of {array.shape[1]} numbers are not square images")
        array = array.reshape(-1, side, side)
    elif array.ndim == 4:
        array = array[:, 0] if array.shape[1] == 1 else array[:, :3].transpose(0, 2, 3, 1)
    elif array.ndim != 3:
        raise AttributionError(f"images have 2 to 4 dimensions, not {array.ndim}")
    low, high = array.min(), array.max()
    return (array - low) / (high - low) if high > low else np.zeros_like(array)
