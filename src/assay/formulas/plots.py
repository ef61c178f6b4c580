"""Pictures: coverage over tokens, the split of failures, precision over recall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from assay.formulas.context.coverage import Coverage
from assay.formulas.failures import CAPABILITIES, Split
from assay.formulas.metrics import Result, precision_recall

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _figure(width: float = 6.0, height: float = 4.0) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def plot_coverage(rows: Sequence[Coverage]) -> Figure:
    """Coverage over mean tokens, a line a strategy; the oracle is dashed.

    Examples
    --------
    >>> rows = [Coverage("dense", b, c, c, t, t, 1, 9) for b, c, t in ((128, 0.4, 100.0), (512, 0.8, 400.0))]
    >>> len(plot_coverage(rows).axes[0].lines)
    1
    """
    figure, axes = _figure()
    for name in dict.fromkeys(row.strategy for row in rows):
        own = sorted((r.tokens, r.coverage) for r in rows if r.strategy == name)
        style = "--" if name == "oracle" else "-"
        axes.plot([t for t, _ in own], [c for _, c in own], style, marker="o", markersize=3, label=name)
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("tokens (mean)")
    axes.set_ylabel("coverage")
    axes.legend(fontsize=8)
    return figure


def plot_failures(splits: Mapping[str, Split]) -> Figure:
    """Failures by capability, a bar a system; the bar's length is the share of tasks that failed.

    Examples
    --------
    >>> split = Split(dict.fromkeys(CAPABILITIES, 1), 5, 10, {})
    >>> len(plot_failures({"a": split}).axes[0].patches)
    5
    """
    figure, axes = _figure(6.5, 1.0 + 0.5 * len(splits))
    names = list(splits)
    left = [0.0] * len(names)
    for what in CAPABILITIES:
        widths = [splits[n].counts[what] / max(splits[n].tasks, 1) for n in names]
        axes.barh(names, widths, left=left, label=what)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_xlabel("share of tasks")
    axes.set_xlim(0, 1)
    axes.legend(fontsize=7, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def plot_precision_recall(results: Mapping[str, Sequence[Result]]) -> Figure:
    """Precision of what is shown over recall, as the threshold falls, a line a system.

    Examples
    --------
    >>> made = [Result(str(i), "a", suggestions=[{"score": i / 9}], top1=i > 4) for i in range(10)]
    >>> len(plot_precision_recall({"a": made}).axes[0].lines)
    1
    """
    figure, axes = _figure()
    for name, rows in results.items():
        curve = precision_recall(rows)
        axes.plot(curve.recall, curve.precision, label=name)
    axes.set_xlabel("recall")
    axes.set_ylabel("precision")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.legend(fontsize=8)
    return figure
