"""Training, files, sparse layers and graphs of the neural models."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from assay.diagnosis import MODELS, DiagnosisError, DiagnosisModel, UnknownName, model_class, simulate_platform

torch = pytest.importorskip("torch")

from assay.diagnosis.graph import ORCDF, RCD, GraphAttention, Pattern  # noqa: E402
from assay.diagnosis.neural import IDCDF, KSCD, NCDM, GradientDINA, HierCDF, KaNCD  # noqa: E402
from assay.diagnosis.neural.inductive import _Encoder, _Rows  # noqa: E402
from assay.diagnosis.train import Trainer, parse_stopping  # noqa: E402

NEURAL = ("NCDM", "KaNCD", "CDMFKC", "KSCD", "HierCDF", "IDCDF", "RCD", "ORCDF", "GradientDINA")


@pytest.fixture(scope="module")
def made():
    return simulate_platform(200, 24, 3, density=0.8, slip=0.1, guess=0.1, seed=0)


@pytest.mark.parametrize("name", MODELS)
def test_saved_models_come_back(name, made, tmp_path):
    kind = model_class(name)
    model = (kind(stopping="fixed(2)") if name in NEURAL else kind()).fit(made.data)
    model.save(tmp_path / "m.npz")
    back = DiagnosisModel.load(tmp_path / "m.npz")
    student, item = made.data.student[:200], made.data.item[:200]
    assert np.array_equal(back.predict_proba(student, item), model.predict_proba(student, item))
    assert np.array_equal(back.mastery_, model.mastery_)
    assert back.transform(made.data) == pytest.approx(model.transform(made.data), abs=1e-5)
    assert repr(back) == repr(model)


@pytest.mark.parametrize("name", NEURAL)
def test_training_is_repeatable_and_leaves_global_randomness_alone(name, made):
    model = model_class(name)(stopping="fixed(2)", seed=3)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = model.clone().fit(made.data).mastery_
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(first, model.clone().fit(made.data).mastery_)
    assert not np.array_equal(first, model.clone(seed=4).fit(made.data).mastery_)


@pytest.mark.parametrize("name", ["NCDM", "KaNCD", "KSCD", "HierCDF", "RCD", "ORCDF", "GradientDINA"])
def test_models_learn_what_the_platform_does(name, made):
    from assay.diagnosis.metrics import auc

    split = made.data.split("student", 0)
    settings = {"epochs": 40} if name == "ORCDF" else {"lr": 0.02, "epochs": 30}
    model = model_class(name)(**settings).fit(split.train, split.valid)
    assert auc(split.test.correct, model.predict_proba(split.test.student, split.test.item)) > 0.72
    truth = np.mean([auc((made.alpha[:, k] > 0.5).astype(int), model.mastery_[:, k].astype(float)) for k in range(3)])
    assert truth > 0.72


def test_an_interrupted_training_goes_on(made, tmp_path):
    split = made.data.split("student", 0)
    whole = NCDM(hidden=(32, 16), stopping="fixed(6)").fit(split.train, split.valid)
    path = str(tmp_path / "t.pt")
    model = NCDM(hidden=(32, 16), stopping="fixed(6)", checkpoint=path)

    def stop(epoch, epochs, figures):
        if epoch == 4:
            raise KeyboardInterrupt

    model.report = stop
    with pytest.raises(KeyboardInterrupt):
        model.fit(split.train, split.valid)
    again = NCDM(hidden=(32, 16), stopping="fixed(6)", checkpoint=path)
    epochs = []
    again.report = lambda epoch, total, figures: epochs.append(epoch)
    again.fit(split.train, split.valid)
    assert epochs[0] > 3, "finished epochs are not done again"
    assert again.history_[:, 0] == pytest.approx(whole.history_[:, 0], abs=1e-6)
    assert again.mastery_ == pytest.approx(whole.mastery_, abs=1e-6)


def test_stopping_rules(made):
    split = made.data.split("student", 0)
    for rule in ("valid_auc", "valid_doa", "train_loss", "fixed(3)"):
        model = KSCD(stopping=rule, lr=0.02, patience=2, epochs=30).fit(split.train, split.valid)
        assert 1 <= model.best_epoch_ <= len(model.history_) <= 30
    best = KSCD(stopping="valid_logloss", lr=0.02, patience=2, epochs=30).fit(split.train, split.valid)
    assert best.best_epoch_ == np.nanargmin(best.history_[:, 2]) + 1
    held = KSCD(lr=0.02, epochs=5).fit(split.train)
    assert np.isfinite(held.history_[:, 2]).all(), "without validation answers a tenth is held out"
    for bad in (lambda: parse_stopping("fixed(x)"), lambda: NCDM(stopping="valid").fit(split.train)):
        with pytest.raises(UnknownName):
            bad()
    with pytest.raises(DiagnosisError):
        Trainer(epochs=0)


def test_options_are_checked(made):
    for model in (
        NCDM(positive="both"),
        KaNCD(form="gmff"),
        KSCD(phi="relu"),
        HierCDF(form="x"),
        ORCDF(head="x"),
        ORCDF(keep=0.0),
        RCD(layers=0),
        RCD(similar=[(0, 9)]),
        HierCDF(hierarchy=[(0, 1), (1, 0)]),
    ):
        with pytest.raises(DiagnosisError):
            model.set_params(epochs=1).fit(made.data)


@pytest.mark.parametrize(
    "model",
    [
        KaNCD(form="mf"),
        KaNCD(form="ncf1"),
        KaNCD(form="ncf2"),
        HierCDF(form="irt"),
        HierCDF(form="ncd"),
        ORCDF(head="mirt"),
        ORCDF(head="kancd"),
        NCDM(positive="clip"),
        RCD(prerequisites=[(0, 1)], similar=[(1, 2)]),
    ],
    ids=repr,
)
def test_variants_train(model, made):
    model.set_params(stopping="fixed(3)", lr=0.01).fit(made.data)
    assert model.history_[-1, 0] < model.history_[0, 0]
    assert np.isfinite(model.mastery_se_).all()


def test_students_scored_in_blocks_are_those_scored_at_once(made, monkeypatch):
    from assay.diagnosis.neural import base

    model = KSCD(stopping="fixed(5)", lr=0.02).fit(made.data)
    data = made.data.take(made.data.student != 7)  # one without an answer among them
    once = model.transform(data)
    monkeypatch.setattr(base, "PREDICT_AT_ONCE", 300)
    assert model.transform(data) == pytest.approx(once, abs=2e-3)
    prior = torch.as_tensor(model.prior_mean_, dtype=torch.float32)[None]
    assert once[7] == pytest.approx(model.network.mastery(prior)[0].numpy(), abs=1e-5)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_dropout_drops_a_share_and_keeps_the_mean(p):
    from assay.diagnosis.neural.layers import dropout

    torch.manual_seed(0)
    x = torch.full((301, 667), 3.0, requires_grad=True)
    y = dropout(x, p, True)
    n = x.numel()
    assert float((y == 0).float().mean()) == pytest.approx(p, abs=4 * (p * (1 - p) / n) ** 0.5 + 1e-5)
    assert float(y.detach().mean()) == pytest.approx(3.0, rel=0.02)
    kept = (y != 0).float()
    for shift in (1, 2, 3, 4):  # neighbours share a draw of 64 bits and must still be independent
        a, b = kept.flatten()[:-shift], kept.flatten()[shift:]
        assert abs(float(((a - a.mean()) * (b - b.mean())).mean())) < 4 * p * (1 - p) / n**0.5
    y.sum().backward()
    assert torch.allclose(x.grad, kept / (1 - p))
    assert dropout(x, p, False) is x
    assert dropout(x, 0.0, True) is x
    torch.manual_seed(0)
    assert torch.equal(dropout(x, p, True), y)


def test_attention_equals_dense_attention():
    torch.manual_seed(0)
    layer = GraphAttention(4)
    source, target = torch.randn(5, 4), torch.randn(3, 4)
    adjacency = torch.rand(5, 3) < 0.6
    adjacency[:, 2] = False  # a node without neighbours
    sources, targets = adjacency.nonzero().T
    edges = Pattern(targets, sources, (3, 5))
    z, t = layer.linear(source), layer.linear(target)
    score = layer.of_source(z) + layer.of_target(t).T
    alpha = torch.nan_to_num(torch.softmax(score.masked_fill(~adjacency, float("-inf")), dim=0))
    assert torch.allclose(layer(source, target, edges), alpha.T @ z, atol=1e-6)
    assert torch.equal(layer(source, target, edges)[2], torch.zeros(4))


def test_orcdf_starts_at_the_mean_and_does_not_saturate(made):
    """Off centre its embeddings ran to hundreds: mastery exactly 0 or 1, and ties flattered the agreement."""
    model = ORCDF(stopping="fixed(12)").fit(made.data)
    base = made.data.correct.mean()
    entropy = -(base * np.log(base) + (1 - base) * np.log1p(-base))
    contrast = 2 * model.weight * np.log(200)
    assert model.history_[0, 0] < entropy + contrast + 0.05
    assert np.abs(model.states_[:, :3]).max() < 20
    assert all(len(np.unique(model.mastery_[:, k])) > 190 for k in range(3))


def test_sparse_propagation_equals_dense():
    made = simulate_platform(20, 8, 2, density=0.8, seed=0)
    model = ORCDF()
    model.q_ = made.data.dense_q()
    correct = torch.as_tensor(made.data.correct == 1)
    right, _ = model._graphs(made.data, correct)
    n = 20 + 8 + 2
    dense = torch.eye(n)
    for i, j, y in zip(made.data.student, made.data.item, made.data.correct, strict=True):
        if y:
            dense[i, 20 + j] = dense[20 + j, i] = 1
    for j, k in zip(*np.nonzero(model.q_), strict=True):
        dense[20 + j, 28 + k] = dense[28 + k, 20 + j] = 1
    root = dense.sum(1) ** -0.5
    x = torch.randn(n, 5)
    expected = (root[:, None] * dense * root[None, :]) @ x
    assert torch.allclose(right.pattern.product(right.value, x), expected, atol=1e-6)


@pytest.mark.parametrize("compressed", [True, False])
def test_gradients_of_sparse_products(compressed, monkeypatch):
    """Against finite differences, and equal to a dense product; also by blocks, as where there is no MKL."""
    from assay.diagnosis.graph import sparse

    if not compressed:
        monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    monkeypatch.setattr(sparse, "AT_ONCE", 8)
    generator = torch.Generator().manual_seed(0)
    places = (torch.rand(5, 7, generator=generator) < 0.4).nonzero()
    places = places[torch.randperm(len(places), generator=generator)]
    pattern = Pattern(*places.T, (5, 7))
    value = torch.randn(len(places), generator=generator, dtype=torch.float64, requires_grad=True)
    x = torch.randn(7, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    dense = torch.zeros(5, 7, dtype=torch.float64).index_put(tuple(places.T), value)
    assert torch.allclose(pattern.product(value, x), dense @ x)
    assert torch.autograd.gradcheck(pattern.product, (value, x))


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read as Linux counts it")
def test_graphs_hold_edges_never_nodes_by_nodes():
    """14,008 nodes: a dense float64 matrix of them takes 1.57 GB. The peak of a fit stays below a third of that, and
    grows by less than 2 kB an edge. In a process of its own, so that nothing else is counted."""
    script = """
import sys
import numpy as np
from assay.diagnosis import ResponseData, model_class

def status(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) * 1024

rng = np.random.default_rng(0)
s, j, k = 12_000, 2_000, 8
q = np.eye(k, dtype=int)[np.arange(j) % k]
for name in ("RCD", "ORCDF"):
    for n in (500, 20_000, 60_000):  # the first only loads what is needed
        cells = np.sort(rng.choice(s * j, n, replace=False))
        data = ResponseData(*np.divmod(cells, j), rng.integers(0, 2, n), q, tuple(range(s)))
        open("/proc/self/clear_refs", "w").write("5")
        before = status("VmRSS")
        model_class(name)(stopping="fixed(1)", batch_size=8_192).fit(data)
        print(name, n, status("VmHWM") - before)
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    peaks = {(name, int(n)): int(peak) for name, n, peak in (line.split() for line in out.splitlines())}
    for name in ("RCD", "ORCDF"):
        assert peaks[name, 60_000] < 0.33 * 8 * 14_008**2
        assert peaks[name, 60_000] - peaks[name, 20_000] < 2_000 * 40_000


def test_bags_of_answers_equal_a_dense_row():
    rng = np.random.default_rng(0)
    x = rng.integers(-1, 2, (6, 9)).astype(np.float32)
    row, column = np.nonzero(x)
    rows = _Rows(row, column, (x[row, column] > 0).astype(int), 6, "cpu")
    torch.manual_seed(0)
    encoder = _Encoder(9, (5,), 2, positive=True, dropout=0.0).eval()
    chosen = torch.tensor([3, 0, 5])
    hidden = torch.sigmoid(torch.as_tensor(x)[chosen] @ encoder.first.abs() + encoder.bias)
    expected = torch.sigmoid(encoder.layers[0](hidden))
    assert torch.allclose(encoder(*rows.bags(chosen)), expected, atol=1e-6)


def test_idcdf_mastery_rises_with_right_answers(made):
    model = IDCDF(stopping="fixed(3)", lr=1e-3).fit(made.data)
    one = made.data.only_students([5])
    better = one.with_correct(np.ones(len(one), dtype=int))
    assert (model.transform(better) >= model.transform(one) - 1e-7).all()


def test_gradient_dina_answers_as_dina_does(made):
    """1 - slip with all skills, guess with one of them at 0 (a peer's straight-through form gives 1/2 for that skill);
    skills harden."""
    model = GradientDINA(stopping="fixed(40)").fit(made.data)
    guess, slip = model.item_params_.T
    items = np.arange(24)
    one_missing = 1 - np.eye(3)[[np.flatnonzero(q)[0] for q in model.q_]]
    assert model.predict_from_mastery(np.ones((24, 3)), items) == pytest.approx(1 - slip, abs=1e-5)
    assert model.predict_from_mastery(one_missing, items) == pytest.approx(guess, abs=1e-5)
    assert float(model.network.temperature) == pytest.approx(0.1, abs=1e-6)
    assert ((model.item_params_ > 0) & (model.item_params_ < 0.5)).all()
    assert ((model.mastery_ > 0.9) | (model.mastery_ < 0.1)).mean() > 0.6
    assert np.mean((model.mastery_ > 0.5) == (made.alpha > 0.5)) > 0.8


def test_hierarchy_of_the_data_is_used():
    made = simulate_platform(150, 20, 3, density=1.0, hierarchy=[(0, 1), (0, 2)], seed=0)
    model = HierCDF(stopping="fixed(20)", lr=0.02).fit(made.data)
    assert model.network.edges == 2
    assert (model.states_[:, 3:5] > model.states_[:, 5:7]).mean() > 0.9, "likelier with the parent than without"
