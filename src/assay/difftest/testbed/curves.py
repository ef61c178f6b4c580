"""Loss curves of the reference and of distributed runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from assay.difftest.testbed.config import Config, Layout
from assay.difftest.testbed.launch import one_thread, run_candidate
from assay.difftest.testbed.pool import Pool, shared_pool
from assay.difftest.testbed.train import Reference


def reference_curves(config: Config, *, seeds: Sequence[int]) -> np.ndarray:
    """Losses of ``config.steps`` steps for several seeds. [seeds, steps]"""
    curves = []
    with one_thread():
        for seed in seeds:
            reference = Reference(config.with_(seed=seed))
            curves.append([reference.step(step) for step in range(config.steps)])
    return np.array(curves)


def candidate_curve(config: Config, layout: Layout, bug: int = 0, *, pool: Pool | None = None) -> np.ndarray:
    """Losses of a distributed run."""
    layout.check(config)
    losses = (pool or shared_pool()).run(
        run_candidate,
        layout.world,
        config=config.facts(),
        layout=asdict(layout),
        bug=bug or None,
        out="",
        losses_only=True,
    )
    return np.array(losses[-1])  # the last stage knows the loss
