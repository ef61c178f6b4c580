"""What large models need: fewer layers, a reference that is itself distributed, a checkpoint, replayed routing."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from assay.difftest import (
    DiffTestError,
    NotComparable,
    Trace,
    compare,
    cut_layers,
    estimate_tolerance,
    fill_parameters,
    forward_of_first,
    trace,
)
from assay.difftest.testbed import frameworks
from assay.difftest.testbed.config import Config, Layout
from assay.difftest.testbed.launch import launch, reference_tolerance, routing_of, run_reference

SMALL = {"width": 64, "ffn": 64, "seq": 32, "batch": 2, "layers": 2, "kv_heads": 4}


class Deep(nn.Module):
    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(layers))
        self.head = nn.Linear(8, 16)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


TOKENS = torch.arange(24).reshape(2, 12) % 16


def traced(model, folder):
    with trace(model, folder):
        model(TOKENS).square().mean().backward()
    return Trace.open(folder)


def test_a_cut_reference_beside_the_whole_model(tmp_path):
    """The reference never exists whole: it is made without memory, cut, then filled by name."""
    with torch.device("meta"):
        cut = Deep()
    cut = fill_parameters(cut_layers(cut, 2).to_empty(device="cpu"))
    assert len(cut.layers) == 2
    reference = traced(cut, tmp_path / "cut")
    options = {"include": forward_of_first(2), "allow_extra": True}
    whole = fill_parameters(Deep())
    result = compare(reference, traced(whole, tmp_path / "whole"), **options)
    assert result.ok and len(result.verdicts) > 15
    assert {v.name.split("/")[2] for v in result.verdicts} == {"in", "out", "param"}
    whole.layers[1][1].register_forward_hook(lambda m, a, out: 1.01 * out)
    found = compare(reference, traced(whole, tmp_path / "broken"), **options).findings
    assert (found[0].module, found[0].phase) == ("layers.1.1", "out")
    late = fill_parameters(Deep())
    late.layers[4][1].register_forward_hook(lambda m, a, out: 1.01 * out)
    assert compare(reference, traced(late, tmp_path / "late"), **options).ok  # behind the cut nothing can be seen


def test_both_sides_cut_are_compared_whole(tmp_path):
    a, b = (cut_layers(fill_parameters(Deep()), 3, path="layers") for _ in range(2))
    tolerance = estimate_tolerance(lambda: a(TOKENS).square().mean().backward(), a)
    b.layers[2][2].weight.register_hook(lambda g: 0.5 * g)
    result = compare(traced(a, tmp_path / "a"), traced(b, tmp_path / "b"), tolerance)
    assert result.findings[0].name == "0/0/grad/layers.2.2/weight" and result.findings[0].kind == "scale"


@pytest.mark.parametrize(
    ("n", "path", "words"), [(7, "layers", "has 6 layers"), (0, None, "n must be"), (1, "h", "no list")]
)
def test_cuts_that_do_not_fit(n, path, words):
    with pytest.raises(DiffTestError, match=words):
        cut_layers(Deep(), n, path=path)


def test_a_reference_that_is_itself_distributed(pool, references, tmp_path):
    """Where one device cannot hold the model, a trusted layout takes the reference's place."""
    config = Config(**SMALL)
    _, tolerance = references.get(config)
    trusted = launch(config, Layout(dp=2, fsdp=True), tmp_path / "fsdp", pool=pool)
    assert trusted.world == 2
    other = launch(config, Layout(tp=2, sp=True), tmp_path / "tp", pool=pool)
    result = compare(trusted, other, tolerance)
    assert result.ok and sum(v.status == "ok" for v in result.verdicts) > 100
    broken = launch(config, Layout(tp=2, sp=True), tmp_path / "broken", bug=12, pool=pool)
    first = compare(trusted, broken, tolerance).findings[0]
    assert first.module == "final_norm" and first.phase == "main_grad" and first.kind == "missing reduction"


def test_routing_is_replayed_inside_a_run(pool, tmp_path):
    """A candidate that follows the reference's experts does so even where its own router would choose others."""
    config = Config(**{**SMALL, "experts": 8})
    own = run_reference(config, tmp_path / "own")
    turned = {key: (chosen + 1) % 7 for key, chosen in routing_of(own).items()}  # the eighth expert is idle
    reference = run_reference(config, tmp_path / "turned", routing=turned)
    names = [n for n in reference.names() if n.endswith("/chosen")]
    assert names and not any(torch.equal(reference.tensor(n), own.tensor(n)) for n in names)
    layout = Layout(tp=2, sp=True)
    follows = launch(config, layout, tmp_path / "follows", reference=reference.folder, replay_routing=True, pool=pool)
    for n in names:
        assert torch.equal(follows.tensor(n), reference.tensor(n))
    assert compare(reference, follows, reference_tolerance(config, reference)).ok
    alone = launch(config, layout, tmp_path / "alone", reference=reference.folder, replay_routing=False, pool=pool)
    result = compare(reference, alone)
    first = result.findings[0]
    assert first.name.endswith("/chosen") or "router" in first.module
    assert any("without a near tie" in v.note for v in result.verdicts)


def test_both_sides_start_from_a_checkpoint_at_a_later_step(pool, tmp_path):
    """One distributed checkpoint: the reference reads it whole, each rank its shards; steps are numbered from there."""
    checkpoint = str(tmp_path / "step100")
    frameworks.train_norm(checkpoint, 3)
    frameworks.reference_norm(str(tmp_path / "reference"), checkpoint, step=100)
    pool.run(frameworks.dtensor_norm, 2, out=str(tmp_path / "tp"), checkpoint=checkpoint, step=100)
    reference, candidate = Trace.open(tmp_path / "reference"), Trace.open(tmp_path / "tp")
    assert reference.steps == candidate.steps == [100]
    assert compare(reference, candidate).ok
    first = frameworks.norm_model()[0].fc1.weight
    assert not torch.allclose(reference.tensor("100/-/param/fc1/weight"), first)
    pool.run(frameworks.dtensor_norm, 2, out=str(tmp_path / "fresh"), step=100)
    with pytest.raises(NotComparable, match=r"initial parameters differ, first 100/-/param/norm/(weight|bias)"):
        compare(reference, Trace.open(tmp_path / "fresh"))


@pytest.mark.slow
def test_eight_ranks(candidate):
    """Tensor, sequence, data and pipeline parallelism at once: clean, and a bug of one of them is found."""
    config = Config(**{**SMALL, "layers": 4})
    layout = Layout(tp=2, sp=True, dp=2, pp=2, zero=True)
    assert layout.world == 8
    result, _, trace_ = candidate(config, layout)
    assert result.ok and trace_.world == 8 and len({f.rank for f in trace_.files}) == 8
    result, _, _ = candidate(config, layout, "broken", bug=25)
    first = result.findings[0]
    assert first.phase == "main_grad" and re.search("norm", first.module) and first.kind == "missing reduction"
