"""Other tools' dumps as traces: trees of ``.pt`` files, SGLang dumps, DCP, DeepSpeed, safetensors checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assay.difftest.deepspeed import is_deepspeed, tensors
from assay.difftest.errors import DiffTestError, TraceCorrupt
from assay.difftest.names import PHASES, Name
from assay.difftest.shards import ShardSpec
from assay.difftest.store import Trace
from assay.difftest.writer import Entry, Writer

_RANK = re.compile(r"(?:^|[_\-./])(?:rank|r)[_=\-]?(\d+)", re.IGNORECASE)
_STATES = "exp_avg|exp_avg_sq|max_exp_avg_sq|momentum_buffer|step|fp32_param|master_param"
_STAGES = {
    "forward": "out",
    "fwd": "out",
    "output": "out",
    "input": "in",
    "backward": "gout",
    "bwd": "gout",
    "grad": "grad",
}


def convert(source: str | Path, output: str | Path, *, kind: str = "auto", phase: str | None = None) -> Trace:
    """Write a trace from another tool's files.

    Parameters
    ----------
    source : path
    output : path
        Folder of the trace.
    kind : str
        ``pt`` (a file or folder; a folder's file names are modules, ``rank3`` in a path is the rank), ``sglang`` (names
        ``key=value___...``, with ``dims`` in the file's metadata), ``dcp`` (folder with ``.metadata``: torchtitan,
        Megatron's ``torch_dist``), ``deepspeed`` (folder ``global_step<N>``, or the one with ``latest``),
        ``safetensors`` (file or folder), or ``auto``.
    phase : str, optional
        Phase of tensors whose file does not say it: default ``out`` for dumps, ``param`` for checkpoints.

    Raises
    ------
    DiffTestError
        If the kind is not known or cannot be told.
    TraceCorrupt
        If a file cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> torch.save({"layers.0.fc1": torch.ones(2, 3)}, folder / "dump.pt")
    >>> convert(folder / "dump.pt", folder / "trace").names()
    ['0/0/out/layers.0.fc1/0']
    """
    source = Path(source)
    if not source.exists():
        raise DiffTestError(f"there is no {source}")
    kind = _told(source) if kind == "auto" else kind
    loaders = {
        "pt": load_pt, "sglang": load_sglang, "dcp": load_dcp, "deepspeed": load_deepspeed,
        "safetensors": load_safetensors,
    }  # fmt: skip
    if kind not in loaders:
        raise DiffTestError(f"there is no kind of dump {kind!r}; there are {', '.join(loaders)}")
    return write_trace(loaders[kind](source, phase=phase), output, meta={"converted_from": kind})


def _told(source: Path) -> str:
    if source.is_dir() and (source / ".metadata").is_file():
        return "dcp"
    if source.is_dir() and is_deepspeed(source):
        return "deepspeed"
    files = [source] if source.is_file() else sorted(p for p in source.rglob("*") if p.is_file())
    if any("___" in p.name and "=" in p.name for p in files):
        return "sglang"
    if any(p.suffix == ".safetensors" for p in files):
        return "safetensors"
    if any(p.suffix in (".pt", ".pth") for p in files):
        return "pt"
    raise DiffTestError(f"{source} holds no .pt, .safetensors or .distcp file; say what it is with kind=")


Record = tuple[Name, Tensor, int, "dict[str, tuple[int, int]]", "ShardSpec | None"]
"""Name, local tensor, rank, coordinates, specification."""


def write_trace(records: Iterable[Record], output: str | Path, *, meta: Mapping[str, Any] | None = None) -> Trace:
    """Write records as a trace."""
    by_rank: dict[int, list[Record]] = {}
    for record in records:
        by_rank.setdefault(record[2], []).append(record)
    if not by_rank:
        raise DiffTestError("there is no tensor to convert")
    world = max(by_rank) + 1
    for rank, own in by_rank.items():
        coords: dict[str, tuple[int, int]] = {}
        for record in own:
            coords.update(record[3])
        writer = Writer(output, rank, world, coords, meta=meta)
        for step in sorted({name.step for name, *_ in own}):
            entries: dict[str, Entry] = {}
            for order, (name, tensor, _, _, spec) in enumerate(r for r in own if r[0].step == step):
                text = str(name)
                if text in entries:
                    raise DiffTestError(f"two tensors of rank {rank} both become {text}")
                dtype = str(tensor.dtype).removeprefix("torch.")
                entry = Entry(text, order, dtype, tuple(tensor.shape), str(spec) if spec else "")
                entries[text] = entry
                writer.put(entry, tensor.detach().cpu().contiguous().clone())
            writer.finish(step, list(entries.values()))
        writer.close()
    return Trace.open(output)


def _loaded(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise TraceCorrupt(
            f"{path} cannot be read as tensors only ({type(error).__name__}: {str(error).splitlines()[0]}); save plain "
            "tensors, dictionaries and lists"
        ) from error


def _leaves(value: Any, path: str) -> Iterable[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for k, v in value.items():
            yield from _leaves(v, f"{path}.{k}" if path else str(k))
    elif isinstance(value, (list, tuple)):
        for i, v in enumerate(value):
            yield from _leaves(v, f"{path}.{i}" if path else str(i))


def _name(path: str, phase: str, *, step: int = 0, microbatch: int | None = 0, slot: str = "0") -> Name:
    """A canonical name from a dotted path; the phase is taken from the path where its last part says it."""
    parts = [p for p in re.split(r"[./]", path) if p]
    if parts and parts[-1].lower() in {*PHASES, *_STAGES}:
        word = parts.pop().lower()
        phase = _STAGES.get(word, word)
    if phase in ("param", "grad", "main_grad", "param_after") or phase.startswith("optim."):
        slot, microbatch = (parts.pop() if parts else "0"), None
    return Name(step, microbatch, phase, ".".join(parts) or "model", slot)


def load_pt(source: Path, *, phase: str | None = None) -> Iterable[Record]:
    """Tensors of ``.pt`` files: one file with a dictionary, or a folder whose file names are modules."""
    files = [source] if source.is_file() else sorted([*source.rglob("*.pt"), *source.rglob("*.pth")])
    for path in files:
        relative = path.name if source.is_file() else str(path.relative_to(source))
        match = _RANK.search(relative)
        rank = int(match[1]) if match else 0
        stem = "" if source.is_file() else _RANK.sub("", re.sub(r"\.pth?$", "", relative)).strip("_-./")
        for inner, tensor in _leaves(_loaded(path), ""):
            dotted = ".".join(x for x in (stem.replace("/", "."), inner) if x)
            yield _name(dotted, phase or "out"), tensor, rank, {}, None


def load_sglang(source: Path, *, phase: str | None = None) -> Iterable[Record]:
    """Files ``key=value___key=value.pt`` with a tensor or ``{"value": tensor, "meta": {...}}``, as of SGLang's dumper.

    ``name``, ``rank``, ``step`` (or ``forward_pass_id``), ``layer_id`` are read from the file name or the metadata;
    ``dims`` is a shard annotation, ``tp_rank``, ``tp_size`` and so on are the rank's place.
    """
    for path in sorted(source.rglob("*.pt")):
        loaded = _loaded(path)
        pairs = (part.partition("=") for part in path.stem.split("___"))
        facts: dict[str, Any] = {key: value for key, equals, value in pairs if equals}
        value = loaded
        if isinstance(loaded, Mapping) and "value" in loaded:
            value = loaded["value"]
            facts.update(loaded.get("meta") or {})
        if not isinstance(value, Tensor):
            continue
        name = str(facts.get("name", path.stem))
        if facts.get("layer_id") is not None and "layers." not in name:
            name = f"layers.{facts['layer_id']}.{name}"
        axes = {k.removesuffix("_rank") for k in facts if k.endswith("_rank")}
        coords = {a: (int(facts[f"{a}_rank"]), int(facts.get(f"{a}_size", 1))) for a in axes}
        step = int(facts.get("step", facts.get("forward_pass_id", 0)))
        spec = ShardSpec.parse(str(facts["dims"])) if facts.get("dims") else None
        call = int(facts.get("dump_index", 0)) if facts.get("repeated") else 0
        made = _name(name, phase or "out", step=step)
        yield (
            Name(made.step, made.microbatch, made.phase, made.module, made.slot, call),
            value,
            int(facts.get("rank", 0)),
            coords,
            spec,
        )


def load_safetensors(source: Path, *, phase: str | None = None) -> Iterable[Record]:
    """Whole tensors of a safetensors checkpoint."""
    from safetensors import SafetensorError, safe_open

    for path in [source] if source.is_file() else sorted(source.rglob("*.safetensors")):
        try:
            with safe_open(str(path), framework="pt") as file:
                for key in file.keys():  # noqa: SIM118
                    yield _name(key, phase or "param"), file.get_tensor(key), 0, {}, None
        except SafetensorError as error:
            raise TraceCorrupt(f"{path} is no safetensors file: {error}") from error


def load_dcp(source: Path, *, phase: str | None = None) -> Iterable[Record]:
    """Whole tensors of a PyTorch distributed checkpoint (also Megatron's ``torch_dist``).

    Keys ``optimizer.state.<state>.<parameter>`` (Megatron) and ``optimizer.state.<parameter>.<state>`` (torchtitan)
    become phase ``optim.<state>``; states of data loaders and schedulers, and settings of the optimizer, are left out.
    """
    from torch.distributed.checkpoint import FileSystemReader, load
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    reader = FileSystemReader(str(source))
    try:
        described = reader.read_metadata().state_dict_metadata
    except Exception as error:
        raise TraceCorrupt(f"{source}/.metadata cannot be read: {type(error).__name__} {error}") from error
    state = {
        key: torch.empty(tuple(m.size), dtype=m.properties.dtype)
        for key, m in described.items()
        if isinstance(m, TensorStorageMetadata)
    }
    load(state, checkpoint_id=str(source), no_dist=True)
    for key, tensor in state.items():
        if re.match(r"(train_state|lr_scheduler|dataloader)\b|(.*\.)?param_groups\b", key):
            continue
        before = re.fullmatch(rf"optimizer\.state\.({_STATES})\.(.+)", key)
        after = re.fullmatch(rf"optim(?:izer)?\.(?:state\.)?(.+)\.({_STATES})", key)
        if before:
            yield _name(before[2], f"optim.{before[1]}"), tensor, 0, {}, None
        elif after:
            yield _name(after[1], f"optim.{after[2]}"), tensor, 0, {}, None
        else:
            yield _name(re.sub(r"^model\.", "", key), phase or "param"), tensor, 0, {}, None


def load_deepspeed(source: Path, *, phase: str | None = None) -> Iterable[Record]:
    """Whole tensors of a DeepSpeed checkpoint (ZeRO 1 and 2, one model-parallel rank)."""
    for step, kind, name, tensor in tensors(source):
        yield _name(name, phase if phase and kind == "param" else kind, step=step), tensor, 0, {}, None
