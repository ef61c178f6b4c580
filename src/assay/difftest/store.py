"""A trace on disk: for each rank and step an index (JSON) and its tensors (safetensors).

The index is written last and renamed into place, so a step is there whole or not at all; nothing here needs
`torch.distributed`, and any number of rank files are opened lazily.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from assay.difftest.errors import DiffTestError, TraceCorrupt
from assay.difftest.shards import Merged, Piece, Problem, ShardSpec, merge
from assay.difftest.sketch import Digest
from assay.difftest.writer import BYTES, FORMAT, Entry

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
        key = entry.key
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
        return tensor.view(wanted) if wanted in BYTES and entry.level == "full" else tensor

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
