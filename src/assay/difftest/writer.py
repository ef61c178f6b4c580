"""Writing a trace: tensors and the index of each step, in a thread of its own, behind the computation."""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assay.difftest.errors import TraceCorrupt
from assay.difftest.parts import PartFile

FORMAT = 2
PART_BYTES = 64 << 20
BATCH_BYTES = 16 << 20
REUSED = 1 << 14  # elements from which memory is used again
BYTES = {torch.float8_e4m3fn, torch.float8_e5m2}


@dataclass
class Entry:
    """One traced tensor of one rank."""

    name: str
    order: int
    dtype: str
    shape: tuple[int, ...]
    spec: str
    level: str = "full"
    full: tuple[int, ...] | None = None
    file: str = ""
    alias: str = ""
    stats: dict[str, float] = field(default_factory=dict)
    exact: bool = False

    @property
    def key(self) -> str:
        """Key of the tensor in its file."""
        return self.name if self.level == "full" else f"{self.name}@{self.level}"

    def facts(self) -> dict[str, Any]:
        """As plain data, without what is empty."""
        return {k: v for k, v in vars(self).items() if v or k in ("name", "order", "dtype", "shape")}


@dataclass
class _Item:
    entry: Entry
    tensor: Tensor
    ready: Any = None
    reuse: bool = False

    @property
    def size(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()


class Writer:
    """Writes a rank's trace in a thread of its own, with a bounded queue.

    Parameters
    ----------
    folder : path
    rank, world : int
    coords : mapping
        Axis -> (position, size).
    limit : int
        Bytes that may wait; a caller that is faster than the disk waits then.
    fsync : bool
        Force each file to the disk before it counts.
    """

    def __init__(
        self, folder: str | Path, rank: int = 0, world: int = 1, coords: Mapping[str, tuple[int, int]] | None = None,
        *, meta: Mapping[str, Any] | None = None, limit: int = 512 << 20, fsync: bool = False,
    ) -> None:  # fmt: skip
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.rank, self.world = rank, world
        self.coords = {axis: (int(i), int(n)) for axis, (i, n) in (coords or {}).items()}
        self.meta = dict(meta or {})
        self.fsync = fsync
        self.limit = limit
        self._waiting = 0
        self._room = threading.Condition()
        self._queue: queue.Queue[Any] = queue.Queue()
        self._error: BaseException | None = None
        self._batch: list[_Item] = []
        self._batched = 0
        self._part: PartFile | None = None
        self._late: list[_Item] = []
        self._number = 0
        self._thread: threading.Thread | None = None
        self._free: dict[tuple[int, torch.dtype], list[Tensor]] = {}

    def copy(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """A copy of a tensor on the host, and the CUDA event (or None) after which it is there.

        Memory that the thread is done with is used again: fresh pages cost more than the copy itself.
        """
        if tensor.device.type == "cuda":
            # the copy runs behind the computation on the same stream; the writer waits for the event
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            return host, event
        free = self._free.get((tensor.numel(), tensor.dtype))
        try:
            held = free.pop() if free else None
        except IndexError:
            held = None
        if held is None:
            return tensor.clone(memory_format=torch.contiguous_format), None
        return held.view(tensor.shape).copy_(tensor), None

    def put(self, entry: Entry, tensor: Tensor, ready: Any = None, *, reuse: bool = False) -> None:
        """Queue a tensor that nobody else will change.

        ``ready`` is a CUDA event to wait for.
        ``reuse`` says that the tensor is of `copy` and that its memory may be used again.
        """
        # handed over in batches: a hand-over wakes the other thread, which costs more than a small copy
        item = _Item(entry, tensor, ready, reuse and ready is None)
        self._batch.append(item)
        self._batched += item.size
        if self._batched >= BATCH_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        self._raise()
        if not self._batch:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="assay-trace", daemon=True)
            self._thread.start()
        with self._room:
            while self._waiting and self._waiting + self._batched > self.limit and self._error is None:
                self._room.wait(1.0)
            self._waiting += self._batched
        self._queue.put(self._batch)
        self._batch, self._batched = [], 0

    def finish(self, step: int, entries: Sequence[Entry], *, wait: bool = True, **extra: Any) -> Path:
        """Write the index of the step once its tensors are on the disk.

        Parameters
        ----------
        step : int
        entries : sequence of Entry
        wait : bool
            Wait for that; if not, it happens behind the computation, and `close` waits.
        **extra
            Further facts for the index.
        """
        target = self.folder / f"{self._stem(step)}.json"
        done = threading.Event()

        def index() -> None:
            facts = {
                "format": FORMAT, "rank": self.rank, "world": self.world, "coords": self.coords, "step": step,
                "meta": self.meta, **extra, "entries": [e.facts() for e in entries],
            }  # fmt: skip
            write_text(target, json.dumps(facts))
            done.set()

        self._hand_over()
        if self._thread is None:
            index()
            return target
        self._queue.put((step, index))
        while wait and not done.wait(0.5):
            self._raise()
            if not self._thread.is_alive():
                raise TraceCorrupt(f"the writer of {self.folder} stopped before step {step} was complete")
        self._raise()
        return target

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._hand_over()
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        if self._part is not None:  # of a step that was broken off
            self._part.drop()
            self._part = None
        self._free.clear()
        self._raise()

    def _stem(self, step: int) -> str:
        return f"rank{self.rank:05d}-step{step:06d}"

    def _raise(self) -> None:
        if self._error is not None:
            raise TraceCorrupt(f"a trace could not be written to {self.folder}: {self._error}") from self._error

    # --- in the thread -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                if isinstance(item, tuple):
                    self._flush()
                    self._number = 0
                    item[1]()
                    continue
                for one in item:
                    self._take(one)
                item = None
            except BaseException as error:
                self._error = error
                with self._room:
                    self._room.notify_all()
                return

    def _take(self, item: _Item) -> None:
        entry, tensor = item.entry, item.tensor
        if item.ready is not None:
            item.ready.synchronize()
        step = int(entry.name.partition("/")[0])
        tensor = tensor.view(torch.uint8) if tensor.dtype in BYTES else tensor
        part = self._part
        if part is not None and (part.size >= PART_BYTES or entry.key in part or part.full(entry.key, tensor)):
            self._flush()
        if self._part is None:
            self._part = PartFile(self.folder / f"{self._stem(step)}-{self._number}.safetensors")
        entry.file = self._part.target.name
        if self._part.add(entry.key, tensor):
            self._release(item.size, [item.tensor] if item.reuse else [])
        else:
            self._late.append(item)

    def _flush(self) -> None:
        if self._part is not None:
            self._part.close(fsync=self.fsync)
            self._part = None
        self._number += 1
        for item in self._late:
            self._release(item.size, [item.tensor] if item.reuse else [])
        self._late = []

    def _release(self, size: int, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if tensor.numel() >= REUSED:
                self._free.setdefault((tensor.numel(), tensor.dtype), []).append(tensor)
        with self._room:
            self._waiting -= size
            self._room.notify_all()


def write_text(target: Path, text: str) -> Path:
    """Write to a temporary name, then rename."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    return target
