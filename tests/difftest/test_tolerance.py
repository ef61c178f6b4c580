"""Modes of tolerances, routing near ties, states into shards, coverage."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from assay.difftest import (
    DiffTestError,
    LossMonitor,
    NameMap,
    Tolerance,
    Trace,
    coverage,
    coverage_batch,
    estimate_tolerance,
    gather_state,
    generate,
    grouped_qkv,
    relative_error,
    replay_tolerance,
    scatter_state,
    theory_tolerance,
    trace,
)
from assay.difftest.routing import compare_choices

X = generate("x", (4, 8))


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = x + 0.1 * layer(x)
        return x


def test_modes_are_combined_by_maximum_and_rules_replace():
    model = Blocks()
    step = lambda: model(X).square().sum().backward()  # noqa: E731
    perturb = estimate_tolerance(step, model)
    both = estimate_tolerance(step, model, modes=("perturb", "theory"), C=1.03)
    name = "0/0/gout/layers.1/0"
    theory = theory_tolerance(2, 3, eps=2.0**-23)
    assert both.of(name)[0] == pytest.approx(max(perturb.of(name)[0], theory))
    assert both.of(name)[1] in ("perturb", "floor", "theory, C = 1.03")
    measured = estimate_tolerance(step, model, modes=("theory",))
    assert measured.of(name)[1].startswith("theory, C = 1")
    ruled = both.with_rules([(r"gout/layers", 0.5)])
    assert ruled.of(name) == (0.5, "fixed rule gout/layers")
    assert all(p.grad is None for p in model.parameters())


def test_state_is_put_back():
    model = Blocks()
    optimizer = torch.optim.Adam(model.parameters())
    before = {n: p.clone() for n, p in model.named_parameters()}

    def step():
        model(X).square().sum().backward()
        optimizer.step()

    tolerance = estimate_tolerance(step, model, optimizer=optimizer)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert not optimizer.state
    assert tolerance.of("0/-/param_after/layers.0/weight")[0] > 2 * 2e-3 / 10


def test_saved_tolerances_and_others_thresholds(tmp_path):
    model = Blocks()
    made = estimate_tolerance(lambda: model(X).sum().backward(), model)
    again = Tolerance.load(made.save(tmp_path / "t.json"))
    assert again.relative == made.relative and again.eps == made.eps
    (tmp_path / "plain.json").write_text('{"/out/": 0.01}')
    assert Tolerance.load(tmp_path / "plain.json").of("0/0/out/a/0") == (0.01, "fixed rule /out/")
    (tmp_path / "bad.json").write_text("[")
    with pytest.raises(DiffTestError, match="cannot be read"):
        Tolerance.load(tmp_path / "bad.json")


def test_replay_takes_the_spread_of_correct_runs(tmp_path):
    model = nn.Linear(8, 8)
    runs = []
    for k, shift in enumerate((0.0, 1e-3, -1e-3)):
        handle = model.register_forward_hook(lambda m, a, out, shift=shift: out * (1 + shift))
        with trace(model, tmp_path / str(k)):
            model(X)
        handle.remove()
        runs.append(Trace.open(tmp_path / str(k)))
    tolerance = replay_tolerance(runs[0], runs[1:], safety=2.0)
    assert tolerance.of("0/0/out/model/0")[0] == pytest.approx(2 * 2e-3, rel=0.01)
    with pytest.raises(DiffTestError, match="at least one correct run"):
        replay_tolerance(runs[0], [])


def test_flips_at_near_ties_are_legal_and_others_are_not():
    logits = torch.tensor([[3.0, 2.0, 1.999, 0.0], [3.0, 2.0, 1.0, 0.0]])
    flips = compare_choices("c", torch.tensor([[0, 1], [0, 1]]), torch.tensor([[2, 0], [0, 2]]), logits, 1e-3)
    assert (flips.legal, flips.illegal) == (1, 1) and flips.tokens.tolist() == [True, False]
    same = compare_choices("c", torch.tensor([[0, 1]]), torch.tensor([[1, 0]]), logits[:1], 0.0)
    assert (same.legal, same.illegal) == (0, 0)


def test_states_go_into_shards_and_back():
    whole = {"q": generate("q", (4, 6)), "k": generate("k", (2, 6)), "v": generate("v", (2, 6))}
    fused = nn.Module()
    fused.register_parameter("qkv", nn.Parameter(torch.zeros(8, 6)))
    names = NameMap(splits=[grouped_qkv("qkv", ["q", "k", "v"], heads=4, groups=2)])
    scatter_state(whole, fused, names=names)
    assert torch.equal(fused.qkv[:2], whole["q"][:2]) and torch.equal(fused.qkv[2], whole["k"][0])
    back = gather_state(fused, names=names)
    assert all(torch.equal(back[n], whole[n]) for n in whole)
    part = nn.Module()
    part.register_parameter("q", nn.Parameter(torch.zeros(2, 6)))
    scatter_state(whole, part, {"tp": (1, 2)}, specs={"q": "o[tp] i"})
    assert torch.equal(part.q, whole["q"][2:])
    with pytest.raises(DiffTestError, match="no rank holds o 0..1"):
        gather_state(part, {"tp": (1, 2)}, specs={"q": "o[tp] i"})
    with pytest.raises(DiffTestError, match=r"make \[4, 6\], the parameter has \[2, 6\]"):
        scatter_state(whole, part)


def test_coverage_of_experts():
    batch = coverage_batch(vocab=64, seq=32, batch=2)
    even = torch.arange(64).reshape(-1, 2) % 4
    report = coverage(batch, vocab=64, experts=even, n_experts=4)
    assert "experts, an idle one" in report.holes and "experts, an overloaded one" in report.holes
    skew = torch.tensor([[0, 1]] * 30 + [[0, 2]] * 2)
    assert coverage(batch, vocab=64, experts={"layers.0": skew}, n_experts=4).complete


def test_the_loss_monitor_needs_more_than_one_odd_step():
    import numpy as np

    curves = 5 + 0.01 * np.random.default_rng(0).standard_normal((3, 100))
    monitor = LossMonitor(window=10, patience=2).fit(curves)
    jump = curves.mean(0).copy()
    jump[40:50] += 1.0
    assert monitor.alarm(jump) is None
    jump[50:60] += 1.0
    assert monitor.alarm(jump) == 4


def test_the_loss_of_the_reference_is_better_than_what_it_judges():
    """At logits of 28, torch's cross entropy is itself off by several eps where a share is near 1."""
    from torch.nn import functional as F

    from assay.difftest.testbed.gpt import Loss

    labels = torch.arange(64).reshape(1, 64)
    logits = generate("logits", (1, 64, 509)) * 2
    logits[0, range(64), range(64, 128)] = 24 + 4 * torch.linspace(0, 1, 64)  # sure, and wrong

    def gradient(loss, x):
        x = x.clone().requires_grad_()
        loss(x).sum().backward()
        return x.grad

    def torchs(x):
        return F.cross_entropy(x.flatten(0, 1), labels.flatten(), reduction="none", label_smoothing=0.1)

    truth = gradient(torchs, logits.double())
    eps = 2.0**-23
    assert relative_error(truth, gradient(lambda x: Loss(0.1)(x, labels), logits)) < 1.5 * eps
    assert relative_error(truth, gradient(torchs, logits)) > 3 * eps
    assert torch.allclose(Loss(0.1)(logits, labels).flatten().double(), torchs(logits.double()), rtol=1e-6)
