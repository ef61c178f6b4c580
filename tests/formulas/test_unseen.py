"""What holds where the words are unknown: vocabularies, layout, and scores that go together."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from assay.formulas import (
    CellRef,
    Engine,
    FormulaError,
    Neighbour,
    TaskFileError,
    Workbook,
    build_tasks,
    make_workbook,
    make_workbooks,
)
from assay.formulas.grammar import same_formula
from assay.formulas.runs import judged
from assay.formulas.systems.adapting import Place
from assay.formulas.systems.aggregate import Aggregate
from assay.formulas.systems.calibrate import fit_results
from assay.formulas.systems.cascade import Cascade
from assay.formulas.systems.joint import Joint, evidence, fit_joint, load_joint, save_joint
from assay.formulas.systems.retrieval import Retrieval
from assay.formulas.systems.roles import documents, shape_of
from assay.formulas.vocabulary import VOCABULARIES


def _words(vocabulary):
    texts = [w for languages in vocabulary.words.values() for words in languages.values() for w in words]
    texts += [m for months in vocabulary.months.values() for m in months]
    texts += [*vocabulary.things, *vocabulary.people, *vocabulary.groups, *vocabulary.sheets.values(), vocabulary.firm]
    return {word for text in texts for word in re.findall(r"[^\W\d_]{3,}", text.lower())}


def test_vocabularies_share_no_word():
    for one, other in itertools.combinations(VOCABULARIES, 2):
        assert not _words(VOCABULARIES[one]) & _words(VOCABULARIES[other]), (one, other)
    for vocabulary in VOCABULARIES.values():
        assert vocabulary.words.keys() == VOCABULARIES["ordinary"].words.keys()
        assert all(len(months) == 12 for months in vocabulary.months.values())
        assert all("en" in by_language for by_language in vocabulary.words.values())


@pytest.mark.parametrize("vocabulary", list(VOCABULARIES))
def test_made_workbooks_take_their_words_from_one_vocabulary(vocabulary):
    chosen = VOCABULARIES[vocabulary]
    book = make_workbook("inventory", 3, chosen.languages[-1], vocabulary)
    assert next(iter(book.sheets)) == chosen.sheets["inventory"]
    with pytest.raises(FormulaError, match="no words in"):
        make_workbook("loan", 1, "xx", vocabulary)


def test_an_unknown_vocabulary_is_named():
    with pytest.raises(FormulaError, match="no vocabulary"):
        make_workbook("loan", vocabulary="klingon")


def test_retrieval_reads_the_layout_where_it_knows_no_word():
    """Without the layout it finds 1 in 5; the corpus and the tasks share the kinds of sheets, but no word."""
    tasks = build_tasks(make_workbooks(18, 21, vocabulary="unseen"), 80, "fresh", seed=21, abstain=0)
    system = Retrieval()
    first = [(t, system.suggest(t, 1)) for t in tasks]
    right = sum(bool(s) and same_formula(s[0].formula, t.truth, t.cell) for t, s in first)
    assert right / len(tasks) > 0.6


def test_layout_does_not_depend_on_words():
    def book(*heads):
        cells = {f"{c}1": h for c, h in zip("ABC", heads, strict=True)} | {f"A{i}": "x" for i in (2, 3)}
        return Workbook.from_cells({"S": cells | {f"B{i}": 2.0 for i in (2, 3)}})

    at = CellRef("S", 2, 3)
    assert shape_of(book("Item", "Qty", "Total"), at) == shape_of(book("u", "v w", "Zzz"), at)
    assert shape_of(book("Item", "Qty", "Total"), at) != shape_of(book("Item", "Qty", "Total"), CellRef("S", 4, 2))


def test_references_are_found_without_their_words():
    """A rate beside another word, a total at the end of a run, and the one table of another sheet."""
    corpus = Workbook.from_cells({
        "S": {"A1": "Zins", "B1": 0.05, "A3": "Posten", "B3": "Wert", "C3": "Ertrag", "D3": "Anteil", "A4": "a",
              "B4": 10.0, "C4": ("=B4*$B$1", 0.5), "D4": ("=C4/$C$6", 0.5), "A5": "b", "B5": 10.0,
              "C5": ("=B5*$B$1", 0.5), "D5": ("=C5/$C$6", 0.5), "A6": "Summe", "C6": ("=SUM(C4:C5)", 1.0)},
    })  # fmt: skip
    book = Workbook.from_cells({
        "T": {"A1": "Rate", "B1": 0.1, "A3": "Thing", "B3": "Size", "C3": "Gain", "D3": "Part", "A4": "x", "B4": 1.0,
              "C4": ("=B4*$B$1", 0.1), "A5": "y", "B5": 2.0, "C5": ("=B5*$B$1", 0.2), "A6": "z", "B6": 3.0,
              "C6": ("=B6*$B$1", 0.3), "A7": "All", "C7": ("=SUM(C4:C6)", 0.6)},
    })  # fmt: skip
    from assay.formulas.regions import sheet_map

    sheet = book.sheets["T"]
    found = {}
    for document in documents(corpus):
        place = Place(book, sheet, CellRef("T", 4, 4), sheet_map(sheet, book), "Part", "x")
        adapted = place.adapt(document)
        if adapted is not None:
            found[document.sketch] = adapted[0]
    assert found["CELL/CELL"] == "C4/$C$7"


# -- scores that go together -----------------------------------------------------------------------------------------


def test_evidence_holds_what_each_system_says():
    formulas, rows = evidence({"a": {"X": 0.9, "Y": 0.4}, "b": {"Y": 0.5}}, ["a", "b"], True)
    assert formulas == ["X", "Y"]
    odds = np.log([0.4 / 0.6, 9, 1, 0.02 / 0.98])
    np.testing.assert_allclose(rows[1], [odds[0], odds[1], 1, 0, odds[2], odds[3], 1, 1, 1, 1])


def test_joint_weights_learn_who_is_right_and_survive_their_file(tmp_path):
    tasks = build_tasks(make_workbooks(12, 22, vocabulary="calibration"), 40, "extend", seed=22)
    systems, engine = [Neighbour(), Aggregate()], Engine()
    results = [judged(t, s.name, s.suggest(t, 3), 0.0, engine, copies=2) for t in tasks for s in systems]
    joint = fit_joint(results, tasks, ["neighbour", "aggregate"], fit_results(results, tasks))
    assert joint.knows(["neighbour", "aggregate"]) and not joint.knows(["neighbour"])
    share = joint({"neighbour": {"X": 0.8}, "aggregate": {"Y": 0.5}}, ["neighbour", "aggregate"], True)
    assert 0 < share["Y"] < share["X"] < 1  # in these tasks a block goes on
    save_joint(joint, tmp_path / "j.json")
    again = load_joint(tmp_path / "j.json")
    given = {"neighbour": {"X": 0.8}}, ["neighbour", "aggregate"], True
    assert again(*given)["X"] == pytest.approx(joint(*given)["X"], abs=1e-3)
    with pytest.raises(FormulaError, match="no result of retrieval"):
        fit_joint(results, tasks, ["neighbour", "retrieval"], {})
    (tmp_path / "j.json").write_text("[]")
    with pytest.raises(TaskFileError, match="joint weights"):
        load_joint(tmp_path / "j.json")


def test_a_cascade_takes_the_joint_share():
    class Says:
        def __init__(self, name, formula, score):
            self.name, self.formula, self.score = name, formula, score

        def suggest(self, task, k=5):
            from assay.formulas import Suggestion

            return [Suggestion(self.formula, self.score, self.name)]

    task = build_tasks(make_workbooks(1, 1), 1, "extend", abstain=0)[0]
    against = Joint({"a b": (-9.0, 0, 0, 0, 9.0, 0, 0, 0, 0.0, 0.0)})
    both = [Says("a", "1+1", 0.8), Says("b", "2+2", 0.7)]
    assert Cascade(both, calibration={}).suggest(task)[0].formula == "1+1"
    assert Cascade(both, calibration={}, joint=against).suggest(task)[0].formula == "2+2"
