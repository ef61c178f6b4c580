"""What functions work with: areas, grids, coercions, comparisons, criteria."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from assay.formulas.errors import StepLimit
from assay.formulas.workbook.values import (
    DIV0,
    NA,
    NUM,
    REF,
    VALUE,
    ErrorValue,
    Value,
    number_text,
    serial_from_date,
)
from assay.formulas.workbook.values import NAME as NAME_ERROR

if TYPE_CHECKING:
    from assay.formulas.evaluate.evaluator import Evaluator
    from assay.formulas.grammar import CellRef
    from assay.formulas.grammar.nodes import Node

Grid = list[list[Value]]
MAX_GRID = 2_000_000


class Fault(Exception):
    """An Excel error on its way up."""

    def __init__(self, error: ErrorValue) -> None:
        self.error = error


def fail(error: ErrorValue) -> NoReturn:
    """Raise an Excel error."""
    raise Fault(error)


@dataclass(slots=True)
class Area:
    """Cells of one sheet (or the same cells of several), as a reference; values are read when they are needed."""

    sheets: tuple[str, ...]
    row1: int
    col1: int
    row2: int
    col2: int
    source: Any

    @property
    def height(self) -> int:
        return self.row2 - self.row1 + 1

    @property
    def width(self) -> int:
        return self.col2 - self.col1 + 1

    def clipped(self) -> tuple[int, int, int, int]:
        """The box without what lies past the last row and column in use (it is blank)."""
        last_row = last_col = 0
        for sheet in self.sheets:
            _, _, row, col = self.source.bounds(sheet)
            last_row, last_col = max(last_row, row), max(last_col, col)
        return self.row1, self.col1, min(self.row2, max(last_row, self.row1)), min(self.col2, max(last_col, self.col1))

    def values(self) -> Iterator[Value]:
        """All values that are not beyond the cells in use, row by row."""
        row1, col1, row2, col2 = self.clipped()
        self.source.spend((row2 - row1 + 1) * (col2 - col1 + 1))
        read = self.source.value
        for sheet in self.sheets:
            if (row2 - row1 + 1) * (col2 - col1 + 1) > 64 and self.source.plain(sheet):
                yield from self.source.book.sheets[sheet].block(row1, col1, row2, col2)
                continue
            for row in range(row1, row2 + 1):
                for col in range(col1, col2 + 1):
                    yield read(sheet, row, col)

    def grid(self, full: bool = False) -> Grid:
        """Values by rows; whole columns are cut at the last row in use unless ``full``."""
        if len(self.sheets) > 1:
            fail(VALUE)
        row1, col1, row2, col2 = (self.row1, self.col1, self.row2, self.col2) if full else self.clipped()
        size = (row2 - row1 + 1) * (col2 - col1 + 1)
        self.source.spend(size)
        if size > MAX_GRID:
            raise StepLimit("a range", f"{size:,} cells")
        read, sheet = self.source.value, self.sheets[0]
        if size > 64 and self.source.plain(sheet):
            width = col2 - col1 + 1
            values = self.source.book.sheets[sheet].block(row1, col1, row2, col2)
            return [values[i : i + width] for i in range(0, size, width)]
        return [[read(sheet, row, col) for col in range(col1, col2 + 1)] for row in range(row1, row2 + 1)]


@dataclass(slots=True)
class Lambda:
    """A function made by LAMBDA."""

    names: list[str]
    body: Node
    scope: dict[str, Any]


class Absent:
    """An argument written as nothing between two commas."""

    __slots__ = ()


ABSENT = Absent()
Argument = Any  # Value, Grid, Area, Lambda or ABSENT


@dataclass(slots=True)
class Context:
    """Where a function is called: the evaluator, the cell, array mode, variables."""

    run: Evaluator
    at: CellRef
    array: bool = False
    scope: dict[str, Any] = field(default_factory=dict)


# -- coercions -------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"([-+]?)[$€£¥]?\s*([-+]?)((?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*(%?)\Z")
_ISO = re.compile(r"(\d{4})[-/](\d{1,2})[-/](\d{1,2})\Z")
_US = re.compile(r"(\d{1,2})[-/](\d{1,2})[-/](\d{2}|\d{4})\Z")
_WORDS = re.compile(r"(\d{1,2})[- ]([A-Za-z]{3,9})[- ,]+(\d{2}|\d{4})\Z")
_WORDS_US = re.compile(r"([A-Za-z]{3,9})\.? (\d{1,2}),? (\d{2}|\d{4})\Z")
_CLOCK = re.compile(r"(\d{1,4}):(\d{2})(?::(\d{2}(?:\.\d+)?))?\s*([AaPp][Mm])?\Z")
_MONTHS = {
    m: i + 1 for i, m in enumerate(["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"])
}


@lru_cache(maxsize=4096)
def text_to_number(text: str, date1904: bool = False) -> float | None:
    """The number that a text stands for (also percent, currency, dates, times), None where it is none.

    >>> [text_to_number(t) for t in ("1,234.5", "5%", "$3", "2024-03-01", "18:00", "abc")]
    [1234.5, 0.05, 3.0, 45352.0, 0.75, None]
    """
    text = text.strip()
    if not text:
        return None
    negative = text[:1] == "(" and text[-1:] == ")"
    if negative:
        text = text[1:-1]
    match = _NUMBER.match(text)
    if match and match[3] not in ("", ".") and not (match[1] and match[2]):
        try:
            value = float(match[3].replace(",", ""))
        except ValueError:
            return None
        if (match[1] or match[2]) == "-" or negative:
            value = -value
        return value / 100 if match[4] else value
    if negative:
        return None
    day, _, clock = text.partition(" ") if ":" in text and not _CLOCK.match(text) else (text, "", "")
    if _CLOCK.match(text):
        day, clock = "", text
    elif clock and not _CLOCK.match(clock.strip()):
        cut = text.rfind(" ", 0, text.find(":"))
        day, clock = text[:cut], text[cut + 1 :]
    total = 0.0
    if day:
        parts = _date_parts(day.strip())
        if parts is None:
            return None
        try:
            total = float(serial_from_date(*parts, date1904))
        except ValueError:
            return None
        if not 1 <= parts[1] <= 12 or not 1 <= parts[2] <= 31:
            return None
    if clock:
        found = _CLOCK.match(clock.strip())
        if found is None:
            return None
        hours, minutes, seconds = int(found[1]), int(found[2]), float(found[3] or 0)
        if found[4]:
            hours = hours % 12 + (12 if found[4].lower() == "pm" else 0)
        total += (hours * 3600 + minutes * 60 + seconds) / 86400
    return total


def _date_parts(text: str) -> tuple[int, int, int] | None:
    if match := _ISO.match(text):
        return int(match[1]), int(match[2]), int(match[3])
    if match := _US.match(text):
        return _century(match[3]), int(match[1]), int(match[2])
    if (match := _WORDS.match(text)) and match[2][:3].lower() in _MONTHS:
        return _century(match[3]), _MONTHS[match[2][:3].lower()], int(match[1])
    if (match := _WORDS_US.match(text)) and match[1][:3].lower() in _MONTHS:
        return _century(match[3]), _MONTHS[match[1][:3].lower()], int(match[2])
    return None


def _century(text: str) -> int:
    year = int(text)
    return year if len(text) > 2 else year + (2000 if year < 30 else 1900)


def to_number(value: Value) -> float:
    """A scalar as a number, or #VALUE!."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, (int, float)):
        return value
    if value is None or value is ABSENT:
        return 0.0
    if isinstance(value, ErrorValue):
        raise Fault(value)
    if isinstance(value, str):
        number = text_to_number(value)
        if number is not None:
            return number
    fail(VALUE)


def to_text(value: Value) -> str:
    """A scalar as a text."""
    if isinstance(value, str):
        return value
    if value is None or value is ABSENT:
        return ""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, ErrorValue):
        raise Fault(value)
    if isinstance(value, (int, float)):
        return number_text(value)
    fail(VALUE)


def to_bool(value: Value) -> bool:
    """A scalar as a truth value."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return value != 0
    if value is None or value is ABSENT:
        return False
    if isinstance(value, ErrorValue):
        raise Fault(value)
    if isinstance(value, str) and value.strip().upper() in ("TRUE", "FALSE"):
        return value.strip().upper() == "TRUE"
    fail(VALUE)


def finite(value: float) -> float:
    """The number, or #NUM! where it is infinite or not a number."""
    if isinstance(value, complex) or not math.isfinite(value):
        fail(NUM)
    return value


def to_int(value: Value) -> int:
    """A scalar cut to a whole number (towards zero)."""
    return int(finite(to_number(value)))


# -- comparison ------------------------------------------------------------------------------------------------------


def rank_of(value: Value) -> int:
    """Numbers before texts before truth values."""
    return 2 if isinstance(value, bool) else 1 if isinstance(value, str) else 0


def compare(a: Value, b: Value) -> int:
    """-1, 0 or 1; a blank is 0, an empty text or FALSE, as the other side wants it."""
    if isinstance(a, ErrorValue):
        raise Fault(a)
    if isinstance(b, ErrorValue):
        raise Fault(b)
    if a is None:
        a = False if isinstance(b, bool) else "" if isinstance(b, str) else 0.0
    if b is None:
        b = False if isinstance(a, bool) else "" if isinstance(a, str) else 0.0
    x, y = rank_of(a), rank_of(b)
    if x != y:
        return -1 if x < y else 1
    if isinstance(a, str) and isinstance(b, str):
        a, b = a.casefold(), b.casefold()
    if a == b:
        return 0
    return -1 if a < b else 1  # type: ignore[operator]


# -- criteria of SUMIF and its relatives -----------------------------------------------------------------------------

_CRITERION = re.compile(r"(<>|<=|>=|=|<|>)?([\s\S]*)\Z")


@lru_cache(maxsize=1024)
def wildcard(pattern: str) -> re.Pattern[str] | None:
    """The expression of a text with ``*``, ``?`` and ``~``, None where it holds none of them."""
    if not re.search(r"[*?~]", pattern):
        return None
    parts, i = [], 0
    while i < len(pattern):
        letter = pattern[i]
        if letter == "~" and i + 1 < len(pattern) and pattern[i + 1] in "*?~":
            parts.append(re.escape(pattern[i + 1]))
            i += 1
        elif letter == "*":
            parts.append(r"[\s\S]*")
        elif letter == "?":
            parts.append(r"[\s\S]")
        else:
            parts.append(re.escape(letter))
        i += 1
    return re.compile("".join(parts) + r"\Z", re.IGNORECASE)


def criterion(value: Value) -> Callable[[Value], bool]:
    """Test of a criterion such as ``">5"``, ``"app*"`` or ``3``."""
    if isinstance(value, ErrorValue):
        return lambda x: x == value
    op, wanted = "=", value
    if isinstance(value, str):
        match = _CRITERION.match(value)
        assert match is not None
        op = match[1] or "="
        text = match[2]
        number = text_to_number(text)
        wanted = number if number is not None else text
        if text.upper() in ("TRUE", "FALSE"):
            wanted = text.upper() == "TRUE"
        if text == "":
            if op == "=" and match[1]:
                return lambda x: x is None
            if op == "<>":
                return lambda x: x is not None
            return lambda x: x is None or x == ""
    if wanted is None:
        wanted = 0.0
    if op in ("=", "<>"):
        same = _equal_to(wanted)
        return same if op == "=" else lambda x: not same(x)
    signs = {"<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (1, 0)}[op]
    kind = rank_of(wanted)
    return lambda x: (
        x is not None and not isinstance(x, ErrorValue) and rank_of(x) == kind and compare(x, wanted) in signs
    )


def _equal_to(wanted: Value) -> Callable[[Value], bool]:
    if isinstance(wanted, bool):
        return lambda x: isinstance(x, bool) and x == wanted
    if isinstance(wanted, (int, float)):

        def number(x: Value) -> bool:
            if isinstance(x, str):
                return text_to_number(x) == wanted
            return not isinstance(x, bool) and isinstance(x, (int, float)) and x == wanted

        return number
    assert isinstance(wanted, str)
    pattern = wildcard(wanted)
    if pattern is not None:
        return lambda x: isinstance(x, str) and pattern.match(x) is not None
    low = wanted.casefold()
    return lambda x: isinstance(x, str) and x.casefold() == low


# -- arguments as lists ----------------------------------------------------------------------------------------------


def grid_of(argument: Argument) -> Grid:
    """An argument as a grid."""
    if isinstance(argument, Area):
        return argument.grid()
    if isinstance(argument, list):
        return argument
    if argument is ABSENT:
        return [[None]]
    return [[argument]]


def flat(argument: Argument) -> Iterator[Value]:
    """All values of an argument, row by row."""
    if isinstance(argument, Area):
        yield from argument.values()
    elif isinstance(argument, list):
        for row in argument:
            yield from row
    else:
        yield None if argument is ABSENT else argument


def numbers(arguments: tuple[Argument, ...]) -> list[float]:
    """Numbers of ranges (texts, truth values and blanks passed over) and of direct arguments (coerced)."""
    found: list[float] = []
    for argument in arguments:
        if isinstance(argument, (Area, list)):
            for value in flat(argument):
                if isinstance(value, float):
                    found.append(value)
                elif isinstance(value, ErrorValue):
                    raise Fault(value)
                elif isinstance(value, int) and not isinstance(value, bool):
                    found.append(float(value))
        else:
            found.append(to_number(argument))
    return found


def numbers_a(arguments: tuple[Argument, ...]) -> list[float]:
    """As `numbers`, but texts of ranges count as 0 and truth values as 1 or 0 (the functions that end in A)."""
    found: list[float] = []
    for argument in arguments:
        if isinstance(argument, (Area, list)):
            for value in flat(argument):
                if isinstance(value, ErrorValue):
                    raise Fault(value)
                if value is not None:
                    found.append(0.0 if isinstance(value, str) else float(value))
        else:
            found.append(to_number(argument))
    return found


def need(values: list[float], error: ErrorValue = DIV0) -> list[float]:
    """The list, or an Excel error where it is empty."""
    if not values:
        fail(error)
    return values


# -- the table of functions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the evaluator.

    Attributes
    ----------
    call : callable
        ``(context, *arguments)``.
    kinds : str
        A letter an argument: ``s`` one value (lifted over arrays), ``r`` as it comes (areas stay areas), ``a`` as it
        comes and computed in array mode, ``e`` as ``r`` with errors as values, ``l`` not evaluated (the node itself).
        A star at the end repeats the last.
    least, most : int
    """

    call: Callable[..., Any]
    kinds: str
    least: int
    most: int

    def kind(self, index: int) -> str:
        if index < len(self.kinds) and self.kinds[index] != "*":
            return self.kinds[index]
        if self.kinds.endswith("*"):
            cycle = self.kinds[:-1]
            return cycle[-1]
        return "s"


FUNCTIONS: dict[str, Function] = {}


def function(
    names: str, kinds: str = "s", least: int | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function in the table under one or more names."""
    most = 255 if kinds.endswith("*") else len(kinds)

    def enter(call: Callable[..., Any]) -> Callable[..., Any]:
        for name in names.split():
            FUNCTIONS[name] = Function(call, kinds, len(kinds.rstrip("*")) if least is None else least, most)
        return call

    return enter


__all__ = [
    "ABSENT",
    "DIV0",
    "FUNCTIONS",
    "NA",
    "NAME_ERROR",
    "NUM",
    "REF",
    "VALUE",
    "Area",
    "Argument",
    "Context",
    "ErrorValue",
    "Fault",
    "Function",
    "Grid",
    "Lambda",
    "Value",
    "compare",
    "criterion",
    "fail",
    "finite",
    "flat",
    "function",
    "grid_of",
    "need",
    "number_text",
    "numbers",
    "numbers_a",
    "rank_of",
    "text_to_number",
    "to_bool",
    "to_int",
    "to_number",
    "to_text",
    "wildcard",
]
