"""Retrieval: the formula of a similar cell in other workbooks, its references moved to the columns of the same name.

BM25 over the words of headers and labels and the sketch finds candidates (the idea of Auto-Formula: similar sheets
share formulas); each reference of a candidate was stored with its role, and the role is looked up in the sheet at hand.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from assay.formulas.errors import FormulaError
from assay.formulas.grammar import CellRef, Formula, parse
from assay.formulas.grammar.nodes import Apply, Array, Binary, Call, Node, Paren, Postfix, Ref, Unary
from assay.formulas.regions import SheetMap, column_header, formula_blocks, label_left, sheet_map
from assay.formulas.systems.base import Suggestion, any_filled, timed
from assay.formulas.systems.words import similar, words
from assay.formulas.tasks import Task, usable
from assay.formulas.workbook.model import Sheet, Workbook

CANDIDATES = 40


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


def _document_words(header: str, label: str, heads: Sequence[str], sketch: str = "") -> tuple[str, ...]:
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
        ref.sheet or "", _kind(sheet.value(row1, col1)) if ref.kind in ("cell", "range") else "",
        ref.kind in ("cell", "range") and sheet.formula(row2, col2) is not None,
    )  # fmt: skip


def _kind(value: object) -> str:
    return "text" if isinstance(value, str) else "number" if isinstance(value, (float, bool)) else ""


def documents(book: Workbook) -> list[Document]:
    """One document a block of formulas; where the first cell of a block differs in kind (the first row), it has its
    own."""
    found = []
    seen: set[tuple[Any, ...]] = set()
    for sheet in book.sheets.values():
        for block in formula_blocks(sheet):
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
            found.append(
                Document(
                    read.tree, sketch, roles, header, label, above is None, f"{book.path}!{at}",
                    _document_words(header, label, [*heads, *(r.header for r in roles if r.header)], sketch),
                )
            )  # fmt: skip
    return found


class Retrieval:
    """Formulas of a corpus, adapted to the sheet at hand.

    Parameters
    ----------
    corpus : iterable of Workbook or path, optional
        Without one, made workbooks of all kinds are used.
    minimum : float
        Suggestions with a lower score are not given.

    Examples
    --------
    >>> from assay.formulas import make_workbook, task_at, Workbook
    >>> system = Retrieval([make_workbook("inventory", seed, "en") for seed in range(5)])
    >>> cells = {"B3": "Product", "C3": "Stock", "D3": "Price", "E3": "Value"}
    >>> cells |= {"B4": "Lamp", "C4": 2, "D4": 9.5, "B5": "Desk", "C5": 1, "D5": 120}
    >>> system.suggest(task_at(Workbook.from_cells({"S": cells}), "S!E4"), 1)[0].formula
    'C4*D4'
    """

    name = "retrieval"

    def __init__(self, corpus: Iterable[Any] | None = None, minimum: float = 0.05) -> None:
        if corpus is None:
            from assay.formulas.generator import make_workbooks

            corpus = make_workbooks(120, seed=9_001)
        self.minimum = minimum
        self.documents: list[Document] = []
        for item in corpus:
            self.documents += documents(item if isinstance(item, Workbook) else Workbook.open(item))
        if not self.documents:
            raise FormulaError("the corpus holds no formula that can be retrieved")
        import bm25s

        self._index = bm25s.BM25()
        self._index.index([list(d.words) for d in self.documents], show_progress=False)
        self._lock = threading.Lock()

    def suggest(self, task: Task, k: int = 5) -> list[Suggestion]:
        """See `System.suggest`."""
        return timed(self._found, task, k, self.name)

    def _found(self, task: Task) -> list[Suggestion]:
        book, cell = task.view, task.cell
        header, label, heads = around(book, cell)
        query = list(_document_words(header, label, heads))
        if not query:
            return []
        known = [w for w in dict.fromkeys(query) if w in self._index.vocab_dict]
        if not known:
            return []
        scores = self._index.get_scores(known)
        top = np.argpartition(-scores, min(CANDIDATES, len(scores) - 1))[:CANDIDATES]
        best = float(scores[top].max()) or 1.0
        sheet = book.sheet(cell.sheet)
        place = _Place(book, sheet, cell, sheet_map(sheet, book), header, label)
        found: dict[str, Suggestion] = {}
        for i in top[np.argsort(-scores[top], kind="stable")]:
            document = self.documents[int(i)]
            adapted = place.adapt(document)
            if adapted is None:
                continue
            formula, fit = adapted
            own = max(similar(header, document.header), 0.9 * similar(label, document.label))
            score = 0.97 * (0.35 * float(scores[i]) / best + 0.65 * own) * fit
            if score < self.minimum:
                continue
            old = found.get(formula)
            if old is None or old.score < score:
                votes = 1 if old is None else 1.02
                found[formula] = Suggestion(
                    formula, min(0.97, score * votes), self.name,
                    reason=f"as in {document.source}, whose column is called {document.header or document.label!r}",
                    evidence=place.evidence,
                )  # fmt: skip
        return list(found.values())


class _Place:
    """The sheet at hand, asked for the cells that a role stands for."""

    def __init__(self, book: Workbook, sheet: Sheet, cell: CellRef, found: SheetMap, header: str, label: str) -> None:
        self.book, self.sheet, self.cell, self.map = book, sheet, cell, found
        self.header, self.label = header, label
        at = found.region_at(cell.row, cell.col, reach=2)
        self.box = (
            tuple(int(x) for x in found.regions[at]) if at is not None else (cell.row, cell.col, cell.row, cell.col)
        )
        self.depth = int(found.header_rows[at]) if at is not None else 0
        self.evidence: tuple[CellRef, ...] = ()
        row1, col1, _, col2 = self.box
        self.above = sheet.formula(cell.row - 1, cell.col) is not None if cell.row > 1 else False
        self.heads = {
            col: place
            for col in range(max(1, min(col1, sheet.bounds[1])), min(max(col2, sheet.bounds[3]), col1 + 60) + 1)
            if (place := column_header(sheet, max(cell.row, row1 + 1), col, book)) is not None
        }
        self._labels: list[tuple[int, int, str]] | None = None

    def adapt(self, document: Document) -> tuple[str, float] | None:
        """The formula for this cell and how well its references were found, None where one was not."""
        fit = 1.0 if document.first != self.above else 0.75
        refs: list[Ref] = []
        evidence: list[CellRef] = []
        for role in document.roles:
            found = self._find(role)
            if found is None:
                return None
            ref, quality = found
            if ref.kind == "cell" and ref.row1 == self.cell.row and ref.col1 == self.cell.col and not ref.sheet:
                return None
            fit *= quality
            refs.append(ref)
            if not ref.sheet and ref.kind in ("cell", "range"):
                evidence.append(CellRef(self.sheet.name, ref.row1, ref.col1))
        self.evidence = tuple(evidence)
        tree = _with_refs(document.tree, iter(refs))
        return Formula(tree, self.cell).to_a1(), fit

    def _find(self, role: Role) -> tuple[Ref, float] | None:
        match role.place:
            case "row":
                column = self._column(role)
                if column is None or column[0] == self.cell.col:
                    return None
                return self._cell(self.cell.row, column[0], role, column[1])
            case "label":
                spot = self._parameter(role.label)
                return self._cell(*spot[:2], role, spot[2]) if spot else None
            case "column":
                return self._near(role, self.cell.row + role.down, self.cell.col)
            case "offset":
                return self._near(role, self.cell.row + role.down, self.cell.col + role.right)
            case "range":
                return self._range(role)
        return self._elsewhere(role)

    def _cell(self, row: int, col: int, role: Role, quality: float) -> tuple[Ref, float] | None:
        if row < 1 or col < 1:
            return None
        filled = self.sheet.get(row, col)
        if filled is None or (filled.value is None and not filled.formula):
            return None
        if role.value and filled.value is not None and _kind(filled.value) != role.value:
            return None
        return Ref("cell", row, col, row, col, role.fixed), quality

    def _near(self, role: Role, row: int, col: int) -> tuple[Ref, float] | None:
        """A cell at the same step, or the nearest row with the same label."""
        quality = 0.8
        if role.label:
            rows = sorted(range(max(1, self.cell.row - 40), self.cell.row + 41), key=lambda r: abs(r - row))
            best: tuple[float, int] | None = None
            for r in rows:
                if r == self.cell.row:
                    continue
                place = label_left(self.sheet, r, col)
                score = similar(text_at(self.sheet, place), role.label) if place else 0.0
                if score > 0.6 and (best is None or score > best[0]):
                    best = (score, r)
            if best is not None:
                row, quality = best[1], best[0]
            else:
                quality = 0.55
        return self._cell(row, col, role, quality)

    def _column(self, role: Role) -> tuple[int, float] | None:
        """The column with the header most like the role's; without headers the same step."""
        if role.header:
            best: tuple[float, int] | None = None
            for col, place in self.heads.items():
                score = similar(text_at(self.sheet, place), role.header) - 0.01 * abs(col - self.cell.col - role.right)
                if score > 0.35 and (best is None or score > best[0]):
                    best = (score, col)
            if best is not None:
                return best[1], max(0.3, min(1.0, best[0]))
        col = self.cell.col + role.right
        return (col, 0.45) if col >= 1 else None

    def _parameter(self, label: str) -> tuple[int, int, float] | None:
        """The cell to the right of (or below) a label."""
        if self._labels is None:
            a = self.sheet.arrays()
            spots = np.flatnonzero((a.kind == 2) & (a.cls < 0))[:3000]
            self._labels = [
                (int(a.row[i]), int(a.col[i]), str(self.sheet.value(int(a.row[i]), int(a.col[i])))) for i in spots
            ]
        best: tuple[float, int, int] | None = None
        for row, col, text in self._labels:
            score = similar(text, label)
            if score < 0.5 or (best is not None and score <= best[0]):
                continue
            for step in range(1, 4):
                if isinstance(self.sheet.value(row, col + step), (float, bool)) and (row, col + step) != self.cell[1:]:
                    best = (score, row, col + step)
                    break
        return (best[1], best[2], best[0]) if best else None

    def _range(self, role: Role) -> tuple[Ref, float] | None:
        _row1, _col1, _row2, _col2 = self.box
        if role.tall == 1 and role.kind == "range":  # along the own row
            if role.down != 0:
                return None
            first = last = 0
            for col in range(self.cell.col - 1, 0, -1):
                computed = self.sheet.formula(self.cell.row, col) is not None
                if isinstance(self.sheet.value(self.cell.row, col), float) and (last or computed == role.computed):
                    if computed != role.computed:
                        break
                    last = last or col
                    first = col
                elif last or self.cell.col - col > 4:
                    break
            if not last or last - first < 1:
                return None
            header = self.heads.get(last)
            quality = 0.95 if not header or similar(text_at(self.sheet, header), role.header) > 0.3 else 0.8
            return Ref("range", self.cell.row, first, self.cell.row, last, role.fixed), quality
        column: tuple[int, float] | None
        if role.right == 0:
            column = (self.cell.col, 0.95)
        else:
            column = self._column(role)
        if column is None:
            return None
        col, quality = column
        run = self._run(col, role)
        if run is None:
            return None
        width = role.wide - 1
        return Ref("range", run[0], col, run[1], col + width, role.fixed), quality

    def _run(self, col: int, role: Role) -> tuple[int, int] | None:
        """First and last row of the data under the header of a column (for a column total: above the target)."""
        bottom = self.cell.row - 1 if col == self.cell.col else None
        head = self.heads.get(col)
        start = (head[0] + 1) if head else self.box[0] + self.depth
        last = start - 1
        end = bottom if bottom is not None else min(self.sheet.bounds[2], start + 5000)
        kind: type | None = None
        for row in range(start, end + 1):
            value = self.sheet.value(row, col)
            if value is None:
                if row == self.cell.row or last < start:
                    continue
                break
            if kind is None:
                kind = type(value)
                if role.value and _kind(value) != role.value:
                    return None
            if type(value) is not kind:
                break
            if (self.sheet.formula(row, col) is not None) != role.computed:
                if last < start:
                    start = row + 1
                    last = row
                    continue
                break
            last = row
        return (start, last) if last > start else None

    def _elsewhere(self, role: Role) -> tuple[Ref, float] | None:
        """A block of another sheet with the same header (lookup tables)."""
        for name, sheet in self.book.sheets.items():
            if name == self.sheet.name:
                continue
            found = sheet_map(sheet, self.book)
            for box, depth in zip(found.regions.tolist(), found.header_rows.tolist(), strict=True):
                row1, col1, row2, col2 = box
                for col in range(col1, col2 + 1):
                    text = text_at(sheet, (row1 + max(0, depth - 1), col)) if depth else ""
                    score = similar(text, role.header) if role.header else 0.0
                    if score < 0.5 and name.upper() != role.sheet.upper():
                        continue
                    if role.kind == "cell":
                        return None
                    last_col = min(col2, col + role.wide - 1)
                    if last_col - col + 1 != role.wide or not any_filled(
                        self.book, name, row1 + depth, col, row2, last_col
                    ):
                        continue
                    return Ref("range", row1 + depth, col, row2, last_col, role.fixed, name), max(score, 0.6)
        return None


def _with_refs(node: Node, refs: Any) -> Node:
    """The tree with its references replaced in order."""
    match node:
        case Ref():
            new: Ref = next(refs)
            return replace(new)
        case Call():
            return Call(node.name, [_with_refs(a, refs) for a in node.args])
        case Binary():
            left = _with_refs(node.left, refs)
            return Binary(node.op, left, _with_refs(node.right, refs))
        case Unary():
            return Unary(node.op, _with_refs(node.operand, refs))
        case Postfix():
            return Postfix(node.op, _with_refs(node.operand, refs))
        case Paren():
            return Paren(_with_refs(node.inner, refs))
        case Apply():
            target = _with_refs(node.target, refs)
            return Apply(target, [_with_refs(a, refs) for a in node.args])
        case Array():
            return node
    return node
