"""The costs of the protocol itself, each against joblib or benchopt 1.10 on the same work where they do it.

    make bench FIELD=core

benchopt runs in an environment of its own (build/peers/core, made on the first call). Everything is measured on this
machine in one run; the last lines are ``core <what>: ratio <r> target <t> ok|short``. A ratio above 1 means: faster
than the rival, or better than the target where there is no rival for that work.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from assay.core.benchmark import Benchmark, Metric
from assay.core.run import RunRecord

ROOT = Path(__file__).resolve().parents[1]
PEER = ROOT / "build" / "peers" / "core"
ROWS: list[tuple[str, str, str]] = []
VERDICTS: list[str] = []


def note(what: str, ours: str, rival: str = "") -> None:
    ROWS.append((what, ours, rival))
    print(f"{what:52s} {ours:>22s}   {rival}", flush=True)


def verdict(what: str, ratio: float, target: float) -> None:
    VERDICTS.append(f"core {what}: ratio {ratio:.2f} target {target:g} {'ok' if ratio >= target else 'short'}")


def child_cpu(*words: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def empty_benchmark() -> Benchmark:
    def evaluate(task, method, context):  # type: ignore[no-untyped-def]
        return {"value": 0.0}

    benchmark = Benchmark("empty", "Empty runs", [Metric("value", higher_is_better=True)], evaluate)
    benchmark.add_task("one", lambda: 1.0)
    benchmark.add_method("zero", lambda: 0.0)
    return benchmark


def start_up() -> None:
    assay = Path(sys.executable).with_name("assay")
    for word in ("--help", "list"):
        seconds = statistics.median(child_cpu(str(assay), word) for _ in range(7))
        note(f"assay {word}, CPU seconds (median of 7)", f"{seconds:.3f} s")
        verdict(f"start-up of assay {word} against 0.3 s", 0.3 / seconds, 1)


def joblib_cached(n: int, jobs: int) -> float:
    """Seconds for n empty calls, each result kept on disk by joblib.Memory."""
    import joblib

    with tempfile.TemporaryDirectory() as folder:
        memory = joblib.Memory(folder, verbose=0)
        sys.path.insert(0, str(Path(__file__).parent))
        cached = memory.cache(_nothing)
        began = time.perf_counter()
        if jobs == 1:
            for seed in range(n):
                cached(seed)
        else:
            joblib.Parallel(n_jobs=jobs)(joblib.delayed(cached)(seed) for seed in range(n))
        return time.perf_counter() - began


def _nothing(seed: int) -> dict[str, float]:
    return {"value": 0.0}


def benchopt_seconds(n: int, jobs: int) -> float:
    """Seconds of one benchopt run of n empty solvers."""
    folder = Path(tempfile.mkdtemp())
    try:
        (folder / "datasets").mkdir()
        (folder / "solvers").mkdir()
        (folder / "objective.py").write_text(
            "from benchopt import BaseObjective\n\n\nclass Objective(BaseObjective):\n    name = 'empty'\n"
            "    sampling_strategy = 'run_once'\n\n    def set_data(self, x):\n        self.x = x\n\n"
            "    def get_objective(self):\n        return dict(x=self.x)\n\n"
            "    def evaluate_result(self, guess):\n        return dict(value=guess)\n\n"
            "    def get_one_result(self):\n        return dict(guess=0.0)\n"
        )
        (folder / "datasets" / "one.py").write_text(
            "from benchopt import BaseDataset\n\n\nclass Dataset(BaseDataset):\n    name = 'one'\n\n"
            "    def get_data(self):\n        return dict(x=1.0)\n"
        )
        (folder / "solvers" / "zero.py").write_text(
            "from benchopt import BaseSolver\n\n\nclass Solver(BaseSolver):\n    name = 'zero'\n"
            f"    sampling_strategy = 'run_once'\n    parameters = {{'seed': list(range({n}))}}\n\n"
            "    def set_objective(self, x):\n        pass\n\n    def run(self, _):\n        self.guess = 0.0\n\n"
            "    def get_result(self):\n        return dict(guess=self.guess)\n"
        )
        words = [str(PEER / "bin" / "benchopt"), "run", str(folder), "-n", "1", "-r", "1", "--no-plot", "--no-timeout"]
        began = time.perf_counter()
        subprocess.run(
            [*words, *(["-j", str(jobs)] if jobs > 1 else [])],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return time.perf_counter() - began
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def peer() -> bool:
    if not (PEER / "bin" / "benchopt").exists():
        print("making the environment of benchopt ...", flush=True)
        requirements = ROOT / "benchmarks" / "peers" / "core.txt"
        try:
            subprocess.run([sys.executable, "-m", "venv", str(PEER)], check=True)
            subprocess.run([str(PEER / "bin" / "pip"), "install", "-qqq", "-r", str(requirements)], check=True)
        except subprocess.CalledProcessError:
            shutil.rmtree(PEER, ignore_errors=True)
            return False
    return True


def empty_runs(with_benchopt: bool) -> None:
    benchmark = empty_benchmark()
    n = 2000
    times = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as store:
            began = time.perf_counter()
            benchmark.run(seeds=range(n), store=store, progress=False)
            times.append((time.perf_counter() - began) / n)
    ours = statistics.median(times)
    theirs = statistics.median(joblib_cached(n, 1) / n for _ in range(3))
    note(
        "one empty run in this process (median of 3 x 2000)",
        f"{1e3 * ours:.2f} ms",
        f"joblib.Memory {1e3 * theirs:.2f} ms a call",
    )
    verdict("an empty run in process against 2 ms", 2e-3 / ours, 1)
    if with_benchopt:
        few, many = benchopt_seconds(1, 1), benchopt_seconds(201, 1)
        rival = (many - few) / 200
        note("  the same in benchopt 1.10 (201 runs less 1 run)", "", f"benchopt {1e3 * rival:.2f} ms")
        verdict("an empty run in process against benchopt", rival / ours, 1)

    n = 10_000
    with tempfile.TemporaryDirectory() as store:
        began = time.perf_counter()
        benchmark.run(seeds=range(n), store=store, workers=2, progress=False)
        ours = n / (time.perf_counter() - began)
    theirs = n / joblib_cached(n, 2)
    note(
        "10,000 empty runs through 2 workers, start included",
        f"{ours:,.0f} runs/s",
        f"joblib.Parallel + Memory {theirs:,.0f} calls/s",
    )
    verdict("empty runs through 2 workers against 500 a second", ours / 500, 1)
    if with_benchopt:
        few, many = benchopt_seconds(1, 2), benchopt_seconds(401, 2)
        rival = 400 / (many - few)
        note("  the same in benchopt 1.10 (401 runs less 1 run, -j 2)", "", f"benchopt {rival:,.0f} runs/s")
        verdict("empty runs through 2 workers against benchopt", ours / rival, 1)


def leaderboard() -> None:
    n_tasks, n_methods, n_seeds = 20, 50, 100
    benchmark = Benchmark("many", "Many runs", [Metric("value", higher_is_better=True)], lambda t, m, c: {"value": 0.0})
    for i in range(n_tasks):
        benchmark.add_task(f"task{i:02d}", lambda: 1.0)
    for j in range(n_methods):
        benchmark.add_method(f"method{j:02d}", lambda: 0.0)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "many"
        number = 0
        for i in range(n_tasks):
            for j in range(n_methods):
                for seed, value in enumerate(rng.normal(j / 100, 1, n_seeds).tolist()):
                    key = f"{number:024x}"
                    record = RunRecord(
                        key=key, benchmark="many", version="1", task=f"task{i:02d}", method=f"method{j:02d}", seed=seed,
                        status="ok", metrics={"value": value}, started="2026-01-01T00:00:00.000+00:00",
                    )  # fmt: skip
                    os.makedirs(folder / key)
                    (folder / key / "run.json").write_text(record.model_dump_json())
                    number += 1

        def board() -> float:
            began = time.perf_counter()
            rows = benchmark.results(root).leaderboard().rows
            assert len(rows) == n_methods
            return time.perf_counter() - began

        cold = board()
        warm = statistics.median(board() for _ in range(3))
    note("leaderboard over 100,000 stored runs, index there (median of 3)", f"{warm:.2f} s")
    note("  the first time (every file is read and checked)", f"{cold:.2f} s")
    verdict("leaderboard over 100,000 runs against 2 s", 2.0 / warm, 1)


def main() -> None:
    print(f"{os.cpu_count()} processors; Python {sys.version.split()[0]}\n")
    there = peer()
    if not there:
        print("benchopt could not be installed; its rows are left out")
    start_up()
    empty_runs(there)
    leaderboard()
    print()
    print("\n".join(VERDICTS))


if __name__ == "__main__":
    main()
