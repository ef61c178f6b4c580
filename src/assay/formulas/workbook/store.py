"""Cells as columns: what a sheet keeps of a file, and the small records that go with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from assay.formulas.errors import CellRefError
from assay.formulas.grammar import CellRef, parse_r1c1
from assay.formulas.grammar.classes import relative_key
from assay.formulas.workbook.values import ErrorValue, Value

BLANK, NUMBER, TEXT, BOOL, ERROR = range(5)
WIDTH = 16_384


class Style(NamedTuple):
    """What a cell looks like, as far as it says something.

    Attributes
    ----------
    fmt : str
        Number format: ``%`` percent, ``$`` currency, ``d`` date or time, ``""`` other.
    bold, fill, border : bool
    code : str
        The number format itself.
    """

    fmt: str = ""
    bold: bool = False
    fill: bool = False
    border: bool = False
    code: str = "General"


class Cell(NamedTuple):
    """A cell: stored value, formula in A1 notation without ``=`` (None where it has none), style."""

    value: Value
    formula: str | None = None
    style: Style = Style()
    array: bool = False

    @property
    def fmt(self) -> str:
        return self.style.fmt

    @property
    def bold(self) -> bool:
        return self.style.bold

    @property
    def fill(self) -> bool:
        return self.style.fill


@dataclass(frozen=True)
class Table:
    """A table object: its name, its block (headers and totals included) and its columns."""

    name: str
    sheet: str
    row1: int
    col1: int
    row2: int
    col2: int
    columns: tuple[str, ...]
    header_rows: int = 1
    totals_rows: int = 0


@dataclass
class CellArrays:
    """All cells of a sheet that hold something, by row, then column.

    Attributes
    ----------
    row, col : int array[n]
    kind : int array[n]
        BLANK, NUMBER, TEXT, BOOL or ERROR, of the stored value.
    cls : int array[n]
        Class of the formula (cells with equal numbers hold copies of one formula), -1 without a formula.
    style : int array[n]
    """

    row: Int[np.ndarray, " n"]
    col: Int[np.ndarray, " n"]
    kind: Int[np.ndarray, " n"]
    cls: Int[np.ndarray, " n"]
    style: Int[np.ndarray, " n"]


@dataclass
class Store:
    """Columns of a sheet as read; never changed afterwards."""

    row: Int[np.ndarray, " n"]
    col: Int[np.ndarray, " n"]
    kind: Int[np.ndarray, " n"]
    style: Int[np.ndarray, " n"]
    value: list[Value]
    formula: dict[int, str | tuple[int, int]]
    shared: list[str] = field(default_factory=list)
    arrays: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    missing: frozenset[int] = frozenset()
    index: dict[int, int] = field(default_factory=dict)
    classes: Int[np.ndarray, " n"] | None = None
    class_keys: list[str] = field(default_factory=list)
    class_ids: dict[str, int] = field(default_factory=dict)
    memo: dict[str, Any] = field(default_factory=dict)
    """What others worked out from these cells and would work out again."""

    def __post_init__(self) -> None:
        if not self.index:
            keys = (self.row.astype(np.int64) * WIDTH + self.col).tolist()
            self.index = dict(zip(keys, range(len(keys)), strict=True))

    def formula_at(self, position: int) -> str | None:
        text = self.formula.get(position)
        if isinstance(text, tuple):
            at = CellRef("", int(self.row[position]), int(self.col[position]))
            try:
                text = parse_r1c1(self.shared[text[0]], at).to_a1()
            except CellRefError:
                text = "#REF!"
            self.formula[position] = text
        return text

    def class_of(self, text: str, row: int, col: int) -> int:
        key = relative_key(text, row, col)
        number = self.class_ids.get(key)
        if number is None:
            number = self.class_ids[key] = len(self.class_ids)
        return number

    def formula_classes(self) -> Int[np.ndarray, " n"]:
        """Class of every cell's formula, -1 where there is none (computed once)."""
        if self.classes is None:
            classes = np.full(len(self.row), -1, np.int32)
            rows, cols = self.row, self.col
            group: dict[int, int] = {}
            for position, text in list(self.formula.items()):
                if isinstance(text, tuple):
                    known = group.get(text[0])
                    if known is None:
                        first = self.formula_at(position) or ""
                        known = self.class_of(first, int(rows[position]), int(cols[position]))
                        group[text[0]] = known
                    classes[position] = known
                else:
                    classes[position] = self.class_of(text, int(rows[position]), int(cols[position]))
            self.classes = classes
        return self.classes


def kind_of(value: Value) -> int:
    """BLANK, NUMBER, TEXT, BOOL or ERROR."""
    if value is None:
        return BLANK
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, (int, float)):
        return NUMBER
    return ERROR if isinstance(value, ErrorValue) else TEXT
