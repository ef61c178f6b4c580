"""Pictures of uncertainty, for papers (matplotlib)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.uncertainty.errors import UncertaintyError
from assay.uncertainty.metrics.calibration import onehot, reliability
from assay.uncertainty.representations import Hull, Intervals, LevelSet, Representation, Sample, ScoreBall, TVBall

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from assay.uncertainty.protocols import Result


def _figure(width: float = 5.0, height: float = 3.6) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def plot_risk_coverage(results: Mapping[str, Result], curve: str = "risk_coverage") -> Figure:
    """Risk over coverage, a line a method; the number beside the name is its AURC."""
    figure, axes = _figure()
    for name, result in results.items():
        x, y = result.curves[curve]
        axes.plot(x, y, label=f"{name} ({result.scores.get('aurc', np.nan):.3f})", linewidth=1.4)
    risk = curve == "risk_coverage"
    axes.set_xlabel("coverage" if risk else "rejected")
    axes.set_ylabel("risk of the rows kept" if risk else "accuracy of the rows kept")
    axes.set_ylim(bottom=0 if risk else None)
    axes.legend(frameon=False, fontsize=8)
    return figure


def plot_reliability(probs: ArrayLike, y: ArrayLike, *, bins: int = 15) -> Figure:
    """Accuracy over confidence of the top class, with the number of rows of each bin as the dots' area."""
    p = np.asarray(probs, dtype=np.float64)
    hit = onehot(y, p)[np.arange(len(p)), p.argmax(1)]
    confidence, accuracy, n = reliability(p.max(1), hit, bins=bins)
    figure, axes = _figure(4.2, 3.8)
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=0.8, linestyle="--", zorder=0)
    there = n > 0
    axes.plot(confidence[there], accuracy[there], linewidth=1.2)
    axes.scatter(confidence[there], accuracy[there], s=10 + 200 * n[there] / n.max(), alpha=0.5)
    axes.set_xlabel("confidence")
    axes.set_ylabel("accuracy")
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    return figure


def plot_histograms(
    rows: Mapping[str, NDArray[Any]], names: Sequence[str] = ("total", "aleatoric", "epistemic")
) -> Figure:
    """How the three uncertainties are spread over the rows; wrong rows apart where ``wrong`` is known."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 2.6), layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True)
    wrong = rows.get("wrong")
    for axes, name in zip(np.atleast_1d(panels), names, strict=True):
        values = np.asarray(rows[name], dtype=np.float64)
        edges = np.histogram_bin_edges(values, 30)
        if wrong is None:
            axes.hist(values, edges, color="C0")
        else:
            axes.hist(
                [values[~wrong], values[wrong]], edges, stacked=True, color=["C0", "C3"], label=["right", "wrong"]
            )
        axes.set_xlabel(f"{name} (nats)")
        axes.set_yscale("log")
        axes.spines[["top", "right"]].set_visible(False)
    np.atleast_1d(panels)[0].set_ylabel("rows")
    if wrong is not None:
        np.atleast_1d(panels)[-1].legend(frameon=False, fontsize=8)
    return figure


_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])


def plot_simplex(
    rep: Representation,
    row: int = 0,
    *,
    target: ArrayLike | None = None,
    labels: Sequence[str] = ("1", "2", "3"),
    points: int = 120,
) -> Figure:
    """One prediction over three classes in the triangle: members, or the credal set as an area; the target as a cross.

    Raises
    ------
    UncertaintyError
        If there are not three classes.
    """
    k = getattr(rep, "n_classes", 0)
    if k != 3:
        raise UncertaintyError(f"the triangle shows three classes, not {k}")
    figure, axes = _figure(4.2, 3.9)
    outline = np.vstack([_CORNERS, _CORNERS[:1]])
    axes.plot(outline[:, 0], outline[:, 1], color="0.3", linewidth=0.8)
    for corner, label, place in zip(_CORNERS, labels, ((-1, -1), (1, -1), (0, 1)), strict=True):
        axes.annotate(
            label, corner, xytext=(8 * place[0], 9 * place[1]), textcoords="offset points", ha="center", va="center"
        )
    if isinstance(rep, Sample):
        dots = rep.probs[row] @ _CORNERS
        axes.scatter(dots[:, 0], dots[:, 1], s=16, alpha=0.7)
    else:
        grid = np.array([(i, j, points - i - j) for i in range(points + 1) for j in range(points + 1 - i)]) / points
        inside = _contains(rep, row, grid)
        dots = grid[inside] @ _CORNERS
        axes.scatter(dots[:, 0], dots[:, 1], s=5, alpha=0.35, linewidths=0)
    mean = np.asarray(rep.mean())[row] @ _CORNERS
    axes.scatter(mean[:1], mean[1:], s=40, color="C3", label="prediction")
    if target is not None:
        cross = np.asarray(target) @ _CORNERS
        axes.scatter(cross[:1], cross[1:], s=50, marker="x", color="k", label="target")
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    axes.set_aspect("equal")
    axes.axis("off")
    return figure


def _contains(rep: Representation, row: int, grid: NDArray[np.float64]) -> NDArray[np.bool_]:
    if isinstance(rep, Intervals):
        return np.asarray(((grid >= rep.lower[row] - 1e-9) & (grid <= rep.upper[row] + 1e-9)).all(1))
    if isinstance(rep, TVBall):
        return np.asarray(np.abs(grid - rep.center[row]).sum(1) / 2 <= rep.radius[row] + 1e-9)
    if isinstance(rep, LevelSet):
        return LevelSet(np.broadcast_to(rep.alpha[row], grid.shape), rep.tau[row]).covers(grid)
    if isinstance(rep, ScoreBall):
        return ScoreBall(np.broadcast_to(rep.center[row], grid.shape), rep.radius[row], rep.score).covers(grid)
    if isinstance(rep, Hull):
        from assay.uncertainty.credal import hull_coverage

        return hull_coverage(
            Hull(np.broadcast_to(rep.vertices[row], (len(grid), *rep.vertices.shape[-2:]))), grid, epsilon=1e-9
        )
    raise UncertaintyError(f"a {type(rep).__name__} cannot be drawn in the triangle")


def plot_steps(result: Result, change: int | None = None) -> Figure:
    """Accuracy and uncertainties along a stream (moving averages); the change as a dashed line."""
    figure, axes = _figure(7, 3.4)
    for name in ("accuracy", "total", "aleatoric", "epistemic"):
        x, y = result.curves[name]
        axes.plot(x, y, label=name, linewidth=1.3)
    if change is not None:
        axes.axvline(change, color="0.7", linewidth=0.8, linestyle="--", zorder=0)
    axes.set_xlabel("row")
    axes.set_ylabel("moving average (nats, share)")
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def plot_learning(results: Mapping[str, Result]) -> Figure:
    """Accuracy over labelled rows, a line a strategy."""
    figure, axes = _figure()
    for name, result in results.items():
        x, y = result.curves["accuracy"]
        axes.plot(x, y, marker="o", markersize=3, label=f"{name} ({result.scores['area']:.3f})", linewidth=1.2)
    axes.set_xlabel("labelled rows")
    axes.set_ylabel("accuracy")
    axes.legend(frameon=False, fontsize=8)
    return figure


def plot_spider(scores: Mapping[str, Mapping[str, float]]) -> Figure:
    """Methods on several figures at once, each scaled to the best and worst of the methods shown (outside is better).

    Parameters
    ----------
    scores : dict of method to dict of figure to value
        Higher is better; the same figures for every method.
    """
    from matplotlib.figure import Figure

    names = list(next(iter(scores.values())))
    table = np.array([[row[name] for name in names] for row in scores.values()], dtype=np.float64)
    low, high = np.nanmin(table, 0), np.nanmax(table, 0)
    scaled = 0.15 + 0.85 * (table - low) / np.where(high > low, high - low, 1)
    angles = np.linspace(0, 2 * np.pi, len(names), endpoint=False)
    figure = Figure(figsize=(5.6, 4.4), layout="constrained")
    axes: Any = figure.add_subplot(projection="polar")
    for method, row in zip(scores, scaled, strict=True):
        axes.plot(np.append(angles, angles[0]), np.append(row, row[0]), linewidth=1.3, label=method)
    axes.set_xticks(angles, [n.replace("_", " ") for n in names], fontsize=8)
    axes.tick_params(axis="x", pad=10)
    axes.set_yticks([])
    axes.set_ylim(0, 1.05)
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.05, 1.0))
    return figure
