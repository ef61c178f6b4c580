"""Pictures of a diagnosis and of a comparison, for papers (matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from assay.diagnosis.dcm.models import GDINA
from assay.diagnosis.irt import IRT
from assay.diagnosis.metrics import rank_agreement
from assay.diagnosis.report import Diagnosis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from assay.diagnosis.protocol import Comparison


def plot_mastery(diagnosis: Diagnosis, *, students: int = 60) -> Figure:
    """Students in rows (weakest first), skills in columns, calibrated mastery as colour; a dot is unsure."""
    shown = np.argsort(diagnosis.mastery.mean(1), kind="stable")
    if len(shown) > students:
        shown = shown[np.linspace(0, len(shown) - 1, students).astype(int)]
    figure, axes = _axes(1.6 + 0.7 * diagnosis.mastery.shape[1], 1.4 + 0.09 * len(shown))
    image = axes.imshow(diagnosis.mastery[shown], aspect="auto", cmap="RdYlGn", vmin=0, vmax=1, interpolation="nearest")
    rows, columns = np.nonzero(diagnosis.state()[shown] == 1)
    axes.plot(columns, rows, ".", color="0.25", markersize=2.5)
    axes.set_xticks(range(len(diagnosis.data.kc_names)), diagnosis.data.kc_names, rotation=45, ha="right", fontsize=8)
    axes.set_yticks([])
    axes.set_ylabel("students, weakest first")
    figure.colorbar(image, ax=axes, label="chance on a typical item", shrink=0.8)
    return figure


def plot_auc_against_doa(comparison: Comparison, x: str = "auc", y: str = "doa") -> Figure:
    """Models by how well answers are foretold and by a figure of diagnosis: the point of the field in one picture."""
    figure, axes = _axes(6, 4.2)
    means = comparison.cells.groupby("model", sort=False)[[x, y]].mean().dropna()
    axes.scatter(means[x], means[y], s=26, color="#22577a", zorder=3)
    for name, row in means.iterrows():
        axes.annotate(str(name), (row[x], row[y]), xytext=(4, 3), textcoords="offset points", fontsize=8)
    agreement = rank_agreement(means[x].tolist(), means[y].tolist())
    axes.set_title(
        f"Kendall's tau {agreement['kendall_tau']:.2f}; the winner by {x} is number "
        f"{agreement['place_of_winner']:.0f} by {y}",
        loc="left",
        fontsize=10,
    )
    axes.set_xlabel(x.replace("_", " "))
    axes.set_ylabel(y.replace("_", " "))
    axes.grid(alpha=0.25)
    return figure


def plot_stopping(comparison: Comparison, metric: str = "auc") -> Figure:
    """What each stopping rule does to a figure: a line a model."""
    table = comparison.stopping_table(metric)
    rules = [c for c in table.columns if c != "range"]
    figure, axes = _axes(1.5 + 1.1 * len(rules), 3.8)
    for name, row in table.iterrows():
        axes.plot(
            range(len(rules)),
            row[rules],
            marker="o",
            markersize=4,
            linewidth=1.4,
            label=f"{name} (range {row['range']:.3f})",
        )
    axes.set_xticks(range(len(rules)), rules, rotation=20, fontsize=8)
    axes.set_ylabel(metric.replace("_", " "))
    axes.legend(frameon=False, fontsize=7)
    return figure


def plot_item_curves(model: IRT, items: Sequence[int] = (0, 1, 2, 3, 4)) -> Figure:
    """Probability of a right answer over ability, a line an item."""
    figure, axes = _axes(5.5, 3.6)
    theta = np.linspace(-4, 4, 161)
    for j in items:
        p = model.lower_[j] + (1 - model.lower_[j]) / (1 + np.exp(-(model.slope_[j] * theta - model.intercept_[j])))
        axes.plot(
            theta,
            p,
            linewidth=1.5,
            label=f"item {j + 1}: a {model.item_params_[j, 0]:.2f}, b {model.item_params_[j, 1]:.2f}",
        )
    axes.set_xlabel("ability")
    axes.set_ylabel("probability of a right answer")
    axes.legend(frameon=False, fontsize=8)
    return figure


def plot_item_classes(model: GDINA, item: int) -> Figure:
    """Success probability of an item in each of its reduced classes."""
    table = model.success_table(item)
    names = ["none" if not skills else "+".join(str(model.kc_names_[k]) for k in skills) for skills in table]
    figure, axes = _axes(1.6 + 0.8 * len(names), 3.2)
    bars = axes.bar(range(len(names)), list(table.values()), color="#57a773", width=0.65)
    axes.bar_label(bars, fmt="%.2f", fontsize=8)
    axes.set_xticks(range(len(names)), names, rotation=25, ha="right", fontsize=8)
    axes.set_ylim(0, 1.08)
    axes.set_ylabel("probability of a right answer")
    axes.set_title(f"item {item + 1}, skills that are mastered", loc="left", fontsize=10)
    return figure


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
