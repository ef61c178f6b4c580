"""Differential item functioning: does an item treat two groups of equal ability alike?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.special import expit

from assay.diagnosis.errors import DiagnosisError, UnknownName
from assay.diagnosis.responses import ResponseData

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]


def differential_item_functioning(
    data: ResponseData, group: ArrayLike, *, match: str = "score", theta: ArrayLike | None = None, strata: int = 10
) -> pd.DataFrame:
    """Mantel-Haenszel and logistic regression for each item.

    Parameters
    ----------
    data : ResponseData
    group : array_like, int[S]
        1 focal, 0 reference.
    match : {"score", "theta"}
        Students are compared within strata of their share of right answers, or of an ability.
    theta : array_like, float[S], optional
        The ability; default: `IRT` fitted here.
    strata : int
        For theta, and for shares of incomplete data; complete data is matched by the number of right answers.

    Returns
    -------
    DataFrame
        A row an item: ``mh_odds`` (common odds ratio, above 1: easier for the reference group), ``mh_chi2`` (continuity
        corrected), ``mh_p``, ``delta`` (-2.35 log odds), ``ets`` (A negligible, B, C large; Zwick and Ercikan 1989),
        ``lr_uniform_p``, ``lr_nonuniform_p`` (likelihood-ratio tests of logistic regression, Swaminathan and Rogers
        1990).

    Raises
    ------
    DiagnosisError
        If the group has another length, or holds other values than 0 and 1.

    Examples
    --------
    >>> from assay.diagnosis import load
    >>> data = load("lsat6")
    >>> table = differential_item_functioning(data, np.arange(1000) % 2)
    >>> table["ets"].tolist()
    ['A', 'A', 'A', 'A', 'A']
    """
    import pandas as pd

    g = np.asarray(group)
    if g.shape != (data.n_students,):
        raise DiagnosisError(f"group is {list(g.shape)}, and there are {data.n_students} students")
    if not np.isin(g, (0, 1)).all() or len(np.unique(g)) < 2:
        raise DiagnosisError(f"group must hold 0 (reference) and 1 (focal), both; it holds {np.unique(g)[:5].tolist()}")
    if match == "score":
        n = np.bincount(data.student, minlength=data.n_students)
        right = np.bincount(data.student, data.correct, data.n_students)
        level = right / np.maximum(n, 1)
        stratum = right.astype(np.int64) if len(data) == data.n_students * data.n_items else _binned(level, strata)
    elif match == "theta":
        if theta is None:
            from assay.diagnosis.irt import IRT

            theta = IRT().fit(data).theta_
        level = np.asarray(theta, dtype=np.float64)
        stratum = _binned(level, strata)
    else:
        raise UnknownName.of("way to match", match, ("score", "theta"))
    level = (level - level.mean()) / max(float(level.std()), 1e-12)
    rows = []
    for j in range(data.n_items):
        at = data.item == j
        who, y = data.student[at], data.correct[at].astype(np.float64)
        odds, chi2, p, se = _mantel_haenszel(y, g[who], stratum[who])
        delta = -2.35 * np.log(odds) if odds > 0 and np.isfinite(odds) else np.nan
        uniform, nonuniform = _logistic_tests(y, level[who], g[who].astype(np.float64))
        rows.append((data.item_ids[j], odds, chi2, p, delta, _ets(delta, p, 2.35 * se), uniform, nonuniform))
    names = ["item", "mh_odds", "mh_chi2", "mh_p", "delta", "ets", "lr_uniform_p", "lr_nonuniform_p"]
    return pd.DataFrame(rows, columns=names)


def _binned(level: Array, strata: int) -> NDArray[np.int64]:
    edges = np.quantile(level, np.linspace(0, 1, strata + 1)[1:-1])
    return np.searchsorted(edges, level, side="right")


def _mantel_haenszel(
    y: Array, group: NDArray[np.int64], stratum: NDArray[np.int64]
) -> tuple[float, float, float, float]:
    cell = stratum * 4 + group * 2 + y.astype(np.int64)
    table = np.bincount(cell, minlength=4 * (int(stratum.max(initial=0)) + 1)).reshape(-1, 2, 2).astype(np.float64)
    b, a, d, c = (
        table[:, 0, 0],
        table[:, 0, 1],
        table[:, 1, 0],
        table[:, 1, 1],
    )  # reference wrong, right; focal wrong, right
    n = a + b + c + d
    use = ((a + b) > 0) & ((c + d) > 0) & (n > 1)
    a, b, c, d, n = a[use], b[use], c[use], d[use], n[use]
    r, s = a * d / n, b * c / n
    if not len(n) or s.sum() == 0 or r.sum() == 0:
        return np.nan, np.nan, np.nan, np.nan
    expected = (a + b) * (a + c) / n
    variance = (a + b) * (c + d) * (a + c) * (b + d) / (n**2 * (n - 1))
    chi2 = max(0.0, abs(a.sum() - expected.sum()) - 0.5) ** 2 / max(variance.sum(), 1e-12)
    # variance of the log odds ratio: Robins, Breslow, Greenland (1986)
    pp, qq = (a + d) / n, (b + c) / n
    var = (
        (pp * r).sum() / (2 * r.sum() ** 2)
        + (pp * s + qq * r).sum() / (2 * r.sum() * s.sum())
        + (qq * s).sum() / (2 * s.sum() ** 2)
    )
    return float(r.sum() / s.sum()), float(chi2), float(stats.chi2.sf(chi2, 1)), float(np.sqrt(var))


def _ets(delta: float, p: float, se: float) -> str:
    if not np.isfinite(delta):
        return ""
    if abs(delta) < 1 or p >= 0.05:
        return "A"
    return "C" if abs(delta) >= 1.5 and abs(delta) - 1.645 * se > 1 else "B"


def _logistic_tests(y: Array, level: Array, group: Array) -> tuple[float, float]:
    base = np.column_stack([np.ones(len(y)), level])
    uniform = np.column_stack([base, group])
    both = np.column_stack([uniform, group * level])
    ll = [_logistic_likelihood(x, y) for x in (base, uniform, both)]
    return tuple(float(stats.chi2.sf(max(0.0, 2 * (ll[i + 1] - ll[i])), 1)) for i in (0, 1))  # type: ignore[return-value]


def _logistic_likelihood(x: Array, y: Array) -> float:
    beta = np.zeros(x.shape[1])
    for _ in range(30):
        p = expit(x @ beta)
        w = np.maximum(p * (1 - p), 1e-9)
        step = np.linalg.solve((x.T * w) @ x + 1e-8 * np.eye(len(beta)), x.T @ (y - p))
        beta += np.clip(step, -5, 5)
        if np.abs(step).max() < 1e-9:
            break
    z = x @ beta
    return float(y @ z - np.logaddexp(0, z).sum())
