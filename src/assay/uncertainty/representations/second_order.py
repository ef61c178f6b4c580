"""Second-order predictions: a distribution over distributions, as a sample or by parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from assay.uncertainty.errors import AmbiguousAxis, NotADistribution, UncertaintyError
from assay.uncertainty.representations.base import Representation, positive
from assay.uncertainty.representations.first_order import Categorical
from assay.uncertainty.simplex import as_probabilities


class Sample(Representation):
    """Predictions of several members (an ensemble, draws of a posterior): ``probs (..., M, K)``.

    Parameters
    ----------
    probs : array_like
        A memory map stays one: it is checked and measured in blocks.
    weights : array_like, optional
        ``(M)`` or ``(..., M)``, non-negative; normalised. Default: equal.
    axis : int
        Axis of the members; -2 is ``(..., M, K)``, 0 is ``(M, N, K)``.
    renormalize : bool

    Raises
    ------
    NotADistribution
        A row is no distribution, or the weights are negative or zero in sum.
    AmbiguousAxis
        The array has fewer than two axes, or ``axis`` is the axis of the classes.

    Examples
    --------
    >>> sample = Sample([[[0.9, 0.1], [0.1, 0.9]]])
    >>> sample.mean().tolist()
    [[0.5, 0.5]]
    """

    def __init__(
        self, probs: ArrayLike, weights: ArrayLike | None = None, *, axis: int = -2, renormalize: bool = False
    ) -> None:  # fmt: skip
        raw = probs if isinstance(probs, np.ndarray) else np.asarray(probs)
        if raw.ndim < 2:
            raise AmbiguousAxis(
                f"a sample needs an axis of members and one of classes; this array has shape {raw.shape}"
            )
        if not -raw.ndim <= axis < raw.ndim or axis in (-1, raw.ndim - 1):
            raise AmbiguousAxis(
                f"axis {axis} cannot be the axis of members of an array of shape {raw.shape} (classes are last)"
            )
        self.probs = as_probabilities(np.moveaxis(raw, axis, -2), renormalize=renormalize)
        self.weights: NDArray[np.float64] | None = None
        if weights is not None:
            w = np.asarray(weights, dtype=np.float64)
            if w.shape[-1:] != (self.n_members,) or (w.ndim > 1 and w.shape != self.probs.shape[:-1]):
                raise NotADistribution(
                    f"weights of shape {w.shape} do not fit {self.n_members} members of shape {self.probs.shape}"
                )
            if not (np.isfinite(w).all() and (w >= 0).all() and (w.sum(-1) > 0).all()):
                raise NotADistribution("weights must be finite, not negative, and positive in sum")
            self.weights = w / w.sum(-1, keepdims=True)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape without the axes of members and classes."""
        return self.probs.shape[:-2]

    @property
    def n_members(self) -> int:
        """Number of members."""
        return self.probs.shape[-2]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.probs.shape[-1]

    def _shown(self) -> str:
        return f"batch {list(self.batch_shape)}, {self.n_members} members, {self.n_classes} classes"

    def mean(self) -> NDArray[np.float64]:
        """(Weighted) mean of the members."""
        if self.weights is None:
            return np.asarray(self.probs.mean(axis=-2))
        return np.asarray(
            np.einsum("...mk,...m->...k", self.probs, np.broadcast_to(self.weights, self.probs.shape[:-1]))
        )

    def rows(self, part: Any) -> Sample:
        """Some of the rows (first axis), unchecked."""
        return self._with(
            self.probs[part], self.weights if self.weights is None or self.weights.ndim == 1 else self.weights[part]
        )

    def _with(self, probs: NDArray[np.float64], weights: NDArray[np.float64] | None) -> Sample:
        made = object.__new__(Sample)
        made.probs, made.weights, made.classes, made.index = probs, weights, self.classes, None
        return made


class Dirichlet(Representation):
    """A Dirichlet distribution a row: ``alpha (..., K)``, all above 0."""

    def __init__(self, alpha: ArrayLike) -> None:
        self.alpha = np.asarray(alpha, dtype=np.float64)
        positive("alpha", self.alpha)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape without the axis of classes."""
        return self.alpha.shape[:-1]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.alpha.shape[-1]

    def mean(self) -> NDArray[np.float64]:
        """``alpha / sum(alpha)``."""
        return np.asarray(self.alpha / self.alpha.sum(-1, keepdims=True))

    def sample(self, n: int, rng: np.random.Generator) -> Sample:
        """``n`` draws a row."""
        g = rng.standard_gamma(self.alpha[..., None, :], size=(*self.batch_shape, n, self.n_classes))
        g = np.maximum(g, 1e-300)
        return Sample(g / g.sum(-1, keepdims=True)).named(self.classes, self.index)


class DirichletMixture(Representation):
    """A mixture of Dirichlet distributions a row: ``alpha (..., M, K)``, weights ``(M)`` or ``(..., M)``."""

    def __init__(self, alpha: ArrayLike, weights: ArrayLike | None = None) -> None:
        self.alpha = np.asarray(alpha, dtype=np.float64)
        positive("alpha", self.alpha)
        m = self.alpha.shape[-2]
        given = np.full(m, 1 / m) if weights is None else as_probabilities(weights, what="weights")
        self.weights = np.broadcast_to(given, self.alpha.shape[:-1])

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape without the axes of components and classes."""
        return self.alpha.shape[:-2]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.alpha.shape[-1]

    def mean(self) -> NDArray[np.float64]:
        """Mean of the mixture."""
        means = self.alpha / self.alpha.sum(-1, keepdims=True)
        return np.asarray((means * self.weights[..., None]).sum(-2))


class GaussianLogits(Representation):
    """Independent normal logits: ``mu, var (..., K)`` (Laplace, SNGP).

    `mean` is the mean-field approximation ``softmax(mu / sqrt(1 + pi/8 var))`` (Lu, Ie and Sha, 2020).

    Examples
    --------
    >>> GaussianLogits([[2.0, 0.0]], [[4.0, 4.0]]).mean().round(3).tolist()
    [[0.777, 0.223]]
    """

    def __init__(self, mu: ArrayLike, var: ArrayLike) -> None:
        self.mu, self.var = np.broadcast_arrays(np.asarray(mu, dtype=np.float64), np.asarray(var, dtype=np.float64))
        positive("var", self.var, strict=False)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape without the axis of classes."""
        return self.mu.shape[:-1]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.mu.shape[-1]

    def mean(self) -> NDArray[np.float64]:
        """Mean-field probabilities."""
        return np.asarray(softmax(self.mu / np.sqrt(1 + np.pi / 8 * self.var), axis=-1))

    def sample(self, n: int, rng: np.random.Generator) -> Sample:
        """``n`` draws a row, through the softmax."""
        z = rng.standard_normal((*self.batch_shape, n, self.n_classes))
        logits = self.mu[..., None, :] + np.sqrt(self.var)[..., None, :] * z
        return Sample(softmax(logits, axis=-1)).named(self.classes, self.index)


class GaussianSample(Representation):
    """Normal predictions of several members: ``mean, var (..., M)``, weights ``(M)`` or ``(..., M)``."""

    def __init__(self, mean: ArrayLike, var: ArrayLike = 0.0, weights: ArrayLike | None = None) -> None:
        self.loc, self.var = np.broadcast_arrays(np.asarray(mean, dtype=np.float64), np.asarray(var, dtype=np.float64))
        positive("var", self.var, strict=False)
        m = self.loc.shape[-1]
        given = np.full(m, 1 / m) if weights is None else as_probabilities(weights, what="weights", renormalize=True)
        self.weights = np.broadcast_to(given, self.loc.shape)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape without the axis of members."""
        return self.loc.shape[:-1]

    def mean(self) -> NDArray[np.float64]:
        """Mean over the members."""
        return np.asarray((self.weights * self.loc).sum(-1))


class NormalInverseGamma(Representation):
    """Evidence of a regressor: ``gamma, nu, alpha, beta (...)`` with ``nu, beta > 0`` and ``alpha > 1`` (Amini et
    al., 2020)."""

    def __init__(self, gamma: ArrayLike, nu: ArrayLike, alpha: ArrayLike, beta: ArrayLike) -> None:
        arrays = np.broadcast_arrays(*(np.asarray(a, dtype=np.float64) for a in (gamma, nu, alpha, beta)))
        self.gamma, self.nu, self.alpha, self.beta = arrays
        positive("nu", self.nu)
        positive("alpha - 1", self.alpha - 1)
        positive("beta", self.beta)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the parameters."""
        return self.gamma.shape

    def mean(self) -> NDArray[np.float64]:
        """``gamma``."""
        return self.gamma


class WithDensity(Representation):
    """Class probabilities with a density of the input: what a density or distance method (DDU, Mahalanobis, DUQ) knows.

    Parameters
    ----------
    probs : array_like, (..., K)
    log_density : array_like, (...)
        Higher is more familiar; a log-density, a negative distance or a log kernel value.
    """

    def __init__(self, probs: ArrayLike, log_density: ArrayLike) -> None:
        self.probs = Categorical(probs).probs
        self.log_density = np.asarray(log_density, dtype=np.float64)
        if self.log_density.shape != self.probs.shape[:-1]:
            raise UncertaintyError(f"log_density has shape {self.log_density.shape}, the batch {self.probs.shape[:-1]}")
        if np.isnan(self.log_density).any():
            raise UncertaintyError("log_density holds NaN")

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
