"""A learning platform with known truth: who masters what, how items behave, what people say about difficulty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from assay.diagnosis.errors import DiagnosisError, UnknownName
from assay.diagnosis.hierarchy import Hierarchy
from assay.diagnosis.responses import ResponseData

KINDS = ("dina", "gdina", "mirt", "ncdm-like")
_WORDS = (
    "a first look at",
    "warm-up:",
    "practise",
    "work with",
    "apply",
    "combine",
    "advanced:",
    "challenge:",
    "olympiad:",
)


@dataclass(frozen=True, eq=False)
class SimulatedPlatform:
    """Data with its truth.

    Attributes
    ----------
    data : ResponseData
    alpha : float64[S, K]
        True mastery: 0 or 1 (dina, gdina), a probability (ncdm-like), a standard normal ability (mirt).
    probability : float64[S, J]
        True probability of a right answer.
    difficulty : float64[J]
        Minus the mean true logit.
    true_q : bool[J, K]
        The Q-matrix that made the answers (``data.q`` may have wrong entries).
    ratings : list of (int, int, float)
        Human-like ratings: item a, item b, how much harder b is, with noise.
    guess, slip : float64[J]
    """

    data: ResponseData
    alpha: NDArray[np.float64]
    probability: NDArray[np.float64]
    difficulty: NDArray[np.float64]
    true_q: NDArray[np.bool_]
    ratings: list[tuple[int, int, float]]
    guess: NDArray[np.float64]
    slip: NDArray[np.float64]


def simulate_platform(
    S: int = 1000,
    J: int = 60,
    K: int = 6,
    density: float = 0.5,
    *,
    model: str = "dina",
    q_density: float = 0.3,
    hierarchy: Sequence[tuple[int, int]] = (),
    slip: float | tuple[float, float] = (0.05, 0.25),
    guess: float | tuple[float, float] = (0.05, 0.3),
    n_noise_q: int = 0,
    drift: float = 0.0,
    text: bool = True,
    text_correlation: float = 0.7,
    ratings: int | None = None,
    rating_noise: float = 1.0,
    seed: int = 0,
) -> SimulatedPlatform:
    """Make a platform.

    Parameters
    ----------
    S, J, K : int
        Students, items, skills. The first K items need one skill each, so that classes can be told apart.
    density : float
        Share of cells that are answered; students differ in diligence.
    model : {"dina", "gdina", "mirt", "ncdm-like"}
    q_density : float
        Chance of a further skill in an item beyond its first.
    hierarchy : sequence of (int, int)
        Pairs (skill, skill that builds on it); dina and gdina.
    slip, guess : float or (low, high)
    n_noise_q : int
        Entries of the given Q-matrix that are wrong.
    drift : float
        How much ability (on the logit scale) grows from a student's first to last answer.
    text : bool
        Titles whose wording correlates ``text_correlation`` with difficulty.
    ratings : int, optional
        Pairs of items that are rated; default 10 an item.
    rating_noise : float
        Standard deviation of a rating's error, in units of the difficulty's.
    seed : int

    Raises
    ------
    UnknownName, DiagnosisError, CyclicHierarchy

    Examples
    --------
    >>> made = simulate_platform(500, 40, 4, density=1.0, slip=0.1, guess=0.1, seed=1)
    >>> made.data
    ResponseData(500 students, 40 items, 4 skills, 20,000 responses, 100.0% of cells)
    >>> bool(abs(made.probability.mean() - made.data.correct.mean()) < 0.01)
    True
    """
    if model not in KINDS:
        raise UnknownName.of("kind of platform", model, KINDS)
    if min(S, J, K) < 1 or K > J or not 0 < density <= 1:
        raise DiagnosisError(f"S={S}, J={J}, K={K}, density={density}: need J >= K >= 1 and a density in (0, 1]")
    rng = np.random.default_rng(seed)
    q = np.zeros((J, K), dtype=bool)
    q[np.arange(J), np.r_[np.arange(K), rng.integers(0, K, J - K)]] = True
    q[K:] |= rng.random((J - K, K)) < q_density / max(1, K - 1) * 2
    crowded = q.sum(1) > 4
    for j in np.flatnonzero(crowded):
        off = rng.permutation(np.flatnonzero(q[j]))[4:]
        q[j, off] = False
    g, s = (rng.uniform(*((v, v) if isinstance(v, (int, float)) else v), size=J) for v in (guess, slip))
    ability = rng.normal(size=S)
    latent = np.sqrt(0.5) * ability[:, None] + np.sqrt(0.5) * rng.normal(size=(S, K))
    if model in ("dina", "gdina"):
        alpha = (latent > rng.normal(0, 0.5, K)).astype(float)
        for parent, child in Hierarchy(K, hierarchy).in_order():
            alpha[:, child] *= alpha[:, parent]
        share = (alpha @ q.T) / q.sum(1)
        eta = (share >= 1).astype(float) if model == "dina" else share
        probability = g + (1 - s - g) * eta
    elif model == "mirt":
        alpha = latent
        a = rng.lognormal(0, 0.3, (J, K)) * q
        probability = g + (1 - g) * expit((alpha @ a.T) - rng.normal(0, 1, J) * np.sqrt((a**2).sum(1)))
    else:
        alpha = expit(1.5 * latent)
        b = expit(rng.normal(0, 1, (J, K)))
        scale = rng.uniform(4, 10, J)
        probability = expit(
            scale * np.einsum("sk,jk->sj", alpha, q / q.sum(1, keepdims=True)) - scale * (b * q).sum(1) / q.sum(1)
        )

    diligence = np.clip(density * rng.lognormal(-0.125, 0.5, S), 0, 1) if density < 1 else np.ones(S)
    student, item = np.nonzero(rng.random((S, J)) < diligence[:, None])
    p = probability[student, item]
    order = None
    if drift:
        shuffle = rng.permutation(len(student))
        shuffle = shuffle[np.argsort(student[shuffle], kind="stable")]
        student, item, p = student[shuffle], item[shuffle], p[shuffle]
        first = np.r_[True, student[1:] != student[:-1]]
        start = np.maximum.accumulate(np.where(first, np.arange(len(student)), 0))
        length = np.bincount(student, minlength=S)[student]
        p = expit(np.log(p / (1 - p)) + drift * ((np.arange(len(student)) - start) / np.maximum(length - 1, 1) - 0.5))
        order = np.arange(len(student))
    correct = rng.random(len(p)) < p

    given = q.copy()
    for _ in range(n_noise_q):
        while True:
            row, skill = int(rng.integers(min(K, J - 1), J)), int(rng.integers(K))
            if given[row, skill] == q[row, skill] and (not given[row, skill] or given[row].sum() > 1):
                given[row, skill] = not given[row, skill]
                break
    clipped = np.clip(probability, 1e-6, 1 - 1e-6)
    difficulty = -np.log(clipped / (1 - clipped)).mean(0)
    standard = (difficulty - difficulty.mean()) / max(difficulty.std(), 1e-12)
    n_pairs = 10 * J if ratings is None else ratings
    pairs = rng.integers(0, J, (n_pairs, 2))
    rated = [
        (int(a), int(b), float(np.round(standard[b] - standard[a] + rng.normal(0, rating_noise))))
        for a, b in pairs if a != b
    ]  # fmt: skip
    names = tuple(f"skill {chr(65 + k)}" if K <= 26 else f"skill {k + 1}" for k in range(K))
    titles = None
    if text:
        wording = text_correlation * standard + np.sqrt(1 - text_correlation**2) * rng.normal(size=J)
        level = np.clip(np.digitize(wording, np.linspace(-1.5, 1.5, len(_WORDS) - 1)), 0, len(_WORDS) - 1)
        titles = tuple(f"{_WORDS[level[j]]} {' and '.join(names[k] for k in np.flatnonzero(q[j]))}" for j in range(J))
    data = ResponseData(
        student, item, correct.astype(np.uint8), given, tuple(range(S)), (), names, order, titles, tuple(hierarchy)
    )
    data = replace(data, notes={"made": model, "seed": seed})
    return SimulatedPlatform(data, alpha, probability, difficulty, q, rated, g, s)


def wording_judge(first: str, second: str) -> int:
    """A judge that reads only titles: 1 if the second sounds harder, 0 if the first, by the words of
    `simulate_platform`.

    It stands in for a language model in tests and in the simulated experiment; ties go to the second, as an order
    bias would.
    """
    level = [next((i for i, w in enumerate(_WORDS) if t.startswith(w)), 0) for t in (first, second)]
    return int(level[1] >= level[0])
