"""What the neural models share: where their parameters live, how they are saved, and which engine runs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from assay.streams.errors import StreamError
from assay.streams.jit import COMPILED
from assay.streams.models.base import Score, StreamModel
from assay.streams.models.neural.dense import observe, scale_of


class NeuralModel(StreamModel):
    """A network that grows with the stream.

    Parameters and optimiser moments are the named arrays of ``_net``: NumPy arrays where compiled kernels run the
    network, tensors on ``device`` where torch does. Checkpoints hold NumPy arrays in both cases, so a state moves
    between devices. Heads start at zero: the score before any update is 0, and a new class changes no other logit.

    In a regression the network learns the target in units of the mean and deviation of the targets so far.

    A subclass writes ``_build``, ``_predict`` and ``_update``.
    """

    native_multiclass = True
    regression = True
    deterministic = False

    widened: ClassVar[tuple[str, ...]] = ("head", "head_bias")
    """Arrays whose last axis is the classes."""
    scores_what_it_learns: ClassVar[bool] = True
    """Whether the outputs inside an update are those of a score, so that one forward pass does for both."""
    precision: ClassVar[torch.dtype] = torch.float64
    """Type of the parameters, which the device must know."""

    seed: int
    device: str
    rate: float

    _net: dict[str, Any]
    _target: NDArray[np.float64]

    # -- for subclasses --------------------------------------------------------------------------------------------

    def _build(self) -> None:
        """Check the parameters and make the learned state."""
        raise NotImplementedError

    def _predict(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> torch.Tensor:
        """Outputs [K] of a row (called without gradients)."""
        raise NotImplementedError

    def _update(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> torch.Tensor:
        """Learn a row; returns the outputs [K] before."""
        raise NotImplementedError

    # -- state -----------------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        require("seed", self.seed, 0, 2**63 - 1, whole=True)
        check_device(self.device, self.precision)
        self._rng = np.random.default_rng(self.seed)
        self._target = np.zeros(3)
        self._net = {}
        self._build()
        self._grow_classes(len(self._labels.classes))

    @property
    def _outputs(self) -> int:
        return 1 if self.task == "regression" else max(1, len(self._labels.classes))

    def state_dict(self) -> dict[str, Any]:
        """All that was learned, optimiser moments included, as a plain tree of NumPy arrays, numbers and names."""
        with self._on_host():
            return super().state_dict()

    def memory_bytes(self) -> int:
        """Bytes of learned state, optimiser moments included."""
        with self._on_host():
            return super().memory_bytes()

    @contextmanager
    def _on_host(self) -> Iterator[None]:
        live = self._net
        self._net = {name: to_numpy(value) for name, value in live.items()}
        try:
            yield
        finally:
            self._net = live

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Continue from a `state_dict` of a model of the same class and parameters (the device may be another).

        Raises
        ------
        CheckpointMismatch
            If the state is of another model.
        """
        super().load_state_dict(state)
        self._net = {name: self._live(value) for name, value in self._net.items()}
        return self

    def _live(self, array: NDArray[Any]) -> Any:
        """An array in the form in which the engine keeps it."""
        return torch.tensor(array, device=self.device)

    def _init_rng(self, birth: int) -> np.random.Generator:
        # Initial weights depend on the seed and on how many features were learned before this one, never on the
        # block in which a feature first turned up: rows one by one and rows in blocks must give the same network.
        return np.random.default_rng([self.seed, birth])

    def _enlarge(self, rows: dict[str, int]) -> None:
        """Lengthen the first axis of these arrays with zeros; what is there stays as it is."""
        for name, n in rows.items():
            old = to_numpy(self._net[name])
            larger = np.zeros((n, *old.shape[1:]), dtype=old.dtype)
            larger[: len(old)] = old
            self._net[name] = self._live(larger)

    def _grow_classes(self, k: int) -> None:
        for name in self.widened:
            more = self._outputs - self._net[name].shape[-1]
            if more > 0:
                old = to_numpy(self._net[name])
                new = np.zeros((*old.shape[:-1], more), dtype=old.dtype)
                self._net[name] = self._live(np.concatenate([old, new], axis=-1))

    # -- rows ------------------------------------------------------------------------------------------------------

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> Score:
        with torch.no_grad():
            outputs = self._predict(slots, values)
        return self._finish(to_numpy(outputs).astype(np.float64))

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        self._update(slots, values, target)

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        regression = self.task == "regression"
        outputs, scales = [], []
        for t, target in enumerate(targets.tolist()):
            s, x = slots[indptr[t] : indptr[t + 1]], values[indptr[t] : indptr[t + 1]]
            old = self._seen[s] > 0
            labelled = target == target if regression else target >= 0
            scales.append(scale_of(self._target))
            one_pass = self.scores_what_it_learns and labelled and old.all()
            if not one_pass:
                with torch.no_grad():
                    outputs.append(self._predict(s[old], x[old]))
            if labelled:
                before = self._update(s, x, target)
                self._seen[s] += 1
                if one_pass:
                    outputs.append(before)
        if not outputs:
            return np.zeros(0) if regression else np.zeros((0, self._outputs))
        # the scores leave the device once, at the end
        scores = to_numpy(torch.stack(outputs)).astype(np.float64)
        self._check_finite(scores)
        mean, deviation = np.array(scales).T
        return mean + deviation * scores[:, 0] if regression else scores

    def _finish(self, outputs: NDArray[np.float64]) -> Any:
        """Outputs of the network as a public score."""
        self._check_finite(outputs)
        if self.task == "regression":
            mean, deviation = scale_of(self._target)
            return float(mean + deviation * outputs[0])
        return outputs

    def _aim(self, target: Any) -> Any:
        """The target as the network learns it."""
        return observe(self._target, float(target)) if self.task == "regression" else int(target)

    def _check_finite(self, outputs: NDArray[np.float64]) -> None:
        if not np.isfinite(outputs).all():
            raise StreamError(
                f"{type(self).__name__} diverged: its outputs are no longer finite; lower rate (now {self.rate:g}) or "
                f"normalise the features"
            )

    def _losses(self, outputs: torch.Tensor, aim: Any) -> torch.Tensor:
        """Loss of each row of outputs [heads, K]: cross entropy, or half the squared error."""
        if self.task == "regression":
            return 0.5 * (outputs[:, 0] - aim) ** 2
        codes = torch.full((len(outputs),), aim, device=self.device)
        return functional.cross_entropy(outputs, codes, reduction="none")


class TwoEngineModel(NeuralModel):
    """A network that has compiled kernels for the processor and a torch form for other devices.

    ``engine`` is "compiled", "torch", or "auto": compiled on ``device="cpu"`` where numba is installed, torch else.
    Both do the same arithmetic in float64.
    """

    engine: str
    clip: float

    def _score_compiled(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        raise NotImplementedError

    def _learn_compiled(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        raise NotImplementedError

    def _run_compiled(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], y: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Scores [n, K]; ``y`` is NaN where the label is missing."""
        raise NotImplementedError

    def _reset(self) -> None:
        one_of("engine", self.engine, ("auto", "compiled", "torch"))
        if self.engine == "compiled" and self.device != "cpu":
            raise StreamError(f"engine='compiled' runs on device='cpu', not on {self.device!r}; use engine='torch'")
        super()._reset()

    @property
    def _compiled(self) -> bool:
        return self.engine == "compiled" or (self.engine == "auto" and self.device == "cpu" and COMPILED)

    def _live(self, array: NDArray[Any]) -> Any:
        return array if self._compiled else super()._live(array)

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> Score:
        if self._compiled:
            return self._finish(self._score_compiled(slots, values))
        return super()._score(slots, values)

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        if self._compiled:
            self._learn_compiled(slots, values, target)
        else:
            self._update(slots, values, target)

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        if not self._compiled:
            return super()._run(indptr, slots, values, targets)
        regression = self.task == "regression"
        y = targets if regression else np.where(targets < 0, np.nan, targets)
        scores = self._run_compiled(indptr, slots, values, y.astype(np.float64))
        self._check_finite(scores)
        return scores[:, 0] if regression else scores

    def _gradients(self, loss: torch.Tensor, leaves: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        # a stack of one layer has an empty array for the others
        return torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)

    def _clipped_rate(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        norm = torch.stack([(gradient * gradient).sum() for gradient in gradients]).sum().sqrt()
        return self.rate * torch.clamp(self.clip / norm, max=1.0)


def to_numpy(value: Any) -> NDArray[Any]:
    """A tensor as an array; an array as it is."""
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value


def require(name: str, value: Any, low: float, high: float, *, whole: bool = False, open_low: bool = False) -> None:
    """Raise `StreamError` unless the argument lies in [low, high] (``open_low``: (low, high])."""
    kind = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    inside = isinstance(value, kind) and not isinstance(value, bool) and low <= value <= high
    if not inside or (open_low and value == low):
        what = "a whole number" if whole else "a number"
        raise StreamError(f"{name} must be {what} in {'(' if open_low else '['}{low:g}, {high:g}], not {value!r}")


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise `StreamError` unless the argument is one of the allowed words."""
    if value not in allowed:
        raise StreamError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def check_device(device: str, precision: torch.dtype) -> None:
    """Raise `StreamError` if torch does not know the device, has none here, or it lacks numbers of this precision."""
    try:
        torch.empty(0, device=device, dtype=precision)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise StreamError(f"device={device!r} is not usable here ({str(error).splitlines()[0]}); try 'cpu'") from error
