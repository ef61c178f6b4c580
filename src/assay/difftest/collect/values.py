"""Small matters of the collector: structured values, the autograd engine, versions, ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def coords_of(mesh: Any) -> dict[str, tuple[int, int]]:
    """Axis -> (position, size) from a DeviceMesh or a mapping."""
    if mesh is None:
        return {}
    if isinstance(mesh, Mapping):
        return {str(a): (int(i), int(n)) for a, (i, n) in mesh.items()}
    dims = mesh.mesh_dim_names or tuple(f"mesh{i}" for i in range(mesh.ndim))
    return {dim: (mesh.get_local_rank(i), mesh.size(i)) for i, dim in enumerate(dims)}


class Replaced(torch.autograd.Function):
    """Another value forward; the gradient goes to where the tensor came from."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def mapped(value: Any, slot: str, visit: Callable[[str, Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return visit(slot, value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(v, f"{slot}.{k}", visit) for k, v in zip(value._fields, value)))
    if isinstance(value, (tuple, list)):
        return type(value)(mapped(v, f"{slot}.{i}", visit) for i, v in enumerate(value))
    if type(value) is dict:
        return {k: mapped(v, f"{slot}.{k}", visit) for k, v in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes: dict[str, Any] = {}
        for f in dataclasses.fields(value):
            old = getattr(value, f.name)
            new = mapped(old, f"{slot}.{f.name}", visit)
            if new is not old and f.init:
                changes[f.name] = new
        return dataclasses.replace(value, **changes) if changes else value
    return value


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def version(tensor: Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # inference tensors have none
        return 0


def rank_world() -> tuple[int, int]:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
