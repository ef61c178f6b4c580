"""Checkpoints of DeepSpeed (ZeRO stages 1 and 2) as whole tensors: weights, FP32 copies and Adam's states.

A folder ``global_step<N>`` holds ``mp_rank_<m>_model_states.pt`` (weights, and ``param_shapes``: names and shapes by
group, in the order in which a group is laid out flat) and ``*zero_pp_rank_<r>_mp_rank_<m>_optim_states.pt`` (data rank
r's stretch of each flat group, the last one padded).
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from assay.difftest.errors import DiffTestError, TraceCorrupt

_ALLOWED = re.compile(
    r"collections\.(OrderedDict|defaultdict)|builtins\.(set|list|dict|int|float|bool|tuple|slice)"
    r"|torch\.(Size|device|Tensor|\w+Storage|b?float\d*\w*|u?int\d+|bool|half|double|long)"
    r"|torch\.storage\.(Untyped|Typed)Storage|torch\._utils\._rebuild_(tensor(_v[23])?|parameter)|torch\.nn\.parameter\.Parameter"
)


class _Foreign(dict):
    """Stands for an object of a class that is not needed (loss scalers, fragment addresses)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        pass


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(module, name) if _ALLOWED.fullmatch(f"{module}.{name}") else _Foreign


_PICKLE = SimpleNamespace(Unpickler=_Unpickler, load=lambda file, **_: _Unpickler(file).load(), __name__="tensors only")


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=False, pickle_module=_PICKLE)
    except Exception as error:
        raise TraceCorrupt(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(found, Mapping):
        raise TraceCorrupt(f"{path} holds no dictionary")
    return found


def is_deepspeed(folder: Path) -> bool:
    """Whether a folder is (or holds, by its file ``latest``) such a checkpoint."""
    return any(_step_folder(folder).glob("mp_rank_*_model_states.pt"))


def _step_folder(folder: Path) -> Path:
    latest = folder / "latest"
    return folder / latest.read_text(encoding="utf-8").strip() if latest.is_file() else folder


def tensors(folder: Path) -> Iterable[tuple[int, str, str, Tensor]]:
    """Step, phase, name and tensor of all that a checkpoint holds (of one model-parallel rank).

    Raises
    ------
    DiffTestError
        With more than one model-parallel rank: convert each by itself, since the files do not say how weights are cut.
    TraceCorrupt
    """
    folder = _step_folder(folder)
    models = sorted(folder.glob("mp_rank_*_model_states.pt"))
    if len(models) != 1:
        raise DiffTestError(
            f"{folder} holds {len(models)} model-parallel ranks; the files do not say how weights are cut, so put each "
            "into a folder of its own"
        )
    match = re.search(r"global_step(\d+)", folder.name)
    step = int(match[1]) if match else 0
    state = _read(models[0])
    for name, tensor in state.get("module", {}).items():
        if isinstance(tensor, Tensor):
            yield step, "param", re.sub(r"^module\.", "", name), tensor
    files = sorted(folder.glob("*zero_pp_rank_*_optim_states.pt"), key=_data_rank)
    if not files:
        return
    shapes = state.get("param_shapes")
    if not shapes:
        raise TraceCorrupt(f"{models[0]} has no param_shapes; the flat states cannot be told apart")
    parts = [_read(f).get("optimizer_state_dict", {}) for f in files]
    for number, group in enumerate(shapes if isinstance(shapes, Sequence) else [shapes]):
        flat = {"main_param": [_masters(p, number, f) for p, f in zip(parts, files)]}
        for key in ("exp_avg", "exp_avg_sq"):
            held = [h for p in parts if isinstance(h := _inner(p, number).get(key), Tensor)]
            if len(held) == len(parts):
                flat[key] = held
        for key, stretches in flat.items():
            whole, at = torch.cat([s.reshape(-1) for s in stretches]), 0
            for name, shape in group.items():
                n = math.prod(shape)
                if at + n > whole.numel():
                    raise TraceCorrupt(f"{folder}: the stretches of {key} end within {name}; a rank's file is missing")
                yield step, f"optim.{key}", re.sub(r"^module\.", "", name), whole[at : at + n].view(tuple(shape))
                at += n


def _data_rank(path: Path) -> int:
    match = re.search(r"zero_pp_rank_(\d+)", path.name)
    return int(match[1]) if match else 0


def _masters(part: Mapping[str, Any], group: int, path: Path) -> Tensor:
    found = part.get("single_partition_of_fp32_groups") or []
    if group >= len(found):
        raise TraceCorrupt(f"{path} has no FP32 copies of group {group}; stages 1 and 2 of ZeRO are read")
    return found[group]


def _inner(part: Mapping[str, Any], group: int) -> Mapping[str, Any]:
    base = part.get("base_optimizer_state", {})
    states = base.get("state", {}) if isinstance(base, Mapping) else dict(enumerate(base))
    found = states.get(group, {})
    return found if isinstance(found, Mapping) else {}
