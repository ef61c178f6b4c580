"""Every error by its name, from bad input."""

from __future__ import annotations

import json
from collections import OrderedDict

import pytest
import torch
from torch import nn

from assay.difftest import (
    AmbiguousName,
    CoverageHole,
    DiffTestError,
    LaunchError,
    Name,
    NameMap,
    NotComparable,
    ReplicaConflict,
    StepMismatch,
    Tolerance,
    Trace,
    TraceCorrupt,
    UnmappedName,
    compare,
    convert,
    coverage,
    coverage_batch,
    preset,
    scatter_state,
    trace,
)
from assay.difftest.testbed.bugs import Switches
from assay.difftest.testbed.config import Config, Layout
from assay.difftest.writer import Entry, Writer


def traced(folder, model, x, *, steps=1, passes=1, **options):
    with trace(model, folder, **options) as t:
        for step in range(steps):
            if step:
                t.next_step()
            model.zero_grad()
            for _ in range(passes):
                model(x).square().sum().backward()
    return Trace.open(folder)


def net(seed=0, names=("a", "b")):
    torch.manual_seed(seed)
    return nn.Sequential(OrderedDict((n, nn.Linear(6, 6)) for n in names))


X = torch.linspace(-1, 1, 12).reshape(2, 6)


def test_unmapped_name_with_a_suggestion(tmp_path):
    reference = traced(tmp_path / "a", net(), X)
    candidate = traced(tmp_path / "b", net(names=("a", "bb")), X)
    with pytest.raises(UnmappedName, match=r"'bb.*did you mean b"):
        compare(reference, candidate)
    with pytest.raises(UnmappedName, match="no name rule matches"):
        NameMap([("x", "y")], identity=False).module("z")
    with pytest.raises(UnmappedName, match="did you mean layers.0"):
        NameMap().check(["layer.0"], ["layers.0", "head"])


def test_ambiguous_name(tmp_path):
    with pytest.raises(AmbiguousName, match="both become 'a'"):
        trace(net(), tmp_path, names=NameMap([("b", "a")]))
    with pytest.raises(AmbiguousName, match="make the rules disjoint"):
        NameMap([("b", "a")]).check(["a", "b"], ["a"])


def test_step_mismatch(tmp_path):
    reference = traced(tmp_path / "a", net(), X)
    with pytest.raises(StepMismatch, match=r"steps \[0\], the candidate \[0, 1\]"):
        compare(reference, traced(tmp_path / "b", net(), X, steps=2))
    with pytest.raises(StepMismatch, match="1 micro-batches in the reference and 2"):
        compare(reference, traced(tmp_path / "c", net(), X, passes=2))
    with pytest.raises(StepMismatch, match="7 tokens a step, the candidate 9"):
        compare(
            traced(tmp_path / "d", net(), X, meta={"tokens": 7}), traced(tmp_path / "e", net(), X, meta={"tokens": 9})
        )


def test_not_comparable(tmp_path):
    reference = traced(tmp_path / "a", net(0), X)
    with pytest.raises(NotComparable, match="initial parameters differ"):
        compare(reference, traced(tmp_path / "b", net(1), X))
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 1))
    one = traced(tmp_path / "c", model, torch.tensor([[0, 1, 2, 3]]))
    with pytest.raises(NotComparable, match="of the input differs"):
        compare(one, traced(tmp_path / "d", model, torch.tensor([[5, 6, 7, 8]])))


def test_replica_conflict_is_a_finding_unless_strict(tmp_path):
    for rank in range(2):
        writer = Writer(tmp_path / "c", rank, 2, {"tp": (rank, 2)})
        entry = Entry("0/-/main_grad/a/weight", 0, "float32", (3,), "o")
        writer.put(entry, torch.full((3,), 1.0 + rank))
        writer.finish(0, [entry])
        writer.close()
    writer = Writer(tmp_path / "r")
    entry = Entry("0/-/main_grad/a/weight", 0, "float32", (3,), "")
    writer.put(entry, torch.full((3,), 3.0))
    writer.finish(0, [entry])
    writer.close()
    reference, candidate = Trace.open(tmp_path / "r"), Trace.open(tmp_path / "c")
    first = compare(reference, candidate).findings[0]
    assert first.kind == "missing reduction" and first.ranks == (0, 1)
    assert any("add up to the reference" in e for e in first.evidence)
    with pytest.raises(ReplicaConflict, match=r"0/-/main_grad/a/weight: copies on ranks \[0, 1\]"):
        compare(reference, candidate, strict=True)


def test_trace_corrupt_names_file_and_offset(tmp_path):
    with pytest.raises(TraceCorrupt, match="holds no trace"):
        Trace.open(tmp_path)
    reference = traced(tmp_path / "a", net(), X)
    index = next((tmp_path / "a").glob("*.json"))
    text = index.read_text()
    index.write_text(text[: len(text) // 2])
    with pytest.raises(TraceCorrupt, match=rf"{index.name} is damaged at offset \d+"):
        Trace.open(tmp_path / "a")
    index.write_text(text)
    data = next((tmp_path / "a").glob("*.safetensors"))
    data.write_bytes(data.read_bytes()[:50])
    with pytest.raises(TraceCorrupt, match=r"\(50 bytes\) cannot be read"):
        Trace.open(tmp_path / "a").tensor("0/0/out/a/0")
    raw = json.loads(text)
    raw["entries"][0]["file"] = "../../etc/passwd"
    index.write_text(json.dumps(raw))
    with pytest.raises(TraceCorrupt, match="names the file"):
        Trace.open(tmp_path / "a").tensor(raw["entries"][0]["name"])
    assert reference.steps == [0]


def test_coverage_hole():
    batch = coverage_batch(vocab=64, seq=32, batch=2)
    batch.tokens[batch.tokens == 31] = 0
    with pytest.raises(CoverageHole, match="31"):
        coverage(batch, vocab=64, tp=2, strict=True)


def test_launch_error_holds_the_ranks_traceback(pool):
    with pytest.raises(LaunchError, match=r"rank 0 of 1: DiffTestError: there is no bug 99"):
        pool.run("assay.difftest.testbed.launch.run_candidate", 1, config={}, layout={}, bug=99, out="")
    assert pool.run("os.getpid", 1)[0] > 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Name.parse("a/b"), "no canonical name"), (lambda: Name.parse("0/0/sideways/a/0"), "unknown phase"),
        (lambda: preset("lightning"), "there are deepspeed"), (lambda: Switches(27), "there is no bug 27"),
        (lambda: Config(dtype="int8"), "fp32, bf16, fp8"), (lambda: Layout(dp=2, ep=3), "ep=3 must divide dp=2"),
        (lambda: Layout(tp=4).check(Config()), "4 and 2 heads over tp=4"),
        (lambda: Tolerance().with_rules([("(", 1.0)]), "no regular expression"),
        (lambda: Tolerance().with_rules([("a", -1.0)]), "not a number from 0 up"),
        (lambda: NameMap([("(", "a")]), "no regular expression"),
        (lambda: NameMap([("(?P<i>\\d)", "{i**9}")]).module("1"), "cannot work out"),
        (lambda: convert("/nowhere", "/tmp"), "there is no /nowhere"),
        (lambda: scatter_state({}, nn.Linear(1, 1)), "has no 'weight'"),
        (lambda: trace(nn.Linear(1, 1), "x", level="all"), "there is no level"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(make, words):
    with pytest.raises(DiffTestError, match=words.replace("(", r"\(")):
        make()


def test_a_pickle_that_runs_code_is_refused(tmp_path):
    import pickle

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "made"), "w"))

    (tmp_path / "dump.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(TraceCorrupt, match="save plain tensors"):
        convert(tmp_path / "dump.pt", tmp_path / "out")
    assert not (tmp_path / "made").exists()
