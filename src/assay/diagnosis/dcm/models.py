"""DINA, DINO and G-DINA as estimators."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.diagnosis.dcm.em import EM, ClassSpace, EMResult, merged_classes
from assay.diagnosis.dcm.rules import EPS, ItemRule, item_rule
from assay.diagnosis.errors import DiagnosisError, NotConverged, QMatrixMismatch, TooManyClasses, UnknownName
from assay.diagnosis.estimator import DiagnosisModel
from assay.diagnosis.hierarchy import MAX_SKILLS, Hierarchy
from assay.diagnosis.irt.likelihood import Collapsed
from assay.diagnosis.responses import ResponseData

Array = NDArray[Any]


class GDINA(DiagnosisModel):
    """The generalised DINA model (de la Torre 2011), by marginal maximum likelihood over latent classes.

    Parameters
    ----------
    rule : str or sequence of str
        ``GDINA`` (saturated), ``DINA``, ``DINO``, ``ACDM``, ``LLM`` or ``RRUM``; or one for each item.
    hierarchy : sequence of (int, int)
        Pairs (skill, skill that builds on it); classes that break it do not exist.
    monotone : bool
        A further skill never lowers the probability of a right answer.
    starts : int
        The standard start, and random ones beyond it; the best likelihood is kept (if better by 1e-4, so that equal
        optima do not take turns) and all are in ``start_logliks_``.
    tol : float
        The algorithm ends when a step gains less log-likelihood.
    max_iter : int
        Evaluations of the likelihood for each start.
    accelerate : bool
        Extrapolate steps (closed-form rules).
    seed : int

    Attributes
    ----------
    class_prob_ : float64[L]
    classes_ : bool[L, K]
    posterior_ : float32[S, L]
    success_ : float64
        Success probabilities of the reduced classes, item after item; see `success_table`.
    item_params_ : float64[J, 2]
        Probability without any (guess) and 1 - that with all required skills (slip).
    loglik_, n_params_, aic_, bic_ : float
    history_ : float64
        Log-likelihood of each step; it never falls.

    Raises
    ------
    TooManyClasses
        If there are more than 2^15 classes.
    QMatrixMismatch
        If an item needs no skill.
    CyclicHierarchy

    Warns
    -----
    NotConverged

    Examples
    --------
    >>> from assay.diagnosis import GDINA, simulate_platform
    >>> made = simulate_platform(1000, 20, 3, density=1.0, slip=0.1, guess=0.1, seed=0)
    >>> model = GDINA("DINA").fit(made.data)
    >>> model.n_params_, round(float(np.mean((model.mastery_ > 0.5) == (made.alpha > 0.5))), 2)
    (47, 0.99)
    """

    def __init__(
        self,
        rule: str | Sequence[str] = "GDINA",
        hierarchy: Sequence[tuple[int, int]] = (),
        monotone: bool = False,
        starts: int = 1,
        tol: float = 1e-8,
        max_iter: int = 5000,
        accelerate: bool = True,
        seed: int = 0,
    ) -> None:
        self.rule = rule
        self.hierarchy = hierarchy
        self.monotone = monotone
        self.starts = starts
        self.tol = tol
        self.max_iter = max_iter
        self.accelerate = accelerate
        self.seed = seed

    def _fit(self, data: ResponseData, valid: ResponseData | None) -> None:
        if self.starts < 1:
            raise DiagnosisError(f"starts={self.starts} must be at least 1")
        empty = np.flatnonzero(~self.q_.any(1))
        if len(empty):
            raise QMatrixMismatch(
                f"item {data.item_ids[empty[0]]!r} ({len(empty)} in all) needs no skill; drop such items with "
                "preprocess(data)"
            )
        hierarchy = Hierarchy(data.n_kcs, self.hierarchy, data.kc_names)
        if data.n_kcs > MAX_SKILLS and not self.hierarchy:
            raise TooManyClasses(
                f"{data.n_kcs} skills make 2^{data.n_kcs} classes, more than 2^{MAX_SKILLS}; use "
                "DINA(method='variational'), give a hierarchy, "
                "or merge skills"
            )
        self._set_space(hierarchy.classes())
        collapsed = Collapsed(data)
        first, place = merged_classes(self.space, self.rules)
        merged = self.space if len(first) == len(self.classes_) else ClassSpace(self.q_, self.classes_[first])
        em = EM(collapsed, merged, self.rules, monotone=self.monotone)
        rng = np.random.default_rng(self.seed)
        within = 1 / np.bincount(place)[place]
        best: EMResult | None = None
        self.start_logliks_: list[float] = []
        for number in range(self.starts):
            start = em.start(rng if number else None)
            shares = np.ones(len(place)) if not number else rng.dirichlet(np.full(len(place), 2.0))
            total = np.bincount(place, shares)
            start.classes = total / total.sum()
            found = em.run(start, tol=self.tol, max_iter=self.max_iter, accelerate=self.accelerate)
            self.start_logliks_.append(found.log_likelihood)
            if best is None or found.log_likelihood > best.log_likelihood + 1e-4:
                best, within = found, shares / total[place]
        assert best is not None
        if best.gain >= self.tol:
            warnings.warn(
                f"EM stopped after {best.evaluations} steps with a gain of {best.gain:.2g} (tol {self.tol:g}); "
                "raise max_iter",
                NotConverged,
                stacklevel=3,
            )
        self.class_prob_ = best.parameters.classes[place] * within
        self.success_ = best.parameters.success
        self.loglik_, self.history_, self.n_iter_ = best.log_likelihood, best.history, best.evaluations
        posterior = best.posterior.astype(np.float32)
        if merged is not self.space:
            posterior = posterior[:, place] * within.astype(np.float32)
        self.states_ = posterior[collapsed.pattern]
        self.n_params_ = sum(rule.n_params for rule in self.rules) + len(self.class_prob_) - 1
        self.n_ = data.n_students
        self._describe()

    def _set_space(self, classes: NDArray[np.bool_]) -> None:
        names = [self.rule] * len(self.q_) if isinstance(self.rule, str) else list(self.rule)
        if len(names) != len(self.q_):
            raise DiagnosisError(f"there are {len(names)} rules for {len(self.q_)} items")
        self.classes_ = classes
        self.space = ClassSpace(self.q_, classes)
        self.rules: list[ItemRule] = [
            item_rule(name, int(n)) for name, n in zip(names, self.space.n_skills, strict=True)
        ]

    def _restore(self, learned: dict[str, Any]) -> None:
        super()._restore(learned)
        self._set_space(self.classes_)

    def _describe(self) -> None:
        low, high = self.success_[self.space.offset[:-1]], self.success_[self.space.offset[1:] - 1]
        self.item_params_ = np.column_stack([low, 1 - high])

    @property
    def aic_(self) -> float:
        return -2 * self.loglik_ + 2 * self.n_params_

    @property
    def bic_(self) -> float:
        return -2 * self.loglik_ + float(np.log(self.n_)) * self.n_params_

    @property
    def posterior_(self) -> NDArray[np.float32]:
        self._fitted()
        posterior: NDArray[np.float32] = self.states_
        return posterior

    def success_table(self, item: int) -> dict[tuple[int, ...], float]:
        """Probability of a right answer for each reduced class of an item, by the skills (of those required) that are
        mastered.
        """
        skills = np.flatnonzero(self.q_[item])
        values = self.success_[self.space.offset[item] : self.space.offset[item + 1]]
        return {
            tuple(skills[[bool(c >> b & 1) for b in range(len(skills))]].tolist()): float(v)
            for c, v in enumerate(values)
        }

    def _estimate(self, data: ResponseData) -> Array:
        from assay.diagnosis.dcm.em import Parameters

        em = EM(Collapsed(data), self.space, self.rules)
        posterior, _ = em.expectation(Parameters(self.class_prob_, self.success_, {}))
        return posterior[em.collapsed.pattern].astype(np.float32)

    def _predict(self, states: Array, student: NDArray[Any], item: NDArray[Any]) -> Array:
        table = self.space.expand(np.clip(self.success_, EPS, 1 - EPS))
        if len(item) > len(states):  # all items of each student at once, block by block
            who, place = np.unique(student, return_inverse=True)
            if len(who) * len(table) <= 4e6:
                full = states[who] @ table.T
                picked: Array = full[place, item]
                return picked
        out = np.empty(len(item))
        step = max(1, 2_000_000 // table.shape[1])
        for start in range(0, len(item), step):
            part = slice(start, start + step)
            out[part] = np.einsum("ml,ml->m", states[student[part]], table[item[part]])
        return out

    def _mastery(self, states: Array) -> Array:
        m: Array = np.clip(states @ self.classes_.astype(states.dtype), 0, 1)
        return m

    def _mastery_se(self, states: Array) -> Array:
        m = self._mastery(states)
        se: Array = np.sqrt(m * (1 - m))
        return se

    def predict_from_mastery(self, mastery: Array, item: NDArray[Any]) -> Array:
        """Probability of a right answer for given mastery, skills taken as independent."""
        out = np.empty(len(item))
        for j in np.unique(item):
            at = item == j
            m = mastery[at][:, np.flatnonzero(self.q_[j])]
            share = np.ones((len(m), 1))
            for b in range(m.shape[1]):  # bit b of the reduced class is skill b
                share = np.hstack([share * (1 - m[:, [b]]), share * m[:, [b]]])
            out[at] = share @ self.success_[self.space.offset[j] : self.space.offset[j + 1]]
        return out

    def classify(self, method: str = "eap") -> NDArray[np.bool_]:
        """``bool[S, K]``: skills of the mean (``eap``, above one half), of the likeliest class (``map``), or without
        the class shares (``mle``).

        Raises
        ------
        UnknownName
        """
        if method == "eap":
            return self.mastery_ > 0.5
        if method == "map":
            return self.classes_[self.posterior_.argmax(1)]
        if method == "mle":
            return self.classes_[(self.posterior_ / np.maximum(self.class_prob_, 1e-12)).argmax(1)]
        raise UnknownName.of("way to classify", method, ("eap", "map", "mle"))

    def sample_states(self, rng: np.random.Generator) -> Array:
        """A class for each student, drawn from the posterior."""
        cumulative = np.cumsum(self.states_.astype(np.float64), axis=1)
        chosen = (rng.random((len(cumulative), 1)) * cumulative[:, -1:] > cumulative).sum(1)
        drawn: Array = np.eye(cumulative.shape[1], dtype=np.float32)[np.minimum(chosen, cumulative.shape[1] - 1)]
        return drawn

    def accuracy(self) -> dict[str, Any]:
        """Classification accuracy and consistency without known truth, from the posteriors.

        Accuracy: the mean probability that the chosen class (skill) is right; consistency: the mean probability that
        two independent draws from a student's posterior agree (Cui, Gierl, Chang 2012; Wang et al. 2015).

        Returns
        -------
        dict
            ``skills``: accuracy, ``skill_consistency``, float64[K] each; ``pattern``, ``pattern_consistency``: float.
        """
        m = self.mastery_.astype(np.float64)
        post = self.posterior_.astype(np.float64)
        return {
            "skills": np.maximum(m, 1 - m).mean(0),
            "skill_consistency": (m**2 + (1 - m) ** 2).mean(0),
            "pattern": float(post.max(1).mean()),
            "pattern_consistency": float((post**2).sum(1).mean()),
        }

    def extend_items(self, data: ResponseData) -> GDINA:
        """The model with more items (or the same items under another Q row, added again): the posteriors of students
        stay, the new
        items get their maximum-likelihood probabilities; see `IRT.extend_items`."""
        from assay.diagnosis.extend import extended, new_item_rows

        rows, first = new_item_rows(self, data)
        model = extended(self, data)
        if not isinstance(self.rule, str):
            model.rule = [*self.rule, *["GDINA"] * (data.n_items - first)]
        model._set_space(self.classes_)
        em = EM(Collapsed(rows, collapse=False), model.space, model.rules)
        old = em.start()
        found = old
        for _ in range(1 if not em.additive else 30):
            found = em.maximisation(self.states_.astype(np.float64), found)
        model.success_ = np.r_[self.success_, found.success[model.space.offset[first] :]]
        model._describe()
        return model


class DINA(GDINA):
    """Deterministic inputs, noisy "and": a right answer needs all skills, but for slips and guesses (Junker and
    Sijtsma 2001).

    Parameters
    ----------
    method : {"em", "variational"}
        ``variational`` treats skills as independent a posteriori, costs K instead of 2^K, and takes any number of
        skills.
    hierarchy, monotone, starts, tol, max_iter, accelerate, seed
        As in `GDINA`.

    Examples
    --------
    >>> from assay.diagnosis import DINA, simulate_platform
    >>> made = simulate_platform(1000, 60, 20, density=1.0, slip=0.1, guess=0.1, seed=0)
    >>> model = DINA(method="variational").fit(made.data)
    >>> round(float(np.mean((model.mastery_ > 0.5) == (made.alpha > 0.5))), 2)
    0.93
    """

    _kind = "DINA"
    skill_prob_: Array

    def __init__(
        self,
        method: str = "em",
        hierarchy: Sequence[tuple[int, int]] = (),
        monotone: bool = True,
        starts: int = 1,
        tol: float = 1e-8,
        max_iter: int = 5000,
        accelerate: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(self._kind, hierarchy, monotone, starts, tol, max_iter, accelerate, seed)
        self.method = method

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        names = ("method", "hierarchy", "monotone", "starts", "tol", "max_iter", "accelerate", "seed")
        return {name: getattr(self, name) for name in names}

    def _fit(self, data: ResponseData, valid: ResponseData | None) -> None:
        if self.method == "em":
            super()._fit(data, valid)
        elif self.method == "variational":
            from assay.diagnosis.dcm.variational import fit_variational

            fit_variational(self, data)
        else:
            raise UnknownName.of("method", self.method, ("em", "variational"))

    def _restore(self, learned: dict[str, Any]) -> None:
        if self.method == "em":
            super()._restore(learned)
        else:
            DiagnosisModel._restore(self, learned)

    def _estimate(self, data: ResponseData) -> Array:
        if self.method == "em":
            return super()._estimate(data)
        from assay.diagnosis.dcm.variational import skills_given_items

        return skills_given_items(data, self.item_params_, self.skill_prob_, self._kind)

    def _predict(self, states: Array, student: NDArray[Any], item: NDArray[Any]) -> Array:
        if self.method == "em":
            return super()._predict(states, student, item)
        from assay.diagnosis.dcm.variational import success

        return success(states, student, item, self.q_, self.item_params_, self._kind)

    def _mastery(self, states: Array) -> Array:
        return super()._mastery(states) if self.method == "em" else states

    def predict_from_mastery(self, mastery: Array, item: NDArray[Any]) -> Array:
        if self.method == "em":
            return super().predict_from_mastery(mastery, item)
        from assay.diagnosis.dcm.variational import success

        return success(mastery, np.arange(len(item)), item, self.q_, self.item_params_, self._kind)

    def sample_states(self, rng: np.random.Generator) -> Array:
        if self.method == "em":
            return super().sample_states(rng)
        drawn: Array = (rng.random(self.states_.shape) < self.states_).astype(np.float64)
        return drawn


class DINO(DINA):
    """Deterministic inputs, noisy "or": one of the skills is enough (Templin and Henson 2006); parameters as in
    `DINA`.
    """

    _kind = "DINO"
