"""Uncertainty of generated texts: entropy over meanings, and over the spectrum of embeddings."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from assay.uncertainty.errors import TargetShape, UncertaintyError

Entails = Callable[[str, str], bool]


def semantic_clusters(texts: Sequence[str], entails: Entails) -> NDArray[np.int64]:
    """Cluster number of each text: a text joins the first cluster whose first member it entails and is entailed by.

    Examples
    --------
    >>> same = lambda a, b: a.lower() == b.lower()
    >>> semantic_clusters(["Paris", "paris", "Lyon"], same).tolist()
    [0, 0, 1]
    """
    firsts: list[str] = []
    clusters = []
    for text in texts:
        for k, first in enumerate(firsts):
            if entails(first, text) and entails(text, first):
                clusters.append(k)
                break
        else:
            clusters.append(len(firsts))
            firsts.append(text)
    return np.array(clusters, dtype=np.int64)


@dataclass(frozen=True)
class Generations:
    """Answers drawn for one question, with their clusters of meaning.

    Attributes
    ----------
    texts : tuple of str
    clusters : int64[n]
    log_probs : float64[n] or None
        Log-probability of each text under the model.
    """

    texts: tuple[str, ...]
    clusters: NDArray[np.int64]
    log_probs: NDArray[np.float64] | None = None

    @classmethod
    def make(cls, texts: Sequence[str], entails: Entails, log_probs: ArrayLike | None = None) -> Generations:
        """Cluster texts by mutual entailment.

        Raises
        ------
        TargetShape, UncertaintyError
        """
        if not texts:
            raise UncertaintyError("there is no text to cluster")
        logs = None if log_probs is None else np.asarray(log_probs, dtype=np.float64)
        if logs is not None and logs.shape != (len(texts),):
            raise TargetShape(f"{len(texts)} texts and log-probabilities of shape {logs.shape}")
        return cls(tuple(texts), semantic_clusters(texts, entails), logs)

    def masses(self, weights: str = "count") -> NDArray[np.float64]:
        """Mass of each cluster: shares of the draws (``count``), or normalised probabilities of the distinct texts
        (``rao``)."""
        k = int(self.clusters.max()) + 1
        if weights == "count":
            return np.asarray(np.bincount(self.clusters, minlength=k) / len(self.clusters))
        if weights != "rao":
            raise UncertaintyError(f"weights is 'count' or 'rao', not {weights!r}")
        if self.log_probs is None:
            raise UncertaintyError("weights='rao' needs log-probabilities")
        distinct = {text: i for i, text in enumerate(self.texts)}
        rows = np.array(sorted(distinct.values()))
        logs = np.array([logsumexp(self.log_probs[rows][self.clusters[rows] == c]) for c in range(k)])
        return np.asarray(np.exp(logs - logsumexp(logs)))


def semantic_entropy(generations: Generations, weights: str = "count") -> float:
    """Entropy over meanings in nats (Kuhn, Gal and Farquhar, ICLR 2023; Farquhar et al., Nature 2024).

    Parameters
    ----------
    generations : Generations
    weights : {"count", "rao"}
        Shares of draws (the discrete form), or Rao-Blackwellised from the model's probabilities.

    Examples
    --------
    >>> drawn = Generations.make(["Paris", "paris", "Lyon", "Paris"], lambda a, b: a.lower() == b.lower())
    >>> round(semantic_entropy(drawn), 4)
    0.5623
    """
    p = generations.masses(weights)
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def string_entropy(texts: Sequence[Hashable]) -> float:
    """Entropy over distinct texts, blind to paraphrase: what semantic entropy is compared with."""
    counts: dict[Hashable, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    p = np.array(list(counts.values())) / len(texts)
    return float(-(p * np.log(p)).sum())


@dataclass(frozen=True)
class Spectral:
    """Von Neumann entropies in nats: pooled, mean within clarification groups, and their difference."""

    total: float
    aleatoric: float | None
    epistemic: float | None


def von_neumann_entropy(embeddings: Float[np.ndarray, "texts size"], gamma: float = 1.0) -> float:
    """Entropy of the eigenvalues of ``K / n`` with the kernel ``exp(-gamma |a - b|^2)``: log n for n far-apart texts,
    0 for equal ones.

    >>> round(von_neumann_entropy(np.eye(4), gamma=50.0), 6), round(von_neumann_entropy(np.ones((4, 3))), 6)
    (1.386294, 0.0)
    """
    e = np.asarray(embeddings, dtype=np.float64)
    if e.ndim != 2 or not len(e) or not np.isfinite(e).all() or not gamma > 0:
        raise UncertaintyError(
            f"embeddings are finite (texts, size) and gamma is above 0, not shape {e.shape} and {gamma}"
        )
    d2 = ((e[:, None] - e[None]) ** 2).sum(-1)
    values = np.linalg.eigvalsh(np.exp(-gamma * d2) / len(e))
    values = values[values > 1e-15]
    return float(max(-(values * np.log(values)).sum(), 0.0))


def spectral_uncertainty(embeddings: ArrayLike, groups: ArrayLike | None = None, gamma: float = 1.0) -> Spectral:
    """Uncertainty from embeddings of answers, without clusters (Walha et al., 2025).

    Parameters
    ----------
    embeddings : array_like, (texts, size)
        One row a drawn answer.
    groups : array_like, (texts), optional
        Which clarification of the question each answer belongs to: the mean entropy within these is aleatoric, weighted
        by the groups' sizes; the rest is epistemic.
    gamma : float
    """
    e = np.asarray(embeddings, dtype=np.float64)
    total = von_neumann_entropy(e, gamma)
    if groups is None:
        return Spectral(total, None, None)
    g = np.asarray(groups)
    if g.shape != (len(e),):
        raise TargetShape(f"{len(e)} texts and groups of shape {g.shape}")
    names, counts = np.unique(g, return_counts=True)
    within = float(sum(c / len(g) * von_neumann_entropy(e[g == n], gamma) for n, c in zip(names, counts, strict=True)))
    return Spectral(total, within, max(total - within, 0.0))
