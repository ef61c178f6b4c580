"""What every model of the field can do, and the parts that do not depend on the model."""

from __future__ import annotations

import copy
import inspect
import json
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from assay.diagnosis.errors import DiagnosisError, LeakageError, NotFitted, QMatrixMismatch, UnknownName
from assay.diagnosis.responses import ResponseData

REFERENCE_STUDENTS = 1000
Mastery = Float[np.ndarray, "students skills"]


class DiagnosisModel:
    """Base of all models: ``fit``, ``predict_proba``, ``mastery_``, ``transform`` and files.

    A model writes `_fit`, `_predict`, `_mastery`, `_mastery_se` and `_estimate`. What it knows of a student is a row of
    ``states_`` (an ability, class probabilities, an embedding); a new student is scored by estimating that row with
    everything about items fixed.

    Attributes
    ----------
    states_ : float64[S, d]
        What the model knows of each student.
    q_ : bool[J, K]
    rows_seen_ : int64[n]
        Cells that training used, see `check_leakage`.
    loglik_ : float
        Log-likelihood of the training answers (the marginal one where the model has one).
    n_params_ : int
    """

    diagnoses: ClassVar[bool] = True  # False: mastery is one ability copied to every skill
    states_: NDArray[Any]
    q_: NDArray[np.bool_]
    loglik_: float
    n_params_: int

    def __init__(self) -> None:
        return

    # -- parameters ------------------------------------------------------------------------------------------------

    @classmethod
    def _parameter_names(cls) -> list[str]:
        return [
            n for n, p in inspect.signature(cls.__init__).parameters.items() if n != "self" and p.kind != p.VAR_KEYWORD
        ]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters of the constructor."""
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self, **params: Any) -> Self:
        """Change parameters.

        Raises
        ------
        UnknownName
        """
        for name, value in params.items():
            if name not in self._parameter_names():
                raise UnknownName.of(f"parameter of {type(self).__name__}", name, self._parameter_names())
            setattr(self, name, value)
        return self

    def clone(self, **changes: Any) -> Self:
        """An unfitted model with the same parameters, and changes."""
        return type(self)(**self.get_params()).set_params(**changes)

    def __repr__(self) -> str:
        default = {n: p.default for n, p in inspect.signature(type(self).__init__).parameters.items()}
        changed = ", ".join(
            f"{k}={v!r}" for k, v in self.get_params().items() if v is not default[k] and v != default[k]
        )
        return f"{type(self).__name__}({changed})"

    # -- what a model writes ---------------------------------------------------------------------------------------

    def _fit(self, data: ResponseData, valid: ResponseData | None) -> None:
        raise TypeError(f"{type(self).__name__} does not say how it is fitted")

    def _predict(self, states: NDArray[Any], student: NDArray[Any], item: NDArray[Any]) -> NDArray[Any]:
        raise TypeError(f"{type(self).__name__} does not say how it predicts")

    def _mastery(self, states: NDArray[Any]) -> NDArray[Any]:
        raise TypeError(f"{type(self).__name__} has no mastery")

    def _mastery_se(self, states: NDArray[Any]) -> NDArray[Any]:
        raise TypeError(f"{type(self).__name__} has no standard errors")

    def _estimate(self, data: ResponseData) -> NDArray[Any]:
        raise TypeError(f"{type(self).__name__} does not score new students")

    def predict_from_mastery(self, mastery: NDArray[Any], item: NDArray[Any]) -> NDArray[Any]:
        """Probability of a right answer for given mastery ``[m, K]`` and items ``[m]``."""
        raise TypeError(f"{type(self).__name__} does not say how mastery makes answers")

    def sample_states(self, rng: np.random.Generator) -> NDArray[Any]:
        """States drawn from each student's posterior; by default the second half of a state's numbers are the sds of
        the first.
        """
        d = self.states_.shape[1] // 2
        sd = np.minimum(self.states_[:, d:], 1e3)
        drawn: NDArray[Any] = np.hstack([self.states_[:, :d] + sd * rng.normal(size=sd.shape), self.states_[:, d:]])
        return drawn

    # -- what everyone calls ---------------------------------------------------------------------------------------

    def fit(self, data: ResponseData, valid: ResponseData | None = None) -> Self:
        """Learn from answers.

        Parameters
        ----------
        data : ResponseData
            Training answers.
        valid : ResponseData, optional
            For stopping rules only; the same students and items.

        Raises
        ------
        DiagnosisError
            If there is no answer, or ``valid`` has other students or items.
        LeakageError
            If a cell is in both.
        """
        if not len(data):
            raise DiagnosisError("there is no answer to learn from")
        if valid is not None:
            if (valid.n_students, valid.n_items) != (data.n_students, data.n_items):
                raise DiagnosisError(
                    "training and validation must number students and items alike; make them with data.split(...)"
                )
            both = int(np.isin(valid.cells(), data.cells()).sum())
            if both:
                raise LeakageError(f"{both:,} cells are in training and in validation; make them with data.split(...)")
        self.q_ = data.dense_q()
        self.kc_names_ = np.array(data.kc_names)
        self.mean_ = float(data.correct.mean())
        self.rows_seen_ = data.cells()
        self.seen_items_ = np.bincount(data.item, minlength=data.n_items) > 0
        self.seen_students_ = np.bincount(data.student, minlength=data.n_students) > 0
        self._fit(data, valid if valid is not None and len(valid) else None)
        return self

    def predict_proba(self, student: ArrayLike, item: ArrayLike) -> NDArray[np.float32]:
        """Probability of a right answer, ``float32[m]``, for pairs of positions.

        A student or item without a training answer is predicted at its prior mean.

        Raises
        ------
        NotFitted
        DiagnosisError
            If a position does not exist.
        """
        self._fitted()
        i, j = np.asarray(student, dtype=np.int64), np.asarray(item, dtype=np.int64)
        for what, values, size in (("student", i, len(self.states_)), ("item", j, len(self.q_))):
            if len(values) and (values.min() < 0 or values.max() >= size):
                raise DiagnosisError(f"there is no {what} {int(values.max())}: the model knows {size}")
        return np.asarray(self._predict(self.states_, i, j), dtype=np.float32)

    def predict_matrix(self, students: ArrayLike | None = None) -> Float[np.ndarray, "students items"]:
        """Probabilities of every item, ``float32[S, J]``, for all or some students."""
        self._fitted()
        who = np.arange(len(self.states_)) if students is None else np.asarray(students, dtype=np.int64)
        n_items = len(self.q_)
        out = np.empty((len(who), n_items), dtype=np.float32)
        step = max(1, 200_000 // max(1, n_items))
        for start in range(0, len(who), step):
            part = who[start : start + step]
            pairs = np.repeat(part, n_items), np.tile(np.arange(n_items), len(part))
            out[start : start + step] = np.asarray(self._predict(self.states_, *pairs)).reshape(len(part), n_items)
        return out

    @property
    def mastery_(self) -> Mastery:
        """``float32[S, K]`` in [0, 1], on the model's own scale; see `calibrated_mastery` for one that can be read."""
        self._fitted()
        return np.asarray(self._mastery(self.states_), dtype=np.float32)

    @property
    def mastery_se_(self) -> Mastery:
        """``float32[S, K]``: standard error (posterior standard deviation) of ``mastery_``."""
        self._fitted()
        return np.asarray(self._mastery_se(self.states_), dtype=np.float32)

    @property
    def difficulty_(self) -> Float[np.ndarray, " items"]:
        """``float32[J]``: minus the mean predicted logit over (at most 1,000 of) the students; one scale for all
        models. Probabilities are kept in [.01, .99], so that a guess or slip estimated at 0 does not decide alone.
        """
        self._fitted()
        who = np.unique(
            np.linspace(0, len(self.states_) - 1, min(len(self.states_), REFERENCE_STUDENTS)).astype(np.int64)
        )
        p = np.clip(self.predict_matrix(who).astype(np.float64), 0.01, 0.99)
        return -np.log(p / (1 - p)).mean(axis=0).astype(np.float32)

    def transform(self, data: ResponseData, *, return_se: bool = False) -> Any:
        """Mastery of students who need not have been in training; items stay as they are.

        Parameters
        ----------
        data : ResponseData
            Answers of the students to items of the training data (same numbering).
        return_se : bool

        Returns
        -------
        float32[S, K], or a pair of them

        Raises
        ------
        QMatrixMismatch
            If the items are not those of the training data.
        """
        scored = self.with_students(data)
        return (scored.mastery_, scored.mastery_se_) if return_se else scored.mastery_

    def with_students(self, data: ResponseData) -> Self:
        """The fitted model with other students, scored from their answers; ``predict_proba`` then speaks of them."""
        self._fitted()
        self._same_items(data)
        scored = copy.copy(self)
        scored.states_ = self._estimate(data)
        scored.seen_students_ = np.bincount(data.student, minlength=data.n_students) > 0
        return scored

    def check_leakage(self, test: ResponseData) -> None:
        """Make sure that training used no cell of a test set.

        Raises
        ------
        LeakageError
        """
        self._fitted()
        both = np.isin(test.cells(), self.rows_seen_)
        if both.any():
            raise LeakageError(
                f"{int(both.sum()):,} of {len(test):,} test answers were in the training of {type(self).__name__} "
                "(its parameters, graph or "
                "input rows); fit it on split.train"
            )

    def save(self, path: str | Path) -> None:
        """Write parameters and everything learned as one .npz file without pickles."""
        self._fitted()
        arrays: dict[str, Any] = {}
        plain: dict[str, Any] = {}
        for name, value in self._learned().items():
            if isinstance(value, np.ndarray):
                arrays[name] = value
            else:
                plain[name] = value
        head = json.dumps({"model": type(self).__name__, "params": self.get_params(), "plain": plain})
        np.savez_compressed(Path(path), __head__=np.array(head), **arrays)

    @staticmethod
    def load(path: str | Path) -> DiagnosisModel:
        """Read a model written by `save`.

        Raises
        ------
        DiagnosisError
            If the file is no model of this library.
        """
        from assay.diagnosis.models import model_class

        with np.load(Path(path), allow_pickle=False) as stored:
            if "__head__" not in stored:
                raise DiagnosisError(f"{path} is not a saved diagnosis model")
            head = json.loads(str(stored["__head__"]))
            params = {k: tuple(v) if isinstance(v, list) else v for k, v in head["params"].items()}
            model = model_class(head["model"])(**params)
            learned = {name: stored[name] for name in stored.files if name != "__head__"} | head["plain"]
        model._restore(learned)
        return model

    def _learned(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k.endswith("_") and not k.startswith("_")}

    def _restore(self, learned: dict[str, Any]) -> None:
        for name, value in learned.items():
            setattr(self, name, value)

    # -- parts -----------------------------------------------------------------------------------------------------

    def _fitted(self) -> None:
        if not hasattr(self, "states_"):
            raise NotFitted(f"{type(self).__name__} is not fitted; call fit(data) first")

    def _same_items(self, data: ResponseData) -> None:
        if data.q.shape != self.q_.shape or not np.array_equal(data.dense_q(), self.q_):
            raise QMatrixMismatch(
                f"the model was fitted on {self.q_.shape[0]} items and {self.q_.shape[1]} skills with another "
                "Q-matrix than this data "
                f"({data.n_items} x {data.n_kcs}); number the items alike, or use extend_items for new ones"
            )


def skill_weights(q: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Weights of the items for each skill, ``float32[J, K]`` with columns that sum to 1: 1 / (skills needed)^2.

    >>> skill_weights(np.array([[True, False], [True, True]])).round(2).tolist()
    [[0.800000011920929, 0.0], [0.20000000298023224, 1.0]]
    """
    raw = q / np.maximum(q.sum(1, keepdims=True), 1) ** 2
    return (raw / np.maximum(raw.sum(0), 1e-12)).astype(np.float32)


def calibrated_mastery(model: DiagnosisModel, *, threshold: float | None = None) -> Any:
    """Mastery that can be read: the probability of a right answer on a typical item of the skill, from the model's
    predictions.

    Raw values of most models live on a scale of their own (all of a class may lie in .4 to .6); this is the mean
    predicted probability over the items that need the skill, which all models share. Items weigh 1 / (skills that they
    need)^2, so that those which need little else decide [our design].

    Parameters
    ----------
    model : DiagnosisModel
        Fitted.
    threshold : float, optional
        Also return who passes: calibrated mastery at or above it.

    Returns
    -------
    float32[S, K], and bool[S, K] with a threshold

    Examples
    --------
    >>> from assay.diagnosis import IRT, calibrated_mastery, load
    >>> value, passed = calibrated_mastery(IRT().fit(load("lsat6")), threshold=0.65)
    >>> round(float(value.mean()), 3), round(float(passed.mean()), 3)
    (0.764, 0.553)
    """
    if threshold is not None and not 0 < threshold < 1:
        raise DiagnosisError(f"threshold={threshold} is no probability between 0 and 1")
    value = (model.predict_matrix() @ skill_weights(model.q_)).astype(np.float32)
    return value if threshold is None else (value, value >= threshold)
