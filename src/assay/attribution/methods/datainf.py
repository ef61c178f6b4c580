"""DataInf (Kwon et al., 2024): the mean of the inverses of rank-one matrices instead of the inverse of their mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.attribution.errors import AttributionError, NotFitted
from assay.attribution.gradients.containers import Factor, Flat, Gradients
from assay.attribution.methods.base import GradientAttributor, TrainGradients


class DataInf(GradientAttributor):
    """Influence with ``(1/N) sum_j (lam I + g_j g_j')^-1`` in each layer, by the Sherman-Morrison formula.

    Parameters
    ----------
    damping : float, optional
        lam; default ``0.1`` of the mean squared gradient entry of each layer, as in the paper (section 4).

    Examples
    --------
    >>> model = torch.nn.Linear(2, 2)
    >>> X, y = np.eye(2, dtype="float32"), np.array([0, 1])
    >>> A = DataInf().fit(model, X, y).attribute(X, y)
    >>> bool(A[0, 0] > A[0, 1])
    True
    """

    def __init__(
        self, damping: float | None = None, target: str | None = None, layers: Sequence[str] | None = None,
        task: str | None = None, memory: int = 1 << 30, scale: str = "raw",
    ) -> None:  # fmt: skip
        super().__init__(target, layers, task, memory, scale)
        self.damping = damping

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        if self.damping is not None and not self.damping > 0:
            raise AttributionError(f"damping is a number above 0, not {self.damping}")
        self.model_, self.X_, self.y_ = self._open(model, X, y)
        self.train_ = TrainGradients(self.model_, self.X_, self.y_, self.memory)
        totals: list[list[Tensor]] = []
        for _, g in self.train_:
            totals.append([layer.squares() for layer in g.layers])
        self.squares_ = [torch.cat(parts) for parts in zip(*totals, strict=True)]
        widths = [layer.width for layer in next(iter(self.train_))[1].layers]
        self.lambda_ = [
            self.damping if self.damping is not None else max(0.1 * float(s.mean()) / w, 1e-30)
            for s, w in zip(self.squares_, widths, strict=True)
        ]

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Tensor]]:
        x, labels = self._questions(X, targets)
        asked = self.model_.gradients(x, labels, of=self.model_.target)
        yield from self._scored(self._corrections(asked), asked)

    def _corrections(self, asked: Gradients) -> list[Tensor]:
        """``(1/N) sum_j (h . g_j) g_j / (lam + |g_j|^2)`` of each row and layer, flat (rows, numbers)."""
        sums: list[Tensor | None] = [None] * len(asked.layers)
        for rows, g in self.train_:
            for k, (mine, theirs) in enumerate(zip(asked.layers, g.layers, strict=True)):
                weight = mine.dot(theirs) / (self.lambda_[k] + self.squares_[k][rows]) / self.n_train_
                if isinstance(theirs, Factor) and theirs.a.ndim == 2 and len(weight) * 4 < len(theirs.a):
                    part = torch.stack([((theirs.d * w.unsqueeze(1)).T @ theirs.a).flatten() for w in weight])
                else:
                    step = max(1, (1 << 23) // theirs.width)  # about 32 MB of flat rows at a time
                    part = torch.zeros(len(weight), theirs.width, dtype=weight.dtype, device=weight.device)
                    for low in range(0, weight.shape[1], step):
                        part += weight[:, low : low + step] @ theirs.part(slice(low, low + step)).flat()
                before = sums[k]
                sums[k] = part if before is None else before + part
        return [s for s in sums if s is not None]

    def _scored(self, corrections: list[Tensor], asked: Gradients) -> Iterator[tuple[slice, Tensor]]:
        for rows, g in self.train_:
            scores: Tensor | None = None
            for k, (mine, theirs) in enumerate(zip(asked.layers, g.layers, strict=True)):
                one = (mine.dot(theirs) - Flat(corrections[k]).dot(theirs)) / self.lambda_[k]
                scores = one if scores is None else scores + one
            assert scores is not None
            yield rows, scores * self._factor

    def attribute_set(self, X_test: Any, targets: Any = None, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """One score a training row for a set of test rows, whose gradients are added up first."""
        self._ready(X_test, targets)
        total: list[Tensor] | None = None
        for low in range(0, len(X_test), batch_size):
            rows = slice(low, low + batch_size)
            x, labels = self._questions(X_test[rows], None if targets is None else targets[rows])
            one = [v.flat() for v in self.model_.gradients(x, labels, of=self.model_.target).total().layers]
            total = one if total is None else [a + b for a, b in zip(total, one, strict=True)]
        assert total is not None
        asked = Gradients([Flat(v) for v in total])
        out = np.empty(self.n_train_, dtype=np.float32)
        for part, scores in self._scored(self._corrections(asked), asked):
            out[part] = scores[0].float().cpu().numpy()
        return out

    def self_influence(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """``A[i, i]`` for each training row and its own label, ``batch_size`` rows at a time."""
        if not hasattr(self, "train_"):
            raise NotFitted("DataInf: call fit first")
        out = np.empty(self.n_train_, dtype=np.float32)
        for low in range(0, self.n_train_, batch_size):
            rows = slice(low, min(low + batch_size, self.n_train_))
            x, y = self.X_[rows], self.y_[rows]
            asked = self.model_.gradients(x, y, of=self.model_.target)
            pushed = self.model_.gradients(x, y)
            value = torch.zeros(len(x), dtype=self.model_.dtype, device=x.device)
            for k, correction in enumerate(self._corrections(asked)):
                mine, theirs = asked.layers[k], pushed.layers[k]
                value += ((mine.flat() - correction) * theirs.flat()).sum(1) / self.lambda_[k]
            out[rows] = (value * self._factor).float().cpu().numpy()
        return out
