"""How an item's success probability depends on the skills it needs: the rules of the G-DINA family (de la Torre, 2011).

An item that needs n skills tells 2^n reduced classes apart. A rule gives the design matrix [2^n, parameters] of its
probabilities and a link. DINA, DINO and the saturated rule have closed-form M-steps (a proportion a group of classes);
the additive ones take Fisher scoring steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from assay.diagnosis.errors import UnknownName

EPS = 1e-10
Array = NDArray[Any]
RULES = ("GDINA", "DINA", "DINO", "ACDM", "LLM", "RRUM")


def reduced_classes(n: int) -> NDArray[np.int64]:
    """``int64[2^n, n]``: the reduced classes; bit k of the row number is skill k.

    >>> reduced_classes(2).tolist()
    [[0, 0], [1, 0], [0, 1], [1, 1]]
    """
    return (np.arange(2**n)[:, None] >> np.arange(n)) & 1


@dataclass(frozen=True, eq=False)
class ItemRule:
    """The rule of one item.

    Attributes
    ----------
    name : str
    n : int
        Skills that the item needs.
    groups : int64[2^n]
        Closed-form rules: reduced classes with the same number share a probability.
    design : float64[2^n, p]
        Additive rules: probability = link^-1(design @ delta).
    link : str
        identity, logit or log.
    """

    name: str
    n: int
    groups: NDArray[np.int64] | None
    design: Array
    link: str

    @property
    def n_params(self) -> int:
        return int(self.design.shape[1])

    @property
    def closed(self) -> bool:
        return self.groups is not None


def item_rule(name: str, n: int) -> ItemRule:
    """The rule for an item with n skills. With one skill all rules are the same.

    Raises
    ------
    UnknownName
        If there is no such rule.

    Examples
    --------
    >>> item_rule("ACDM", 2).design.tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]
    """
    key = name.upper().replace("-", "")
    if key not in RULES:
        raise UnknownName.of("rule", name, RULES)
    bits = reduced_classes(n)
    if key in ("DINA", "DINO") or n == 1:
        groups = np.asarray(bits.all(1) if key != "DINO" else bits.any(1)).astype(np.int64)
        return ItemRule(key, n, groups, np.eye(2)[groups], "identity")
    if key == "GDINA":
        return ItemRule(key, n, np.arange(2**n), np.eye(2**n), "identity")
    design = np.hstack([np.ones((2**n, 1)), bits]).astype(np.float64)
    return ItemRule(key, n, None, design, {"ACDM": "identity", "LLM": "logit", "RRUM": "log"}[key])


def to_probability(eta: Array, link: str) -> Array:
    """Inverse link, kept off 0 and 1."""
    p = {"identity": lambda v: v, "logit": expit, "log": np.exp}[link](eta)
    clipped: Array = np.clip(p, EPS, 1 - EPS)
    return clipped


def from_probability(p: Array, link: str) -> Array:
    """The link."""
    value: Array = {"identity": lambda v: v, "logit": logit, "log": np.log}[link](np.clip(p, 1e-6, 1 - 1e-6))
    return value


def link_slope(p: Array, link: str) -> Array:
    """dP / d eta."""
    slope: Array = {"identity": np.ones_like(p), "logit": p * (1 - p), "log": p}[link]
    return slope


def additive_step(rule: ItemRule, delta: Array, r: Array, n: Array, *, monotone: bool, steps: int = 3) -> Array:
    """Fisher scoring on the expected counts of the reduced classes (right ``r``, all ``n``), halved until it does not
    go down.
    """

    def value(d: Array) -> float:
        eta = rule.design @ d
        if rule.link == "identity" and (eta.min() < EPS or eta.max() > 1 - EPS):
            return -np.inf
        if rule.link == "log" and eta.max() > -EPS:
            return -np.inf
        if monotone and (d[1:] < 0).any():
            return -np.inf
        p = to_probability(eta, rule.link)
        return float(r @ np.log(p) + (n - r) @ np.log1p(-p))

    best = value(delta)
    for _ in range(steps):
        p = to_probability(rule.design @ delta, rule.link)
        slope = link_slope(p, rule.link)
        weight = n * slope**2 / (p * (1 - p))
        gradient = rule.design.T @ ((r - n * p) * slope / (p * (1 - p)))
        fisher = (rule.design.T * weight) @ rule.design + 1e-8 * np.eye(rule.n_params)
        free = np.ones(rule.n_params, dtype=bool)
        if monotone:
            free[1:] = ~((delta[1:] <= 1e-9) & (gradient[1:] < 0))
        step = np.zeros(rule.n_params)
        step[free] = np.linalg.solve(fisher[np.ix_(free, free)], gradient[free])
        moved = False
        for _ in range(20):
            trial = delta + step
            if monotone:
                trial[1:] = np.maximum(trial[1:], 0)
            now = value(trial)
            if now >= best:
                moved = now > best + 1e-12 * abs(best)
                delta, best = trial, now
                break
            step = step / 2
        if not moved:
            break
    return delta


def isotonic(p: Array, weight: Array, n: int, *, cycles: int = 200) -> Array:
    """Probabilities made monotone in every skill: the weighted least-squares projection onto the order of the reduced
    classes,
    which is also the binomial maximum-likelihood fit (Robertson, Wright, Dykstra, 1988), by Dykstra's cyclic
    projections.

    >>> isotonic(np.array([0.5, 0.3, 0.6, 0.9]), np.array([1.0, 1.0, 1.0, 1.0]), 2).round(3).tolist()
    [0.4, 0.4, 0.6, 0.9]
    """
    shape = (2,) * n
    value, w = p.copy(), np.maximum(weight, 1e-8)
    correction = np.zeros((n, 2**n))
    index = np.arange(2**n).reshape(shape)
    pairs = []
    for k in range(n):  # bit k is axis n-1-k of the reshaped table
        low = np.take(index, 0, axis=n - 1 - k).ravel()
        pairs.append((low, low + 2**k))
    for _ in range(cycles):
        before = value.copy()
        for k, (low, high) in enumerate(pairs):
            trial = value + correction[k]
            mean = (w[low] * trial[low] + w[high] * trial[high]) / (w[low] + w[high])
            bad = trial[low] > trial[high]
            projected = trial.copy()
            projected[low[bad]] = projected[high[bad]] = mean[bad]
            correction[k] = trial - projected
            value = projected
        if np.abs(value - before).max() < 1e-12:
            break
    return value
