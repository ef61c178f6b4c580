"""Difficulty of items: from pairs that a judge compared, and against people's ratings."""

from __future__ import annotations

import csv
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from assay.diagnosis.errors import DiagnosisError
from assay.diagnosis.metrics.agreement import Ratings, difficulty_agreement
from assay.diagnosis.responses import ResponseData

if TYPE_CHECKING:
    import pandas as pd

    from assay.diagnosis.estimator import DiagnosisModel

Judge = Callable[[str, str], int | str | None]


def bradley_terry(
    wins: Sequence[tuple[int, int]] | NDArray[Any], n: int, *, prior: float = 0.01
) -> Float[np.ndarray, " n"]:
    """Strengths from comparisons (winner, loser), ``float64[n]`` with mean 0: P(i beats j) = sig(s_i - s_j).

    Parameters
    ----------
    wins : sequence of (int, int)
        Winner and loser; here the harder and the easier item.
    prior : float
        Weight of a normal prior (prior / 2 x s^2), which keeps items that always win finite.

    Raises
    ------
    DiagnosisError
        If a number is out of range or the prior is not positive.

    Examples
    --------
    >>> bradley_terry([(0, 1), (0, 1), (1, 0)], 2, prior=1e-6).round(3).tolist()
    [0.347, -0.347]
    """
    pairs = np.asarray(wins, dtype=np.int64).reshape(-1, 2)
    if prior <= 0:
        raise DiagnosisError(f"prior={prior} must be positive")
    if len(pairs) and (pairs.min() < 0 or pairs.max() >= n):
        raise DiagnosisError(f"comparisons name item {int(pairs.max())} and there are {n}")
    won, lost = pairs.T

    def objective(s: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        d = s[won] - s[lost]
        r = expit(-d)
        gradient = np.bincount(lost, r, n) - np.bincount(won, r, n) + prior * s
        return float(np.logaddexp(0, -d).sum() + prior / 2 * s @ s), gradient

    found: NDArray[np.float64] = minimize(
        objective, np.zeros(n), jac=True, method="L-BFGS-B", options={"gtol": 1e-8, "ftol": 0}
    ).x
    return found - found.mean()


def human_agreement(difficulty: Float[np.ndarray, " items"], ratings: Ratings) -> dict[str, float]:
    """Kendall's tau-b and pairwise accuracy of a difficulty against people's ratings (item a, item b, how much harder
    b is).
    """
    return difficulty_agreement(np.asarray(difficulty, dtype=np.float64), ratings)


def empirical_difficulty(data: ResponseData, *, strength: float = 5.0) -> Float[np.ndarray, " items"]:
    """The accuracy baseline: minus the logit of the smoothed share of right answers, ``float64[J]``."""
    n, right = (np.bincount(data.item, w, data.n_items) for w in (None, data.correct))
    p = (right + strength * data.correct.mean()) / (n + strength)
    return -np.log(p / (1 - p))


@dataclass(frozen=True, eq=False)
class TitleDifficulty:
    """Difficulty from a judge that reads titles.

    Attributes
    ----------
    difficulty : float64[J]
    calls, refusals : int
        Questions asked, and those without a usable answer.
    inconsistent : float
        Share of pairs whose answer changed with the order.
    first_bias : float
        Share of answers that named the title read first as harder; .5 without a bias.
    cost : float
        Sum of ``judge.cost`` after each call, where the judge has one.
    judgements : list
        (item a, item b, winner or None) in the order of asking.
    """

    difficulty: NDArray[np.float64]
    calls: int
    refusals: int
    inconsistent: float
    first_bias: float
    cost: float
    judgements: list[tuple[int, int, int | None]] = field(default_factory=list)


def difficulty_from_titles(
    titles: Sequence[str],
    judge: Judge | str | Path,
    *,
    pairs: Sequence[tuple[int, int]] | None = None,
    n_pairs: int | None = None,
    prior: float = 0.05,
    items: Sequence[Hashable] | None = None,
    seed: int = 0,
) -> TitleDifficulty:
    """Ask a judge which of two titles is harder, both ways round, and rank the items by Bradley-Terry.

    Parameters
    ----------
    titles : sequence of str
    judge : callable or path
        ``judge(first, second)`` returns 0 (first is harder), 1, the title itself, or None (no answer). Or a CSV with
        the columns ``first,second,harder`` of item numbers, or of names where ``items`` gives them. No network client
        is inside; wrap your own.
    pairs : sequence of (int, int), optional
        Pairs to compare; default ``n_pairs`` (10 an item) at random.
    prior : float
        See `bradley_terry`.
    items : sequence, optional
        Names of the items in a CSV.

    Raises
    ------
    DiagnosisError
        If there are fewer than two titles, or no answer was usable.

    Examples
    --------
    >>> found = difficulty_from_titles(["add", "integrate", "subtract"], lambda a, b: int(len(b) > len(a)), seed=0)
    >>> found.difficulty.argsort().tolist(), found.inconsistent
    ([0, 2, 1], 0.0)
    """
    n = len(titles)
    if n < 2:
        raise DiagnosisError("there must be at least two titles to compare")
    judgements: list[tuple[int, int, int | None]] = []
    cost = 0.0
    if isinstance(judge, (str, Path)):
        judgements = _read_judgements(Path(judge), items)
    else:
        if pairs is None:
            rng = np.random.default_rng(seed)
            drawn = rng.integers(0, n, (4 * (n_pairs or 10 * n), 2))
            pairs = [(int(a), int(b)) for a, b in drawn if a != b][: n_pairs or 10 * n]
        for a, b in pairs:
            for first, second in ((a, b), (b, a)):
                answer = judge(titles[first], titles[second])
                winner = None
                if answer in (0, 1) and not isinstance(answer, str):
                    winner = (first, second)[int(answer)]
                elif (
                    isinstance(answer, str)
                    and answer.strip() in (titles[first], titles[second])
                    and titles[first] != titles[second]
                ):
                    winner = first if answer.strip() == titles[first] else second
                judgements.append((first, second, winner))
                cost += float(getattr(judge, "cost", 0.0) or 0.0)
    usable = [(f, s, w) for f, s, w in judgements if w is not None]
    if not usable:
        raise DiagnosisError(
            f"the judge gave no usable answer to {len(judgements)} questions; it must return 0, 1, a title or None"
        )
    wins = [(w, s if w == f else f) for f, s, w in usable]
    answers: dict[tuple[int, int], set[int]] = {}
    for f, s, w in usable:
        answers.setdefault((min(f, s), max(f, s)), set()).add(w)
    return TitleDifficulty(
        bradley_terry(wins, n, prior=prior),
        len(judgements),
        len(judgements) - len(usable),
        float(np.mean([len(v) > 1 for v in answers.values()])),
        float(np.mean([w == f for f, _, w in usable])),
        cost,
        judgements,
    )


def read_ratings(path: str | Path, data: ResponseData) -> list[tuple[int, int, float]]:
    """People's ratings from a CSV with the columns ``a, b, harder``: names of two items, and how much harder b is.

    Raises
    ------
    DiagnosisError
        If a column is missing, a number is none, or no pair names two items of the data.
    """
    place = {str(name): j for j, name in enumerate(data.item_ids)}
    rows = _rows(Path(path), ("a", "b", "harder"))
    try:
        found = [
            (place[a.strip()], place[b.strip()], float(r))
            for a, b, r in rows
            if a.strip() in place and b.strip() in place
        ]
    except ValueError as error:
        raise DiagnosisError(f"{path}: a rating is no number: {error}") from error
    if not found:
        raise DiagnosisError(
            f"none of the {len(rows)} pairs in {path} names two items of the data; items are called "
            f"{', '.join(list(place)[:3])}, ..."
        )
    return found


def compare_difficulty(
    models: Mapping[str, DiagnosisModel],
    data: ResponseData,
    ratings: Ratings,
    *,
    others: Mapping[str, NDArray[np.float64]] | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Difficulties of fitted or unfitted models, of the accuracy baseline and of judges against people's ratings.

    Parameters
    ----------
    models : dict of name to model
        Unfitted ones are fitted on ``data``.
    ratings : list of (int, int, float)
    others : dict of name to float64[J], optional
        Further difficulties, such as `difficulty_from_titles(...).difficulty`.
    draws : int
        Bootstrap draws of the rated items (all pairs of a drawn item stay together).

    Returns
    -------
    DataFrame
        Best first: ``source``, ``kendall_tau``, ``pairwise_accuracy`` with ``low`` and ``high`` (95 per cent), and
        ``over_baseline`` with ``over_low`` and ``over_high``: accuracy minus that of the baseline, in the same draws.

    Examples
    --------
    >>> from assay.diagnosis import IRT, simulate_platform
    >>> made = simulate_platform(300, 40, 4, density=0.8, seed=0)
    >>> compare_difficulty({"2pl": IRT()}, made.data, made.ratings)["source"].tolist()
    ['accuracy baseline', '2pl']
    """
    import pandas as pd

    scores = {"accuracy baseline": empirical_difficulty(data)}
    for name, model in models.items():
        fitted = model if hasattr(model, "states_") else model.fit(data)
        scores[name] = fitted.difficulty_.astype(np.float64)
    scores.update(others or {})
    used = [(a, b, r) for a, b, r in ratings if r != 0]
    if not used:
        raise DiagnosisError("every rating is a tie; there is nothing to compare with")
    a, b, r = (np.array(column) for column in zip(*used, strict=True))
    hit = {}
    for name, score in scores.items():
        d = np.sign(score[b] - score[a])
        hit[name] = np.where(d == 0, 0.5, d == np.sign(r)).astype(np.float64)
    rng = np.random.default_rng(seed)
    n = data.n_items
    weight = np.empty((draws, len(r)))
    for i in range(draws):  # a pair counts as often as both of its items were drawn
        times = np.bincount(rng.integers(0, n, n), minlength=n)
        weight[i] = times[a] * times[b]
    weight /= np.maximum(weight.sum(1, keepdims=True), 1)
    base = weight @ hit["accuracy baseline"]
    rows = []
    for name, score in scores.items():
        drawn = weight @ hit[name]
        ends, over = (np.quantile(v, [0.025, 0.975]).tolist() for v in (drawn, drawn - base))
        agreement = difficulty_agreement(score, used)
        mean = agreement["pairwise_accuracy"]
        rows.append((name, agreement["kendall_tau"], mean, *ends, mean - float(hit["accuracy baseline"].mean()), *over))
    names = ["source", "kendall_tau", "pairwise_accuracy", "low", "high", "over_baseline", "over_low", "over_high"]
    table = pd.DataFrame(rows, columns=names)
    return table.sort_values("pairwise_accuracy", ascending=False, kind="stable").reset_index(drop=True)


def _read_judgements(path: Path, items: Sequence[Hashable] | None) -> list[tuple[int, int, int | None]]:
    place = None if items is None else {str(name): j for j, name in enumerate(items)}
    found: list[tuple[int, int, int | None]] = []
    for first, second, harder in _rows(path, ("first", "second", "harder")):
        try:
            a, b = (int(v) if place is None else place[v.strip()] for v in (first, second))
            said = harder.strip()
            winner = None if said in ("", "None") else int(said) if place is None else place[said]
        except (KeyError, ValueError) as error:
            raise DiagnosisError(
                f"{path}: {first!r}, {second!r}, {harder!r} are no {'items' if place else 'item numbers'} ({error})"
            ) from error
        found.append((a, b, winner))
    return found


def _rows(path: Path, columns: tuple[str, ...]) -> list[tuple[str, ...]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            absent = [c for c in columns if c not in (reader.fieldnames or ())]
            if absent:
                raise DiagnosisError(f"{path} has no column {absent}; it needs {', '.join(columns)}")
            return [tuple(row[c] or "" for c in columns) for row in reader]
    except (OSError, UnicodeDecodeError) as error:
        raise DiagnosisError(f"{path} cannot be read: {error}") from error
