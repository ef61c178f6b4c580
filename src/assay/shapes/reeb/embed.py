"""From a simplified graph of slab components to curves in space, and cells onto the curves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from assay.shapes.reeb.select import BRANCH_SLABS
from assay.shapes.reeb.simplify import ReebGraph
from assay.shapes.skeleton import Skeleton

TIP_POINTS = 5
WIDTHS = 3.0  # branch points nearer than this many widths of the arms between are one
ARM_NODES = 3


@dataclass
class Embedded:
    """A component's skeleton in working coordinates, before contraction: one vertex a slab component.

    Attributes
    ----------
    positions : float64[V, r]
    edges : int64[E, 2]
    """

    positions: Float[np.ndarray, "V r"]
    edges: Int[np.ndarray, "E 2"]


def embed_graph(graph: ReebGraph, X: Float[np.ndarray, "c r"], n_intervals: int) -> Embedded:
    """Positions of the nodes of a graph.

    A node lies at the mean of its points. Two corrections: branch points nearer to each other than three slabs, or than
    the arms are wide, are one, and lie where the straight continuations of their arms meet best; a leaf arc is
    prolonged to the mean of its most extreme points.
    """
    names = list(graph.nodes)
    number = {v: i for i, v in enumerate(names)}
    weights, lens = graph.weights, graph.lens
    index = [graph.points_of(v) for v in names]
    positions = [np.average(X[i], axis=0, weights=weights[i]) for i in index]
    edges = sorted({(min(number[a], number[b]), max(number[a], number[b])) for a in names for b in graph.nodes[a].near})
    width = [
        float(np.sqrt(np.average(((X[i] - p) ** 2).sum(axis=1), weights=weights[i])))
        for i, p in zip(index, positions, strict=True)
    ]
    edges = _contract_branches(
        edges,
        np.array(positions),
        np.array(width),
        np.array([graph.nodes[v].height for v in names]),
        graph.range / n_intervals,
    )
    neighbours = _neighbours(edges, len(names))
    for v, around in enumerate(neighbours):
        if len(around) >= 3:
            found = _meeting_point(v, neighbours, positions)
            if found is not None:
                positions[v] = found
    extra: list[tuple[int, int]] = []
    for v, around in enumerate(neighbours):
        if len(around) != 1 or len(names) < 2:
            continue
        rising = lens[index[v]].mean() >= lens[index[around[0]]].mean()
        order = index[v][np.argsort(lens[index[v]])]
        tip = order[-TIP_POINTS:] if rising else order[:TIP_POINTS]
        positions.append(np.average(X[tip], axis=0, weights=weights[tip]))
        extra.append((v, len(positions) - 1))
    used = sorted({v for edge in [*edges, *extra] for v in edge} or {0})
    place = {v: i for i, v in enumerate(used)}
    final = np.array([(place[a], place[b]) for a, b in [*edges, *extra]], dtype=np.int64).reshape(-1, 2)
    return Embedded(np.array([positions[v] for v in used]), final)


def _neighbours(edges: list[tuple[int, int]], n: int) -> list[list[int]]:
    around: list[list[int]] = [[] for _ in range(n)]
    for a, b in edges:
        around[a].append(b)
        around[b].append(a)
    return around


def _contract_branches(
    edges: list[tuple[int, int]],
    positions: NDArray[np.float64],
    width: NDArray[np.float64],
    heights: NDArray[np.float64],
    slab: float,
) -> list[tuple[int, int]]:
    """Merge branch nodes that a short chain joins into the first of them."""
    n = len(positions)
    while True:
        around = _neighbours(edges, n)
        branches = {v for v in range(n) if len(around[v]) >= 3}
        merged = None
        for v in sorted(branches):
            for first in around[v]:
                chain, before, u = [v], v, first
                while len(around[u]) == 2:
                    chain.append(u)
                    before, u = u, next(w for w in around[u] if w != before)
                if u not in branches or u == v:
                    continue
                slabs = abs(heights[u] - heights[v]) / slab
                near = np.linalg.norm(positions[u] - positions[v]) < WIDTHS * np.median(width[[*chain, u]])
                if len(chain) <= BRANCH_SLABS + 2 and (slabs < BRANCH_SLABS or (near and slabs < 2 * BRANCH_SLABS)):
                    merged = (v, [*chain[1:], u])
                    break
            if merged:
                break
        if merged is None:
            return edges
        keeper, gone = merged[0], set(merged[1])
        edges = sorted(
            {
                (min(a, b), max(a, b))
                for a, b in ((keeper if a in gone else a, keeper if b in gone else b) for a, b in edges)
                if a != b
            }
        )


def _meeting_point(
    v: int, neighbours: list[list[int]], positions: list[NDArray[np.float64]]
) -> NDArray[np.float64] | None:
    """Least-squares meeting point of lines through the first nodes of each arm; None where they say nothing."""
    r = len(positions[v])
    matrix, target, arms, reach = np.zeros((r, r)), np.zeros(r), 0, 0.0
    for first in neighbours[v]:
        chain: list[int] = []
        before, u = v, first
        while len(chain) < ARM_NODES + 1 and len(neighbours[u]) <= 2:
            chain.append(u)
            onward = [w for w in neighbours[u] if w != before]
            if not onward:
                break
            before, u = u, onward[0]
        chain = chain[1:]  # the first node of an arm still has points of the other arms
        if len(chain) < 2:
            continue
        line = np.array([positions[u] for u in chain])
        direction = np.linalg.svd(line - line.mean(axis=0), full_matrices=False)[2][0]
        project = np.eye(r) - np.outer(direction, direction)
        matrix += project
        target += project @ line.mean(axis=0)
        reach = max(reach, float(np.linalg.norm(line[0] - positions[v])))
        arms += 1
    if arms < 2 or np.linalg.cond(matrix) > 1e4:
        return None
    found = np.asarray(np.linalg.solve(matrix, target), dtype=np.float64)
    return found if np.linalg.norm(found - positions[v]) <= 1.5 * reach else None


def assign(
    X: Float[np.ndarray, "n r"], skeleton: Skeleton, candidates: int = 4, block: int = 100_000
) -> tuple[
    Int[np.ndarray, " n"],
    Float[np.ndarray, " n"],
    Float[np.ndarray, " n"],
    Int[np.ndarray, "n 3"],
    Float[np.ndarray, "n 3"],
]:
    """Nearest edge of each cell, position on it, distance, and up to three edges with soft weights.

    Segments of all curves are searched near the ``candidates`` nearest curve points of a cell.

    Returns
    -------
    edge : int64[n]
        -1 where the skeleton has no edge.
    t : float64[n]
        0 at the edge's first vertex, 1 at its second.
    distance : float64[n]
    edges, weights : int64[n, 3], float64[n, 3]
        Weights proportional to exp(-d^2 / (2 w^2)) with w the root mean square distance of all cells; 0 for missing
        edges (-1).
    """
    n = len(X)
    if not len(skeleton.edges):
        distance = cKDTree(skeleton.vertices).query(X)[0]
        return np.full(n, -1), np.full(n, np.nan), distance, np.full((n, 3), -1), np.zeros((n, 3))
    starts: list[NDArray[np.float64]] = []
    ends: list[NDArray[np.float64]] = []
    owner: list[int] = []
    low: list[float] = []
    high: list[float] = []
    incident: list[tuple[int, int]] = []
    points: list[NDArray[np.float64]] = []
    for e, path in enumerate(skeleton.paths):
        path = np.asarray(path, dtype=np.float64)
        steps = np.linalg.norm(np.diff(path, axis=0), axis=1)
        along = np.concatenate([[0.0], np.cumsum(steps)]) / max(steps.sum(), 1e-12)
        base = len(starts)
        for i in range(len(path) - 1):
            starts.append(path[i])
            ends.append(path[i + 1])
            owner.append(e)
            low.append(along[i])
            high.append(along[i + 1])
        for i in range(len(path)):
            points.append(path[i])
            incident.append((base + max(i - 1, 0), base + min(i, len(path) - 2)))
    A, B = np.array(starts), np.array(ends)
    own, lo, hi = np.array(owner), np.array(low), np.array(high)
    touching = np.array(incident)
    tree = cKDTree(np.array(points))
    direction = B - A
    square = np.maximum((direction**2).sum(axis=1), 1e-24)
    k = min(max(candidates, 8), len(points))
    edge, t, distance = np.empty(n, dtype=np.int64), np.empty(n), np.empty(n)
    three, far = np.full((n, 3), -1), np.full((n, 3), np.inf)
    for start in range(0, n, block):
        rows = slice(start, min(n, start + block))
        near = tree.query(X[rows], k=k)[1].reshape(-1, k)
        segments = touching[near].reshape(len(near), -1)
        offset = X[rows, None, :] - A[segments]
        s = np.clip(np.einsum("nsr,nsr->ns", offset, direction[segments]) / square[segments], 0.0, 1.0)
        d = np.linalg.norm(offset - s[..., None] * direction[segments], axis=2)
        best = np.argmin(d, axis=1)
        row = np.arange(len(near))
        chosen = segments[row, best]
        edge[rows], distance[rows] = own[chosen], d[row, best]
        t[rows] = lo[chosen] + s[row, best] * (hi[chosen] - lo[chosen])
        owners, left = own[segments], d.copy()
        for j in range(3):
            best = np.argmin(left, axis=1)
            found = np.isfinite(left[row, best])
            three[rows, j] = np.where(found, owners[row, best], -1)
            far[rows, j] = left[row, best]
            left[owners == owners[row, best][:, None]] = np.inf
    scale = max(float(np.sqrt(np.mean(distance**2))), 1e-12)
    with np.errstate(over="ignore", under="ignore"):
        weights = np.where(three >= 0, np.exp(-(far**2 - far[:, :1] ** 2) / (2 * scale**2)), 0.0)
    return edge, t, distance, three, weights / weights.sum(axis=1, keepdims=True)
