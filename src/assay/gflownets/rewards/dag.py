"""Local scores of Bayesian networks, tabulated once in float64: one number for each variable and each parent set.

A parent set is a bit mask over the d variables; the score of a graph is the sum over variables of table[j, parents(j)].
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from scipy.special import gammaln

from assay.gflownets.errors import GFlowNetError


def _check(data: np.ndarray) -> np.ndarray:
    data = np.asarray(data, np.float64)
    if data.ndim != 2 or data.shape[1] < 1 or len(data) < 2 or not np.isfinite(data).all():
        raise GFlowNetError(f"a score needs a table of finite numbers with at least two rows, not {data.shape}")
    if data.shape[1] > 16:
        raise GFlowNetError(
            f"{data.shape[1]} variables would need a table of 2**{data.shape[1]} parent sets; at most 16"
        )
    return data


def _parents(mask: int, d: int) -> list[int]:
    return [i for i in range(d) if mask >> i & 1]


def bge_table(
    data: Float[np.ndarray, "rows variables"], alpha_mu: float = 1.0, alpha_w: float | None = None
) -> Float[np.ndarray, "variables sets"]:
    """BGe local scores (Geiger and Heckerman 1994; Kuipers, Moffa and Heckerman 2014).

    With l parents P and Q = P + {j}: .5 log(a/(n+a)) + lgamma((n+w-d+l+1)/2) - lgamma((w-d+l+1)/2) - n/2 log pi
    + (w-d+2l+1)/2 log t + (n+w-d+l)/2 log|R_P| - (n+w-d+l+1)/2 log|R_Q|, where a = alpha_mu, w = alpha_w (default d
    + 2), t = a(w-d-1)/(a+1), R = t I + scatter about the mean + n a/(n+a) xbar xbar'. Entries with j in P are ``-inf``.

    Examples
    --------
    >>> i = np.arange(1, 11)
    >>> X = np.stack([np.sin(i), np.cos(i) + 0.5 * np.sin(i), np.sin(2 * i)], 1)
    >>> round(float(bge_table(X)[:, 0].sum()), 3)
    -41.682
    """
    data = _check(data)
    n, d = data.shape
    w = d + 2 if alpha_w is None else alpha_w
    if alpha_mu <= 0 or w <= d + 1:
        raise GFlowNetError(f"BGe needs alpha_mu > 0 and alpha_w > d + 1 = {d + 1}, not {alpha_mu} and {w}")
    t = alpha_mu * (w - d - 1) / (alpha_mu + 1)
    mean = data.mean(0)
    centred = data - mean
    R = t * np.eye(d) + centred.T @ centred + n * alpha_mu / (n + alpha_mu) * np.outer(mean, mean)
    logdet = np.zeros(1 << d)
    for subset in range(1, 1 << d):
        rows = _parents(subset, d)
        logdet[subset] = np.linalg.slogdet(R[np.ix_(rows, rows)])[1]
    table = np.full((d, 1 << d), -np.inf)
    for j in range(d):
        for subset in range(1 << d):
            if subset >> j & 1:
                continue
            l = subset.bit_count()
            table[j, subset] = (
                0.5 * np.log(alpha_mu / (n + alpha_mu))
                + gammaln((n + w - d + l + 1) / 2)
                - gammaln((w - d + l + 1) / 2)
                - n / 2 * np.log(np.pi)
                + (w - d + 2 * l + 1) / 2 * np.log(t)
                + (n + w - d + l) / 2 * logdet[subset]
                - (n + w - d + l + 1) / 2 * logdet[subset | 1 << j]
            )
    return table


def linear_gaussian_table(
    data: Float[np.ndarray, "rows variables"], obs_sd: float = 0.1**0.5
) -> Float[np.ndarray, "variables sets"]:
    """Marginal likelihood of y = X_P w + noise, w ~ N(0, I): -.5 (n log 2pi + log|C| + y' C^-1 y), C = s^2 I + X_P
    X_P'.

    gfnx 0.0.1 has the sign of the determinant and of the constant the other way round.
    """
    data = _check(data)
    n, d = data.shape
    if obs_sd <= 0:
        raise GFlowNetError(f"obs_sd must be positive, not {obs_sd}")
    s2 = obs_sd**2
    table = np.full((d, 1 << d), -np.inf)
    for subset in range(1 << d):
        X = data[:, _parents(subset, d)]
        # Woodbury: C^-1 = (I - X M^-1 X') / s2 with M = s2 I + X'X, and log|C| = (n - l) log s2 + log|M|
        M = s2 * np.eye(X.shape[1]) + X.T @ X
        logdet = (n - X.shape[1]) * np.log(s2) + (np.linalg.slogdet(M)[1] if X.shape[1] else 0.0)
        for j in range(d):
            if subset >> j & 1:
                continue
            y = data[:, j]
            b = X.T @ y
            quad = (y @ y - (b @ np.linalg.solve(M, b) if len(b) else 0.0)) / s2
            table[j, subset] = -0.5 * (n * np.log(2 * np.pi) + logdet + quad)
    return table


def bde_table(
    codes: Int[np.ndarray, "rows variables"], equivalent_sample_size: float = 1.0
) -> Float[np.ndarray, "variables sets"]:
    """BDeu local scores of discrete data (Heckerman, Geiger and Chickering 1995, equation 28 with uniform priors).

    Categories of a column are the values that occur in it.
    """
    data = np.asarray(codes)
    if data.ndim != 2 or data.shape[1] > 16 or len(data) < 1:
        raise GFlowNetError(f"BDeu needs a table of categories with 1 to 16 columns, not {data.shape}")
    if equivalent_sample_size <= 0:
        raise GFlowNetError(f"equivalent_sample_size must be positive, not {equivalent_sample_size}")
    d = data.shape[1]
    coded = [np.unique(data[:, j], return_inverse=True) for j in range(d)]
    levels = [len(values) for values, _ in coded]
    table = np.full((d, 1 << d), -np.inf)
    for subset in range(1 << d):
        parents = _parents(subset, d)
        q = int(np.prod([levels[p] for p in parents])) if parents else 1
        row = np.zeros(len(data), np.int64)
        for p in parents:
            row = row * levels[p] + coded[p][1]
        _, row = np.unique(row, return_inverse=True)
        for j in range(d):
            if subset >> j & 1:
                continue
            r = levels[j]
            counts = np.zeros((row.max() + 1, r))
            np.add.at(counts, (row, coded[j][1]), 1)
            a_row, a_cell = equivalent_sample_size / q, equivalent_sample_size / (q * r)
            table[j, subset] = (gammaln(a_row) - gammaln(a_row + counts.sum(1))).sum() + (
                gammaln(a_cell + counts) - gammaln(a_cell)
            ).sum()
    return table


PRIORS = ("uniform", "edges", "fair", "erdos_renyi")


def with_prior(table: np.ndarray, prior: str, *, beta: float = 1.0, p: float | None = None) -> np.ndarray:
    """Add a modular prior over graphs to local scores (up to a constant that does not depend on the graph).

    ``edges``: -beta for each edge. ``fair``: 1 / C(d-1, l) for l parents (Eggeling et al. 2019). ``erdos_renyi``: p^l
    (1-p)^(d-1-l), default p = 1/(d-1).
    """
    d = table.shape[0]
    size = np.array([s.bit_count() for s in range(table.shape[1])])
    if prior == "uniform":
        return table
    if prior == "edges":
        return table - beta * size
    if prior == "fair":
        l = np.minimum(size, d - 1)
        return table - (gammaln(d) - gammaln(l + 1) - gammaln(d - l))
    if prior == "erdos_renyi":
        rate = p if p is not None else min(1 / max(d - 1, 1), 0.5)
        if not 0 < rate < 1:
            raise GFlowNetError(f"the edge probability of the prior must lie between 0 and 1, not {rate}")
        return table + size * np.log(rate) + (d - 1 - size) * np.log1p(-rate)
    raise GFlowNetError(f"there is no prior {prior!r}; there is {', '.join(PRIORS)}")
