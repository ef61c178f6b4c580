"""Loans and investments."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from assay.formulas.evaluate.core import (
    ABSENT,
    NUM,
    VALUE,
    Argument,
    Context,
    Value,
    fail,
    finite,
    function,
    numbers,
    to_int,
    to_number,
)


def _or_zero(x: Value) -> float:
    return 0.0 if x is ABSENT else to_number(x)


def _annuity(rate: float, n: float, due: float) -> tuple[float, float]:
    """Growth over all periods, and the worth of one payment a period."""
    try:
        growth = (1 + rate) ** n
    except OverflowError:
        fail(NUM)
    if isinstance(growth, complex):
        fail(NUM)
    return growth, n if rate == 0 else (1 + rate * due) * (growth - 1) / rate


def _pmt_value(rate: float, n: float, pv: float, fv: float, due: float) -> float:
    if n == 0:
        fail(NUM)
    growth, unit = _annuity(rate, n, due)
    return finite(-(pv * growth + fv) / unit)


@function("PMT", "sssss", 3)
def _pmt(ctx: Context, rate: Value, n: Value, pv: Value, fv: Value = 0.0, due: Value = 0.0) -> float:
    return _pmt_value(to_number(rate), to_number(n), to_number(pv), _or_zero(fv), float(_or_zero(due) != 0))


@function("FV", "sssss", 3)
def _fv(ctx: Context, rate: Value, n: Value, pmt: Value, pv: Value = 0.0, due: Value = 0.0) -> float:
    growth, unit = _annuity(to_number(rate), to_number(n), float(_or_zero(due) != 0))
    return finite(-(_or_zero(pv) * growth + to_number(pmt) * unit))


@function("PV", "sssss", 3)
def _pv(ctx: Context, rate: Value, n: Value, pmt: Value, fv: Value = 0.0, due: Value = 0.0) -> float:
    growth, unit = _annuity(to_number(rate), to_number(n), float(_or_zero(due) != 0))
    return finite(-(_or_zero(fv) + to_number(pmt) * unit) / growth)


@function("NPER", "sssss", 3)
def _nper(ctx: Context, rate: Value, pmt: Value, pv: Value, fv: Value = 0.0, due: Value = 0.0) -> float:
    r, p, v, f = to_number(rate), to_number(pmt), to_number(pv), _or_zero(fv)
    d = float(_or_zero(due) != 0)
    if r == 0:
        return finite(-(v + f) / p) if p else fail(NUM)
    each = p * (1 + r * d) / r
    if each + v == 0 or (each - f) / (each + v) <= 0 or r <= -1:
        fail(NUM)
    return math.log((each - f) / (each + v)) / math.log(1 + r)


@function("IPMT", "ssssss", 4)
def _ipmt(ctx: Context, rate: Value, period: Value, n: Value, pv: Value, fv: Value = 0.0, due: Value = 0.0) -> float:
    r, k, d = to_number(rate), to_number(period), float(_or_zero(due) != 0)
    if not 1 <= k <= to_number(n):
        fail(NUM)
    pmt = _pmt_value(r, to_number(n), to_number(pv), _or_zero(fv), d)
    if d and k == 1:
        return 0.0
    growth, unit = _annuity(r, k - 1, d)
    interest = -(to_number(pv) * growth + pmt * unit) * r
    return interest / (1 + r) if d else interest


@function("PPMT", "ssssss", 4)
def _ppmt(ctx: Context, rate: Value, period: Value, n: Value, pv: Value, fv: Value = 0.0, due: Value = 0.0) -> float:
    pmt = _pmt_value(to_number(rate), to_number(n), to_number(pv), _or_zero(fv), float(_or_zero(due) != 0))
    return pmt - _ipmt(ctx, rate, period, n, pv, fv, due)


@function("NPV", "sr*", 2)
def _npv(ctx: Context, rate: Value, *flows: Argument) -> float:
    r = to_number(rate)
    if r == -1:
        fail(VALUE)
    return finite(math.fsum(x / (1 + r) ** (i + 1) for i, x in enumerate(numbers(flows))))


def _root(f: Callable[[float], float], guess: float) -> float:
    """Newton's steps from the guess, then halving between points of different sign."""
    x = guess
    for _ in range(60):
        try:
            y = f(x)
            slope = (f(x + 1e-7) - y) / 1e-7
            if slope == 0:
                break
            new = x - y / slope
        except (OverflowError, ZeroDivisionError):
            break
        if isinstance(new, complex) or new <= -1 or not math.isfinite(new):
            break
        if abs(new - x) < 1e-12:
            return new
        x = new
    points = [-0.99, -0.9, -0.5, -0.2, -0.05, 0.0001, 0.05, 0.2, 0.5, 1.0, 3.0, 10.0, 100.0]
    for low, high in itertools.pairwise(points):
        try:
            a, b = f(low), f(high)
        except (OverflowError, ZeroDivisionError):
            continue
        if a * b > 0:
            continue
        for _ in range(200):
            middle = (low + high) / 2
            if a * f(middle) <= 0:
                high = middle
            else:
                low, a = middle, f(middle)
        return (low + high) / 2
    fail(NUM)


@function("IRR", "rs", 1)
def _irr(ctx: Context, flows: Argument, guess: Value = 0.1) -> float:
    values = numbers((flows,))
    if not values or min(values) >= 0 or max(values) <= 0:
        fail(NUM)
    return _root(lambda r: math.fsum(x / (1 + r) ** i for i, x in enumerate(values)), to_number(guess))


@function("RATE", "ssssss", 3)
def _rate(
    ctx: Context, n: Value, pmt: Value, pv: Value, fv: Value = 0.0, due: Value = 0.0, guess: Value = 0.1
) -> float:
    periods, p, v, f = to_number(n), to_number(pmt), to_number(pv), _or_zero(fv)
    d = float(_or_zero(due) != 0)

    def balance(r: float) -> float:
        growth = (1 + r) ** periods
        unit = periods if abs(r) < 1e-12 else (1 + r * d) * (growth - 1) / r
        return float(v * growth + p * unit + f)

    return _root(balance, 0.1 if guess is ABSENT else to_number(guess))


@function("SLN", "sss")
def _sln(ctx: Context, cost: Value, salvage: Value, life: Value) -> float:
    return (to_number(cost) - to_number(salvage)) / to_number(life) if to_number(life) else fail(NUM)


@function("SYD", "ssss")
def _syd(ctx: Context, cost: Value, salvage: Value, life: Value, period: Value) -> float:
    n, k = to_number(life), to_number(period)
    if n <= 0 or not 1 <= k <= n:
        fail(NUM)
    return (to_number(cost) - to_number(salvage)) * (n - k + 1) * 2 / (n * (n + 1))


@function("EFFECT", "ss")
def _effect(ctx: Context, rate: Value, n: Value) -> float:
    k = to_int(n)
    return (1 + to_number(rate) / k) ** k - 1 if k >= 1 else fail(NUM)
