"""What a formula of the corpus is remembered by: the roles of its references, the words and the layout around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from assay.formulas.grammar import CellRef, parse
from assay.formulas.grammar.nodes import Node, Ref
from assay.formulas.regions import column_header, formula_blocks, label_left, sheet_map
from assay.formulas.systems.words import words
from assay.formulas.tasks import Task, usable
from assay.formulas.workbook.model import Sheet, Workbook


@dataclass(frozen=True)
class Role:
    """Where a reference stands, as far as it carries over to another sheet.

    Attributes
    ----------
    kind : str
        Of the reference: cell, range, cols or rows.
    place : {"row", "column", "label", "range", "offset", "other"}
        In the own row; in the own column; a parameter beside a label; a run of data under a header; a fixed step;
        another sheet.
    header, label : str
    down, right : int
        Steps from the target.
    fixed : int
    tall, wide : int
        Size.
    sheet : str
    value : {"number", "text", ""}
        What its first cell holds.
    computed : bool
        Its last cell holds a formula.
    look : str
        Number format of its first cell: %, $, d or none.
    nth : int
        For a computed cell above in a column: how many computed cells lie between it and the target.
    """

    kind: str
    place: str
    header: str
    label: str
    down: int
    right: int
    fixed: int
    tall: int
    wide: int
    sheet: str = ""
    value: str = ""
    computed: bool = False
    look: str = ""
    nth: int = 0


@dataclass(frozen=True)
class Document:
    """A formula of the corpus: its tree, its roles in the order of its references, the words around it."""

    tree: Node
    sketch: str
    roles: tuple[Role, ...]
    header: str
    label: str
    first: bool
    source: str
    words: tuple[str, ...]
    shape: frozenset[str] = frozenset()


def text_at(sheet: Sheet, place: tuple[int, int] | None) -> str:
    """The text of a cell, nothing where there is none."""
    value = sheet.value(*place) if place else None
    return value if isinstance(value, str) else ""


def around(book: Workbook, cell: CellRef) -> tuple[str, str, list[str]]:
    """Header of the column, label of the row, and the headers of the region."""
    sheet = book.sheet(cell.sheet)
    header = text_at(sheet, column_header(sheet, cell.row, cell.col, book))
    label = text_at(sheet, label_left(sheet, cell.row, cell.col))
    found = sheet_map(sheet, book)
    at = found.region_at(cell.row, cell.col, reach=2)
    heads: list[str] = []
    if at is not None:
        row1, col1, _row2, col2 = (int(x) for x in found.regions[at])
        top = row1 + max(0, int(found.header_rows[at]) - 1)
        for col in range(col1, min(col2, col1 + 30) + 1):
            value = sheet.value(top, col)
            if isinstance(value, str):
                heads.append(value)
    return header, label, heads


def document_words(header: str, label: str, heads: Sequence[str], sketch: str = "") -> tuple[str, ...]:
    found = (
        [f"h:{w}" for w in words(header)] * 2 + [f"l:{w}" for w in words(label)] + [w for h in heads for w in words(h)]
    )
    # beginnings of words bring singular and plural, and many compounds, together
    found += [f"h:{w[:4]}~" for w in words(header) if len(w) > 4]
    return tuple(found + ([f"s:{sketch}"] if sketch else []))


def _role(book: Workbook, at: CellRef, ref: Ref) -> Role:
    own = ref.sheet is None or ref.sheet.upper() == at.sheet.upper()
    sheet = book.sheet(ref.sheet) if ref.sheet and book.has_sheet(ref.sheet) else book.sheet(at.sheet)
    row1, col1, row2, col2 = ref.box()
    header = text_at(sheet, column_header(sheet, min(row1, 1_048_576), col1, book)) if ref.kind != "rows" else ""
    label = text_at(sheet, label_left(sheet, row1, col1)) if ref.kind != "cols" else ""
    if not own:
        place = "other"
    elif ref.kind == "cell":
        if row1 == at.row:
            place = "row"
        elif ref.fixed & 5 and ref.fixed & 10 and label:
            place = "label"
        elif col1 == at.col:
            place = "column"
        else:
            place = "offset"
    else:
        place = "range"
    return Role(
        ref.kind, place, header, label, row1 - at.row, col1 - at.col, ref.fixed, row2 - row1 + 1, col2 - col1 + 1,
        ref.sheet or "", kind_of_value(sheet.value(row1, col1)) if ref.kind in ("cell", "range") else "",
        ref.kind in ("cell", "range") and sheet.formula(row2, col2) is not None,
        look_of(sheet, row1, col1) if ref.kind in ("cell", "range") else "",
        sum(sheet.formula(r, col1) is not None for r in range(row1 + 1, at.row)) if at.row - row1 < 60 else 0,
    )  # fmt: skip


def kind_of_value(value: object) -> str:
    """Number or text, nothing for a blank or an error."""
    return "text" if isinstance(value, str) else "number" if isinstance(value, (float, bool)) else ""


def look_of(sheet: Sheet, row: int, col: int) -> str:
    """Number format of a cell: %, $, d or none."""
    cell = sheet.get(row, col)
    return cell.fmt if cell is not None else ""


def _mark(sheet: Sheet, row: int, col: int) -> str:
    """One cell in two or three letters: what it holds, how it is shown, whether it is computed."""
    cell = sheet.get(row, col) if row > 0 and col > 0 else None
    if cell is None or (cell.value is None and not cell.formula):
        return "_"
    kind = kind_of_value(cell.value) or "e"
    return kind[0] + (cell.fmt if kind == "number" else "") + ("f" if cell.formula else "")


def shape_of(book: Workbook, cell: CellRef) -> frozenset[str]:
    """The layout around a cell as words: what stands in its row and column, and where in its region it lies.

    Nothing in it depends on what headers and labels say.

    >>> book = Workbook.from_cells({"S": {"A1": "Item", "B1": "Cost", "A2": "bolt", "B2": 3.0}})
    >>> sorted(w for w in shape_of(book, CellRef("S", 2, 3)) if w.startswith("left"))
    ['left1 n', 'left12 n t', 'left2 t', 'left3 _']
    """
    sheet = book.sheet(cell.sheet)
    row, col = cell.row, cell.col
    found = {f"left{i} {_mark(sheet, row, col - i)}" for i in (1, 2, 3)}
    found |= {f"right{i} {_mark(sheet, row, col + i)}" for i in (1, 2)}
    found |= {f"up{i} {_mark(sheet, row - i, col)}" for i in (1, 2)} | {f"down {_mark(sheet, row + 1, col)}"}
    found.add(f"left12 {_mark(sheet, row, col - 1)} {_mark(sheet, row, col - 2)}")
    found.add(f"corner {_mark(sheet, row - 1, col - 1)} {_mark(sheet, row + 1, col - 1)}")
    label = label_left(sheet, row, col)
    if label is not None:
        style = sheet.get(*label)
        found.add(f"label {min(col - label[1], 4)} {bool(style and style.bold)}")
    regions = sheet_map(sheet, book)
    at = regions.region_at(row, col, reach=2)
    if at is not None:
        row1, col1, row2, col2 = (int(x) for x in regions.regions[at])
        depth = int(regions.header_rows[at])
        found.add(f"headers {min(depth, 2)}")
        found.add(
            f"row {'first' if row == row1 + depth else 'after' if row > row2 else 'last' if row == row2 else 'in'}"
        )
        found.add(f"col {min(max(col - col1, 0), 5)} {'after' if col > col2 else 'last' if col == col2 else 'in'}")
        found.add(f"tall {min((row2 - row1 + 1).bit_length(), 5)} {depth > 0}")
    found.add(f"sheets {min(len(book.sheets), 2)}")
    return frozenset(found)


def documents(book: Workbook) -> list[Document]:
    """One document a block of formulas; where the first cell of a block differs in kind (the first row), it has its
    own."""
    found = []
    seen: set[tuple[Any, ...]] = set()
    for sheet in book.sheets.values():
        blocks = formula_blocks(sheet)
        of_class: dict[int, list[tuple[int, int]]] = {}
        for block in blocks:
            of_class.setdefault(block.cls, []).extend(block.cells)
        for block in blocks:
            at = CellRef(sheet.name, *block.cells[0])
            text = sheet.formula(at.row, at.col) or ""
            if not usable(text) or sheet.is_array(at.row, at.col):
                continue
            read = parse(text, at)
            refs = read.references()
            if read.structured() or not refs or len(refs) > 12 or any(r.last_sheet for r in refs):
                continue
            header, label, heads = around(book, at)
            sketch = read.sketch()
            roles = tuple(_role(book, at, ref) for ref in refs)
            key = (sketch, roles, header, label)
            if key in seen:
                continue
            seen.add(key)
            above = sheet.formula(at.row - 1, at.col) if at.row > 1 else None
            alone = Task("", book, at, removed=frozenset(CellRef(sheet.name, *place) for place in of_class[block.cls]))
            found.append(
                Document(
                    read.tree, sketch, roles, header, label, above is None, f"{book.path}!{at}",
                    document_words(header, label, [*heads, *(r.header for r in roles if r.header)], sketch),
                    shape_of(alone.view, at),
                )
            )  # fmt: skip
    return found
