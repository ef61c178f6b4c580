"""More items for a fitted model: what all models share."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import numpy as np

from assay.diagnosis.errors import DiagnosisError
from assay.diagnosis.responses import ResponseData

Model = TypeVar("Model")


def new_item_rows(model: Any, data: ResponseData) -> tuple[ResponseData, int]:
    """The answers to new items, and the position of the first.

    Raises
    ------
    DiagnosisError
        If students or skills differ, or the known items are not the first of ``data``.
    """
    model._fitted()
    first = len(model.q_)
    if data.n_students != len(model.states_):
        raise DiagnosisError(
            f"the model knows {len(model.states_)} students and the new items were answered among "
            f"{data.n_students}; number them alike"
        )
    if data.n_items <= first or data.n_kcs != model.q_.shape[1] or not np.array_equal(data.dense_q()[:first], model.q_):
        raise DiagnosisError(
            f"the Q-matrix must begin with the model's {first} items and {model.q_.shape[1]} skills, and new "
            "items follow"
        )
    return data.take(data.item >= first), first


def extended(model: Model, data: ResponseData) -> Model:
    """A copy that knows the new Q-matrix; the caller adds the parameters of the items."""
    fresh: Any = copy.copy(model)
    fresh.q_ = data.dense_q()
    seen = np.bincount(data.item, minlength=data.n_items) > 0
    fresh.seen_items_ = np.r_[fresh.seen_items_, seen[len(fresh.seen_items_) :]]
    student, item = np.divmod(fresh.rows_seen_, len(model.q_))  # type: ignore[attr-defined]
    fresh.rows_seen_ = np.union1d(student * data.n_items + item, data.take(data.item >= len(model.q_)).cells())  # type: ignore[attr-defined]
    return fresh
