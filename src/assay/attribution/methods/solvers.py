"""Conjugate gradients for many right-hand sides, eigenvectors, and the damping of a kernel ridge regression."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

FLOOR = 1e-12


def gcv_damping(kernel: Tensor, response: Tensor, candidates: int = 25) -> float:
    """Damping of a kernel ridge regression by generalised cross-validation, ``m |(I - S) y|^2 / tr(I - S)^2``.

    Examples
    --------
    >>> x = torch.linspace(-1, 1, 40, dtype=torch.float64)
    >>> noise = torch.sin(1e4 * x)
    >>> gcv_damping(torch.outer(x, x) / 40, 3 * x) < gcv_damping(torch.outer(x, x) / 40, noise)
    True
    """
    values, vectors = torch.linalg.eigh(kernel)
    values = values.clamp(min=0)
    turned = vectors.T @ response
    top = float(values[-1])
    if top <= 0:
        return FLOOR
    best, chosen = math.inf, top
    for lam in np.geomspace(1e-6 * top, top, candidates):
        left = lam / (values + lam)  # eigenvalues of I - S
        score = float(((left * turned) ** 2).sum() / left.mean() ** 2)
        if score < best:
            best, chosen = score, float(lam)
    return chosen


def eigenvectors(matrix: Tensor) -> Tensor:
    """Eigenvectors of a symmetric matrix, in 64 bits where LAPACK does not converge in 32.

    It sometimes does not for second moments with many zero rows (inputs that are always off).

    >>> eigenvectors(torch.diag(torch.tensor([2.0, 1.0]))).abs().tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    try:
        return torch.linalg.eigh(matrix)[1]
    except torch.linalg.LinAlgError:
        return torch.linalg.eigh(matrix.double())[1].to(matrix.dtype)


def conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor, steps: int, tolerance: float) -> Tensor:
    """``M^-1 b`` for each row of b at once; rows that meet negative curvature stop where they are."""
    x = torch.zeros_like(b)
    r = b.clone()
    p = r.clone()
    old = (r**2).sum(1)
    limit = tolerance**2 * old
    for _ in range(steps):
        active = old > limit
        if not bool(active.any()):
            break
        q = torch.zeros_like(p)
        q[active] = product(p[active])
        curve = (p * q).sum(1)
        active &= curve > 0
        alpha = torch.where(active, old / torch.where(active, curve, 1), 0)
        x = x + alpha.unsqueeze(1) * p
        r = r - alpha.unsqueeze(1) * q
        new = (r**2).sum(1)
        beta = torch.where(active, new / old.clamp(min=torch.finfo(old.dtype).tiny), 0)
        p = torch.where(active.unsqueeze(1), r + beta.unsqueeze(1) * p, p)
        old = torch.where(active, new, torch.zeros_like(new))
    return x
