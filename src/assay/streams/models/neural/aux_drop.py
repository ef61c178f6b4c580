"""Aux-Drop: dropout whose first victims are the neurons of absent features."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from assay.streams.jit import njit
from assay.streams.models.base import grown
from assay.streams.models.neural.base import TwoEngineModel, one_of, require, to_numpy
from assay.streams.models.neural.dense import (
    DOUBLE,
    LOGITS,
    SQUARED,
    affine,
    back,
    clipped,
    he_uniform,
    head_loss,
    observe,
    relu,
    scale_of,
    softmax,
    square_norm,
    step,
    subtract,
)
from assay.streams.models.neural.hedge import hedge, hedge_tensor

_PER_FEATURE = 5


class AuxDropODL(TwoEngineModel):
    """Aux-Drop on online deep learning: an auxiliary layer that feeds a stack of layers with a head each.

    The auxiliary layer has J neurons, one of them tied to each feature. In an update the neurons of absent features are
    dropped, and each of the others with the probability q = (pJ - absent) / (J - d), cut to [0, 1], so that pJ neurons
    drop in the mean while at most pJ features are absent; what is left is scaled by 1 / (1 - p). The output is the sum
    of the heads weighted by their Hedge weights; one step of gradient descent a row on the same sum of their losses.

    A score drops nothing but the neurons of absent features; the neurons not tied to a feature are scaled by their
    mean, (1 - q) / (1 - p). So a score changes no state and does not depend on chance.

    Parameters
    ----------
    layers : int
        Layers, the auxiliary one included; ``layers - 1`` heads.
    hidden : int
        Units of each layer after the auxiliary one.
    neurons : int, optional
        J. Default: five a feature, grown with the features. A fixed J lends a free neuron to each new feature, and gets
        one more for each feature beyond J.
    p : float
        Share of the auxiliary layer that drops in an update, in [0, 1).
    rate : float
        Step size of gradient descent.
    clip : float
        Largest norm of the gradient of a row; a longer one is shortened, so that an outlier cannot wreck the network.
    discount, smoothing : float
        b and s of Hedge.
    soft : {"logits", "double"}
        Cross entropy on logits; or on softmax outputs, which applies softmax twice, as haphazard 1.2.8 does: for
        reproduction only (its scores are mean probabilities, here minus 1 / classes).
    task : {"classification", "regression"}
    classes : sequence of labels, optional
        Default: grown on first sight.
    seed : int
        Seed of the initial weights and of the dropping.
    device : str
        "cpu", or a torch device.
    engine : {"auto", "compiled", "torch"}
        Compiled kernels (on the processor) or torch; "auto" takes the kernels on "cpu".

    References
    ----------
    Agarwal, Gupta, Horsch, Prasad: Aux-Drop: Handling Haphazard Inputs in Online Learning Using Auxiliary Dropouts,
    TMLR 2023. Here the auxiliary layer is the first one, since no feature is known to be always there.

    Examples
    --------
    >>> from assay.streams import load, run
    >>> result = run(AuxDropODL(), load("wdbc").masked("probabilistic", p=0.5, seed=0))
    >>> round(result.metrics["auroc"], 2)
    0.95
    """

    scores_what_it_learns = False

    def __init__(
        self,
        layers: int = 6,
        hidden: int = 50,
        neurons: int | None = None,
        p: float = 0.5,
        rate: float = 0.03,
        clip: float = 10.0,
        discount: float = 0.99,
        smoothing: float = 0.2,
        soft: str = "logits",
        task: str = "classification",
        classes: Sequence[Hashable] | None = None,
        seed: int = 0,
        device: str = "cpu",
        engine: str = "auto",
    ) -> None:
        self.layers = layers
        self.hidden = hidden
        self.neurons = neurons
        self.p = p
        self.rate = rate
        self.clip = clip
        self.discount = discount
        self.smoothing = smoothing
        self.soft = soft
        self.task = task
        self.classes = classes
        self.seed = seed
        self.device = device
        self.engine = engine
        self.reset()

    @property
    def _hedged(self) -> bool:
        return True

    # -- state -----------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        require("layers", self.layers, 2, 100, whole=True)
        require("hidden", self.hidden, 1, 100_000, whole=True)
        if self.neurons is not None:
            require("neurons", self.neurons, 1, 10_000_000, whole=True)
        require("p", self.p, 0.0, 0.999)
        require("rate", self.rate, 0.0, 1e3, open_low=True)
        require("clip", self.clip, 0.0, 1e9, open_low=True)
        one_of("soft", self.soft, ("logits", "double"))
        self._check_hedge()
        fixed = self.neurons or 0
        L, H = self.layers - 1, self.hidden
        rng = self._init_rng(0)
        alpha = np.full(L, 1.0 / L) if self._hedged else np.eye(L)[-1]
        shared = {
            "w_in": np.zeros((0, fixed)),  # features x neurons; new ones are appended
            "b_in": np.zeros(fixed),
            "w_aux": he_uniform(rng, max(1, fixed), fixed, H),
            "w": he_uniform(rng, H, L - 1, H, H),
            "b": np.zeros((L, H)),
            "head": np.zeros((L, H, self._outputs)),
            "head_bias": np.zeros((L, self._outputs)),
            "alpha": alpha,
        }
        self._net = {name: self._live(array) for name, array in shared.items()}
        self._place = np.full(8, -1, dtype=np.int64)  # slot -> row of w_in; given when first learned
        self._learned = np.zeros(1, dtype=np.int64)  # d, features learned

    def _check_hedge(self) -> None:
        require("discount", self.discount, 1e-6, 1.0)
        require("smoothing", self.smoothing, 0.0, 1.0)

    def _grow(self, n: int) -> None:
        self._place = grown(self._place, n, -1)
        rows = len(self._net["w_in"])
        if rows >= n:
            return
        more = max(n, 2 * rows, 8)
        arrays = {name: to_numpy(self._net[name]) for name in ("w_in", "b_in", "w_aux")}
        J = self._neurons(more)
        w_in, b_in, w_aux = np.zeros((more, J)), np.zeros(J), np.zeros((J, self.hidden))
        old = len(arrays["b_in"])
        w_in[:rows, :old], b_in[:old], w_aux[:old] = arrays["w_in"], arrays["b_in"], arrays["w_aux"]
        for place in range(rows, more):
            rng = self._init_rng(place + 1)
            before, after = self._neurons(place), self._neurons(place + 1)
            fan_in = max(place + 1, 8)
            w_in[place, :after] = he_uniform(rng, fan_in, after)
            w_in[:place, before:after] = he_uniform(rng, fan_in, place, after - before)
            w_aux[before:after] = he_uniform(rng, self._neurons(fan_in), after - before, self.hidden)
        self._net.update(w_in=self._live(w_in), b_in=self._live(b_in), w_aux=self._live(w_aux))

    def _neurons(self, d: int) -> int:
        """J of d features."""
        return _PER_FEATURE * d if self.neurons is None else max(self.neurons, d)

    # -- rows ------------------------------------------------------------------------------------------------------

    def _hyper(self) -> tuple[Any, ...]:
        kind = SQUARED if self.task == "regression" else DOUBLE if self.soft == "double" else LOGITS
        stride, fixed = (_PER_FEATURE, 0) if self.neurons is None else (1, self.neurons)
        discount, smoothing = (float(self.discount), float(self.smoothing)) if self._hedged else (1.0, 0.0)
        return kind, stride, fixed, float(self.p), float(self.rate), float(self.clip), discount, smoothing, self._hedged

    def _score_compiled(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        out = np.zeros(self._outputs)
        _score(self._place[slots], values, self._learned, _Net(**self._net), out, *self._hyper()[:4])
        return out

    def _learn_compiled(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        _admit(slots, self._place, self._learned)
        aim = float(self._aim(target))
        _learn(self._place[slots], values, aim, self._learned, _Net(**self._net), self._rng, *self._hyper())

    def _run_compiled(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], y: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        scores = np.zeros((len(y), self._outputs))
        _run(
            indptr, slots, values, y, scores, self._place, self._seen, self._learned, self._target,
            _Net(**self._net), self._rng, *self._hyper(),
        )  # fmt: skip
        return scores

    # -- the torch engine ------------------------------------------------------------------------------------------

    def _keep(self, places: NDArray[np.int64], chance: bool) -> torch.Tensor:
        d = int(self._learned[0])
        keep = np.zeros(self._neurons(d))
        stride = self._hyper()[1]
        if chance:
            _drop(places, d, keep, self._rng, stride, float(self.p))
        else:
            _mean_keep(places, d, keep, stride, float(self.p))
        return torch.tensor(keep, device=self.device)

    def _forward(self, values: NDArray[np.float64], keep: torch.Tensor, net: dict[str, Any]) -> torch.Tensor:
        """Logits [L, K] of all heads; ``net["w_in"]`` holds the rows of the present features."""
        J = len(keep)
        x = torch.tensor(values, device=self.device)
        h = functional.relu(x @ net["w_in"][:, :J] + net["b_in"][:J]) * keep
        h = functional.relu(h @ net["w_aux"][:J] + net["b"][0])
        logits = [h @ net["head"][0] + net["head_bias"][0]]
        for l in range(1, self.layers - 1):
            h = functional.relu(h @ net["w"][l - 1] + net["b"][l])
            logits.append(h @ net["head"][l] + net["head_bias"][l])
        return torch.stack(logits)

    def _outputs_of(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.softmax(logits, 1) if self.task == "classification" and self.soft == "double" else logits

    def _predict(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> torch.Tensor:
        places = self._place[slots]
        rows = torch.tensor(places, device=self.device)
        net = self._net | {"w_in": self._net["w_in"][rows]}
        outputs = self._outputs_of(self._forward(values, self._keep(places, chance=False), net))
        if self.task == "classification" and self.soft == "double":
            outputs = outputs - 1.0 / self._outputs
        return net["alpha"] @ outputs

    def _update(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> torch.Tensor:
        _admit(slots, self._place, self._learned)
        net, places = self._net, self._place[slots]
        rows = torch.tensor(places, device=self.device)
        leaves = {name: value.detach() for name, value in net.items() if name != "alpha"}
        leaves["w_in"] = net["w_in"][rows]
        for leaf in leaves.values():
            leaf.requires_grad_()
        outputs = self._outputs_of(self._forward(values, self._keep(places, chance=True), leaves))
        losses = self._losses(outputs, self._aim(target))
        gradients = self._gradients((net["alpha"] * losses).sum(), leaves)
        with torch.no_grad():
            before = net["alpha"] @ outputs
            rate = self._clipped_rate(gradients)
            for name, gradient in zip(leaves, gradients, strict=True):
                if name == "w_in":
                    net[name][rows] -= rate * gradient
                else:
                    net[name] -= rate * gradient
            if self._hedged:
                net["alpha"] = hedge_tensor(net["alpha"], losses, self.discount, self.smoothing)
            return before


class AuxDropOGD(AuxDropODL):
    """Aux-Drop on online gradient descent: the network of `AuxDropODL` with one head, on the last layer.

    Parameters
    ----------
    layers, hidden, neurons, p, rate, clip, soft, task, classes, seed, device, engine
        As in `AuxDropODL`.

    References
    ----------
    Agarwal, Gupta, Horsch, Prasad: Aux-Drop: Handling Haphazard Inputs in Online Learning Using Auxiliary Dropouts,
    TMLR 2023.

    Examples
    --------
    >>> from assay.streams import load, run
    >>> result = run(AuxDropOGD(), load("wdbc").masked("probabilistic", p=0.5, seed=0))
    >>> round(result.metrics["auroc"], 1)
    0.9
    """

    def __init__(
        self,
        layers: int = 6,
        hidden: int = 50,
        neurons: int | None = None,
        p: float = 0.5,
        rate: float = 0.01,
        clip: float = 10.0,
        soft: str = "logits",
        task: str = "classification",
        classes: Sequence[Hashable] | None = None,
        seed: int = 0,
        device: str = "cpu",
        engine: str = "auto",
    ) -> None:
        self.layers = layers
        self.hidden = hidden
        self.neurons = neurons
        self.p = p
        self.rate = rate
        self.clip = clip
        self.soft = soft
        self.task = task
        self.classes = classes
        self.seed = seed
        self.device = device
        self.engine = engine
        self.reset()

    @property
    def _hedged(self) -> bool:
        return False

    def _check_hedge(self) -> None:
        pass


class _Net(NamedTuple):
    w_in: NDArray[np.float64]
    b_in: NDArray[np.float64]
    w_aux: NDArray[np.float64]
    w: NDArray[np.float64]
    b: NDArray[np.float64]
    head: NDArray[np.float64]
    head_bias: NDArray[np.float64]
    alpha: NDArray[np.float64]


@njit
def _admit(slots, place, learned):
    """Give features that are learned for the first time the next neuron."""
    for slot in slots:
        if place[slot] < 0:
            place[slot] = learned[0]
            learned[0] += 1


@njit
def _mean_keep(places, d, keep, stride, p):
    """Scale of each auxiliary neuron in the mean; returns q, the chance of a free neuron to drop."""
    J = len(keep)
    q = 0.0
    if d < J:
        q = min(1.0, max(0.0, (p * J - (d - len(places))) / (J - d)))
    for j in range(J):
        tied = j % stride == 0 and j // stride < d
        keep[j] = 0.0 if tied else (1.0 - q) / (1.0 - p)
    for place in places:
        keep[place * stride] = 1.0 / (1.0 - p)
    return q


@njit
def _drop(places, d, keep, rng, stride, p):
    """As `_mean_keep`, with the free neurons dropped or kept by chance."""
    q = _mean_keep(places, d, keep, stride, p)
    for j in range(len(keep)):
        if not (j % stride == 0 and j // stride < d):
            keep[j] = 1.0 / (1.0 - p) if rng.random() >= q else 0.0


@njit
def _forward(places, values, keep, net, a, h, logits):
    J = len(keep)
    for j in range(J):
        a[j] = net.b_in[j]
    for k in range(len(places)):
        row = net.w_in[places[k]]
        for j in range(J):
            a[j] += values[k] * row[j]
    for j in range(J):
        a[j] = max(a[j], 0.0) * keep[j]
    affine(a, net.w_aux, net.b[0], h[0])
    relu(h[0])
    for l in range(1, len(h)):
        affine(h[l - 1], net.w[l - 1], net.b[l], h[l])
        relu(h[l])
    for l in range(len(h)):
        affine(h[l], net.head[l], net.head_bias[l], logits[l])


@njit
def _score(places, values, learned, net, out, kind, stride, fixed, p):
    d = learned[0]
    J = max(fixed, stride * d)
    keep = np.empty(J)
    _mean_keep(places, d, keep, stride, p)
    L, H = net.b.shape
    h = np.empty((L, H))
    logits = np.empty((L, len(out)))
    _forward(places, values, keep, net, np.empty(J), h, logits)
    K = len(out)
    out[:] = 0.0
    for l in range(L):
        if kind == DOUBLE:
            softmax(logits[l], logits[l])
            logits[l] -= 1.0 / K  # so that a class that is not yet known can stand at 0
        for i in range(K):
            out[i] += net.alpha[l] * logits[l, i]


@njit
def _learn(places, values, target, learned, net, rng, kind, stride, fixed, p, rate, clip, discount, smoothing, hedged):
    d = learned[0]
    J = max(fixed, stride * d)
    L, H = net.b.shape
    K = net.head.shape[2]
    keep, a, da = np.empty(J), np.empty(J), np.zeros(J)
    h, dh = np.empty((L, H)), np.zeros((L, H))
    logits, gradient, losses = np.empty((L, K)), np.empty((L, K)), np.empty(L)
    _drop(places, d, keep, rng, stride, p)
    _forward(places, values, keep, net, a, h, logits)
    norm2 = 0.0
    for l in range(L - 1, -1, -1):
        losses[l] = head_loss(logits[l], target, kind, gradient[l])
        for i in range(K):
            gradient[l, i] *= net.alpha[l]
        if l < L - 1:
            back(h[l], net.w[l], dh[l + 1], dh[l])
        back(h[l], net.head[l], gradient[l], dh[l])
        norm2 += square_norm(h[l], gradient[l]) + square_norm(h[l - 1] if l > 0 else a, dh[l])
    back(a, net.w_aux, dh[0], da)
    for j in range(J):
        da[j] *= keep[j]
    norm2 += square_norm(values, da)
    rate = clipped(rate, norm2, clip)
    for l in range(L):
        step(h[l], net.head[l], gradient[l], rate)
        subtract(net.head_bias[l], rate, gradient[l])
        subtract(net.b[l], rate, dh[l])
        if l > 0:
            step(h[l - 1], net.w[l - 1], dh[l], rate)
    step(a, net.w_aux, dh[0], rate)
    subtract(net.b_in[:J], rate, da)
    for k in range(len(places)):
        subtract(net.w_in[places[k], :J], rate * values[k], da)
    if hedged:
        hedge(net.alpha, losses, discount, smoothing)


@njit
def _run(
    indptr, slots, values, y, scores, place, seen, learned, target, net, rng,
    kind, stride, fixed, p, rate, clip, discount, smoothing, hedged,
):  # fmt: skip
    for t in range(len(y)):
        begin, end = indptr[t], indptr[t + 1]
        s, x = slots[begin:end], values[begin:end]
        old = seen[s] > 0
        _score(place[s[old]], x[old], learned, net, scores[t], kind, stride, fixed, p)
        if kind == SQUARED:
            mean, deviation = scale_of(target)
            scores[t, 0] = mean + deviation * scores[t, 0]
        if y[t] == y[t]:
            _admit(s, place, learned)
            for slot in s:
                seen[slot] += 1
            aim = observe(target, y[t]) if kind == SQUARED else y[t]
            _learn(
                place[s], x, aim, learned, net, rng, kind, stride, fixed, p, rate, clip, discount, smoothing, hedged
            )  # fmt: skip
