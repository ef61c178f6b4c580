"""What persistence Gaussian clouds leave: the floor below which no feature counts.

`FLOORS` was made by ``python -m assay.shapes.reeb.null``: 16 clouds a cell of the grid, their elongation log-uniform
from blob to tube 1:16, three lenses each; the largest persistence of a leaf arc beyond the two strongest, and of a
loop, at any connected level. The 99th percentile of so few is nearly the largest. A fit looks it up and pays nothing.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from assay.shapes.reeb.lens import AUTO, lens_values
from assay.shapes.reeb.points import find_components, make_points
from assay.shapes.reeb.select import build_tower, largest_noise

QUANTILE = 0.99  # of 16 clouds: nearly the largest
SIZES = (200, 700, 2000)
RANKS = (2, 3, 5, 12)
LOWEST = (0.03, 0.06)
SAFE = (0.05, 0.10)  # no floor is below this, whatever so few clouds say
# By lens; rows: SIZES; columns: RANKS; (leaf arc, loop).
FLOORS: dict[str, tuple[tuple[tuple[float, float], ...], ...]] = {
    "geodesic": (
        ((0.030, 0.220), (0.030, 0.184), (0.030, 0.060), (0.047, 0.060)),
        ((0.030, 0.320), (0.030, 0.196), (0.030, 0.105), (0.030, 0.060)),
        ((0.030, 0.245), (0.030, 0.246), (0.030, 0.298), (0.030, 0.060)),
    ),
    "eccentricity": (
        ((0.083, 0.498), (0.030, 0.095), (0.052, 0.060), (0.030, 0.060)),
        ((0.030, 0.377), (0.033, 0.270), (0.030, 0.060), (0.030, 0.060)),
        ((0.030, 0.307), (0.030, 0.344), (0.030, 0.060), (0.030, 0.060)),
    ),
    "psi_1": (
        ((0.030, 0.206), (0.030, 0.122), (0.033, 0.060), (0.073, 0.060)),
        ((0.038, 0.485), (0.030, 0.206), (0.030, 0.060), (0.030, 0.060)),
        ((0.033, 0.237), (0.030, 0.311), (0.030, 0.258), (0.030, 0.060)),
    ),
}


def null_floors(n: int, rank: int, lens: str = "geodesic") -> tuple[float, float]:
    """Floors of a leaf arc and of a loop, interpolated in log n and log rank.

    A lens that was not simulated (``psi_2``, a user's own) has the largest floors of those that were.

    Examples
    --------
    >>> leaf, loop = null_floors(2000, 3)
    >>> 0.02 < leaf < 0.2 and 0.05 < loop < 0.8
    True
    """
    if lens not in FLOORS:
        pairs = [null_floors(n, rank, name) for name in AUTO]
        return max(leaf for leaf, _ in pairs), max(loop for _, loop in pairs)
    table = np.array(FLOORS[lens])
    x = np.clip(np.log(n), np.log(SIZES[0]), np.log(SIZES[-1]))
    y = np.clip(np.log(rank), np.log(RANKS[0]), np.log(RANKS[-1]))
    by_rank = [[np.interp(x, np.log(SIZES), table[:, j, kind]) for j in range(len(RANKS))] for kind in (0, 1)]
    leaf, loop = (float(np.interp(y, np.log(RANKS), values)) for values in by_rank)
    return max(leaf, SAFE[0]), max(loop, SAFE[1])


def noise_of_cloud(
    X: Float[np.ndarray, "n r"], *, n_neighbors: int = 15, decay: float = 40.0, random_state: int = 0
) -> Float[np.ndarray, "lenses 2"]:
    """Largest persistence of a leaf arc beyond the two strongest, and of a loop, in one cloud; a row a lens of
    `AUTO`.
    """
    weights = np.ones(len(X))
    points = make_points(X, weights, n_neighbors=n_neighbors, decay=decay, n_landmarks=2000, random_state=random_state)
    least = max(5.0, 0.002 * len(X))
    components, _ = find_components(points, n_components=30, t="auto", least_mass=least, random_state=random_state)
    found = np.zeros((len(AUTO), 2))
    for component in components[:1]:
        for i, lens in enumerate(AUTO):
            tower = build_tower(
                lens,
                lens_values(component, lens),
                component.coordinates,
                component.weights,
                least_mass=least,
                leaf_floor=LOWEST[0],
                loop_floor=LOWEST[1],
                maps=False,
                graph=component.graph,
            )
            found[i] = largest_noise(tower.features)
    return found


def gaussian_cloud(
    n: int, rank: int, rng: np.random.Generator, spectrum: Float[np.ndarray, " r"] | None = None
) -> Float[np.ndarray, "n r"]:
    """A Gaussian cloud: of the given standard deviations, or one axis up to 16 times the others."""
    if spectrum is None:
        spectrum = np.ones(rank)
        spectrum[0] = 16 ** rng.random()
    return rng.normal(size=(n, rank)) * spectrum


def simulate_floors(
    n: int,
    rank: int,
    *,
    clouds: int = 16,
    seed: int = 0,
    spectrum: Float[np.ndarray, " r"] | None = None,
    quantile: float = QUANTILE,
) -> dict[str, tuple[float, float]]:
    """Floors by lens from clouds made now (what ``null="data"`` does with the spectrum of the data)."""
    rng = np.random.default_rng([seed, n, rank])
    found = np.array([noise_of_cloud(gaussian_cloud(n, rank, rng, spectrum)) for _ in range(clouds)])
    floors = np.maximum(np.quantile(found, quantile, axis=0), LOWEST)
    return {lens: (float(floors[i, 0]), float(floors[i, 1])) for i, lens in enumerate(AUTO)}


if __name__ == "__main__":
    made = {}
    for n in SIZES:
        for rank in RANKS:
            made[n, rank] = simulate_floors(n, rank)
            print(n, rank, made[n, rank], flush=True)
    for name in AUTO:
        print(f'    "{name}": (')
        for n in SIZES:
            print("        (" + ", ".join("({:.3f}, {:.3f})".format(*made[n, rank][name]) for rank in RANKS) + "),")
        print("    ),")
