"""Degree of agreement: do students with more mastery of a skill answer its items right more often?

Answers to compare come from a held-out set unless you say otherwise: on the answers that a model was fitted to,
agreement is inflated. Skills without a pair are left out of the mean; a constant mastery gives NaN with a warning,
never 0 or 1.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from assay.diagnosis.errors import DiagnosisError, UndefinedMetric, UnknownName
from assay.diagnosis.responses import ResponseData, Split

Mastery = Float[np.ndarray, "students skills"]
PerKC = Float[np.ndarray, " skills"]
VARIANTS = ("pooled", "pair_mean", "inscd")


def doa(mastery: Mastery, data: ResponseData | Split, *, variant: str = "pooled", responses: str = "test") -> float:
    """Mean over skills of a variant of the degree of agreement.

    Parameters
    ----------
    mastery : float[S, K]
    data : ResponseData or Split
        Answers to compare by; of a split, ``responses``.
    variant : {"pooled", "pair_mean", "inscd"}
        See `doa_pooled`, `doa_pair_mean`, `doa_inscd`.
    responses : {"test", "train", "all"}

    Raises
    ------
    UnknownName
    DiagnosisError
        If mastery has another shape than students x skills.

    Examples
    --------
    >>> data = ResponseData([0, 1, 2], [0, 0, 0], [1, 0, 1], [[1]])
    >>> doa(np.array([[0.9], [0.5], [0.2]]), data)
    0.5
    """
    if variant not in VARIANTS:
        raise UnknownName.of("variant of DOA", variant, VARIANTS)
    rows = choose_responses(data, responses)
    return {"pooled": doa_pooled, "pair_mean": doa_pair_mean, "inscd": doa_inscd}[variant](mastery, rows)


def choose_responses(data: ResponseData | Split, responses: str = "test") -> ResponseData:
    """The answers of a split that a figure is taken on."""
    if isinstance(data, ResponseData):
        return data
    if responses == "test":
        return data.test
    if responses == "train":
        return data.train
    if responses != "all":
        raise UnknownName.of("choice of responses", responses, ("test", "train", "all"))
    parts = [data.train, data.valid, data.test]
    whole = data.train.take(slice(0, 0))
    for name in ("student", "item", "correct"):
        whole.__dict__[name] = np.concatenate([getattr(part, name) for part in parts])
    whole.__dict__["order"] = None
    return whole


def doa_per_kc(mastery: Mastery, data: ResponseData) -> PerKC:
    """Pooled agreement of each skill, ``float64[K]``, NaN where there is no pair; see `doa_pooled`."""
    _check(mastery, data)
    k_total, n_items = data.n_kcs, data.n_items
    rows, skill = data.per_skill()
    if not len(rows):
        return np.full(k_total, np.nan)
    # An answer as one integer: skill and item, then the rank of its student's mastery, then right or wrong. Sorting
    # integers is several times as fast as sorting rows by two columns.
    rank, width = _ranks(mastery, data.student[rows], skill)
    packed = ((skill * n_items + data.item[rows]) << (width + 1)) | (rank << 1) | (data.correct[rows] == 1)
    packed.sort()
    y = (packed & 1).astype(np.float64)
    run, group = packed >> 1, packed >> (width + 1)
    skill = group // n_items
    starts = np.r_[True, group[1:] != group[:-1]]
    first = np.flatnonzero(starts)
    tied = np.flatnonzero(np.r_[True, run[1:] != run[:-1]])
    # within a run of equal values: right, wrong; before it, in its group: wrong
    right = np.add.reduceat(y, tied)
    wrong = np.add.reduceat(1 - y, tied)
    group_of_run = np.cumsum(starts[tied]) - 1
    before = np.cumsum(wrong) - wrong
    run_of_group = np.searchsorted(tied, first)
    below = before - before[run_of_group][group_of_run]
    n1, n0 = np.add.reduceat(y, first), np.add.reduceat(1 - y, first)
    wins = np.bincount(skill[tied], right * below, k_total)
    ties = np.bincount(skill[tied], right * wrong, k_total)
    pairs = np.bincount(skill[first], n1 * n0, k_total) - ties
    with np.errstate(invalid="ignore", divide="ignore"):
        result: NDArray[np.float64] = np.where(pairs > 0, wins / pairs, np.nan)
    return result


def _ranks(mastery: NDArray[Any], student: NDArray[Any], skill: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Rank of each row's mastery, equal for equal values, comparable within a skill; and the bits that it takes."""
    if mastery.size <= 4 * len(skill):
        order = np.argsort(mastery, axis=0)
        level = np.take_along_axis(mastery, order, axis=0)
        step = np.zeros(mastery.shape, dtype=np.int64)
        np.cumsum(level[1:] != level[:-1], axis=0, out=step[1:])
        table = np.empty_like(step)
        np.put_along_axis(table, order, step, axis=0)
        rank = table[student, skill]
    else:  # few answers of many students and skills
        value = mastery[student, skill]
        order = np.argsort(value)
        level = value[order]
        rank = np.empty(len(value), dtype=np.int64)
        rank[order] = np.cumsum(np.r_[False, level[1:] != level[:-1]])
    return rank, int(rank.max()).bit_length()


def doa_pooled(mastery: Mastery, data: ResponseData) -> float:
    """Pairs pooled over the items of a skill (as edustudio reports it), mean over skills.

    Over pairs (a right, b wrong) on the same item that needs k: wins / (pairs - ties of mastery). Exact, O(n log n)
    by sorting.
    """
    return _mean(doa_per_kc(mastery, data))


def doa_pair_mean(mastery: Mastery, data: ResponseData, *, no_difference: str = "skip", block: int = 1024) -> float:
    """Mean over ordered pairs of students (NCDM paper; also called DOC), mean over skills.

    For students a, b with mastery_ak > mastery_bk: (items of k that a has right and b wrong) / (items where they
    differ), averaged over such pairs. Only students with an answer on the skill.

    Parameters
    ----------
    no_difference : {"skip", "one"}
        Pairs that differ on no item are left out; ``one`` counts them as full agreement, which inflates.
    block : int
        Students compared at once; memory is block x S floats.
    """
    if no_difference not in ("skip", "one"):
        raise UnknownName.of("treatment of pairs without a difference", no_difference, ("skip", "one"))
    _check(mastery, data)
    values = np.full(data.n_kcs, np.nan)
    for k, right, wrong, level in _by_skill(mastery, data):
        total = count = 0.0
        for start in range(0, len(level), block):
            part = slice(start, start + block)
            won, lost = right[part] @ wrong.T, wrong[part] @ right.T
            above = level[part, None] > level[None, :]
            differ = won + lost
            with np.errstate(invalid="ignore", divide="ignore"):
                share = won / differ
            if no_difference == "one":
                shared = (right + wrong)[part] @ (right + wrong).T
                share = np.where(differ == 0, 1.0, share)
                chosen = above & (shared > 0)
            else:
                chosen = above & (differ > 0)
            total += float(share[chosen].sum(dtype=np.float64))
            count += float(chosen.sum())
        values[k] = total / count if count else np.nan
    return _mean(values)


def doa_inscd(mastery: Mastery, data: ResponseData) -> float:
    """As InsCD computes it, for comparison with its published figures only: of more than 30 skills the 10 with most
    answers, only
    pairs within blocks of 50 students, skills with value 0 left out."""
    _check(mastery, data)
    values = np.full(data.n_kcs, np.nan)
    _, skill = data.per_skill()
    counts = np.bincount(skill, minlength=data.n_kcs)
    chosen = set(np.argsort(-counts, kind="stable")[:10].tolist()) if data.n_kcs > 30 else set(range(data.n_kcs))
    for k, right, wrong, level in _by_skill(mastery, data):
        if k not in chosen:
            continue
        won = differ = 0.0
        for start in range(0, len(level), 50):
            part = slice(start, start + 50)
            wins = right[part] @ wrong[part].T
            above = level[part, None] > level[None, part]
            won += float(wins[above].sum())
            differ += float((wins + wins.T)[above].sum())
        values[k] = won / differ if differ else np.nan
    return _mean(np.where(values == 0, np.nan, values))


def doa_gain(mastery: Mastery, theta: Float[np.ndarray, " students"], data: ResponseData) -> float:
    """Pooled agreement beyond that of one ability copied to every skill: what is left is diagnosis.

    Parameters
    ----------
    theta : float[S]
        Ability of a one-dimensional two-parameter model fitted on the same training answers.
    """
    return doa_pooled(mastery, data) - doa_pooled(np.repeat(np.asarray(theta)[:, None], data.n_kcs, axis=1), data)


def kc_specificity(mastery: Mastery, data: ResponseData, rng: np.random.Generator, *, draws: int = 10) -> float:
    """Pooled agreement minus its mean after permuting the columns of skills; 0 if one ability looks like diagnosis.

    NaN where there is one skill only.
    """
    if data.n_kcs < 2:
        return float("nan")
    shuffled: list[float] = []
    while len(shuffled) < draws:
        order = rng.permutation(data.n_kcs)
        if (order != np.arange(data.n_kcs)).any():
            shuffled.append(doa_pooled(mastery[:, order], data))
    return doa_pooled(mastery, data) - float(np.mean(shuffled))


def _by_skill(mastery: NDArray[Any], data: ResponseData) -> Any:
    """For each skill with answers: right and wrong answers of its students as dense tables, and their mastery."""
    rows, skill = data.per_skill()
    for k in range(data.n_kcs):
        at = rows[skill == k]
        if not len(at):
            continue
        who, student = np.unique(data.student[at], return_inverse=True)
        what, item = np.unique(data.item[at], return_inverse=True)
        right = np.zeros((len(who), len(what)), dtype=np.float32)
        wrong = np.zeros_like(right)
        y = data.correct[at] == 1
        right[student[y], item[y]] = 1
        wrong[student[~y], item[~y]] = 1
        yield k, right, wrong, mastery[who, k]


def _check(mastery: NDArray[Any], data: ResponseData) -> None:
    if mastery.shape != (data.n_students, data.n_kcs):
        raise DiagnosisError(
            f"mastery is {list(mastery.shape)}, and there are {data.n_students} students and {data.n_kcs} skills"
        )


def _mean(values: NDArray[np.float64]) -> float:
    if np.isnan(values).all():
        warnings.warn(
            "DOA is undefined: no two students with different mastery answered an item differently",
            UndefinedMetric,
            stacklevel=3,
        )
        return float("nan")
    return float(np.nanmean(values))
