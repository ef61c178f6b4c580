"""Pictures (matplotlib): a grid's distribution, training curves, posterior edges, log probability against log
reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from assay.gflownets.errors import GFlowNetError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_grid(
    distributions: Mapping[str, Float[np.ndarray, " terminal"]],
    coordinates: Int[np.ndarray, "terminal dim"],
    axes: tuple[int, int] = (0, 1),
) -> Figure:
    """Two-dimensional marginals side by side on one scale.

    Parameters
    ----------
    distributions : dict of title to probabilities
    coordinates : int[terminal, dim]
        Cells of the terminal states.
    """
    from matplotlib.figure import Figure

    from assay.gflownets.metrics import marginals

    tables = {title: marginals(np.asarray(p), coordinates, axes) for title, p in distributions.items()}
    if not tables:
        raise GFlowNetError("there is no distribution to draw")
    top = max(table.max() for table in tables.values())
    figure = Figure(figsize=(2.9 * len(tables) + 0.7, 3.0), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(tables)))
    image: Any = None
    for panel, (title, table) in zip(panels, tables.items(), strict=True):
        image = panel.imshow(table.T, origin="lower", cmap="viridis", vmin=0, vmax=top)
        panel.set_title(title, fontsize=10, loc="left")
        panel.set_xlabel(f"coordinate {axes[0]}")
    panels[0].set_ylabel(f"coordinate {axes[1]}")
    figure.colorbar(image, ax=list(panels), label="probability", shrink=0.85)
    return figure


def plot_curves(
    curves: Mapping[str, Sequence[tuple[Sequence[float], Sequence[float]]]],
    y_label: str,
    *,
    x_label: str = "seconds of training",
    log: bool = False,
) -> Figure:
    """Mean over seeds with the range of a 95 % t-interval.

    Parameters
    ----------
    curves : dict of label to a list of (x, y), one a seed
        Seeds are interpolated onto common points.
    """
    from matplotlib.figure import Figure
    from scipy.stats import t as student

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for label, seeds in curves.items():
        end = min(max(x) for x, _ in seeds)
        start = max(min(x) for x, _ in seeds)
        grid = np.linspace(start, max(end, start), 60)
        values = np.array([np.interp(grid, x, y) for x, y in seeds])
        mean = values.mean(0)
        (line,) = axes.plot(grid, mean, label=label, linewidth=1.5)
        if len(values) > 1:
            half = student.ppf(0.975, len(values) - 1) * values.std(0, ddof=1) / np.sqrt(len(values))
            low = np.maximum(mean - half, values.min() * 0.5) if log else mean - half
            axes.fill_between(grid, low, mean + half, color=line.get_color(), alpha=0.18, linewidth=0)
    if log:
        axes.set_yscale("log")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure


def plot_edges(tables: Mapping[str, Float[np.ndarray, "d d"]], names: Sequence[str]) -> Figure:
    """Probabilities of edges (row -> column) as heat maps with their numbers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(tables), 3.4), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(tables)))
    for panel, (title, table) in zip(panels, tables.items(), strict=True):
        panel.imshow(table, cmap="Blues", vmin=0, vmax=1)
        for i, j in np.ndindex(table.shape):
            if i != j:
                panel.text(
                    j,
                    i,
                    f"{table[i, j]:.2f}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if table[i, j] > 0.6 else "black",
                )
        panel.set_xticks(range(len(names)), list(names), rotation=45, ha="right", fontsize=7)
        panel.set_yticks(range(len(names)), list(names), fontsize=7)
        panel.set_title(title, fontsize=10, loc="left")
    return figure


def plot_calibration(log_p: Float[np.ndarray, " n"], log_r: Float[np.ndarray, " n"], log_z: float) -> Figure:
    """Log probability against log reward; a perfect sampler lies on the line log p = log R - log Z."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2, 4.0), layout="constrained")
    axes = figure.subplots()
    many = len(log_p) > 5000
    if many:
        axes.hexbin(log_r, log_p, gridsize=60, bins="log", cmap="Blues", mincnt=1, linewidths=0)
    else:
        axes.plot(log_r, log_p, ".", markersize=4, alpha=0.5)
    ends = np.array([np.min(log_r), np.max(log_r)])
    axes.plot(ends, ends - log_z, color="0.2", linewidth=1, label="log R - log Z")
    axes.set_xlabel("log reward")
    axes.set_ylabel("log probability")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure
