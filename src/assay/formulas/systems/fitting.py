"""Fitting the calibration of the default cascade on made workbooks that nothing else uses."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

from assay.formulas.runs import run
from assay.formulas.systems.aggregate import Aggregate
from assay.formulas.systems.calibrate import Calibration, fit_results
from assay.formulas.systems.joint import Joint, fit_joint
from assay.formulas.systems.neighbour import Neighbour
from assay.formulas.systems.retrieval import Retrieval
from assay.formulas.tasks import Task, build_tasks


def validation_tasks(seed: int = 9_800, books: int = 90) -> list[Task]:
    """Fresh and extend tasks in words of their own, a tenth of them where no formula belongs."""
    from assay.formulas.generator import make_workbooks

    made = make_workbooks(books, seed, vocabulary="calibration")
    tasks = build_tasks(made, 300, "fresh", seed=seed, abstain=0.1, per_function_cap=80)
    return tasks + build_tasks(made, 200, "extend", seed=seed + 1, abstain=0.1, per_function_cap=60)


def fit_default(tasks: Sequence[Task] | None = None, seed: int = 9_800) -> tuple[dict[str, Calibration], Joint]:
    """Calibrations of neighbour, aggregate and retrieval, and how the three go together."""
    chosen = list(tasks) if tasks is not None else validation_tasks(seed)
    with tempfile.TemporaryDirectory() as folder:
        results = run(chosen, [Neighbour(), Aggregate(), Retrieval()], folder, k=3)
    calibrations = fit_results(results, chosen)
    return calibrations, fit_joint(results, chosen, ["neighbour", "aggregate", "retrieval"], calibrations)
