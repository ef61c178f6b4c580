"""Expectation-maximisation over latent classes, with equal answer rows collapsed and steps extrapolated.

1. Students with the same row of answers (blanks included) are one pattern with a count.
2. Two plain steps are extrapolated by SQUAREM (Varadhan and Roland, 2008, scheme S3), on the probabilities
themselves. An
   extrapolated point is kept only if its log-likelihood is not below that of the second plain step, so the likelihood
   never falls.
3. The end is judged by the gain of a plain step.
4. Classes that no item tells apart under its rule (`merged_classes`) are one class: their posteriors stand to each
   other as their starting shares do in every step, so nothing is lost. Of the 256 classes of frcsub DINA needs 58, of
   the 32,768 of 15 skills on 25 items a few thousand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.diagnosis.dcm.rules import EPS, ItemRule, additive_step, from_probability, isotonic, to_probability
from assay.diagnosis.irt.likelihood import Collapsed, normalise

Array = NDArray[Any]
CLASS_EPS = 1e-300


class ClassSpace:
    """Classes of a test and how each item reduces them.

    Attributes
    ----------
    classes : bool[L, K]
    reduced : list of int64[L]
        For each item, the reduced class of each class.
    group : int64[J, L]
        The same, numbered through all items; sums over it go through one bincount.
    offset : int64[J + 1]
        Where an item's reduced classes begin in a flat vector.
    """

    def __init__(self, q: NDArray[np.bool_], classes: NDArray[np.bool_]) -> None:
        self.q, self.classes = q, classes
        self.n_skills = q.sum(1)
        self.offset = np.r_[0, np.cumsum(2**self.n_skills)].astype(np.int64)
        self.group = np.empty((len(q), len(classes)), dtype=np.int64)
        for j, needs in enumerate(q):
            skills = np.flatnonzero(needs)
            self.group[j] = self.offset[j] + classes[:, skills] @ (2 ** np.arange(len(skills)))
        self.size = int(self.offset[-1])
        self._flat = self.group.ravel()

    def reduce(self, table: Array) -> Array:
        """Sum ``table[J, L]`` within reduced classes: a flat vector."""
        return np.bincount(self._flat, np.ascontiguousarray(table).ravel(), self.size)

    def expand(self, flat: Array) -> Array:
        """``float64[J, L]`` of a flat vector over reduced classes."""
        return flat[self.group]


def merged_classes(space: ClassSpace, rules: list[ItemRule]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Classes that differ for some item, by the position of their first, and the place of every class among them.

    >>> q, classes = np.array([[True, True]]), np.array([[0, 0], [1, 0], [0, 1], [1, 1]], dtype=bool)
    >>> from assay.diagnosis.dcm.rules import item_rule
    >>> [a.tolist() for a in merged_classes(ClassSpace(q, classes), [item_rule("DINA", 2)])]
    [[0, 3], [0, 0, 0, 1]]
    """
    codes = np.empty((len(space.classes), len(rules)), dtype=np.int16)
    for j, rule in enumerate(rules):
        reduced = space.group[j] - space.offset[j]
        codes[:, j] = reduced if rule.groups is None else rule.groups[reduced]
    rows = codes.view(np.dtype((np.void, codes.dtype.itemsize * codes.shape[1]))).ravel()
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return first[order], rank[inverse]


@dataclass
class Parameters:
    """What the algorithm moves: class probabilities, success probabilities of reduced classes, and deltas of additive
    rules.
    """

    classes: Array
    success: Array
    deltas: dict[int, Array]

    def vector(self) -> Array:
        return np.concatenate([self.classes, self.success])


@dataclass
class EMResult:
    """Where a run of the algorithm ended."""

    parameters: Parameters
    posterior: Array
    log_likelihood: float
    history: Array
    gain: float
    evaluations: int


class EM:
    """The algorithm for one data set, class space and set of rules."""

    def __init__(
        self, collapsed: Collapsed, space: ClassSpace, rules: list[ItemRule], *, monotone: bool = False
    ) -> None:
        self.collapsed, self.space, self.rules, self.monotone = collapsed, space, rules, monotone
        self.n = float(collapsed.counts.sum())
        self.additive = [j for j, rule in enumerate(rules) if not rule.closed]
        # closed-form items: reduced classes that share a probability
        self.shared = np.arange(space.size)
        for j, rule in enumerate(rules):
            if rule.groups is not None:
                first = np.array([np.flatnonzero(rule.groups == g)[0] for g in rule.groups])
                self.shared[space.offset[j] : space.offset[j + 1]] = space.offset[j] + first
        self.plain = bool((self.shared == np.arange(space.size)).all())

    def start(self, rng: np.random.Generator | None = None) -> Parameters:
        """The standard start (guess = slip = .2, additive in between, uniform classes), or a random one."""
        n_classes = len(self.space.classes)
        success = np.empty(self.space.size)
        deltas: dict[int, Array] = {}
        for j, rule in enumerate(self.rules):
            bits = (np.arange(2**rule.n)[:, None] >> np.arange(rule.n)) & 1
            low, high = (0.2, 0.8) if rng is None else (rng.uniform(0.05, 0.45), rng.uniform(0.55, 0.95))
            p = low + (high - low) * bits.mean(1)
            if rule.groups is not None:
                top = np.zeros(len(p))
                np.maximum.at(top, rule.groups, p)
                bottom = np.ones(len(p))
                np.minimum.at(bottom, rule.groups, p)
                same = np.bincount(rule.groups) > 1
                p = np.where(same[rule.groups], np.where(rule.groups == 0, bottom[rule.groups], top[rule.groups]), p)
            else:
                eta = from_probability(p, rule.link)
                deltas[j] = np.linalg.lstsq(rule.design, eta, rcond=None)[0]
                if rule.link == "log":
                    deltas[j][0] = np.log(high) - deltas[j][1:].sum()
                p = to_probability(rule.design @ deltas[j], rule.link)
            success[self.space.offset[j] : self.space.offset[j + 1]] = p
        classes = np.full(n_classes, 1 / n_classes) if rng is None else rng.dirichlet(np.full(n_classes, 2.0))
        return Parameters(classes, success, deltas)

    def expectation(self, parameters: Parameters) -> tuple[Array, float]:
        """Posterior of each pattern ``[patterns, L]`` and the log-likelihood."""
        p = self.space.expand(np.clip(parameters.success, EPS, 1 - EPS))
        joint = self.collapsed.log_likelihood(p) + np.log(np.maximum(parameters.classes, CLASS_EPS))
        posterior, rows = normalise(joint)
        return posterior, float(self.collapsed.counts @ rows)

    def maximisation(self, posterior: Array, old: Parameters) -> Parameters:
        """Class shares, proportions of closed-form rules, scoring steps of additive ones."""
        classes = self.collapsed.counts @ posterior / self.n
        right, answered = self.collapsed.expected(posterior)
        r, n = self.space.reduce(right), self.space.reduce(answered)
        if self.plain:
            pooled_r, pooled_n = r, n
        else:
            pooled_r = np.bincount(self.shared, r, self.space.size)[self.shared]
            pooled_n = np.bincount(self.shared, n, self.space.size)[self.shared]
        success = np.where(pooled_n > 1e-10, pooled_r / np.maximum(pooled_n, 1e-10), old.success)
        deltas = dict(old.deltas)
        for j in self.additive:
            part = slice(self.space.offset[j], self.space.offset[j + 1])
            rule = self.rules[j]
            deltas[j] = additive_step(rule, old.deltas[j], r[part], n[part], monotone=self.monotone)
            success[part] = to_probability(rule.design @ deltas[j], rule.link)
        if self.monotone:
            self._make_monotone(success, n)
        return Parameters(classes, np.clip(success, EPS, 1 - EPS), deltas)

    def _make_monotone(self, success: Array, n: Array) -> None:
        for j, rule in enumerate(self.rules):
            if not rule.closed:
                continue
            part = slice(self.space.offset[j], self.space.offset[j + 1])
            p = success[part]
            table = p.reshape((2,) * rule.n)
            if any(np.any(np.diff(table, axis=axis) < 0) for axis in range(rule.n)):
                success[part] = isotonic(p, n[part], rule.n)

    def run(
        self,
        start: Parameters,
        *,
        tol: float = 1e-8,
        max_iter: int = 5000,
        accelerate: bool = True,
        report: Callable[[int, float], None] | None = None,
    ) -> EMResult:
        """Iterate until a plain step gains less than ``tol``."""
        accelerate = accelerate and not self.additive
        current = start
        posterior, value = self.expectation(current)
        history = [value]
        gain = np.inf
        evaluations = 1
        while evaluations < max_iter:
            first = self.maximisation(posterior, current)
            posterior, first_value = self.expectation(first)
            evaluations += 1
            gain = first_value - value
            history.append(first_value)
            if gain < tol:
                current, value = first, first_value
                break
            if not accelerate:
                current, value = first, first_value
                continue
            second = self.maximisation(posterior, first)
            r = first.vector() - current.vector()
            v = (second.vector() - first.vector()) - r
            length = float(np.sqrt(float(r @ r) / max(float(v @ v), 1e-300)))
            jump = None
            if length > 1.01:
                jump = self._extrapolated(current, r, v, -length)
            if jump is not None:
                posterior, jumped = self.expectation(jump)
                evaluations += 1
                if jumped >= first_value:
                    current, value = jump, jumped
                    history.append(value)
                    continue
            posterior, second_value = self.expectation(second)
            evaluations += 1
            current, value = second, second_value
            history.append(value)
        return EMResult(current, posterior, value, np.array(history), float(gain), evaluations)

    def _extrapolated(self, current: Parameters, r: Array, v: Array, step: float) -> Parameters:
        x = current.vector() - 2 * step * r + step**2 * v
        n_classes = len(current.classes)
        low = np.minimum(1e-10, current.classes)
        classes = np.maximum(x[:n_classes], low)
        success = np.clip(x[n_classes:], EPS, 1 - EPS)
        if self.monotone:
            self._make_monotone(success, np.ones(self.space.size))
        return Parameters(classes / classes.sum(), success, current.deltas)
