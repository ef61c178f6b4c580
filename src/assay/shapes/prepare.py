"""From what a person has (an array, a sparse matrix, AnnData) to the coordinates in which a shape is looked for.

The working rank is the number of singular values above the optimal hard threshold for an unknown noise level (Gavish
and Donoho, "The optimal hard threshold for singular values is 4/sqrt(3)", 2014), times the median one. It depends on
singular values alone, so it is the same for a matrix and for its principal components.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import ndtri

from assay.shapes.errors import (
    ConstantDataError,
    DuplicateCellsWarning,
    NonFiniteInputError,
    RawCountsWarning,
    ShapeError,
    TooFewCellsError,
    UnknownRepresentationError,
)

LEAST_CELLS = 50
UNCORRELATED = 0.01  # or what chance leaves among so many columns and cells
CHANCE = 0.01
HIGHLY_VARIABLE = 2000
PRINCIPAL = 50


@dataclass
class Prepared:
    """Cells ready for the neighbour search.

    Attributes
    ----------
    X : float64[n, r]
        Distinct cells on the working axes.
    weights : float64[n]
        Cells that each row stands for.
    cell_of : int64[n_cells]
        Row of each cell of the input, -1 for cells that were left out.
    features : float array[n, d]
        Distinct cells on the axes of the input representation (positions of a skeleton are on these).
    singular_values : float64[min(n, d)]
    rank : int
    above_threshold : int
        Singular values above the Gavish-Donoho threshold, before it is clipped.
    scaled : bool
    representation : str
    notes : list of str
    """

    X: Float[np.ndarray, "n r"]
    weights: Float[np.ndarray, " n"]
    cell_of: Int[np.ndarray, " cells"]
    features: NDArray[Any]
    singular_values: Float[np.ndarray, " s"]
    rank: int
    mean: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]
    axes: Float[np.ndarray, "d r"]
    scaled: bool = False
    representation: str = "X"
    notes: list[str] = field(default_factory=list)
    above_threshold: int = 0

    def project(self, features: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "m r"]:
        """Other cells of the same representation on the working axes."""
        return ((np.asarray(features, dtype=np.float64) - self.mean) / self.scale) @ self.axes

    def back(self, X: Float[np.ndarray, "m r"]) -> Float[np.ndarray, "m d"]:
        """Points of the working axes in the representation (float32)."""
        return (self.mean + (np.asarray(X, dtype=np.float64) @ self.axes.T) * self.scale).astype(np.float32)


def is_anndata(data: Any) -> bool:
    """Whether an object has the parts of AnnData that are used here."""
    return all(hasattr(data, name) for name in ("X", "obs", "obsm"))


def column_of(data: Any, column: Any) -> NDArray[Any]:
    """A column of ``obs`` by name, or an array of one value a cell.

    Raises
    ------
    ShapeError
    """
    if isinstance(column, str):
        if not is_anndata(data) or column not in data.obs:
            raise ShapeError(f"there is no column {column!r} in obs; give its values as an array")
        values = np.asarray(data.obs[column])
    else:
        values = np.asarray(column)
    n = data.shape[0] if hasattr(data, "shape") else len(data)
    if len(values) != n:
        raise ShapeError(f"a column needs one value for each of the {n} cells, not {len(values)}")
    return values


def prepare(
    data: Any, *, use_rep: str | None = None, scale: str | bool | None = "auto", rank: str | int = "auto"
) -> Prepared:
    """Check the cells, and put them on the axes in which a shape is looked for.

    Parameters
    ----------
    data : array[n, d], sparse matrix or AnnData
    use_rep : str, optional
        Of AnnData: an entry of ``obsm``, or ``"X"``. Default: ``X_pca`` if it is there, else principal components of
        the log-normalised 2000 most variable genes.
    scale : {"auto", True, False, None}
        z-scores. ``"auto"``: if the standard deviations of the columns differ more than 10-fold, so do those of what
        the other columns leave of each (the noise of columns of one unit is alike, however large the signal), and
        columns are correlated, above 0.01 and above what chance leaves at the 1 % level. Principal components are not,
        nor are the axes of a thin ring, whose noise would be blown up.
    rank : "auto" or int

    Raises
    ------
    NonFiniteInputError, TooFewCellsError, ConstantDataError, UnknownRepresentationError

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> line = rng.uniform(0, 10, (500, 1)) * np.ones((1, 30)) + rng.normal(size=(500, 30))
    >>> prepare(line).rank, prepare(line).X.shape
    (3, (500, 3))
    """
    matrix, representation, notes = _matrix(data, use_rep)
    embedded = representation not in ("X", "array")
    matrix, kept = _checked(matrix, notes, counts_matter=not embedded)
    n_cells = len(kept)
    distinct, inverse, weights = _distinct(matrix)
    if len(distinct) < LEAST_CELLS:
        raise TooFewCellsError(len(distinct), LEAST_CELLS)
    if len(distinct) < len(matrix):
        warnings.warn(DuplicateCellsWarning(len(matrix) - len(distinct), len(matrix)), stacklevel=3)
        notes.append(f"{len(matrix) - len(distinct)} cells repeat another cell exactly and were collapsed")
    cell_of = np.full(n_cells, -1, dtype=np.int64)
    cell_of[kept] = inverse
    mean = np.asarray(np.average(distinct, axis=0, weights=weights), dtype=np.float64)
    deviation = distinct.std(axis=0, dtype=np.float64)
    varying = deviation > 1e-12 * max(1.0, float(np.abs(mean).max()))
    if not varying.any():
        raise ConstantDataError("no column varies; there is no shape to look for")
    scaling = _scaling(distinct, deviation, varying, scale, embedded)
    axes, singular = _principal_axes(distinct, mean, scaling)
    d = int(varying.sum())
    chosen = optimal_rank(singular, len(distinct), matrix.shape[1]) if rank == "auto" else int(rank)
    chosen = d if d <= 3 and rank == "auto" else max(1, min(chosen, d, axes.shape[1]))
    axes = axes[:, :chosen]
    X = np.empty((len(distinct), chosen))
    for start in range(0, len(distinct), 100_000):
        rows = slice(start, start + 100_000)
        X[rows] = ((distinct[rows] - mean) / scaling) @ axes
    return Prepared(
        X,
        weights,
        cell_of,
        distinct,
        singular,
        chosen,
        mean,
        scaling,
        axes,
        bool((scaling != 1).any()),
        representation,
        notes,
        optimal_rank(singular, len(distinct), matrix.shape[1], 0, len(singular)),
    )


def permutation_rank(features: NDArray[Any], permutations: int = 3, cells: int = 1000, random_state: int = 0) -> int:
    """Parallel analysis: leading singular values above the largest of column-shuffled matrices.

    For the report only: of principal components, whose columns are uncorrelated, it keeps none.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> line = rng.uniform(0, 10, (500, 1)) * np.ones((1, 30)) + rng.normal(size=(500, 30))
    >>> permutation_rank(line)
    1
    """
    rng = np.random.default_rng([random_state, 6])
    sample = features if len(features) <= cells else features[np.sort(rng.choice(len(features), cells, replace=False))]
    sample = np.asarray(sample, dtype=np.float64)
    sample = sample - sample.mean(axis=0)
    own = np.linalg.svd(sample, compute_uv=False)
    largest = np.zeros_like(own)
    for _ in range(permutations):
        shuffled = np.stack([rng.permutation(column) for column in sample.T], axis=1)
        largest = np.maximum(largest, np.linalg.svd(shuffled, compute_uv=False))
    return int(np.argmin(np.append(own > largest, False)))


def optimal_rank(singular_values: Float[np.ndarray, " s"], n: int, d: int, low: int = 3, high: int = 50) -> int:
    """Number of singular values above the Gavish-Donoho threshold, clipped.

    Examples
    --------
    >>> optimal_rank(np.array([30.0, 10.0, 5.0, 1.0, 1.0, 1.0, 1.0]), 100, 7)
    3
    """
    b = min(n, d) / max(n, d)
    threshold = (0.56 * b**3 - 0.95 * b**2 + 1.82 * b + 1.43) * np.median(singular_values)
    return int(np.clip((singular_values > threshold).sum(), low, high))


def _matrix(data: Any, use_rep: str | None) -> tuple[NDArray[Any], str, list[str]]:
    notes: list[str] = []
    if not is_anndata(data):
        if use_rep is not None:
            raise UnknownRepresentationError(use_rep, [])
        matrix = data.toarray() if sparse.issparse(data) else np.asarray(data)
        if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
            raise ConstantDataError(
                f"cells must be a numeric matrix of cells by features, not {matrix.dtype}{list(matrix.shape)}"
            )
        return _floats(matrix), "array", notes
    available = list(data.obsm.keys())
    if use_rep is None and "X_pca" in available:
        use_rep = "X_pca"
    if use_rep is None:
        notes.append(
            f"no X_pca: log-normalised, {HIGHLY_VARIABLE} most variable genes, {PRINCIPAL} principal components"
        )
        return components_of_counts(data.X), "principal components of X", notes
    if use_rep == "X":
        return _floats(data.X.toarray() if sparse.issparse(data.X) else np.asarray(data.X)), "X", notes
    if use_rep not in available:
        raise UnknownRepresentationError(use_rep, available)
    return _floats(np.asarray(data.obsm[use_rep])), use_rep, notes


def _floats(matrix: NDArray[Any]) -> NDArray[Any]:
    return matrix if matrix.dtype in (np.float32, np.float64) else matrix.astype(np.float64)


def components_of_counts(
    counts: Any, n_genes: int = HIGHLY_VARIABLE, n_components: int = PRINCIPAL
) -> Float[np.ndarray, "n components"]:
    """Principal components of log-normalised expression of the most variable genes.

    Counts are divided by the cell's total, times the median total, then ``log(1 + x)``; values that are no counts
    (negative, or fractions) are taken as they are. Genes are ranked by their variance over mean (dispersion), within 20
    bins of the mean.
    """
    matrix = sparse.csr_array(counts, dtype=np.float64)
    values = matrix.data
    if np.isfinite(values).all() and len(values) and values.min() >= 0 and (values == np.round(values)).all():
        totals = np.asarray(matrix.sum(axis=1)).ravel()
        target = np.median(totals[totals > 0]) if (totals > 0).any() else 1.0
        matrix = (sparse.diags_array(np.where(totals > 0, target / np.maximum(totals, 1e-12), 0.0)) @ matrix).tocsr()
        matrix.data = np.log1p(matrix.data)
    bad = ~np.isfinite(matrix.data)
    if bad.any():
        rows = np.unique(np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))[bad])
        raise NonFiniteInputError(rows[:10].tolist(), len(rows))
    if matrix.shape[1] > n_genes:
        mean = np.asarray(matrix.mean(axis=0)).ravel()
        variance = np.asarray(matrix.power(2).mean(axis=0)).ravel() - mean**2
        dispersion = np.log(np.maximum(variance, 1e-12) / np.maximum(np.abs(mean), 1e-12))
        bins = np.digitize(mean, np.quantile(mean, np.linspace(0, 1, 21)[1:-1]))
        score = np.full(len(mean), -np.inf)
        for b in np.unique(bins):
            inside = (bins == b) & (variance > 0)
            if inside.any():
                score[inside] = (dispersion[inside] - np.median(dispersion[inside])) / (dispersion[inside].std() + 1e-3)
        matrix = matrix[:, np.sort(np.argsort(-score, kind="stable")[:n_genes])]
    dense = matrix.toarray()
    dense -= dense.mean(axis=0)
    axes, _ = _principal_axes(dense, np.zeros(dense.shape[1]), np.ones(dense.shape[1]))
    return dense @ axes[:, :n_components]


def _checked(matrix: NDArray[Any], notes: list[str], counts_matter: bool) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    finite = np.isfinite(matrix).all(axis=1)
    if not finite.all():
        bad = np.flatnonzero(~finite)
        raise NonFiniteInputError(bad[:10].tolist(), len(bad))
    if len(matrix) < LEAST_CELLS:
        raise TooFewCellsError(len(matrix), LEAST_CELLS)
    kept: NDArray[np.bool_] = np.ones(len(matrix), dtype=bool)
    if (
        counts_matter
        and matrix.shape[1] >= 20
        and (matrix[:200] >= 0).all()
        and (matrix[:200] == np.round(matrix[:200])).all()
    ):
        warnings.warn(
            RawCountsWarning(
                "the values are whole numbers, as raw counts are; log-normalise and reduce them first, or pass AnnData, which is "  # noqa: E501
                "log-normalised here"
            ),
            stacklevel=4,
        )
        notes.append("the values are whole numbers, as raw counts are")
    if matrix.shape[1] >= 20:
        empty = ~matrix.any(axis=1)
        if empty.any() and not empty.all():
            kept = np.asarray(~empty)
            notes.append(
                f"{int(empty.sum())} cells are zero in all columns and were left out (rows {np.flatnonzero(empty)[:5].tolist()})"  # noqa: E501
            )
    return matrix[kept], kept


def _distinct(matrix: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.float64]]:
    """Distinct rows in order of first appearance."""
    direction: NDArray[np.float64] = np.asarray(np.random.default_rng(0).normal(size=(matrix.shape[1],)))
    probe = matrix @ direction.astype(matrix.dtype)
    n = len(matrix)
    if len(np.unique(probe)) == n:
        return matrix, np.arange(n), np.ones(n)
    _, first, inverse, counts = np.unique(matrix, axis=0, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return matrix[first[order]], place[inverse.ravel()], counts[order].astype(np.float64)


def _scaling(
    matrix: NDArray[Any],
    deviation: NDArray[np.float64],
    varying: NDArray[np.bool_],
    scale: str | bool | None,
    embedded: bool,
) -> NDArray[np.float64]:
    none = np.ones(matrix.shape[1])
    if scale is False or scale is None:
        return none
    full = np.where(varying, deviation, 1.0)
    if scale is True:
        return full
    if embedded or deviation[varying].max() <= 10 * deviation[varying].min():
        return none
    sample = matrix[:: max(1, len(matrix) // 20_000), varying] if len(matrix) > 20_000 else matrix[:, varying]
    d = int(varying.sum())
    correlation = np.corrcoef(sample, rowvar=False).reshape(d, -1)
    np.fill_diagonal(correlation, 0.0)
    chance = ndtri(1 - CHANCE / max(d * (d - 1), 1)) / np.sqrt(len(sample))  # two-sided, over all pairs
    if np.abs(correlation).max() < max(UNCORRELATED, chance):
        return none
    left = unexplained(np.asarray(sample, dtype=np.float64))
    return full if left.max() > 10 * left.min() else none


def unexplained(X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " d"]:
    """Standard deviation of what a linear fit on all other columns leaves of each.

    It is 1 / sqrt of the diagonal of the inverse covariance.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(5000, 1))
    >>> unexplained(np.hstack([x, 3 * x]) + rng.normal(size=(5000, 2)) * [0.1, 0.1]).round(2).tolist()
    [0.11, 0.32]
    """
    scale = np.maximum(X.std(axis=0), 1e-300)
    covariance = np.cov(X / scale, rowvar=False).reshape(X.shape[1], -1)
    inverse = np.linalg.inv(covariance + 1e-10 * np.eye(len(covariance)))
    return scale / np.sqrt(np.diag(inverse))


def _principal_axes(
    matrix: NDArray[Any], mean: NDArray[np.float64], scale: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Right singular vectors and singular values of the centred, scaled matrix, from the smaller Gram matrix."""
    n, d = matrix.shape
    if d <= n:
        gram = np.zeros((d, d))
        for start in range(0, n, 100_000):
            block = (matrix[start : start + 100_000] - mean) / scale
            gram += block.T @ block
        values, vectors = np.linalg.eigh(gram)
        return vectors[:, ::-1], np.sqrt(np.maximum(values[::-1], 0.0))
    centred = (matrix - mean) / scale
    values, left = np.linalg.eigh(centred @ centred.T)
    values, left = np.sqrt(np.maximum(values[::-1], 0.0)), left[:, ::-1]
    good = values > 1e-9 * values[0]
    return centred.T @ left[:, good] / values[good], values
