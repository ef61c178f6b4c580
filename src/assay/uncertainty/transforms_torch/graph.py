"""Graph posterior networks: evidence of each node's features, spread along the edges (Stadler et al., NeurIPS 2021)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from assay.training import TrainConfig, seeded, train
from assay.uncertainty.errors import NotFitted, TargetShape, UncertaintyError
from assay.uncertainty.representations import Dirichlet
from assay.uncertainty.transforms_torch.base import MLP
from assay.uncertainty.transforms_torch.posterior import _LatentDensities, dirichlet_entropy, expected_cross_entropy

DEFAULT = TrainConfig(epochs=200, lr=0.01, weight_decay=5e-4, optimizer="adamw")


class GraphPosteriorNetwork:
    """A Dirichlet distribution for every node of a graph.

    The evidence of a node's own features (a density of their latent a class) is spread by personalised PageRank,
    ``alpha = 1 + PPR beta``; without edges (``steps=0``) it is a posterior network on features alone.

    Parameters
    ----------
    latent, flows : int
    steps, teleport : int, float
        Power iterations of PageRank and its restart probability.
    hidden : tuple of int
    entropy_weight : float
    config : TrainConfig, optional
    seed : int

    Examples
    --------
    >>> from assay.uncertainty.generators import bridged_blocks
    >>> graph = bridged_blocks(n=120, seed=0)
    >>> model = GraphPosteriorNetwork(config=TrainConfig(epochs=60, lr=0.01))
    >>> rep = model.fit(graph.features, graph.edges, graph.labels, graph.train).predict()
    >>> rep.batch_shape
    (120,)
    """

    def __init__(
        self,
        *,
        latent: int = 6,
        flows: int = 6,
        steps: int = 10,
        teleport: float = 0.1,
        hidden: tuple[int, ...] = (64,),
        entropy_weight: float = 1e-5,
        config: TrainConfig | None = None,
        seed: int = 0,
    ) -> None:
        if not 0 < teleport <= 1 or steps < 0:
            raise UncertaintyError(f"teleport lies in (0, 1] and steps is at least 0, not {teleport} and {steps}")
        self.latent, self.flows, self.steps, self.teleport = latent, flows, steps, teleport
        self.hidden, self.entropy_weight, self.config, self.seed = hidden, entropy_weight, config, seed

    def fit(self, X: ArrayLike, edges: ArrayLike, y: ArrayLike, train_nodes: ArrayLike) -> GraphPosteriorNetwork:
        """Train on the labels of some nodes, with the features and edges of all.

        Parameters
        ----------
        X : array_like, (nodes, columns)
        edges : array_like of int, (edges, 2)
            Undirected; each pair once.
        y : array_like of int, (nodes)
            Codes; only those of ``train_nodes`` are read.
        train_nodes : array_like of bool, (nodes)

        Raises
        ------
        TargetShape, UncertaintyError
        """
        x = np.asarray(X, dtype=np.float32)
        pairs, codes, chosen = np.asarray(edges), np.asarray(y), np.asarray(train_nodes, dtype=bool)
        n = len(x)
        if codes.shape != (n,) or chosen.shape != (n,) or not chosen.any():
            raise TargetShape(f"{n} nodes need labels and a mask of as many, with some node to train on")
        if pairs.ndim != 2 or pairs.shape[1] != 2 or (len(pairs) and (pairs.min() < 0 or pairs.max() >= n)):
            raise UncertaintyError(f"edges are pairs (edges, 2) of node numbers below {n}, not shape {pairs.shape}")
        k = int(codes[chosen].max()) + 1
        spread = x[chosen].std(0)
        x = (x - x[chosen].mean(0)) / np.where(spread > 1e-8, spread, 1)
        features, adjacency = torch.tensor(x), _normalised(pairs, n)
        target = torch.eye(k)[torch.tensor(codes[chosen], dtype=torch.long)]
        rows = torch.tensor(np.flatnonzero(chosen))
        log_counts = torch.log(torch.clamp(target.sum(0), min=1e-6))

        def make() -> nn.Module:
            return _LatentDensities(MLP(x.shape[1], self.latent, self.hidden), self.latent, self.flows, log_counts)

        model = seeded(self.seed, make)
        self.features_, self.adjacency_ = features, adjacency

        def loss(net: nn.Module, _batch: tuple[Tensor, ...], _step: int) -> Tensor:
            alpha = self._alpha(net(features))[rows]
            return (expected_cross_entropy(alpha, target) - self.entropy_weight * dirichlet_entropy(alpha)).mean()

        def whole(_generator: torch.Generator) -> Any:
            yield (rows,)

        from dataclasses import replace

        train(model, loss, whole, replace(self.config or DEFAULT, seed=self.seed))
        self.model_ = model
        return self

    def predict(self, *, own: bool = False) -> Dirichlet:
        """Of all nodes.

        Parameters
        ----------
        own : bool
            The evidence of each node's own features alone, without what the edges bring: it is what shows a node with
            foreign features, which its neighbours' evidence hides.
        """
        if not hasattr(self, "model_"):
            raise NotFitted("call fit(X, edges, y, train_nodes) first")
        with torch.no_grad():
            log_evidence = self.model_(self.features_)
            alpha = 1 + torch.exp(torch.clamp(log_evidence, max=30)) if own else self._alpha(log_evidence)
            return Dirichlet(alpha.double().numpy(force=True))

    def _alpha(self, log_evidence: Tensor) -> Tensor:
        beta = torch.exp(torch.clamp(log_evidence, max=30))
        spread = beta
        for _ in range(self.steps):
            spread = (1 - self.teleport) * torch.sparse.mm(self.adjacency_, spread) + self.teleport * beta
        return 1 + spread


def _normalised(edges: np.ndarray, n: int) -> Tensor:
    """Adjacency with loops, ``D^-1/2 A D^-1/2``."""
    loops = np.arange(n)
    i = np.concatenate([edges[:, 0], edges[:, 1], loops])
    j = np.concatenate([edges[:, 1], edges[:, 0], loops])
    degree = np.bincount(i, minlength=n)
    values = 1 / np.sqrt(degree[i] * degree[j])
    made = torch.tensor(values, dtype=torch.float32)
    return torch.sparse_coo_tensor(torch.tensor(np.stack([i, j])), made, (n, n), check_invariants=True).coalesce()
