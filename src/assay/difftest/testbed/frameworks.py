"""Other people's distributed code under our trace: megatron-core's cross entropy, torch's DTensor modules.

Functions here run on every rank of a pool. megatron-core is needed by the first one alone, and is no dependency.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from assay.difftest.collect import trace
from assay.difftest.errors import DiffTestError
from assay.difftest.tensors import fill_parameters, generate


def smoothing_inputs(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits [6, 2, 16] and labels [6, 2]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(6, 2, 16, generator=generator), torch.randint(0, 16, (6, 2), generator=generator)


class TorchLoss(nn.Module):
    """Cross entropy with ``alpha`` spread over the wrong classes alone, as Megatron does; torch: over all K."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        k = logits.shape[-1]
        smoothing = self.alpha * k / (k - 1)
        flat = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none", label_smoothing=smoothing)
        return flat.view(labels.shape)


class MegatronLoss(nn.Module):
    """megatron-core's vocabulary-parallel cross entropy."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy

        return vocab_parallel_cross_entropy(logits, labels, self.alpha)


def reference_loss(alpha: float, out: str) -> Tensor:
    """Trace the reference."""
    logits, labels = smoothing_inputs()
    logits.requires_grad_()
    with trace(TorchLoss(alpha), out) as tracer:
        loss = tracer.models[0](logits, labels)
        loss.sum().backward()
    return loss.detach()


def megatron_cross_entropy(alpha: float, out: str) -> tuple[Tensor, Tensor]:
    """Trace megatron-core's cross entropy on this rank; its losses and the gradient of its logits."""
    try:
        from megatron.core import parallel_state
    except ImportError as error:
        raise DiffTestError("this needs megatron-core: pip install --no-deps megatron-core==0.16.1") from error
    rank, world = dist.get_rank(), dist.get_world_size()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=world)
    try:
        logits, labels = smoothing_inputs()
        local = logits.chunk(world, -1)[rank].clone().requires_grad_()
        specs = [(r"^(in|gin)/model/0", "s b v[tp]")]
        with trace(MegatronLoss(alpha), out, mesh={"tp": (rank, world)}, specs=specs) as tracer:
            loss = tracer.models[0](local, labels)
            loss.sum().backward()
        assert local.grad is not None
        return loss.detach(), local.grad
    finally:
        parallel_state.destroy_model_parallel()


class NormThenLinear(nn.Module):
    """Norm, two linear maps, the second norm: what sequence parallelism is for."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(self.norm(x))))


def norm_model() -> tuple[NormThenLinear, Tensor]:
    """Model and input [2, 8, 16]."""
    model = NormThenLinear()
    fill_parameters(model)
    return model, generate("x", (2, 8, 16))


def train_norm(folder: str, steps: int) -> None:
    """Train the plain model and leave a distributed checkpoint (DCP) of it."""
    import torch.distributed.checkpoint as dcp

    model, x = norm_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    dcp.save(model.state_dict(), checkpoint_id=folder)


def _resumed(model: nn.Module, checkpoint: str) -> None:
    if checkpoint:
        import torch.distributed.checkpoint as dcp

        state = model.state_dict()
        dcp.load(state, checkpoint_id=checkpoint)
        model.load_state_dict(state)


def reference_norm(out: str, checkpoint: str = "", step: int = 0) -> None:
    """Trace the plain model, from its first weights or from a checkpoint."""
    model, x = norm_model()
    _resumed(model, checkpoint)
    with trace(model, out, step=step):
        model(x).square().sum().backward()


def dtensor_norm(out: str, fsdp: bool = False, checkpoint: str = "", step: int = 0) -> str:
    """Trace the model under torch's tensor and sequence parallelism (or FSDP2); specifications come from the DTensors.

    With ``checkpoint``, each rank first reads its shards from there.

    Returns
    -------
    str
        Placement of the norm's weight gradient.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    model, x = norm_model()
    world = dist.get_world_size()
    specs: list[tuple[str, Any]] = []
    if fsdp:
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
        fully_shard(model, mesh=mesh)
        x = x.chunk(world, 0)[dist.get_rank()]
        specs = [(r"^(in|out)/", "b[dp] s h"), (r"^(gin|gout)/", f"b[dp] s h *{1 / world:g}")]
    else:
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
        plan = {
            "norm": SequenceParallel(),
            "fc1": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
            "fc2": RowwiseParallel(output_layouts=Replicate(), use_local_output=False),
        }
        parallelize_module(model, mesh, plan)
        parallelize_module(
            model, mesh, PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),)),
        )  # fmt: skip
    _resumed(model, checkpoint)
    with trace(model, out, mesh=mesh, specs=specs, step=step):
        y = model(x)
        if hasattr(y, "full_tensor"):
            y = y.full_tensor()
        (y.square().sum() * (world if fsdp else 1)).backward()
    gradient = model.norm.weight.grad
    return str(getattr(gradient, "placements", ""))
