"""The model: its parameters, its arrays, and how they grow and are evicted."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import StreamError
from assay.streams.models.base import StreamModel, grown
from assay.streams.models.ovfm.copula import complete, register
from assay.streams.models.ovfm.mixture import contributions, mix
from assay.streams.models.ovfm.online import run_rows, update
from assay.streams.models.ovfm.state import FEATURES, LEAST_DEVIATION, LEAST_ERROR, RATE, Room, Settings, State
from assay.streams.models.ranges import check_range, check_whole
from assay.streams.models.weights import class_weights, example_weight

BEST_SETTINGS: dict[str, dict[str, Any]] = {
    "wpbc": {"decay_choice": 2, "contribute_error_rate": 0.01},
    "ionosphere": {"decay_choice": 4, "contribute_error_rate": 0.02},
    "wdbc": {"decay_choice": 0, "contribute_error_rate": 0.02},
    "australian": {"decay_choice": 4, "contribute_error_rate": 0.01},
    "wbc": {"decay_choice": 2, "contribute_error_rate": 0.02},
    "diabetes_f": {"decay_choice": 2, "contribute_error_rate": 0.05},
    "german": {"decay_choice": 3, "contribute_error_rate": 0.005},
    "svmguide3": {"decay_choice": 0, "contribute_error_rate": 0.001},
    "krvskp": {"decay_choice": 4, "contribute_error_rate": 0.005},
    "spambase": {"decay_choice": 4, "contribute_error_rate": 0.001},
    "magic04": {"decay_choice": 3, "contribute_error_rate": 0.005},
}
"""Parameters that the review of arXiv 2404.04903 found best, by data set."""


class OVFM(StreamModel):
    """Learning from mixed data in a varying feature space.

    The last ``window`` values of a feature turn a value into a normal score: with L values, this one among them,
    ``z = Phi^-1(rank / (L + 1))`` (tied values share the mean of their ranks). A feature with few values, each seen
    often, is ordinal: its score is only known to lie in an interval, and is the mean of the normal distribution cut to
    it, given the other features. Absent scores are ``z_M = Sigma_MO Sigma_OO^-1 z_O`` with their conditional covariance
    ``C``; then ``S <- (1 - g) S + g (z z' + C)``, ``g = step / (t + step)``, and Sigma is S scaled to unit diagonal.

    Two FTRL learners (``v += (p - y) x``, ``h <- dec h + w``, ``r <- 1 + dec r``, ``w = (h - v) / r``) predict from the
    row filled with zeros and from the completed z; their scores are mixed by ``exp(-eta * cumulative log loss)``.
    ``dec`` follows ``decay_choice``, blended with the error rate, and starts over when the error rate exceeds its least
    value by three standard deviations. ``task="regression"`` has an identity link, predicts the difference to the
    running mean of the targets and divides a gradient by ``1 + |x|^2 / r``, since squared loss has no bound on it.

    What differs from haphazard 1.2.8, and why:

    1. It is causal: the window is an argument (there a share of the number of rows), whether a feature is ordinal is
       decided from its window (there from all rows), and a window starts empty, not with random numbers, so that no
       seed is needed.
    2. The covariance takes in ``z z'`` (there the identity stands in its place when a batch is one row, so observed
       pairs never enter), and is averaged before it is scaled: one row scaled alone has correlations of +1 and -1,
       which drags a correlation of .7 to .33.
    3. Sigma_OO is factorised with jitter on its diagonal, raised until that succeeds; equal columns do no harm.

    Parameters
    ----------
    decay_choice : {4, 0, 1, 2, 3}
        ``dec`` at step t: 0: ``1 - t^(-1/3)``, 1: ``1 - t^(-1/2)``, 2: ``(t - 1) / t``, 3: ``t / (t + 1)``,
        4: ``1 - ln t / (2 t)``.
    contribute_error_rate : float
        Share of the error rate in ``dec`` after 30 rows, in [0, 1]. `BEST_SETTINGS` has the pairs of the review.
    window : int
        Values kept of each feature, at least 2.
    step : float
        Above 0.
    forgetting : float, optional
        Constant g in (0, 1] for data that drift (.01 is usual), instead of the falling one.
    eta : float
        At least 0.
    max_ordinal : int
        A feature with at most so many different values in its window, each on average there twice or more, is ordinal.
        0: none is.
    max_features : int, optional
        At most so many features are kept; memory and time grow with their square.
    on_limit : {"evict", "raise"}
        What happens at that limit: the least seen features are forgotten, or `StateLimitExceeded`.
    class_weight : dict or "balanced", optional
        Weight of a row by its class.
    task : {"classification", "regression"}
    classes : sequence of two labels, optional
        The second is the positive class. Default: grown on first sight.

    Raises
    ------
    StreamError
        If a parameter is out of its range.

    Examples
    --------
    >>> from assay.streams import load, run
    >>> result = run(OVFM(), load("wdbc").masked("probabilistic", p=0.5, seed=0))
    >>> round(result.metrics["auroc"], 3)
    0.983
    """

    regression = True

    def __init__(
        self,
        decay_choice: int = 4,
        contribute_error_rate: float = 0.001,
        window: int = 200,
        step: float = 5.0,
        forgetting: float | None = None,
        eta: float = 0.001,
        max_ordinal: int = 14,
        max_features: int | None = None,
        on_limit: str = "evict",
        class_weight: Mapping[Hashable, float] | str | None = None,
        task: str = "classification",
        classes: Sequence[Hashable] | None = None,
    ) -> None:
        self.decay_choice = decay_choice
        self.contribute_error_rate = contribute_error_rate
        self.window = window
        self.step = step
        self.forgetting = forgetting
        self.eta = eta
        self.max_ordinal = max_ordinal
        self.max_features = max_features
        self.on_limit = on_limit
        self.class_weight = class_weight
        self.task = task
        self.classes = classes
        self.reset()

    def _reset(self) -> None:
        if self.decay_choice not in (0, 1, 2, 3, 4):
            raise StreamError(f"decay_choice is 0, 1, 2, 3 or 4, not {self.decay_choice!r}")
        check_range("contribute_error_rate", self.contribute_error_rate, 0, 1)
        check_whole("window", self.window, 2)
        check_range("step", self.step, 0, above=True)
        if self.forgetting is not None:
            check_range("forgetting", self.forgetting, 0, 1, above=True)
        check_range("eta", self.eta, 0)
        check_whole("max_ordinal", self.max_ordinal, 0)
        if self.max_features is not None:
            check_whole("max_features", self.max_features, 1)
        if self.on_limit not in ("evict", "raise"):
            raise StreamError(f"on_limit is 'evict' or 'raise', not {self.on_limit!r}")
        self._clock = np.zeros(2, dtype=np.int64)  # rows learned, features known
        self._order = np.zeros(8, dtype=np.int64)  # the known features, in order of first sight
        self._count = np.zeros(8, dtype=np.int64)  # values seen of a feature
        self._recent = np.zeros((8, self.window))  # ring of the last ones
        self._sorted = np.zeros((8, self.window))  # the same, ascending
        self._distinct = np.zeros(8, dtype=np.int64)  # different values among them
        self._covariance = np.zeros((8, 8))  # S
        self._linear = np.zeros((8, 2, 2))  # of each feature, learner: v and h
        self._intercept = np.zeros((2, 2))
        self._learners = np.zeros((2, 8))
        self._learners[:, LEAST_ERROR] = 1.0
        self._learners[:, LEAST_DEVIATION] = 10.0
        self._learners[:, RATE] = 1.0
        self._targets = np.zeros(3)  # classification: rows of class 0 and 1; regression: rows, mean, squares

    def _grow(self, n: int) -> None:
        for name in ("_order", "_count", "_recent", "_sorted", "_distinct", "_linear"):
            setattr(self, name, grown(getattr(self, name), n))
        more = len(self._order) - len(self._covariance)
        if more > 0:
            self._covariance = np.pad(self._covariance, ((0, more), (0, more)))

    def _evict(self, slots: NDArray[np.int64]) -> None:
        size = len(self._order)
        for name in ("_count", "_recent", "_sorted", "_distinct", "_linear"):
            array = np.delete(getattr(self, name), slots, axis=0)
            setattr(self, name, np.pad(array, [(0, size - len(array))] + [(0, 0)] * (array.ndim - 1)))
        kept = np.delete(np.delete(self._covariance, slots, axis=0), slots, axis=1)
        self._covariance = np.pad(kept, ((0, size - len(kept)), (0, size - len(kept))))
        order = self._order[: self._clock[FEATURES]]
        order = order[~np.isin(order, slots)]
        order = order - np.searchsorted(slots, order)
        self._order = np.pad(order, (0, size - len(order)))
        self._clock[FEATURES] = len(order)

    @property
    def correlation_(self) -> NDArray[np.float64]:
        """Sigma, the correlations of the latent normal scores: float64[k, k] in the order of ``features_``."""
        at = np.array([slot for slot in range(len(self._index)) if self._seen[slot] > 0], dtype=np.int64)
        deviation = np.sqrt(np.maximum(np.diag(self._covariance)[at], 1e-12))
        correlation = self._covariance[np.ix_(at, at)] / np.outer(deviation, deviation)
        np.fill_diagonal(correlation, 1.0)
        return correlation

    def _state(self) -> State:
        return State(
            self._clock, self._order, self._count, self._recent, self._sorted, self._distinct, self._covariance,
            self._linear, self._intercept, self._learners, self._targets,
        )  # fmt: skip

    def _settings(self) -> Settings:
        return Settings(
            self.task == "regression", int(self.decay_choice), float(self.contribute_error_rate), float(self.step),
            0.0 if self.forgetting is None else float(self.forgetting), float(self.eta), int(self.max_ordinal),
        )  # fmt: skip

    def _room(self) -> Room:
        n = len(self._order)
        return Room(
            np.zeros(n), np.zeros(n, np.bool_), np.zeros(n + 1, np.int64), np.ones(n), np.zeros(n), np.zeros(n),
            np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n), np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n)),
        )  # fmt: skip

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float:
        state, settings, room = self._state(), self._settings(), self._room()
        complete(slots, values, state, settings, room)
        return float(mix(slots, values, state, settings, room))

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: float) -> None:
        weight = 1.0
        if self.task == "classification":
            fixed = class_weights(self.class_weight, self.classes_)
            weight = float(example_weight(fixed, self._targets, 0, int(target)))
        state, settings, room = self._state(), self._settings(), self._room()
        register(slots, self._seen, state)
        complete(slots, values, state, settings, room)
        update(slots, values, float(target), weight, state, settings, room)

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        fixed = class_weights(self.class_weight, self.classes_)
        y = targets.astype(np.float64) if self.task == "regression" else np.where(targets < 0, np.nan, targets)
        return run_rows(indptr, slots, values, y, fixed, self._seen, self._state(), self._settings(), self._room())

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Both learners are linear, and so is the completion: what a feature adds itself and through the absent ones.

        The intercept (and the mean of the targets) is divided equally, so that the contributions add up to the score.
        """
        parts = np.zeros(len(slots))
        state, settings, room = self._state(), self._settings(), self._room()
        complete(slots, values, state, settings, room)
        contributions(slots, values, parts, state, settings, room)
        return parts
