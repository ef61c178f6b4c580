"""Compiled kernels and files written piece by piece: the same as what they replace."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from assay.difftest import ShardSpec, Trace, TraceCorrupt, digest, distance, trace
from assay.difftest import metrics as metrics_module
from assay.difftest import sketch as sketch_module
from assay.difftest.kernels import compiled
from assay.difftest.parts import PartFile
from assay.difftest.writer import Entry, Writer

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
needs_numba = pytest.mark.skipif(compiled() is None, reason="numba is not installed")


@pytest.fixture
def without(monkeypatch):
    """Calls a function with and without the compiled kernels."""

    def both(call):
        fast = call()
        with monkeypatch.context() as patch:
            patch.setattr(sketch_module, "compiled", lambda: None)
            patch.setattr(metrics_module, "compiled", lambda: None)
            return fast, call()

    return both


@needs_numba
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [1, 127, 8192, 100_003])
def test_digests_are_those_of_torch(dtype, n, without):
    x = torch.randn(n, generator=torch.Generator().manual_seed(n)).to(dtype)
    for values in (x, x.abs() + 1, -x.abs() - 1):
        fast, slow = without(lambda values=values: digest(values))
        assert (fast.sketch - slow.sketch).norm() <= 1e-13 * slow.sketch.norm()
        assert fast.square == pytest.approx(slow.square, rel=1e-13)
        assert fast.total == pytest.approx(slow.total, abs=1e-12 * n)
        assert (fast.low, fast.high) == (float(values.double().min()), float(values.double().max()))
        assert (fast.low, fast.high, fast.bad, fast.count) == (slow.low, slow.high, slow.bad, slow.count)


@needs_numba
@pytest.mark.parametrize("text", ["a[tp] b", "a b[tp]", "a[tp:zigzag] b", "flat[5000+9000]"])
def test_digests_of_shards_are_those_of_torch(text, without):
    spec = ShardSpec.parse(text)
    x = torch.randn(80, 503, generator=torch.Generator().manual_seed(1))
    coords = {} if "flat" in text else {"tp": (1, 2)}
    part, index = spec.cut(x, coords), spec.index((80, 503), coords)
    fast, slow = without(lambda: digest(part, index))
    assert (fast.sketch - slow.sketch).norm() <= 1e-13 * slow.sketch.norm()
    assert (fast.low, fast.high, fast.count) == (slow.low, slow.high, slow.count)


@needs_numba
@pytest.mark.parametrize("dtype", TYPES)
def test_distances_are_those_of_fp64(dtype):
    """Sums of FP32 products over chunks of 2048: the relative error is far below 1e-5 of the difference."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(200_001, generator=generator).to(dtype)
    y = (x.double() + 1e-2 * torch.randn(200_001, generator=generator, dtype=torch.float64)).to(dtype)
    found = distance(x, y)
    gap = (y.to(torch.float32) - x.to(torch.float32) if dtype != torch.float64 else y - x).double()
    assert found.error == pytest.approx(float(gap.norm()), rel=1e-6)
    assert found.reference == pytest.approx(float(x.double().norm()), rel=1e-6)
    assert found.candidate == pytest.approx(float(y.double().norm()), rel=1e-6)
    assert found.dot == pytest.approx(float(torch.dot(x.double(), y.double())), rel=1e-6)
    assert found.largest == pytest.approx(float(gap.abs().max()), rel=1e-12)


@needs_numba
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_what_is_not_finite_or_overflows_is_counted(value, without):
    x = torch.randn(5000, generator=torch.Generator().manual_seed(3))
    y = x.clone()
    y[4321] = value
    assert without(lambda: distance(x, y))[0] == without(lambda: distance(x, y))[1]
    assert distance(x, y).bad == (value != 1e30)
    fast, slow = without(lambda: digest(y))
    assert (fast.bad, fast.low, fast.high) == (slow.bad, slow.low, slow.high)
    assert (fast.sketch - slow.sketch).norm() <= 1e-13 * slow.sketch.norm()


def test_files_read_like_those_of_safetensors(tmp_path):
    generator = torch.Generator().manual_seed(4)
    tensors = {
        f'{i}/\u00e9 "{dtype}"': torch.randint(0, 2, (i, 3), generator=generator).to(dtype)
        for i, dtype in enumerate([*TYPES, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
    }
    tensors["scalar"] = torch.tensor(2.5)
    part = PartFile(tmp_path / "a.safetensors")
    for name, tensor in tensors.items():
        part.add(name, tensor)
    part.close()
    save_file(tensors, tmp_path / "b.safetensors")
    a, b = load_file(tmp_path / "a.safetensors"), load_file(tmp_path / "b.safetensors")
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert tensor.dtype == b[name].dtype and torch.equal(tensor, b[name])
    with (tmp_path / "a.safetensors").open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    sizes = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}
    assert all(entry["data_offsets"][0] % sizes.get(entry["dtype"], 1) == 0 for entry in header.values())
    with pytest.raises(TraceCorrupt, match="complex128"):
        PartFile(tmp_path / "c.safetensors").add("z", torch.zeros(1, dtype=torch.complex128))


def test_a_full_header_and_a_name_kept_twice_begin_another_file(tmp_path):
    writer = Writer(tmp_path)
    entries = [Entry(f"0/0/mark/{'x' * 500}/{i}", i, "float32", (2,), "") for i in range(300)]
    entries.append(Entry(entries[0].name, 300, "float32", (2,), ""))
    for i, entry in enumerate(entries):
        writer.put(entry, torch.full((2,), float(i)))
    writer.finish(0, entries[1:])
    writer.close()
    assert len({entry.file for entry in entries}) > 2
    kept = Trace.open(tmp_path)
    assert kept.tensor(entries[0].name).tolist() == [300.0, 300.0]
    assert all(kept.tensor(entry.name).tolist() == [float(i)] * 2 for i, entry in enumerate(entries) if 0 < i < 300)


class Broken(nn.Module):
    """Stops the step behind a large output."""

    def forward(self, x):
        raise RuntimeError("stop")


def test_a_step_that_is_broken_off_leaves_no_file(tmp_path):
    model = nn.Sequential(nn.Linear(300, 300), Broken())
    with pytest.raises(RuntimeError, match="stop"), trace(model, tmp_path):
        model(torch.ones(30_000, 300))
    assert list(tmp_path.iterdir()) == []
