"""Parts of the tower: cells that lie alone, neighbours in slabs, lifetimes, degenerate arcs, caches, distances."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import pdist, squareform

from assay.shapes import ConfoundedSkeletonWarning, ReebTower, ShapeError, Skeleton, make_shape
from assay.shapes.cache import BasisCache
from assay.shapes.files import written_whole
from assay.shapes.kernel import alpha_decay_kernel, diffusion_map, nearest_neighbors, without_density
from assay.shapes.prepare import permutation_rank, prepare
from assay.shapes.reeb.assemble import merge_edge, without_degenerate
from assay.shapes.reeb.null import FLOORS, RANKS, SIZES, floors_of, null_floors
from assay.shapes.reeb.points import make_points, stray_cells
from assay.shapes.reeb.simplify import ReebGraph
from assay.shapes.reeb.slabs import level_graph, make_slabs


def fit(X, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ReebTower(**{"n_bootstrap": 0, "n_jobs": 1, **options}).fit(X)


def star(n=600, **options):
    return make_shape("star", n, 10, **{"parts": 3, "sigma": 0.05, "seed": 2, **options})


def topology(tower):
    return tower.skeleton_.betti(), len(tower.skeleton_.leaves())


@pytest.mark.parametrize("kind", ["star", "path", "cycle"])
def test_two_percent_of_scattered_cells_change_nothing(kind):
    options = {"parts": 3} if kind == "star" else {}
    made = make_shape(kind, 1500, 20, sigma=0.05, outliers=0.02, seed=3, **options)
    tower = fit(made.X)
    true = made.skeleton.simplify()
    assert topology(tower) == (true.betti(), len(true.leaves()))
    scattered = made.edge_of_cell < 0
    assert tower.stray_[scattered].mean() > 0.7
    assert tower.stray_[~scattered].mean() < 0.02
    assert (tower.edge_of_cell_[scattered] >= 0).all()  # they are still assigned


def test_strays_are_those_far_from_cells_that_are_close_to_each_other():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(500, 3)), [[9.0, 0, 0], [0, -9.0, 0]]])
    found = np.flatnonzero(stray_cells(nearest_neighbors(X, 15)))
    assert {500, 501} <= set(found.tolist())
    assert len(found) < 25


def test_a_thin_ring_is_a_loop():
    for seed in range(3):
        rng = np.random.default_rng(seed)
        angle = rng.uniform(0, 2 * np.pi, 1000)
        X = np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1) + rng.normal(size=(1000, 3)) * 0.05
        assert not prepare(X).scaled  # its columns differ 14-fold, and are uncorrelated but for chance
        assert topology(fit(X)) == ((1, 1), 0)


def test_columns_of_other_units_are_scaled():
    rng = np.random.default_rng(0)
    t = rng.random((300, 1))
    X = np.hstack([t, 1000 * t**2]) + rng.normal(size=(300, 2)) * [0.02, 20]
    assert prepare(X).scaled


def test_columns_of_one_unit_with_far_signal_are_not_scaled():
    rng = np.random.default_rng(0)
    signal = rng.random((500, 1)) * [30.0, 10.0, 0.0, 0.0]
    assert not prepare(signal + rng.normal(size=(500, 4)) * 0.3).scaled  # deviations differ 30-fold, noise does not


def test_shuffled_columns_keep_one_axis_of_a_line_and_none_of_its_components():
    rng = np.random.default_rng(0)
    line = rng.uniform(0, 10, (500, 1)) * np.ones((1, 20)) + rng.normal(size=(500, 20))
    assert permutation_rank(line) == 1
    centred = line - line.mean(axis=0)
    components = centred @ np.linalg.svd(centred, full_matrices=False)[2].T
    assert permutation_rank(components) == 0
    assert prepare(components).above_threshold == prepare(line).above_threshold == 1


def test_slabs_with_a_graph_join_neighbours_and_pairs_within_epsilon():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 2))
    graph = nearest_neighbors(X, 4).graph()
    slabs = make_slabs(X[:, 0], X, 5, 0.3, graph=graph)
    ladder = slabs.ladder(6)
    assert ladder[0] == 0
    assert (np.diff(ladder) > 0).all()
    for epsilon in ladder:
        for s, points in enumerate(slabs.members):
            joined = (squareform(pdist(X[points])) <= epsilon) | (graph[points][:, points].toarray() > 0)
            count, labels = connected_components(joined, directed=False)
            ours = slabs.components(s, epsilon)
            assert len(np.unique(ours)) == count == len(np.unique(ours * 1000 + labels))


def test_a_loop_has_the_height_and_the_mass_of_its_lighter_side():
    angle = np.concatenate([np.linspace(0, np.pi, 300), np.linspace(np.pi, 2 * np.pi, 100)[1:-1]])
    X = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    n = len(X)
    slabs = make_slabs(X[:, 0], X, 10, 0.5)
    graph = ReebGraph(level_graph(slabs, 0.2, X[:, 0], np.ones(n), 0.0), X[:, 0], np.ones(n))
    graph.simplify(0.0, 0.05)
    assert graph.betti() == (1, 1)
    (loop,) = [f for f in graph.features() if f.kind == "loop"]
    assert (X[loop.points, 1] < 0.5).all()  # the lower half has a quarter of the points
    assert 0.1 < loop.mass < 0.3
    assert loop.death - loop.birth > 0.7
    assert loop.persistence == pytest.approx((loop.death - loop.birth) * (2 * loop.mass) ** 0.5)
    graph.merge_loops(2.0)
    assert graph.betti() == (1, 0)


def test_lifetimes_count_the_nodes_and_edges_of_every_level():
    tower = fit(star().X, min_mass=0).towers_[0]
    found = tower.lifetimes()
    for level in tower.levels:
        for kind, count in (("node", len(level)), ("edge", len(level.edges))):
            alive = [x for x in found if x.kind == kind and x.birth <= level.epsilon < x.death]
            assert len(alive) == count
    assert all(x.birth < x.death for x in found)
    assert {x.birth for x in found if x.kind == "node"} == {tower.levels[0].epsilon}  # none is born later


def test_degenerate_arcs_are_merged_and_real_ones_stay():
    rng = np.random.default_rng(0)
    arm = rng.random((400, 1))
    X = np.concatenate([arm * [4, 0], arm[:200] * [2, 3], [[2.0, 0.15]] * 1]) + rng.normal(size=(601, 2)) * 0.1
    y = Skeleton.from_graph([[0, 0], [4, 0], [2, 3], [2, 0], [2, 0.1]], [[0, 3], [3, 1], [0, 2], [3, 4]])
    y.vertices = y.vertices.astype(np.float64)
    merged, assigned, gone = without_degenerate(y, X, np.ones(601))
    assert len(merged.leaves()) == 2 or len(merged.edges) == 2  # the needle at (2, 0) is gone
    assert len(gone) == 1
    assert set(np.unique(assigned[0])) == set(range(len(merged.edges)))


def test_an_inner_edge_is_merged_to_its_middle():
    h = Skeleton.from_graph([[0, 0], [0, 2], [1, 1], [2, 1], [3, 0], [3, 2]], [[0, 2], [1, 2], [2, 3], [3, 4], [3, 5]])
    x = merge_edge(h, 2)
    assert len(x.vertices) == 5
    assert sorted(x.degrees().tolist()) == [1, 1, 1, 1, 4]
    np.testing.assert_allclose(x.vertices[x.branch_points()[0]], [1.5, 1])


def test_neighbours_and_eigenpairs_are_cached_by_their_data(tmp_path: Path):
    made = star()
    first = fit(made.X, cache=tmp_path)
    files = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    assert sorted(name.split("-")[0] for name in files) == ["diffusion", "neighbors"]
    second = fit(made.X, cache=tmp_path)
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == files
    np.testing.assert_array_equal(first.skeleton_.vertices, second.skeleton_.vertices)
    fit(made.X, cache=tmp_path, n_neighbors=12)
    assert len(list(tmp_path.iterdir())) == 4
    next(tmp_path.glob("neighbors*")).write_bytes(b"cut off")  # a damaged file is made again
    np.testing.assert_array_equal(fit(made.X, cache=tmp_path).skeleton_.vertices, first.skeleton_.vertices)


def test_a_cache_key_depends_on_type_shape_and_bytes(tmp_path: Path):
    cache = BasisCache(tmp_path)
    a = np.arange(6, dtype=np.float64)
    keys = {cache.key("x", b) for b in (a, a.reshape(2, 3), a.astype(np.float32), a + 1)}
    assert len(keys) == 4


def test_a_file_that_fails_half_way_leaves_the_old_one(tmp_path: Path):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail():
        with written_whole(target) as partial:
            partial.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert target.read_text() == "old"


def test_potential_distance_is_that_between_rows_of_the_log_of_the_power():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2))
    K = without_density(alpha_decay_kernel(nearest_neighbors(X, 10), decay=2.0))
    found = diffusion_map(K, 120, t=4)
    P = K.toarray() / K.toarray().sum(axis=1, keepdims=True)
    exact = pdist(-np.log(np.linalg.matrix_power(P, 4) + 1e-7))
    np.testing.assert_allclose(pdist(found.potential(K)), exact, atol=1e-6)


def test_a_star_in_potential_distance():
    assert topology(fit(star().X, distance="potential")) == ((1, 0), 3)
    with pytest.raises(ShapeError, match="potential"):
        fit(star().X, distance="euclid")


def test_fit_warns_when_the_skeleton_follows_a_batch():
    made = star()
    with pytest.warns(ConfoundedSkeletonWarning, match="NMI"):
        ReebTower(n_bootstrap=0, n_jobs=1).fit(made.X, batch=made.edge_of_cell)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConfoundedSkeletonWarning)
        ReebTower(n_bootstrap=0, n_jobs=1).fit(made.X, batch=np.random.default_rng(0).integers(2, size=600))


def test_landmarks_leave_strays_out_and_give_every_cell_coordinates():
    made = make_shape("path", 5600, 5, sigma=0.02, outliers=0.01, seed=1)
    points = make_points(
        made.X.astype(float), np.ones(5600), n_neighbors=15, decay=40.0, n_landmarks=300
    )  # 5600 - strays > 5000: landmarks
    assert len(points) <= 300
    assert points.weights.sum() == (~points.stray).sum()
    assert points.extend is not None
    assert points.extend.shape == (5600, len(points))
    np.testing.assert_allclose(np.asarray(points.extend.sum(axis=1)).ravel(), 1)


def test_floors_hold_for_the_best_of_three_lenses():
    rng = np.random.default_rng(0)
    found = rng.exponential(0.02, size=(400, 3, 2))
    floors = floors_of(found, 0.95)
    assert (found > floors).any(axis=(1, 2)).mean() <= 0.05 + 1e-9
    single = np.quantile(found, 0.95, axis=0)
    assert (floors >= np.minimum(single, floors)).all()
    assert floors.mean() > single.mean()


@pytest.mark.parametrize("few", [11, 14, 20, 35])
def test_a_component_of_few_cells_has_a_skeleton_too(few):
    rng = np.random.default_rng(few)
    line = np.linspace(0, 5, 300)[:, None] * [1, 0, 0] + rng.normal(size=(300, 3)) * 0.05
    group = rng.normal([40, 0, 0], 0.3, size=(few, 3))
    tower = fit(np.concatenate([line, group]), n_neighbors=8, scale=None)
    assert tower.skeleton_.betti()[0] == 2
    assert (tower.component_[300:] == 1).all()


def test_the_table_of_floors_covers_its_grid():
    for table in FLOORS.values():
        assert np.array(table).shape == (len(SIZES), len(RANKS), 2)
        assert (np.array(table) > 0).all()
    assert null_floors(10**7, 3) == null_floors(SIZES[-1], 3)
    assert null_floors(500, 4, "user")[0] >= null_floors(500, 4, "geodesic")[0]
