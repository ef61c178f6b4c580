"""packetLSTM: one time-aware LSTM cell a feature, all of them around one shared memory."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from assay.streams.jit import njit
from assay.streams.models.base import grown
from assay.streams.models.neural.adamw import adamw, adamw_tensor, sized
from assay.streams.models.neural.base import TwoEngineModel, one_of, require, to_numpy
from assay.streams.models.neural.dense import LOGITS, SQUARED, affine, dot, he_uniform, head_loss, observe, scale_of

# Rows of the vectors of a cell: weights of x and biases of (input gate, both time gates, candidate, output gate), then
# the peepholes P and Q, then the weights of the elapsed time in both time gates and the output gate.
_W, _BIAS, _P, _Q, _U1, _U2, _UO, _VECTORS = 0, 5, 10, 11, 12, 13, 14, 15
_CELL, _SHARED = ("vec", "mat"), ("join", "join_bias", "head", "head_bias")
_FLOOR = -0.01


class PacketLSTM(TwoEngineModel):
    """packetLSTM: an LSTM cell a feature, with a memory of its own (h) and one that all share (c).

    The cells of the features present read their value, their own h, the shared c and the rows that passed since the
    feature was last there (TimeLSTM-3); c becomes the largest entry over these cells, and the prediction is a small
    network on c and the largest entry of their h. Gradients go through the present row only. One step of AdamW a row on
    the cells that were there and on the network; every cell has its own step count.

    Time is counted in learned rows: a row without a label is scored from the state as it is, and changes nothing.

    Differences from the published code:

    1. The loss is taken on logits; there on softmax outputs, so softmax is applied twice.
    2. Cells of absent features rest; there AdamW's decay and momentum go on moving them.
    3. The network on the packet has a tanh layer of ``hidden`` units; there a ReLU layer of twice as many.
    4. A cell starts with no time passed; there with the number of the row in which its feature first came.

    Parameters
    ----------
    hidden : int
        Size of h and c.
    rate, decay : float
        Step size and weight decay of AdamW. The published rates differ by data set (magic04: 6e-4); on streams of a
        few hundred rows a small one learns too late.
    max_features : int, optional
        Most cells to keep.
    on_limit : {"evict", "raise"}
        Beyond ``max_features``: forget the least seen features, or raise `StateLimitExceeded`.
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
    Agarwal, Das, Horsch, Agarwal, Prasad: packetLSTM: Dynamic LSTM Framework for Streaming Data with Varying Feature
    Space, ICLR 2025. Time gates: Zhu et al., What to Do Next: Modeling User Behaviors by Time-LSTM, IJCAI 2017.

    Examples
    --------
    >>> from assay.streams import load, run
    >>> result = run(PacketLSTM(), load("wdbc").masked("probabilistic", p=0.5, seed=0))
    >>> round(result.metrics["auroc"], 2)
    0.89
    """

    widened = ("head", "head_bias", "m_head", "m_head_bias", "v_head", "v_head_bias")

    def __init__(
        self,
        hidden: int = 64,
        rate: float = 0.002,
        decay: float = 0.01,
        max_features: int | None = None,
        on_limit: str = "evict",
        task: str = "classification",
        classes: Sequence[Hashable] | None = None,
        seed: int = 0,
        device: str = "cpu",
        engine: str = "auto",
    ) -> None:
        self.hidden = hidden
        self.rate = rate
        self.decay = decay
        self.max_features = max_features
        self.on_limit = on_limit
        self.task = task
        self.classes = classes
        self.seed = seed
        self.device = device
        self.engine = engine
        self.reset()

    # -- state -----------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        require("hidden", self.hidden, 1, 100_000, whole=True)
        require("rate", self.rate, 0.0, 1e3, open_low=True)
        require("decay", self.decay, 0.0, 1e3)
        if self.max_features is not None:
            require("max_features", self.max_features, 1, 10**9, whole=True)
        one_of("on_limit", self.on_limit, ("evict", "raise"))
        H, K = self.hidden, self._outputs
        shared = {
            "join": he_uniform(self._init_rng(0), 2 * H, 2 * H, H),
            # tanh, not ReLU: at rates near 0.005 every ReLU of this layer can die, and the scores with it
            "join_bias": np.zeros(H),
            "head": np.zeros((H, K)),
            "head_bias": np.zeros(K),
        }
        cells = {"vec": np.zeros((0, _VECTORS, H)), "mat": np.zeros((0, H, 3 * H))}
        moments = {f"{moment}_{name}": np.zeros_like(a) for name, a in (shared | cells).items() for moment in "mv"}
        arrays = shared | cells | moments | {"h": np.zeros((0, H)), "c": np.zeros(H)}
        self._net = {name: self._live(array) for name, array in arrays.items()}
        self._place = np.full(8, -1, dtype=np.int64)  # slot -> cell
        self._times = np.zeros((0, 2), dtype=np.int64)  # row at which a cell was last there, its AdamW steps
        self._counts = np.zeros(3, dtype=np.int64)  # rows learned, live cells, cells ever made

    def _grow(self, n: int) -> None:
        self._place = grown(self._place, n, -1)
        # compiled loops meet the new features of a block one by one, so their cells are made before they are needed
        live, cells = int(self._counts[1]), len(self._times)
        if n <= cells:
            return
        more = max(n, 2 * cells, 8)
        names = [f"{prefix}{name}" for name in _CELL for prefix in ("", "m_", "v_")]
        self._enlarge(dict.fromkeys([*names, "h"], more))
        self._times = grown(self._times, more)
        for cell in range(cells, more):
            self._init_cell(cell, int(self._counts[2]) + cell - live)

    def _init_cell(self, cell: int, birth: int) -> None:
        H = self.hidden
        rng = self._init_rng(1 + birth)
        bound = 1.0 / math.sqrt(H)
        vec = rng.uniform(-bound, bound, (_VECTORS, H))
        vec[_W:_BIAS] /= bound  # a single input
        vec[_U1] = np.minimum(-np.abs(vec[_U1]), _FLOOR)
        self._net["vec"][cell] = self._live(vec)
        self._net["mat"][cell] = self._live(rng.uniform(-bound, bound, (H, 3 * H)))

    def _evict(self, slots: NDArray[np.int64]) -> None:
        live, born = int(self._counts[1]), int(self._counts[2])
        gone = self._place[slots]
        gone = gone[gone >= 0]
        stay = np.delete(np.arange(live), gone)
        names = [f"{prefix}{name}" for name in _CELL for prefix in ("", "m_", "v_")]
        for name in [*names, "h"]:
            old = to_numpy(self._net[name])
            new = np.zeros_like(old)
            new[: len(stay)] = old[stay]
            self._net[name] = self._live(new)
        times = np.zeros_like(self._times)
        times[: len(stay)] = self._times[stay]
        self._times = times
        for cell in range(len(stay), len(times)):
            self._init_cell(cell, born + cell - len(stay))
        moved = np.full(live + 1, -1, dtype=np.int64)
        moved[stay] = np.arange(len(stay))
        kept = moved[np.delete(self._place, slots)]
        self._place = np.concatenate([kept, np.full(len(slots), -1, dtype=np.int64)])
        self._counts[1] = len(stay)

    # -- rows ------------------------------------------------------------------------------------------------------

    def _hyper(self) -> tuple[Any, ...]:
        return SQUARED if self.task == "regression" else LOGITS, float(self.rate), float(self.decay)

    def _compiled_net(self) -> _Net:
        return _Net(*(self._net[name] for name in _Net._fields))

    def _score_compiled(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        out = np.zeros(self._outputs)
        _score(self._place[slots], values, self._times, self._counts, self._compiled_net(), out)
        return out

    def _learn_compiled(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        _admit(slots, self._place, self._times, self._counts)
        out, aim = np.zeros(self._outputs), float(self._aim(target))
        _learn(self._place[slots], values, aim, self._times, self._counts, self._compiled_net(), out, *self._hyper())

    def _run_compiled(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], y: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        scores = np.zeros((len(y), self._outputs))
        _run(
            indptr, slots, values, y, scores, self._place, self._seen, self._times, self._counts, self._target,
            self._compiled_net(), *self._hyper(),
        )  # fmt: skip
        return scores

    # -- the torch engine ------------------------------------------------------------------------------------------

    def _forward(
        self, cells: torch.Tensor, values: NDArray[np.float64], elapsed: NDArray[np.int64], net: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Outputs [K], the new c [H] and the new h [cells, H]; ``net`` holds the parameters of these cells."""
        c, h = self._net["c"], self._net["h"][cells]
        if len(cells):
            vec = net["vec"]
            x = torch.tensor(values, dtype=c.dtype, device=self.device)[:, None, None]
            time = vec[:, _U1:] * torch.tensor(elapsed, dtype=c.dtype, device=self.device)[:, None, None]
            pre = vec[:, _W:_BIAS] * x + vec[:, _BIAS:_P]
            own = torch.bmm(h[:, None], net["mat"])[:, 0].unflatten(1, (3, self.hidden))
            i = torch.sigmoid(pre[:, 0] + own[:, 0] + vec[:, _P] * c)
            short, long = torch.sigmoid(pre[:, 1:3] + torch.sigmoid(time[:, :2])).unbind(1)
            new = torch.tanh(pre[:, 3] + own[:, 1])
            mixed = (1.0 - i * short) * c + i * short * new
            o = torch.sigmoid(pre[:, 4] + own[:, 2] + vec[:, _Q] * mixed + time[:, 2])
            h = o * torch.tanh(mixed)
            c = ((1.0 - i) * c + i * long * new).max(0).values
        top = h.max(0).values if len(cells) else torch.zeros_like(c)
        z = torch.tanh(torch.cat([c, top]) @ net["join"] + net["join_bias"])
        return z @ net["head"] + net["head_bias"], c, h

    def _predict(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> torch.Tensor:
        places = self._place[slots]
        cells = torch.tensor(places, device=self.device)
        net = self._net | {name: self._net[name][cells] for name in _CELL}
        return self._forward(cells, values, self._counts[0] + 1 - self._times[places, 0], net)[0]

    def _update(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> torch.Tensor:
        _admit(slots, self._place, self._times, self._counts)
        net, places = self._net, self._place[slots]
        cells = torch.tensor(places, device=self.device)
        leaves = {name: net[name].detach() for name in _SHARED} | {name: net[name][cells] for name in _CELL}
        for leaf in leaves.values():
            leaf.requires_grad_()
        self._counts[0] += 1
        outputs, c, h = self._forward(cells, values, self._counts[0] - self._times[places, 0], leaves)
        loss = self._losses(outputs[None], self._aim(target))[0]
        gradients = self._gradients(loss, leaves)
        self._times[places, 0] = self._counts[0]
        self._times[places, 1] += 1
        with torch.no_grad():
            steps = torch.tensor(self._times[places, 1], dtype=c.dtype, device=self.device)[:, None, None]
            for name, gradient in zip(leaves, gradients, strict=True):
                m, v = net[f"m_{name}"], net[f"v_{name}"]
                if name in _SHARED:
                    adamw_tensor(net[name], gradient, m, v, float(self._counts[0]), self.rate, self.decay)
                    continue
                value, first, second = net[name][cells], m[cells], v[cells]
                adamw_tensor(value, gradient, first, second, steps, self.rate, self.decay)
                if name == "vec":
                    value[:, _U1].clamp_(max=_FLOOR)
                net[name][cells], m[cells], v[cells] = value, first, second
            net["c"], net["h"][cells] = c.detach(), h.detach()
        return outputs.detach()


class _Net(NamedTuple):
    vec: NDArray[np.float64]
    mat: NDArray[np.float64]
    join: NDArray[np.float64]
    join_bias: NDArray[np.float64]
    head: NDArray[np.float64]
    head_bias: NDArray[np.float64]
    m_vec: NDArray[np.float64]
    m_mat: NDArray[np.float64]
    m_join: NDArray[np.float64]
    m_join_bias: NDArray[np.float64]
    m_head: NDArray[np.float64]
    m_head_bias: NDArray[np.float64]
    v_vec: NDArray[np.float64]
    v_mat: NDArray[np.float64]
    v_join: NDArray[np.float64]
    v_join_bias: NDArray[np.float64]
    v_head: NDArray[np.float64]
    v_head_bias: NDArray[np.float64]
    h: NDArray[np.float64]
    c: NDArray[np.float64]


@njit
def _admit(slots, place, times, counts):
    """Give features that are learned for the first time the next cell; no time has passed for it."""
    for slot in slots:
        if place[slot] < 0:
            place[slot] = counts[1]
            times[counts[1], 0] = counts[0] + 1
            counts[1] += 1
            counts[2] += 1


@njit
def _sigmoid(x):
    return 1.0 / (1.0 + math.exp(-x))


@njit
def _forward(places, x, times, clock, net, gates, c, h, packet, z, out):
    """Fill the gates [cells, 8, H], the new c and h [cells, H], the packet [2 H], z [H] and the outputs [K]."""
    H, n = len(net.c), len(places)
    own = np.empty(3 * H)
    zero = np.zeros(3 * H)
    for k in range(n):
        cell = places[k]
        vec = net.vec[cell]
        elapsed = float(clock - times[cell, 0])
        affine(net.h[cell], net.mat[cell], zero, own)
        g = gates[k]
        for j in range(H):
            memory = net.c[j]
            i = _sigmoid(vec[0, j] * x[k] + vec[5, j] + own[j] + vec[_P, j] * memory)
            s1 = _sigmoid(vec[_U1, j] * elapsed)
            s2 = _sigmoid(vec[_U2, j] * elapsed)
            short = _sigmoid(vec[1, j] * x[k] + vec[6, j] + s1)
            long = _sigmoid(vec[2, j] * x[k] + vec[7, j] + s2)
            new = math.tanh(vec[3, j] * x[k] + vec[8, j] + own[H + j])
            mixed = (1.0 - i * short) * memory + i * short * new
            o = _sigmoid(vec[4, j] * x[k] + vec[9, j] + own[2 * H + j] + vec[_Q, j] * mixed + vec[_UO, j] * elapsed)
            g[0, j], g[1, j], g[2, j], g[3, j] = i, short, long, new
            g[4, j], g[5, j], g[6, j], g[7, j] = mixed, o, s1, s2
            h[k, j] = o * math.tanh(mixed)
            candidate = (1.0 - i) * memory + i * long * new
            if k == 0 or candidate > packet[j]:
                packet[j] = candidate
            if k == 0 or h[k, j] > packet[H + j]:
                packet[H + j] = h[k, j]
    if n == 0:
        packet[:H] = net.c
        packet[H:] = 0.0
    c[:] = packet[:H]
    affine(packet, net.join, net.join_bias, z)
    for j in range(H):
        z[j] = math.tanh(z[j])
    affine(z, net.head, net.head_bias, out)


@njit
def _score(places, x, times, counts, net, out):
    H, n = len(net.c), len(places)
    gates, h = np.empty((n, 8, H)), np.empty((n, H))
    c, packet, z = np.empty(H), np.empty(2 * H), np.empty(H)
    _forward(places, x, times, counts[0] + 1, net, gates, c, h, packet, z, out)


@njit
def _learn(places, x, target, times, counts, net, out, kind, rate, decay):
    """One step; ``out`` gets the outputs before it."""
    H, K, n = len(net.c), len(net.head_bias), len(places)
    gates, h = np.empty((n, 8, H)), np.empty((n, H))
    c, packet, z = np.empty(H), np.empty(2 * H), np.empty(H)
    counts[0] += 1
    _forward(places, x, times, counts[0], net, gates, c, h, packet, z, out)
    gradient, dz, dpacket = np.empty(K), np.zeros(H), np.empty(2 * H)
    head_loss(out, target, kind, gradient)
    for j in range(H):
        dz[j] = dot(net.head[j], gradient) * (1.0 - z[j] * z[j])
    for j in range(2 * H):
        dpacket[j] = dot(net.join[j], dz)
    size, root = sized(counts[0], rate)
    shrink = 1.0 - rate * decay
    for j in range(H):
        adamw(net.head[j], z[j], gradient, net.m_head[j], net.v_head[j], size, root, shrink)
    adamw(net.head_bias, 1.0, gradient, net.m_head_bias, net.v_head_bias, size, root, shrink)
    for j in range(2 * H):
        adamw(net.join[j], packet[j], dz, net.m_join[j], net.v_join[j], size, root, shrink)
    adamw(net.join_bias, 1.0, dz, net.m_join_bias, net.v_join_bias, size, root, shrink)
    dvec, dmat = np.empty((_VECTORS, H)), np.empty(3 * H)
    taken = np.zeros((2, H), np.bool_)  # of equal cells the first gets the gradient
    for k in range(n):
        cell = places[k]
        vec = net.vec[cell]
        elapsed = float(counts[0] - times[cell, 0])
        _back_cell(x[k], elapsed, vec, net.c, gates[k], h[k], packet, dpacket, taken, dvec, dmat)
        times[cell, 0] = counts[0]
        times[cell, 1] += 1
        size, root = sized(times[cell, 1], rate)
        for r in range(_VECTORS):
            adamw(vec[r], 1.0, dvec[r], net.m_vec[cell, r], net.v_vec[cell, r], size, root, shrink)
        for j in range(H):
            vec[_U1, j] = min(vec[_U1, j], _FLOOR)
            adamw(net.mat[cell, j], net.h[cell, j], dmat, net.m_mat[cell, j], net.v_mat[cell, j], size, root, shrink)
    for k in range(n):
        net.h[places[k]] = h[k]
    net.c[:] = c


@njit
def _back_cell(x, elapsed, vec, c, gates, h, packet, dpacket, taken, dvec, dmat):
    """Gradients of a cell's vectors, and of what its matrix puts out, from those of the packet."""
    H = len(c)
    for j in range(H):
        i, short, long, new = gates[0, j], gates[1, j], gates[2, j], gates[3, j]
        mixed, o, s1, s2 = gates[4, j], gates[5, j], gates[6, j], gates[7, j]
        memory = c[j]
        dc = dh = 0.0
        if not taken[0, j] and (1.0 - i) * memory + i * long * new >= packet[j]:
            taken[0, j] = True
            dc = dpacket[j]
        if not taken[1, j] and h[j] >= packet[H + j]:
            taken[1, j] = True
            dh = dpacket[H + j]
        bend = math.tanh(mixed)
        do = dh * bend * o * (1.0 - o)
        dmixed = dh * o * (1.0 - bend * bend) + do * vec[_Q, j]
        dnew = (dmixed * i * short + dc * i * long) * (1.0 - new * new)
        di = (dmixed * short * (new - memory) + dc * (long * new - memory)) * i * (1.0 - i)
        dshort = dmixed * i * (new - memory) * short * (1.0 - short)
        dlong = dc * i * new * long * (1.0 - long)
        dvec[0, j], dvec[1, j], dvec[2, j], dvec[3, j], dvec[4, j] = di * x, dshort * x, dlong * x, dnew * x, do * x
        dvec[5, j], dvec[6, j], dvec[7, j], dvec[8, j], dvec[9, j] = di, dshort, dlong, dnew, do
        dvec[_P, j] = di * memory
        dvec[_Q, j] = do * mixed
        dvec[_U1, j] = dshort * s1 * (1.0 - s1) * elapsed
        dvec[_U2, j] = dlong * s2 * (1.0 - s2) * elapsed
        dvec[_UO, j] = do * elapsed
        dmat[j], dmat[H + j], dmat[2 * H + j] = di, dnew, do


@njit
def _run(indptr, slots, values, y, scores, place, seen, times, counts, target, net, kind, rate, decay):
    spare = np.empty(scores.shape[1])
    for t in range(len(y)):
        begin, end = indptr[t], indptr[t + 1]
        s, x = slots[begin:end], values[begin:end]
        old = seen[s] > 0
        labelled = y[t] == y[t]
        mean, deviation = scale_of(target)
        one_pass = labelled and old.all()
        if not one_pass:
            _score(place[s[old]], x[old], times, counts, net, scores[t])
        if labelled:
            _admit(s, place, times, counts)
            for slot in s:
                seen[slot] += 1
            aim = observe(target, y[t]) if kind == SQUARED else y[t]
            _learn(place[s], x, aim, times, counts, net, scores[t] if one_pass else spare, kind, rate, decay)
        if kind == SQUARED:
            scores[t, 0] = mean + deviation * scores[t, 0]
