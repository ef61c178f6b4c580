"""Archetypal analysis (principal convex hull analysis), and whether data is a simplex at all.

X is approximated by S C X, with rows of C and S on simplices: C makes archetypes of cells, S makes cells of archetypes.
Projected gradient with a growing step, after Morup and Hansen, "Archetypal analysis for machine learning and data
mining" (2012); starts by furthest sum. The t-ratio is the volume of the simplex over that of the convex hull in the
first K - 1 principal components (after Hart et al., "Inferring biological tasks using Pareto analysis of
high-dimensional data", 2015); its null shuffles columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import factorial

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from assay.shapes.errors import ShapeError

HULL_CELLS = 1000
NULLS = 199
NULL_CELLS = 500
NULL_ITERATIONS = 15


@dataclass
class Archetypes:
    """A fitted simplex.

    Attributes
    ----------
    vertices : float64[K, d]
    weights : float64[n, K]
        Rows add up to 1.
    explained : float
        Share of the variance.
    residual : float
        Sum of squares of what is left.
    iterations : int
    """

    vertices: Float[np.ndarray, "K d"]
    weights: Float[np.ndarray, "n K"]
    explained: float
    residual: float
    iterations: int


def pcha(
    X: Float[np.ndarray, "n d"],
    k: int,
    *,
    iterations: int = 500,
    tolerance: float = 1e-7,
    starts: int = 3,
    random_state: int = 0,
) -> Archetypes:
    """K archetypes of the cells.

    Parameters
    ----------
    X : float64[n, d]
    k : int
    iterations : int
    tolerance : float
        Stop when the residual falls by less than this share in an iteration.
    starts : int
        Restarts; the best is kept.
    random_state : int

    Raises
    ------
    ShapeError
        If there are fewer than k distinct cells.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> corners = np.array([[0.0, 0], [1, 0], [0, 1]])
    >>> found = pcha(rng.dirichlet([0.3] * 3, 400) @ corners, 3)
    >>> found.explained > 0.999, bool(np.abs(np.sort(found.vertices, axis=0) - np.sort(corners, axis=0)).max() < 0.03)
    (True, True)
    """
    if k < 1 or len(np.unique(X, axis=0)) < k:
        raise ShapeError(f"{k} archetypes need at least as many distinct cells, and k must be at least 1")
    centre = X.mean(axis=0)
    Y = X - centre
    if Y.shape[1] > len(Y):
        raise ShapeError(f"archetypes need at least as many cells as columns; reduce {Y.shape[1]} columns first")
    total = float((Y**2).sum())
    best: Archetypes | None = None
    for start in range(starts):
        found = _one_start(Y, k, iterations, tolerance, total, np.random.default_rng([random_state, start]))
        if best is None or found.residual < best.residual:
            best = found
    assert best is not None
    best.vertices = best.vertices + centre
    return best


def furthest_sum(X: Float[np.ndarray, "n d"], k: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """k cells far from each other: each maximises the sum of distances to those before; the random first one is
    replaced last.
    """
    chosen = [int(rng.integers(len(X)))]
    away = np.linalg.norm(X - X[chosen[0]], axis=1)
    for _ in range(k - 1):
        sums = away.copy()
        sums[chosen] = -1
        chosen.append(int(np.argmax(sums)))
        away = away + np.linalg.norm(X - X[chosen[-1]], axis=1)
    for _ in range(min(10, 2 * k)):
        first = chosen.pop(0)
        away = away - np.linalg.norm(X - X[first], axis=1)
        sums = away.copy()
        sums[chosen] = -1
        chosen.append(int(np.argmax(sums)))
        away = away + np.linalg.norm(X - X[chosen[-1]], axis=1)
    return np.array(chosen)


def _one_start(
    Y: NDArray[np.float64], k: int, iterations: int, tolerance: float, total: float, rng: np.random.Generator
) -> Archetypes:
    n = len(Y)
    C = np.zeros((k, n))
    C[np.arange(k), furthest_sum(Y, k, rng)] = 1.0
    Z = C @ Y
    S = -np.log(rng.random((n, k)) + 1e-12)
    S /= S.sum(axis=1, keepdims=True)
    step_s = step_c = 1.0
    S, step_s, loss = _update_weights(Y, Z, S, step_s, total, 50)
    done = 0
    while done < iterations:
        done += 1
        before = loss
        C, Z, step_c, loss = _update_archetypes(Y, S, C, Z, step_c, total, 10)
        S, step_s, loss = _update_weights(Y, Z, S, step_s, total, 10)
        if before - loss <= tolerance * before or loss <= 1e-14 * total:
            break
    return Archetypes(Z, S, 1 - loss / max(total, 1e-300), loss, done)


def _loss(total: float, SS: NDArray[np.float64], ZZ: NDArray[np.float64], SYZ: float) -> float:
    return max(total - 2 * SYZ + float((SS * ZZ).sum()), 0.0)


def _update_weights(
    Y: NDArray[np.float64], Z: NDArray[np.float64], S: NDArray[np.float64], step: float, total: float, rounds: int
) -> tuple[NDArray[np.float64], float, float]:
    """Gradient steps on S in the normalised coordinates, the step grown on success and halved otherwise."""
    ZZ, YZ = Z @ Z.T, Y @ Z.T
    loss = _loss(total, S.T @ S, ZZ, float((S * YZ).sum()))
    for _ in range(rounds):
        gradient = (S @ ZZ - YZ) / (total / len(Y))
        gradient -= (gradient * S).sum(axis=1, keepdims=True)
        for _ in range(40):
            new = np.maximum(S - step * gradient, 0.0)
            new /= new.sum(axis=1, keepdims=True) + 1e-300
            value = _loss(total, new.T @ new, ZZ, float((new * YZ).sum()))
            if value <= loss * (1 + 1e-9):
                S, loss, step = new, value, step * 1.2
                break
            step /= 2
        else:
            break
    return S, step, loss


def _update_archetypes(
    Y: NDArray[np.float64],
    S: NDArray[np.float64],
    C: NDArray[np.float64],
    Z: NDArray[np.float64],
    step: float,
    total: float,
    rounds: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64], float, float]:
    SS, SY = S.T @ S, S.T @ Y
    loss = _loss(total, SS, Z @ Z.T, float((SY * Z).sum()))
    for _ in range(rounds):
        gradient = ((SS @ Z - SY) @ Y.T) / total * len(Y)
        gradient -= (gradient * C).sum(axis=1, keepdims=True)
        for _ in range(40):
            new = np.maximum(C - step * gradient, 0.0)
            new /= new.sum(axis=1, keepdims=True) + 1e-300
            place = new @ Y
            value = _loss(total, SS, place @ place.T, float((SY * place).sum()))
            if value <= loss * (1 + 1e-9):
                C, Z, loss, step = new, place, value, step * 1.2
                break
            step /= 2
        else:
            break
    return C, Z, step, loss


def simplex_volume(vertices: Float[np.ndarray, "K q"]) -> float:
    """Volume of a simplex of K vertices in K - 1 dimensions.

    Examples
    --------
    >>> round(simplex_volume(np.array([[0.0, 0], [1, 0], [0, 1]])), 12)
    0.5
    """
    k = len(vertices)
    return float(abs(np.linalg.det(vertices[1:] - vertices[0]))) / factorial(k - 1)


def t_ratio(X: Float[np.ndarray, "n d"], archetypes: Archetypes) -> float:
    """Volume of the simplex over that of the convex hull of the cells, in the first K - 1 principal components; at
    most about 1.
    """
    from scipy.spatial import ConvexHull

    k = len(archetypes.vertices)
    centre = X.mean(axis=0)
    axes = np.linalg.svd(X - centre, full_matrices=False)[2][: k - 1]
    if k == 2:
        flat = (X - centre) @ axes.T
        return float(np.ptp((archetypes.vertices - centre) @ axes.T) / max(np.ptp(flat), 1e-300))
    hull = ConvexHull((X - centre) @ axes.T).volume
    return simplex_volume((archetypes.vertices - centre) @ axes.T) / max(hull, 1e-300)


@dataclass
class ArchetypeTest:
    """Whether cells fill a simplex.

    Attributes
    ----------
    k : int
        Archetypes at the elbow.
    t_ratio : float
    p_value : float
        Share of column-shuffled nulls with as large a ratio, (1 + r) / (1 + nulls).
    explained : dict of int to float
        Share of variance by K.
    archetypes : Archetypes
    """

    k: int
    t_ratio: float
    p_value: float
    explained: dict[int, float]
    archetypes: Archetypes


def simplex_test(
    X: Float[np.ndarray, "n d"],
    *,
    k: int | None = None,
    k_range: tuple[int, int] = (3, 6),
    nulls: int = NULLS,
    random_state: int = 0,
) -> ArchetypeTest:
    """The t-ratio at the elbow of the explained variance, against shuffled columns.

    At most 1000 cells are used, 500 in the nulls: the cells on their first K - 1 principal components, each column
    shuffled, so that they have the same margins and no corners in common. It stops once 10 nulls are as large as the
    data's own ratio, which is then far from p < 0.01.
    """
    rng = np.random.default_rng([random_state, 5])
    sample = X[np.sort(rng.choice(len(X), HULL_CELLS, replace=False))] if len(X) > HULL_CELLS else X
    d = sample.shape[1]
    low, high = k_range
    options = [k] if k is not None else [c for c in range(low, high + 1) if c - 1 <= d]
    fits = {c: pcha(sample, c, iterations=150, tolerance=1e-5, starts=1, random_state=random_state) for c in options}
    explained = {c: fit.explained for c, fit in fits.items()}
    chosen = options[0] if len(options) == 1 else elbow(sample, explained, random_state)
    fit = fits[chosen]
    ratio = t_ratio(sample, fit)
    centre = sample.mean(axis=0)
    flat = (sample - centre) @ np.linalg.svd(sample - centre, full_matrices=False)[2][: chosen - 1].T
    flat = flat[rng.choice(len(flat), min(len(flat), NULL_CELLS), replace=False)]
    own = t_ratio(
        flat, pcha(flat, chosen, iterations=NULL_ITERATIONS, tolerance=1e-3, starts=1, random_state=random_state)
    )
    larger = tried = 0
    for i in range(nulls):
        shuffled = np.stack([rng.permutation(column) for column in flat.T], axis=1)
        null = pcha(shuffled, chosen, iterations=NULL_ITERATIONS, tolerance=1e-3, starts=1, random_state=i)
        larger += t_ratio(shuffled, null) >= own
        tried += 1
        if larger >= 10:
            break
    return ArchetypeTest(chosen, ratio, (1 + larger) / (1 + tried), explained, fit)


def elbow(X: NDArray[np.float64], explained: dict[int, float], random_state: int = 0) -> int:
    """The K after which the explained variance grows least: the point farthest below the line of its neighbours."""
    before = pcha(X, 2, iterations=100, tolerance=1e-4, starts=1, random_state=random_state).explained
    options = sorted(explained)
    curve = [before, *(explained[c] for c in options)]
    after = min(1.0, curve[-1] + 0.5 * (curve[-1] - curve[-2]))
    curve.append(after)
    bend = [(curve[i] - curve[i - 1]) - (curve[i + 1] - curve[i]) for i in range(1, len(curve) - 1)]
    return options[int(np.argmax(bend))]
