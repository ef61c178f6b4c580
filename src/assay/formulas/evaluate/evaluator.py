"""Walks one formula over stored values: no graph is built, nothing else is calculated unless it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from assay.formulas.errors import CellRefError, CircularReference, FormulaError, StepLimit, UnsupportedFunction
from assay.formulas.evaluate.core import (
    ABSENT,
    FUNCTIONS,
    NA,
    NAME_ERROR,
    REF,
    VALUE,
    Area,
    Context,
    ErrorValue,
    Fault,
    Grid,
    Lambda,
    Value,
    fail,
    to_number,
)
from assay.formulas.evaluate.operators import OPERATORS, constant, intersected, spanned
from assay.formulas.grammar import CellRef, Formula, parse
from assay.formulas.grammar.nodes import (
    Apply,
    Array,
    Binary,
    Bool,
    Call,
    ErrorLiteral,
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
    plain_function,
)
from assay.formulas.workbook.model import Workbook
from assay.formulas.workbook.resolve import resolve_structured

MAX_STEPS = 3_000_000
MAX_DEPTH = 120
Delegate = Callable[[str, list[Any]], Any]


class Evaluator:
    """Evaluates formulas against one state of a workbook.

    Parameters
    ----------
    book : Workbook
    values : mapping of CellRef to value, optional
        What cells hold instead of their stored values.
    live : callable, optional
        ``(sheet, row, col) -> bool``: formula cells that are calculated when they are read; others give their stored
        value.
    now : float, optional
        Serial number that NOW gives; without it NOW and TODAY are unsupported.
    steps : int
        Cells and calls that one evaluation may touch.
    delegate : callable, optional
        ``(function, arguments) -> value`` for functions that are not in the table.
    """

    def __init__(
        self,
        book: Workbook,
        *,
        values: Mapping[tuple[str, int, int], Value] | None = None,
        live: Callable[[str, int, int], bool] | None = None,
        now: float | None = None,
        steps: int = MAX_STEPS,
        delegate: Delegate | None = None,
    ) -> None:
        self.book = book
        self.date1904 = book.date1904
        self.values = dict(values or {})
        self.live = live
        self.now = now
        self.limit = steps
        self.left = steps
        self.delegate = delegate
        self.memo: dict[tuple[str, int, int], Value] = {}
        self.stack: list[CellRef] = []
        self.depth = 0

    # -- what areas ask for ----------------------------------------------------------------------------------------

    def spend(self, steps: int) -> None:
        """Count steps.

        Raises
        ------
        StepLimit
        """
        self.left -= steps
        if self.left < 0:
            raise StepLimit("the formula", f"it needs more than {self.limit:,} steps")

    def bounds(self, sheet: str) -> tuple[int, int, int, int]:
        """Box of the cells in use."""
        return self.book.sheets[sheet].bounds

    def plain(self, sheet: str) -> bool:
        """Whether all cells of a sheet give their stored values."""
        return not self.values and self.live is None

    def value(self, sheet: str, row: int, col: int) -> Value:
        """Value of a cell as this evaluation sees it."""
        place = (sheet, row, col)
        if self.values and place in self.values:
            return self.values[place]
        if self.live is not None and self.live(sheet, row, col):
            return self.calculated(place)
        return self.book.sheets[sheet].value(row, col)

    def formula(self, sheet: str, row: int, col: int) -> str | None:
        """Formula of a cell."""
        return self.book.sheets[sheet].formula(row, col)

    def calculated(self, place: tuple[str, int, int]) -> Value:
        """Value of a formula cell, calculated once."""
        if place in self.memo:
            return self.memo[place]
        sheet, row, col = place
        text = self.formula(sheet, row, col)
        if text is None:
            return self.book.sheets[sheet].value(row, col)
        at = CellRef(sheet, row, col)
        if at in self.stack:
            raise CircularReference([str(c) for c in self.stack[self.stack.index(at) :]] + [str(at)])
        if len(self.stack) > MAX_DEPTH:
            raise StepLimit("the formula", f"a chain of more than {MAX_DEPTH} formulas")
        self.stack.append(at)
        try:
            found = self.cell_value(text, at, self.book.sheets[sheet].is_array(row, col))
        finally:
            self.stack.pop()
        self.memo[place] = found
        return found

    def cell_value(self, formula: str | Formula, at: CellRef, array: bool = False) -> Value:
        """The value that a cell shows: the first one, where the formula gives several."""
        found = self.evaluate(formula, at, array)
        return found[0][0] if isinstance(found, list) else found

    # -- evaluation ------------------------------------------------------------------------------------------------

    def evaluate(self, formula: str | Formula, at: CellRef, array: bool = False) -> Value | Grid:
        """Value of a formula in a cell; a grid where it gives several.

        Raises
        ------
        UnsupportedFunction, StepLimit, CircularReference, FormulaSyntaxError
        """
        read = parse(formula, at) if isinstance(formula, str) else formula
        ctx = Context(self, at, array)
        depth, self.depth = self.depth, 0
        try:
            found = self.node(read.tree, ctx)
            if isinstance(found, Area) and (len(found.sheets) > 1 or not array):
                found = self.scalar(found, ctx)
            elif isinstance(found, Area):
                found = found.grid()
            if isinstance(found, list):
                if len(found) == 1 and len(found[0]) == 1:
                    found = found[0][0]
                else:
                    return [[0.0 if v is None else v for v in row] for row in found]
        except Fault as fault:
            return fault.error
        except RecursionError as error:
            raise StepLimit("the formula", "it is nested too deeply") from error
        finally:
            self.depth = depth
        if isinstance(found, Lambda):
            return ErrorValue("#CALC!")
        return 0.0 if found is None or found is ABSENT else found

    def node(self, node: Node, ctx: Context) -> Any:
        """A node as it comes: a value, a grid, an area or a lambda."""
        self.left -= 1
        if self.left < 0:
            raise StepLimit("the formula", f"it needs more than {self.limit:,} steps")
        return _DISPATCH[type(node)](self, node, ctx)

    def lifted(self, node: Node, ctx: Context) -> Any:
        """One value, or in array mode a grid."""
        found = self.node(node, ctx)
        if ctx.array:
            if isinstance(found, Area):
                found = found.grid()
            if isinstance(found, list) and len(found) == 1 and len(found[0]) == 1:
                found = found[0][0]
            if isinstance(found, list):
                return found
        return self.scalar(found, ctx)

    def scalar(self, found: Any, ctx: Context) -> Value:
        """One value: of an area the cell in the own row or column (implicit intersection)."""
        if isinstance(found, Area):
            if len(found.sheets) > 1:
                fail(VALUE)
            if found.row1 == found.row2 and found.col1 == found.col2:
                return self.value(found.sheets[0], found.row1, found.col1)
            if found.col1 == found.col2 and found.row1 <= ctx.at.row <= found.row2:
                return self.value(found.sheets[0], ctx.at.row, found.col1)
            if found.row1 == found.row2 and found.col1 <= ctx.at.col <= found.col2:
                return self.value(found.sheets[0], found.row1, ctx.at.col)
            fail(VALUE)
        if isinstance(found, list):
            return found[0][0]
        if isinstance(found, Lambda):
            fail(ErrorValue("#CALC!"))
        value: Value = found
        return value

    def broadcast(self, compute: Callable[..., Value], arguments: list[Any], errors: bool = False) -> Any:
        """A function of single values over grids that are stretched to one another."""
        grids = [a.grid() if isinstance(a, Area) else a for a in arguments]
        shapes = [(len(g), len(g[0])) for g in grids if isinstance(g, list)]
        if not shapes:
            return compute(*grids)
        height, width = max(s[0] for s in shapes), max(s[1] for s in shapes)
        self.spend(height * width)

        def pick(grid: Any, i: int, j: int) -> Any:
            if not isinstance(grid, list):
                return grid
            i = 0 if len(grid) == 1 else i
            j = 0 if len(grid[0]) == 1 else j
            return grid[i][j] if i < len(grid) and j < len(grid[0]) else NA

        out: Grid = []
        for i in range(height):
            row: list[Value] = []
            for j in range(width):
                values = [pick(g, i, j) for g in grids]
                bad = next((v for v in values if isinstance(v, ErrorValue)), None)
                if bad is not None and not errors:
                    row.append(bad)
                    continue
                try:
                    row.append(compute(*values))
                except Fault as fault:
                    row.append(fault.error)
            out.append(row)
        return out

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _binary(self, node: Binary, ctx: Context) -> Any:
        op = node.op
        if op == ":":
            return spanned(self.reference(node.left, ctx), self.reference(node.right, ctx))
        if op == " ":
            return intersected(self.reference(node.left, ctx), self.reference(node.right, ctx))
        if op == ",":
            raise UnsupportedFunction("a union of ranges")
        compute = OPERATORS[op]
        left, right = self.lifted(node.left, ctx), self.lifted(node.right, ctx)
        if isinstance(left, list) or isinstance(right, list):
            return self.broadcast(compute, [left, right])
        if isinstance(left, ErrorValue):
            raise Fault(left)
        if isinstance(right, ErrorValue):
            raise Fault(right)
        return compute(left, right)

    def reference(self, node: Node, ctx: Context) -> Area:
        """A node that must be a reference."""
        found = self.node(node, ctx)
        return found if isinstance(found, Area) else fail(VALUE)

    def _unary(self, node: Unary, ctx: Context) -> Any:
        if node.op == "@":
            return self.scalar(self.node(node.operand, ctx), ctx)
        found = self.lifted(node.operand, ctx)
        if node.op == "+":
            return found
        if isinstance(found, list):
            return self.broadcast(lambda x: -to_number(x), [found])
        return -to_number(found)

    def _postfix(self, node: Postfix, ctx: Context) -> Any:
        if node.op == "#":
            area = self.reference(node.operand, ctx)
            block = self.book.sheets[area.sheets[0]].array_block(area.row1, area.col1)
            return Area(area.sheets, *block, self) if block else fail(REF)
        found = self.lifted(node.operand, ctx)
        if isinstance(found, list):
            return self.broadcast(lambda x: to_number(x) / 100, [found])
        return to_number(found) / 100

    def _array(self, node: Array, ctx: Context) -> Grid:
        return [[constant(x) for x in row] for row in node.rows]

    def _ref(self, node: Ref, ctx: Context) -> Area:
        if node.book is not None and node.book != "0":
            raise UnsupportedFunction("a reference to another file", f"[{node.book}]")
        if node.sheet == "#REF":
            fail(REF)
        sheets = self._sheets(node, ctx)
        return Area(sheets, *node.box(), self)

    def _sheets(self, node: Ref, ctx: Context) -> tuple[str, ...]:
        if not node.sheet:
            return (ctx.at.sheet or next(iter(self.book.sheets)),)
        try:
            first = self.book.sheet(node.sheet).name
            if node.last_sheet is None:
                return (first,)
            last = self.book.sheet(node.last_sheet).name
        except CellRefError:
            fail(REF)
        names = list(self.book.sheets)
        i, j = sorted((names.index(first), names.index(last)))
        return tuple(names[i : j + 1])

    def _structured(self, node: StructuredRef, ctx: Context) -> Area:
        if node.book is not None and node.book != "0":
            raise UnsupportedFunction("a reference to another file", f"[{node.book}]")
        found = resolve_structured(node, self.book, ctx.at)
        if isinstance(found, ErrorValue):
            fail(found)
        return Area((found.sheet or ctx.at.sheet,), *found.box(), self)

    def _name(self, node: Name, ctx: Context) -> Any:
        name = plain_function(node.name)
        if name in ctx.scope:
            found = ctx.scope[name]
            if isinstance(found, ErrorValue):
                fail(found)
            return found
        if node.book is not None and node.book != "0":
            raise UnsupportedFunction("a name of another file", f"[{node.book}]{node.name}")
        sheet = node.sheet or ctx.at.sheet
        text = self.book.names.get((sheet, name)) or self.book.names.get(("", name))
        if text is None:
            table = self.book.tables.get(name)
            if table is None:
                fail(NAME_ERROR)
            return Area(
                (table.sheet,),
                table.row1 + table.header_rows,
                table.col1,
                table.row2 - table.totals_rows,
                table.col2,
                self,
            )
        self.depth += 1
        if self.depth > 30:
            raise CircularReference([node.name, node.name])
        try:
            return self.node(parse(text).tree, Context(self, ctx.at._replace(sheet=sheet), True))
        except FormulaError as error:
            if isinstance(error, (UnsupportedFunction, CircularReference)):
                raise
            fail(NAME_ERROR)
        finally:
            self.depth -= 1

    def _call(self, node: Call, ctx: Context) -> Any:
        name = node.function
        entry = FUNCTIONS.get(name)
        if entry is None:
            made = ctx.scope.get(name)
            if isinstance(made, Lambda):
                return self.call_lambda(made, [self.node(a, ctx) for a in node.args], ctx)
            return self._delegated(name, node, ctx)
        args = node.args
        if not entry.least <= len(args) <= entry.most:
            raise UnsupportedFunction(name, f"with {len(args)} arguments")
        values: list[Any] = []
        lifting = False
        for i, arg in enumerate(args):
            kind = entry.kind(i)
            if kind == "l":
                values.append(arg)
                continue
            if isinstance(arg, Missing):
                values.append(ABSENT)
                continue
            if kind == "e":
                try:
                    values.append(self.node(arg, ctx))
                except Fault as fault:
                    values.append(fault.error)
            elif kind == "s":
                found = self.lifted(arg, ctx)
                lifting = lifting or isinstance(found, list)
                if isinstance(found, ErrorValue):
                    raise Fault(found)
                values.append(found)
            else:
                inner = ctx if kind == "r" or ctx.array else Context(self, ctx.at, True, ctx.scope)
                found = self.node(arg, inner)
                if isinstance(found, ErrorValue):
                    raise Fault(found)
                values.append(found)
        if lifting and "l" not in entry.kinds:
            return self._lifted_call(entry, values, ctx)
        return entry.call(ctx, *values)

    def _lifted_call(self, entry: Any, values: list[Any], ctx: Context) -> Any:
        spots = [i for i, v in enumerate(values) if entry.kind(i) == "s" and isinstance(v, list)]

        def once(*cells: Value) -> Value:
            args = list(values)
            for i, cell in zip(spots, cells, strict=True):
                args[i] = cell
            return self.scalar(entry.call(ctx, *args), ctx)

        return self.broadcast(once, [values[i] for i in spots])

    def _delegated(self, name: str, node: Call, ctx: Context) -> Any:
        if self.delegate is None:
            raise UnsupportedFunction(name)
        args: list[Any] = []
        for arg in node.args:
            if isinstance(arg, Missing):
                args.append(ABSENT)
                continue
            found = self.node(arg, ctx)
            if isinstance(found, Lambda):
                raise UnsupportedFunction(name, "with a LAMBDA")
            if isinstance(found, Area):
                found = found.grid() if found.height * found.width > 1 else self.scalar(found, ctx)
            args.append(found)
        return self.delegate(name, args)

    def call_lambda(self, made: Lambda, args: list[Any], ctx: Context) -> Any:
        """Call a lambda with values."""
        if len(args) != len(made.names):
            fail(VALUE)
        self.depth += 1
        if self.depth > 60:
            raise StepLimit("LAMBDA", "more than 60 levels")
        try:
            scope = {**made.scope, **dict(zip(made.names, args, strict=True))}
            return self.node(made.body, Context(self, ctx.at, ctx.array, scope))
        finally:
            self.depth -= 1

    def _apply(self, node: Apply, ctx: Context) -> Any:
        made = self.node(node.target, ctx)
        if not isinstance(made, Lambda):
            fail(REF)
        return self.call_lambda(made, [self.node(a, ctx) for a in node.args], ctx)


def _error(run: Evaluator, node: ErrorLiteral, ctx: Context) -> Any:
    fail(ErrorValue(node.kind))


_DISPATCH: dict[type, Callable[[Evaluator, Any, Context], Any]] = {
    Number: lambda run, node, ctx: node.value,
    String: lambda run, node, ctx: node.value,
    Bool: lambda run, node, ctx: node.value,
    Missing: lambda run, node, ctx: ABSENT,
    ErrorLiteral: _error,
    Paren: lambda run, node, ctx: run.node(node.inner, ctx),
    Ref: Evaluator._ref,
    Name: Evaluator._name,
    StructuredRef: Evaluator._structured,
    Call: Evaluator._call,
    Apply: Evaluator._apply,
    Unary: Evaluator._unary,
    Postfix: Evaluator._postfix,
    Binary: Evaluator._binary,
    Array: Evaluator._array,
}
