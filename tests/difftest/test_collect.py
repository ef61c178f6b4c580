"""The collector on the shapes that real models have."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from assay.difftest import NameMap, Stage, Trace, compare, digest, distance, generate, grouped_qkv, isolate, mark, trace
from assay.difftest.names import preset
from assay.difftest.samples import sample_indices
from assay.difftest.testbed.config import Config, Layout

X = generate("x", (4, 8))


def run(model, folder, step=None, **options):
    with trace(model, folder, **options) as t:
        (step or (lambda: model(X).square().sum().backward()))()
    return Trace.open(folder), t


@dataclass
class Pair:
    left: Tensor
    right: Tensor
    label: str = "pair"


class Structured(nn.Module):
    """Dictionaries, tuples, dataclasses, keywords and plain values in and out."""

    class Inner(nn.Module):
        def forward(self, pair, *, factor, extra):
            return {"sum": pair.left + pair.right * factor, "parts": (pair.left, extra["deep"][0])}

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.inner = self.Inner()

    def forward(self, x):
        y = self.lin(x)
        out = self.inner(Pair(y, 2 * y), factor=3.0, extra={"deep": [y * y]})
        return out["sum"] + out["parts"][1]


def test_structured_inputs_and_outputs(tmp_path):
    found, _ = run(Structured(), tmp_path)
    names = found.names()
    for slot in ("0.left", "0.right", "extra.deep.0"):
        assert f"0/0/in/inner/{slot}" in names and f"0/0/gin/inner/{slot}" in names
    assert {"0/0/out/inner/sum", "0/0/out/inner/parts.0", "0/0/out/inner/parts.1"} <= set(names)


def test_the_input_gradient_is_that_of_the_module_alone(tmp_path):
    """A residual branch reads the tensor too; its share is not the module's."""

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(8, 8, bias=False)
            self.first = nn.Linear(8, 8)

        def forward(self, x):
            x = self.first(x)
            return x + self.lin(x)

    model = Residual()
    found, _ = run(model, tmp_path, lambda: model(X).sum().backward())
    ones = torch.ones(4, 8)
    assert torch.allclose(found.tensor("0/0/gin/lin/0"), ones @ model.lin.weight)
    assert torch.allclose(found.tensor("0/0/gout/first/0"), ones + ones @ model.lin.weight)


def test_repeated_calls_and_shared_modules(tmp_path):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = self.b = nn.Linear(8, 8)

        def forward(self, x):
            return self.b(self.a(x))

    found, _ = run(Twice(), tmp_path)
    assert "0/0/out/a/0" in found and "0/0/out/a#1/0" in found and "0/0/out/b/0" not in found
    assert not torch.equal(found.tensor("0/0/out/a/0"), found.tensor("0/0/out/a#1/0"))


@pytest.mark.parametrize("reentrant", [False, True])
def test_both_kinds_of_checkpointing(reentrant, tmp_path):
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(8, 8)
            self.out = nn.Linear(8, 8)

        def forward(self, x):
            return self.out(checkpoint(lambda t: torch.tanh(self.lin(t)), x, use_reentrant=reentrant))

    model = Part()
    x = X.clone().requires_grad_()
    found, _ = run(model, tmp_path / "a", lambda: model(x).sum().backward())
    assert "0/0/out+recompute/lin/0" in found
    assert torch.equal(found.tensor("0/0/out+recompute/lin/0"), found.tensor("0/0/out/lin/0"))
    assert "0/0/gout/lin/0" in found and "0/0/gin/lin/0" in found
    plain = found.tensor("0/0/gout/lin/0")
    tanh = torch.tanh(found.tensor("0/0/out/lin/0"))
    assert torch.allclose(plain, (torch.ones(4, 8) @ model.out.weight) * (1 - tanh**2), atol=1e-6)


def test_in_place_changes_are_noted_and_do_not_reach_back(tmp_path):
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.act = nn.Linear(8, 8), nn.ReLU(inplace=True)

        def forward(self, x):
            return self.act(self.lin(x)).sum()

    found, t = run(InPlace(), tmp_path)
    assert "act changes its input 0 in place" in t.notes
    assert float(found.tensor("0/0/out/lin/0").min()) < 0.0 <= float(found.tensor("0/0/out/act/0").min())


def test_microbatches_steps_filters_and_every(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    with trace(model, tmp_path, optimizer=optimizer, every=2, include=[r"^1$"], step=10) as t:
        for step in range(5):
            if step:
                t.next_step()
            optimizer.zero_grad()
            for _ in range(2):
                model(X).square().sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    found = Trace.open(tmp_path)
    assert found.steps == [10, 12, 14]
    assert {n.split("/")[3] for n in found.names()} == {"1"}
    assert {n.split("/")[1] for n in found.names() if "/out/" in n} == {"0", "1"}
    assert {"12/-/optim.exp_avg/1/weight", "12/-/param_after/1/bias", "12/1/grad/1/weight"} <= set(found.names())


def test_marks_loss_and_norm(tmp_path):
    class Marked(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(8, 4)

        def forward(self, x):
            scores = mark("scores", self.lin(x), grad=True)
            return mark("loss", scores.square().sum())

    model = Marked()
    found, _ = run(model, tmp_path, lambda: model(X).backward())
    assert torch.allclose(found.tensor("0/0/gout/model/scores.grad"), 2 * found.tensor("0/0/mark/model/scores"))
    assert "0/0/loss/model/0" in found
    assert mark("outside", 3.0) == 3.0


def test_names_and_splits_of_a_fused_weight(tmp_path):
    fused = nn.Sequential(nn.Linear(8, 16))
    names = NameMap(
        [("0", "attention")],
        splits=[grouped_qkv(r"attention\.weight", ["attention.q", "attention.k", "attention.v"], 4, 2)],
    )
    found, _ = run(fused, tmp_path, names=names)
    assert found.tensor("0/-/param/attention/q").shape == (8, 8)
    assert torch.equal(found.tensor("0/-/param/attention/k"), fused[0].weight[[4, 5, 12, 13]])


def test_presets():
    assert preset("fsdp2").module("_fsdp_wrapped_module.layers.0.mlp") == "layers.0.mlp"
    assert preset("deepspeed").module("module.layers.0") == "layers.0"
    megatron = preset("megatron", layers=8, pp=2, vpp=2, p=1)
    assert megatron.module("chunk1.module.decoder.layers.0.mlp.linear_fc1.weight") == "layers.6.mlp.fc1.weight"
    assert megatron.module("chunk0.decoder.layers.1.input_layernorm") == "layers.3.norm1"
    assert preset("hf-llama").module("lm_head") == "head"
    stages = [Stage.even(7, 2, 2, r).layers for r in range(2)]
    assert stages == [((0, 1), (4, 5)), ((2, 3), (6,))]


@pytest.mark.parametrize("level", ["digest", "sample", "full"])
def test_levels_find_the_same_module(level, tmp_path):
    model = nn.Sequential(nn.Linear(8, 512), nn.GELU(), nn.Linear(512, 512), nn.Linear(512, 512))
    x = generate("x", (16, 8))

    def step():
        model.zero_grad()
        model(x).square().sum().backward()

    run(model, tmp_path / "a", step, level=level)
    with torch.no_grad():
        model[2].register_forward_hook(lambda m, a, out: out * 1.01)
    run(model, tmp_path / "b", step, level=level)
    reference, candidate = Trace.open(tmp_path / "a"), Trace.open(tmp_path / "b")
    assert compare(reference, reference).ok
    first = compare(reference, candidate).findings[0]
    assert (first.module, first.phase) == ("2", "out")
    if level != "full":
        assert candidate.nbytes() < 0.5 * sum(p.numel() * 4 for p in model.parameters())


@pytest.mark.parametrize("level", ["full", "digest", "sample"])
def test_memory_that_is_used_again_holds_no_older_step(level, tmp_path):
    """Copies of later steps go into the memory of earlier ones, which the writer must be done with."""
    model = nn.Sequential(nn.Linear(8, 256), nn.Linear(256, 256))
    x = generate("x", (128, 8))
    expected: dict[str, Tensor] = {}
    with trace(model, tmp_path, level=level, microbatches=1) as t:
        for step in range(6):
            if step:
                t.next_step()
            model.zero_grad()
            out = model(x * (step + 1))
            out.square().mean().backward()
            expected[f"{step}/0/out/1/0"] = out.detach().clone()
            expected[f"{step}/-/grad/1/weight"] = model[1].weight.grad.clone()
    found = Trace.open(tmp_path)
    assert found.steps == list(range(6))
    for name, value in expected.items():
        if level == "full":
            assert torch.equal(found.tensor(name), value)
        elif level == "digest":
            assert found.digest(name)[0].distance(digest(value)) < 1e-9 * float(value.norm())
        else:
            stored = found.local(*found.entries(name)[0])
            assert torch.equal(stored, value.reshape(-1)[torch.from_numpy(sample_indices(value.shape))])


@pytest.mark.parametrize("level", ["digest", "sample"])
def test_levels_over_ranks_without_a_gather(level, candidate):
    """Shards in rows and columns, stretches of shards (ZeRO), partial sums, copies, beside a whole reference."""
    config = Config(width=64, ffn=128, seq=32, batch=2, layers=2, kv_heads=4)
    layout = Layout(tp=2, dp=2, sp=True, zero=True)
    result, _, trace_ = candidate(config, layout, level=level)
    assert result.ok and not result.not_compared, [str(f) for f in result.findings[:5]]
    levels = {e.level for f in trace_.files for e in f.entries.values()}
    assert level in levels and sum(v.note == level for v in result.verdicts) > 50
    result, _, _ = candidate(config, layout, "broken", level=level, bug=12)
    assert result.findings[0].module == "final_norm" and result.findings[0].phase == "main_grad"
    result, _, _ = candidate(config, layout, "other", level=level, skip_reduction=(1,))
    assert result.findings[0].module.startswith("layers.1") and result.findings[0].phase in ("out", "in")


def test_isolation_tells_wrong_here_from_fed_wrong(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    step = lambda: model(X).square().sum().backward()  # noqa: E731
    reference, _ = run(model, tmp_path / "a", step)
    model[1].register_forward_hook(lambda m, a, out: out + 0.1)
    candidate, _ = run(model, tmp_path / "b", step)
    wrong = {f.module for f in compare(reference, candidate).findings if f.phase == "out"}
    assert wrong == {"1", "2", "model"} or wrong == {"1", "2"}
    alone, _ = run(model, tmp_path / "c", step, replace_inputs=reference)
    assert {f.module for f in compare(reference, alone).findings if f.phase == "out"} == {"1"}
    assert isolate(model[2], reference, "2").worst == 0.0
    assert isolate(model[1], reference, "1").out["0"] > 0.01


def test_the_bytes_of_a_trace_are_complete_or_not_there(tmp_path):
    model = nn.Linear(8, 8)

    def broken():
        with trace(model, tmp_path / "a") as t:
            model(X).sum().backward()
            t.next_step()
            model(X).sum().backward()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    found = Trace.open(tmp_path / "a")
    assert found.steps == [0]
    assert distance(found.tensor("0/0/out/model/0"), model(X).detach()).relative == 0.0


def test_autocast_and_compiled_models(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(X).float().sum().backward()

    found, _ = run(model, tmp_path / "a", step)
    assert found.entries("0/0/out/0/0")[0][1].dtype == "bfloat16"
    compiled = torch.compile(nn.Linear(8, 8), backend="eager")
    with trace(nn.Sequential(compiled), tmp_path / "b") as t:
        pass
    assert any("is compiled" in n for n in t.notes)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda(tmp_path):
    model = nn.Linear(8, 8).cuda()
    found, _ = run(model, tmp_path, lambda: model(X.cuda()).sum().backward())
    assert distance(found.tensor("0/0/out/model/0"), model(X.cuda()).detach().cpu()).relative == 0.0
