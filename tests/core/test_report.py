"""Tables for terminal, Markdown, LaTeX and CSV, and what the HTML page holds."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from assay.core.benchmark import Benchmark, Metric
from assay.core.errors import AssayError, StoreError, UnknownNameError
from assay.core.report import page, runs, show, write_report
from assay.core.report.tables import Table
from assay.core.results import Results

HOSTILE_TASK = "<script>alert(1)</script>"
HOSTILE_METHOD = '"><img src=x onerror=alert(1)>'


def make_benchmark(name: str = "trial", *, hostile: bool = False) -> Benchmark:
    methods = {"good": 0.1, "fair": 0.095, "poor": -0.1, "broken": 0.0}
    tasks = {"easy": 0.8, "hard": 0.5, "odd": 0.65}
    if hostile:
        methods |= {HOSTILE_METHOD: 0.05, "</script><!--": 0.02}
        tasks |= {HOSTILE_TASK: 0.4}

    def evaluate(task: Any, method: Any, context: Any) -> dict[str, float]:
        import warnings

        if method.name == "broken" and task.name == "hard":
            raise ValueError(f"no <b>luck</b> on {task.name} </script><script>alert(2)</script>")
        rng = context.rng(task.name + method.name)
        score = task.data() + method.make() + 0.01 * rng.normal()
        for step in range(200):
            context.curve("loss", step, math.exp(-step / 50) + 0.01 * rng.normal(), x_label="rows")
        if context.seed == 1:
            warnings.warn(f"late on <i>{task.name}</i>", stacklevel=1)
        context.artifact("weights & <more>.txt").write_text("0")
        return {"accuracy": score, "brier": (1 - score) ** 2}

    metrics = [Metric("accuracy", True), Metric("brier", False, title="Brier score")]
    title = f"The {name} & its <title>"
    benchmark = Benchmark(name, title, metrics, evaluate, description="Three tasks.", packages=["pydantic"])
    for task, level in tasks.items():
        benchmark.add_task(
            task, lambda level=level: level, licence="CC0 <1.0>", citation="A & B, 2020", fingerprint=task
        )
    for method, effect in methods.items():
        benchmark.add_method(method, lambda rate=0.5, effect=effect: effect, rate=0.5, baseline=method == "poor")
    return benchmark


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return make_benchmark().run(seeds=range(4), store=tmp_path_factory.mktemp("runs"), progress=False)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Results:
    store = tmp_path_factory.mktemp("hostile")
    return make_benchmark(hostile=True).run(seeds=range(3), store=store, progress=False)


class Reader(HTMLParser):
    """What a browser would make of a page: elements, text by element, identifiers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._raw = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._raw = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == self._raw:
            self._raw = ""

    def handle_data(self, data: str) -> None:
        if self._raw == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif not self._raw:
            self.text.append(data)


def read(*results: Results) -> Reader:
    return Reader(page.render(results))


def words_of(found: Reader) -> str:
    return " ".join("".join(found.text).split())


@pytest.fixture(scope="module")
def found(results: Results) -> Reader:
    return read(results)


@pytest.fixture(scope="module")
def found_hostile(hostile: Results) -> Reader:
    return read(hostile)


# -- tables ----------------------------------------------------------------------------------------------------------


def test_markdown(results: Results) -> None:
    text = results.to_markdown()
    lines = text.splitlines()
    assert lines[0] == (
        "|  | method | accuracy ↑ | 95% interval | against the first | mean rank | runs | failed | seconds |"
    )
    assert {line.count("|") for line in lines[:6]} == {10}
    assert lines[2].startswith("| 1 | good | **0.7")
    assert "broken \\*" in text
    assert "&lt;b&gt;luck&lt;/b&gt;" in text
    assert "<b>" not in text


def test_markdown_of_hostile_names(hostile: Results) -> None:
    text = hostile.to_markdown()
    assert "<img" not in text
    assert '"&gt;&lt;img src=x onerror=alert(1)&gt;' in text
    table = Table(["a|b"], [["c|d\ne `f` *g* [h](i)"]], [False]).to_markdown()
    assert table.splitlines()[0] == "| a\\|b |"
    assert table.splitlines()[2] == "| c\\|d e \\`f\\` \\*g\\* \\[h\\](i) |"


def test_latex(results: Results) -> None:
    text = results.to_latex()
    assert r"\toprule" in text
    assert r"\begin{tabular}{rlrrlrrrr}" in text
    assert r"accuracy $\uparrow$" in text
    assert r"\textbf{0.7" in text
    assert r"95\% interval" in text
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 1
    nasty = Table(["_a%"], [["{x} & \\y $1 #2 ~ ^ <z>"]], [False]).to_latex(caption="100%")
    assert r"\_a\%" in nasty
    assert (
        r"\{x\} \& \textbackslash{}y \$1 \#2 \textasciitilde{} \textasciicircum{} \textless{}z\textgreater{}" in nasty
    )
    assert r"\caption{100\%}" in nasty


def test_csv_reads_back(hostile: Results) -> None:
    rows = list(csv.DictReader(io.StringIO(hostile.to_csv())))
    board = hostile.leaderboard()
    assert [row["method"] for row in rows] == [row.method for row in board.rows]
    assert [float(row["mean"]) for row in rows] == [row.mean for row in board.rows]
    assert next(row for row in rows if row["method"] == "broken")["failed"] == "3"
    table = list(csv.DictReader(io.StringIO(hostile.table().to_csv())))
    missing = next(row for row in table if row["method"] == "broken" and row["task"] == "hard")
    assert (missing["mean"], missing["runs"], missing["failed"]) == ("", "0", "3")


def test_plain_text_is_aligned(results: Results) -> None:
    lines = results.to_text().splitlines()
    end = lines[0].index("accuracy ↑") + len("accuracy ↑")
    assert all(line[end - 5 : end].strip().startswith("0.") for line in lines[1:5])
    assert results.leaderboard().verdict in lines


def shown(results: Results, width: int = 120, **options: Any) -> tuple[str, str]:
    plain, coloured = io.StringIO(), io.StringIO()
    show(results, Console(file=plain, width=width, color_system=None), **options)
    show(results, Console(file=coloured, width=width, color_system="truecolor", force_terminal=True), **options)
    return plain.getvalue(), coloured.getvalue()


def test_show(results: Results) -> None:
    plain, coloured = shown(results)
    assert "The trial & its <title>  3 tasks, 44 runs" in plain
    order = [plain.index(f"{rank}  {method}") for rank, method in ((1, "good"), (2, "fair"))]
    assert order == sorted(order)
    assert plain.count("●") == 4
    assert "─●─" in plain
    assert "broken is ranked on what it has (hard: 4 of 4 failed (no <b>luck</b> on hard" in plain
    assert re.search(r"\x1b\[[0-9;]*31m[^\x1b]*broken is ranked", coloured)  # red


def test_show_in_a_narrow_terminal(results: Results) -> None:
    plain, _ = shown(results, width=70, task="easy", metric="brier")
    assert "Brier score" in plain
    assert "easy, 16 runs" in plain
    assert "●" not in plain
    assert max(len(line) for line in plain.splitlines()) <= 70


def test_show_says_when_there_is_nothing(tmp_path: Path) -> None:
    plain, _ = shown(make_benchmark("void").results(tmp_path))
    assert "There are no runs of void" in plain
    with pytest.raises(UnknownNameError, match="did you mean accuracy"):
        shown(make_benchmark("void").results(tmp_path), metric="acuracy")


def test_terminal_codes_in_names_do_nothing(tmp_path: Path) -> None:
    benchmark = Benchmark("trial", "", [Metric("accuracy", True)], lambda t, m, c: {"accuracy": 0.5})
    benchmark.add_task("t", lambda: 0, fingerprint="0")
    results = benchmark.run(methods={"a\x1b[2J[red]b": lambda: 0}, seeds=[0], store=tmp_path, progress=False)
    plain, coloured = shown(results)
    assert "\x1b[2J" not in coloured
    assert "a�[2J[red]b" in plain


# -- the page --------------------------------------------------------------------------------------------------------


def test_page_is_whole_and_loads_nothing(results: Results, tmp_path: Path) -> None:
    path = results.report(tmp_path / "deep" / "report.html")
    text = path.read_text(encoding="utf-8")
    found = Reader(text)
    assert path.stat().st_size < 3e6
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    for tag, attributes in found.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form"}
        assert "src" not in attributes
        assert not (attributes.get("href") or "#").startswith(("http", "//", "javascript"))
    policy = next(a["content"] for t, a in found.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    executed = [script for attributes, script in found.scripts if attributes.get("type") != "application/json"]
    assert len(executed) == 2
    for script in executed:
        assert f"'sha256-{page._hash(script)}'" in policy


def test_page_says_what_was_found(results: Results, found: Reader) -> None:
    text = words_of(found)
    assert results.leaderboard().verdict in text
    assert results.leaderboard("brier").verdict in text
    for words in (
        "The trial & its <title>",
        "4 methods, 3 tasks, 4 seeds",
        "48, 4 of them failed",
        "Task by task",
        "Ranks over tasks",
        "Score against seconds",
        "Curves",
        "Failures",
        "All runs",
        "Provenance",
        "CC0 <1.0>",
        "A & B, 2020",
        "pydantic 2.",
        "4 of 48 runs failed",
        "Traceback (most recent call last)",
        "ValueError: no <b>luck</b>",
        "baseline",
        "Brier score ↓",
    ):
        assert words in text, words


def test_identifiers_are_unique_and_links_lead_somewhere(found: Reader, results: Results, hostile: Results) -> None:
    for whole in (found, read(results, hostile)):
        ids = [a["id"] for _, a in whole.elements if "id" in a]
        assert len(ids) == len(set(ids))
        targets = [a["href"] for t, a in whole.elements if t == "a"]
        assert len(targets) > 5
        assert {str(t)[1:] for t in targets} <= set(ids)


def test_hostile_names_make_no_element(found_hostile: Reader) -> None:
    found = found_hostile
    assert not [tag for tag, _ in found.elements if tag in {"img", "i"}]
    text = "".join(found.text)
    assert HOSTILE_TASK in text
    assert HOSTILE_METHOD in text
    assert len(found.scripts) == 4  # charts, runs, the library, our own
    for attributes, script in found.scripts:
        if attributes.get("type") == "application/json":
            assert "<" not in script
            json.loads(script)


def test_runs_are_embedded(results: Results, found: Reader) -> None:
    data = next(json.loads(s) for a, s in found.scripts if a.get("id") == "b0-data")
    assert len(data["task"]) == 48
    for i in (0, 20, 47):
        task, method = data["tasks"][data["task"][i]], data["methods"][data["method"][i]]
        record = next(r for r in results.records if (r.task, r.method, r.seed) == (task, method, data["seed"][i]))
        detail = data["details"][i]
        assert data["statuses"][data["status"][i]] == record.status
        assert detail["key"] == record.key
        assert data["params"][detail["params"]] == record.params == {"rate": 0.5}
        assert data["artifacts"][detail["artifacts"]] == record.artifacts
        assert [data["warnings"][w] for w in detail["warnings"]] == record.warnings
        if record.status == "ok":
            assert data["metrics"][0]["values"][i] == pytest.approx(record.metrics["accuracy"], rel=1e-5)
            assert len(detail["curves"][0]["x"]) == runs.POINTS


def test_caps_are_said(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MAX_RUNS", 20)
    monkeypatch.setattr(runs, "MAX_DETAILS", 10)
    monkeypatch.setattr(runs, "MAX_CURVE_POINTS", 2 * runs.POINTS)
    monkeypatch.setattr(page, "MAX_CURVE_CHARTS", 2)
    found = read(results)
    text = words_of(found)
    assert (
        "20 of 48 runs are in this table: failed ones, then those of the lowest seeds. 10 can be opened in full."
        in text
    )
    assert "Curves of 4 runs are left out to keep the page small." in text
    assert "1 more curves were kept by the runs and are not on this page." in text
    data = next(json.loads(s) for a, s in found.scripts if a.get("id") == "b0-data")
    assert data["status"].count(1) == 4  # all failed ones
    assert max(data["seed"][i] for i in range(20) if data["status"][i] == 0) < 3
    assert sum(d is not None for d in data["details"]) == 10


def test_several_benchmarks_on_one_page(results: Results, hostile: Results, tmp_path: Path) -> None:
    empty = make_benchmark("void").results(tmp_path)
    path = write_report(tmp_path / "all.html", [results, hostile, empty], title="All <of> them")
    found = Reader(path.read_text(encoding="utf-8"))
    sections = [a["id"] for t, a in found.elements if t == "section"]
    assert sections == ["overview", "b0", "b1", "b2"]
    text = words_of(found)
    assert "All <of> them" in text
    assert "2 benchmarks" in text
    assert "There are no runs of void" in text


def test_different_environments_and_data_are_pointed_out(results: Results, tmp_path: Path) -> None:
    import shutil

    store = tmp_path / "runs"
    shutil.copytree(results.store.root, store)
    paths = sorted(store.glob("trial/*/run.json"))
    for path in paths[:3]:
        record = json.loads(path.read_text())
        record["provenance"]["versions"]["numpy"] = "0.0.1"
        record["data_fingerprint"] = "other"
        path.write_text(json.dumps(record))
    text = words_of(read(results.benchmark.results(store)))
    assert "The runs were made in 2 environments" in text
    assert "saw 2 different data" in text
    assert "numpy 0.0.1" in text


def test_old_file_stays_when_writing_fails(results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.html"
    target.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page.os, "replace", full)
    with pytest.raises(StoreError, match="cannot write the report .* No space left"):
        results.report(target)
    assert target.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_nothing_to_report_on(tmp_path: Path) -> None:
    with pytest.raises(AssayError, match="at least one benchmark"):
        write_report(tmp_path / "report.html", [])


def test_names_that_utf8_cannot_hold(tmp_path: Path) -> None:
    benchmark = Benchmark("trial", "", [Metric("accuracy", True)], lambda t, m, c: {"accuracy": 0.5})
    benchmark.add_task("t", lambda: 0, fingerprint="0")
    results = benchmark.run(methods={"ünïcode 漢字": lambda: 0}, seeds=[0], store=tmp_path, progress=False)
    title = "lone \ud800"
    path = results.report(tmp_path / "report.html", title=title)
    text = path.read_text(encoding="utf-8")
    assert "lone ?" in text
    assert "ünïcode 漢字" in text
