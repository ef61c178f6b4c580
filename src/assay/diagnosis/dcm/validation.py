"""Is the Q-matrix right, and which rule does each item follow?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, stats

from assay.diagnosis.dcm.fit import item_covariance
from assay.diagnosis.dcm.models import GDINA
from assay.diagnosis.dcm.rules import item_rule, reduced_classes
from assay.diagnosis.errors import DiagnosisError
from assay.diagnosis.irt.likelihood import Collapsed
from assay.diagnosis.responses import ResponseData

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class QProposal:
    """A Q-matrix proposed by the data.

    Attributes
    ----------
    q : bool[J, K]
        Proposed.
    changed : tuple of int
        Items whose row differs from the given one.
    pvaf : list of dict
        For each item, skills -> share of the variance that they account for.
    rounds : int
        Fits that were judged.
    """

    q: NDArray[np.bool_]
    changed: tuple[int, ...]
    pvaf: list[dict[tuple[int, ...], float]]
    rounds: int = 1


def qmatrix_validation(model: GDINA, data: ResponseData, *, cutoff: float = 0.95, rounds: int = 1) -> QProposal:
    """Propose for each item the fewest skills that account for enough of the variance of its success probabilities.

    PVAF (de la Torre and Chiu 2016): for skills q, sum_l w_l (P_j(l reduced to q) - mean P_j)^2 over the same with all
    K skills, where w are the class probabilities of a fitted G-DINA and P_j(l) is the proportion right expected in
    class l.

    A skill that nearly everyone has who has an item's other skills accounts for little variance, and goes: look at
    ``pvaf`` of such items before you believe the proposal.

    Parameters
    ----------
    model : GDINA
        Fitted with the given Q-matrix on ``data``.
    data : ResponseData
    cutoff : float
        PVAF that is enough. Among row candidates of that size the one with the largest PVAF is taken.
    rounds : int
        Fits to judge at most: with more than 1 the model is fitted again with the proposal, until it stays. Of use
        where many rows are wrong and the first fit is off.

    Raises
    ------
    DiagnosisError
        If the model knows more than 10 skills (2^K candidates an item), or the data is not the model's.

    Examples
    --------
    >>> from assay.diagnosis import GDINA, qmatrix_validation, simulate_platform
    >>> made = simulate_platform(2000, 20, 3, density=1.0, slip=0.1, guess=0.1, seed=0)
    >>> qmatrix_validation(GDINA().fit(made.data), made.data).changed
    ()
    """
    k = model.q_.shape[1]
    if k > 10:
        raise DiagnosisError(f"{k} skills make 2^{k} candidates an item; validate at most 10 at a time")
    if not 0 < cutoff <= 1:
        raise DiagnosisError(f"cutoff={cutoff} must be in (0, 1]")
    if rounds < 1:
        raise DiagnosisError(f"rounds={rounds} must be at least 1")
    model._same_items(data)
    if data.n_students != len(model.states_):
        raise DiagnosisError(f"the model was fitted on {len(model.states_)} students, this data has {data.n_students}")
    proposed, shares = _propose(model, data, cutoff)
    judged, previous = 1, model.q_
    while judged < rounds and (proposed != previous).any() and proposed.any(0).all():
        previous = proposed
        again = replace(data, q=sparse.csr_array(proposed.astype(np.uint8)))
        proposed, shares = _propose(model.clone().fit(again), again, cutoff)
        judged += 1
    changed = tuple(np.flatnonzero((proposed != model.q_).any(1)).tolist())
    return QProposal(proposed, changed, shares, judged)


def _propose(
    model: GDINA, data: ResponseData, cutoff: float
) -> tuple[NDArray[np.bool_], list[dict[tuple[int, ...], float]]]:
    k = model.q_.shape[1]
    right, answered = Collapsed(data, collapse=False).expected(model.posterior_.astype(np.float64))
    classes = model.classes_
    candidates = reduced_classes(k)[1:].astype(bool)
    candidates = candidates[np.argsort(candidates.sum(1), kind="stable")]
    codes = [classes[:, c] @ (2 ** np.arange(c.sum())) for c in candidates]
    proposed = np.zeros_like(model.q_)
    shares: list[dict[tuple[int, ...], float]] = []
    for j in range(len(model.q_)):
        mean = right[j].sum() / max(answered[j].sum(), 1e-12)
        variance = np.empty(len(candidates))
        for c, code in enumerate(codes):
            r, n = np.bincount(code, right[j]), np.bincount(code, answered[j])
            w = np.bincount(code, model.class_prob_)
            variance[c] = np.sum(w * (r / np.maximum(n, 1e-12) - mean) ** 2)
        pvaf = variance / max(variance[-1], 1e-12)
        size = candidates.sum(1)
        fewest = size[pvaf >= cutoff].min()
        best = np.flatnonzero(size == fewest)[pvaf[size == fewest].argmax()]
        proposed[j] = candidates[best]
        shares.append({tuple(np.flatnonzero(c).tolist()): float(v) for c, v in zip(candidates, pvaf, strict=True)})
    return proposed, shares


def choose_rules(model: GDINA, data: ResponseData, *, level: float = 0.05) -> pd.DataFrame:
    """A rule for each item: the simplest that the Wald test does not reject against the saturated one (de la Torre
    and Lee 2013).

    Parameters
    ----------
    model : GDINA
        Saturated, fitted on ``data``.
    level : float
        Rules with a larger p-value stay; of these the one with the fewest parameters, then the largest p-value, is
        chosen.

    Returns
    -------
    DataFrame
        A row an item: ``rule`` and the p-values ``DINA``, ``DINO``, ``ACDM``, ``LLM``, ``RRUM`` (NaN for items with
        one skill).

    Raises
    ------
    DiagnosisError
        If the model is not saturated.
    """
    import pandas as pd

    if any(rule.name != "GDINA" for rule in model.rules):
        raise DiagnosisError("the Wald test starts from a saturated model: fit GDINA() first")
    model._same_items(data)
    covariance, slices, free = item_covariance(model, data)
    rows = []
    for j, rule in enumerate(model.rules):
        row: dict[str, object] = {
            "item": data.item_ids[j],
            "rule": "GDINA",
            **dict.fromkeys(("DINA", "DINO", "ACDM", "LLM", "RRUM"), np.nan),
        }
        if rule.n > 1:
            p = np.clip(model.success_[model.space.offset[j] : model.space.offset[j + 1]], 1e-4, 1 - 1e-4)
            v = covariance[slices[j], slices[j]].copy()
            # A probability on the boundary has no standard error; it gets that of half a pseudo-answer in its class.
            share = np.bincount(model.space.group[j] - model.space.offset[j], model.class_prob_, len(p))
            n = model.n_ * share + 1
            soft = (p * (n - 1) + 0.5) / n
            v[np.diag_indices(len(p))] = np.where(free[slices[j]], np.diag(v), soft * (1 - soft) / n) + 1e-8
            best: tuple[int, float] | None = None
            for name in ("DINA", "DINO", "ACDM", "LLM", "RRUM"):
                small = item_rule(name, rule.n)
                link = small.link
                value, slope = {
                    "identity": (p, np.ones_like(p)),
                    "logit": (np.log(p / (1 - p)), 1 / (p * (1 - p))),
                    "log": (np.log(p), 1 / p),
                }[link]
                restriction = np.linalg.svd(small.design, full_matrices=True)[0][:, small.n_params :].T
                difference = restriction @ value
                spread = restriction @ (slope[:, None] * v * slope) @ restriction.T
                wald = float(difference @ np.linalg.pinv(spread, hermitian=True) @ difference)
                row[name] = float(stats.chi2.sf(wald, len(restriction)))
                if row[name] > level and (best is None or (small.n_params, -row[name]) < best):  # type: ignore[operator]
                    best = (small.n_params, -row[name])  # type: ignore[operator]
                    row["rule"] = name
        rows.append(row)
    return pd.DataFrame(rows)
