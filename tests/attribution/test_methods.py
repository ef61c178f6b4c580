"""Methods against closed forms, against each other, and on the kinds of model that people have."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor, RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from assay.attribution import (
    EKFAC,
    GPT,
    MLP,
    TRAK,
    BanzhafMSR,
    DataInf,
    Datamodel,
    DataOOB,
    ExactLOO,
    FitSpec,
    GradCos,
    GradDot,
    GroundTruth,
    Influence,
    KNNShapley,
    LeafKernel,
    Random,
    RelatIF,
    RepresenterPoints,
    RetrainingFarm,
    Similarity,
    SmallCNN,
    TextTransformer,
    TorchModel,
    TracIn,
    as_tensors,
    fit_one,
    lds,
    load_digits_split,
    train_many,
)
from assay.attribution.methods.retraining import fit_datamodels

ALL = [
    Random(), GradDot(), GradCos(), TracIn(), Influence(), Influence(damping=1e-3, solver="primal"),
    Influence(damping=1e-3, solver="arnoldi"), RelatIF(), EKFAC(), DataInf(), TRAK(proj_dim=64),
    TRAK(proj_dim=64, projection="sparse"), RepresenterPoints(), Similarity(), Similarity(kind="l2"), KNNShapley(),
]  # fmt: skip


@pytest.fixture(scope="module")
def tiny():
    """60 rows, a network with 203 weights in 64 bits."""
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(60, 6)), rng.integers(0, 3, 60)
    torch.manual_seed(1)
    return MLP(6, 3, hidden=(20,)).double(), X, y


def flat_gradients(net, X, y, of):
    model = TorchModel(net)
    x, labels = model.tensors(X, y)
    model.settle(x, labels)
    return model.ordered_gradients(x, labels, of)


def test_influence_equals_its_definition(tiny):
    net, X, y = tiny
    G, H = flat_gradients(net, X, y, "-loss"), flat_gradients(net, X[:5], y[:5], "margin")
    lam = 0.01
    fisher = G.T @ G / 60
    exact = H @ torch.linalg.solve(fisher + lam * torch.eye(len(fisher), dtype=torch.float64), G.T)
    for solver in ("dual", "primal", "explicit", "cg"):
        method = Influence(damping=lam, solver=solver, cg_steps=400, cg_tolerance=1e-12)
        A = method.fit(net, X, y).attribute(X[:5], y[:5])
        np.testing.assert_allclose(A, exact, atol=2e-6 * float(exact.abs().max()))
    theta = RelatIF(norm="theta", damping=lam).fit(net, X, y).attribute(X[:5], y[:5])
    inverse = torch.linalg.solve(fisher + lam * torch.eye(len(fisher), dtype=torch.float64), G.T)
    np.testing.assert_allclose(theta, exact / inverse.norm(dim=0), rtol=1e-4, atol=1e-5)
    loss = RelatIF(norm="loss", damping=lam).fit(net, X, y).attribute(X[:5], y[:5])
    np.testing.assert_allclose(loss, exact / (G.T * inverse).sum(0).sqrt(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("curvature", ["gn", "hessian"])
def test_gauss_newton_and_hessian_equal_autograd(tiny, curvature):
    net, X, y = tiny
    names = [n for n, _ in net.named_parameters()]
    point = torch.cat([p.detach().flatten() for p in net.parameters()])
    shapes = [p.shape for p in net.parameters()]
    x, labels = torch.as_tensor(X), torch.as_tensor(y)

    def logits(v):
        parts = [c.reshape(s) for c, s in zip(v.split([s.numel() for s in shapes]), shapes, strict=True)]
        return torch.func.functional_call(net, dict(zip(names, parts, strict=True)), (x,))

    if curvature == "hessian":
        matrix = torch.func.hessian(lambda v: nn.functional.cross_entropy(logits(v), labels))(point)
    else:
        J = torch.func.jacrev(logits)(point)
        p = logits(point).softmax(-1).detach()
        Hz = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
        matrix = torch.einsum("ncp,ncd,ndq->pq", J, Hz, J) / 60
    G, H = flat_gradients(net, X, y, "-loss"), flat_gradients(net, X[:5], y[:5], "margin")
    lam = (
        0.2 if curvature == "gn" else 3.0
    )  # the Hessian of an untrained network is indefinite; CG needs a positive one
    exact = H @ torch.linalg.solve(matrix + lam * torch.eye(len(matrix), dtype=torch.float64), G.T)
    top = float(exact.detach().abs().max())
    for solver in ("explicit", "cg"):
        method = Influence(damping=lam, curvature=curvature, solver=solver, cg_steps=400, cg_tolerance=1e-12)
        A = method.fit(net, X, y).attribute(X[:5], y[:5])
        np.testing.assert_allclose(A, exact.detach(), atol=1e-5 * top)
    if curvature == "gn":  # all of its directions: Arnoldi is then exact on the range, damped alike
        method = Influence(damping=lam, curvature="gn", solver="arnoldi", arnoldi_steps=203, arnoldi_rank=203)
        A = method.fit(net, X, y).attribute(X[:5], y[:5])
        assert np.corrcoef(A.ravel(), exact.detach().ravel())[0, 1] > 0.999


def test_datainf_equals_its_definition(tiny):
    net, X, y = tiny
    lam = 0.05
    A = DataInf(damping=lam).fit(net, X, y).attribute(X[:4], y[:4])
    exact = torch.zeros(4, 60, dtype=torch.float64)
    for layer in ("0", "2"):
        names = [f"{layer}.weight", f"{layer}.bias"]
        model = TorchModel(net, layers=names)
        x, labels = model.tensors(X, y)
        model.settle(x, labels)
        G, H = (model.ordered_gradients(x[:n], labels[:n], of) for n, of in ((60, "-loss"), (4, "margin")))
        eye = torch.eye(G.shape[1], dtype=torch.float64)
        inverse = sum(torch.linalg.inv(lam * eye + torch.outer(g, g)) for g in G) / 60
        exact += H @ inverse @ G.T
    np.testing.assert_allclose(A, exact, rtol=1e-4, atol=1e-5)


def test_trak_without_projection_loss_is_its_formula(tiny):
    """With d far above P the projection keeps all inner products closely; then TRAK is the formula on raw gradients."""
    net, X, y = tiny
    phi, asked = flat_gradients(net, X, y, "margin"), flat_gradients(net, X[:5], y[:5], "margin")
    method = TRAK(proj_dim=20_000, reg=1.0, scale="nats").fit(net, X, y)
    A = method.attribute(X[:5], y[:5])
    lam = float((phi**2).sum() / 20_000)
    model = TorchModel(net)
    x, labels = model.tensors(X, y)
    model.settle(x, labels)
    q = torch.sigmoid(-model.explained(x, labels))
    kernel = phi @ phi.T
    exact = asked @ phi.T @ torch.linalg.inv(kernel + lam * torch.eye(60, dtype=torch.float64)) * q
    assert np.corrcoef(A.ravel(), exact.ravel())[0, 1] > 0.98


def test_representer_points_add_up_to_the_logit(small):
    method = RepresenterPoints(l2=1e-2).fit(small.model, small.data.X_train, small.data.y_train)
    A = method.attribute(small.data.X_test, small.data.y_test)
    inputs = method._represent(method.model_.tensors(small.data.X_test)[0])
    logits = (inputs @ method.weight_.T).numpy()
    np.testing.assert_allclose(A.sum(1), logits[np.arange(40), small.data.y_test], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ALL, ids=repr)
def test_top_k_blocks_and_sets_agree_with_the_matrix(small, method):
    data = small.data
    method.fit(small.model, data.X_train, data.y_train)
    A = method.attribute(data.X_test, data.y_test)
    assert A.dtype == np.float32
    np.testing.assert_allclose(
        method.attribute(data.X_test, data.y_test, batch_size=7), A, rtol=1e-3, atol=1e-4 * np.abs(A).max()
    )
    indices, scores = method.top_k(data.X_test, data.y_test, 6)
    assert indices.dtype == np.int64
    order = np.argsort(-A, axis=1, kind="stable")[:, :6]
    np.testing.assert_allclose(scores, np.take_along_axis(A, order, 1), rtol=1e-3, atol=1e-5 * np.abs(A).max())
    low, low_scores = method.top_k(data.X_test, data.y_test, 3, lowest=True)
    np.testing.assert_allclose(low_scores, np.sort(A, 1)[:, :3], rtol=1e-3, atol=1e-4 * np.abs(A).max())
    assert low.shape == (40, 3)
    whole = method.attribute_set(data.X_test, data.y_test)
    np.testing.assert_allclose(whole, A.sum(0), rtol=5e-3, atol=2e-4 * np.abs(A.sum(0)).max())


@pytest.mark.parametrize(
    "make", [GradDot, GradCos, TracIn, Influence, DataInf, EKFAC, lambda **k: TRAK(proj_dim=64, **k)]
)
def test_a_small_budget_gives_the_same_scores_block_by_block(small, make):
    data = small.data
    plenty = make().fit(small.model, data.X_train, data.y_train).attribute(data.X_test, data.y_test)
    method = make(memory=60_000).fit(small.model, data.X_train, data.y_train)
    train = getattr(method, "train_", None)
    assert train is None or (train.kept is None and train.block < 300)
    np.testing.assert_allclose(
        method.attribute(data.X_test, data.y_test), plenty, rtol=2e-3, atol=1e-4 * np.abs(plenty).max()
    )
    top, _ = method.top_k(data.X_test, data.y_test, 5)
    assert (top[:, 0] == plenty.argmax(1)).mean() > 0.95
    assert method.self_influence().shape == (300,)


def test_memory_of_streamed_top_k_stays_far_below_the_matrix(small):
    """300 x 40 pieces never come together: the largest piece that is seen is a block."""
    method = GradDot(memory=60_000).fit(small.model, small.data.X_train, small.data.y_train)
    pieces = [s.shape for _, _, s in method._all_parts(small.data.X_test, small.data.y_test, 8)]
    assert max(a * b for a, b in pieces) <= 8 * method.train_.block < 300 * 40 / 20


def test_tracin_adds_checkpoints_with_their_rates(small):
    data = small.data
    A = (
        TracIn(small.states, lrs=[0.1, 0.2, 0.3])
        .fit(small.model, data.X_train, data.y_train)
        .attribute(data.X_test, data.y_test)
    )
    total = np.zeros_like(A)
    for rate, state in zip([0.1, 0.2, 0.3], small.states, strict=True):
        net = copy.deepcopy(small.model)
        net.load_state_dict(state)
        total += rate * GradDot().fit(net, data.X_train, data.y_train).attribute(data.X_test, data.y_test)
    np.testing.assert_allclose(A, total, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("net", "rows"),
    [
        (SmallCNN(8, 4, width=4), torch.rand(30, 1, 8, 8)),
        (nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(24, 4)),
        torch.rand(30, 2, 8)),
        (TextTransformer(30, 4, length=7, dim=8), torch.randint(0, 30, (30, 7))),
        (nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 4)),
        torch.rand(30, 2, 8, 8)),
    ],
    ids=["conv2d", "conv1d-inplace", "transformer", "grouped-and-normed"],
)  # fmt: skip
def test_factors_equal_flat_gradients_on_other_networks(net, rows):
    y = torch.arange(30) % 4
    model = TorchModel(net)
    model.settle(rows, y)
    for of in ("-loss", "margin", "logit"):
        g, flat = model.gradients(rows, y, of=of), model.ordered_gradients(rows, y, of)
        assert g.width == model.size
        np.testing.assert_allclose(g.dot(g), flat @ flat.T, rtol=1e-3, atol=1e-4 * float((flat**2).sum(1).max()))
        np.testing.assert_allclose(g.squares(), (flat**2).sum(1), rtol=1e-3, atol=1e-6)


def test_a_weight_that_is_used_twice_gets_its_whole_gradient():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.out = nn.Linear(5, 5), nn.Linear(5, 3)

        def forward(self, x):
            return self.out(torch.tanh(self.inner(torch.tanh(self.inner(x)))))

    net, rows, y = Twice(), torch.randn(20, 5), torch.arange(20) % 3
    model = TorchModel(net)
    model.settle(rows, y)
    g, flat = model.gradients(rows, y), model.ordered_gradients(rows, y, "-loss")
    assert "inner" not in model._hooked
    np.testing.assert_allclose(g.dot(g), flat @ flat.T, rtol=1e-4, atol=1e-6)


def test_a_language_model_is_explained_by_the_probability_of_its_tokens():
    torch.manual_seed(0)
    net = GPT(20, length=6, dim=8, layers=1, heads=2)
    tokens = torch.randint(1, 20, (12, 6))
    queries = torch.full_like(tokens, -100)
    queries[:, -1] = tokens[:, -1]
    for method in (
        GradDot(),
        EKFAC(layers=["blocks.*"]),
        Influence(damping=0.1),
        TRAK(proj_dim=32, projection="sparse"),
    ):
        A = method.fit(net, tokens, tokens).attribute(tokens[:4], queries[:4])
        assert A.shape == (4, 12)
        assert (A.argmax(1) == np.arange(4)).mean() >= 0.5, type(method)


def test_layers_are_chosen_by_name_or_pattern(small):
    data = small.data
    last = GradDot(layers=["2"]).fit(small.model, data.X_train, data.y_train)
    assert last.model_.size == 16 * 10 + 10
    weights = GradDot(layers=["*.weight"]).fit(small.model, data.X_train, data.y_train)
    assert weights.model_.size == 64 * 16 + 16 * 10
    A = sum(
        GradDot(layers=[name]).fit(small.model, data.X_train, data.y_train).attribute(data.X_test, data.y_test)
        for name in ("0", "2")
    )
    whole = GradDot().fit(small.model, data.X_train, data.y_train).attribute(data.X_test, data.y_test)
    np.testing.assert_allclose(A, whole, rtol=1e-3, atol=1e-3)


def test_regression_explains_the_prediction():
    X, y = load_diabetes(return_X_y=True)
    X = X / X.std(0)
    y = (y - y.mean()) / y.std()
    line = LinearRegression().fit(X[:200], y[:200])
    truth = ExactLOO().fit(line, X[:200], y[:200]).attribute(X[200:220], y[200:220])
    method = Influence(damping=0.0, curvature="hessian", solver="explicit", scale="nats").fit(line, X[:200], y[:200])
    design = np.hstack([X[:200], np.ones((200, 1))])
    leverage = (design @ np.linalg.pinv(design.T @ design) * design).sum(1)
    A = method.attribute(X[200:220], y[200:220]) / (1 - leverage)
    np.testing.assert_allclose(A, truth, atol=1e-5 * np.abs(truth).max())
    for method in (GradDot(), Influence(), EKFAC(), TRAK(proj_dim=64), DataInf(), RepresenterPoints(), GradCos()):
        scores = method.fit(line, X[:200], y[:200]).attribute(X[200:220], y[200:220])
        assert np.isfinite(scores).all()
        assert method.self_influence().shape == (200,)


@pytest.mark.parametrize("classes", [2, 3])
def test_exact_loo_of_logistic_regression_equals_refits(classes):
    X, y = load_iris(return_X_y=True)
    keep = y < classes if classes == 3 else y > 0
    X, y = X[keep][::2, :2], np.unique(y[keep][::2], return_inverse=True)[1]
    model = LogisticRegression(C=0.5, tol=1e-12, max_iter=20_000).fit(X, y)
    A = ExactLOO().fit(model, X, y).attribute(X[:6], y[:6])

    def margins(m):
        p = m.predict_proba(X[:6])[np.arange(6), y[:6]]
        return np.log(p / (1 - p))

    for i in (0, 7, len(X) - 1):
        rest = np.arange(len(X)) != i
        refit = LogisticRegression(C=0.5, tol=1e-12, max_iter=20_000).fit(X[rest], y[rest])
        np.testing.assert_allclose(A[:, i], margins(model) - margins(refit), atol=2e-4)


def test_leaf_kernel_equals_removal_with_the_structure_kept():
    X, y = load_iris(return_X_y=True)
    forest = RandomForestClassifier(5, bootstrap=False, max_features=2, min_samples_leaf=6, random_state=0).fit(X, y)
    A = LeafKernel().fit(forest, X, y).attribute(X[60:62], y[60:62])
    leaves, asked = forest.apply(X), forest.apply(X[60:62])
    for t, target in enumerate(y[60:62]):
        for i in (3, 60, 61, 75, 120):
            before = after = 0.0
            for m in range(5):
                inside = leaves[:, m] == asked[t, m]
                rest = inside & (np.arange(150) != i)
                before += (y[inside] == target).mean() / 5
                after += (y[rest] == target).mean() / 5
            assert A[t, i] == pytest.approx(before - after, abs=1e-7)


def test_leaf_kernel_of_boosting_finds_the_class():
    """On noisy data; in a pure leaf one row less changes nothing."""
    rng = np.random.default_rng(0)
    X, y = load_iris(return_X_y=True)
    noisy = np.where(rng.random(150) < 0.15, rng.integers(0, 3, 150), y)
    for labels in (noisy, (noisy > 0).astype(int)):
        model = GradientBoostingClassifier(n_estimators=10, max_depth=2, min_samples_leaf=10, random_state=0)
        A = LeafKernel().fit(model.fit(X, labels), X, labels).attribute(X[::10], labels[::10])
        same = labels[None] == labels[::10][:, None]
        assert A[same].mean() > 0 > A[~same].mean()
    # regression: one tree at rate 1 from the mean is a regression tree, whose removal effect is known
    values = X[:, 0]
    one = GradientBoostingRegressor(n_estimators=1, learning_rate=1.0, max_depth=2, random_state=0).fit(
        X[:, 1:], values
    )
    A = LeafKernel().fit(one, X[:, 1:], values).attribute(X[:1, 1:], values[:1])
    leaf = one.apply(X[:, 1:]).ravel() == one.apply(X[:1, 1:]).ravel()
    i = int(np.flatnonzero(leaf)[1])
    rest = leaf & (np.arange(150) != i)
    residual = values - values.mean()
    assert A[0, i] == pytest.approx(residual[leaf].mean() - residual[rest].mean(), abs=1e-6)


def test_data_oob_and_suspicion_find_flipped_labels():
    from assay.attribution import flip_labels, mislabel_detection

    X, y = load_iris(return_X_y=True)
    labels, bad = flip_labels(y, 0.1)
    for method in (DataOOB(50), DataOOB(50, estimator=KNeighborsClassifier(3)), KNNShapley()):
        found = mislabel_detection(method.fit(None, X, labels), bad)
        assert found.normalized > 0.85, method
    values = DataOOB(50).fit(None, X, labels)
    np.testing.assert_array_equal(values.attribute(X[:2])[0], values.self_influence())


@pytest.fixture(scope="module")
def linear_truth():
    """Outputs that are exactly linear in membership, and its weights."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(4, 30)) * (rng.random((4, 30)) < 0.3)
    mask = rng.random((300, 30)) < 0.5
    return mask, mask @ weight.T, weight


def test_datamodels_and_banzhaf_recover_linear_weights(linear_truth, monkeypatch):
    mask, outputs, weight = linear_truth
    np.testing.assert_allclose(fit_datamodels(mask, outputs, strength=1e-9), weight, atol=1e-6)
    assert np.abs(fit_datamodels(mask, outputs) - weight).max() < 0.05
    np.testing.assert_allclose(fit_datamodels(mask, outputs, "lasso", 1e-3), weight, atol=0.02)
    method = BanzhafMSR(RetrainingFarm(None, FitSpec()))
    method.n_train_, method.masks_ = 30, mask
    monkeypatch.setattr(method, "_outputs", lambda X, t: outputs)
    A = np.concatenate([s for _, s in method._parts(np.zeros((4, 1)), None)])
    # the estimate of a linear game: its weight, plus noise of the other players of size 2 sd / sqrt(m)
    assert np.corrcoef(A.ravel(), weight.ravel())[0, 1] > 0.95


def test_methods_that_retrain_beat_chance_on_fresh_ground_truth(small):
    data = small.data
    truth = RetrainingFarm(small.make, small.spec, n_subsets=40, seed=42).run(
        data.X_train, data.y_train, data.X_test, data.y_test
    )
    for make in (BanzhafMSR, Datamodel):
        farm = RetrainingFarm(small.make, small.spec, n_subsets=150, seed=7)
        method = make(farm).fit(None, data.X_train, data.y_train)
        assert lds(method.attribute(data.X_test, data.y_test), truth).ci[0] > 0.1
        assert method.self_influence().shape == (300,)
    loo = ExactLOO(RetrainingFarm(small.make, small.spec), rows=[0, 5]).fit(None, data.X_train, data.y_train)
    A = loo.attribute(data.X_test, data.y_test)
    assert (A[:, [0, 5]] != 0).any()
    assert (np.delete(A, [0, 5], axis=1) == 0).all()


def test_an_ensemble_of_trak_averages_terms_and_q_apart(small):
    data = small.data
    others = train_many(small.make, small.spec, small.x, small.y, [1, 2])
    alone = fit_one(small.make, small.spec, small.x, small.y, seed=2)[0]
    for a, b in zip(others[1].parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    given = TRAK(proj_dim=64, models=others).fit(small.model, data.X_train, data.y_train)
    made = TRAK(proj_dim=64, n_models=3, make_model=small.make, fit_spec=small.spec).fit(
        small.model, data.X_train, data.y_train
    )
    np.testing.assert_allclose(
        given.attribute(data.X_test, data.y_test), made.attribute(data.X_test, data.y_test), rtol=1e-3, atol=1e-3
    )
    states = TRAK(proj_dim=64, models=[m.state_dict() for m in others]).fit(small.model, data.X_train, data.y_train)
    np.testing.assert_allclose(
        given.attribute(data.X_test, data.y_test), states.attribute(data.X_test, data.y_test), rtol=1e-5
    )


def test_a_model_is_left_as_it_was(small):
    net = copy.deepcopy(small.model).train()
    for p in net[0].parameters():
        p.requires_grad_(False)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    state = torch.get_rng_state()
    for method in (*ALL, TracIn(small.states), Influence(curvature="hessian", damping=0.5)):
        method.fit(net, small.data.X_train, small.data.y_train).attribute(small.data.X_test[:3], small.data.y_test[:3])
    assert net.training
    assert [p.requires_grad for p in net.parameters()] == [False, False, True, True]
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_frozen_layers_count_unless_they_are_left_out(small):
    net = copy.deepcopy(small.model)
    for p in net[0].parameters():
        p.requires_grad_(False)
    A = GradDot().fit(net, small.data.X_train, small.data.y_train).attribute(small.data.X_test, small.data.y_test)
    B = (
        GradDot()
        .fit(small.model, small.data.X_train, small.data.y_train)
        .attribute(small.data.X_test, small.data.y_test)
    )
    np.testing.assert_array_equal(A, B)


def test_predictions_are_explained_where_no_targets_are_given(small):
    method = GradDot().fit(small.model, small.data.X_train, small.data.y_train)
    with torch.no_grad():
        guess = small.model(torch.as_tensor(small.data.X_test)).argmax(1)
    np.testing.assert_array_equal(method.attribute(small.data.X_test), method.attribute(small.data.X_test, guess))


def test_one_logit_is_two_classes():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3)).astype("float32")
    y = (X[:, 0] > 0).astype(int)
    one = nn.Linear(3, 1)
    two = nn.Linear(3, 2)
    with torch.no_grad():
        two.weight.copy_(torch.cat([torch.zeros(1, 3), one.weight]))
        two.bias.copy_(torch.cat([torch.zeros(1), one.bias]))
    A, B = (Influence(damping=0.1, layers=None).fit(net, X, y).attribute(X[:5], y[:5]) for net in (one, two))
    C = GradDot().fit(one, X, y).attribute(X[:5], y[:5])
    D = GradDot().fit(two, X, y).attribute(X[:5], y[:5])
    np.testing.assert_allclose(D, 2 * C, rtol=1e-4, atol=1e-6)  # both rows of the weight move
    assert np.corrcoef(A.ravel(), B.ravel())[0, 1] > 0.99


def test_ensembles_raise_lds(small):
    """Claim 3 at small scale: TRAK of eight models is above TRAK of one on the same ground truth."""
    data = load_digits_split(train=500, test=100)
    spec = FitSpec(epochs=15)
    truth = RetrainingFarm(small.make, spec, n_subsets=40).run(data.X_train, data.y_train, data.X_test, data.y_test)
    models = train_many(small.make, spec, data.X_train, data.y_train, range(8))
    scores = [
        lds(
            TRAK(proj_dim=512, models=models[1:m])
            .fit(models[0], data.X_train, data.y_train)
            .attribute(data.X_test, data.y_test),
            truth,
        ).score
        for m in (1, 8)
    ]
    assert scores[1] > scores[0] + 0.02


def test_ground_truth_counts_repeated_rows():
    truth = GroundTruth(np.array([[0, 0, 2]]), np.zeros((1, 1)), np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), (0,), 4)
    assert truth.counts().tolist() == [[2, 0, 1, 0]]
    assert truth.masks().tolist() == [[True, False, True, False]]


_PEAK = """
import resource, sys
import numpy as np, torch
torch.set_num_threads(1)
from assay.attribution import MLP, {method}
rng = np.random.default_rng(0)
X, y = rng.normal(size=(20_000, 64)).astype("float32"), rng.integers(0, 10, 20_000)
T, t = rng.normal(size=({tests}, 64)).astype("float32"), rng.integers(0, 10, {tests})
torch.manual_seed(0)
net = MLP(64, 10)
{method}().fit(net, X[:50], y[:50]).top_k(T[:5], t[:5], 3)  # imports and first allocations
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
method = {method}({settings}).fit(net, X, y)
rows, _ = method.top_k(T, t, 10)
assert rows.shape == ({tests}, 10)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings", "tests"),
    [
        ("GradDot", "memory=64 << 20", 4000),
        ("EKFAC", "memory=64 << 20", 500),
        ("TRAK", "proj_dim=256, memory=64 << 20", 2000),
    ],
)
def test_streamed_top_k_stays_within_its_budget(method, settings, tests):
    """20,000 training rows: a matrix for 4000 test rows takes 320 MB, flat gradients 385 MB; the budget is 64 MB, and
    the process may grow by twice that (a block and its temporaries)."""
    import subprocess
    import sys

    code = _PEAK.format(method=method, settings=settings, tests=tests)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 128


def test_hessian_products_from_one_graph_are_those_of_forward_over_reverse(small):
    """A few vectors go through the kept graph, many through vmap; a later change of the weights does not reach it."""
    model = TorchModel(copy.deepcopy(small.model), task="classification")
    x, y = as_tensors(small.data.X_train[:50], small.data.y_train[:50])
    product = model.vector_products(x, y, "hessian")
    V = torch.randn(6, model.size, generator=torch.Generator().manual_seed(0))
    many, few = product(V), torch.cat([product(V[:3]), product(V[3:])])
    assert float((many - few).abs().max()) < 1e-5 * float(many.abs().max())
    with torch.no_grad():
        for p in model.module.parameters():
            p.mul_(2)
    torch.testing.assert_close(product(V[:3]), few[:3])


def test_parts_keep_their_mode(small):
    """A network whose parts are in different modes has them back after gradients were asked for."""
    net = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.Dropout(), torch.nn.Linear(8, 10)).train()
    net[1].eval()
    net[0].weight.requires_grad_(False)
    GradDot().fit(net, small.data.X_train[:20], small.data.y_train[:20]).attribute(small.data.X_test[:2])
    assert [m.training for m in net.modules()] == [True, True, False, True]
    assert [p.requires_grad for p in net.parameters()] == [False, True, True, True]


def test_ekfac_of_a_layer_with_many_inputs_that_are_always_off():
    """Second moments with hundreds of zero rows, on which LAPACK's divide and conquer may not converge in 32 bits."""
    rng = np.random.default_rng(0)
    X = rng.random((300, 600), dtype=np.float32) * (np.arange(600) % 3 == 0) * 10.0 ** -rng.integers(0, 12, 600)
    X, y = X.astype(np.float32), rng.integers(0, 3, 300)
    net = torch.nn.Linear(600, 3)
    torch.nn.init.zeros_(net.weight)
    A = EKFAC(labels="exact").fit(net, X, y).attribute(X[:5], y[:5])
    B = EKFAC(labels="exact").fit(copy.deepcopy(net).double(), X.astype(float), y).attribute(X[:5].astype(float), y[:5])
    assert np.isfinite(A).all()
    assert np.abs(A - B).max() < 1e-3 * np.abs(B).max()
