"""A Ray cluster: the same jobs, the same records."""

from __future__ import annotations

import io
import logging
import tarfile
import tempfile
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import cloudpickle

from assay.core.errors import AssayError, WorkerDied
from assay.core.execute.display import Display
from assay.core.execute.grid import Grid, Job, failure_of, now, one_line, perform
from assay.core.execute.lanes import Lane
from assay.core.run import RunRecord
from assay.core.store import Store


def run_on_ray(grid: Grid, todo: Sequence[Job], address: str, display: Display) -> None:
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
        remote = ray.remote(num_cpus=1, max_retries=0)(work_on_ray)
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
                        status = unpack(packed, store, grid.benchmark.name, job.key)
                except ray.exceptions.RayTaskError as error:
                    cause = error.cause if isinstance(getattr(error, "cause", None), AssayError) else None
                    raise cause or AssayError(
                        f"{grid.describe(job)} could not be run on the cluster: {one_line(error)}"
                    ) from error
                except ray.exceptions.RayError as error:
                    failure = failure_of(WorkerDied(f"the Ray worker ended without a word ({one_line(error)})"))
                    record = grid.record(job, status="failed", failure=failure, started=now())
                    (store.folder(grid.benchmark.name) / ".claims" / job.key).unlink(missing_ok=True)
                    status = store.commit(record, store.stage(grid.benchmark.name, job.key)).status
                display.finished(status)
    finally:
        token.unlink(missing_ok=True)
        if started_here:
            ray.shutdown()


def work_on_ray(payload: bytes, job: Job, token: str) -> tuple[str, bytes | None]:
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


def unpack(packed: bytes, store: Store, benchmark: str, key: str) -> str:
    staged = store.stage(benchmark, key)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(staged, filter="data")
    record = RunRecord.model_validate_json((staged / "run.json").read_bytes())
    (staged / "run.json").unlink()
    return store.commit(record, staged).status
