"""Sanity checks of an explanation: does it depend on the model, does it differ between test rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from torch import nn

from assay.attribution.errors import AttributionError, NoEligibleSamples, ShapeMismatch, UnsupportedModel
from assay.attribution.metrics.ground_truth import _warn_constant, rank_correlation
from assay.attribution.metrics.result import MetricResult, as_matrix, from_rows


def randomized_copy(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy with all weights drawn anew, from one generator, so that layers of equal shape differ.

    Matrices and filters are normal with the standard deviation that they have now; vectors (biases, scales) are the old
    values in random order.
    """
    import copy

    twin = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in twin.parameters():
            if p.ndim > 1:
                spread = float(p.std()) or 1.0
                p.copy_((torch.randn(p.shape, generator=generator) * spread).to(p))
            else:
                p.copy_(p[torch.randperm(len(p), generator=generator).to(p.device)])
    return twin


def model_randomization(
    attributions: Any, randomized: Any = None, *, model: nn.Module | None = None, X_train: Any = None,
    y_train: Any = None,
    X_test: Any = None, targets: Any = None, seed: int = 0,
) -> MetricResult:  # fmt: skip
    """Spearman correlation of attributions with those of the same method on a randomised copy of the model; low is
    good.

    A method that does not look at the model gets 1 (the chance level here); 0 is the best value.

    Parameters
    ----------
    attributions : array (T, N) or Attributor
    randomized : array (T, N), optional
        Attributions on the randomised copy; without it the attributor is fitted again on `randomized_copy(model,
        seed)`.
    """
    if hasattr(attributions, "attribute"):
        if randomized is None:
            if not isinstance(model, nn.Module):
                raise UnsupportedModel("model_randomization needs model=, a network, to randomise")
            if targets is None:
                raise AttributionError("give targets: predictions of the two models would differ")
            other = clone(attributions).fit(randomized_copy(model, seed), X_train, y_train)
            randomized = other.attribute(X_test, targets)
        attributions = attributions.attribute(X_test, targets)
    if randomized is None:
        raise AttributionError("give the attributions on the randomised model, or an attributor and its model")
    a, b = as_matrix(attributions), as_matrix(randomized)
    if a.shape != b.shape:
        raise ShapeMismatch(f"attributions have shapes {a.shape} and {b.shape}")
    values = rank_correlation(a, b)
    _warn_constant("model randomization", values)
    return from_rows("model_randomization", values, 1.0, 0.0, direction="lower")


def topk_cardinality(attributions: Any, *, k: int = 5, n_train: int | None = None, X_test: Any = None) -> MetricResult:
    """Number of different rows in the top-k lists of all test rows, over ``T k``; high is good.

    Parameters
    ----------
    attributions : array (T, N), Attributor, or int array (T, k) of top-k lists with ``n_train``

    Notes
    -----
    Resampled test rows repeat their lists, so a bootstrap would be biased; the interval is from the jackknife. Chance
    is ``N (1 - (1 - k/N)^T) / (T k)``; the ceiling ``min(N, T k) / (T k)``.

    Examples
    --------
    >>> topk_cardinality(np.array([[0, 1]] * 4), k=2, n_train=10).score
    0.25
    """
    if hasattr(attributions, "top_k"):
        lists, n = attributions.top_k(X_test, k=k)[0], attributions.n_train_
    else:
        array = np.asarray(attributions)
        if n_train is not None and array.dtype.kind in "iu":
            lists, n = array[:, :k], n_train
        else:
            matrix = as_matrix(array)
            lists, n = np.argsort(-matrix, axis=1, kind="stable")[:, :k], matrix.shape[1]
    tests = len(lists)
    if tests == 0:
        raise NoEligibleSamples("topk_cardinality: there is no test row")
    _, inverse, counts = np.unique(lists, return_inverse=True, return_counts=True)
    distinct = len(counts)
    score = distinct / (tests * k)
    alone = (counts[inverse.reshape(lists.shape)] == 1).sum(1)  # rows that no other list holds
    without = (distinct - alone) / (max(tests - 1, 1) * k)
    error = float(np.sqrt((tests - 1) / tests * ((without - without.mean()) ** 2).sum()))
    shares = (1 / counts[inverse.reshape(lists.shape)]).sum(1) / k  # a row in c lists counts 1/c in each
    chance = n * (1 - (1 - k / n) ** tests) / (tests * k)
    return MetricResult(
        "topk_cardinality", score, shares, (max(score - 1.96 * error, 0.0), min(score + 1.96 * error, 1.0)), chance,
        min(n, tests * k) / (tests * k), tests,
    )  # fmt: skip
