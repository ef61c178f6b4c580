"""Every transformation trains and predicts on real data, with the same outcome for the same seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.tree import DecisionTreeClassifier

from assay.uncertainty import (
    ConformalClassifier,
    ConformalCredalSet,
    CredalEnsemble,
    CredalWrapper,
    EfficientCredal,
    Ensemble,
    ForestEnsemble,
    Hull,
    Intervals,
    Mahalanobis,
    NotSupported,
    Sample,
    Single,
    TargetShape,
    UncertaintyError,
    credal_ensemble,
    credal_wrapper,
    load,
    quantify,
)
from assay.uncertainty import metrics as m
from assay.uncertainty.credal import enclosing

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import assay.uncertainty.transforms_torch as T  # noqa: E402
from assay.training import TrainConfig  # noqa: E402

FAST = TrainConfig(epochs=25, lr=4e-3, optimizer="adamw", weight_decay=1e-4, schedule="cosine", clip_norm=5.0)
# The settings of the papers, but for the size of the ensembles and the number of passes.
METHODS = [
    (T.TorchClassifier, {}),
    (T.DeepEnsemble, {"n": 3}),
    (T.MCDropout, {"passes": 30}),
    (T.DropConnect, {"passes": 30}),
    (T.BatchEnsemble, {}),
    (T.Masksembles, {}),
    (T.SubEnsemble, {"n": 3}),
    (T.MeanFieldNetwork, {"passes": 20}),
    (T.LastLayerLaplace, {}),
    (T.SWAG, {"swag_epochs": 8, "passes": 15}),
    (T.SNGP, {}),
    (T.DUQ, {}),
    (T.DDU, {}),
    (T.EvidentialClassifier, {}),
    (T.EvidentialClassifier, {"loss": "ce"}),
    (T.EvidentialClassifier, {"loss": "log"}),
    (T.HetNet, {"draws": 30}),
    (T.PosteriorNetwork, {}),
    (T.CredalRelativeLikelihood, {"n": 4}),
]


def digits(n=500):
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order], y[order]
    known = y < 8
    return X[known][:n], y[known][:n], X[known][n:], y[known][n:], X[~known]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("kind", "params"), METHODS, ids=lambda v: v.__name__ if isinstance(v, type) else str(v.get("loss", ""))
)
def test_methods_learn_digits_and_see_foreign_ones(kind, params):
    X, y, X_test, y_test, foreign = digits()
    config = replace(FAST, epochs=80) if kind is T.PosteriorNetwork else FAST  # its flows start far from the data
    method = kind(config=config, seed=2, **params).fit(X, y)
    rep = method.predict(X_test)
    assert (rep.predict() == y_test).mean() > 0.9
    near, far = (quantify(r).get("epistemic") for r in (rep, method.predict(foreign)))
    assert m.auroc(near, far) > 0.7
    # One row at a time or all at once: the same, but for the order of float32 sums.
    np.testing.assert_allclose(method.predict(X_test[:3]).mean(), rep.mean()[:3], atol=2e-5)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [T.MCDropout, T.BatchEnsemble, T.SWAG, T.PosteriorNetwork, T.DUQ])
def test_the_seed_decides(kind):
    X, y = load_wine(return_X_y=True)
    config = TrainConfig(epochs=3, lr=1e-2)
    runs = [kind(config=config, seed=s).fit(X, y).predict(X).mean() for s in (1, 1, 2)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.allclose(runs[0], runs[2])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "kind",
    [
        T.TorchClassifier,
        T.DeepEnsemble,
        T.MCDropout,
        T.SNGP,
        T.EvidentialClassifier,
        T.PosteriorNetwork,
        T.CredalRelativeLikelihood,
    ],
)
def test_methods_learn_from_distributions(kind):
    table = load("gaussians")
    params = {"n": 2} if kind in (T.DeepEnsemble, T.CredalRelativeLikelihood) else {}
    method = kind(config=TrainConfig(epochs=15, lr=4e-3), **params).fit(table.X[:700], table.y[:700])
    tv = np.abs(method.predict(table.X[700:]).mean() - table.y[700:]).sum(1).mean() / 2
    trivial = np.abs(table.y[:700].mean(0) - table.y[700:]).sum(1).mean() / 2
    assert tv < 0.4 * trivial


class Convolutional(nn.Module):
    """A user's own module, with convolutions and batch normalisation."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 32), nn.ReLU()
        )
        self.head = nn.Linear(32, 8)

    def forward(self, x):
        return self.head(self.body(x))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("kind", "params"),
    [
        (T.DeepEnsemble, {"n": 2}),
        (T.MCDropout, {"passes": 20}),
        (T.MCDropout, {"passes": 20, "conv_p": 0.2}),
        (T.DropConnect, {"passes": 20, "conv_p": 0.2}),
        (T.BatchEnsemble, {"n": 2}),
        (T.Masksembles, {}),
        (T.SubEnsemble, {"n": 2, "layers": 1}),
        (T.MeanFieldNetwork, {"passes": 15}),
        (T.LastLayerLaplace, {}),
        (T.SWAG, {"swag_epochs": 4, "passes": 8}),
        (T.DDU, {}),
        (T.SNGP, {}),
        (T.EvidentialClassifier, {}),
        (T.CredalRelativeLikelihood, {"n": 3}),
    ],
    ids=lambda v: v.__name__ if isinstance(v, type) else ("conv" if "conv_p" in v else ""),
)
def test_a_users_convolutional_module_as_it_is(kind, params):
    X, y, X_test, y_test, _ = digits(400)
    X, X_test = (v.reshape(-1, 1, 8, 8) / 16 for v in (X, X_test))
    own = Convolutional()
    before = {name: v.clone() for name, v in own.state_dict().items()}
    method = kind(own, config=TrainConfig(epochs=8, lr=8e-3), **params).fit(X, y)
    rep = method.predict(X_test)
    assert (rep.predict() == y_test).mean() > 0.85
    np.testing.assert_allclose(method.predict(X_test[:3]).mean(), rep.mean()[:3], atol=2e-5)
    assert all(torch.equal(v, before[name]) for name, v in own.state_dict().items())  # the user's object is unchanged
    assert method.embed(X_test[:5]).shape == (5, 1024 if kind is T.SNGP else 32)


@pytest.mark.parametrize(("make", "shape"), [(nn.Linear, (4,)), (nn.Conv1d, (4, 9)), (nn.Conv2d, (4, 6, 5))])
def test_replaced_layers_are_what_their_formulas_say(make, shape):
    from assay.uncertainty.transforms_torch.layers import BatchEnsembleLayer, BayesianLayer, MaskedLayer

    torch.manual_seed(0)
    layer = make(4, 3) if make is nn.Linear else make(4, 3, 3, padding=1)
    x = torch.randn(6, *shape)
    cut = [slice(None), slice(None), *[None] * (len(shape) - 1)]  # (members, channels) against (rows, channels, ...)
    linear = nn.functional.linear if make is nn.Linear else getattr(nn.functional, make.__name__.lower())
    options = {} if make is nn.Linear else {"padding": 1}
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    fast = BatchEnsembleLayer(make(4, 3) if make is nn.Linear else make(4, 3, 3, padding=1), 2, 0.5)
    found = fast(x)
    for j, rows in enumerate((slice(0, 3), slice(3, 6))):
        plain = linear(x[rows] * fast.r[j][None][tuple(cut)], fast.weight, None, **options)
        wanted = plain * fast.s[j][None][tuple(cut)] + fast.bias[j][None][tuple(cut)]
        torch.testing.assert_close(found[rows], wanted)
    masks = torch.tensor([[1.0, 0, 1, 1], [0, 1.0, 1, 0]])
    found = MaskedLayer(layer, masks)(x)
    torch.testing.assert_close(found[3:], linear(x[3:] * masks[1][None][tuple(cut)], weight, bias, **options))
    bayes = BayesianLayer(layer, 0.3, 0.5)
    draws = torch.stack([bayes.train()(x) for _ in range(4000)])
    # five standard errors of the mean
    torch.testing.assert_close(draws.mean(0), linear(x, weight, bias, **options), atol=0.13, rtol=0)
    variance = linear(x**2, torch.full_like(weight, 0.09), torch.full_like(bias, 0.09), **options)
    torch.testing.assert_close(draws.var(0), variance, atol=0.02, rtol=0.12)
    by_hand = 0.5 * ((0.3 / 0.5) ** 2 - 1 - 2 * np.log(0.3 / 0.5)) * (weight.numel() + bias.numel())
    by_hand += 0.5 * float((weight**2).sum() + (bias**2).sum()) / 0.25
    assert bayes.divergence().item() == pytest.approx(by_hand, rel=1e-5)


def test_convolutions_are_bounded_as_linear_maps():
    from assay.uncertainty.transforms_torch.deterministic import SpectralBound

    torch.manual_seed(1)
    conv = nn.Conv2d(2, 3, 3, padding=1, stride=2)
    model = nn.Sequential(conv, nn.Flatten(), nn.Linear(27, 2))
    bound = SpectralBound(model, 0.7, model[2])
    model(torch.randn(4, 2, 6, 6))
    basis = torch.eye(72).reshape(72, 2, 6, 6)
    dense = lambda: torch.linalg.matrix_norm(conv._conv_forward(basis, conv.weight, None).flatten(1), 2)  # noqa: E731
    assert float(bound.norm(conv, 200)) == pytest.approx(float(dense()), rel=1e-4)
    with torch.no_grad():
        conv.weight.mul_(20)
    bound(model, 1)
    assert float(dense()) == pytest.approx(0.7, rel=1e-2)


def test_members_trained_side_by_side_are_those_trained_in_turn(monkeypatch):
    from assay.uncertainty.transforms_torch import members

    X, y, X_test, _, _ = digits(300)
    runs = []
    for together in (True, False):
        if not together:
            monkeypatch.setattr(members, "can_stack", lambda models: False)
        runs.append(T.DeepEnsemble(n=3, config=replace(FAST, epochs=4), seed=3).fit(X, y).predict(X_test).probs)
    np.testing.assert_allclose(runs[0], runs[1], atol=1e-4)
    assert not members.can_stack([Convolutional(), Convolutional()])  # batch normalisation has statistics of its own


def test_few_rows_still_make_enough_steps():
    X, y = load_wine(return_X_y=True)
    short, long = (
        T.TorchClassifier(config=TrainConfig(epochs=5, lr=3e-3, min_steps=s)).fit(X[::9], y[::9]).predict(X)
        for s in (0, 150)
    )
    assert (long.predict() == y).mean() > (short.predict() == y).mean() + 0.05


def test_members_of_one_network_differ_and_masks_are_fixed():
    X, y = load_wine(return_X_y=True)
    rep = T.BatchEnsemble(n=4, config=TrainConfig(epochs=5, lr=1e-2)).fit(X, y).predict(X)
    assert quantify(rep).epistemic.mean() > 1e-5
    from assay.uncertainty.transforms_torch.members import member_masks

    rng = np.random.default_rng(0)
    for channels, n, scale in ((64, 4, 2.0), (32, 8, 3.0), (10, 4, 1.0), (7, 3, 6.0)):
        masks = member_masks(channels, n, scale, rng)
        assert masks.shape == (n, channels)
        assert (masks.max(0) == 1).all()
        assert (masks.sum(1) > 0).all()


def test_inputs_are_checked():
    X, y = load_wine(return_X_y=True)
    bad = X.copy()
    bad[3, 1] = np.nan
    with pytest.raises(UncertaintyError, match="row 3"):
        T.TorchClassifier().fit(bad, y)
    with pytest.raises(TargetShape):
        T.TorchClassifier().fit(X, y[:5])
    with pytest.raises(UncertaintyError, match=r"no nn\.Linear or conv"):
        T.MCDropout(nn.Sequential(nn.Flatten()), config=TrainConfig(epochs=1)).fit(X, y)
    with pytest.raises(UncertaintyError, match="loss"):
        T.EvidentialClassifier(loss="l2", config=TrainConfig(epochs=1)).fit(X, y)


def test_evidential_regression_on_a_noisy_curve():
    from assay.uncertainty import regression_quality
    from assay.uncertainty.generators import noisy_curve

    X, y, _ = noisy_curve(600, seed=0)
    method = T.EvidentialRegressor(config=TrainConfig(epochs=150, lr=5e-3)).fit(X[:400], y[:400])
    result = regression_quality(method.predict(X[400:]), y[400:], resamples=20)
    assert result.scores["rmse"] < 0.35
    gap, known = (quantify(method.predict(Z), "variance").epistemic.mean() for Z in (np.full((1, 1), 9.0), X[400:]))
    assert gap > known


# -- scikit-learn ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        Ensemble(DecisionTreeClassifier(), n=8),
        Ensemble(GaussianNB(), n=4),
        ForestEnsemble(RandomForestClassifier(20, random_state=0)),
        Single(LogisticRegression(max_iter=300)),
        Mahalanobis(LogisticRegression(max_iter=300)),
    ],
    ids=lambda v: type(v).__name__,
)
def test_estimators_with_names_frames_and_strings(method):
    X, y = load_wine(return_X_y=True)
    frame = pd.DataFrame(X, index=[f"bottle {i}" for i in range(len(X))])
    names = np.array(["red", "rose", "white"])[y]
    rep = method.fit(frame.iloc[::2], names[::2]).predict(frame.iloc[1::2])
    assert (rep.predict() == names[1::2]).mean() > 0.85
    assert list(rep.index) == list(frame.index[1::2])
    assert rep.classes == ("red", "rose", "white")


def test_members_that_miss_a_class_still_answer_for_all():
    X, y = load_wine(return_X_y=True)
    rows = np.r_[np.flatnonzero(y != 2), np.flatnonzero(y == 2)[:1]]  # a class that most resamples miss
    rep = Ensemble(GaussianNB(var_smoothing=1e-2), n=10).fit(X[rows], y[rows]).predict(X)
    assert rep.probs.shape == (178, 10, 3)
    np.testing.assert_allclose(rep.probs.sum(-1), 1)


def test_ensembles_of_regressors():
    X = np.linspace(0, 1, 80)[:, None]
    rep = Ensemble(Ridge(1e-3), n=10).fit(X, 2 * X[:, 0]).predict(X)
    np.testing.assert_allclose(rep.mean(), 2 * X[:, 0], atol=0.02)


def test_conformal_classifier_names_its_sets():
    X, y = load_wine(return_X_y=True)
    names = np.array(["a", "b", "c"])[y]
    sets = ConformalClassifier(GaussianNB(), alpha=0.1).fit(X, names).predict(pd.DataFrame(X))
    assert set(sets.labels()[0]) <= {"a", "b", "c"}
    assert sets.to_frame().columns.tolist() == ["a", "b", "c", "size"]


# -- credal methods --------------------------------------------------------------------------------------------------


def test_credal_sets_of_members():
    sample = Sample(np.random.default_rng(0).dirichlet(np.ones(4), (50, 8)))
    box, hull = credal_wrapper(sample), credal_ensemble(sample, 0.5)
    assert hull.vertices.shape == (50, 4, 4)
    assert ((box.lower <= sample.mean()) & (sample.mean() <= box.upper)).all()
    inner = hull.intervals()
    assert (inner.lower >= box.lower - 1e-12).all()
    X, y = load_wine(return_X_y=True)
    assert isinstance(CredalWrapper(Ensemble(DecisionTreeClassifier(), n=5)).fit(X, y).predict(X), Intervals)
    assert isinstance(CredalEnsemble(Ensemble(DecisionTreeClassifier(), n=5)).fit(X, y).predict(X), Hull)
    with pytest.raises(NotSupported, match="Sample"):
        CredalWrapper(Single(GaussianNB())).fit(X, y).predict(X)


@pytest.mark.parametrize("score", ["tv", "kl", "inner", "wasserstein"])
def test_conformal_credal_sets_cover(score):
    table = load("gaussians")
    p = Single(LogisticRegression(max_iter=300)).fit(table.X[:300], table.y[:300]).predict(table.X[300:]).probs
    y = table.y[300:]
    method = ConformalCredalSet(score, alpha=0.1).fit(p[:600], y[:600])
    assert method.covers(p[600:], y[600:]).mean() > 0.86
    sets = method.predict(p[600:])
    box = enclosing(sets)
    inside = ((box.lower - 1e-9 <= y[600:]) & (y[600:] <= box.upper + 1e-9)).all(1)
    assert inside[method.covers(p[600:], y[600:])].all()


def test_credal_claims_on_first_order_data():
    """Coverage rises and efficiency falls as alpha falls; a claim of the paper."""
    table = load("gaussians")
    model = Single(LogisticRegression(max_iter=300)).fit(table.X[:150], table.y[:150])
    p, q = model.predict(table.X[:150]).probs, model.predict(table.X[150:]).probs
    from assay.uncertainty import first_order

    found = []
    for alpha in (1.0, 0.95, 0.8, 0.5, 0.2):
        box = EfficientCredal(alpha=alpha).fit_probs(p, table.y[:150]).predict_probs(q)
        s = first_order(box, table.y[150:], resamples=0).scores
        found.append((s["coverage"], s["efficiency"]))
    coverage, efficiency = zip(*found, strict=True)
    assert list(coverage) == sorted(coverage)
    assert list(efficiency) == sorted(efficiency, reverse=True)
    assert coverage[-1] > coverage[0] + 0.3


# -- Flax ------------------------------------------------------------------------------------------------------------


def test_flax_ensemble_and_dropout():
    pytest.importorskip("flax")
    from assay.uncertainty import FlaxDropout, FlaxEnsemble, SplitConformal, TemperatureScaling

    X, y, X_test, y_test, foreign = digits()
    for method in (FlaxEnsemble(n=3, epochs=20), FlaxDropout(passes=20, epochs=20)):
        rep = method.fit(X, y).predict(X_test)
        assert (rep.predict() == y_test).mean() > 0.9
        near, far = (quantify(r).epistemic for r in (rep, method.predict(foreign)))
        assert m.auroc(near, far) > 0.7
    p = rep.mean()
    calibrated = TemperatureScaling().fit(p[:400], y_test[:400]).predict(p[400:])
    assert m.log_loss(calibrated.probs, y_test[400:]) <= m.log_loss(np.maximum(p[400:], 1e-12), y_test[400:]) + 0.02
    sets = SplitConformal("lac", 0.1).fit(p[:400], y_test[:400]).predict(p[400:])
    assert sets.covers(y_test[400:]).mean() == pytest.approx(0.9, abs=0.05)
