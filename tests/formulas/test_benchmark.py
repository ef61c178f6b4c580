"""The field's benchmark and its command line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from assay.cli import app
from assay.formulas import Workbook, make_workbook, write_xlsx
from assay.formulas.benchmark import benchmark, check_parses
from assay.formulas.data import made_tasks

runner = CliRunner()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    methods = ["silent", "neighbour", "aggregate", "cascade"]
    return benchmark.run(["made-fresh", "made-extend"], methods, [0], store=store, progress=False), store


def test_the_grid_ranks_as_it_should(results):
    found, _ = results
    assert found.exit_code == 0
    fresh = [row.method for row in found.leaderboard("correct", task="made-fresh").rows]
    assert fresh[0] == "cascade" and fresh.index("neighbour") > 0
    extend = {row.method: row.mean for row in found.leaderboard("correct", task="made-extend").rows}
    assert extend["neighbour"] > 0.85 > extend["aggregate"]
    share = sum(t.abstain for t in made_tasks("fresh", books=40, n=200, seed=1).tasks) / 200
    assert next(
        r for r in found.leaderboard("correct", task="made-fresh").rows if r.method == "silent"
    ).mean == pytest.approx(share, abs=0.03)


def test_records_keep_every_suggestion(results):
    found, store = results
    record = next(r for r in found.records if r.method == "cascade" and r.task == "made-fresh")
    lines = (store / "formulas" / record.key / "results.jsonl").read_text().splitlines()
    assert len(lines) == record.notes["tasks"]
    shown = next(row for row in map(json.loads, lines) if row["suggestions"])
    assert {"formula", "score", "reason", "evidence", "outcome", "parts"} <= set(shown["suggestions"][0])
    assert "curves.json" in record.artifacts


def test_quick_has_a_baseline_and_three_methods():
    grid = benchmark.quick_grid
    assert any(benchmark.methods[m].baseline for m in grid["methods"])
    assert len(grid["methods"]) >= 4


def test_missing_data_and_endpoints_are_skipped_with_a_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA_DIR", str(tmp_path / "nothing"))
    for name in ("ASSAY_LLM_BASE_URL", "ASSAY_LLM_MODEL", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ASSAY_FORMULAS_MODEL", str(tmp_path / "none.pt"))
    benchmark.tasks["public-small-extend"].forget()
    found = benchmark.run(
        ["public-small-extend", "made-extend"],
        ["neighbour", "llm", "sketch_pointer"],
        [0],
        store=tmp_path / "s",
        progress=False,
    )
    benchmark.tasks["public-small-extend"].forget()
    reasons = {(r.task, r.method): r.failure.message for r in found.records if r.status == "skipped"}
    assert "ASSAY_DATA_DIR" in reasons["public-small-extend", "neighbour"]
    assert "no endpoint" in reasons["made-extend", "llm"]
    assert "no trained model" in reasons["made-extend", "sketch_pointer"]


@pytest.mark.parametrize("name", ["neighbour", "aggregate", "cascade"])
def test_methods_hold_what_every_method_must(name):
    check_parses(benchmark, benchmark.methods[name])


# -- command line ----------------------------------------------------------------------------------------------------


@pytest.fixture
def book(tmp_path):
    cells = {"A1": "Qty", "B1": "Price", "C1": "Total"}
    for i in range(2, 10):
        cells |= {f"A{i}": float(i), f"B{i}": 2.5}
        if i not in (8, 9):
            cells[f"C{i}"] = (f"=A{i}*B{i}", i * 2.5)
    cells["C4"] = 99.0
    path = tmp_path / "folder" / "book.xlsx"
    path.parent.mkdir()
    write_xlsx(Workbook.from_cells({"Sheet1": cells}), path)
    return path


def test_suggest_and_audit_from_the_command_line(book, tmp_path):
    shown = runner.invoke(
        app, ["formulas", "suggest", str(book), "Sheet1!C8:C9", "--times", "-o", str(tmp_path / "c.xlsx")]
    )
    assert shown.exit_code == 0, shown.output
    assert "=A8*B8" in shown.output and "gives 20" in shown.output and "2 of 2 cells" in shown.output
    assert "because: copy of the formula above (C7)" in shown.output and "ms in all" in shown.output
    assert (tmp_path / "c.xlsx").exists()
    found = runner.invoke(app, ["formulas", "audit", str(book.parent)])
    assert "C4" in found.output and "number typed over a formula" in found.output and "A4*B4" in found.output
    line = runner.invoke(app, ["formulas", "audit", str(book), "--json"]).output.splitlines()[0]
    assert json.loads(line)["expected"] == "A4*B4"


def test_tasks_coverage_runs_and_reports_from_the_command_line(tmp_path):
    for i in range(3):
        write_xlsx(make_workbook("budget", i, "en"), tmp_path / f"{i}.xlsx")
    out = tmp_path / "tasks"
    made = runner.invoke(app, ["formulas", "build", str(tmp_path), "-o", str(out), "-n", "12"])
    assert made.exit_code == 0 and "tasks in" in made.output
    shown = runner.invoke(app, ["formulas", "coverage", str(out), "--strategy", "dense", "--budget", "256"])
    assert shown.exit_code == 0 and "dense" in shown.output
    ran = runner.invoke(
        app, ["formulas", "run", str(out), "-o", str(tmp_path / "run"), "-s", "neighbour", "-s", "aggregate"]
    )
    assert ran.exit_code == 0 and "neighbour" in ran.output
    assert "aggregate" in runner.invoke(app, ["formulas", "report", str(tmp_path / "run")]).output


def test_errors_are_one_line(tmp_path):
    (tmp_path / "x.xlsx").write_bytes(b"nope")
    for args in (["suggest", str(tmp_path / "x.xlsx"), "A1"], ["audit", str(tmp_path / "none.xlsx")]):
        shown = runner.invoke(app, ["formulas", *args])
        assert shown.exit_code == 2 and len(shown.output.strip().splitlines()) <= 3
