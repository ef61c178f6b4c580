"""The adapter of a rival that lives elsewhere: skipped with its reason, and driven as its commands document."""

from __future__ import annotations

import pytest

from assay.difftest import LaunchError
from assay.difftest.methods import Scenario, TrainCheck
from assay.difftest.testbed.config import Config, Layout

FAKE = """#!{python}
import json, os, pathlib, sys
what, a = pathlib.Path(sys.argv[0]).name.split("-")[1], sys.argv[1:]
value = lambda flag: pathlib.Path(a[a.index(flag) + 1])
if what == "collect":
    facts = json.loads(os.environ["ASSAY_RUN"])
    compile(value("-p").read_text(), "pipeline.py", "exec")
    value("--output-dir").mkdir()
    (value("--output-dir") / "trace_API_1.log").write_text(json.dumps(facts))
elif what == "infer":
    seed = json.loads((value("-f") / "trace_API_1.log").read_text())["config"]["seed"]
    value("-o").write_text("".join(json.dumps(dict(n=n, seed=seed)) + chr(10) for n in range(3)))
else:
    facts = json.loads((value("-f") / "trace_API_1.log").read_text())
    lines = [dict(invariant=dict(relation="R", params=[0], text_description="holds nowhere"))]
    lines += [dict(invariant=dict(relation="R", params=[1], text_description="copies agree"))] * (facts["bug"] > 0)
    out = value("-o") / value("-f").name
    out.mkdir(parents=True)
    (out / "failed.log").write_text(chr(10).join(json.dumps(line, indent=4) for line in lines))
    sys.exit(3 if facts["bug"] == 2 else 0)
"""


def scenario(bug):
    return Scenario(Config(), Layout(tp=2), bug, lambda: None, lambda steps: None)


def test_it_is_skipped_with_its_reason(monkeypatch):
    monkeypatch.delenv("ASSAY_TRAINCHECK", raising=False)
    with pytest.raises(ImportError, match="benchmarks/peers/difftest.txt"):
        TrainCheck().judge(scenario(12))


def test_what_correct_runs_violate_too_is_no_finding(monkeypatch, tmp_path):
    """The commands are stand-ins that write the files that the real ones write; the real ones run in the benchmark."""
    import sys

    for what in ("collect", "infer", "check"):
        path = tmp_path / f"traincheck-{what}"
        path.write_text(FAKE.replace("{python}", sys.executable))
        path.chmod(0o755)
    monkeypatch.setenv("ASSAY_TRAINCHECK", str(tmp_path))
    right, wrong = TrainCheck().judge(scenario(0)), TrainCheck().judge(scenario(12))
    assert (right.found, wrong.found, wrong.findings) == (False, True, 1)
    assert wrong.notes == {"invariants": 3, "violated by a correct run": 1, "evidence": ["copies agree"]}
    with pytest.raises(LaunchError, match="traincheck-check ended with code 3"):
        TrainCheck().judge(scenario(2))
