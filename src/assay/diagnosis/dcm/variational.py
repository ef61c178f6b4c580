"""DINA and DINO with many skills: mean-field variational EM, independent skills a posteriori, K instead of 2^K
numbers a student.

Derivation [our design]: with rho_ik = q(alpha_ik = 1), the expected conjunction of item j is prod_k rho_ik^q_jk, so
coordinate ascent sets logit rho_ik = logit pi_k + sum_j q_jk prod_{l != k} rho_il^q_jl * w_ij, w = log((1-s)/g) for a
right and log(s/(1-g)) for a wrong answer. Each update maximises the bound exactly, so the bound never falls. DINO is
DINA with skills and answers negated.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr, expit, logit

from assay.diagnosis.errors import NotConverged
from assay.diagnosis.responses import ResponseData

Array = NDArray[np.float64]
_LOW = 1e-9


class _Field:
    """Answers expanded once a required skill, sorted for products over the skills of an answer."""

    def __init__(self, data: ResponseData, kind: str) -> None:
        self.data = data
        self.y = data.correct.astype(np.float64) if kind == "DINA" else 1.0 - data.correct
        self.rows, self.skill = data.per_skill()
        self.student = data.student[self.rows].astype(np.int64)
        self.start = np.searchsorted(self.rows, np.arange(len(data)))
        self.k = data.n_kcs
        self.of_skill = [np.flatnonzero(self.skill == k) for k in range(self.k)]

    def conjunction(self, rho: Array) -> Array:
        """Expected conjunction of each answer."""
        return np.exp(np.add.reduceat(np.log(rho[self.student, self.skill]), self.start))

    def update(self, rho: Array, prior: Array, right: Array, wrong: Array) -> None:
        """One sweep over the skills, in place."""
        weight = np.where(self.y == 1, right[self.data.item], wrong[self.data.item])
        eta = self.conjunction(rho)
        n = len(rho)
        for k in range(self.k):
            at = self.of_skill[k]
            rows, who = self.rows[at], self.student[at]
            others = eta[rows] / rho[who, k]
            fresh = np.clip(expit(logit(prior[k]) + np.bincount(who, others * weight[rows], n)), _LOW, 1 - _LOW)
            eta[rows] = others * fresh[who]
            rho[:, k] = fresh

    def bound(self, rho: Array, prior: Array, guess: Array, slip: Array) -> float:
        """Evidence lower bound."""
        eta, item = self.conjunction(rho), self.data.item
        yes = np.where(self.y == 1, np.log(1 - slip)[item], np.log(slip)[item])
        no = np.where(self.y == 1, np.log(guess)[item], np.log1p(-guess)[item])
        skills = rho * np.log(prior) + (1 - rho) * np.log1p(-prior) + entr(rho) + entr(1 - rho)
        return float(np.sum(eta * yes + (1 - eta) * no) + skills.sum())


def fit_variational(model: Any, data: ResponseData) -> None:
    """Fit a `DINA` or `DINO` by mean-field EM."""
    field = _Field(data, model._kind)
    j = data.n_items
    guess, slip, prior = np.full(j, 0.2), np.full(j, 0.2), np.full(data.n_kcs, 0.5)
    rho = np.full((data.n_students, data.n_kcs), 0.5)
    history: list[float] = []
    n = np.bincount(data.item, minlength=j)
    tol = max(model.tol, 1e-7 * len(data))
    for _ in range(model.max_iter):
        for _ in range(2):
            field.update(rho, prior, np.log((1 - slip) / guess), np.log(slip / (1 - guess)))
        eta = field.conjunction(rho)
        yes, right_yes = np.bincount(data.item, eta, j), np.bincount(data.item, eta * field.y, j)
        right = np.bincount(data.item, field.y, j)
        # one pseudo-answer each way, at the starting values, keeps rare items off 0 and 1
        guess = np.clip((right - right_yes + 0.2) / (n - yes + 1), 1e-4, 0.5)
        slip = np.clip((yes - right_yes + 0.2) / (yes + 1), 1e-4, 0.4999)
        prior = np.clip(rho.mean(0), 1e-3, 1 - 1e-3)
        history.append(field.bound(rho, prior, guess, slip))
        if len(history) > 1 and abs(history[-1] - history[-2]) < tol:
            break
    else:
        warnings.warn(f"variational EM stopped after {model.max_iter} steps", NotConverged, stacklevel=4)
    model.history_, model.n_iter_, model.loglik_ = np.array(history), len(history), history[-1]
    model.n_params_, model.n_ = 2 * j + data.n_kcs, data.n_students
    if model._kind == "DINO":
        rho, prior, guess, slip = 1 - rho, 1 - prior, slip, guess
    model.skill_prob_, model.states_ = prior, rho
    model.item_params_ = np.column_stack([guess, slip])


def skills_given_items(data: ResponseData, item_params: Array, prior: Array, kind: str) -> Array:
    """Skill probabilities of students with items fixed."""
    field = _Field(data, kind)
    guess, slip = item_params.T
    if kind == "DINO":
        guess, slip, prior = slip, guess, 1 - prior
    rho = np.full((data.n_students, data.n_kcs), 0.5)
    for _ in range(50):
        before = rho.copy()
        field.update(rho, prior, np.log((1 - slip) / guess), np.log(slip / (1 - guess)))
        if np.abs(rho - before).max() < 1e-8:
            break
    return 1 - rho if kind == "DINO" else rho


def success(
    states: Array, student: NDArray[Any], item: NDArray[Any], q: NDArray[np.bool_], item_params: Array, kind: str
) -> Array:
    """Probability of a right answer."""
    rho = np.clip(states if kind == "DINA" else 1 - states, _LOW, 1 - _LOW)
    eta = np.exp(np.einsum("mk,mk->m", np.log(rho)[student], q[item].astype(np.float64)))
    if kind == "DINO":
        eta = 1 - eta
    guess, slip = item_params.T
    p: Array = guess[item] + (1 - slip[item] - guess[item]) * eta
    return p
