"""Lenses: real functions on a component whose level sets are cut into slabs."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.sparse.csgraph import dijkstra

from assay.shapes.errors import UnknownKindError
from assay.shapes.reeb.points import Component

LENSES = ("geodesic", "eccentricity", "psi_1", "psi_2")
AUTO = ("geodesic", "eccentricity", "psi_1")


def central_point(component: Component) -> int:
    """The point nearest to the mean of the diffusion coordinates, weighted by cells."""
    mean = np.average(component.coordinates, axis=0, weights=component.weights)
    return int(np.argmin(((component.coordinates - mean) ** 2).sum(axis=1)))


def extremal_point(component: Component) -> int:
    """Farthest from the farthest from the central point, along the graph."""
    first = int(np.argmax(_finite(dijkstra(component.graph, directed=False, indices=central_point(component)))))
    return int(np.argmax(_finite(dijkstra(component.graph, directed=False, indices=first))))


def lens_values(component: Component, lens: str) -> Float[np.ndarray, " c"]:
    """A lens by name.

    ``geodesic``: distance along the neighbour graph, with diffusion lengths, from an extremal point; ``eccentricity``:
    from the most central one; ``psi_1``, ``psi_2``: the first and second eigenvectors that are not constant.

    Raises
    ------
    UnknownKindError
    """
    if lens == "geodesic":
        return _finite(dijkstra(component.graph, directed=False, indices=extremal_point(component)))
    if lens == "eccentricity":
        return _finite(dijkstra(component.graph, directed=False, indices=central_point(component)))
    if lens in ("psi_1", "psi_2"):
        number = int(lens[-1])
        vectors = component.diffusion.vectors
        return vectors[:, min(number, vectors.shape[1] - 1)].copy()
    raise UnknownKindError(f"there is no lens {lens!r}; give one of {', '.join(LENSES)}, 'auto', or one number a cell")


def _finite(values: Float[np.ndarray, " c"]) -> Float[np.ndarray, " c"]:
    good = np.isfinite(values)
    return np.where(good, values, values[good].max() if good.any() else 0.0)
