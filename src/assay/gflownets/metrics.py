"""Figures: distances to an exact distribution, bounds on log Z, correlations, modes, diversity. Arrays in, a
`Figure` out.

Distributions are arrays of probabilities over the same terminal states, float64. Every figure says on how much it
rests and what it costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats

from assay.gflownets.errors import GFlowNetError

Probabilities = Float[np.ndarray, " terminal"]
Cost = Literal["exact", "sampled", "cheap"]


class Figure(NamedTuple):
    """A figure.

    Attributes
    ----------
    value : float
    n : int
        Terminal states, samples or trajectories that it rests on.
    cost : {"exact", "sampled", "cheap"}
        ``exact``: the whole space; ``sampled``: further rollouts; ``cheap``: what is there already.
    se : float
        Standard error; 0 where there is none.
    """

    value: float
    n: int
    cost: Cost
    se: float = 0.0

    def __float__(self) -> float:
        return self.value


def total_variation(p: Probabilities, q: Probabilities) -> Figure:
    """Half the sum of absolute differences.

    >>> total_variation(np.array([0.5, 0.5]), np.array([1.0, 0.0])).value
    0.5
    """
    _same(p, q)
    return Figure(float(0.5 * np.abs(p - q).sum()), len(p), "exact")


def l1(p: Probabilities, q: Probabilities) -> Figure:
    """Sum of absolute differences."""
    _same(p, q)
    return Figure(float(np.abs(p - q).sum()), len(p), "exact")


def mean_l1(p: Probabilities, q: Probabilities) -> Figure:
    """Mean of absolute differences: what torchgfn calls the L1 distance; the sum divided by the number of terminal
    states."""
    _same(p, q)
    return Figure(float(np.abs(p - q).mean()), len(p), "exact")


def kl(p: Probabilities, q: Probabilities) -> Figure:
    """KL(p || q), infinite where q is 0 and p is not."""
    _same(p, q)
    there = p > 0
    if (q[there] <= 0).any():
        return Figure(math.inf, len(p), "exact")
    return Figure(float((p[there] * np.log(p[there] / q[there])).sum()), len(p), "exact")


def jsd(p: Probabilities, q: Probabilities) -> Figure:
    """Jensen-Shannon divergence in nats, at most log 2."""
    middle = 0.5 * (np.asarray(p) + np.asarray(q))
    return Figure(0.5 * kl(p, middle).value + 0.5 * kl(q, middle).value, len(p), "exact")


def _same(p: np.ndarray, q: np.ndarray) -> None:
    if np.shape(p) != np.shape(q) or np.ndim(p) != 1:
        raise GFlowNetError(f"two distributions must be arrays of one length, not {np.shape(p)} and {np.shape(q)}")


def empirical(numbers: Int[np.ndarray, " samples"], size: int, last: int = 200_000) -> Probabilities:
    """Shares of terminal states among the last samples."""
    numbers = np.asarray(numbers)[-last:]
    if not len(numbers):
        raise GFlowNetError("no samples: an empirical distribution needs at least one")
    return np.bincount(numbers, minlength=size) / len(numbers)


def marginals(
    p: Probabilities, coordinates: Int[np.ndarray, "terminal dim"], axes: tuple[int, int]
) -> Float[np.ndarray, "a b"]:
    """Two-dimensional marginal of a distribution over cells."""
    a, b = (coordinates[:, axis] for axis in axes)
    out = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(out, (a, b), p)
    return out


def log_z_error(log_z: float, exact: float) -> Figure:
    """Absolute error of an estimate."""
    return Figure(abs(float(log_z) - exact), 1, "cheap")


class Bounds(NamedTuple):
    """What trajectories say about an unknown log Z.

    Attributes
    ----------
    lower, upper : Figure
        ELBO, and EUBO by self-normalised importance sampling.
    log_z : Figure
        Log of the mean weight.
    total_variation : Figure
        Estimate of the distance between the trajectory laws P_F and P_B R / Z: no terminal distance is larger.
    effective_samples : float
    """

    lower: Figure
    upper: Figure
    log_z: Figure
    total_variation: Figure
    effective_samples: float

    @property
    def gap(self) -> float:
        """Upper minus lower: the sum of both divergences."""
        return self.upper.value - self.lower.value


def log_z_bounds(log_w: Float[np.ndarray, " n"]) -> Bounds:
    """Bounds from log weights log R + log P_B - log P_F of trajectories of the policy.

    The mean is below log Z in expectation (ELBO). The upper bound is E of the log weight over the target, whose
    samples are the same trajectories weighted by w: consistent, and biased downwards while few samples carry the
    weight (`effective_samples`).
    """
    log_w = np.asarray(log_w, np.float64)
    n = len(log_w)
    if n < 2 or not np.isfinite(log_w).all():
        raise GFlowNetError(f"bounds need at least two finite log weights, not {n}")
    top = log_w.max()
    w = np.exp(log_w - top)
    share = w / w.sum()
    log_z = float(np.log(w.mean()) + top)
    upper = float(share @ log_w)
    relative = w / w.mean()
    distance = 0.5 * np.abs(relative - 1)
    return Bounds(
        Figure(float(log_w.mean()), n, "sampled", float(log_w.std(ddof=1) / math.sqrt(n))),
        Figure(upper, n, "sampled", float(np.sqrt((share**2 * (log_w - upper) ** 2).sum()))),
        Figure(log_z, n, "sampled", float(relative.std(ddof=1) / math.sqrt(n))),
        Figure(float(distance.mean()), n, "sampled", float(distance.std(ddof=1) / math.sqrt(n))),
        float(1 / (share**2).sum()),
    )


def elbo(log_w: Float[np.ndarray, " n"]) -> Figure:
    """Mean log weight over trajectories of the policy."""
    return log_z_bounds(log_w).lower


def eubo(log_w: Float[np.ndarray, " n"]) -> Figure:
    """Mean log weight over backward trajectories from samples of the target: at least log Z in expectation."""
    log_w = np.asarray(log_w, np.float64)
    return Figure(float(log_w.mean()), len(log_w), "sampled", float(log_w.std(ddof=1) / math.sqrt(len(log_w))))


def correlation(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"], kind: str = "pearson") -> Figure:
    """Pearson or Spearman correlation, as of log p(x) and log R(x); NaN where one is constant."""
    if kind not in ("pearson", "spearman"):
        raise GFlowNetError(f"kind must be 'pearson' or 'spearman', not {kind!r}")
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return Figure(math.nan, len(a), "cheap")
    found = stats.pearsonr(a, b) if kind == "pearson" else stats.spearmanr(a, b)
    return Figure(
        float(found.statistic), len(a), "cheap", float((1 - found.statistic**2) / math.sqrt(max(len(a) - 1, 1)))
    )


def mean_reward_error(log_r: Float[np.ndarray, " n"], exact: float, window: int = 10_000) -> Figure:
    """Relative error of the mean reward of the last samples to the exact mean E_p[R]."""
    reward = np.exp(np.asarray(log_r, np.float64)[-window:])
    se = float(reward.std(ddof=1) / math.sqrt(len(reward)) / exact) if len(reward) > 1 else 0.0
    return Figure(float(abs(reward.mean() - exact) / exact), len(reward), "cheap", se)


def distinct(
    objects: Sequence[Any], log_r: Float[np.ndarray, " n"]
) -> tuple[list[Any], Float[np.ndarray, " distinct"]]:
    """Each object once, best first."""
    best: dict[Any, float] = {}
    for item, value in zip(objects, np.asarray(log_r, np.float64).tolist(), strict=True):
        best[item] = value
    order = sorted(best, key=lambda item: -best[item])
    return order, np.array([best[item] for item in order])


def hamming(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Unequal places, plus the difference in length."""
    return sum(x != y for x, y in zip(a, b, strict=False)) + abs(len(a) - len(b))


def levenshtein(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Least number of insertions, deletions and replacements.

    >>> levenshtein("kitten", "sitting")
    3
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def top_k(
    objects: Sequence[Any],
    log_r: Float[np.ndarray, " n"],
    k: int = 100,
    distance: Callable[[Any, Any], float] = hamming,
) -> tuple[Figure, Figure]:
    """Mean reward of the k best distinct objects, and their mean pairwise distance."""
    best, values = distinct(objects, log_r)
    best, values = best[:k], values[:k]
    pairs = [distance(a, b) for i, a in enumerate(best) for b in best[:i]]
    spread = float(np.mean(pairs)) if pairs else math.nan
    return Figure(float(np.exp(values).mean()), len(best), "cheap"), Figure(spread, len(best), "cheap")


def modes_found(
    objects: Sequence[Any],
    modes: Sequence[Any],
    threshold: float | int = 0,
    distance: Callable[[Any, Any], float] = hamming,
) -> Figure:
    """How many of the known modes have a sample within the threshold; each counts once, however often it was hit."""
    seen = list(dict.fromkeys(objects))
    if threshold == 0 and distance is hamming:
        there = set(seen)
        return Figure(float(sum(mode in there for mode in dict.fromkeys(modes))), len(objects), "cheap")
    found = sum(any(distance(mode, item) <= threshold for item in seen) for mode in dict.fromkeys(modes))
    return Figure(float(found), len(objects), "cheap")


def distinct_modes(
    objects: Sequence[Any],
    log_r: Float[np.ndarray, " n"],
    least: float | int,
    separation: float | int,
    distance: Callable[[Any, Any], float] = hamming,
) -> list[Any]:
    """Objects with log reward of at least ``least`` that lie more than ``separation`` from every better one taken
    before."""
    taken: list[Any] = []
    best, values = distinct(objects, log_r)
    for item, value in zip(best, values, strict=True):
        if value < least:
            break
        if all(distance(item, other) > separation for other in taken):
            taken.append(item)
    return taken


# -- graphs ----------------------------------------------------------------------------------------------------------


class GraphMarginals(NamedTuple):
    """Posterior probabilities ``float64[d, d]`` that i -> j is an edge, that a path leads from i to j, that i is in
    the Markov blanket of j."""

    edge: Float[np.ndarray, "d d"]
    path: Float[np.ndarray, "d d"]
    markov: Float[np.ndarray, "d d"]


def graph_marginals(
    adjacency: Bool[np.ndarray, "n d d"], weight: Float[np.ndarray, " n"] | None = None
) -> GraphMarginals:
    """Marginals over graphs (samples, or all graphs with their probabilities)."""
    graphs = np.asarray(adjacency, bool)
    n, d, _ = graphs.shape
    w = np.full(n, 1 / n) if weight is None else np.asarray(weight, np.float64) / np.sum(weight)
    reach = graphs.copy()
    for _ in range(max(1, (d - 1).bit_length())):
        reach = reach | (reach[:, :, :, None] & reach[:, None, :, :]).any(2)
    spouse = (graphs[:, :, None, :] & graphs[:, None, :, :]).any(3)
    markov = (graphs | graphs.transpose(0, 2, 1) | spouse) & ~np.eye(d, dtype=bool)
    return GraphMarginals(*(np.tensordot(w, x.astype(np.float64), 1) for x in (graphs, reach, markov)))


def marginal_correlation(a: Float[np.ndarray, "d d"], b: Float[np.ndarray, "d d"]) -> Figure:
    """Pearson correlation of two matrices of marginals, off the diagonal."""
    off = ~np.eye(len(a), dtype=bool)
    return correlation(a[off], b[off])


# -- trees and spins -------------------------------------------------------------------------------------------------


def tree_diversity(
    newicks: Sequence[str], names: Sequence[str], pairs: int = 1000, rng: np.random.Generator | None = None
) -> Figure:
    """Mean Robinson-Foulds distance of random pairs of trees."""
    from assay.gflownets.trees import splits

    if len(newicks) < 2:
        return Figure(math.nan, len(newicks), "cheap")
    rng = np.random.default_rng(0) if rng is None else rng
    known: dict[str, frozenset[frozenset[int]]] = {}
    found = []
    for _ in range(pairs):
        i, j = rng.choice(len(newicks), 2, replace=False)
        for text in (newicks[i], newicks[j]):
            if text not in known:
                known[text] = splits(text, names)
        found.append(len(known[newicks[i]] ^ known[newicks[j]]))
    return Figure(float(np.mean(found)), pairs, "cheap", float(np.std(found) / math.sqrt(pairs)))


def magnetisation(spins: Int[np.ndarray, "n sites"]) -> Figure:
    """Mean absolute magnetisation a site."""
    m = np.abs(np.asarray(spins, np.float64).mean(1))
    return Figure(float(m.mean()), len(m), "cheap", float(m.std() / math.sqrt(len(m))))


def mean_energy(spins: Int[np.ndarray, "n sites"], J: Float[np.ndarray, "sites sites"]) -> Figure:
    """Mean of -x'Jx."""
    x = np.asarray(spins, np.float64)
    e = -np.einsum("ns,st,nt->n", x, np.asarray(J, np.float64), x)
    return Figure(float(e.mean()), len(e), "cheap", float(e.std() / math.sqrt(len(e))))


def log_rmse(found: Float[np.ndarray, "sites sites"], true: Float[np.ndarray, "sites sites"]) -> Figure:
    """-log of the root mean squared error of couplings; larger is better."""
    error = float(np.sqrt(((np.asarray(found) - np.asarray(true)) ** 2).mean()))
    return Figure(-math.log(max(error, 1e-300)), np.asarray(true).size, "cheap")
