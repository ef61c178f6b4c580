"""Totals: a sum, mean, count ... over the run of numbers above or to the left, as the label asks."""

from __future__ import annotations

import re

from assay.formulas.errors import FormulaError
from assay.formulas.grammar import CellRef, column_name, parse
from assay.formulas.grammar.nodes import Call
from assay.formulas.regions import column_header, label_left
from assay.formulas.systems.base import Suggestion, timed
from assay.formulas.systems.words import LANGUAGES, asked
from assay.formulas.tasks import Task
from assay.formulas.workbook.model import Sheet

_CALLED = re.compile(r"\s*(?:_xlfn\.)?(\w+)\s*\(", re.IGNORECASE)
_TOTALS = frozenset(("SUM", "SUBTOTAL", "AVERAGE", "COUNT", "COUNTA", "MAX", "MIN", "MEDIAN", "STDEV", "AGGREGATE"))


class Aggregate:
    """Total rows and total columns.

    The label (to the left in the row, or above in the column) says the function; without a word for one, a blank or
    unknown label at the end of a run of numbers still gets a sum, with a low score. Earlier totals over the same
    cells are left out of the run, or end it.

    Parameters
    ----------
    languages : sequence of str
        Of the labels: en, de, fr, es, it, pt, nl.

    Examples
    --------
    >>> from assay.formulas import Workbook, task_at
    >>> cells = {"A1": "Item", "B1": "Cost", "A2": "bolt", "B2": 3.0, "A3": "nut", "B3": 5.0, "A4": "Average"}
    >>> book = Workbook.from_cells({"S": cells})
    >>> [s.formula for s in Aggregate().suggest(task_at(book, "S!B4"), k=2)]
    ['AVERAGE(B2:B3)', 'SUM(B2:B3)']
    """

    name = "aggregate"
    asked_for = 0.6
    """Scores from here on mean that a label names the aggregate."""
    ends_here = 0.9
    """And that nothing follows the cell."""

    def __init__(self, languages: tuple[str, ...] = LANGUAGES) -> None:
        unknown = sorted(set(languages) - set(LANGUAGES))
        if unknown:
            raise FormulaError(f"no words for the languages {', '.join(unknown)}; there is {', '.join(LANGUAGES)}")
        self.languages = tuple(languages)

    def suggest(self, task: Task, k: int = 5) -> list[Suggestion]:
        """See `System.suggest`."""
        return timed(self._totals, task, k, self.name)

    def _totals(self, task: Task) -> list[Suggestion]:
        book, cell = task.view, task.cell
        sheet = book.sheet(cell.sheet)
        found: list[Suggestion] = []
        row_label = label_left(sheet, cell.row, cell.col)
        column_label = column_header(sheet, cell.row, cell.col, book)
        for across in (False, True):
            label = column_label if across else row_label
            text = str(sheet.value(*label)) if label else ""
            wanted = asked(text, self.languages)
            other = row_label if across else column_label
            other_wanted = asked(str(sheet.value(*other)), self.languages) if other else []
            run = self._run(sheet, cell, across)
            if run is None:
                continue
            first, last, totals = run
            size = last - first + 1
            if size < 2 and not wanted:
                continue
            ends = self._ends(sheet, cell, across)
            base = (0.9 if ends else 0.6) if wanted else (0.45 if ends else 0.2)
            if not wanted and other_wanted:  # the other direction is the one that is labelled
                base *= 0.5
            if not wanted and self._table_goes_on(sheet, cell, across):
                base *= 0.4
            for i, function in enumerate(wanted or ["SUM"]):
                found += self._over(cell, first, last, totals, across, function, base * 0.8**i, text, label)
            if wanted and "SUM" not in wanted:
                found += self._over(cell, first, last, totals, across, "SUM", base * 0.4, text, label)
        return found

    def _over(
        self,
        cell: CellRef,
        first: int,
        last: int,
        totals: list[int],
        across: bool,
        function: str,
        score: float,
        text: str,
        label: tuple[int, int] | None,
    ) -> list[Suggestion]:
        def address(line: int) -> str:
            return f"{column_name(line)}{cell.row}" if across else f"{column_name(cell.col)}{line}"

        span = f"{address(first)}:{address(last)}" if last > first else address(first)
        why = f"{function} of the numbers {'to the left' if across else 'above'}" + (
            f", asked for by {text!r}" if text else ""
        )
        evidence = (CellRef(cell.sheet, *label),) if label else ()
        found = [Suggestion(f"{function}({span})", score, self.name, reason=why, evidence=evidence)]
        if totals and function == "SUM":
            parts = "+".join(address(t) for t in sorted(totals))
            found.append(Suggestion(parts, score * 0.7, self.name, reason="sum of the totals", evidence=evidence))
            found.append(
                Suggestion(
                    f"SUM({','.join(address(t) for t in sorted(totals))})", score * 0.6, self.name,
                    reason="sum of the totals", evidence=evidence,
                )
            )  # fmt: skip
        return found

    def _run(self, sheet: Sheet, cell: CellRef, across: bool) -> tuple[int, int, list[int]] | None:
        """First and last line of the numbers before the cell, and the totals that were met."""
        line = (cell.col if across else cell.row) - 1
        last = first = 0
        totals: list[int] = []
        blanks = 0
        while line >= 1:
            place = (cell.row, line) if across else (line, cell.col)
            value, computed = sheet.value(*place), sheet.computed(*place)
            if value is None and not computed:
                blanks += 1
                if blanks > 1 or (last == 0 and blanks > 1):
                    break
                line -= 1
                continue
            number = isinstance(value, float) or (computed and value is None)
            if not number or isinstance(value, bool):
                break
            if computed and self._is_total(sheet.formula(*place) or "", place, across):
                totals.append(line)
                if last:
                    break
                line -= 1
                blanks = 0
                continue
            if blanks and last:
                break
            blanks = 0
            last = last or line
            # a column's copies of one formula are totals of it all or none
            first = line if across else sheet.stretch(line, cell.col)[0]
            line = first - 1
        if not last:
            return (min(totals), max(totals), totals) if len(totals) > 1 else None
        if self._looks_like_years(sheet, cell, first, last, across):
            first += 1
        return (first, last, totals if len(totals) > 1 else []) if first <= last else None

    def _looks_like_years(self, sheet: Sheet, cell: CellRef, first: int, last: int, across: bool) -> bool:
        """A first number such as 2023 above amounts is a header."""
        values = [
            sheet.value(cell.row, line) if across else sheet.value(line, cell.col)
            for line in (first, min(first + 1, last))
        ]
        head, following = values
        return (
            isinstance(head, float)
            and head == int(head)
            and 1900 <= head <= 2100
            and isinstance(following, float)
            and not (1900 <= following <= 2100)
        )

    def _is_total(self, formula: str, place: tuple[int, int], across: bool) -> bool:
        """Whether a formula sums lines of its own row or column."""
        called = _CALLED.match(formula)
        if not called or called[1].upper() not in _TOTALS:
            return False
        try:
            read = parse(formula)
        except FormulaError:
            return False
        node = read.tree
        if not isinstance(node, Call) or node.function not in _TOTALS:
            return False
        for ref in read.references():
            if ref.sheet is None and ref.kind == "range":
                if across and ref.row1 == ref.row2 == place[0]:
                    return True
                if not across and ref.col1 == ref.col2 == place[1]:
                    return True
        return False

    def _ends(self, sheet: Sheet, cell: CellRef, across: bool) -> bool:
        """Nothing follows the cell in the direction of the run."""
        after = (cell.row, cell.col + 1) if across else (cell.row + 1, cell.col)
        return sheet.value(*after) is None and sheet.formula(*after) is None

    def _table_goes_on(self, sheet: Sheet, cell: CellRef, across: bool) -> bool:
        """The target's own line holds a constant number beside it, so it is a row of data like those before."""
        for step in (-1, 1):
            place = (cell.row + step, cell.col) if across else (cell.row, cell.col + step)
            if min(place) >= 1 and isinstance(sheet.value(*place), float) and sheet.formula(*place) is None:
                return True
        return False
