"""A graph posterior network on a block model: bridge nodes belong to two blocks, so they are unsure by nature
(aleatoric)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from assay.uncertainty.generators import BlockGraph, bridged_blocks
from assay.uncertainty.measures import quantify
from assay.uncertainty.metrics import auroc
from assay.uncertainty.transforms_torch.graph import DEFAULT, GraphPosteriorNetwork

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class OnGraph:
    """A posterior network on the block model, for the benchmark.

    Parameters
    ----------
    steps : int
        Of PageRank; 0 leaves the edges out.
    n : int
        Nodes.
    epochs, seed : int
    """

    def __init__(self, *, steps: int = 10, n: int = 300, epochs: int = 200, seed: int = 0) -> None:
        self.steps, self.n, self.epochs, self.seed = steps, n, epochs, seed

    def fitted(self, graph: BlockGraph, features: np.ndarray | None = None) -> GraphPosteriorNetwork:
        """A network trained on the graph, with other features if they are given."""
        model = GraphPosteriorNetwork(steps=self.steps, config=replace(DEFAULT, epochs=self.epochs), seed=self.seed)
        return model.fit(graph.features if features is None else features, graph.edges, graph.labels, graph.train)

    def judged(self, *, seed: int, curve: Callable[..., None]) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        """Metrics and values of nodes, for the graph of a seed."""
        graph = bridged_blocks(n=self.n, seed=seed)
        test, bridges = ~graph.train & ~graph.bridge, graph.bridge & ~graph.train
        rep = self.fitted(graph).predict()
        aleatoric = quantify(rep).get("aleatoric")
        hit = (rep.predict()[test] == graph.labels[test]).astype(np.float64)
        found = {**_shifted(self, graph, seed), "bridge_auroc": auroc(aleatoric[test], aleatoric[bridges])}
        order = np.sort(aleatoric[test])
        curve("share of nodes", order, np.arange(1, len(order) + 1) / len(order), "aleatoric (nats)")
        figures = {
            "headline": found["bridge_auroc"], "accuracy": float(hit.mean()), "bridge_auroc": found["bridge_auroc"],
            "shift_auroc": found["own evidence"],
        }  # fmt: skip
        return figures, {"accuracy": hit}


def _shifted(method: OnGraph, graph: BlockGraph, seed: int) -> dict[str, float]:
    """How well vacuity finds nodes whose features were moved far away, by their own evidence and by what edges
    bring."""
    test = ~graph.train & ~graph.bridge
    features = graph.features.copy()
    moved = np.random.default_rng(seed).permutation(np.flatnonzero(test))[: len(features) // 10]
    features[moved] += 6.0
    model = method.fitted(graph, features)
    rest = np.setdiff1d(np.flatnonzero(test), moved)
    out = {}
    for own, text in ((True, "own evidence"), (False, "spread evidence")):
        far = quantify(model.predict(own=own), "vacuity").get("epistemic")
        out[text] = auroc(far[rest], far[moved])
    return out


def run(
    *, seed: int = 0, n: int = 300, epochs: int = 200, draw: bool = False
) -> tuple[dict[str, float], Figure | None]:
    """Accuracy with and without edges, and how aleatoric and epistemic uncertainty see bridges and shifted features."""
    graph = bridged_blocks(n=n, seed=seed)
    test, bridges = ~graph.train & ~graph.bridge, graph.bridge & ~graph.train
    with_edges, alone = (OnGraph(steps=s, n=n, epochs=epochs, seed=seed) for s in (10, 0))
    reps = {"with edges": with_edges.fitted(graph).predict(), "features alone": alone.fitted(graph).predict()}
    parts = quantify(reps["with edges"])
    aleatoric, epistemic = parts.get("aleatoric"), parts.get("epistemic")
    figures = {f"accuracy {k}": float((r.predict()[test] == graph.labels[test]).mean()) for k, r in reps.items()}
    figures |= {
        "bridges found by aleatoric, AUROC": auroc(aleatoric[test], aleatoric[bridges]),
        "bridges found by epistemic, AUROC": auroc(epistemic[test], epistemic[bridges]),
    }
    figures |= {f"shifted nodes found by {k}, AUROC": v for k, v in _shifted(with_edges, graph, seed).items()}
    return figures, _picture(graph.bridge, aleatoric, epistemic) if draw else None


def _picture(bridge: np.ndarray, aleatoric: np.ndarray, epistemic: np.ndarray) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.6), layout="constrained")
    axes = figure.subplots()
    for mask, label in ((~bridge, "in one block"), (bridge, "bridge")):
        axes.scatter(aleatoric[mask], epistemic[mask], s=12, label=label, alpha=0.7)
    axes.set_xlabel("aleatoric (nats)")
    axes.set_ylabel("epistemic (nats)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure
