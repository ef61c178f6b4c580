"""The formula that a spreadsheet cell needs: suggested, explained, checked, and measured.

A user's job, in one line for a file (``assay formulas suggest book.xlsx 'Sheet1!D10'``) and in Python:

>>> from assay.formulas import Workbook, suggest_file
>>> cells = {"A1": "Qty", "B1": "Price", "C1": "Total"} | {f"A{i}": i for i in range(2, 6)}
>>> cells |= {f"B{i}": 2.5 for i in range(2, 6)} | {"C2": "=A2*B2", "C3": "=A3*B3", "C4": "=A4*B4"}
>>> advice = suggest_file(Workbook.from_cells({"Sheet1": cells}), "Sheet1!C5")
>>> advice.suggestions[0].formula, advice.value, [str(c) for c in advice.suggestions[0].evidence[:1]]
('A5*B5', 12.5, ['Sheet1!C4'])

Which part of a system fails is measured apart: gathering the context (`coverage`), understanding it, understanding the
intent, writing the formula (`explain_failures`); right means the same value on the workbook and on changed copies
(`Judge`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from assay.formulas.errors import (
    BudgetTooSmall,
    CellRefError,
    CircularReference,
    EndpointError,
    EngineMissing,
    FormulaError,
    FormulaSyntaxError,
    TaskFileError,
    UnsupportedFunction,
    WorkbookError,
    WouldLoseContent,
)
from assay.formulas.grammar import CellRef, Formula, Ref, parse, parse_address, parse_area, parse_r1c1
from assay.formulas.workbook import Cell, ErrorValue, Sheet, Style, Table, Workbook

if TYPE_CHECKING:
    from assay.formulas.auditing import Finding, audit
    from assay.formulas.context import STRATEGIES, Context, Coverage, coverage, strategy
    from assay.formulas.endpoint import Endpoint
    from assay.formulas.evaluate import Engine, Unsupported
    from assay.formulas.execute import Judge, Verdict, same_value
    from assay.formulas.failures import describe, explain_failures
    from assay.formulas.generator import make_workbook, make_workbooks, write_xlsx
    from assay.formulas.intent import intent_cells, load_annotations
    from assay.formulas.learned import SketchPointer, train_pointer
    from assay.formulas.loaders import (
        load_autoformula,
        load_fxbench,
        load_nl2formula,
        load_prose,
        load_spreadsheetbench,
    )
    from assay.formulas.metrics import keystrokes_saved, likeness, paired_difference, precision_recall, summarise
    from assay.formulas.recalculate import recalculated, stale_cells
    from assay.formulas.runs import judged, run, score
    from assay.formulas.suggest import Advice, suggest_file, write_copy
    from assay.formulas.systems import Aggregate, Cascade, Neighbour, Suggestion, System
    from assay.formulas.systems.retrieval import Retrieval
    from assay.formulas.tasks import Task, build_tasks, load_tasks, save_tasks, task_at

_LAZY: dict[str, str] = {
    **dict.fromkeys(("Finding", "audit"), "auditing"),
    **dict.fromkeys(("STRATEGIES", "Context", "Coverage", "coverage", "strategy"), "context"),
    "Endpoint": "endpoint",
    **dict.fromkeys(("Engine", "Unsupported"), "evaluate"),
    **dict.fromkeys(("Judge", "Verdict", "same_value"), "execute"),
    **dict.fromkeys(("recalculated", "stale_cells"), "recalculate"),
    **dict.fromkeys(("describe", "explain_failures"), "failures"),
    **dict.fromkeys(("make_workbook", "make_workbooks", "write_xlsx"), "generator"),
    **dict.fromkeys(("intent_cells", "load_annotations"), "intent"),
    **dict.fromkeys(("SketchPointer", "train_pointer"), "learned"),
    **dict.fromkeys(
        ("load_autoformula", "load_fxbench", "load_nl2formula", "load_prose", "load_spreadsheetbench"), "loaders"
    ),
    **dict.fromkeys(("judged", "run", "score"), "runs"),
    **dict.fromkeys(("keystrokes_saved", "likeness", "paired_difference", "precision_recall", "summarise"), "metrics"),
    **dict.fromkeys(("Advice", "suggest_file", "write_copy"), "suggest"),
    **dict.fromkeys(("Aggregate", "Cascade", "Neighbour", "Suggestion", "System"), "systems"),
    "Retrieval": "systems.retrieval",
    **dict.fromkeys(("Task", "build_tasks", "load_tasks", "save_tasks", "task_at"), "tasks"),
}

__all__ = [
    "STRATEGIES", "Advice", "Aggregate", "BudgetTooSmall", "Cascade", "Cell", "CellRef", "CellRefError",
    "CircularReference", "Context", "Coverage", "Endpoint", "EndpointError", "Engine", "EngineMissing", "ErrorValue",
    "Finding", "Formula", "FormulaError", "FormulaSyntaxError", "Judge", "Neighbour", "Ref", "Retrieval", "Sheet",
    "SketchPointer", "Style", "Suggestion", "System", "Table", "Task", "TaskFileError", "Unsupported",
    "UnsupportedFunction", "Verdict", "Workbook", "WorkbookError", "WouldLoseContent", "audit", "build_tasks",
    "coverage", "describe", "explain_failures", "intent_cells", "judged", "keystrokes_saved", "likeness",
    "load_annotations", "load_autoformula", "load_fxbench", "load_nl2formula", "load_prose", "load_spreadsheetbench",
    "load_tasks", "make_workbook", "make_workbooks", "paired_difference", "parse", "parse_address", "parse_area",
    "parse_r1c1", "precision_recall", "recalculated", "run", "same_value", "save_tasks", "score", "stale_cells",
    "strategy", "suggest_file", "summarise", "task_at", "train_pointer", "write_copy", "write_xlsx",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        found = getattr(import_module(f"assay.formulas.{_LAZY[name]}"), name)
        globals()[name] = found  # a submodule of the same name (audit, run) must not take its place
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
