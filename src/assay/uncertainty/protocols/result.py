"""What a protocol gives: figures, curves, intervals, and what is needed to compare two methods row by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from assay.uncertainty import metrics as m
from assay.uncertainty.errors import TargetShape, UncertaintyError

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
Judge = Callable[[Mapping[str, Array]], dict[str, float]]


@dataclass
class Result:
    """Figures with intervals.

    Attributes
    ----------
    scores : dict of str to float
    curves : dict of str to (x, y)
    ci : dict of str to (low, high)
        95 % bootstrap intervals over rows.
    n, dropped : int
        Rows used, and rows left out because their outcome is not known (NaN).
    rows : dict of str to array, (rows, ...)
        What the scores are made from.
    judge : callable, optional
        From such rows to scores: what `compare` puts resampled and swapped rows through.
    strata : array, (rows), optional
        Groups within which rows are resampled (familiar and foreign inputs).
    """

    scores: dict[str, float]
    curves: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    ci: dict[str, tuple[float, float]] = field(default_factory=dict)
    n: int = 0
    dropped: int = 0
    rows: dict[str, Array] = field(default_factory=dict, repr=False)
    judge: Judge | None = field(default=None, repr=False)
    strata: NDArray[np.int64] | None = field(default=None, repr=False)

    @classmethod
    def judged(
        cls,
        judge: Judge,
        rows: dict[str, Array],
        *,
        curves: dict[str, tuple[Array, Array]] | None = None,
        strata: NDArray[np.int64] | None = None,
        dropped: int = 0,
        resamples: int = 200,
        seed: int = 0,
    ) -> Result:
        """Scores of the rows, with an interval for each by resampling them."""
        n = len(next(iter(rows.values())))
        made = cls(judge(rows), curves or {}, {}, n, dropped, rows, judge, strata)
        rng = np.random.default_rng(seed)
        draws: dict[str, list[float]] = {}
        for _ in range(resamples):
            chosen = resampled(n, strata, rng)
            for name, value in judge({k: v[chosen] for k, v in rows.items()}).items():
                draws.setdefault(name, []).append(value)
        for name, values in draws.items():
            kept = np.array(values)[~np.isnan(values)]
            enough = len(kept) > resamples / 2
            made.ci[name] = (
                (float(np.quantile(kept, 0.025)), float(np.quantile(kept, 0.975))) if enough else (np.nan, np.nan)
            )
        return made

    def to_frame(self) -> pd.DataFrame:
        """A data frame: value, low, high."""
        import pandas as pd

        nothing = (float("nan"), float("nan"))
        rows = [(v, *self.ci.get(name, nothing)) for name, v in self.scores.items()]
        return pd.DataFrame(rows, columns=["value", "low", "high"], index=list(self.scores))

    def compare(self, other: Result, score: str, *, resamples: int = 500, seed: int = 0) -> m.intervals.Paired:
        """Paired test of any score between two results on the same rows.

        Rows are resampled together for the interval of the difference; for the p-value each row keeps both methods'
        outcomes or swaps them, at random.

        Raises
        ------
        UncertaintyError
            If a result has no such score or keeps no rows.
        TargetShape
            If the rows are not the same ones: another number, or foreign rows in other places.
        """
        if self.judge is None or other.judge is None or score not in self.scores or score not in other.scores:
            known = [name for name in self.scores if name in other.scores and self.judge and other.judge]
            raise UncertaintyError(
                f"{score!r} cannot be compared row by row; use one of {', '.join(known)}"
                if known
                else f"{score!r} cannot be compared: one of the results keeps no rows"
            )
        names = [name for name in self.rows if name in other.rows]
        n = len(self.rows[names[0]])
        if self.n != other.n or not _same(self.strata, other.strata):
            raise TargetShape(f"results on {self.n} and {other.n} rows, which are not the same rows")
        first, second = ({name: r.rows[name] for name in names} for r in (self, other))
        if any(first[name].shape != second[name].shape for name in names):
            raise TargetShape("the rows of the two results have other shapes")

        def value(rows: Mapping[str, Array], judge: Judge) -> float:
            return judge(rows)[score]

        one, two = _only(self, first), _only(other, second)
        rng = np.random.default_rng(seed)
        observed = value(first, one) - value(second, two)
        differences, swapped = np.empty(resamples), np.empty(resamples)
        for i in range(resamples):
            chosen = resampled(n, self.strata, rng)
            differences[i] = value({k: v[chosen] for k, v in first.items()}, one) - value(
                {k: v[chosen] for k, v in second.items()}, two
            )
            swap = rng.random(n) < 0.5
            a, b = {}, {}
            for k in names:
                at = swap.reshape(-1, *([1] * (first[k].ndim - 1)))
                a[k], b[k] = np.where(at, second[k], first[k]), np.where(at, first[k], second[k])
            swapped[i] = value(a, one) - value(b, two)
        differences, swapped = differences[~np.isnan(differences)], swapped[~np.isnan(swapped)]
        if np.isnan(observed) or 2 * len(differences) < resamples or 2 * len(swapped) < resamples:
            return m.intervals.Paired(float(observed), float("nan"), float("nan"), float("nan"))
        low, high = np.quantile(differences, [0.025, 0.975])
        p = (1 + np.sum(np.abs(swapped) >= abs(observed) - 1e-15)) / (len(swapped) + 1)
        return m.intervals.Paired(float(observed), float(low), float(high), float(p))


def _same(a: NDArray[np.int64] | None, b: NDArray[np.int64] | None) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and np.array_equal(a, b))


def _only(result: Result, rows: Mapping[str, Array]) -> Judge:
    """The judge of a result; rows that only it has (a credal set's coverage, say) play no part."""
    if set(rows) == set(result.rows):
        assert result.judge is not None
        return result.judge
    judge = result.judge
    assert judge is not None
    rest = {k: v for k, v in result.rows.items() if k not in rows}
    return lambda r: judge({**rest, **r})


def resampled(n: int, strata: NDArray[np.int64] | None, rng: np.random.Generator) -> NDArray[np.int64]:
    """Row numbers drawn with replacement, within each stratum."""
    if strata is None:
        return np.asarray(rng.integers(0, n, n))
    out = np.empty(n, dtype=np.int64)
    for group in np.unique(strata):
        inside = np.flatnonzero(strata == group)
        out[inside] = inside[rng.integers(0, len(inside), len(inside))]
    return out


@dataclass(frozen=True)
class Comparison:
    """One pair of methods: the difference of a score, its interval, and p-values raw and adjusted (Holm)."""

    first: str
    second: str
    difference: float
    low: float
    high: float
    p: float
    p_adjusted: float


def compare_all(results: Mapping[str, Result], score: str, *, resamples: int = 500, seed: int = 0) -> list[Comparison]:
    """Paired tests over rows between all pairs of methods, p-values adjusted together (Holm, 1979), smallest first.

    Parameters
    ----------
    results : mapping of name to Result
        On the same rows.
    score : str

    Examples
    --------
    >>> from assay.uncertainty import selective_prediction
    >>> rng = np.random.default_rng(0)
    >>> loss = (rng.random(300) < 0.2).astype(float)
    >>> made = {"good": loss + rng.random(300), "fair": loss + 3 * rng.random(300), "none": rng.random(300)}
    >>> results = {name: selective_prediction(u, loss, resamples=0) for name, u in made.items()}
    >>> found = compare_all(results, "aurc", resamples=100)
    >>> sorted((c.first, c.second, bool(c.p_adjusted < 0.05)) for c in found)
    [('fair', 'none', True), ('good', 'fair', True), ('good', 'none', True)]
    """
    pairs = [(a, b, results[a].compare(results[b], score, resamples=resamples, seed=seed)) for a, b in
             combinations(results, 2)]  # fmt: skip
    order = sorted(range(len(pairs)), key=lambda i: (np.isnan(pairs[i][2].p), pairs[i][2].p))
    known = sum(not np.isnan(found.p) for _, _, found in pairs)
    out, largest = [], 0.0
    for place, i in enumerate(order):
        a, b, found = pairs[i]
        if np.isnan(found.p):
            adjusted = float("nan")
        else:
            largest = max(largest, min(1.0, found.p * (known - place)))
            adjusted = largest
        out.append(Comparison(a, b, found.difference, found.low, found.high, found.p, adjusted))
    return out


def spearman(a: Array, b: Array) -> float:
    """Rank correlation; NaN where one side is constant."""
    from scipy.stats import rankdata

    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])
