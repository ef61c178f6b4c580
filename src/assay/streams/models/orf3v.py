"""ORF3V: a forest of random stumps for every feature, their class shares from t-digests.

Schreckenberger, He, Lüdtke, Bartelt and Stuckenschmidt, "Online Random Feature Forests for Learning in Varying Feature
Spaces" (AAAI 2023).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import StreamError
from assay.streams.jit import njit
from assay.streams.models import tdigest
from assay.streams.models.base import StreamModel, grown
from assay.streams.models.draws import draw_state, uniform
from assay.streams.models.ranges import check_range, check_whole

ROWS, FEATURES = 0, 1
BELOW, ABOVE = 0, 1
COUNT, SUM = 0, 1  # what a side holds in regression
MEAN, PRODUCTS, VOTES = 0, 1, 2


class ORF3V(StreamModel):
    """Random feature forests: every feature has its own stumps and its own weight in the vote.

    A stump of a feature has a threshold drawn uniformly between the smallest and largest value seen, and on either side
    the shares of the classes, from one t-digest a class. The forest of a feature votes with the mean of its stumps; the
    features are weighted by ``w <- (2 alpha [right] + w) / (1 + alpha)``. Every ``replacement_interval`` rows the
    oldest stump of each feature is drawn anew (``replacement="random"``: each with probability
    ``replacement_chance``), and a feature is forgotten when the rate at which it was ever seen exceeds its rate over
    the last ``window`` rows by more than the Hoeffding bound ``sqrt(ln(1 / delta) / (2 window))``. Scores are shares of
    the weighted vote (a row on which no feature can vote: the class shares so far).

    ``task="regression"``: one digest holds the values, two more hold them weighted by the positive and by the negative
    parts of the residuals from the running mean; a side predicts its mean residual, and the mean vote is stretched by
    the slope of the residuals on it so far.

    What differs from haphazard 1.2.8, and why:

    1. "Oldest" is the stump drawn longest ago. There it is always the last one, because no stump weight ever exceeds
       the number that it is compared with; and stump weights shrink to .005 of themselves at each interval, so here
       stumps have none.
    2. After a stump is drawn its class counts go on counting, which is what asking the digests again at every row would
       give, at the cost of an addition.
    3. The first stumps of a feature can only be drawn at the one value there is. They are all drawn again when the
       feature has been seen 2, 4, 8, ... times, up to ``replacement_interval``.
    4. A side on which nothing was seen has the shares of the feature, not equal ones: a class that was declared but
       never met gets no vote.

    Parameters
    ----------
    forest_size : int
        Stumps a feature.
    replacement : {"oldest", "random"}
    replacement_interval : int
        Rows between replacements.
    replacement_chance : float
        In [0, 1]; for "random".
    window : int
        Rows of the recent rate at which a feature is seen.
    alpha : float
        Step of the feature weights, above 0.
    delta : float
        Confidence of the pruning bound, in (0, 1).
    compression : int
        Of the t-digests (`TDigest`).
    task : {"classification", "regression"}
    classes : sequence of labels, optional
        Default: grown on first sight.
    seed : int

    Raises
    ------
    StreamError
        If a parameter is out of its range.

    Examples
    --------
    >>> from assay.streams import load, run
    >>> result = run(ORF3V(forest_size=5), load("wdbc").masked("probabilistic", p=0.5, seed=0))
    >>> round(result.metrics["auroc"], 3)
    0.949
    """

    native_multiclass = True
    regression = True
    deterministic = False

    def __init__(
        self,
        forest_size: int = 50,
        replacement: str = "oldest",
        replacement_interval: int = 50,
        replacement_chance: float = 0.3,
        window: int = 200,
        alpha: float = 0.1,
        delta: float = 0.001,
        compression: int = 50,
        task: str = "classification",
        classes: Sequence[Hashable] | None = None,
        seed: int = 0,
    ) -> None:
        self.forest_size = forest_size
        self.replacement = replacement
        self.replacement_interval = replacement_interval
        self.replacement_chance = replacement_chance
        self.window = window
        self.alpha = alpha
        self.delta = delta
        self.compression = compression
        self.task = task
        self.classes = classes
        self.seed = seed
        self.reset()

    def _reset(self) -> None:
        check_whole("forest_size", self.forest_size, 1)
        check_whole("replacement_interval", self.replacement_interval, 1)
        check_whole("window", self.window, 1)
        check_range("replacement_chance", self.replacement_chance, 0, 1)
        check_range("alpha", self.alpha, 0, above=True)
        check_range("delta", self.delta, 0, 1, above=True)
        if self.replacement not in ("oldest", "random"):
            raise StreamError(f"replacement is 'oldest' or 'random', not {self.replacement!r}")
        wide = 2 if self.task == "regression" else 1
        groups = 3 if self.task == "regression" else 1
        self._draws = draw_state(self.seed)
        self._clock = np.zeros(2, dtype=np.int64)  # rows learned, features known
        # classification: rows of each class; regression: mean of the targets, and the sums of the slope below
        self._totals = np.zeros(3 if self.task == "regression" else 2)
        self._order = np.zeros(8, dtype=np.int64)  # the known features, in order of first sight
        self._digests = tdigest.empty_bank(8 * groups, self.compression).reshape(8, groups, -1)
        self._sightings = np.zeros(8, dtype=np.int64)  # rows with the feature since it was (last) new; 0 if forgotten
        self._first = np.zeros(8, dtype=np.int64)  # the row at which it was new
        self._times = np.zeros((8, self.window), dtype=np.int64)  # ring of its last rows
        self._vote_weight = np.zeros(8)
        self._threshold = np.zeros((8, self.forest_size))
        self._born = np.zeros((8, self.forest_size), dtype=np.int64)
        self._sides = np.zeros((8, self.forest_size, 2, wide))  # class counts (regression: count, sum of residuals)

    def _grow(self, n: int) -> None:
        for name in (
            "_order",
            "_digests",
            "_sightings",
            "_first",
            "_times",
            "_vote_weight",
            "_threshold",
            "_born",
            "_sides",
        ):
            setattr(self, name, grown(getattr(self, name), n))

    def _grow_classes(self, k: int) -> None:
        wider = k - self._sides.shape[3]
        if wider > 0:
            self._sides = np.pad(self._sides, ((0, 0), (0, 0), (0, 0), (0, wider)))
            self._digests = np.pad(self._digests, ((0, 0), (0, wider), (0, 0)))
        self._totals = np.pad(self._totals, (0, max(0, k - len(self._totals))))

    def _forests(self) -> _Forests:
        return _Forests(
            self._clock, self._draws, self._totals, self._order, self._digests.reshape(-1, self._digests.shape[2]),
            self._sightings, self._first, self._times, self._vote_weight, self._threshold, self._born, self._sides,
        )  # fmt: skip

    def _settings(self) -> _Settings:
        bound = math.sqrt(math.log(1 / self.delta) / (2 * self.window))
        return _Settings(
            self.task == "regression", self.replacement == "random", self.replacement_interval,
            float(self.replacement_chance), float(self.alpha), bound,
        )  # fmt: skip

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float | NDArray[np.float64]:
        votes = np.zeros(self._width())
        _vote(slots, values, votes, np.zeros(len(votes)), self._forests(), self._settings())
        return float(votes[0]) if self.task == "regression" else votes[: len(self._labels.classes)]

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: float) -> None:
        _update(slots, values, float(target), self._seen, np.zeros(self._width()), self._forests(), self._settings())

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        y = targets if self.task == "regression" else np.where(targets < 0, np.nan, targets)
        scores = np.zeros((len(y), self._width()))
        _run(indptr, slots, values, y, scores, self._seen, self._forests(), self._settings())
        return scores[:, 0] if self.task == "regression" else scores

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weighted vote of each feature (more than two classes: for the predicted class).

        In regression the mean of the targets is divided equally.
        """
        parts = np.zeros((len(slots), self._width()))
        total = _parts(slots, values, parts, self._forests(), self._settings())
        parts /= total if total > 0 else 1.0
        if self.task == "regression":
            return _slope(self._forests()) * parts[:, 0] + self._totals[MEAN] / max(len(slots), 1)
        if parts.shape[1] == 1:
            return parts[:, 0]
        return parts[:, 1] - parts[:, 0] if parts.shape[1] == 2 else parts[:, np.argmax(parts.sum(axis=0))]

    def _width(self) -> int:
        return 1 if self.task == "regression" else self._sides.shape[3]


class _Forests(NamedTuple):
    clock: NDArray[np.int64]
    draws: NDArray[np.int64]
    totals: NDArray[np.float64]
    order: NDArray[np.int64]
    digests: NDArray[np.float64]
    sightings: NDArray[np.int64]
    first: NDArray[np.int64]
    times: NDArray[np.int64]
    weight: NDArray[np.float64]
    threshold: NDArray[np.float64]
    born: NDArray[np.int64]
    sides: NDArray[np.float64]


class _Settings(NamedTuple):
    regression: bool
    random: bool
    interval: int
    chance: float
    alpha: float
    bound: float


@njit
def _forest_vote(f, x, dist, forests, settings):
    """Mean over the stumps of one feature: class shares, or mean residual."""
    for c in range(len(dist)):
        dist[c] = 0.0
    size = forests.threshold.shape[1]
    for s in range(size):
        side = forests.sides[f, s, BELOW if x <= forests.threshold[f, s] else ABOVE]
        if settings.regression:
            if side[COUNT] > 0.0:
                dist[0] += side[SUM] / side[COUNT]
        else:
            total = 0.0
            for c in range(len(dist)):
                total += side[c]
            if total == 0.0:
                side = forests.sides[f, s, ABOVE if x <= forests.threshold[f, s] else BELOW]
                for c in range(len(dist)):
                    total += side[c]
            for c in range(len(dist)):
                dist[c] += side[c] / total
    for c in range(len(dist)):
        dist[c] /= size


@njit
def _vote(slots, values, votes, dist, forests, settings):
    for c in range(len(votes)):
        votes[c] = 0.0
    total = 0.0
    for k in range(len(slots)):
        f = slots[k]
        if forests.sightings[f] > 0:
            _forest_vote(f, values[k], dist, forests, settings)
            total += forests.weight[f]
            for c in range(len(votes)):
                votes[c] += forests.weight[f] * dist[c]
    if total > 0.0:
        for c in range(len(votes)):
            votes[c] /= total
    elif not settings.regression and forests.clock[ROWS] > 0:
        for c in range(len(votes)):
            votes[c] = forests.totals[c] / forests.clock[ROWS]
    if settings.regression:
        votes[0] = forests.totals[MEAN] + _slope(forests) * votes[0]
    return total


@njit
def _slope(forests):
    """Least-squares slope, at least 0, of the residuals so far on the mean votes; ten rows of slope 1 come before them.

    A mean over random stumps and over features shrinks what each of them knows.
    """
    if forests.totals[VOTES] <= 0.0:
        return 1.0
    prior = 10.0 / forests.clock[ROWS]
    return max((forests.totals[PRODUCTS] / forests.totals[VOTES] + prior) / (1.0 + prior), 0.0)


@njit
def _parts(slots, values, parts, forests, settings):
    total = 0.0
    for k in range(len(slots)):
        f = slots[k]
        if forests.sightings[f] > 0:
            _forest_vote(f, values[k], parts[k], forests, settings)
            total += forests.weight[f]
            for c in range(parts.shape[1]):
                parts[k, c] *= forests.weight[f]
    return total


@njit
def _draw_stump(f, s, forests, settings):
    """A new threshold, and the counts on its two sides from the digests."""
    sides = forests.sides[f, s]
    groups = 3 if settings.regression else sides.shape[1]
    lowest = np.inf
    highest = -np.inf
    for g in range(groups):
        digest = forests.digests[f * groups + g]
        if digest[tdigest.SIZE] > 0.0:
            lowest = min(lowest, digest[tdigest.MIN])
            highest = max(highest, digest[tdigest.MAX])
    threshold = lowest + uniform(forests.draws) * (highest - lowest)
    forests.threshold[f, s] = threshold
    forests.born[f, s] = forests.clock[ROWS]
    for c in range(sides.shape[1]):
        sides[BELOW, c] = 0.0
        sides[ABOVE, c] = 0.0
    for g in range(groups):
        total = forests.digests[f * groups + g, tdigest.TOTAL]
        if total > 0.0:
            below = total * tdigest.cdf(forests.digests, f * groups + g, threshold)
            if settings.regression:
                at = COUNT if g == 0 else SUM
                sign = -1.0 if g == 2 else 1.0
                sides[BELOW, at] += sign * below
                sides[ABOVE, at] += sign * (total - below)
            else:
                sides[BELOW, g] = below
                sides[ABOVE, g] = total - below


@njit
def _update(slots, values, target, seen, dist, forests, settings):
    clock = forests.clock
    t = clock[ROWS]
    window = forests.times.shape[1]
    size = forests.threshold.shape[1]
    groups = 3 if settings.regression else forests.sides.shape[3]
    residual = 0.0
    if settings.regression:
        residual = target - (forests.totals[MEAN] if t > 0 else target)
    vote = 0.0
    weights = 0.0

    for k in range(len(slots)):
        f = slots[k]
        x = values[k]
        if seen[f] == 0:
            forests.order[clock[FEATURES]] = f
            clock[FEATURES] += 1

        # the weight of the feature, judged before the row is learned
        if forests.sightings[f] == 0:
            forests.first[f] = t
            forests.weight[f] = 1.0
        else:
            _forest_vote(f, x, dist, forests, settings)
            if settings.regression:
                right = abs(residual - dist[0]) < abs(residual)
                vote += forests.weight[f] * dist[0]
                weights += forests.weight[f]
            else:
                right = np.argmax(dist) == int(target)
            bonus = 2.0 * settings.alpha if right else 0.0
            forests.weight[f] = (bonus + forests.weight[f]) / (1.0 + settings.alpha)

        # what is known of the feature
        if settings.regression:
            tdigest.update(forests.digests, f * groups, x, 1.0)
            if residual > 0.0:
                tdigest.update(forests.digests, f * groups + 1, x, residual)
            elif residual < 0.0:
                tdigest.update(forests.digests, f * groups + 2, x, -residual)
        else:
            tdigest.update(forests.digests, f * groups + int(target), x, 1.0)
        forests.times[f, forests.sightings[f] % window] = t
        forests.sightings[f] += 1

        count = forests.sightings[f]
        if count & (count - 1) == 0 and count <= settings.interval:
            for s in range(size):
                _draw_stump(f, s, forests, settings)
        else:
            for s in range(size):
                side = forests.sides[f, s, BELOW if x <= forests.threshold[f, s] else ABOVE]
                if settings.regression:
                    side[COUNT] += 1.0
                    side[SUM] += residual
                else:
                    side[int(target)] += 1.0

    clock[ROWS] = t + 1
    if settings.regression:
        forests.totals[MEAN] += (target - forests.totals[MEAN]) / (t + 1)
        if weights > 0.0:
            forests.totals[PRODUCTS] += residual * vote / weights
            forests.totals[VOTES] += (vote / weights) ** 2
    else:
        forests.totals[int(target)] += 1.0
    if (t + 1) % settings.interval == 0:
        for i in range(clock[FEATURES]):
            f = forests.order[i]
            if forests.sightings[f] > 0:
                if _vanished(f, forests, settings):
                    forests.sightings[f] = 0
                    for g in range(groups):
                        tdigest.clear(forests.digests, f * groups + g)
                else:
                    _replace(f, forests, settings)


@njit
def _vanished(f, forests, settings):
    """Whether the feature is seen so much less than it was that the bound rules out chance."""
    window = forests.times.shape[1]
    age = forests.clock[ROWS] - forests.first[f]
    if age <= window:
        return False
    recent = 0
    for k in range(min(window, forests.sightings[f])):
        if forests.times[f, k] >= forests.clock[ROWS] - window:
            recent += 1
    return forests.sightings[f] / age - recent / window > settings.bound


@njit
def _replace(f, forests, settings):
    size = forests.threshold.shape[1]
    if settings.random:
        for s in range(size):
            if uniform(forests.draws) < settings.chance:
                _draw_stump(f, s, forests, settings)
    else:
        _draw_stump(f, np.argmin(forests.born[f]), forests, settings)


@njit
def _run(indptr, slots, values, targets, scores, seen, forests, settings):
    dist = np.zeros(scores.shape[1])
    votes = np.zeros(scores.shape[1])
    # slots not learned yet have no forest, so they need no skipping
    for t in range(len(indptr) - 1):
        s = slots[indptr[t] : indptr[t + 1]]
        v = values[indptr[t] : indptr[t + 1]]
        _vote(s, v, votes, dist, forests, settings)
        for c in range(len(votes)):
            scores[t, c] = votes[c]
        if targets[t] == targets[t]:
            _update(s, v, targets[t], seen, dist, forests, settings)
            for k in range(len(s)):
                seen[s[k]] += 1
