"""Figures for papers (matplotlib)."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from assay.difftest.check import Result
from assay.difftest.names import Name
from assay.difftest.tolerance import layer_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_depth(
    result: Result, *, eps: float | None = None, phases: tuple[str, ...] = ("out", "gout", "main_grad")
) -> Figure:
    """Error and tolerance against depth, in units of eps: how rounding grows through the layers.

    Parameters
    ----------
    result : Result
    eps : float, optional
        Unit; default 1 (relative errors).
    phases : tuple of str
    """
    import matplotlib.pyplot as plt

    unit = eps or 1.0
    layers = 1 + max((layer_of(Name.parse(v.name).module, 0) for v in result.verdicts), default=0)
    figure, axes = plt.subplots(1, len(phases), figsize=(3.6 * len(phases), 3.2), squeeze=False, sharey=True)
    for axis, phase in zip(axes[0], phases):
        found: dict[int, list[Any]] = defaultdict(list)
        for v in result.verdicts:
            n = Name.parse(v.name)
            if n.phase == phase and v.status != "left out" and math.isfinite(v.relative) and v.relative > 0:
                found[layer_of(n.module, layers)].append(v)
        for layer, verdicts in sorted(found.items()):
            axis.plot([layer] * len(verdicts), [v.tolerance / unit for v in verdicts], "_", color="0.6", ms=9)
            for wrong, colour in ((False, "#3b6ea8"), (True, "#b3261e")):
                chosen = [v.relative / unit for v in verdicts if (v.status == "wrong") is wrong]
                axis.plot([layer] * len(chosen), chosen, "o", color=colour, ms=3, alpha=0.7)
        axis.set(yscale="log", xlabel="layer", title=phase)
    axes[0][0].set_ylabel("relative error" + (" / eps" if eps else ""))
    figure.tight_layout()
    return figure


def plot_timeline(result: Result) -> Figure:
    """Error over tolerance of every tensor in the order of execution."""
    import matplotlib.pyplot as plt

    shown = [v for v in result.verdicts if v.status != "left out"]
    figure, axis = plt.subplots(figsize=(8, 3))
    values = [min(max(v.excess, 1e-3), 1e6) for v in shown]
    colours = ["#b3261e" if v.status == "wrong" else "#3b6ea8" for v in shown]
    axis.scatter(range(len(shown)), values, c=colours, s=8, alpha=0.8, linewidths=0)
    axis.axhline(1.0, color="#b3261e", lw=0.8)
    axis.set(yscale="log", xlabel="tensor, in the order of execution", ylabel="error / tolerance")
    figure.tight_layout()
    return figure
