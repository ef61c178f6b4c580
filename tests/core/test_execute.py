"""Running grids: resuming, failures, limits, workers that die, several processes in one store."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from assay.core.benchmark import Benchmark, Metric
from assay.core.errors import AssayError, SkipRun, StoreError, UnknownNameError
from assay.core.execute import Interrupted
from assay.core.store import Store


def make_benchmark(log: Path | None = None) -> Benchmark:
    """Methods are words that say what happens; made of closures, so that worker processes can have them."""

    def evaluate(task, method, context):
        word = method.make()
        if log is not None:
            with log.open("a") as file:
                file.write(f"{task.name} {method.name} {context.seed}\n")
        if word == "raise":
            raise ValueError("no luck")
        if word == "exit":
            raise SystemExit(3)
        if word == "nan":
            return {"error": float("nan")}
        if word == "negative":
            return {"error": -1.0}
        if word == "skip":
            raise SkipRun("not for this task")
        if word == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "sleep":
            time.sleep(60)
        if word == "eat":
            blocks = []
            while True:
                blocks.append(np.ones(4_000_000))
                time.sleep(0.01)
        if word == "interrupt":
            raise KeyboardInterrupt
        context.curve("loss", 1, 0.5)
        context.rows("squares", np.arange(3.0))
        context.note(kept=np.float64(0.5))
        context.artifact("deep/note.txt").write_text("kept")
        return {"error": float(task.data().mean() + context.rng("noise").random())}

    benchmark = Benchmark("coin", "Guess", [Metric("error", higher_is_better=False, bounds=(0, math.inf))], evaluate)
    benchmark.add_task("ones", lambda: np.ones(3))
    benchmark.add_task("twos", lambda: 2 * np.ones(3))
    for word in ("good", "better", "raise", "exit", "nan", "negative", "skip", "kill", "sleep", "eat", "interrupt"):
        benchmark.add_method(word, lambda word=word: word)
    return benchmark


def essence(store: Path, benchmark: str = "coin") -> dict[str, tuple]:
    """What must be the same in two stores: all but times."""
    records = Store(store).records(benchmark)
    return {r.key: (r.task, r.method, r.seed, r.status, tuple(sorted(r.metrics.items()))) for r in records}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_grid_gives_a_record_a_cell(tmp_path, workers):
    results = make_benchmark().run(
        methods=["good", "better"], seeds=range(3), store=tmp_path, workers=workers, progress=False
    )
    assert len(results) == 2 * 2 * 3
    assert results.exit_code == 0
    record = results.records[0]
    folder = tmp_path / "coin" / record.key
    assert record.artifacts == ["curves.json", "deep/note.txt", "rows.npz"]
    assert (folder / "deep/note.txt").read_text() == "kept"
    assert json.loads((folder / "curves.json").read_text()) == {"loss": {"x": [1.0], "y": [0.5], "x_label": "step"}}
    assert record.notes == {"kept": 0.5}
    assert record.provenance.versions["numpy"] == np.__version__
    assert record.wall_seconds >= 0
    assert record.peak_memory_bytes > 10_000_000
    assert record.data_fingerprint


def test_workers_and_this_process_give_the_same_numbers(tmp_path):
    for name, workers in (("here", 0), ("there", 2)):
        make_benchmark().run(methods=["good"], seeds=range(4), store=tmp_path / name, workers=workers, progress=False)
    assert essence(tmp_path / "here") == essence(tmp_path / "there")


def test_what_is_on_record_is_not_run_again(tmp_path):
    log = tmp_path / "log"
    make_benchmark(log).run(methods=["good"], seeds=range(2), store=tmp_path, progress=False)
    make_benchmark(log).run(methods=["good", "better"], seeds=range(3), store=tmp_path, progress=False)
    lines = log.read_text().split("\n")[:-1]
    assert len(lines) == len(set(lines)) == 2 * 2 * 3


def test_changed_data_or_version_is_run_again(tmp_path):
    first = make_benchmark()
    first.run(tasks=["ones"], methods=["good"], seeds=[0], store=tmp_path, progress=False)
    other = make_benchmark()
    other.tasks["ones"].load = lambda: 5 * np.ones(3)
    results = other.run(tasks=["ones"], methods=["good"], seeds=[0], store=tmp_path, progress=False)
    assert results.columns["m:error"][0] >= 5
    newer = make_benchmark()
    newer.version = "2"
    newer.run(tasks=["ones"], methods=["good"], seeds=[0], store=tmp_path, progress=False)
    assert len(Store(tmp_path).records("coin")) == 3
    assert len(newer.results(tmp_path)) == 1


@pytest.mark.parametrize(
    ("word", "kind", "message"),
    [
        ("raise", "ValueError", "no luck"),
        ("exit", "SystemExit", "exit(3)"),
        ("nan", "MethodError", "NaN"),
        ("negative", "MethodError", "'error' is -1; it cannot lie outside 0 to inf"),
    ],
)
def test_a_failed_run_is_a_record_and_stops_nothing(tmp_path, word, kind, message):
    results = make_benchmark().run(
        tasks=["ones"], methods=[word, "good"], seeds=range(2), store=tmp_path, progress=False
    )
    assert results.exit_code == 1
    assert [r.failure.type for r in results.failures] == [kind] * 2
    assert message in results.failures[0].failure.message
    assert "evaluate" in results.failures[0].failure.traceback or kind == "MethodError"
    assert sum(results.columns["status"] == "ok") == 2


def test_a_skipped_run_has_its_reason_and_is_no_failure(tmp_path):
    results = make_benchmark().run(tasks=["ones"], methods=["skip"], seeds=[0], store=tmp_path, progress=False)
    assert results.exit_code == 0
    assert results.records[0].status == "skipped"
    assert results.records[0].failure.message == "not for this task"


def test_failed_runs_are_run_again_only_when_asked(tmp_path):
    log = tmp_path / "log"
    benchmark = make_benchmark(log)
    for retry in (False, False, True):
        benchmark.run(tasks=["ones"], methods=["raise"], seeds=[0], store=tmp_path, retry_failed=retry, progress=False)
    assert len(log.read_text().splitlines()) == 2
    good = make_benchmark()
    good.methods["raise"].factory = lambda: "good"  # mended, with the code that the key is made of unchanged
    good.methods["raise"].code = benchmark.methods["raise"].code
    results = good.run(tasks=["ones"], methods=["raise"], seeds=[0], store=tmp_path, retry_failed=True, progress=False)
    assert results.exit_code == 0
    assert len(Store(tmp_path).records("coin")) == 1


def test_a_worker_killed_by_the_kernel_is_one_failed_record(tmp_path):
    results = make_benchmark().run(
        tasks=["ones"], methods=["good", "kill", "better"], seeds=range(3), store=tmp_path, workers=2, progress=False
    )
    by_method = dict(zip(results.columns["method"], results.columns["status"], strict=True))
    assert by_method == {"good": "ok", "better": "ok", "kill": "failed"}
    assert len(results) == 9
    assert {r.failure.type for r in results.failures} == {"WorkerDied"}
    assert "SIGKILL" in results.failures[0].failure.message


def test_a_run_past_its_time_is_ended(tmp_path):
    began = time.monotonic()
    results = make_benchmark().run(
        tasks=["ones"], methods=["sleep", "good"], seeds=[0], store=tmp_path, timeout=1.0, progress=False
    )
    assert time.monotonic() - began < 30
    assert results.failures[0].failure.type == "RunTimeout"
    assert "limit is 1 s" in results.failures[0].failure.message
    assert sum(results.columns["status"] == "ok") == 1


def test_a_run_past_its_memory_is_ended(tmp_path):
    results = make_benchmark().run(
        tasks=["ones"], methods=["eat", "good"], seeds=[0], store=tmp_path, memory=600 * 2**20, progress=False
    )
    assert results.failures[0].failure.type == "MemoryLimit"
    assert "limit is 600 MiB" in results.failures[0].failure.message
    assert sum(results.columns["status"] == "ok") == 1


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(tmp_path):
    with pytest.raises(Interrupted, match="run the same command again") as caught:
        make_benchmark().run(tasks=["ones"], methods=["good", "interrupt"], seeds=[0], store=tmp_path, progress=False)
    assert (caught.value.done, caught.value.total) == (1, 2)
    assert [r.method for r in Store(tmp_path).records("coin")] == ["good"]
    assert not list((tmp_path / "coin" / ".claims").iterdir())


def test_data_that_cannot_be_loaded_is_on_record_and_tried_again(tmp_path):
    benchmark = make_benchmark()

    def missing():
        raise FileNotFoundError("words.txt is not there")

    benchmark.add_task("gone", missing)
    results = benchmark.run(methods=["good"], seeds=[0], store=tmp_path, progress=False)
    assert results.exit_code == 1
    assert [(r.task, r.failure.message) for r in results.failures] == [("gone", "words.txt is not there")]
    benchmark.tasks["gone"].load = lambda: np.zeros(2)
    assert benchmark.run(methods=["good"], seeds=[0], store=tmp_path, progress=False).exit_code == 0
    assert benchmark.results(tmp_path).exit_code == 0


def test_an_instance_or_a_class_of_the_users_is_a_method(tmp_path):
    class Guess:
        def __init__(self, bias=0.0):
            self.bias = bias

        def get_params(self, deep=True):
            return {"bias": self.bias}

    def evaluate(task, method, context):
        made = method.make()
        made.bias += 1  # must not leak into the next run
        return {"error": made.bias}

    benchmark = Benchmark("own", "Own", [Metric("error", higher_is_better=False)], evaluate)
    benchmark.add_task("ones", lambda: np.ones(1))
    results = benchmark.run(
        methods={"mine": Guess(0.5), "class": Guess}, seeds=range(2), store=tmp_path, progress=False
    )
    assert sorted(results.columns["m:error"]) == [1.0, 1.0, 1.5, 1.5]
    assert json.loads(results.columns["params"][-1]) == {"bias": 0.5}
    changed = benchmark.run(methods={"mine": Guess(0.75)}, seeds=range(2), store=tmp_path, progress=False)
    assert changed.columns["m:error"].tolist() == [1.75, 1.75]


def test_an_unwritable_store_is_said_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    log = tmp_path / "log"
    with pytest.raises(StoreError, match="Nothing was run"):
        make_benchmark(log).run(methods=["good"], store=tmp_path / "file" / "runs", progress=False)
    assert not log.exists()


def test_a_full_disk_is_said_before_any_work(tmp_path, monkeypatch):
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
    with pytest.raises(StoreError, match=r"1 MiB are free.*Nothing was run"):
        make_benchmark().run(methods=["good"], store=tmp_path, progress=False)


def test_a_disk_that_fills_up_loses_nothing_that_was_saved(tmp_path, monkeypatch):
    real = os.rename
    calls = []

    def full(source, target):
        calls.append(target)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(StoreError, match=r"No space left on device. Runs saved before are safe"):
        make_benchmark().run(tasks=["ones"], methods=["good"], seeds=range(3), store=tmp_path, progress=False)
    monkeypatch.undo()
    assert len(Store(tmp_path).records("coin")) == 1
    assert not list((tmp_path / "coin" / ".staging").iterdir())


def test_unknown_names_suggest_the_nearest():
    benchmark = make_benchmark()
    with pytest.raises(UnknownNameError, match="coin has no method 'goood'; did you mean good"):
        benchmark.run(methods=["goood"])
    with pytest.raises(UnknownNameError, match="did you mean ones"):
        benchmark.run(tasks=["one"])
    with pytest.raises(UnknownNameError, match="has no metric 'eror'; did you mean error"):
        benchmark.get_metric("eror")
    with pytest.raises(UnknownNameError, match="has no parameter 'wird'; did you mean word"):
        benchmark.get_method("good(wird=1)")
    with pytest.raises(AssayError, match="write method"):
        benchmark.get_method("good(word=1")


def test_parameters_in_a_name_make_another_method():
    method = make_benchmark().get_method("good(word=[1, 2])")
    assert method.name == "good(word=[1, 2])"
    assert method.make() == [1, 2]


GRID = """
    import sys, time
    import numpy as np
    from assay.core.benchmark import Benchmark, Metric

    def evaluate(task, method, context):
        time.sleep(0.004)
        return {"error": float(method.make() + context.rng().random())}

    benchmark = Benchmark("small", "Small", [Metric("error", higher_is_better=False)], evaluate)
    benchmark.add_task("t", lambda: np.ones(2))
    for i in range(4):
        benchmark.add_method(f"m{i}", lambda i=i: float(i))
    if __name__ == "__main__":
        benchmark.run(seeds=range(50), store=sys.argv[1], workers=int(sys.argv[2]), progress=False)
"""


def start_grid(folder: Path, store: Path, workers: int) -> subprocess.Popen:
    script = folder / "grid.py"
    script.write_text(textwrap.dedent(GRID))
    return subprocess.Popen([sys.executable, str(script), str(store), str(workers)], start_new_session=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_kill_9_at_random_moments_loses_and_repeats_nothing(tmp_path, workers):
    undisturbed = start_grid(tmp_path, tmp_path / "calm", 0)
    assert undisturbed.wait(120) == 0
    expected = essence(tmp_path / "calm", "small")
    assert len(expected) == 200
    rng = np.random.default_rng(workers)
    kept: dict[str, float] = {}
    for _ in range(4):
        process = start_grid(tmp_path, tmp_path / "hurt", workers)
        enough = len(kept) + int(rng.integers(5, 40))
        while process.poll() is None and len(list((tmp_path / "hurt" / "small").glob("*/run.json"))) < enough:
            time.sleep(float(rng.uniform(0.001, 0.01)))
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the grid ended before it was killed"
        now = {p.parent.name: p.stat().st_mtime_ns for p in (tmp_path / "hurt" / "small").glob("*/run.json")}
        assert all(now[key] == stamp for key, stamp in kept.items()), "a finished run was written again"
        kept = now
    assert start_grid(tmp_path, tmp_path / "hurt", workers).wait(120) == 0
    assert essence(tmp_path / "hurt", "small") == expected
    assert Store(tmp_path / "hurt").problems("small") == []
    assert not list((tmp_path / "hurt" / "small" / ".staging").iterdir())


def test_two_processes_share_the_work_of_one_store(tmp_path):
    processes = [start_grid(tmp_path, tmp_path / "runs", 0) for _ in range(2)]
    assert [p.wait(120) for p in processes] == [0, 0]
    records = Store(tmp_path / "runs").records("small")
    assert len(records) == 200
    assert not list((tmp_path / "runs" / "small" / ".claims").iterdir())


def test_checkpoints_survive_a_failed_try_and_go_with_success(tmp_path):
    seen = []

    def evaluate(task, method, context):
        mark = context.checkpoints / "step"
        seen.append(mark.read_text() if mark.exists() else None)
        mark.write_text("7")
        if len(seen) == 1:
            raise RuntimeError("power cut")
        return {"error": 0.0}

    benchmark = Benchmark("long", "Long", [Metric("error", higher_is_better=False)], evaluate)
    benchmark.add_task("t", lambda: np.ones(1))
    benchmark.add_method("m", lambda: 0)
    benchmark.run(seeds=[0], store=tmp_path, progress=False)
    benchmark.run(seeds=[0], store=tmp_path, progress=False, retry_failed=True)
    assert seen == [None, "7"]
    assert not list((tmp_path / "long" / ".checkpoints").iterdir())


def test_the_seed_streams_of_purposes_differ_and_repeat(tmp_path):
    from assay.core.run import RunContext

    a, b = (RunContext(3, tmp_path, tmp_path) for _ in range(2))
    assert a.rng("x").integers(1 << 40) == b.rng("x").integers(1 << 40) != a.rng("y").integers(1 << 40)
    assert 0 <= a.integer_seed("x") < 2**31
    with pytest.raises(AssayError, match="outside the folder"):
        a.artifact("../evil")
    with pytest.raises(AssayError, match="one dimension"):
        a.rows("loss", np.ones((2, 2)))


def test_what_was_skipped_is_tried_again(tmp_path):
    benchmark = make_benchmark()
    benchmark.run(tasks=["ones"], methods=["skip"], seeds=[0], store=tmp_path, progress=False)
    mended = make_benchmark()
    mended.methods["skip"].factory = lambda: "good"
    mended.methods["skip"].code = benchmark.methods["skip"].code
    results = mended.run(tasks=["ones"], methods=["skip"], seeds=[0], store=tmp_path, progress=False)
    assert results.columns["status"].tolist() == ["ok"]


def test_workers_share_the_cores(tmp_path, monkeypatch):
    def evaluate(task, method, context):
        return {"error": float(os.environ["OMP_NUM_THREADS"])}

    benchmark = Benchmark("threads", "Threads", [Metric("error", higher_is_better=False)], evaluate)
    benchmark.add_task("t", lambda: np.ones(1))
    benchmark.add_method("m", lambda: 0)
    monkeypatch.delenv("OMP_NUM_THREADS")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    results = benchmark.run(seeds=range(6), store=tmp_path / "a", workers=2, progress=False)
    assert set(results.columns["m:error"]) == {max(1, cores // 2)}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    results = benchmark.run(seeds=[0], store=tmp_path / "b", workers=1, progress=False)
    assert results.columns["m:error"].tolist() == [3.0]
