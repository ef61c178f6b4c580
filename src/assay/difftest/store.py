"""A trace on disk: for each rank and step an index (JSON) and its tensors (safetensors).

The index is written last and renamed into place, so a step is there whole or not at all; nothing here needs
`torch.distributed`, and any number of rank files are opened lazily.
"""

from __future__ import annotations

import json
import math
import os
import queue
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from assay.difftest.errors import DiffTestError, TraceCorrupt
from assay.difftest.names import Name
from assay.difftest.shards import Index, Merged, Piece, Problem, ShardSpec, merge
from assay.difftest.sketch import Digest, digest

FORMAT = 1
PART_BYTES = 64 << 20
BATCH_BYTES = 16 << 20
SAMPLE = 1024
_BYTES = {torch.float8_e4m3fn, torch.float8_e5m2}


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
        self._parts: dict[str, Tensor] = {}
        self._batch: list[Any] = []
        self._batched = 0
        self._size = 0
        self._number = 0
        self._thread: threading.Thread | None = None

    def put(self, entry: Entry, tensor: Tensor, ready: Any = None, *, digest_of: Index | None = None) -> None:
        """Queue a tensor that nobody else will change.

        ``ready`` is a CUDA event to wait for. With ``digest_of`` the digest is made here, behind the computation.
        """
        self._raise()
        size = tensor.numel() * tensor.element_size()
        with self._room:
            if self._waiting and self._waiting + size > self.limit:
                self._hand_over()
            while self._waiting and self._waiting + size > self.limit and self._error is None:
                self._room.wait(1.0)
            self._waiting += size
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="assay-trace", daemon=True)
            self._thread.start()
        # handed over in batches: a hand-over wakes the other thread, which costs more than a small copy
        self._batch.append((entry, tensor, ready, size, digest_of))
        self._batched += size
        if self._batched >= BATCH_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._batch:
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
                "meta": self.meta, **extra, "entries": [_slim(e) for e in entries],
            }  # fmt: skip
            write_text(target, json.dumps(facts))
            done.set()

        if self._thread is None:
            index()
            return target
        self._hand_over()
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
        self._raise()

    def _stem(self, step: int) -> str:
        return f"rank{self.rank:05d}-step{step:06d}"

    def _raise(self) -> None:
        if self._error is not None:
            raise TraceCorrupt(f"a trace could not be written to {self.folder}: {self._error}") from self._error

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                if isinstance(item, tuple):
                    step, index = item
                    self._flush(step)
                    self._number = 0
                    index()
                    continue
                for entry, tensor, ready, size, index_of in item:
                    self._take(entry, tensor, ready, size, index_of)
                item = None
            except BaseException as error:
                self._error = error
                with self._room:
                    self._room.notify_all()
                return

    def _take(self, entry: Entry, tensor: Tensor, ready: Any, size: int, index_of: Index | None) -> None:
        if ready is not None:
            ready.synchronize()
        if index_of is not None:
            made = digest(tensor, index_of)
            entry.stats, tensor = made.stats(), made.sketch
            with self._room:
                self._waiting -= size
                self._room.notify_all()
            size = 0
        step = Name.parse(entry.name).step
        key = entry.name + ("" if entry.level == "full" else f"@{entry.level}")
        entry.file = f"{self._stem(step)}-{self._number}.safetensors"
        self._parts[key] = tensor.view(torch.uint8) if tensor.dtype in _BYTES else tensor.contiguous()
        self._size += size
        if self._size >= PART_BYTES:
            self._flush(step)

    def _flush(self, step: int) -> None:
        if self._parts:
            target = self.folder / f"{self._stem(step)}-{self._number}.safetensors"
            part = target.with_name(f".{target.name}.{os.getpid()}.part")
            save_file(self._parts, str(part))
            _into_place(part, target, self.fsync)
        self._number += 1
        with self._room:
            self._waiting -= self._size
            self._room.notify_all()
        self._parts, self._size = {}, 0


def _slim(entry: Entry) -> dict[str, Any]:
    return {k: v for k, v in asdict(entry).items() if not (v is None or v is False or v == "" or v == {})}


def _into_place(part: Path, target: Path, fsync: bool = False) -> None:
    if fsync:
        with part.open("rb") as file:
            os.fsync(file.fileno())
    os.replace(part, target)


def write_text(target: Path, text: str) -> Path:
    """Write to a temporary name, then rename."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    return target


_DTYPES = {str(d).removeprefix("torch."): d for d in vars(torch).values() if isinstance(d, torch.dtype)}


@dataclass
class RankFile:
    """The index of one rank and step."""

    path: Path
    rank: int
    world: int
    coords: dict[str, tuple[int, int]]
    step: int
    meta: dict[str, Any]
    entries: dict[str, Entry]
    collectives: list[dict[str, Any]]
    notes: list[str]

    @classmethod
    def read(cls, path: Path) -> RankFile:
        """Read an index.

        Raises
        ------
        TraceCorrupt
        """
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            if raw["format"] != FORMAT:
                raise TraceCorrupt(f"{path} is of trace format {raw['format']}, this version reads {FORMAT}")
            entries = {}
            for e in raw["entries"]:
                e["shape"] = tuple(e["shape"])
                e["full"] = tuple(e["full"]) if e.get("full") else None
                entries[e["name"]] = Entry(**{"spec": "", **e})
            coords = {a: (int(i), int(n)) for a, (i, n) in raw["coords"].items()}
            return cls(path, raw["rank"], raw["world"], coords, raw["step"], raw["meta"], entries,
                       raw.get("collectives", []), raw.get("notes", []))  # fmt: skip
        except json.JSONDecodeError as error:
            raise TraceCorrupt(
                f"{path} is damaged at offset {error.pos}: {error.msg}; trace that rank again"
            ) from error
        except (KeyError, TypeError, ValueError, OSError) as error:
            if isinstance(error, TraceCorrupt):
                raise
            raise TraceCorrupt(f"{path} is no index of a trace: {type(error).__name__} {error}") from error


class Trace:
    """A trace that was written by `assay.difftest.trace`.

    Examples
    --------
    >>> import tempfile
    >>> from torch import nn
    >>> from assay.difftest import trace
    >>> folder = tempfile.mkdtemp()
    >>> with trace(nn.Linear(2, 1), folder) as t:
    ...     _ = t.models[0](torch.ones(1, 2)).sum().backward()
    >>> [name for name in Trace.open(folder).names() if "/out/" in name]
    ['0/0/out/model/0']
    """

    def __init__(self, folder: Path, files: Sequence[RankFile]) -> None:
        self.folder = folder
        self.files = list(files)
        self.world = max(f.world for f in files)
        self._handles: dict[Path, Any] = {}

    @classmethod
    def open(cls, folder: str | Path) -> Trace:
        """Open a folder.

        Raises
        ------
        TraceCorrupt
            If it holds no trace, or a file is damaged.
        """
        folder = Path(folder)
        paths = sorted(folder.glob("rank*-step*.json"))
        if not paths:
            raise TraceCorrupt(f"{folder} holds no trace (no file rank*-step*.json)")
        return cls(folder, [RankFile.read(path) for path in paths])

    @property
    def meta(self) -> dict[str, Any]:
        """What was noted with the trace."""
        return self.files[0].meta

    @property
    def steps(self) -> list[int]:
        """Steps that at least one rank finished."""
        return sorted({f.step for f in self.files})

    def missing_ranks(self, step: int | None = None) -> list[int]:
        """Ranks of the world that left no complete file (of a step)."""
        there = {f.rank for f in self.files if step is None or f.step == step}
        return sorted(set(range(self.world)) - there)

    def names(self) -> list[str]:
        """All names in the order of execution (the earliest over ranks)."""
        first: dict[str, tuple[int, int]] = {}
        for file in self.files:
            for name, entry in file.entries.items():
                at = (file.step, entry.order)
                if name not in first or at < first[name]:
                    first[name] = at
        return sorted(first, key=lambda n: first[n])

    def entries(self, name: str) -> list[tuple[RankFile, Entry]]:
        """The ranks that hold a tensor, aliases resolved."""
        return [(f, self._resolved(f, name)) for f in self.files if name in f.entries]

    def alias(self, name: str) -> str:
        """The name under which a tensor is stored, where it was seen under another one before (on every rank)."""
        targets = {f.entries[name].alias for f in self.files if name in f.entries}
        return targets.pop() if len(targets) == 1 else ""

    def __contains__(self, name: str) -> bool:
        return any(name in f.entries for f in self.files)

    def _resolved(self, file: RankFile, name: str) -> Entry:
        entry = file.entries[name]
        for _ in range(64):
            if not entry.alias:
                return entry
            if entry.alias not in file.entries:
                raise TraceCorrupt(f"{file.path}: {name} stands for {entry.alias}, which is not there")
            entry = file.entries[entry.alias]
        raise TraceCorrupt(f"{file.path}: the name {name} stands for itself")

    def local(self, file: RankFile, entry: Entry) -> Tensor:
        """A rank's tensor (for level ``digest`` its sketch, for ``sample`` the values)."""
        path = self.folder / entry.file
        if not re.fullmatch(r"[\w.-]+\.safetensors", entry.file):
            raise TraceCorrupt(f"{file.path}: {entry.name} names the file {entry.file!r}")
        key = entry.name + ("" if entry.level == "full" else f"@{entry.level}")
        try:
            if path not in self._handles:
                self._handles[path] = safe_open(str(path), framework="pt")
            tensor = self._handles[path].get_tensor(key)
        except (SafetensorError, OSError, KeyError) as error:
            size = path.stat().st_size if path.exists() else 0
            raise TraceCorrupt(
                f"{path} ({size} bytes) cannot be read at {key}: {error}; trace that rank again"
            ) from error
        wanted = _DTYPES.get(entry.dtype)
        return tensor.view(wanted) if wanted in _BYTES and entry.level == "full" else tensor

    def pieces(self, name: str) -> list[Piece]:
        """The tensors of all ranks under a name, with their places."""
        return [
            Piece(f.rank, f.coords, self.local(f, e), ShardSpec.parse(f.entries[name].spec or e.spec))
            for f, e in self.entries(name)
        ]

    def shape(self, name: str) -> tuple[int, ...]:
        """The whole shape, as far as the trace itself tells it."""
        held = self.entries(name)
        for _, e in held:
            if e.full:
                return e.full
        file, e = held[0]
        spec = ShardSpec.parse(e.spec)
        if any(type(p).__name__ == "Flat" for _, p in spec.placements):
            return (sum(math.prod(x.shape) for _, x in held),)
        return spec.full_shape(e.shape, file.coords)

    def level(self, name: str) -> str:
        """Level of a tensor."""
        return self.entries(name)[0][1].level

    def merged(self, name: str, shape: Sequence[int] | None = None) -> Merged:
        """The whole tensor, with what was found on the way."""
        return merge(self.pieces(name), shape if shape is not None else self.shape(name))

    def tensor(self, name: str) -> Tensor:
        """The whole tensor.

        Raises
        ------
        DiffTestError
            If the ranks' parts do not make one.
        """
        merged = self.merged(name)
        if merged.tensor is None:
            raise DiffTestError(f"{name}: {merged.problems[0].message}")
        return merged.tensor

    def digest(self, name: str) -> tuple[Digest, list[Problem]]:
        """The digest of the whole tensor: that of the ranks added up, copies left out and compared."""
        total: Digest | None = None
        seen: dict[Any, tuple[int, Digest]] = {}
        problems: list[Problem] = []
        shape = self.shape(name)
        for file, entry in self.entries(name):
            spec = ShardSpec.parse(entry.spec)
            key: tuple[Any, ...] = (spec.index(shape, file.coords).key,)
            key += tuple(file.coords.get(a, (0, 1))[0] for a in spec.partial_axes)
            one = Digest.of(self.local(file, entry), entry.stats)
            if key in seen:
                rank, first = seen[key]
                if not torch.equal(first.sketch, one.sketch):
                    gap = first.distance(one)
                    text = f"copies on ranks {rank} and {file.rank} must be equal; their sketches differ by {gap:.3g}"
                    relative = gap / max(first.norm, 1e-300)
                    problems.append(Problem("replica conflict", text, (rank, file.rank), (), gap, relative))
                continue
            seen[key] = (file.rank, one)
            total = one if total is None else total + one
        if total is None:
            raise DiffTestError(f"no rank holds {name}")
        missing = math.prod(shape) - sum(d.count for _, d in seen.values())
        if missing > 0 and not any(ShardSpec.parse(e.spec).partial_axes for _, e in self.entries(name)):
            problems.append(Problem("missing region", f"{missing} of {math.prod(shape)} elements are on no rank"))
        return total, problems

    def collectives(self) -> list[dict[str, Any]]:
        """The logged collectives of all ranks, each with its rank and step."""
        return [{**c, "rank": f.rank, "step": f.step} for f in self.files for c in f.collectives]

    def nbytes(self) -> int:
        """Bytes of the tensors on disk."""
        return sum(p.stat().st_size for p in self.folder.glob("rank*.safetensors"))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __repr__(self) -> str:
        ranks = len({f.rank for f in self.files})
        return f"Trace({str(self.folder)!r}: {ranks} of {self.world} ranks, steps {self.steps})"


def sample_indices(shape: Iterable[int]) -> np.ndarray:
    """The global flat indices that level ``sample`` keeps, a function of the number of elements.

    >>> len(sample_indices((100, 100))), len(sample_indices((3, 4)))
    (1024, 12)
    """
    return _sampled(math.prod(tuple(shape)))


@lru_cache(maxsize=4096)
def _sampled(total: int) -> np.ndarray:
    from assay.difftest.tensors import random_values

    if total <= SAMPLE:
        return np.arange(total)
    drawn = (random_values("sample", np.arange(2 * SAMPLE), kind="uniform") * total).astype(np.int64)
    _, first = np.unique(drawn, return_index=True)
    return np.sort(drawn[np.sort(first)][:SAMPLE])
