"""The report page in a real browser: charts, the table of runs, hostile names, themes, the keyboard."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.core.benchmark import Benchmark, Metric
from assay.core.report import write_report

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

if not CHROMIUM.exists():
    pytest.skip(f"needs chromium at {CHROMIUM}", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api")

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><!--<script>",
    "{{ 7 * 7 }} ${alert(1)} datum['x']",
    "javascript:alert(1)",
    "a name that goes on and on, with_a_word_that_cannot_be_broken_" + 60 * "x",
]


def make_benchmark(name: str, tasks: list[str], methods: list[str]) -> Benchmark:
    def evaluate(task: Any, method: Any, context: Any) -> dict[str, float]:
        rank = methods.index(method.name)
        if rank == len(methods) - 1 and task.name == tasks[-1]:
            raise ValueError("no result </script><img src=x onerror=alert(3)>")
        score = 0.9 - 0.05 * rank + 0.01 * context.rng(task.name + method.name).normal()
        for step in range(0, 300, 10):
            context.curve("accuracy", step, score * (1 - math.exp(-step / 60)), x_label="<rows>")
        if context.seed == 1:
            warnings.warn("late <img src=x onerror=alert(4)>", stacklevel=1)
        return {"accuracy": score, "loss": 1 - score}

    metrics = [Metric("accuracy", True), Metric("loss", False, format=".4f")]
    benchmark = Benchmark(name, f"Trial of {name}", metrics, evaluate)
    for i, task in enumerate(tasks):
        benchmark.add_task(task, lambda: 0, fingerprint=f"data-{i}", licence="<b>CC0</b>")
    for method in methods:
        benchmark.add_method(method, lambda rate=0.1: rate, rate=0.1)
    return benchmark


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    benchmark = make_benchmark("plain", ["easy", "hard", "odd"], ["good", "fair", "poor"])
    return benchmark.run(seeds=range(7), store=folder / "runs", progress=False).report(folder / "report.html")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All names hostile, of the kinds that a benchmark takes and of those that only a store can bring in."""
    from assay.core.results import Results

    folder = tmp_path_factory.mktemp("hostile")
    harmless = [f"name{i}" for i in range(len(HOSTILE))]
    results = make_benchmark("hostile", harmless, harmless).run(seeds=range(3), store=folder / "runs", progress=False)
    columns = dict(results.columns)
    for column in ("task", "method"):
        names = dict(zip(harmless, HOSTILE))
        columns[column] = columns[column].copy()
        columns[column][:] = [names[name] for name in columns[column]]
    renamed = Results(results.benchmark, results.store, columns)
    plain = make_benchmark("plain", ["easy", "hard"], ["good", "fair"])
    other = plain.run(seeds=range(3), store=folder / "runs", progress=False)
    return write_report(folder / "report.html", [renamed, other], title=HOSTILE[0])


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page; afterwards nothing may have been said on the console, loaded, or asked."""
    pages, said = [], []

    def go(path: Path, **options: Any) -> Any:
        page = browser.new_page(**{"viewport": {"width": 1200, "height": 900}, **options})
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: request.url.startswith("file:") or said.append(f"request: {request.url}"))
        page.set_default_timeout(10_000)
        page.goto(path.as_uri())
        pages.append(page)
        return page

    yield go
    for page in pages:
        page.close()
    assert said == []


def draw_all(page: Any) -> None:
    """Scroll through the page, so that each chart comes into view once, and wait until all are drawn."""
    for chart in page.locator(".chart:visible").all():
        chart.scroll_into_view_if_needed()
    page.wait_for_function(
        "() => [...document.querySelectorAll('.chart')].every(c => !c.offsetParent || c.querySelector('svg.marks'))"
    )


def cells(page: Any, column: int) -> list[str]:
    return page.locator(f".runs tbody tr:not(.detail) td:nth-child({column})").all_inner_texts()


def head(page: Any, title: str) -> Any:
    return page.locator(".runs thead th").filter(has_text=re.compile(f"^{re.escape(title)}"))


def test_charts_are_drawn(visit, report: Path) -> None:
    page = visit(report)
    draw_all(page)
    assert page.locator(".chart svg.marks").count() == 4  # means, ranks, cost, curves; of the metric that is shown
    first = page.locator(".chart").first
    assert first.bounding_box()["width"] > 800
    labels = first.locator("svg text").all_text_contents()
    assert [text for text in labels if text in ("good", "fair", "poor")] == ["good", "fair", "poor"]
    assert page.locator(".chart.curve path[aria-roledescription='line mark']").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200


def test_choosing_a_metric(visit, report: Path) -> None:
    page = visit(report)
    assert page.locator(".verdict:visible").inner_text().startswith("good is better than fair by 0.0")
    page.get_by_role("radio", name="loss ↓").check(force=True)
    assert page.locator(".panel:visible").count() == 1
    assert page.get_by_role("heading", name="Leaderboard: loss ↓").is_visible()
    draw_all(page)
    assert page.locator(".panel:visible .chart svg.marks").count() == 3


def test_choosing_a_curve(visit, report: Path) -> None:
    page = visit(report)
    draw_all(page)
    before = page.locator("#b0-curve svg").inner_html()
    page.get_by_label("curve and task").select_option(label="accuracy, odd")
    page.wait_for_function("before => document.querySelector('#b0-curve svg')?.innerHTML !== before", arg=before)
    assert page.locator("#b0-curve path[aria-roledescription='line mark']").count() == 2  # one failed there


def test_sorting_runs(visit, report: Path) -> None:
    page = visit(report)
    assert "1 to 25 of 63" in page.locator(".pager").inner_text()
    head(page, "accuracy").get_by_role("button").click()
    assert head(page, "accuracy").get_attribute("aria-sort") == "ascending"
    up = [float(text) for text in cells(page, 6)]
    assert up == sorted(up)
    head(page, "accuracy").get_by_role("button").click()
    assert head(page, "accuracy").get_attribute("aria-sort") == "descending"
    down = [float(text) for text in cells(page, 6)]
    assert down == sorted(down, reverse=True)
    assert down[0] > up[-1]
    head(page, "seed").get_by_role("button").click()
    assert head(page, "accuracy").get_attribute("aria-sort") == "none"
    assert cells(page, 4) == sorted(cells(page, 4), key=int)
    for _ in range(2):
        page.get_by_role("button", name="Next").click()
    assert "51 to 63 of 63" in page.locator(".pager").inner_text()
    assert page.get_by_role("button", name="Next").is_disabled()


def test_unknown_values_come_last_in_either_order(visit, report: Path) -> None:
    page = visit(report)
    page.locator(".runs").get_by_label("task").select_option(label="odd")
    for _ in range(2):
        head(page, "accuracy").get_by_role("button").click()
        assert cells(page, 6)[-7:] == ["–"] * 7


def test_filtering_runs(visit, report: Path) -> None:
    page = visit(report)
    table = page.locator(".runs")
    table.get_by_label("status").select_option(label="failed")
    assert set(cells(page, 2)) == {"odd"}
    assert set(cells(page, 3)) == {"poor"}
    assert "1 to 7 of 7 (63 in all)" in page.locator(".pager").inner_text()
    table.get_by_label("status").select_option(label="all")
    table.get_by_label("method").select_option(label="fair")
    table.get_by_label("task").select_option(label="hard")
    assert set(zip(cells(page, 2), cells(page, 3))) == {("hard", "fair")}
    table.get_by_label("method").select_option(label="all")
    table.get_by_label("task").select_option(label="all")
    search = table.get_by_role("searchbox")
    search.fill("GOOD seed 3")
    assert set(zip(cells(page, 3), cells(page, 4))) == {("good", "3")}
    search.fill("no result")
    assert set(cells(page, 5)) == {"failed"}
    search.fill("nowhere")
    assert "no run fits (63 in all)" in page.locator(".pager").inner_text()


def test_opening_a_run(visit, report: Path) -> None:
    page = visit(report)
    button = page.get_by_role("button", name="Details of easy, good, seed 1")
    assert button.get_attribute("aria-expanded") == "false"
    button.click()
    assert button.get_attribute("aria-expanded") == "true"
    detail = page.locator(f"#{button.get_attribute('aria-controls')}")
    text = detail.inner_text()
    for words in (
        "Parameters",
        "rate\t0.1",
        "accuracy",
        "peak memory",
        "data-0",
        "numpy",
        "late <img src=x",
        "curves.json",
    ):
        assert words in text, words
    detail.locator("svg.marks path[aria-roledescription='line mark']").wait_for()
    assert "<rows>" in detail.locator("svg text").all_text_contents()
    button.click()
    assert detail.count() == 0
    page.locator(".runs").get_by_label("status").select_option(label="failed")
    page.locator(".runs button.open").first.click()
    assert "ValueError: no result </script><img" in page.locator("tr.detail").inner_text()
    assert "Traceback (most recent call last)" in page.locator("tr.detail pre").inner_text()


def test_keyboard(visit, report: Path) -> None:
    page = visit(report)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    page.locator(".runs thead button").first.focus()
    page.keyboard.press("Enter")
    assert page.locator(".runs thead th").nth(1).get_attribute("aria-sort") == "ascending"
    page.locator(".runs button.open").first.focus()
    page.keyboard.press("Space")
    assert page.locator("tr.detail").count() == 1
    page.locator("fieldset.metrics input").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("heading", name="Leaderboard: loss ↓").is_visible()
    page.locator(".failure summary").first.focus()
    page.keyboard.press("Enter")
    assert "Traceback" in page.locator(".failure pre").first.inner_text()


def test_every_control_has_a_name(visit, report: Path) -> None:
    page = visit(report)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, select, input, a, [role=region]')].filter(e =>
            !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels.length))).length"""
    )
    assert nameless == 0
    assert page.locator("h1").count() == 1
    assert page.locator(".chart:not([aria-label])").count() == 0
    assert page.locator("table:not(.detail table)").count() == page.locator("table thead").count()


def test_hostile_names_are_shown_and_not_run(visit, hostile: Path) -> None:
    page = visit(hostile)
    assert page.locator("h1").inner_text() == HOSTILE[0]
    draw_all(page)
    assert page.locator("img").count() == 0
    assert page.locator("main b").filter(has_text="CC0").count() == 0
    board = page.locator("#b0-m0 table.board td.name").all_inner_texts()
    heat = page.locator("#b0-m0 table.heat th[scope=row]").all_inner_texts()
    options = page.locator("#b0-table select").nth(1).locator("option").all_inner_texts()
    for name in HOSTILE:
        assert any(text.startswith(name) for text in board)
        assert name in heat
        assert name in options
    charts = " ".join(page.locator("#b0 .chart svg text").all_text_contents())
    assert "<script>alert(1)" in charts
    assert "{{ 7 * 7 }}" in charts
    table = page.locator("#b0-table")
    for name in HOSTILE[:2]:
        table.get_by_label("task").select_option(label=name)
        table.locator("button.open").first.click()
        assert name in table.locator("tbody tr").first.inner_text()
    mark = page.locator("#b0-m0 .chart svg.marks path[aria-roledescription='point']").first
    mark.hover()
    page.locator("#vg-tooltip-element.visible").wait_for()
    assert page.locator("#vg-tooltip-element img, #vg-tooltip-element script").count() == 0
    assert page.evaluate("window.location.hash") == ""


def test_several_benchmarks(visit, hostile: Path) -> None:
    page = visit(hostile)
    page.get_by_role("navigation").get_by_role("link", name="Trial of plain").click()
    assert page.evaluate("window.location.hash") == "#b1"
    assert page.locator("#b1 .runs tbody tr").count() == 12
    assert page.locator("#overview tbody tr").count() == 2
    page.locator("label[for=b1-m1-choice]").click()  # waits until the page has scrolled to its place
    assert page.locator("#b0-m0").is_visible()
    assert page.locator("#b1-m0").is_hidden()


def colour(page: Any, selector: str, name: str) -> tuple[int, ...]:
    value = page.locator(selector).first.evaluate("(e, name) => getComputedStyle(e)[name]", name)
    return tuple(int(n) for n in re.findall(r"\d+", value)[:3])


def luminance(rgb: tuple[int, ...]) -> float:
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in rgb)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(visit, report: Path, scheme: str) -> None:
    """Contrast of at least 4.5 (WCAG 2.1, AA) of all kinds of text, those in charts among them."""
    page = visit(report, color_scheme=scheme)
    draw_all(page)
    ground = luminance(colour(page, "body", "backgroundColor"))
    assert (ground > 0.5) == (scheme == "light")
    for selector, name in (
        ("body", "color"), (".lead, .note, figcaption", "color"), (".bad", "color"), ("a", "color"),
        (".chart svg text", "fill"), ("table.heat td span", "color"),
    ):  # fmt: skip
        text = luminance(colour(page, selector, name))
        assert (max(text, ground) + 0.05) / (min(text, ground) + 0.05) >= 4.5, selector


def test_narrow_screens_scroll_only_inside_tables(visit, hostile: Path, report: Path) -> None:
    for path in (report, hostile):
        page = visit(path, viewport={"width": 420, "height": 800})
        draw_all(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 420


def test_print_shows_charts_on_white(visit, report: Path) -> None:
    page = visit(report, color_scheme="dark")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme="dark")
    page.wait_for_function("() => document.querySelectorAll('.chart svg.marks').length === 4")
    assert colour(page, "body", "backgroundColor") == (255, 255, 255)
    assert page.locator(".runs-part").is_hidden()
    assert page.locator("nav").is_hidden()
    assert page.locator(".failure pre").first.is_visible()
    assert luminance(colour(page, ".chart svg text", "fill")) < 0.2


def test_thousands_of_runs(visit, tmp_path: Path) -> None:
    import numpy as np

    from assay.core.results import Results
    from assay.core.store import Store

    benchmark = Benchmark("many", "Many", [Metric("accuracy", True)], lambda t, m, c: {})
    n = 12_000
    columns = {
        "key": np.array([f"{i:05d}" for i in range(n)], dtype=object),
        "task": np.repeat([f"task {i}" for i in range(10)], n // 10).astype(object),
        "method": np.tile(np.repeat([f"method {i}" for i in range(12)], 100), 10).astype(object),
        "seed": np.tile(np.arange(100), n // 100),
        "status": np.full(n, "ok", dtype=object),
        "failure": np.full(n, None, dtype=object),
        "data": np.full(n, "0", dtype=object),
        "started": np.full(n, "2026-01-01", dtype=object),
        "wall_seconds": np.linspace(0.1, 3, n),
        "m:accuracy": np.random.default_rng(0).normal(0.5, 0.1, n),
    }
    path = Results(benchmark, Store(tmp_path), columns).report(tmp_path / "report.html")
    assert path.stat().st_size < 4e6
    page = visit(path)
    draw_all(page)
    assert "1 to 25 of 12000" in page.locator(".pager").inner_text()
    seconds = page.evaluate(
        """() => { const start = performance.now();
            document.querySelectorAll('.runs thead button')[4].click();
            return (performance.now() - start) / 1000; }"""
    )
    assert seconds < 1
    page.locator(".runs").get_by_role("searchbox").fill("method 11 seed 99")
    assert "of 10 (12000 in all)" in page.locator(".pager").inner_text()
    page.locator(".runs button.open").first.click()
    assert "not on this page" in page.locator("tr.detail").inner_text()
