"""Does a set hold the true distribution? Intervals at once; hulls by a box test, a projection, and a program only in
between."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from assay.uncertainty.errors import TargetShape
from assay.uncertainty.representations import Hull, Intervals

Targets = Float[np.ndarray, "rows classes"]
EPSILON = 0.0005


def interval_coverage(rep: Intervals, target: Targets, *, tolerance: float = 0.0) -> Bool[np.ndarray, " rows"]:
    """Whether ``l_k <= y_k <= u_k`` for every class of a row.

    Parameters
    ----------
    tolerance : float
        Slack of each bound; probly rounds both sides to three decimals, which is a slack of up to 0.001.
    """
    _fits(rep.lower.shape, target)
    return np.asarray(((rep.lower <= target + tolerance) & (target <= rep.upper + tolerance)).all(-1))


def hull_coverage(rep: Hull, target: Targets, *, epsilon: float = EPSILON) -> Bool[np.ndarray, " rows"]:
    """Whether the L1 distance of the target to the hull is at most ``epsilon``.

    Each answer is certified: inside by a point of the hull that is near enough, outside by a separating direction
    (``|y - p|_1 >= g . y - max_v g . v`` for any g with entries in [-1, 1]). Only rows that neither settles go to a
    linear program.

    Examples
    --------
    >>> hull = Hull([[[0.9, 0.1, 0.0], [0.1, 0.9, 0.0]]] * 2)
    >>> hull_coverage(hull, np.array([[0.5, 0.5, 0.0], [0.4, 0.4, 0.2]])).tolist()
    [True, False]
    """
    inside, _ = _classify(rep, target, epsilon)
    return inside


def hull_distance(rep: Hull, target: Targets) -> Float[np.ndarray, " rows"]:
    """L1 distance of each target to its hull (a linear program a row, except where the target is at a vertex)."""
    vertices = _vertices(rep, target)
    return np.array([_program(v, y) for v, y in zip(vertices, target, strict=True)])


def _vertices(rep: Hull, target: Targets) -> Float[np.ndarray, "rows vertices classes"]:
    k = rep.n_classes
    _fits((*rep.batch_shape, k), target)
    return rep.vertices.reshape(-1, rep.vertices.shape[-2], k)


def _fits(shape: tuple[int, ...], target: Targets) -> None:
    if shape != target.shape:
        raise TargetShape(
            f"targets of shape {target.shape} do not fit sets of shape {shape}; first-order targets are (rows, classes)"
        )


def _classify(rep: Hull, target: Targets, epsilon: float) -> tuple[Bool[np.ndarray, " rows"], int]:
    from scipy.optimize import nnls

    vertices = _vertices(rep, target)
    n, m, k = vertices.shape
    over = np.maximum(target - vertices.max(1), 0).sum(1) + np.maximum(vertices.min(1) - target, 0).sum(1)
    inside = np.zeros(n, dtype=bool)
    # A row of the matrix asks for weights that sum to one; its factor sets how hard.
    matrix = np.empty((k + 1, m))
    right = np.empty(k + 1)
    matrix[k], right[k] = 10.0, 10.0
    programs = 0
    for i in np.flatnonzero(over <= epsilon):
        v, y = vertices[i], target[i]
        matrix[:k], right[:k] = v.T, y
        weights, _ = nnls(matrix, right)
        total = weights.sum()
        gap = y - weights @ v / total if total > 0 else y - v[0]
        distance = np.abs(gap).sum()
        if distance <= epsilon:
            inside[i] = True
            continue
        direction = gap / np.abs(gap).max()
        if direction @ y - (v @ direction).max() > epsilon:
            continue
        programs += 1
        inside[i] = _program(v, y) <= epsilon
    return inside, programs


def _program(vertices: Float[np.ndarray, "vertices classes"], y: Float[np.ndarray, " classes"]) -> float:
    from scipy.optimize import linprog

    m, k = vertices.shape
    cost = np.concatenate([np.zeros(m), np.ones(2 * k)])
    equal = np.vstack(
        [np.hstack([vertices.T, np.eye(k), -np.eye(k)]), np.concatenate([np.ones(m), np.zeros(2 * k)])[None]]
    )
    found = linprog(cost, A_eq=equal, b_eq=np.append(y, 1.0), bounds=[(0, None)] * (m + 2 * k))
    return float(found.fun)
