"""Weights from the reference into shards, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from assay.difftest.collect import coords_of
from assay.difftest.errors import DiffTestError
from assay.difftest.names import NameMap
from assay.difftest.shards import Piece, ShardSpec, merge, spec_of


def _spec(specs: Mapping[str, str | ShardSpec] | None, name: str, parameter: Tensor) -> ShardSpec:
    carried = spec_of(parameter)
    if carried is not None:
        return carried
    given = (specs or {}).get(name, ShardSpec())
    return ShardSpec.parse(given) if isinstance(given, str) else given


def scatter_state(
    state: Mapping[str, Tensor], model: nn.Module, mesh: Any = None, *,
    specs: Mapping[str, str | ShardSpec] | None = None, names: NameMap | None = None,
) -> None:  # fmt: skip
    """Copy the reference's weights into this rank's shards.

    Parameters
    ----------
    state : mapping
        The reference's ``state_dict()``, whole tensors.
    model : Module
        DTensors (tensor parallel, FSDP2) say themselves how they are cut.
    mesh : DeviceMesh or mapping of axis -> (position, size), optional
    specs : mapping, optional
        Parameter of the reference -> specification, for parameters that are no DTensors; default: replicated.
    names : NameMap, optional
        From the model's names to the reference's.

    Raises
    ------
    DiffTestError
        If a parameter is not in ``state``, or the shapes do not fit.

    Examples
    --------
    >>> model = nn.Linear(4, 2, bias=False)
    >>> scatter_state({"weight": torch.arange(16.0).reshape(4, 4)}, model, {"tp": (1, 2)}, specs={"weight": "o[tp] i"})
    >>> model.weight.tolist()[0]
    [8.0, 9.0, 10.0, 11.0]
    """
    names = names or NameMap()
    for own, parameter in model.named_parameters():
        split = names.split(own)
        wanted = [names.module(own) or own] if split is None else list(split.templates)
        missing = [n for n in wanted if n not in state]
        if missing:
            raise DiffTestError(f"the reference's state has no {missing[0]!r} (needed for {own!r})")
        with torch.no_grad():
            if spec_of(parameter) is not None:
                from torch.distributed.tensor import distribute_tensor

                mesh_of, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
                whole = state[wanted[0]].to(parameter.dtype)
                parameter.copy_(distribute_tensor(whole, mesh_of, placements))
                continue
            parts = [_spec(specs, n, parameter).cut(state[n], coords_of(mesh)) for n in wanted]
            local = parts[0] if split is None else split.join(parts)
            if tuple(local.shape) != tuple(parameter.shape):
                raise DiffTestError(
                    f"{own}: the reference's {wanted} make {list(local.shape)}, the parameter has "
                    f"{list(parameter.shape)}"
                )
            parameter.copy_(local)


def gather_state(
    model: nn.Module, mesh: Any = None, *, specs: Mapping[str, str | ShardSpec] | None = None,
    names: NameMap | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """Whole weights under the reference's names, on every rank. All ranks must call it.

    Parameters
    ----------
    model, mesh, specs, names
        As for `scatter_state`.

    Raises
    ------
    DiffTestError
        If copies differ or parts are missing; the message names the parameter.
    """
    import torch.distributed as dist

    names = names or NameMap()
    coords = coords_of(mesh)
    local: dict[str, tuple[Tensor, str]] = {}
    for own, parameter in model.named_parameters():
        if spec_of(parameter) is not None:
            local[names.module(own) or own] = (parameter.detach().full_tensor(), "")  # type: ignore[attr-defined]
            continue
        split = names.split(own)
        if split is None:
            name = names.module(own) or own
            local[name] = (parameter.detach().clone(), str(_spec(specs, name, parameter)))
            continue
        for name, part in zip(split.templates, split.cut(parameter.detach())):
            local[name] = (part.clone(), str(_spec(specs, name, part)))
    everyone: list[Any] = [(coords, local)]
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, (coords, local))
    found: dict[str, Tensor] = {}
    for name in dict.fromkeys(n for _, held in everyone for n in held):
        pieces = [
            Piece(rank, at, held[name][0], ShardSpec.parse(held[name][1]))
            for rank, (at, held) in enumerate(everyone) if name in held
        ]  # fmt: skip
        merged = merge(pieces, pieces[0].spec.full_shape(pieces[0].tensor.shape, pieces[0].coords))
        if merged.problems or merged.tensor is None:
            raise DiffTestError(f"{name}: {merged.problems[0].message}")
        found[name] = merged.tensor
    return found
