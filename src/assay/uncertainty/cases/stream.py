"""A stream whose concept turns: accuracy falls, and members that forget disagree until they have learned again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.naive_bayes import GaussianNB

from assay.uncertainty.errors import UncertaintyError
from assay.uncertainty.generators import drifting_stream
from assay.uncertainty.metrics import aurc_by_row
from assay.uncertainty.protocols import Result
from assay.uncertainty.streams import OnlineEnsemble, RiverForest, Steps, prequential

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
MODELS = ("bagging", "forgetting", "forest")


class OnStream:
    """A model along the stream, for the benchmark.

    Parameters
    ----------
    model : {"bagging", "forgetting", "forest"}
        Online bagging of naive Bayes classifiers; the same with members that start anew in turn; river's adaptive
        random forest.
    n, members : int
        Rows and members.
    seed : int
    """

    def __init__(self, model: str = "forgetting", *, n: int = 3000, members: int = 8, seed: int = 0) -> None:
        if model not in MODELS:
            raise UncertaintyError(f"model is one of {', '.join(MODELS)}, not {model!r}")
        self.model, self.n, self.members, self.seed = model, n, members, seed

    def along(self, seed: int) -> tuple[Result, Steps, int]:
        """The prequential result, its steps, and the row of the turn, which is at two thirds of the stream."""
        change = 2 * self.n // 3
        X, y = drifting_stream(self.n, change, seed=seed)
        rows: Iterable[Any] = X
        made: Any
        if self.model == "forest":
            from river import forest

            made = RiverForest(forest.ARFClassifier(n_models=self.members, seed=self.seed), [0, 1])
            rows = (dict(enumerate(row.tolist())) for row in X)
        else:
            window = 1000 if self.model == "forgetting" else None
            made = OnlineEnsemble(GaussianNB(), [0, 1], n=self.members, window=window, seed=self.seed)
        result, steps = prequential(made, zip(rows, y, strict=True), change=change, window=200)
        return result, steps, change

    def judged(self, *, seed: int, curve: Callable[..., None]) -> tuple[dict[str, float], dict[str, Array]]:
        """Metrics and values of rows, for the stream of a seed."""
        result, steps, _ = self.along(seed)
        for name, (x, y) in result.curves.items():
            curve(f"{name} over the last 200 rows", x, y, "row")
        s = result.scores
        of_row = aurc_by_row(steps.total, 1.0 - steps.correct)
        rise = s["epistemic_after"] / max(s["epistemic_before"], 1e-12)
        figures = {"headline": 1 - s["aurc"], "accuracy": s["accuracy"], "aurc": s["aurc"], "epistemic_rise": rise}
        return figures, {"headline": 1 - of_row, "aurc": of_row, "accuracy": steps.correct.astype(np.float64)}


def run(*, seed: int = 0, n: int = 3000, draw: bool = False) -> tuple[dict[str, float], Figure | None]:
    """An online bagging ensemble of naive Bayes classifiers on a hyperplane that turns at two thirds of the stream."""
    result, _, change = OnStream(n=n, seed=seed).along(seed)
    figure = None
    if draw:
        from assay.uncertainty.plots import plot_steps

        figure = plot_steps(result, change)
    return dict(result.scores), figure
