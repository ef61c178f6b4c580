"""Layers that stand in the place of linear and convolutional ones.

Each works for `nn.Linear` and `nn.Conv1d/2d/3d` alike: the layer's own forward is called with other weights, or its
inputs and outputs are scaled channel by channel.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


class Replacement(nn.Module):
    """A layer that stands in the place of a linear or convolutional one."""


def channels(layer: Layer) -> tuple[int, int]:
    """Channels that go in and come out."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return layer.in_channels, layer.out_channels


def by_channel(values: Tensor, x: Tensor, linear: bool) -> Tensor:
    """Values ``(members, channels)`` shaped to multiply ``x (members, batch, ...)``: channels are last for a linear
    layer, third for a convolution."""
    if linear:
        return values.reshape(len(values), *([1] * (x.ndim - 2)), -1)
    return values.reshape(len(values), 1, -1, *([1] * (x.ndim - 3)))


class Drawn(nn.Module):
    """A layer with a state ``draw``: None for its mean, an integer for the network of that pass."""

    draw: int | None = None
    place: int = 0

    def _generator(self) -> torch.Generator:
        assert self.draw is not None
        return torch.Generator().manual_seed(int(np.random.SeedSequence([self.draw, self.place]).generate_state(1)[0]))


class SampledDropout(Drawn):
    """Dropout that can also draw one mask for a whole pass.

    Parameters
    ----------
    p : float
    whole_channels : bool
        Drop channels of ``(n, C, ...)`` with all their places, as before a convolution.
    """

    def __init__(self, p: float, whole_channels: bool = False) -> None:
        super().__init__()
        self.p, self.whole_channels = p, whole_channels

    def forward(self, x: Tensor) -> Tensor:
        """Masked and scaled input."""
        if self.training:
            if self.whole_channels:
                return nn.functional.dropout(torch.ones_like(x[:, :, *[slice(1)] * (x.ndim - 2)]), self.p, True) * x
            return nn.functional.dropout(x, self.p, True)
        if self.draw is None:
            return x
        shape = (x.shape[1], *[1] * (x.ndim - 2)) if self.whole_channels else tuple(x.shape[1:])
        keep = torch.rand(shape, generator=self._generator()) >= self.p
        return x * (keep.to(x) / (1 - self.p))


class DropConnectLayer(Drawn, Replacement):
    """A layer that drops weights (Wan et al., ICML 2013)."""

    def __init__(self, layer: Layer, p: float) -> None:
        super().__init__()
        self.layer, self.p = layer, p

    def forward(self, x: Tensor) -> Tensor:
        """The layer with dropped weights."""
        weight = self.layer.weight
        if self.training:
            weight = nn.functional.dropout(weight, self.p, True)
        elif self.draw is not None:
            keep = torch.rand(weight.shape, generator=self._generator()) >= self.p
            weight = weight * (keep.to(weight) / (1 - self.p))
        out: Tensor = functional_call(self.layer, {"weight": weight}, (x,))
        return out


class BayesianLayer(Drawn, Replacement):
    """Independent normal weights; training uses the local reparameterisation (Kingma, Salimans and Welling, 2015).

    For a convolution that draws each place of the output by itself, as is usual (Molchanov et al., 2017).
    """

    def __init__(self, layer: Layer, posterior_std: float, prior_std: float) -> None:
        super().__init__()
        rho = math.log(math.expm1(posterior_std))
        self._layer = [layer]  # in a list: only its forward is used, its weights are not parameters here
        self.weight = nn.Parameter(layer.weight.detach().clone())
        self.weight_rho = nn.Parameter(torch.full_like(layer.weight, rho).detach())
        start = torch.zeros(len(layer.weight)) if layer.bias is None else layer.bias.detach().clone()
        self.bias = nn.Parameter(start)
        self.bias_rho = nn.Parameter(torch.full_like(start, rho))
        if layer.bias is None:
            layer.bias = nn.Parameter(torch.zeros(len(layer.weight)))
        self.prior_std = prior_std

    def forward(self, x: Tensor) -> Tensor:
        """A draw of the outputs (training) or outputs of a draw of the weights."""
        sw, sb = nn.functional.softplus(self.weight_rho), nn.functional.softplus(self.bias_rho)
        if self.training:
            mean = self._apply_layer(x, self.weight, self.bias)
            var = self._apply_layer(x**2, sw**2, sb**2)
            return mean + torch.sqrt(var + 1e-12) * torch.randn_like(mean)
        if self.draw is None:
            return self._apply_layer(x, self.weight, self.bias)
        g = self._generator()
        weight = self.weight + sw * torch.randn(sw.shape, generator=g).to(sw)
        return self._apply_layer(x, weight, self.bias + sb * torch.randn(sb.shape, generator=g).to(sb))

    def _apply_layer(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out: Tensor = functional_call(self._layer[0], {"weight": weight, "bias": bias}, (x,))
        return out

    def divergence(self) -> Tensor:
        """KL to the prior N(0, prior_std^2), in nats."""
        total = self.weight.new_zeros(())
        for mu, rho in ((self.weight, self.weight_rho), (self.bias, self.bias_rho)):
            s = nn.functional.softplus(rho)
            ratio = (s / self.prior_std) ** 2
            total = total + 0.5 * (ratio + (mu / self.prior_std) ** 2 - 1 - torch.log(ratio)).sum()
        return total


class BatchEnsembleLayer(Replacement):
    """``y = (W (x * r_j)) * s_j + b_j`` for member j (Wen, Tran and Ba, ICLR 2020); rows of member j are a block of
    the batch. For a convolution r, s and b belong to channels."""

    def __init__(self, layer: Layer, n: int, std: float) -> None:
        super().__init__()
        n_in, n_out = channels(layer)
        self._layer = [layer]
        self.linear = isinstance(layer, nn.Linear)
        self.weight = nn.Parameter(layer.weight.detach().clone())
        self.r = nn.Parameter(1 + std * torch.randn(n, n_in))
        self.s = nn.Parameter(1 + std * torch.randn(n, n_out))
        start = torch.zeros(n_out) if layer.bias is None else layer.bias.detach()
        self.bias = nn.Parameter(start.repeat(n, 1))
        layer.bias = None

    def forward(self, x: Tensor) -> Tensor:
        """Rows ``(n * batch, ...)``."""
        n = len(self.r)
        h = x.reshape(n, -1, *x.shape[1:])
        h = (h * by_channel(self.r, h, self.linear)).reshape(x.shape)
        out: Tensor = functional_call(self._layer[0], {"weight": self.weight}, (h,))
        y = out.reshape(n, -1, *out.shape[1:])
        y = y * by_channel(self.s, y, self.linear) + by_channel(self.bias, y, self.linear)
        return y.reshape(out.shape)


class MaskedLayer(Replacement):
    """A layer whose inputs are masked channel by channel, a fixed mask a member."""

    def __init__(self, layer: Layer, masks: Tensor) -> None:
        super().__init__()
        self.layer, self.linear = layer, isinstance(layer, nn.Linear)
        self.register_buffer("masks", masks)

    def forward(self, x: Tensor) -> Tensor:
        """Rows ``(n * batch, ...)``."""
        masks: Any = self.masks
        h = x.reshape(len(masks), -1, *x.shape[1:])
        return self.layer((h * by_channel(masks, h, self.linear)).reshape(x.shape))
