"""What all representations share: a batch of predictions with the user's class names and row labels."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.uncertainty.errors import UncertaintyError


class Representation:
    """A batch of uncertain predictions.

    Attributes
    ----------
    classes : tuple, optional
        The user's names of the classes, in the order of the last axis.
    index : sequence, optional
        The user's names of the rows (of a data frame).
    """

    classes: tuple[Hashable, ...] | None = None
    index: Any = None

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch."""
        raise UncertaintyError(f"{type(self).__name__} has no batch")  # pragma: no cover - every child has one

    def __len__(self) -> int:
        return self.batch_shape[0] if self.batch_shape else 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown()})"

    def _shown(self) -> str:
        return f"batch {list(self.batch_shape)}"

    def named(self, classes: Sequence[Hashable] | None = None, index: Any = None) -> Any:
        """The same predictions with names for classes and rows; returns self.

        Raises
        ------
        UncertaintyError
            If the number of names is another one than that of classes or rows.
        """
        if classes is not None:
            k = getattr(self, "n_classes", len(classes))
            if len(classes) != k:
                raise UncertaintyError(f"{len(classes)} class names were given for {k} classes")
            self.classes = tuple(c.item() if isinstance(c, np.generic) else c for c in classes)
        if index is not None:
            if len(index) != len(self):
                raise UncertaintyError(f"{len(index)} row names were given for {len(self)} rows")
            self.index = index
        return self

    def take(self, part: Any) -> Any:
        """The same representation of some rows (first axis of the batch), unchecked."""
        made = copy.copy(self)
        n = self.batch_shape[0]
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray) and value.ndim >= len(self.batch_shape) and value.shape[:1] == (n,):
                setattr(made, name, value[part])
        made.index = None
        return made

    def mean(self) -> NDArray[np.float64]:
        """The probabilities (or values) to act on, ``float64[...]`` or ``float64[..., K]``."""
        raise UncertaintyError(f"{type(self).__name__} has no mean")

    def predict(self) -> NDArray[Any]:
        """The most probable class of each row, by name where classes have names."""
        code = np.asarray(self.mean()).argmax(axis=-1)
        return code if self.classes is None else np.asarray(self.classes)[code]


def positive(name: str, values: NDArray[np.float64], *, strict: bool = True) -> None:
    """Raise where a parameter is not finite and positive (or not negative)."""
    bad = ~np.isfinite(values) | ((values <= 0) if strict else (values < 0))
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        raise UncertaintyError(f"{name} at {at} is {values[at]}; it must be {'above' if strict else 'at least'} 0")


def row_names(table: Any) -> Any:
    """The index of a data frame or series; None for anything else."""
    return table.index if hasattr(table, "iloc") else None
