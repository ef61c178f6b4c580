"""Networks that look at a picture: a small one, ResNet-34 and ViT-S/16.

The last two name their parameters as the public checkpoints do (torchvision's resnet34, timm's vit_small_patch16_224),
so that such a file loads. None has a head: they end in a vector of features.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from assay.streams.errors import StreamError
from assay.streams.models.neural.base import to_numpy
from assay.streams.models.neural.dense import he_uniform

HEADS = ("fc.weight", "fc.bias", "head.weight", "head.bias")


class SmallNet(nn.Module):
    """Three convolutions of stride 2, then a dense layer that still knows where in the picture something was.

    Parameters
    ----------
    size : int
        Pixels of a side, a multiple of 8.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(32, 32, 3, stride=2, padding=1)
        self.dense = nn.Linear(32 * (size // 8) ** 2, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pictures [n, 3, size, size] to features [n, 64]."""
        # Ink, not paper: where most pixels are 1, that constant swamps the bars (AUROC on WDBC 0.91, with ink 0.95).
        x = 1.0 - x
        for conv in (self.conv1, self.conv2, self.conv3):
            x = functional.silu(conv(x))
        return functional.silu(self.dense(x.flatten(1)))


class PictureNorm(nn.BatchNorm2d):
    """Batch normalisation of one picture: by its own statistics over the pixels, or by those of the checkpoint."""

    def __init__(self, channels: int, frozen: bool) -> None:
        super().__init__(channels)
        self.frozen = frozen

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Pictures [n, channels, height, width]; changes no statistics."""
        if self.frozen:
            return functional.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias)
        return functional.batch_norm(input, None, None, self.weight, self.bias, training=True)


class BasicBlock(nn.Module):
    """Residual block of two 3x3 convolutions (He et al., CVPR 2016, figure 5 left)."""

    def __init__(self, inputs: int, outputs: int, stride: int, frozen: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = PictureNorm(outputs, frozen)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = PictureNorm(outputs, frozen)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), PictureNorm(outputs, frozen)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, inputs, h, w] to [n, outputs, h / stride, w / stride]."""
        short = x if self.downsample is None else self.downsample(x)
        x = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(x)) + short)


class ResNet34(nn.Module):
    """ResNet-34 without its head (He et al., CVPR 2016, table 1).

    Parameters
    ----------
    frozen : bool
        Normalise by the running statistics of the checkpoint instead of the picture's own.
    """

    def __init__(self, frozen: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = PictureNorm(64, frozen)
        inputs = 64
        for stage, (blocks, outputs) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], start=1):
            layer = []
            for i in range(blocks):
                layer.append(BasicBlock(inputs, outputs, 2 if stage > 1 and i == 0 else 1, frozen))
                inputs = outputs
            self.add_module(f"layer{stage}", nn.Sequential(*layer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pictures [n, 3, size, size] to features [n, 512]."""
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        return x.mean((2, 3))


class Attention(nn.Module):
    """Self-attention with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, tokens, width] to the same."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Two dense layers with GELU between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., width] to the same."""
        return self.fc2(functional.gelu(self.fc1(x)))


class Block(nn.Module):
    """Transformer block, normalised before each part."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, tokens, width] to the same."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Patches(nn.Module):
    """Patches of 16 x 16 pixels as tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, 16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 3, size, size] to [n, tokens, width]."""
        return self.proj(x).flatten(2).transpose(1, 2)


class ViTSmall(nn.Module):
    """ViT-S/16 without its head (Dosovitskiy et al., ICLR 2021; the small size is that of DeiT, Touvron et al. 2021).

    Parameters
    ----------
    size : int
        Pixels of a side, a multiple of 16; checkpoints are for 224.
    """

    def __init__(self, size: int = 224) -> None:
        super().__init__()
        width, heads, depth = 384, 6, 12
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, (size // 16) ** 2 + 1, width))
        self.patch_embed = Patches(width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pictures [n, 3, size, size] to features [n, 384], those of the class token."""
        x = self.patch_embed(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.norm(self.blocks(x))[:, 0]


@lru_cache(maxsize=8)
def skeleton(backbone: str, size: int, frozen: bool) -> nn.Module:
    """A network without numbers: it is called with parameters from outside (`torch.func.functional_call`)."""
    with torch.device("meta"):
        if backbone == "small":
            return SmallNet(size)
        return ResNet34(frozen) if backbone == "resnet34" else ViTSmall(size)


def initial(network: nn.Module, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    """Fresh parameters and running statistics of a skeleton, by name."""
    arrays = {}
    for name, value in network.state_dict().items():
        shape = tuple(value.shape)
        if name.endswith("num_batches_tracked"):
            continue
        if name in ("cls_token", "pos_embed"):
            array = 0.02 * rng.standard_normal(shape)
        elif len(shape) > 1:
            array = he_uniform(rng, math.prod(shape[1:]), *shape)
        else:
            array = np.full(shape, float(name.endswith((".weight", "running_var"))))
        arrays[name] = array.astype(np.float32)
    return arrays


def read_weights(path: str, network: nn.Module) -> dict[str, NDArray[np.float32]]:
    """Parameters of a skeleton from a checkpoint file (loaded without running code); its head is left out.

    Raises
    ------
    StreamError
        If the file is not there, is no checkpoint, or lacks a parameter or has it in another shape (named).
    """
    if not Path(path).is_file():
        raise StreamError(f"weights={path!r} is not a file")
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
        state = state.get("state_dict", state.get("model", state))
        found = {name: to_numpy(value) for name, value in state.items() if name not in HEADS}
    except Exception as error:
        raise StreamError(f"weights={path!r} is not a readable checkpoint of named tensors ({error})") from error
    arrays = {}
    for name, value in network.state_dict().items():
        if name.endswith("num_batches_tracked"):
            continue
        shape = tuple(value.shape)
        if name not in found:
            raise StreamError(f"weights={path!r} has no {name!r}; it is a checkpoint of another network")
        if found[name].shape != shape:
            raise StreamError(f"weights={path!r} has {name!r} of shape {found[name].shape}, expected {shape}")
        arrays[name] = found[name].astype(np.float32)
    return arrays
