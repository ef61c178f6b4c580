"""Counts, means, spread, order statistics."""

from __future__ import annotations

import math
from collections.abc import Callable

from assay.formulas.evaluate.core import (
    ABSENT,
    DIV0,
    NA,
    NUM,
    VALUE,
    Area,
    Argument,
    Context,
    ErrorValue,
    Fault,
    Grid,
    Value,
    fail,
    flat,
    function,
    need,
    numbers,
    numbers_a,
    text_to_number,
    to_int,
    to_number,
)


def _simple(names: str, compute: Callable[[list[float]], float], least: int = 1, error: ErrorValue = DIV0) -> None:
    def call(ctx: Context, *args: Argument) -> float:
        found = numbers(args)
        if len(found) < least:
            fail(error)
        return compute(found)

    function(names, "r*", 1)(call)


def _mean(x: list[float]) -> float:
    return math.fsum(x) / len(x)


def _squares(x: list[float]) -> float:
    centre = _mean(x)
    return math.fsum((v - centre) ** 2 for v in x)


def _median(x: list[float]) -> float:
    ordered, n = sorted(x), len(x)
    return ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2


def _mode(x: list[float]) -> float:
    counts: dict[float, int] = {}
    for value in x:
        counts[value] = counts.get(value, 0) + 1
    best = max(counts.values())
    if best < 2:
        fail(NA)
    return next(value for value in x if counts[value] == best)


_simple("AVERAGE", _mean)
_simple("MEDIAN", _median, error=NUM)
_simple("STDEV STDEV.S", lambda x: math.sqrt(_squares(x) / (len(x) - 1)), 2)
_simple("STDEVP STDEV.P", lambda x: math.sqrt(_squares(x) / len(x)))
_simple("VAR VAR.S", lambda x: _squares(x) / (len(x) - 1), 2)
_simple("VARP VAR.P", lambda x: _squares(x) / len(x))
_simple("DEVSQ", _squares, error=NUM)
_simple("AVEDEV", lambda x: math.fsum(abs(v - _mean(x)) for v in x) / len(x), error=NUM)
_simple("MODE MODE.SNGL", _mode, error=NA)
_simple("MAX", lambda x: max(x, default=0.0), 0)
_simple("MIN", lambda x: min(x, default=0.0), 0)


def _geomean(x: list[float]) -> float:
    if min(x) <= 0:
        fail(NUM)
    return math.exp(math.fsum(map(math.log, x)) / len(x))


_simple("GEOMEAN", _geomean, error=NUM)


@function("AVERAGEA", "r*", 1)
def _averagea(ctx: Context, *args: Argument) -> float:
    return _mean(need(numbers_a(args)))


@function("MAXA", "r*", 1)
def _maxa(ctx: Context, *args: Argument) -> float:
    return max(numbers_a(args), default=0.0)


@function("MINA", "r*", 1)
def _mina(ctx: Context, *args: Argument) -> float:
    return min(numbers_a(args), default=0.0)


@function("COUNT", "e*", 1)
def _count(ctx: Context, *args: Argument) -> float:
    total = 0
    for arg in args:
        if isinstance(arg, (Area, list)):
            total += sum(isinstance(v, (int, float)) and not isinstance(v, bool) for v in flat(arg))
        elif isinstance(arg, str):
            total += text_to_number(arg) is not None
        else:
            total += not isinstance(arg, ErrorValue)
    return float(total)


@function("COUNTA", "e*", 1)
def _counta(ctx: Context, *args: Argument) -> float:
    return float(sum(sum(v is not None for v in flat(a)) if isinstance(a, (Area, list)) else 1 for a in args))


@function("COUNTBLANK", "r")
def _countblank(ctx: Context, a: Argument) -> float:
    if not isinstance(a, Area):
        fail(VALUE)
    filled = sum(v is not None and v != "" for v in a.values())
    return float(a.height * a.width * len(a.sheets) - filled)


def _ordered(a: Argument) -> list[float]:
    return sorted(need(numbers((a,)), NUM))


@function("LARGE", "as")
def _large(ctx: Context, a: Argument, k: Value) -> float:
    values, n = _ordered(a), math.ceil(to_number(k))
    if not 1 <= n <= len(values):
        fail(NUM)
    return values[-n]


@function("SMALL", "as")
def _small(ctx: Context, a: Argument, k: Value) -> float:
    values, n = _ordered(a), int(to_number(k))
    if not 1 <= n <= len(values):
        fail(NUM)
    return values[n - 1]


def _between(values: list[float], p: float) -> float:
    if not 0 <= p <= 1:
        fail(NUM)
    place = p * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


@function("PERCENTILE PERCENTILE.INC", "as")
def _percentile(ctx: Context, a: Argument, p: Value) -> float:
    return _between(_ordered(a), to_number(p))


@function("QUARTILE QUARTILE.INC", "as")
def _quartile(ctx: Context, a: Argument, q: Value) -> float:
    return _between(_ordered(a), to_int(q) / 4)


@function("RANK RANK.EQ", "srs", 2)
def _rank(ctx: Context, x: Value, a: Argument, order: Value = 0.0) -> float:
    value, values = to_number(x), numbers((a,))
    if value not in values:
        fail(NA)
    ascending = order is not ABSENT and to_number(order) != 0
    return 1.0 + sum(v < value if ascending else v > value for v in values)


def _paired(a: Argument, b: Argument) -> tuple[list[float], list[float]]:
    x, y = list(flat(a)), list(flat(b))
    if len(x) != len(y):
        fail(NA)
    for value in (*x, *y):
        if isinstance(value, ErrorValue):
            raise Fault(value)
    both = [
        (float(p), float(q))  # type: ignore[arg-type]
        for p, q in zip(x, y, strict=True)
        if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (p, q))
    ]
    return [p for p, _ in both], [q for _, q in both]


def _line(a: Argument, b: Argument) -> tuple[float, float, float]:
    """Slope, intercept and correlation of y = a on x = b."""
    y, x = _paired(a, b)
    if len(x) < 2:
        fail(DIV0)
    mx, my = _mean(x), _mean(y)
    sxx = math.fsum((v - mx) ** 2 for v in x)
    syy = math.fsum((v - my) ** 2 for v in y)
    sxy = math.fsum((p - mx) * (q - my) for p, q in zip(x, y, strict=True))
    if sxx == 0:
        fail(DIV0)
    return sxy / sxx, my - sxy / sxx * mx, sxy / math.sqrt(sxx * syy) if syy else math.nan


@function("SLOPE", "aa")
def _slope(ctx: Context, y: Argument, x: Argument) -> float:
    return _line(y, x)[0]


@function("INTERCEPT", "aa")
def _intercept(ctx: Context, y: Argument, x: Argument) -> float:
    return _line(y, x)[1]


@function("CORREL PEARSON", "aa")
def _correl(ctx: Context, y: Argument, x: Argument) -> float:
    found = _line(y, x)[2]
    if math.isnan(found):
        fail(DIV0)
    return found


@function("RSQ", "aa")
def _rsq(ctx: Context, y: Argument, x: Argument) -> float:
    return _correl(ctx, y, x) ** 2


@function("FORECAST FORECAST.LINEAR", "saa")
def _forecast(ctx: Context, at: Value, y: Argument, x: Argument) -> float:
    slope, intercept, _ = _line(y, x)
    return intercept + slope * to_number(at)


@function("FREQUENCY", "aa")
def _frequency(ctx: Context, data: Argument, bins: Argument) -> Grid:
    values, edges = numbers((data,)), sorted(numbers((bins,)))
    counts = [0.0] * (len(edges) + 1)
    for value in values:
        counts[sum(value > e for e in edges)] += 1
    return [[c] for c in counts]


@function("STANDARDIZE", "sss")
def _standardize(ctx: Context, x: Value, mean: Value, sd: Value) -> float:
    if to_number(sd) <= 0:
        fail(NUM)
    return (to_number(x) - to_number(mean)) / to_number(sd)
