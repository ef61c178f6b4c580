"""Errors and warnings of the field, by the names that its documentation uses."""

from __future__ import annotations

from collections.abc import Sequence


class ShapeError(ValueError):
    """Base of the errors that `assay.shapes` raises on bad input."""


class NonFiniteInputError(ShapeError):
    """Some cells hold NaN or infinite values.

    Attributes
    ----------
    rows : list of int
        The first such cells.
    """

    def __init__(self, rows: Sequence[int], total: int) -> None:
        self.rows = list(rows)
        shown = ", ".join(map(str, self.rows[:10])) + (", ..." if total > 10 else "")
        super().__init__(
            f"{total} cells hold NaN or infinite values (rows {shown}); drop these cells or impute them first"
        )


class TooFewCellsError(ShapeError):
    """Fewer distinct cells than a shape can be read from."""

    def __init__(self, n: int, least: int = 50) -> None:
        self.n = n
        super().__init__(f"{n} distinct cells are too few to tell a shape; at least {least} are needed")


class ConstantDataError(ShapeError):
    """No column varies."""


class UnknownRepresentationError(ShapeError):
    """``use_rep`` names no entry of ``obsm``."""

    def __init__(self, name: str, available: Sequence[str]) -> None:
        self.available = list(available)
        has = ", ".join(self.available) or "nothing"
        super().__init__(f"obsm has no representation {name!r}; it holds {has}. Give one of these as use_rep, or 'X'")


class LabelSchemaError(ShapeError):
    """A table of labels lacks a column, or a column holds what it must not."""

    def __init__(self, column: str, problem: str = "is missing") -> None:
        self.column = column
        super().__init__(f"the label table cannot be used: column {column!r} {problem}")


class UnknownKindError(ShapeError):
    """A kind of shape, part, lens or grid that does not exist; the message lists those that do."""


class RawCountsWarning(UserWarning):
    """The values look like raw counts, and were given as an embedding."""


class DisconnectedGraphWarning(UserWarning):
    """The neighbour graph falls into several components; each gets a skeleton of its own.

    Attributes
    ----------
    sizes : list of int
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        shown = ", ".join(map(str, self.sizes[:8])) + (", ..." if len(self.sizes) > 8 else "")
        super().__init__(
            f"the neighbour graph has {len(self.sizes)} components ({shown} cells); each has its own skeleton"
        )


class DuplicateCellsWarning(UserWarning):
    """Cells with exactly equal values were collapsed to weighted cells."""

    def __init__(self, duplicates: int, n: int) -> None:
        self.duplicates = duplicates
        super().__init__(
            f"{duplicates} of {n} cells repeat another cell exactly; they were collapsed to weighted cells"
        )


class ConfoundedSkeletonWarning(UserWarning):
    """The skeleton follows a batch or a technical column."""
