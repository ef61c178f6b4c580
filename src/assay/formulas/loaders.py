"""Files of other benchmarks that users have: fxbench, Auto-Formula, SpreadsheetBench, NL2Formula, PROSE."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.formulas.errors import FormulaError, TaskFileError, WorkbookError
from assay.formulas.grammar import CellRef, parse, parse_address
from assay.formulas.tasks import Task, outermost
from assay.formulas.workbook.model import Workbook

FXBENCH_COLUMNS = ("id", "function", "formula", "target_cell", "target_sheet", "workbook")


def load_fxbench(path: str | os.PathLike[str], limit: int | None = None) -> list[Task]:
    """Tasks of the public data set FormulaComletion/fxbench (its one parquet file, 503 rows).

    An empty formula marks a row where no suggestion is right.

    Raises
    ------
    TaskFileError
        If the file is not there, or lacks a column; or a row's workbook or cell cannot be read (the row is named).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise TaskFileError(f"{path} is no parquet file that can be read ({error})") from error
    missing = [c for c in FXBENCH_COLUMNS if c not in table.column_names]
    if missing:
        raise TaskFileError(f"{path} lacks the columns {', '.join(missing)}; it has {', '.join(table.column_names)}")
    tasks = []
    for number, row in enumerate(table.slice(0, limit).to_pylist() if limit else table.to_pylist()):
        name = row["id"] or f"row {number}"
        try:
            given = row["workbook"]
            data: bytes = bytes(given["bytes"] if isinstance(given, dict) else given)
            book = Workbook.open(data)
            book.path = f"{name}.xlsx"
            book.data = data
            sheet = book.sheet(row["target_sheet"]).name if row["target_sheet"] else next(iter(book.sheets))
            cell = parse_address(row["target_cell"], sheet)._replace(sheet=sheet)
        except (FormulaError, TypeError) as error:
            raise TaskFileError(f"{path}, {name}: {error}") from error
        truth = (row["formula"] or "").strip().lstrip("=") or None
        function = (row["function"] or "").upper()
        tasks.append(
            Task(name, book, cell, "", truth, truth is None, frozenset([cell]), None,
                 "ABSTAIN" if truth is None else function, "fxbench")
        )  # fmt: skip
    return tasks


def load_autoformula(folder: str | os.PathLike[str]) -> list[Task]:
    """Tasks of a folder of the Auto-Formula benchmark: workbooks and ``test_formulas.json``.

    Keys are ``file---sheet---row---col``; rows and columns count from 0 or 1, which is told from the formulas there.

    Raises
    ------
    TaskFileError
    """
    place = Path(folder)
    data = _json(place / "test_formulas.json")
    keys = list(data) if isinstance(data, dict) else [d.get("key", "") if isinstance(d, dict) else str(d) for d in data]
    books: dict[str, Workbook] = {}
    tasks = []
    for key in keys:
        parts = str(key).split("---")
        if len(parts) != 4 or not (parts[2].isdigit() and parts[3].isdigit()):
            raise TaskFileError(f"{place}/test_formulas.json: {key!r} is not file---sheet---row---col")
        file, sheet, row, col = parts[0], parts[1], int(parts[2]), int(parts[3])
        if file not in books:
            found = sorted(place.rglob(Path(file).name))
            if not found:
                raise TaskFileError(f"{place} holds no workbook {file}")
            books[file] = Workbook.open(found[0])
        book = books[file]
        for step in (0, 1):
            if row + step < 1 or col + step < 1:
                continue
            cell = CellRef(book.sheet(sheet).name, row + step, col + step)
            truth = book.formula(cell)
            if truth is not None:
                tasks.append(
                    Task(
                        str(key), book, cell, "", truth, False, frozenset([cell]), None, outermost(truth), "autoformula"
                    )
                )
                break
    return tasks


@dataclass(frozen=True)
class SheetTask:
    """A forum task of SpreadsheetBench: an instruction, an input workbook and one with the answer.

    Attributes
    ----------
    id, instruction : str
    input, answer : str
        Paths.
    sheet, area : str
        Where the answer stands.
    """

    id: str
    instruction: str
    input: str
    answer: str
    sheet: str
    area: str


def load_spreadsheetbench(folder: str | os.PathLike[str]) -> list[SheetTask]:
    """Tasks of SpreadsheetBench: ``dataset.json`` and ``spreadsheet/<id>/<n>_<id>_input.xlsx``.

    The file is a list or holds a JSON object a line. The place of the answer may name its sheet
    (``'Sheet 1'!D2:D9``); one without a file of answers is left out.

    Raises
    ------
    TaskFileError
    """
    place = Path(folder)
    found = []
    for row in _json(place / "dataset.json"):
        position = str(row.get("answer_position", ""))
        before, mark, area = position.rpartition("!")
        sheet = before.strip("'").replace("''", "'") if mark else str(row.get("answer_sheet", ""))
        name = str(row.get("id", ""))
        files = sorted((place / "spreadsheet" / name).glob("*_input.xlsx"))
        for file in files:
            answer = file.with_name(file.name.replace("_input", "_answer"))
            if answer.exists():
                found.append(
                    SheetTask(
                        f"{name}/{file.name.partition('_')[0]}",
                        str(row.get("instruction", "")),
                        str(file),
                        str(answer),
                        sheet,
                        area,
                    )
                )
    return found


def suggestion_tasks(tasks: list[SheetTask]) -> list[Task]:
    """Those SpreadsheetBench tasks whose answer holds a formula where the input has none."""
    found = []
    for task in tasks:
        try:
            before, after = Workbook.open(task.input), Workbook.open(task.answer)
        except WorkbookError:
            continue
        for sheet in after.sheets.values():
            if not before.has_sheet(sheet.name):
                continue
            own = before.sheet(sheet.name)
            for row, col, formula in sheet.formula_cells():
                if own.formula(row, col) is None:
                    cell = CellRef(sheet.name, row, col)
                    removed = frozenset(
                        CellRef(sheet.name, r, c) for r, c, _ in sheet.formula_cells() if own.formula(r, c) is None
                    )
                    found.append(
                        Task(
                            f"{task.id}!{cell}",
                            after,
                            cell,
                            "",
                            formula,
                            False,
                            removed,
                            None,
                            outermost(formula),
                            "forum",
                        )
                    )
                    break
    return found


@dataclass(frozen=True)
class QuestionTask:
    """A question of NL2Formula over one table."""

    question: str
    formula: str
    table: list[list[Any]]


def load_nl2formula(path: str | os.PathLike[str]) -> list[QuestionTask]:
    """Questions of NL2Formula: a JSON list of objects with ``Table`` (rows) and ``t5Formulas``.

    Each of the latter has a ``Question`` and the ``Formula2`` of the data set's own code (``Formula`` where it is not
    there).

    Raises
    ------
    TaskFileError
    """
    found = []
    for number, row in enumerate(_json(Path(path))):
        table = row.get("Table") or row.get("table")
        pairs = row.get("t5Formulas") or row.get("t5Formulas2") or row.get("formulas") or []
        if not isinstance(table, list):
            raise TaskFileError(f"{path}, entry {number}: there is no table")
        for pair in pairs:
            question = pair.get("Question") or pair.get("question")
            formula = pair.get("Formula2") or pair.get("Formula") or pair.get("formula")
            if question and formula:
                found.append(QuestionTask(str(question), str(formula).lstrip("="), table))
    return found


@dataclass(frozen=True)
class TextPair:
    """Two texts of a formula: broken and mended, or masked and completed."""

    given: str
    wanted: str


def load_prose(path: str | os.PathLike[str]) -> list[TextPair]:
    """Pairs of the PROSE benchmarks: LastMile.Repair (Buggy, GroundTruth) or FLAME completion (Masked, Completion).

    The publisher asks not to redistribute these files.

    Raises
    ------
    TaskFileError
    """
    found = []
    for number, row in enumerate(_json(Path(path))):
        for given, wanted in (("Buggy", "GroundTruth"), ("Masked", "Completion")):
            if given in row and wanted in row:
                found.append(TextPair(str(row[given]), str(row[wanted])))
                break
        else:
            raise TaskFileError(f"{path}, entry {number}: neither Buggy and GroundTruth nor Masked and Completion")
    return found


def completion_tasks(pairs: list[TextPair]) -> list[tuple[str, str]]:
    """(prefix, whole formula) of FLAME pairs whose mask stands at the end and whose whole can be read.

    ``Completion`` is the whole formula; a rest that does not begin with the prefix is put behind it.
    """
    found = []
    for pair in pairs:
        before, mask, after = pair.given.partition("<mask>")
        if mask and not after.strip():
            whole = pair.wanted if pair.wanted.lstrip("=").startswith(before.lstrip("=")) else before + pair.wanted
            try:
                parse(whole)
            except FormulaError:
                continue
            found.append((before, whole))
    return found


def _json(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        try:
            return json.loads(text)
        except json.JSONDecodeError:  # an object a line
            return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, json.JSONDecodeError) as error:
        raise TaskFileError(f"{path} is no JSON file that can be read ({error})") from error
