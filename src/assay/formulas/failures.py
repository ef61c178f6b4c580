"""Where a system fails: gathering the context, understanding it, understanding the intent, or writing the formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from assay.formulas.context import Context, covers, strategy
from assay.formulas.endpoint import Endpoint, restricted
from assay.formulas.errors import BudgetTooSmall, FormulaError
from assay.formulas.evaluate import Engine
from assay.formulas.grammar import CellRef, column_name, parse
from assay.formulas.grammar.nodes import (
    Binary,
    Bool,
    Call,
    Missing,
    Name,
    Node,
    Number,
    Paren,
    Postfix,
    Ref,
    String,
    StructuredRef,
    Unary,
)
from assay.formulas.intent import intent_cells
from assay.formulas.metrics import Result
from assay.formulas.regions import column_header, label_left
from assay.formulas.runs import judged
from assay.formulas.systems.base import System
from assay.formulas.tasks import Task
from assay.formulas.workbook.model import Workbook

CAPABILITIES = ("gather context", "understand context", "understand intent", "write formula", "not probed")


@dataclass(frozen=True)
class Split:
    """Failures by capability.

    Attributes
    ----------
    counts : dict of str to int
        In the order of `CAPABILITIES`; they add up to ``failures``.
    failures, tasks : int
        Tasks with a truth.
    by_task : dict of str to str
    """

    counts: dict[str, int]
    failures: int
    tasks: int
    by_task: dict[str, str]

    def shares(self) -> dict[str, float]:
        """Shares of the failures; they add up to 1 (or are all 0 where nothing failed)."""
        return {name: count / self.failures if self.failures else 0.0 for name, count in self.counts.items()}


def explain_failures(
    tasks: Sequence[Task],
    results: Sequence[Result],
    context: str = "dense",
    budget: int | None = 1024,
    *,
    rerun: Callable[[Task, str], System] | None = None,
    engine: Engine | None = None,
) -> Split:
    """Attribute every failure to the first capability that explains it.

    1. The context does not cover the task: gather.
    2. Right when run again with the oracle context: understand context.
    3. Wrong even with the oracle context and the intent told in a sentence, or an answer that does not parse: write.
    4. Else: understand intent.

    Parameters
    ----------
    context, budget
        What the system that gave the results was shown.
    rerun : callable, optional
        ``(task, strategy) -> system``: the system on another strategy. With one that has ``told`` (`Endpoint`) probe 3
        is made; without it, failures that reach it are ``not probed``.

    Examples
    --------
    >>> from assay.formulas import Neighbour, build_tasks, make_workbook
    >>> from assay.formulas.runs import judged
    >>> tasks = build_tasks([make_workbook("invoice", 1)], abstain=0)
    >>> results = [judged(t, "neighbour", Neighbour().suggest(t), 1.0, Engine()) for t in tasks]
    >>> split = explain_failures(tasks, results, budget=40)
    >>> sum(split.counts.values()) == split.failures
    True
    """
    by_id = {r.task: r for r in results}
    run = engine or Engine()
    counts = dict.fromkeys(CAPABILITIES, 0)
    found: dict[str, str] = {}
    gather = strategy(context, budget)
    oracle = strategy("oracle", None)
    with_truth = [t for t in tasks if t.truth is not None and t.id in by_id]
    for task in with_truth:
        result = by_id[task.id]
        if result.top1:
            continue
        try:
            shown = gather(task)
        except BudgetTooSmall:
            shown = Context("")
        what = _probe(task, result, shown, oracle, rerun, run)
        counts[what] += 1
        found[task.id] = what
    return Split(counts, len(found), len(with_truth), found)


def _probe(
    task: Task,
    result: Result,
    shown: Context,
    oracle: Any,
    rerun: Callable[[Task, str], System] | None,
    engine: Engine,
) -> str:
    if not covers(shown, intent_cells(task)):
        return "gather context"
    if rerun is None:
        return "not probed"
    system = rerun(task, "oracle")
    seen = task if isinstance(system, Endpoint) else restricted(task, oracle(task))
    if judged(task, system.name, system.suggest(seen, 1), 0.0, engine).top1:
        return "understand context"
    told = getattr(system, "told", None)
    if told is None:
        return "not probed"
    if result.suggestions and not result.suggestions[0].get("parses", True):
        return "write formula"
    right = judged(task, system.name, told(seen, describe(task.truth or "", task.book, task.cell), 1), 0.0, engine).top1
    return "understand intent" if right else "write formula"


_WORDS = {
    "SUM": "the sum of {}", "AVERAGE": "the average of {}", "MAX": "the largest of {}", "MIN": "the smallest of {}",
    "COUNT": "how many numbers there are in {}", "COUNTA": "how many cells are filled in {}", "ABS": "the size of {}",
    "MEDIAN": "the median of {}", "COUNTIF": "how many of {} are {}", "SUMIF": "the sum of {2} where {0} is {1}",
    "AVERAGEIF": "the average of {2} where {0} is {1}", "ROUND": "{} rounded to {} digits",
    "VLOOKUP": "the value in column {2} of {1} for {0}", "LEN": "the length of {}", "UPPER": "{} in capitals",
}  # fmt: skip
_OPERATORS = {
    "+": "{} plus {}",
    "-": "{} minus {}",
    "*": "the product of {} and {}",
    "/": "{} divided by {}",
    "^": "{} to the power of {}",
    "&": "{} followed by {}",
    "=": "{} equals {}",
    "<>": "{} differs from {}",
    "<": "{} is below {}",
    ">": "{} is above {}",
    "<=": "{} is at most {}",
    ">=": "{} is at least {}",
}


def describe(formula: str, book: Workbook, cell: CellRef) -> str:
    """The intent of a formula in a sentence, made from its headers and labels.

    >>> book = Workbook.from_cells({"S": {"A1": "Qty", "B1": "Price", "A2": 2, "B2": 3}})
    >>> describe("A2*B2", book, CellRef("S", 2, 3))
    'the product of Qty and Price in this row'
    """
    try:
        tree = parse(formula, cell).tree
    except FormulaError:
        return ""
    text = _words(tree, book, cell)
    refs = [n for n in tree.walk() if isinstance(n, Ref)]
    own_row = refs and all(r.kind == "cell" and r.row1 == cell.row and not r.sheet for r in refs)
    return text + (" in this row" if own_row else "")


def _words(node: Node, book: Workbook, cell: CellRef) -> str:
    match node:
        case Paren():
            return _words(node.inner, book, cell)
        case Number():
            return node.text
        case String():
            return repr(node.value) if node.value else "nothing"
        case Bool():
            return "true" if node.value else "false"
        case Missing():
            return "nothing"
        case Name():
            return node.name
        case StructuredRef():
            return f"{node.first or 'the data'} of {node.table or 'the table'}"
        case Ref():
            return _place(node, book, cell)
        case Unary():
            inner = _words(node.operand, book, cell)
            return f"minus {inner}" if node.op == "-" else inner
        case Postfix():
            return f"{_words(node.operand, book, cell)} percent"
        case Binary():
            pattern = _OPERATORS.get(node.op, "{} and {}")
            return pattern.format(_words(node.left, book, cell), _words(node.right, book, cell))
        case Call():
            args = [_words(a, book, cell) for a in node.args]
            if node.function == "IF" and len(args) >= 2:
                return f"{args[1]} if {args[0]}" + (f", else {args[2]}" if len(args) > 2 else "")
            known = _WORDS.get(node.function)
            try:
                return (
                    known.format(*args) if known is not None else f"{node.function} of {', '.join(args) or 'nothing'}"
                )
            except IndexError:
                return f"{node.function} of {', '.join(args)}"
    return "a value"


def _place(ref: Ref, book: Workbook, cell: CellRef) -> str:
    if ref.book is not None or (ref.sheet and not book.has_sheet(ref.sheet)):
        return "a cell of another file"
    sheet = book.sheet(ref.sheet) if ref.sheet else book.sheet(cell.sheet)
    row, col = ref.box()[0], ref.box()[1]
    header = column_header(sheet, row, col, book) if ref.kind != "rows" else None
    label = label_left(sheet, row, col) if ref.kind != "cols" else None
    name = str(sheet.value(*header)) if header else ""
    side = str(sheet.value(*label)) if label else ""
    where = f" on {sheet.name}" if sheet.name != cell.sheet else ""
    if ref.kind == "cell" and row != cell.row and side:
        return f"{name + ' of ' if name and name != side else ''}{side}{where}"
    if name:
        return ("all of " if ref.kind != "cell" and col != cell.col else "") + name + where
    first = f"{column_name(max(ref.col1, 1))}{ref.row1 or ''}"
    last = f"{column_name(max(ref.col2, 1))}{ref.row2 or ''}"
    return (first if ref.kind == "cell" else f"{first} to {last}") + where
