"""FAE: an ensemble of naive Bayes learners, each with the features that were best at its birth (ICDM 2006)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import StreamError
from assay.streams.jit import njit
from assay.streams.models.base import StreamModel, grown
from assay.streams.models.nb3 import count_row, duel, ranks, widened
from assay.streams.models.odds import class_scores
from assay.streams.models.ranges import check_range, check_whole
from assay.streams.models.top_k import kth_largest

_TIE = 1e-9  # log joints this close are tied: their sums differ by rounding with the order of the columns

_FRACTIONS = {"wpbc": 0.4, "ionosphere": 0.2, "wdbc": 0.2, "australian": 1.0, "wbc": 0.8, "diabetes_f": 1.0}
_FRACTIONS |= {"german": 0.2, "ipd": 0.8, "svmguide3": 0.4, "krvskp": 1.0, "spambase": 0.2, "magic04": 1.0}
_FRACTIONS |= {"a8a": 0.2, "imdb": 0.8}

#: Constructor arguments that the review of haphazard inputs (arXiv 2404.04903) found best, by data set.
BEST_SETTINGS: dict[str, dict[str, float]] = {name: {"M": value} for name, value in _FRACTIONS.items()}


class FAE(StreamModel):
    """Naive Bayes learners that are added when the best features change or accuracy falls, and dropped when they lag.

    A learner is fixed to the ``M`` best features (largest chi-square, as in `NB3`) at its birth and learns every row
    since. After each row: if the best features differ from the youngest learner's by more than ``f M``, or it is
    older than ``r`` rows and the ensemble's accuracy over the last ``N`` rows is below that over the last ``2N``,
    then each mature learner whose accuracy is below the middle between the best and the worst mature one gains a
    probation point and the other mature ones lose theirs, learners with ``p`` points are dropped, and a new one is
    added, which learns the present row. Learners vote with their accuracy over the last ``N`` rows if they are at
    least ``m`` rows old and have no probation points; if there are none, or none of them was right once, all vote
    with their age. After Wenerstrom and Giraud-Carrier, "Temporal data mining in dynamic feature spaces" (ICDM 2006).

    haphazard 1.2.8 compares the number of hits in N and in 2N rows instead of the rates, so that the second is never
    the less once the queues are full, and multiplies likelihoods by signed values; here the rates are compared, and
    values count as present if they are not 0. An ensemble is never empty: the newest learner is always in it.

    Parameters
    ----------
    m : int
        Maturity: age in rows from which a learner votes with its accuracy; at least 1.
    p : int
        Probation points at which a learner is dropped; at least 1.
    f : float
        Change of features, as a share of M, above which a learner is added; at least 0.
    r : int
        Age of the youngest learner in rows above which accuracy is watched; at least 0.
    N : int
        Rows over which accuracy is taken; at least 1.
    M : float
        Share of the features seen that a new learner gets, above 0 and at most 1; rounded down, at least one feature,
        and all that are tied at the cut.
    vote : {"soft", "hard"}
        "hard", as published: a learner's weight goes to the class it finds most likely (split among ties), and the
        score of a class is its share of the weight. "soft": the score is ``log(1 + odds)`` of the weighted mean log
        posterior, in two-class problems the weighted mean of the learners' log-odds, and `explain_one` adds up to it.
        The default, because hard votes tie: AUROC on spambase, zeros absent, is 0.952 soft and 0.884 hard.
    max_learners : int, optional
        Bound on the size of the ensemble, which has none as published: above it the least accurate of the mature
        learners is dropped.
    classes : sequence of labels, optional
        Default: grown on first sight.

    Raises
    ------
    StreamError
        If an argument is out of its range.

    Examples
    --------
    Digits as the set of pixels that have ink, ten classes:

    >>> from sklearn.datasets import load_digits
    >>> from assay.streams import from_arrays, run
    >>> X, y = load_digits(return_X_y=True)
    >>> result = run(FAE(M=1.0), from_arrays(np.where(X == 0, np.nan, X), y), normalizer="none")
    >>> round(result.metrics["accuracy"], 3), round(result.metrics["auroc"], 3)
    (0.72, 0.963)
    """

    native_multiclass = True

    def __init__(
        self,
        m: int = 5,
        p: int = 3,
        f: float = 0.15,
        r: int = 10,
        N: int = 50,
        M: float = 0.4,
        vote: str = "soft",
        max_learners: int | None = 50,
        classes: Sequence[Hashable] | None = None,
    ) -> None:
        self.m = m
        self.p = p
        self.f = f
        self.r = r
        self.N = N
        self.M = M
        self.vote = vote
        self.max_learners = max_learners
        self.classes = classes
        self.reset()

    def _reset(self) -> None:
        check_whole("m", self.m, 1)
        check_whole("p", self.p, 1)
        check_range("f", self.f, 0)
        check_whole("r", self.r, 0)
        check_whole("N", self.N, 1)
        check_range("M", self.M, 0, 1, above=True)
        if self.vote not in ("hard", "soft"):
            raise StreamError(f"vote is 'hard' or 'soft', not {self.vote!r}")
        if self.max_learners is not None:
            check_whole("max_learners", self.max_learners, 1)
        k = len(self._labels.classes)
        self._n1 = np.zeros((8, k))
        self._n = np.zeros(8)  # rows with the feature, all classes
        self._counts = np.zeros(k)
        self._used = np.zeros(1)  # features learned
        # A learner has seen all rows since its birth, so its counts are those of the stream less those at its birth.
        # Learners are the second axis; a place is free once its learner is dropped.
        self._mine = np.zeros((8, 4), dtype=np.bool_)
        self._n1_then = np.zeros((8, 4, k))
        self._counts_then = np.zeros((4, k))
        self._life = np.zeros((4, 4))  # age, rows predicted, hits in the last N of them, probation points
        self._hits = np.zeros((4, self.N), dtype=np.bool_)  # of the last N rows, a ring
        self._order = np.arange(4)  # places of the living in order of birth, then the free places
        self._head = np.zeros(4)  # living learners; of the ensemble rows predicted, hits in the last N, in the last 2N
        self._ring = np.zeros(2 * self.N, dtype=np.bool_)

    def _grow(self, n: int) -> None:
        self._n1 = grown(self._n1, n)
        self._n = grown(self._n, n)
        self._mine = grown(self._mine, n)
        self._n1_then = grown(self._n1_then, n)

    def _grow_classes(self, k: int) -> None:
        self._n1 = widened(self._n1, k)
        self._counts = widened(self._counts, k)
        self._n1_then = widened(self._n1_then, k)
        self._counts_then = widened(self._counts_then, k)

    def _make_place(self) -> None:
        """Twice the places for learners, if none is free."""
        places = len(self._order)
        if self._head[0] < places:
            return
        self._mine = np.pad(self._mine, [(0, 0), (0, places)])
        self._n1_then = np.pad(self._n1_then, [(0, 0), (0, places), (0, 0)])
        self._counts_then = np.pad(self._counts_then, [(0, places), (0, 0)])
        self._life = np.pad(self._life, [(0, places), (0, 0)])
        self._hits = np.pad(self._hits, [(0, places), (0, 0)])
        self._order = np.concatenate([self._order, np.arange(places, 2 * places)])

    def _stream(self) -> tuple[Any, ...]:
        return self._n1, self._n, self._counts, self._used, self._ring

    def _learners(self) -> tuple[Any, ...]:
        return self._mine, self._n1_then, self._counts_then, self._life, self._hits, self._order, self._head

    def _hyper(self) -> tuple[Any, ...]:
        most = 0 if self.max_learners is None else self.max_learners
        return self.m, self.p, float(self.f), self.r, self.N, float(self.M), self.vote == "soft", most

    def _judge(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> tuple[Any, NDArray[np.float64]]:
        joint = np.empty((len(self._order), len(self._counts)))
        scores = np.empty(len(self._counts))
        _judge(slots, values, self._stream(), self._learners(), self._hyper(), joint)
        _combine(joint, self._counts, self._learners(), self._hyper(), scores)
        return joint, scores

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._judge(slots, values)[1]

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        self._make_place()
        joint, scores = self._judge(slots, values)
        _update(slots, target, joint, scores, self._stream(), self._learners(), self._hyper())

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        scores = np.zeros((len(targets), max(1, len(self._counts))))
        done = 0
        while done < len(targets):
            self._make_place()
            state = self._stream(), self._learners(), self._hyper()
            done = _run(done, indptr, slots, values, targets, scores, *state, self._seen)
        return scores

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        parts = np.zeros(len(slots))
        best, other = duel(self._score(slots, values))
        if best == other or self._counts[best] == 0 or self._counts[other] == 0:
            return parts
        weights = np.empty(len(self._order))
        total = _weights(self._learners(), self._hyper(), weights)
        for q in self._order[: int(self._head[0])]:
            counts = self._counts - self._counts_then[q]
            for k, (s, x) in enumerate(zip(slots, values, strict=True)):
                if x != 0.0 and self._mine[s, q]:
                    log_p = np.log((self._n1[s] - self._n1_then[s, q] + 1.0) / (counts + 2.0))
                    parts[k] += weights[q] / total * (log_p[best] - log_p[other])
        return parts


# The kernels take their state in three tuples, as the methods of these names make them: _stream, _learners, _hyper.


@njit
def _judge(slots, values, stream, learners, hyper, joint):
    """joint[q, c]: log joint of class c for the learner at place q."""
    n1, _, counts, _, _ = stream
    mine, n1_then, counts_then, _, _, order, head = learners
    soft = hyper[6]
    living = order[: int(head[0])]
    k = len(counts)
    for q in living:
        rows = 0.0
        for c in range(k):
            rows += counts[c] - counts_then[q, c]
        for c in range(k):
            own = counts[c] - counts_then[q, c]
            # A mean of log posteriors needs finite ones; a hard vote must not go to a class that the learner never met.
            if soft:
                joint[q, c] = math.log((own + 1.0) / (rows + k))
            else:
                joint[q, c] = math.log(own / rows) if own > 0.0 else -np.inf
    for i in range(len(slots)):
        s = slots[i]
        if values[i] != 0.0:
            for q in living:
                if mine[s, q]:
                    for c in range(k):
                        own = counts[c] - counts_then[q, c]
                        joint[q, c] += math.log((n1[s, c] - n1_then[s, q, c] + 1.0) / (own + 2.0))


@njit
def _accuracy(life, q, N):
    return life[q, 2] / min(life[q, 1], N) if life[q, 1] > 0.0 else 0.0


@njit
def _weights(learners, hyper, weights):
    """Vote weight of each living learner; returns their sum."""
    _, _, _, life, _, order, head = learners
    m, _, _, _, N, _, _, _ = hyper
    living = order[: int(head[0])]
    total = 0.0
    for q in living:
        weights[q] = _accuracy(life, q, N) if life[q, 0] >= m and life[q, 3] == 0.0 else 0.0
        total += weights[q]
    if total == 0.0:
        for q in living:
            weights[q] = life[q, 0]
            total += weights[q]
    return total


@njit
def _combine(joint, counts, learners, hyper, out):
    """The ensemble's score of each class."""
    order, head = learners[5], learners[6]
    soft = hyper[6]
    k = len(counts)
    for c in range(k):
        out[c] = 0.0
    weights = np.empty(len(order))
    total = _weights(learners, hyper, weights)
    if total == 0.0:
        return
    mean = np.zeros(k)
    for q in order[: int(head[0])]:
        share = weights[q] / total
        best = joint[q, 0]
        for c in range(1, k):
            best = max(best, joint[q, c])
        if soft:
            mass = 0.0
            for c in range(k):
                mass += math.exp(joint[q, c] - best)
            for c in range(k):
                mean[c] += share * (joint[q, c] - best - math.log(mass))
        else:
            tied = 0
            for c in range(k):
                tied += joint[q, c] >= best - _TIE
            for c in range(k):
                if joint[q, c] >= best - _TIE:
                    out[c] += share / tied
    if soft:
        class_scores(mean, counts, out)


@njit
def _is_hit(scores, code):
    """Whether this class alone has the largest score."""
    reached = 0
    for c in range(len(scores)):
        reached += scores[c] >= scores[code] - _TIE
    return reached == 1


@njit
def _update(slots, code, joint, scores, stream, learners, hyper):
    """One step, given what the learners and the ensemble said of the row before it."""
    n1, n, counts, used, ring = stream
    mine, n1_then, counts_then, life, hits, order, head = learners
    m, p, f, r, N, M, _, most = hyper
    living = int(head[0])
    for q in order[:living]:
        at = int(life[q, 1]) % N
        life[q, 2] -= hits[q, at]
        hits[q, at] = _is_hit(joint[q], code)
        life[q, 2] += hits[q, at]
        life[q, 1] += 1.0
        life[q, 0] += 1.0
    at = int(head[1])
    head[2] -= ring[(at - N) % (2 * N)]
    head[3] -= ring[at % (2 * N)]
    ring[at % (2 * N)] = _is_hit(scores, code)
    head[2] += ring[at % (2 * N)]
    head[3] += ring[at % (2 * N)]
    head[1] += 1.0

    count_row(slots, code, n1, n, counts, used)
    rank = ranks(n1, n, counts)
    size = max(1, int(M * used[0]))
    cut = kth_largest(rank, size)
    if living > 0:
        youngest = order[living - 1]
        changed = 0
        for s in range(len(n)):
            changed += (n[s] > 0.0 and rank[s] >= cut) != mine[s, youngest]
        falling = head[2] / min(head[1], N) < head[3] / min(head[1], 2 * N)
        if not (changed > f * size or (life[youngest, 0] > r and falling)):
            return

    best, worst = -np.inf, np.inf
    for q in order[:living]:
        if life[q, 0] >= m:
            best = max(best, _accuracy(life, q, N))
            worst = min(worst, _accuracy(life, q, N))
    for q in order[:living]:
        if life[q, 0] >= m:
            life[q, 3] = life[q, 3] + 1.0 if _accuracy(life, q, N) < (best + worst) / 2.0 else 0.0
    for i in range(living - 1, -1, -1):
        if life[order[i], 3] >= p:
            _drop(i, order, head)
    if most > 0 and head[0] >= most:
        _drop(_weakest(life, order, head, m, N), order, head)

    q = order[int(head[0])]
    head[0] += 1.0
    life[q] = 0.0
    life[q, 0] = 1.0
    hits[q] = False
    for c in range(len(counts)):
        counts_then[q, c] = counts[c] - (c == code)
    for s in range(len(n)):
        mine[s, q] = n[s] > 0.0 and rank[s] >= cut
        for c in range(len(counts)):
            n1_then[s, q, c] = n1[s, c]
    for s in slots:
        n1_then[s, q, code] -= 1.0


@njit
def _drop(i, order, head):
    """Free the place of the i-th of the living."""
    gone = order[i]
    last = int(head[0]) - 1
    for j in range(i, last):
        order[j] = order[j + 1]
    order[last] = gone
    head[0] -= 1.0


@njit
def _weakest(life, order, head, m, N):
    """Which of the living has the least accuracy among the mature, the oldest first; the oldest of all if none is."""
    weakest = 0
    least = np.inf
    for i in range(int(head[0])):
        q = order[i]
        if life[q, 0] >= m and _accuracy(life, q, N) < least:
            weakest = i
            least = _accuracy(life, q, N)
    return weakest


@njit
def _run(start, indptr, slots, values, targets, scores, stream, learners, hyper, seen):
    """Rows from ``start`` on; returns where it stopped: at the end, or where no place for a learner is left."""
    counts = stream[2]
    order, head = learners[5], learners[6]
    joint = np.empty((len(order), len(counts)))
    for t in range(start, len(targets)):
        if int(head[0]) == len(order):
            return t
        s = slots[indptr[t] : indptr[t + 1]]
        x = values[indptr[t] : indptr[t + 1]]
        out = scores[t, : len(counts)]
        _judge(s, x, stream, learners, hyper, joint)
        _combine(joint, counts, learners, hyper, out)
        if targets[t] >= 0:
            _update(s, targets[t], joint, out, stream, learners, hyper)
            for i in range(len(s)):
                seen[s[i]] += 1
    return len(targets)
