"""A stream whose concept turns: accuracy falls, and members that forget disagree until they have learned again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sklearn.naive_bayes import GaussianNB

from assay.uncertainty.generators import drifting_stream
from assay.uncertainty.streams import OnlineEnsemble, prequential

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run(*, seed: int = 0, n: int = 3000, draw: bool = False) -> tuple[dict[str, float], Figure | None]:
    """An online bagging ensemble of naive Bayes classifiers on a hyperplane that turns at two thirds of the stream."""
    change = 2 * n // 3
    X, y = drifting_stream(n, change, seed=seed)
    model = OnlineEnsemble(GaussianNB(), [0, 1], n=8, window=1000, seed=seed)
    result, _ = prequential(model, zip(X, y, strict=True), change=change, window=200)
    figure = None
    if draw:
        from assay.uncertainty.plots import plot_steps

        figure = plot_steps(result, change)
    return dict(result.scores), figure
