"""Similarity of rows in a layer or in the inputs, representer points, and exact KNN-Shapley values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.attribution.errors import AttributionError, NotFitted, UnsupportedModel
from assay.attribution.methods.base import Attributor, GradientAttributor, as_torch_model
from assay.attribution.outputs import two_columns

SIMILARITIES = ("cosine", "dot", "l2")


class Similarity(Attributor):
    """Cosine, inner product or negative distance of activations.

    Parameters
    ----------
    layer : str, optional
        ``"input"`` for the raw rows; the name of a layer for its output; default: what goes into the last linear layer.
    kind : {"cosine", "dot", "l2"}

    Examples
    --------
    >>> X = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype="float32")
    >>> model = Similarity("input").fit(None, X, np.array([0, 1, 1]))
    >>> model.attribute(X[:1]).round(3).tolist()
    [[1.0, 0.0, 0.7070000171661377]]
    """

    def __init__(self, layer: str | None = None, kind: str = "cosine") -> None:
        self.layer, self.kind = layer, kind

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        if self.kind not in SIMILARITIES:
            raise AttributionError(f"kind is one of {', '.join(SIMILARITIES)}, not {self.kind!r}")
        self.model_ = None if self.layer == "input" else as_torch_model(model)
        self.rows_ = self._represent(X)

    def _represent(self, X: Any) -> Tensor:
        if self.model_ is None:
            x = torch.as_tensor(np.asarray(X))
            x = (x if x.dtype == torch.float64 else x.float()).flatten(1)
        else:
            x = self.model_.tensors(X)[0]
            layer = self.layer or self.model_.last_linear
            x = self.model_.inputs_of(layer, x, outputs=self.layer is not None)
        if self.kind == "cosine":
            x = x / x.norm(dim=1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
        return x

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Tensor]]:
        asked = self._represent(X)
        if self.kind == "l2":
            yield slice(0, self.n_train_), -torch.cdist(asked, self.rows_)
        else:
            yield slice(0, self.n_train_), asked @ self.rows_.T

    def self_influence(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """Similarity of each row with itself."""
        if not hasattr(self, "rows_"):
            raise NotFitted("Similarity: call fit first")
        if self.kind == "l2":
            return np.zeros(self.n_train_, dtype=np.float32)
        return (self.rows_**2).sum(1).float().cpu().numpy()


class RepresenterPoints(GradientAttributor):
    """Representer points (Yeh et al., 2018): the last layer, trained again with an L2 penalty, as a sum over rows.

    At the optimum of ``mean L + l2 ||W||^2`` the weights are ``W = sum_i alpha_i a_i'`` with
    ``alpha_i = -(1 / (2 l2 N)) dL/dlogits_i``, so ``A[t, i] = alpha_i[y_t] (a_i . a_t)`` and the scores of a test row
    add up to its logit. The layer's bias is one more input that is always 1.

    Parameters
    ----------
    l2 : float
    steps : int
        Largest number of L-BFGS iterations.
    """

    def __init__(self, l2: float = 3e-3, steps: int = 500, target: str | None = None, task: str | None = None) -> None:
        super().__init__(target=target, task=task)
        self.l2, self.steps = l2, steps

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        if not self.l2 > 0:
            raise AttributionError(f"l2 is a number above 0, not {self.l2}")
        self.model_, x, labels = self._open(model, X, y)
        self.y_rows_ = labels
        if self.model_.task == "language":
            raise UnsupportedModel("representer points need one output vector a row, not one a token")
        self.layer_ = self.model_.last_linear
        module = dict(self.model_.module.named_modules())[self.layer_]
        self.rows_ = self._represent(x)
        outputs = module.weight.shape[0]
        self.weight_, self.alpha_ = self._train(self.rows_, labels, int(outputs))

    def _represent(self, x: Tensor) -> Tensor:
        a = self.model_.inputs_of(self.layer_, x)
        return torch.cat([a, a.new_ones(len(a), 1)], 1).double()

    def _train(self, a: Tensor, y: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
        from assay.attribution.outputs import loss_rows

        weight = torch.zeros(outputs, a.shape[1], dtype=torch.float64, device=a.device, requires_grad=True)
        task = self.model_.task or "classification"
        optimizer = torch.optim.LBFGS(
            [weight], max_iter=self.steps, history_size=20, tolerance_grad=1e-9, tolerance_change=1e-14,
            line_search_fn="strong_wolfe",
        )  # fmt: skip

        def closure() -> Tensor:
            optimizer.zero_grad()
            labels = y.double() if y.dtype.is_floating_point else y
            loss = loss_rows(a @ weight.T, labels, task).mean() + self.l2 * (weight**2).sum()
            loss.backward()
            return loss

        with torch.enable_grad():
            optimizer.step(closure)
        logits = (a @ weight.detach().T).requires_grad_()
        labels = y.double() if y.dtype.is_floating_point else y
        (gradient,) = torch.autograd.grad(loss_rows(logits, labels, task).sum(), logits)
        return weight.detach(), -gradient / (2 * self.l2 * len(a))

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Tensor]]:
        x, labels = self._questions(X, targets)
        inner = self._represent(x) @ self.rows_.T
        yield slice(0, self.n_train_), inner * self._weights(labels, len(x))

    def _weights(self, labels: Tensor, n: int) -> Tensor:
        if self.model_.task == "regression":
            return self.alpha_.sum(1).expand(n, -1)
        alpha = two_columns(self.alpha_) if self.alpha_.shape[1] == 1 else self.alpha_
        return alpha.T[labels]

    def self_influence(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """``alpha_i[y_i] |a_i|^2``."""
        if not hasattr(self, "alpha_"):
            raise NotFitted("RepresenterPoints: call fit first")
        picked = self._weights(self.y_rows_, self.n_train_).diagonal()
        return (picked * (self.rows_**2).sum(1)).float().cpu().numpy()


class KNNShapley(Attributor):
    """Exact Shapley values of a K-nearest-neighbours classifier (Jia et al., 2019), O(N log N) a test row.

    The worth of a set of rows is the share of the K nearest of them that have the test row's class (of fewer than K
    rows as many as there are count, and K stays the divisor), and 0 for none.

    Parameters
    ----------
    k : int
    layer : str, optional
        ``"input"`` (default) for distances between raw rows; ``"last"`` for what goes into the last linear layer; or a
        name.

    Examples
    --------
    >>> X, y = np.array([[0.0], [1.0], [3.0]]), np.array([0, 0, 1])
    >>> KNNShapley(k=1).fit(None, X, y).attribute(np.array([[0.1]]), np.array([0])).round(3).tolist()
    [[0.5, 0.5, 0.0]]
    """

    def __init__(self, k: int = 5, layer: str = "input") -> None:
        self.k, self.layer = k, layer

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        if self.k < 1:
            raise AttributionError(f"k is at least 1, not {self.k}")
        self.y_ = np.asarray(y)
        if self.y_.dtype.kind == "f":
            raise UnsupportedModel("KNNShapley is for classes, not for numbers as labels")
        self.model_ = None if self.layer == "input" else as_torch_model(model)
        self.rows_ = self._represent(X)

    def _represent(self, X: Any) -> np.ndarray:
        if self.model_ is None:
            return np.asarray(X, dtype=np.float64).reshape(len(X), -1)
        x = self.model_.tensors(X)[0]
        if self.layer == "last":
            return self.model_.inputs_of(self.model_.last_linear, x).double().cpu().numpy()
        return self.model_.inputs_of(self.layer, x, outputs=True).double().cpu().numpy()

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Any]]:
        asked = self._represent(X)
        if targets is None:
            targets = self._nearest_class(asked)
        yield slice(0, self.n_train_), self.values(asked, np.asarray(targets))

    def values(self, rows: np.ndarray, targets: np.ndarray, *, leave_out: np.ndarray | None = None) -> np.ndarray:
        """Shapley values in 64-bit (rows, N); ``leave_out`` names one training row to leave out for each."""
        distance = _squared_distances(rows, self.rows_)
        if leave_out is not None:
            distance[np.arange(len(rows)), leave_out] = np.inf
        order = np.argsort(distance, axis=1, kind="stable")
        n = self.n_train_ - (leave_out is not None)
        hit = (self.y_[order] == targets[:, None]).astype(np.float64)[:, :n]
        k = self.k
        s = np.empty_like(hit)
        s[:, n - 1] = hit[:, n - 1] * min(k, n) / (k * n)
        i = np.arange(1, n)
        step = (hit[:, :-1] - hit[:, 1:]) * np.minimum(k, i) / (k * i)
        s[:, : n - 1] = s[:, n - 1 :] + step[:, ::-1].cumsum(1)[:, ::-1]
        out = np.zeros((len(rows), self.n_train_))
        np.put_along_axis(out, order[:, :n], s, axis=1)
        return out

    def _nearest_class(self, asked: np.ndarray) -> np.ndarray:
        near = np.argsort(_squared_distances(asked, self.rows_), axis=1, kind="stable")[:, : self.k]
        votes = self.y_[near]
        return np.array([np.bincount(v).argmax() for v in votes])

    def self_influence(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """A row's value for itself; it is its own nearest neighbour, so this says little (see `suspicion`)."""
        if not hasattr(self, "rows_"):
            raise NotFitted("KNNShapley: call fit first")
        out = np.empty(self.n_train_, dtype=np.float32)
        for low in range(0, self.n_train_, batch_size):
            rows = np.arange(low, min(low + batch_size, self.n_train_))
            out[rows] = self.values(self.rows_[rows], self.y_[rows])[np.arange(len(rows)), rows]
        return out

    def suspicion(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """Minus the mean value of each row for all other training rows, each of which is left out for itself."""
        if not hasattr(self, "rows_"):
            raise NotFitted("KNNShapley: call fit first")
        out = np.zeros(self.n_train_)
        for low in range(0, self.n_train_, batch_size):
            rows = np.arange(low, min(low + batch_size, self.n_train_))
            out += self.values(self.rows_[rows], self.y_[rows], leave_out=rows).sum(0)
        return (-out / (self.n_train_ - 1)).astype(np.float32)


def _squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # not by the inner products alone: equal rows must be at distance 0 to the last bit for ties to be stable
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1)[None] - 2 * a @ b.T
    near = squares <= 1e-9 * (1 + (a**2).sum(1)[:, None])
    if near.any():
        i, j = np.nonzero(near)
        squares[i, j] = ((a[i] - b[j]) ** 2).sum(1)
    return np.maximum(squares, 0)
