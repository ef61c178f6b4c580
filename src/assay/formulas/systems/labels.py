"""The text cells of a sheet, found by the words in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from assay.formulas.systems.words import words
from assay.formulas.workbook.model import Sheet
from assay.formulas.workbook.store import TEXT

MOST = 3000
"""Text cells that are looked at in a sheet."""


class Labels:
    """Text cells (no formulas) in reading order, and which of them can be like a text at all.

    Two texts are alike (`similar`) only where a word of one begins like a word of the other, so the cells are kept by
    the beginnings of their words.
    """

    def __init__(self, cells: Iterable[tuple[int, int, str]]) -> None:
        self.cells = list(cells)
        self._by_beginning: dict[str, list[int]] = {}
        for i, (_, _, text) in enumerate(self.cells):
            for beginning in {word[:3] for word in words(text)}:
                self._by_beginning.setdefault(beginning, []).append(i)

    def like(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Cells that share the beginning of a word with a text, in reading order."""
        found = {i for beginning in {w[:3] for w in words(text)} for i in self._by_beginning.get(beginning, ())}
        return (self.cells[i] for i in sorted(found))


def labels_of(sheet: Sheet) -> Labels:
    """Labels of a sheet; those that the sheet was emptied of are still among them, so ask for their value.

    Kept with the stored cells, which the sheets made from one file share.
    """
    if sheet.edits:
        a = sheet.arrays()
        spots = np.flatnonzero((a.kind == TEXT) & (a.cls < 0))[:MOST]
        places = zip(a.row[spots].tolist(), a.col[spots].tolist(), strict=True)
        return Labels((row, col, str(sheet.value(row, col))) for row, col in places)
    store = sheet.store
    if "labels" not in store.memo:
        spots = np.flatnonzero((store.kind == TEXT) & (store.formula_classes() < 0))[:MOST]
        texts = [str(store.value[i]) for i in spots.tolist()]
        store.memo["labels"] = Labels(zip(store.row[spots].tolist(), store.col[spots].tolist(), texts, strict=True))
    found: Labels = store.memo["labels"]
    return found
