"""Inner products of gradients: GradDot, GradCos, TracIn and its last-layer form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.attribution.errors import AttributionError, CheckpointMismatch, NotFitted
from assay.attribution.methods.base import GradientAttributor, TrainGradients, states_of


class GradDot(GradientAttributor):
    """``grad f(x_t) . (-grad L(z_i))``, layer by layer through factors (Charpiat et al., 2019; TracIn at one state).

    Examples
    --------
    >>> model = torch.nn.Linear(2, 2)
    >>> _ = torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
    >>> X, y = np.eye(2, dtype="float32"), np.array([0, 1])
    >>> GradDot().fit(model, X, y).attribute(X, y).round(3).tolist()
    [[2.0, -1.0], [-1.0, 2.0]]
    """

    _bias = True

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        self.model_, self.X_, self.y_ = self._open(model, X, y)
        self.train_ = TrainGradients(self.model_, self.X_, self.y_, self.memory, bias=self._bias)

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Tensor]]:
        x, labels = self._questions(X, targets)
        asked = self.model_.gradients(x, labels, of=self.model_.target, bias=self._bias)
        for rows, pushed in self.train_:
            scores = asked.dot(pushed)
            yield rows, scores.mul_(self._factor) if self._factor != 1 else scores

    def attribute_set(self, X_test: Any, targets: Any = None, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """One score a training row for a set of test rows: their gradients are added up, then met once."""
        self._ready(X_test, targets)
        return self._set_scores(self._summed(X_test, targets, batch_size))

    def _summed(self, X_test: Any, targets: Any, batch_size: int) -> Any:
        total = None
        for low in range(0, len(X_test), batch_size):
            rows = slice(low, low + batch_size)
            x, labels = self._questions(X_test[rows], None if targets is None else targets[rows])
            one = self.model_.gradients(x, labels, of=self.model_.target, bias=self._bias).total()
            if total is None:
                total = one
            else:
                for mine, other in zip(total.layers, one.layers, strict=True):
                    mine.g += other.g  # type: ignore[union-attr]
        return total

    def _set_scores(self, summed: Any) -> np.ndarray:
        out = np.empty(self.n_train_, dtype=np.float32)
        for rows, pushed in self.train_:
            out[rows] = (summed.dot(pushed)[0] * self._factor).cpu().numpy()
        return out

    def self_influence(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """``grad f(z_i) . (-grad L(z_i))``; with ``target="loss"`` the squared norm of the gradient."""
        if not hasattr(self, "train_"):
            raise NotFitted(f"{type(self).__name__}: call fit first")
        return self._self_scores(self.train_)

    def _ratio(self, rows: slice) -> Tensor:
        """How much longer the gradient of the explained number is than the push, row by row.

        The two are parallel for the loss and for one-output targets; for the margin ``grad f = (-grad L) / (1 - p)``.
        """
        x, y = self.X_[rows], self.y_[rows]
        if self.model_.target in ("loss", "log_prob"):
            return torch.ones(len(x), dtype=self.model_.dtype, device=x.device)
        if self.model_.target == "margin":
            return 1 / torch.sigmoid(-self.model_.explained(x, y))
        raise AttributionError("parallel only for the loss and the margin")

    def _self_scores(self, train: TrainGradients) -> np.ndarray:
        if self.model_.target in ("loss", "log_prob", "margin"):
            squares = train.squares()
            ratio = self._ratio(slice(0, self.n_train_))
            return (squares * ratio * self._factor).float().cpu().numpy()
        asked = TrainGradients(self.model_, self.X_, self.y_, self.memory, of=self.model_.target, bias=self._bias)
        out = np.empty(self.n_train_, dtype=np.float32)
        asked.block = train.block = min(asked.block, train.block)
        for (rows, a), (_, b) in zip(asked, train, strict=True):
            out[rows] = (pairwise(a, b) * self._factor).cpu().numpy()
        return out


def pairwise(a: Any, b: Any) -> Tensor:
    """Inner product of row i with row i."""
    plus = a.scaled(torch.ones(len(a), dtype=_dtype(a)))
    total = torch.zeros(len(a), dtype=_dtype(a))
    for x, y in zip(plus.layers, b.layers, strict=True):
        if hasattr(x, "a") and hasattr(y, "a") and x.a.ndim == 2:
            total = total + (x.a * y.a).sum(1) * (x.d * y.d).sum(1)
        else:
            total = total + (x.flat() * y.flat()).sum(1)
    return total


def _dtype(g: Any) -> torch.dtype:
    layer = g.layers[0]
    return layer.d.dtype if hasattr(layer, "d") else layer.g.dtype


class GradCos(GradDot):
    """`GradDot` with both gradients scaled to length 1; a row whose gradient is 0 scores 0.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 2)
    >>> X, y = np.eye(2, dtype="float32"), np.array([0, 1])
    >>> GradCos().fit(model, X, y).attribute(X, y).diagonal().round(3).tolist()
    [1.0, 1.0]
    """

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        super()._fit(model, X, y)
        self.lengths_ = self.train_.squares().sqrt()

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Tensor]]:
        x, labels = self._questions(X, targets)
        asked = self.model_.gradients(x, labels, of=self.model_.target)
        asked = asked.scaled(_inverse(asked.squares().sqrt()))
        for rows, pushed in self.train_:
            yield rows, asked.dot(pushed) * _inverse(self.lengths_[rows]) * self._factor

    def attribute_set(self, X_test: Any, targets: Any = None, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """The sum of the cosines."""
        return super(GradDot, self).attribute_set(X_test, targets, batch_size)

    def self_influence(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """1 for every row whose gradient is not 0 (a cosine with itself)."""
        if not hasattr(self, "train_"):
            raise NotFitted("GradCos: call fit first")
        if self.model_.target in ("loss", "log_prob", "margin"):
            return (self.lengths_ > 0).float().cpu().numpy() * np.float32(self._factor)
        asked = TrainGradients(self.model_, self.X_, self.y_, self.memory, of=self.model_.target)
        out = np.empty(self.n_train_, dtype=np.float32)
        asked.block = self.train_.block = min(asked.block, self.train_.block)
        for (rows, a), (_, b) in zip(asked, self.train_, strict=True):
            lengths = _inverse(a.squares().sqrt()) * _inverse(self.lengths_[rows])
            out[rows] = (pairwise(a, b) * lengths * self._factor).cpu().numpy()
        return out

    def suspicion(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """Minus the mean cosine of a row's push with the pushes of all rows: a row that pulls against the others."""
        if not hasattr(self, "train_"):
            raise NotFitted("GradCos: call fit first")
        total = None
        for rows, g in self.train_:
            one = g.scaled(_inverse(self.lengths_[rows])).total()
            if total is None:
                total = one
            else:
                for mine, other in zip(total.layers, one.layers, strict=True):
                    mine.g += other.g  # type: ignore[union-attr]
        assert total is not None
        out = np.empty(self.n_train_, dtype=np.float32)
        for rows, g in self.train_:
            out[rows] = -(total.dot(g)[0] * _inverse(self.lengths_[rows]) / self.n_train_).cpu().numpy()
        return out


def _inverse(lengths: Tensor) -> Tensor:
    return torch.where(lengths > 0, 1 / lengths.clamp(min=torch.finfo(lengths.dtype).tiny), 0)


class TracIn(GradDot):
    """``sum_c rate_c grad f(x_t; theta_c) . (-grad L(z_i; theta_c))`` over checkpoints (Pruthi et al., 2020).

    Parameters
    ----------
    checkpoints : sequence of state dicts or files, optional
        Default: those given to ``fit``, else the model as it is.
    lrs : sequence of float, optional
        Learning rate at each checkpoint; default 1 each.
    """

    uses_checkpoints = True

    def __init__(
        self, checkpoints: Sequence[Any] | None = None, lrs: Sequence[float] | None = None, target: str | None = None,
        layers: Sequence[str] | None = None, task: str | None = None, memory: int = 1 << 30, scale: str = "raw",
    ) -> None:  # fmt: skip
        super().__init__(target, layers, task, memory, scale)
        self.checkpoints, self.lrs = checkpoints, lrs

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        self.model_, self.X_, self.y_ = self._open(model, X, y)
        given = self.checkpoints if self.checkpoints is not None else self.checkpoints_
        self.states_: list[dict[str, Tensor] | None] = [None] if given is None else list(states_of(given))
        self.rates_ = [1.0] * len(self.states_) if self.lrs is None else [float(r) for r in self.lrs]
        if len(self.rates_) != len(self.states_):
            raise CheckpointMismatch(f"{len(self.states_)} checkpoints and {len(self.rates_)} learning rates")
        share = self.memory // len(self.states_)
        self.trains_ = []
        for state in self.states_:
            with self._at(state):
                self.trains_.append(TrainGradients(self.model_, self.X_, self.y_, share, bias=self._bias))
        block = min(t.block for t in self.trains_)
        self.train_ = self.trains_[0]
        if any(t.kept is None for t in self.trains_):
            for t in self.trains_:
                t.kept, t.block = None, block

    def _at(self, state: dict[str, Tensor] | None) -> AbstractContextManager[Any]:
        return nullcontext() if state is None else self.model_.state(state)

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Tensor]]:
        x, labels = self._questions(X, targets)
        asked = []
        for state in self.states_:
            with self._at(state):
                asked.append(self.model_.gradients(x, labels, of=self.model_.target, bias=self._bias))
        if self.train_.kept is not None:
            total: Tensor | None = None
            for rate, a, train in zip(self.rates_, asked, self.trains_, strict=True):
                assert train.kept is not None
                one, rate = a.dot(train.kept), rate * self._factor
                if total is None:
                    total = one if rate == 1 else one.mul_(rate)
                else:
                    total.add_(one, alpha=rate)
            assert total is not None
            yield slice(0, self.n_train_), total
            return
        for low in range(0, self.n_train_, self.train_.block):
            rows = slice(low, min(low + self.train_.block, self.n_train_))
            scores: Tensor | None = None
            for rate, state, a in zip(self.rates_, self.states_, asked, strict=True):
                with self._at(state):
                    g = self.model_.gradients(self.X_[rows], self.y_[rows], bias=self._bias)
                one = rate * a.dot(g)
                scores = one if scores is None else scores + one
            assert scores is not None
            yield rows, scores * self._factor

    def attribute_set(self, X_test: Any, targets: Any = None, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """One score a training row for a set of test rows."""
        self._ready(X_test, targets)
        if targets is None:
            targets = self.model_.predicted(self.model_.tensors(X_test)[0])
        out = np.zeros(self.n_train_, dtype=np.float32)
        for rate, state, train in zip(self.rates_, self.states_, self.trains_, strict=True):
            with self._at(state):
                self.train_ = train
                out += rate * self._set_scores(self._summed(X_test, targets, batch_size))
        self.train_ = self.trains_[0]
        return out

    def self_influence(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """``A[i, i]``, summed over the checkpoints."""
        if not hasattr(self, "trains_"):
            raise NotFitted(f"{type(self).__name__}: call fit first")
        out = np.zeros(self.n_train_, dtype=np.float32)
        for rate, state, train in zip(self.rates_, self.states_, self.trains_, strict=True):
            with self._at(state):
                out += rate * self._self_scores(train)
        return out


class TracInLast(TracIn):
    """`TracIn` on the last linear layer only.

    Parameters
    ----------
    bias : bool
        Whether the layer's bias counts; captum's TracInCPFast leaves it out.
    """

    def __init__(
        self, checkpoints: Sequence[Any] | None = None, lrs: Sequence[float] | None = None, bias: bool = True,
        target: str | None = None, task: str | None = None, memory: int = 1 << 30, scale: str = "raw",
    ) -> None:  # fmt: skip
        super().__init__(checkpoints, lrs, target, None, task, memory, scale)
        self.bias = bias

    def _open(self, model: Any, X: Any, y: Any) -> Any:
        from assay.attribution.methods.base import as_torch_model

        last = as_torch_model(model).last_linear
        self.layers = [last] if last else ["weight", "bias"]
        self._bias = self.bias
        opened = super()._open(model, X, y)
        self.layers = None
        return opened
