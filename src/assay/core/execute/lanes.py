"""Worker processes: lanes of one loky process each.

A process killed by the kernel takes exactly one run with it, which becomes a failed record; the other lanes go on.
"""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from assay.core.errors import AssayError, MemoryLimit, RunTimeout, StoreError, WorkerDied
from assay.core.execute.display import Display
from assay.core.execute.grid import Grid, Job, failure_of, now, one_line, perform
from assay.core.store import Store

BATCH_SECONDS = 0.1
POLL_SECONDS = 0.1

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
        self.stopped = False
        self._lock = threading.Lock()
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
            if self.stopped:
                if current is not None:
                    self._release(current)
                return results
            if current is None:  # not even the first job began
                failed_starts += 1
                if failed_starts == 2:
                    raise WorkerDied(f"worker processes cannot start here: {problem}")
                continue
            for job in left:
                if job.key == current:
                    record = self.grid.record(job, status="failed", failure=failure_of(problem), started=now())
                    self._release(job.key)
                    self.store.commit(record, self.store.stage(self.grid.benchmark.name, job.key))
                    results.append(("failed", 0.0))
                    break
                present = self.store.read(self.grid.benchmark.name, job.key)
                results.append((present.status if present else "elsewhere", 0.0))
        return results

    def _release(self, key: str) -> None:
        """Give up the claim of a process that is gone."""
        (self.store.folder(self.grid.benchmark.name) / ".claims" / key).unlink(missing_ok=True)

    def close(self) -> None:
        """End the process; the next job starts another."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True, kill_workers=True)

    def stop(self) -> None:
        """End the process for good, also while the lane's thread is at starting one."""
        self.stopped = True
        self.close()

    def _start(self) -> Any:
        with self._lock:
            if self.stopped:
                raise WorkerDied("the grid was interrupted")
            return self._running()

    def _running(self) -> Any:
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
            if self.stopped:
                return WorkerDied("the grid was interrupted")
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
    return codes[1] if codes else f"{type(error).__name__}: {one_line(error)}"


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


def run_in_lanes(grid: Grid, todo: Sequence[Job], workers: int, display: Display) -> None:
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
                lane.stop()
            for thread in threads:
                thread.join(5)
    if errors:
        raise errors[0]
