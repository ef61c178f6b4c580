"""Neighbours, the kernel, the diffusion operator and its coordinates.

What differs from the textbook diffusion map: (1) the bandwidth is that of each cell, with alpha decay (Moon et al.
2019, PHATE); (2) repeated cells are one cell with a weight; (3) eigenpairs come from Lanczos on a power of the operator
and a Rayleigh-Ritz step on the operator itself, because the leading eigenvalues of a long path lie within 1e-4 of 1,
where plain Lanczos needs hundreds of restarts; (4) past ``n_landmarks`` cells everything is done on landmarks, and
extended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, eigsh
from scipy.spatial import cKDTree

TREE_DIMENSIONS = 12  # above, distances by matrix products beat a k-d tree
EXACT_CELLS = 50_000
THRESHOLD = 1e-4
BANDWIDTH_NEIGHBOR = 10


@dataclass
class Neighbors:
    """The k nearest neighbours of each cell, itself left out.

    Attributes
    ----------
    indices : int32[n, k]
    distances : float64[n, k]
        Ascending.
    method : str
        ``tree`` or ``brute`` (both exact), ``approximate``.
    recall : float
        Share of true neighbours found, measured on 200 cells where the search is approximate; else 1.
    """

    indices: Int[np.ndarray, "n k"]
    distances: Float[np.ndarray, "n k"]
    method: str = "tree"
    recall: float = 1.0

    def graph(self) -> sparse.csr_array:
        """Symmetric graph of distances: an edge where either cell is a neighbour of the other."""
        n, k = self.indices.shape
        rows = np.repeat(np.arange(n), k)
        lengths = np.maximum(self.distances.ravel(), 1e-12)
        one_way = sparse.csr_array((lengths, (rows, self.indices.ravel())), shape=(n, n))
        return one_way.maximum(one_way.T).tocsr()


def nearest_neighbors(
    X: Float[np.ndarray, "n d"], k: int, *, n_jobs: int = 1, random_state: int = 0, exact_cells: int = EXACT_CELLS
) -> Neighbors:
    """The k nearest neighbours in Euclidean distance.

    A k-d tree up to 12 columns, blocked matrix products up to ``exact_cells`` cells, and nearest-neighbour descent
    (pynndescent) beyond.

    Examples
    --------
    >>> found = nearest_neighbors(np.arange(6.0)[:, None], 2)
    >>> found.indices[0].tolist(), found.distances[0].tolist()
    ([1, 2], [1.0, 2.0])
    """
    n, d = X.shape
    k = min(k, n - 1)
    if d <= TREE_DIMENSIONS:
        distances, indices = cKDTree(X, leafsize=24).query(X, k=k + 1, workers=n_jobs)
        return Neighbors(*_without_self(indices, distances), "tree")
    if n <= exact_cells:
        return Neighbors(*_brute(X, X, k + 1, drop_self=True), "brute")
    from pynndescent import NNDescent

    index = NNDescent(X.astype(np.float32), n_neighbors=k + 1, random_state=random_state, n_jobs=n_jobs)
    indices, distances = index.neighbor_graph
    found = Neighbors(*_without_self(indices, distances.astype(np.float64)), "approximate")
    probe = np.random.default_rng(random_state).choice(n, min(200, n), replace=False)
    true, _ = _brute(X[probe], X, k + 1)
    found.recall = float(
        np.mean([len(np.intersect1d(found.indices[i], t)) / k for i, t in zip(probe, true, strict=True)])
    )
    return found


def _without_self(indices: NDArray[Any], distances: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    n, width = indices.shape
    own = indices == np.arange(n)[:, None]
    own[~own.any(axis=1), -1] = True  # not among its own neighbours: the farthest goes
    keep = ~own
    return indices[keep].reshape(n, width - 1).astype(np.int32), distances[keep].reshape(n, width - 1)


def _brute(
    A: NDArray[np.float64], B: NDArray[np.float64], k: int, drop_self: bool = False
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Blocks of squared distances in float32, the k best kept and measured again in float64."""
    low, other = A.astype(np.float32), B.astype(np.float32)
    norms = np.einsum("ij,ij->i", other, other)
    block = max(1, min(len(A), 40_000_000 // max(1, len(B))))
    indices = np.empty((len(A), k), dtype=np.int32)
    distances = np.empty((len(A), k))
    for start in range(0, len(A), block):
        rows = slice(start, min(len(A), start + block))
        square = norms - 2.0 * (low[rows] @ other.T)
        best = (
            np.argpartition(square, min(k, square.shape[1] - 1), axis=1)[:, :k]
            if k < square.shape[1]
            else np.tile(np.arange(k), (square.shape[0], 1))
        )
        exact = np.sqrt(((A[rows, None, :] - B[best]) ** 2).sum(axis=2))
        order = np.argsort(exact, axis=1, kind="stable")
        indices[rows] = np.take_along_axis(best, order, 1)
        distances[rows] = np.take_along_axis(exact, order, 1)
    return _without_self(indices, distances) if drop_self else (indices, distances)


def alpha_decay_kernel(
    neighbors: Neighbors,
    *,
    decay: float = 40.0,
    bandwidth_neighbor: int = BANDWIDTH_NEIGHBOR,
    threshold: float = THRESHOLD,
) -> sparse.csr_array:
    """Symmetric kernel K_ij = exp(-(d_ij/s_i)^a)/2 + exp(-(d_ij/s_j)^a)/2, with s_i the distance to a near neighbour.

    Parameters
    ----------
    neighbors : Neighbors
    decay : float
        The exponent a; 2 is a Gaussian, 40 nearly a ball.
    bandwidth_neighbor : int
        Which neighbour gives s_i, counted from 1.
    threshold : float
        Smaller values are dropped.

    Returns
    -------
    csr_array[n, n]
        With 1 on the diagonal.

    Notes
    -----
    Moon et al., "Visualizing structure and transitions in high-dimensional biological data", 2019, equation of the
    alpha-decaying kernel.
    """
    n, k = neighbors.indices.shape
    scale = np.maximum(neighbors.distances[:, min(bandwidth_neighbor, k) - 1], 1e-12)
    graph = neighbors.graph().tocoo()
    rows, columns = graph.coords
    with np.errstate(under="ignore"):
        values = 0.5 * np.exp(-((graph.data / scale[rows]) ** decay)) + 0.5 * np.exp(
            -((graph.data / scale[columns]) ** decay)
        )
    keep = values >= threshold
    K = sparse.coo_array((values[keep], (rows[keep], columns[keep])), shape=(n, n)).tocsr()
    return (K + sparse.eye_array(n, format="csr")).tocsr()


def without_density(
    kernel: sparse.csr_array, weights: Float[np.ndarray, " n"] | None = None, alpha: float = 1.0
) -> sparse.csr_array:
    """Anisotropic normalisation K_ij / (q_i q_j)^alpha with q = K w (Coifman and Lafon 2006); alpha=1 removes the
    density.
    """
    q = kernel @ (np.ones(kernel.shape[0]) if weights is None else weights)
    scale = sparse.diags_array(q**-alpha)
    return (scale @ kernel @ scale).tocsr()


@dataclass
class Diffusion:
    """Leading eigenpairs of a diffusion operator.

    Attributes
    ----------
    eigenvalues : float64[r]
        Descending; the first is 1.
    vectors : float64[n, r]
        Right eigenvectors psi of P, with sum_x pi(x) psi(x)^2 = 1.
    stationary : float64[n]
        pi, with sum 1.
    t : int
        Diffusion time: the knee of the entropy.
    entropy : float64[100]
        Von Neumann entropy at t = 1..100.
    """

    eigenvalues: Float[np.ndarray, " r"]
    vectors: Float[np.ndarray, "n r"]
    stationary: Float[np.ndarray, " n"]
    t: int = 1
    entropy: Float[np.ndarray, " times"] = field(default_factory=lambda: np.empty(0))

    def coordinates(self, t: int | None = None) -> Float[np.ndarray, "n q"]:
        """Coordinates whose Euclidean distance is the diffusion distance D_t (constant vector left out)."""
        powers = np.sign(self.eigenvalues) ** (t or self.t) * np.abs(self.eigenvalues) ** (t or self.t)
        return self.vectors[:, 1:] * powers[1:]

    def potential(
        self, kernel: sparse.csr_array, weights: Float[np.ndarray, " n"] | None = None
    ) -> Float[np.ndarray, "n q"]:
        """Coordinates whose Euclidean distance is the potential distance of PHATE: between rows of -log(P^t + 1e-7).

        Principal coordinates, as many as there are eigenpairs. P^t is dense: n^2 numbers (200 MB at 5000 points) and t
        products of a sparse and a dense matrix.

        Parameters
        ----------
        kernel : csr_array[n, n]
            That of `diffusion_map`.
        weights : float64[n], optional

        Notes
        -----
        Moon et al. 2019 (PHATE), potential distance with gamma = 1.
        """
        n = kernel.shape[0]
        w = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
        P = (sparse.diags_array(1.0 / (kernel @ w)) @ kernel @ sparse.diags_array(w)).tocsr()
        power = np.eye(n)
        for _ in range(self.t):
            power = P @ power
        U = -np.log(power + POTENTIAL_SHIFT)
        U -= np.average(U, axis=0, weights=w)
        k = min(len(self.eigenvalues), n - 1)
        values, vectors = top_eigenpairs_of_gram(U, k)
        return vectors * np.sqrt(np.maximum(values, 0.0))

    def multiscale(self) -> Float[np.ndarray, "n q"]:
        """Coordinates of the distance summed over all times, lambda / (1 - lambda) (Haghverdi et al. 2016)."""
        values = self.eigenvalues[1:]
        good = values > 0
        return self.vectors[:, 1:][:, good] * (values[good] / np.maximum(1.0 - values[good], 1e-9))


def diffusion_map(
    kernel: sparse.csr_array,
    n_components: int = 30,
    *,
    weights: Float[np.ndarray, " n"] | None = None,
    t: int | str = "auto",
    random_state: int = 0,
    start: Float[np.ndarray, "n q"] | None = None,
) -> Diffusion:
    """Eigenpairs of P = D^-1 K W for a symmetric kernel K and weights W of the cells.

    Parameters
    ----------
    kernel : csr_array[n, n]
        Symmetric, non-negative; of one connected component or of several.
    n_components : int
        Number of eigenpairs, the constant one among them.
    weights : float64[n], optional
        How many cells each row stands for.
    t : int or "auto"
    random_state : int
        Of the start vector.
    start : float64[n, q], optional
        Vectors near the wanted psi, at least ``n_components`` of them (those of a larger set of cells, restricted):
        they are refined instead of searched for.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> K = without_density(alpha_decay_kernel(nearest_neighbors(X, 15)))
    >>> found = diffusion_map(K, 10)
    >>> float(round(found.eigenvalues[0], 6)), found.vectors.shape
    (1.0, (300, 10))
    """
    n = kernel.shape[0]
    w = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
    degree = kernel @ w
    half = np.sqrt(w / degree)
    symmetric = (sparse.diags_array(half) @ kernel @ sparse.diags_array(half)).tocsr()
    mass = w * degree
    if start is None or min(start.shape) < n_components:
        values, vectors = top_eigenpairs(symmetric, min(n_components, n), random_state)
    else:
        values, vectors = refine_eigenpairs(symmetric, start * np.sqrt(mass)[:, None], n_components)
    pi = mass / mass.sum()
    psi = vectors / np.sqrt(pi)[:, None]
    psi *= np.where(psi[np.argmax(np.abs(psi), axis=0), np.arange(psi.shape[1])] < 0, -1.0, 1.0)
    entropy = von_neumann_entropy(values)
    time = knee(entropy) if t == "auto" else int(t)
    return Diffusion(values, psi, pi, time, entropy)


def top_eigenpairs(
    matrix: sparse.csr_array, k: int, random_state: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The k algebraically largest eigenpairs of a symmetric matrix with spectrum in [-1, 1], descending."""
    n = matrix.shape[0]
    if n <= max(300, 3 * k):
        values, vectors = np.linalg.eigh(matrix.toarray())
        return values[::-1][:k].copy(), vectors[:, ::-1][:, :k].copy()

    def lazy_power(x: NDArray[np.float64]) -> NDArray[np.float64]:
        for _ in range(POWER):
            x = 0.5 * (x + matrix @ x)
        return x

    start = np.random.default_rng(random_state).normal(size=n)
    _, basis = eigsh(
        LinearOperator((n, n), matvec=lazy_power, dtype=np.float64),
        k=k,
        ncv=min(n, 2 * k + 20),
        which="LA",
        v0=start,
        tol=1e-7,
    )
    basis, _ = np.linalg.qr(basis)
    small = basis.T @ (matrix @ basis)
    values, rotation = np.linalg.eigh(0.5 * (small + small.T))
    return values[::-1].copy(), (basis @ rotation)[:, ::-1].copy()


def refine_eigenpairs(
    matrix: sparse.csr_array, start: Float[np.ndarray, "n q"], k: int, tolerance: float = 1e-3, rounds: int = 6
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The k largest eigenpairs of a symmetric matrix with spectrum in [-1, 1] from vectors that nearly span theirs.

    Subspace iteration with a Chebyshev filter (Saad 1984) that damps [-1, b], b the smallest Ritz value of the
    ``start``; all vectors are multiplied at once, so the matrix is read once a degree and not once a vector. Ends when
    the residuals of the k are below ``tolerance``, or after some rounds.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(400, 2))
    >>> K = without_density(alpha_decay_kernel(nearest_neighbors(X, 15)))
    >>> half = sparse.diags_array(K.sum(axis=1) ** -0.5)
    >>> M = (half @ K @ half).tocsr()
    >>> values, vectors = top_eigenpairs(M, 12)
    >>> noisy = vectors + 0.01 * np.random.default_rng(1).normal(size=vectors.shape)
    >>> bool(np.abs(refine_eigenpairs(M, noisy, 6)[0] - values[:6]).max() < 1e-6)
    True
    """
    basis = np.linalg.qr(start)[0]
    for trial in range(rounds):
        product = matrix @ basis
        values, rotation = np.linalg.eigh(basis.T @ product)
        values, rotation = values[::-1], rotation[:, ::-1]
        basis = basis @ rotation
        residual = np.linalg.norm(product @ rotation[:, :k] - basis[:, :k] * values[:k], axis=0)
        if residual.max() < tolerance or trial == rounds - 1:
            break
        basis = np.linalg.qr(_chebyshev(matrix, basis, float(values[-1])))[0]
    return values[:k].copy(), np.ascontiguousarray(basis[:, :k])


def _chebyshev(matrix: sparse.csr_array, V: NDArray[np.float64], high: float) -> NDArray[np.float64]:
    """The Chebyshev polynomial of degree `DEGREE` that stays within 1 on [-1, high], of a matrix times vectors."""
    centre, half = 0.5 * (high - 1.0), 0.5 * (high + 1.0)
    before, now = V, (matrix @ V - centre * V) / half
    for _ in range(DEGREE - 1):
        before, now = now, (2.0 / half) * (matrix @ now - centre * now) - before
    return now


POWER = 8
DEGREE = 24
POTENTIAL_SHIFT = 1e-7


def top_eigenpairs_of_gram(U: NDArray[np.float64], k: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The k largest eigenpairs of U U^T, descending."""
    gram = U @ U.T
    n = len(gram)
    if n <= max(300, 3 * k):
        values, vectors = np.linalg.eigh(gram)
        return values[::-1][:k].copy(), vectors[:, ::-1][:, :k].copy()
    start = np.random.default_rng(0).normal(size=n)
    values, vectors = eigsh(gram, k=k, which="LA", v0=start, tol=1e-8)
    order = np.argsort(values)[::-1]
    return values[order], vectors[:, order]


def von_neumann_entropy(eigenvalues: Float[np.ndarray, " r"], t_max: int = 100) -> Float[np.ndarray, " times"]:
    """-sum eta log eta with eta_i = abs(lambda_i)^t / sum, for t = 1..t_max."""
    powers = np.abs(eigenvalues)[None, :] ** np.arange(1, t_max + 1)[:, None]
    eta = powers / powers.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.where(eta > 0, eta * np.log(eta), 0.0).sum(axis=1)


def knee(curve: Float[np.ndarray, " n"]) -> int:
    """Position (from 1) of the knee: where two straight lines, before and after, fit a falling curve best."""
    n = len(curve)
    x = np.arange(n, dtype=np.float64)

    def residuals(y: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.float64]:
        m = np.arange(1, len(y) + 1)
        sx, sy, sxx, sxy, syy = (np.cumsum(v) for v in (x, y, x * x, x * y, y * y))
        var = np.maximum(sxx - sx**2 / m, 1e-12)
        return np.maximum(syy - sy**2 / m - (sxy - sx * sy / m) ** 2 / var, 0.0)

    left, right = residuals(curve, x), residuals(curve[::-1], x[::-1])[::-1]
    total = left[1:-1] + right[1:-1]
    return int(np.argmin(total)) + 2
