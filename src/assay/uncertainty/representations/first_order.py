"""First-order predictions: one distribution a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_softmax, ndtr, softmax

from assay.uncertainty.errors import NotADistribution, UncertaintyError
from assay.uncertainty.representations.base import Representation, positive
from assay.uncertainty.simplex import as_probabilities


class Categorical(Representation):
    """Class probabilities ``(..., K)``.

    Parameters
    ----------
    probs : array_like, (..., K)
    renormalize : bool
        Accept rows that do not sum to one.

    Raises
    ------
    NotADistribution

    Examples
    --------
    >>> Categorical.from_logits([[0.0, np.log(3.0)]]).probs.round(2).tolist()
    [[0.25, 0.75]]
    """

    def __init__(self, probs: ArrayLike, *, renormalize: bool = False) -> None:
        self.probs = as_probabilities(probs, renormalize=renormalize)

    @classmethod
    def from_logits(cls, logits: ArrayLike) -> Categorical:
        """From unnormalised log-probabilities."""
        return cls(softmax(np.asarray(logits, dtype=np.float64), axis=-1))

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape without the axis of classes."""
        return self.probs.shape[:-1]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.probs.shape[-1]

    def mean(self) -> NDArray[np.float64]:
        """The probabilities."""
        return self.probs


class Bernoulli(Categorical):
    """The probability of class 1, ``(...)``; kept as a categorical distribution over two classes.

    Examples
    --------
    >>> Bernoulli([0.25]).probs.tolist()
    [[0.75, 0.25]]
    """

    def __init__(self, p: ArrayLike) -> None:
        p = np.asarray(p, dtype=np.float64)
        if not ((p >= 0) & (p <= 1)).all():
            raise NotADistribution(
                f"a probability lies between 0 and 1; row {int(np.argmax(~((p >= 0) & (p <= 1))))} does not"
            )
        super().__init__(np.stack([1 - p, p], axis=-1))

    @classmethod
    def from_logits(cls, logits: ArrayLike) -> Bernoulli:
        """From log-odds of class 1."""
        return cls(expit(np.asarray(logits, dtype=np.float64)))


class Gaussian(Representation):
    """A normal distribution a row: ``mean (...)`` and ``var (...)``."""

    def __init__(self, mean: ArrayLike, var: ArrayLike) -> None:
        self.loc, self.var = np.broadcast_arrays(np.asarray(mean, dtype=np.float64), np.asarray(var, dtype=np.float64))
        positive("var", self.var, strict=False)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the means."""
        return self.loc.shape

    def mean(self) -> NDArray[np.float64]:
        """The means."""
        return self.loc


class GaussianMixture(Representation):
    """A mixture of normal distributions a row: ``mean, var (..., M)`` and weights ``(..., M)`` or ``(M)``."""

    def __init__(self, mean: ArrayLike, var: ArrayLike, weights: ArrayLike | None = None) -> None:
        self.loc, self.var = np.broadcast_arrays(np.asarray(mean, dtype=np.float64), np.asarray(var, dtype=np.float64))
        positive("var", self.var, strict=False)
        m = self.loc.shape[-1]
        given = np.full(m, 1 / m) if weights is None else as_probabilities(weights, what="weights")
        self.weights = np.broadcast_to(given, self.loc.shape)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape without the axis of components."""
        return self.loc.shape[:-1]

    def mean(self) -> NDArray[np.float64]:
        """Mean of the mixture."""
        return np.asarray((self.weights * self.loc).sum(-1))

    def cdf(self, y: ArrayLike) -> NDArray[np.float64]:
        """Distribution function at ``y (...)``."""
        z = (np.asarray(y, dtype=np.float64)[..., None] - self.loc) / np.sqrt(self.var)
        return np.asarray((self.weights * ndtr(z)).sum(-1))


class SparseLogCategorical(Representation):
    """The top log-probabilities of a language model, one dictionary ``{token: log p}`` a row, and the mass of the rest.

    Parameters
    ----------
    rows : sequence of mapping
        Token to natural log-probability.
    rest : {"other", "drop"}
        What is missing to one becomes one further outcome, or is dropped by renormalising.

    Examples
    --------
    >>> top = SparseLogCategorical([{"yes": np.log(0.6), "no": np.log(0.3)}])
    >>> top.entropy().round(4).tolist(), top.predict().tolist()
    ([0.8979], ['yes'])
    """

    def __init__(self, rows: Sequence[Mapping[str, float]], *, rest: str = "other") -> None:
        if rest not in ("other", "drop"):
            raise UncertaintyError(f"rest is 'other' or 'drop', not {rest!r}")
        for i, row in enumerate(rows):
            total = float(np.exp(list(row.values())).sum()) if row else 0.0
            if not 0 < total <= 1 + 1e-4:
                raise NotADistribution(f"row {i}: the listed probabilities sum to {total:.6g}; they must be in (0, 1]")
        self.rows = list(rows)
        self.rest = rest

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Number of rows."""
        return (len(self.rows),)

    def entropy(self) -> NDArray[np.float64]:
        """Entropy of each row in nats; with ``rest="other"`` the unlisted mass counts as one outcome: a lower bound."""
        values = []
        for row in self.rows:
            logs = np.array(list(row.values()))
            missing = 1 - np.exp(logs).sum()
            if self.rest == "drop":
                logs = log_softmax(logs)
            elif missing > 1e-12:
                logs = np.append(logs, np.log(missing))
            values.append(-float(np.exp(logs) @ logs))
        return np.array(values)

    def predict(self) -> NDArray[np.object_]:
        """The most probable token of each row."""
        return np.array([max(row, key=lambda token: row[token]) for row in self.rows], dtype=object)
