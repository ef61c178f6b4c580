"""Decisions under a credal set and a matrix of utilities."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.uncertainty.credal.bounds import CredalSet, expectation_bounds, wasserstein_program
from assay.uncertainty.errors import NotSupported, UncertaintyError
from assay.uncertainty.representations import Hull, Intervals, ScoreBall, TVBall


def gamma_maximin(
    rep: CredalSet, utility: ArrayLike | None = None, *, cost: ArrayLike | None = None
) -> NDArray[np.int64]:
    """The action whose worst expected utility over the set is best.

    Parameters
    ----------
    rep : credal set
    utility : array_like, (K, A), optional
        Utility of action a where class k is true; default: the identity (accuracy).
    cost : array_like, (K, A), optional
        The negative of a utility.

    Returns
    -------
    int64[...]

    Examples
    --------
    >>> gamma_maximin(Intervals([[0.3, 0.4]], [[0.6, 0.7]])).tolist()
    [1]
    >>> # action 2: ask a person
    >>> gamma_maximin(Intervals([[0.3, 0.4]], [[0.6, 0.7]]), cost=[[0, 9, 1], [9, 0, 1]]).tolist()
    [2]
    """
    low, _ = expectation_bounds(rep, _utility(rep, utility, cost))
    return np.asarray(low.argmax(-1))


def e_admissible(
    rep: CredalSet, utility: ArrayLike | None = None, *, cost: ArrayLike | None = None
) -> NDArray[np.bool_]:
    """Actions that are best for some distribution of the set (Levi): a mask ``(..., A)``; a linear program an action
    and row.

    Raises
    ------
    NotSupported
        For level sets and KL balls, which no finite number of linear constraints describes.

    Examples
    --------
    >>> e_admissible(Intervals([[0.1, 0.3, 0.0]], [[0.6, 0.8, 0.2]])).tolist()
    [[True, True, False]]
    """
    u = _utility(rep, utility, cost)
    polytope = isinstance(rep, (Intervals, Hull, TVBall)) or (isinstance(rep, ScoreBall) and rep.score != "kl")
    if not polytope:
        raise NotSupported("e_admissible", type(rep).__name__, (), "it needs a polytope; take enclosing(rep)")
    rows = int(np.prod(rep.batch_shape, dtype=np.int64))
    out = np.array([[_best_somewhere(rep, i, u, a) for a in range(u.shape[1])] for i in range(rows)])
    return out.reshape(*rep.batch_shape, u.shape[1])


def _utility(rep: CredalSet, utility: ArrayLike | None, cost: ArrayLike | None) -> NDArray[np.float64]:
    if utility is not None and cost is not None:
        raise UncertaintyError("give a matrix of utilities or one of costs, not both")
    k = rep.n_classes
    u = (
        np.eye(k)
        if utility is None and cost is None
        else np.asarray(utility if cost is None else cost, dtype=np.float64)
    )
    if u.ndim != 2 or u.shape[0] != k or not np.isfinite(u).all():
        raise UncertaintyError(f"utilities are a finite matrix (classes, actions) with {k} rows, not shape {u.shape}")
    return u if cost is None else -u


def _best_somewhere(rep: CredalSet, i: int, u: NDArray[np.float64], action: int) -> bool:
    from scipy.optimize import linprog

    k = rep.n_classes
    better = (u - u[:, [action]]).T  # rows: how much another action gains over this one
    better = np.delete(better, action, axis=0)
    if isinstance(rep, Hull):
        v = rep.vertices.reshape(-1, rep.vertices.shape[-2], k)[i]
        if not rep.convex:
            return bool((better @ v.T <= 1e-12).all(0).any())
        m = len(v)
        problem: dict[str, Any] = {
            "A_ub": better @ v.T,
            "b_ub": np.zeros(len(better)),
            "A_eq": np.ones((1, m)),
            "b_eq": [1.0],
            "bounds": [(0, 1)] * m,
        }
    elif isinstance(rep, Intervals):
        l, h = rep.lower.reshape(-1, k)[i], rep.upper.reshape(-1, k)[i]
        bounds = list(zip(l, h, strict=True))
        m = k
        problem = {
            "A_ub": better,
            "b_ub": np.zeros(len(better)),
            "A_eq": np.ones((1, k)),
            "b_eq": [1.0],
            "bounds": bounds,
        }
    elif isinstance(rep, ScoreBall):
        c, r = rep.center.reshape(-1, k)[i], float(rep.radius.reshape(-1)[i])
        if rep.score == "inner":
            a, b = -c[None], np.array([min(r, 1.0) - 1])
        else:
            a, b = wasserstein_program(c, r)
        m = a.shape[1]
        problem = {
            "A_ub": np.vstack([np.hstack([better, np.zeros((len(better), m - k))]), a]),
            "b_ub": np.concatenate([np.zeros(len(better)), b]),
            "A_eq": np.concatenate([np.ones(k), np.zeros(m - k)])[None],
            "b_eq": [1.0],
            "bounds": [(0, None)] * m,
        }
    else:
        assert isinstance(rep, TVBall)
        c, r = rep.center.reshape(-1, k)[i], rep.radius.reshape(-1)[i]
        m = 3 * k  # p, and the two parts of p - c
        none = np.zeros((len(better), 2 * k))
        a_ub = np.vstack([np.hstack([better, none]), np.concatenate([np.zeros(k), np.ones(2 * k)])[None]])
        a_eq = np.vstack(
            [np.hstack([np.eye(k), -np.eye(k), np.eye(k)]), np.concatenate([np.ones(k), np.zeros(2 * k)])[None]]
        )
        problem = {
            "A_ub": a_ub,
            "b_ub": np.append(np.zeros(len(better)), 2 * r),
            "A_eq": a_eq,
            "b_eq": np.append(c, 1.0),
            "bounds": [(0, 1)] * m,
        }
    if not len(better):
        return True
    return bool(linprog(np.zeros(m), **problem).status == 0)
