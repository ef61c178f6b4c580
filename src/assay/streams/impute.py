"""Filling in absent features that were seen before. Off unless asked for: absence is information to most models
here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from assay.streams.errors import CheckpointMismatch, StreamError
from assay.streams.rows import FeatureIndex, Row

KINDS = ("none", "zero", "mean", "last")


class Imputer:
    """Adds every feature seen so far to each row, after normalisation.

    Parameters
    ----------
    kind : {"none", "zero", "mean", "last"}
        Leave rows alone; or fill with 0, with the running mean, or with the last value of the feature.

    Examples
    --------
    >>> fill = Imputer("last")
    >>> [fill.transform_one(Row.from_dict(r)).to_dict() for r in ({"a": 1.0}, {"b": 5.0}, {"a": 2.0})]
    [{'a': 1.0}, {'b': 5.0, 'a': 1.0}, {'a': 2.0, 'b': 5.0}]
    """

    def __init__(self, kind: str = "none") -> None:
        if kind not in KINDS:
            raise StreamError(f"impute is one of {', '.join(KINDS)}, not {kind!r}")
        self.kind = kind
        self._index = FeatureIndex()
        self._fill = np.zeros(8)
        self._count = np.zeros(8)

    def transform_one(self, row: Row) -> Row:
        """The row with the absent features filled in from earlier rows; its own values are then learned."""
        if self.kind == "none":
            return row
        known = len(self._index)
        slots = self._index.register(row)
        n = len(self._index)
        if n > len(self._fill):
            self._fill = np.concatenate([self._fill, np.zeros(n)])
            self._count = np.concatenate([self._count, np.zeros(n)])
        absent = np.setdiff1d(np.arange(known), slots)
        ids = row.ids + tuple(self._index.ids[s] for s in absent.tolist())
        filled = Row(ids, np.concatenate([row.values, self._fill[absent]]))
        if self.kind == "mean":
            self._count[slots] += 1
            self._fill[slots] += (row.values - self._fill[slots]) / self._count[slots]
        elif self.kind == "last":
            self._fill[slots] = row.values
        return filled

    def state_dict(self) -> dict[str, Any]:
        """Names and fill values (a copy)."""
        n = len(self._index)
        return {
            "kind": self.kind,
            "ids": list(self._index.ids),
            "fill": self._fill[:n].copy(),
            "count": self._count[:n].copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Go on from a `state_dict`."""
        if state["kind"] != self.kind:
            raise CheckpointMismatch(f"this state is of impute={state['kind']!r}, not of {self.kind!r}")
        self._index = FeatureIndex(state["ids"])
        self._fill, self._count = np.array(state["fill"]), np.array(state["count"])
        return self
