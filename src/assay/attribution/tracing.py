"""Fact tracing: a small language model trained on a fact corpus, and methods judged by MRR, Recall@k and tail patch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.attribution.corpus import FactCorpus
from assay.attribution.errors import AttributionError
from assay.attribution.methods.base import Attributor
from assay.attribution.metrics.facts import mrr, recall_at_k, sequence_probability, tail_patch
from assay.attribution.metrics.result import MetricResult
from assay.attribution.models import GPT
from assay.attribution.outputs import IGNORE, loss_rows
from assay.training import TrainConfig, seeded, tensor_batches, train


@dataclass(frozen=True)
class Training:
    """Size and training of the language model."""

    dim: int = 64
    layers: int = 2
    heads: int = 4
    epochs: int = 60
    lr: float = 3e-3
    batch_size: int = 32
    weight_decay: float = 0.01


def train_language_model(
    corpus: FactCorpus, settings: Training | None = None, *, seed: int = 0, checkpoint: str | Path | None = None
) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    """A small GPT on the corpus, and its states after each fifth of the epochs.

    Parameters
    ----------
    checkpoint : path, optional
        File of the training state; a killed training goes on from it (checkpoints before the kill are then lost).
    """
    chosen = settings or Training()
    model = seeded(seed, lambda: GPT(len(corpus.vocabulary), corpus.length, chosen.dim, chosen.layers, chosen.heads))
    config = TrainConfig(
        epochs=chosen.epochs, lr=chosen.lr, optimizer="adamw", weight_decay=chosen.weight_decay, schedule="cosine",
        warmup=0.05, clip_norm=1.0, seed=seed, checkpoint_every=max(1, chosen.epochs // 5),
    )  # fmt: skip

    def loss(net: nn.Module, batch: tuple[Tensor, ...], step: int) -> Tensor:
        tokens, labels = batch
        return loss_rows(net(tokens), labels, "language").sum() / (labels[:, 1:] != IGNORE).sum()

    states: list[dict[str, Tensor]] = []
    at = {max(1, round(chosen.epochs * (i + 1) / 5)) for i in range(5)}

    def keep(progress: Any) -> None:
        if progress.epoch in at:
            states.append({k: v.detach().clone() for k, v in model.state_dict().items()})

    tokens, labels = torch.as_tensor(corpus.tokens), torch.as_tensor(corpus.labels)
    train(
        model, loss, tensor_batches(tokens, labels, batch_size=chosen.batch_size), config, checkpoint=checkpoint,
        callback=keep,
    )  # fmt: skip
    return model.eval(), states


class FactTracing:
    """A corpus, a language model trained on it, and the three metrics.

    Examples
    --------
    >>> from assay.attribution.corpus import make_fact_corpus
    >>> from assay.attribution.methods.simple import Random
    >>> corpus = make_fact_corpus(10, evidence_per_fact=2, distractors=10, counterfactuals=0)
    >>> tracing = FactTracing.build(corpus, Training(dim=16, layers=1, epochs=2))
    >>> sorted(tracing.evaluate(Random()))
    ['mrr', 'recall_at_10', 'tail_patch']
    """

    def __init__(self, corpus: FactCorpus, model: nn.Module, states: list[dict[str, Tensor]]) -> None:
        self.corpus, self.model, self.states = corpus, model, states

    @classmethod
    def build(
        cls,
        corpus: FactCorpus,
        settings: Training | None = None,
        *,
        seed: int = 0,
        checkpoint: str | Path | None = None,
    ) -> FactTracing:
        """Train the model."""
        return cls(corpus, *train_language_model(corpus, settings, seed=seed, checkpoint=checkpoint))

    def answer_probability(self) -> np.ndarray:
        """Probability of the right answer to each query."""
        found = sequence_probability(
            self.model, torch.as_tensor(self.corpus.query_tokens), torch.as_tensor(self.corpus.query_labels)
        )
        return found.cpu().numpy()

    def exact_match(self) -> float:
        """Share of the queries that the model answers with the right words; below it there is little to trace."""
        tokens, labels = torch.as_tensor(self.corpus.query_tokens), torch.as_tensor(self.corpus.query_labels)[:, 1:]
        with torch.no_grad():
            said = self.model(tokens)[:, :-1].argmax(-1)
        return float(((said == labels) | (labels == IGNORE)).all(1).double().mean())

    def evaluate(
        self, attributor: Attributor, *, k: int = 10, patch: bool = True, lr: float = 6e-5, n_eval: int = 1000,
        fitted: bool = False,
    ) -> dict[str, MetricResult]:  # fmt: skip
        """MRR, Recall@k and tail patch of a method.

        Parameters
        ----------
        patch : bool
            Whether to take the steps of tail patch (k training steps a query).
        lr : float
            Of those steps.
        """
        if k < 1:
            raise AttributionError(f"k is at least 1, not {k}")
        c = self.corpus
        if not fitted:
            attributor.fit(self.model, c.tokens, c.labels, checkpoints=self.states)
        few = slice(0, n_eval)
        A = attributor.attribute(c.query_tokens[few], c.query_labels[few], batch_size=32)
        results = {"mrr": mrr(A, c.entailment[few]), f"recall_at_{k}": recall_at_k(A, c.entailment[few], k=k)}
        if patch:
            results["tail_patch"] = tail_patch(
                A, self.model, c.tokens, c.labels, c.query_tokens[few], c.query_labels[few], k=k, lr=lr,
                entailment=c.entailment[few],
            )  # fmt: skip
        return results


class LexicalOverlap(Attributor):
    """BM25 between the texts of query and row: what a search engine would say, without looking at the model.

    Parameters
    ----------
    k1, b : float
        Of BM25.
    ignore : int
        Tokens below this number (padding and special words) do not count.
    """

    def __init__(self, k1: float = 1.2, b: float = 0.75, ignore: int = 4) -> None:
        self.k1, self.b, self.ignore = k1, b, ignore

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        rows = np.asarray(X)
        size = int(rows.max()) + 1
        counts = np.zeros((len(rows), size))
        np.add.at(counts, (np.arange(len(rows))[:, None], rows), 1)
        counts[:, : self.ignore] = 0
        length = counts.sum(1, keepdims=True)
        have = (counts > 0).sum(0)
        idf = np.log(1 + (len(rows) - have + 0.5) / (have + 0.5))
        self.weight_ = (
            idf * counts * (self.k1 + 1) / (counts + self.k1 * (1 - self.b + self.b * length / length.mean()))
        )

    def _parts(self, X: Any, targets: Any) -> Any:
        queries = np.asarray(X)
        size = self.weight_.shape[1]
        inside = np.zeros((len(queries), size))
        for row, tokens in zip(inside, queries, strict=True):
            known = np.unique(tokens[(tokens >= self.ignore) & (tokens < size)])
            row[known] = 1
        yield slice(0, self.n_train_), inside @ self.weight_.T
