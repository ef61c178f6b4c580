"""Pictures of streams and of runs, for papers (matplotlib)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from assay.streams.inspect import StreamInspection
from assay.streams.protocol import RunResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_availability(inspection: StreamInspection, *, top: int = 60) -> Figure:
    """Share of rows with each feature (rows of the picture) over time (columns).

    Parameters
    ----------
    inspection : StreamInspection
        Of `inspect_stream`.
    top : int
        Features to draw, in order of first sight.
    """
    from matplotlib.figure import Figure

    features = inspection.features[:top]
    grid = np.array([f.over_time for f in features]) if features else np.zeros((1, 1))
    figure = Figure(figsize=(7, 1.2 + 0.16 * len(features)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(
        grid,
        aspect="auto",
        cmap="Blues",
        vmin=0,
        vmax=1,
        interpolation="nearest",
        extent=(0, inspection.rows, len(features), 0),
    )
    axes.set_yticks(np.arange(len(features)) + 0.5, [str(f.name) for f in features], fontsize=7)
    axes.set_xlabel("row")
    axes.set_title(f"{inspection.rows:,} rows; looks {inspection.regime}", loc="left", fontsize=10)
    figure.colorbar(image, ax=axes, label="share of rows with the feature", shrink=0.8)
    return figure


def plot_curves(
    results: Mapping[str, RunResult], metric: str = "balanced_accuracy", *, kind: str = "window", points: int = 200
) -> Figure:
    """A metric over the rows, a line a model; change points of the regime as vertical lines.

    Parameters
    ----------
    results : dict of label to RunResult
        Runs on the same stream.
    metric, kind, points
        As in `RunResult.curve`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for label, result in results.items():
        rows, values = result.curve(metric, kind, points)
        axes.plot(rows, values, label=label, linewidth=1.4)
    first = next(iter(results.values()), None)
    for change in first.change_points if first is not None else ():
        axes.axvline(change, color="0.7", linewidth=0.8, linestyle="--", zorder=0)
    axes.set_xlabel("row")
    axes.set_ylabel(
        metric.replace("_", " ") + (f" (last {first.window} rows)" if first is not None and kind == "window" else "")
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure
