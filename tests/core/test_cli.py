"""The command line, in processes of its own where the process matters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from assay.cli import app
from assay.core.registry import FIELDS

PLUGIN = """
import numpy as np
from assay.core.benchmark import Benchmark, Metric

class Mean:
    def __init__(self, bias=0.0):
        self.bias = bias
    def guess(self, x):
        return x.mean() + self.bias

class Broken(Mean):
    def guess(self, x):
        raise RuntimeError("out of order")

def evaluate(task, method, context):
    x = task.data() + context.rng("noise").normal(size=3)
    return {"error": abs(method.make().guess(x) - x.mean())}

def register(benchmarks):
    mine = benchmarks.add(Benchmark("mine", "My own", [Metric("error", higher_is_better=False)], evaluate))
    mine.add_task("ones", lambda: np.ones(3))
    mine.add_task("<script>alert(1)</script>", lambda: np.zeros(3))
    mine.add_method("mean", Mean)
    mine.add_method("off", Mean, bias=1.0, baseline=True)
    mine.add_method("broken", Broken)
    mine.quick(tasks=["ones"], methods=["mean", "off"], seeds=range(3))
"""


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "my-plugin.py"
    path.write_text(PLUGIN)
    return str(path)


def assay(*words: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "assay", *words], capture_output=True, text=True, timeout=120,
        env={**os.environ, "COLUMNS": "160", **environment}, check=False,
    )  # fmt: skip


def test_help_and_list_import_no_framework_and_no_field():
    code = (
        "import sys; sys.argv = ['assay', {!r}]\n"
        "from assay.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {{'numpy', 'torch', 'jax', 'sklearn', 'numba', 'pandas', 'duckdb', 'altair', 'ray'}}\n"
        "print('LOADED', sorted(heavy & set(sys.modules)))"
    )
    for word in ("--help", "list"):
        done = subprocess.run([sys.executable, "-c", code.format(word)], capture_output=True, text=True, check=True)
        assert "LOADED []" in done.stdout


def test_list_names_all_fields_and_says_what_is_not_there():
    output = CliRunner().invoke(app, ["list"], env={"COLUMNS": "160"}).output
    assert len(FIELDS) == 19
    for field in FIELDS.values():
        line = next(line for line in output.splitlines() if line.startswith(f"{field.name} "))
        assert ("not yet" in line) is not field.present


def test_a_plugin_runs_from_grid_to_report(plugin, tmp_path):
    store = str(tmp_path / "runs")
    done = assay("run", "mine", "--plugin", plugin, "--store", store, "--quick", "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert "mean" in done.stdout
    shown = assay("show", "mine", "--plugin", plugin, "--store", store)
    assert shown.returncode == 0
    csv = assay("show", "mine", "--plugin", plugin, "--store", store, "--format", "csv").stdout
    assert "mean" in csv
    assert "," in csv
    page = tmp_path / "page.html"
    done = assay("report", "mine", "--plugin", plugin, "--store", store, "-o", str(page))
    assert done.returncode == 0
    assert "My own" in page.read_text(encoding="utf-8")


def test_several_methods_behind_one_option_and_parameters_in_the_name(plugin, tmp_path):
    store = str(tmp_path / "runs")
    done = assay(
        "run", "mine", "--plugin", plugin, "--store", store, "--task", "ones",
        "--method", "mean", "off", "mean(bias=0.5)", "--seeds", "0,1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = [json.loads(p.read_text()) for p in (tmp_path / "runs" / "mine").glob("*/run.json")]
    assert sorted({r["method"] for r in records}) == ["mean", "mean(bias=0.5)", "off"]
    assert len(records) == 6


def test_a_failed_run_gives_exit_code_1_and_is_shown(plugin, tmp_path):
    done = assay(
        "run",
        "mine",
        "--plugin",
        plugin,
        "--store",
        str(tmp_path / "r"),
        "-t",
        "ones",
        "-m",
        "broken",
        "-m",
        "mean",
        "--seeds",
        "0",
    )
    assert done.returncode == 1
    assert "out of order" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "nine"], "did you mean mine?"),
        (["run", "mine", "-t", "one"], "did you mean ones?"),
        (["run", "mine", "-m", "meen"], "did you mean mean"),
        (["run", "mine", "-m", "mean(bios=1)"], "did you mean bias?"),
        (["run", "mine", "--metric", "eror"], "did you mean error?"),
        (["run", "mine", "--seeds", "a-b"], "write 0-4 or 0,7,9"),
        (["run", "mine", "--memory", "lots"], "write 500MB or 4GB"),
        (["show", "mine"], "assay run mine --quick"),
    ],
)
def test_bad_words_are_one_line_and_exit_code_2(plugin, tmp_path, words, message):
    done = assay(words[0], words[1], "--plugin", plugin, "--store", str(tmp_path / "r"), *words[2:])
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "neither a function register(benchmarks) nor a Benchmark"),
        ("import nothing_of_that_name\n", "ModuleNotFoundError"),
        ("def register(b):\n    1 / 0\n", "ZeroDivisionError: division by zero (line 2)"),
        ("def register(b)\n", "SyntaxError"),
    ],
)
def test_a_bad_plugin_names_file_and_line(tmp_path, text, message):
    path = tmp_path / "bad.py"
    path.write_text(text)
    done = assay("list", "mine", "--plugin", str(path))
    assert done.returncode == 2
    assert message in done.stderr
    assert str(path) in done.stderr


def test_ctrl_c_stops_cleanly_and_says_how_to_resume(tmp_path):
    path = tmp_path / "slow.py"
    path.write_text(PLUGIN.replace("    x = task.data()", "    import time; time.sleep(0.3)\n    x = task.data()"))
    store = tmp_path / "runs"
    process = subprocess.Popen(
        [sys.executable, "-m", "assay", "run", "mine", "--plugin", str(path), "--store", str(store), "-m", "mean",
         "--seeds", "0-99", "-w", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        # a suite that a shell runs in the background is deaf to the signal, and so would be its children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while not list(store.glob("mine/*/run.json")):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "run the same command again to go on" in error
    assert "Traceback" not in error
    assert not list((store / "mine" / ".claims").iterdir())
    assert all(json.loads(path.read_text())["status"] == "ok" for path in store.glob("mine/*/run.json"))


def test_a_missing_extra_is_one_line_with_the_command(monkeypatch):
    from assay.core import registry
    from assay.core.errors import MissingExtraError

    def without(name: str):
        raise ModuleNotFoundError("No module named 'numba'", name="numba")

    monkeypatch.setattr(registry.importlib, "import_module", without)
    with pytest.raises(
        MissingExtraError,
        match=r"assay.streams needs the package 'numba'; install it with: pip install 'assay\[streams\]'",
    ):
        registry.import_field("streams")


def test_an_entry_point_of_another_package_adds_a_benchmark(tmp_path):
    package = tmp_path / "site"
    (package / "other_pkg-1.0.dist-info").mkdir(parents=True)
    (package / "other_pkg-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: other-pkg\nVersion: 1.0\n"
    )
    (package / "other_pkg-1.0.dist-info" / "entry_points.txt").write_text(
        "[assay.benchmarks]\nmine = other_pkg:register\n"
    )
    (package / "other_pkg.py").write_text(PLUGIN)
    done = assay("run", "mine", "--quick", "--store", str(tmp_path / "r"), "-w", "1", PYTHONPATH=str(package))
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "r" / "mine").glob("*/run.json"))) == 3 * 2


def test_data_list_shows_licences_and_citations():
    output = CliRunner().invoke(app, ["data", "list", "streams", "--json"]).output
    rows = {row["file"]: row for row in json.loads(output)}
    assert rows["spambase.data"]["licence"] == "CC BY 4.0"
    assert "Hopkins" in rows["spambase.data"]["citation"]
    done = CliRunner().invoke(app, ["data", "get", "streams", "spambas.data"])
    assert done.exit_code == 2
