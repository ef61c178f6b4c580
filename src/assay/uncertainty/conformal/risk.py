"""A rejection threshold with a guaranteed risk: exact binomial bounds on a hold-out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import beta

from assay.uncertainty.errors import TargetShape, UncertaintyError


@dataclass(frozen=True)
class RiskThreshold:
    """Accept rows whose uncertainty is at most ``threshold``.

    Attributes
    ----------
    threshold : float
        Minus infinity where no threshold can be guaranteed: accept nothing.
    coverage : float
        Share of hold-out rows accepted.
    bound : float
        Upper confidence bound of the error rate among accepted rows.
    """

    threshold: float
    coverage: float
    bound: float
    risk: float
    delta: float


def binomial_upper(errors: int, n: int, delta: float) -> float:
    """Clopper-Pearson upper bound of an error rate, valid with probability 1 - delta.

    >>> round(binomial_upper(0, 100, 0.05), 4)
    0.0295
    """
    return 1.0 if n == 0 or errors == n else float(beta.ppf(1 - delta, errors + 1, n - errors))


def risk_threshold(
    uncertainty: ArrayLike, wrong: ArrayLike, *, risk: float, delta: float = 0.05, steps: int = 50
) -> RiskThreshold:
    """The largest threshold whose error rate among accepted rows is at most ``risk`` with probability ``1 - delta``.

    Fixed-sequence testing (Learn then Test, Angelopoulos et al., 2021): candidate thresholds are the quantiles of the
    hold-out's uncertainty, tested from the strictest to the most generous, each at level delta; the first that fails
    ends the sequence.

    Parameters
    ----------
    uncertainty : array_like, (rows)
    wrong : array_like of bool, (rows)
        Whether the prediction of a hold-out row was wrong.
    risk, delta : float
    steps : int
        Candidates. They depend on the uncertainties alone, so the guarantee is conditional on these.

    Raises
    ------
    TargetShape, UncertaintyError

    Examples
    --------
    >>> u = np.arange(1000) / 1000
    >>> wrong = np.random.default_rng(0).random(1000) < u ** 2 / 2                     # the uncertain half errs more
    >>> found = risk_threshold(u, wrong, risk=0.05)
    >>> round(found.coverage, 2), bool(found.bound <= 0.05)
    (0.58, True)
    """
    u, w = np.asarray(uncertainty, dtype=np.float64), np.asarray(wrong).astype(bool)
    if u.shape != w.shape or u.ndim != 1 or not len(u):
        raise TargetShape(f"uncertainty {u.shape} and wrong {w.shape}: one of both a row is needed")
    if not 0 < risk < 1 or not 0 < delta < 1 or np.isnan(u).any():
        raise UncertaintyError(f"risk {risk} and delta {delta} lie between 0 and 1, and uncertainties are no NaN")
    # Start where zero errors would already satisfy the bound; stricter thresholds cannot pass.
    least = int(np.ceil(np.log(delta) / np.log1p(-risk)))
    ordered = np.sort(u)
    best = RiskThreshold(-np.inf, 0.0, 1.0, risk, delta)
    if least > len(u):
        return best
    for n in np.unique(np.linspace(least, len(u), steps).astype(int)):
        t = float(ordered[n - 1])
        accepted = u <= t
        bound = binomial_upper(int(w[accepted].sum()), int(accepted.sum()), delta)
        if bound > risk:
            break
        best = RiskThreshold(t, float(accepted.mean()), bound, risk, delta)
    return best
