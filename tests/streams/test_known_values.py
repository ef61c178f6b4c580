"""The numbered checks of the field: counts, closed forms, other libraries' answers and measured levels on real data."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics as sk

from assay.streams import from_arrays, load, metrics, normalizer, regime, run
from assay.streams.contract import check_causal, easy_stream
from assay.streams.models import MODELS, model_class
from assay.streams.normalize import NORMALIZERS, ZScore
from assay.streams.regimes import REGIMES
from assay.streams.rows import RowBlock

SMALL = {
    "dynfo": {"M": 20, "N": 200, "delta": 0.1},
    "orf3v": {"forest_size": 5},
    "aux_net": {"hidden": 8},
    "aux_drop_odl": {"hidden": 8, "layers": 3},
    "aux_drop_ogd": {"hidden": 8, "layers": 3},
    "packet_lstm": {"hidden": 8},
    "hi2": {"size": 16},
}
NEURAL = {"aux_net", "aux_drop_odl", "aux_drop_ogd", "packet_lstm", "hi2"}
BASELINES = {"majority", "last_label"}


def make(name: str, **params):
    return model_class(name)(**{**SMALL.get(name, {}), **params})


def counts(mask) -> dict[int, int]:
    values, how_many = np.unique(mask.sum(axis=1), return_counts=True)
    return dict(zip(values.tolist(), how_many.tolist(), strict=True))


def test_check_1_rows_of_the_chunked_regimes():
    assert counts(regime("sudden", C=5).mask(569, 30)) == {6: 113, 12: 114, 18: 114, 24: 114, 30: 114}
    assert counts(regime("obsolete", C=5).mask(569, 30)) == {30: 113, 24: 114, 18: 114, 12: 114, 6: 114}
    seen = regime("reappearing", C=5).mask(569, 30).sum(axis=0)
    # blocks of 113, 114, 114, 114, 114 rows: blocks 0, 2, 4 have 341 rows, blocks 1, 3 have 228
    assert seen.tolist() == [341] * 15 + [228] * 15


def test_check_2_zscore_and_welford_at_every_prefix():
    block = RowBlock.from_array(np.array([[1001.0], [1003.0]]))
    assert ZScore().transform_block(block).values == pytest.approx([0.0, 0.70711], abs=1e-5)
    rng = np.random.default_rng(0)
    X = rng.normal(1e4, 3.0, size=(300, 4))
    X[rng.random(X.shape) < 0.4] = np.nan
    scale = normalizer("zscore")
    block = RowBlock.from_array(X)
    for t in range(len(X)):
        scale.transform_one(block.row(t))
        state = scale.state_dict()
        for slot, column in enumerate(state["ids"]):
            past = X[: t + 1, column]
            n, mean, m2 = state["state"][slot]
            assert n == np.sum(~np.isnan(past))
            assert mean == pytest.approx(np.nanmean(past), rel=1e-10)
            if n > 1:
                assert m2 / (n - 1) == pytest.approx(np.nanvar(past, ddof=1), rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_check_3_runs_repeat_and_resume_bit_for_bit(name, tmp_path):
    stream = load("wdbc").masked("probabilistic", seed=0, empty="one").head(90)
    whole = run(make(name), stream, seed=1)
    np.testing.assert_array_equal(run(make(name), stream, seed=1).scores, whole.scores)

    def stop(done, total, text):
        if done >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(make(name), stream, seed=1, checkpoint=tmp_path / "c.npz", every=40, report=stop)
    np.testing.assert_array_equal(run(make(name), stream, seed=1, checkpoint=tmp_path / "c.npz").scores, whole.scores)


@pytest.mark.parametrize("name", [n for n in MODELS if n not in BASELINES])
def test_check_4_scores_point_the_right_way(name):
    presence = name in ("nb3", "fae")
    n = {"hi2": 600, "aux_net": 1000}.get(name, 2000)
    X, y = easy_stream(n, presence=presence)
    params = {"orf3v": {"forest_size": 50}, "hi2": {"picture": "bar", "rate": 2e-3}}.get(name, {})
    half = n // 2
    area = sk.roc_auc_score(y[half:], make(name, **params).run_arrays(X, y)[half:])
    assert area > (0.80 if name in NEURAL else 0.95)
    flipped = sk.roc_auc_score(1 - y[half:], make(name, **params).run_arrays(X, 1 - y)[half:])
    assert abs(area - flipped) <= (0.02 if model_class(name).deterministic else 0.05)


@pytest.mark.parametrize("name", ["masked_pa", "olifl", "oli2ds"])
def test_check_4_symmetric_linear_models_change_sign_exactly(name):
    X, y = easy_stream(500)
    np.testing.assert_array_equal(make(name).run_arrays(X, y), -make(name).run_arrays(X, 1 - y))


def test_check_5_pa_is_scikit_learns():
    from sklearn.linear_model import SGDClassifier

    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 6))
    y = (X @ rng.normal(size=6) + 0.3 * rng.normal(size=400) > 0).astype(int)
    theirs = SGDClassifier(loss="hinge", penalty=None, learning_rate="pa1", eta0=0.1, fit_intercept=False)
    ours = make("masked_pa", C=0.1, classes=(0, 1))
    block = RowBlock.from_array(X)
    for t in range(400):
        row = block.row(t)
        expected = theirs.decision_function(X[t : t + 1])[0] if t else 0.0
        assert ours.score_one(row) == pytest.approx(expected, abs=1e-12)
        theirs.partial_fit(X[t : t + 1], y[t : t + 1], classes=[0, 1])
        ours.learn_one(row, int(y[t]))


def test_check_5_logistic_is_rivers():
    pytest.importorskip("river", reason="river is not installed")
    from river import linear_model, optim

    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 6))
    y = (X @ rng.normal(size=6) > 0).astype(int)
    theirs = linear_model.LogisticRegression(optim.SGD(0.05), intercept_lr=0.05)
    ours = make("masked_logistic", rate=0.05, intercept_rate=0.05, classes=(0, 1))
    block = RowBlock.from_array(X)
    for t in range(400):
        x = dict(enumerate(X[t].tolist()))
        p = theirs.predict_proba_one(x)[True]
        assert 1 / (1 + np.exp(-ours.score_one(block.row(t)))) == pytest.approx(p, abs=1e-9)
        theirs.learn_one(x, bool(y[t]))
        ours.learn_one(block.row(t), int(y[t]))


def test_check_6_nb3_is_bernoulli_nb_and_chi2_is_scipys():
    from sklearn.naive_bayes import BernoulliNB

    from assay.streams.models.nb3 import chi2

    table = np.array([[10, 5], [2, 13]])
    expected = scipy.stats.chi2_contingency(table, correction=False).statistic
    assert chi2(10, 5, 2, 13) == pytest.approx(8.8889, abs=1e-4)
    assert chi2(10, 5, 2, 13) == pytest.approx(expected, rel=1e-12)
    rng = np.random.default_rng(0)
    there = rng.random((300, 8)) < rng.random(8)
    y = (there[:, 0] ^ (rng.random(300) < 0.2)).astype(int)
    X = np.where(there, 1.0, np.nan)
    model = model_class("nb3")(1.0, classes=(0, 1))
    model.run_arrays(X[:-50], y[:-50])
    bernoulli = BernoulliNB(alpha=1.0).fit(there[:-50], y[:-50])
    block = RowBlock.from_array(X[-50:])
    for t in range(50):
        joint = bernoulli.class_log_prior_ + (bernoulli.feature_log_prob_ * there[-50 + t]).sum(axis=1)
        assert model.score_one(block.row(t)) == pytest.approx(joint[1] - joint[0], abs=1e-12)


def test_check_7_the_copula_stays_a_correlation_matrix_and_finds_rho():
    rng = np.random.default_rng(0)
    cov = 0.5 * np.eye(6) + 0.5
    X = rng.multivariate_normal(np.zeros(6), cov, size=5000)
    y = (X[:, 0] > 0).astype(int)
    X[rng.random(X.shape) >= 0.25] = np.nan
    model = make("ovfm")
    for part in np.array_split(np.arange(5000), 10):
        model.run_arrays(X[part], y[part])
        sigma = model.correlation_
        np.testing.assert_allclose(sigma, sigma.T, atol=1e-12)
        np.testing.assert_allclose(np.diag(sigma), 1.0, atol=1e-12)
        assert np.linalg.eigvalsh(sigma).min() > 0
    for seed in range(2):
        rng = np.random.default_rng(seed)
        Z = rng.multivariate_normal([0, 0], [[1, 0.7], [0.7, 1]], size=20_000)
        y = (rng.random(20_000) < 0.5).astype(int)
        Z[rng.random(Z.shape) < 0.5] = np.nan
        model = make("ovfm")
        model.run_arrays(Z, y)
        assert model.correlation_[0, 1] == pytest.approx(0.7, abs=0.05)


@pytest.mark.parametrize("present", [0.3, 0.5, 0.9])
def test_check_8_aux_drop_drops_a_share_p_of_its_neurons(present):
    """Mean over 10,000 rows within 1 % of pJ.

    That with p = 0 and all features present it is a plain network, and that Hedge weights sum to 1 above their floor,
    is tested in test_aux_drop.py and test_aux_net.py.
    """
    from assay.streams.models.neural.aux_drop import _drop

    d, a_feature, p = 20, 5, 0.6
    rng = np.random.default_rng(0)
    keep = np.empty(a_feature * d)
    dropped = 0
    for _ in range(10_000):
        _drop(np.flatnonzero(rng.random(d) < present), d, keep, rng, a_feature, p)
        dropped += int((keep == 0.0).sum())
    assert dropped / 10_000 == pytest.approx(p * a_feature * d, rel=0.01)


CHECK_9 = {
    "masked_logistic": ({}, 0.965, 0.905),
    "olvf": ({}, 0.96, 0.90),
    "olifl": ({"C": 0.1, "option": 1}, 0.94, None),
    "oli2ds": ({"theta": 8, "C": 0.01}, 0.96, None),
    "ocds": ({}, 0.95, None),
    "dynfo": ({"M": 20, "N": 200, "delta": 0.1}, 0.90, None),
    "orf3v": ({"forest_size": 5}, 0.90, None),
}


@pytest.mark.parametrize("name", CHECK_9)
def test_check_9_levels_on_wdbc_on_every_mask(name):
    params, auroc, balanced = CHECK_9[name]
    spread = []
    for seed in range(5):
        stream = load("wdbc").masked("probabilistic", p=0.5, seed=seed, empty="one")
        result = run(model_class(name)(**params), stream, seed=seed, metrics=["auroc", "balanced_accuracy"])
        assert result.metrics["auroc"] >= auroc, f"mask {seed}"
        if balanced is not None:
            assert result.metrics["balanced_accuracy"] >= balanced, f"mask {seed}"
        spread.append(result.metrics["balanced_accuracy"])
    if name == "olvf":
        assert max(spread) - min(spread) <= 0.04


@pytest.mark.parametrize(("name", "auroc", "balanced"), [("masked_logistic", 0.920, 0.838), ("olvf", 0.905, 0.83)])
def test_check_9_levels_on_spambase_on_every_mask(public_stream, name, auroc, balanced):
    table = public_stream("spambase")
    spread = []
    for seed in range(5):
        result = run(
            name, table.masked("probabilistic", p=0.5, seed=seed, empty="one"), metrics=["auroc", "balanced_accuracy"]
        )
        assert result.metrics["auroc"] >= auroc, f"mask {seed}"
        assert result.metrics["balanced_accuracy"] >= balanced, f"mask {seed}"
        spread.append(result.metrics["balanced_accuracy"])
    assert max(spread) - min(spread) <= 0.04


@pytest.mark.parametrize("name", MODELS)
def test_check_10_no_model_looks_ahead(name):
    X, y = load("wdbc").masked("probabilistic", seed=4, empty="one").arrays()
    check_causal(lambda: make(name), X[:70] / (1 + np.abs(X[:70])), y[:70], 40)


@pytest.mark.parametrize("norm", NORMALIZERS)
@pytest.mark.parametrize("kind", REGIMES)
def test_check_10_no_normaliser_or_regime_looks_ahead(norm, kind):
    X, y = load("wdbc").arrays()
    garbage, labels = X.copy(), y.copy()
    garbage[200:], labels[200:] = 1e7, 1 - labels[200:]
    a, b = (
        run(
            "masked_pa", from_arrays(t, u, classes=(0, 1)).masked(kind, seed=1), normalizer=norm, metrics=["accuracy"]
        ).scores
        for t, u in ((X, y), (garbage, labels))
    )
    np.testing.assert_array_equal(a[:200], b[:200])


ORDER = [4, 0, 5, 2, 1, 3]


def shuffled_columns(name: str, seed: int) -> tuple:
    """Scores on a table, and on the same table with its columns renamed and in another order."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(200, 6))
    y = (X[:, 0] + X[:, 1] > 0).astype(int)
    X[rng.random(X.shape) < 0.3] = np.nan
    params = {} if model_class(name).deterministic else {"seed": seed}
    a = make(name, classes=(0, 1), **params).run_arrays(X, y, [f"a{j}" for j in range(6)])
    b = make(name, classes=(0, 1), **params).run_arrays(X[:, ORDER], y, [f"renamed {j}" for j in ORDER])
    return y, a, b


@pytest.mark.parametrize("name", [n for n in MODELS if model_class(n).deterministic])
def test_check_10_names_and_order_of_columns_do_not_matter(name):
    _, a, b = shuffled_columns(name, 0)
    np.testing.assert_allclose(a, b, atol=1e-9)


@pytest.mark.parametrize("name", [n for n in MODELS if not model_class(n).deterministic and n != "hi2"])
def test_check_10_seeded_models_are_as_good_whatever_the_order(name):
    """Other slots get other random numbers, so the scores differ; over ten seeds the mean AUROC does not (2 sd of
    it)."""
    areas = np.array(
        [
            [sk.roc_auc_score(y[80:], s[80:]) for s in (a, b)]
            for y, a, b in (shuffled_columns(name, i) for i in range(10))
        ]
    )
    gap = areas[:, 0] - areas[:, 1]
    assert abs(gap.mean()) <= 2.5 * gap.std(ddof=1) / np.sqrt(10) + 1e-9


def test_check_11_metrics_are_scikit_learns():
    rng = np.random.default_rng(0)
    for k in (2, 3):
        y = rng.integers(0, k, 300)
        s = np.round(rng.normal(size=(300, k)) + np.eye(k)[y], 1)  # ties
        score = s[:, 1] - s[:, 0] if k == 2 else s
        predicted = (score > 0).astype(int) if k == 2 else s.argmax(axis=1)
        expected = sk.roc_auc_score(y, score) if k == 2 else sk.roc_auc_score(np.eye(3)[y], s)
        assert metrics.auroc(y, score) == pytest.approx(expected, abs=1e-12)
        precision = sk.average_precision_score(y, score) if k == 2 else sk.average_precision_score(np.eye(3)[y], s)
        assert metrics.auprc(y, score) == pytest.approx(precision, abs=1e-12)
        assert metrics.balanced_accuracy(y, predicted) == pytest.approx(
            sk.balanced_accuracy_score(y, predicted), abs=1e-12
        )
    y = np.array([0, 1, 1, 0, 1, 0, 0, 1])  # class 2 has not come yet
    s = rng.normal(size=(8, 3))
    assert metrics.auroc(y, s) == pytest.approx(np.mean([sk.roc_auc_score(y == c, s[:, c]) for c in (0, 1)]), abs=1e-12)
