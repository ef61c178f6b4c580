"""Active learning: label some rows, train, label those that the strategy asks for, train again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.uncertainty.errors import UncertaintyError
from assay.uncertainty.measures import quantify
from assay.uncertainty.measures.sample import shannon
from assay.uncertainty.protocols.result import Array, Result
from assay.uncertainty.representations import Representation

STRATEGIES = ("random", "entropy", "least_confident", "margin", "uncertainty", "badge")


def active_learning(
    make: Callable[[int], Any],
    X: ArrayLike,
    y: ArrayLike,
    X_test: ArrayLike,
    y_test: ArrayLike,
    *,
    strategy: str = "uncertainty",
    start: int = 100,
    step: int = 100,
    rounds: int = 10,
    seed: int = 0,
    measure: str = "entropy",
    resamples: int = 200,
) -> Result:
    """Label some rows, train, label those that the strategy asks for, train again.

    Parameters
    ----------
    make : callable
        ``seed -> method`` with ``fit(X, y)`` and ``predict(X) -> Representation``.
    strategy : {"random", "entropy", "least_confident", "margin", "uncertainty", "badge"}
        ``uncertainty`` is the epistemic part of ``measure`` (for a sample and entropy: BALD, the mutual information);
        ``badge`` spreads over gradient embeddings (Ash et al., ICLR 2020) on what the method's ``embed(X)`` gives (the
        torch methods: the inputs of their last layer), on the inputs where it has none.
    start, step, rounds : int
        Rows labelled at first, in each round, and rounds.
    resamples : int
        Of the intervals over test rows. They do not hold the spread over seeds; run several for that.

    Returns
    -------
    Result
        Scores ``area`` (normalised area under the accuracy curve) and ``final``; curves ``accuracy`` over
        labelled rows, and ``labelled``, the rows in the order in which they were labelled; ``rows["hits"]`` says
        whether each test row was right in each round.

    Raises
    ------
    UncertaintyError
    """
    if strategy not in STRATEGIES:
        raise UncertaintyError(f"strategy is one of {', '.join(STRATEGIES)}, not {strategy!r}")
    x, labels, xt, yt = np.asarray(X), np.asarray(y), np.asarray(X_test), np.asarray(y_test)
    if start + step * rounds > len(x) or start < 1:
        raise UncertaintyError(f"{start} + {rounds} x {step} rows are asked for; there are {len(x)}")
    rng = np.random.default_rng(seed)
    # One row of every class first: a model cannot ask for a class that it has never seen.
    order = rng.permutation(len(x))
    firsts = [order[np.flatnonzero(labels[order] == c)[0]] for c in np.unique(labels)]
    rest = order[~np.isin(order, firsts)]
    chosen = np.concatenate([firsts, rest])[: max(start, len(firsts))]
    sizes, hits = [], []
    for r in range(rounds + 1):
        model = make(int(rng.integers(2**31))).fit(x[chosen], labels[chosen])
        sizes.append(len(chosen))
        hits.append(np.asarray(model.predict(xt).predict() == yt, dtype=np.float64))
        if r == rounds:
            break
        pool = np.setdiff1d(np.arange(len(x)), chosen)
        rep = model.predict(x[pool]) if strategy != "random" else None
        features = model.embed(x[pool]) if strategy == "badge" and hasattr(model, "embed") else x[pool]
        chosen = np.concatenate([chosen, pool[query(rep, features, strategy, step, rng, measure)]])
    sx = np.array(sizes, dtype=np.float64)
    table = np.stack(hits, axis=1)
    return Result.judged(
        partial(_area, weights=trapezoid_weights(sx)),
        {"hits": table},
        curves={
            "accuracy": (sx, table.mean(0)),
            "labelled": (np.arange(1, len(chosen) + 1, dtype=np.float64), chosen.astype(np.float64)),
        },
        resamples=resamples,
        seed=seed,
    )


def _area(rows: Mapping[str, Array], *, weights: Array) -> dict[str, float]:
    hits = rows["hits"]
    return {"area": float((hits @ weights).mean()), "final": float(hits[:, -1].mean())}


def trapezoid_weights(x: Array) -> Array:
    """Weights with which values at x give the mean height of the curve between them.

    >>> trapezoid_weights(np.array([0.0, 1.0, 3.0])).round(4).tolist()
    [0.1667, 0.5, 0.3333]
    """
    if len(x) == 1:
        return np.ones(1)
    gaps = np.diff(x)
    return np.asarray((np.append(gaps, 0) + np.append(0, gaps)) / 2 / (x[-1] - x[0]))


def query(
    rep: Representation | None, X: ArrayLike, strategy: str, n: int, rng: np.random.Generator, measure: str = "entropy"
) -> NDArray[np.int64]:  # fmt: skip
    """Rows of the pool to label next; ties are broken at random."""
    x = np.asarray(X, dtype=np.float64).reshape(len(np.asarray(X)), -1)
    if strategy == "random" or rep is None:
        return np.asarray(rng.permutation(len(x))[:n])
    p = np.asarray(rep.mean())
    if strategy == "badge":
        return _badge(p, x, n, rng)
    if strategy == "uncertainty":
        score = quantify(rep, measure).get("epistemic")
    elif strategy == "entropy":
        score = shannon(p)
    elif strategy == "least_confident":
        score = -p.max(1)
    else:
        top = np.sort(p, axis=1)[:, -2:]
        score = top[:, 0] - top[:, 1]
    return np.asarray(np.lexsort((rng.random(len(score)), -score))[:n])


def _badge(p: Array, x: Array, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """k-means++ seeding on ``(p - onehot) (x) x``; inner products factor, so the embedding is never made."""
    g = p.copy()
    g[np.arange(len(p)), p.argmax(1)] -= 1
    x = np.concatenate([x / max(float(np.abs(x).max()), 1e-12), np.ones((len(x), 1))], axis=1)
    norms = (g**2).sum(1) * (x**2).sum(1)
    picked = [int(norms.argmax())]
    nearest = np.full(len(p), np.inf)
    while len(picked) < min(n, len(p)):
        i = picked[-1]
        distance = norms + norms[i] - 2 * (g @ g[i]) * (x @ x[i])
        nearest = np.minimum(nearest, np.maximum(distance, 0))
        nearest[picked] = 0
        total = nearest.sum()
        if total > 0:
            picked.append(int(rng.choice(len(p), p=nearest / total)))
        else:
            left = np.setdiff1d(np.arange(len(p)), picked)
            picked.append(int(rng.choice(left)))
    return np.array(picked)
