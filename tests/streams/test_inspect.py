"""What `inspect` finds is checked against streams whose regime is known."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from assay.cli import app
from assay.streams import from_arrays, inspect_stream, load
from assay.streams.plots import plot_availability, plot_curves
from assay.streams.regimes import REGIMES


@pytest.mark.parametrize("name", REGIMES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_regime_is_recognised(name, seed):
    rng = np.random.default_rng(seed)
    stream = from_arrays(rng.normal(size=(4000, 25)), rng.integers(0, 2, 4000)).masked(name, seed=seed)
    found = inspect_stream(stream)
    assert found.regime == name, found.reason
    assert found.rows == 4000


def test_availability_against_numpy():
    stream = load("wdbc").masked("bursts", seed=0)
    X, _ = stream.arrays()
    found = inspect_stream(stream, bins=10)
    assert found.empty_rows == int(np.isnan(X).all(axis=1).sum())
    assert found.labels == {0: 357, 1: 212}
    for f in found.features:
        there = ~np.isnan(X[:, stream.columns.index(f.name)])
        rows = np.flatnonzero(there)
        assert f.share == pytest.approx(there.mean())
        assert (f.first, f.last) == (rows[0], rows[-1])
        runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
        assert f.mean_run == pytest.approx(np.mean([len(r) for r in runs]))
        assert f.over_time.shape == (10,)
        assert np.average(f.over_time, weights=np.diff(np.linspace(0, 569, 11).astype(int))) == pytest.approx(
            there.mean()
        )


def test_an_empty_stream_and_a_full_one():
    nothing = from_arrays(np.full((5, 2), np.nan), [0, 1, 0, 1, 0])
    assert inspect_stream(nothing).regime == "intrinsic"
    assert inspect_stream(nothing).empty_rows == 5
    assert inspect_stream(load("wdbc")).regime == "intrinsic"


def test_commands_inspect_make_and_run(tmp_path):
    runner = CliRunner()
    made = runner.invoke(
        app,
        ["streams", "make", "rbf", str(tmp_path / "r.csv"), "--rows", "600", "--columns", "4", "--regime", "bursts"],
    )
    assert made.exit_code == 0, made.output
    seen = runner.invoke(
        app, ["streams", "inspect", str(tmp_path / "r.csv"), "--label", "label", "--plot", str(tmp_path / "a.png")]
    )
    assert "600 rows, 4 features" in seen.output
    assert "bursts" in seen.output
    assert (tmp_path / "a.png").stat().st_size > 5000
    words = [
        "streams",
        "run",
        str(tmp_path / "r.csv"),
        "--label",
        "label",
        "-m",
        "majority",
        "-m",
        "masked_pa(C=0.1)",
        "-o",
        str(tmp_path / "out"),
    ]
    ran = runner.invoke(app, words)
    assert ran.exit_code == 0, ran.output
    assert "masked_pa(C=0.1)" in ran.output
    assert (tmp_path / "out" / "masked_pa_C=0.1_" / "rows.parquet").exists()
    bad = runner.invoke(app, ["streams", "run", str(tmp_path / "r.csv"), "--label", "lable"])
    assert bad.exit_code == 2
    listed = runner.invoke(app, ["streams", "models"], env={"COLUMNS": "200"})
    assert "olvf" in listed.output


def test_plots_hold_what_they_are_given():
    from assay.streams import run

    stream = load("wdbc").masked("sudden", seed=0)
    figure = plot_availability(inspect_stream(stream), top=12)
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == [str(c) for c in stream.columns[:12]]
    results = {name: run(name, stream, metrics=["accuracy"]) for name in ("majority", "masked_pa")}
    axes = plot_curves(results, "accuracy").axes[0]
    assert [line.get_label() for line in axes.get_lines()[:2]] == ["majority", "masked_pa"]
    assert sorted(line.get_xdata()[0] for line in axes.get_lines()[2:]) == stream.change_points()
