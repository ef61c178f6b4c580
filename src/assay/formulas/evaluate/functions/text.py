"""Texts."""

from __future__ import annotations

import re
from typing import Any

from assay.formulas.evaluate.core import (
    ABSENT,
    VALUE,
    Argument,
    Context,
    ErrorValue,
    Grid,
    Value,
    fail,
    flat,
    function,
    text_to_number,
    to_bool,
    to_int,
    to_number,
    to_text,
    wildcard,
)

MAX_TEXT = 32_767


def _short(text: str) -> str:
    if len(text) > MAX_TEXT:
        fail(VALUE)
    return text


def _simple(name: str, compute: Any) -> None:
    function(name)(lambda ctx, x: compute(to_text(x)))


_simple("LEN", lambda t: float(len(t)))
_simple("UPPER", str.upper)
_simple("LOWER", str.lower)
_simple("TRIM", lambda t: re.sub(" +", " ", t).strip(" "))
_simple("CLEAN", lambda t: "".join(c for c in t if ord(c) >= 32))
_simple("PROPER", lambda t: re.sub(r"[^\W\d_]+", lambda m: m[0][0].upper() + m[0][1:].lower(), t))


@function("LEFT", "ss", 1)
def _left(ctx: Context, x: Value, n: Value = 1.0) -> str:
    size = to_int(n)
    if size < 0:
        fail(VALUE)
    return to_text(x)[:size]


@function("RIGHT", "ss", 1)
def _right(ctx: Context, x: Value, n: Value = 1.0) -> str:
    size, text = to_int(n), to_text(x)
    if size < 0:
        fail(VALUE)
    return text[max(0, len(text) - size) :]


@function("MID", "sss")
def _mid(ctx: Context, x: Value, start: Value, n: Value) -> str:
    first, size = to_int(start), to_int(n)
    if first < 1 or size < 0:
        fail(VALUE)
    return to_text(x)[first - 1 : first - 1 + size]


@function("CONCATENATE", "s*", 1)
def _concatenate(ctx: Context, *args: Value) -> str:
    return _short("".join(map(to_text, args)))


@function("CONCAT", "r*", 1)
def _concat(ctx: Context, *args: Argument) -> str:
    return _short("".join(to_text(v) for a in args for v in flat(a)))


@function("TEXTJOIN", "ssr*", 3)
def _textjoin(ctx: Context, by: Value, skip: Value, *args: Argument) -> str:
    skipping = to_bool(skip)
    parts = [to_text(v) for a in args for v in flat(a)]
    return _short(to_text(by).join(p for p in parts if p or not skipping))


@function("EXACT", "ss")
def _exact(ctx: Context, a: Value, b: Value) -> bool:
    return to_text(a) == to_text(b)


@function("REPT", "ss")
def _rept(ctx: Context, x: Value, n: Value) -> str:
    times, text = to_int(n), to_text(x)
    if times < 0 or times * len(text) > MAX_TEXT:
        fail(VALUE)
    return text * times


@function("SUBSTITUTE", "ssss", 3)
def _substitute(ctx: Context, x: Value, old: Value, new: Value, which: Value = None) -> str:
    text, a, b = to_text(x), to_text(old), to_text(new)
    if not a:
        return text
    if which is None:
        return _short(text.replace(a, b))
    wanted = to_int(which)
    if wanted < 1:
        fail(VALUE)
    place = -1
    for _ in range(wanted):
        place = text.find(a, place + 1)
        if place < 0:
            return text
    return text[:place] + b + text[place + len(a) :]


@function("REPLACE", "ssss")
def _replace(ctx: Context, x: Value, start: Value, n: Value, new: Value) -> str:
    text, first, size = to_text(x), to_int(start), to_int(n)
    if first < 1 or size < 0:
        fail(VALUE)
    return text[: first - 1] + to_text(new) + text[first - 1 + size :]


@function("FIND", "sss", 2)
def _find(ctx: Context, what: Value, x: Value, start: Value = 1.0) -> float:
    needle, text, first = to_text(what), to_text(x), to_int(start)
    if first < 1 or first > len(text) + 1:
        fail(VALUE)
    place = text.find(needle, first - 1)
    return float(place + 1) if place >= 0 else fail(VALUE)


@function("SEARCH", "sss", 2)
def _search(ctx: Context, what: Value, x: Value, start: Value = 1.0) -> float:
    needle, text, first = to_text(what), to_text(x), to_int(start)
    if first < 1 or first > len(text) + 1:
        fail(VALUE)
    pattern = wildcard(needle)
    if pattern is None:
        place = text.lower().find(needle.lower(), first - 1)
    else:
        loose = re.compile(pattern.pattern.removesuffix(r"\Z").replace(r"[\s\S]*", r"[\s\S]*?"), re.IGNORECASE)
        found = loose.search(text, first - 1)
        place = found.start() if found else -1
    return float(place + 1) if place >= 0 else fail(VALUE)


@function("VALUE")
def _value(ctx: Context, x: Value) -> float:
    if isinstance(x, bool):
        fail(VALUE)
    return to_number(x)


@function("NUMBERVALUE", "sss", 1)
def _numbervalue(ctx: Context, x: Value, point: Value = ".", group: Value = ",") -> float:
    text = to_text(x).replace(to_text(group), "").replace(to_text(point), ".")
    number = text_to_number(text.replace(" ", "")) if text.strip() else 0.0
    return number if number is not None else fail(VALUE)


@function("CHAR UNICHAR")
def _char(ctx: Context, x: Value) -> str:
    code = to_int(x)
    if not 1 <= code <= 1_114_111:
        fail(VALUE)
    return bytes([code]).decode("cp1252", "replace") if code < 256 else chr(code)


@function("CODE")
def _code(ctx: Context, x: Value) -> float:
    text = to_text(x)
    if not text:
        fail(VALUE)
    try:
        return float(text[0].encode("cp1252")[0])
    except UnicodeEncodeError:
        return 63.0


@function("UNICODE")
def _unicode(ctx: Context, x: Value) -> float:
    text = to_text(x)
    return float(ord(text[0])) if text else fail(VALUE)


@function("FIXED", "sss", 1)
def _fixed(ctx: Context, x: Value, digits: Value = 2.0, plain: Value = False) -> str:
    from assay.formulas.evaluate.functions.maths import ROUND_HALF_UP, _rounded

    places = to_int(digits)
    value = _rounded(to_number(x), places, ROUND_HALF_UP)
    return f"{value:.{max(places, 0)}f}" if to_bool(plain) else f"{value:,.{max(places, 0)}f}"


@function("DOLLAR", "ss", 1)
def _dollar(ctx: Context, x: Value, digits: Value = 2.0) -> str:
    from assay.formulas.evaluate.functions.maths import ROUND_HALF_UP, _rounded

    places = to_int(digits)
    value = _rounded(to_number(x), places, ROUND_HALF_UP)
    shown = f"${abs(value):,.{max(places, 0)}f}"
    return f"({shown})" if value < 0 else shown


@function("TEXTBEFORE", "ss")
def _textbefore(ctx: Context, x: Value, by: Value) -> str:
    before, mark, _ = to_text(x).partition(to_text(by)) if to_text(by) else ("", "x", "")
    return before if mark else fail(ErrorValue("#N/A"))


@function("TEXTAFTER", "ss")
def _textafter(ctx: Context, x: Value, by: Value) -> str:
    _, mark, after = to_text(x).partition(to_text(by)) if to_text(by) else ("", "x", to_text(x))
    return after if mark else fail(ErrorValue("#N/A"))


@function("TEXTSPLIT", "sss", 2)
def _textsplit(ctx: Context, x: Value, columns: Value, rows: Value = None) -> Grid:
    lines = to_text(x).split(to_text(rows)) if rows not in (None, ABSENT) else [to_text(x)]
    cut: Grid = [list(line.split(to_text(columns))) if columns is not ABSENT else [line] for line in lines]
    width = max(map(len, cut))
    return [row + [ErrorValue("#N/A")] * (width - len(row)) for row in cut]


@function("HYPERLINK", "ss", 1)
def _hyperlink(ctx: Context, link: Value, shown: Argument = ABSENT) -> Value:
    value: Value = to_text(link) if shown is ABSENT else shown
    return value


_ROMAN = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"),
          (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]  # fmt: skip


@function("ROMAN", "s")
def _roman(ctx: Context, x: Value) -> str:
    n, out = to_int(x), ""
    if not 0 <= n <= 3999:
        fail(VALUE)
    for size, letters in _ROMAN:
        while n >= size:
            out, n = out + letters, n - size
    return out


@function("HEX2DEC")
def _hex2dec(ctx: Context, x: Value) -> float:
    return _from_digits(to_text(x), 16, 40)


@function("BIN2DEC")
def _bin2dec(ctx: Context, x: Value) -> float:
    return _from_digits(to_text(x), 2, 10)


@function("OCT2DEC")
def _oct2dec(ctx: Context, x: Value) -> float:
    return _from_digits(to_text(x), 8, 30)


def _from_digits(text: str, base: int, bits: int) -> float:
    if len(text) > 10 or not re.fullmatch(r"[0-9A-Fa-f]*", text):
        fail(ErrorValue("#NUM!"))
    try:
        value = int(text, base) if text else 0
    except ValueError:
        fail(ErrorValue("#NUM!"))
    return float(value - (1 << bits) if value >= 1 << (bits - 1) else value)
