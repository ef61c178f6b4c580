"""The network: a transformer over items, a decoder over grammar symbols, pointers into the items."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from assay.formulas.errors import FormulaError
from assay.formulas.learned.features import BUCKETS, HASHES, KINDS
from assay.formulas.learned.symbols import INDEX, MAX_SYMBOLS, SIZE


@dataclass(frozen=True)
class PointerConfig:
    """Size of the network.

    Raises
    ------
    FormulaError
        If a size is out of range.
    """

    width: int = 96
    heads: int = 4
    encoder_layers: int = 3
    decoder_layers: int = 2
    dropout: float = 0.1
    fmt: str = "dense"
    budget: int = 256

    def __post_init__(self) -> None:
        if self.width < 8 or self.width % self.heads:
            raise FormulaError(f"width is at least 8 and a multiple of heads, not {self.width} with {self.heads} heads")
        if min(self.encoder_layers, self.decoder_layers) < 1:
            raise FormulaError("the encoder and the decoder have at least one layer each")
        if self.fmt not in ("dense", "plain"):
            raise FormulaError(f"fmt is dense or plain, not {self.fmt!r}")


class PointerNet(nn.Module):
    """Encoder over items and decoder over symbols and pointers.

    Examples
    --------
    >>> net = PointerNet(PointerConfig())
    >>> 1_000_000 < sum(p.numel() for p in net.parameters()) < 5_000_000
    True
    """

    def __init__(self, config: PointerConfig) -> None:
        super().__init__()
        self.config = config
        d = config.width
        self.words = nn.Embedding(HASHES, d, padding_idx=0)
        self.features = nn.ModuleList(nn.Embedding(n, d) for n in (KINDS, BUCKETS, BUCKETS, BUCKETS, 12, 2, 2))
        self.target = nn.Parameter(torch.randn(d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, config.heads, 4 * d, config.dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, config.encoder_layers, enable_nested_tensor=False)
        self.symbols = nn.Embedding(SIZE, d)
        self.pointed = nn.Linear(d, d)
        self.places = nn.Embedding(MAX_SYMBOLS + 1, d)
        block = nn.TransformerDecoderLayer(d, config.heads, 4 * d, config.dropout, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoder(block, config.decoder_layers)
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, SIZE)
        self.query = nn.Linear(d, d)
        self.key = nn.Linear(d, d)

    def encode(
        self,
        features: Int[Tensor, "batch items 7"],
        words: Int[Tensor, "batch items words"],
        present: Bool[Tensor, "batch items"],
    ) -> tuple[Float[Tensor, "batch items1 width"], Bool[Tensor, "batch items1"]]:
        """States of the items, after one for the target; and which are there."""
        count = (words > 0).sum(-1, keepdim=True).clamp(min=1)
        x = self.words(words).sum(-2) / count
        for i, table in enumerate(self.features):
            x = x + table(features[..., i])
        first = self.target.expand(len(x), 1, -1)
        there = torch.cat([present.new_ones(len(x), 1), present], 1)
        memory = self.encoder(torch.cat([first, x], 1), src_key_padding_mask=~there)
        return memory, there

    def decode(
        self,
        memory: Float[Tensor, "batch items1 width"],
        there: Bool[Tensor, "batch items1"],
        given: Int[Tensor, "batch length"],
    ) -> Float[Tensor, "batch length symbols"]:
        """Logits of symbols (the first `SIZE`) and pointers (one an item) after each given symbol."""
        _batch, length = given.shape
        is_pointer = given >= SIZE
        item = (given - SIZE).clamp(min=0) + 1
        at = torch.gather(memory, 1, item[..., None].expand(-1, -1, memory.shape[-1]))
        y = torch.where(is_pointer[..., None], self.pointed(at), self.symbols(given.clamp(max=SIZE - 1)))
        y = y + self.places(torch.arange(length, device=given.device))
        causal = torch.ones(length, length, dtype=torch.bool, device=given.device).triu(1)
        y = self.norm(self.decoder(y, memory, tgt_mask=causal, memory_key_padding_mask=~there, tgt_is_causal=True))
        pointers = self.query(y) @ self.key(memory[:, 1:]).transpose(1, 2) / memory.shape[-1] ** 0.5
        pointers = pointers.masked_fill(~there[:, None, 1:], -1e9)
        return torch.cat([self.out(y), pointers], -1)

    def loss(
        self,
        features: Tensor,
        words: Tensor,
        present: Tensor,
        symbols: Int[Tensor, "batch length"],
        allowed: Tensor | None = None,
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy of the symbols; ``-1`` marks the end."""
        memory, there = self.encode(features, words, present)
        start = symbols.new_full((len(symbols), 1), INDEX["<start>"])
        given = torch.cat([start, symbols[:, :-1].clamp(min=0)], 1)
        logits = self.decode(memory, there, given)
        return F.cross_entropy(logits.flatten(0, 1), symbols.flatten(), ignore_index=-1, label_smoothing=0.0)

    def settings(self) -> dict[str, Any]:
        """The configuration as plain values."""
        return asdict(self.config)
