"""Parts of the networks: non-negative layers, and the head that all models share the shape of."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

Tables = Mapping[str, Tensor]


def dropout(x: Float[Tensor, "*shape"], p: float, training: bool) -> Float[Tensor, "*shape"]:
    """Dropout from 16 random bits a number, four numbers a draw; ``p`` counts in 65,536ths.

    On a CPU the draws of ``torch.nn.functional.dropout`` (one each) take a quarter of a training step of NCDM.

    >>> _ = torch.manual_seed(0)
    >>> round(float((dropout(torch.ones(1000, 100), 0.2, True) > 0).float().mean()), 2)
    0.8
    """
    if not training or p == 0:
        return x
    n = x.numel()
    bits = torch.empty((n + 3) // 4, dtype=torch.int64, device=x.device).random_(-(2**63), None)
    kept = bits.view(torch.int16)[:n].view(x.shape) >= round(p * 65_536) - 32_768
    return x * kept.to(x.dtype).mul_(1 / (1 - p))


class PosLinear(nn.Linear):
    """A linear layer whose weights count by their absolute value, or are clipped at 0 after each step
    (``mode="clip"``).
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, mode: str = "abs") -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.mode = mode
        nn.init.xavier_normal_(self.weight)
        if mode == "clip":
            with torch.no_grad():
                self.weight.abs_()

    @property
    def positive(self) -> Tensor:
        """The weights as they act."""
        return self.weight.abs() if self.mode == "abs" else self.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.positive, self.bias)

    @torch.no_grad()
    def clip(self) -> None:
        """Weights below 0 become 0."""
        if self.mode == "clip":
            self.weight.clamp_(min=0)


class PosMLP(nn.Module):
    """Non-negative layers with an activation and dropout between them; gives one logit."""

    def __init__(
        self, sizes: tuple[int, ...], *, activation: str = "sigmoid", dropout: float = 0.5, mode: str = "abs"
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(PosLinear(a, b, mode=mode) for a, b in pairwise(sizes))
        self.activation = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}[activation]
        self.dropout = dropout

    def forward(self, x: Float[Tensor, "batch inputs"]) -> Float[Tensor, " batch"]:
        for layer in self.layers[:-1]:
            x = dropout(self.activation(layer(x)), self.dropout, self.training)
        logit: Tensor = self.layers[-1](x).squeeze(1)
        return logit


class Head(nn.Module):
    """What is known of items and skills, and how a student's state meets it.

    A head holds tables with a row an item (``items``) and everything else of the network, but no student. Its functions
    take a student's state as a row, so that new students, uncertainty and graphs use the same code.

    Attributes
    ----------
    q : float32[J, K]
    items : ParameterDict of [J, ...]
    state_dim : int
    """

    q: Tensor

    def __init__(self, q: Float[Tensor, "items skills"], state_dim: int) -> None:
        super().__init__()
        self.register_buffer("q", q)
        self.items = nn.ParameterDict()
        self.state_dim = state_dim
        self.sparse_tables: frozenset[str] = frozenset()

    def table(self, name: str, *shape: int) -> None:
        """Add a table of items, Xavier-normal."""
        value = torch.empty(self.q.shape[0], *shape)
        self.items[name] = nn.Parameter(nn.init.xavier_normal_(value))

    def row(self, name: str, item: Tensor, tables: Tables | None) -> Tensor:
        """Rows of a table; of ``tables`` where that has it (a graph's)."""
        if tables is not None and name in tables:
            return F.embedding(item, tables[name])
        return F.embedding(item, self.items[name], sparse=name in self.sparse_tables)

    def initial_states(self, n: int) -> Tensor:
        """States of untrained students."""
        return nn.init.xavier_normal_(torch.empty(n, self.state_dim))

    def mastery(self, states: Float[Tensor, "n d"]) -> Float[Tensor, "n skills"]:
        """Mastery in [0, 1] of states."""
        return torch.sigmoid(states)

    def from_mastery(
        self, mastery: Float[Tensor, "n skills"], item: Int[Tensor, " n"], tables: Tables | None = None
    ) -> Float[Tensor, " n"]:
        """Logit of a right answer for given mastery."""
        raise TypeError(f"{type(self).__name__} does not say how mastery makes answers")

    def forward(
        self, states: Float[Tensor, "n d"], item: Int[Tensor, " n"], tables: Tables | None = None
    ) -> Float[Tensor, " n"]:
        """Logit of a right answer for given states."""
        return self.from_mastery(self.mastery(states), item, tables)

    def penalty(self, states: Float[Tensor, "n d"]) -> Tensor | None:
        """A further loss on the states of a batch."""
        return None

    def next_epoch(self) -> None:
        """Told before each epoch of training."""

    def clip(self) -> None:
        """Clip the weights of layers that are clipped."""
        for module in self.modules():
            if isinstance(module, PosLinear):
                module.clip()
