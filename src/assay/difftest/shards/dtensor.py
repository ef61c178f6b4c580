"""Specifications that a DTensor carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.difftest.errors import ShardSpecError
from assay.difftest.shards.placements import Partial, Placement, Shard
from assay.difftest.shards.spec import ShardSpec


def spec_of(tensor: Any, axes: Mapping[str, str] | None = None) -> ShardSpec | None:
    """The specification that a `torch.distributed.tensor.DTensor` carries; None for other tensors.

    Parameters
    ----------
    tensor : Tensor
    axes : mapping, optional
        Names of the mesh dimensions -> names of ours, where they differ.

    Notes
    -----
    FSDP2 over TP shows as a strided shard: the whole tensor is cut by the inner mesh dimension first, so the order of
    the two is turned here.
    """
    placements = getattr(tensor, "placements", None)
    mesh = getattr(tensor, "device_mesh", None)
    if placements is None or mesh is None:
        return None
    names = mesh.mesh_dim_names or tuple(f"mesh{i}" for i in range(len(placements)))
    found: list[tuple[str, Placement]] = []
    for name, placement in zip(names, placements):
        axis = (axes or {}).get(name, name)
        if placement.is_partial():
            op = {"sum": "sum", "avg": "mean", "max": "max"}.get(str(placement.reduce_op).lower())
            if op is None:
                raise ShardSpecError(f"a DTensor partial in {placement.reduce_op!r} is not known; reduce it first")
            found.append((axis, Partial(op)))
        elif type(placement).__name__ == "_StridedShard":
            found.append((axis, Shard(placement.dim)))
        elif placement.is_shard():
            at = next((i for i, (_, p) in enumerate(found) if getattr(p, "dim", -1) == placement.dim), len(found))
            strided = any(
                type(q).__name__ == "_StridedShard" and getattr(q, "dim", -1) == placement.dim for q in placements
            )
            found.insert(at if strided else len(found), (axis, Shard(placement.dim)))
    return ShardSpec(tuple(found))
