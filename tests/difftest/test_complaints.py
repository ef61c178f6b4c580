"""What users of distributed training complained about in public, as required behaviour."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

from assay.difftest import (
    Name,
    NameMap,
    Trace,
    bisect,
    compare,
    coverage,
    coverage_batch,
    generate,
    odd_ones,
    replay_tolerance,
    summary,
    trace,
)
from assay.difftest.plots import plot_depth
from assay.difftest.report import floors_table
from assay.difftest.testbed.config import Config, Layout
from assay.difftest.testbed.launch import launch
from assay.difftest.testbed.suite import total_loss

SMALL = {"width": 64, "ffn": 64, "seq": 32, "batch": 2, "layers": 2}


def test_megatron_7452_composition_bugs_need_a_lattice_and_uneven_counts(candidate):
    """NVIDIA/Megatron-LM#7452: bugs that show only when two features meet, each found by a script of its own."""

    def run(tp=1, dp=1, sp=False):
        config = Config(**{**SMALL, "experts": 8})
        layout = Layout(tp=tp, dp=dp, sp=sp and tp > 1)
        if layout.world == 1:
            return True
        return candidate(config, layout, f"{layout}", bug=19)[0]

    found = bisect(run, {"tp": [1, 2], "dp": [1, 2], "sp": [False, True]})
    assert {frozenset(m) for m in found.minimal} == {
        frozenset({"tp", "dp", "sp"}),
        frozenset({"tp", "sp"}),
    } or found.minimal
    assert all(m.get("sp") and m.get("tp") == 2 for m in found.minimal)
    batch = coverage_batch(vocab=64, seq=32, batch=4, microbatches=2)
    report = coverage(batch, vocab=64, tp=2, cp=2, dp=2)
    assert report.complete
    assert "label counts over context-parallel ranks" in report.touched


def test_torchtitan_1750_bug_or_rounding(candidate, references):
    """pytorch/torchtitan#1750: the loss differs between TP degrees; the answer needs a tolerance with a reason."""
    config = Config(dtype="bf16", **SMALL)
    result, reference, other = candidate(config, Layout(tp=2))
    assert total_loss(reference) != total_loss(other)
    assert result.ok and "closest to its tolerance" in summary(result)
    assert {v.reason for v in result.verdicts} >= {"perturb", "floor"}
    floors = floors_table(result, top=5)
    assert len(floors) == 5 and all(low > 0 for _, low, _ in floors)
    assert floors == sorted(floors, key=lambda f: -f[1])


def test_torchtitan_1250_a_verdict_for_each_tensor_not_a_curve(candidate):
    """pytorch/torchtitan PR#1250: curves that lie close together were not accepted as proof."""
    result, reference, other = candidate(Config(**SMALL), Layout(tp=2, sp=True), bug=12)
    assert total_loss(other) == pytest.approx(total_loss(reference), rel=1e-6)
    assert result.findings[0].module == "final_norm"
    right = [v for v in result.verdicts if v.status == "ok"]
    assert len(right) > 200


def test_torchtitan_771_order_of_accumulation_is_no_bug(candidate, references, pool, tmp_path):
    """pytorch/torchtitan#771: FSDP and FSDP+PP differ by the order of sums; correct runs show how much that is."""
    config = Config(**SMALL)
    reference, _ = references.get(config)
    runs = [launch(config, layout, tmp_path / str(layout), pool=pool) for layout in (Layout(tp=2), Layout(dp=2))]
    tolerance = replay_tolerance(reference, runs)
    third = launch(config, Layout(pp=2), tmp_path / "third", pool=pool)
    assert compare(reference, third, tolerance).ok
    assert not compare(reference, launch(config, Layout(cp=2), tmp_path / "bad", pool=pool, bug=3), tolerance).ok


def test_torchtitan_963_a_split_that_forgets_layers(candidate):
    """pytorch/torchtitan PR#963: the pipeline split ignored layers."""
    result, _, _ = candidate(Config(**{**SMALL, "layers": 3}), Layout(pp=2), bug=8)
    assert result.findings[0].kind == "missing layers"
    assert any("missing: layers.2" in e for e in result.findings[0].evidence)


def test_pytorch_88621_the_gradient_norm_is_traced_and_counted(candidate):
    """pytorch/pytorch#88621, torchtune#2420: the norm differs between FSDP and DDP, and clipping with it."""
    config = Config(sinks=True, **SMALL)
    assert candidate(config, Layout(dp=2, zero=True))[0].ok
    result, _, other = candidate(config, Layout(tp=2), "bad", bug=16)
    assert "0/-/gnorm/model/0" in other
    first = result.findings[0]
    assert first.phase == "gnorm" and first.kind == "norm counts"
    assert any("gradients are right" in e for e in first.evidence)
    assert any("core.sink" in e for e in first.evidence)


def test_pytorch_171874_the_collective_log_has_before_and_after(candidate):
    """pytorch/pytorch#171874: local gradients equal to the bit, different after the all-reduce; how to go on?"""
    _, _, other = candidate(Config(**SMALL), Layout(tp=2))
    log = [c for c in other.collectives() if c["op"] == "all_reduce" and c["module"] == "layers.1.attention.proj"]
    assert log and all(c["group"] == [0, 1] and c["reduce"] in ("", "sum") for c in log)
    both = {c["rank"]: c for c in log[:1] + [c for c in log if c["rank"] == 1][:1]}
    assert both[0]["before"] != both[1]["before"] and both[0]["after"] == both[1]["after"]
    assert not odd_ones(other.collectives())


def test_megatron_bridge_5411_drift_against_depth(candidate, tmp_path):
    """NVIDIA-NeMo/Megatron-Bridge#5411: drift with SP in BF16; FP32 first, then error and tolerance against depth."""
    for dtype in ("fp32", "bf16"):
        result, _, _ = candidate(Config(dtype=dtype, **SMALL), Layout(tp=2, sp=True), dtype)
        assert result.ok
        plot_depth(result, eps=2.0**-23 if dtype == "fp32" else 2.0**-7).savefig(tmp_path / f"{dtype}.png")
    assert (tmp_path / "bf16.png").stat().st_size > 5000


def test_pytorch_130725_ids_at_the_ends_of_vocabulary_shards(candidate):
    """pytorch/pytorch#130725: a mask bug that only the ids at a shard's end show."""
    config = Config(**SMALL)
    data = config.data()
    assert {0, 255, 256, 511} <= set(data.tokens.flatten().tolist())
    result, _, _ = candidate(config, Layout(tp=2), bug=1)
    assert result.findings[0].module == "embedding" and result.findings[0].kind == "wrong rows"
    blind = coverage_batch(vocab=512, seq=32, batch=2, microbatches=2)
    blind.tokens[blind.tokens == 256] = 7
    assert "256" in coverage(blind, vocab=512, tp=2).holes["vocabulary ends, tokens"]


def test_verl_6609_a_missing_token_count(candidate):
    """verl-project/verl#6609: CP > 1 and a token count that is missing; the scaling rule says so."""
    result, _, _ = candidate(Config(**SMALL), Layout(cp=2), bug=17)
    first = result.findings[0]
    assert first.kind in ("scale by rank", "scale")
    assert any("local count" in e for e in first.evidence)


def test_traincheck_overhead_words_and_ranks(candidate):
    """TrainCheck's roadmap: overhead, clearer explanations, several ranks."""
    config = Config(**{**SMALL, "width": 128})
    result, _, other = candidate(config, Layout(tp=2, sp=True), level="digest", bug=12)
    assert result.findings[0].module == "final_norm" and result.findings[0].ranks == (0, 1)
    assert all(len(e) > 10 for e in result.findings[0].evidence)
    largest = max(e.shape for f in other.files for e in f.entries.values() if e.level == "digest")
    assert np.prod(largest) > 1024


@pytest.mark.parametrize("bug", [12, 25])
def test_gpt_neox_1257_unsynchronised_norms(bug, candidate):
    """EleutherAI/gpt-neox PR#1257, #1259: norm gradients not synchronised for weeks; copies are compared by default."""
    result, _, _ = candidate(Config(**SMALL), Layout(tp=2, sp=True), bug=bug)
    assert re.search("norm", result.findings[0].module) and result.findings[0].kind == "missing reduction"


def test_a_user_needs_under_ten_lines(tmp_path):
    """The method's claim: a comparison costs the user under ten changed lines. This is a whole one."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    x = generate("x", (4, 8))

    def train_step(factor=1.0):
        model.zero_grad()
        (factor * model(x).square().mean()).backward()

    with trace(model, tmp_path / "reference"):  # 1
        train_step()
    with trace(model, tmp_path / "candidate", names=NameMap()):  # 2
        train_step(0.5)
    result = compare(Trace.open(tmp_path / "reference"), Trace.open(tmp_path / "candidate"))  # 3
    assert result.findings[0].kind == "scale"
    assert Name.parse(result.findings[0].name).module == "2"
    assert torch.equal(x, generate("x", (4, 8)))
