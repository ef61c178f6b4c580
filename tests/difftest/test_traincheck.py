"""The adapter of a rival that lives elsewhere: skipped with its reason, and driven as its commands document."""

from __future__ import annotations

import sys
import tempfile

import pytest

from assay.difftest import LaunchError, Undecided
from assay.difftest.methods import Scenario, TrainCheck
from assay.difftest.testbed.config import Config, Layout

COLLECT = """#!{python}
import json, os, pathlib, sys
a = sys.argv[1:]
value = lambda flag: pathlib.Path(a[a.index(flag) + 1])
if "-p" in a:
    facts = json.loads(os.environ["ASSAY_RUN"])
    compile(value("-p").read_text(), "pipeline.py", "exec")
    value("--output-dir").mkdir()
    (value("--output-dir") / "trace_API_1.log").write_text(json.dumps(facts))
    sys.exit(3 if facts["bug"] == 2 else 0)
value("-o").write_text("".join(json.dumps(n) + chr(10) for n in range(6)))
"""
# a package of TrainCheck's name: invariant 0 never holds, 1 holds without a bug, 2 takes for ever under bug 7, 3 raises
PACKAGE = {
    "__init__.py": "",
    "utils.py": "",
    "trace.py": """
import json
def select_trace_implementation(name):
    return None, lambda files: json.load(open(files[0]))["bug"]
""",
    "invariant.py": """
from types import SimpleNamespace
class Invariant:
    def __init__(self, n):
        self.n, self.text_description = n, ["holds nowhere", "copies agree"][n] if n < 2 else f"rule {n}"
    def check(self, bug, first):
        while self.n == 2 and bug == 7:
            pass
        if self.n == 3:
            raise KeyError("x")
        failed = self.n == 0 or (self.n == 1 and bug == 12)
        return SimpleNamespace(check_passed=not failed, triggered=self.n != 4)
def read_inv_file(files):
    return [Invariant(int(line)) for line in open(files[0])]
""",
}


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """Stand-ins that write the files that the real commands write; the real ones run in the benchmark."""
    monkeypatch.setattr("assay.difftest.traincheck._KNOWN", {})
    for what in ("collect", "infer"):
        path = tmp_path / f"traincheck-{what}"
        path.write_text(COLLECT.replace("{python}", sys.executable))
        path.chmod(0o755)
    (tmp_path / "packages" / "traincheck").mkdir(parents=True)
    for name, text in PACKAGE.items():
        (tmp_path / "packages" / "traincheck" / name).write_text(text)
    (tmp_path / "python").write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/packages exec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setenv("ASSAY_TRAINCHECK", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path


def scenario(bug):
    return Scenario(Config(), Layout(tp=2), bug, lambda: None, lambda steps: None)


def test_it_is_skipped_with_its_reason(monkeypatch):
    monkeypatch.delenv("ASSAY_TRAINCHECK", raising=False)
    with pytest.raises(ImportError, match="benchmarks/peers/difftest.txt"):
        TrainCheck().judge(scenario(12))


def test_what_correct_runs_violate_too_is_no_finding(commands):
    answer = TrainCheck().judge(scenario(12))
    assert answer.found and answer.findings == 1
    assert answer.notes == {
        "invariants": 6, "checked": 5, "triggered": 4, "violated": 2, "violated by a correct run too": 1,
        "evidence": ["copies agree"],
    }  # fmt: skip


def test_a_part_that_holds_says_nothing_of_the_rest(commands):
    """Invariant 3 cannot be checked; under bug 7 the timer ends invariant 2."""
    with pytest.raises(Undecided, match="5 of 6 invariants were checked in 5 CPU seconds, 1 violated, none by this"):
        TrainCheck(budget=5).judge(scenario(0))
    with pytest.raises(Undecided, match="4 of 6 invariants"):
        TrainCheck(budget=5, each=0.2).judge(scenario(7))
    (commands / "packages" / "traincheck" / "invariant.py").write_text(
        PACKAGE["invariant.py"].replace("if self.n == 3", "if False")
    )
    assert not TrainCheck(budget=5).judge(scenario(0)).found


def test_a_command_that_fails_is_named_and_the_run_is_removed(commands):
    with pytest.raises(LaunchError, match="traincheck-collect ended with code 3"):
        TrainCheck().judge(scenario(2))
    (folder,) = (commands / "temporary").iterdir()
    assert sorted(p.name for p in folder.iterdir()) == [
        "first", "first-pipeline", "invariants.json", "second", "second-pipeline",
    ]  # fmt: skip
