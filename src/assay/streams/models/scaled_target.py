"""Regression for models without an intercept or a scale of their own: learn standardised targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import StreamError
from assay.streams.jit import njit
from assay.streams.models.base import StreamModel


class ScaledTarget(StreamModel):
    """A regression model that learns ``(y - mean) / sd`` of the targets so far, and predicts on the scale of y.

    Linear models start at 0 and move in small steps, so a target around 150 is out of their reach for long, and the
    width of their insensitive zone means nothing without a unit. Mean and standard deviation are updated with a target
    before it is learned (Welford, divisor c - 1), and are known before the next row is predicted. `run` and
    `make_model` wrap the linear models in it for regression.

    Parameters
    ----------
    model : StreamModel
        With ``task="regression"``; copied, itself never trained.

    Raises
    ------
    StreamError
        If the model does no regression.

    Examples
    --------
    >>> from assay.streams import load, run
    >>> from assay.streams.models.passive_aggressive import MaskedPA
    >>> stream = load("diabetes").masked("probabilistic", p=0.5, seed=0)
    >>> result = run(ScaledTarget(MaskedPA(task="regression")), stream)
    >>> result.metrics["rmse"] < run("majority", stream).metrics["rmse"]
    True
    """

    regression = True

    def __init__(self, model: StreamModel, task: str = "regression") -> None:
        self.model = model
        self.task = task
        self.reset()

    @property
    def max_features(self) -> int | None:
        """Bound on the features that the model holds, if it has one."""
        return getattr(self.model, "max_features", None)

    @property
    def on_limit(self) -> str:
        """What the model does at the bound."""
        return getattr(self.model, "on_limit", "evict")

    def _reset(self) -> None:
        if not isinstance(self.model, StreamModel) or self.model.task != "regression" or self.task != "regression":
            raise StreamError(f"ScaledTarget is for models of task='regression', not for {self.model!r}")
        self.deterministic = self.model.deterministic  # type: ignore[misc]
        self._inner = self.model.clone()
        self._scale = np.zeros(3)  # count, mean, sum of squared deviations

    def _grow(self, n: int) -> None:
        self._inner._reserve(n)

    def _evict(self, slots: NDArray[np.int64]) -> None:
        self._inner._evict(slots)
        kept = np.delete(self._inner._seen, slots)
        self._inner._seen[:] = 0
        self._inner._seen[: len(kept)] = kept

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float:
        raw = float(self._inner._score(slots, values))
        return float(self._scale[1] + _spread(self._scale) * raw)

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        standardised, _, _ = _standardise(np.array([float(target)]), self._scale)
        self._inner._learn(slots, values, float(standardised[0]))
        self._inner._seen[slots] += 1

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        standardised, mean, spread = _standardise(np.asarray(targets, dtype=np.float64), self._scale)
        raw = self._inner._run(indptr, slots, values, standardised)
        learned = ~np.isnan(standardised)
        self._seen += np.bincount(slots[np.repeat(learned, np.diff(indptr))], minlength=len(self._seen))
        return mean + spread * raw

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._inner._explain(slots, values) * _spread(self._scale)

    def memory_bytes(self) -> int:
        """Bytes of learned state, the model's included."""
        inner, self._inner = self._inner, None  # type: ignore[assignment]
        try:
            return super().memory_bytes() + inner.memory_bytes()
        finally:
            self._inner = inner

    def state_dict(self) -> dict[str, Any]:
        """All that was learned, as a plain tree; the model's state is inside."""
        inner, self._inner = self._inner, None  # type: ignore[assignment]
        try:
            state = super().state_dict()
        finally:
            self._inner = inner
        state["state"]["_inner"] = inner.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Continue from a `state_dict` of the same wrapper around the same model."""
        super().load_state_dict(state)
        kept: Any = self._inner
        self._inner = self.model.clone().load_state_dict(kept)
        return self


@njit
def _spread(scale):
    return np.sqrt(scale[2] / (scale[0] - 1.0)) if scale[0] > 1.0 else 0.0


@njit
def _standardise(targets, scale):
    """Targets in units of their spread so far, and mean and spread as they were before each row."""
    n = len(targets)
    out = np.empty(n)
    mean = np.empty(n)
    spread = np.empty(n)
    for t in range(n):
        mean[t] = scale[1]
        spread[t] = _spread(scale)
        y = targets[t]
        if y != y:
            out[t] = np.nan
            continue
        scale[0] += 1.0
        delta = y - scale[1]
        scale[1] += delta / scale[0]
        scale[2] += delta * (y - scale[1])
        now = _spread(scale)
        out[t] = (y - scale[1]) / now if now > 0.0 else 0.0
    return out, mean, spread
