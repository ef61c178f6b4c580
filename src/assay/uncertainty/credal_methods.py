"""Credal sets from ensembles, from one trained model, and from calibration data. (CreRL needs training:
`transforms_torch`.)"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, softmax
from sklearn.base import BaseEstimator, clone

from assay.uncertainty.conformal.quantile import conformal_quantile
from assay.uncertainty.credal.score_balls import score_of
from assay.uncertainty.errors import NotFitted, NotSupported, TargetShape, UncertaintyError
from assay.uncertainty.representations import Hull, Intervals, Sample, ScoreBall, TVBall
from assay.uncertainty.representations.base import row_names
from assay.uncertainty.simplex import as_probabilities

Array = NDArray[np.float64]


def credal_wrapper(sample: Sample) -> Intervals:
    """CreWra: smallest and largest probability of the members, made reachable (Wang et al., ICLR 2025).

    >>> found = credal_wrapper(Sample([[[0.6, 0.3, 0.1], [0.4, 0.4, 0.2]]]))
    >>> found.lower.round(3).tolist(), found.upper.round(3).tolist()
    ([[0.4, 0.3, 0.1]], [[0.6, 0.4, 0.2]])
    """
    return Intervals(sample.probs.min(-2), sample.probs.max(-2)).reachable().named(sample.classes, sample.index)


def credal_ensemble(sample: Sample, alpha: float = 0.5) -> Hull:
    """CreEns: the convex hull of the share ``alpha`` of the members nearest (in L1) to their mean (Nguyen, Zhang and
    Huellermeier, 2025)."""
    if not 0 < alpha <= 1:
        raise UncertaintyError(f"alpha, the share of members kept, lies in (0, 1], not {alpha}")
    keep = max(1, int(np.ceil(alpha * sample.n_members - 1e-9)))
    distance = np.abs(sample.probs - sample.mean()[..., None, :]).sum(-1)
    nearest = np.argsort(distance, axis=-1, kind="stable")[..., :keep]
    vertices = np.take_along_axis(sample.probs, nearest[..., None], axis=-2)
    return Hull(vertices).named(sample.classes, sample.index)


class CredalWrapper(BaseEstimator):
    """CreWra around any method that predicts a `Sample`.

    Parameters
    ----------
    method : object with ``fit(X, y)`` and ``predict(X) -> Sample``
    """

    def __init__(self, method: Any) -> None:
        self.method = method

    def fit(self, X: ArrayLike, y: ArrayLike) -> CredalWrapper:
        """Fit the method."""
        self.method_ = clone(self.method).fit(X, y)
        return self

    def predict(self, X: ArrayLike) -> Intervals:
        """Intervals of its members."""
        return credal_wrapper(_sample_of(self, X))


class CredalEnsemble(BaseEstimator):
    """CreEns around any method that predicts a `Sample`.

    Parameters
    ----------
    method : object with ``fit(X, y)`` and ``predict(X) -> Sample``
    alpha : float
        Share of the members that is kept.
    """

    def __init__(self, method: Any, alpha: float = 0.5) -> None:
        self.method, self.alpha = method, alpha

    def fit(self, X: ArrayLike, y: ArrayLike) -> CredalEnsemble:
        """Fit the method."""
        self.method_ = clone(self.method).fit(X, y)
        return self

    def predict(self, X: ArrayLike) -> Hull:
        """Hull of the members nearest their mean."""
        return credal_ensemble(_sample_of(self, X), self.alpha)


def _sample_of(owner: Any, X: ArrayLike) -> Sample:
    if not hasattr(owner, "method_"):
        raise NotFitted("call fit(X, y) first")
    found = owner.method_.predict(X)
    if not isinstance(found, Sample):
        raise NotSupported(type(owner).__name__, type(found).__name__, (), "it needs the members of a Sample")
    return found


class EfficientCredal(BaseEstimator):
    """EffCre: credal intervals from one trained model (arXiv 2603.08495).

    Adding x to the logit of class k changes the mean train log-likelihood by ``x freq_k - mean log(1 - p_k + p_k
    e^x)``, which is concave in x. The two shifts at which the relative likelihood is alpha bound the class's plausible
    logits; intervals are the smallest and largest softmax over the 2K shifted logit vectors and the unshifted one.

    Parameters
    ----------
    base : estimator with ``fit`` and ``predict_proba``, optional
        Not needed with `fit_probs`.
    alpha : float
        In (0, 1]; smaller gives wider intervals.

    Attributes
    ----------
    shift_low_, shift_high_ : float64[K]
        ``x_lo <= 0 <= x_up``; minus infinity for a class without training rows.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_wine(return_X_y=True)
    >>> X = (X - X.mean(0)) / X.std(0)
    >>> narrow, wide = (EfficientCredal(LogisticRegression(), alpha=a).fit(X, y).predict(X) for a in (0.95, 0.5))
    >>> bool((wide.upper - wide.lower > narrow.upper - narrow.lower).all())
    True
    """

    def __init__(self, base: Any = None, alpha: float = 0.8) -> None:
        self.base, self.alpha = base, alpha

    def fit(self, X: ArrayLike, y: ArrayLike) -> EfficientCredal:
        """Train the model and find the shifts on the same rows; y are labels or distributions."""
        if self.base is None:
            raise UncertaintyError("give a base estimator, or saved probabilities to fit_probs(probs, y)")
        target = np.asarray(y)
        model = clone(self.base)
        if target.ndim == 2 and not _takes_distributions(model):
            from assay.uncertainty.transforms_sklearn import Single

            single = Single(model).fit(X, y)
            self.model_, self.classes_ = single.model_, single.classes_
        else:
            self.model_ = model.fit(X, y)
            self.classes_ = np.asarray(self.model_.classes_)
        codes = target if target.ndim == 2 else np.searchsorted(self.classes_, target)
        return self.fit_probs(self.model_.predict_proba(X), codes)

    def fit_probs(self, probs: ArrayLike, y: ArrayLike) -> EfficientCredal:
        """Find the shifts from the model's probabilities on its training rows."""
        if not 0 < self.alpha <= 1:
            raise UncertaintyError(f"alpha lies in (0, 1], not {self.alpha}")
        p = as_probabilities(probs)
        target = np.asarray(y)
        if len(target) != len(p) or (target.ndim == 2 and target.shape != p.shape):
            raise TargetShape(f"targets of shape {target.shape} do not fit probabilities of shape {p.shape}")
        if target.ndim == 1 and (target.dtype.kind not in "iu" or target.min() < 0 or target.max() >= p.shape[1]):
            raise TargetShape(
                f"labels must be class codes 0 ... {p.shape[1] - 1}; they run from {target.min()} to {target.max()}"
            )
        freq = target.mean(0) if target.ndim == 2 else np.bincount(target, minlength=p.shape[1]) / len(p)
        self.shift_low_, self.shift_high_ = likelihood_shifts(p, freq, float(np.log(self.alpha)))
        return self

    def predict(self, X: ArrayLike) -> Intervals:
        """Intervals of each row."""
        if not hasattr(self, "model_"):
            raise NotFitted("call fit(X, y) first; with saved probabilities use predict_probs")
        return self.predict_probs(self.model_.predict_proba(X)).named(self.classes_.tolist(), row_names(X))

    def predict_probs(self, probs: ArrayLike) -> Intervals:
        """Intervals around saved probabilities."""
        if not hasattr(self, "shift_low_"):
            raise NotFitted("call fit(X, y) or fit_probs(probs, y) first")
        p = as_probabilities(probs)
        z = np.log(np.maximum(p, 1e-300))
        low, high = p.copy(), p.copy()
        for k in range(p.shape[-1]):
            for shift in (self.shift_low_[k], self.shift_high_[k]):
                moved = z.copy()
                moved[..., k] = moved[..., k] + shift if np.isfinite(shift) else -np.inf
                q = softmax(moved, axis=-1)
                np.minimum(low, q, out=low)
                np.maximum(high, q, out=high)
        return Intervals(low, high).reachable()


def _takes_distributions(model: Any) -> bool:
    return any(name == "TorchMethod" for name in (kind.__name__ for kind in type(model).__mro__))


def likelihood_shifts(p: Array, freq: Array, log_alpha: float) -> tuple[Array, Array]:
    """Roots of ``x freq_k - mean log(1 - p_k + p_k e^x) = log alpha`` on both sides of 0, by bisection from the
    maximum."""
    k = p.shape[1]
    low, high = np.zeros(k), np.zeros(k)
    with np.errstate(divide="ignore"):
        rest, own = np.log1p(-np.minimum(p, 1 - 1e-16)), np.log(np.maximum(p, 1e-300))

    def value(x: float, j: int) -> float:
        return x * freq[j] - float(logsumexp([rest[:, j], own[:, j] + x], axis=0).mean())

    for j in range(k):
        for sign, out in ((-1.0, low), (1.0, high)):
            # The function may still rise on this side of 0; go out until it is below the level.
            inside, outside = 0.0, sign
            while value(outside, j) >= log_alpha and abs(outside) < 1e4:
                inside, outside = outside, 2 * outside
            if abs(outside) >= 1e4:
                out[j] = sign * np.inf
                continue
            if value(inside, j) < log_alpha:  # alpha = 1 and rounding
                continue
            for _ in range(200):
                middle = (inside + outside) / 2
                if value(middle, j) >= log_alpha:
                    inside = middle
                else:
                    outside = middle
            out[j] = inside
    return low, high


SCORES = ("tv", "kl", "inner", "wasserstein")


class ConformalCredalSet(BaseEstimator):
    """Balls around predictions that hold the true distribution with probability ``1 - alpha`` (Javanmardi, Stutz and
    Huellermeier, 2024).

    A first-order conformal method: scores of calibration distributions, their k-th smallest, and the set of all
    distributions with at most that score.

    Parameters
    ----------
    score : {"tv", "kl", "inner", "wasserstein"}
        Total variation; ``KL(y || p)``; ``1 - p . y``; Wasserstein-1 over ordered classes (per step, so in 0 ... K -
        1).
    alpha : float

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet(np.ones(3), 1000)
    >>> y = np.array([rng.dirichlet(20 * row + 0.1) for row in p])
    >>> method = ConformalCredalSet("tv", alpha=0.1).fit(p[:500], y[:500])
    >>> round(float(method.covers(p[500:], y[500:]).mean()), 3)
    0.912
    """

    def __init__(self, score: str = "tv", alpha: float = 0.1) -> None:
        self.score, self.alpha = score, alpha

    def fit(self, probs: ArrayLike, target: ArrayLike) -> ConformalCredalSet:
        """Set the radius from calibration rows with first-order targets ``(n, K)``.

        Raises
        ------
        TargetShape
            If the targets are labels.
        """
        self.radius_ = conformal_quantile(self.scores(probs, target), self.alpha)
        return self

    def scores(self, probs: ArrayLike, target: ArrayLike) -> Array:
        """Score of each target under each prediction."""
        if self.score not in SCORES:
            raise UncertaintyError(f"score is one of {', '.join(SCORES)}, not {self.score!r}")
        p = as_probabilities(probs)
        if np.asarray(target).shape != p.shape:
            raise TargetShape(
                f"first-order targets of shape {p.shape} are needed, not {np.asarray(target).shape} (labels?)"
            )
        y = as_probabilities(target, what="targets")
        if self.score == "tv":
            return np.asarray(np.abs(p - y).sum(-1) / 2)
        return score_of(self.score, p, y)

    def covers(self, probs: ArrayLike, target: ArrayLike) -> NDArray[np.bool_]:
        """Whether each set holds its target."""
        self._fitted()
        return np.asarray(self.scores(probs, target) <= self.radius_)

    def predict(self, probs: ArrayLike) -> TVBall | ScoreBall:
        """The sets themselves, whose entropies, probabilities and decisions are exact.

        With ``inner`` a row whose set would be empty keeps the corner of its likeliest class, which only adds coverage.
        """
        self._fitted()
        p = as_probabilities(probs)
        if self.score == "tv":
            return TVBall(p, min(self.radius_, 1.0)).named(index=row_names(probs))
        least = 1 - p.max(-1) if self.score == "inner" else 0.0
        return ScoreBall(p, np.maximum(self.radius_, least), self.score).named(index=row_names(probs))

    def _fitted(self) -> None:
        if not hasattr(self, "radius_"):
            raise NotFitted("call fit(probs, target) with calibration rows first")
