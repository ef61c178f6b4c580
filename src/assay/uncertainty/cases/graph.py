"""A graph posterior network on a block model: bridge nodes belong to two blocks, so they are unsure by nature
(aleatoric)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from assay.uncertainty.generators import bridged_blocks
from assay.uncertainty.measures import quantify
from assay.uncertainty.metrics import auroc
from assay.uncertainty.transforms_torch.graph import DEFAULT, GraphPosteriorNetwork

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run(
    *, seed: int = 0, n: int = 300, epochs: int = 200, draw: bool = False
) -> tuple[dict[str, float], Figure | None]:
    """Accuracy with and without edges, and how aleatoric and epistemic uncertainty see bridges and shifted features."""
    graph = bridged_blocks(n=n, seed=seed)
    config = replace(DEFAULT, epochs=epochs)
    test = ~graph.train & ~graph.bridge
    fitted = {}
    for name, steps in (("with edges", 10), ("features alone", 0)):
        model = GraphPosteriorNetwork(steps=steps, config=config, seed=seed)
        fitted[name] = model.fit(graph.features, graph.edges, graph.labels, graph.train)
    rep = fitted["with edges"].predict()
    parts = quantify(rep)
    bridges = graph.bridge & ~graph.train
    figures = {
        f"accuracy {name}": float((model.predict().predict()[test] == graph.labels[test]).mean())
        for name, model in fitted.items()
    }
    assert parts.aleatoric is not None
    assert parts.epistemic is not None
    figures |= {
        "bridges found by aleatoric, AUROC": auroc(parts.aleatoric[test], parts.aleatoric[bridges]),
        "bridges found by epistemic, AUROC": auroc(parts.epistemic[test], parts.epistemic[bridges]),
    }
    # The same graph with the features of some nodes far away: evidence there must fall.
    shifted = graph.features.copy()
    moved = np.random.default_rng(seed).permutation(np.flatnonzero(test))[: n // 10]
    shifted[moved] += 6.0
    model = GraphPosteriorNetwork(config=config, seed=seed).fit(shifted, graph.edges, graph.labels, graph.train)
    rest = np.setdiff1d(np.flatnonzero(test), moved)
    for own, text in ((True, "own evidence"), (False, "spread evidence")):
        far = quantify(model.predict(own=own), "vacuity").get("epistemic")
        figures[f"shifted nodes found by {text}, AUROC"] = auroc(far[rest], far[moved])
    return figures, _picture(graph.bridge, parts.aleatoric, parts.epistemic) if draw else None


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
