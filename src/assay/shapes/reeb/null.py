"""What persistence Gaussian clouds leave: the floor below which no feature counts.

`FLOORS` was made by ``python -m assay.shapes.reeb.null floors.jsonl``: 200 clouds a cell of the grid, their elongation
log-uniform from blob to tube 1:16, three lenses each; the largest persistence of a leaf arc beyond the two strongest,
and of a loop, at any connected level. By lens the floor is the 99th percentile, all raised by one factor so that under
the choice of lens that a fit makes, too, no more than 1 % of the clouds keep a feature. A fit looks it up and pays
nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from assay.shapes.reeb.lens import AUTO, lens_values
from assay.shapes.reeb.points import find_components, make_points
from assay.shapes.reeb.select import build_tower, largest_noise

QUANTILE = 0.99
CLOUDS = 200
SIZES = (200, 700, 2000)  # larger components are judged as 2000 points: past 5000 cells they are so many landmarks
RANKS = (2, 3, 5, 12, 30)
LOWEST = (0.01, 0.03)  # what is weaker is not looked at
# No floor is below these: cells are not quite Gaussian. From the centre the range is about half as long, so the same
# arc or loop has twice the persistence there.
SAFE = {"geodesic": (0.02, 0.06), "eccentricity": (0.05, 0.12), "psi_1": (0.02, 0.06)}
# By lens; rows: SIZES; columns: RANKS; (leaf arc, loop).
FLOORS: dict[str, tuple[tuple[tuple[float, float], ...], ...]] = {
    "geodesic": (
        ((0.016, 0.283), (0.020, 0.165), (0.014, 0.067), (0.016, 0.053), (0.015, 0.071)),
        ((0.015, 0.250), (0.017, 0.072), (0.012, 0.037), (0.011, 0.034), (0.031, 0.057)),
        ((0.013, 0.186), (0.010, 0.030), (0.010, 0.030), (0.010, 0.030), (0.016, 0.048)),
    ),
    "eccentricity": (
        ((0.087, 0.604), (0.031, 0.301), (0.117, 0.124), (0.082, 0.099), (0.101, 0.089)),
        ((0.017, 0.517), (0.038, 0.162), (0.032, 0.039), (0.032, 0.053), (0.059, 0.096)),
        ((0.013, 0.264), (0.010, 0.033), (0.010, 0.030), (0.010, 0.030), (0.027, 0.048)),
    ),
    "psi_1": (
        ((0.016, 0.297), (0.020, 0.221), (0.014, 0.069), (0.016, 0.055), (0.015, 0.068)),
        ((0.015, 0.241), (0.017, 0.078), (0.012, 0.037), (0.011, 0.034), (0.019, 0.057)),
        ((0.013, 0.109), (0.010, 0.030), (0.010, 0.030), (0.010, 0.030), (0.016, 0.048)),
    ),
}


def null_floors(n: int, rank: int, lens: str = "geodesic") -> tuple[float, float]:
    """Floors of a leaf arc and of a loop, interpolated in log n and log rank.

    A lens that was not simulated (``psi_2``, a user's own) has the largest floors of those that were.

    Examples
    --------
    >>> leaf, loop = null_floors(2000, 3)
    >>> round(leaf, 3), round(loop, 3)
    (0.02, 0.06)
    """
    if lens not in FLOORS:
        pairs = [null_floors(n, rank, name) for name in AUTO]
        return max(leaf for leaf, _ in pairs), max(loop for _, loop in pairs)
    table = np.array(FLOORS[lens])
    x = np.clip(np.log(n), np.log(SIZES[0]), np.log(SIZES[-1]))
    y = np.clip(np.log(rank), np.log(RANKS[0]), np.log(RANKS[-1]))
    by_rank = [[np.interp(x, np.log(SIZES), table[:, j, kind]) for j in range(len(RANKS))] for kind in (0, 1)]
    leaf, loop = (float(np.interp(y, np.log(RANKS), values)) for values in by_rank)
    least = SAFE[lens]
    return max(leaf, least[0]), max(loop, least[1])


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


def floors_of(found: Float[np.ndarray, "clouds lenses 2"], quantile: float = QUANTILE) -> Float[np.ndarray, "lenses 2"]:
    """Floors by lens and kind from what clouds left.

    Quantiles by lens and kind, then all raised by the quantile over clouds of the largest persistence in units of them:
    a fit takes the lens with the most above the floors, so floors must hold for the best of three.
    """
    floors = np.maximum(np.quantile(found, quantile, axis=0), LOWEST)
    most = (found / floors).max(axis=(1, 2))
    return floors * max(1.0, float(np.quantile(most, quantile)))


def simulate_floors(
    n: int,
    rank: int,
    *,
    clouds: int = CLOUDS,
    seed: int = 0,
    spectrum: Float[np.ndarray, " r"] | None = None,
    quantile: float = QUANTILE,
) -> dict[str, tuple[float, float]]:
    """Floors by lens from clouds made now (what ``null="data"`` does with the spectrum of the data)."""
    floors = floors_of(clouds_of(n, rank, clouds, seed, spectrum), quantile)
    return {lens: (float(floors[i, 0]), float(floors[i, 1])) for i, lens in enumerate(AUTO)}


def clouds_of(
    n: int, rank: int, clouds: int, seed: int = 0, spectrum: Float[np.ndarray, " r"] | None = None
) -> Float[np.ndarray, "clouds lenses 2"]:
    """What each of some clouds leaves."""
    rng = np.random.default_rng([seed, n, rank])
    return np.array([noise_of_cloud(gaussian_cloud(n, rank, rng, spectrum)) for _ in range(clouds)])


def make_table(path: Path, clouds: int = CLOUDS) -> None:
    """Simulate the grid into a file of JSON lines, a line a cell; cells that are there are not made again."""
    done: dict[tuple[int, int], NDArray[np.float64]] = {}
    if path.is_file():
        for line in path.read_text().splitlines():
            row = json.loads(line)
            done[row["n"], row["rank"]] = np.array(row["found"])
    for n in SIZES:
        for rank in RANKS:
            if (n, rank) not in done:
                done[n, rank] = clouds_of(n, rank, clouds)
                with path.open("a") as file:
                    file.write(json.dumps({"n": n, "rank": rank, "found": done[n, rank].round(5).tolist()}) + "\n")
    print("FLOORS: dict[str, tuple[tuple[tuple[float, float], ...], ...]] = {")
    for i, name in enumerate(AUTO):
        print(f'    "{name}": (')
        for n in SIZES:
            cells = [floors_of(done[n, rank])[i] for rank in RANKS]
            print("        (" + ", ".join(f"({leaf:.3f}, {loop:.3f})" for leaf, loop in cells) + "),")
        print("    ),")
    print("}")


if __name__ == "__main__":
    make_table(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else CLOUDS)
