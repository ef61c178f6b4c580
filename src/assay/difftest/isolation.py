"""One module on the reference's inputs: is it wrong here, or fed wrong?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from assay.difftest.collect import coords_of
from assay.difftest.errors import DiffTestError
from assay.difftest.metrics import distance
from assay.difftest.names import Name
from assay.difftest.shards import ShardSpec
from assay.difftest.store import Trace


@dataclass
class Isolated:
    """What a module does with the reference's input on this rank.

    Attributes
    ----------
    out : dict
        Output slot -> relative error of this rank's part.
    gin : dict
        Input slot -> relative error of the input's gradient, given the reference's output gradient.
    """

    name: str
    out: dict[str, float] = field(default_factory=dict)
    gin: dict[str, float] = field(default_factory=dict)

    @property
    def worst(self) -> float:
        """Largest of all."""
        return max([*self.out.values(), *self.gin.values()], default=0.0)


def isolate(
    module: nn.Module, reference: Trace, name: str, *, mesh: Any = None,
    specs: Mapping[str, str | ShardSpec] | None = None,
    step: int = 0, microbatch: int = 0, call: int = 0, extra: Sequence[Any] = (),
) -> Isolated:  # fmt: skip
    """Feed a (distributed) module the reference's inputs and output gradients, and compare what comes out.

    Parameters
    ----------
    module : Module
        This rank's module; every rank of its groups must call this at the same time.
    reference : Trace
    name : str
        The module's path in the reference.
    mesh : DeviceMesh or mapping, optional
    specs : mapping, optional
        ``in/0``, ``out/0``, ... -> specification; default: replicated. ``gout`` and ``gin`` follow ``out`` and ``in``.
    step, microbatch, call : int
    extra : sequence
        Further arguments that are no tensors.

    Returns
    -------
    Isolated

    Examples
    --------
    >>> import tempfile
    >>> from assay.difftest import trace
    >>> good, bad = nn.Linear(3, 3), nn.Linear(3, 3)
    >>> folder = tempfile.mkdtemp()
    >>> with trace(nn.Sequential(good), folder) as t:
    ...     t.models[0](torch.ones(1, 3, requires_grad=True)).sum().backward()
    >>> isolate(good, Trace.open(folder), "0").worst
    0.0
    >>> isolate(bad, Trace.open(folder), "0").worst > 0.1
    True
    """
    coords = coords_of(mesh)
    parsed = {k: ShardSpec.parse(s) if isinstance(s, str) else s for k, s in (specs or {}).items()}

    def stored(phase: str, slot: str) -> Tensor | None:
        full = str(Name(step, microbatch, phase, name, slot, call))
        return reference.tensor(full) if full in reference else None

    def local(phase: str, slot: str) -> Tensor | None:
        whole = stored(phase, slot)
        spec = parsed.get(f"{phase.removeprefix('g')}/{slot}", ShardSpec())
        return spec.cut(whole, coords) if whole is not None else None

    slots = [n.slot for n in map(Name.parse, reference.names()) if n.phase == "in" and n.module == name
             and n.call == call             and n.microbatch == microbatch and n.step == step]  # fmt: skip
    if not slots:
        raise DiffTestError(f"the reference has no inputs of {name!r} in step {step}, micro-batch {microbatch}")
    parameter = next(module.parameters(), None)
    inputs: list[Tensor] = []
    for slot in sorted(slots):
        tensor = local("in", slot)
        assert tensor is not None
        tensor = tensor.detach().clone()
        if parameter is not None:
            tensor = tensor.to(parameter.device)
        inputs.append(tensor.requires_grad_() if tensor.is_floating_point() else tensor)
    output = module(*inputs, *extra)
    outputs = list(output) if isinstance(output, (tuple, list)) else [output]
    found = Isolated(name)
    roots, gradients = [], []
    for i, tensor in enumerate(outputs):
        wanted = local("out", str(i))
        if isinstance(tensor, Tensor) and wanted is not None and wanted.is_floating_point():
            found.out[str(i)] = distance(wanted, tensor.detach().to(wanted.device)).relative
            gradient = local("gout", str(i))
            if gradient is not None and tensor.requires_grad:
                roots.append(tensor)
                gradients.append(gradient.to(tensor.device, tensor.dtype))
    floating = [(slot, x) for slot, x in zip(sorted(slots), inputs) if x.requires_grad]
    if roots and floating:
        got = torch.autograd.grad(roots, [x for _, x in floating], gradients, allow_unused=True)
        for (slot, _), gradient in zip(floating, got):
            wanted = local("gin", slot)
            if wanted is not None and gradient is not None:
                found.gin[slot] = distance(wanted, gradient.to(wanted.device)).relative
    return found
