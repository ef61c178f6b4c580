"""A pool of processes that runs one distributed job after the other; importing torch happens once.

Each job makes process groups of its own (a rendezvous file in a fresh folder, so no port has to be chosen), and ends
them. A job that hangs or dies takes down only the pool's own processes, and the pool starts anew.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.difftest.errors import LaunchError

_PRELOAD = [
    "torch", "torch.distributed", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "safetensors.torch",
    "torch.utils.checkpoint", "numpy", "assay.difftest.testbed.launch",
]  # fmt: skip


def _worker(rank: int, pipe: Any) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if Path("/sys/class/net/lo").exists() else "")
    if not os.environ["GLOO_SOCKET_IFNAME"]:
        del os.environ["GLOO_SOCKET_IFNAME"]
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        if job is None:
            return
        module, name, world, folder, kwargs = job
        try:
            dist.init_process_group(
                "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world,
            )  # fmt: skip
            try:
                result = getattr(importlib.import_module(module), name)(**kwargs)
            finally:
                dist.destroy_process_group()
            pipe.send(("ok", result))
        except BaseException as error:
            pipe.send(("error", f"{type(error).__name__}: {error}", traceback.format_exc()))


class Pool:
    """Processes kept for many jobs.

    Parameters
    ----------
    size : int
        Processes to begin with; a job that needs more adds them.
    timeout : float
        Seconds that a job may take.
    """

    def __init__(self, size: int = 2, *, timeout: float = 240.0) -> None:
        self.timeout = timeout
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOAD)
        self._processes: list[tuple[Any, Any]] = []
        self._grow(size)

    def _grow(self, size: int) -> None:
        while len(self._processes) < size:
            ours, theirs = self._context.Pipe()
            rank = len(self._processes)
            process = self._context.Process(target=_worker, args=(rank, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append((process, ours))

    def run(self, function: Callable[..., Any] | str, world: int, **kwargs: Any) -> list[Any]:
        """Run a module-level function on ranks 0 to ``world - 1``; its results by rank.

        Raises
        ------
        LaunchError
            If a rank raised, died or did not answer in time; the message holds its traceback.
        """
        if isinstance(function, str):
            module, _, name = function.rpartition(".")
        else:
            module, name = function.__module__, function.__qualname__
        self._grow(world)
        with tempfile.TemporaryDirectory(prefix="assay-difftest-") as folder:
            for _, pipe in self._processes[:world]:
                pipe.send((module, name, world, folder, kwargs))
            answers = self._answers(world)
        failed = [(rank, a) for rank, a in enumerate(answers) if a[0] != "ok"]
        if failed:
            if any("did not answer" in a[1] or "died" in a[1] for _, a in failed) or len(failed) < world:
                self.close()
            # a rank that lost its partner says less than the one that raised first
            rank, answer = next(
                (
                    (r, a)
                    for r, a in failed
                    if not any(w in a[1] for w in ("closed by peer", "timed out", "reset by peer", "did not"))
                ),
                failed[0],
            )
            detail = f"\n{answer[2]}" if len(answer) > 2 else ""
            raise LaunchError(f"rank {rank} of {world}: {answer[1]}{detail}")
        return [a[1] for a in answers]

    def _answers(self, world: int) -> list[tuple[Any, ...]]:
        answers: list[tuple[Any, ...] | None] = [None] * world
        deadline = time.monotonic() + self.timeout
        while any(a is None for a in answers):
            for rank, (process, pipe) in enumerate(self._processes[:world]):
                if answers[rank] is not None:
                    continue
                try:
                    if pipe.poll(0.02):
                        answers[rank] = pipe.recv()
                        if answers[rank][0] != "ok":  # type: ignore[index]
                            deadline = min(deadline, time.monotonic() + 5.0)
                    elif not process.is_alive():
                        answers[rank] = ("error", f"the process died (exit code {process.exitcode})")
                        deadline = min(deadline, time.monotonic() + 5.0)
                except (EOFError, OSError):
                    answers[rank] = ("error", "the process died")
            if time.monotonic() > deadline:
                return [a if a is not None else ("error", f"did not answer within {self.timeout:g} s") for a in answers]
        return [a for a in answers if a is not None]

    def close(self) -> None:
        """End the pool's processes (no others)."""
        for _, pipe in self._processes:
            with contextlib.suppress(OSError, BrokenPipeError):
                pipe.send(None)
        for process, pipe in self._processes:
            process.join(0.5)
            if process.is_alive():
                process.terminate()
                process.join(2.0)
                if process.is_alive():
                    process.kill()
            pipe.close()
        self._processes.clear()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_shared: Pool | None = None


def shared_pool() -> Pool:
    """The pool of this process, made at the first call."""
    global _shared
    if _shared is None:
        import atexit

        _shared = Pool(2)
        atexit.register(_shared.close)
    return _shared
