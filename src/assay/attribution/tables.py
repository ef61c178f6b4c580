"""Which rows of a table have a suspicious label: one call, one command.

Four kinds of evidence are joined by the mean of their ranks. Out of fold: each row is judged by networks that did not
see it, by the margin of its own label, and by a linear model that did not either. Gradients: the mean cosine of the
row's push with the pushes of all rows. Neighbours: minus the row's KNN-Shapley value for the others. Self-influence is
there too, alone: on tables with flipped labels it found fewer of them than any of the four.
"""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import rankdata
from sklearn.exceptions import ConvergenceWarning

from assay.attribution.chunks import write_whole
from assay.attribution.errors import AttributionError, ShapeMismatch
from assay.attribution.farm import RetrainingFarm
from assay.attribution.fitting import FitSpec, as_tensors, fit_one
from assay.attribution.formats import TableData
from assay.attribution.methods import EKFAC, GradCos, Influence, KNNShapley
from assay.attribution.models import ModelSpec
from assay.attribution.subsets import leave_out

WAYS = ("combined", "out-of-fold", "linear", "self-influence", "ekfac", "gradcos", "knn")


@dataclass(frozen=True)
class RankedRows:
    """Rows by suspicion.

    Attributes
    ----------
    order : int array (N,)
        Row numbers, the most suspicious first.
    suspicion : float array (N,)
        Of each row in its own place; for "combined" a mean rank in 0..1.
    suggested : int array (N,) or None
        Class that models which did not see the row prefer.
    confidence : float array (N,) or None
        Their mean probability of the row's own label.
    """

    order: Int[np.ndarray, " n"]
    suspicion: Float[np.ndarray, " n"]
    suggested: np.ndarray | None
    confidence: np.ndarray | None
    table: TableData
    way: str

    def write(self, path: str | os.PathLike[str], *, top: int | None = None) -> Path:
        """A CSV file: rank, row number (from 0, as the table was read), suspicion, label, suggestion, then the columns.

        Texts that a spreadsheet would take for a formula get an apostrophe in front.
        """
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        table = self.table
        names = list(table.rows[0]) if table.rows else []

        def write(part: Path) -> None:
            with part.open("w", newline="", encoding="utf-8") as file:
                out = csv.writer(file)
                out.writerow(["rank", "row", "suspicion", "label", "suggested_label", "label_probability", *names])
                for rank, i in enumerate(self.order[:top], start=1):
                    label = table.classes[table.y[i]] if table.classes else table.y[i]
                    hint = "" if self.suggested is None else self._shown(self.suggested[i])
                    sure = "" if self.confidence is None else f"{self.confidence[i]:.3f}"
                    cells = [table.rows[i][n] for n in names] if table.rows else []
                    out.writerow(
                        [rank, int(i), f"{self.suspicion[i]:.6g}", _safe(label), _safe(hint), sure, *map(_safe, cells)]
                    )

        return write_whole(target, write)

    def _shown(self, value: Any) -> Any:
        return self.table.classes[int(value)] if self.table.classes else float(value)


def _safe(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def rank_rows(
    table: TableData, *, way: str = "combined", folds: int = 5, repeats: int = 4, hidden: Sequence[int] = (32,),
    fit_spec: FitSpec | None = None, seed: int = 0, report: Callable[[int, int], None] | None = None,
) -> RankedRows:  # fmt: skip
    """Rank the rows of a table by how suspicious their label is.

    Parameters
    ----------
    table : TableData
        From `read_table`.
    way : {"combined", "out-of-fold", "linear", "self-influence", "ekfac", "gradcos", "knn"}
        "combined" joins out-of-fold margins of networks and of a linear model, gradient cosines and (for classes)
        KNN-Shapley: the mean of their ranks. The others are one piece of evidence each.
    folds, repeats : int
        Models trained: their product.
    hidden : sequence of int
        Layers of the network.

    Raises
    ------
    AttributionError
        If there are fewer rows than folds, or the way is unknown.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from assay.attribution.data import flip_labels
    >>> X, y = load_wine(return_X_y=True)
    >>> labels, bad = flip_labels(y, 0.1)
    >>> table = TableData(((X - X.mean(0)) / X.std(0)).astype("float32"), labels, [0, 1, 2], [])
    >>> found = rank_rows(table)
    >>> bool(bad[found.order[: bad.sum()]].mean() > 0.8)
    True
    """
    if way not in WAYS:
        raise AttributionError(f"way is one of {', '.join(WAYS)}, not {way!r}")
    n = len(table.X)
    if len(table.y) != n:
        raise ShapeMismatch(f"{n} rows and {len(table.y)} labels")
    if n < 2 * folds:
        raise AttributionError(f"{n} rows are too few for {folds} folds; at least {2 * folds} are needed")
    regression = not table.classes
    outputs = 1 if regression else len(table.classes)
    y = table.y
    if regression:
        spread = float(y.std()) or 1.0
        y = ((y - y.mean()) / spread).astype(np.float32)
    spec = fit_spec or FitSpec(
        epochs=int(np.clip(40_000 // n, 10, 60)), lr=0.05 if not regression else 0.01, batch_size=32,
        weight_decay=1e-3, task="regression" if regression else "classification",
    )  # fmt: skip
    model = ModelSpec.of("mlp", inputs=table.X.shape[1], outputs=outputs, hidden=tuple(hidden))
    suggested = confidence = None
    parts: list[np.ndarray] = []
    if way in ("combined", "out-of-fold"):
        margin, suggested, confidence = _out_of_fold(table.X, y, model, spec, folds, repeats, seed, report)
        parts.append(-margin)
    if way in ("combined", "linear"):
        parts.append(_linear_out_of_fold(table.X, y, regression, folds, min(repeats, 2), seed))
    for one in ("gradcos", "knn") if way == "combined" else (way,):
        if one not in ("out-of-fold", "linear") and not (regression and way == "combined" and one == "knn"):
            parts.append(_by_attribution(one, table.X, y, model, spec, seed))
    suspicion = parts[0] if len(parts) == 1 else np.mean([rankdata(p) / n for p in parts], axis=0)
    if regression and suggested is not None:
        suggested = suggested * spread + float(table.y.mean())
    return RankedRows(np.argsort(-suspicion, kind="stable"), suspicion, suggested, confidence, table, way)


def _out_of_fold(
    X: np.ndarray, y: np.ndarray, model: ModelSpec, spec: FitSpec, folds: int, repeats: int, seed: int,
    report: Callable[[int, int], None] | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:  # fmt: skip
    """Mean margin of the own label (minus the error, for regression) under models that did not see the row."""
    n = len(X)
    rng = np.random.default_rng(seed)
    groups: list[np.ndarray] = []
    for _ in range(repeats):
        groups += np.array_split(_balanced_order(y, spec.task, rng), folds)
    subsets = leave_out(n, groups)  # type: ignore[arg-type]
    farm = RetrainingFarm(model, spec, model_seed=seed)
    truth = farm.run(X, y, X, y, subsets=subsets, report=report)
    outside = np.zeros((len(groups), n), dtype=bool)
    for j, group in enumerate(groups):
        outside[j, group] = True
    if spec.task == "regression":
        mean = (truth.outputs * outside).sum(0) / outside.sum(0)
        return -np.abs(mean - y), mean, None
    margin = (truth.outputs * outside).sum(0) / outside.sum(0)
    probability = ((1 / (1 + np.exp(-truth.outputs.astype(float)))) * outside).sum(0) / outside.sum(0)
    classes = int(y.max()) + 1
    votes = np.stack([((truth.predictions[0] == c) & outside).sum(0) for c in range(classes)])
    return margin, votes.argmax(0), probability


def _linear_out_of_fold(
    X: np.ndarray, y: np.ndarray, regression: bool, folds: int, repeats: int, seed: int
) -> np.ndarray:
    """Suspicion by a logistic (ridge, for regression) model that did not see the row: one less its probability of the
    own label, or its error.
    """
    from sklearn.linear_model import LogisticRegression, Ridge

    n = len(X)
    rng = np.random.default_rng([seed, 1])
    total = np.zeros(n)
    for _ in range(repeats):
        for group in np.array_split(_balanced_order(y, "regression" if regression else "classification", rng), folds):
            rest = np.ones(n, dtype=bool)
            rest[group] = False
            if regression:
                total[group] += np.abs(Ridge().fit(X[rest], y[rest]).predict(X[group]) - y[group])
                continue
            seen = np.unique(y[rest])
            if len(seen) == 1:
                total[group] += y[group] != seen[0]
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # near enough for an order
                model = LogisticRegression(max_iter=300).fit(X[rest], y[rest])
            place = np.searchsorted(seen, y[group]).clip(max=len(seen) - 1)
            own = model.predict_proba(X[group])[np.arange(len(group)), place]
            total[group] += 1 - np.where(seen[place] == y[group], own, 0.0)
    return total / repeats


def _balanced_order(y: np.ndarray, task: str, rng: np.random.Generator) -> np.ndarray:
    """A random order in which each stretch holds the classes in about their shares (for classes; else just random)."""
    order = rng.permutation(len(y))
    if task == "regression":
        return order
    place = np.empty(len(y))
    for c in np.unique(y):
        rows = order[y[order] == c]
        place[rows] = (np.arange(len(rows)) + rng.random()) / len(rows)
    return np.argsort(place, kind="stable")


def _by_attribution(way: str, X: np.ndarray, y: np.ndarray, model: ModelSpec, spec: FitSpec, seed: int) -> np.ndarray:
    if way == "knn":
        return KNNShapley(k=5).fit(None, X, y).suspicion()
    x, labels = as_tensors(X, y)
    net, _ = fit_one(model, spec, x, labels, seed=seed)
    if way == "gradcos":
        return GradCos().fit(net, x, labels).suspicion()
    if way == "ekfac":
        return EKFAC(target="loss").fit(net, x, labels).suspicion()
    method = Influence(target="loss", task=spec.task, solver="auto").fit(net, x, labels)
    return method.self_influence()
