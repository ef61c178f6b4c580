"""Small networks for benchmarks on a laptop, and `ModelSpec`, which names one so that a saved benchmark can make it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.attribution.errors import AttributionError


class MLP(nn.Sequential):
    """Fully connected network with ReLU; inputs of more than one dimension are flattened.

    Examples
    --------
    >>> sum(p.numel() for p in MLP(64, 10, hidden=(64,)).parameters())
    4810
    """

    def __init__(self, inputs: int, outputs: int, hidden: tuple[int, ...] = (64,)) -> None:
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            inputs = width
        super().__init__(*layers, nn.Linear(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (rows, outputs)."""
        return super().forward(x.flatten(1))


class SmallCNN(nn.Module):
    """Two 3x3 convolutions (the second with stride 2), then one linear layer.

    ``side`` is the height and width of the images; inputs may be (rows, side*side) or (rows, channels, side, side).
    """

    def __init__(self, side: int, outputs: int, channels: int = 1, width: int = 8) -> None:
        super().__init__()
        self.side, self.channels = side, channels
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.head = nn.Linear(2 * width * ((side + 1) // 2) ** 2, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (rows, outputs)."""
        x = x.reshape(len(x), self.channels, self.side, self.side)
        x = torch.relu(self.conv1(x))
        return self.head(torch.relu(self.conv2(x)).flatten(1))


class _Attention(nn.Module):
    # Plain linear layers instead of nn.MultiheadAttention, so that inputs and output gradients can be seen by hooks.
    def __init__(self, dim: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        rows, length, dim = x.shape
        q, k, v = self.qkv(x).reshape(rows, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(dim // self.heads)
        if self.causal:
            later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -1e9)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(rows, length, dim))


class _Block(nn.Module):
    def __init__(self, dim: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = _Attention(dim, heads, causal)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class TextTransformer(nn.Module):
    """Classifier over token identifiers (rows, length); 0 is padding. Mean over the tokens, then a linear layer."""

    def __init__(
        self, vocabulary: int, outputs: int, length: int = 32, dim: int = 32, layers: int = 1, heads: int = 2
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, dim)
        self.position = nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(_Block(dim, heads, causal=False) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, outputs)

    def forward(self, tokens: Int[Tensor, "rows length"]) -> Float[Tensor, "rows outputs"]:
        """Logits (rows, outputs)."""
        tokens = tokens.long()
        mask = tokens != 0
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x, mask)
        weight = mask.to(x.dtype).unsqueeze(-1)
        return self.head(self.norm((x * weight).sum(1) / weight.sum(1).clamp(min=1.0)))


class GPT(nn.Module):
    """Decoder-only transformer with its own output layer (not tied to the embedding)."""

    def __init__(self, vocabulary: int, length: int = 32, dim: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.length = length
        self.token = nn.Embedding(vocabulary, dim)
        self.position = nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(_Block(dim, heads, causal=True) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Int[Tensor, "rows length"]) -> Float[Tensor, "rows length vocabulary"]:
        """Logits of the next token at each position."""
        tokens = tokens.long()
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x, None)
        return self.head(self.norm(x))


NAMED: Mapping[str, type[nn.Module]] = {"mlp": MLP, "cnn": SmallCNN, "text_transformer": TextTransformer, "gpt": GPT}


@dataclass(frozen=True)
class ModelSpec:
    """A network of this module by name; called without arguments it makes one.

    Raises
    ------
    AttributionError
        If the name is not one of `NAMED`.

    Examples
    --------
    >>> spec = ModelSpec("mlp", (("inputs", 4), ("outputs", 3), ("hidden", (8,))))
    >>> ModelSpec.of("mlp", inputs=4, outputs=3, hidden=(8,)) == spec
    True
    >>> sum(p.numel() for p in spec().parameters())
    67
    """

    name: str
    arguments: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.name not in NAMED:
            raise AttributionError(f"no network is named {self.name!r}; there are {', '.join(NAMED)}")

    @classmethod
    def of(cls, name: str, **arguments: Any) -> ModelSpec:
        """From keywords."""
        return cls(name, tuple(arguments.items()))

    def __call__(self) -> nn.Module:
        return NAMED[self.name](**{k: tuple(v) if isinstance(v, list) else v for k, v in self.arguments})

    def to_json(self) -> dict[str, Any]:
        """Plain form, for `from_json`."""
        return {"name": self.name, "arguments": {k: list(v) if isinstance(v, tuple) else v for k, v in self.arguments}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelSpec:
        """From the plain form."""
        arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in data["arguments"].items()}
        return cls.of(data["name"], **arguments)
