"""Copy the formula of a neighbour: R1C1 copies from the four sides, with a vote in the block."""

from __future__ import annotations

from collections import defaultdict

from assay.formulas.errors import FormulaError
from assay.formulas.grammar import CellRef, Formula, parse
from assay.formulas.systems.base import Suggestion, any_filled, timed
from assay.formulas.tasks import Task
from assay.formulas.workbook.model import Sheet
from assay.formulas.workbook.resolve import boxes

_SIDES = {"above": (-1, 0), "left": (0, -1), "below": (1, 0), "right": (0, 1)}
_WEIGHT = {"above": 1.0, "left": 0.9, "below": 0.8, "right": 0.7}


class Neighbour:
    """Votes of the formulas around the cell.

    Each side gives the formula of the nearest cell with one (past at most ``gap`` blanks); copies of one formula add
    up, and a longer run of copies weighs more. A copy is refused where a reference leaves the grid, points to the
    target, or falls on blanks while the neighbour's own falls on data.

    Parameters
    ----------
    gap : int
        Cells without a formula between the target and the neighbour.

    Examples
    --------
    >>> from assay.formulas import Workbook, task_at
    >>> cells = {f"A{i}": i for i in range(1, 5)} | {f"B{i}": f"=A{i}*2" for i in range(1, 4)}
    >>> [s.formula for s in Neighbour().suggest(task_at(Workbook.from_cells({"S": cells}), "S!B4"))]
    ['A4*2']
    """

    name = "neighbour"

    def __init__(self, gap: int = 0) -> None:
        if gap < 0:
            raise FormulaError(f"gap is at least 0, not {gap}")
        self.gap = gap

    def suggest(self, task: Task, k: int = 5) -> list[Suggestion]:
        """See `System.suggest`."""
        return timed(self._votes, task, k, self.name)

    def _votes(self, task: Task) -> list[Suggestion]:
        book, cell = task.view, task.cell
        sheet = book.sheet(cell.sheet)
        weight: dict[str, float] = defaultdict(float)
        text: dict[str, str] = {}
        sources: dict[str, list[tuple[str, CellRef]]] = defaultdict(list)
        sides = 0
        for side, (down, right) in _SIDES.items():
            place = self._nearest(sheet, cell, down, right)
            if place is None:
                continue
            formula = sheet.formula(*place) or ""
            if sheet.is_array(*place):
                continue
            sides += 1
            at = CellRef(sheet.name, *place)
            try:
                original = parse(formula, at)
                copy = original.moved(cell)
            except FormulaError:
                continue
            if not self._fits(task, original, at, copy):
                continue
            form = copy.canonical_r1c1()
            run = self._run(sheet, place, down, right)
            steps = abs(place[0] - cell.row) + abs(place[1] - cell.col)
            kin = self._lines_alike(sheet, cell, place)
            weight[form] += _WEIGHT[side] * (1 - 0.5 ** min(run, 6)) / steps * kin
            text.setdefault(form, copy.to_a1())
            sources[form].append((side, at))
        found = []
        total = sum(weight.values())
        for form, value in weight.items():
            names = ", ".join(f"{side} ({at.address})" for side, at in sources[form])
            score = min(0.99, 0.5 + 0.5 * value / (0.6 + total)) * self._row_agrees(sheet, cell, sources[form][0])
            found.append(
                Suggestion(
                    text[form], score, self.name, reason=f"copy of the formula {names}",
                    evidence=tuple(at for _, at in sources[form]),
                )
            )  # fmt: skip
        return found

    def _nearest(self, sheet: Sheet, cell: CellRef, down: int, right: int) -> tuple[int, int] | None:
        for step in range(1, self.gap + 2):
            row, col = cell.row + down * step, cell.col + right * step
            if row < 1 or col < 1:
                return None
            if sheet.formula(row, col) is not None:
                return row, col
            if sheet.value(row, col) is not None:
                return None
        return None

    def _run(self, sheet: Sheet, place: tuple[int, int], down: int, right: int) -> int:
        """Cells beyond the neighbour that hold copies of its formula, itself included, at most 6."""
        store = sheet.store
        row, col = place
        first = store.class_of(sheet.formula(row, col) or "", row, col)
        count = 1
        for step in range(1, 6):
            r, c = row + down * step, col + right * step
            formula = sheet.formula(r, c) if r > 0 and c > 0 else None
            if formula is None or store.class_of(formula, r, c) != first:
                break
            count += 1
        return count

    def _lines_alike(self, sheet: Sheet, cell: CellRef, place: tuple[int, int]) -> float:
        """Whether the line of the target is of the kind of the neighbour's line, told by the formulas beside the two.

        In a total row under a filled column the cells beside hold other formulas than those above them, so the copy
        from above is doubtful and the copy from the left is not; in a filled column beside another it is the reverse.
        """
        store = sheet.store

        def cls(row: int, col: int) -> int | None:
            formula = sheet.formula(row, col) if row > 0 and col > 0 else None
            if formula is not None:
                return store.class_of(formula, row, col)
            return None if row < 1 or col < 1 or sheet.value(row, col) is None else -1

        vertical = place[1] == cell.col
        alike = other = 0
        for step in (-1, 1):
            if vertical:
                a, b = cls(cell.row, cell.col + step), cls(place[0], cell.col + step)
            else:
                a, b = cls(cell.row + step, cell.col), cls(cell.row + step, place[1])
            if a is None or b is None or a == b == -1:
                continue
            alike, other = alike + (a == b), other + (a != b)
        return 1.0 if not other else 0.3 if not alike else 0.6

    def _row_agrees(self, sheet: Sheet, cell: CellRef, source: tuple[str, CellRef]) -> float:
        """How much the target's row (or column) looks like the neighbour's: the share of kinds that agree."""
        side, at = source
        same = total = 0
        for step in range(-6, 7):
            if step == 0:
                continue
            if side in ("above", "below"):
                here, there = (cell.row, cell.col + step), (at.row, at.col + step)
            else:
                here, there = (cell.row + step, cell.col), (at.row + step, at.col)
            if min(*here, *there) < 1:
                continue
            a, b = sheet.value(*here), sheet.value(*there)
            if a is None and b is None:
                continue
            total += 1
            same += type(a) is type(b)
        return 0.55 + 0.45 * same / total if total else 0.75

    def _fits(self, task: Task, original: Formula, at: CellRef, copy: Formula) -> bool:
        book = task.view
        for (s, r1, c1, r2, c2), (t, p1, q1, p2, q2) in zip(
            boxes(copy, book, task.cell), boxes(original, book, at), strict=False
        ):
            if s == task.cell.sheet and r1 <= task.cell.row <= r2 and c1 <= task.cell.col <= c2:
                return False
            if not any_filled(book, s, r1, c1, r2, c2) and any_filled(book, t, p1, q1, p2, q2):
                return False
        return True
