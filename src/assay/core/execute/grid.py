"""A grid and its jobs, and how one job becomes a record."""

from __future__ import annotations

import shutil
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.core.benchmark import Benchmark, Method, Task, plain, run_key
from assay.core.errors import SkipRun
from assay.core.run import Failure, Meter, RunContext, RunRecord, clean_metrics, provenance
from assay.core.store import Store


@dataclass(frozen=True)
class Job:
    """One run to do, by the positions of its task and method in the grid."""

    task: int
    method: int
    seed: int
    key: str
    fingerprint: str


@dataclass
class Grid:
    """What worker processes are given once: everything but the jobs."""

    benchmark: Benchmark
    tasks: Sequence[Task]
    methods: Sequence[Method]
    store: Path
    device: str = "cpu"
    timeout: float | None = None
    memory: int | None = None

    def record(self, job: Job, **fields: Any) -> RunRecord:
        """A record of a job, without its outcome."""
        task, method = self.tasks[job.task], self.methods[job.method]
        return RunRecord(
            key=job.key,
            benchmark=self.benchmark.name,
            version=self.benchmark.version,
            task=task.name,
            task_params=plain(task.params),
            method=method.name,
            params=plain(method.params),
            seed=job.seed,
            data_fingerprint=job.fingerprint,
            provenance=provenance(self.benchmark.packages, self.device),
            **fields,
        )

    def describe(self, job: Job) -> str:
        """A job in words."""
        return f"{self.tasks[job.task].name} · {self.methods[job.method].name} · seed {job.seed}"


def jobs_of(grid: Grid, seeds: Iterable[int], store: Store) -> list[Job]:
    """The grid, task by task (a task's data is loaded once) and seed by seed (half a grid compares all methods)."""
    jobs = []
    for i, task in enumerate(grid.tasks):
        pairs = [
            (j, method)
            for j, method in enumerate(grid.methods)
            if grid.benchmark.applicable is None or grid.benchmark.applicable(task, method) is None
        ]
        if not pairs:
            continue
        failure = None
        try:
            fingerprint = task.data_fingerprint()
        except Exception as error:
            failure, fingerprint = failure_of(error), ""
        for seed in seeds:
            for j, method in pairs:
                job = Job(i, j, int(seed), run_key(grid.benchmark, task, method, int(seed), fingerprint), fingerprint)
                jobs.append(job)
                if failure is not None:  # no data: on record at once, and tried again by the next call
                    record = grid.record(job, status="failed", failure=failure, started=now())
                    store.commit(record, store.stage(grid.benchmark.name, job.key))
    return jobs


def perform(grid: Grid, job: Job, store: Store, report: Callable[[float, str], None] | None = None) -> str:
    """Do one run and save its record; returns its status, or ``"elsewhere"`` if another process is at it."""
    name = grid.benchmark.name
    with store.claim(name, job.key) as mine:
        if not mine:
            return "elsewhere"
        staged = store.stage(name, job.key)
        context = RunContext(job.seed, staged, store.checkpoints(name, job.key), device=grid.device, report=report)
        task, method = grid.tasks[job.task], grid.methods[job.method]
        outcome: dict[str, Any]
        heard: list[warnings.WarningMessage] = []
        try:
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("default")
                with Meter() as meter:
                    values = grid.benchmark.evaluate(task, method, context)
            outcome = {"status": "ok", "metrics": clean_metrics(values, grid.benchmark)}
            context.save()
        except KeyboardInterrupt:
            shutil.rmtree(staged, ignore_errors=True)
            raise
        except SkipRun as reason:
            outcome = {"status": "skipped", "failure": Failure(type="SkipRun", message=str(reason))}
        except (Exception, SystemExit) as error:
            outcome = {"status": "failed", "failure": failure_of(error)}
        said = list(dict.fromkeys(f"{w.category.__name__}: {w.message}" for w in heard))[:20]
        record = grid.record(
            job,
            **outcome,
            notes=context.notes,
            warnings=said,
            started=meter.started,
            wall_seconds=meter.wall,
            cpu_seconds=meter.cpu,
            peak_memory_bytes=meter.peak,
        )
        return store.commit(record, staged).status


def failure_of(error: BaseException) -> Failure:
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    text = "".join(lines)
    if isinstance(error, SystemExit):
        return Failure(type="SystemExit", message=f"the method called exit({error.code!r})", traceback=text)
    return Failure(type=type(error).__name__, message=str(error) or repr(error), traceback=text)


def now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat(timespec="milliseconds")


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
