"""Layers whose gradients have factors, and how what goes in and comes out of them becomes these factors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from assay.attribution.gradients.containers import Factor


def has_factors(module: nn.Module) -> bool:
    """Whether the gradient of a layer's weight is a sum of outer products of its inputs and output gradients."""
    if isinstance(module, nn.Linear):
        return True
    plain = isinstance(module, (nn.Conv1d, nn.Conv2d)) and module.groups == 1
    return plain and module.padding_mode == "zeros" and not isinstance(module.padding, str)


def factor(module: nn.Module, a: Tensor, d: Tensor, bias: bool) -> Factor:
    """What was caught at a layer, as its factors."""
    return Factor(layer_inputs(module, a, bias), layer_outputs(module, d))


def layer_inputs(module: nn.Module, a: Tensor, bias: bool) -> Tensor:
    """Inputs (rows, inputs) or (rows, positions, inputs), with a column of ones for the bias."""
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        kernel: Any = module.kernel_size
        padding: Any = module.padding
        dilation, stride = module.dilation, module.stride
        if isinstance(module, nn.Conv1d):
            a, kernel, padding = a.unsqueeze(2), (1, *kernel), (0, *padding)
            dilation, stride = (1, *dilation), (1, *stride)
        a = nn.functional.unfold(a, kernel, dilation, padding, stride).transpose(1, 2)
    elif a.ndim > 3:
        a = a.flatten(1, -2)
    if bias and module.bias is not None:
        a = torch.cat([a, a.new_ones(*a.shape[:-1], 1)], -1)
    return a


def layer_outputs(module: nn.Module, d: Tensor) -> Tensor:
    """Output gradients (rows, outputs) or (rows, positions, outputs)."""
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        return d.flatten(2).transpose(1, 2)
    return d.flatten(1, -2) if d.ndim > 3 else d
