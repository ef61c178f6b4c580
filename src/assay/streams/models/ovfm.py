"""OVFM: a Gaussian copula completes each row, and two FTRL learners see the row with zeros and the completed row.

He, Dong, Hou, Wang and Wang, "Online Learning in Variable Feature Spaces with Mixed Data" (ICDM 2021); the copula is
updated online as in Zhao, Landgrebe, Shekhtman and Udell, "Online Missing Value Imputation and Change Point Detection
with the Gaussian Copula" (AAAI 2022).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import StreamError
from assay.streams.jit import njit
from assay.streams.models.base import StreamModel, grown
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

ROWS, FEATURES = 0, 1
X, Z = 0, 1  # the two learners: on the zero-filled row, on the completed row
V, H = 0, 1  # sum of gradients and decayed sum of weights
TIMES, FAILS, WARN_TIMES, WARN_FAILS, LEAST_ERROR, LEAST_DEVIATION, RATE, LOSS = range(8)
WARM_UP = 30


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

    def _state(self) -> _State:
        return _State(
            self._clock, self._order, self._count, self._recent, self._sorted, self._distinct, self._covariance,
            self._linear, self._intercept, self._learners, self._targets,
        )  # fmt: skip

    def _settings(self) -> _Settings:
        return _Settings(
            self.task == "regression", int(self.decay_choice), float(self.contribute_error_rate), float(self.step),
            0.0 if self.forgetting is None else float(self.forgetting), float(self.eta), int(self.max_ordinal),
        )  # fmt: skip

    def _room(self) -> _Room:
        n = len(self._order)
        return _Room(
            np.zeros(n), np.zeros(n, np.bool_), np.zeros(n + 1, np.int64), np.ones(n), np.zeros(n), np.zeros(n),
            np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n), np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n)),
        )  # fmt: skip

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float:
        state, settings, room = self._state(), self._settings(), self._room()
        _complete(slots, values, state, settings, room)
        return float(_mix(slots, values, state, settings, room))

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: float) -> None:
        weight = 1.0
        if self.task == "classification":
            fixed = class_weights(self.class_weight, self.classes_)
            weight = float(example_weight(fixed, self._targets, 0, int(target)))
        state, settings, room = self._state(), self._settings(), self._room()
        _register(slots, self._seen, state)
        _complete(slots, values, state, settings, room)
        _update(slots, values, float(target), weight, state, settings, room)

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        fixed = class_weights(self.class_weight, self.classes_)
        y = targets.astype(np.float64) if self.task == "regression" else np.where(targets < 0, np.nan, targets)
        return _run(indptr, slots, values, y, fixed, self._seen, self._state(), self._settings(), self._room())

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Both learners are linear, and so is the completion: what a feature adds itself and through the absent ones.

        The intercept (and the mean of the targets) is divided equally, so that the contributions add up to the score.
        """
        parts = np.zeros(len(slots))
        state, settings, room = self._state(), self._settings(), self._room()
        _complete(slots, values, state, settings, room)
        _parts(slots, values, parts, state, settings, room)
        return parts


class _State(NamedTuple):
    clock: NDArray[np.int64]
    order: NDArray[np.int64]
    seen_values: NDArray[np.int64]
    recent: NDArray[np.float64]
    ascending: NDArray[np.float64]
    distinct: NDArray[np.int64]
    covariance: NDArray[np.float64]
    linear: NDArray[np.float64]
    intercept: NDArray[np.float64]
    learners: NDArray[np.float64]
    targets: NDArray[np.float64]


class _Settings(NamedTuple):
    regression: bool
    decay_choice: int
    error_share: float
    step: float
    forgetting: float
    eta: float
    max_ordinal: int


class _Room(NamedTuple):
    z: NDArray[np.float64]  # latent scores, by slot
    present: NDArray[np.bool_]  # by slot
    absent: NDArray[np.int64]  # slots; the last entry is their number
    deviation: NDArray[np.float64]  # square roots of the diagonal of S, by slot
    variance: NDArray[np.float64]  # of the present scores: 0 for continuous features
    solved: NDArray[np.float64]  # Sigma_OO^-1 z_O
    column: NDArray[np.float64]
    inverse: NDArray[np.float64]
    low: NDArray[np.float64]  # interval of the present ordinal scores
    high: NDArray[np.float64]
    factor: NDArray[np.float64]  # Cholesky factor of Sigma_OO
    half: NDArray[np.float64]  # a row for each absent feature: factor^-1 Sigma_Om
    full: NDArray[np.float64]  # and Sigma_OO^-1 Sigma_Om


@njit
def _register(slots, seen, state):
    """Let in the features of the row that are new: uncorrelated to all others. Returns whether there are any."""
    new = False
    for k in range(len(slots)):
        f = slots[k]
        if seen[f] == 0:
            new = True
            state.order[state.clock[FEATURES]] = f
            state.clock[FEATURES] += 1
            state.covariance[f, :] = 0.0
            state.covariance[:, f] = 0.0
            state.covariance[f, f] = 1.0
    return new


@njit
def _normal_quantile(p):
    """Inverse of the standard normal distribution function: a rough start, then Halley steps."""
    if p == 0.5:
        return 0.0
    tail = min(p, 1.0 - p)
    t = math.sqrt(-2.0 * math.log(tail))
    z = t - (2.30753 + 0.27061 * t) / (1.0 + t * (0.99229 + 0.04481 * t))  # Abramowitz and Stegun 26.2.22
    for _ in range(3):
        density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        newton = (0.5 * math.erfc(z / math.sqrt(2.0)) - tail) / density
        z += newton / (1.0 - 0.5 * z * newton)
    return z if p > 0.5 else -z


@njit
def _cut_normal(mean, deviation, low, high):
    """Mean and variance of a normal distribution cut to an interval (ends may be infinite)."""
    a = (low - mean) / deviation
    b = (high - mean) / deviation
    if a > 0.0:
        mass = 0.5 * (math.erfc(a / math.sqrt(2.0)) - math.erfc(b / math.sqrt(2.0)))
    else:
        mass = 0.5 * (math.erfc(-b / math.sqrt(2.0)) - math.erfc(-a / math.sqrt(2.0)))
    if mass <= 1e-200:
        return min(max(mean, low), high), 0.0
    density_a = math.exp(-0.5 * a * a) / math.sqrt(2.0 * math.pi)
    density_b = math.exp(-0.5 * b * b) / math.sqrt(2.0 * math.pi)
    shift = (density_a - density_b) / mass
    spread = 1.0 - shift * shift
    if density_a > 0.0:
        spread += a * density_a / mass
    if density_b > 0.0:
        spread -= b * density_b / mass
    center = min(max(mean + deviation * shift, low), high)
    return center, deviation * deviation * min(max(spread, 0.0), 1.0)


@njit
def _at_or_below(ascending, n, x, strictly):
    lo = 0
    hi = n
    while lo < hi:
        middle = (lo + hi) // 2
        if ascending[middle] < x or (not strictly and ascending[middle] == x):
            lo = middle + 1
        else:
            hi = middle
    return lo


@njit
def _factorise(slots, state, room):
    """Cholesky factor of Sigma_OO, with as much jitter as it takes."""
    n = len(slots)
    jitter = 1e-8
    factor = room.factor
    while True:
        good = True
        for i in range(n):
            for j in range(i + 1):
                a = slots[i]
                b = slots[j]
                total = state.covariance[a, b] / (room.deviation[a] * room.deviation[b]) if i != j else 1.0 + jitter
                for k in range(j):
                    total -= factor[i, k] * factor[j, k]
                if i != j:
                    factor[i, j] = total / factor[j, j]
                elif total > 1e-10:
                    factor[i, i] = math.sqrt(total)
                else:
                    good = False
            if not good:
                break
        if good or jitter > 1.0:
            return
        jitter *= 10.0


@njit
def _solve_lower(factor, n, x):
    for i in range(n):
        total = x[i]
        for k in range(i):
            total -= factor[i, k] * x[k]
        x[i] = total / factor[i, i]


@njit
def _solve_upper(factor, n, x):
    for i in range(n - 1, -1, -1):
        x[i] /= factor[i, i]
        for k in range(i):
            x[k] -= factor[i, k] * x[i]


@njit
def _solve(slots, room):
    """Sigma_OO^-1 z_O."""
    n = len(slots)
    for k in range(n):
        room.solved[k] = room.z[slots[k]]
    _solve_lower(room.factor, n, room.solved)
    _solve_upper(room.factor, n, room.solved)


@njit
def _precision(k, n, room):
    """Entry k of the diagonal of Sigma_OO^-1: the squares of column k of the inverse factor."""
    total = 0.0
    for i in range(k, n):
        entry = 1.0 if i == k else 0.0
        for j in range(k, i):
            entry -= room.factor[i, j] * room.inverse[j]
        room.inverse[i] = entry / room.factor[i, i]
        total += room.inverse[i] * room.inverse[i]
    return total


@njit
def _complete(slots, values, state, settings, room):
    """Latent scores of the whole row: ``room.z``; leaves what `_update` needs in ``room``."""
    n = len(slots)
    window = state.recent.shape[1]
    ordinals = False
    for i in range(state.clock[FEATURES]):
        f = state.order[i]
        room.present[f] = False
        room.deviation[f] = math.sqrt(max(state.covariance[f, f], 1e-12))
    for k in range(n):
        f = slots[k]
        room.present[f] = True
        size = min(state.seen_values[f], window)
        ascending = state.ascending[f]
        less = _at_or_below(ascending, size, values[k], True)
        below = _at_or_below(ascending, size, values[k], False)
        room.variance[k] = 0.0
        room.low[k] = 0.0
        room.high[k] = 0.0
        # a first value says nothing of its rank: its interval is the whole line
        if size == 0 or (state.distinct[f] <= settings.max_ordinal and 2 * state.distinct[f] <= size):
            room.low[k] = _normal_quantile(less / (size + 1.0)) if less > 0 else -np.inf
            room.high[k] = _normal_quantile((below + 1.0) / (size + 1.0)) if below < size else np.inf
            room.z[f], room.variance[k] = _cut_normal(0.0, 1.0, room.low[k], room.high[k])
            ordinals = True
        else:
            room.z[f] = _normal_quantile((0.5 * (less + below) + 1.0) / (size + 2.0))
    _factorise(slots, state, room)
    _solve(slots, room)
    if ordinals and n > 1:
        # all ordinal scores given all others as they were, so that the order of the columns does not matter
        for k in range(n):
            room.column[k] = room.z[slots[k]]
            if room.low[k] < room.high[k]:
                # given the others: precision p = (Sigma_OO^-1)_kk, mean z - (Sigma_OO^-1 z)_k / p
                precision = _precision(k, n, room)
                mean = room.z[slots[k]] - room.solved[k] / precision
                deviation = 1.0 / math.sqrt(precision)
                room.column[k], room.variance[k] = _cut_normal(mean, deviation, room.low[k], room.high[k])
        for k in range(n):
            room.z[slots[k]] = room.column[k]
        _solve(slots, room)
    absent = 0
    for i in range(state.clock[FEATURES]):
        f = state.order[i]
        if not room.present[f]:
            room.absent[absent] = f
            absent += 1
            total = 0.0
            for k in range(n):
                total += state.covariance[f, slots[k]] / room.deviation[slots[k]] * room.solved[k]
            room.z[f] = total / room.deviation[f]
    room.absent[len(room.absent) - 1] = absent


@njit
def _weight(entry, rate):
    return (entry[H] - entry[V]) / rate


@njit
def _two_scores(slots, values, state, room):
    rate = state.learners[X, RATE]
    on_x = _weight(state.intercept[X], rate)
    for k in range(len(slots)):
        on_x += _weight(state.linear[slots[k], X], rate) * values[k]
    rate = state.learners[Z, RATE]
    on_z = _weight(state.intercept[Z], rate)
    for i in range(state.clock[FEATURES]):
        f = state.order[i]
        on_z += _weight(state.linear[f, Z], rate) * room.z[f]
    return on_x, on_z


@njit
def _share_of_x(state, settings):
    return 1.0 / (1.0 + math.exp(min(settings.eta * (state.learners[X, LOSS] - state.learners[Z, LOSS]), 700.0)))


@njit
def _mix(slots, values, state, settings, room):
    on_x, on_z = _two_scores(slots, values, state, room)
    share = _share_of_x(state, settings)
    score = share * on_x + (1.0 - share) * on_z
    return score + state.targets[1] if settings.regression else score


@njit
def _parts(slots, values, parts, state, settings, room):
    n = len(slots)
    share = _share_of_x(state, settings)
    rate_x = state.learners[X, RATE]
    rate_z = state.learners[Z, RATE]
    # Sigma_OO^-1 Sigma_OM w_M: what a unit of a present score adds through the absent ones
    for k in range(n):
        total = 0.0
        for i in range(room.absent[len(room.absent) - 1]):
            f = room.absent[i]
            weight = _weight(state.linear[f, Z], rate_z)
            total += weight * state.covariance[f, slots[k]] / (room.deviation[f] * room.deviation[slots[k]])
        room.column[k] = total
    _solve_lower(room.factor, n, room.column)
    _solve_upper(room.factor, n, room.column)
    rest = share * _weight(state.intercept[X], rate_x) + (1.0 - share) * _weight(state.intercept[Z], rate_z)
    if settings.regression:
        rest += state.targets[1]
    for k in range(n):
        f = slots[k]
        own = share * _weight(state.linear[f, X], rate_x) * values[k]
        latent = (_weight(state.linear[f, Z], rate_z) + room.column[k]) * room.z[f]
        parts[k] = own + (1.0 - share) * latent + rest / n


@njit
def _update(slots, values, target, weight, state, settings, room):
    """Learn the row, `_complete` having been called on it."""
    on_x, on_z = _two_scores(slots, values, state, room)
    goal = target
    if settings.regression:
        goal = target - state.targets[1] if state.targets[0] > 0.0 else 0.0
    _learn_linear(X, on_x, goal, weight, slots, values, state, settings, room)
    _learn_linear(Z, on_z, goal, weight, slots, values, state, settings, room)
    if settings.regression:
        state.targets[0] += 1.0
        difference = target - state.targets[1]
        state.targets[1] += difference / state.targets[0]
        state.targets[2] += difference * (target - state.targets[1])
    _update_covariance(slots, state, settings, room)
    for k in range(len(slots)):
        _remember(slots[k], values[k], state)
    state.clock[ROWS] += 1


@njit
def _learn_linear(which, score, goal, weight, slots, values, state, settings, room):
    learner = state.learners[which]
    if settings.regression:
        gradient = score - goal
        wrong = abs(gradient) > abs(goal)  # worse than the mean
        spread = state.targets[2] / state.targets[0] if state.targets[0] > 0.0 else 0.0
        if spread > 0.0:
            learner[LOSS] += 0.5 * gradient * gradient / spread
    else:
        p = 1.0 / (1.0 + math.exp(-score)) if score >= 0.0 else math.exp(score) / (1.0 + math.exp(score))
        gradient = (p - goal) * weight
        wrong = abs(p - goal) > 0.5
        learner[LOSS] += max(score, 0.0) - goal * score + math.log1p(math.exp(-abs(score)))
    decay = _decay(learner, wrong, settings)
    rate = learner[RATE]
    if settings.regression:
        squares = 1.0
        if which == X:
            for k in range(len(slots)):
                squares += values[k] * values[k]
        else:
            for i in range(state.clock[FEATURES]):
                squares += room.z[state.order[i]] * room.z[state.order[i]]
        gradient /= 1.0 + squares / (1.0 + decay * rate)
    entry = state.intercept[which]
    w = _weight(entry, rate)
    entry[V] += gradient
    entry[H] = decay * entry[H] + w
    for i in range(state.clock[FEATURES]):
        f = state.order[i]
        entry = state.linear[f, which]
        w = _weight(entry, rate)
        if which == Z:
            entry[V] += gradient * room.z[f]
        entry[H] = decay * entry[H] + w
    if which == X:
        for k in range(len(slots)):
            state.linear[slots[k], X, V] += gradient * values[k]
    learner[RATE] = 1.0 + decay * rate


@njit
def _decay(learner, wrong, settings):
    """``dec`` of this step; the count of steps starts over when the error rate has risen beyond chance."""
    learner[TIMES] += 1.0
    if wrong:
        learner[FAILS] += 1.0
    t = learner[TIMES]
    if settings.decay_choice == 0:
        decay = 1.0 - t ** (-1.0 / 3.0)
    elif settings.decay_choice == 1:
        decay = 1.0 - 1.0 / math.sqrt(t)
    elif settings.decay_choice == 2:
        decay = (t - 1.0) / t
    elif settings.decay_choice == 3:
        decay = t / (t + 1.0)
    else:
        decay = 1.0 - math.log(t) / (2.0 * t)
    if t > WARM_UP:
        error = learner[FAILS] / t
        deviation = math.sqrt(error * (1.0 - error) / t)
        decay = decay * (1.0 - settings.error_share) + settings.error_share * error
        if error + deviation < learner[LEAST_ERROR] + learner[LEAST_DEVIATION]:
            learner[LEAST_ERROR] = error
            learner[LEAST_DEVIATION] = deviation
        if error + deviation < learner[LEAST_ERROR] + 2.0 * learner[LEAST_DEVIATION]:
            learner[WARN_TIMES] = 0.0
            learner[WARN_FAILS] = 0.0
        else:
            learner[WARN_TIMES] += 1.0
            if wrong:
                learner[WARN_FAILS] += 1.0
            if error + deviation > learner[LEAST_ERROR] + 3.0 * learner[LEAST_DEVIATION]:
                learner[TIMES] = learner[WARN_TIMES]
                learner[FAILS] = learner[WARN_FAILS]
                learner[LEAST_ERROR] = 1.0
                learner[LEAST_DEVIATION] = 10.0
    return decay


@njit
def _update_covariance(slots, state, settings, room):
    n = len(slots)
    absent = room.absent[len(room.absent) - 1]
    covariance = state.covariance
    g = settings.forgetting if settings.forgetting > 0.0 else settings.step / (state.clock[ROWS] + 1.0 + settings.step)
    ordinals = False
    for k in range(n):
        ordinals = ordinals or room.variance[k] > 0.0
    for i in range(absent):
        f = room.absent[i]
        for k in range(n):
            a = slots[k]
            room.half[i, k] = covariance[f, a] / (room.deviation[f] * room.deviation[a])
        _solve_lower(room.factor, n, room.half[i])
        if ordinals:
            room.full[i, :n] = room.half[i, :n]
            _solve_upper(room.factor, n, room.full[i])

    # absent pairs: the conditional covariance, and what is not known of the present ordinal scores
    for i in range(absent):
        a = room.absent[i]
        for j in range(i + 1):
            b = room.absent[j]
            c = covariance[a, b] / (room.deviation[a] * room.deviation[b]) if i != j else 1.0
            for k in range(n):
                c -= room.half[i, k] * room.half[j, k]
            if ordinals:
                for k in range(n):
                    c += room.full[i, k] * room.variance[k] * room.full[j, k]
            if i == j:
                c = max(c, 0.0)
            value = (1.0 - g) * covariance[a, b] + g * (room.z[a] * room.z[b] + c)
            covariance[a, b] = value
            covariance[b, a] = value
    for k in range(n):
        a = slots[k]
        for i in range(absent):
            b = room.absent[i]
            c = room.full[i, k] * room.variance[k] if ordinals else 0.0
            value = (1.0 - g) * covariance[a, b] + g * (room.z[a] * room.z[b] + c)
            covariance[a, b] = value
            covariance[b, a] = value
        for j in range(k + 1):
            b = slots[j]
            c = room.variance[k] if j == k else 0.0
            value = (1.0 - g) * covariance[a, b] + g * (room.z[a] * room.z[b] + c)
            covariance[a, b] = value
            covariance[b, a] = value


@njit
def _remember(f, x, state):
    """Put a value into the window of a feature, in place of the oldest when it is full."""
    window = state.recent.shape[1]
    ascending = state.ascending[f]
    at = state.seen_values[f] % window
    size = min(state.seen_values[f], window)
    if size == window:
        k = _at_or_below(ascending, size, state.recent[f, at], True)
        if not _repeated(ascending, size, k):
            state.distinct[f] -= 1
        for i in range(k, size - 1):
            ascending[i] = ascending[i + 1]
        size -= 1
    k = _at_or_below(ascending, size, x, False)
    if k == 0 or ascending[k - 1] != x:
        state.distinct[f] += 1
    for i in range(size, k, -1):
        ascending[i] = ascending[i - 1]
    ascending[k] = x
    state.recent[f, at] = x
    state.seen_values[f] += 1


@njit
def _repeated(ascending, size, k):
    return (k > 0 and ascending[k - 1] == ascending[k]) or (k < size - 1 and ascending[k + 1] == ascending[k])


@njit
def _run(indptr, slots, values, targets, fixed, seen, state, settings, room):
    n = len(indptr) - 1
    scores = np.empty(n)
    old = np.empty(len(state.order), np.int64)
    x = np.empty(len(state.order))
    for t in range(n):
        s = slots[indptr[t] : indptr[t + 1]]
        v = values[indptr[t] : indptr[t + 1]]
        known = 0
        for k in range(len(s)):
            if seen[s[k]] > 0:
                old[known] = s[k]
                x[known] = v[k]
                known += 1
        _complete(old[:known], x[:known], state, settings, room)
        scores[t] = _mix(old[:known], x[:known], state, settings, room)
        if targets[t] == targets[t]:
            weight = 1.0 if settings.regression else example_weight(fixed, state.targets, 0, int(targets[t]))
            if _register(s, seen, state):
                _complete(s, v, state, settings, room)
            _update(s, v, targets[t], weight, state, settings, room)
            for k in range(len(s)):
                seen[s[k]] += 1
    return scores
