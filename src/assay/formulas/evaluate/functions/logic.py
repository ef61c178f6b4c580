"""Conditions, information about values, LET and LAMBDA."""

from __future__ import annotations

from typing import Any

from assay.formulas.errors import UnsupportedFunction
from assay.formulas.evaluate.core import (
    NA,
    NAME_ERROR,
    VALUE,
    Area,
    Argument,
    Context,
    ErrorValue,
    Fault,
    Grid,
    Lambda,
    Value,
    compare,
    fail,
    flat,
    function,
    grid_of,
    to_bool,
    to_number,
    to_text,
)
from assay.formulas.grammar.nodes import Missing, Name, Node, Ref, plain_function


def _truths(args: tuple[Argument, ...]) -> list[bool]:
    found = []
    for arg in args:
        if isinstance(arg, (Area, list)):
            for value in flat(arg):
                if isinstance(value, ErrorValue):
                    raise Fault(value)
                if value is not None and not isinstance(value, str):
                    found.append(bool(value))
        else:
            found.append(to_bool(arg))
    if not found:
        fail(VALUE)
    return found


@function("AND", "r*", 1)
def _and(ctx: Context, *args: Argument) -> bool:
    return all(_truths(args))


@function("OR", "r*", 1)
def _or(ctx: Context, *args: Argument) -> bool:
    return any(_truths(args))


@function("NOT")
def _not(ctx: Context, x: Value) -> bool:
    return not to_bool(x)


@function("TRUE", "")
def _true(ctx: Context) -> bool:
    return True


@function("FALSE", "")
def _false(ctx: Context) -> bool:
    return False


@function("NA", "")
def _na(ctx: Context) -> Value:
    fail(NA)


@function("IF", "lll", 1)
def _if(ctx: Context, test: Node, then: Node | None = None, other: Node | None = None) -> Any:
    chosen = ctx.run.lifted(test, ctx)

    def branch(node: Node | None, default: Value) -> Any:
        if node is None:
            return default
        return 0.0 if isinstance(node, Missing) else ctx.run.node(node, ctx)

    if isinstance(chosen, list):
        yes, no = branch(then, True), branch(other, False)
        return ctx.run.broadcast(lambda t, a, b: a if to_bool(t) else b, [chosen, yes, no])
    return branch(then, True) if to_bool(chosen) else branch(other, False)


@function("IFERROR", "ll")
def _iferror(ctx: Context, value: Node, other: Node) -> Any:
    return _guarded(ctx, value, other, lambda e: True)


@function("IFNA", "ll")
def _ifna(ctx: Context, value: Node, other: Node) -> Any:
    return _guarded(ctx, value, other, lambda e: e == NA)


def _guarded(ctx: Context, value: Node, other: Node, catches: Any) -> Any:
    def instead() -> Any:
        return "" if isinstance(other, Missing) else ctx.run.node(other, ctx)

    try:
        found = ctx.run.lifted(value, ctx)
    except Fault as fault:
        if catches(fault.error):
            return instead()
        raise
    if isinstance(found, list):
        if not any(isinstance(v, ErrorValue) and catches(v) for v in flat(found)):
            return found
        return ctx.run.broadcast(
            lambda a, b: b if isinstance(a, ErrorValue) and catches(a) else a, [found, instead()], errors=True
        )
    if isinstance(found, ErrorValue) and catches(found):
        return instead()
    return 0.0 if found is None else found


@function("IFS", "l*", 2)
def _ifs(ctx: Context, *nodes: Node) -> Any:
    for test, value in zip(nodes[::2], nodes[1::2], strict=False):
        if to_bool(ctx.run.scalar(ctx.run.node(test, ctx), ctx)):
            return ctx.run.node(value, ctx)
    fail(NA)


@function("SWITCH", "l*", 3)
def _switch(ctx: Context, *nodes: Node) -> Any:
    key = ctx.run.scalar(ctx.run.node(nodes[0], ctx), ctx)
    rest = nodes[1:]
    for test, value in zip(rest[::2], rest[1::2], strict=False):
        if compare(key, ctx.run.scalar(ctx.run.node(test, ctx), ctx)) == 0:
            return ctx.run.node(value, ctx)
    if len(rest) % 2:
        return ctx.run.node(rest[-1], ctx)
    fail(NA)


@function("CHOOSE", "sl*", 2)
def _choose(ctx: Context, index: Value, *nodes: Node) -> Any:
    place = int(to_number(index))
    if not 1 <= place <= len(nodes):
        fail(VALUE)
    return ctx.run.node(nodes[place - 1], ctx)


def _test(name: str, check: Any) -> None:
    def call(ctx: Context, node: Node) -> Any:
        try:
            found = ctx.run.lifted(node, ctx)
        except Fault as fault:
            found = fault.error
        if isinstance(found, list):
            return [[check(v) for v in row] for row in found]
        return check(found)

    function(name, "l")(call)


_test("ISBLANK", lambda v: v is None)
_test("ISERROR", lambda v: isinstance(v, ErrorValue))
_test("ISERR", lambda v: isinstance(v, ErrorValue) and v != NA)
_test("ISNA", lambda v: v == NA)
_test("ISNUMBER", lambda v: isinstance(v, (int, float)) and not isinstance(v, bool))
_test("ISTEXT", lambda v: isinstance(v, str))
_test("ISNONTEXT", lambda v: not isinstance(v, str))
_test("ISLOGICAL", lambda v: isinstance(v, bool))


@function("ISREF", "l")
def _isref(ctx: Context, node: Node) -> bool:
    if isinstance(node, Ref):
        return True
    try:
        return isinstance(ctx.run.node(node, ctx), Area)
    except Fault:
        return False


@function("ISFORMULA", "r")
def _isformula(ctx: Context, a: Argument) -> bool:
    if not isinstance(a, Area):
        fail(VALUE)
    return ctx.run.formula(a.sheets[0], a.row1, a.col1) is not None


_KINDS = ("#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#N/A", "#GETTING_DATA")


@function("ERROR.TYPE", "l")
def _error_type(ctx: Context, node: Node) -> float:
    try:
        found = ctx.run.scalar(ctx.run.node(node, ctx), ctx)
    except Fault as fault:
        found = fault.error
    if not isinstance(found, ErrorValue):
        fail(NA)
    return float(_KINDS.index(found.kind) + 1) if found.kind in _KINDS else fail(NA)


@function("N")
def _n(ctx: Context, x: Value) -> Value:
    if isinstance(x, ErrorValue):
        raise Fault(x)
    return float(x) if isinstance(x, (bool, int, float)) else 0.0


@function("T", "r")
def _t(ctx: Context, a: Argument) -> Value:
    value = grid_of(a)[0][0] if isinstance(a, (Area, list)) else a
    if isinstance(value, ErrorValue):
        raise Fault(value)
    return value if isinstance(value, str) else ""


@function("TYPE", "r")
def _type(ctx: Context, a: Argument) -> float:
    if isinstance(a, list) or (isinstance(a, Area) and a.height * a.width > 1):
        return 64.0
    value = grid_of(a)[0][0]
    if isinstance(value, ErrorValue):
        return 16.0
    return 4.0 if isinstance(value, bool) else 2.0 if isinstance(value, str) else 1.0


@function("LET", "l*", 3)
def _let(ctx: Context, *nodes: Node) -> Any:
    if len(nodes) % 2 == 0:
        fail(VALUE)
    inner = Context(ctx.run, ctx.at, ctx.array, dict(ctx.scope))
    for name, value in zip(nodes[:-1:2], nodes[1:-1:2], strict=True):
        if not isinstance(name, Name):
            fail(NAME_ERROR)
        try:
            inner.scope[plain_function(name.name)] = ctx.run.node(value, inner)
        except Fault as fault:
            inner.scope[plain_function(name.name)] = fault.error
    return ctx.run.node(nodes[-1], inner)


@function("LAMBDA", "l*", 1)
def _lambda(ctx: Context, *nodes: Node) -> Lambda:
    names = []
    for node in nodes[:-1]:
        if not isinstance(node, Name):
            fail(NAME_ERROR)
        names.append(plain_function(node.name))
    return Lambda(names, nodes[-1], ctx.scope)


def _called(ctx: Context, made: Argument, args: list[Any]) -> Any:
    if not isinstance(made, Lambda):
        fail(VALUE)
    return ctx.run.call_lambda(made, args, ctx)


@function("MAP", "r*", 2)
def _map(ctx: Context, *args: Argument) -> Grid:
    *grids, made = args
    found: Grid = ctx.run.broadcast(
        lambda *values: ctx.run.scalar(_called(ctx, made, list(values)), ctx), [grid_of(g) for g in grids], errors=True
    )
    return found


@function("REDUCE", "rrr")
def _reduce(ctx: Context, start: Argument, a: Argument, made: Argument) -> Any:
    total = start
    for value in flat(a):
        total = _called(ctx, made, [total, value])
    return total


@function("BYROW", "rr")
def _byrow(ctx: Context, a: Argument, made: Argument) -> Grid:
    return [[ctx.run.scalar(_called(ctx, made, [[row]]), ctx)] for row in grid_of(a)]


@function("BYCOL", "rr")
def _bycol(ctx: Context, a: Argument, made: Argument) -> Grid:
    columns = zip(*grid_of(a), strict=True)
    return [[ctx.run.scalar(_called(ctx, made, [[[v] for v in column]]), ctx) for column in columns]]


@function("CELL", "sr", 1)
def _cell(ctx: Context, what: Value, a: Argument = None) -> Value:
    wanted = to_text(what).lower()
    if not isinstance(a, Area):
        raise UnsupportedFunction("CELL", "without a reference")
    if wanted == "row":
        return float(a.row1)
    if wanted == "col":
        return float(a.col1)
    if wanted == "contents":
        value: Value = ctx.run.value(a.sheets[0], a.row1, a.col1)
        return 0.0 if value is None else value
    if wanted == "address":
        from assay.formulas.grammar import column_name

        return f"${column_name(a.col1)}${a.row1}"
    if wanted == "type":
        value = ctx.run.value(a.sheets[0], a.row1, a.col1)
        return "b" if value is None else "l" if isinstance(value, str) else "v"
    raise UnsupportedFunction("CELL", f"information {wanted!r}")
