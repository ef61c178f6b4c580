"""Training on made workbooks (or the user's own), with the loop that all fields share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from assay.formulas.errors import FormulaError
from assay.formulas.generator import make_workbooks
from assay.formulas.learned.features import HASHES, HEADER_KIND, MAX_WORDS, TEXT_KIND, Encoded, encode
from assay.formulas.learned.model import PointerConfig, PointerNet
from assay.formulas.tasks import Task, build_tasks
from assay.training import TrainConfig, TrainResult, seeded, train

MASKED = 0.5
"""Share of the examples in training whose headers and texts are exchanged for words without meaning."""


def training_tasks(books: int = 400, seed: int = 9_500, vocabulary: str = "ordinary") -> list[Task]:
    """Fresh and extend tasks of made workbooks (of seeds that neither tests nor the corpus of retrieval use)."""
    tasks: list[Task] = []
    for start in range(0, books, 100):
        made = make_workbooks(min(100, books - start), seed + start // 100, vocabulary=vocabulary)
        for mode in ("fresh", "extend"):
            tasks += build_tasks(made, 100_000, mode, seed=seed, per_function_cap=100_000, per_file_cap=12, abstain=0.0)
    return tasks


def examples(tasks: Iterable[Task], config: PointerConfig) -> list[Encoded]:
    """Encoded tasks whose truth can be written with the symbols and the context at hand."""
    return [e for t in tasks if (e := encode(t, config.fmt, config.budget)).symbols is not None and len(e.features)]


def tensors(encoded: Sequence[Encoded]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, words, which items are there, and symbols (padded by -1).

    Raises
    ------
    FormulaError
        If there is no example.
    """
    if not encoded:
        raise FormulaError("there is no example to train on: no truth could be written with the symbols at hand")
    n = len(encoded)
    items = max(len(e.features) for e in encoded)
    length = max(len(e.symbols or ()) for e in encoded)
    features = np.zeros((n, items, 7), np.int64)
    words = np.zeros((n, items, MAX_WORDS), np.int64)
    present = np.zeros((n, items), bool)
    symbols = np.full((n, length), -1, np.int64)
    for i, e in enumerate(encoded):
        m = len(e.features)
        features[i, :m], words[i, :m], present[i, :m] = e.features, e.words, True
        symbols[i, : len(e.symbols or ())] = e.symbols or []
    return torch.from_numpy(features), torch.from_numpy(words), torch.from_numpy(present), torch.from_numpy(symbols)


def train_pointer(
    tasks: Sequence[Task] | None = None,
    config: PointerConfig | None = None,
    *,
    epochs: int = 8,
    lr: float = 1e-3,
    batch_size: int = 64,
    seed: int = 0,
    device: str = "cpu",
    validation: Sequence[Task] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    callback: Callable[..., bool | None] | None = None,
) -> tuple[PointerNet, TrainResult]:
    """Train a network; with validation tasks their loss is followed.

    In half of the examples the words of headers and texts are exchanged for others, the same for the same within the
    example, so that the network learns to read layout and kinds as well as words it will meet again.

    Returns
    -------
    PointerNet, TrainResult
    """
    shape = config or PointerConfig()
    data = tensors(examples(tasks if tasks is not None else training_tasks(), shape))
    held = tensors(examples(validation, shape)) if validation else None
    net = seeded(seed, lambda: PointerNet(shape))

    def loss(model: torch.nn.Module, batch: tuple[Tensor, ...], step: int) -> Tensor:
        features, words, present, symbols = _trimmed(*batch)
        if model.training:
            words = _exchanged(features, words)
        return model.loss(features, words, present, symbols)  # type: ignore[operator]

    def validate(model: torch.nn.Module) -> float:
        assert held is not None
        total = 0.0
        for low in range(0, len(held[0]), 256):
            part = tuple(t[low : low + 256].to(next(model.parameters()).device) for t in held)
            total += float(loss(model, part, 0)) * len(part[0])
        return total / len(held[0])

    settings = TrainConfig(
        epochs=epochs,
        lr=lr,
        optimizer="adamw",
        weight_decay=0.01,
        schedule="cosine",
        warmup=0.05,
        clip_norm=1.0,
        seed=seed,
        device=device,
    )
    result = train(
        net, loss, _ByLength(data, batch_size), settings, validate=validate if held else None,
        checkpoint=checkpoint, callback=callback,
    )  # fmt: skip
    return net, result


@dataclass(frozen=True)
class _ByLength:
    """Batches of examples with about equally many items, so that little is padding; the order depends on the seed."""

    tensors: tuple[Tensor, ...]
    batch_size: int
    together: int = 8

    def __len__(self) -> int:
        return -(-len(self.tensors[0]) // self.batch_size)

    def __call__(self, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        items = self.tensors[2].sum(1)
        order = torch.randperm(len(items), generator=generator)
        batches: list[Tensor] = []
        for part in order.split(self.batch_size * self.together):
            batches += part[items[part].argsort(stable=True)].split(self.batch_size)
        for i in torch.randperm(len(batches), generator=generator).tolist():
            yield tuple(t[batches[i]] for t in self.tensors)


def _exchanged(features: Tensor, words: Tensor) -> Tensor:
    """Words of headers and texts shifted by a random number in `MASKED` of the examples."""
    n = len(words)
    shift = torch.randint(1, HASHES - 1, (n,)) * (torch.rand(n) < MASKED)
    moved = (words - 1 + shift.to(words.device)[:, None, None]) % (HASHES - 1) + 1
    text = (features[..., :1] == TEXT_KIND) | (features[..., :1] == HEADER_KIND)
    return torch.where(text & (words > 0), moved, words)


def _trimmed(
    features: Tensor, words: Tensor, present: Tensor, symbols: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A batch without columns that are padding in all its rows."""
    items = int(present.sum(1).max())
    length = int((symbols >= 0).sum(1).max())
    return features[:, :items], words[:, :items], present[:, :items], symbols[:, :length]
