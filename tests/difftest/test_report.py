"""Reports, gate, converters, command line, benchmark."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from assay.difftest import (
    Trace,
    compare,
    convert,
    gate,
    generate,
    render,
    save_html,
    save_json,
    summary,
    trace,
)
from assay.difftest.cli import app
from assay.difftest.lattice import bisect

X = generate("x", (4, 8))


@pytest.fixture
def pair(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))
    for folder, factor in (("reference", 1.0), ("candidate", 2.0)):
        model.zero_grad()
        with trace(model, tmp_path / folder):
            (factor * model(X).square().sum()).backward()
    return tmp_path / "reference", tmp_path / "candidate"


def test_junit_and_exit_codes(pair, tmp_path):
    reference, candidate = (Trace.open(p) for p in pair)
    good, bad = compare(reference, reference), compare(reference, candidate)
    assert gate(good, junit=tmp_path / "good.xml") == 0 and gate(bad, junit=tmp_path / "bad.xml") == 1
    suite = ElementTree.parse(tmp_path / "bad.xml").getroot()
    failures = suite.findall("testcase/failure")
    assert int(suite.get("failures")) == len(failures) > 0
    assert failures[0].get("type") == "scale" and "times the reference" in failures[0].text
    assert ElementTree.parse(tmp_path / "good.xml").getroot().get("failures") == "0"
    good.not_compared.append("0/0/out/x/0")
    assert good.verdict == "PASS (partial)" and gate(good, allow_partial=False) == 2
    assert json.loads(save_json(bad, tmp_path / "r.json").read_text())["verdict"] == "FAIL"
    assert "first wrong: 0/0/gout/2/0" in summary(bad)


def test_the_page_is_self_contained_and_escaped(pair, tmp_path):
    bad = compare(*(Trace.open(p) for p in pair))
    bad.notes.append("<script>alert(1)</script>")
    page = save_html(bad, tmp_path / "r.html").read_text()
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "src=" not in page
    assert page.count("<circle") == len([v for v in bad.verdicts if v.status != "left out"])
    assert "rank 0" in page
    assert "PASS" in render(compare(Trace.open(pair[0]), Trace.open(pair[0])))


def test_comparison_goes_on_where_it_stopped(pair, tmp_path):
    reference, candidate = (Trace.open(p) for p in pair)
    first = compare(reference, candidate, resume=tmp_path / "state.jsonl")
    lines = (tmp_path / "state.jsonl").read_text().splitlines()
    (tmp_path / "state.jsonl").write_text("\n".join(lines[:7]) + "\n" + lines[7][:20])
    calls = []
    original = Trace.pieces
    try:
        Trace.pieces = lambda self, name: calls.append(name) or original(self, name)
        again = compare(reference, candidate, resume=tmp_path / "state.jsonl")
    finally:
        Trace.pieces = original
    assert [f.name for f in again.findings] == [f.name for f in first.findings]
    assert len({json.loads(x)["name"] for x in lines[:7]} - set(calls)) >= 1


def test_a_dead_rank_is_named_and_the_rest_compared(pool, tmp_path, references):
    from assay.difftest.testbed.config import Config, Layout
    from assay.difftest.testbed.launch import launch

    config = Config(width=64, ffn=64, seq=32, batch=2, layers=2)
    reference, tolerance = references.get(config)
    launch(config, Layout(tp=2), tmp_path / "c", pool=pool)
    for file in (tmp_path / "c").glob("rank00001*"):
        file.unlink()
    result = compare(reference, Trace.open(tmp_path / "c"), tolerance)
    assert result.dead_ranks == [1] and any("rank 1 left no complete file" in n for n in result.notes)
    assert result.ok and result.partial
    assert sum("only the parts of ranks [0]" in v.note for v in result.verdicts) > 50


def test_non_finite_on_both_sides_is_a_finding(tmp_path):
    model = nn.Linear(8, 8)
    bad = X.clone()
    bad[0, 0] = float("nan")
    for folder in ("a", "b"):
        with trace(model, tmp_path / folder):
            model(bad)
    result = compare(Trace.open(tmp_path / "a"), Trace.open(tmp_path / "b"))
    assert not result.ok
    assert any("both non-finite" in e for e in result.findings[0].evidence)


def test_command_line(pair, tmp_path):
    runner = CliRunner()
    reference, candidate = map(str, pair)
    good = runner.invoke(app, ["compare", reference, reference])
    assert good.exit_code == 0 and "PASS" in good.output
    bad = runner.invoke(
        app, ["compare", reference, candidate, "--junit", str(tmp_path / "x.xml"), "--html", str(tmp_path / "x.html")]
    )
    assert (
        bad.exit_code == 1
        and "scale" in bad.output
        and (tmp_path / "x.xml").exists()
        and (tmp_path / "x.html").exists()
    )
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({".*": 10.0}))
    assert runner.invoke(app, ["compare", reference, candidate, "--tol", str(rules)]).exit_code == 0
    assert runner.invoke(app, ["report", reference, candidate, "-o", str(tmp_path / "y.html")]).exit_code == 0
    assert "floor" in runner.invoke(app, ["floor", reference, candidate]).output
    listed = runner.invoke(app, ["bugs"])
    assert listed.exit_code == 0 and "smoothing" in listed.output


def test_converters(tmp_path):
    from safetensors.torch import save_file

    tree = tmp_path / "tree"
    for rank in range(2):
        (tree / f"rank{rank}").mkdir(parents=True)
        torch.save(torch.full((2,), float(rank)), tree / f"rank{rank}" / "layers.0.fc1.out.pt")
    found = convert(tree, tmp_path / "t1")
    assert found.names() == ["0/0/out/layers.0.fc1/0"] and found.world == 2
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    for r in range(2):
        value = torch.arange(4.0)[2 * r : 2 * r + 2]
        meta = {"dims": "t[tp]", "tp_rank": r, "tp_size": 2, "rank": r}
        torch.save({"value": value, "meta": meta}, dumps / f"step=3___rank={r}___name=hidden.pt")
    found = convert(dumps, tmp_path / "t2")
    assert found.names() == ["3/0/out/hidden/0"]
    assert found.tensor("3/0/out/hidden/0").tolist() == [0, 1, 2, 3]
    save_file({"layers.0.weight": torch.ones(2)}, tmp_path / "w.safetensors")
    assert convert(tmp_path / "w.safetensors", tmp_path / "t3").names() == ["0/-/param/layers.0/weight"]
    import torch.distributed.checkpoint as dcp

    state = {"model.layers.0.weight": torch.ones(3), "optimizer.state.exp_avg.layers.0.weight": torch.zeros(3)}
    dcp.save(state, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    assert set(convert(tmp_path / "dcp", tmp_path / "t4").names()) == {
        "0/-/param/layers.0/weight", "0/-/optim.exp_avg/layers.0/weight"
    }  # fmt: skip


def test_lattice_of_three_axes():
    ran = []

    def run(tp=1, cp=1, ep=1):
        ran.append((tp, cp, ep))
        if tp == 2 and cp == 4:
            raise RuntimeError("no such layout")
        return not (cp == 2 and ep == 2)

    found = bisect(run, {"tp": [1, 2], "cp": [1, 2, 4], "ep": [1, 2]})
    assert found.minimal == [{"cp": 2, "ep": 2}]
    assert (2, 2, 2) not in ran and "RuntimeError: no such layout" in found.errors.values()


def test_a_larger_degree_that_fails_alone_points_at_the_groups():
    """Of the specification's diagnosis rules: right with TP 2, wrong with TP 4."""
    axes = {"tp": [1, 2, 4], "sp": [False, True], "dp": [1, 2]}
    found = bisect(lambda tp=1, sp=False, dp=1: not (tp == 4 and sp), axes)
    assert found.minimal == [{"tp": 4, "sp": True}]
    assert found.remarks() == ["right with tp=2 and wrong with tp=4: look at how its groups are made"]
    assert str(found).endswith("tried); right with tp=2 and wrong with tp=4: look at how its groups are made")
    assert bisect(lambda tp=1, sp=False, dp=1: tp == 1, axes).remarks() == []
    assert bisect(lambda tp=1, sp=False, dp=1: not sp, axes).remarks() == []


def test_benchmark_on_one_bug_and_one_correct_run(tmp_path):
    from assay.difftest.benchmark import benchmark

    results = benchmark.run(
        tasks=["bug-12", "correct-tp2-sp-fp32"],
        methods=["perturb", "nothing"],
        seeds=[0],
        store=tmp_path,
        progress=False,
    )
    rows = {r.method: r.mean for r in results.leaderboard("right").rows}
    assert rows["perturb"] == 1.0 and rows["nothing"] == 0.5
    assert {r.method: r.mean for r in results.leaderboard("module").rows}["perturb"] == 1.0
