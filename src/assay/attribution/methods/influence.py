"""Influence functions: ``A = grad f (C + lam I)^-1 (-grad L)`` for three curvatures and five ways to solve.

With rows ``g_i = -grad L(z_i)`` of G and ``h_t = grad f(x_t)`` of H and the empirical Fisher ``C = G'G / N`` the
push-through identity gives the dual form ``A = (H G') (G G' / N + lam I)^-1``, which needs inner products only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.attribution.errors import AttributionError, NotFitted
from assay.attribution.gradients.containers import Flat, Gradients
from assay.attribution.methods.base import GradientAttributor, TrainGradients
from assay.attribution.methods.solvers import FLOOR, conjugate_gradients, gcv_damping

CURVATURES = ("fisher", "gn", "hessian")
SOLVERS = ("auto", "dual", "primal", "cg", "arnoldi", "explicit")


class Influence(GradientAttributor):
    """Influence functions (Koh and Liang, 2017), with ``C + lam I`` for the curvature of the mean loss.

    Parameters
    ----------
    damping : float, "auto" or "gcv"
        lam; "auto" takes the trace of the curvature over ``min(N, P)``, its mean eigenvalue; "gcv" picks it by
        generalised cross-validation on at most 512 rows (Fisher curvature only).
    curvature : {"fisher", "gn", "hessian"}
        Empirical Fisher ``G'G / N``; Gauss-Newton ``J' Hz J / N`` with the Hessian Hz of the loss in the logits; the
        full Hessian.
    solver : {"auto", "dual", "primal", "cg", "arnoldi", "explicit"}
        "dual" solves N x N (Fisher), "primal" and "explicit" P x P, "cg" by products alone, "arnoldi" in a Krylov space
        of ``arnoldi_steps`` dimensions of which the ``arnoldi_rank`` largest eigenvalues are kept (Schioppa et al.,
        2022). "auto": the smaller of dual and primal, CG above 20,000.
    dtype : {"float32", "float64"}
        Of the solve.
    cg_steps, cg_tolerance : int, float
    arnoldi_steps, arnoldi_rank : int
    seed : int
        Of the Arnoldi starting vector and of the rows that GCV looks at.

    Examples
    --------
    >>> from sklearn.linear_model import LinearRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 3)); y = X @ [1.0, -2.0, 0.5] + rng.normal(size=40)
    >>> line = LinearRegression(fit_intercept=False).fit(X, y)
    >>> A = Influence(damping=0.0, curvature="hessian", solver="explicit").fit(line, X, y).attribute(X[:1], y[:1])
    >>> hat = X @ np.linalg.inv(X.T @ X) @ X.T
    >>> bool(abs(A[0, 5] / 40 - hat[0, 5] * (y[5] - line.predict(X[5:6])[0])) < 1e-6)
    True
    """

    def __init__(
        self, damping: float | str = "auto", curvature: str = "fisher", solver: str = "auto", target: str | None = None,
        layers: Sequence[str] | None = None, task: str | None = None, memory: int = 1 << 30, scale: str = "raw",
        dtype: str = "float32", cg_steps: int = 100, cg_tolerance: float = 1e-6, arnoldi_steps: int = 100,
        arnoldi_rank: int = 50, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(target, layers, task, memory, scale)
        self.damping, self.curvature, self.solver, self.dtype = damping, curvature, solver, dtype
        self.cg_steps, self.cg_tolerance = cg_steps, cg_tolerance
        self.arnoldi_steps, self.arnoldi_rank, self.seed = arnoldi_steps, arnoldi_rank, seed

    # -- fitting -----------------------------------------------------------------------------------------------------

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        if self.curvature not in CURVATURES:
            raise AttributionError(f"curvature is one of {', '.join(CURVATURES)}, not {self.curvature!r}")
        if self.solver not in SOLVERS:
            raise AttributionError(f"solver is one of {', '.join(SOLVERS)}, not {self.solver!r}")
        self.model_, self.X_, self.y_ = self._open(model, X, y)
        estimator = getattr(self.model_, "estimator", None)
        if estimator is not None:
            from assay.attribution.linear import penalty

            self.model_.l2 = penalty(estimator, self.n_train_)
        self.type_ = torch.float64 if self.dtype == "float64" or self.model_.dtype == torch.float64 else torch.float32
        self.solver_ = self._choose()
        self.eigenvalues_: Tensor | None = None
        ordered = self.solver_ in ("cg", "arnoldi", "explicit") and self.curvature != "fisher"
        self._ordered = ordered or (self.curvature == "gn")
        if not self._ordered:
            self.train_ = TrainGradients(self.model_, self.X_, self.y_, self.memory)
        self.damping_ = self._damping()
        getattr(self, f"_prepare_{self.solver_}")()

    def _choose(self) -> str:
        n, size = self.n_train_, self.model_.size
        if self.curvature == "fisher":
            if self.solver == "explicit":
                return "primal"
            if self.solver != "auto":
                return self.solver
            return "cg" if min(n, size) > 20_000 else "dual" if n <= size else "primal"
        if self.solver == "dual":
            raise AttributionError(
                "the dual form is that of the Fisher; for gn and hessian use explicit, cg or arnoldi"
            )
        if self.solver == "primal":
            return "explicit"
        if self.solver != "auto":
            return self.solver
        return "explicit" if size <= 3000 else "cg"

    def _damping(self) -> float:
        if isinstance(self.damping, str):
            if self.damping == "gcv" and self.curvature == "fisher":
                return self._gcv()
            if self.damping in ("auto", "gcv"):
                return max(self._mean_eigenvalue(), FLOOR)
            raise AttributionError(f"damping is a number, 'gcv' or 'auto', not {self.damping!r}")
        if not (math.isfinite(self.damping) and self.damping >= 0):
            raise AttributionError(f"damping is a finite number of at least 0, not {self.damping}")
        return float(self.damping)

    def _mean_eigenvalue(self) -> float:
        """Trace of the curvature over ``min(N, P)``, the largest rank that the Fisher can have."""
        rank = min(self.n_train_, self.model_.size)
        if not self._ordered:
            return float(self.train_.squares().mean()) / rank
        generator = torch.Generator().manual_seed(self.seed)
        probe = torch.randint(0, 2, (8, self.model_.size), generator=generator).to(
            self.model_.device, self.model_.dtype
        )
        probe = 2 * probe - 1  # Hutchinson's estimate of the trace
        return max(float((probe * self._product(probe)).sum(1).mean()) / rank, 0.0)

    def _gcv(self, largest: int = 512) -> float:
        """The damping with the least generalised cross-validation error on at most ``largest`` rows.

        The explained numbers of the training rows are regressed on their own gradients by kernel ridge regression. No
        source names a response for influence, so this one is our choice; it does well where outputs are nearly linear
        in the weights and badly on small two-class tables, which is why "auto" is the default.
        """
        generator = torch.Generator().manual_seed(self.seed)
        chosen = torch.randperm(self.n_train_, generator=generator)[:largest].sort().values.to(self.X_.device)
        x, y = self.X_[chosen], self.y_[chosen]
        step = self.train_.block
        g = Gradients.join(
            [
                self.model_.gradients(x[i : i + step], y[i : i + step], of=self.model_.target)
                for i in range(0, len(x), step)
            ]
        )
        response = self.model_.explained(x, y).double()
        return gcv_damping(g.dot(g).double() / len(x), response - response.mean())

    @property
    def _product(self) -> Callable[[Tensor], Tensor]:
        if not hasattr(self, "_product_fn"):
            self._product_fn = self.model_.vector_products(self.X_, self.y_, self.curvature)
        return self._product_fn

    # dual: K = G G', A = (H G') (K / N + lam)^-1

    def _prepare_dual(self) -> None:
        n = self.n_train_
        kernel = torch.empty(n, n, dtype=self.type_, device=self.X_.device)
        if self.train_.kept is not None:
            kept = self._typed(self.train_.kept)
            kernel = kept.dot(kept)
        else:
            for rows, a in self.train_:
                for columns, b in self.train_:
                    if columns.start >= rows.start:
                        block = self._typed(a).dot(self._typed(b))
                        kernel[rows, columns] = block
                        kernel[columns, rows] = block.T
        kernel.div_(n)
        kernel.diagonal().add_(self.damping_)
        self.cholesky_ = self._cholesky(kernel)

    def _cholesky(self, matrix: Tensor) -> Tensor:
        factor, info = torch.linalg.cholesky_ex(matrix)
        if int(info) == 0:
            return factor
        smallest = float(torch.linalg.eigvalsh(matrix.double())[0]) - self.damping_
        raise AttributionError(
            f"the curvature has an eigenvalue of {smallest:.2e}, and damping {self.damping_:.2e} does "
            f"not make it positive; "
            f"raise damping or use dtype='float64'"
        )

    def _typed(self, g: Gradients) -> Gradients:
        return g if self.model_.dtype == self.type_ else g.to(self.type_)

    # primal and explicit: the P x P matrix

    def _prepare_primal(self) -> None:
        size = self.model_.size
        self._guard(size)
        matrix = torch.zeros(size, size, dtype=self.type_, device=self.X_.device)
        for _, g in self.train_:
            for low in range(0, len(g), 512):
                flat = self._typed(g.part(slice(low, low + 512))).flat()
                matrix.addmm_(flat.T, flat)
        matrix.div_(self.n_train_)
        matrix.diagonal().add_(self.damping_)
        self.cholesky_ = self._cholesky(matrix)

    def _guard(self, size: int) -> None:
        if 3 * size * size * (8 if self.type_ == torch.float64 else 4) > max(self.memory, 1 << 28) * 4:
            raise AttributionError(
                f"the {size} x {size} curvature would take {size * size * 4 / 1e9:.1f} GB; choose "
                f"layers, solver='cg' or "
                f"solver='dual'"
            )

    def _prepare_explicit(self) -> None:
        size = self.model_.size
        self._guard(size)
        eye = torch.eye(size, dtype=self.model_.dtype, device=self.X_.device)
        step = max(1, min(size, 64))
        matrix = torch.cat([self._product(eye[i : i + step]) for i in range(0, size, step)]).to(self.type_)
        matrix = (matrix + matrix.T) / 2
        matrix.diagonal().add_(self.damping_)
        # a full Hessian may be indefinite: LU, with its smallest eigenvalue on record for the message
        self.matrix_ = matrix
        self.lu_ = torch.linalg.lu_factor(matrix)

    def _prepare_cg(self) -> None:
        return None

    def _prepare_arnoldi(self) -> None:
        if not self._ordered:
            product: Callable[[Tensor], Tensor] = self._fisher_product
        else:
            product = self._product
        size = self.model_.size if self._ordered else self._width()
        steps = min(self.arnoldi_steps, size)
        generator = torch.Generator().manual_seed(self.seed)
        q = torch.randn(size, generator=generator).to(self.X_.device, self.model_.dtype)
        basis = torch.empty(steps + 1, size, dtype=self.model_.dtype, device=self.X_.device)
        basis[0] = q / q.norm()
        upper = torch.zeros(steps + 1, steps, dtype=torch.float64)
        done = steps
        for j in range(steps):
            w = product(basis[j : j + 1])[0]
            for _ in range(2):  # once more against the loss of orthogonality
                overlap = basis[: j + 1] @ w
                w = w - overlap @ basis[: j + 1]
                upper[: j + 1, j] += overlap.double().cpu()
            length = float(w.norm())
            upper[j + 1, j] = length
            if length < 1e-10 * max(float(upper.abs().max()), 1e-30):
                done = j + 1
                break
            basis[j + 1] = w / length
        small = upper[:done, :done]
        values, vectors = torch.linalg.eigh((small + small.T) / 2)
        order = values.abs().argsort(descending=True)[: self.arnoldi_rank]
        keep = order[values[order] > 1e-6 * float(values.abs().max())]  # negative and vanishing curvature is dropped
        if not len(keep):
            raise AttributionError(f"Arnoldi found no positive curvature (eigenvalues {values.tolist()[:3]} ...)")
        self.eigenvalues_ = values[keep].to(self.X_.device, self.model_.dtype)
        self.vectors_ = vectors[:, keep].T.to(basis) @ basis[:done]
        parts = []
        for low in range(0, self.n_train_, 1024):
            rows = slice(low, min(low + 1024, self.n_train_))
            parts.append(self._pushes(rows) @ self.vectors_.T)
        self.projected_ = torch.cat(parts)

    def _width(self) -> int:
        return next(iter(self.train_))[1].width

    def _fisher_product(self, V: Tensor) -> Tensor:
        out = torch.zeros_like(V)
        for _, g in self.train_:
            if V.shape[0] <= 4:
                split = V.split([layer.width for layer in g.layers], 1)
                inner = Gradients([Flat(v) for v in split]).dot(g)  # (k, n)
                out += torch.cat([g.scaled(weights).total().flat() for weights in inner])
            else:
                for low in range(0, len(g), 1024):
                    flat = self._typed(g.part(slice(low, low + 1024))).flat()
                    out += (V @ flat.T) @ flat
        return out / self.n_train_

    def _pushes(self, rows: slice) -> Tensor:
        if self._ordered:
            return self.model_.ordered_gradients(self.X_[rows], self.y_[rows], "-loss")
        if self.train_.kept is not None:
            return self.train_.kept.part(rows).flat()
        return self.model_.gradients(self.X_[rows], self.y_[rows]).flat()

    # -- questions ---------------------------------------------------------------------------------------------------

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Tensor]]:
        x, labels = self._questions(X, targets)
        if self.solver_ == "dual":
            asked = self._typed(self.model_.gradients(x, labels, of=self.model_.target))
            yield from self._from_kernel(torch.cat([asked.dot(self._typed(g)) for _, g in self.train_], 1))
            return
        if self._ordered:
            flat = self.model_.ordered_gradients(x, labels, self.model_.target)
        else:
            flat = self.model_.gradients(x, labels, of=self.model_.target).flat()
        yield from self._from_flat(flat)

    def _from_kernel(self, cross: Tensor) -> Iterator[tuple[slice, Tensor]]:
        scores = torch.cholesky_solve(cross.T, self.cholesky_).T
        yield slice(0, self.n_train_), scores * self._factor

    def _from_flat(self, flat: Tensor) -> Iterator[tuple[slice, Tensor]]:
        if self.solver_ == "arnoldi":
            assert self.eigenvalues_ is not None
            weighted = (flat @ self.vectors_.T) / (self.eigenvalues_ + max(self.damping_, FLOOR))
            yield slice(0, self.n_train_), weighted @ self.projected_.T * self._factor
            return
        solved = self._solve(flat.to(self.type_))
        if not self._ordered:
            for rows, g in self.train_:
                split = solved.split([layer.width for layer in g.layers], 1)
                yield rows, Gradients([Flat(v) for v in split]).dot(self._typed(g)) * self._factor
            return
        for low in range(0, self.n_train_, 1024):
            rows = slice(low, min(low + 1024, self.n_train_))
            yield rows, solved @ self._pushes(rows).to(self.type_).T * self._factor

    def _solve(self, flat: Tensor) -> Tensor:
        """``flat (C + lam)^-1``, row by row."""
        if self.solver_ == "primal":
            return torch.cholesky_solve(flat.T, self.cholesky_).T
        if self.solver_ == "explicit":
            return torch.linalg.lu_solve(*self.lu_, flat.T).T
        product = self._product if self._ordered else self._fisher_product
        return conjugate_gradients(
            lambda V: product(V.to(self.model_.dtype)).to(self.type_) + self.damping_ * V,
            flat, self.cg_steps, self.cg_tolerance,
        )  # fmt: skip

    def attribute_set(self, X_test: Any, targets: Any = None, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """One score a training row for a set of test rows: one solve for the sum of their gradients."""
        self._ready(X_test, targets)
        total: Tensor | None = None
        for low in range(0, len(X_test), batch_size):
            rows = slice(low, low + batch_size)
            x, labels = self._questions(X_test[rows], None if targets is None else targets[rows])
            if self._ordered:
                one = self.model_.ordered_gradients(x, labels, self.model_.target).sum(0, keepdim=True)
            else:
                one = self.model_.gradients(x, labels, of=self.model_.target).total().flat()
            total = one if total is None else total + one
        assert total is not None
        out = np.empty(self.n_train_, dtype=np.float32)
        if self.solver_ == "dual":
            first = next(iter(self.train_))[1]
            summed = Gradients([Flat(v) for v in total.to(self.type_).split([x.width for x in first.layers], 1)])
            cross = torch.cat([summed.dot(self._typed(g)) for _, g in self.train_], 1)
            pieces = self._from_kernel(cross)
        else:
            pieces = self._from_flat(total)
        for part, scores in pieces:
            out[part] = scores[0].float().cpu().numpy()
        return out

    def self_influence(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """``grad f(z_i) (C + lam I)^-1 (-grad L(z_i))`` for each training row and its own label."""
        inner, ratio = self._self_parts(batch_size)
        return (inner * ratio * self._factor).float().cpu().numpy()

    def _self_parts(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """``g_i (C + lam)^-1 g_i`` and the ratio of grad f to the push (both 1-d), or A[i, i] and 1."""
        if not hasattr(self, "solver_"):
            raise NotFitted(f"{type(self).__name__}: call fit first")
        parallel = self.model_.target in ("loss", "log_prob", "margin")
        ratio = torch.ones(self.n_train_, dtype=self.type_, device=self.X_.device)
        if self.model_.target == "margin":
            ratio = (1 / torch.sigmoid(-self.model_.explained(self.X_, self.y_))).to(self.type_)
        if parallel and self.solver_ == "dual":
            return self._kernel_times(torch.cholesky_inverse(self.cholesky_)), ratio
        parts = []
        for low in range(0, self.n_train_, batch_size):
            rows = slice(low, min(low + batch_size, self.n_train_))
            pushes = self._pushes(rows)
            if parallel:
                asked = pushes
            elif self._ordered:
                asked = self.model_.ordered_gradients(self.X_[rows], self.y_[rows], self.model_.target)
            else:
                asked = self.model_.gradients(self.X_[rows], self.y_[rows], of=self.model_.target).flat()
            if self.solver_ == "dual":
                cross = torch.cat(
                    [
                        self.model_.gradients(self.X_[rows], self.y_[rows], of=self.model_.target).dot(g)
                        for _, g in self.train_
                    ],
                    1,
                )
                solved = torch.cholesky_solve(cross.to(self.type_).T, self.cholesky_).T
                parts.append(solved[:, rows].diagonal())
            elif self.solver_ == "arnoldi":
                assert self.eigenvalues_ is not None
                a = (asked @ self.vectors_.T) / (self.eigenvalues_ + max(self.damping_, FLOOR))
                parts.append((a * self.projected_[rows]).sum(1))
            else:
                parts.append((self._solve(asked.to(self.type_)) * pushes.to(self.type_)).sum(1))
        return torch.cat(parts).to(self.type_), ratio

    def _kernel_times(self, matrix: Tensor) -> Tensor:
        """Diagonal of ``G G' matrix``, by blocks; small rows keep their digits, as they would not in ``1 - lam
        M^-1``."""
        out = torch.empty(self.n_train_, dtype=self.type_, device=self.X_.device)
        for rows, a in self.train_:
            total = torch.zeros(len(a), dtype=self.type_, device=self.X_.device)
            for columns, b in self.train_:
                for low in range(0, len(a), 1024):
                    part = slice(low, min(low + 1024, len(a)))
                    inside = matrix[rows, columns][part]
                    total[part] += (self._typed(a.part(part)).dot(self._typed(b)) * inside).sum(1)
            out[rows] = total
        return out

    def _explain_failure(self) -> str:
        if not hasattr(self, "solver_"):
            return ""
        if self.eigenvalues_ is not None:
            low, high = float(self.eigenvalues_.min()), float(self.eigenvalues_.max())
            return f"; eigenvalues {low:.2e} to {high:.2e}, damping {self.damping_:.2e}: raise damping"
        if self.solver_ == "explicit":
            values = torch.linalg.eigvalsh(self.matrix_)
            low, high = float(values[0]), float(values[-1])
            return f"; eigenvalues {low:.2e} to {high:.2e} with damping {self.damping_:.2e} added"
        return f"; damping {self.damping_:.2e}: raise it, or look for gradients that are not finite"
