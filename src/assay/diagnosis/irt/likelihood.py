"""Likelihoods of the one-dimensional models on nodes, and scores of students with items fixed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit

from assay.diagnosis.responses import ResponseData

EPS = 1e-12
N_NODES = 41
Array = NDArray[Any]


def nodes(n: int = N_NODES, limit: float = 6.0) -> tuple[Array, Array]:
    """Equally spaced nodes with weights of the standard normal, summing to 1."""
    x = np.linspace(-limit, limit, n)
    w = np.exp(-(x**2) / 2)
    return x, w / w.sum()


class Collapsed:
    """Answers as rows of (right, answered), equal rows once with a count; what expectation steps work on.

    Attributes
    ----------
    right, answered : [patterns, J]
        Dense where at least a fifth of the cells is answered, csr otherwise.
    counts : float64[patterns]
    pattern : int64[S]
        Pattern of each student.
    complete : bool
        Every cell is answered.
    """

    def __init__(self, data: ResponseData, *, collapse: bool = True) -> None:
        shape = (data.n_students, data.n_items)
        dense = len(data) >= 0.2 * shape[0] * shape[1]
        code = sparse.csr_array(
            (np.where(data.correct == 1, 2, 1).astype(np.int8), (data.student, data.item)), shape=shape
        )
        code.sort_indices()
        if collapse:
            if dense:
                table = np.ascontiguousarray(code.toarray())
                rows = table.view(np.dtype((np.void, table.shape[1]))).ravel()
                _, first, self.pattern, counts = np.unique(
                    rows, return_index=True, return_inverse=True, return_counts=True
                )
            else:
                seen: dict[bytes, int] = {}
                starts: list[int] = []
                self.pattern = np.empty(shape[0], dtype=np.int64)
                cells = code.indices.astype(np.int64) * 4 + code.data
                for i in range(shape[0]):
                    key = cells[code.indptr[i] : code.indptr[i + 1]].tobytes()
                    place = seen.setdefault(key, len(seen))
                    if place == len(starts):
                        starts.append(i)
                    self.pattern[i] = place
                first = np.array(starts)
                counts = np.bincount(self.pattern)
            code = code[first]
        else:
            self.pattern, counts = np.arange(shape[0]), np.ones(shape[0], dtype=np.int64)
        self.counts: Array = counts.astype(np.float64)
        self.complete = len(data) == shape[0] * shape[1]
        answered = sparse.csr_array((np.ones(code.nnz), code.indices, code.indptr), shape=code.shape)
        right = sparse.csr_array(((code.data == 2).astype(np.float64), code.indices, code.indptr), shape=code.shape)
        self.answered: Any = answered.toarray() if dense else answered
        self.right: Any = right.toarray() if dense else right
        self._both: Any = None
        if not dense:  # right and wrong answers side by side: one product a step instead of two
            self._both = sparse.csr_array(sparse.hstack([right, answered - right]))
            self._both.eliminate_zeros()
            self._both_t = sparse.csr_array(self._both.T)

    def log_likelihood(self, p: Array) -> Array:
        """``float64[patterns, columns]`` for probabilities ``p[J, columns]``."""
        q = np.log1p(-p)
        if self._both is not None:
            sums: Array = self._both @ np.vstack([np.log(p), q])
            return sums
        out = self.right @ (np.log(p) - q)
        out += q.sum(0) if self.complete else self.answered @ q
        return out

    def expected(self, posterior: Array) -> tuple[Array, Array]:
        """Expected right answers and answers, ``float64[J, columns]`` each, under ``posterior[patterns, columns]``."""
        weighted = posterior * self.counts[:, None]
        if self._both is not None:
            sums = self._both_t @ weighted
            j = len(sums) // 2
            return sums[:j], sums[:j] + sums[j:]
        right = self.right.T @ weighted
        if self.complete:
            return right, np.broadcast_to(weighted.sum(0), right.shape)
        return right, self.answered.T @ weighted


def normalise(log_joint: Array) -> tuple[Array, Array]:
    """Posterior and log-likelihood of each row."""
    top = log_joint.max(1, keepdims=True)
    joint = np.exp(log_joint - top)
    total = joint.sum(1, keepdims=True)
    joint /= total
    return joint, (np.log(total) + top)[:, 0]


def three_parameter(theta: Array, slope: Array, intercept: Array, lower: Array) -> Array:
    """``float64[J, n]``: c + (1 - c) sig(slope theta - intercept)."""
    p = expit(np.multiply.outer(slope, theta) - intercept[:, None])
    return np.clip(lower[:, None] + (1 - lower[:, None]) * p, EPS, 1 - EPS)


def item_terms(
    theta: Array, item: NDArray[Any], slope: Array, intercept: Array, lower: Array
) -> tuple[Array, Array, Array]:
    """P, dP/dtheta and d2P/dtheta2 of each answer."""
    a, c = slope[item], lower[item]
    s = expit(a * theta - intercept[item])
    p = np.clip(c + (1 - c) * s, EPS, 1 - EPS)
    first = (1 - c) * a * s * (1 - s)
    return p, first, first * a * (1 - 2 * s)


def score_students(
    data: ResponseData, slope: Array, intercept: Array, lower: Array, method: str = "eap", *, steps: int = 60
) -> tuple[Array, Array]:
    """Ability and standard error of each student.

    ``eap``: mean and standard deviation of the posterior on 121 nodes. ``map``: its mode; 1/sqrt(information + 1).
    ``wle``: Warm (1989), the root of the score plus J/2I; 1/sqrt(information); students without an answer get 0 and an
    infinite error.
    """
    if method == "eap":
        x, w = nodes(121)
        collapsed = Collapsed(data)
        posterior, _ = normalise(collapsed.log_likelihood(three_parameter(x, slope, intercept, lower)) + np.log(w))
        mean = posterior @ x
        sd = np.sqrt(np.maximum(posterior @ x**2 - mean**2, 0))
        return mean[collapsed.pattern], sd[collapsed.pattern]
    n = data.n_students
    theta = np.zeros(n)
    prior = 1.0 if method == "map" else 0.0
    information: Array = np.zeros(n)
    for _ in range(steps):
        p, first, second = item_terms(theta[data.student], data.item, slope, intercept, lower)
        weight = 1 / (p * (1 - p))
        gradient = np.bincount(data.student, first * weight * (data.correct - p), n) - prior * theta
        information = np.bincount(data.student, first**2 * weight, n)
        if method == "wle":
            gradient += np.bincount(data.student, first * second * weight, n) / np.maximum(2 * information, EPS)
        step = np.clip(gradient / np.maximum(information + prior, 1e-3), -1, 1)
        theta = np.clip(theta + step, -12, 12)
        if np.abs(step).max(initial=0) < 1e-8:
            break
    with np.errstate(divide="ignore"):
        return theta, 1 / np.sqrt(information + prior)
