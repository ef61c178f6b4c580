"""A model put back to how it was, for running one step several times."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


class ModelState:
    """Parameters, buffers, gradients and the optimizer's state, to be put back before each run."""

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        self.model, self.optimizer = model, optimizer
        self.tensors = {n: t.detach().clone() for n, t in [*model.named_parameters(), *model.named_buffers()]}
        self.gradients = {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
        self.states = copy.deepcopy(optimizer.state_dict()) if optimizer is not None else None

    def restore(self) -> None:
        with torch.no_grad():
            for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
                tensor.copy_(self.tensors[name])
        for name, parameter in self.model.named_parameters():
            kept = self.gradients[name]
            parameter.grad = None if kept is None else kept.clone()
        if self.optimizer is not None:
            self.optimizer.load_state_dict(copy.deepcopy(self.states))
