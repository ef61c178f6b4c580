"""What to know about a log before a model is fitted to it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.diagnosis.responses import ResponseData


@dataclass(frozen=True)
class DataCheck:
    """What `check_data` found; printed as a list."""

    facts: dict[str, Any]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{name.replace('_', ' ')}: {value}" for name, value in self.facts.items()]
        return "\n".join([*lines, *(f"! {w}" for w in self.warnings)])


def check_data(data: ResponseData) -> DataCheck:
    """Density, coverage of skills, items and students with one kind of answer, and whether the Q-matrix can tell
    skills apart.

    Completeness: a DINA model tells all classes apart only if each skill has an item that needs it alone (Chiu,
    Douglas, Li, 2009); for identified parameters each skill should stand in at least three items (Gu, Xu, 2019).

    Examples
    --------
    >>> from assay.diagnosis import load
    >>> check_data(load("lsat7")).facts["responses"]
    '5,000 (100.0% of cells)'
    """
    q = data.dense_q()
    warned: list[str] = []
    n, right = (np.bincount(data.item, w, data.n_items) for w in (None, data.correct))
    per_student, right_student = (np.bincount(data.student, w, data.n_students) for w in (None, data.correct))
    alone = q[q.sum(1) == 1].any(0) if len(q) else np.zeros(data.n_kcs, bool)
    per_kc = q.sum(0)
    answers_kc = np.bincount(data.per_skill()[1], minlength=data.n_kcs)
    distinct = len({tuple(column) for column in q.T.tolist()})
    rank = int(np.linalg.matrix_rank(q.astype(float)))
    one_kind = (n > 0) & ((right == 0) | (right == n))
    all_wrong = float(np.mean(right_student[per_student > 0] == 0)) if (per_student > 0).any() else 0.0
    if one_kind.any():
        warned.append(
            f"{int(one_kind.sum())} items have only right or only wrong answers ({_names(data.item_ids, one_kind)})"
        )
    if (n == 0).any():
        warned.append(f"{int((n == 0).sum())} items have no answer ({_names(data.item_ids, n == 0)})")
    if (per_student == 0).any():
        warned.append(f"{int((per_student == 0).sum())} students have no answer")
    if all_wrong > 0.1:
        warned.append(f"{all_wrong:.0%} of the students have no right answer: are blanks scored as wrong?")
    if not alone.all():
        warned.append(
            f"no item needs {_names(data.kc_names, ~alone)} alone: a DINA model cannot tell all classes apart"
        )
    if (per_kc < 3).any():
        warned.append(f"fewer than 3 items need {_names(data.kc_names, per_kc < 3)}: parameters may not be identified")
    if distinct < data.n_kcs:
        warned.append(
            f"{data.n_kcs - distinct} skills are needed by exactly the same items as another: they cannot be told apart"
        )
    if (np.diff(data.q.indptr) == 0).any():
        warned.append(f"{int((np.diff(data.q.indptr) == 0).sum())} items need no skill (dropped by preprocess)")
    low, high = (int(f(per_student)) if len(per_student) else 0 for f in (np.min, np.max))
    middle = np.median(per_student) if len(per_student) else 0
    facts = {
        "students": f"{data.n_students:,} ({low} to {high} answers, median {middle:.0f})",
        "items": f"{data.n_items:,} ({int(n.min())} to {int(n.max())} answers)",
        "skills": f"{data.n_kcs} ({per_kc.min()} to {per_kc.max()} items, {answers_kc.min():,} to {answers_kc.max():,} "
        "answers)",
        "responses": f"{len(data):,} ({len(data) / max(1, data.n_students * data.n_items):.1%} of cells)",
        "right": f"{data.correct.mean():.1%}" if len(data) else "no answer",
        "skills_an_item": f"{np.diff(data.q.indptr).mean():.2f}",
        "rank_of_Q": f"{rank} of {data.n_kcs}",
        "skills_with_an_item_of_their_own": f"{int(alone.sum())} of {data.n_kcs}",
        "students_with_no_right_answer": f"{all_wrong:.1%}",
        "fingerprint": data.fingerprint(),
    }
    return DataCheck(facts, tuple(warned))


def _names(names: Sequence[Hashable], mask: NDArray[np.bool_], most: int = 6) -> str:
    chosen = [str(names[int(i)]) for i in np.flatnonzero(mask)]
    return ", ".join(chosen[:most]) + (f" and {len(chosen) - most} more" if len(chosen) > most else "")
