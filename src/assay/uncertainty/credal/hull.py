"""Entropy over convex hulls of distributions ``(n, M, K)``, with a certificate."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from assay.uncertainty.measures.sample import shannon
from assay.uncertainty.simplex import blocks

Vertices = Float[np.ndarray, "rows vertices classes"]
Rows = Float[np.ndarray, " rows"]
GAP = 1e-8
_TINY = 1e-300


def lower_entropy_hull(vertices: Vertices) -> Rows:
    """Smallest entropy: entropy is concave, so it lies at a vertex."""
    value = np.empty(len(vertices))
    for part in blocks(len(vertices), vertices.shape[1] * vertices.shape[2]):
        value[part] = shannon(vertices[part]).min(axis=1)
    return np.maximum(value, 0.0)


def upper_entropy_hull(vertices: Vertices, *, gap: float = GAP, steps: int = 100) -> tuple[Rows, Rows]:
    """Largest entropy over the hull and the duality gap of each row.

    Primal-dual interior-point steps on the weights of the vertices, all rows at once (our choice: about 20 steps of
    ``O(M^2 K + M^3)``, where first-order steps need thousands near a face). The certificate does not depend on the
    solver: by concavity ``max H <= H(p) + max_v grad H(p) . (v - p)``.

    Returns
    -------
    value, gap : float64[rows]
        The true maximum lies in ``[value, value + gap]``.

    Examples
    --------
    >>> value, gap = upper_entropy_hull(np.array([[[1.0, 0, 0], [0, 1.0, 0]]]))
    >>> round(float(value[0]), 6), bool(gap[0] <= 1e-8)
    (0.693147, True)
    """
    n, m, k = vertices.shape
    value, gaps = np.empty(n), np.empty(n)
    for part in blocks(n, m * (k + 2 * m)):
        value[part], gaps[part] = _interior(vertices[part], gap, steps)
    return value, gaps


def duality_gap(vertices: Vertices, p: Float[np.ndarray, "rows classes"]) -> Rows:
    """``max_v -v . log p - H(p)``: how far H(p) may be below the maximum over the hull."""
    logs = np.log(np.maximum(p, _TINY))
    return np.asarray(np.maximum(_cross(vertices, logs) - shannon(p), 0.0))


def _cross(vertices: Vertices, logs: Float[np.ndarray, "rows classes"]) -> Rows:
    return np.asarray((-np.einsum("nmk,nk->nm", vertices, logs)).max(axis=1))


def _interior(vertices: Vertices, gap: float, steps: int) -> tuple[Rows, Rows]:
    n, m, _ = vertices.shape
    value, gaps = np.zeros(n), np.full(n, np.inf)
    if m == 1:
        return np.maximum(shannon(vertices[:, 0]), 0.0), np.zeros(n)
    active = np.arange(n)
    v = vertices
    x = np.full((n, m), 1 / m)
    s = np.ones((n, m))  # multipliers of x >= 0
    for _ in range(steps):
        p = np.einsum("nm,nmk->nk", x, v)
        logs = np.log(np.maximum(p, _TINY))
        h = -np.einsum("nk,nk->n", p, logs)
        g = np.maximum(_cross(v, logs) - h, 0.0)
        better = g < gaps[active]
        gaps[active[better]], value[active[better]] = g[better], h[better]
        going = g > gap / 10
        if not going.any():
            break
        active, v, x, s, p, logs = active[going], v[going], x[going], s[going], p[going], logs[going]
        mu = 0.1 * np.einsum("nm,nm->n", x, s) / m
        grad = np.einsum("nmk,nk->nm", v, logs)
        curvature = np.einsum("nmk,nk,nlk->nml", v, 1 / np.maximum(p, _TINY), v)
        diagonal = np.arange(m)
        curvature[:, diagonal, diagonal] += s / x
        system = np.zeros((len(x), m + 1, m + 1))
        system[:, :m, :m] = curvature
        system[:, m, :m] = system[:, :m, m] = 1.0
        right = np.zeros((len(x), m + 1))
        right[:, :m] = mu[:, None] / x - grad
        right[:, m] = 1 - x.sum(1)
        try:
            dx = np.linalg.solve(system, right[..., None])[..., 0][:, :m]
        except np.linalg.LinAlgError:
            dx = np.einsum("nij,nj->ni", np.linalg.pinv(system), right)[:, :m]
        ds = mu[:, None] / x - s - s / x * dx
        for array, move in ((x, dx), (s, ds)):
            shrink = np.where(move < 0, -array / np.where(move < 0, move, -1.0), np.inf).min(1)
            array += np.minimum(1.0, 0.99 * shrink)[:, None] * move
        x /= x.sum(1, keepdims=True)
    return np.maximum(value, 0.0), gaps
