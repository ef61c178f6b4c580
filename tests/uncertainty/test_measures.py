"""Measures: closed forms against sampling, blocks and memory maps, names kept."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from assay.uncertainty import (
    Categorical,
    Dirichlet,
    DirichletMixture,
    Gaussian,
    GaussianLogits,
    GaussianMixture,
    GaussianSample,
    Hull,
    Intervals,
    LevelSet,
    NormalInverseGamma,
    Sample,
    ScoreBall,
    SparseLogCategorical,
    TVBall,
    quantify,
    uncertainty_of,
)
from assay.uncertainty.measures.sample import MEASURES


@pytest.mark.parametrize("measure", [m for m in MEASURES if m != "spherical"])
def test_dirichlet_closed_forms_against_sampling(measure):
    rng = np.random.default_rng(0)
    rep = Dirichlet(rng.gamma(2, 1, (3, 4)) + 0.2)
    exact, drawn = quantify(rep, measure), quantify(rep.sample(60_000, rng), measure)
    for name in ("total", "aleatoric", "epistemic"):
        np.testing.assert_allclose(getattr(exact, name), getattr(drawn, name), atol=0.01)


def test_blocks_and_memory_maps_change_nothing(tmp_path):
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(5), (3000, 4))
    np.save(tmp_path / "p.npy", p)
    mapped = Sample(np.load(tmp_path / "p.npy", mmap_mode="r"))
    assert isinstance(mapped.probs, np.memmap)
    for measure in MEASURES:
        whole = quantify(Sample(p), measure)
        for other in (quantify(mapped, measure), quantify(Sample(p), measure, chunk=17)):
            for name in ("total", "aleatoric", "epistemic"):
                np.testing.assert_array_equal(getattr(other, name), getattr(whole, name))


def _mapped(folder, name, values, dtype=np.float64):
    array = np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=values.shape)
    array[:] = values
    array.flush()
    return np.load(folder / f"{name}.npy", mmap_mode="r")


def _on_disk(kind, folder, n):
    """A representation of n rows whose arrays are files; and the bytes of a row."""
    rng = np.random.default_rng(0)
    tile = lambda p: np.resize(p, (n, *p.shape[1:]))  # noqa: E731
    k, m = 8, 6
    members = tile(rng.dirichlet(np.ones(k), (500, m)))
    center = members[:, 0]
    radius = np.full(n, 0.1)
    if kind == "sample":
        return Sample(_mapped(folder, f"p{n}", members)), m * k * 8
    if kind == "float32":
        return Sample(_mapped(folder, f"s{n}", members, np.float32)), m * k * 8
    if kind == "weighted":
        return Sample(_mapped(folder, f"p{n}", members), rng.random(m)), m * k * 8
    if kind == "hull":
        return Hull(_mapped(folder, f"p{n}", members)), m * k * 8
    if kind == "intervals":
        low, high = (_mapped(folder, f"{name}{n}", v) for name, v in (("l", members.min(1)), ("u", members.max(1))))
        return Intervals(low, high), 2 * k * 8
    if kind == "dirichlet":
        return Dirichlet(_mapped(folder, f"a{n}", 1 + 9 * center)), k * 8
    if kind == "logits":
        mu, var = _mapped(folder, f"m{n}", np.log(center)), _mapped(folder, f"v{n}", center)
        return GaussianLogits(mu, var), 2 * k * 8
    if kind == "numbers":
        loc, var = _mapped(folder, f"o{n}", members[:, :, 0]), _mapped(folder, f"w{n}", members[:, :, 1])
        return GaussianSample(loc, var), 2 * m * 8
    made = _mapped(folder, f"c{n}", center)
    sets = {
        "categorical": lambda: Categorical(made),
        "tv ball": lambda: TVBall(made, radius),
        "level set": lambda: LevelSet(_mapped(folder, f"a{n}", 1 + 9 * center), 0.5),
        "kl ball": lambda: ScoreBall(made, radius, "kl"),
    }
    return sets[kind](), k * 8


FLAT = [
    *((kind, measure) for kind in ("sample", "float32", "weighted") for measure in MEASURES),
    *(("dirichlet", measure) for measure in ("entropy", "brier", "tv", "vacuity")),
    *(("logits", measure) for measure in ("entropy", "dempster_shafer")),
    *((kind, measure) for kind in ("intervals", "hull", "tv ball") for measure in
      ("entropy", "hartley", "zero_one", "spread", "imprecision")),
    ("level set", "spread"),
    *(("kl ball", measure) for measure in ("entropy", "spread")),
    ("categorical", "entropy"), ("categorical", "brier"), ("numbers", "variance"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "measure"), FLAT, ids=lambda v: v)
def test_memory_stays_flat_on_memory_maps(tmp_path, kind, measure):
    """From n to 3 n rows the peak grows by what the answer takes, a few numbers a row, not by the input."""
    import gc
    import tracemalloc

    usual = gc.get_threshold()
    slow = kind in ("level set", "logits", "kl ball") or (kind, measure) in (("hull", "zero_one"), ("dirichlet", "tv"))
    n, chunk = ((300 if kind == "hull" else 30), 10) if slow else (3000, 100)
    peaks, bytes_a_row = [], 0
    quantify(_on_disk(kind, tmp_path, n)[0], measure, chunk=chunk, samples=40)  # what is imported on the way
    for rows in (n, 3 * n):
        rep, bytes_a_row = _on_disk(kind, tmp_path, rows)
        gc.collect()
        gc.freeze()
        gc.collect()
        gc.set_threshold(
            50, 2, 2
        )  # cycles (results of linear programs) that wait to be collected are not what is asked
        tracemalloc.start()
        # blocks small against both, as the default ones are against real files
        quantify(rep, measure, chunk=chunk, samples=40)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        gc.set_threshold(*usual)
        gc.unfreeze()
    growth = (peaks[1] - peaks[0]) / (2 * n)
    assert growth < (60 if not slow else 200)  # small objects weigh more on few rows
    assert slow or growth < bytes_a_row


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_default_blocks_bound_the_memory_and_making_a_sample_reads_no_whole_file(tmp_path, dtype):
    import tracemalloc

    values = np.full((60_000, 10, 10), 0.1)  # 48 MB
    mapped = _mapped(tmp_path, "big", values, dtype)
    tracemalloc.start()
    sample = Sample(mapped)
    quantify(sample)
    quantify(sample, "tv")
    quantify(Hull(sample.probs[:2000]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(sample.probs, np.memmap)
    assert peak < 14e6
    np.testing.assert_allclose(sample.probs[:5], 0.1, atol=1e-15)


def test_members_on_any_axis_and_any_batch_shape():
    p = np.random.default_rng(2).dirichlet(np.ones(3), (4, 5, 6))
    inner = quantify(Sample(p))
    first = quantify(Sample(np.moveaxis(p, -2, 0), axis=0))
    assert inner.total.shape == (4, 5)
    np.testing.assert_allclose(inner.epistemic, first.epistemic, atol=1e-15)


def test_bases():
    sample = Sample(np.random.default_rng(3).dirichlet(np.ones(4), (5, 3)))
    nats = quantify(sample).total
    np.testing.assert_allclose(quantify(sample, base=2).total, nats / np.log(2))
    np.testing.assert_allclose(quantify(sample, base="normalize").total, nats / np.log(4))


def test_float32_is_accepted_and_computed_in_double():
    p = np.random.default_rng(4).dirichlet(np.ones(3), (100, 5))
    single = quantify(Sample(p.astype(np.float32)))
    assert single.total.dtype == np.float64
    np.testing.assert_allclose(single.epistemic, quantify(Sample(p)).epistemic, atol=1e-6)


def test_frames_in_frames_out():
    frame = pd.DataFrame({"a": [1.0, 2.0]}, index=["x", "y"])
    rep = Sample([[[0.9, 0.1], [0.6, 0.4]], [[0.2, 0.8], [0.1, 0.9]]]).named(["cat", "dog"], frame.index)
    assert rep.predict().tolist() == ["cat", "dog"]
    table = quantify(rep).to_frame()
    assert table.index.tolist() == ["x", "y"]
    assert table.columns.tolist() == ["total", "aleatoric", "epistemic"]


def test_regression_representations():
    sample = GaussianSample([[0.0, 2.0]], [[1.0, 3.0]], [0.5, 0.5])
    parts = quantify(sample, "variance")
    assert (parts.total[0], parts.aleatoric[0], parts.epistemic[0]) == (3.0, 2.0, 1.0)
    mixture = GaussianMixture([[0.0, 2.0]], [[1.0, 3.0]])
    assert quantify(mixture, "variance").total[0] == 3.0
    assert mixture.cdf([1.0])[0] == pytest.approx(0.5 * (0.8413447 + 0.2818514), abs=1e-6)
    nig = quantify(NormalInverseGamma([0.0], [2.0], [3.0], [4.0]), "variance")
    assert (nig.aleatoric[0], nig.epistemic[0]) == (2.0, 1.0)
    assert quantify(Gaussian([0.0], [2.0]), "variance").total[0] == 2.0


def test_logits_mixtures_and_sparse_tokens():
    logits = GaussianLogits([[3.0, 0.0]], [[0.0, 0.0]])
    parts = quantify(logits)
    assert parts.epistemic[0] == pytest.approx(0, abs=1e-12)
    assert quantify(logits, "dempster_shafer").epistemic[0] == pytest.approx(2 / (2 + np.exp(3) + 1))
    wide = quantify(GaussianLogits([[3.0, 0.0]], [[9.0, 9.0]]))
    assert wide.epistemic[0] > 0.1
    mixture = DirichletMixture([[[900.0, 100.0], [100.0, 900.0]]])
    pair = quantify(Sample([[[0.9, 0.1], [0.1, 0.9]]]))
    assert quantify(mixture, samples=20_000).epistemic[0] == pytest.approx(pair.epistemic[0], abs=0.01)
    tokens = SparseLogCategorical([{"a": np.log(0.5), "b": np.log(0.5)}], rest="drop")
    assert quantify(tokens).total[0] == pytest.approx(np.log(2))


def test_one_number_a_row():
    p = np.random.default_rng(5).dirichlet(np.ones(3), (6, 4))
    np.testing.assert_array_equal(uncertainty_of(Sample(p), "total"), quantify(Sample(p)).total)
    np.testing.assert_array_equal(quantify(p[:, 0]).total, quantify(Categorical(p[:, 0])).total)
