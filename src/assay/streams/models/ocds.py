"""OCDS: learning from capricious data streams (He et al., IJCAI 2019; as GLSC, IEEE TNNLS 2020)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import StreamError
from assay.streams.jit import njit
from assay.streams.models.base import StreamModel, grown
from assay.streams.models.margin import optional_weights, row_weight, signed_targets
from assay.streams.models.ranges import check_range, check_whole
from assay.streams.models.top_k import kth_largest

_G_MAX = 10.0
_G_START = 1e-3  # on top of the identity

_COLUMNS = {"wpbc": 33, "ionosphere": 34, "wdbc": 30, "australian": 14, "wbc": 9, "diabetes_f": 8, "german": 24}
_COLUMNS |= {"ipd": 24, "svmguide3": 21, "krvskp": 36, "spambase": 57, "magic04": 10, "a8a": 123, "imdb": 7500}

#: ``gamma`` by data set in the review of haphazard inputs (arXiv 2404.04903): at most 150 weights are kept.
BEST_SETTINGS: dict[str, dict[str, float]] = {name: {"gamma": min(1.0, 150 / d)} for name, d in _COLUMNS.items()}


class OCDS(StreamModel):
    """A linear classifier on the observed features and on what a learned feature graph says about the absent ones.

    ``G[i, j] >= 0`` says how feature i speaks for feature j; a row's reconstruction is ``psi = G_O^T x_O / |O|``. The
    score is ``p w_O.x_O + (1 - p) w_M.psi_M``, M the features seen before but absent now; ``p = sig(eta (L_r -
    L_o))`` with ``eta = 8 sqrt(1 / ln t)`` weighs the two parts by their cumulative losses. With the residual ``r = y
    - w.psi`` the weights move against ``-2 r psi + lam sign(w) + beta2 (L + L^T) w`` by ``sqrt(1 / t)``, L the
    Laplacian of ``(G + G^T) / 2`` and ``beta2 = 2 lam - 2 beta1``. Then w is cut to its ``gamma |U|`` largest
    entries.

    What is different from haphazard 1.2.8, which stays at chance, and why:

    1. G takes a projected gradient step, clipped to [0, 10]; the multiplicative step moves an entry by up to 1e3 a row.
    2. ``r psi`` is not divided by ``|O|`` again.
    3. p is a sigmoid of the difference of the losses; a ratio of clamped exponentials falls to 0 as the losses grow.
    4. G starts at the identity plus 1e-3, not at random: two runs give the same scores.
    5. A step of w or G is cut where it would carry ``w.psi`` past y. On z-scored tables of 10 to 57 columns this hardly
       ever happens; with five columns, or values in the hundreds, it is what keeps the model stable.

    The cost of a row is O(d^2) in the features seen, and so is the state; ``max_features`` bounds it.

    Parameters
    ----------
    lam : float
        lambda, weight of the two penalties of w, at least 0.
    beta1 : float
        Share of the penalty that is not the graph's, from 0 to ``lam``.
    alpha : float
        Weight of the reconstruction loss, at least 0.
    gamma : float
        Share of the features seen that keep a weight, above 0 and at most 1; rounded up.
    tau_g : float
        The step of G is ``tau_g sqrt(1 / t)``; at least 0.
    max_features : int, optional
        Most features held at a time.
    on_limit : {"evict", "raise"}
        What happens above it: forget the least seen features, or raise `StateLimitExceeded`.
    class_weight : dict or "balanced", optional
        Multiplies the residual of a row by the weight of its class.
    task : {"classification", "regression"}
        Regression: y is the value itself and the score is ``w.psi``, whose squared residual the steps reduce;
        ``w_O.x_O`` is on another scale, and there is no p.
    classes : sequence of two labels, optional
        The second is the positive class. Default: grown on first sight.

    Raises
    ------
    StreamError
        If an argument is out of its range.

    Examples
    --------
    Half of the cells of WDBC are absent:

    >>> from assay.streams import load, run
    >>> result = run(OCDS(), load("wdbc").masked("probabilistic", p=0.5, seed=0))
    >>> round(result.metrics["auroc"], 3)
    0.98
    """

    regression = True
    unit_target = True

    def __init__(
        self,
        lam: float = 0.01,
        beta1: float = 1e-4,
        alpha: float = 0.01,
        gamma: float = 1.0,
        tau_g: float = 0.1,
        max_features: int | None = None,
        on_limit: str = "evict",
        class_weight: Mapping[Hashable, float] | str | None = None,
        task: str = "classification",
        classes: Sequence[Hashable] | None = None,
    ) -> None:
        self.lam = lam
        self.beta1 = beta1
        self.alpha = alpha
        self.gamma = gamma
        self.tau_g = tau_g
        self.max_features = max_features
        self.on_limit = on_limit
        self.class_weight = class_weight
        self.task = task
        self.classes = classes
        self.reset()

    def _reset(self) -> None:
        check_range("lam", self.lam, 0)
        check_range("beta1", self.beta1, 0, self.lam)
        check_range("alpha", self.alpha, 0)
        check_range("gamma", self.gamma, 0, 1, above=True)
        check_range("tau_g", self.tau_g, 0)
        if self.max_features is not None:
            check_whole("max_features", self.max_features, 1)
        if self.on_limit not in ("evict", "raise"):
            raise StreamError(f"on_limit is 'evict' or 'raise', not {self.on_limit!r}")
        # w and G are indexed by place, the order in which features were first learned, so that the features in use are
        # the first ones and every sum runs over them alone.
        self._place = np.full(8, -1, dtype=np.int64)
        self._w = np.zeros(8)
        self._G = np.zeros((8, 8))
        self._counts = np.zeros(2)  # rows learned of class 0 and 1, for class_weight
        self._head = np.array([0.0, 0.5, 0.0, 0.0, 0.0])  # t, p, L_o, L_r, features in use

    def _grow(self, n: int) -> None:
        if n > len(self._w):
            self._place = grown(self._place, n, fill=-1)
            self._w = grown(self._w, n)
            larger = np.zeros((len(self._w), len(self._w)))
            larger[: len(self._G), : len(self._G)] = self._G
            self._G = larger

    def _evict(self, slots: NDArray[np.int64]) -> None:
        used = int(self._head[4])
        gone = self._place[slots]
        kept = np.setdiff1d(np.arange(used), gone)
        w, G, place = self._w[kept], self._G[np.ix_(kept, kept)], np.delete(self._place, slots)
        self._w[:] = 0.0
        self._w[: len(kept)] = w
        self._G[:] = 0.0
        self._G[: len(kept), : len(kept)] = G
        self._place[:] = -1
        self._place[: len(place)] = np.where(place < 0, -1, np.searchsorted(kept, place))
        self._head[4] = len(kept)

    def _hyper(self) -> tuple[Any, Any, Any, Any, Any, Any]:
        beta2 = 2.0 * self.lam - 2.0 * self.beta1
        numbers = float(self.lam), beta2, float(self.alpha), float(self.gamma), float(self.tau_g)
        return *numbers, self.task == "regression"

    def _state(self) -> tuple[Any, Any, Any, Any, Any]:
        return self._place, self._w, self._G, self._counts, self._head

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float:
        place, w, G, _, head = self._state()
        psi = np.empty(len(w))
        _reconstruct(slots, values, place, G, head, psi)
        regression = self.task == "regression"
        return float(_mixture(slots, values, place, w, head, psi, np.zeros(len(w), np.bool_), regression))

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        fixed = optional_weights(self.class_weight, self.classes_)
        y = float(target) if self.task == "regression" else 2.0 * target - 1.0
        scratch = np.empty((3, len(self._w)))
        marks = np.zeros(len(self._w), np.bool_)
        _register(slots, *self._state())
        _reconstruct(slots, values, self._place, self._G, self._head, scratch[0])
        _update(slots, values, y, fixed, *self._state(), scratch, marks, *self._hyper())

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        fixed = optional_weights(self.class_weight, self.classes_)
        y = signed_targets(targets, self.task)
        return _run(indptr, slots, values, y, fixed, *self._state(), self._seen, *self._hyper())

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        used = int(self._head[4])
        p = self._head[1]
        here = self._place[slots]
        if self.task == "regression":
            return values * (self._G[here, :used] @ self._w[:used]) / max(1, len(slots))
        absent = np.setdiff1d(np.arange(used), here)
        through_graph = self._G[np.ix_(here, absent)] @ self._w[absent] / max(1, len(slots))
        return values * (p * self._w[here] + (1.0 - p) * through_graph)


@njit
def _register(slots, place, w, G, counts, head):
    """Places for the features that have none; whether there were any."""
    before = int(head[4])
    used = before
    for s in slots:
        if place[s] < 0:
            place[s] = used
            w[used] = 0.0
            for i in range(used):
                G[used, i] = _G_START
                G[i, used] = _G_START
            G[used, used] = 1.0 + _G_START
            used += 1
    head[4] = used
    return used > before


@njit
def _reconstruct(slots, values, place, G, head, psi):
    """psi = G_O^T x_O / |O|, over the observed features that have a place."""
    used = int(head[4])
    observed = 0
    psi[:used] = 0.0
    for k in range(len(slots)):
        i = place[slots[k]]
        if i >= 0:
            observed += 1
            x = values[k]
            row = G[i]
            for j in range(used):
                psi[j] += x * row[j]
    if observed > 0:
        for j in range(used):
            psi[j] /= observed


@njit
def _parts(slots, values, place, w, head, psi, marks):
    """w_O.x_O and w_M.psi_M."""
    used = int(head[4])
    own = 0.0
    for k in range(len(slots)):
        i = place[slots[k]]
        if i >= 0:
            own += w[i] * values[k]
            marks[i] = True
    graph = 0.0
    for j in range(used):
        if not marks[j]:
            graph += w[j] * psi[j]
    for s in slots:
        if place[s] >= 0:
            marks[place[s]] = False
    return own, graph


@njit
def _mixture(slots, values, place, w, head, psi, marks, regression):
    """The score of a row."""
    if regression:
        total = 0.0
        for j in range(int(head[4])):
            total += w[j] * psi[j]
        return total
    own, graph = _parts(slots, values, place, w, head, psi, marks)
    return head[1] * own + (1.0 - head[1]) * graph


@njit
def _loss(y, score):
    """log2(1 + exp(-y score))"""
    z = y * score
    return (max(0.0, -z) + math.log1p(math.exp(-abs(z)))) / math.log(2.0)


@njit
def _update(
    slots, values, y, fixed, place, w, G, counts, head, scratch, marks, lam, beta2, alpha, gamma, tau_g, regression
):
    """One step; scratch[0] holds psi of this row."""
    weight = row_weight(fixed, counts, 0, y, regression)
    observed = len(slots)
    if observed == 0:
        return
    used = int(head[4])
    psi, smooth, x_all = scratch[0], scratch[1], scratch[2]

    head[0] += 1.0
    if not regression:
        own, graph = _parts(slots, values, place, w, head, psi, marks)
        head[2] += _loss(y, own)
        head[3] += _loss(y, graph)
    if head[0] > 1.0:
        z = 8.0 * math.sqrt(1.0 / math.log(head[0])) * (head[3] - head[2])
        head[1] = 1.0 / (1.0 + math.exp(-z)) if z >= 0.0 else math.exp(z) / (1.0 + math.exp(z))

    r = y
    for j in range(used):
        r -= w[j] * psi[j]
    r *= weight

    # (L + L^T) w = (row sums + column sums of G) o w - G w - G^T w; the two halves are sum_j G_ij (w_i - w_j), by row
    # with four running sums, which a compiler can add in parallel without changing the result, and by column.
    smooth[:used] = 0.0
    for i in range(used):
        wi = w[i]
        row = G[i]
        a, b, c, d = 0.0, 0.0, 0.0, 0.0
        whole = used - used % 4
        for j in range(0, whole, 4):
            a += row[j] * (wi - w[j])
            b += row[j + 1] * (wi - w[j + 1])
            c += row[j + 2] * (wi - w[j + 2])
            d += row[j + 3] * (wi - w[j + 3])
        for j in range(whole, used):
            a += row[j] * (wi - w[j])
        smooth[i] += (a + b) + (c + d)
        for j in range(used):
            smooth[j] += row[j] * (w[j] - wi)

    tau = math.sqrt(1.0 / head[0])
    # Neither step may carry the row's score past its target: with few observed features sqrt(1/t) is too long at first.
    of_psi, of_w, of_x = 0.0, 0.0, 0.0
    for j in range(used):
        of_psi += psi[j] * psi[j]
        of_w += w[j] * w[j]
    for k in range(observed):
        of_x += values[k] * values[k]
    of_psi *= max(1.0, weight)
    reach = of_w * of_x / (observed * observed) * max(1.0, weight)
    step = tau if tau * of_psi <= 0.5 else 0.5 / of_psi
    step_g = tau_g * tau if tau_g * tau * reach <= 0.5 else 0.5 / reach
    # grad_G is 0 outside the observed rows; inside, the reconstruction term acts on the observed columns only
    for j in range(used):
        x_all[j] = psi[j]
    for k in range(observed):
        x_all[place[slots[k]]] = values[k]
    for k in range(observed):
        row = G[place[slots[k]]]
        up = step_g * 2.0 / observed * values[k]
        for j in range(used):
            row[j] = min(max(row[j] + up * (r * w[j] + alpha * (x_all[j] - psi[j])), 0.0), _G_MAX)

    for j in range(used):
        shrink = lam * np.sign(w[j])
        w[j] -= step * (-2.0 * r * psi[j]) + tau * (shrink + beta2 * smooth[j])
    if gamma < 1.0:
        cut = kth_largest(np.abs(w[:used]), math.ceil(gamma * used))
        for j in range(used):
            if abs(w[j]) < cut:
                w[j] = 0.0


@njit
def _run(indptr, slots, values, y, fixed, place, w, G, counts, head, seen, lam, beta2, alpha, gamma, tau_g, regression):
    rows = len(indptr) - 1
    scores = np.empty(rows)
    scratch = np.empty((3, len(w)))
    marks = np.zeros(len(w), np.bool_)
    for t in range(rows):
        s = slots[indptr[t] : indptr[t + 1]]
        x = values[indptr[t] : indptr[t + 1]]
        _reconstruct(s, x, place, G, head, scratch[0])
        scores[t] = _mixture(s, x, place, w, head, scratch[0], marks, regression)
        if y[t] == y[t]:
            if _register(s, place, w, G, counts, head):
                _reconstruct(s, x, place, G, head, scratch[0])
            _update(
                s,
                x,
                y[t],
                fixed,
                place,
                w,
                G,
                counts,
                head,
                scratch,
                marks,
                lam,
                beta2,
                alpha,
                gamma,
                tau_g,
                regression,
            )
            for k in range(len(s)):
                seen[s[k]] += 1
    return scores
