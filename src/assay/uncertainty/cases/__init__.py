"""Case studies that run: a language model of known ambiguity, a graph with bridge nodes, a stream that drifts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CASES = ("language", "graph", "stream")


def run_case(name: str, *, seed: int = 0, draw: bool = False) -> tuple[dict[str, float], Figure | None]:
    """Figures of a case, and its picture if one is asked for."""
    module = import_module(f"assay.uncertainty.cases.{name}")
    figures: dict[str, float]
    figures, figure = module.run(seed=seed, draw=draw)
    return figures, figure
