"""Arithmetic, trigonometry, sums and products."""

from __future__ import annotations

import math
from decimal import ROUND_DOWN, ROUND_HALF_UP, ROUND_UP, Decimal
from typing import Any

import numpy as np

from assay.formulas.evaluate.core import (
    ABSENT,
    DIV0,
    NUM,
    VALUE,
    Area,
    Argument,
    Context,
    ErrorValue,
    Fault,
    Grid,
    Value,
    criterion,
    fail,
    finite,
    flat,
    function,
    grid_of,
    numbers,
    to_bool,
    to_int,
    to_number,
)


def _plain(names: str, compute: Any) -> None:
    def call(ctx: Context, x: Value) -> Value:
        try:
            return finite(float(compute(to_number(x))))
        except (ValueError, OverflowError):
            fail(NUM)
        except ZeroDivisionError:
            fail(DIV0)

    function(names)(call)


for _names, _compute in {
    "ABS": abs, "SIN": math.sin, "COS": math.cos, "TAN": math.tan, "ASIN": math.asin, "ACOS": math.acos,
    "ATAN": math.atan, "SINH": math.sinh, "COSH": math.cosh, "TANH": math.tanh, "ASINH": math.asinh,
    "ACOSH": math.acosh, "ATANH": math.atanh, "EXP": math.exp, "LN": math.log, "LOG10": math.log10,
    "SQRT": math.sqrt, "DEGREES": math.degrees, "RADIANS": math.radians, "INT": math.floor,
    "SIGN": lambda x: (x > 0) - (x < 0), "SEC": lambda x: 1 / math.cos(x), "CSC": lambda x: 1 / math.sin(x),
    "COT": lambda x: 1 / math.tan(x), "ACOT": lambda x: math.pi / 2 - math.atan(x),
}.items():  # fmt: skip
    _plain(_names, _compute)


@function("PI", "")
def _pi(ctx: Context) -> float:
    return math.pi


@function("SUM", "r*", 1)
def _sum(ctx: Context, *args: Argument) -> float:
    return finite(math.fsum(numbers(args)))


@function("PRODUCT", "r*", 1)
def _product(ctx: Context, *args: Argument) -> float:
    found = numbers(args)
    return finite(math.prod(found)) if found else 0.0


@function("SUMSQ", "r*", 1)
def _sumsq(ctx: Context, *args: Argument) -> float:
    return math.fsum(x * x for x in numbers(args))


@function("SUMPRODUCT", "a*", 1)
def _sumproduct(ctx: Context, *args: Argument) -> float:
    grids = [grid_of(a) for a in args]
    shapes = {(len(g), len(g[0])) for g in grids}
    if len(shapes) > 1:
        sizes = {
            (getattr(a, "height", len(g)), getattr(a, "width", len(g[0]))) for a, g in zip(args, grids, strict=True)
        }
        if len(sizes) > 1:
            fail(VALUE)
        height, width = min(s[0] for s in shapes), min(s[1] for s in shapes)
        grids = [[row[:width] for row in g[:height]] for g in grids]
    total = []
    for cells in zip(*(flat(g) for g in grids), strict=True):
        product = 1.0
        for value in cells:
            if isinstance(value, ErrorValue):
                raise Fault(value)
            plain = isinstance(value, (int, float)) and not isinstance(value, bool)
            product *= value if plain else 0.0
        total.append(product)
    return math.fsum(total)


def _pairs(a: Argument, b: Argument) -> list[tuple[float, float]]:
    x, y = list(flat(a)), list(flat(b))
    if len(x) != len(y):
        fail(ErrorValue("#N/A"))
    found = []
    for p, q in zip(x, y, strict=True):
        for value in (p, q):
            if isinstance(value, ErrorValue):
                raise Fault(value)
        if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (p, q)):
            found.append((p, q))
    if not found:
        fail(DIV0)
    return found  # type: ignore[return-value]


@function("SUMX2MY2", "aa")
def _sumx2my2(ctx: Context, a: Argument, b: Argument) -> float:
    return math.fsum(x * x - y * y for x, y in _pairs(a, b))


@function("SUMX2PY2", "aa")
def _sumx2py2(ctx: Context, a: Argument, b: Argument) -> float:
    return math.fsum(x * x + y * y for x, y in _pairs(a, b))


@function("SUMXMY2", "aa")
def _sumxmy2(ctx: Context, a: Argument, b: Argument) -> float:
    return math.fsum((x - y) ** 2 for x, y in _pairs(a, b))


def _rounded(x: float, digits: int, how: str) -> float:
    finite(x)
    if abs(digits) > 300:
        return x if digits > 0 else 0.0
    exact = Decimal(repr(x) if abs(x) >= 1e16 or digits > 14 else f"{x:.15g}")
    step = Decimal(1).scaleb(-digits)
    return float((exact / step).quantize(Decimal(1), rounding=how) * step) if abs(x) < 1e25 else x


@function("ROUND", "ss")
def _round(ctx: Context, x: Value, digits: Value) -> float:
    return _rounded(to_number(x), to_int(digits), ROUND_HALF_UP)


@function("ROUNDUP", "ss")
def _roundup(ctx: Context, x: Value, digits: Value) -> float:
    return _rounded(to_number(x), to_int(digits), ROUND_UP)


@function("ROUNDDOWN", "ss")
def _rounddown(ctx: Context, x: Value, digits: Value) -> float:
    return _rounded(to_number(x), to_int(digits), ROUND_DOWN)


@function("TRUNC", "ss", 1)
def _trunc(ctx: Context, x: Value, digits: Value = 0.0) -> float:
    return _rounded(to_number(x), to_int(digits), ROUND_DOWN)


@function("MROUND", "ss")
def _mround(ctx: Context, x: Value, multiple: Value) -> float:
    a, b = to_number(x), to_number(multiple)
    if b == 0 or a == 0:
        return 0.0
    if a * b < 0:
        fail(NUM)
    return math.floor(a / b + 0.5) * b


def _steps(x: float, step: float) -> float:
    ratio = x / step
    near = round(ratio)
    return float(near) if abs(ratio - near) < 1e-12 * max(1.0, abs(ratio)) else ratio


@function("CEILING", "ss")
def _ceiling(ctx: Context, x: Value, step: Value) -> float:
    a, b = to_number(x), to_number(step)
    if b == 0 or a == 0:
        return 0.0
    if a > 0 > b:
        fail(NUM)
    return math.ceil(_steps(a, b)) * b


@function("FLOOR", "ss")
def _floor(ctx: Context, x: Value, step: Value) -> float:
    a, b = to_number(x), to_number(step)
    if a == 0:
        return 0.0
    if b == 0:
        fail(DIV0)
    if a > 0 > b:
        fail(NUM)
    return math.floor(_steps(a, b)) * b


@function("CEILING.MATH", "sss", 1)
def _ceiling_math(ctx: Context, x: Value, step: Value = 1.0, mode: Value = 0.0) -> float:
    a, b = to_number(x), abs(to_number(step))
    if b == 0:
        return 0.0
    return (math.floor if a < 0 and to_number(mode) else math.ceil)(_steps(a, b)) * b


@function("FLOOR.MATH", "sss", 1)
def _floor_math(ctx: Context, x: Value, step: Value = 1.0, mode: Value = 0.0) -> float:
    a, b = to_number(x), abs(to_number(step))
    if b == 0:
        return 0.0
    return (math.ceil if a < 0 and to_number(mode) else math.floor)(_steps(a, b)) * b


@function("EVEN")
def _even(ctx: Context, x: Value) -> float:
    a = to_number(x)
    return math.copysign(math.ceil(abs(a) / 2) * 2, a) if a else 0.0


@function("ODD")
def _odd(ctx: Context, x: Value) -> float:
    a = to_number(x)
    size = math.ceil((abs(a) + 1) / 2) * 2 - 1
    return float(size if a >= 0 else -size)


@function("MOD", "ss")
def _mod(ctx: Context, x: Value, y: Value) -> float:
    a, b = to_number(x), to_number(y)
    if b == 0:
        fail(DIV0)
    return a - b * math.floor(a / b)


@function("QUOTIENT", "ss")
def _quotient(ctx: Context, x: Value, y: Value) -> float:
    a, b = to_number(x), to_number(y)
    if b == 0:
        fail(DIV0)
    return float(math.trunc(a / b))


def power(a: float, b: float) -> float:
    """``a ^ b`` with Excel's errors."""
    if a == 0 and b == 0:
        fail(NUM)
    if a == 0 and b < 0:
        fail(DIV0)
    try:
        result = a**b
    except OverflowError:
        fail(NUM)
    if isinstance(result, complex):
        fail(NUM)
    return finite(result)


@function("POWER", "ss")
def _power(ctx: Context, x: Value, y: Value) -> float:
    return power(to_number(x), to_number(y))


@function("LOG", "ss", 1)
def _log(ctx: Context, x: Value, base: Value = 10.0) -> float:
    a, b = to_number(x), to_number(base)
    if a <= 0 or b <= 0:
        fail(NUM)
    if b == 1:
        fail(DIV0)
    return math.log10(a) if b == 10 else math.log(a) / math.log(b)


@function("ATAN2", "ss")
def _atan2(ctx: Context, x: Value, y: Value) -> float:
    a, b = to_number(x), to_number(y)
    if a == 0 and b == 0:
        fail(DIV0)
    return math.atan2(b, a)


@function("FACT")
def _fact(ctx: Context, x: Value) -> float:
    n = to_number(x)
    if n < 0 or n >= 171:
        fail(NUM)
    return float(math.factorial(int(n)))


@function("COMBIN", "ss")
def _combin(ctx: Context, n: Value, k: Value) -> float:
    a, b = to_int(n), to_int(k)
    if a < 0 or b < 0 or a < b:
        fail(NUM)
    return float(math.comb(a, b))


@function("PERMUT", "ss")
def _permut(ctx: Context, n: Value, k: Value) -> float:
    a, b = to_int(n), to_int(k)
    if a < 0 or b < 0 or a < b:
        fail(NUM)
    return float(math.perm(a, b))


@function("GCD", "r*", 1)
def _gcd(ctx: Context, *args: Argument) -> float:
    return float(math.gcd(*(int(x) for x in numbers(args))))


@function("LCM", "r*", 1)
def _lcm(ctx: Context, *args: Argument) -> float:
    return float(math.lcm(*(int(x) for x in numbers(args))))


def selected(ranges_and_criteria: tuple[Argument, ...], like: Argument | None = None) -> list[bool]:
    """Which places meet all criteria (of the IFS functions)."""
    keep: list[bool] | None = None
    for i in range(0, len(ranges_and_criteria) - 1, 2):
        test = criterion(_one(ranges_and_criteria[i + 1]))
        hits = [test(v) for v in flat(ranges_and_criteria[i])]
        if keep is None:
            keep = hits
        elif len(keep) != len(hits):
            size = max(len(keep), len(hits))  # ranges cut at the last row in use: what is past it is blank
            empty = test(None)
            hits += [empty] * (size - len(hits))
            keep = [a and b for a, b in zip(keep + [False] * (size - len(keep)), hits, strict=True)]
        else:
            keep = [a and b for a, b in zip(keep, hits, strict=True)]
    return keep or []


def _one(argument: Argument) -> Value:
    if isinstance(argument, list):
        return argument[0][0]
    return None if argument is ABSENT else argument


def sums_over(ctx: Context, target: Argument, chosen: Argument) -> Argument:
    """The range that is summed: as large as the range of the criterion."""
    if isinstance(target, Area) and isinstance(chosen, Area):
        row1, col1, row2, col2 = chosen.clipped()
        return Area(
            target.sheets, target.row1, target.col1, target.row1 + row2 - row1, target.col1 + col2 - col1, target.source
        )
    return target


def full_grid(argument: Argument) -> Grid:
    """The grid of an area at its full size, however many of its cells are in use."""
    return argument.grid(full=True) if isinstance(argument, Area) else grid_of(argument)


@function("SUMIF", "rsr", 2)
def _sumif(ctx: Context, where: Argument, what: Value, target: Argument = None) -> float:
    hits = selected((where, what))
    area = where if target is None or target is ABSENT else sums_over(ctx, target, where)
    values = flat(full_grid(area)) if area is not where else flat(area)
    return _total(v for v, hit in zip(values, hits, strict=False) if hit)


def _total(values: Any) -> float:
    found = []
    for value in values:
        if isinstance(value, ErrorValue):
            raise Fault(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found.append(value)
    return math.fsum(found)


@function("SUMIFS", "rrs*", 3)
def _sumifs(ctx: Context, target: Argument, *pairs: Argument) -> float:
    if len(pairs) % 2:
        fail(VALUE)
    return _total(v for v, hit in zip(flat(target), selected(pairs), strict=False) if hit)


@function("COUNTIF", "re")
def _countif(ctx: Context, where: Argument, what: Argument) -> Any:
    if isinstance(what, (Area, list)):
        if ctx.array:
            return ctx.run.broadcast(lambda one: _countif(ctx, where, one), [what], errors=True)
        what = ctx.run.scalar(what, ctx)
    count = sum(selected((where, what)))
    return float(count + _beyond(where, what))


def _beyond(where: Argument, what: Value) -> int:
    """Blank cells past the last row in use that meet a criterion."""
    if not isinstance(where, Area) or not criterion(what)(None):
        return 0
    row1, col1, row2, col2 = where.clipped()
    return where.height * where.width - (row2 - row1 + 1) * (col2 - col1 + 1)


@function("COUNTIFS", "rs*", 2)
def _countifs(ctx: Context, *pairs: Argument) -> float:
    if len(pairs) % 2:
        fail(VALUE)
    return float(sum(selected(pairs)))


@function("AVERAGEIF", "rsr", 2)
def _averageif(ctx: Context, where: Argument, what: Value, target: Argument = None) -> float:
    area = where if target is None or target is ABSENT else sums_over(ctx, target, where)
    hits = selected((where, what))
    values = flat(full_grid(area)) if area is not where else flat(area)
    return _mean([v for v, hit in zip(values, hits, strict=False) if hit])


@function("AVERAGEIFS", "rrs*", 3)
def _averageifs(ctx: Context, target: Argument, *pairs: Argument) -> float:
    return _mean([v for v, hit in zip(flat(target), selected(pairs), strict=False) if hit])


def _picked(values: list[Value]) -> list[float]:
    for value in values:
        if isinstance(value, ErrorValue):
            raise Fault(value)
    return [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]


def _mean(values: list[Value]) -> float:
    found = _picked(values)
    if not found:
        fail(DIV0)
    return math.fsum(found) / len(found)


@function("MAXIFS", "rrs*", 3)
def _maxifs(ctx: Context, target: Argument, *pairs: Argument) -> float:
    return max(_picked([v for v, hit in zip(flat(target), selected(pairs), strict=False) if hit]), default=0.0)


@function("MINIFS", "rrs*", 3)
def _minifs(ctx: Context, target: Argument, *pairs: Argument) -> float:
    return min(_picked([v for v, hit in zip(flat(target), selected(pairs), strict=False) if hit]), default=0.0)


@function("TRANSPOSE", "a")
def _transpose(ctx: Context, a: Argument) -> Grid:
    return [list(column) for column in zip(*grid_of(a), strict=True)]


def _matrix(argument: Argument) -> np.ndarray:
    grid = grid_of(argument)
    for value in flat(grid):
        if isinstance(value, ErrorValue):
            raise Fault(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            fail(VALUE)
    return np.array(grid, float)


@function("MMULT", "aa")
def _mmult(ctx: Context, a: Argument, b: Argument) -> Grid:
    x, y = _matrix(a), _matrix(b)
    if x.shape[1] != y.shape[0]:
        fail(VALUE)
    product: Grid = (x @ y).tolist()
    return product


@function("MDETERM", "a")
def _mdeterm(ctx: Context, a: Argument) -> float:
    x = _matrix(a)
    if x.shape[0] != x.shape[1]:
        fail(VALUE)
    return float(np.linalg.det(x))


@function("MINVERSE", "a")
def _minverse(ctx: Context, a: Argument) -> Grid:
    x = _matrix(a)
    if x.shape[0] != x.shape[1]:
        fail(VALUE)
    try:
        inverse: Grid = np.linalg.inv(x).tolist()
    except np.linalg.LinAlgError:
        fail(NUM)
    return inverse


@function("SEQUENCE", "ssss", 1)
def _sequence(ctx: Context, rows: Value, cols: Value = 1.0, start: Value = 1.0, step: Value = 1.0) -> Grid:
    height, width = to_int(rows), 1 if cols is ABSENT else to_int(cols)
    first, by = (1.0 if start is ABSENT else to_number(start)), (1.0 if step is ABSENT else to_number(step))
    if height < 1 or width < 1:
        fail(VALUE)
    ctx.run.spend(height * width)
    return [[first + by * (i * width + j) for j in range(width)] for i in range(height)]


_SUBTOTALS = {
    1: "AVERAGE",
    2: "COUNT",
    3: "COUNTA",
    4: "MAX",
    5: "MIN",
    6: "PRODUCT",
    7: "STDEV",
    8: "STDEVP",
    9: "SUM",
    10: "VAR",
    11: "VARP",
}


@function("SUBTOTAL", "sr*", 2)
def _subtotal(ctx: Context, which: Value, *args: Argument) -> Any:
    from assay.formulas.evaluate.core import FUNCTIONS

    name = _SUBTOTALS.get(to_int(which) % 100)
    if name is None or to_int(which) >= 112:
        fail(VALUE)
    kept: list[Argument] = []
    for arg in args:
        if not isinstance(arg, Area):
            fail(VALUE)
        values: list[Value] = []
        row1, col1, row2, col2 = arg.clipped()
        ctx.run.spend((row2 - row1 + 1) * (col2 - col1 + 1))
        for sheet in arg.sheets:
            for row in range(row1, row2 + 1):
                for col in range(col1, col2 + 1):
                    formula = ctx.run.formula(sheet, row, col)
                    if formula is None or "SUBTOTAL(" not in formula.upper():
                        values.append(ctx.run.value(sheet, row, col))
        kept.append([values or [None]])
    return FUNCTIONS[name].call(ctx, *kept)


@function("ISODD")
def _isodd(ctx: Context, x: Value) -> bool:
    return math.floor(abs(_strict(x))) % 2 == 1


@function("ISEVEN")
def _iseven(ctx: Context, x: Value) -> bool:
    return math.floor(abs(_strict(x))) % 2 == 0


def _strict(x: Value) -> float:
    if isinstance(x, bool):
        fail(VALUE)
    return to_number(x)


@function("BASE", "sss", 2)
def _base(ctx: Context, x: Value, radix: Value, least: Value = 0.0) -> str:
    n, b = to_int(x), to_int(radix)
    if n < 0 or not 2 <= b <= 36:
        fail(NUM)
    digits = "" if n else "0"
    while n:
        n, rest = divmod(n, b)
        digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[rest] + digits
    return digits.rjust(to_int(least), "0")


@function("RAND RANDBETWEEN RANDARRAY", "s*", 0)
def _random(ctx: Context, *args: Value) -> float:
    from assay.formulas.errors import UnsupportedFunction

    raise UnsupportedFunction("RAND", "its value changes with every calculation")


@function("XOR", "r*", 1)
def _xor(ctx: Context, *args: Argument) -> bool:
    return sum(to_bool(v) for a in args for v in flat(a) if v is not None and not isinstance(v, str)) % 2 == 1
