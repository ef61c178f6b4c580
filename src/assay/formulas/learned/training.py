"""Training on made workbooks (or the user's own), with the loop that all fields share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from assay.formulas.errors import FormulaError
from assay.formulas.generator import make_workbooks
from assay.formulas.learned.features import MAX_WORDS, Encoded, encode
from assay.formulas.learned.model import PointerConfig, PointerNet
from assay.formulas.tasks import Task, build_tasks
from assay.training import TrainConfig, TrainResult, seeded, tensor_batches, train


def training_tasks(books: int = 1500, seed: int = 9_500) -> list[Task]:
    """Fresh and extend tasks of made workbooks (of seeds that neither tests nor the corpus of retrieval use)."""
    tasks: list[Task] = []
    for start in range(0, books, 100):
        made = make_workbooks(min(100, books - start), seed + start // 100)
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
        net, loss, tensor_batches(*data, batch_size=batch_size), settings, validate=validate if held else None,
        checkpoint=checkpoint, callback=callback,
    )  # fmt: skip
    return net, result


def _trimmed(
    features: Tensor, words: Tensor, present: Tensor, symbols: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A batch without columns that are padding in all its rows."""
    items = int(present.sum(1).max())
    length = int((symbols >= 0).sum(1).max())
    return features[:, :items], words[:, :items], present[:, :items], symbols[:, :length]
