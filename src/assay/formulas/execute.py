"""Right by execution: the same value on the workbook as it is and on copies whose inputs have changed.

Copies change the constant cells upstream of the truth or of a candidate, type kept. Formula cells in between are
calculated where the engine reproduces their stored value; otherwise they are frozen and changed like constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.formulas.errors import CellRefError, CircularReference, FormulaError, UnsupportedFunction
from assay.formulas.evaluate import Engine
from assay.formulas.evaluate.core import Grid, Value
from assay.formulas.evaluate.engine import formula_precedents, upstream
from assay.formulas.grammar import CellRef, Formula, parse
from assay.formulas.shift import ShiftedEvaluator, shifted
from assay.formulas.tasks import Task
from assay.formulas.workbook.model import Workbook
from assay.formulas.workbook.resolve import boxes
from assay.formulas.workbook.values import ErrorValue

Place = tuple[str, int, int]
KINDS = ("by value", "row inserted", "shuffled", "blanked", "scaled", "by value", "scaled", "shuffled")
MAX_INPUTS = 4000
MAX_BETWEEN = 600


def same_value(a: Any, b: Any) -> bool:
    """Equal within 1e-9 + 1e-6 |b|; errors by kind, arrays as blocks, a truth value is no number.

    >>> same_value(1.0, 1.0 + 1e-7), same_value(True, 1.0), same_value(ErrorValue("#N/A"), ErrorValue("#N/A"))
    (True, False, True)
    """
    if isinstance(a, list) or isinstance(b, list):
        if not (isinstance(a, list) and isinstance(b, list)) or len(a) != len(b) or len(a[0]) != len(b[0]):
            return False
        return all(same_value(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))
    if isinstance(a, bool) or isinstance(b, bool):
        return isinstance(a, bool) and isinstance(b, bool) and a == b
    a, b = 0.0 if a is None else a, 0.0 if b is None else b
    if isinstance(a, float) and isinstance(b, float):
        return bool(abs(a - b) <= 1e-9 + 1e-6 * abs(b))
    return type(a) is type(b) and bool(a == b)


@dataclass(frozen=True)
class Verdict:
    """What execution says of a candidate.

    Attributes
    ----------
    outcome : {"right", "wrong", "undecided", "unparsable", "circular", "not executable", "truth not executable"}
        ``undecided``: equal on the workbook as it is, where no copy could be made (never counted as correct).
    copies : int
        Copies that were compared, the original aside.
    differs_on : str
        The first copy on which it differs; ``original`` for the workbook as it is.
    text_copy : bool or None
        Equal where one input number is a text (a column of its own, no part of ``outcome``).
    frozen : int
        Formula cells between that could not be calculated.
    """

    outcome: str
    copies: int = 0
    differs_on: str = ""
    text_copy: bool | None = None
    frozen: int = 0

    @property
    def right(self) -> bool:
        return self.outcome == "right"


@dataclass
class _Copy:
    kind: str
    values: dict[Place, Value]
    truth: Value | Grid
    row: int = 0
    sheet: str = ""


@dataclass
class Judge:
    """Compares candidates with the truth of one task.

    Parameters
    ----------
    task : Task
    engine : Engine
    copies : int
        Changed copies (m).
    seed : int
    candidates : sequence of str
        Whose inputs are changed as well; give all candidates at once, so that they meet the same copies.

    Examples
    --------
    >>> from assay.formulas import Workbook, Task, parse_address
    >>> book = Workbook.from_cells({"S": {"A1": 2, "A2": 3, "A3": ("=A1+A2", 5.0)}})
    >>> cell = parse_address("S!A3")
    >>> judge = Judge(Task("t", book, cell, truth="A1+A2", removed=frozenset([cell])), Engine())
    >>> [judge(f).outcome for f in ("SUM(A1:A2)", "5", "A1*A2-1")]
    ['right', 'wrong', 'wrong']
    """

    task: Task
    engine: Engine
    copies: int = 8
    seed: int = 0
    candidates: Sequence[str] = ()
    reproduces: bool | None = field(init=False, default=None)
    problem: str = field(init=False, default="")
    frozen: set[Place] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        if self.task.truth is None:
            raise FormulaError(f"the task {self.task.id} has no truth to compare with")
        self.book: Workbook = self.task.book
        at = self.task.cell
        self.array = self.book.sheet(at.sheet).is_array(at.row, at.col)
        self.truth = parse(self.task.truth, at)
        self._made: list[_Copy] = []
        self._blanks: list[Place] = []
        self._text: _Copy | None = None
        self._original: Value | Grid = None
        self._base: dict[Place, Value] = {}
        try:
            self._prepare()
        except (UnsupportedFunction, CircularReference, CellRefError) as error:
            self.problem = str(error)

    def _add(self, kind: str, fails: bool, rng: np.random.Generator) -> None:
        """A copy of that kind; drawn again, a few times, where it turns the truth into an error."""
        for _ in range(6):
            made = self._copy(kind, rng)
            if fails or not isinstance(made.truth, ErrorValue):
                self._made.append(made)
                return

    def _blank_places(self) -> list[Place]:
        """Blank cells that the truth, or a formula between, refers to."""
        found: dict[Place, None] = {}
        chain = [(p, self.book.sheets[p[0]].formula(p[1], p[2]) or "") for p in self._between if p not in self.frozen]
        forms = [(self.truth, self.task.cell)] + [(parse(text, CellRef(*p)), CellRef(*p)) for p, text in chain]
        target = (self.task.cell.sheet, self.task.cell.row, self.task.cell.col)
        for form, at in forms:
            for sheet, row1, col1, row2, col2 in boxes(form, self.book, at):
                for row in range(row1, min(row2, row1 + 30) + 1):
                    for col in range(col1, min(col2, col1 + 30) + 1):
                        place = (sheet, row, col)
                        if place != target and place not in self._base and self._value(place) is None:
                            found[place] = None
            if len(found) > 200:
                break
        return list(found)[:200]

    # -- making the copies -----------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        at = self.task.cell
        forms: list[Formula] = [self.truth]
        for text in dict.fromkeys(self.candidates):
            try:
                forms.append(parse(text, at))
            except FormulaError:
                continue
        self._between = self._chain(forms)
        self._base = {}
        for place in self._between:
            self._check_between(place)
        self._inputs = self._constants(forms)
        self._original = self._evaluate(self.truth, self._base)
        stored = self.book.sheet(at.sheet).value(at.row, at.col)
        if stored is not None:
            first = self._original[0][0] if isinstance(self._original, list) else self._original
            self.reproduces = same_value(first, stored)
        rng = np.random.default_rng([self.seed, *self.task.id.encode()])
        fails = isinstance(self._original, ErrorValue)
        if self._inputs:
            for number in range(self.copies):
                self._add(KINDS[number % len(KINDS)], fails, rng)
        if all(same_value(made.truth, self._original) for made in self._made):
            # nothing that was changed matters: cells that the truth refers to and that are blank are filled
            self._blanks = self._blank_places()
            if self._blanks:
                del self._made[max(0, self.copies - 3) :]
                for _ in range(3):
                    self._add("blanks filled", fails, rng)
        numbers = [p for p in self._inputs if isinstance(self._value(p), float)]
        if numbers:
            place = numbers[int(rng.integers(len(numbers)))]
            values = self._settled({place: f"x{self._value(place)}"})
            self._text = _Copy("number to text", values, self._evaluate(self.truth, values))

    def _chain(self, forms: list[Formula]) -> list[Place]:
        """Formula cells upstream, those that others need first; what lies too far is left to its stored value."""
        order: dict[Place, None] = {}
        for form in forms:
            try:
                for place in upstream(self.book, form, self.task.cell, limit=MAX_BETWEEN):
                    order[place] = None
            except UnsupportedFunction:
                for place in formula_precedents(self.book, form, self.task.cell):
                    order.setdefault(place)
                    self.frozen.add(place)
            except CircularReference:
                if form is self.truth:
                    raise
        target = (self.task.cell.sheet, self.task.cell.row, self.task.cell.col)
        return [place for place in order if place != target]

    def _check_between(self, place: Place) -> None:
        sheet, row, col = place
        stored = self.book.sheets[sheet].value(row, col)
        if place in self.frozen:
            self._base[place] = stored
            return
        try:
            found = self._calculate(place, self._base)
        except (UnsupportedFunction, CircularReference, FormulaError):
            self.frozen.add(place)
            self._base[place] = stored
            return
        missing = stored is None
        if missing or same_value(found, stored):
            self._base[place] = found if missing else stored
        else:
            self.frozen.add(place)
            self._base[place] = stored

    def _constants(self, forms: list[Formula]) -> list[Place]:
        """Cells that are changed: constants that the formulas and the cells between refer to, and frozen cells."""
        found: dict[Place, None] = {}
        between = set(self._between)
        for form, at in [(f, self.task.cell) for f in forms] + [
            (parse(self.book.sheets[p[0]].formula(p[1], p[2]) or "", CellRef(*p)), CellRef(*p))
            for p in self._between
            if p not in self.frozen
        ]:
            for sheet, row1, col1, row2, col2 in boxes(form, self.book, at):
                here = self.book.sheets[sheet]
                if (row2 - row1 + 1) * (col2 - col1 + 1) > 200:
                    a = here.arrays()
                    first, last = np.searchsorted(a.row, [row1, row2 + 1])
                    part = (a.col[first:last] >= col1) & (a.col[first:last] <= col2)
                    spots = zip(a.row[first:last][part].tolist(), a.col[first:last][part].tolist(), strict=True)
                else:
                    spots = ((r, c) for r in range(row1, row2 + 1) for c in range(col1, col2 + 1))  # type: ignore[assignment]
                for row, col in spots:
                    place = (sheet, row, col)
                    if place == (self.task.cell.sheet, self.task.cell.row, self.task.cell.col):
                        continue
                    if (place not in between or place in self.frozen) and here.value(row, col) is not None:
                        found[place] = None
                if len(found) > MAX_INPUTS:
                    return list(found)[:MAX_INPUTS]
        return list(found)

    def _value(self, place: Place) -> Value:
        return self._base[place] if place in self._base else self.book.sheets[place[0]].value(place[1], place[2])

    def _copy(self, kind: str, rng: np.random.Generator) -> _Copy:
        if kind == "row inserted":
            return self._inserted(rng)
        if kind == "blanks filled":
            filled: dict[Place, Value] = {place: float(rng.integers(1, 100)) for place in self._blanks}
            values = self._settled(filled)
            return _Copy(kind, values, self._evaluate(self.truth, values))
        old = {place: self._value(place) for place in self._inputs}
        new = _changed(old, kind, rng)
        values = self._settled(new)
        return _Copy(kind, values, self._evaluate(self.truth, values))

    def _inserted(self, rng: np.random.Generator) -> _Copy:
        own = [p for p in self._inputs if p[0] == self.task.cell.sheet] or self._inputs
        sheet = own[0][0]
        rows = sorted({p[1] for p in own if p[0] == sheet})
        inside = list(range(rows[0] + 1, rows[-1] + 1)) or [rows[0]]
        row = int(inside[int(rng.integers(len(inside)))])
        made = _Copy("row inserted", dict(self._base), None, row, sheet)
        made.truth = self._on(made, self.truth)
        return made

    def _settled(self, changes: Mapping[Place, Value]) -> dict[Place, Value]:
        """All values of a copy: changed inputs, and the cells between calculated from them."""
        values: dict[Place, Value] = {**self._base, **changes}
        for place in self._between:
            if place not in self.frozen:
                values.pop(place, None)
        for place in self._between:
            if place not in self.frozen:
                values[place] = self._calculate(place, values)
        return values

    def _calculate(self, place: Place, values: Mapping[Place, Value]) -> Value:
        sheet, row, col = place
        run = self.engine.evaluator(self.book)
        run.values = values  # type: ignore[assignment]
        return run.cell_value(
            self.book.sheets[sheet].formula(row, col) or "", CellRef(*place), self.book.sheets[sheet].is_array(row, col)
        )

    def _evaluate(self, form: Formula, values: Mapping[Place, Value]) -> Value | Grid:
        run = self.engine.evaluator(self.book)
        run.values = values  # type: ignore[assignment]
        return run.evaluate(form, self.task.cell, self.array)

    def _on(self, made: _Copy, form: Formula) -> Value | Grid:
        if not made.sheet:
            return self._evaluate(form, made.values)
        run = ShiftedEvaluator(
            self.book,
            made.sheet,
            made.row,
            now=self.engine.now,
            steps=self.engine.steps,
            delegate=self.engine._delegate,
        )
        run.values = made.values
        moved, at = shifted(form, self.task.cell, made.sheet, made.row)
        return run.evaluate(moved, at, self.array)

    # -- judging ---------------------------------------------------------------------------------------------------

    def __call__(self, candidate: str) -> Verdict:
        """Compare one candidate."""
        if self.problem:
            return Verdict("truth not executable", frozen=len(self.frozen))
        try:
            form = parse(candidate, self.task.cell)
        except FormulaError:
            return Verdict("unparsable", frozen=len(self.frozen))
        count = len(self._made)
        if not _refers(form) and _refers(self.truth):
            # a constant is never the formula, even where no copy could move the truth
            return Verdict("wrong", count, "constant", None, len(self.frozen))
        try:
            upstream(self.book, form, self.task.cell, limit=MAX_BETWEEN)
        except CircularReference:
            return Verdict("circular", frozen=len(self.frozen))
        except UnsupportedFunction:
            pass
        try:
            if not same_value(self._evaluate(form, self._base), self._original):
                return Verdict("wrong", count, "original", self._text_copy(form), len(self.frozen))
            for made in self._made:
                if not same_value(self._on(made, form), made.truth):
                    return Verdict("wrong", count, made.kind, self._text_copy(form), len(self.frozen))
        except UnsupportedFunction:
            return Verdict("not executable", count, frozen=len(self.frozen))
        except CircularReference:
            return Verdict("circular", count, frozen=len(self.frozen))
        if not self._made and form.canonical() != self.truth.canonical():
            # equal on the workbook as it is, and nothing could be changed: that may be luck
            return Verdict("undecided", 0, "no copy", None, len(self.frozen))
        return Verdict("right", count, "", self._text_copy(form), len(self.frozen))

    def _text_copy(self, form: Formula) -> bool | None:
        if self._text is None:
            return None
        try:
            return same_value(self._evaluate(form, self._text.values), self._text.truth)
        except (UnsupportedFunction, CircularReference):
            return None


def _refers(form: Formula) -> bool:
    return bool(form.references() or form.structured() or form.names())


def _changed(old: Mapping[Place, Value], kind: str, rng: np.random.Generator) -> dict[Place, Value]:
    """Other values of the same types."""
    new: dict[Place, Value] = dict(old)
    if kind == "blanked":
        places = list(old)
        count = max(1, round(0.1 * len(places)))
        for i in rng.choice(len(places), count, replace=False):
            new[places[int(i)]] = None
        return new
    if kind == "shuffled":
        groups: dict[tuple[str, int, type], list[Place]] = {}
        for place, value in old.items():
            groups.setdefault((place[0], place[2], type(value)), []).append(place)
        for places in groups.values():
            order = rng.permutation(len(places))
            for place, j in zip(places, order, strict=True):
                new[place] = old[places[int(j)]]
            if len(places) == 1:
                new[places[0]] = _other(old[places[0]], rng)
        return new
    if kind == "by value":
        # the same value becomes the same other value, so that keys still find their rows
        texts = sorted({v for v in old.values() if isinstance(v, str)})
        turned = dict(zip(texts, (texts[int(i)] for i in rng.permutation(len(texts))), strict=True))
        if len(texts) == 1:
            turned = {texts[0]: texts[0] + "x"}
        known: dict[float, Value] = {}
        for place, value in old.items():
            if isinstance(value, str):
                new[place] = turned[value]
            elif isinstance(value, float):
                if value not in known:
                    known[value] = _other(value, rng)
                new[place] = known[value]
            else:
                new[place] = _other(value, rng)
        return new
    for place, value in old.items():
        new[place] = value if isinstance(value, str) and rng.random() < 0.5 else _other(value, rng)
    return new


def _other(value: Value, rng: np.random.Generator) -> Value:
    if isinstance(value, bool):
        return bool(rng.random() < 0.5)
    if isinstance(value, float):
        if value == 0:
            return float(rng.integers(1, 10)) if rng.random() < 0.5 else 0.0
        if value == int(value) and abs(value) < 1e9:
            if 20_000 < value < 80_000:  # a date, most likely: move it by days
                return value + float(rng.integers(-400, 400))
            size = abs(value)
            moved = float(rng.integers(max(1, int(size * 0.5)), int(size * 2) + 3))
            return moved if value > 0 else -moved
        return value * float(rng.uniform(0.5, 2.0))
    if isinstance(value, str):
        letters = list(value)
        rng.shuffle(letters)
        return "".join(letters) + "abcdefgh"[int(rng.integers(8))]
    return value
