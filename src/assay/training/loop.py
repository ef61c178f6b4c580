"""The loop: steps, schedule, clipping, early stopping, checkpoints that resume to the last bit."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch import Tensor, nn

from assay.training.batches import BatchSource
from assay.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from assay.training.config import TrainConfig
from assay.training.seeding import seeding

Loss = Callable[[nn.Module, tuple[Tensor, ...], int], Tensor]


class TrainingDiverged(ValueError):
    """The loss is no longer a number; the message names epoch and step."""


@dataclass(frozen=True)
class Progress:
    """What the callback is told after each epoch.

    Attributes
    ----------
    epoch, epochs, step : int
        Epochs done, epochs in all, optimiser steps done.
    loss : float
        Mean over the epoch's batches.
    validation : float or None
    """

    epoch: int
    epochs: int
    step: int
    loss: float
    validation: float | None


@dataclass
class TrainResult:
    """What a run did.

    Attributes
    ----------
    losses, validations : list of float
        One an epoch.
    stopped : {"epochs", "patience", "callback"}
    best_epoch : int or None
        Epoch (from 1) of the weights that the model has now, with early stopping.
    """

    losses: list[float] = field(default_factory=list)
    validations: list[float] = field(default_factory=list)
    stopped: str = "epochs"
    best_epoch: int | None = None
    steps: int = 0


def train(
    model: nn.Module,
    loss: Loss,
    batches: BatchSource,
    config: TrainConfig,
    *,
    parameters: Iterable[Any] | None = None,
    validate: Callable[[nn.Module], float] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    callback: Callable[[Progress], bool | None] | None = None,
    after_step: Callable[[nn.Module, int], None] | None = None,
) -> TrainResult:
    """Train a model in place.

    Parameters
    ----------
    model : nn.Module
    loss : callable
        ``(model, batch, step) -> scalar tensor``; a mean over the batch.
    batches : callable
        ``(generator) -> iterator of tuples of tensors``, one epoch (`tensor_batches`). In a run of several processes
        each
        takes every n-th batch.
    config : TrainConfig
    parameters : iterable, optional
        Parameters or groups as torch optimisers take them; a group's ``lr_scale`` multiplies its rate. Default: all.
    validate : callable, optional
        ``model -> float``, lower is better, after each epoch in eval mode. Needed for ``config.patience``.
    checkpoint : path, optional
        Where to keep the state. If the file is there, the run goes on from it, and ends with the bits of an unbroken
        run.
    callback : callable, optional
        Told after each epoch; True stops.
    after_step : callable, optional
        ``(model, step)`` after each optimiser step (moving averages, projections).

    Returns
    -------
    TrainResult

    Raises
    ------
    ValueError
        If ``patience`` is set without ``validate``, or the process already trains with other accelerate settings.
    TrainingDiverged
    CheckpointError
        If the checkpoint belongs to other settings or another model.
    """
    if config.patience is not None and validate is None:
        raise ValueError("patience needs validate, a function of the model to be made small")
    accelerator = _accelerator(config)
    optimizer = _optimizer(model, parameters, config)
    rates = [group["lr"] for group in optimizer.param_groups]
    # Alone, accelerate has nothing to add but its cost: it looks for installed packages on the disk at every step.
    if _alone(accelerator):
        prepared = model.to(accelerator.device)
    else:
        prepared, optimizer = accelerator.prepare(model, optimizer)
    epochs = config.epochs
    if config.min_steps and (per_epoch := _steps(batches, config, accelerator)):
        epochs = max(epochs, -(-config.min_steps // per_epoch))
    result = TrainResult()
    best: dict[str, Tensor] | None = None
    best_value, waited, start = math.inf, 0, 0
    path = Path(checkpoint) if checkpoint is not None else None
    with seeding(config.seed):
        if path is not None and path.exists():
            state = load_checkpoint(path)
            _same_run(state, config, path)
            try:
                model.load_state_dict(state["model"])
                optimizer.load_state_dict(state["optimizer"])
            except (RuntimeError, ValueError) as error:
                raise CheckpointError(f"{path} belongs to another model: {str(error).splitlines()[0]}") from error
            torch.set_rng_state(state["rng"])
            result = TrainResult(
                state["losses"], state["validations"], state["stopped"], state["best_epoch"], state["steps"]
            )
            best, best_value, waited, start = state["best"], state["best_value"], state["waited"], state["epoch"]
        while start < epochs and result.stopped == "epochs":
            mean = _epoch(
                prepared, model, loss, batches, config, epochs, accelerator, optimizer, rates, result, start, after_step
            )
            start += 1
            result.losses.append(mean)
            value = None
            if validate is not None:
                model.eval()
                with torch.no_grad():
                    value = float(validate(model))
                result.validations.append(value)
                if value < best_value - config.min_delta or best is None:
                    best_value, waited, result.best_epoch = value, 0, start
                    best = copy.deepcopy(model.state_dict()) if config.patience is not None else {}
                else:
                    waited += 1
                if config.patience is not None and waited >= config.patience:
                    result.stopped = "patience"
            if callback is not None and callback(Progress(start, epochs, result.steps, mean, value)):
                result.stopped = "callback"
            ending = start == epochs or result.stopped != "epochs"
            if path is not None and accelerator.is_main_process and (start % config.checkpoint_every == 0 or ending):
                save_checkpoint(
                    path,
                    {
                        "config": asdict(config),
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "rng": torch.get_rng_state(),
                        "epoch": start,
                        "losses": result.losses,
                        "validations": result.validations,
                        "stopped": result.stopped,
                        "best_epoch": result.best_epoch,
                        "steps": result.steps,
                        "best": best,
                        "best_value": best_value,
                        "waited": waited,
                    },
                )
    if config.patience is not None and best:
        model.load_state_dict(best)
    model.eval()
    return result


def _epoch(
    prepared: nn.Module,
    model: nn.Module,
    loss: Loss,
    batches: BatchSource,
    config: TrainConfig,
    epochs: int,
    accelerator: Accelerator,
    optimizer: Any,
    rates: list[float],
    result: TrainResult,
    epoch: int,
    after_step: Callable[[nn.Module, int], None] | None,
) -> float:
    prepared.train()
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + epoch)
    steps = _steps(batches, config, accelerator)
    total = max(1, epochs * (steps or 1))
    sums: list[Tensor] = []
    waiting = 0
    for i, batch in enumerate(batches(generator)):
        if i % accelerator.num_processes != accelerator.process_index:
            continue
        batch = tuple(t.to(accelerator.device) for t in batch)
        value = loss(prepared, batch, result.steps)
        if _alone(accelerator):
            (value / config.accumulate).backward()
        else:
            accelerator.backward(value / config.accumulate)
        sums.append(value.detach())
        waiting += 1
        if waiting == config.accumulate:
            _step(
                model,
                config,
                epochs,
                accelerator,
                optimizer,
                rates,
                result,
                total if steps else None,
                epoch,
                after_step,
            )
            waiting = 0
    if waiting:
        _step(model, config, epochs, accelerator, optimizer, rates, result, total if steps else None, epoch, after_step)
    mean = float(torch.stack(sums).mean()) if sums else math.nan
    if not math.isfinite(mean):
        raise TrainingDiverged(
            f"the loss of epoch {epoch + 1} is {mean} (step {result.steps}); lower lr or set clip_norm"
        )
    return mean


def _steps(batches: BatchSource, config: TrainConfig, accelerator: Accelerator) -> int | None:
    """Optimiser steps of an epoch; None where the number of batches is not known."""
    if not hasattr(batches, "__len__"):
        return None
    return -(-len(batches) // (config.accumulate * accelerator.num_processes))


def _step(
    model: nn.Module,
    config: TrainConfig,
    epochs: int,
    accelerator: Accelerator,
    optimizer: Any,
    rates: list[float],
    result: TrainResult,
    total: int | None,
    epoch: int,
    after_step: Callable[[nn.Module, int], None] | None,
) -> None:
    factor = config.rate(result.steps, total) if total is not None else config.rate(epoch, max(epochs, 1))
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor
    if config.clip_norm is not None:
        own = getattr(model, "clip_grad_norm_", None)  # a model that clips in a way of its own, as FSDP's do
        if _alone(accelerator) and callable(own):
            own(config.clip_norm)
        elif _alone(accelerator):
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        else:
            accelerator.clip_grad_norm_(model.parameters(), config.clip_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    result.steps += 1
    if after_step is not None:
        after_step(model, result.steps)


def _accelerator(config: TrainConfig) -> Accelerator:
    # accelerate keeps one state a process; another one asked for later would be an error deep inside it.
    shared = AcceleratorState._shared_state
    if shared and shared.get("_mixed_precision", config.precision) != config.precision:
        raise ValueError(
            f"this process trains with precision {shared['_mixed_precision']!r} already; use it for all runs of a "
            f"process, not {config.precision!r}"
        )
    made = Accelerator(cpu=config.device == "cpu", mixed_precision=config.precision)
    if config.device not in ("auto", "cpu") and made.device.type != config.device.split(":")[0]:
        raise ValueError(f"the device {config.device!r} is not there; accelerate found {made.device}")
    return made


def _alone(accelerator: Accelerator) -> bool:
    """One process, full precision: nothing to shard, to reduce or to scale."""
    return accelerator.distributed_type == DistributedType.NO and accelerator.mixed_precision == "no"


def _optimizer(model: nn.Module, parameters: Iterable[Any] | None, config: TrainConfig) -> torch.optim.Optimizer:
    given = [p for p in model.parameters() if p.requires_grad] if parameters is None else list(parameters)
    groups = []
    as_groups: Any = given if given and isinstance(given[0], dict) else [{"params": given}]
    for group in map(dict, as_groups):
        group["params"] = list(group["params"])
        scale = group.pop("lr_scale", 1.0)
        groups.append({"lr": config.lr * scale, **group})
    decay = config.weight_decay
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, weight_decay=decay)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    # One kernel for all parameters; small networks spend half of a step on the unfused one.
    flat = [p for group in groups for p in group["params"]]
    fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in flat)
    return kind(groups, lr=config.lr, weight_decay=decay, fused=fused)


def _same_run(state: dict[str, Any], config: TrainConfig, path: Path) -> None:
    # Settings that do not change what is computed may change between runs.
    free = {"epochs", "device", "checkpoint_every"} if config.schedule == "constant" else {"device", "checkpoint_every"}
    old, new = {**asdict(TrainConfig()), **state["config"]}, asdict(config)
    other = [name for name in new if name not in free and old.get(name) != new[name]]
    if other:
        was = ", ".join(f"{name}={old.get(name)!r}" for name in other)
        raise CheckpointError(f"{path} was written with other settings ({was}); remove it to start afresh")
