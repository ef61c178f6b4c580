"""Tasks: a cell whose formula is to be suggested, and how tasks are made from one's own workbooks."""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from assay.formulas.errors import FormulaError, TaskFileError, WorkbookError
from assay.formulas.grammar import CellRef, parse, parse_address
from assay.formulas.regions import Block, formula_blocks, sheet_map
from assay.formulas.workbook.model import Workbook

VOLATILE = frozenset(
    ("NOW", "TODAY", "RAND", "RANDBETWEEN", "RANDARRAY", "OFFSET", "INDIRECT", "INFO", "CELL", "HYPERLINK")
)
SUFFIXES = (".xlsx", ".xlsm", ".xltx", ".ods")


@dataclass(frozen=True, eq=False)
class Task:
    """A cell that needs a formula.

    Attributes
    ----------
    id : str
    book : Workbook
        As it was, the target and its copies included.
    cell : CellRef
        The target.
    prefix : str
        What has been typed, ``""`` or ``"="`` or ``"=SU"``.
    truth : str or None
        The formula that belongs there, without ``=``; None where it is not known or none belongs there.
    abstain : bool
        No suggestion is right.
    removed : frozenset of CellRef
        Cells that a system does not see, the target among them.
    intent : frozenset of CellRef or None
        Cells that a person marked as needed.
    function : str
        The outermost function of the truth, or its operator.
    mode : str
        ``fresh``, ``extend``, or where the task comes from.
    """

    id: str
    book: Workbook
    cell: CellRef
    prefix: str = ""
    truth: str | None = None
    abstain: bool = False
    removed: frozenset[CellRef] = frozenset()
    intent: frozenset[CellRef] | None = None
    function: str = ""
    mode: str = ""

    @cached_property
    def view(self) -> Workbook:
        """The workbook that a system sees."""
        return self.book.without(self.removed | {self.cell})

    @property
    def sheet(self) -> str:
        return self.cell.sheet

    def with_prefix(self, prefix: str) -> Task:
        """The same task after some keys."""
        new = replace(self, prefix=prefix)
        new.__dict__["view"] = self.view
        return new

    def fingerprint(self) -> str:
        """Hash of what makes the task."""
        text = json.dumps(
            [self.id, str(self.cell), self.prefix, self.truth, self.abstain, sorted(map(str, self.removed))]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def task_at(book: Workbook, cell: str | CellRef, prefix: str = "") -> Task:
    """The task that a user's cell is.

    Raises
    ------
    CellRefError
    """
    at = cell if isinstance(cell, CellRef) else book.address(cell)
    return Task(f"{Path(book.path).name}!{at}", book, at, prefix, removed=frozenset([at]))


def outermost(formula: str) -> str:
    """Function or operator at the top of a formula.

    >>> outermost("_xlfn.XLOOKUP(A1,B:B,C:C)"), outermost("(A1+B1)*2"), outermost("A1")
    ('XLOOKUP', '*', 'reference')
    """
    from assay.formulas.grammar.nodes import Binary, Call, Paren, Postfix, Unary

    node = parse(formula).tree
    while isinstance(node, Paren):
        node = node.inner
    if isinstance(node, Call):
        return node.function
    if isinstance(node, (Binary, Unary, Postfix)):
        return node.op
    return "reference"


def usable(formula: str) -> bool:
    """Whether a formula can be a truth: readable, not volatile, no other file, no error in it, some reference."""
    from assay.formulas.grammar.nodes import ErrorLiteral

    try:
        read = parse(formula)
    except FormulaError:
        return False
    if any(name in VOLATILE for name in read.functions()):
        return False
    for node in read.tree.walk():
        if isinstance(node, ErrorLiteral) or getattr(node, "book", None) is not None:
            return False
        if getattr(node, "sheet", None) == "#REF":
            return False
    return bool(read.references() or read.structured() or read.names())


def _opened(source: Any) -> Workbook:
    return source if isinstance(source, Workbook) else Workbook.open(source)


def workbook_files(paths: Iterable[str | os.PathLike[str]] | str | os.PathLike[str]) -> list[Path]:
    """Files of a folder (and folders in it), or the files given.

    Raises
    ------
    WorkbookError
        If a path is not there.
    """
    found: list[Path] = []
    for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
        place = Path(path)
        if place.is_dir():
            found += sorted(p for p in place.rglob("*") if p.suffix.lower() in SUFFIXES and not p.name.startswith("~$"))
        elif place.is_file():
            found.append(place)
        else:
            raise WorkbookError(f"there is no file or folder {place}")
    return found


@dataclass
class _Candidate:
    book: Workbook
    block: Block
    truth: str
    canonical: str
    function: str
    removed: frozenset[CellRef]
    target: CellRef


def build_tasks(
    sources: Iterable[str | os.PathLike[str] | Workbook] | str | os.PathLike[str],
    n: int = 500,
    mode: str = "fresh",
    *,
    seed: int = 0,
    per_function_cap: int = 40,
    per_file_cap: int = 20,
    abstain: float = 0.1,
    skipped: list[tuple[str, str]] | None = None,
) -> list[Task]:
    """Tasks from workbooks: one a block of formula cells with the same R1C1 form.

    Parameters
    ----------
    sources : paths, a folder, or workbooks
    n : int
        At most so many.
    mode : {"fresh", "extend"}
        ``fresh``: the first cell of the block, with all copies of the formula in the workbook out of sight.
        ``extend``: the last cell of a block of at least two, with the cells before it in sight.
    seed : int
        Of the choice, where there are more than ``n``, and of the abstain tasks.
    per_function_cap, per_file_cap : int
    abstain : float
        Share of tasks where no formula belongs: emptied labels, emptied inputs, blank cells beside data.
    skipped : list, optional
        Gets (file, reason) of files that cannot be read.

    Raises
    ------
    FormulaError
        If the mode is unknown or nothing can be made of the sources.

    Examples
    --------
    >>> cells = {"A1": 1, "A2": 2, "A3": 3} | {f"B{i}": f"=A{i}*2" for i in (1, 2, 3)}
    >>> book = Workbook.from_cells({"S": cells})
    >>> [(t.cell.address, t.truth, len(t.removed)) for t in build_tasks([book], abstain=0)]
    [('B1', 'A1*2', 3)]
    >>> [(t.cell.address, t.truth, len(t.removed)) for t in build_tasks([book], mode="extend", abstain=0)]
    [('B3', 'A3*2', 1)]
    """
    if mode not in ("fresh", "extend"):
        raise FormulaError(f"the mode is fresh or extend, not {mode!r}")
    if not 0 <= abstain < 1:
        raise FormulaError(f"abstain is a share of at least 0 and below 1, not {abstain}")
    rng = np.random.default_rng([seed, 8])
    given = list(sources) if not isinstance(sources, (str, os.PathLike)) else [sources]
    items: list[Any] = []
    for source in given:
        items += [source] if isinstance(source, Workbook) else list(workbook_files(source))
    by_file: list[list[_Candidate]] = []
    books: list[Workbook] = []
    for item in items:
        try:
            book = _opened(item)
        except WorkbookError as error:
            if skipped is not None:
                skipped.append((str(item), str(error)))
            continue
        books.append(book)
        candidates = _candidates(book, mode)
        if len(candidates) > per_file_cap:
            picked = sorted(rng.choice(len(candidates), per_file_cap, replace=False))
            candidates = [candidates[i] for i in picked]
        by_file.append(candidates)
    chosen: list[_Candidate] = []
    counts: dict[str, int] = {}
    everything = [c for candidates in by_file for c in candidates]
    for i in rng.permutation(len(everything)):
        candidate = everything[i]
        if counts.get(candidate.function, 0) < per_function_cap:
            counts[candidate.function] = counts.get(candidate.function, 0) + 1
            chosen.append(candidate)
    with_truth = n if not abstain else max(1, round(n * (1 - abstain)))
    chosen = chosen[:with_truth]
    position = {id(c): i for i, c in enumerate(everything)}
    chosen.sort(key=lambda c: position[id(c)])
    tasks = [
        Task(f"{_label(c.book)}!{c.target}", c.book, c.target, "", c.truth, False, c.removed, None, c.function, mode)
        for c in chosen
    ]
    if abstain and tasks:
        tasks += _abstain_tasks(books, round(len(tasks) * abstain / (1 - abstain)), rng)
    return tasks


def _label(book: Workbook) -> str:
    return Path(book.path).name if book.path else "workbook"


def _candidates(book: Workbook, mode: str) -> list[_Candidate]:
    blocks = [block for sheet in book.sheets.values() for block in formula_blocks(sheet)]
    forms: dict[tuple[str, int], str] = {}
    same: dict[str, list[Block]] = {}
    for block in blocks:
        form = forms.get((block.sheet, block.cls))
        if form is None:
            at = CellRef(block.sheet, *block.cells[0])
            text = book.formula(at) or ""
            try:
                form = parse(text, at).canonical_r1c1()
            except FormulaError:
                form = f"unreadable {block.sheet} {block.cls}"
            forms[block.sheet, block.cls] = form
        same.setdefault(form, []).append(block)
    found = []
    for block in blocks:
        if mode == "extend" and len(block.cells) < 2:
            continue
        target = CellRef(block.sheet, *(block.cells[0] if mode == "fresh" else block.cells[-1]))
        truth = book.formula(target) or ""
        sheet = book.sheets[block.sheet]
        if not usable(truth) or sheet.is_array(target.row, target.col):
            continue
        form = forms[block.sheet, block.cls]
        if mode == "fresh":
            removed = frozenset(CellRef(b.sheet, *place) for b in same[form] for place in b.cells)
        else:
            removed = frozenset([target])
        found.append(_Candidate(book, block, truth, form, outermost(truth), removed, target))
    return found


def _abstain_tasks(books: Sequence[Workbook], n: int, rng: np.random.Generator) -> list[Task]:
    """Emptied labels, emptied inputs and blank cells beside data, in turn."""
    pools: tuple[list[tuple[Workbook, CellRef]], ...] = ([], [], [])
    for book in books:
        for sheet in book.sheets.values():
            labels: list[tuple[int, int]] = []
            inputs: list[tuple[int, int]] = []
            blanks: list[tuple[int, int]] = []
            a = sheet.arrays()
            for row, col, kind, cls in zip(
                a.row.tolist(), a.col.tolist(), a.kind.tolist(), a.cls.tolist(), strict=True
            ):
                if cls < 0:
                    (labels if kind == 2 else inputs).append((row, col))
            for box in sheet_map(sheet, book).regions.tolist():
                row1, col1, row2, col2 = box
                if row2 > row1 and col2 > col1:
                    blanks.append((row2 + 2, col1))
                    blanks.append((row1, col2 + 2))
            blanks = [p for p in blanks if sheet.get(*p) is None]
            for pool, places in zip(pools, (labels, inputs, blanks), strict=True):
                if len(places) > 10:
                    places = [places[i] for i in sorted(rng.choice(len(places), 10, replace=False))]
                pool.extend((book, CellRef(sheet.name, *p)) for p in places)
    tasks: list[Task] = []
    kinds = ("label", "input", "blank")
    orders = [list(rng.permutation(len(pool))) for pool in pools]
    while len(tasks) < n and any(orders):
        kind = len(tasks) % 3
        for k in (kind, (kind + 1) % 3, (kind + 2) % 3):
            if orders[k]:
                book, cell = pools[k][orders[k].pop()]
                tasks.append(
                    Task(
                        f"{_label(book)}!{cell}~{kinds[k]}", book, cell, "", None, True, frozenset([cell]), None,
                        "ABSTAIN", f"abstain-{kinds[k]}",
                    )
                )  # fmt: skip
                break
    return tasks


# -- completion ------------------------------------------------------------------------------------------------------


def prefixes(truth: str) -> list[str]:
    """Prefixes of a formula at its tokens, from ``=`` on, without the whole.

    >>> prefixes("SUM(A1:A3)")
    ['=', '=SUM(']
    """
    from assay.formulas.grammar.parser import TOKENS_A1

    text = truth.lstrip("=")
    ends = [0] + [m.end() for m in TOKENS_A1.finditer(text) if m.lastgroup not in ("blank", "sheet", "sheets")]
    return ["=" + text[:end] for end in ends if end < len(text) and text[end:].strip(") ") != ""]


# -- files -----------------------------------------------------------------------------------------------------------


def _write_whole(path: Path, data: bytes) -> None:
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def save_tasks(tasks: Sequence[Task], folder: str | os.PathLike[str]) -> Path:
    """Write tasks as ``tasks.jsonl`` with copies of their workbooks.

    Raises
    ------
    TaskFileError
        If a workbook was not read from a file.
    """
    place = Path(folder)
    (place / "workbooks").mkdir(parents=True, exist_ok=True)
    names: dict[int, str] = {}
    lines = []
    for task in tasks:
        book = task.book
        if id(book) not in names:
            data = book.data
            if data is None and not book.path:
                raise TaskFileError(f"the workbook of the task {task.id} is in memory only; write it to a file first")
            data = data if data is not None else Path(book.path).read_bytes()
            suffix = Path(book.path).suffix or ".xlsx"
            name = hashlib.sha256(data).hexdigest()[:24] + suffix
            if not (place / "workbooks" / name).exists():
                _write_whole(place / "workbooks" / name, data)
            names[id(book)] = name
        lines.append(
            json.dumps(
                {
                    "id": task.id, "workbook": names[id(book)], "sheet": task.cell.sheet, "cell": task.cell.address,
                    "prefix": task.prefix, "truth": task.truth, "abstain": task.abstain,
                    "removed": sorted(map(str, task.removed)),
                    "intent": sorted(map(str, task.intent)) if task.intent is not None else None,
                    "function": task.function, "mode": task.mode,
                }
            )
        )  # fmt: skip
    _write_whole(place / "tasks.jsonl", ("\n".join(lines) + "\n").encode())
    return place / "tasks.jsonl"


def load_tasks(folder: str | os.PathLike[str]) -> list[Task]:
    """Read what `save_tasks` wrote.

    Raises
    ------
    TaskFileError
        Naming the line and the field.
    """
    place = Path(folder)
    try:
        lines = (place / "tasks.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TaskFileError(f"{place} holds no tasks.jsonl ({error.strerror})") from error
    books: dict[str, Workbook] = {}
    tasks = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            name = row["workbook"]
            if not re.fullmatch(r"[0-9a-f]+\.\w+", name):
                raise TaskFileError(f"tasks.jsonl line {number}: {name!r} is no name of a workbook beside it")
            if name not in books:
                books[name] = Workbook.open(place / "workbooks" / name)
            intent = row.get("intent")
            tasks.append(
                Task(
                    row["id"],
                    books[name],
                    parse_address(row["cell"], row["sheet"]),
                    row.get("prefix", ""),
                    row.get("truth"),
                    bool(row.get("abstain")),
                    frozenset(parse_address(c) for c in row.get("removed", [])),
                    None if intent is None else frozenset(parse_address(c) for c in intent),
                    row.get("function", ""),
                    row.get("mode", ""),
                )
            )
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise TaskFileError(f"tasks.jsonl line {number}: {type(error).__name__} {error}") from error
    return tasks
