"""TRAK (Park et al., 2023): projected gradients of the explained number as features of a linear model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.attribution.adapter import TorchModel
from assay.attribution.errors import AttributionError, NotFitted
from assay.attribution.gradients.projection import KINDS, Projection
from assay.attribution.methods.base import GradientAttributor, as_torch_model, states_of


class TRAK(GradientAttributor):
    """``tau = phi_t (Phi' Phi + lam I)^-1 Phi' diag(Q)``, averaged over models.

    Here ``phi = P' grad f`` and ``Q_i = 1 - p_i``; the term before Q and Q itself are averaged apart (paper, eq. 17).

    Parameters
    ----------
    proj_dim : int
        d, the size of the projection.
    reg : float
        lam in units of the mean diagonal of ``Phi' Phi``. A fixed small lam is poor where d is near N.
    projection : {"rademacher", "normal", "sparse"}
    models : sequence, optional
        Further models (or state dicts of the same network) of the ensemble, beside the one given to ``fit``.
    n_models : int
        Without ``models``: size of the ensemble; those beside the given model are trained from seeds 1, 2, ... by
        ``make_model`` and ``fit_spec``.
    seed : int
        Of the projection; model m uses ``seed + m``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> from assay.attribution.fitting import FitSpec, fit_one, as_tensors
    >>> from assay.attribution.models import ModelSpec
    >>> x, t = as_tensors(X.astype("float32"), y)
    >>> model, _ = fit_one(ModelSpec.of("mlp", inputs=4, outputs=3, hidden=(8,)), FitSpec(epochs=10), x, t)
    >>> A = TRAK(proj_dim=32).fit(model, x, t).attribute(x[:5], t[:5])
    >>> A.shape, bool((A[:, :50].mean(1) > A[:, 100:].mean(1)).all())
    ((5, 150), True)
    """

    uses_checkpoints = True

    def __init__(
        self, proj_dim: int = 2048, reg: float = 1.0, projection: str = "rademacher",
        models: Sequence[Any] | None = None,
        seed: int = 0, target: str | None = None, layers: Sequence[str] | None = None, task: str | None = None,
        memory: int = 1 << 30, scale: str = "raw", n_models: int = 1, make_model: Any = None, fit_spec: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(target, layers, task, memory, scale)
        self.proj_dim, self.reg, self.projection, self.models, self.seed = proj_dim, reg, projection, models, seed
        self.n_models, self.make_model, self.fit_spec = n_models, make_model, fit_spec

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        if not self.reg > 0:
            raise AttributionError(f"reg is a number above 0, not {self.reg}")
        if self.projection not in KINDS:
            raise AttributionError(f"projection is one of {', '.join(KINDS)}, not {self.projection!r}")
        first, self.X_, self.y_ = self._open(model, X, y)
        self.model_ = first
        others = self._others()
        self.members_: list[TorchModel] = [first]
        for other in others:
            if isinstance(other, (torch.nn.Module, TorchModel)):
                member = as_torch_model(other, task=first.task, target=self.target, layers=self.layers)
                self.members_.append(member)
            else:
                import copy

                twin = copy.deepcopy(first.module)
                TorchModel(twin).module.load_state_dict(states_of([other])[0])
                self.members_.append(
                    TorchModel(twin, task=first.task, target=first._target, layers=first.layers, l2=first.l2)
                )
        self.projections_, self.solvers_ = [], []
        q = torch.zeros(self.n_train_, dtype=first.dtype, device=self.X_.device)
        for m, member in enumerate(self.members_):
            dim = self.proj_dim
            projection = Projection(
                member.size, dim, self.projection, self.seed + m, dtype=member.dtype, device=self.X_.device
            )
            phi = self._features(member, projection, self.X_, self.y_)
            lam = self.reg * float((phi**2).sum()) / dim  # reg times the mean diagonal of Phi' Phi
            if not lam > 0:
                raise AttributionError("all gradients are zero: the model does not depend on the chosen layers")
            self.solvers_.append(_Regression(phi, lam))
            self.projections_.append(projection)
            q += self._q(member)
        self.q_ = q / len(self.members_)

    def _ensemble(self) -> Iterator[tuple[TorchModel, Projection, _Regression]]:
        yield from zip(self.members_, self.projections_, self.solvers_, strict=True)

    def _others(self) -> list[Any]:
        if self.models is not None:
            return list(self.models)
        if self.n_models <= 1:
            return []
        if self.make_model is None or self.fit_spec is None:
            raise AttributionError("an ensemble needs models=[...], or make_model and fit_spec to train it")
        from assay.attribution.farm import train_many

        return list(train_many(self.make_model, self.fit_spec, self.X_, self.y_, range(1, self.n_models)))

    def _q(self, member: TorchModel) -> Tensor:
        """``-dL/df``: ``1 - p`` for the margin, the residual for a prediction, 1 for the loss itself."""
        if member.target == "margin":
            return torch.sigmoid(-member.explained(self.X_, self.y_))
        if member.target == "prediction":
            return self.y_.reshape(self.n_train_, -1).sum(1) - member.explained(self.X_, self.y_)
        if member.target == "logit":
            saved, member._target = member._target, "margin"
            try:
                return torch.sigmoid(-member.explained(self.X_, self.y_))
            finally:
                member._target = saved
        return torch.ones(self.n_train_, dtype=member.dtype, device=self.X_.device)

    def _features(self, member: TorchModel, projection: Projection, x: Tensor, y: Tensor) -> Tensor:
        step = int(np.clip(self.memory // (4 * 8 * member.size), 1, 512))
        return torch.cat(
            [
                projection(member.gradients(x[i : i + step], y[i : i + step], of=member.target).flat())
                for i in range(0, len(x), step)
            ]
        )

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Tensor]]:
        x, labels = self._questions(X, targets)
        total: Tensor | None = None
        for member, projection, regression in self._ensemble():
            one = regression(self._features(member, projection, x, labels))
            total = one if total is None else total + one
        assert total is not None
        # the linear model is in units of a sum over rows; N makes raw scores those of the mean loss, as elsewhere
        yield slice(0, self.n_train_), total / len(self.members_) * self.q_ * (self.n_train_ * self._factor)

    def attribute_set(self, X_test: Any, targets: Any = None, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """One score a training row for a set of test rows: their features are added up first."""
        self._ready(X_test, targets)
        out = torch.zeros(self.n_train_, dtype=self.model_.dtype, device=self.X_.device)
        for member, projection, regression in self._ensemble():
            total: Tensor | None = None
            for low in range(0, len(X_test), batch_size):
                rows = slice(low, low + batch_size)
                x, labels = self._questions(X_test[rows], None if targets is None else targets[rows])
                one = self._features(member, projection, x, labels).sum(0, keepdim=True)
                total = one if total is None else total + one
            assert total is not None
            out += regression(total)[0]
        scores = out / len(self.members_) * self.q_ * (self.n_train_ * self._factor)
        return scores.float().cpu().numpy()

    def self_influence(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """``tau_ii`` of each training row for its own label."""
        if not hasattr(self, "solvers_"):
            raise NotFitted("TRAK: call fit first")
        out = torch.zeros(self.n_train_, dtype=self.model_.dtype, device=self.X_.device)
        for member, projection, regression in self._ensemble():
            for low in range(0, self.n_train_, batch_size):
                rows = slice(low, min(low + batch_size, self.n_train_))
                phi = self._features(member, projection, self.X_[rows], self.y_[rows])
                out[rows] += regression.own(phi, rows)
        scores = out / len(self.members_) * self.q_ * (self.n_train_ * self._factor)
        return scores.float().cpu().numpy()


class _Regression:
    """``phi -> phi (Phi'Phi + lam)^-1 Phi' = phi Phi' (Phi Phi' + lam)^-1``, by the smaller of the two matrices."""

    def __init__(self, features: Tensor, lam: float) -> None:
        self.features = features
        self.narrow = features.shape[1] <= len(features)
        gram = features.T @ features if self.narrow else features @ features.T
        gram.diagonal().add_(lam)
        self.cholesky = torch.linalg.cholesky(gram)

    def __call__(self, phi: Tensor) -> Tensor:
        """Weights (rows of phi, training rows)."""
        if self.narrow:
            return torch.cholesky_solve(phi.T, self.cholesky).T @ self.features.T
        return torch.cholesky_solve(self.features @ phi.T, self.cholesky).T

    def own(self, phi: Tensor, rows: slice) -> Tensor:
        """The weight of each of some training rows for itself."""
        if self.narrow:
            return (torch.cholesky_solve(phi.T, self.cholesky).T * self.features[rows]).sum(1)
        return self(phi)[:, rows].diagonal()
