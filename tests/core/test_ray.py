"""The same grid on a local Ray cluster of two workers."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from assay.core.benchmark import Benchmark, Metric

ray = pytest.importorskip("ray", reason="the package ray is not installed")


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def make_benchmark() -> Benchmark:
    def evaluate(task, method, context):
        word = method.make()
        if word == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "raise":
            raise ValueError("no luck")
        return {"error": float(task.data().sum() + context.rng().random())}

    benchmark = Benchmark("cloud", "Cloud", [Metric("error", higher_is_better=False)], evaluate)
    benchmark.add_task("ones", lambda: np.ones(3))
    for word in ("good", "raise", "kill"):
        benchmark.add_method(word, lambda word=word: word)
    return benchmark


def test_records_are_those_of_a_run_in_this_process(cluster, tmp_path):
    a = make_benchmark().run(methods=["good", "raise"], seeds=range(4), store=tmp_path / "here", progress=False)
    b = make_benchmark().run(
        methods=["good", "raise"], seeds=range(4), store=tmp_path / "there", ray="auto", progress=False
    )
    assert a.columns["key"].tolist() == b.columns["key"].tolist()
    np.testing.assert_array_equal(a.columns["m:error"], b.columns["m:error"])
    assert b.columns["status"].tolist().count("failed") == 4
    assert b.failures[0].failure.message == "no luck"


def test_a_killed_ray_worker_is_one_failed_record(cluster, tmp_path):
    results = make_benchmark().run(methods=["kill", "good"], seeds=[0, 1], store=tmp_path, ray="auto", progress=False)
    status = dict(zip(results.columns["method"], results.columns["status"], strict=True))
    assert status == {"kill": "failed", "good": "ok"}
    assert results.failures[0].failure.type == "WorkerDied"


def test_a_machine_that_does_not_see_the_store_sends_its_files(cluster, tmp_path):
    import cloudpickle

    from assay.core.execute.cluster import unpack, work_on_ray
    from assay.core.execute.grid import Grid, Job
    from assay.core.store import Store

    benchmark = make_benchmark()
    grid = Grid(benchmark, list(benchmark.tasks.values()), [benchmark.methods["good"]], tmp_path / "elsewhere")
    job = Job(0, 0, 5, "a" * 24, "data")
    status, packed = work_on_ray(cloudpickle.dumps(grid), job, str(tmp_path / "no-such-token"))
    assert status == "ok"
    store = Store(tmp_path / "mine")
    store.prepare("cloud")
    assert unpack(packed, store, "cloud", job.key) == "ok"
    assert store.read("cloud", job.key).seed == 5
    assert not (tmp_path / "elsewhere").exists()
