"""The retraining farm: the same as a loop, whole after a kill, bounded in memory, and able to hold uneven subsets."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
import torch
from torch import nn

from assay.attribution import FitSpec, ModelSpec, RetrainingFarm, TextTransformer, leave_out, random_subsets
from assay.attribution.subsets import bootstrap_subsets, coin_subsets


def test_the_published_subsets_and_seeds_are_reproduced(digits):
    generator = torch.Generator().manual_seed(42)
    expected = np.stack([torch.randperm(1437, generator=generator)[:718].numpy() for _ in range(50)])
    np.testing.assert_array_equal(digits.truth.subsets, expected)


@pytest.mark.parametrize(
    "spec",
    [
        FitSpec(epochs=3), FitSpec(epochs=3, weight_decay=1e-2), FitSpec(epochs=3, momentum=0.0, schedule="cosine"),
        FitSpec(epochs=3, optimizer="adam", lr=1e-3, weight_decay=1e-2),
        FitSpec(epochs=3, optimizer="adamw", lr=1e-3, weight_decay=0.1, schedule="linear"),
        FitSpec(epochs=3, schedule="onecycle", batch_size=7),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("subsets", ["equal", "uneven", "repeated"])
def test_stacked_models_equal_single_ones(small, spec, subsets):
    """Uneven subsets have other numbers of steps; the models that are done must stay as they are."""
    data = small.data
    chosen = {
        "equal": random_subsets(300, 3, 0.3, 0),
        "uneven": leave_out(300, [range(250), range(10), [3]]),
        "repeated": bootstrap_subsets(300, 3, 1)[:, :80],
    }[subsets]
    found = [
        RetrainingFarm(small.make, spec, engine=e).run(
            data.X_train, data.y_train, data.X_test, data.y_test, subsets=chosen
        )
        for e in ("vmap", "loop")
    ]
    assert np.abs(found[0].outputs - found[1].outputs).max() < 1e-4
    assert (found[0].predictions == found[1].predictions).mean() > 0.99


def test_regression_and_text_models_are_stacked_too():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 5)).astype("float32"), rng.normal(size=80).astype("float32")
    make = ModelSpec.of("mlp", inputs=5, outputs=1, hidden=(6,))
    spec = FitSpec(epochs=3, lr=0.02, task="regression")
    a, b = (RetrainingFarm(make, spec, n_subsets=4, engine=e).run(X, y, X[:9], y[:9]) for e in ("vmap", "loop"))
    np.testing.assert_allclose(a.outputs, b.outputs, atol=1e-5)
    tokens, labels = rng.integers(0, 20, (60, 8)), rng.integers(0, 2, 60)

    def text():
        return TextTransformer(20, 2, length=8, dim=8)

    spec = FitSpec(epochs=2, lr=1e-3, optimizer="adam")
    a, b = (
        RetrainingFarm(text, spec, n_subsets=4, engine=e).run(tokens, labels, tokens[:9], labels[:9])
        for e in ("vmap", "loop")
    )
    np.testing.assert_allclose(a.outputs, b.outputs, atol=1e-4)


def test_layers_that_cannot_be_stacked_are_trained_in_a_loop(small):
    def normed():
        return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 10))

    data = small.data
    truth = RetrainingFarm(normed, FitSpec(epochs=2), n_subsets=2).run(
        data.X_train, data.y_train, data.X_test, data.y_test
    )
    again = RetrainingFarm(normed, FitSpec(epochs=2), n_subsets=2).run(
        data.X_train, data.y_train, data.X_test, data.y_test
    )
    np.testing.assert_array_equal(truth.outputs, again.outputs)


@pytest.mark.parametrize("chunk", [1, 2, 5, 64])
def test_the_size_of_a_chunk_does_not_matter(small, chunk):
    data = small.data
    spec = FitSpec(epochs=2)
    one = RetrainingFarm(small.make, spec, n_subsets=5, chunk=chunk).run(
        data.X_train, data.y_train, data.X_test, data.y_test
    )
    whole = RetrainingFarm(small.make, spec, n_subsets=5).run(data.X_train, data.y_train, data.X_test, data.y_test)
    np.testing.assert_allclose(one.outputs, whole.outputs, atol=1e-4)


def test_finished_chunks_are_not_trained_again(small, tmp_path, monkeypatch):
    data = small.data
    spec = FitSpec(epochs=2)
    args = (data.X_train, data.y_train, data.X_test, data.y_test)
    whole = RetrainingFarm(small.make, spec, n_subsets=6).run(*args)
    seen = []

    def stop(done, total):
        seen.append(done)
        if done == 4:
            raise KeyboardInterrupt

    farm = RetrainingFarm(small.make, spec, n_subsets=6, chunk=2, folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        farm.run(*args, report=stop)
    assert sorted(p.name for p in tmp_path.glob("chunk*")) == ["chunk_0_2.npz", "chunk_2_4.npz"]
    trained = []
    true_train = RetrainingFarm._train
    monkeypatch.setattr(
        RetrainingFarm, "_train", lambda self, *a, **k: trained.append(len(a[6])) or true_train(self, *a, **k)
    )
    # another chunk size goes on from the same files
    rest = RetrainingFarm(small.make, spec, n_subsets=6, chunk=64, folder=tmp_path).run(*args)
    assert trained == [2]
    np.testing.assert_allclose(rest.outputs, whole.outputs, atol=1e-4)
    (tmp_path / "chunk_0_2.npz").write_bytes(b"cut off")
    with pytest.warns(UserWarning, match="trained again"):
        mended = RetrainingFarm(small.make, spec, n_subsets=6, chunk=2, folder=tmp_path).run(*args)
    np.testing.assert_allclose(mended.outputs, whole.outputs, atol=1e-4)


def _train_slowly(folder, X, y):
    torch.set_num_threads(1)
    make = ModelSpec.of("mlp", inputs=64, outputs=10, hidden=(16,))
    RetrainingFarm(make, FitSpec(epochs=40), n_subsets=60, chunk=2, folder=folder).run(X, y, X[:20], y[:20])


def test_a_killed_run_leaves_whole_files_and_goes_on(small, tmp_path):
    data = small.data
    process = multiprocessing.get_context("spawn").Process(
        target=_train_slowly, args=(tmp_path, data.X_train, data.y_train)
    )
    process.start()
    deadline = time.monotonic() + 90
    while len(list(tmp_path.glob("chunk_*"))) < 2 and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("chunk_*")}
    assert len(before) >= 2
    for path in tmp_path.glob("chunk_*"):
        with np.load(path) as file:
            assert np.isfinite(file["outputs"]).all()
    make = ModelSpec.of("mlp", inputs=64, outputs=10, hidden=(16,))
    truth = RetrainingFarm(make, FitSpec(epochs=40), n_subsets=60, folder=tmp_path).run(
        data.X_train, data.y_train, data.X_train[:20], data.y_train[:20]
    )
    assert truth.outputs.shape == (60, 20)
    assert all((tmp_path / name).stat().st_mtime_ns == at for name, at in before.items())


def test_every_start_is_fresh_and_seeded(small):
    data = small.data
    args = (data.X_train, data.y_train, data.X_test, data.y_test)
    spec = FitSpec(epochs=1)
    same = np.tile(np.arange(100), (3, 1))
    shared = RetrainingFarm(small.make, spec).run(*args, subsets=same)
    np.testing.assert_allclose(shared.outputs[0], shared.outputs[1], atol=1e-5)
    varied = RetrainingFarm(small.make, spec, vary_seed=True).run(*args, subsets=same)
    assert np.abs(varied.outputs[0] - varied.outputs[1]).max() > 1e-2
    twice = RetrainingFarm(small.make, spec, n_seeds=2).run(*args, subsets=same)
    assert twice.repeats.shape == (2, 3, 40)
    np.testing.assert_allclose(twice.outputs, twice.repeats.mean(0), atol=1e-6)
    state = torch.get_rng_state()
    RetrainingFarm(small.make, spec).run(*args, subsets=same)
    assert torch.equal(torch.get_rng_state(), state)


def test_chunks_follow_the_budget(small):
    data = small.data
    farm = RetrainingFarm(small.make, small.spec, memory=1)
    x, y = small.x, small.y
    assert farm._plan(x, y, x[:1], random_subsets(300, 4, 0.5, 0))[1] == 1
    farm.memory = 1 << 30
    assert farm._plan(x, y, x[:1], random_subsets(300, 4, 0.5, 0))[1] > 20
    assert farm.estimate_cost(data.X_train, data.y_train).bytes <= 64 * farm._bytes(x, y)


def test_subsets_of_each_kind():
    coins = coin_subsets(50, 40, 0)
    inside = (coins >= 0).sum(1)
    assert 15 < inside.mean() < 35
    assert len({tuple(row) for row in coins.tolist()}) == 40
    boot = bootstrap_subsets(50, 10, 0)
    assert boot.shape == (10, 50)
    assert np.mean([len(set(row)) for row in boot.tolist()]) == pytest.approx(50 * (1 - np.exp(-1)), abs=3)
