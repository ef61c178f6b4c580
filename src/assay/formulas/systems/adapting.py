"""Where the references of a remembered formula stand in the sheet at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from assay.formulas.grammar import CellRef, Formula
from assay.formulas.grammar.nodes import Apply, Array, Binary, Call, Node, Paren, Postfix, Ref, Unary
from assay.formulas.regions import SheetMap, column_header, label_left, sheet_map
from assay.formulas.systems.base import any_filled
from assay.formulas.systems.labels import labels_of
from assay.formulas.systems.roles import Document, Role, kind_of_value, look_of, text_at
from assay.formulas.systems.words import similar
from assay.formulas.workbook.model import Sheet, Workbook


class Place:
    """The sheet at hand, asked for the cells that a role stands for."""

    def __init__(self, book: Workbook, sheet: Sheet, cell: CellRef, found: SheetMap, header: str, label: str) -> None:
        self.book, self.sheet, self.cell, self.map = book, sheet, cell, found
        self.header, self.label, self.labels = header, label, labels_of(sheet)
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
        self._known: dict[tuple[Any, ...], Any] = {}  # many documents ask for the same places

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
        # the more references, the less each of them says of the whole
        return Formula(tree, self.cell).to_a1(), fit ** (1 / max(1, len(refs)) ** 0.5)

    def _find(self, role: Role) -> tuple[Ref, float] | None:
        match role.place:
            case "row":
                column = self._column(role)
                if column is None or column[0] == self.cell.col:
                    return None
                return self._cell(self.cell.row, column[0], role, column[1])
            case "label":
                spot = self._once(self._parameter, role.label)
                if spot is not None:
                    return self._cell(spot[0], spot[1], role, spot[2])
                if role.computed and role.down > 0:
                    place = self._once(self._end_of_run, role.right)
                    return self._cell(place[0], place[1], role, 0.7) if place is not None else None
                inputs = self._inputs(role)
                return self._cell(*inputs[0], role, 0.85 if len(inputs) == 1 else 0.6) if inputs else None
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
        if role.value and filled.value is not None and kind_of_value(filled.value) != role.value:
            return None
        return Ref("cell", row, col, row, col, role.fixed), quality

    def _near(self, role: Role, row: int, col: int) -> tuple[Ref, float] | None:
        """A cell at the same step, or the nearest row with the same label."""
        quality = 0.8
        if role.label:
            best: tuple[float, int] | None = None
            for r, text in sorted(self._once(self._labels_beside, col), key=lambda spot: abs(spot[0] - row)):
                score = similar(text, role.label)
                if score > 0.6 and (best is None or score > best[0]):
                    best = (score, r)
            if best is not None:
                row, quality = best[1], best[0]
            else:
                quality = 0.55
                if role.computed and role.down < 0:
                    start = row if col != self.cell.col else self.cell.row
                    counted = self._once(self._computed_above, start, col, role.nth)
                    if counted is not None:
                        row, quality = counted, 0.7
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
        same = self.cell.col + role.right
        if role.place != "row" or not role.value:
            return (same, 0.6) if same >= 1 else None
        # without a header to go by: the nearest column in this row that holds and shows the same kind of value
        fitting = [
            col
            for col in range(max(1, same - 3), same + 4)
            if col != self.cell.col
            and (col < self.cell.col) == (role.right < 0)
            and kind_of_value(self.sheet.value(self.cell.row, col)) == role.value
            and look_of(self.sheet, self.cell.row, col) == role.look
        ]
        if fitting:
            col = min(fitting, key=lambda c: abs(c - same))
            return col, 0.8 if col == same else 0.6
        return (same, 0.45) if same >= 1 else None

    def _once(self, search: Callable[..., Any], *args: Any) -> Any:
        key = (search.__name__, *args)
        if key not in self._known:
            self._known[key] = search(*args)
        return self._known[key]

    def _end_of_run(self, right: int) -> tuple[int, int] | None:
        """The last cell of the computed cells below in a column: the total that shares are taken of."""
        col = self.cell.col + right
        row = self.cell.row
        while col >= 1 and self.sheet.computed(row + 1, col):
            row = self.sheet.stretch(row + 1, col, same_class=False)[1]
        return (row, col) if row > self.cell.row else None

    def _computed_above(self, row: int, col: int, nth: int) -> int | None:
        """The row of the nth computed cell above in a column, past cells that are none."""
        for r in range(row - 1, max(0, row - 80), -1):
            if self.sheet.computed(r, col):
                if nth == 0:
                    return r
                nth -= 1
        return None

    def _inputs(self, role: Role) -> list[tuple[int, int]]:
        """Labelled values outside the tables that are shown as the role's was, the nearest to the role's step first."""
        found = [
            place
            for place, computed, look in self._once(self._free_inputs)
            if computed == role.computed and look == role.look
        ]
        wanted = self.cell.row + role.down
        return sorted(found, key=lambda p: (abs(p[0] - wanted), abs(p[1] - self.cell.col - role.right)))

    def _free_inputs(self) -> list[tuple[tuple[int, int], bool, str]]:
        """Numbers right of a label outside the tables: where, whether computed, how shown."""
        tables = [
            (box, depth)
            for box, depth in zip(self.map.regions.tolist(), self.map.header_rows.tolist(), strict=True)
            if depth
        ]
        found = []
        for row, col, _ in self.labels.cells:
            place = (row, col + 1)
            if not isinstance(self.sheet.value(*place), float) or place == self.cell[1:]:
                continue
            if self.sheet.value(row, col) is None:
                continue
            if any(b[0] + d <= row <= b[2] and b[1] <= col <= b[3] for b, d in tables):
                continue
            found.append((place, self.sheet.computed(*place), look_of(self.sheet, *place)))
        return found

    def _labels_beside(self, col: int) -> list[tuple[int, str]]:
        """Labels of the 80 rows around the target as seen from a column."""
        found = []
        for row in range(max(1, self.cell.row - 40), self.cell.row + 41):
            place = label_left(self.sheet, row, col) if row != self.cell.row else None
            if place is not None:
                found.append((row, text_at(self.sheet, place)))
        return found

    def _parameter(self, label: str) -> tuple[int, int, float] | None:
        """The number to the right of the label most like this one, of equal ones the first in reading order."""
        best: tuple[float, int, int] | None = None
        for row, col, text in self.labels.like(label):
            score = similar(text, label)
            if score < 0.5 or (best is not None and score <= best[0]) or self.sheet.value(row, col) is None:
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
                computed = self.sheet.computed(self.cell.row, col)
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
        run = self._once(self._run, col, role.value, role.computed)
        if run is None:
            return None
        width = role.wide - 1
        return Ref("range", run[0], col, run[1], col + width, role.fixed), quality

    def _run(self, col: int, wanted: str, computed: bool) -> tuple[int, int] | None:
        """First and last row of the data under the header of a column (for a column total: above the target)."""
        bottom = self.cell.row - 1 if col == self.cell.col else None
        head = self.heads.get(col)
        start = (head[0] + 1) if head else self.box[0] + self.depth
        last = start - 1
        end = bottom if bottom is not None else min(self.sheet.bounds[2], start + 5000)
        kind: type | None = None
        row = start - 1
        while row < end:
            row += 1
            value = self.sheet.value(row, col)
            if value is None:
                if row == self.cell.row or last < start:
                    continue
                break
            if kind is None:
                kind = type(value)
                if wanted and kind_of_value(value) != wanted:
                    return None
            if type(value) is not kind:
                break
            if self.sheet.computed(row, col) != computed:
                if last < start:
                    start = row + 1
                    last = row
                    continue
                break
            row = last = min(end, self.sheet.stretch(row, col, same_class=False)[1])
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
        return self._only_table(role)

    def _only_table(self, role: Role) -> tuple[Ref, float] | None:
        """The one region of another sheet that is as wide as the role and has headers, if there is just one."""
        found = []
        if role.kind == "range":
            for name, sheet in self.book.sheets.items():
                if name != self.sheet.name:
                    regions = sheet_map(sheet, self.book)
                    for box, depth in zip(regions.regions.tolist(), regions.header_rows.tolist(), strict=True):
                        if depth and box[3] - box[1] + 1 == role.wide:
                            found.append((name, box, depth))
        if len(found) != 1:
            return None
        name, (row1, col1, row2, col2), depth = found[0]
        return Ref("range", row1 + depth, col1, row2, col2, role.fixed, name), 0.7


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
