"""The trivial baseline, and the adapter for anybody else's explainer."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from assay.attribution.errors import AttributionError, NotFitted, ShapeMismatch
from assay.attribution.methods.base import Attributor


class Random(Attributor):
    """Normal random scores that depend on the seed and the content of the test row, not on the batch that it is in.

    Examples
    --------
    >>> X = np.eye(3)
    >>> A = Random(seed=1).fit(None, X, np.arange(3)).attribute(X)
    >>> bool((A[1] == Random(seed=1).fit(None, X, np.arange(3)).attribute(X[1:2])[0]).all())
    True
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        return None

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Any]]:
        rows = np.ascontiguousarray(X.cpu().numpy() if isinstance(X, Tensor) else X)
        seeds = [zlib.crc32(row.tobytes()) for row in rows]
        yield (
            slice(0, self.n_train_),
            np.stack([np.random.default_rng([self.seed, s]).standard_normal(self.n_train_) for s in seeds]),
        )

    def self_influence(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """Random too."""
        if not hasattr(self, "n_train_"):
            raise NotFitted("Random: call fit first")
        return np.random.default_rng([self.seed, 1]).standard_normal(self.n_train_).astype(np.float32)


class FromCallable(Attributor):
    """Any explainer as an attributor: captum, dattri, kronfluence, or a function of yours.

    Parameters
    ----------
    fn : callable
        ``fn(X_test, targets) -> (T, N)`` array or tensor.
    sign : {1, -1}
        -1 where large scores of the explainer mean opponents (scores of a rise of the loss, say).
    self_fn : callable, optional
        ``self_fn() -> (N,)``, its self-influence; without it the diagonal is taken block by block.

    Examples
    --------
    >>> X, y = np.eye(3), np.arange(3)
    >>> mine = FromCallable(lambda rows, targets: rows @ X.T).fit(None, X, y)
    >>> mine.attribute(X[:1]).tolist()
    [[1.0, 0.0, 0.0]]
    """

    def __init__(self, fn: Callable[[Any, Any], Any], sign: int = 1, self_fn: Callable[[], Any] | None = None) -> None:
        self.fn, self.sign, self.self_fn = fn, sign, self_fn

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        if self.sign not in (1, -1):
            raise AttributionError(f"sign is 1 or -1, not {self.sign}")
        self.X_, self.y_ = X, y

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Any]]:
        yield slice(0, self.n_train_), self.sign * self._asked(X, targets)

    def _asked(self, X: Any, targets: Any) -> np.ndarray:
        scores = self.fn(X, targets)
        array = scores.detach().cpu().numpy() if isinstance(scores, Tensor) else np.asarray(scores)
        wanted = (len(X), self.n_train_)
        if array.shape != wanted:
            turned = " (it looks transposed)" if array.shape == wanted[::-1] else ""
            raise ShapeMismatch(f"the explainer returned shape {array.shape}, expected (T, N) = {wanted}{turned}")
        return array.astype(np.float32, copy=False)

    def self_influence(self, batch_size: int = 64) -> Float[np.ndarray, " n"]:
        """From ``self_fn``, else the diagonal, ``batch_size`` rows at a time."""
        if not hasattr(self, "X_"):
            raise NotFitted("FromCallable: call fit first")
        if self.self_fn is not None:
            found = self.self_fn()
            array = found.detach().cpu().numpy() if isinstance(found, Tensor) else np.asarray(found)
            if array.shape != (self.n_train_,):
                raise ShapeMismatch(f"self_fn returned shape {array.shape}, expected ({self.n_train_},)")
            return (self.sign * array).astype(np.float32)
        out = np.empty(self.n_train_, dtype=np.float32)
        for low in range(0, self.n_train_, batch_size):
            rows = slice(low, min(low + batch_size, self.n_train_))
            out[rows] = self.sign * self._asked(self.X_[rows], self.y_[rows])[:, rows].diagonal()
        return out
