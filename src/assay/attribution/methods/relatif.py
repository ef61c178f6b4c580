"""Relative influence: influence over what a training row may change in all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.attribution.errors import AttributionError, UnsupportedModel
from assay.attribution.methods.influence import Influence
from assay.attribution.methods.solvers import FLOOR


class RelatIF(Influence):
    """Relative influence (Barshan et al., 2020): influence divided by what a row may change in all.

    Parameters
    ----------
    norm : {"theta", "loss"}
        "theta" divides by ``|| C^-1 g_i ||``, "loss" by ``sqrt(g_i C^-1 g_i)``.
    """

    def __init__(
        self, norm: str = "loss", damping: float | str = "auto", curvature: str = "fisher", solver: str = "auto",
        target: str | None = None, layers: Sequence[str] | None = None, task: str | None = None,
        memory: int = 1 << 30, scale: str = "raw", dtype: str = "float32", cg_steps: int = 100,
        cg_tolerance: float = 1e-6, arnoldi_steps: int = 100, arnoldi_rank: int = 50, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(
            damping, curvature, solver, target, layers, task, memory, scale, dtype, cg_steps, cg_tolerance,
            arnoldi_steps, arnoldi_rank, seed,
        )  # fmt: skip
        self.norm = norm

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        if self.norm not in ("theta", "loss"):
            raise AttributionError(f"norm is theta or loss, not {self.norm!r}")
        super()._fit(model, X, y)
        if self.norm == "loss":
            if self.model_.target in ("loss", "log_prob", "margin"):
                squares = self._self_parts(256)[0]
            else:
                squares = self._lengths(power=1)
        else:
            squares = self._lengths(power=2)
        self.divisor_ = squares.clamp(min=0).sqrt()

    def _lengths(self, power: int) -> Tensor:
        """``g_i M^-power g_i`` with ``M = C + lam``."""
        if self.solver_ == "arnoldi":
            if self.eigenvalues_ is None:
                raise UnsupportedModel("RelatIF needs eigenvalues of the Arnoldi solver")
            scale = (self.eigenvalues_ + max(self.damping_, FLOOR)) ** power
            return (self.projected_**2 / scale).sum(1)
        if self.solver_ == "dual":
            inverse = torch.cholesky_inverse(self.cholesky_)
            return self._kernel_times(inverse if power == 1 else inverse @ inverse)
        parts = []
        for low in range(0, self.n_train_, 256):
            pushes = self._pushes(slice(low, min(low + 256, self.n_train_))).to(self.type_)
            solved = self._solve(pushes)
            parts.append(((solved if power == 2 else pushes) * solved).sum(1))
        return torch.cat(parts)

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Tensor]]:
        for rows, scores in super()._parts(X, targets):
            yield rows, self._divide(scores, rows)

    def _divide(self, scores: Tensor, rows: slice) -> Tensor:
        divisor = self.divisor_[rows].to(scores.dtype)
        return torch.where(divisor > 0, scores / divisor.clamp(min=torch.finfo(scores.dtype).tiny), 0)

    def attribute_set(self, X_test: Any, targets: Any = None, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """One score a training row for a set of test rows."""
        whole = torch.as_tensor(super().attribute_set(X_test, targets, batch_size))
        return self._divide(whole.to(self.divisor_.device), slice(0, self.n_train_)).cpu().numpy()

    def self_influence(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """``A[i, i]``."""
        whole = torch.as_tensor(super().self_influence(batch_size)).to(self.divisor_.device)
        return self._divide(whole, slice(0, self.n_train_)).cpu().numpy()
