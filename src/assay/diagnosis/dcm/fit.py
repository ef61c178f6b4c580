"""Does the model fit: information criteria, M2, SRMSR, items, pairs of items, standard errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from assay.diagnosis.dcm.rules import EPS, from_probability, link_slope
from assay.diagnosis.errors import DiagnosisError
from assay.diagnosis.irt.likelihood import Collapsed
from assay.diagnosis.responses import ResponseData

if TYPE_CHECKING:
    import pandas as pd

    from assay.diagnosis.dcm.models import GDINA

Array = NDArray[np.float64]
MAX_M2_MARGINS = 1500


@dataclass(frozen=True)
class FitStatistics:
    """Absolute and relative fit. ``m2_reason`` says why there is no M2, where there is none."""

    loglik: float
    n_params: int
    aic: float
    bic: float
    caic: float
    srmsr: float
    max_abs_correlation_residual: float
    m2: float
    m2_df: int
    m2_p: float
    rmsea2: float
    m2_reason: str = ""


def fit_statistics(model: GDINA, data: ResponseData) -> FitStatistics:
    """Fit of a diagnostic classification model to the data it was fitted on.

    M2 is the limited-information statistic of Maydeu-Olivares and Joe (2005) on first- and second-order margins. It
    needs complete data and more margins than parameters; where that is not so, its reason is given and the rest is
    still there. SRMSR compares tetra-free (phi) correlations over pairs of items answered together.

    Examples
    --------
    >>> from assay.diagnosis import DINA, fit_statistics, simulate_platform
    >>> made = simulate_platform(1000, 15, 3, density=1.0, seed=0)
    >>> fit = fit_statistics(DINA().fit(made.data), made.data)
    >>> fit.m2_df, fit.rmsea2 < 0.02, fit.srmsr < 0.05
    (83, True, True)
    """
    _same_students(model, data)
    k, n = model.n_params_, data.n_students
    observed, expected, _ = pair_correlations(model, data)
    upper = np.triu_indices(len(model.q_), 1)
    residual = (observed - expected)[upper]
    residual = residual[np.isfinite(residual)]
    m2, df, p, rmsea, reason = _m2(model, data)
    return FitStatistics(
        model.loglik_,
        k,
        -2 * model.loglik_ + 2 * k,
        -2 * model.loglik_ + np.log(n) * k,
        -2 * model.loglik_ + (np.log(n) + 1) * k,
        float(np.sqrt(np.mean(residual**2))) if len(residual) else np.nan,
        float(np.abs(residual).max()) if len(residual) else np.nan,
        m2,
        df,
        p,
        rmsea,
        reason,
    )


def pair_correlations(model: GDINA, data: ResponseData) -> tuple[Array, Array, Array]:
    """Observed and expected phi correlations of all pairs of items, and how many answered both, ``float64[J, J]``
    each.
    """
    table = data.matrix().astype(np.float64)
    seen = ~np.isnan(table)
    x, m = np.where(seen, table, 0.0), seen.astype(np.float64)
    n = m.T @ m
    with np.errstate(invalid="ignore", divide="ignore"):
        both, first = x.T @ x / n, (x.T @ m) / n
        observed = (both - first * first.T) / np.sqrt(first * (1 - first) * first.T * (1 - first.T))
        p = model.space.expand(model.success_)
        mean = p @ model.class_prob_
        joint = (p * model.class_prob_) @ p.T
        sd = np.sqrt(mean * (1 - mean))
        expected = (joint - np.outer(mean, mean)) / np.outer(sd, sd)
    return observed, expected, n


def item_fit(model: GDINA, data: ResponseData) -> pd.DataFrame:
    """How well each item fits.

    Columns: ``rmsea`` (root of the class-weighted squared distance between the model's success probability in a class
    and the proportion expected there; above .1 is poor), ``max_z`` and ``p``: the largest Fisher-z distance between
    observed and expected correlation with another item, and its p-value times the number of pairs of the item (Chen, de
    la Torre, Zhang 2013).
    """
    import pandas as pd

    _same_students(model, data)
    collapsed = Collapsed(data, collapse=False)
    right, answered = collapsed.expected(model.posterior_.astype(np.float64))
    p = model.space.expand(model.success_)
    share = answered / np.maximum(answered.sum(1, keepdims=True), EPS)
    rmsea = np.sqrt(np.sum(share * (p - right / np.maximum(answered, EPS)) ** 2, axis=1))
    observed, expected, n = pair_correlations(model, data)
    np.fill_diagonal(observed, np.nan)
    with np.errstate(invalid="ignore"):
        z = (np.arctanh(np.clip(observed, -0.999, 0.999)) - np.arctanh(np.clip(expected, -0.999, 0.999))) * np.sqrt(
            np.maximum(n - 3, 0)
        )
    largest = np.array([np.nanmax(np.abs(row)) if np.isfinite(row).any() else np.nan for row in z])
    pairs = np.isfinite(z).sum(1)
    p_value = np.minimum(1, 2 * stats.norm.sf(largest) * pairs)
    return pd.DataFrame(
        {
            "item": list(data.item_ids),
            "rmsea": rmsea,
            "max_z": largest,
            "p": p_value,
            "guess": model.item_params_[:, 0],
            "slip": model.item_params_[:, 1],
        }
    )


def score_vectors(model: GDINA, data: ResponseData) -> tuple[Array, Array, list[slice]]:
    """Derivatives of each pattern's log-likelihood by the free parameters: items' (their rule's), then L-1 class
    probabilities.

    Returns
    -------
    float64[patterns, P], counts, and the slice of each item
    """
    collapsed = Collapsed(data)
    p = np.clip(model.space.expand(model.success_), EPS, 1 - EPS)
    from assay.diagnosis.dcm.em import EM, Parameters

    posterior, _ = EM(collapsed, model.space, model.rules).expectation(
        Parameters(model.class_prob_, model.success_, {})
    )
    right = np.asarray(collapsed.right if isinstance(collapsed.right, np.ndarray) else collapsed.right.toarray())
    answered = np.asarray(
        collapsed.answered if isinstance(collapsed.answered, np.ndarray) else collapsed.answered.toarray()
    )
    columns: list[Array] = []
    slices: list[slice] = []
    at = 0
    for j, rule in enumerate(model.rules):
        part = slice(model.space.offset[j], model.space.offset[j + 1])
        member = np.zeros((p.shape[1], 2**rule.n))
        member[np.arange(p.shape[1]), model.space.group[j] - part.start] = 1
        mass = posterior @ member
        value = model.success_[part]
        d = mass * (right[:, [j]] / value - (answered[:, [j]] - right[:, [j]]) / (1 - value))
        design = rule.design if rule.closed else rule.design * link_slope(value, rule.link)[:, None]
        columns.append(d @ design)
        slices.append(slice(at, at + rule.n_params))
        at += rule.n_params
    share = posterior / np.maximum(model.class_prob_, 1e-12)
    columns.append(share[:, 1:] - share[:, :1])
    return np.hstack(columns), collapsed.counts, slices


def standard_errors(model: GDINA, data: ResponseData) -> tuple[list[Array], list[Array]]:
    """Estimates and standard errors of each item's parameters.

    The covariance is the inverse of the summed outer products of the students' scores. Parameters on the boundary
    (below 1e-4 or above 1 - 1e-4) have none: NaN.

    Returns
    -------
    list of float64[p_j], list of float64[p_j]
        Closed-form rules: success probabilities of their groups; additive rules: the deltas on their link.

    Examples
    --------
    >>> from assay.diagnosis import DINA, simulate_platform
    >>> made = simulate_platform(2000, 15, 2, density=1.0, slip=0.1, guess=0.2, seed=0)
    >>> estimates, errors = standard_errors(DINA().fit(made.data), made.data)
    >>> bool(abs(estimates[0][0] - 0.2) < 3 * errors[0][0])
    True
    """
    _same_students(model, data)
    covariance, slices, free = item_covariance(model, data)
    estimates, errors = [], []
    for j, rule in enumerate(model.rules):
        value = model.success_[model.space.offset[j] : model.space.offset[j + 1]]
        if rule.groups is not None:
            estimate = np.array([value[rule.groups == g][0] for g in range(rule.n_params)])
        else:
            estimate = np.linalg.lstsq(rule.design, from_probability(value, rule.link), rcond=None)[0]
        var = np.diag(covariance)[slices[j]]
        estimates.append(estimate)
        errors.append(np.where(free[slices[j]], np.sqrt(np.maximum(var, 0)), np.nan))
    return estimates, errors


def item_covariance(model: GDINA, data: ResponseData) -> tuple[Array, list[slice], NDArray[np.bool_]]:
    """Covariance of all parameters, the slice of each item, and which parameters are off the boundary."""
    scores, counts, slices = score_vectors(model, data)
    free = np.ones(scores.shape[1], dtype=bool)
    for j, rule in enumerate(model.rules):
        if rule.groups is not None:
            value = model.success_[model.space.offset[j] : model.space.offset[j + 1]]
            estimate = np.array([value[rule.groups == g][0] for g in range(rule.n_params)])
            free[slices[j]] = (estimate > 1e-4) & (estimate < 1 - 1e-4)
    start = slices[-1].stop
    free[start:] = model.class_prob_[1:] > 1e-6
    information = (scores[:, free] * counts[:, None]).T @ scores[:, free]
    covariance = np.zeros((scores.shape[1], scores.shape[1]))
    covariance[np.ix_(free, free)] = np.linalg.pinv(information, rcond=1e-10, hermitian=True)
    return covariance, slices, free


def _m2(model: GDINA, data: ResponseData) -> tuple[float, int, float, float, str]:
    none = (np.nan, 0, np.nan, np.nan)
    j = data.n_items
    if len(data) != data.n_students * j:
        return (*none, "M2 needs complete data; cells are missing here")
    margins = j * (j + 1) // 2
    if margins > MAX_M2_MARGINS:
        return (*none, f"{margins} margins are more than {MAX_M2_MARGINS}")
    if margins <= model.n_params_:
        return (*none, f"{margins} margins are not more than {model.n_params_} parameters: no degrees of freedom")
    p = np.clip(model.space.expand(model.success_), 1e-9, 1 - 1e-9).T  # [L, J]
    pi = model.class_prob_
    first, second = np.triu_indices(j, 1)
    sets = np.vstack([np.column_stack([np.arange(j), np.arange(j)]), np.column_stack([first, second])])
    single = sets[:, 0] == sets[:, 1]
    product = np.where(single, p[:, sets[:, 0]], p[:, sets[:, 0]] * p[:, sets[:, 1]])
    expected = pi @ product
    x = data.matrix().astype(np.float64)
    n = len(x)
    observed = np.r_[x.mean(0), ((x.T @ x) / n)[first, second]]
    # covariance of the margins: P(all of A and B) - P(A) P(B); items in both count once
    member = np.zeros((margins, j))
    member[np.arange(margins), sets[:, 0]] = 1
    member[np.arange(margins), sets[:, 1]] = 1
    log_p = np.log(p)
    xi = np.zeros((margins, margins))
    for weight, row, logs in zip(pi, product, log_p, strict=True):
        if weight > 1e-12:
            shared = (member * logs) @ member.T
            xi += weight * np.exp(np.add.outer(np.log(row), np.log(row)) - shared)
    xi -= np.outer(expected, expected)
    # derivatives of the margins
    columns = []
    for item, rule in enumerate(model.rules):
        part = slice(model.space.offset[item], model.space.offset[item + 1])
        touched = np.flatnonzero(member[:, item])
        others = np.where(single[touched], 1.0, product[:, touched] / p[:, [item]])
        d = np.zeros((margins, 2**rule.n))
        for c in range(2**rule.n):
            inside = model.space.group[item] == part.start + c
            d[touched, c] = pi[inside] @ others[inside]
        value = model.success_[part]
        columns.append(d @ (rule.design if rule.closed else rule.design * link_slope(value, rule.link)[:, None]))
    delta = np.hstack([*columns, (product[1:] - product[:1]).T])
    rank = int(np.linalg.matrix_rank(delta))
    df = margins - rank
    if df <= 0:
        return (*none, "no degrees of freedom are left")
    # C = D (D' Xi D)^-1 D' with D a basis of the complement of delta
    basis = np.linalg.svd(delta, full_matrices=True)[0][:, rank:]
    residual = basis.T @ (observed - expected)
    m2 = float(n * residual @ np.linalg.solve(basis.T @ xi @ basis, residual))
    return m2, df, float(stats.chi2.sf(m2, df)), float(np.sqrt(max(m2 - df, 0) / (n * df))), ""


def _same_students(model: GDINA, data: ResponseData) -> None:
    model._same_items(data)
    if getattr(model, "method", "em") != "em":
        raise DiagnosisError("fit statistics need a model fitted by EM; the variational one has no latent classes")
    if data.n_students != len(model.states_):
        raise DiagnosisError(
            f"the model was fitted on {len(model.states_)} students, this data has {data.n_students}; use the "
            "training data"
        )
