"""What a teacher reads: which skills, how sure, what to practise next; `assay.diagnosis.page` writes it as HTML.

Mastery in a report is calibrated: the probability of a right answer on a typical item of the skill, the same meaning
for every model. How sure it is comes from draws of each student's state: "can" and "not yet" are said where at least
four fifths of the draws lie on that side of the pass threshold, "unsure" otherwise.

A posterior of the students with the items fixed is too narrow where few students were fitted: items are estimates too.
`diagnose` therefore refits the model on resampled students (a bootstrap of the training) and spreads its draws over the
refits, each of which scores the students anew [our design].
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from assay.diagnosis.errors import DiagnosisError, NotConverged
from assay.diagnosis.estimator import DiagnosisModel, skill_weights
from assay.diagnosis.hierarchy import Hierarchy
from assay.diagnosis.responses import ResponseData

if TYPE_CHECKING:
    import pandas as pd

SURE = 0.8
REFITS = 20
MANY_STUDENTS = 2000
STATES = ("can", "unsure", "not yet")


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Calibrated mastery of students with its uncertainty.

    Attributes
    ----------
    mastery, sd : float32[S, K]
        Probability of a right answer on a typical item of the skill, and its posterior standard deviation.
    passing : float32[S, K]
        Probability that it reaches the threshold.
    answers, right : int64[S, K]
        What the diagnosis rests on.
    practise : list of list of (skill, items)
        For each student: skills to practise next, with the unanswered (or wrong) items that would tell most.
    threshold : float
    model : str
    refits : int
        Refits on resampled students that the uncertainty of the items comes from; 0: items were taken as known.
    """

    mastery: NDArray[np.float32]
    sd: NDArray[np.float32]
    passing: NDArray[np.float32]
    answers: NDArray[np.int64]
    right: NDArray[np.int64]
    practise: list[list[tuple[int, list[int]]]]
    threshold: float
    model: str
    data: ResponseData
    predicted: NDArray[np.float32] = field(repr=False)
    refits: int = 0

    def interval(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Ends of a central interval of 90 per cent, ``float32[S, K]`` each: normal on the logit scale, so that it
        stays in [0, 1]."""
        p = np.clip(self.mastery.astype(np.float64), 1e-4, 1 - 1e-4)
        z, spread = np.log(p / (1 - p)), 1.645 * self.sd / (p * (1 - p))
        low, high = (1 / (1 + np.exp(-(z + side * spread))) for side in (-1, 1))
        return low.astype(np.float32), high.astype(np.float32)

    def state(self) -> NDArray[np.int64]:
        """``int64[S, K]``: 0 can, 1 unsure, 2 not yet."""
        return np.where(self.passing >= SURE, 0, np.where(self.passing <= 1 - SURE, 2, 1))

    def frame(self) -> pd.DataFrame:
        """A row a student and skill, for spreadsheets."""
        import pandas as pd

        s, k = self.mastery.shape
        state = self.state()
        return pd.DataFrame(
            {
                "student": np.repeat(np.array(self.data.student_ids, dtype=object), k),
                "skill": list(self.data.kc_names) * s,
                "mastery": self.mastery.ravel(),
                "sd": self.sd.ravel(),
                "low": self.interval()[0].ravel(),
                "high": self.interval()[1].ravel(),
                "probability_of_passing": self.passing.ravel(),
                "state": [STATES[v] for v in state.ravel()],
                "answers": self.answers.ravel(),
                "right": self.right.ravel(),
            }
        )


def diagnose(
    model: DiagnosisModel,
    data: ResponseData,
    *,
    threshold: float = 0.65,
    draws: int = 100,
    refits: int | None = None,
    training: ResponseData | None = None,
    n_skills: int = 2,
    n_items: int = 3,
    seed: int = 0,
) -> Diagnosis:
    """Score students with a fitted model and say what to practise.

    Practise next: skills that are not passed for sure and whose prerequisites are not themselves "not yet", weakest
    first. Items: those of the skill that are unanswered or were answered wrongly, with the largest expected information
    about the student (mutual information of the answer and the student's state, from the draws).

    Parameters
    ----------
    model : DiagnosisModel
    data : ResponseData
        Answers of the students; items as in training.
    threshold : float
        Calibrated mastery that passes.
    draws : int
        Draws of each student's state.
    refits : int, optional
        Refits on resampled students, for the uncertainty of the items; 0 takes the items as known. Default: 20, but 0
        where the training answers are not at hand, for models that are trained in epochs (a refit costs a training;
        ask for it), and for more than 2,000 students (items are then estimated so well that it changes nothing).
    training : ResponseData, optional
        Answers that the model was fitted on; default: ``data``, if they are.
    n_skills, n_items : int
        How much to suggest.

    Raises
    ------
    DiagnosisError
        If the threshold is no probability, or refits are asked for and the training answers are not at hand.

    Examples
    --------
    >>> from assay.diagnosis import GDINA, diagnose, simulate_platform
    >>> made = simulate_platform(300, 20, 3, density=1.0, slip=0.1, guess=0.1, seed=0)
    >>> found = diagnose(GDINA("DINA").fit(made.data), made.data)
    >>> sure = found.state() != 1
    >>> bool(np.mean((found.state() == 0)[sure] == (made.alpha > 0.5)[sure]) > 0.85)
    True
    """
    if not 0 < threshold < 1:
        raise DiagnosisError(f"threshold={threshold} is no probability between 0 and 1")
    if draws < 2:
        raise DiagnosisError(f"draws={draws} must be at least 2")
    if refits is not None and refits < 0:
        raise DiagnosisError(f"refits={refits} must not be negative")
    rng = np.random.default_rng(seed)
    source = _training(model, data, training, refits)
    if refits is None:
        epochs = "epochs" in model._parameter_names()
        refits = 0 if source is None or epochs or source.n_students > MANY_STUDENTS else REFITS
    n, k = data.n_students, data.n_kcs
    weights = skill_weights(model.q_)
    total = np.zeros((n, k))
    square, passing = np.zeros_like(total), np.zeros_like(total)
    mean_p = np.zeros((n, data.n_items), dtype=np.float32)
    entropy = np.zeros_like(mean_p)
    changes = {"checkpoint": None} if "checkpoint" in model._parameter_names() else {}
    scored, kept = model, model.states_
    each = -(-draws // max(1, refits))
    for number in range(draws):
        if number % each == 0:
            fitted = model
            if refits:
                assert source is not None
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", NotConverged)
                    fitted = model.clone(**changes).fit(resampled(source, rng))
            scored = fitted.with_students(data)
            kept = scored.states_
        scored.states_ = kept
        scored.states_ = scored.sample_states(rng)
        p = np.clip(scored.predict_matrix(), 1e-6, 1 - 1e-6)
        value = p @ weights
        total += value
        square += value.astype(np.float64) ** 2
        passing += value >= threshold
        mean_p += p / draws
        entropy += _entropy(p) / draws
    mean = total / draws
    sd = np.sqrt(np.maximum(square / draws - mean**2, 0))
    rows, skill = data.per_skill()
    cell = data.student[rows].astype(np.int64) * k + skill
    answers = np.bincount(cell, minlength=n * k).reshape(n, k)
    right = np.bincount(cell, data.correct[rows], n * k).astype(np.int64).reshape(n, k)
    diagnosis = Diagnosis(
        mean.astype(np.float32),
        sd.astype(np.float32),
        (passing / draws).astype(np.float32),
        answers,
        right,
        [],
        threshold,
        repr(model),
        data,
        mean_p,
        refits,
    )
    information = _entropy(np.clip(mean_p, 1e-6, 1 - 1e-6)) - entropy
    diagnosis.practise.extend(_practise(diagnosis, information, n_skills, n_items))
    return diagnosis


def resampled(data: ResponseData, rng: np.random.Generator) -> ResponseData:
    """As many students, drawn with replacement, each with all of the answers.

    >>> from assay.diagnosis import load
    >>> len(resampled(load("lsat7"), np.random.default_rng(0)))
    5000
    """
    order = np.argsort(data.student, kind="stable")
    counts = np.bincount(data.student, minlength=data.n_students)
    start = np.cumsum(counts) - counts
    chosen = rng.integers(0, data.n_students, data.n_students)
    n = counts[chosen]
    within = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
    fresh = data.take(order[np.repeat(start[chosen], n) + within])
    fresh.__dict__["student"] = np.repeat(np.arange(data.n_students, dtype=np.int32), n)
    fresh.__dict__["student_ids"] = tuple(range(data.n_students))
    return fresh


def _training(
    model: DiagnosisModel, data: ResponseData, training: ResponseData | None, refits: int | None
) -> ResponseData | None:
    """Answers that the model was fitted on, or None where they are not at hand and nobody asks for them."""
    source = data if training is None else training
    same = source.q.shape == model.q_.shape and np.array_equal(np.sort(source.cells()), np.sort(model.rows_seen_))
    if same:
        return source
    if training is not None or refits:
        raise DiagnosisError(
            f"the model was fitted on {len(model.rows_seen_):,} answers and these {len(source):,} are others; give "
            "training=... the answers that it was fitted on, or refits=0"
        )
    return None


def _entropy(p: NDArray[Any]) -> NDArray[Any]:
    value: NDArray[Any] = -(p * np.log(p) + (1 - p) * np.log1p(-p))
    return value


def _practise(
    diagnosis: Diagnosis, information: Float[np.ndarray, "students items"], n_skills: int, n_items: int
) -> list[list[tuple[int, list[int]]]]:
    data = diagnosis.data
    state = diagnosis.state()
    hierarchy = Hierarchy(data.n_kcs, data.prerequisites, data.kc_names)
    parents = [hierarchy.parents(k) for k in range(data.n_kcs)]
    q = data.dense_q()
    done = np.zeros((data.n_students, data.n_items), dtype=bool)
    done[data.student, data.item] = data.correct == 1
    found = []
    for i in range(data.n_students):
        open_ = [k for k in range(data.n_kcs) if state[i, k] != 0 and all(state[i, p] != 2 for p in parents[k])]
        chosen = sorted(open_, key=lambda k, i=i: diagnosis.mastery[i, k])[:n_skills]  # type: ignore[misc]
        plan = []
        for k in chosen:
            items = np.flatnonzero(q[:, k] & ~done[i])
            plan.append((k, items[np.argsort(-information[i, items], kind="stable")][:n_items].tolist()))
        found.append(plan)
    return found
