"""Fact tracing: does the training data that an explanation names hold the fact (MRR, Recall@k), and does it teach
it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from assay.attribution.errors import AttributionError, ShapeMismatch
from assay.attribution.metrics.result import MetricResult, as_matrix, from_rows


def _entailing(entailment: Any, matrix: np.ndarray) -> np.ndarray:
    marked = np.asarray(entailment, dtype=bool)
    if marked.shape != matrix.shape:
        raise ShapeMismatch(f"entailment has shape {marked.shape}, attributions {matrix.shape}")
    return marked


def _first_hit(n: int, positives: int) -> np.ndarray:
    """Probability that the first of P positives in a random order of n has rank 1, 2, ..."""
    if positives == 0:
        return np.zeros(n)
    chance, left, out = 1.0, n, np.zeros(n)
    for r in range(n - positives + 1):
        out[r] = chance * positives / left
        chance *= (left - positives) / left
        left -= 1
    return out


def _expected(row: np.ndarray, hit: np.ndarray, value: Any) -> float:
    """Expectation of ``value(rank of the first hit)`` where equal scores are in random order."""
    if not hit.any():
        return float("nan")
    best = row[hit].max()
    above, tied = int((row > best).sum()), row == best
    chances = _first_hit(int(tied.sum()), int((tied & hit).sum()))
    return float((chances * value(above + np.arange(1, len(chances) + 1))).sum())


def mrr(
    attributions: Any, entailment: Any, *, X_test: Any = None, targets: Any = None, drop_without: bool = False
) -> MetricResult:
    """Mean reciprocal rank of the first training row that entails the queried fact.

    Parameters
    ----------
    attributions : array (T, N) or Attributor
    entailment : bool array (T, N)
    drop_without : bool
        Drop queries that no row entails; by default they count 0.

    Examples
    --------
    >>> mrr(np.array([[3.0, 2.0, 1.0]]), [[False, True, True]]).score
    0.5
    """
    matrix = as_matrix(attributions, X_test, targets)
    marked = _entailing(entailment, matrix)
    values = np.array([_expected(row, hit, lambda r: 1 / r) for row, hit in zip(matrix, marked, strict=True)])
    return _finish("mrr", values, marked, lambda r: 1 / r, drop_without)


def recall_at_k(
    attributions: Any, entailment: Any, *, k: int = 10, X_test: Any = None, targets: Any = None,
    drop_without: bool = False,
) -> MetricResult:  # fmt: skip
    """Share of queries with an entailing row among the k highest.

    Examples
    --------
    >>> recall_at_k(np.array([[3.0, 2.0, 1.0]]), [[False, False, True]], k=2).score
    0.0
    """
    if k < 1:
        raise AttributionError(f"k is at least 1, not {k}")
    matrix = as_matrix(attributions, X_test, targets)
    marked = _entailing(entailment, matrix)
    values = np.array([_expected(row, hit, lambda r: r <= k) for row, hit in zip(matrix, marked, strict=True)])
    return _finish(f"recall_at_{k}", values, marked, lambda r: r <= k, drop_without)


def _finish(name: str, values: np.ndarray, marked: np.ndarray, value: Any, drop: bool) -> MetricResult:
    has: np.ndarray = np.asarray(marked.any(1))
    if not drop:
        values = np.where(np.isnan(values), 0.0, values)
    n = marked.shape[1]
    ranks = value(np.arange(1, n + 1))
    known: dict[int, float] = {}
    for p in np.unique(marked.sum(1)):
        known[int(p)] = float((_first_hit(n, int(p)) * ranks).sum())
    counted = has if drop else np.full(has.shape, True)
    chance = float(np.mean([known[int(p)] for p in marked.sum(1)[counted]])) if counted.any() else 0.0
    ceiling = 1.0 if drop else float(has.mean())
    return from_rows(name, values, chance, ceiling, why_dropped="no training row entails any of the queried facts")


def sequence_probability(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """``exp(sum log p)`` of the tokens that labels name, of each row."""
    from assay.attribution.outputs import loss_rows

    with torch.no_grad():
        return torch.exp(-loss_rows(model(tokens), labels, "language"))


def tail_patch(
    attributions: Any, model: nn.Module, X_train: Any, y_train: Any, queries: Any, query_labels: Any, *, k: int = 10,
    lr: float = 6e-5, betas: tuple[float, float] = (0.9, 0.95), weight_decay: float = 0.1, entailment: Any = None,
    chance_rows: int = 10, seed: int = 0,
) -> MetricResult:  # fmt: skip
    """Change of a fact's probability after one AdamW step on each of the k highest rows alone (Chang et al., 2024).

    Parameters
    ----------
    attributions : array (T, N), Attributor, or int array (T, k) of top-k lists
    model : language model ``tokens (rows, length) -> logits``
        Its weights are as before afterwards, to the last bit; nothing is copied for a row but the weights once.
    X_train, y_train : int arrays (N, length)
        Tokens and labels (-100 where a token does not count).
    queries, query_labels : int arrays (T, length)
    entailment : bool array (T, N), optional
        Then the ceiling is the mean change for entailing rows (at most k a query); else it is not known.
    chance_rows : int
        Random rows a query for the chance level.

    Returns
    -------
    MetricResult
        In units of probability; larger is better.
    """
    x, y = torch.as_tensor(np.asarray(X_train)).long(), torch.as_tensor(np.asarray(y_train)).long()
    q, ql = torch.as_tensor(np.asarray(queries)).long(), torch.as_tensor(np.asarray(query_labels)).long()
    device = next(model.parameters()).device
    x, y, q, ql = (t.to(device) for t in (x, y, q, ql))
    if hasattr(attributions, "top_k"):
        lists = attributions.top_k(q, ql, k=k)[0]
    else:
        array = np.asarray(attributions)
        lists = (
            array[:, :k] if array.dtype.kind in "iu" else np.argsort(-as_matrix(array), axis=1, kind="stable")[:, :k]
        )
    if len(lists) != len(q):
        raise ShapeMismatch(f"attributions are for {len(lists)} queries, there are {len(q)}")
    rng = np.random.default_rng(seed)
    chosen: dict[str, list[np.ndarray]] = {
        "top": list(lists),
        "random": [rng.choice(len(x), min(chance_rows, len(x)), replace=False) for _ in q],
    }
    if entailment is not None:
        marked = np.asarray(entailment, dtype=bool)
        if marked.shape != (len(q), len(x)):
            raise ShapeMismatch(f"entailment has shape {marked.shape}, expected {(len(q), len(x))}")
        chosen["best"] = [np.flatnonzero(row)[:k] for row in marked]
    patch = _Patch(model, lr, betas, weight_decay)
    before = sequence_probability(model.eval(), q, ql)
    # queries by training row, so that each row's step is taken once however many lists name it
    wanted: dict[int, list[tuple[str, int]]] = {}
    for kind, rows in chosen.items():
        for t, row in enumerate(rows):
            for i in row:
                wanted.setdefault(int(i), []).append((kind, t))
    sums = {kind: np.zeros(len(q)) for kind in chosen}
    try:
        for i, asked in wanted.items():
            patch.step(x[i : i + 1], y[i : i + 1])
            tests = sorted({t for _, t in asked})
            change = (sequence_probability(model, q[tests], ql[tests]) - before[tests]).cpu().numpy()
            at = dict(zip(tests, change, strict=True))
            for kind, t in asked:
                sums[kind][t] += at[t] / len(chosen[kind][t])
            patch.restore()
    finally:
        patch.restore()
    ceiling = float("nan")
    if "best" in chosen:
        has = np.array([bool(len(r)) for r in chosen["best"]])
        ceiling = float(sums["best"][has].mean()) if has.any() else float("nan")
    return from_rows("tail_patch", sums["top"], float(sums["random"].mean()), ceiling)


class _Patch:
    """One AdamW step from the given weights, and the way back."""

    def __init__(self, model: nn.Module, lr: float, betas: tuple[float, float], weight_decay: float) -> None:
        self.model = model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.kept = [p.detach().clone() for p in self.parameters]
        self.options: dict[str, Any] = {"lr": lr, "betas": betas, "weight_decay": weight_decay}

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        from assay.attribution.outputs import IGNORE, loss_rows

        optimizer = torch.optim.AdamW(self.parameters, **self.options)
        with torch.enable_grad():
            loss = loss_rows(self.model(x), y, "language").sum() / (y[:, 1:] != IGNORE).sum().clamp(min=1)
            gradients = torch.autograd.grad(loss, self.parameters)
        for p, g in zip(self.parameters, gradients, strict=True):
            p.grad = g
        optimizer.step()
        for p in self.parameters:
            p.grad = None

    def restore(self) -> None:
        with torch.no_grad():
            for p, value in zip(self.parameters, self.kept, strict=True):
                p.copy_(value)
