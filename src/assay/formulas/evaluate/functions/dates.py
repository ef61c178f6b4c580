"""Dates and times as serial numbers."""

from __future__ import annotations

import math

from assay.formulas.errors import UnsupportedFunction
from assay.formulas.evaluate.core import (
    ABSENT,
    NUM,
    VALUE,
    Argument,
    Context,
    Value,
    fail,
    function,
    numbers,
    text_to_number,
    to_bool,
    to_int,
    to_number,
    to_text,
)
from assay.formulas.workbook.values import date_from_serial, serial_from_date, time_from_serial


def _parts(ctx: Context, x: Value) -> tuple[int, int, int]:
    try:
        return date_from_serial(to_number(x), ctx.run.date1904)
    except ValueError:
        fail(NUM)


def _serial(ctx: Context, year: int, month: int, day: int) -> float:
    try:
        return float(serial_from_date(year, month, day, ctx.run.date1904))
    except (ValueError, OverflowError):
        fail(NUM)


@function("DATE", "sss")
def _date(ctx: Context, year: Value, month: Value, day: Value) -> float:
    y, m, d = to_int(year), math.floor(to_number(month)), math.floor(to_number(day))
    if y < 0 or y > 9999:
        fail(NUM)
    base = 1904 if ctx.run.date1904 else 1900
    if y < base:
        y += 1900
    return _serial(ctx, y, m, d)


@function("YEAR")
def _year(ctx: Context, x: Value) -> float:
    return float(_parts(ctx, x)[0])


@function("MONTH")
def _month(ctx: Context, x: Value) -> float:
    return float(_parts(ctx, x)[1])


@function("DAY")
def _day(ctx: Context, x: Value) -> float:
    return float(_parts(ctx, x)[2])


def _clock(x: Value) -> tuple[int, int, int]:
    value = to_number(x)
    if value < 0:
        fail(NUM)
    return time_from_serial(value)


@function("HOUR")
def _hour(ctx: Context, x: Value) -> float:
    return float(_clock(x)[0])


@function("MINUTE")
def _minute(ctx: Context, x: Value) -> float:
    return float(_clock(x)[1])


@function("SECOND")
def _second(ctx: Context, x: Value) -> float:
    return float(_clock(x)[2])


@function("TIME", "sss")
def _time(ctx: Context, h: Value, m: Value, s: Value) -> float:
    total = to_int(h) * 3600 + to_int(m) * 60 + to_int(s)
    if total < 0:
        fail(NUM)
    return total % 86400 / 86400


@function("DATEVALUE")
def _datevalue(ctx: Context, x: Value) -> float:
    number = text_to_number(to_text(x), ctx.run.date1904) if not isinstance(x, (int, float)) else None
    return float(math.floor(number)) if number is not None else fail(VALUE)


@function("TIMEVALUE")
def _timevalue(ctx: Context, x: Value) -> float:
    number = text_to_number(to_text(x))
    return number % 1 if number is not None else fail(VALUE)


@function("TODAY", "")
def _today(ctx: Context) -> float:
    return float(math.floor(_now(ctx)))


@function("NOW", "")
def _now(ctx: Context) -> float:
    if ctx.run.now is None:
        raise UnsupportedFunction("NOW", "its value depends on the clock; give the engine a time (now=serial)")
    return float(ctx.run.now)


def _moved(ctx: Context, x: Value, months: Value) -> tuple[int, int, int]:
    year, month, day = _parts(ctx, math.floor(to_number(x)))
    total = year * 12 + month - 1 + to_int(months)
    return total // 12, total % 12 + 1, day


def _length(year: int, month: int) -> int:
    if month == 2:
        return 29 if (year % 4 == 0 and year % 100 != 0) or year % 400 == 0 or year == 1900 else 28
    return 30 if month in (4, 6, 9, 11) else 31


@function("EDATE", "ss")
def _edate(ctx: Context, x: Value, months: Value) -> float:
    year, month, day = _moved(ctx, x, months)
    return _serial(ctx, year, month, min(day, _length(year, month)))


@function("EOMONTH", "ss")
def _eomonth(ctx: Context, x: Value, months: Value) -> float:
    year, month, _ = _moved(ctx, x, months)
    return _serial(ctx, year, month, _length(year, month))


@function("WEEKDAY", "ss", 1)
def _weekday(ctx: Context, x: Value, kind: Value = 1.0) -> float:
    serial = math.floor(to_number(x)) + (1462 if ctx.run.date1904 else 0)
    if serial < 0:
        fail(NUM)
    which = to_int(kind)
    if which == 1:
        return float((serial - 1) % 7 + 1)
    if which == 3:
        return float((serial - 2) % 7)
    starts = {2: 2, **{10 + i: i + 1 for i in range(1, 7)}, 17: 1}
    if which not in starts:
        fail(NUM)
    return float((serial - starts[which]) % 7 + 1)


@function("WEEKNUM", "ss", 1)
def _weeknum(ctx: Context, x: Value, kind: Value = 1.0) -> float:
    serial = math.floor(to_number(x))
    year = _parts(ctx, serial)[0]
    first = _serial(ctx, year, 1, 1)
    start = _weekday(ctx, first, 1.0 if to_int(kind) == 1 else 2.0)
    return float((serial - first + start - 1) // 7 + 1)


@function("ISOWEEKNUM")
def _isoweeknum(ctx: Context, x: Value) -> float:
    import datetime as dt

    year, month, day = _parts(ctx, x)
    return float(dt.date(year, month, max(day, 1)).isocalendar()[1])


@function("DAYS", "ss")
def _days(ctx: Context, end: Value, start: Value) -> float:
    return float(math.floor(to_number(end)) - math.floor(to_number(start)))


@function("DAYS360", "sss", 2)
def _days360(ctx: Context, start: Value, end: Value, european: Value = False) -> float:
    y1, m1, d1 = _parts(ctx, start)
    y2, m2, d2 = _parts(ctx, end)
    if to_bool(european):
        d1, d2 = min(d1, 30), min(d2, 30)
    else:
        if m1 == 2 and d1 == _length(y1, 2):
            d1 = 30
        if d2 == 31:
            d2, m2, y2 = (30, m2, y2) if d1 >= 30 else (1, m2 % 12 + 1, y2 + m2 // 12)
        d1 = min(d1, 30)
    return float((y2 - y1) * 360 + (m2 - m1) * 30 + d2 - d1)


@function("DATEDIF", "sss")
def _datedif(ctx: Context, start: Value, end: Value, unit: Value) -> float:
    a, b = math.floor(to_number(start)), math.floor(to_number(end))
    if a > b:
        fail(NUM)
    y1, m1, d1 = _parts(ctx, a)
    y2, m2, d2 = _parts(ctx, b)
    months = (y2 - y1) * 12 + m2 - m1 - (d2 < d1)
    match to_text(unit).upper():
        case "D":
            return float(b - a)
        case "M":
            return float(months)
        case "Y":
            return float(months // 12)
        case "YM":
            return float(months % 12)
        case _:
            raise UnsupportedFunction("DATEDIF", f"unit {to_text(unit)!r}")


@function("NETWORKDAYS", "ssr", 2)
def _networkdays(ctx: Context, start: Value, end: Value, holidays: Argument = None) -> float:
    a, b = math.floor(to_number(start)), math.floor(to_number(end))
    sign = 1 if a <= b else -1
    a, b = min(a, b), max(a, b)
    ctx.run.spend(b - a)
    off = {math.floor(x) for x in numbers((holidays,))} if holidays not in (None, ABSENT) else set()
    return float(sign * sum(_weekday(ctx, float(d), 2.0) < 6 and d not in off for d in range(a, b + 1)))


@function("WORKDAY", "ssr", 2)
def _workday(ctx: Context, start: Value, days: Value, holidays: Argument = None) -> float:
    day, left = math.floor(to_number(start)), to_int(days)
    off = {math.floor(x) for x in numbers((holidays,))} if holidays not in (None, ABSENT) else set()
    step = 1 if left > 0 else -1
    ctx.run.spend(abs(left) * 2)
    while left:
        day += step
        if _weekday(ctx, float(day), 2.0) < 6 and day not in off:
            left -= step
    return float(day)


@function("YEARFRAC", "sss", 2)
def _yearfrac(ctx: Context, start: Value, end: Value, basis: Value = 0.0) -> float:
    a, b = sorted((math.floor(to_number(start)), math.floor(to_number(end))))
    which = to_int(basis)
    if which == 0:
        return abs(_days360(ctx, float(a), float(b))) / 360
    if which == 4:
        return abs(_days360(ctx, float(a), float(b), True)) / 360
    if which == 2:
        return (b - a) / 360
    if which == 3:
        return (b - a) / 365
    raise UnsupportedFunction("YEARFRAC", "basis 1")
