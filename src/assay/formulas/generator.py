"""Workbooks made from parameters: every formula cell has a known truth, layouts and words change with the seed.

Six kinds: invoice, budget, gradebook, inventory, loan, survey. Titles, blank rows, the place of the table, the words of
headers and their language, optional columns and the size are drawn from the seed; stored values are calculated.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from assay.formulas.errors import FormulaError
from assay.formulas.grammar import column_name
from assay.formulas.recalculate import recalculated
from assay.formulas.vocabulary import VOCABULARIES, Vocabulary
from assay.formulas.workbook.model import Workbook
from assay.formulas.workbook.store import Style

BOLD, MONEY, PERCENT, HEAD = (
    Style(bold=True),
    Style("$", code="#,##0.00 $"),
    Style("%", code="0%"),
    Style("", True, True, True),
)


class _Sheet:
    """Cells and styles of a sheet that is being made."""

    def __init__(self, rng: np.random.Generator, language: str, vocabulary: Vocabulary) -> None:
        self.rng, self.language, self.vocabulary = rng, language, vocabulary
        self.cells: dict[str, Any] = {}
        self.styles: dict[str, Style] = {}
        self.merged: list[tuple[int, int, int, int]] = []

    def word(self, concept: str) -> str:
        by_language = self.vocabulary.words[concept]
        choices = by_language.get(self.language) or by_language["en"]
        return choices[int(self.rng.integers(len(choices)))]

    def put(self, row: int, col: int, value: Any, style: Style | None = None) -> str:
        address = f"{column_name(col)}{row}"
        self.cells[address] = value
        if style is not None:
            self.styles[address] = style
        return address

    def pick(self, items: list[str] | tuple[str, ...], n: int) -> list[str]:
        order = self.rng.permutation(len(items))
        return [
            items[int(order[i % len(items)])] + (f" {i // len(items) + 1}" if i >= len(items) else "") for i in range(n)
        ]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def whole(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def start(self, title: str, width: int) -> tuple[int, int]:
        """Place of the table: sometimes a title (merged or not), blank rows, a blank column."""
        col = 1 + (1 if self.chance(0.25) else 0)
        row = 1
        if self.chance(0.6):
            self.put(row, col, title, BOLD)
            if self.chance(0.5):
                self.merged.append((row, col, row, col + width - 1))
            row += 1 + self.whole(1, 2)
        return row, col


def _a(row: int, col: int, fixed: bool = False) -> str:
    return f"${column_name(col)}${row}" if fixed else f"{column_name(col)}{row}"


def _invoice(s: _Sheet) -> dict[str, _Sheet]:
    n = s.whole(3, 15)
    discount, taxed = s.chance(0.4), s.chance(0.7)
    row, col = s.start(s.word("amount"), 5)
    rate = None
    if taxed and s.chance(0.6):
        s.put(row, col, s.word("taxrate"))
        rate = _a(row, col + 1, True)
        s.put(row, col + 1, round(s.whole(5, 25) / 100, 2), PERCENT)
        row += 2
    heads = ["item", "qty", "price", *(["discount"] if discount else []), "amount"]
    for j, concept in enumerate(heads):
        s.put(row, col + j, s.word(concept), HEAD)
    end = col + len(heads) - 1
    first = row + 1
    for i, thing in enumerate(s.pick(s.vocabulary.things, n)):
        r = first + i
        s.put(r, col, thing)
        s.put(r, col + 1, s.whole(1, 40))
        s.put(r, col + 2, s.whole(50, 9000) / 100, MONEY)
        text = f"={_a(r, col + 1)}*{_a(r, col + 2)}"
        if discount:
            s.put(r, col + 3, s.whole(0, 6) / 20, PERCENT)
            text += f"*(1-{_a(r, col + 3)})"
        s.put(r, end, text, MONEY)
    last = first + n - 1
    r = last + 1 + (1 if s.chance(0.2) else 0)
    label = end - 1 if s.chance(0.6) else col
    s.put(r, label, s.word("subtotal"), BOLD)
    sub = s.put(r, end, f"=SUM({_a(first, end)}:{_a(last, end)})", MONEY)
    if taxed:
        s.put(r + 1, label, s.word("tax"), BOLD)
        tax = s.put(r + 1, end, f"={sub}*{rate or s.whole(5, 25) / 100}", MONEY)
        s.put(r + 2, label, s.word("grand"), BOLD)
        s.put(r + 2, end, f"={sub}+{tax}", MONEY)
    return {s.vocabulary.sheets["invoice"]: s}


def _budget(s: _Sheet) -> dict[str, _Sheet]:
    months = s.vocabulary.months[s.language][: s.whole(3, 12)]
    row, col = s.start(s.word("category"), len(months) + 2)
    s.put(row, col, s.word("category"), HEAD)
    for j, month in enumerate(months):
        s.put(row, col + 1 + j, month, HEAD)
    end = col + len(months)
    extras = ["total", *(["average"] if s.chance(0.5) else []), *(["share"] if s.chance(0.4) else [])]
    for j, concept in enumerate(extras):
        s.put(row, end + 1 + j, s.word(concept), HEAD)
    r = row + 1
    totals = []
    share_rows: list[int] = []
    for concept in ("income", "expenses"):
        n = s.whole(2, 6)
        first = r
        for thing in s.pick(s.vocabulary.things, n):
            s.put(r, col, thing)
            for j in range(len(months)):
                s.put(r, col + 1 + j, s.whole(10, 900) * 10, MONEY)
            s.put(r, end + 1, f"=SUM({_a(r, col + 1)}:{_a(r, end)})", MONEY)
            if "average" in extras:
                s.put(r, end + 2, f"=AVERAGE({_a(r, col + 1)}:{_a(r, end)})", MONEY)
            share_rows.append(r)
            r += 1
        s.put(r, col, s.word(concept), BOLD)
        for j in range(len(months) + 1):
            s.put(r, col + 1 + j, f"=SUM({_a(first, col + 1 + j)}:{_a(r - 1, col + 1 + j)})", MONEY)
        totals.append(r)
        if "share" in extras:
            place = end + 1 + extras.index("share")
            for line in range(first, r):
                s.put(line, place, f"={_a(line, end + 1)}/{_a(r, end + 1, True)}", PERCENT)
        r += 1 + (1 if s.chance(0.4) else 0)
    s.put(r, col, s.word("net"), BOLD)
    for j in range(len(months) + 1):
        s.put(r, col + 1 + j, f"={_a(totals[0], col + 1 + j)}-{_a(totals[1], col + 1 + j)}", MONEY)
    return {s.vocabulary.sheets["budget"]: s}


def _gradebook(s: _Sheet) -> dict[str, _Sheet]:
    n, exams = s.whole(4, 20), s.whole(2, 5)
    total, verdict = s.chance(0.4), s.chance(0.6)
    row, col = s.start(s.word("exam"), exams + 2)
    s.put(row, col, s.word("student"), HEAD)
    exam = s.word("exam")
    for j in range(exams):
        s.put(row, col + 1 + j, f"{exam} {j + 1}", HEAD)
    end = col + exams
    heads = [*(["total"] if total else []), "average", *(["result"] if verdict else [])]
    for j, concept in enumerate(heads):
        s.put(row, end + 1 + j, s.word(concept), HEAD)
    first, last = row + 1, row + n
    passing = s.whole(10, 14) * 5
    for i, person in enumerate(s.pick(s.vocabulary.people, n)):
        r = first + i
        s.put(r, col, person)
        for j in range(exams):
            s.put(r, col + 1 + j, s.whole(30, 100))
        place = end + 1
        span = f"{_a(r, col + 1)}:{_a(r, end)}"
        if total:
            s.put(r, place, f"=SUM({span})")
            place += 1
        s.put(r, place, f"=AVERAGE({span})")
        if verdict:
            s.put(r, place + 1, f'=IF({_a(r, place)}>={passing},"pass","fail")')
    r = last + 1 + (1 if s.chance(0.5) else 0)
    for concept, function in (("average", "AVERAGE"), ("best", "MAX"), ("worst", "MIN")):
        if concept == "average" or s.chance(0.6):
            s.put(r, col, s.word(concept), BOLD)
            for j in range(exams):
                s.put(r, col + 1 + j, f"={function}({_a(first, col + 1 + j)}:{_a(last, col + 1 + j)})")
            r += 1
    return {s.vocabulary.sheets["gradebook"]: s}


def _inventory(s: _Sheet) -> dict[str, _Sheet]:
    n = s.whole(4, 20)
    lookup, reorder = s.chance(0.5), s.chance(0.7)
    row, col = s.start(s.word("stock"), 6)
    heads = ["item", *(["supplier"] if lookup else []), "stock", *(["level"] if reorder else []), "price", "value"]
    heads += ["reorder"] if reorder else []
    heads += ["phone"] if lookup else []
    place = {concept: col + j for j, concept in enumerate(heads)}
    for concept, c in place.items():
        s.put(row, c, s.word(concept), HEAD)
    first, last = row + 1, row + n
    firms = [f"{name} {s.vocabulary.firm}" for name in s.pick(s.vocabulary.people, 5)]
    second = s.vocabulary.sheets["suppliers"]
    other = _Sheet(s.rng, s.language, s.vocabulary)
    for i, thing in enumerate(s.pick(s.vocabulary.things, n)):
        r = first + i
        s.put(r, place["item"], thing)
        s.put(r, place["stock"], s.whole(0, 120))
        s.put(r, place["price"], s.whole(100, 9000) / 100, MONEY)
        s.put(r, place["value"], f"={_a(r, place['stock'])}*{_a(r, place['price'])}", MONEY)
        if reorder:
            s.put(r, place["level"], s.whole(10, 60))
            s.put(r, place["reorder"], f'=IF({_a(r, place["stock"])}<{_a(r, place["level"])},"yes","no")')
        if lookup:
            s.put(r, place["supplier"], firms[s.whole(0, 4)])
            s.put(r, place["phone"], f"=VLOOKUP({_a(r, place['supplier'])},{second}!$A$2:$B$6,2,FALSE)")
    r = last + 1 + (1 if s.chance(0.3) else 0)
    s.put(r, col, s.word("grand"), BOLD)
    s.put(r, place["value"], f"=SUM({_a(first, place['value'])}:{_a(last, place['value'])})", MONEY)
    if reorder and s.chance(0.6):
        s.put(r + 1, col, s.word("toorder"), BOLD)
        span = f"{_a(first, place['reorder'])}:{_a(last, place['reorder'])}"
        s.put(r + 1, col + 1, f'=COUNTIF({span},"yes")')
    sheets = {s.vocabulary.sheets["inventory"]: s}
    if lookup:
        other.put(1, 1, s.word("supplier"), HEAD)
        other.put(1, 2, s.word("phone"), HEAD)
        for i, firm in enumerate(firms):
            other.put(2 + i, 1, firm)
            other.put(2 + i, 2, f"{s.vocabulary.things[s.whole(0, 29)]}town")
        sheets[second] = other
    return sheets


def _loan(s: _Sheet) -> dict[str, _Sheet]:
    months = s.whole(6, 24)
    row, col = s.start(s.word("principal"), 5)
    values = {"principal": s.whole(10, 500) * 1000, "rate": s.whole(20, 90) / 1000, "months": months}
    place = {}
    for concept in ("principal", "rate", "months"):
        s.put(row, col, s.word(concept))
        s.put(
            row, col + 1, values[concept], PERCENT if concept == "rate" else MONEY if concept == "principal" else None
        )
        place[concept] = _a(row, col + 1, True)
        row += 1
    s.put(row, col, s.word("payment"))
    s.put(row, col + 1, f"=-PMT({place['rate']}/12,{place['months']},{place['principal']})", MONEY)
    pay = _a(row, col + 1, True)
    row += 2
    heads = ["period", "opening", "payment", "interest", "repaid", "closing"]
    for j, concept in enumerate(heads):
        s.put(row, col + j, s.word(concept), HEAD)
    for i in range(months):
        r = row + 1 + i
        s.put(r, col, i + 1)
        s.put(r, col + 1, f"={place['principal']}" if i == 0 else f"={_a(r - 1, col + 5)}", MONEY)
        s.put(r, col + 2, f"={pay}", MONEY)
        s.put(r, col + 3, f"={_a(r, col + 1)}*{place['rate']}/12", MONEY)
        s.put(r, col + 4, f"={_a(r, col + 2)}-{_a(r, col + 3)}", MONEY)
        s.put(r, col + 5, f"={_a(r, col + 1)}-{_a(r, col + 4)}", MONEY)
    r = row + months + 1
    if s.chance(0.6):
        s.put(r, col, s.word("total"), BOLD)
        for j in (2, 3, 4):
            s.put(r, col + j, f"=SUM({_a(row + 1, col + j)}:{_a(r - 1, col + j)})", MONEY)
    return {s.vocabulary.sheets["loan"]: s}


def _survey(s: _Sheet) -> dict[str, _Sheet]:
    n = s.whole(8, 40)
    row, col = s.start(s.word("score"), 3)
    for j, concept in enumerate(("respondent", "group", "score")):
        s.put(row, col + j, s.word(concept), HEAD)
    groups = s.pick(s.vocabulary.groups, s.whole(2, 4))
    first, last = row + 1, row + n
    for i in range(n):
        s.put(first + i, col, i + 1)
        s.put(first + i, col + 1, groups[s.whole(0, len(groups) - 1)])
        s.put(first + i, col + 2, s.whole(1, 5))
    side = col + 4
    scores = f"${column_name(col + 2)}${first}:${column_name(col + 2)}${last}"
    named = f"${column_name(col + 1)}${first}:${column_name(col + 1)}${last}"
    s.put(row, side, s.word("score"), HEAD)
    s.put(row, side + 1, s.word("count"), HEAD)
    s.put(row, side + 2, s.word("share"), HEAD)
    for i in range(5):
        r = first + i
        s.put(r, side, i + 1)
        s.put(r, side + 1, f"=COUNTIF({scores},{_a(r, side)})")
        s.put(r, side + 2, f"={_a(r, side + 1)}/{_a(first + 5, side + 1, True)}", PERCENT)
    s.put(first + 5, side, s.word("total"), BOLD)
    s.put(first + 5, side + 1, f"=SUM({_a(first, side + 1)}:{_a(first + 4, side + 1)})")
    below = first + 8
    s.put(below - 1, side, s.word("group"), HEAD)
    s.put(below - 1, side + 1, s.word("count"), HEAD)
    s.put(below - 1, side + 2, s.word("average"), HEAD)
    for i, group in enumerate(groups):
        s.put(below + i, side, group)
        s.put(below + i, side + 1, f"=COUNTIF({named},{_a(below + i, side)})")
        s.put(below + i, side + 2, f"=AVERAGEIF({named},{_a(below + i, side)},{scores})")
    return {s.vocabulary.sheets["survey"]: s}


KINDS: dict[str, Callable[[_Sheet], dict[str, _Sheet]]] = {
    "invoice": _invoice, "budget": _budget, "gradebook": _gradebook, "inventory": _inventory, "loan": _loan,
    "survey": _survey,
}  # fmt: skip


def make_workbook(
    kind: str | None = None, seed: int = 0, language: str | None = None, vocabulary: str = "ordinary"
) -> Workbook:
    """A made workbook.

    Parameters
    ----------
    kind : {"invoice", "budget", "gradebook", "inventory", "loan", "survey"}, optional
        Drawn from the seed where it is not given.
    seed : int
    language : str, optional
        Of headers and labels (en, de, fr, es; unseen: en, nl, it; calibration: en, pt); drawn where it is not given
        (English in about half).
    vocabulary : {"ordinary", "calibration", "unseen"}
        Three sets of headers, labels, sheet names and row names that share no word.

    Raises
    ------
    FormulaError
        If there is no such kind, language or vocabulary.

    Examples
    --------
    >>> book = make_workbook("invoice", seed=1)
    >>> sum(1 for _ in book.sheets["Invoice"].formula_cells())
    11
    """
    if vocabulary not in VOCABULARIES:
        raise FormulaError(f"there is no vocabulary {vocabulary!r}; there is {', '.join(VOCABULARIES)}")
    chosen = VOCABULARIES[vocabulary]
    rng = np.random.default_rng([seed, 77])
    drawn_kind = list(KINDS)[int(rng.integers(len(KINDS)))]
    drawn_language = "en" if rng.random() < 0.5 else chosen.languages[int(rng.integers(len(chosen.languages)))]
    kind, language = kind or drawn_kind, language or drawn_language
    if kind not in KINDS:
        raise FormulaError(f"there is no kind {kind!r} of workbook; there is {', '.join(KINDS)}")
    if language not in chosen.languages:
        raise FormulaError(f"there are no words in {language!r}; there is {', '.join(chosen.languages)}")
    sheets = KINDS[kind](_Sheet(rng, language, chosen))
    book = Workbook.from_cells(
        {name: s.cells for name, s in sheets.items()},
        styles={name: s.styles for name, s in sheets.items()},
        path=f"{kind}-{seed}.xlsx",
    )
    for name, s in sheets.items():
        book.sheets[name].merged = s.merged
    full, failed = recalculated(book)
    assert not failed, failed
    return full


def make_workbooks(
    n: int, seed: int = 0, kinds: tuple[str, ...] | None = None, vocabulary: str = "ordinary"
) -> list[Workbook]:
    """Many made workbooks, of all kinds in turn."""
    names = kinds or tuple(KINDS)
    return [make_workbook(names[i % len(names)], seed * 100_003 + i, vocabulary=vocabulary) for i in range(n)]


def write_xlsx(book: Workbook, path: str | os.PathLike[str]) -> None:
    """Write a workbook with its stored values (values, formulas, bold, fill and number formats; nothing else).

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_xlsx(make_workbook("loan", seed=3), pathlib.Path(folder, "loan.xlsx"))
    ...     again = Workbook.open(pathlib.Path(folder, "loan.xlsx"))
    >>> again.sheets["Loan"].formula(*next(iter(again.sheets["Loan"].formula_cells()))[:2])[:4]
    '-PMT'
    """
    import uuid
    from pathlib import Path

    import xlsxwriter

    from assay.formulas.workbook.values import ErrorValue

    target = Path(path)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.xlsx")
    made = xlsxwriter.Workbook(str(part), {"strings_to_formulas": False, "strings_to_urls": False})
    formats: dict[Style, Any] = {}
    try:
        for sheet in book.sheets.values():
            page = made.add_worksheet(sheet.name)
            for (row, col), cell in sheet.cells.items():
                if cell.style not in formats:
                    options: dict[str, Any] = {"bold": cell.style.bold, "num_format": cell.style.code}
                    if cell.style.fill:
                        options["bg_color"] = "#DDDDDD"
                    if cell.style.border:
                        options["border"] = 1
                    formats[cell.style] = made.add_format(options)
                look = formats[cell.style]
                if cell.formula:
                    value = cell.value.kind if isinstance(cell.value, ErrorValue) else cell.value
                    page.write_formula(row - 1, col - 1, "=" + cell.formula, look, "" if value is None else value)
                elif isinstance(cell.value, bool):
                    page.write_boolean(row - 1, col - 1, cell.value, look)
                elif isinstance(cell.value, float):
                    page.write_number(row - 1, col - 1, cell.value, look)
                elif isinstance(cell.value, str):
                    page.write_string(row - 1, col - 1, cell.value, look)
                elif isinstance(cell.value, ErrorValue):
                    page.write_formula(row - 1, col - 1, f"={cell.value.kind}", look, cell.value.kind)
        made.close()
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
