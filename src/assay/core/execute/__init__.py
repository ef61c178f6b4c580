"""Run a grid: here, in worker processes (loky), or on a Ray cluster. Same jobs, same records."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from assay.core.benchmark import Benchmark, Method, Task
from assay.core.execute.cluster import run_on_ray
from assay.core.execute.display import Display
from assay.core.execute.grid import Grid, Job, jobs_of, perform
from assay.core.execute.lanes import run_in_lanes
from assay.core.results import Results
from assay.core.store import Store


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a grid; what was finished is in the store."""

    def __init__(self, done: int, total: int, store: Store) -> None:
        self.done, self.total, self.store = done, total, store
        super().__init__(
            f"interrupted: {done} of {total} runs are finished and kept in {store.root}; "
            f"run the same command again to go on"
        )


def execute(
    benchmark: Benchmark,
    tasks: Sequence[Task],
    methods: Sequence[Method],
    seeds: Sequence[int],
    *,
    store: str | Path | None = None,
    workers: int = 0,
    ray: str | None = None,
    timeout: float | None = None,
    memory: int | None = None,
    device: str = "cpu",
    retry_failed: bool = False,
    progress: bool = True,
) -> Results:
    """Run those jobs of a grid that are not in the store yet; see `Benchmark.run` for the parameters.

    Raises
    ------
    StoreError
        If the store cannot be written, before any work is done; or when the disk fills up meanwhile.
    Interrupted
        On Ctrl-C.
    """
    where = Store(store)
    where.prepare(benchmark.name)
    grid = Grid(benchmark, tasks, methods, where.root.resolve(), device, timeout, memory)
    jobs = jobs_of(grid, seeds, where)
    # The reason for skipping may be gone by now: a package was installed, a file was put in place.
    again = {"skipped", "failed"} if retry_failed else {"skipped"}
    done = where.finished(benchmark.name, [job.key for job in jobs], retry=again)
    todo = [job for job in jobs if job.key not in done and job.fingerprint]
    with Display(benchmark, len(jobs), len(jobs) - len(todo), progress) as display:
        try:
            if ray is not None:
                run_on_ray(grid, todo, ray, display)
            elif workers > 0 or timeout is not None or memory is not None:
                run_in_lanes(grid, todo, max(1, workers), display)
            else:
                _run_here(grid, todo, where, display)
            _await_others(grid, todo, where, display)
        except KeyboardInterrupt:
            raise Interrupted(display.done, len(jobs), where) from None
    return Results.from_store(benchmark, where, keys=[job.key for job in jobs])


def _run_here(grid: Grid, todo: Sequence[Job], store: Store, display: Display) -> None:
    for job in todo:
        display.at(0, grid.describe(job))
        display.finished(perform(grid, job, store, partial(display.at, 0, grid.describe(job))))


def _await_others(grid: Grid, todo: Sequence[Job], store: Store, display: Display) -> None:
    """Runs that other processes had claimed: wait for them, or do them if those processes have gone."""
    name = grid.benchmark.name
    while True:
        done = store.finished(name, [job.key for job in todo])
        missing = [job for job in todo if job.key not in done]
        if not missing:
            return
        for job in missing:
            if not store.claimed_elsewhere(name, job.key) and store.read(name, job.key) is None:
                if grid.timeout is not None or grid.memory is not None:
                    run_in_lanes(grid, [job], 1, display)
                else:
                    _run_here(grid, [job], store, display)
        display.at(0, f"{len(missing)} runs are being done by another process")
        time.sleep(0.5)
