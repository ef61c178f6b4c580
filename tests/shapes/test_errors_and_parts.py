"""Bad input, files, AnnData in and out, metrics of labels, plots and pages."""

from __future__ import annotations

import json
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from assay.shapes import (
    AnnotationColumnWarning,
    ConstantDataError,
    DisconnectedGraphWarning,
    DuplicateCellsWarning,
    LabelSchemaError,
    NonFiniteInputError,
    RawCountsWarning,
    ReebTower,
    Shape,
    ShapeError,
    Skeleton,
    TooFewCellsError,
    UnknownKindError,
    UnknownRepresentationError,
    changes_along,
    detect_shape,
    differs_between,
    load_scshapebench,
    make_benchmark,
    make_shape,
    read_cells,
    score_labels,
)


@pytest.fixture(scope="module")
def y():
    return make_shape("star", 500, 20, parts=3, sigma=0.05, seed=1)


@pytest.fixture(scope="module")
def tower(y):
    return ReebTower(n_bootstrap=4, n_jobs=1).fit(y.X)


def quick(X, **options):
    return ReebTower(n_bootstrap=0, n_jobs=1, **options).fit(X)


def test_nan_is_named_with_its_rows():
    X = np.random.default_rng(0).normal(size=(100, 3))
    X[7, 1] = np.nan
    with pytest.raises(NonFiniteInputError, match="rows 7") as caught:
        quick(X)
    assert caught.value.rows == [7]


def test_too_few_cells():
    with pytest.raises(TooFewCellsError, match="12"):
        quick(np.random.default_rng(0).normal(size=(12, 3)))
    with pytest.raises(TooFewCellsError):
        quick(np.repeat(np.eye(3), 40, axis=0))


def test_constant_data():
    X = np.ones((80, 3))
    X[:, 0] = np.arange(80) * 1e-16
    with pytest.raises((ConstantDataError, TooFewCellsError)):
        quick(X)
    with pytest.raises(ConstantDataError):
        quick(np.array([["a"] * 3] * 80))


def test_raw_counts_given_as_an_embedding_warn():
    X = np.random.default_rng(0).poisson(3.0, size=(200, 30))
    with pytest.warns(RawCountsWarning, match="log-normalise"):
        quick(X)


def test_duplicates_warn_and_components_warn():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 3))
    with pytest.warns(DuplicateCellsWarning, match="150 of 300"):
        quick(np.concatenate([X, X]))
    with pytest.warns(DisconnectedGraphWarning) as caught:
        quick(np.concatenate([X, X + 100]))
    sizes = next(w.message.sizes for w in caught if isinstance(w.message, DisconnectedGraphWarning))
    assert sizes == [150, 150]


@pytest.mark.parametrize(
    "raised",
    [
        NonFiniteInputError(range(12), 40),
        TooFewCellsError(3),
        UnknownRepresentationError("X_umap", ["X_pca"]),
        LabelSchemaError("clusters", "is empty"),
        DisconnectedGraphWarning(np.array([300, 20])),
        DuplicateCellsWarning(np.int64(5), 90),
        AnnotationColumnWarning(["time_hour", "leiden"]),
        RawCountsWarning("whole numbers"),
    ],
    ids=lambda raised: type(raised).__name__,
)
def test_errors_and_warnings_say_the_same_when_they_are_rebuilt(raised):
    """Worker processes send them pickled, and test runners as the class and its ``args`` in plain values."""
    again = pickle.loads(pickle.dumps(raised))
    rebuilt = type(raised)(*json.loads(json.dumps(raised.args)))
    assert str(raised) == str(again) == str(rebuilt)
    assert vars(raised) == vars(again) == vars(rebuilt)
    assert "'" not in str(DisconnectedGraphWarning([300, 20]))
    assert "(300, 20 cells)" in str(DisconnectedGraphWarning([300, 20]))


def test_wrong_options_are_named(y):
    with pytest.raises(ShapeError, match="overlap"):
        quick(y.X, overlap=1.5)
    with pytest.raises(UnknownKindError, match="lens"):
        quick(y.X, lens="height")
    with pytest.raises(UnknownKindError, match="kind"):
        make_shape("sphere")
    with pytest.raises(ShapeError, match="one finite number"):
        quick(y.X, lens=np.zeros(3))


def test_anndata_in_and_out(y, tmp_path):
    anndata = pytest.importorskip("anndata")
    adata = anndata.AnnData(y.X.copy(), obsm={"X_pca": y.X[:, :10].copy()})
    with pytest.raises(UnknownRepresentationError, match="X_pca"):
        ReebTower(n_bootstrap=0).fit(adata, use_rep="X_umap")
    tower = ReebTower(n_bootstrap=0, n_jobs=1).fit(adata)
    tower.to_anndata(adata)
    assert {"reeb_edge", "reeb_t", "reeb_component"} <= set(adata.obs)
    with pd.option_context("future.infer_string", False):  # AnnData 0.12.6 writes no Arrow strings
        adata.obs_names, adata.var_names = adata.obs_names.astype(object), adata.var_names.astype(object)
        adata.write_h5ad(tmp_path / "cells.h5ad")
    again = read_cells(tmp_path / "cells.h5ad")
    np.testing.assert_array_equal(again.uns["reeb"]["edges"], tower.skeleton_.edges)
    from assay.shapes.plots import reeb

    reeb(again).savefig(tmp_path / "reeb.png")
    assert (tmp_path / "reeb.png").stat().st_size > 5000


@pytest.mark.parametrize("where", ["array", "X", "counts"])
def test_a_skeleton_is_drawn_from_anndata_whatever_it_was_fitted_on(y, tmp_path, where):
    anndata = pytest.importorskip("anndata")
    from assay.shapes.plots import reeb

    adata = anndata.AnnData(y.X.copy())
    adata.obs["arm"] = y.edge_of_cell.astype(str)
    data, options = {"array": (y.X, {}), "X": (adata, {"use_rep": "X"}), "counts": (adata, {})}[where]
    tower = ReebTower(n_bootstrap=0, n_jobs=1).fit(data, **options)
    tower.to_anndata(adata)
    space = adata.uns["reeb"]["representation"]
    assert space == ("X" if where == "X" else "X_reeb_space")
    found = adata.X if where == "X" else adata.obsm[space]
    lowest, highest = found.min(axis=0), found.max(axis=0)
    assert ((adata.uns["reeb"]["vertices"] >= lowest) & (adata.uns["reeb"]["vertices"] <= highest)).mean() > 0.9
    reeb(adata, color="arm").savefig(tmp_path / "reeb.png")
    assert (tmp_path / "reeb.png").stat().st_size > 5000
    if where == "counts":
        with pytest.raises(UnknownRepresentationError, match="principal components"):
            tower.transform(anndata.AnnData(y.X))
    else:
        np.testing.assert_array_equal(tower.transform(anndata.AnnData(y.X))[0], tower.edge_of_cell_)


def test_counts_in_anndata_are_normalised():
    anndata = pytest.importorskip("anndata")
    made = make_shape("clusters", 300, 10, parts=3, sigma=0.05, counts=True, n_genes=300, seed=2)
    assert made.counts.shape == (300, 300)
    report = detect_shape(
        anndata.AnnData(sparse.csr_matrix(made.counts.astype(np.float32))), n_bootstrap=0, n_jobs=1, stability=False
    )
    assert "clusters" in report.labels


def test_user_lens_pseudotime_and_transform(y, tower):
    time = y.X[:, 0] - y.X[:, 0].min()
    assert quick(y.X, lens=time).towers_[0].lens_name == "user"
    root = int(np.flatnonzero((y.edge_of_cell == 0) & (y.t > 0.95))[0])
    for kind in ("diffusion", "skeleton"):
        pseudotime = tower.pseudotime_(root=root, kind=kind)
        own = y.edge_of_cell == 0
        assert np.corrcoef(pseudotime[own], y.t[own])[0, 1] < -0.8
    edge, t = tower.transform(y.X[:50])
    np.testing.assert_array_equal(edge, tower.edge_of_cell_[:50])
    np.testing.assert_allclose(t, tower.t_[:50], atol=1e-9)
    with pytest.raises(ShapeError, match="root"):
        tower.pseudotime_(root=10**6)


def test_skeleton_files(tower, tmp_path):
    skeleton = tower.skeleton_
    skeleton.save(tmp_path / "s.npz")
    again = Skeleton.load(tmp_path / "s.npz")
    np.testing.assert_array_equal(again.vertices, skeleton.vertices)
    np.testing.assert_allclose(again.members.toarray(), skeleton.members.toarray())
    np.savez(tmp_path / "other.npz", a=1)
    with pytest.raises(ShapeError, match="no skeleton"):
        Skeleton.load(tmp_path / "other.npz")
    skeleton.to_graphml(tmp_path / "s.graphml")
    import networkx

    assert networkx.read_graphml(tmp_path / "s.graphml").number_of_edges() == len(skeleton.edges)
    network, percentages = skeleton.milestones(tower.edge_of_cell_, tower.t_)
    assert list(network.columns) == ["from", "to", "length", "directed"]
    np.testing.assert_allclose(percentages.groupby("cell_id").percentage.sum(), 1)
    with pytest.raises(ShapeError, match="names vertex"):
        Skeleton.from_graph([[0.0]], [[0, 3]])


def test_features_along_and_between(y, tower):
    table = changes_along(tower, y.X, 0)
    assert table.q.iloc[0] < 0.01
    noise = np.random.default_rng(0).normal(size=(500, 5))
    assert changes_along(tower, noise, 0).q.min() > 0.01
    assert differs_between(tower, y.X, 0, 1).q.iloc[0] < 0.01
    with pytest.raises(ShapeError, match="no edge 9"):
        changes_along(tower, y.X, 9)


def test_batch_and_groups(y):
    batch = np.where(y.edge_of_cell == 0, "a", "b")
    report = detect_shape(
        y.X,
        batch=batch,
        covariates={"counts": np.random.default_rng(0).random(500)},
        n_bootstrap=0,
        n_jobs=1,
        stability=False,
    )
    assert any("follows the batch" in line for line in report.warnings)
    assert not any("counts" in line for line in report.warnings)
    mixed = np.random.default_rng(0).choice(["a", "b"], 500)
    grouped = detect_shape(y.X, groupby=mixed, n_bootstrap=0, n_jobs=1, stability=False)
    assert set(grouped.reports) == {"a", "b"}
    assert grouped.distances.shape == (2, 2)
    with pytest.raises(ShapeError, match="obs"):
        detect_shape(y.X, groupby="sample")


def test_pages_and_plots(y, tmp_path):
    report = detect_shape(y.X, n_bootstrap=2, n_jobs=1)
    assert set(report.stability) == {"subsample", "neighbors", "rank", "all"}
    kinds = np.where(y.edge_of_cell == 0, "<b>one</b>", "other")
    report.to_html(tmp_path / "r.html", y.X[:, :2], {"kind": kinds, "height": y.X[:, 0]})
    page = (tmp_path / "r.html").read_text()
    assert "<b>one" not in page
    assert "&lt;b&gt;one" in page
    with pytest.raises(ShapeError, match="one row"):
        report.to_html(tmp_path / "x.html", y.X[:10, :2])
    with pytest.raises(ShapeError, match="'kind'"):
        report.to_html(tmp_path / "x.html", colors={"kind": kinds[:5]})
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "multi_branch" in page
    assert page.count("<polyline class=edge") == len(report.skeleton.edges)
    report.skeleton.to_html(tmp_path / "s.html")
    from assay.shapes import plots

    for i, figure in enumerate([
        plots.plot_skeleton(report.skeleton, cells=y.X), plots.plot_persistence(report.tower), plots.plot_tower(report.tower),  # noqa: E501
        plots.plot_verdict(report),
    ]):  # fmt: skip
        figure.savefig(tmp_path / f"{i}.png")
        assert (tmp_path / f"{i}.png").stat().st_size > 3000


def test_generated_files_and_the_grid(tmp_path):
    made = make_shape("mixture", 200, seed=3, outliers=0.05, taper=0.3)
    made.save(tmp_path / "m.npz")
    again = Shape.load(tmp_path / "m.npz")
    np.testing.assert_array_equal(again.X, made.X)
    assert again.params == made.params
    files = make_benchmark(tmp_path / "grid", "smoke")
    stamp = files[0].stat().st_mtime_ns
    assert make_benchmark(tmp_path / "grid", "smoke")[0].stat().st_mtime_ns == stamp
    with pytest.raises(UnknownKindError):
        make_benchmark(tmp_path, "bench-v9")


def annotations():
    rows = [(d, a, d == "x", False, d != "x", a == "two") for d in "xyz" for a in ("one", "two", "three")]
    return pd.DataFrame(
        rows, columns=["dataset_id", "annotator", "archetypal", "multi_branch", "simple_traj", "clusters"]
    )


def test_a_miniature_of_scshapebench(tmp_path):
    anndata = pytest.importorskip("anndata")
    (tmp_path / "labels").mkdir()
    (tmp_path / "data" / "synthetic").mkdir(parents=True)
    annotations().to_parquet(tmp_path / "labels" / "annotations.parquet")
    labels = annotations().drop(columns="annotator").assign(aggregation="majority")
    labels.to_parquet(tmp_path / "labels" / "labels.parquet")
    with pd.option_context("future.infer_string", False):
        anndata.AnnData(np.ones((5, 3), dtype=np.float32)).write_h5ad(tmp_path / "SCD-0001.h5ad")
    make_shape("path", 60, seed=0).save(tmp_path / "data" / "synthetic" / "a.npz")
    assert len(load_scshapebench(tmp_path, "annotations")) == 9
    assert len(load_scshapebench(tmp_path, "labels")) == 9
    assert next(iter(load_scshapebench(tmp_path)))[0] == "SCD-0001"
    assert next(iter(load_scshapebench(tmp_path, "synthetic")))[1].labels == ["simple_traj"]
    with pytest.raises(UnknownKindError):
        load_scshapebench(tmp_path, "images")
    annotations().drop(columns="clusters").to_parquet(tmp_path / "labels" / "annotations.parquet")
    with pytest.raises(LabelSchemaError, match="clusters"):
        load_scshapebench(tmp_path, "annotations")


def test_labels_beside_the_human_ceiling():
    table = annotations()
    pred = {
        d: {"archetypal": float(d == "x"), "simple_traj": float(d != "x"), "multi_branch": 0.0, "clusters": 0.0}
        for d in "xyz"
    }
    found = score_labels(pred, table)
    assert found["macro_f1"] == found["micro_f1"] == 1.0
    assert found["human_subset_accuracy"] == 0.0  # the second annotator differs from the others on every set
    assert found["alpha_archetypal"] == 1.0
    with pytest.raises(LabelSchemaError, match="annotator"):
        score_labels(pred, table.drop(columns="annotator"))


def test_other_files(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 3))
    pd.DataFrame(X, columns=list("abc")).to_csv(tmp_path / "a.csv.gz")
    np.testing.assert_allclose(read_cells(tmp_path / "a.csv.gz"), X)
    text = "/$PAR/2/$TOT/3/$MODE/L/$DATATYPE/F/$BYTEORD/1,2,3,4/$P1N/A/$P2N/B/$P1B/32/$P2B/32/"
    start = 58
    begin = start + len(text)
    head = f"FCS3.0    {start:8d}{begin - 1:8d}{begin:8d}{begin + 23:8d}{0:8d}{0:8d}"
    (tmp_path / "a.fcs").write_bytes(head.encode() + text.encode() + np.arange(6, dtype="<f4").tobytes())
    np.testing.assert_array_equal(read_cells(tmp_path / "a.fcs"), np.arange(6).reshape(3, 2))
    with pytest.raises(ShapeError, match="no file"):
        read_cells(tmp_path / "none.h5ad")
    (tmp_path / "a.doc").write_text("x")
    with pytest.raises(ShapeError, match="no kind"):
        read_cells(tmp_path / "a.doc")


def test_commands(tmp_path):
    from typer.testing import CliRunner

    from assay.shapes.cli import app

    run = CliRunner().invoke
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (
            run(
                app, ["make", "star", "--n", "300", "--parts", "3", "--sigma", "0.05", "-o", str(tmp_path / "t.npz")]
            ).exit_code
            == 0
        )
        found = run(
            app,
            [
                "detect",
                str(tmp_path / "t.npz"),
                "--bootstrap",
                "0",
                "--html",
                str(tmp_path / "t.html"),
                "-o",
                str(tmp_path / "o"),
            ],
        )
        assert found.exit_code == 0, found.output
        scored = run(app, ["score", str(tmp_path / "o" / "skeleton.npz"), str(tmp_path / "t.npz")])
    assert "b1_error" in scored.output
    assert (tmp_path / "t.html").is_file()
