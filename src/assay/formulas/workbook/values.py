"""Values of cells and serial dates.

A value is a float, a str, a bool, None (blank) or an `ErrorValue`. Dates are serial numbers; a number format says so.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorValue:
    """An error of a cell, such as ``#N/A``."""

    kind: str

    def __str__(self) -> str:
        return self.kind


Value = float | str | bool | None | ErrorValue

NULL, DIV0, VALUE, REF = ErrorValue("#NULL!"), ErrorValue("#DIV/0!"), ErrorValue("#VALUE!"), ErrorValue("#REF!")
NAME, NUM, NA, SPILL = ErrorValue("#NAME?"), ErrorValue("#NUM!"), ErrorValue("#N/A"), ErrorValue("#SPILL!")

OFFSET_1904 = 1462
MAX_SERIAL = 2_958_465
_EPOCH = dt.date(1899, 12, 30).toordinal()


def serial_from_date(year: int, month: int, day: int, date1904: bool = False) -> int:
    """Serial number of a day; months and days past their end run on.

    1900 counts as a leap year, as in the file format: day 60 is 29 February 1900, which never was.

    Raises
    ------
    ValueError
        Before the first day or after 31 December 9999.

    Examples
    --------
    >>> [serial_from_date(1900, m, d) for m, d in ((1, 1), (2, 28), (2, 29), (3, 1))]
    [1, 59, 60, 61]
    >>> serial_from_date(1904, 1, 2, date1904=True), serial_from_date(1904, 1, 2)
    (1, 1463)
    """
    years, month0 = divmod(month - 1, 12)
    year += years
    if not 1900 <= year <= 9999:
        raise ValueError(f"the year {year} has no serial number")
    serial = _first_of_month(year, month0 + 1) + day - 1
    if date1904:
        serial -= OFFSET_1904
    if not 0 <= serial <= MAX_SERIAL:
        raise ValueError(f"{year}-{month0 + 1}-{day} has no serial number")
    return serial


def _first_of_month(year: int, month: int) -> int:
    serial = dt.date(year, month, 1).toordinal() - _EPOCH
    return serial - 1 if serial < 61 else serial


def date_from_serial(serial: float, date1904: bool = False) -> tuple[int, int, int]:
    """Year, month and day of a serial number.

    Raises
    ------
    ValueError
        If it is negative or past the year 9999.

    Examples
    --------
    >>> [date_from_serial(n) for n in (0, 59, 60, 61)]
    [(1900, 1, 0), (1900, 2, 28), (1900, 2, 29), (1900, 3, 1)]
    """
    day = math.floor(serial) + (OFFSET_1904 if date1904 else 0)
    if day < 0 or day > MAX_SERIAL:
        raise ValueError(f"{serial} is no serial date")
    if day == 0:
        return 1900, 1, 0
    if day == 60:
        return 1900, 2, 29
    date = dt.date.fromordinal(day + _EPOCH + (1 if day < 60 else 0))
    return date.year, date.month, date.day


def time_from_serial(serial: float) -> tuple[int, int, int]:
    """Hour, minute and second, rounded to the second.

    >>> time_from_serial(0.75)
    (18, 0, 0)
    """
    seconds = round((serial - math.floor(serial)) * 86400) % 86400
    return seconds // 3600, seconds // 60 % 60, seconds % 60


def serial_from_iso(text: str, date1904: bool = False) -> float:
    """Serial number of an ISO date, time or both (cells of type ``d``).

    >>> serial_from_iso("2024-01-01T12:00:00")
    45292.5
    """
    day, _, clock = text.strip().rstrip("Z").partition("T")
    if not clock and ":" in day:
        day, clock = "", day
    serial = 0.0
    if day:
        date = dt.date.fromisoformat(day)
        serial = float(serial_from_date(date.year, date.month, date.day, date1904))
    if clock:
        time = dt.time.fromisoformat(clock)
        serial += (time.hour * 3600 + time.minute * 60 + time.second + time.microsecond / 1e6) / 86400
    return serial


def number_text(value: float) -> str:
    """A number as the General format shows it in a text (15 digits).

    >>> number_text(1.0), number_text(0.1 + 0.2), number_text(1e21), number_text(-2.5)
    ('1', '0.3', '1E+21', '-2.5')
    """
    if value == 0:
        return "0"
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    size = math.floor(math.log10(abs(value)))
    if -10 <= size < 20:
        text = f"{value:.{max(0, 14 - size)}f}" if size < 15 else f"{float(f'{value:.14e}'):.0f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
        if len(text) <= 21:
            return text
    digits, _, power = f"{value:.14E}".partition("E")
    digits = digits.rstrip("0").rstrip(".")
    return f"{digits}E{power[0]}{power[1:].lstrip('0').rjust(2, '0')}"
