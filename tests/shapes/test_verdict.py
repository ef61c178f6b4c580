"""The verdict: recommendation, ranks, the model beside the rules, what is written to files, damaged input."""

from __future__ import annotations

import json

import numpy as np
import pytest

from assay.shapes import (
    ShapeClassifier,
    ShapeError,
    UnknownKindError,
    detect_shape,
    make_shape,
    read_cells,
    recommend,
    training,
)
from assay.shapes.labels import label_scores
from assay.shapes.model import TABLE, read_table, write_table
from assay.shapes.synthetic import LABELS
from assay.shapes.training import predictions
from assay.shapes.valleys import dip_statistic, has_valley, modularity


@pytest.fixture(scope="module")
def report():
    made = make_shape("star", 500, 20, parts=3, sigma=0.05, seed=1)
    return detect_shape(made.X, n_bootstrap=2, n_jobs=1)


def test_a_recommendation_for_each_shape_and_a_reason_where_none_holds():
    for name in ("clusters", "simple_traj", "multi_branch", "archetypal", "cycle"):
        assert len(recommend({name: 0.9})) == 1
    assert recommend({"cycle": 0.6, "clusters": 0.9})[0].startswith("Cluster")
    assert "nearest is cycle at 0.30" in recommend({"cycle": 0.3, "clusters": 0.1})[0]
    with pytest.raises(UnknownKindError, match="spiral"):
        recommend({"spiral": 1.0})


def test_a_report_is_whole(report):
    assert report.labels == ["multi_branch"]
    assert report.rank["working"] >= report.rank["above_threshold"] == 2
    assert set(report.model) == set(LABELS)
    assert all(0 <= p <= 1 for p in report.model.values())
    assert set(report.stability) == {"subsample", "neighbors", "rank", "all"}
    assert len(report.features) == 25
    again = json.loads(json.dumps(report.to_dict()))
    assert again["labels"] == report.labels
    assert again["betti"] == [1, 0]
    assert sum(part["share"] for part in again["regions"]) == pytest.approx(1)


def test_the_shipped_table_trains_a_model_that_knows_shapes_it_has_not_seen(tmp_path):
    rows, labels, rules = read_table(TABLE)
    assert len(rows) >= 100
    assert labels.shape == rules.shape == (len(rows), 4)
    assert len(rows[0]) == 25
    seen, unseen = slice(0, 700), slice(700, None)
    found = predictions(ShapeClassifier().fit(rows[seen], labels[seen]), rows[unseen])
    macro_f1 = label_scores(found, labels[unseen].astype(float))["macro_f1"]
    assert macro_f1 > label_scores(rules[unseen], labels[unseen].astype(float))["macro_f1"]
    write_table(tmp_path / "t.npz", rows[:5], labels[:5], rules[:5])
    np.testing.assert_array_equal(read_table(tmp_path / "t.npz")[1], labels[:5])


@pytest.mark.parametrize(
    ("kind", "parts", "label"),
    [
        ("star", 3, "multi_branch"),
        ("path", 1, "simple_traj"),
        ("cycle", None, "simple_traj"),
        ("clusters", 4, "clusters"),
    ],
)
def test_the_shipped_model_is_right_on_plain_shapes(kind, parts, label):
    """500 cells in 20 dimensions, of a seed that the table does not use; a ring is a simple trajectory."""
    made = make_shape(kind, 500, 20, sigma=0.05, parts=parts, seed=20_261_201)
    found = detect_shape(made.X, n_bootstrap=0, n_jobs=1, stability=False)
    assert {name for name, p in found.model.items() if p > 0.5} == {label}
    assert {name for name, holds in zip(LABELS, made.label, strict=True) if holds} == {label}


def test_the_shipped_model_sees_nothing_in_a_cloud():
    X = np.random.default_rng(20_261_201).normal(size=(500, 20))
    found = detect_shape(X, n_bootstrap=0, n_jobs=1, stability=False)
    assert max(found.model.values()) < 0.5


def test_a_table_is_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "TRAINING", 2)
    monkeypatch.setattr(training, "HELD_OUT", 1)
    path = tmp_path / "table.jsonl"
    assert not training.make_table(path, 0, 2)  # numbers 0 of both
    first = path.read_text()
    path.write_text(first + first.splitlines()[0][:40])  # a kill cut a line off
    assert training.make_table(path)
    assert path.read_text().startswith(first)
    lines = training.read_lines(path)
    assert sorted(lines) == [(False, 0), (False, 1), (True, 0)]
    again = training.judged(1)
    assert lines[False, 1]["label"] == again["label"]
    assert lines[False, 1]["features"] == pytest.approx(again["features"], rel=1e-6)


def test_another_model_may_be_given():
    rows, labels, _ = read_table(TABLE)
    model = ShapeClassifier(random_state=1).fit(rows[:60], labels[:60])
    X = make_shape("path", 200, 5, sigma=0.05, seed=0).X
    quick = {"n_bootstrap": 0, "n_jobs": 1, "stability": False}
    assert detect_shape(X, classifier=model, **quick).model == model.predict_one(detect_shape(X, **quick).features)
    assert detect_shape(X, classifier=None, **quick).model == {}


def test_two_far_groups_have_a_valley_and_one_group_cut_in_two_has_none():
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=(300, 3)), rng.normal([6, 0, 0], size=(300, 3))
    labels = np.repeat([0, 1], 300)
    assert has_valley(np.concatenate([one, two]), labels, 0, 1, rng)
    assert dip_statistic(np.linspace(0, 1, 500)) < 0.01


def test_modularity_of_two_cliques_is_a_half():
    from scipy import sparse

    block = np.ones((5, 5)) - np.eye(5)
    graph = sparse.csr_array(np.kron(np.eye(2), block))
    assert modularity(graph, np.repeat([0, 1], 5)) == pytest.approx(0.5)


def test_a_damaged_cytometry_file_is_named(tmp_path):
    head = f"FCS3.0    {58:8d}{100:8d}{0:8d}{0:8d}{0:8d}{0:8d}"
    (tmp_path / "a.fcs").write_text(head + "/$TOT/5/$MODE/L/")
    with pytest.raises(ShapeError, match="damaged"):
        read_cells(tmp_path / "a.fcs")
    text = "/$PAR/2/$TOT/9999999/$MODE/L/$DATATYPE/F/$BYTEORD/1,2,3,4/$P1N/A/$P2N/B/"
    head = f"FCS3.0    {58:8d}{57 + len(text):8d}{58 + len(text):8d}{58 + len(text) + 8:8d}{0:8d}{0:8d}"
    (tmp_path / "b.fcs").write_text(head + text + "12345678")
    with pytest.raises(ShapeError, match="cut off"):
        read_cells(tmp_path / "b.fcs")
