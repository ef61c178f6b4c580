"""Errors of the field, by the names that its documentation uses."""

from __future__ import annotations


class FormulaError(ValueError):
    """Base of the errors that `assay.formulas` raises on bad input."""


class FormulaSyntaxError(FormulaError):
    """A text is no formula.

    Attributes
    ----------
    position : int
        Offset in the text, from 0, where reading stopped.
    expected : str
        What could have stood there.
    """

    def __init__(self, text: str, position: int, expected: str) -> None:
        self.text, self.position, self.expected = text, position, expected
        near = text[max(0, position - 12) : position + 12]
        super().__init__(f"expected {expected} at position {position} of the formula (near {near!r})")


class CellRefError(FormulaError):
    """A cell address is malformed, lies outside the grid, or names a sheet that is not there."""


class WorkbookError(FormulaError):
    """A workbook cannot be opened: encrypted, corrupt, of an unknown format, or larger than the limits allow."""


class UnsupportedFunction(FormulaError):
    """The engine does not know a function or a construct; never a wrong value instead.

    Attributes
    ----------
    name : str
    """

    def __init__(self, name: str, why: str = "") -> None:
        self.name = name
        super().__init__(f"{name} cannot be evaluated here" + (f": {why}" if why else ""))


class StepLimit(UnsupportedFunction):
    """An evaluation took more steps than it may."""


class EngineMissing(FormulaError, ImportError):
    """An engine was asked for that is not installed; the message says which package to install."""


class CircularReference(FormulaError):
    """A formula depends on its own cell.

    Attributes
    ----------
    path : list of str
        Cells from the first to the one that closes the circle.
    """

    def __init__(self, path: list[str]) -> None:
        self.path = path
        super().__init__(f"circular reference: {' -> '.join(path)}")


class EndpointError(FormulaError):
    """A language model endpoint cannot be reached, refused, or answered with nothing that can be read."""


class BudgetTooSmall(FormulaError):
    """A context budget does not even hold the line that names the target."""


class TaskFileError(FormulaError):
    """A task file or a table of tasks lacks what a task needs; the message names the row and the field."""


class WouldLoseContent(FormulaError):
    """Writing a copy would drop parts of the workbook (charts, macros, ...).

    Attributes
    ----------
    parts : list of str
    """

    def __init__(self, path: str, parts: list[str]) -> None:
        self.parts = parts
        super().__init__(
            f"{path} holds parts that would be lost in a copy ({', '.join(parts)}); nothing was written. "
            "Enter the formulas by hand, or take those parts out of the workbook first"
        )
