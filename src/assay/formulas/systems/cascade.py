"""The cascade: cheap systems first, each trusted as far as it was right on a validation split; below it, silence."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from assay.formulas.errors import FormulaError
from assay.formulas.grammar import CellRef, parse
from assay.formulas.systems.aggregate import Aggregate
from assay.formulas.systems.base import Suggestion, System
from assay.formulas.systems.calibrate import Calibration, load, situation
from assay.formulas.systems.joint import Joint, load_joint
from assay.formulas.systems.neighbour import Neighbour
from assay.formulas.tasks import Task
from assay.formulas.workbook.model import Sheet


class Cascade:
    """Systems in order; a later one is asked only while no suggestion is sure enough.

    Parameters
    ----------
    systems : sequence of System, optional
        Default: neighbour, aggregate, retrieval over made workbooks.
    accept : float
        Calibrated share of right suggestions from which on no further system is asked.
    threshold : float
        Suggestions below this share are not given.
    fill : float
        Least share of the plain reading of a cell: it continues the fill above it or left of it, or words ask for the
        aggregate of the numbers that end there. Made sheets, on which the joint weights are fitted, hold other formulas
        in such places far more often than people's do.
    calibration : mapping of ``system/situation`` or system name to `Calibration`, optional
        Default: the one of the package, fitted on made workbooks whose words neither the corpus of retrieval nor any
        test uses (`assay formulas calibrate`).
    joint : `Joint`, optional
        How the shares of several systems go together; where it has no weights for the systems that were asked, the best
        calibrated share counts. Default: the one of the package, none where a calibration is given.

    Raises
    ------
    FormulaError
        If a threshold lies outside 0 to 1, or there is no system.

    Examples
    --------
    >>> from assay.formulas import Workbook, task_at
    >>> cells = {f"A{i}": i for i in range(1, 6)} | {f"B{i}": f"=A{i}*2" for i in range(1, 5)}
    >>> best = Cascade([Neighbour(), Aggregate()]).suggest(task_at(Workbook.from_cells({"S": cells}), "S!B5"))[0]
    >>> best.formula, best.source, best.evidence[0].address
    ('A5*2', 'neighbour', 'B4')
    """

    name = "cascade"

    def __init__(
        self,
        systems: Sequence[System] | None = None,
        *,
        accept: float = 0.9,
        threshold: float = 0.3,
        fill: float = 0.92,
        calibration: Mapping[str, Calibration] | None = None,
        joint: Joint | None = None,
    ) -> None:
        if not (0 <= accept <= 1 and 0 <= threshold <= 1 and 0 <= fill <= 1):
            raise FormulaError(
                f"accept, threshold and fill are shares between 0 and 1, not {accept}, {threshold} and {fill}"
            )
        default: list[System] = [Neighbour(), Aggregate()]
        self.systems = list(systems) if systems is not None else [*default, _default_retrieval()]
        if not self.systems:
            raise FormulaError("a cascade needs at least one system")
        self.accept, self.threshold, self.fill = accept, threshold, fill
        self.joint = joint if joint is not None or calibration is not None else load_joint()
        self.calibration = dict(calibration if calibration is not None else load())

    def suggest(self, task: Task, k: int = 5) -> list[Suggestion]:
        """See `System.suggest`; ``parts`` of each suggestion says where the time went."""
        began = time.perf_counter()
        pool: dict[str, Suggestion] = {}
        shares: dict[str, dict[str, float]] = {}
        parts: list[tuple[str, float]] = []
        where = situation(task)
        plain: _Plain | None = None
        for system in self.systems:
            start = time.perf_counter()
            found = system.suggest(task, k)
            parts.append((system.name, (time.perf_counter() - start) * 1000))
            scale = self.calibration.get(f"{system.name}/{where}") or self.calibration.get(system.name)
            own = shares.setdefault(system.name, {})
            plain = _plain(system.name, found, task, plain)
            for suggestion in found:
                share = scale(suggestion.score) if scale is not None else suggestion.score
                form = parse(suggestion.formula, task.cell).canonical()
                own[form] = max(own.get(form, 0.0), share)
                old = pool.get(form)
                if old is None:
                    pool[form] = replace(suggestion, score=share)
                else:  # two systems that agree
                    both = 1 - (1 - old.score) * (1 - 0.5 * share)
                    pool[form] = replace(
                        old,
                        score=max(old.score, share, min(both, 0.99)),
                        reason=f"{old.reason}; also {suggestion.reason}",
                        evidence=tuple(dict.fromkeys((*old.evidence, *suggestion.evidence))),
                    )
            if self.joint is not None and self.joint.knows(list(shares)):
                for form, share in self.joint(shares, list(shares), where == "beside").items():
                    pool[form] = replace(pool[form], score=share)
                if plain is not None and plain.form in pool:
                    pool[plain.form] = replace(pool[plain.form], score=max(pool[plain.form].score, self.fill))
            if pool and max(s.score for s in pool.values()) >= self.accept:
                break
        ms = (time.perf_counter() - began) * 1000
        best = sorted((s for s in pool.values() if s.score >= self.threshold), key=lambda s: -s.score)[:k]
        return [replace(s, ms=ms, parts=tuple(parts)) for s in best]


@lru_cache(maxsize=1)
def _default_retrieval() -> System:
    from assay.formulas.systems.retrieval import Retrieval

    return Retrieval()


class _Plain(NamedTuple):
    """A reading in canonical form; of a fill, whether it goes down, and whether it has copies or typed-in numbers."""

    form: str
    down: bool = False
    sure: bool = False


def _plain(name: str, found: Sequence[Suggestion], task: Task, before: _Plain | None) -> _Plain | None:
    """The plain reading of the cell.

    It continues a fill, unless words ask for an aggregate; then it is the one over the three or more numbers that end
    there. A word that stands over (or before) the whole fill asks for nothing that the fill does not do.
    """
    if name == Neighbour.name:
        return _continued(found, task)
    if name != Aggregate.name or not found or found[0].score < Aggregate.asked_for:
        return before
    form = parse(found[0].formula, task.cell)
    ranges = [r for r in form.references() if r.kind == "range"]
    if before is not None and before.sure and ranges and all(r.row1 == r.row2 for r in ranges) == before.down:
        return before
    spans = [max(r.row2 - r.row1, r.col2 - r.col1) for r in ranges]
    total = found[0].score >= Aggregate.ends_here and max(spans, default=0) >= 2
    return _Plain(form.canonical()) if total else None


def _continued(found: Sequence[Suggestion], task: Task) -> _Plain | None:
    """What a fill downwards or to the right puts into the target, if one goes on there.

    That is, the neighbour's first suggestion is the copy of the formula above (or left, where that one is no part of a
    fill downwards), and what stands beside the target is of the kind of what stands beside the source (a row of totals
    lacks what the rows above have). Where another formula stands on the other side of the target, the target may be the
    first of the totals: then a number that was typed in must stand beside both.
    """
    if not found or not found[0].evidence:
        return None
    source, cell = found[0].evidence[0], task.cell
    down, right = cell.row - source.row, cell.col - source.col
    if (down, right) not in ((1, 0), (0, 1)):
        return None
    sheet = task.view.sheet(cell.sheet)
    after = (cell.row + down, cell.col + right)
    ends = sheet.computed(*after) and all((e.row, e.col) != after for e in found[0].evidence)
    before = (source.row - down, source.col - right)
    alone = min(before) < 1 or sheet.formula(*before) is None
    if alone and sheet.formula(source.row, source.col) == found[0].formula:
        return None  # a single cell that points at fixed places; nothing says that the next one does
    if right and any(_alike(sheet, source, source.row + step) for step in (-1, 1)):
        return None
    given = False
    for step in range(-6, 7):
        here, there = (cell.row + right * step, cell.col + down * step), (
            source.row + right * step, source.col + down * step,
        )  # fmt: skip
        if step and min(*here, *there) >= 1:
            kind, wanted = sheet.value(*here), sheet.value(*there)
            if wanted is not None and type(kind) is not type(wanted):
                return None
            given = given or (isinstance(kind, float) and not sheet.computed(*here) and not sheet.computed(*there))
    if ends and not given:
        return None
    sure = given or (not alone and _copies(sheet, source, before))
    return _Plain(parse(found[0].formula, cell).canonical(), bool(down), sure)


def _alike(sheet: Sheet, source: CellRef, row: int) -> bool:
    """Whether a cell of the source's column holds a copy of its formula."""
    text, own = (sheet.formula(row, source.col) if row >= 1 else None), sheet.formula(source.row, source.col)
    if text is None or own is None:
        return False
    return sheet.store.class_of(text, row, source.col) == sheet.store.class_of(own, source.row, source.col)


def _copies(sheet: Sheet, source: CellRef, before: tuple[int, int]) -> bool:
    """Whether the formula before the source is a copy of the same one."""
    places = (source, CellRef(sheet.name, *before))
    try:
        forms = [parse(sheet.formula(at.row, at.col) or "", at).canonical_r1c1() for at in places]
    except FormulaError:
        return False
    return forms[0] == forms[1]
