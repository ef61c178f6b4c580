"""Run a grid: here, in worker processes (loky), or on a Ray cluster. Same jobs, same records.

Worker processes are lanes of one process each, so that a process killed by the kernel takes exactly one run with it,
which becomes a failed record, while the other lanes go on.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shutil
import signal
import tarfile
import tempfile
import threading
import time
import traceback
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from assay.core.benchmark import Benchmark, Method, Task, plain, run_key
from assay.core.errors import AssayError, MemoryLimit, RunTimeout, SkipRun, StoreError, WorkerDied
from assay.core.results import Results
from assay.core.run import Failure, Meter, RunContext, RunRecord, clean_metrics, provenance
from assay.core.store import Store

BATCH_SECONDS = 0.1
POLL_SECONDS = 0.1


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a grid; what was finished is in the store."""

    def __init__(self, done: int, total: int, store: Store) -> None:
        self.done, self.total, self.store = done, total, store
        super().__init__(
            f"interrupted: {done} of {total} runs are finished and kept in {store.root}; "
            f"run the same command again to go on"
        )


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
    jobs = _jobs(grid, seeds, where)
    # The reason for skipping may be gone by now: a package was installed, a file was put in place.
    again = {"skipped", "failed"} if retry_failed else {"skipped"}
    done = where.finished(benchmark.name, [job.key for job in jobs], retry=again)
    todo = [job for job in jobs if job.key not in done and job.fingerprint]
    with _Display(benchmark, len(jobs), len(jobs) - len(todo), progress) as display:
        try:
            if ray is not None:
                _run_on_ray(grid, todo, ray, display)
            elif workers > 0 or timeout is not None or memory is not None:
                _run_in_lanes(grid, todo, max(1, workers), display)
            else:
                _run_here(grid, todo, where, display)
            _await_others(grid, todo, where, display)
        except KeyboardInterrupt:
            raise Interrupted(display.done, len(jobs), where) from None
    return Results.from_store(benchmark, where, keys=[job.key for job in jobs])


def _jobs(grid: Grid, seeds: Iterable[int], store: Store) -> list[Job]:
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
            failure, fingerprint = _failure(error), ""
        for seed in seeds:
            for j, method in pairs:
                job = Job(i, j, int(seed), run_key(grid.benchmark, task, method, int(seed), fingerprint), fingerprint)
                jobs.append(job)
                if failure is not None:  # no data: on record at once, and tried again by the next call
                    record = grid.record(job, status="failed", failure=failure, started=_now())
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
            outcome = {"status": "failed", "failure": _failure(error)}
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


def _failure(error: BaseException) -> Failure:
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    text = "".join(lines)
    if isinstance(error, SystemExit):
        return Failure(type="SystemExit", message=f"the method called exit({error.code!r})", traceback=text)
    return Failure(type=type(error).__name__, message=str(error) or repr(error), traceback=text)


def _now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat(timespec="milliseconds")


# -- in this process -------------------------------------------------------------------------------------------------


def _run_here(grid: Grid, todo: Sequence[Job], store: Store, display: _Display) -> None:
    for job in todo:
        display.at(0, grid.describe(job))
        display.finished(perform(grid, job, store, partial(display.at, 0, grid.describe(job))))


# -- in worker processes ---------------------------------------------------------------------------------------------

_grid: Grid | None = None
_status_file: Path | None = None


def _start_worker(payload: bytes, status_file: str) -> None:
    global _grid, _status_file
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    _grid = cloudpickle.loads(payload)
    _status_file = Path(status_file)


def _work(batch: Sequence[Job]) -> list[tuple[str, float]]:
    assert _grid is not None and _status_file is not None
    status_file, store = _status_file, Store(_grid.store)
    results = []
    for job in batch:
        began = time.monotonic()

        def report(fraction: float, text: str, job: Job = job, began: float = began) -> None:
            _write_status(status_file, job.key, began, fraction, text)

        report(0.0, "")
        status = perform(_grid, job, store, report)
        results.append((status, time.monotonic() - began))
    return results


def _write_status(path: Path, key: str, began: float, fraction: float, text: str) -> None:
    text = json.dumps({"key": key, "pid": os.getpid(), "began": began, "fraction": fraction, "text": text})
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    os.replace(temporary, path)


class Lane:
    """One worker process; started anew after it died or was ended."""

    def __init__(self, grid: Grid, number: int, scratch: Path, lanes: int = 1) -> None:
        self.grid = grid
        self.lanes = lanes
        self.number = number
        self.status_file = scratch / f"lane-{number}.json"
        self.store = Store(grid.store)
        self._executor: Any = None
        self._payload = cloudpickle.dumps(grid)

    def run(self, batch: Sequence[Job], watch: Callable[[dict[str, Any]], None]) -> list[tuple[str, float]]:
        """Do these jobs; a job that kills the process or breaks a limit gets a failed record, the rest go on."""
        results: list[tuple[str, float]] = []
        failed_starts = 0
        while len(results) < len(batch):
            left = batch[len(results) :]
            self.status_file.unlink(missing_ok=True)
            future = self._start().submit(_work, left)
            problem = self._wait(future, watch)
            if problem is None:
                try:
                    return results + future.result()
                except StoreError:
                    raise
                except AssayError:
                    raise
                except Exception as error:  # loky's TerminatedWorkerError, BrokenProcessPool, unpicklable results
                    problem = WorkerDied(f"the worker process ended without a word ({_how(error)})")
            self.close()
            current = self._status().get("key")
            if current is None:  # not even the first job began
                failed_starts += 1
                if failed_starts == 2:
                    raise WorkerDied(f"worker processes cannot start here: {problem}")
                continue
            for job in left:
                if job.key == current:
                    record = self.grid.record(job, status="failed", failure=_failure(problem), started=_now())
                    claim = self.store.folder(self.grid.benchmark.name) / ".claims" / job.key
                    claim.unlink(missing_ok=True)
                    self.store.commit(record, self.store.stage(self.grid.benchmark.name, job.key))
                    results.append(("failed", 0.0))
                    break
                present = self.store.read(self.grid.benchmark.name, job.key)
                results.append((present.status if present else "elsewhere", 0.0))
        return results

    def close(self) -> None:
        """End the process."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, kill_workers=True)
            self._executor = None

    def _start(self) -> Any:
        if self._executor is None:
            from loky.process_executor import ProcessPoolExecutor

            # loky renews a worker that has grown by 300 MB (a model, a compiler) once its batch is done, and says so
            warnings.filterwarnings("ignore", message="A worker (stopped|was restarted)", category=UserWarning)
            self._executor = ProcessPoolExecutor(
                max_workers=1,
                initializer=_start_worker,
                initargs=(self._payload, str(self.status_file)),
                env=_threads(self.lanes),
            )
        return self._executor

    def _wait(self, future: Any, watch: Callable[[dict[str, Any]], None]) -> AssayError | None:
        from concurrent.futures import TimeoutError as NotYet

        while True:
            try:
                future.exception(timeout=POLL_SECONDS)
                return None
            except NotYet:
                pass
            status = self._status()
            if not status:
                continue
            watch(status)
            seconds = time.monotonic() - status["began"]
            if self.grid.timeout is not None and seconds > self.grid.timeout:
                return RunTimeout(f"ended after {seconds:.1f} s; the limit is {self.grid.timeout:g} s")
            if self.grid.memory is not None and (used := _resident(status["pid"])) > self.grid.memory:
                return MemoryLimit(f"ended at {used / 2**20:.0f} MiB; the limit is {self.grid.memory / 2**20:.0f} MiB")

    def _status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.status_file.read_text())
            return found
        except (OSError, ValueError):
            return {}


def _threads(lanes: int) -> dict[str, str]:
    """Threads of numerical libraries in one of so many workers: a fair share of the cores, unless the user says."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    share = str(max(1, cores // lanes))
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    return {name: os.environ.get(name, share) for name in names}


def _resident(pid: int) -> int:
    try:
        process = psutil.Process(pid)
        return sum(p.memory_info().rss for p in [process, *process.children(recursive=True)])
    except psutil.Error:
        return 0


def _how(error: Exception) -> str:
    """Exit codes if loky knows them, else its message."""
    codes = re.search(r"\{([^{}]+)\}", str(error))
    return codes[1] if codes else f"{type(error).__name__}: {_one_line(error)}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


@dataclass
class _Queue:
    """Jobs left to do, handed out in batches that take about `BATCH_SECONDS`."""

    jobs: deque[Job]
    single: bool
    lock: threading.Lock = field(default_factory=threading.Lock)
    seconds: float = 1.0

    def take(self, lanes: int) -> list[Job]:
        with self.lock:
            size = (
                1 if self.single else max(1, min(int(BATCH_SECONDS / self.seconds), len(self.jobs) // (2 * lanes), 256))
            )
            return [self.jobs.popleft() for _ in range(min(size, len(self.jobs)))]

    def learn(self, seconds: Sequence[float]) -> None:
        with self.lock:
            self.seconds = 0.5 * self.seconds + 0.5 * max(1e-4, max(seconds))


def _run_in_lanes(grid: Grid, todo: Sequence[Job], workers: int, display: _Display) -> None:
    if not todo:
        return
    queue = _Queue(deque(todo), single=grid.timeout is not None or grid.memory is not None)
    stop = threading.Event()
    errors: list[BaseException] = []
    workers = min(workers, len(todo))
    by_key = {job.key: job for job in todo}
    with tempfile.TemporaryDirectory(prefix="assay-") as scratch:
        lanes = [Lane(grid, i, Path(scratch), workers) for i in range(workers)]

        def drive(lane: Lane) -> None:
            def watch(status: dict[str, Any]) -> None:
                job = by_key.get(status["key"])
                if job is not None:
                    display.at(lane.number, grid.describe(job), status["fraction"], status["text"])

            try:
                while not stop.is_set() and (batch := queue.take(workers)):
                    results = lane.run(batch, watch)
                    queue.learn([seconds for _, seconds in results])
                    for status, _ in results:
                        display.finished(status)
            except BaseException as error:
                if not stop.is_set():
                    errors.append(error)
                    stop.set()

        threads = [threading.Thread(target=drive, args=(lane,), daemon=True) for lane in lanes]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        finally:
            stop.set()
            for lane in lanes:
                lane.close()
            for thread in threads:
                thread.join(5)
    if errors:
        raise errors[0]


# -- on a Ray cluster ------------------------------------------------------------------------------------------------


def _run_on_ray(grid: Grid, todo: Sequence[Job], address: str, display: _Display) -> None:
    try:
        import ray
    except ImportError:
        from assay.core.errors import MissingExtraError

        raise MissingExtraError("running on a Ray cluster", "ray", "ray") from None
    if not todo:
        return
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(address=None if address == "local" else address, log_to_driver=False, logging_level=logging.ERROR)
    token = grid.store / f".shared-{uuid.uuid4().hex}"
    token.touch()
    try:
        payload = ray.put(cloudpickle.dumps(grid))
        # Ray retries a task whose worker died; here that is a failed run, so it must not.
        remote = ray.remote(num_cpus=1, max_retries=0)(_ray_work)
        capacity = max(1, int(ray.cluster_resources().get("CPU", 1)))
        waiting = deque(todo)
        flying: dict[Any, Job] = {}
        store = Store(grid.store)
        while waiting or flying:
            while waiting and len(flying) < 2 * capacity:
                job = waiting.popleft()
                flying[remote.remote(payload, job, str(token))] = job
            ready, _ = ray.wait(list(flying), num_returns=1, timeout=1.0)
            for reference in ready:
                job = flying.pop(reference)
                display.at(0, grid.describe(job))
                try:
                    status, packed = ray.get(reference)
                    if packed is not None:
                        status = _unpack(packed, store, grid.benchmark.name, job.key)
                except ray.exceptions.RayTaskError as error:
                    cause = error.cause if isinstance(getattr(error, "cause", None), AssayError) else None
                    raise cause or AssayError(
                        f"{grid.describe(job)} could not be run on the cluster: {_one_line(error)}"
                    ) from error
                except ray.exceptions.RayError as error:
                    failure = _failure(WorkerDied(f"the Ray worker ended without a word ({_one_line(error)})"))
                    record = grid.record(job, status="failed", failure=failure, started=_now())
                    (store.folder(grid.benchmark.name) / ".claims" / job.key).unlink(missing_ok=True)
                    status = store.commit(record, store.stage(grid.benchmark.name, job.key)).status
                display.finished(status)
    finally:
        token.unlink(missing_ok=True)
        if started_here:
            ray.shutdown()


def _ray_work(payload: bytes, job: Job, token: str) -> tuple[str, bytes | None]:
    """In a Ray worker: save into the store if this machine sees it, else send the files back."""
    grid: Grid = cloudpickle.loads(payload)
    shared = Path(token).exists()
    with nullcontext(str(grid.store)) if shared else tempfile.TemporaryDirectory(prefix="assay-") as root:
        grid.store = Path(root)
        store = Store(root)
        if not shared:
            store.prepare(grid.benchmark.name)
        if grid.timeout is not None or grid.memory is not None:
            with tempfile.TemporaryDirectory(prefix="assay-") as scratch:
                lane = Lane(grid, 0, Path(scratch))
                try:
                    status = lane.run([job], lambda _: None)[0][0]
                finally:
                    lane.close()
        else:
            status = perform(grid, job, store)
        if shared:
            return status, None
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            archive.add(store.run_folder(grid.benchmark.name, job.key), arcname=".")
        return status, buffer.getvalue()


def _unpack(packed: bytes, store: Store, benchmark: str, key: str) -> str:
    staged = store.stage(benchmark, key)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(staged, filter="data")
    record = RunRecord.model_validate_json((staged / "run.json").read_bytes())
    (staged / "run.json").unlink()
    return store.commit(record, staged).status


# -- both ------------------------------------------------------------------------------------------------------------


def _await_others(grid: Grid, todo: Sequence[Job], store: Store, display: _Display) -> None:
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
                    _run_in_lanes(grid, [job], 1, display)
                else:
                    _run_here(grid, [job], store, display)
        display.at(0, f"{len(missing)} runs are being done by another process")
        time.sleep(0.5)


class _Display:
    """The progress line: how many runs, how many failed, what is being run. Written to stderr, only on a terminal."""

    def __init__(self, benchmark: Benchmark, total: int, done: int, show: bool) -> None:
        self.benchmark = benchmark
        self.total = total
        self.done = done
        self.failed = 0
        self._lock = threading.Lock()
        self._progress: Any = None
        if show:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("[bold]{task.fields[name]}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[now]}", markup=False),
                console=Console(stderr=True),
            )

    def __enter__(self) -> _Display:
        if self._progress is not None:
            self._progress.start()
            self._bar = self._progress.add_task(
                "", total=self.total, completed=self.done, name=self.benchmark.name, now=""
            )
        return self

    def __exit__(self, *exc: object) -> None:
        if self._progress is not None:
            now = f"{self.failed} failed" if self.failed else ""
            self._progress.update(self._bar, now=now)
            self._progress.stop()

    def at(self, lane: int, what: str, fraction: float = 0.0, text: str = "") -> None:
        if self._progress is not None:
            share = f" {fraction:.0%}" if fraction else ""
            self._progress.update(self._bar, now=f"{what}{share} {text}".rstrip())

    def finished(self, status: str) -> None:
        if status == "elsewhere":
            return
        with self._lock:
            self.done += 1
            self.failed += status == "failed"
        if self._progress is not None:
            self._progress.update(self._bar, completed=self.done)
