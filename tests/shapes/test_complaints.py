"""What users of the field's tools have complained about in public, each as the behaviour that is due."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest

from assay.shapes import ReebTower, ShapeError, Skeleton, changes_along, detect_shape, make_shape
from assay.shapes.reeb.assemble import without_degenerate
from assay.shapes.reeb.points import diffusion_component, make_points
from assay.shapes.reeb.slabs import level_graph, make_slabs


def fit(X, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ReebTower(**{"n_bootstrap": 0, "n_jobs": 1, **options}).fit(X)


def y(n=600, seed=0, **options):
    return make_shape("star", n, 20, parts=3, sigma=0.05, seed=seed, **options)


def test_dynmethods_15_there_is_no_threshold_to_set_and_each_feature_has_floor_and_confidence():
    names = inspect.signature(ReebTower).parameters
    assert not {"threshold", "resolution", "eps", "epsilon"} & set(names)
    rows = fit(y().X, n_bootstrap=5).persistence_
    assert (rows["floor"] > 0).all()
    assert ((rows["confidence"] >= 0) & (rows["confidence"] <= 1)).all()


def test_scanpy_96_outliers_make_no_edges_between_far_groups():
    rng = np.random.default_rng(0)
    groups = np.concatenate([rng.normal(size=(300, 3)), rng.normal(size=(300, 3)) + 40])
    bridge = np.linspace([3.0, 3, 3], [37.0, 37, 37], 6) + rng.normal(size=(6, 3))
    skeleton = fit(np.concatenate([groups, bridge])).skeleton_
    assert skeleton.betti()[0] >= 2


def test_paga_21_every_figure_of_the_report_is_defined():
    report = detect_shape(y().X, n_bootstrap=0, n_jobs=1, stability=False)
    assert set(report.evidence) == set(report.scores)
    for figures in (report.regions, report.components):
        assert figures
    for name in ("birth", "death", "mass", "persistence", "floor", "confidence"):
        assert name in (ReebTower.__doc__ or "")


def test_paga_1_the_report_says_how_stable_the_shape_is():
    report = detect_shape(y(300).X, n_bootstrap=0, n_jobs=1)  # without asking for it
    assert 0 <= report.stability["all"] <= 1
    assert "refits" in report.summary()


def test_stream_23_and_72_a_y_does_not_grow_thirty_branches():
    skeleton = fit(y(1656, seed=3).X).skeleton_
    assert len(skeleton.leaves()) == 3


def test_stream_58_and_scfates_40_far_lineages_are_not_joined():
    a, b = y(400).X, y(400, seed=1).X + 50
    skeleton = fit(np.concatenate([a, b])).skeleton_
    assert skeleton.betti()[0] == 2


def test_stream_43_a_needle_of_far_cells_is_no_branch():
    rng = np.random.default_rng(0)
    cells = y(800, seed=3).X
    needle = cells[0] + np.linspace(0.3, 1.0, 4)[:, None] * rng.normal(size=20) * 0.5
    assert len(fit(np.concatenate([cells, needle])).skeleton_.leaves()) == 3


def test_scfates_7_an_arc_whose_cells_share_one_position_is_merged_and_a_test_on_such_cells_refused_by_name():
    rng = np.random.default_rng(0)
    line = np.linspace(0, 4, 400)[:, None] * [1, 0] + rng.normal(size=(400, 2)) * 0.05
    knot = np.array([2.0, 0.4]) + rng.normal(size=(40, 2)) * 1e-4
    y_shaped = Skeleton.from_graph([[0, 0], [4, 0], [2, 0], [2, 0.8]], [[0, 2], [2, 1], [2, 3]])
    merged, assigned, gone = without_degenerate(y_shaped, np.concatenate([line, knot]), np.ones(440))
    assert set(range(400, 440)) <= set(gone[0].tolist())
    assert len(gone[0]) < 60
    assert len(merged.leaves()) == 2
    assert (assigned[0] == 0).all()
    tower = fit(y().X)
    tower.t_ = np.where(tower.edge_of_cell_ == 0, 0.5, tower.t_)
    with pytest.raises(ShapeError, match="same position"):
        changes_along(tower, y().X, 0)


def test_monocle_388_and_153_no_loop_without_evidence_and_a_knob_for_the_scale():
    X = y().X
    assert fit(X).skeleton_.betti()[1] == 0
    top = fit(X, level=9)
    assert len(top.skeleton_.leaves()) <= len(fit(X).skeleton_.leaves())


def test_giotto_665_many_cells_go_through_landmarks():
    tower = fit(y(7000).X, n_landmarks=500)
    assert len(tower.points_) <= 500
    assert len(tower.edge_of_cell_) == 7000
    assert len(tower.skeleton_.leaves()) == 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_giotto_665_and_624_a_million_cells():
    rng = np.random.default_rng(0)
    made = make_shape("star", 1_000_000, 50, parts=3, sigma=0.05, seed=int(rng.integers(100)))
    assert len(fit(made.X).skeleton_.leaves()) == 3


def test_giotto_560_and_kepler_91_slabs_of_no_or_one_point_are_handled():
    rng = np.random.default_rng(0)
    lens = np.concatenate([rng.random(50), [10.0], 20 + rng.random(50)])
    coordinates = lens[:, None]
    slabs = make_slabs(lens, coordinates, 40, 0.3)
    sizes = [len(m) for m in slabs.members]
    assert 0 in sizes
    assert 1 in sizes
    for epsilon in slabs.ladder(10):
        graph = level_graph(slabs, epsilon, lens, np.ones(101), 0.0)
        assert sum(len(m) for m in graph.members) >= 101


def test_components_are_found_before_lenses():
    X = np.random.default_rng(0).normal(size=(300, 3))
    points = make_points(X, np.ones(300), n_neighbors=15, decay=40.0, n_landmarks=2000)
    part = diffusion_component(points, np.arange(len(points)), 10, "auto", 0)
    assert part.graph.shape == (len(points), len(points))
