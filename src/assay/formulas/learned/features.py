"""From a task to what the encoder reads: items of the dense format, or of plain rows, under a budget of tokens."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from assay.formulas.context.base import cell_text
from assay.formulas.context.dense import dense_rects, rect_line
from assay.formulas.context.strategies import _once, window
from assay.formulas.errors import FormulaError
from assay.formulas.grammar import column_name, parse, quote_sheet
from assay.formulas.learned.symbols import Choices, Item, from_formula
from assay.formulas.regions import KEY_BOOL, KEY_ERROR, KEY_FORMULA, KEY_HEADER, KEY_NUMBER, KEY_TEXT
from assay.formulas.tasks import Task
from assay.formulas.tokens import byte_classes

MAX_ITEMS = 96
MAX_WORDS = 8
HASHES = 4096
WIDE = 14
KINDS = 12
TEXT_KIND, HEADER_KIND = 1, 2
NEAR = 24
BUCKETS = 2 * NEAR + 13
_WORD = re.compile(r"[^\W\d_]+|R?\[?-?\d+\]?C?\[?-?\d*\]?|[%$#&<>=*/^+-]")


def hashed(text: str) -> tuple[int, ...]:
    """Words of a piece as numbers from 1, at most `MAX_WORDS`."""
    found = []
    for word in _WORD.findall(text)[:MAX_WORDS]:
        found.append(zlib.crc32(word.lower().encode()) % (HASHES - 1) + 1)
    return tuple(found)


def bucket(step: int) -> int:
    """A step in rows or columns as one of `BUCKETS` classes: exact near by, by powers of two farther away."""
    if -NEAR <= step <= NEAR:
        return step + NEAR
    far = min(int(np.log2(abs(step) / NEAR)), 5)
    return 2 * NEAR + 1 + (far if step > 0 else 6 + far)


def _kind(key: int) -> int:
    if key >= KEY_FORMULA:
        return 8
    if key >= KEY_NUMBER:
        return 4 + key - KEY_NUMBER
    return {KEY_TEXT: TEXT_KIND, KEY_HEADER: HEADER_KIND, KEY_BOOL: 3, KEY_ERROR: 9}[key]


def items(task: Task, fmt: str = "dense", budget: int = 512) -> list[Item]:
    """Items of a task within a budget.

    Parameters
    ----------
    fmt : {"dense", "plain"}
        Lines of the dense format, each cut into its columns; or cells around the target as plain rows show them.
    """
    used = byte_classes(f"target {task.cell} ?\n")
    found: list[Item] = []
    if fmt == "dense":
        for sheet, rects, i in dense_rects(task):
            prefix = "" if sheet.name == task.cell.sheet else quote_sheet(sheet.name) + "!"
            line, _ = rect_line(sheet, rects, i, task.cell, prefix)
            used += byte_classes(line)
            if used > budget or len(found) >= MAX_ITEMS:
                break
            row1, col1, row2, col2 = (int(x) for x in rects.box[i])
            key = int(rects.key[i])
            cols = list(range(col1, col2 + 1))
            if len(cols) > WIDE:
                cols = [*cols[: WIDE - 2], *cols[-2:]]
            body = line.partition(" ")[2].partition(" ")[2]
            for col in cols:
                if key == KEY_HEADER:
                    words = hashed(" ".join(str(sheet.value(r, col) or "") for r in range(row1, row2 + 1)))
                elif key == KEY_TEXT:
                    own = sheet.value(task.cell.row, col) if row1 <= task.cell.row <= row2 else sheet.value(row1, col)
                    words = hashed(str(own or ""))
                elif key >= KEY_FORMULA:
                    words = hashed(body)
                else:
                    words = ()
                found.append(Item(sheet.name, col, row1, row2, _kind(key), words))
    elif fmt == "plain":
        sheet = task.view.sheet(task.cell.sheet)
        for place in _once(window(task, 40)):
            cell = sheet.get(place.row, place.col)
            if cell is None or (cell.value is None and not cell.formula):
                continue
            used += byte_classes(f"{column_name(place.col)}:{cell_text(cell)}|") + 1
            if used > budget or len(found) >= MAX_ITEMS:
                break
            kind = 8 if cell.formula else 1 if isinstance(cell.value, str) else 4 + "_%$d".find(cell.fmt or "_")
            words = hashed(cell_text(cell)) if kind in (1, 8) else ()
            found.append(Item(sheet.name, place.col, place.row, place.row, kind, words))
    else:
        raise FormulaError(f"the format is dense or plain, not {fmt!r}")
    return found[:MAX_ITEMS]


@dataclass
class Encoded:
    """A task in numbers.

    Attributes
    ----------
    features : int array[items, 7]
        Kind, steps to the first and last row and to the column (classes), height (class), own sheet, own row.
    words : int array[items, MAX_WORDS]
    choices : Choices
    symbols : list of int or None
        The truth.
    """

    features: Int[np.ndarray, "items 7"]
    words: Int[np.ndarray, "items words"]
    choices: Choices
    symbols: list[int] | None


def encode(task: Task, fmt: str = "dense", budget: int = 512) -> Encoded:
    """Numbers for the model; the truth becomes symbols where the context holds what it refers to."""
    book = task.view

    def filled(sheet: str, row: int, col: int) -> bool:
        cell = book.sheets[sheet].get(row, col)
        return cell is not None and (cell.value is not None or cell.formula is not None)

    found = items(task, fmt, budget)
    choices = Choices(found, task.cell, filled)
    features = np.zeros((len(found), 7), np.int64)
    words = np.zeros((len(found), MAX_WORDS), np.int64)
    row, col = task.cell.row, task.cell.col
    for i, item in enumerate(found):
        features[i] = (
            item.kind, bucket(item.row1 - row), bucket(item.row2 - row), bucket(item.col - col),
            min(int(np.log2(item.row2 - item.row1 + 1)), 10), item.sheet == task.cell.sheet,
            item.row1 <= row <= item.row2,
        )  # fmt: skip
        words[i, : len(item.words)] = item.words
    symbols = None
    if task.truth is not None:
        try:
            symbols = from_formula(parse(task.truth, task.cell).tree, choices)
        except FormulaError:
            symbols = None
    return Encoded(features, words, choices, symbols)
