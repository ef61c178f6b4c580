"""What a model must beat: item means, item and student logits, smoothed accuracy a skill, Rasch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from assay.diagnosis.errors import DiagnosisError
from assay.diagnosis.estimator import DiagnosisModel
from assay.diagnosis.irt import IRT
from assay.diagnosis.responses import ResponseData


def _smoothed(
    group: NDArray[Any], correct: NDArray[Any], size: int, prior: Any, strength: float
) -> NDArray[np.float64]:
    n = np.bincount(group, minlength=size)
    right = np.bincount(group, correct, size)
    mean: NDArray[np.float64] = (right + strength * prior) / (n + strength)
    return mean


def _log_likelihood(correct: NDArray[Any], p: NDArray[Any]) -> float:
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return float(np.sum(np.where(correct == 1, np.log(p), np.log1p(-p))))


def _mean_logit(mastery: NDArray[Any], q: NDArray[np.bool_]) -> NDArray[np.float64]:
    mean: NDArray[np.float64] = (logit(np.clip(mastery, 1e-9, 1 - 1e-9)) * q).sum(1) / np.maximum(q.sum(1), 1)
    return mean


class ItemMean(DiagnosisModel):
    """The smoothed share of right answers of the item, the same for every student: (right + 5 g) / (n + 5), g the
    overall mean.

    Its mastery is the overall mean for everyone: it diagnoses nothing, and DOA says so with NaN.

    Examples
    --------
    >>> from assay.diagnosis import ItemMean, load
    >>> ItemMean().fit(load("lsat6")).predict_proba([0, 0], [0, 2]).round(3).tolist()
    [0.9229999780654907, 0.5540000200271606]
    """

    diagnoses = False

    def __init__(self, strength: float = 5.0) -> None:
        self.strength = strength

    def _fit(self, data: ResponseData, valid: ResponseData | None) -> None:
        if self.strength <= 0:
            raise DiagnosisError(f"strength={self.strength} must be positive")
        self.item_mean_ = _smoothed(data.item, data.correct, data.n_items, self.mean_, self.strength)
        self.states_ = self._estimate(data)
        self.n_params_ = data.n_items
        self.loglik_ = _log_likelihood(data.correct, self.item_mean_[data.item])

    def _estimate(self, data: ResponseData) -> NDArray[Any]:
        return np.full((data.n_students, 1), self.mean_)

    def _predict(self, states: NDArray[Any], student: NDArray[Any], item: NDArray[Any]) -> NDArray[Any]:
        return self.item_mean_[item]

    def _mastery(self, states: NDArray[Any]) -> NDArray[Any]:
        return np.repeat(states, self.q_.shape[1], axis=1)

    def predict_from_mastery(self, mastery: NDArray[Any], item: NDArray[Any]) -> NDArray[Any]:
        return self.item_mean_[item]

    def sample_states(self, rng: np.random.Generator) -> NDArray[Any]:
        return self.states_

    def _mastery_se(self, states: NDArray[Any]) -> NDArray[Any]:
        return np.full((len(states), self.q_.shape[1]), np.sqrt(self.mean_ * (1 - self.mean_)))


class StudentItemLogit(ItemMean):
    """Two smoothed means added on the logit scale: sig(logit item + logit student - logit g)."""

    def _fit(self, data: ResponseData, valid: ResponseData | None) -> None:
        super()._fit(data, valid)
        self.n_params_ = data.n_items + data.n_students
        self.loglik_ = _log_likelihood(data.correct, self._predict(self.states_, data.student, data.item))

    def _estimate(self, data: ResponseData) -> NDArray[Any]:
        n = np.bincount(data.student, minlength=data.n_students)
        return np.column_stack([_smoothed(data.student, data.correct, data.n_students, self.mean_, self.strength), n])

    def _predict(self, states: NDArray[Any], student: NDArray[Any], item: NDArray[Any]) -> NDArray[Any]:
        return expit(logit(self.item_mean_[item]) + logit(states[student, 0]) - logit(self.mean_))

    def _mastery(self, states: NDArray[Any]) -> NDArray[Any]:
        return np.repeat(states[:, :1], self.q_.shape[1], axis=1)

    def predict_from_mastery(self, mastery: NDArray[Any], item: NDArray[Any]) -> NDArray[Any]:
        return expit(logit(self.item_mean_[item]) + _mean_logit(mastery, self.q_[item]) - logit(self.mean_))

    def sample_states(self, rng: np.random.Generator) -> NDArray[Any]:
        """Means drawn from a beta distribution worth the answers and the prior."""
        p, n = self.states_.T
        size = n + self.strength
        return np.column_stack([np.clip(rng.beta(p * size, (1 - p) * size), 1e-6, 1 - 1e-6), n])

    def _mastery_se(self, states: NDArray[Any]) -> NDArray[Any]:
        p, n = states.T
        return np.repeat(np.sqrt(p * (1 - p) / (n + self.strength + 1))[:, None], self.q_.shape[1], axis=1)


class KCAccuracy(DiagnosisModel):
    """Smoothed accuracy of each student on each skill, shrunk to the student's mean; mastery without any training.

    The prediction adds, on the logit scale, the item's mean and the student's mean over the skills of the item.

    Parameters
    ----------
    strength : float
        Answers that the prior is worth.

    Examples
    --------
    >>> from assay.diagnosis import KCAccuracy, simulate_platform
    >>> from assay.diagnosis.metrics import doa
    >>> made = simulate_platform(300, 30, 4, density=0.8, seed=0)
    >>> split = made.data.split("student", seed=0)
    >>> round(doa(KCAccuracy().fit(split.train).mastery_, split.test), 3)
    0.786
    """

    def __init__(self, strength: float = 5.0) -> None:
        self.strength = strength

    def _fit(self, data: ResponseData, valid: ResponseData | None) -> None:
        if self.strength <= 0:
            raise DiagnosisError(f"strength={self.strength} must be positive")
        self.item_mean_ = _smoothed(data.item, data.correct, data.n_items, self.mean_, self.strength)
        self.states_ = self._estimate(data)
        self.n_params_ = data.n_items + data.n_students * data.n_kcs
        self.loglik_ = _log_likelihood(data.correct, self._predict(self.states_, data.student, data.item))

    def _estimate(self, data: ResponseData) -> NDArray[Any]:
        k = data.n_kcs
        student = _smoothed(data.student, data.correct, data.n_students, self.mean_, self.strength)
        rows, skill = data.per_skill()
        cell = data.student[rows].astype(np.int64) * k + skill
        mean = _smoothed(cell, data.correct[rows], data.n_students * k, np.repeat(student, k), self.strength)
        n = np.bincount(cell, minlength=data.n_students * k)
        return np.hstack([mean.reshape(-1, k), n.reshape(-1, k)])

    def _predict(self, states: NDArray[Any], student: NDArray[Any], item: NDArray[Any]) -> NDArray[Any]:
        return self.predict_from_mastery(states[:, : self.q_.shape[1]][student], item)

    def predict_from_mastery(self, mastery: NDArray[Any], item: NDArray[Any]) -> NDArray[Any]:
        return expit(logit(self.item_mean_[item]) + _mean_logit(mastery, self.q_[item]) - logit(self.mean_))

    def sample_states(self, rng: np.random.Generator) -> NDArray[Any]:
        """Means drawn from beta distributions worth the answers and the prior."""
        k = self.q_.shape[1]
        p, size = self.states_[:, :k], self.states_[:, k:] + self.strength
        return np.hstack([np.clip(rng.beta(p * size, (1 - p) * size), 1e-6, 1 - 1e-6), self.states_[:, k:]])

    def _mastery(self, states: NDArray[Any]) -> NDArray[Any]:
        return states[:, : self.q_.shape[1]]

    def _mastery_se(self, states: NDArray[Any]) -> NDArray[Any]:
        k = self.q_.shape[1]
        p = states[:, :k]
        return np.sqrt(p * (1 - p) / (states[:, k:] + self.strength + 1))


class Rasch(IRT):
    """The one-parameter model, a difficulty an item: `IRT` with ``model="1pl"``.

    Examples
    --------
    >>> from assay.diagnosis import Rasch, load
    >>> model = Rasch(estimator="em").fit(load("lsat6"))
    >>> round(model.loglik_, 2), model.n_params_
    (-2466.94, 6)
    """

    def __init__(self, estimator: str = "map", tol: float = 1e-3, max_iter: int = 2000, score: str = "eap") -> None:
        super().__init__("1pl", estimator, tol=tol, max_iter=max_iter, score=score)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("estimator", "tol", "max_iter", "score")}
