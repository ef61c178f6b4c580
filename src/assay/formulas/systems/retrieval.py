"""Retrieval: the formula of a similar cell in other workbooks, its references moved to the columns of the same name.

BM25 over the words of headers and labels finds candidates (the idea of Auto-Formula: similar sheets share formulas),
and so does the layout around the cell, for sheets whose words the corpus does not know; each reference of a candidate
was stored with its role, and the role is looked up in the sheet at hand.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.formulas.errors import FormulaError
from assay.formulas.grammar.nodes import Call
from assay.formulas.regions import sheet_map
from assay.formulas.systems.adapting import Place
from assay.formulas.systems.base import Suggestion, timed
from assay.formulas.systems.roles import Document, around, document_words, documents, shape_of
from assay.formulas.systems.words import LABELS, asked, similar
from assay.formulas.tasks import Task
from assay.formulas.workbook.model import Workbook

CANDIDATES = 40


class Retrieval:
    """Formulas of a corpus, adapted to the sheet at hand.

    Parameters
    ----------
    corpus : iterable of Workbook or path, optional
        Without one, made workbooks of all kinds are used.
    minimum : float
        Suggestions with a lower score are not given.

    Examples
    --------
    >>> from assay.formulas import make_workbook, task_at, Workbook
    >>> system = Retrieval([make_workbook("inventory", seed, "en") for seed in range(5)])
    >>> cells = {"B3": "Product", "C3": "Stock", "D3": "Price", "E3": "Value"}
    >>> cells |= {"B4": "Lamp", "C4": 2, "D4": 9.5, "B5": "Desk", "C5": 1, "D5": 120}
    >>> system.suggest(task_at(Workbook.from_cells({"S": cells}), "S!E4"), 1)[0].formula
    'C4*D4'
    """

    name = "retrieval"

    def __init__(self, corpus: Iterable[Any] | None = None, minimum: float = 0.05) -> None:
        if corpus is None:
            from assay.formulas.generator import make_workbooks

            corpus = make_workbooks(120, seed=9_001)
        self.minimum = minimum
        self.documents: list[Document] = []
        for item in corpus:
            self.documents += documents(item if isinstance(item, Workbook) else Workbook.open(item))
        if not self.documents:
            raise FormulaError("the corpus holds no formula that can be retrieved")
        import bm25s

        self._index = bm25s.BM25()
        self._index.index([list(d.words) for d in self.documents], show_progress=False)
        self._lock = threading.Lock()
        self._shapes: dict[str, int] = {}
        for document in self.documents:
            for word in sorted(document.shape):
                self._shapes.setdefault(word, len(self._shapes))
        has = np.zeros((len(self.documents), len(self._shapes)), np.float32)
        for i, document in enumerate(self.documents):
            has[i, [self._shapes[word] for word in document.shape]] = 1
        self._weight = np.log1p(len(has) / has.sum(0)).astype(np.float32)
        self._has = has * self._weight

    def _alike(self, shape: frozenset[str]) -> Float[np.ndarray, " documents"]:
        """How alike the layout of every document is: shared words over all words, rare ones weighing more."""
        known = [i for word in shape if (i := self._shapes.get(word)) is not None]
        shared = self._has[:, known].sum(1)
        unknown = (len(shape) - len(known)) * float(self._weight.max())
        together = self._has.sum(1) + float(self._weight[known].sum()) + unknown - shared
        return np.asarray(shared / np.maximum(together, 1e-9))

    def suggest(self, task: Task, k: int = 5) -> list[Suggestion]:
        """See `System.suggest`."""
        return timed(self._found, task, k, self.name)

    def _found(self, task: Task) -> list[Suggestion]:
        book, cell = task.view, task.cell
        header, label, heads = around(book, cell)
        known = [w for w in dict.fromkeys(document_words(header, label, heads)) if w in self._index.vocab_dict]
        scores = self._index.get_scores(known) if known else np.zeros(len(self.documents), np.float32)
        alike = self._alike(shape_of(book, cell))
        best = float(scores.max()) or 1.0
        rank = 0.5 * scores / best + alike
        count = min(CANDIDATES, len(rank) - 1)
        top = np.unique(np.concatenate([np.argpartition(-x, count)[:CANDIDATES] for x in (scores, alike, rank)]))
        sheet = book.sheet(cell.sheet)
        place = Place(book, sheet, cell, sheet_map(sheet, book), header, label)
        found: dict[str, Suggestion] = {}
        votes: dict[str, float] = {}
        wanted = {*asked(header), *asked(label)}
        for i in top[np.argsort(-rank[top], kind="stable")]:
            document = self.documents[int(i)]
            adapted = place.adapt(document)
            if adapted is None:
                continue
            formula, fit = adapted
            own = max(similar(header, document.header), 0.9 * similar(label, document.label))
            named = f"whose column is called {document.header or document.label!r}"
            said = 0.35 * float(scores[i]) / best + 0.65 * own
            score = 0.97 * (0.55 * said + 0.45 * float(alike[i])) * fit * _asked_for(document, wanted)
            if score < self.minimum:
                continue
            votes[formula] = votes.get(formula, 0.0) + score**4
            old = found.get(formula)
            if old is None or old.score < score:
                found[formula] = Suggestion(
                    formula, min(0.97, score), self.name,
                    reason=f"as in {document.source}, {named if own > 0.4 else 'whose surroundings are alike'}",
                    evidence=place.evidence,
                )  # fmt: skip
        total = sum(votes.values())
        return [replace(s, score=s.score * (0.8 + 0.2 * votes[s.formula] / total)) for s in found.values()]


def _asked_for(document: Document, wanted: set[str]) -> float:
    """Whether the function of a total is the one that header and label ask for, in words of many languages."""
    tree = document.tree
    if not isinstance(tree, Call) or tree.function not in LABELS or len(document.roles) != 1:
        return 1.0
    if not wanted:
        return 1.0 if tree.function == "SUM" else 0.85
    return 1.1 if tree.function in wanted else 0.6
