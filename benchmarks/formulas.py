"""The races of the field: the parser against formulas, openpyxl's tokenizer and formualizer; and our own targets.

    make bench FIELD=formulas
    .venv/bin/python benchmarks/formulas.py formats      dense against plain context, two small trainings
    .venv/bin/python benchmarks/formulas.py coverage     what each context strategy holds, at four budgets
    .venv/bin/python benchmarks/formulas.py kinds        the cascade on kinds of sheets that its corpus lacks
    .venv/bin/python benchmarks/formulas.py parsers      (or growth) one part of the race

Parsers read every fourth formula of the 62 public workbooks in file-name order (6,000 of them), without a memo, each
side in the same run: formulas (`Parser().ast`) and formualizer (`parse`) in an environment of their own, whose times
are taken there right after ours on the same machine, openpyxl's `Tokenizer` (which builds no tree) in ours. Medians of
repeats, one thread, CPU seconds (every side computes and waits for nothing, and the clock on the wall also counts what
other processes take). formulas refuses some, which the line says.

Then: suggestions of the cascade without a model on an open sheet of 10,000 cells, the dense context of 100,000 cells
cold and for the next cell, growth over 1,000 to 100,000 rows, and scoring 500 tasks x 5 candidates x 9 copies.

The public workbooks are looked for in ASSAY_DATA_DIR; without them made workbooks are parsed, and it is said so.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import itertools

import numpy as np
from openpyxl.formula import Tokenizer

from assay.core.errors import DataError
from assay.formulas import (
    Aggregate,
    Cascade,
    CellRef,
    Engine,
    Neighbour,
    Retrieval,
    Workbook,
    build_tasks,
    coverage,
    make_workbooks,
    strategy,
    task_at,
)
from assay.formulas.data import FILES, SOURCES, poi_workbooks
from assay.formulas.generator import KINDS
from assay.formulas.grammar.parser import parse_tree
from assay.formulas.regions import sheet_map
from assay.formulas.runs import judged
from assay.formulas.systems.base import Suggestion
from assay.formulas.tasks import Task
from assay.formulas.workbook.model import Sheet
from assay.formulas.workbook.store import NUMBER, TEXT, Store, Style

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "build" / "peers" / "formulas"
_PEER = """
import json, statistics, sys, time, warnings
warnings.simplefilter("ignore")
texts = json.load(sys.stdin)
found = {}
import formualizer
def rate(call, texts, repeats):
    times, bad = [], 0
    for _ in range(repeats):
        bad = 0
        began = time.process_time()
        for t in texts:
            try:
                call(t)
            except Exception:
                bad += 1
        times.append(time.process_time() - began)
    return len(texts) / statistics.median(times), bad / len(texts)
found["formualizer"] = rate(lambda t: formualizer.parse("=" + t), texts, 5)
import formulas
parser = formulas.Parser()
found["formulas"] = rate(lambda t: parser.ast("=" + t), texts, 1)
print(json.dumps(found))
"""


def line(what: str, value: float, target: float, ok: bool, unit: str = "") -> None:
    print(f"formulas {what}: ratio {value:.3g}{unit} target {target:g}{unit} {'ok' if ok else 'short'}")


def median(call: Callable[[], object], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return statistics.median(times)


def texts() -> list[str]:
    """Every fourth formula of the public workbooks, 6,000 of them."""
    found: list[str] = []
    try:
        for name in sorted(FILES):
            book = Workbook.open(SOURCES[name].fetch())
            for sheet in book.sheets.values():
                found += [formula for _, _, formula in sheet.formula_cells()]
    except DataError as error:
        print(f"made workbooks are parsed instead of the public ones: {error}")
        for book in make_workbooks(300):
            for sheet in book.sheets.values():
                found += [formula for _, _, formula in sheet.formula_cells()]
    return found[::4][:6000]


def peers(given: list[str]) -> dict[str, list[float]]:
    """Rates of the rivals, measured in their own environment."""
    python = PEERS / "bin" / "python"
    if not (PEERS / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "-r", str(ROOT / "benchmarks" / "peers" / "formulas.txt")]
        subprocess.run(pip, check=True)
        (PEERS / ".ready").touch()
    done = subprocess.run(
        [str(python), "-c", _PEER], input=json.dumps(given), capture_output=True, text=True, check=True
    )
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def parsers() -> None:
    given = texts()
    ours = len(given) / median(lambda: [parse_tree(t) for t in given])
    theirs = len(given) / median(lambda: [Tokenizer("=" + t) for t in given])
    print(f"{len(given)} formulas: ours {ours:,.0f}/s, openpyxl's tokenizer {theirs:,.0f}/s")
    line("parser, formulas a second", ours, 50_000, ours >= 50_000)
    line("parser's time over openpyxl's tokenizer's", theirs / ours, 2, theirs / ours <= 2)
    try:
        found = peers(given)
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"the rivals could not be installed or run, so they are left out: {error}")
        return
    again = len(given) / median(lambda: [parse_tree(t) for t in given])
    ours = min(ours, again)
    rate, refused = found["formulas"]
    other = found["formualizer"][0]
    print(f"formulas {rate:,.0f}/s with {refused:.1%} refused, formualizer {other:,.0f}/s, ours {ours:,.0f}/s")
    line("parser against formulas", ours / rate, 40, ours / rate >= 40)
    print(f"for orientation: formualizer (Rust) is {other / ours:.1f} times as fast as ours")


def wide_sheet(rows: int, cols: int = 10) -> Workbook:
    """A sheet of rows x cols: an item, numbers, and two filled columns of formulas."""
    rng = np.random.default_rng(0)
    cells: dict[str, object] = {}
    names = ["Item", *(f"Q{i}" for i in range(1, cols - 2)), "Sum", "Share"]
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    last = letters[cols - 3]
    for j, name in enumerate(names):
        cells[f"{letters[j]}1"] = name
    values = rng.integers(1, 1000, (rows, cols))
    for i in range(2, rows + 1):
        cells[f"A{i}"] = f"item {i}"
        for j in range(1, cols - 2):
            cells[f"{letters[j]}{i}"] = float(values[i - 1, j])
        cells[f"{letters[cols - 2]}{i}"] = (f"=SUM(B{i}:{last}{i})", float(values[i - 1, 1 : cols - 2].sum()))
        cells[f"{letters[cols - 1]}{i}"] = (f"={letters[cols - 2]}{i}/{letters[cols - 2]}$2", 1.0)
    return Workbook.from_cells({"S": cells})


def suggestions() -> None:
    """Cells of a fill, of a new column and of a row of totals: in the last two every system is asked."""
    book = wide_sheet(1000)
    cascade = Cascade()
    rng = np.random.default_rng(1)
    rows = [int(r) for r in rng.integers(3, 1002, 90)]
    kinds = {
        "a fill": [CellRef("S", r, c) for r in rows for c in (9, 10)],
        "a new column": [CellRef("S", r, 11) for r in rows],
        "a row of totals": [CellRef("S", 1002, c) for c in range(2, 11)],
    }
    cascade.suggest(Task("t", book, kinds["a new column"][0], removed=frozenset()))  # reads the corpus
    every: list[float] = []
    for kind, cells in kinds.items():
        times = []
        for cell in cells:
            task = Task("t", book, cell, removed=frozenset([cell]))
            began = time.process_time()
            cascade.suggest(task)
            times.append((time.process_time() - began) * 1000)
        p50, p95 = np.quantile(times, [0.5, 0.95])
        print(f"cascade on 10,000 cells, {kind}: p50 {p50:.1f} ms, p95 {p95:.1f} ms")
        every += times
    p95 = float(np.quantile(every, 0.95))
    line("cascade without model, p95", p95, 20, p95 <= 20, " ms")


def contexts() -> None:
    book = wide_sheet(10_000)
    sheet = book.sheets["S"]
    sheet.store.formula_classes()
    gather = strategy("dense", 1024)

    def cold() -> None:
        sheet.cache.clear()
        gather(task_at(book, "S!J10001"))

    first = median(cold) * 1000
    live = Workbook([sheet])
    live.sheets["S"].touched.clear()

    def following(i: int) -> None:
        sheet.set(10_001 + i, 9, formula=f"SUM(B{10_001 + i}:H{10_001 + i})")
        task = Task("t", live, CellRef("S", 10_001 + i, 10))
        task.__dict__["view"] = live
        gather(task)

    steps = iter(range(100))
    after = median(lambda: following(next(steps)), 20) * 1000
    line("dense context of 100,000 cells, cold", first, 150, first <= 150, " ms")
    line("dense context, the next cell", after, 5, after <= 5, " ms")


def tall_sheet(rows: int) -> Workbook:
    """A column of numbers and one of texts."""
    numbers = np.random.default_rng(0).integers(1, 99, rows).astype(float).tolist()
    words = [f"t{i}" for i in range(rows)]
    store = Store(
        np.repeat(np.arange(1, rows + 1, dtype=np.int32), 2),
        np.tile(np.array([1, 2], np.int32), rows),
        np.tile(np.array([NUMBER, TEXT], np.int8), rows),
        np.zeros(2 * rows, np.int32),
        [value for pair in zip(numbers, words, strict=True) for value in pair],
        {},
    )
    return Workbook([Sheet("S", store, [Style()])])


def growth() -> None:
    """Time over time of ten times fewer rows. At 1,000 rows a fixed cost still flatters, so a million is measured too.

    Each figure is a median of seven, over enough calls to last a while.
    """
    sizes = (1_000, 10_000, 100_000, 1_000_000)
    times: dict[str, list[float]] = {"regions": [], "evaluation": []}
    for rows in sizes:
        book = tall_sheet(rows)
        sheet = book.sheets["S"]
        calls = max(1, 20_000 // rows)

        def regions(sheet=sheet, calls=calls) -> None:  # type: ignore[no-untyped-def]
            for _ in range(calls):
                sheet.cache.clear()
                sheet_map(sheet)

        def evaluation(book=book, rows=rows, calls=calls) -> None:  # type: ignore[no-untyped-def]
            for _ in range(calls):
                Engine("builtin").evaluate(book, "S", "D1", f"SUM(A:A)+COUNTIF(A1:A{rows},5)")

        for name, call in (("regions", regions), ("evaluation", evaluation)):
            times[name].append(median(call, 7) / calls)
    book, counts = tall_sheet(10_000), (100, 1_000, 10_000)
    for count in counts:
        sums = [",".join(f"A{i}" for i in range(low + 1, low + 101)) for low in range(0, count, 100)]
        text = f"SUM({','.join(f'SUM({part})' for part in sums)})"
        calls = 20_000 // count

        def many(text=text, calls=calls) -> None:  # type: ignore[no-untyped-def]
            for _ in range(calls):
                Engine("builtin").evaluate(book, "S", "D1", text)

        times.setdefault("evaluation by references", []).append(median(many, 7) / calls)
    for name, found in times.items():
        worst = max(b / a for a, b in itertools.pairwise(found))
        steps, what = (counts, "references") if "references" in name else (sizes, "rows")
        print(f"{name}: " + ", ".join(f"{n:,} {what} {t * 1000:.2f} ms" for n, t in zip(steps, found, strict=True)))
        line(f"growth of {name} over a decade of {what}", worst, 12, worst <= 12)


def scoring() -> None:
    tasks = [t for t in build_tasks(make_workbooks(160, 5), 500, abstain=0, per_function_cap=1000) if t.truth][:500]
    engine = Engine()
    began = time.process_time()
    for task in tasks:
        truth = task.truth or ""
        candidates = [truth, f"({truth})*1", f"{truth}+0", "SUM(A1:A9)", "1"]
        judged(task, "x", [Suggestion(c, 0.5) for c in candidates], 0.0, engine)
    seconds = (time.process_time() - began) * 500 / len(tasks)
    print(f"{len(tasks)} tasks x 5 candidates x 9 workbooks, brought to 500 tasks: {seconds:.1f} s")
    line("scoring", seconds, 60, seconds <= 60, " s")


def formats() -> None:
    """The same small network trained on the same tasks at 192 tokens of dense and of plain context."""
    from assay.formulas.learned import PointerConfig, SketchPointer, train_pointer, training_tasks

    tasks = training_tasks(90)
    held = build_tasks(make_workbooks(30, seed=1), 150, "fresh", seed=1, abstain=0)
    engine = Engine()
    for fmt in ("dense", "plain"):
        config = PointerConfig(width=64, encoder_layers=2, decoder_layers=1, fmt=fmt, budget=192)
        began = time.process_time()
        net, _ = train_pointer(tasks, config, epochs=10, lr=3e-3, batch_size=32, seed=0)
        seconds = time.process_time() - began
        system = SketchPointer(net)
        results = [judged(t, "pointer", system.suggest(t, 5), 0.0, engine, copies=4) for t in held]
        right = sum(r.top1 for r in results) / len(results)
        print(f"{fmt}: {len(tasks)} tasks, {seconds:.0f} s, right on {right:.1%} of {len(held)} fresh tasks")


def covered() -> None:
    """The bound of what can be right for each context strategy and budget, on the public workbooks."""
    tasks = build_tasks(poi_workbooks(), 500, "fresh", abstain=0)
    names, budgets = ["dense", "window", "compressed", "oracle"], [128, 256, 512, 1024]
    rows = {(r.strategy, r.budget): r.coverage for r in coverage(tasks, names, budgets)}
    print(f"coverage of {len(tasks)} fresh tasks at {', '.join(map(str, budgets))} tokens")
    for name in names:
        print(f"{name}: " + ", ".join(f"{rows[name, budget]:.3f}" for budget in budgets))


def kinds() -> None:
    """Fresh tasks of each kind of made workbook, in unseen words, with a corpus that holds no workbook of that kind."""
    engine, every = Engine(), []
    for kind in KINDS:
        others = tuple(k for k in KINDS if k != kind)
        retrieval = Retrieval(make_workbooks(60, 9_001, others))
        system = Cascade([Neighbour(), Aggregate(), retrieval])
        tasks = build_tasks(make_workbooks(8, 13, (kind,), "unseen"), 30, "fresh", seed=13)
        results = [judged(t, "cascade", system.suggest(t, 1), 0.0, engine, copies=4) for t in tasks]
        every += results
        print(f"{kind}: right on {sum(r.top1 for r in results)} of {len(results)}")
    print(f"cascade on kinds of sheets that the corpus lacks: {sum(r.top1 for r in every) / len(every):.1%}")


PARTS = {
    "suggestions": suggestions,
    "formats": formats,
    "growth": growth,
    "parsers": parsers,
    "coverage": covered,
    "kinds": kinds,
}

if __name__ == "__main__":
    for name, part in PARTS.items():
        if name in sys.argv:
            part()
            sys.exit()
    parsers()
    suggestions()
    contexts()
    growth()
    scoring()
