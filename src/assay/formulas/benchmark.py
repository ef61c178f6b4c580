"""The benchmark of the field: tasks from made and public workbooks, all systems, right by execution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from assay.core.benchmark import Benchmark, Method, Metric, Task
from assay.core.errors import SkipRun
from assay.core.run import RunContext
from assay.formulas.data import SMALL, TaskSet, made_tasks, public_tasks
from assay.formulas.errors import EndpointError, FormulaError
from assay.formulas.metrics import precision_recall, summarise
from assay.formulas.runs import run
from assay.formulas.systems.registry import SYSTEMS, NamedSystem


class Silent:
    """Never suggests anything: right on exactly the tasks where no formula belongs."""

    name = "silent"

    def suggest(self, task: Any, k: int = 5) -> list[Any]:
        """See `System.suggest`."""
        return []


def evaluate(task: Task, method: Method, context: RunContext) -> Mapping[str, float]:
    """Suggestions for every task, judged as text and by execution on eight changed copies."""
    data: TaskSet = task.data()
    if data.missing:
        raise SkipRun(data.missing)
    try:
        system = method.make(seed=context.seed) if _seeded(method) else method.make()
    except (ImportError, EndpointError) as error:
        raise SkipRun(str(error)) from error
    except FormulaError as error:
        if "no trained model" in str(error):
            raise SkipRun(str(error)) from error
        raise
    results = run(
        data.tasks, [system], context.checkpoints, seed=context.seed, workers=getattr(system, "workers", 1),
        progress=lambda done, total: context.progress(done, total),
    )  # fmt: skip
    failed = [r for r in results if r.error]
    if failed and len(failed) == len(results):
        raise FormulaError(f"every call failed, the first: {failed[0].error}")
    report = summarise(results)
    context.rows("correct", np.array([r.top1 for r in results], float))
    curve = precision_recall(results)
    step = max(1, len(curve.recall) // 50)
    for recall, precision in list(zip(curve.recall, curve.precision, strict=True))[::step]:
        context.curve("precision over recall", float(recall), float(precision), x_label="recall")
    context.note(
        notes=report.notes, tasks=len(results), interval=list(report.interval), by_function=_by_function(results)
    )
    (context.artifact("results.jsonl")).write_bytes((context.checkpoints / "results.jsonl").read_bytes())
    return {
        name: value for name, value in report.figures.items() if name in benchmark.metrics and not math.isnan(value)
    }


def _by_function(results: list[Any]) -> dict[str, list[int]]:
    counts: dict[str, list[int]] = {}
    for r in results:
        pair = counts.setdefault(r.function, [0, 0])
        pair[0] += int(r.top1)
        pair[1] += 1
    return dict(sorted(counts.items(), key=lambda item: -item[1][1])[:20])


def _seeded(method: Method) -> bool:
    return "seed" in getattr(method.factory, "parameter_names", list)()


def check_parses(bench: Benchmark, method: Method) -> None:
    """Suggestions parse, none refers to its own cell, and the same task gives the same suggestions.

    Raises
    ------
    FormulaError
    """
    from assay.formulas.grammar import parse
    from assay.formulas.systems.base import circular

    system = method.make()
    for task in made_tasks("fresh", books=6, n=20, seed=3).tasks:
        first, again = system.suggest(task, 3), system.suggest(task, 3)
        if [s.formula for s in first] != [s.formula for s in again]:
            raise FormulaError(f"{method.name}: two calls on {task.id} gave different suggestions")
        for suggestion in first:
            if circular(parse(suggestion.formula, task.cell), task.view, task.cell):
                raise FormulaError(f"{method.name}: {suggestion.formula} refers to its own cell {task.cell}")


def _share(name: str, title: str = "", undefined: bool = True) -> Metric:
    return Metric(name, True, title=title, may_be_undefined=undefined)


benchmark = Benchmark(
    "formulas",
    "Suggesting the formula that a spreadsheet cell needs",
    [
        Metric("correct", True, title="correct"),
        _share("correct_k", "correct among 5"),
        _share("correct_with_truth", "correct where a formula belongs"),
        _share("exact"),
        _share("exact_positions", "exact, $ aside"),
        _share("r1c1", "R1C1 equal"),
        _share("sketch", "sketch equal"),
        _share("function_f1", "functions, F1"),
        _share("abstained_rightly"),
        _share("precision", "correct among shown"),
        _share("shown", "tasks with a suggestion"),
        _share("parses", "first suggestions that parse"),
        Metric("not_executable", False, may_be_undefined=True),
        _share("text_copy", "equal with a number as text"),
        Metric("p50_ms", False, title="time, median", format=".2f", unit="ms", may_be_undefined=True, cost=True),
        Metric("p95_ms", False, title="time, 95 %", format=".2f", unit="ms", may_be_undefined=True, cost=True),
        Metric("tokens", False, title="tokens a task", format=".0f", may_be_undefined=True, cost=True),
        Metric("price", False, title="price", format=".4f", may_be_undefined=True, cost=True),
    ],
    evaluate,
    version="2",
    description="The target cell is emptied; a suggestion is correct if it gives the truth's value on the workbook and "
    "on eight changed copies. Where no formula belongs, silence is correct.",
    packages=("openpyxl", "formualizer", "bm25s", "torch", "openai"),
    default_seeds=range(1),
)
benchmark.checks.append(check_parses)

_POI: dict[str, Any] = {
    "licence": "Apache-2.0",
    "citation": "Apache POI test data, Copyright 2003-2024 The Apache Software Foundation",
}
for _mode in ("fresh", "extend"):
    benchmark.add_task(
        f"made-{_mode}", partial(made_tasks, _mode), title=f"Made workbooks, {_mode}", books=40, n=200, seed=1
    )
    benchmark.add_task(
        f"unseen-{_mode}",
        partial(made_tasks, _mode, vocabulary="unseen"),
        title=f"Made workbooks, {_mode}, words that nothing was fitted on",
        books=40,
        n=200,
        seed=12,
    )
    benchmark.add_task(
        f"public-small-{_mode}",
        partial(public_tasks, _mode),
        title=f"Six public workbooks, {_mode}",
        names=SMALL,
        **_POI,
    )
    benchmark.add_task(f"public-{_mode}", partial(public_tasks, _mode), title=f"Public workbooks, {_mode}", **_POI)

benchmark.add_method("silent", Silent, baseline=True)
for _name, _params in SYSTEMS.items():
    benchmark.add_method(_name, NamedSystem(_name), **_params)

benchmark.quick(
    tasks=["unseen-fresh", "unseen-extend", "public-small-extend"],
    methods=["silent", "neighbour", "aggregate", "retrieval", "cascade"],
    seeds=(0,),
)
benchmark.full(
    tasks=["unseen-fresh", "unseen-extend", "made-fresh", "made-extend", "public-fresh", "public-extend"],
    methods=["silent", *SYSTEMS],
)
