"""One memory under two names is stored once; an update that leaves most elements alone is not taken for no update."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from assay.difftest import Trace, generate, trace


def test_a_sparse_update_is_recorded(tmp_path):
    model = nn.Linear(128, 64, bias=False)
    x = generate("x", (4, 128))

    class Nudge(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            model.weight.view(-1)[5] += 1.0

    optimizer = Nudge(model.parameters(), lr=0.1)
    with trace(model, tmp_path, optimizer=optimizer):
        model(x).sum().backward()
        optimizer.step()
    found = Trace.open(tmp_path)
    change = found.tensor("0/-/param_after/model/weight") - found.tensor("0/-/param/model/weight")
    assert float(change.view(-1)[5]) == pytest.approx(1.0, abs=1e-6) and int((change != 0).sum()) == 1


def test_a_gradient_that_passes_unchanged_is_stored_once(tmp_path):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    x = generate("x", (128, 64))
    with trace(model, tmp_path) as t:
        model(x).square().sum().backward()
    found = Trace.open(tmp_path)
    assert found.alias("0/0/gout/0/0") == "0/0/gin/1/0"
    assert torch.equal(found.tensor("0/0/gout/0/0"), found.tensor("0/0/gin/1/0"))
    assert t.recorded["0/0/gout/0/0"].alias


def test_a_gradient_that_is_added_to_is_not(tmp_path):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            y = self.first(x)
            return self.a(y) + self.b(y)

    model = Two()
    with trace(model, tmp_path):
        model(generate("x", (128, 64))).square().sum().backward()
    found = Trace.open(tmp_path)
    parts = found.tensor("0/0/gin/a/0") + found.tensor("0/0/gin/b/0")
    assert torch.allclose(found.tensor("0/0/gout/first/0"), parts, rtol=1e-5, atol=1e-5)
