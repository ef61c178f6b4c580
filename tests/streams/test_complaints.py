"""What users of the field's libraries have complained about in public, each as the behaviour that is due."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from assay.streams import Row, from_dicts, load, make_model, normalizer, run
from assay.streams.models import MODELS, model_class
from assay.streams.normalize import NORMALIZERS

SMALL = {
    "dynfo": {"M": 20, "N": 100, "delta": 0.1}, "orf3v": {"forest_size": 5}, "aux_net": {"hidden": 8},
    "aux_drop_odl": {"hidden": 8, "layers": 3}, "aux_drop_ogd": {"hidden": 8, "layers": 3},
    "packet_lstm": {"hidden": 8}, "hi2": {"size": 16},
}  # fmt: skip


def make(name: str, **params):
    return model_class(name)(**{**SMALL.get(name, {}), **params})


def emerging(n: int = 60):
    """Features that appear and leave for good; the label follows whichever two are there."""
    rng = np.random.default_rng(0)
    rows = []
    for t in range(n):
        names = [f"f{t // 10}", f"f{t // 10 + 1}", ("tuple", t // 20)]
        values = rng.normal(size=3)
        rows.append((dict(zip(names, values.tolist(), strict=True)), int(values[0] > 0)))
    return rows


@pytest.mark.parametrize("name", MODELS)
def test_river_403_every_model_survives_emerging_and_absent_features(name):
    result = run(make(name), from_dicts(emerging(), classes=(0, 1)), seed=0)
    assert np.isfinite(result.scores).all()
    assert set(result.model.features_) == {name for row, _ in emerging() for name in row}


@pytest.mark.parametrize("name", [n for n in MODELS if n not in ("majority", "last_label")])
def test_river_176_a_new_feature_does_not_restart_a_model(name):
    """What was learned of old features still counts after a new one has come."""
    rng = np.random.default_rng(1)
    old = [({"a": float(x), "b": 1.0} if x > 0 else {"a": float(x)}, int(x > 0)) for x in rng.normal(size=150)]
    fast = {"rate": 0.2} if name.startswith("aux_drop") else {}  # their default has learned little after 150 rows
    model = run(make(name, **fast), from_dicts(old, classes=(0, 1)), normalizer="none", seed=0).model
    probe = Row.from_dict({"a": 1.5, "b": 1.0})
    before = model.score_one(probe)
    model.learn_one(Row.from_dict({"never seen": 0.1}), 0)
    after = model.score_one(probe)
    assert before != 0.0
    assert after == pytest.approx(before, abs=0.5 * abs(before))


def test_river_413_and_16_absence_is_explicit_and_imputing_is_asked_for():
    stream = load("wdbc").masked("probabilistic", seed=0)
    plain, mean = run("masked_logistic", stream), run("masked_logistic", stream, impute="mean")
    assert (plain.scores != mean.scores).mean() > 0.9
    seen = []

    class Watch:
        def score_one(self, row):
            seen.append(row.to_dict())
            return 0.0

        def learn_one(self, row, y):
            pass

    run(Watch(), from_dicts([({"a": 1.0, "b": None}, 0), ({"b": float("nan")}, 1), ({"b": 0.0}, 1)]), normalizer="none")
    assert seen == [{"a": 1.0}, {}, {"b": 0.0}]  # absent is not zero, and zero is not absent


@pytest.mark.parametrize("name", ["aux_net", "aux_drop_odl", "aux_drop_ogd", "packet_lstm"])
def test_deep_river_93_neural_models_grow_by_name_not_by_position(name):
    rows = emerging(30)
    a, b = make(name, seed=3), make(name, seed=3)
    for row, y in rows:
        a.learn_one(Row.from_dict(row), y)
        b.learn_one(Row.from_dict(row), y)
    # a row that lists its features in another order is the same row
    last = rows[-1][0]
    turned = dict(reversed(list(last.items())))
    assert a.score_one(Row.from_dict(last)) == pytest.approx(b.score_one(Row.from_dict(turned)), abs=1e-9)


@pytest.mark.parametrize("norm", NORMALIZERS)
def test_capymoa_128_the_schema_may_change_at_any_row(norm):
    scale, model = normalizer(norm), make_model("masked_pa")
    for t in range(40):
        row = scale.transform_one(Row.from_dict({f"s{t}": float(t), t: 1.0, ("s", t % 3): -1.0}))
        assert set(row.ids) == {f"s{t}", t, ("s", t % 3)}
        assert np.isfinite(row.values).all()
        model.learn_one(row, t % 2)
    assert len(model.features_) == 40 + 40 + 3


def test_haphazard_1_0_9_chi2_of_nb3_is_the_contingency_statistic():
    from scipy.stats import chi2_contingency

    from assay.streams.models.nb3 import chi2

    rng = np.random.default_rng(0)
    for a, b, c, d in rng.integers(1, 40, size=(50, 4)):
        assert chi2(a, b, c, d) == pytest.approx(
            chi2_contingency([[a, b], [c, d]], correction=False).statistic, rel=1e-10
        )


def test_haphazard_1_0_4_dynfo_scores_are_signed_and_rank():
    from sklearn.metrics import roc_auc_score

    stream = load("wdbc").masked("probabilistic", seed=0, empty="one")
    result = run(make("dynfo", M=20, N=200), stream, seed=0)
    assert result.scores.min() < 0 < result.scores.max()
    assert roc_auc_score(result.labels, result.scores) > 0.85


@pytest.mark.parametrize(
    ("name", "params"), [("fae", {"p": 1, "f": 0.0}), ("dynfo", {"M": 1, "N": 5, "theta1": 0.99, "epsilon": 0.5})]
)
def test_haphazard_1_0_5_dropping_the_last_learner_is_survived(name, params):
    model = make(name, **params)
    result = run(model, from_dicts(emerging(200), classes=(0, 1)), normalizer="none", seed=0)
    assert np.isfinite(result.scores).all()


def test_haphazard_1_0_7_a_model_called_deterministic_is():
    stream = load("wdbc").masked("probabilistic", seed=0)
    for name in MODELS:
        if model_class(name).deterministic:
            assert "seed" not in model_class(name)().get_params()
            np.testing.assert_array_equal(run(name, stream.head(100)).scores, run(name, stream.head(100)).scores)


@pytest.mark.parametrize("name", MODELS)
def test_haphazard_1_2_8_empty_rows_are_scored_and_learned(name):
    rows = [({}, t % 2) if t % 3 == 0 else ({"a": float(t % 5), "b": -1.0}, t % 2) for t in range(45)]
    result = run(make(name), from_dicts(rows, classes=(0, 1)), seed=0)
    assert len(result.scores) == 45
    assert np.isfinite(result.scores).all()
    nothing = run(make(name), from_dicts([({}, 0), ({}, 1), ({}, 1)], classes=(0, 1)), seed=0)
    assert np.isfinite(nothing.scores).all()


def test_haphazard_pins_no_version_is_pinned_and_nothing_is_compiled_at_installation():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    wanted = project["project"]["dependencies"] + [
        d for e in ("streams", "streams-neural") for d in project["project"]["optional-dependencies"][e]
    ]
    assert not [d for d in wanted if "==" in d or "<" in d]
    assert project["build-system"]["build-backend"] == "hatchling.build"
    assert not list((Path(__file__).parents[2] / "src").rglob("*.c")) + list(
        (Path(__file__).parents[2] / "src").rglob("*.pyx")
    )


def test_the_review_needed_days_for_fae_whose_ensemble_is_bounded_here():
    """A learner is added when accuracy sags; the number of learners, and with it the cost of a row, has a limit."""
    rows = emerging(1500)
    small = run(make("fae"), from_dicts(rows[:700], classes=(0, 1)), normalizer="none", metrics=["accuracy"])
    large = run(make("fae"), from_dicts(rows, classes=(0, 1)), normalizer="none", metrics=["accuracy"])
    features = len(large.model.features_) / len(small.model.features_)
    assert large.peak_state_bytes < 3 * features * small.peak_state_bytes
