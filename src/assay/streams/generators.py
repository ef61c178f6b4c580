"""Generated streams of any length, in constant memory, with the Bayes score of every row for checking."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from assay.streams.errors import StreamError
from assay.streams.regimes import BLOCK
from assay.streams.stream import Chunk, HaphazardStream

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, int, int], tuple[Floats, Floats]]
KINDS = ("linear_drift", "hyperplane", "rbf", "higgs_like", "words", "mixed")


@dataclass(frozen=True)
class Generated:
    """A generated stream and its truth.

    Attributes
    ----------
    stream : HaphazardStream
    bayes : callable
        ``bayes(start, stop)`` gives ``float64[stop - start]``, the true log-odds of class 1 of those rows, all features
        seen.
    """

    stream: HaphazardStream
    bayes: Callable[[int, int], Floats]


def make_stream(kind: str, n: int = 10_000, d: int = 20, seed: int = 0) -> Generated:
    """A generated stream.

    Parameters
    ----------
    kind : str
        - ``linear_drift``: logistic labels on normal features, the weight vector turns slowly through the stream;
        - ``hyperplane``: labels by the side of a hyperplane in the unit cube whose first weights change sign at times,
        with
          5 % of the labels flipped;
        - ``rbf``: two mixtures of ten normal bumps, one a class;
        - ``higgs_like``: 21 (or d) heavy-tailed columns and a weak nonlinear signal;
        - ``words``: rows of words from a vocabulary with Zipf frequencies that grows as n ** 0.6, some words a sign of
          class 1; ``d`` is the mean number of words in a row;
        - ``mixed``: half continuous, half ordinal columns (0 to 4), a copula between them.
    n, d, seed : int

    Returns
    -------
    Generated

    Examples
    --------
    >>> made = make_stream("linear_drift", n=2000, d=5)
    >>> labels = np.concatenate([y for _, y in made.stream.blocks()])
    >>> round(float(np.mean((made.bayes(0, 2000) > 0) == labels)), 2)
    0.87
    """
    if kind not in KINDS:
        from difflib import get_close_matches

        near = get_close_matches(kind, KINDS, n=3, cutoff=0.4) or KINDS
        raise StreamError(f"there is no generated stream {kind!r}; did you mean {', '.join(near)}?")
    if n < 1 or d < 1:
        raise StreamError(f"a stream has at least one row and one column, not {n} and {d}")
    if kind == "words":
        return _words(n, d, seed)
    maker = {
        "linear_drift": _linear_drift,
        "hyperplane": _hyperplane,
        "rbf": _rbf,
        "higgs_like": _higgs_like,
        "mixed": _mixed,
    }
    draw = maker[kind](np.random.default_rng([seed, 0]), n, d)

    def part(index: int) -> tuple[Floats, Floats, NDArray[np.int64]]:
        # Every piece of BLOCK rows has a generator of its own, so any piece can be made alone and again.
        rng = np.random.default_rng([seed, 1, index])
        start = index * BLOCK
        rows = min(BLOCK, n - start)
        X, log_odds = draw(rng, start, rows, d)
        y = (rng.random(rows) < expit(log_odds)).astype(np.int64)
        return X, log_odds, y

    def chunks(size: int) -> Iterator[Chunk]:
        X, y = np.empty((0, d)), np.empty(0, dtype=np.int64)
        for index in range((n + BLOCK - 1) // BLOCK):
            more = part(index)
            X, y = np.concatenate([X, more[0]]), np.concatenate([y, more[2]])
            while len(X) >= size:
                yield X[:size], y[:size]
                X, y = X[size:], y[size:]
        if len(X):
            yield X, y

    def bayes(start: int, stop: int) -> Floats:
        first, last = start // BLOCK, (stop - 1) // BLOCK
        values = np.concatenate([part(i)[1] for i in range(first, last + 1)])
        return values[start - first * BLOCK : stop - first * BLOCK]

    columns = tuple(f"x{j}" for j in range(d))
    stream = HaphazardStream(
        f"{kind}-{n}x{d}", columns, "classification", (0, 1), n, chunks=chunks, source_hash=f"{kind}:{n}:{d}:{seed}:1"
    )
    return Generated(stream, bayes)


def _linear_drift(rng: np.random.Generator, n: int, d: int) -> Draw:
    first, second = rng.standard_normal((2, d))
    first /= np.linalg.norm(first)
    second -= first * (first @ second)
    second /= max(np.linalg.norm(second), 1e-12)

    def draw(rng: np.random.Generator, start: int, rows: int, d: int) -> tuple[Floats, Floats]:
        X = rng.standard_normal((rows, d))
        angle = np.pi / 2 * np.arange(start, start + rows) / n
        weights = np.cos(angle)[:, None] * first + np.sin(angle)[:, None] * second
        return X, 4.0 * np.sum(X * weights, axis=1)

    return draw


def _hyperplane(rng: np.random.Generator, n: int, d: int) -> Draw:
    weights = rng.uniform(0.2, 1.0, d) * rng.choice([-1.0, 1.0], d)
    turning = np.arange(d) < max(1, d // 5)
    flips = np.sort(rng.integers(0, n, 4))

    def draw(rng: np.random.Generator, start: int, rows: int, d: int) -> tuple[Floats, Floats]:
        X = rng.random((rows, d))
        turned = np.searchsorted(flips, np.arange(start, start + rows), side="right") % 2 == 1
        now = np.where(turned[:, None] & turning, -weights, weights)
        side = np.sum((X - 0.5) * now, axis=1) > 0
        return X, np.where(side, np.log(19.0), -np.log(19.0))

    return draw


def _rbf(rng: np.random.Generator, n: int, d: int) -> Draw:
    centres = rng.standard_normal((2, 10, d)) * 1.5
    widths = rng.uniform(0.5, 1.5, (2, 10))

    def draw(rng: np.random.Generator, start: int, rows: int, d: int) -> tuple[Floats, Floats]:
        which, bump = rng.integers(0, 2, rows), rng.integers(0, 10, rows)
        X = centres[which, bump] + widths[which, bump, None] * rng.standard_normal((rows, d))
        distance = np.sum((X[:, None, None, :] - centres) ** 2, axis=-1)
        log_density = -0.5 * distance / widths**2 - d * np.log(widths)
        per_class = np.logaddexp.reduce(log_density, axis=2)
        return X, per_class[:, 1] - per_class[:, 0]

    return draw


def _higgs_like(rng: np.random.Generator, n: int, d: int) -> Draw:
    linear = rng.standard_normal(d) * 0.15
    pairs = rng.integers(0, d, (d, 2))
    strength = rng.standard_normal(d) * 0.3

    def draw(rng: np.random.Generator, start: int, rows: int, d: int) -> tuple[Floats, Floats]:
        X = rng.standard_t(3, (rows, d))
        X[:, ::3] = np.exp(0.5 * X[:, ::3].clip(-6, 6))  # momenta: positive, heavy-tailed
        u = np.tanh(X)
        return X, u @ linear + (u[:, pairs[:, 0]] * u[:, pairs[:, 1]]) @ strength - 0.2

    return draw


def _mixed(rng: np.random.Generator, n: int, d: int) -> Draw:
    factor = rng.uniform(0.3, 0.9, d) * rng.choice([-1.0, 1.0], d)
    weights = rng.standard_normal(d)
    weights *= 2.0 / np.linalg.norm(weights)
    ordinal = np.arange(d) >= (d + 1) // 2

    def draw(rng: np.random.Generator, start: int, rows: int, d: int) -> tuple[Floats, Floats]:
        common = rng.standard_normal((rows, 1))
        z = common * factor + rng.standard_normal((rows, d)) * np.sqrt(1 - factor**2)
        X = np.where(ordinal, np.clip(np.floor(z * 1.2 + 2.5), 0, 4), np.exp(0.7 * z))
        seen = np.where(ordinal, (X - 2.0) / 1.2, z)  # what the labels depend on can be read off the features
        return X, seen @ weights

    return draw


def _words(n: int, d: int, seed: int) -> Generated:
    signal = np.random.default_rng([seed, 0])
    top = int(10 * max(1, n) ** 0.6) + 10
    weight = np.where(signal.random(top) < 0.15, signal.standard_normal(top) * 1.2, 0.0)

    def part(index: int) -> tuple[list[dict[Hashable, float]], Floats, NDArray[np.int64]]:
        rng = np.random.default_rng([seed, 1, index])
        rows = min(BLOCK, n - index * BLOCK)
        texts: list[dict[Hashable, float]] = []
        log_odds = np.empty(rows)
        for t in range(rows):
            size = min(top, int(10 * (index * BLOCK + t + 1) ** 0.6) + 10)
            draws = np.minimum(rng.zipf(1.3, size=max(1, rng.poisson(d))), size) - 1
            words, counts = np.unique(draws, return_counts=True)
            texts.append({f"w{w}": float(c) for w, c in zip(words.tolist(), counts.tolist(), strict=True)})
            log_odds[t] = weight[words].sum()
        y = (rng.random(rows) < expit(log_odds)).astype(np.int64)
        return texts, log_odds, y

    def dicts() -> Iterator[tuple[Mapping[Hashable, Any], int]]:
        for index in range((n + BLOCK - 1) // BLOCK):
            texts, _, y = part(index)
            yield from zip(texts, y.tolist(), strict=True)

    def bayes(start: int, stop: int) -> Floats:
        first, last = start // BLOCK, (stop - 1) // BLOCK
        values = np.concatenate([part(i)[1] for i in range(first, last + 1)])
        return values[start - first * BLOCK : stop - first * BLOCK]

    stream = HaphazardStream(
        f"words-{n}x{d}", None, "classification", (0, 1), n, dicts=dicts, source_hash=f"words:{n}:{d}:{seed}:1"
    )
    return Generated(stream, bayes)
