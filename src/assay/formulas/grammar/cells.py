"""Cell addresses: column names, `CellRef`, and the limits of the grid."""

from __future__ import annotations

import re
from typing import NamedTuple

from assay.formulas.errors import CellRefError

MAX_ROW = 1_048_576
MAX_COL = 16_384

_ADDRESS = re.compile(r"\$?([A-Za-z]{1,3})\$?([1-9][0-9]{0,6})\Z")
_PLAIN_SHEET = re.compile(r"[^\W\d][\w.]*\Z")
_LIKE_A_CELL = re.compile(r"(?:[A-Za-z]{1,3}[0-9]+|[Rr][0-9]*|[Cc][0-9]*|[Rr][0-9]*[Cc][0-9]*)\Z")


class CellRef(NamedTuple):
    """One cell: sheet, row and column (both from 1).

    >>> str(CellRef("My Sheet", 10, 4))
    "'My Sheet'!D10"
    """

    sheet: str
    row: int
    col: int

    def __str__(self) -> str:
        return f"{quote_sheet(self.sheet)}!{self.address}" if self.sheet else self.address

    @property
    def address(self) -> str:
        """Without the sheet, ``D10``."""
        return f"{column_name(self.col)}{self.row}"


_names: list[str] = [""]
_numbers: dict[str, int] = {}


def column_name(col: int) -> str:
    """Letters of a column.

    Raises
    ------
    CellRefError

    Examples
    --------
    >>> column_name(1), column_name(27), column_name(16384)
    ('A', 'AA', 'XFD')
    """
    if not 1 <= col <= MAX_COL:
        raise CellRefError(f"column {col} lies outside the grid (1 to {MAX_COL})")
    while len(_names) <= col:
        n, letters = len(_names), ""
        while n:
            n, rest = divmod(n - 1, 26)
            letters = chr(65 + rest) + letters
        _names.append(letters)
    return _names[col]


def column_number(letters: str) -> int:
    """Number of a column; 0 where the letters name none.

    >>> column_number("D"), column_number("xfd"), column_number("XFE")
    (4, 16384, 0)
    """
    known = _numbers.get(letters)
    if known is None:
        known = 0
        for letter in letters.upper():
            known = known * 26 + ord(letter) - 64
        if known > MAX_COL:
            known = 0
        _numbers[letters] = known
    return known


def quote_sheet(name: str) -> str:
    """A sheet name as it stands in a formula, in quotes where it needs them.

    >>> quote_sheet("Data"), quote_sheet("Q1 data"), quote_sheet("it's"), quote_sheet("AB12")
    ('Data', "'Q1 data'", "'it''s'", "'AB12'")
    """
    if _PLAIN_SHEET.match(name) and not _LIKE_A_CELL.match(name):
        return name
    return "'" + name.replace("'", "''") + "'"


def parse_address(text: str, sheet: str = "") -> CellRef:
    """Read ``D10``, ``$D$10`` or ``'My Sheet'!D10``.

    Raises
    ------
    CellRefError

    Examples
    --------
    >>> parse_address("'My Sheet'!$D$10")
    CellRef(sheet='My Sheet', row=10, col=4)
    """
    before, mark, address = text.strip().rpartition("!")
    if mark:
        sheet = before[1:-1].replace("''", "'") if before[:1] == "'" and before[-1:] == "'" else before
    match = _ADDRESS.match(address.strip())
    col = column_number(match[1]) if match else 0
    if match is None or not col or int(match[2]) > MAX_ROW:
        raise CellRefError(f"{text!r} is no cell address; write it as D10 or 'My Sheet'!D10")
    return CellRef(sheet, int(match[2]), col)


def parse_area(text: str, sheet: str = "") -> tuple[CellRef, CellRef]:
    """Read ``D10:D40`` or ``D10`` as its first and last cell.

    >>> [str(c) for c in parse_area("Data!D40:C10")]
    ['Data!C10', 'Data!D40']
    """
    before, mark, address = text.rpartition("!")
    first, _, last = address.partition(":")
    a = parse_address(before + mark + first, sheet)
    b = parse_address(before + mark + (last or first), sheet)
    return (
        CellRef(a.sheet, min(a.row, b.row), min(a.col, b.col)),
        CellRef(a.sheet, max(a.row, b.row), max(a.col, b.col)),
    )
