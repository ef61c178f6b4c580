"""How a model is trained: `FitSpec`, the orders of its batches, and the plain loop over one model."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.attribution.errors import AttributionError, LabelError, ShapeMismatch
from assay.attribution.outputs import TASKS, loss_rows
from assay.training import seeded
from assay.training.seeding import seeding

OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "linear", "cosine", "onecycle")
MakeModel = Callable[[], nn.Module]


@dataclass(frozen=True)
class FitSpec:
    """A training recipe that the plain loop and the farm follow alike.

    Parameters
    ----------
    epochs, batch_size : int
    lr : float
    optimizer : {"sgd", "adam", "adamw"}
    momentum : float
        Of SGD.
    betas : tuple of float
        Of Adam.
    weight_decay : float
    schedule : {"constant", "linear", "cosine", "onecycle"}
        Factor of the rate over all steps of a model.
    task : {"classification", "regression", "language"}

    Raises
    ------
    AttributionError
        If a setting is out of its range; the message names it.

    Examples
    --------
    >>> FitSpec(lr=-1)
    Traceback (most recent call last):
    assay.attribution.errors.AttributionError: lr is a finite number above 0, not -1
    """

    epochs: int = 20
    lr: float = 0.05
    optimizer: str = "sgd"
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    batch_size: int = 64
    schedule: str = "constant"
    task: str = "classification"

    def __post_init__(self) -> None:
        for name, known in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("task", TASKS)):
            if getattr(self, name) not in known:
                raise AttributionError(f"{name} is one of {', '.join(known)}, not {getattr(self, name)!r}")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise AttributionError(f"lr is a finite number above 0, not {self.lr}")
        for name in ("momentum", "weight_decay"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise AttributionError(f"{name} is a finite number of at least 0, not {getattr(self, name)}")
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise AttributionError(f"{name} is at least 1, not {getattr(self, name)}")

    def rate(self, step: int, total: int) -> float:
        """Learning rate of a step of ``total``.

        >>> [round(FitSpec(lr=1.0, schedule="linear").rate(s, 4), 2) for s in range(4)]
        [1.0, 0.75, 0.5, 0.25]
        """
        done = step / max(total, 1)
        if self.schedule == "linear":
            return self.lr * (1 - done)
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * done)) / 2
        if self.schedule == "onecycle":  # up for 30 % of the steps, then down
            return self.lr * (done / 0.3 if done < 0.3 else (1 - done) / 0.7)
        return self.lr

    def to_json(self) -> dict[str, Any]:
        """Plain form."""
        return {**asdict(self), "betas": list(self.betas)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> FitSpec:
        """From the plain form."""
        return cls(**{**data, "betas": tuple(data["betas"])})


def as_tensors(X: Any, y: Any, *, device: str | torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Rows and labels as tensors: 32-bit numbers (64-bit stays), whole labels as int64.

    Raises
    ------
    ShapeMismatch
        If they have different numbers of rows, or none.
    LabelError
        If labels are texts.
    """
    x = X if isinstance(X, Tensor) else torch.as_tensor(np.ascontiguousarray(X))
    labels = np.asarray(y) if not isinstance(y, Tensor) else y
    if isinstance(labels, np.ndarray) and labels.dtype.kind not in "iufb":
        raise LabelError(
            f"labels are {labels.dtype}; encode them as whole numbers first (numpy.unique with return_inverse)"
        )
    t = labels if isinstance(labels, Tensor) else torch.as_tensor(np.ascontiguousarray(labels))
    if len(x) != len(t):
        raise ShapeMismatch(f"{len(x)} rows of X and {len(t)} labels")
    if len(x) == 0:
        raise ShapeMismatch("there is no row")
    if x.dtype in (torch.float16, torch.bfloat16) or (not x.dtype.is_floating_point and x.dtype.is_signed is False):
        x = x.float()
    if not t.dtype.is_floating_point:
        t = t.long()
    elif x.dtype.is_floating_point:
        t = t.to(x.dtype)
    return x.to(device), t.to(device)


def batch_orders(n: int, spec: FitSpec, seed: int) -> Tensor:
    """Positions (steps, batch_size) of the rows of all epochs, -1 where a last batch is short."""
    generator = torch.Generator().manual_seed(seed)
    per_epoch = -(-n // spec.batch_size)
    orders = torch.full((spec.epochs, per_epoch * spec.batch_size), -1)
    for epoch in range(spec.epochs):
        orders[epoch, :n] = torch.randperm(n, generator=generator)
    return orders.reshape(spec.epochs * per_epoch, spec.batch_size)


def make_optimizer(parameters: Any, spec: FitSpec) -> torch.optim.Optimizer:
    """The optimiser of a recipe."""
    if spec.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay)
    kind = torch.optim.Adam if spec.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=spec.lr, betas=spec.betas, weight_decay=spec.weight_decay)


def fit_one(
    make_model: MakeModel, spec: FitSpec, X: Tensor, y: Tensor, *, seed: int = 0, rows: Tensor | None = None,
    checkpoints: Sequence[int] | None = None, device: str | torch.device | None = None,
) -> tuple[nn.Module, list[dict[str, Tensor]]]:  # fmt: skip
    """Train one model in a plain loop, from a fresh start.

    Parameters
    ----------
    make_model : callable
        Called once, with torch's random numbers from ``seed``.
    rows : Tensor, optional
        Rows to train on; default all.
    checkpoints : sequence of int, optional
        Epochs (from 1) after which the state is kept.

    Returns
    -------
    model : nn.Module
        In eval mode.
    states : list of dict
        The state after each epoch of ``checkpoints``.

    Raises
    ------
    AttributionError
        If the loss is no longer a number.
    """
    model = seeded(seed, make_model).to(device)
    chosen = torch.arange(len(X)) if rows is None else rows.cpu()
    orders = batch_orders(len(chosen), spec, seed)
    optimizer = make_optimizer(model.parameters(), spec)
    per_epoch = len(orders) // spec.epochs
    states = []
    model.train()
    with seeding(seed):
        for step, order in enumerate(orders):
            index = chosen[order[order >= 0]].to(X.device)
            for group in optimizer.param_groups:
                group["lr"] = spec.rate(step, len(orders))
            loss = loss_rows(model(X[index]), y[index], spec.task).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if (step + 1) % per_epoch == 0 and checkpoints is not None and (step + 1) // per_epoch in checkpoints:
                states.append({k: v.detach().clone() for k, v in model.state_dict().items()})
    if not all(bool(torch.isfinite(p).all()) for p in model.parameters()):
        raise AttributionError(f"training diverged with seed {seed}: weights are not finite; lower lr ({spec.lr})")
    return model.eval(), states


def content_hash(*values: Any) -> str:
    """Hash of arrays, tensors and plain values by content.

    >>> content_hash(np.arange(3), {"a": 1}) == content_hash(torch.arange(3), {"a": 1})
    True
    """
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, Tensor):
            value = value.detach().cpu().numpy()
        if isinstance(value, np.ndarray):
            digest.update(f"{value.dtype.str}{value.shape}".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
        else:
            digest.update(json.dumps(value, sort_keys=True, default=repr).encode())
    return digest.hexdigest()[:16]
