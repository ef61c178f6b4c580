"""The workbook as arrays: what kind each cell is, its value, its formula, its style.

A `Sheet` shares its arrays with the sheets made from it (`Sheet.without`, `Sheet.with_values`), so a task or a
perturbed copy costs no more than the cells that differ.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from assay.formulas.errors import CellRefError, FormulaError
from assay.formulas.grammar import CellRef, parse, parse_address
from assay.formulas.workbook.store import (
    BLANK,
    WIDTH,
    Cell,
    CellArrays,
    Store,
    Style,
    Table,
    kind_of,
)
from assay.formulas.workbook.values import Value

_versions = itertools.count(1)


class Sheet:
    """One sheet.

    Attributes
    ----------
    name : str
    merged : list of (row1, col1, row2, col2)
    version : int
        Another number after every change.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        styles: list[Style],
        merged: list[tuple[int, int, int, int]] | None = None,
    ) -> None:
        self.name = name
        self.store = store
        self.styles = styles
        self.merged = merged or []
        self.removed: set[int] = set()
        self.edits: dict[int, Cell] = {}
        self.version = next(_versions)
        self.cache: dict[str, Any] = {}
        self.touched: list[tuple[int, int]] = []

    # -- one cell --------------------------------------------------------------------------------------------------

    def value(self, row: int, col: int) -> Value:
        """Stored value, None where there is none."""
        key = row * WIDTH + col
        if key in self.edits:
            return self.edits[key].value
        position = self.store.index.get(key)
        if position is None or key in self.removed:
            return None
        return self.store.value[position]

    def formula(self, row: int, col: int) -> str | None:
        """Formula in A1 notation without ``=``, None where there is none."""
        key = row * WIDTH + col
        if key in self.edits:
            return self.edits[key].formula
        position = self.store.index.get(key)
        if position is None or key in self.removed:
            return None
        return self.store.formula_at(position)

    def computed(self, row: int, col: int) -> bool:
        """Whether the cell holds a formula; cheaper than asking for it."""
        key = row * WIDTH + col
        if key in self.edits:
            return self.edits[key].formula is not None
        position = self.store.index.get(key)
        return position is not None and position in self.store.formula and key not in self.removed

    def get(self, row: int, col: int) -> Cell | None:
        """The cell, None where nothing is stored."""
        key = row * WIDTH + col
        if key in self.edits:
            return self.edits[key]
        position = self.store.index.get(key)
        if position is None or key in self.removed:
            return None
        store = self.store
        style = self.styles[store.style[position]] if store.style[position] < len(self.styles) else Style()
        return Cell(store.value[position], store.formula_at(position), style, position in store.arrays)

    def is_array(self, row: int, col: int) -> bool:
        """Whether the formula of the cell is an array formula (no implicit intersection)."""
        key = row * WIDTH + col
        if key in self.edits:
            return self.edits[key].array
        return self.store.index.get(key, -1) in self.store.arrays

    def array_block(self, row: int, col: int) -> tuple[int, int, int, int] | None:
        """Block that an array formula fills."""
        return self.store.arrays.get(self.store.index.get(row * WIDTH + col, -1))

    @property
    def cells(self) -> Mapping[tuple[int, int], Cell]:
        """Cells by (row, column), in reading order."""
        return _Cells(self)

    @property
    def missing_values(self) -> list[CellRef]:
        """Formula cells without a stored value."""
        keys = [k for k in self.store.missing if k not in self.removed and k not in self.edits]
        return [CellRef(self.name, *divmod(k, WIDTH)) for k in sorted(keys)]

    # -- sheets made from this one ---------------------------------------------------------------------------------

    def without(self, cells: Iterable[tuple[int, int]]) -> Sheet:
        """The sheet with cells emptied (value, formula and style)."""
        new = self._copy()
        for row, col in cells:
            key = row * WIDTH + col
            new.edits.pop(key, None)
            new.removed.add(key)
        return new

    def with_values(self, values: Mapping[tuple[int, int], Value | Cell]) -> Sheet:
        """The sheet with other constants (or cells) in some places; styles stay."""
        new = self._copy()
        for (row, col), value in values.items():
            new.edits[row * WIDTH + col] = _as_cell(value, self.get(row, col))
        return new

    def set(self, row: int, col: int, value: Value | Cell = None, formula: str | None = None) -> None:
        """Change a cell of this sheet in memory (the file is never touched); what is cached around it is renewed."""
        key = row * WIDTH + col
        old = self.get(row, col)
        if value is None and formula is None:
            self.edits.pop(key, None)
            self.removed.add(key)
        else:
            cell = _as_cell(value, old)
            self.edits[key] = cell._replace(formula=formula.lstrip("=")) if formula else cell
        self.version = next(_versions)
        self.touched.append((row, col))
        for name in ("arrays", "bounds", "columns"):
            self.cache.pop(name, None)

    def _copy(self) -> Sheet:
        new = copy.copy(self)
        new.removed = set(self.removed)
        new.edits = dict(self.edits)
        new.version = next(_versions)
        new.cache = {}
        new.touched = []
        return new

    # -- all cells -------------------------------------------------------------------------------------------------

    def arrays(self) -> CellArrays:
        """Cells that hold a value or a formula, by row and column."""
        known: CellArrays | None = self.cache.get("arrays")
        if known is not None:
            return known
        store = self.store
        classes = store.formula_classes()
        keep = (store.kind != BLANK) | (classes >= 0)
        gone = self.removed | self.edits.keys()
        if gone:
            positions = [p for key in gone if (p := store.index.get(key)) is not None]
            keep[positions] = False
        found = CellArrays(store.row[keep], store.col[keep], store.kind[keep], classes[keep], store.style[keep])
        if self.edits:
            extra = [
                (key // WIDTH, key % WIDTH, kind_of(c.value),
                 store.class_of(c.formula, key // WIDTH, key % WIDTH) if c.formula else -1, -1)
                for key, c in self.edits.items()
                if c.value is not None or c.formula is not None
            ]  # fmt: skip
            if extra:
                more = np.array(extra, np.int64).T
                both = [np.concatenate([a, b.astype(a.dtype)]) for a, b in zip(vars(found).values(), more, strict=True)]
                order = np.lexsort((both[1], both[0]))
                found = CellArrays(*(a[order] for a in both))
        self.cache["arrays"] = found
        return found

    def column(self, col: int) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Row, kind and formula class (see `CellArrays`) of the cells of a column that hold something."""
        known = self.cache.setdefault("columns", {})
        if col not in known:
            a = self.arrays()
            inside = np.flatnonzero(a.col == col)
            known[col] = (a.row[inside].astype(np.int64), a.kind[inside], a.cls[inside])
        found: tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"], Int[np.ndarray, " n"]] = known[col]
        return found

    def stretch(self, row: int, col: int, same_class: bool = True) -> tuple[int, int]:
        """First and last row of the unbroken run of cells like this one in its column.

        Like it are cells with a value of the same kind and a copy of the same formula, or no formula either; without
        ``same_class`` any formula will do. The row itself where the cell is empty.
        """
        known = self.cache.setdefault("columns", {})
        key = ("breaks", col, same_class)
        if key not in known:
            rows, kinds, classes = self.column(col)
            form = classes if same_class else classes >= 0
            known[key] = np.flatnonzero((np.diff(rows) != 1) | (np.diff(kinds) != 0) | (form[1:] != form[:-1]))
        rows, breaks = self.column(col)[0], known[key]
        at = int(np.searchsorted(rows, row))
        if at == len(rows) or rows[at] != row:
            return row, row
        i = int(np.searchsorted(breaks, at))
        return int(rows[breaks[i - 1] + 1 if i else 0]), int(rows[breaks[i] if i < len(breaks) else -1])

    def mask(self) -> Bool[np.ndarray, " n"]:
        """Which of the stored cells are still there."""
        keep = np.ones(len(self.store.row), bool)
        keep[[p for key in self.removed | self.edits.keys() if (p := self.store.index.get(key)) is not None]] = False
        return keep

    @property
    def bounds(self) -> tuple[int, int, int, int]:
        """First row, first column, last row, last column that hold something; (1, 1, 0, 0) for an empty sheet."""
        known: tuple[int, int, int, int] | None = self.cache.get("bounds")
        if known is None:
            a = self.arrays()
            known = (
                (int(a.row.min()), int(a.col.min()), int(a.row.max()), int(a.col.max())) if len(a.row) else (1, 1, 0, 0)
            )
            self.cache["bounds"] = known
        return known

    def formula_cells(self) -> Iterator[tuple[int, int, str]]:
        """Row, column and formula of every formula cell, in reading order."""
        a = self.arrays()
        for i in np.flatnonzero(a.cls >= 0):
            row, col = int(a.row[i]), int(a.col[i])
            yield row, col, self.formula(row, col) or ""

    def block(self, row1: int, col1: int, row2: int, col2: int) -> list[Value]:
        """Stored values of a box, row by row, None for blanks; the cost is that of its cells, not of lookups."""
        store = self.store
        width = col2 - col1 + 1
        out: list[Value] = [None] * ((row2 - row1 + 1) * width)
        low, high = (int(x) for x in np.searchsorted(store.row, [row1, row2 + 1]))
        cols = store.col[low:high]
        inside = np.flatnonzero((cols >= col1) & (cols <= col2))
        places = (store.row[low:high][inside].astype(np.int64) - row1) * width + cols[inside] - col1
        values = store.value
        for place, position in zip(places.tolist(), (inside + low).tolist(), strict=True):
            out[place] = values[position]
        for key in self.removed | self.edits.keys():
            row, col = divmod(key, WIDTH)
            if row1 <= row <= row2 and col1 <= col <= col2:
                cell = self.edits.get(key)
                out[(row - row1) * width + col - col1] = cell.value if cell is not None else None
        return out

    def __len__(self) -> int:
        return len(self.arrays().row)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"Sheet({self.name!r}: {len(self)} cells)"


class _Cells(Mapping[tuple[int, int], Cell]):
    def __init__(self, sheet: Sheet) -> None:
        self._sheet = sheet

    def __getitem__(self, place: tuple[int, int]) -> Cell:
        found = self._sheet.get(*place)
        if found is None:
            raise KeyError(place)
        return found

    def __iter__(self) -> Iterator[tuple[int, int]]:
        a = self._sheet.arrays()
        return zip(a.row.tolist(), a.col.tolist(), strict=True)

    def __len__(self) -> int:
        return len(self._sheet)


def _as_cell(value: Value | Cell, old: Cell | None) -> Cell:
    if isinstance(value, Cell):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    return Cell(value, None, old.style if old else Style())


class Workbook:
    """Sheets, tables and names of a file that was opened for reading.

    Attributes
    ----------
    sheets : dict of str to Sheet
    tables : dict of str to Table
        By name in upper case.
    names : dict of (sheet or "", name in upper case) to str
        Defined names and their formulas.
    date1904 : bool
    path : str
    parts : frozenset of str
        What else the file holds: ``macros``, ``charts``, ``external links``, ...
    """

    def __init__(
        self,
        sheets: Iterable[Sheet],
        tables: Iterable[Table] = (),
        names: Mapping[tuple[str, str], str] | None = None,
        date1904: bool = False,
        path: str = "",
        parts: frozenset[str] = frozenset(),
    ) -> None:
        self.sheets = {sheet.name: sheet for sheet in sheets}
        self.tables = {table.name.upper(): table for table in tables}
        self.names = dict(names or {})
        self.date1904 = date1904
        self.path = path
        self.parts = parts
        self.data: bytes | None = None
        self._upper = {name.upper(): name for name in self.sheets}

    @classmethod
    def open(cls, source: str | PathLike[str] | bytes, **limits: int) -> Workbook:
        """Read .xlsx, .xlsm or .ods; nothing in the file is run, no link is followed, the file is not changed.

        Parameters
        ----------
        source : path or bytes
        max_bytes : int
            Of all parts unpacked, 1 GiB by default.
        max_cells : int
            5 million by default.

        Raises
        ------
        WorkbookError
            Encrypted, corrupt, of an unknown format, or beyond the limits.
        """
        from assay.formulas.workbook.reading import open_workbook

        return open_workbook(source, **limits)

    @classmethod
    def from_cells(
        cls,
        sheets: Mapping[str, Mapping[str, Any]],
        *,
        tables: Iterable[Table] = (),
        names: Mapping[str, str] | None = None,
        styles: Mapping[str, Mapping[str, Style]] | None = None,
        date1904: bool = False,
        path: str = "",
    ) -> Workbook:
        """A workbook from dictionaries: values, or texts that begin with ``=`` for formulas.

        A pair ``("=A1*2", 6.0)`` is a formula with its stored value.

        Examples
        --------
        >>> book = Workbook.from_cells({"Data": {"A1": 2, "A2": ("=A1*3", 6.0)}})
        >>> book.sheets["Data"].get(2, 1).formula, book.sheets["Data"].value(2, 1)
        ('A1*3', 6.0)
        """
        made = []
        for name, cells in sheets.items():
            looks = (styles or {}).get(name, {})
            made.append(_sheet_from_cells(name, cells, looks))
        plain = {("", key.upper()): text for key, text in (names or {}).items()}
        return cls(made, tables, plain, date1904, path)

    def sheet(self, name: str) -> Sheet:
        """A sheet by name, upper and lower case alike.

        Raises
        ------
        CellRefError
            If there is none; the message lists those there are.
        """
        found = self.sheets.get(name)
        if found is None:
            found = self.sheets.get(self._upper.get(name.upper(), ""))
        if found is None:
            raise CellRefError(f"there is no sheet {name!r}; there is {', '.join(map(repr, list(self.sheets)[:20]))}")
        return found

    def has_sheet(self, name: str) -> bool:
        """Whether there is a sheet of that name, upper and lower case alike."""
        return name.upper() in self._upper

    def replace(self, *sheets: Sheet) -> Workbook:
        """The workbook with other sheets in place of those of the same name."""
        new = copy.copy(self)
        new.sheets = {**self.sheets, **{sheet.name: sheet for sheet in sheets}}
        return new

    def without(self, cells: Iterable[CellRef]) -> Workbook:
        """The workbook with cells emptied."""
        by_sheet: dict[str, list[tuple[int, int]]] = {}
        for cell in cells:
            by_sheet.setdefault(self.sheet(cell.sheet).name, []).append((cell.row, cell.col))
        return self.replace(*(self.sheets[name].without(places) for name, places in by_sheet.items()))

    def value(self, cell: CellRef) -> Value:
        """Stored value of a cell."""
        return self.sheet(cell.sheet).value(cell.row, cell.col)

    def formula(self, cell: CellRef) -> str | None:
        """Formula of a cell."""
        return self.sheet(cell.sheet).formula(cell.row, cell.col)

    def address(self, text: str) -> CellRef:
        """A cell of this workbook by its address; without a sheet, of the first one.

        Raises
        ------
        CellRefError
        """
        cell = parse_address(text)
        return cell._replace(sheet=self.sheet(cell.sheet).name if cell.sheet else next(iter(self.sheets)))

    def missing_values(self) -> list[CellRef]:
        """Formula cells without a stored value (files written by a library that does not calculate)."""
        return [cell for sheet in self.sheets.values() for cell in sheet.missing_values]

    def __repr__(self) -> str:
        return f"Workbook({Path(self.path).name!r}: {', '.join(f'{s.name} {len(s)}' for s in self.sheets.values())})"


def _sheet_from_cells(name: str, cells: Mapping[str, Any], looks: Mapping[str, Style]) -> Sheet:
    known: dict[Style, int] = {Style(): 0}
    rows = []
    for text, given in cells.items():
        place = parse_address(text)
        formula, value = given if isinstance(given, tuple) else (None, given)
        if formula is None and isinstance(value, str) and value[:1] == "=" and len(value) > 1:
            formula, value = value, None
        if isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if formula is not None:
            try:
                parse(formula)
            except FormulaError as error:
                raise type(error)(*error.args) if not hasattr(error, "position") else error from None
        style = known.setdefault(looks.get(text, Style()), len(known))
        rows.append((place.row, place.col, value, formula, style))
    rows.sort(key=lambda r: (r[0], r[1]))
    store = Store(
        np.array([r[0] for r in rows], np.int32),
        np.array([r[1] for r in rows], np.int32),
        np.array([kind_of(r[2]) for r in rows], np.uint8),
        np.array([r[4] for r in rows], np.int32),
        [r[2] for r in rows],
        {i: r[3].lstrip("=") for i, r in enumerate(rows) if r[3] is not None},
        missing=frozenset(r[0] * WIDTH + r[1] for r in rows if r[3] is not None and r[2] is None),
    )
    return Sheet(name, store, list(known))
