"""Systems, context, scores, audit and suggestions for files."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import openpyxl
import pytest

from assay.formulas import (
    Aggregate,
    BudgetTooSmall,
    Cascade,
    CellRef,
    CellRefError,
    Engine,
    FormulaError,
    Neighbour,
    Retrieval,
    Task,
    TaskFileError,
    Workbook,
    WorkbookError,
    WouldLoseContent,
    audit,
    build_tasks,
    coverage,
    intent_cells,
    keystrokes_saved,
    likeness,
    load_annotations,
    load_tasks,
    make_workbook,
    paired_difference,
    parse,
    precision_recall,
    run,
    save_tasks,
    score,
    strategy,
    suggest_file,
    summarise,
    task_at,
    write_xlsx,
)
from assay.formulas.context import STRATEGIES
from assay.formulas.failures import CAPABILITIES, describe, explain_failures
from assay.formulas.metrics import Result
from assay.formulas.regions import KEY_FORMULA, sheet_map
from assay.formulas.runs import judged, read_results
from assay.formulas.systems.base import Suggestion
from assay.formulas.systems.calibrate import fit


def _table(rows=6):
    cells = {"A1": "Item", "B1": "Qty", "C1": "Price", "D1": "Total"}
    for i in range(2, rows + 2):
        cells |= {f"A{i}": f"thing {i}", f"B{i}": float(i), f"C{i}": 2.5, f"D{i}": (f"=B{i}*C{i}", i * 2.5)}
    return cells


# -- neighbour, aggregate, retrieval, cascade ------------------------------------------------------------------------


def test_neighbour_copies_from_each_side():
    for place, given, wanted in (
        ("D5", {"D4": "=B4*C4"}, "B5*C5"),
        ("D5", {"D6": "=B6*C6"}, "B5*C5"),
        ("C9", {"B9": "=SUM(B2:B7)"}, "SUM(C2:C7)"),
        ("B9", {"C9": "=SUM(C2:C7)"}, "SUM(B2:B7)"),
    ):
        cells = {k: v for k, v in _table().items() if k[0] != "D" or k == "D1"} | given
        found = Neighbour().suggest(task_at(Workbook.from_cells({"S": cells}), f"S!{place}"))
        assert found and found[0].formula == wanted, place
        assert found[0].evidence and found[0].reason


def test_neighbour_refuses_blanks_the_target_and_the_edge():
    cells = {"A1": 1.0, "B1": "=A1*2"}
    assert Neighbour().suggest(task_at(Workbook.from_cells({"S": cells}), "S!B2")) == []
    cells = {"A1": 1.0, "A2": "=A1*2"}
    assert Neighbour().suggest(task_at(Workbook.from_cells({"S": cells}), "S!A1")) == []
    cells = {"A1": 1.0, "B1": "=SUM(A1:A3)", "A2": 2.0}
    found = Neighbour().suggest(task_at(Workbook.from_cells({"S": cells}), "S!C1"))
    assert all("C1" not in s.formula for s in found)


def test_neighbour_tells_total_rows_from_filled_columns():
    cells = _table() | {"A8": "Average", "B8": "=AVERAGE(B2:B7)", "C8": "=AVERAGE(C2:C7)"}
    cells |= {"A9": "Max", "B9": "=MAX(B2:B7)"}
    found = Neighbour().suggest(task_at(Workbook.from_cells({"S": cells}), "S!C9"))
    assert found[0].formula == "MAX(C2:C7)"


@pytest.mark.parametrize(
    ("label", "wanted"),
    [
        ("Total", "SUM(B2:B7)"),
        ("Average", "AVERAGE(B2:B7)"),
        ("Durchschnitt", "AVERAGE(B2:B7)"),
        ("Maximum", "MAX(B2:B7)"),
        ("Anzahl", "COUNT(B2:B7)"),
        ("Moyenne", "AVERAGE(B2:B7)"),
        ("Mínimo", "MIN(B2:B7)"),
        ("", "SUM(B2:B7)"),
    ],
)
def test_aggregate_reads_labels_in_several_languages(label, wanted):
    cells = {k: v for k, v in _table().items() if k[0] in "AB"} | ({"A8": label} if label else {})
    assert Aggregate().suggest(task_at(Workbook.from_cells({"S": cells}), "S!B8"))[0].formula == wanted


def test_aggregate_leaves_earlier_totals_out():
    cells = {
        "A1": "Cost",
        "A2": 1.0,
        "A3": 2.0,
        "A4": ("=SUM(A2:A3)", 3.0),
        "A5": 5.0,
        "A6": 6.0,
        "A7": ("=SUM(A5:A6)", 11.0),
    }
    found = [s.formula for s in Aggregate().suggest(task_at(Workbook.from_cells({"S": cells}), "S!A8"))]
    assert "A4+A7" in found or "SUM(A4,A7)" in found
    cells = {"A1": 2023.0, "A2": 10.0, "A3": 20.0, "B4": "x"}
    assert Aggregate().suggest(task_at(Workbook.from_cells({"S": cells}), "S!A4"))[0].formula == "SUM(A2:A3)"
    with pytest.raises(FormulaError, match="klingon"):
        Aggregate(languages=("klingon",))


def test_retrieval_finds_columns_by_their_names():
    corpus = [make_workbook("inventory", seed, "en") for seed in range(8)]
    cells = {"C3": "Product", "D3": "Unit cost", "E3": "On hand", "F3": "Value"}
    cells |= {"C4": "Lamp", "D4": 9.5, "E4": 3.0, "C5": "Desk", "D5": 12.0, "E5": 4.0}
    found = Retrieval(corpus).suggest(task_at(Workbook.from_cells({"S": cells}), "S!F4"), 3)
    assert "E4*D4" in [s.formula for s in found]
    with pytest.raises(FormulaError, match="no formula"):
        Retrieval([Workbook.from_cells({"S": {"A1": 1.0}})])


def test_cascade_without_a_model_on_made_workbooks(fresh, tmp_path):
    report = summarise(run(fresh, [Cascade()], tmp_path))
    assert report.figures["correct_with_truth"] >= 0.5
    assert report.figures["correct"] >= 0.5
    assert report.figures["abstained_rightly"] > 0.3


def test_cascade_stops_when_it_is_sure_and_is_silent_when_it_is_not():
    calls = []

    class Probe:
        def __init__(self, name, score):
            self.name, self.score = name, score

        def suggest(self, task, k=5):
            calls.append(self.name)
            return [Suggestion("A1*2", self.score, self.name)]

    task = task_at(Workbook.from_cells({"S": {"A1": 1.0}}), "S!B1")
    found = Cascade([Probe("a", 0.95), Probe("b", 0.9)], calibration={}).suggest(task)
    assert calls == ["a"] and found[0].source == "a" and found[0].parts[0][0] == "a"
    calls.clear()
    assert Cascade([Probe("a", 0.2), Probe("b", 0.1)], calibration={}, threshold=0.5).suggest(task) == []
    assert calls == ["a", "b"]
    scaled = Cascade([Probe("a", 0.95)], calibration={"a": fit([0.9, 0.95] * 20, [False, False] * 20)}).suggest(task)
    assert scaled == []
    with pytest.raises(FormulaError):
        Cascade([Probe("a", 0.5)], threshold=1.5)


def test_cascade_goes_on_with_a_fill_unless_a_total_is_asked_for():
    names = {f"A{i}": float(i) for i in range(2, 12)} | {"A1": "Width", "B1": "Area"}
    filled = names | {f"B{i}": f"=A{i}^2" for i in range(2, 11)}
    best = Cascade().suggest(task_at(Workbook.from_cells({"S": filled}), "S!B11"))[0]
    assert (best.formula, best.source) == ("A11^2", "neighbour")
    # the same cells with a row of totals: the copy above is not what belongs there
    asked = {key: value for key, value in filled.items() if key != "A11"} | {"A11": "Total"}
    assert Cascade().suggest(task_at(Workbook.from_cells({"S": asked}), "S!B11"))[0].formula == "SUM(B2:B10)"
    # a row that is filled to the right under columns of numbers
    wide = {f"{c}{r}": float(r) for c in "BCDE" for r in (2, 3)} | {f"{c}4": f"={c}2*{c}3" for c in "BCD"}
    assert Cascade().suggest(task_at(Workbook.from_cells({"S": wide}), "S!E4"))[0].formula == "E2*E3"
    with pytest.raises(FormulaError, match="fill"):
        Cascade(fill=1.5)


def test_calibration_rises_and_is_near_the_truth():
    rng = np.random.default_rng(0)
    scores = rng.random(4000)
    right = rng.random(4000) < scores**2
    c = fit(scores.tolist(), right.tolist())
    values = [c(x) for x in np.linspace(0, 1, 50)]
    assert values == sorted(values)
    assert np.abs(np.array(values) - np.linspace(0, 1, 50) ** 2).mean() < 0.04


def test_prefixes_restrict_suggestions():
    cells = {k: v for k, v in _table().items() if k[0] in "AB"} | {"A8": "Average"}
    book = Workbook.from_cells({"S": cells})
    assert Aggregate().suggest(task_at(book, "S!B8", "=SU"))[0].formula == "SUM(B2:B7)"
    task = Task("t", book, CellRef("S", 8, 2), truth="SUM(B2:B7)")
    saved = keystrokes_saved(task, lambda t: next((s.formula for s in Aggregate().suggest(t, 1)), None))
    assert saved == pytest.approx((11 - 5 - 1) / 11)  # right from "=SUM(" on


def test_engines_by_name():
    with pytest.raises(FormulaError, match="no engine"):
        Engine("abacus")
    book = Workbook.from_cells({"S": {"A1": 2.0, "A2": 3.0}})
    assert Engine("formualizer").evaluate(book, "S", "B1", "SUM(A1:A2)*2") == 10.0
    assert Engine("auto").evaluate(book, "S", "B1", "BITAND(A1,A2)") == 2.0


# -- context ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_larger_budget_never_drops_a_cell(name, made_books):
    tasks = build_tasks(made_books[:8], 12, "fresh", seed=1, abstain=0)
    for task in tasks:
        before: set[CellRef] = set()
        for budget in (40, 80, 160, 320, 640, None):
            context = strategy(name, budget)(task)
            assert before <= context.cells
            assert budget is None or context.tokens <= budget
            before = context.cells


def test_dense_covers_more_than_a_window_at_equal_tokens(public):
    names = ("54206.xlsx", "45544.xlsx", "47737.xlsx", "61652.xlsx", "49156.xlsx", "atp.xlsx", "Tables.xlsx")
    tasks = build_tasks([public(n) for n in names], 120, "fresh", abstain=0)
    for budget in (128, 256, 512, 1024):
        dense, window = (coverage(tasks, [s], [budget])[0].coverage for s in ("dense", "window"))
        assert dense >= window, budget


def test_budgets_and_names_are_checked():
    task = task_at(Workbook.from_cells({"S": {"A1": 1.0}}), "S!B1")
    with pytest.raises(BudgetTooSmall, match="at least"):
        strategy("dense", 2)(task)
    with pytest.raises(FormulaError, match="no context strategy"):
        strategy("telepathy")
    with pytest.raises(FormulaError, match="no tokenizer"):
        strategy("dense", tokenizer="words")
    assert strategy("window", 50, tokenizer=len)(task).tokens <= 50


def test_redacted_contexts_hold_no_values():
    cells = _table() | {"A9": "Ada Lovelace", "B9": 52_000.0, "F2": '=IF(A9="Ada Lovelace",B9*1.0875,0)'}
    task = task_at(Workbook.from_cells({"S": cells}), "S!D8")
    for name in STRATEGIES:
        text = strategy(name, None, redact=True)(task).text
        for secret in ("Ada", "52000", "1.0875", "thing", "2.5"):
            assert secret not in text, (name, text)
    assert "Qty" in strategy("dense", None, redact=True)(task).text


def test_regions_and_rectangles_follow_edits():
    sheet = Workbook.from_cells({"S": _table(20)}).sheets["S"]
    sheet_map(sheet)
    sheet.set(12, 2)
    sheet.set(12, 4, formula="B12*99")
    sheet.set(30, 9, 5.0)
    sheet.set(22, 4, formula="B22*C22")
    edited = sheet_map(sheet).rects
    covered = {}
    for box, key in zip(edited.box.tolist(), edited.key.tolist(), strict=True):
        for row in range(box[0], box[2] + 1):
            for col in range(box[1], box[3] + 1):
                assert (row, col) not in covered
                covered[row, col] = key
    assert set(covered) == set(sheet.cells)
    assert covered[12, 4] != covered[11, 4] and covered[22, 4] == covered[21, 4] >= KEY_FORMULA


def test_intent_can_be_marked_by_a_person(tmp_path):
    book = Workbook.from_cells({"S": _table()})
    task = Task(
        "t", book, CellRef("S", 2, 4), truth="B2*C2", removed=frozenset(CellRef("S", r, 4) for r in range(2, 8))
    )
    assert {c.address for c in intent_cells(task)[0]} == {"A2", "B1", "B2", "C1", "C2", "D1"}
    (tmp_path / "marks.json").write_text(json.dumps({"t": ["B2", "C2"]}))
    marked = load_annotations([task], tmp_path / "marks.json")[0]
    assert {c.address for c in intent_cells(marked)[0]} == {"B2", "C2"}
    (tmp_path / "marks.json").write_text(json.dumps({"other": []}))
    with pytest.raises(TaskFileError, match="other"):
        load_annotations([task], tmp_path / "marks.json")


# -- tasks, runs, scores ---------------------------------------------------------------------------------------------


def test_tasks_keep_their_rules(made_books):
    fresh = build_tasks(made_books, 300, "fresh", seed=0, per_function_cap=5, abstain=0)
    counts = {}
    for task in fresh:
        counts[task.function] = counts.get(task.function, 0) + 1
        form = parse(task.truth, task.cell).canonical_r1c1()
        for sheet in task.view.sheets.values():
            for row, col, formula in sheet.formula_cells():
                assert parse(formula, CellRef(sheet.name, row, col)).canonical_r1c1() != form
    assert max(counts.values()) <= 5
    again = build_tasks(made_books, 300, "fresh", seed=0, per_function_cap=5, abstain=0)
    assert [t.id for t in fresh] == [t.id for t in again]
    with pytest.raises(FormulaError, match="mode"):
        build_tasks(made_books, mode="sideways")


def test_tasks_on_disk(tmp_path):
    write_xlsx(make_workbook("invoice", 3), tmp_path / "a.xlsx")
    (tmp_path / "broken.xlsx").write_bytes(b"nope")
    skipped = []
    tasks = build_tasks(tmp_path, 20, "fresh", skipped=skipped)
    assert len(skipped) == 1 and "broken" in skipped[0][0]
    save_tasks(tasks, tmp_path / "out")
    again = load_tasks(tmp_path / "out")
    assert [t.fingerprint() for t in again] == [t.fingerprint() for t in tasks]
    assert again[0].view.formula(again[0].cell) is None
    with pytest.raises(TaskFileError):
        load_tasks(tmp_path)
    (tmp_path / "out" / "tasks.jsonl").write_text('{"id": 1, "workbook": "../../etc/passwd"}\n')
    with pytest.raises(TaskFileError, match="no name of a workbook"):
        load_tasks(tmp_path / "out")
    with pytest.raises(TaskFileError, match="in memory"):
        save_tasks(build_tasks([Workbook.from_cells({"S": {"A1": 1.0, "A2": "=A1"}})], abstain=0), tmp_path / "mem")


def test_runs_resume_and_lose_nothing(fresh, tmp_path):
    class Counting(Neighbour):
        calls = 0

        def suggest(self, task, k=5):
            Counting.calls += 1
            return super().suggest(task, k)

    some = fresh[:12]
    run(some[:7], [Counting()], tmp_path)
    path = tmp_path / "results.jsonl"
    path.write_text(path.read_text() + '{"task": "cut of')  # as a kill in the middle of a line leaves it
    results = run(some, [Counting()], tmp_path)
    assert Counting.calls == 12 and [r.task for r in results] == [t.id for t in some]
    assert len(read_results(tmp_path)) == 12
    assert score(tmp_path)[0].figures["tasks"] == 12


def test_a_system_that_fails_or_hangs_is_a_record(fresh, tmp_path):
    import time

    class Bad:
        name = "bad"

        def suggest(self, task, k=5):
            raise RuntimeError("boom")

    class Slow:
        name = "slow"

        def suggest(self, task, k=5):
            time.sleep(0.5)
            return []

    bad, slow = run(fresh[:1], [Bad(), Slow()], tmp_path, timeout_s=0.1)
    assert "boom" in bad.error and "within 0.1 s" in slow.error


def test_engine_failures_are_an_outcome_of_their_own():
    book = Workbook.from_cells({"S": {"A1": 1.0, "A2": ("=BESSELJ(A1,1)", 0.44)}})
    at = CellRef("S", 2, 1)
    task = Task("t", book, at, truth="BESSELJ(A1,1)", removed=frozenset([at]))
    result = judged(task, "x", [Suggestion("BESSELJ(A1,1)", 0.5), Suggestion("A1", 0.4)], 0.0, Engine("builtin"))
    assert not result.executable and result.suggestions[0]["outcome"] == "truth not executable"
    assert result.top1 and not result.suggestions[1]["correct"]  # equal as text is right, whatever the engine can do


def test_likeness_and_figures():
    like = likeness("SUM($A$1:$A$3)", "SUM(A1:A3)", CellRef("S", 4, 1))
    assert not like.exact and like.positions and like.sketch and not like.r1c1 and like.function_f1 == 1
    assert not likeness("SUM(", "SUM(A1)", CellRef("S", 4, 1)).parses
    plain = dict.fromkeys(("exact", "positions", "r1c1", "sketch", "function_f1", "parses"), 1)
    a = [Result(str(i), "a", top1=i < 15, suggestions=[{"score": 0.5 + i / 100, **plain}]) for i in range(20)]
    b = [Result(str(i), "b", top1=i < 5) for i in range(20)]
    difference, low, high = paired_difference(a, b)
    assert difference == 0.5 and 0 < low < 0.5 < high
    assert summarise(a).interval[0] < 0.75 < summarise(a).interval[1]
    curve = precision_recall(a)
    assert curve.recall[-1] == 0.75 and (np.diff(curve.recall) >= 0).all()


def test_failures_split_into_capabilities_that_sum_to_all(fresh):
    tasks = [t for t in fresh if not t.abstain][:40]
    engine = Engine()
    results = [judged(t, "cascade", Cascade().suggest(t), 0.0, engine, copies=3) for t in tasks]
    failures = sum(not r.top1 for r in results)
    for budget in (40, 400):
        split = explain_failures(tasks, results, "dense", budget, rerun=lambda task, name: Cascade(), engine=engine)
        assert split.failures == failures == sum(split.counts.values())
        assert tuple(split.counts) == CAPABILITIES
        assert sum(split.shares().values()) == pytest.approx(1.0 if failures else 0.0)
    small = explain_failures(tasks, results, "dense", 30)
    large = explain_failures(tasks, results, "dense", None)
    assert small.counts["gather context"] > large.counts["gather context"]


def test_intents_in_words():
    book = Workbook.from_cells({"S": _table() | {"F1": "Tax rate", "G1": 0.2}})
    assert describe("SUM(D2:D7)", book, CellRef("S", 8, 4)) == "the sum of Total"
    assert describe("IF(B2>3,C2,0)", book, CellRef("S", 2, 5)) == "Price if Qty is above 3, else 0 in this row"
    assert describe("D8*$G$1", book, CellRef("S", 9, 4)).endswith("Tax rate")


# -- audit and files -------------------------------------------------------------------------------------------------


def test_audit_finds_what_was_planted():
    cells = _table(12) | {"A14": "Total", "B14": "=SUM(B2:B12)", "C14": "=SUM(C2:C13)", "D14": "=AVERAGE(D2:D13)"}
    cells |= {"D5": 12.0, "D8": "=B8*C7", "C10": "2.5", "B3": None}
    cells = {k: v for k, v in cells.items() if v is not None}
    found = {(f.cell, f.kind): f.expected for f in audit(Workbook.from_cells({"S": cells}))}
    assert found["D5", "number typed over a formula"] == "B5*C5"
    assert found["D8", "outlier in block"] == "B8*C8"
    assert found["B14", "range short of adjacent numbers"] == "SUM(B2:B13)"
    assert ("C10", "number as text") in found
    assert found["D14", "label asks for another function"] == "SUM(D2:D13)"
    assert ("D3", "blank precedent") in found
    assert not any(cell == "C14" for cell, _ in found)


def test_audit_of_clean_sheets_is_silent(made_books):
    findings = [f for book in made_books for f in audit(book)]
    assert len(findings) <= 1, findings


def test_suggestions_for_a_file_and_a_copy(tmp_path):
    path = tmp_path / "book.xlsx"
    write_xlsx(Workbook.from_cells({"S": {k: v for k, v in _table(8).items() if k not in ("D8", "D9")}}), path)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    advice = suggest_file(path, "S!D8:D9", tmp_path / "copy.xlsx")
    assert advice.suggestions[0].formula == "B8*C8" and [c.formula for c in advice.fill] == ["B8*C8", "B9*C9"]
    assert [c.value for c in advice.fill] == [20.0, 22.5] and not any(c.problem for c in advice.fill)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    copy = openpyxl.load_workbook(tmp_path / "copy.xlsx")
    assert copy["S"]["D9"].value == "=B9*C9" and copy["S"]["D7"].value == "=B7*C7"
    with pytest.raises(CellRefError, match="no sheet"):
        suggest_file(path, "T!D8")
    with pytest.raises(WorkbookError, match="itself"):
        suggest_file(path, "S!D8", path)
    with pytest.raises(CellRefError, match="at most"):
        suggest_file(path, "S!A1:ZZ9999")


def test_a_fill_is_checked_cell_by_cell():
    cells = {k: v for k, v in _table(8).items() if k not in ("D7", "D8", "D9", "B8")}
    advice = suggest_file(Workbook.from_cells({"S": cells | {"C9": "n/a"}}), "S!D7:D9")
    problems = [c.problem for c in advice.fill]
    assert problems[0] == "" and "blank" in problems[1] and "#VALUE!" in problems[2]


def test_copies_that_would_lose_something_are_refused(public_path, tmp_path):
    path = public_path("WithThreeCharts.xlsx")
    with pytest.raises(WouldLoseContent, match="charts") as caught:
        suggest_file(path, "A20", tmp_path / "copy.xlsx")
    assert "charts" in caught.value.parts and not (tmp_path / "copy.xlsx").exists()


def test_files_without_stored_values_get_suggestions_with_values(tmp_path):
    book = openpyxl.Workbook()
    page = book.active
    page.title = "S"
    for row in range(1, 6):
        page.cell(row, 1).value = row
        if row < 5:
            page.cell(row, 2).value = f"=A{row}*3"
    book.save(tmp_path / "x.xlsx")
    advice = suggest_file(tmp_path / "x.xlsx", "S!B5")
    assert advice.suggestions[0].formula == "A5*3" and advice.value == 15.0
