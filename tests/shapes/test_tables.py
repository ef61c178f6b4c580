"""Tables with annotation columns among the features: left out on request, and named when they were not."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from assay.core.errors import DataError
from assay.shapes import AnnotationColumnWarning, ShapeError, detect_shape, read_cells
from assay.shapes.cli import app
from assay.shapes.data import SOURCES
from assay.shapes.readers import looks_annotated


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A line of 400 cells in four measured columns, sampled at four hours; a column of text."""
    rng = np.random.default_rng(0)
    at = np.sort(rng.random(400))
    X = np.outer(at, [6.0, 3.0, 2.0, 1.0]) + rng.normal(0, 0.2, (400, 4))
    frame = pd.DataFrame(X, columns=["PC1", "PC2", "PC3", "PC4"])
    frame["time_hour"] = np.floor(4 * at).astype(int) * 3
    frame["state"] = np.where(at < 0.5, "early", "late")
    path = tmp_path_factory.mktemp("table") / "cells.csv"
    frame.to_csv(path, index=False)
    return path


def run(*arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = CliRunner().invoke(app, ["detect", *map(str, arguments), "--bootstrap", "0", "--no-stability"])
    assert found.exit_code == 0, found.output
    return found.output


def test_an_annotation_among_the_features_is_named_and_spoils_the_verdict(table):
    found = run(table)
    assert "warning: column time_hour looks like annotation" in found
    assert found.startswith("shape: clusters")  # slices three hours apart


@pytest.mark.parametrize("option", ["--exclude", "--obs", "--color", "--batch"])
def test_an_annotation_that_is_named_is_no_feature(table, option):
    found = run(table, option, "time_hour")
    assert found.startswith("shape: simple_traj")
    assert "looks like annotation" not in found


def test_columns_beside_the_cells_colour_the_page(table, tmp_path):
    run(table, "--obs", "time_hour", "--color", "state", "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "time_hour" in page and "early" in page
    groups = run(table, "--obs", "time_hour", "--groupby", "state")
    assert "early: shape:" in groups and "late: shape:" in groups


def test_a_column_that_does_not_exist_is_named(table):
    with pytest.raises(ShapeError, match="did you mean 'time_hour'"):
        read_cells(table, exclude=["time_hours"])
    np.save(table.with_name("a.npy"), np.zeros((3, 2)))
    with pytest.raises(ShapeError, match="no names of columns"):
        read_cells(table.with_name("a.npy"), exclude=["a"])


def test_cells_of_a_table_with_obs_are_anndata(table):
    cells = read_cells(table, obs=["time_hour", "state"])
    assert cells.shape == (400, 4)
    assert cells.var_names.tolist() == ["PC1", "PC2", "PC3", "PC4"]
    assert cells.obs["time_hour"].unique().tolist() == [0, 3, 6, 9]
    bare = read_cells(table, exclude=["time_hour"])
    np.testing.assert_array_equal(bare, cells.X)
    less = read_cells(table, obs=["state"], exclude=["time_hour", "PC4"])
    assert less.var_names.tolist() == ["PC1", "PC2", "PC3"]


def test_the_report_of_a_path_has_the_warning(table):
    with pytest.warns(AnnotationColumnWarning, match="time_hour") as caught:
        report = detect_shape(table, n_bootstrap=0, n_jobs=1, stability=False, classifier=None)
    assert caught[0].message.columns == ["time_hour"]
    assert any("time_hour" in line for line in report.warnings)


def test_which_columns_look_like_annotations():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(200, 4)), columns=["Phase", "Area", "CD4", "STAT1"])
    assert looks_annotated(frame) == []
    frame["seurat_clusters"] = rng.random(200)
    frame["k"] = rng.integers(5, size=200)
    frame["Time"] = np.arange(200)
    frame["dptPseudotime"] = rng.random(200)
    assert looks_annotated(frame) == ["seurat_clusters", "k", "Time", "dptPseudotime"]
    counts = pd.DataFrame(rng.poisson(2, (200, 30)), columns=[f"gene{i}" for i in range(30)])
    assert looks_annotated(counts) == []  # whole numbers everywhere are no sign


def test_pre_b_cells_from_their_table():
    try:
        path = SOURCES["bcell"].fetch()
    except DataError as error:
        pytest.skip(str(error))
    with pytest.warns(AnnotationColumnWarning, match="time_hour"):
        read_cells(path)
    found = run(path, "--exclude", "time_hour")
    assert found.startswith("shape: simple_traj")
    assert "looks like annotation" not in found
