"""Figures of a stream run: pure functions, arrays in, floats out.

Labels are class codes (0, 1, ...); scores are ``[n]`` for two classes (grows with P(class 1)) or ``[n, K]``; rows
whose label is missing are left out before. A figure that is undefined on its input (AUROC of one class) is NaN with a
`SingleClassWarning`, never an exception. AUROC is computed on raw scores; haphazard 1.2.8 squashes them first, so that
large ones tie.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, softmax

from assay.streams.errors import SingleClassWarning, StreamError

Codes = Int[np.ndarray, " rows"]
Floats = Float[np.ndarray, " rows"]
Scores = Float[np.ndarray, "rows *classes"]
Targets = Int[np.ndarray, " rows"] | Float[np.ndarray, " rows"]


@dataclass(frozen=True)
class StreamMetric:
    """A figure by name.

    Attributes
    ----------
    needs : {"predictions", "scores", "values"}
        What it is computed from: predicted codes, scores, or predicted values (regression).
    """

    name: str
    function: Callable[..., float]
    needs: str
    higher_is_better: bool


def number_of_errors(y: Codes, predicted: Codes) -> float:
    """Rows whose prediction is wrong."""
    return float(np.sum(y != predicted))


def accuracy(y: Codes, predicted: Codes, weights: Floats | None = None) -> float:
    """Share of rows whose prediction is right; NaN for no rows."""
    return _average(y == predicted, weights)


def confusion(
    y: Codes, predicted: Codes, k: int | None = None, weights: Floats | None = None
) -> Float[np.ndarray, "true predicted"]:
    """``float64[k, k]``: weight of rows of class i that were predicted j."""
    k = k or int(max(y.max(initial=-1), predicted.max(initial=-1))) + 1
    return np.bincount(y * k + predicted, weights=weights, minlength=k * k).reshape(k, k).astype(np.float64)


def balanced_accuracy(y: Codes, predicted: Codes, weights: Floats | None = None) -> float:
    """Mean recall of the classes that occur (scikit-learn's ``balanced_accuracy_score``)."""
    recall = _recalls(y, predicted, weights)
    return float(np.mean(recall)) if len(recall) else np.nan


def g_mean(y: Codes, predicted: Codes, weights: Floats | None = None) -> float:
    """Geometric mean of the recalls of the classes that occur (Kubat and Matwin, ICML 1997)."""
    recall = _recalls(y, predicted, weights)
    return float(np.prod(recall) ** (1 / len(recall))) if len(recall) else np.nan


def macro_f1(y: Codes, predicted: Codes, weights: Floats | None = None) -> float:
    """Unweighted mean of F1 over the classes that occur or are predicted; an undefined F1 counts 0."""
    if not len(y):
        return np.nan
    table = confusion(y, predicted, weights=weights)
    hit, true, said = np.diag(table), table.sum(1), table.sum(0)
    there = (true + said) > 0
    return float(np.mean(2 * hit[there] / (true + said)[there]))


def kappa(y: Codes, predicted: Codes, weights: Floats | None = None) -> float:
    """Cohen's kappa: agreement beyond that of independent guesses with the same shares; NaN where that is certain."""
    if not len(y):
        return np.nan
    table = confusion(y, predicted, weights=weights)
    table = table / table.sum()
    chance = float(table.sum(0) @ table.sum(1))
    if chance == 1.0:
        return _undefined("kappa")
    return float((np.trace(table) - chance) / (1 - chance))


def kappa_temporal(y: Codes, predicted: Codes, weights: Floats | None = None) -> float:
    """Kappa against predicting the last label (Zliobaite et al., Machine Learning 2015, eq. 6); first row left out.

    NaN where the last label is always right.
    """
    if len(y) < 2:
        return np.nan
    later = None if weights is None else weights[1:]
    persistent = _average(y[1:] == y[:-1], later)
    if persistent == 1.0:
        return _undefined("kappa_temporal")
    return (_average(y[1:] == predicted[1:], later) - persistent) / (1 - persistent)


def auroc(y: Codes, scores: Scores, weights: Floats | None = None) -> float:
    """Area under the ROC curve on raw scores, ties counted half; more than two classes: one-vs-rest macro average."""
    return _one_vs_rest(_binary_auroc, "auroc", y, scores, weights)


def auprc(y: Codes, scores: Scores, weights: Floats | None = None) -> float:
    """Average precision (no interpolation); more than two classes: one-vs-rest macro average."""
    return _one_vs_rest(_binary_average_precision, "auprc", y, scores, weights)


def probabilities(scores: Scores) -> Scores:
    """Scores as probabilities: the logistic function of a score, the softmax of one score a class."""
    return expit(scores) if scores.ndim == 1 else softmax(scores, axis=1)


def log_loss(y: Codes, scores: Scores, weights: Floats | None = None) -> float:
    """Mean negative log-probability of the true class, scores taken as log-odds (logits for several classes)."""
    if scores.ndim == 1:
        return _average(np.logaddexp(0.0, np.where(y == 1, -scores, scores)), weights)
    return _average(-log_softmax(scores, axis=1)[np.arange(len(y)), y], weights) if len(y) else np.nan


def brier(y: Codes, scores: Scores, weights: Floats | None = None) -> float:
    """Mean squared error of the probability of class 1; several classes: summed over the classes (Brier 1950)."""
    p = probabilities(scores)
    if scores.ndim == 1:
        return _average((p - y) ** 2, weights)
    return _average(((p - np.eye(scores.shape[1])[y]) ** 2).sum(1), weights)


def rmse(y: Floats, predicted: Floats, weights: Floats | None = None) -> float:
    """Root mean squared error."""
    return float(np.sqrt(_average((y - predicted) ** 2, weights)))


def mae(y: Floats, predicted: Floats, weights: Floats | None = None) -> float:
    """Mean absolute error."""
    return _average(np.abs(y - predicted), weights)


def r2(y: Floats, predicted: Floats, weights: Floats | None = None) -> float:
    """Share of the variance explained; NaN where y does not vary."""
    if not len(y):
        return np.nan
    variance = _average((y - _average(y, weights)) ** 2, weights)
    return _undefined("r2") if variance == 0 else 1.0 - _average((y - predicted) ** 2, weights) / variance


METRICS: dict[str, StreamMetric] = {
    metric.name: metric
    for metric in (
        StreamMetric("number_of_errors", number_of_errors, "predictions", False),
        StreamMetric("accuracy", accuracy, "predictions", True),
        StreamMetric("balanced_accuracy", balanced_accuracy, "predictions", True),
        StreamMetric("auroc", auroc, "scores", True),
        StreamMetric("auprc", auprc, "scores", True),
        StreamMetric("kappa", kappa, "predictions", True),
        StreamMetric("kappa_temporal", kappa_temporal, "predictions", True),
        StreamMetric("macro_f1", macro_f1, "predictions", True),
        StreamMetric("g_mean", g_mean, "predictions", True),
        StreamMetric("log_loss", log_loss, "scores", False),
        StreamMetric("brier", brier, "scores", False),
        StreamMetric("rmse", rmse, "values", False),
        StreamMetric("mae", mae, "values", False),
        StreamMetric("r2", r2, "values", True),
    )
}
CLASSIFICATION = [name for name, metric in METRICS.items() if metric.needs != "values"]
REGRESSION = [name for name, metric in METRICS.items() if metric.needs == "values"]


def metrics_for(task: str, names: Sequence[str] | None) -> list[StreamMetric]:
    """The metrics of a task by name; all of them for None.

    Raises
    ------
    StreamError
        If a name is unknown or belongs to the other task.
    """
    from difflib import get_close_matches

    fitting = REGRESSION if task == "regression" else CLASSIFICATION
    for name in names or ():
        if name not in fitting:
            near = get_close_matches(name, fitting, n=3, cutoff=0.4) or fitting
            raise StreamError(f"there is no metric {name!r} for {task}; did you mean {', '.join(near)}?")
    return [METRICS[name] for name in (fitting if names is None else names)]


def evaluate(
    metric: StreamMetric, y: Targets, scores: Scores, predicted: Targets,
    weights: Floats | None = None,
) -> float:  # fmt: skip
    """One metric on labels, scores and predictions."""
    given = scores if metric.needs == "scores" else predicted
    return metric.function(y, given) if weights is None else metric.function(y, given, weights)


def sliding(
    metric: StreamMetric, y: Targets, scores: Scores, predicted: Targets, window: int, points: Sequence[int]
) -> Float[np.ndarray, " points"]:  # fmt: skip
    """The metric over the last ``window`` rows, at each of these row counts: ``float64[len(points)]``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SingleClassWarning)
        parts = [slice(max(0, p - window), p) for p in points]
        return np.array([evaluate(metric, y[s], scores[s], predicted[s]) for s in parts])


def faded(
    metric: StreamMetric, y: Targets, scores: Scores, predicted: Targets, factor: float, points: Sequence[int]
) -> Float[np.ndarray, " points"]:  # fmt: skip
    """The metric with rows weighted by ``factor ** age`` (Gama, Sebastiao and Rodrigues, 2013), at these row counts.

    Rows whose weight is below 1e-6 are left out. The number of errors becomes the faded share of errors.
    """
    reach = int(np.ceil(np.log(1e-6) / np.log(factor))) if factor < 1 else max(points, default=0)
    values = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SingleClassWarning)
        for p in points:
            s = slice(max(0, p - reach), p)
            weights = factor ** np.arange(p - 1 - s.start, -1, -1.0)
            if metric.name == "number_of_errors":
                values.append(1.0 - accuracy(y[s], predicted[s], weights))
            else:
                values.append(evaluate(metric, y[s], scores[s], predicted[s], weights))
    return np.array(values)


def recovery_time(
    correct: Bool[np.ndarray, " rows"], change: int, *, window: int = 100, tolerance: float = 0.0
) -> float:
    """Rows after a change until the sliding accuracy is back at what it was before it.

    Parameters
    ----------
    correct : bool[n]
        Whether each row was predicted right.
    change : int
        First row after the change.
    window : int
        Rows of the sliding accuracy.
    tolerance : float
        Back means: not below the old accuracy by more than this.

    Returns
    -------
    float
        0 if accuracy never fell; infinity if it did not come back before the end; NaN if there is no row before.

    Examples
    --------
    >>> hits = np.array([True] * 50 + [False] * 20 + [True] * 50)
    >>> recovery_time(hits, 50, window=10)
    29.0
    """
    if change < 1 or change >= len(correct):
        return np.nan
    before = correct[max(0, change - window) : change].mean()
    after = correct[change:].astype(np.float64)
    total = np.cumsum(np.concatenate([[0.0], after]))
    ends = np.arange(1, len(after) + 1)
    starts = np.maximum(0, ends - window)
    rate = (total[ends] - total[starts]) / (ends - starts)
    low = np.flatnonzero(rate < before - tolerance - 1e-12)
    if not len(low):
        return 0.0
    back = np.flatnonzero(rate[low[0] :] >= before - tolerance - 1e-12)
    return float(low[0] + back[0]) if len(back) else np.inf


def _average(values: NDArray[np.float64] | NDArray[np.bool_], weights: Floats | None) -> float:
    if not len(values):
        return np.nan
    return float(np.average(values, weights=weights))


def _recalls(y: Codes, predicted: Codes, weights: Floats | None) -> Float[np.ndarray, " present"]:
    if not len(y):
        return np.empty(0)
    table = confusion(y, predicted, weights=weights)
    total = table.sum(1)
    there = total > 0
    return np.diag(table)[there] / total[there]


def _one_vs_rest(
    area: Callable[[NDArray[np.bool_], Floats, Floats | None], float],
    name: str,
    y: Codes,
    scores: Scores,
    weights: Floats | None,
) -> float:
    if scores.ndim == 1:
        positive = y == 1
        if not positive.any() or positive.all():
            return _undefined(name)
        return area(positive, scores, weights)
    there = [k for k in range(scores.shape[1]) if 0 < np.sum(y == k) < len(y)]
    if not there:
        return _undefined(name)
    return float(np.mean([area(y == k, scores[:, k], weights) for k in there]))


def _binary_auroc(positive: NDArray[np.bool_], scores: Floats, weights: Floats | None) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(positive, scores, sample_weight=weights))


def _binary_average_precision(positive: NDArray[np.bool_], scores: Floats, weights: Floats | None) -> float:
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(positive, scores, sample_weight=weights))


def _undefined(name: str) -> float:
    warnings.warn(
        f"{name} is undefined here (only one class, or no variation) and is reported as NaN",
        SingleClassWarning,
        stacklevel=3,
    )
    return float("nan")
