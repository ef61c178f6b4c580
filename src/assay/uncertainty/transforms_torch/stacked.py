"""Members of an ensemble trained side by side: one network whose parameters have an axis of members.

A small network spends most of a step on calls, not on arithmetic; ten members in one step cost about three times one
member. Member j sees its rows in the order, and takes the steps, that it would see and take alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

LARGEST = 200_000  # parameters of a member; above it arithmetic dominates and memory counts


def can_stack(models: Sequence[nn.Module]) -> bool:
    """Whether members are worth stacking, and can be: more than one, small, without buffers (batch normalisation)."""
    first = models[0]
    return (
        len(models) > 1
        and sum(p.numel() for p in first.parameters()) <= LARGEST
        and next(first.buffers(), None) is None
        and not any(isinstance(m, (nn.RNNBase, nn.modules.batchnorm._BatchNorm)) for m in first.modules())
    )


class Stacked(nn.Module):
    """Networks of one architecture as one module: ``(members, batch, ...) -> (members, batch, K)``.

    Parameters
    ----------
    models : sequence of nn.Module
    names : set of str, optional
        Parameters that differ between members and are trained; the others are those of the first member, and fixed.
        Default: all.
    """

    def __init__(self, models: Sequence[nn.Module], names: set[str] | None = None) -> None:
        super().__init__()
        stacked, _ = stack_module_state(list(models))
        self.names = [name for name in stacked if names is None or name in names]
        self.own = nn.ParameterList(nn.Parameter(stacked[name].detach().clone()) for name in self.names)
        fixed = dict(models[0].named_parameters())
        self._fixed = {name: p.detach() for name, p in fixed.items() if name not in self.names}
        self._template = [copy.deepcopy(models[0])]  # in a list: its parameters are not this module's

    def forward(self, x: Tensor) -> Tensor:
        """Logits of each member on its own batch."""
        template = self._template[0].train(self.training)
        own = dict(zip(self.names, self.own, strict=True))

        def one(parameters: dict[str, Tensor], rows: Tensor) -> Tensor:
            return functional_call(template, {**self._fixed, **parameters}, (rows,))

        out: Tensor = torch.vmap(one, randomness="different")(own, x)
        return out

    def clip_grad_norm_(self, max_norm: float) -> None:
        """Clip the gradient of each member by its own norm."""
        gradients = [p.grad for p in self.own if p.grad is not None]
        norm = torch.sqrt(sum((g.flatten(1) ** 2).sum(1) for g in gradients))
        scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for g in gradients:
            g.mul_(scale.reshape(-1, *([1] * (g.ndim - 1))))

    def members(self) -> list[nn.Module]:
        """The members as modules of their own."""
        out = []
        with torch.no_grad():
            for j in range(len(self.own[0])):
                model = copy.deepcopy(self._template[0])
                parameters = dict(model.named_parameters())
                for name, values in zip(self.names, self.own, strict=True):
                    parameters[name].copy_(values[j])
                model.zero_grad(set_to_none=True)
                out.append(model.eval())
        return out


class MemberBatches:
    """Batches ``(members, batch, ...)``, each member's rows in the order of its own seed."""

    def __init__(self, seeds: Sequence[int], batch_size: int, *tensors: Tensor) -> None:
        self.seeds, self.batch_size, self.tensors, self.epoch = seeds, batch_size, tensors, 0

    def __len__(self) -> int:
        return -(-len(self.tensors[0]) // self.batch_size)

    def __call__(self, _generator: Any) -> Iterator[tuple[Tensor, ...]]:
        n = len(self.tensors[0])
        orders = []
        for seed in self.seeds:  # as the loop seeds the order of one network
            generator = torch.Generator().manual_seed(seed * 1_000_003 + self.epoch)
            orders.append(torch.randperm(n, generator=generator))
        self.epoch += 1
        order = torch.stack(orders)
        for low in range(0, n, self.batch_size):
            part = order[:, low : low + self.batch_size]
            yield tuple(t[part.to(t.device)] for t in self.tensors)


def stacked_cross_entropy(model: nn.Module, batch: tuple[Tensor, ...], _step: int) -> Tensor:
    """Sum over members of their mean cross-entropies: the gradient of each is that of its own loss."""
    return -(batch[1] * torch.log_softmax(model(batch[0]), -1)).sum(-1).mean(-1).sum()
