"""One run of the benchmark: fit on one part of the rows, judge on the other, by what uncertainty is for.

A run is given the task (``purpose``, ``table``, ``option(name, default)``), the method (anything with
``make(seed=...)``) and a context that hands out seeds and keeps curves and values of test rows. Row values bear the
names of the metrics whose mean over rows they give, so that two methods can be compared row by row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.uncertainty.errors import FallbackWarning

Array = NDArray[np.float64]
CURVE_POINTS = 40
PURPOSES = ("select", "ood", "active", "first-order", "regress", "case")


@contextmanager
def one_thread() -> Iterator[None]:
    """Numerical libraries on one thread: networks of this size only lose by two, most of all on a busy machine."""
    from threadpoolctl import threadpool_limits

    try:
        import torch
    except ImportError:
        torch = None  # type: ignore[assignment]
    before = torch.get_num_threads() if torch is not None else 1
    try:
        with threadpool_limits(1):
            if torch is not None:
                torch.set_num_threads(1)
            yield
    finally:
        if torch is not None:
            torch.set_num_threads(before)


def judge(data: Any, method: Any, context: Any) -> dict[str, float]:
    """The figures of one run."""
    by_purpose: dict[str, Callable[..., dict[str, float]]] = {
        "select": _select, "ood": _ood, "active": _active, "first-order": _first_order, "regress": _regress,
        "case": _case,
    }  # fmt: skip
    with warnings.catch_warnings(), one_thread():
        warnings.filterwarnings("ignore", category=UserWarning, module="sklearn")
        return by_purpose[data.purpose](data, method, context)


def _split(
    n: int, context: Any, share: float = 0.5, largest: int = 4000
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    order = context.rng("split").permutation(n)[:largest]
    cut = int(share * len(order))
    return order[:cut], order[cut:]


def _table(data: Any) -> tuple[Array, NDArray[Any]]:
    assert data.table is not None
    assert data.table.X is not None
    return data.table.X, data.table.y


def _make(method: Any, context: Any, seed: int | None = None) -> Any:
    chosen = context.integer_seed("model") if seed is None else seed
    try:
        return method.make(seed=chosen)
    except TypeError as error:  # a user's method that takes no seed
        if "seed" not in str(error):
            raise
        return method.make()


def _curve(context: Any, name: str, x: Array, y: Array, x_label: str) -> None:
    for i in np.unique(np.linspace(0, len(x) - 1, min(CURVE_POINTS, len(x))).astype(int)):
        context.curve(name, x[i], y[i], x_label=x_label)


def _rows(context: Any, headline: Array, **values: Array) -> None:
    context.rows("headline", headline)
    for name, value in values.items():
        context.rows(name, value)


def _uncertainty(rep: Any, notion: str, context: Any) -> Array:
    from assay.uncertainty.measures import uncertainty_of

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FallbackWarning)
        values = uncertainty_of(rep, notion)
    for warning in caught:
        if issubclass(warning.category, FallbackWarning):
            context.note(**{f"{notion}_fallback": str(warning.message)})
    return values


def _select(data: Any, method: Any, context: Any) -> dict[str, float]:
    from assay.uncertainty import metrics as m
    from assay.uncertainty.protocols import selective_prediction

    X, y = _table(data)
    train, test = _split(len(y), context)
    rep = _make(method, context).fit(X[train], y[train]).predict(X[test])
    p = np.asarray(rep.mean())
    codes = np.searchsorted(np.unique(y[train]), y[test])
    wrong = p.argmax(1) != codes
    unsure = _uncertainty(rep, "total", context)
    result = selective_prediction(unsure, wrong, resamples=0)
    _curve(context, "risk over coverage", *result.curves["risk_coverage"], "coverage")
    of_row = m.aurc_by_row(unsure, wrong.astype(np.float64))
    true = np.maximum(p[np.arange(len(p)), codes.clip(max=p.shape[1] - 1)], 1e-12)
    onehot = np.eye(p.shape[1])[codes.clip(max=p.shape[1] - 1)]
    _rows(context, 1 - of_row, aurc=of_row, accuracy=1.0 - wrong, log_loss=-np.log(true),
          brier=((p - onehot) ** 2).sum(1))  # fmt: skip
    return {
        "headline": 1 - result.scores["aurc"], "accuracy": float(1 - wrong.mean()), "aurc": result.scores["aurc"],
        "excess_aurc": result.scores["excess_aurc"], "augrc": result.scores["augrc"],
        "error_auroc": result.scores["error_auroc"], "ece": m.expected_calibration_error(p, codes),
        "log_loss": m.log_loss(np.maximum(p, 1e-12), codes), "brier": m.brier_score(p, codes),
    }  # fmt: skip


def _ood(data: Any, method: Any, context: Any) -> dict[str, float]:
    from assay.uncertainty.protocols import ood_detection

    X, y = _table(data)
    kind = data.option("foreign", "classes")
    known = y < y.max() + 1 - data.option("held_out", 2) if kind == "classes" else np.ones(len(y), dtype=bool)
    inside = np.flatnonzero(known)
    train, test = (inside[part] for part in _split(len(inside), context))
    rng = context.rng("foreign")
    foreign = {
        "classes": lambda: X[~known],
        "inverted": lambda: X.max() - X[test],
        "permuted": lambda: X[test][:, rng.permutation(X.shape[1])],
        "noise": lambda: rng.choice(X.ravel(), size=(len(test), X.shape[1])),
    }[kind]()
    fitted = _make(method, context).fit(X[train], y[train])
    near = fitted.predict(X[test])
    of_near = _uncertainty(near, "epistemic", context)
    of_far = _uncertainty(fitted.predict(foreign), "epistemic", context)
    result = ood_detection(of_near, of_far, resamples=0)
    _curve(context, "true over false positives", *result.curves["roc"], "false positives")
    s = result.scores
    hit = np.asarray(near.mean()).argmax(1) == np.searchsorted(np.unique(y[train]), y[test])
    # Share of the familiar rows below each foreign one, ties half: its mean is the AUROC.
    order = np.sort(of_near)
    below = (np.searchsorted(order, of_far, "left") + np.searchsorted(order, of_far, "right")) / (2 * len(order))
    _rows(context, below, ood_auroc=below)
    return {
        "headline": s["auroc"], "accuracy": float(hit.mean()), "ood_auroc": s["auroc"], "ood_aupr": s["aupr_out"],
        "fpr95": s["fpr95"], "detection_error": s["detection_error"],
    }  # fmt: skip


def _active(data: Any, method: Any, context: Any) -> dict[str, float]:
    from assay.uncertainty.protocols import active_learning
    from assay.uncertainty.protocols.active import trapezoid_weights

    X, y = _table(data)
    if y.ndim == 2:  # labels drawn from the true distributions
        y = (y.cumsum(1) < context.rng("labels").random((len(y), 1))).sum(1).clip(max=y.shape[1] - 1)
    share, largest = data.option("pool_share", 0.6), data.option("largest", 4000)
    pool, test = _split(len(y), context, share, largest)
    result = active_learning(
        lambda seed: _make(method, context, seed),
        X[pool],
        y[pool],
        X[test],
        y[test],
        strategy=data.option("strategy", "uncertainty"),
        start=data.option("start", 20),
        step=data.option("step", 20),
        rounds=data.option("rounds", 6),
        seed=context.integer_seed("queries"),
        resamples=0,
    )
    sizes, accuracy = result.curves["accuracy"]
    _curve(context, "accuracy over labelled rows", sizes, accuracy, "labelled rows")
    of_row = result.rows["hits"] @ trapezoid_weights(sizes)
    _rows(context, of_row, active_area=of_row, accuracy=result.rows["hits"][:, -1])
    return {"headline": result.scores["area"], "accuracy": result.scores["final"], "active_area": result.scores["area"]}


def _first_order(data: Any, method: Any, context: Any) -> dict[str, float]:
    from assay.uncertainty.generators import split_votes
    from assay.uncertainty.protocols import first_order, first_order_conformal
    from assay.uncertainty.simplex import as_probabilities

    assert data.table is not None
    X, y = data.table.X, data.table.y
    if X is None:  # only votes are public: a few of them are the input, the shares of the rest the target
        assert data.table.counts is not None
        few, rest = split_votes(data.table.counts, data.option("votes", 5), context.integer_seed("votes"))
        X, y = few.astype(np.float64), as_probabilities(rest, renormalize=True)
    train, test = _split(len(y), context, largest=data.option("largest", 4000))
    rep = _make(method, context).fit(X[train], y[train]).predict(X[test])
    result = first_order(rep, y[test], resamples=0, seed=context.integer_seed("labels"))
    s = result.scores
    sets = first_order_conformal(np.asarray(rep.mean()), y[test], seed=context.integer_seed("splits")).scores
    kept = {name: result.rows[name] for name in ("tv", "kl", "coverage", "efficiency") if name in result.rows}
    _rows(context, 1 - result.rows["tv"], **kept)
    names = ("tv", "kl", "ece", "coverage", "efficiency", "aleatoric_correlation", "epistemic_correlation")
    hit = np.asarray(rep.mean()).argmax(1) == y[test].argmax(1)
    return {
        "headline": 1 - s["tv"], "accuracy": float(hit.mean()), **{name: s.get(name, np.nan) for name in names},
        "conditional_satisfaction": sets["conditional_satisfaction"], "set_size": sets["set_size"],
    }  # fmt: skip


def _regress(data: Any, method: Any, context: Any) -> dict[str, float]:
    from assay.uncertainty.protocols import regression_quality

    X, y = _table(data)
    train, test = _split(len(y), context)
    rep = _make(method, context).fit(X[train], y[train]).predict(X[test])
    result = regression_quality(rep, y[test], resamples=0)
    spread = float(y[train].std())
    _rows(context, 1 - result.rows["crps"] / spread, crps=result.rows["crps"],
          interval_coverage=result.rows["coverage"], squared_error=result.rows["squared"])  # fmt: skip
    return {
        "headline": 1 - result.scores["crps"] / spread, "crps": result.scores["crps"], "rmse": result.scores["rmse"],
        "interval_coverage": result.scores["coverage"],
    }  # fmt: skip


def _case(data: Any, method: Any, context: Any) -> dict[str, float]:
    made = _make(method, context)
    figures, rows = made.judged(seed=context.seed, curve=lambda *a: _curve(context, *a))
    for name, values in rows.items():
        context.rows(name, values)
    return dict(figures)
