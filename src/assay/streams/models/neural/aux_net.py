"""Aux-Net: a small network for every feature that may be absent, joined to a base stack; every layer predicts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from assay.streams.errors import StreamError
from assay.streams.jit import njit
from assay.streams.models.base import grown
from assay.streams.models.neural.base import TwoEngineModel, require
from assay.streams.models.neural.dense import (
    LOGITS,
    SQUARED,
    add_product,
    affine,
    back,
    clipped,
    he_uniform,
    head_loss,
    observe,
    relu,
    scale_of,
    square_norm,
    step,
    subtract,
)
from assay.streams.models.neural.hedge import hedge, hedge_tensor


class AuxNet(TwoEngineModel):
    """Auxiliary network: a base stack on features that are always filled in, and a layer for each of the others.

    The base features (the last value seen stands for an absent one) go through ``base_layers`` layers and a middle
    layer; each other feature that is present goes through its own layer; their outputs, weighted by the Hedge weights
    of their layers, are joined by the first of ``end_layers`` layers. Every layer has a head. The output is the sum of
    the heads of the layers in use, weighted by their Hedge weights; one step of gradient descent a row on the same sum
    of their losses. Layers of absent features are neither used nor changed.

    Differences from haphazard 1.2.8, which stays at chance:

    1. The base features are the first ones learned, or those named by the user; there they are picked by a look ahead.
    2. Losses are taken on logits; there on softmax outputs that are first multiplied by the layer's weight.
    3. A plain gradient step; there AdamW on gradients that are never cleared, so that each row adds to all before it.
    4. A new layer gets the mean Hedge weight, and the others make room; there all layers are known beforehand.

    Parameters
    ----------
    base : int or sequence of feature ids
        The base features: their names, or how many of the first features learned.
    base_layers, end_layers : int
        Layers of the base stack (the middle layer comes on top) and of the end stack.
    hidden : int
        Units of each layer.
    rate : float
        Step size of gradient descent.
    clip : float
        Largest norm of the gradient of a row; a longer one is shortened, so that an outlier cannot wreck the network.
    discount, smoothing : float
        b and s of Hedge.
    task : {"classification", "regression"}
    classes : sequence of labels, optional
        Default: grown on first sight.
    seed : int
        Seed of the initial weights.
    device : str
        "cpu", or a torch device.
    engine : {"auto", "compiled", "torch"}
        Compiled kernels (on the processor) or torch; "auto" takes the kernels on "cpu".

    References
    ----------
    Agarwal, Sekh, Agarwal, Prasad: Auxiliary Network: Scalable and Agile Online Learning for Dynamic System with
    Inconsistently Available Inputs, arXiv 2008.11828 (2020).

    Examples
    --------
    >>> from assay.streams import load, run
    >>> result = run(AuxNet(), load("wdbc").masked("probabilistic", p=0.5, seed=0))
    >>> round(result.metrics["auroc"], 2)
    0.97
    """

    def __init__(
        self,
        base: int | Sequence[Hashable] = 2,
        base_layers: int = 5,
        end_layers: int = 5,
        hidden: int = 50,
        rate: float = 0.1,
        clip: float = 1.0,
        discount: float = 0.99,
        smoothing: float = 0.2,
        task: str = "classification",
        classes: Sequence[Hashable] | None = None,
        seed: int = 0,
        device: str = "cpu",
        engine: str = "auto",
    ) -> None:
        self.base = base
        self.base_layers = base_layers
        self.end_layers = end_layers
        self.hidden = hidden
        self.rate = rate
        self.clip = clip
        self.discount = discount
        self.smoothing = smoothing
        self.task = task
        self.classes = classes
        self.seed = seed
        self.device = device
        self.engine = engine
        self.reset()

    # -- state -----------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        require("base_layers", self.base_layers, 1, 100, whole=True)
        require("end_layers", self.end_layers, 1, 100, whole=True)
        require("hidden", self.hidden, 1, 100_000, whole=True)
        require("rate", self.rate, 0.0, 1e3, open_low=True)
        require("clip", self.clip, 0.0, 1e9, open_low=True)
        require("discount", self.discount, 1e-6, 1.0)
        require("smoothing", self.smoothing, 0.0, 1.0)
        N, E, H, K, B = self.base_layers, self.end_layers, self.hidden, self._outputs, self._base_size()
        rng = self._init_rng(0)
        net = {
            "stem_in": he_uniform(rng, max(1, B), B, H),
            "stem": he_uniform(rng, H, N, H, H),  # the last is the middle layer
            "stem_b": np.zeros((N + 1, H)),
            "aux": np.zeros((0, H)),
            "aux_b": np.zeros((0, H)),
            "join_middle": he_uniform(rng, H, H, H),
            "join": np.zeros((0, H, H)),
            "end": he_uniform(rng, H, E - 1, H, H),
            "end_b": np.zeros((E, H)),
            # heads and Hedge weights of the base stack, the middle, the end stack, then of the features
            "head": np.zeros((N + 1 + E, H, K)),
            "head_bias": np.zeros((N + 1 + E, K)),
            "alpha": np.full(N + 1 + E, 1.0 / (N + 1 + E)),
        }
        self._net = {name: self._live(array) for name, array in net.items()}
        self._last = np.zeros(B)  # last value of each base feature
        self._place = np.full(8, -1, dtype=np.int64)  # slot -> row of aux, -2 - i for base feature i, -1 while unknown
        self._learned = np.zeros(2, dtype=np.int64)  # features with a layer of their own, base features found

    def _base_size(self) -> int:
        if isinstance(self.base, (str, bytes)):
            raise StreamError(f"base must be a number or a sequence of feature ids, not the text {self.base!r}")
        if isinstance(self.base, Sequence):
            if len(set(self.base)) != len(self.base):
                raise StreamError(f"base must name each feature once, not {self.base!r}")
            return len(self.base)
        require("base", self.base, 0, 1_000_000, whole=True)
        return int(self.base)

    @property
    def _fixed(self) -> int:
        return self.base_layers + 1 + self.end_layers

    def _grow(self, n: int) -> None:
        self._place = grown(self._place, n, -1)
        if isinstance(self.base, Sequence):
            for i, name in enumerate(self.base):
                slot = self._index.slot_of.get(name)
                if slot is not None:
                    self._place[slot] = -2 - i
        rows = len(self._net["aux"])
        if n <= rows:
            return
        more, F, H = max(n, 2 * rows, 8), self._fixed, self.hidden
        self._enlarge(
            {"aux": more, "aux_b": more, "join": more, "head": F + more, "head_bias": F + more, "alpha": F + more}
        )
        births = [self._init_rng(place + 1) for place in range(rows, more)]
        self._net["aux"][rows:] = self._live(np.stack([he_uniform(rng, 1, H) for rng in births]))
        self._net["join"][rows:] = self._live(np.stack([he_uniform(rng, H, H, H) for rng in births]))

    # -- rows ------------------------------------------------------------------------------------------------------

    def _hyper(self) -> tuple[Any, ...]:
        kind = SQUARED if self.task == "regression" else LOGITS
        return kind, float(self.rate), float(self.clip), float(self.discount), float(self.smoothing)

    def _score_compiled(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        base, out = self._last.copy(), np.zeros(self._outputs)
        places, x = _split(slots, values, self._place, base)
        _score(base, places, x, _Net(**self._net), out)
        return out

    def _learn_compiled(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        _admit(slots, self._place, self._learned, self._room, self._fixed, self._net["alpha"])
        places, x = _split(slots, values, self._place, self._last)
        _learn(self._last, places, x, float(self._aim(target)), self._learned, _Net(**self._net), *self._hyper())

    def _run_compiled(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], y: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        scores = np.zeros((len(y), self._outputs))
        _run(
            indptr, slots, values, y, scores, self._place, self._seen, self._learned, self._room,
            self._target, self._last, _Net(**self._net), *self._hyper(),
        )  # fmt: skip
        return scores

    @property
    def _room(self) -> int:
        """Base features that are taken from the first ones learned."""
        return 0 if isinstance(self.base, Sequence) else len(self._last)

    # -- the torch engine ------------------------------------------------------------------------------------------

    def _rows(self, places: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the present features, and of the heads of all layers in use."""
        rows = torch.tensor(places, device=self.device)
        return rows, torch.cat([torch.arange(self._fixed, device=self.device), self._fixed + rows])

    def _gathered(self, rows: torch.Tensor, present: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parameters that this row uses."""
        index = {"aux": rows, "aux_b": rows, "join": rows, "head": present, "head_bias": present}
        return {
            name: value[index[name]] if name in index else value.detach()
            for name, value in self._net.items()
            if name != "alpha"
        }

    def _forward(
        self, base: NDArray[np.float64], values: NDArray[np.float64], net: dict[str, Any], present: torch.Tensor
    ) -> torch.Tensor:
        """Logits [layers in use, K]."""
        N, F = self.base_layers, self._fixed
        x = torch.tensor(values, device=self.device)
        stem = [functional.relu(torch.tensor(base, device=self.device) @ net["stem_in"] + net["stem_b"][0])]
        for l in range(N):
            stem.append(functional.relu(stem[-1] @ net["stem"][l] + net["stem_b"][l + 1]))
        aux = functional.relu(x[:, None] * net["aux"] + net["aux_b"])
        alpha = self._net["alpha"][present]
        shares = alpha[F:] / (alpha[F:].sum() + alpha[N])
        joined = torch.einsum("kj,kji->i", shares[:, None] * aux, net["join"])
        joined = joined + (alpha[N] / (alpha[F:].sum() + alpha[N]) * stem[-1]) @ net["join_middle"]
        end = [functional.relu(joined + net["end_b"][0])]
        for l in range(self.end_layers - 1):
            end.append(functional.relu(end[-1] @ net["end"][l] + net["end_b"][l + 1]))
        layers = torch.cat([torch.stack(stem + end), aux])
        return torch.einsum("lj,ljk->lk", layers, net["head"]) + net["head_bias"]

    def _predict(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> torch.Tensor:
        base = self._last.copy()
        places, x = _split(slots, values, self._place, base)
        rows, present = self._rows(places)
        logits = self._forward(base, x, self._gathered(rows, present), present)
        alpha = self._net["alpha"][present]
        return alpha / alpha.sum() @ logits

    def _update(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> torch.Tensor:
        net, found = self._net, int(self._learned[0])
        _admit(slots, self._place, self._learned, self._room, self._fixed, np.empty(0))
        for L in range(self._fixed + found, self._fixed + int(self._learned[0])):
            net["alpha"][:L] *= L / (L + 1.0)
            net["alpha"][L] = 1.0 / (L + 1.0)
        places, x = _split(slots, values, self._place, self._last)
        rows, present = self._rows(places)
        leaves = {name: value.requires_grad_() for name, value in self._gathered(rows, present).items()}
        logits = self._forward(self._last, x, leaves, present)
        losses = self._losses(logits, self._aim(target))
        alpha = net["alpha"][present]
        alpha /= alpha.sum()
        gradients = self._gradients((alpha * losses).sum(), leaves)
        with torch.no_grad():
            rate = self._clipped_rate(gradients)
            for name, gradient in zip(leaves, gradients, strict=True):
                if name in ("head", "head_bias"):
                    net[name][present] -= rate * gradient
                elif name in ("aux", "aux_b", "join"):
                    net[name][rows] -= rate * gradient
                else:
                    net[name] -= rate * gradient
            L = self._fixed + int(self._learned[0])
            charged = torch.zeros(L, dtype=logits.dtype, device=self.device)
            charged[present] = losses
            net["alpha"][:L] = hedge_tensor(net["alpha"][:L], charged, self.discount, self.smoothing)
            return alpha @ logits


class _Net(NamedTuple):
    stem_in: NDArray[np.float64]
    stem: NDArray[np.float64]
    stem_b: NDArray[np.float64]
    aux: NDArray[np.float64]
    aux_b: NDArray[np.float64]
    join_middle: NDArray[np.float64]
    join: NDArray[np.float64]
    end: NDArray[np.float64]
    end_b: NDArray[np.float64]
    head: NDArray[np.float64]
    head_bias: NDArray[np.float64]
    alpha: NDArray[np.float64]


@njit
def _admit(slots, place, learned, room, fixed, alpha):
    """Give features that are learned for the first time a base input (while there is room) or a layer."""
    for slot in slots:
        if place[slot] != -1:
            continue
        if learned[1] < room:
            place[slot] = -2 - learned[1]
            learned[1] += 1
            continue
        place[slot] = learned[0]
        if len(alpha) > 0:  # the torch engine keeps the weights on its device
            # the mean weight for the new layer keeps both the sum and the lower bound of Hedge
            L = fixed + learned[0]
            for l in range(L):
                alpha[l] *= L / (L + 1.0)
            alpha[L] = 1.0 / (L + 1.0)
        learned[0] += 1


@njit
def _split(slots, values, place, base):
    """Write base features into ``base``; return rows and values of the others."""
    places, x = np.empty(len(slots), np.int64), np.empty(len(slots))
    n = 0
    for k in range(len(slots)):
        row = place[slots[k]]
        if row >= 0:
            places[n] = row
            x[n] = values[k]
            n += 1
        elif row < -1:
            base[-2 - row] = values[k]
    return places[:n], x[:n]


@njit
def _shares(places, net):
    """Hedge weights of the layers in use, summing to 1: among all, and among those joined (features, then middle)."""
    N = len(net.stem)
    F = N + 1 + len(net.end_b)
    n = len(places)
    among_all, among_joined = np.empty(F + n), np.empty(n + 1)
    total = 0.0
    for l in range(F):
        among_all[l] = net.alpha[l]
        total += net.alpha[l]
    joined = among_joined[n] = net.alpha[N]
    for k in range(n):
        a = among_all[F + k] = among_joined[k] = net.alpha[F + places[k]]
        total += a
        joined += a
    among_all /= total
    among_joined /= joined
    return among_all, among_joined


@njit
def _forward(base, places, x, net, gamma, stem, aux, joined, end, logits):
    N, E, n = len(net.stem), len(net.end_b), len(places)
    F = N + 1 + E
    affine(base, net.stem_in, net.stem_b[0], stem[0])
    relu(stem[0])
    for l in range(N):
        affine(stem[l], net.stem[l], net.stem_b[l + 1], stem[l + 1])
        relu(stem[l + 1])
    for i in range(stem.shape[1]):
        joined[n, i] = gamma[n] * stem[N, i]
    affine(joined[n], net.join_middle, net.end_b[0], end[0])
    for k in range(n):
        p = places[k]
        for i in range(aux.shape[1]):
            aux[k, i] = max(net.aux_b[p, i] + x[k] * net.aux[p, i], 0.0)
            joined[k, i] = gamma[k] * aux[k, i]
        add_product(joined[k], net.join[p], end[0])
        affine(aux[k], net.head[F + p], net.head_bias[F + p], logits[F + k])
    relu(end[0])
    for l in range(E - 1):
        affine(end[l], net.end[l], net.end_b[l + 1], end[l + 1])
        relu(end[l + 1])
    for l in range(N + 1):
        affine(stem[l], net.head[l], net.head_bias[l], logits[l])
    for l in range(E):
        affine(end[l], net.head[N + 1 + l], net.head_bias[N + 1 + l], logits[N + 1 + l])


@njit
def _score(base, places, x, net, out):
    N, E, H, n = len(net.stem), len(net.end_b), net.aux.shape[1], len(places)
    stem, aux, joined, end = np.empty((N + 1, H)), np.empty((n, H)), np.empty((n + 1, H)), np.empty((E, H))
    logits = np.empty((N + 1 + E + n, len(out)))
    alpha, gamma = _shares(places, net)
    _forward(base, places, x, net, gamma, stem, aux, joined, end, logits)
    out[:] = 0.0
    for l in range(len(logits)):
        for i in range(len(out)):
            out[i] += alpha[l] * logits[l, i]


@njit
def _learn(base, places, x, target, learned, net, kind, rate, clip, discount, smoothing):
    N, E, H, K, n = len(net.stem), len(net.end_b), net.aux.shape[1], net.head.shape[2], len(places)
    F = N + 1 + E
    stem, aux, joined, end = np.empty((N + 1, H)), np.empty((n, H)), np.empty((n + 1, H)), np.empty((E, H))
    logits, gradient = np.empty((F + n, K)), np.empty((F + n, K))
    charged = np.zeros(F + learned[0])  # a layer that was not used has no loss
    alpha, gamma = _shares(places, net)
    _forward(base, places, x, net, gamma, stem, aux, joined, end, logits)
    for l in range(F + n):
        charged[l if l < F else F + places[l - F]] = head_loss(logits[l], target, kind, gradient[l])
        for i in range(K):
            gradient[l, i] *= alpha[l]
    dstem, daux, djoined, dend = np.zeros((N + 1, H)), np.zeros((n, H)), np.zeros((n + 1, H)), np.zeros((E, H))
    norm2 = 0.0
    for l in range(E - 1, -1, -1):
        if l < E - 1:
            back(end[l], net.end[l], dend[l + 1], dend[l])
        back(end[l], net.head[N + 1 + l], gradient[N + 1 + l], dend[l])
        norm2 += square_norm(end[l], gradient[N + 1 + l])
        if l > 0:
            norm2 += square_norm(end[l - 1], dend[l])
    norm2 += square_norm(joined.ravel(), dend[0])
    for k in range(n):
        p = places[k]
        back(joined[k], net.join[p], dend[0], djoined[k])
        subtract(daux[k], -gamma[k], djoined[k])
        back(aux[k], net.head[F + p], gradient[F + k], daux[k])
        norm2 += square_norm(aux[k], gradient[F + k]) + square_norm(x[k : k + 1], daux[k])
    back(joined[n], net.join_middle, dend[0], djoined[n])
    subtract(dstem[N], -gamma[n], djoined[n])
    for l in range(N, -1, -1):
        if l < N:
            back(stem[l], net.stem[l], dstem[l + 1], dstem[l])
        back(stem[l], net.head[l], gradient[l], dstem[l])
        norm2 += square_norm(stem[l], gradient[l]) + square_norm(stem[l - 1] if l > 0 else base, dstem[l])
    rate = clipped(rate, norm2, clip)
    for l in range(N + 1):
        step(stem[l], net.head[l], gradient[l], rate)
        subtract(net.head_bias[l], rate, gradient[l])
        subtract(net.stem_b[l], rate, dstem[l])
        if l > 0:
            step(stem[l - 1], net.stem[l - 1], dstem[l], rate)
    step(base, net.stem_in, dstem[0], rate)
    for k in range(n):
        p = places[k]
        step(aux[k], net.head[F + p], gradient[F + k], rate)
        subtract(net.head_bias[F + p], rate, gradient[F + k])
        subtract(net.aux[p], rate * x[k], daux[k])
        subtract(net.aux_b[p], rate, daux[k])
        step(joined[k], net.join[p], dend[0], rate)
    step(joined[n], net.join_middle, dend[0], rate)
    for l in range(E):
        step(end[l], net.head[N + 1 + l], gradient[N + 1 + l], rate)
        subtract(net.head_bias[N + 1 + l], rate, gradient[N + 1 + l])
        subtract(net.end_b[l], rate, dend[l])
        if l > 0:
            step(end[l - 1], net.end[l - 1], dend[l], rate)
    hedge(net.alpha[: len(charged)], charged, discount, smoothing)


@njit
def _run(
    indptr,
    slots,
    values,
    y,
    scores,
    place,
    seen,
    learned,
    room,
    target,
    last,
    net,
    kind,
    rate,
    clip,
    discount,
    smoothing,
):
    fixed = len(net.stem) + 1 + len(net.end_b)
    for t in range(len(y)):
        begin, end = indptr[t], indptr[t + 1]
        s, v = slots[begin:end], values[begin:end]
        base = last.copy()
        old = seen[s] > 0
        places, x = _split(s[old], v[old], place, base)
        _score(base, places, x, net, scores[t])
        if kind == SQUARED:
            mean, deviation = scale_of(target)
            scores[t, 0] = mean + deviation * scores[t, 0]
        if y[t] == y[t]:
            _admit(s, place, learned, room, fixed, net.alpha)
            for slot in s:
                seen[slot] += 1
            places, x = _split(s, v, place, last)
            aim = observe(target, y[t]) if kind == SQUARED else y[t]
            _learn(last, places, x, aim, learned, net, kind, rate, clip, discount, smoothing)
