"""Models of one shape with their parameters stacked along a new first axis, trained by one batched step at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.attribution.fitting import FitSpec, batch_orders
from assay.attribution.outputs import loss_rows, predictions, target_rows


class Stack:
    """Models with their parameters stacked, and the state of their optimiser."""

    def __init__(self, models: list[nn.Module], spec: FitSpec, device: Any) -> None:
        self.spec, self.n = spec, len(models)
        self.skeleton = models[0].to(device).train()
        params, buffers = torch.func.stack_module_state([m.to(device) for m in models])
        self.names = list(params)
        self.params = [params[name].detach().clone().requires_grad_() for name in self.names]
        self.buffers = dict(buffers)
        self.first: list[Tensor] = []
        self.second: list[Tensor] = []
        self.steps = 0
        self.taken = torch.zeros(self.n, dtype=torch.long)  # steps of each model, for Adam's bias correction

    def _forward(self, x: Tensor) -> Tensor:
        def one(params: dict[str, Tensor], buffers: dict[str, Tensor], rows: Tensor) -> Tensor:
            return torch.func.functional_call(self.skeleton, (params, buffers), (rows,))

        return torch.func.vmap(one, randomness="different")(dict(zip(self.names, self.params)), self.buffers, x)

    def step(self, x: Tensor, y: Tensor, weight: Tensor | None, step: int, totals: Any) -> None:
        """One optimiser step of every model; ``weight`` (models, batch) is 0 for padding."""
        logits = self._forward(x)
        flat_logits, flat_y = logits.flatten(0, 1), y.flatten(0, 1)
        losses = loss_rows(flat_logits, flat_y, self.spec.task).reshape(self.n, -1)
        if weight is None:
            total = losses.mean(1).sum()
            active = None
        else:
            total = ((losses * weight).sum(1) / weight.sum(1).clamp(min=1)).sum()
            active = weight.sum(1) > 0
            active = None if bool(active.all()) else active
        gradients = torch.autograd.grad(total, self.params)
        rates = [self.spec.rate(step, t) for t in totals] if isinstance(totals, list) else self.spec.rate(step, totals)
        with torch.no_grad():
            self._update(list(gradients), rates, active)

    def _update(self, gradients: list[Tensor], rates: Any, active: Tensor | None) -> None:
        spec, params = self.spec, self.params
        one_rate = not isinstance(rates, list) or len(set(rates)) == 1
        rate = (rates[0] if isinstance(rates, list) else rates) if one_rate else 0.0
        before = None if active is None else [p.clone() for p in params]
        if spec.weight_decay and spec.optimizer != "adamw":
            torch._foreach_add_(gradients, params, alpha=spec.weight_decay)
        if spec.optimizer == "sgd":
            if spec.momentum:
                if not self.first:
                    self.first = [g.clone() for g in gradients]
                else:
                    torch._foreach_mul_(self.first, spec.momentum)
                    torch._foreach_add_(self.first, gradients)
                gradients = self.first
            change, factor = gradients, 1.0
        else:
            b1, b2 = spec.betas
            if not self.first:
                self.first, self.second = ([torch.zeros_like(p) for p in params] for _ in range(2))
            self.steps += 1
            torch._foreach_lerp_(self.first, gradients, 1 - b1)
            torch._foreach_mul_(self.second, b2)
            torch._foreach_addcmul_(self.second, gradients, gradients, 1 - b2)
            bottom = torch._foreach_sqrt(self.second)
            torch._foreach_div_(bottom, (1 - b2**self.steps) ** 0.5)
            torch._foreach_add_(bottom, 1e-8)
            change = list(torch._foreach_div(self.first, bottom))
            factor = 1 / (1 - b1**self.steps)
        if one_rate:
            if spec.optimizer == "adamw" and spec.weight_decay:
                torch._foreach_mul_(params, 1 - rate * spec.weight_decay)
            torch._foreach_add_(params, change, alpha=-rate * factor)
        else:
            for p, c in zip(params, change, strict=True):
                r = torch.tensor(rates, dtype=p.dtype, device=p.device).reshape(-1, *[1] * (p.ndim - 1))
                if spec.optimizer == "adamw" and spec.weight_decay:
                    p.mul_(1 - r * spec.weight_decay)
                p.sub_(r * factor * c)
        if before is not None and active is not None:  # models whose batches are all done stay as they are
            for p, old in zip(params, before, strict=True):
                keep = active.reshape(-1, *[1] * (p.ndim - 1))
                p.copy_(torch.where(keep, p, old))

    def not_finite(self) -> list[int]:
        """Models with weights that are not finite."""
        fine = torch.ones(self.n, dtype=torch.bool)
        for p in self.params:
            fine &= torch.isfinite(p.detach()).flatten(1).all(1).cpu()
        return torch.nonzero(~fine).flatten().tolist()

    @torch.no_grad()
    def evaluate(self, x: Tensor, y: Tensor, target: str, memory: int) -> tuple[np.ndarray, np.ndarray]:
        """Outputs and predictions (models, T)."""
        self.skeleton.eval()
        block = max(1, min(len(x), memory // max(1, 64 * self.n * x[:1].numel() * x.element_size())))
        values, guesses = [], []
        for low in range(0, len(x), block):
            rows, labels = x[low : low + block], y[low : low + block]
            logits = self._forward(rows.expand(self.n, *rows.shape))
            flat = logits.flatten(0, 1)
            repeated = labels.expand(self.n, *labels.shape).flatten(0, 1)
            out = target_rows(flat, repeated, self.spec.task, target)
            values.append(out.reshape(self.n, -1).cpu().numpy())
            guess = predictions(flat, self.spec.task)
            guesses.append(small_array(guess).reshape(self.n, -1, *guess.shape[1:]))
        self.skeleton.train()
        return np.concatenate(values, 1).astype(np.float32), np.concatenate(guesses, 1)

    def states(self) -> list[dict[str, Tensor]]:
        """State of each model."""
        return [
            {
                **{name: p[j].detach().clone() for name, p in zip(self.names, self.params, strict=True)},
                **{name: b[j].clone() for name, b in self.buffers.items()},
            }
            for j in range(self.n)
        ]


def cannot_stack(module: nn.Module) -> bool:
    return isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd))


def stacked_batches(
    lists: list[Tensor], seeds: list[int], spec: FitSpec
) -> Iterator[tuple[Tensor, Tensor | None, list[int] | int]]:
    """Rows (models, batch) of each step, their weights if some are padding, and the number of steps of each model."""
    orders: list[Tensor] = []
    known: dict[tuple[int, int], Tensor] = {}
    for rows, seed in zip(lists, seeds, strict=True):
        key = (len(rows), seed)
        if key not in known:
            known[key] = batch_orders(len(rows), spec, seed)
        order = known[key]
        orders.append(torch.where(order >= 0, rows[order.clamp(min=0)], -1))
    lengths = [len(o) for o in orders]
    steps = max(lengths)
    totals: list[int] | int = lengths if len(set(lengths)) > 1 else steps
    for step in range(steps):
        batch = torch.stack([o[step] if step < len(o) else torch.full((spec.batch_size,), -1) for o in orders])
        used = (batch >= 0).any(0)
        batch = batch[:, used]  # a last batch that is short for all is cut, not padded
        padded = batch < 0
        if bool(padded.any()):
            yield batch.clamp(min=0), (~padded).float(), totals
        else:
            yield batch, None, totals


def small_array(values: Tensor) -> np.ndarray:
    array = values.detach().cpu().numpy()
    return array.astype(np.int32) if array.dtype.kind == "i" else array.astype(np.float32)
