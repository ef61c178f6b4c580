"""Attention over the edges of a graph, by sums over segments: numbers held are a few an edge, never nodes x nodes."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.diagnosis.graph.sparse import Pattern


def segment_softmax(score: Float[Tensor, " edges"], target: Int[Tensor, " edges"], n: int) -> Float[Tensor, " edges"]:
    """Softmax of the scores of each target's incoming edges.

    Examples
    --------
    >>> segment_softmax(torch.tensor([0.0, 0.0, 5.0]), torch.tensor([1, 1, 0]), 2).tolist()
    [0.5, 0.5, 1.0]
    """
    top = torch.full((n,), float("-inf"), device=score.device).scatter_reduce(0, target, score.detach(), "amax")
    e = torch.exp(score - top[target])
    total = torch.zeros(n, device=score.device).index_add(0, target, e)
    return e / total[target]


class GraphAttention(nn.Module):
    """h'_t = sum over in-neighbours s of alpha_st W h_s, alpha = softmax over s of a . [W h_s; W h_t].

    Parameters
    ----------
    dim : int
        Size of a node's embedding.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim, bias=False)
        self.of_source, self.of_target = nn.Linear(dim, 1, bias=False), nn.Linear(dim, 1, bias=False)
        for layer in (self.linear, self.of_source, self.of_target):
            nn.init.xavier_normal_(layer.weight)

    def forward(
        self, source: Float[Tensor, "sources dim"], target: Float[Tensor, "targets dim"], edges: Pattern
    ) -> Float[Tensor, "targets dim"]:
        """Messages to the targets along edges (rows: targets, columns: sources); nodes without an edge get 0."""
        z_source = self.linear(source)
        # of_target(W h_t), without W h_t for all targets
        at_target = target @ (self.of_target.weight @ self.linear.weight).T
        score = self.of_source(z_source).squeeze(1)[edges.column] + at_target.squeeze(1)[edges.row]
        alpha = segment_softmax(score, edges.row, len(target))
        return edges.product(alpha, z_source)
