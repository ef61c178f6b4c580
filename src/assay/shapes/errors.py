"""Errors and warnings of the field, by the names that its documentation uses.

``args`` are the arguments of the constructor and the text is made in ``__str__``, so that a copy that was pickled, or
rebuilt from ``args`` in another process, says the same.
"""

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
        self.rows = [int(row) for row in rows]
        self.total = int(total)
        super().__init__(self.rows, self.total)

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.rows[:10])) + (", ..." if self.total > 10 else "")
        return f"{self.total} cells hold NaN or infinite values (rows {shown}); drop these cells or impute them first"


class TooFewCellsError(ShapeError):
    """Fewer distinct cells than a shape can be read from."""

    def __init__(self, n: int, least: int = 50) -> None:
        self.n, self.least = int(n), int(least)
        super().__init__(self.n, self.least)

    def __str__(self) -> str:
        return f"{self.n} distinct cells are too few to tell a shape; at least {self.least} are needed"


class ConstantDataError(ShapeError):
    """No column varies."""


class UnknownRepresentationError(ShapeError):
    """``use_rep`` names no entry of ``obsm``."""

    def __init__(self, name: str, available: Sequence[str]) -> None:
        self.name, self.available = name, list(available)
        super().__init__(name, self.available)

    def __str__(self) -> str:
        has = ", ".join(self.available) or "nothing"
        return f"obsm has no representation {self.name!r}; it holds {has}. Give one of these as use_rep, or 'X'"


class LabelSchemaError(ShapeError):
    """A table of labels lacks a column, or a column holds what it must not."""

    def __init__(self, column: str, problem: str = "is missing") -> None:
        self.column, self.problem = column, problem
        super().__init__(column, problem)

    def __str__(self) -> str:
        return f"the label table cannot be used: column {self.column!r} {self.problem}"


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
        self.sizes = [int(size) for size in sizes]
        super().__init__(self.sizes)

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.sizes[:8])) + (", ..." if len(self.sizes) > 8 else "")
        return f"the neighbour graph has {len(self.sizes)} components ({shown} cells); each has its own skeleton"


class DuplicateCellsWarning(UserWarning):
    """Cells with exactly equal values were collapsed to weighted cells."""

    def __init__(self, duplicates: int, n: int) -> None:
        self.duplicates, self.n = int(duplicates), int(n)
        super().__init__(self.duplicates, self.n)

    def __str__(self) -> str:
        return f"{self.duplicates} of {self.n} cells repeat another cell exactly; they were collapsed to weighted cells"


class ConfoundedSkeletonWarning(UserWarning):
    """The skeleton follows a batch or a technical column."""


class AnnotationColumnWarning(UserWarning):
    """Columns of a table look like annotations of the cells (time, cluster, batch), and were taken as features.

    Attributes
    ----------
    columns : list of str
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = list(columns)
        super().__init__(self.columns)

    def __str__(self) -> str:
        shown = ", ".join(self.columns[:8]) + (", ..." if len(self.columns) > 8 else "")
        one = len(self.columns) == 1
        return (
            f"{'column' if one else 'columns'} {shown} {'looks' if one else 'look'} like annotation and "
            f"{'was taken as a feature' if one else 'were taken as features'}; name {'it' if one else 'them'} as obs "
            "(--obs) to keep it beside the cells, or leave it out (--exclude)"
        )
