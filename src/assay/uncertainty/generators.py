"""Data whose uncertainty is known: moons, Gaussians with exact posteriors, noisy curves, block graphs, drifting
streams."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from assay.uncertainty.errors import UncertaintyError
from assay.uncertainty.simplex import as_probabilities

Array = NDArray[np.float64]


def two_moons(n: int = 500, noise: float = 0.15, seed: int = 0) -> tuple[Array, NDArray[np.int64]]:
    """Two interleaved half circles: X ``(n, 2)`` and labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    angle = rng.uniform(0, np.pi, n)
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    x[y == 1] = np.stack([1 - np.cos(angle[y == 1]), 0.5 - np.sin(angle[y == 1])], axis=1)
    return x + noise * rng.standard_normal((n, 2)), y.astype(np.int64)


@dataclass(frozen=True)
class GaussianClasses:
    """Classes with normal densities around known means, equal shares and unit covariance.

    Attributes
    ----------
    means : float64[K, D]
    """

    means: Array

    @classmethod
    def make(cls, k: int = 3, d: int = 2, separation: float = 2.0, seed: int = 0) -> GaussianClasses:
        """Means drawn from N(0, separation^2)."""
        return cls(separation * np.random.default_rng(seed).standard_normal((k, d)))

    def sample(self, n: int, seed: int = 0) -> tuple[Array, NDArray[np.int64]]:
        """Rows and labels."""
        rng = np.random.default_rng(seed)
        y = rng.integers(0, len(self.means), n)
        return self.means[y] + rng.standard_normal((n, self.means.shape[1])), y.astype(np.int64)

    def posterior(self, X: ArrayLike) -> Array:
        """Exact class probabilities: the first-order target.

        >>> GaussianClasses(np.array([[-1.0], [1.0]])).posterior([[0.0]]).tolist()
        [[0.5, 0.5]]
        """
        x = np.asarray(X, dtype=np.float64)
        d2 = ((x[:, None] - self.means) ** 2).sum(-1)
        return np.asarray(softmax(-d2 / 2, axis=1))


def noisy_curve(n: int = 300, seed: int = 0) -> tuple[Array, Array, Array]:
    """X in [-4, 4] with a gap between -1 and 1, ``y = sin(2x) + sd(x) noise`` with ``sd = 0.05 + 0.2 |x| / 4``; X, y
    and sd."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(1, 4, n) * rng.choice([-1, 1], n)
    sd = 0.05 + 0.05 * np.abs(x)
    return x[:, None], np.sin(2 * x) + sd * rng.standard_normal(n), sd


@dataclass(frozen=True)
class BlockGraph:
    """A graph whose nodes have classes, and bridges between them.

    Attributes
    ----------
    features : float64[n, D]
    edges : int64[e, 2]
    labels : int64[n]
    train, bridge : bool[n]
        Nodes with known labels; nodes linked to two blocks alike, with features between them.
    """

    features: Array
    edges: NDArray[np.int64]
    labels: NDArray[np.int64]
    train: NDArray[np.bool_]
    bridge: NDArray[np.bool_]


def bridged_blocks(
    n: int = 300,
    k: int = 3,
    d: int = 8,
    *,
    inside: float = 0.08,
    across: float = 0.004,
    bridges: float = 0.1,
    labelled: float = 0.3,
    separation: float = 1.2,
    seed: int = 0,
) -> BlockGraph:
    """A stochastic block model with bridge nodes, which belong to two blocks: their label is a fair coin between these.

    Parameters
    ----------
    n, k, d : int
        Nodes, blocks, columns.
    inside, across : float
        Probability of an edge within a block and between blocks; a bridge has ``inside`` to both of its blocks.
    bridges, labelled : float
        Shares of the nodes.
    separation : float
        Distance of the blocks' feature means, in standard deviations of the noise.
    """
    rng = np.random.default_rng(seed)
    block = rng.integers(0, k, n)
    other = (block + rng.integers(1, k, n)) % k
    bridge = rng.random(n) < bridges
    member = np.zeros((n, k))
    member[np.arange(n), block] = 1
    member[bridge, other[bridge]] = 1
    shares = (member @ member.T) > 0
    chance = np.where(shares, inside, across)
    upper = np.triu(rng.random((n, n)) < chance, 1)
    means = separation * rng.standard_normal((k, d))
    features = member @ means / member.sum(1, keepdims=True) + rng.standard_normal((n, d))
    labels = np.where(bridge & (rng.random(n) < 0.5), other, block)
    train = rng.random(n) < labelled
    return BlockGraph(features, np.argwhere(upper).astype(np.int64), labels.astype(np.int64), train, bridge)


def drifting_stream(
    n: int = 4000, change: int = 2000, d: int = 5, noise: float = 0.1, seed: int = 0
) -> tuple[Array, NDArray[np.int64]]:
    """Rows in order: the label is the side of a hyperplane (flipped with probability ``noise``), which turns at row
    ``change``."""
    if not 0 <= change <= n:
        raise UncertaintyError(f"change is a row between 0 and {n}, not {change}")
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d))
    before, after = rng.standard_normal((2, d))
    after -= (after @ before) / (before @ before) * before  # at a right angle
    side = np.where(np.arange(n) < change, x @ before, x @ after) > 0
    return x, (side ^ (rng.random(n) < noise)).astype(np.int64)


def annotate(p: ArrayLike, n_votes: int, seed: int = 0) -> NDArray[np.int64]:
    """Counts of votes drawn from each row's probabilities: ``int64[..., K]``.

    >>> annotate([[0.5, 0.5], [1.0, 0.0]], 10, seed=0).tolist()
    [[6, 4], [10, 0]]
    """
    probs = as_probabilities(p)
    return np.random.default_rng(seed).multinomial(n_votes, probs)


def split_votes(counts: ArrayLike, n: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Counts of n votes drawn from each row's without replacement, and of the votes that are left.

    Raises
    ------
    UncertaintyError
        If some row has no vote left.

    Examples
    --------
    >>> few, rest = split_votes([[30, 20], [50, 0]], 5, seed=0)
    >>> few.sum(1).tolist(), (few + rest).tolist()
    ([5, 5], [[30, 20], [50, 0]])
    """
    votes = np.asarray(counts, dtype=np.int64)
    least = int(votes.sum(-1).min()) if votes.size else 0
    if not 1 <= n < least:
        raise UncertaintyError(f"n is at least 1 and below the votes of every row ({least} at the least), not {n}")
    rng = np.random.default_rng(seed)
    few = np.stack([rng.multivariate_hypergeometric(row, n) for row in votes])
    return few, votes - few
