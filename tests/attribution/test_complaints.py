"""What users of the field's libraries have complained about in public, each as the behaviour that is due."""

from __future__ import annotations

import copy
import re
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from assay.attribution import (
    EKFAC,
    TRAK,
    AttributionBenchmark,
    AttributionError,
    BudgetExceeded,
    DataInf,
    FitSpec,
    FromCallable,
    GradCos,
    GradDot,
    Influence,
    ModelSpec,
    NoEligibleSamples,
    NonFiniteAttribution,
    Projection,
    RetrainingFarm,
    TracIn,
    leave_out,
    mislabel_detection,
    randomized_copy,
    shortcut_detection,
    tail_patch,
)
from assay.attribution.gradients.containers import Gradients


@pytest.mark.parametrize("method", [GradDot(), GradCos(), TracIn(), EKFAC(), DataInf(), TRAK(proj_dim=32)], ids=repr)
def test_dattri_160_self_influence_never_makes_the_square_matrix(small, method, monkeypatch):
    """dattri issue 160: the whole N x N matrix was computed for its diagonal."""
    method.fit(small.model, small.data.X_train, small.data.y_train)
    largest = []
    true_dot = Gradients.dot

    def watched(self, other):
        out = true_dot(self, other)
        largest.append(out.numel())
        return out

    monkeypatch.setattr(Gradients, "dot", watched)
    monkeypatch.setattr(type(method), "attribute", lambda *a, **k: pytest.fail("attribute was called"))
    own = method.self_influence(batch_size=32)
    assert own.shape == (300,)
    assert max(largest, default=0) < 300 * 300 / 4


def test_dattri_184_arnoldi_names_eigenvalues_and_damping(small):
    """dattri issue 184: NaN for some regularisation."""
    for damping in (0.0, 1e-12, 1e-6, 1.0):
        method = Influence(damping=damping, curvature="hessian", solver="arnoldi", arnoldi_steps=30, arnoldi_rank=20)
        A = method.fit(small.model, small.data.X_train, small.data.y_train).attribute(
            small.data.X_test, small.data.y_test
        )
        assert np.isfinite(A).all()
    method.eigenvalues_[0] = float("nan")
    with pytest.raises(NonFiniteAttribution, match=r"eigenvalues .* damping 1\.00e\+00"):
        method.attribute(small.data.X_test, small.data.y_test)


def test_trak_81_a_projector_that_returns_zeros_is_found_at_once(monkeypatch):
    """trak issue 81: silently all zeros on one version of CUDA. Ours is plain torch, and checks norms before first
    use."""
    monkeypatch.setattr(Projection, "__call__", lambda self, x: torch.zeros(len(x), self.dim))
    with pytest.raises(AttributionError, match="changes norms by 100.0%"):
        Projection(500, 64)


def test_kronfluence_36_44_9_one_sign_for_all_methods(small):
    """kronfluence issues 36, 44, 9: what do sign and scale mean. Here positive raises the explained number."""
    data = small.data
    same = data.y_train[None] == data.y_test[:, None]
    for method in (GradDot(), GradCos(), TracIn(), Influence(), EKFAC(), DataInf(), TRAK(proj_dim=256)):
        A = method.fit(small.model, data.X_train, data.y_train).attribute(data.X_test, data.y_test)
        assert A.shape == (40, 300)
        assert A[same].mean() > 0 > A[~same].mean() or A[same].mean() > 10 * abs(A[~same].mean()), type(method)


def test_kronfluence_36_nats_estimate_what_removal_does():
    """With ``scale="nats"`` a score is about the fall of the margin when the row is removed: for a model at its
    optimum."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression

    from assay.attribution import ExactLOO

    X, y = load_breast_cancer(return_X_y=True)
    X = ((X - X.mean(0)) / X.std(0))[:150, :6]
    y = y[:150]
    model = LogisticRegression(C=1.0, tol=1e-10, max_iter=5000).fit(X, y)
    truth = ExactLOO().fit(model, X, y).attribute(X[:20], y[:20])
    nats = Influence(damping=0.0, curvature="hessian", solver="explicit", scale="nats").fit(model, X, y)
    A = nats.attribute(X[:20], y[:20])
    slope = (A * truth).sum() / (truth**2).sum()
    assert 0.8 < slope < 1.1
    assert np.corrcoef(A.ravel(), truth.ravel())[0, 1] > 0.98
    # and against networks trained again without the rows, the order of size at least
    raw = Influence(damping=0.0, curvature="hessian", solver="explicit").fit(model, X, y).attribute(X[:20], y[:20])
    np.testing.assert_allclose(raw / 150, A, rtol=1e-5)


def test_opendataval_33_the_cost_is_known_before_the_run(small):
    """opendataval issue 33: a valuation that would take days gave no warning."""
    farm = RetrainingFarm(small.make, small.spec, n_subsets=200)
    began = time.perf_counter()
    cost = farm.estimate_cost(small.data.X_train, small.data.y_train)
    assert time.perf_counter() - began < 10
    assert cost.models == 200
    assert cost.steps == 15 * 3  # 150 of 300 rows, batches of 64
    assert 0 < cost.seconds < 600
    assert farm.estimate_cost(small.data.X_train, small.data.y_train, n_models=20_000).seconds > 10 * cost.seconds
    large = RetrainingFarm(small.make, small.spec, n_subsets=50_000, budget=1.0)
    with pytest.raises(BudgetExceeded, match=r"training 50000 models would take about \d+ s, the budget is 1 s"):
        large.run(small.data.X_train, small.data.y_train, small.data.X_test, small.data.y_test)


def test_quanda_a_ranking_is_by_the_values_not_by_position():
    """quanda 0.5.0 adds ``1e-4 * row`` before sorting, which swamps small influences."""
    n = 5000
    influence = np.full(n, 1e-6)
    bad = np.zeros(n, dtype=bool)
    bad[:10] = True
    influence[bad] = 2e-6
    found = mislabel_detection(influence, bad)
    assert found.normalized == pytest.approx(1.0, abs=1e-9)
    assert mislabel_detection(np.ones(n), bad).score == pytest.approx(found.chance, abs=1e-9)


def test_quanda_b_retrained_models_start_afresh(small):
    """quanda's path copies the trained model. Here the maker is called for each, and a trained network is refused."""
    calls = []

    def make():
        calls.append(1)
        return small.make()

    farm = RetrainingFarm(make, FitSpec(epochs=1, lr=1e-9), n_subsets=3, keep_models=True, chunk=3)
    farm.run(small.data.X_train, small.data.y_train, small.data.X_test, small.data.y_test)
    from assay.training import seeded

    fresh = seeded(0, small.make).state_dict()
    for state in farm.states_:
        for name, value in state.items():
            assert torch.allclose(value, fresh[name], atol=1e-6)
    with pytest.raises(AttributionError, match="a function that makes a fresh network"):
        AttributionBenchmark.build("class", small.data.X_train, small.data.y_train, small.model)


def test_quanda_c_the_folder_is_joined_once(small, tmp_path):
    AttributionBenchmark.from_split(
        "lds", small.data, small.make, FitSpec(epochs=2), folder=tmp_path / "b", n_subsets=3
    )
    found = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.npz"))
    assert found == ["b/data.npz", "b/farm/chunk_0_6.npz"]


def test_quanda_d_no_eligible_row_is_an_error_not_zero():
    with pytest.raises(NoEligibleSamples, match="no test row carries the artefact"):
        shortcut_detection(
            np.ones((3, 4)), [True, False, False, False], [0, 1, 1, 1], 0, [False] * 3, [1, 1, 1], [0, 0, 0]
        )


def test_quanda_e_layers_of_equal_shape_get_different_random_weights():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    twin = randomized_copy(model, seed=3)
    assert not torch.equal(twin[0].weight, twin[2].weight)
    assert not torch.equal(twin[0].weight, model[0].weight)
    assert torch.equal(twin[0].weight, randomized_copy(model, seed=3)[0].weight)


def test_quanda_f_a_benchmark_is_made_without_a_network(small, tmp_path, monkeypatch):
    import socket

    monkeypatch.setattr(socket, "socket", lambda *a, **k: pytest.fail("the network was used"))
    bench = AttributionBenchmark.from_split("class", small.data, small.make, FitSpec(epochs=2), folder=tmp_path)
    assert bench.evaluate(GradDot()).score > 0.3


def test_quanda_g_tail_patch_copies_no_model_and_restores_to_the_last_bit(monkeypatch):
    from assay.attribution import GPT

    torch.manual_seed(0)
    model = GPT(20, length=6, dim=8, layers=1, heads=2)
    before = copy.deepcopy(model.state_dict())
    rng = np.random.default_rng(0)
    X = rng.integers(4, 20, (12, 6))
    queries = rng.integers(4, 20, (3, 6))
    labels = np.full_like(queries, -100)
    labels[:, -1] = queries[:, -1]
    monkeypatch.setattr(copy, "deepcopy", lambda *a, **k: pytest.fail("a model was copied"))
    A = rng.normal(size=(3, 12))
    found = tail_patch(A, model, X, X, queries, labels, k=4, lr=1e-2)
    assert found.n_used == 3
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_quanda_no_upper_pins_on_our_side():
    """quanda asks for Python below 3.13 and captum below 0.9; no requirement of this field has an upper limit."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"].get("attribution", [])
    for requirement in extra:
        assert not re.search(r"<|==|~=", requirement), requirement
    peers = {"captum", "dattri", "kronfluence", "traker", "quanda", "opendataval"}
    source = Path(__file__).parents[2] / "src" / "assay" / "attribution"
    for path in source.rglob("*.py"):
        imported = set(re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.MULTILINE))
        assert not imported & peers, path


def test_wrapped_explainers_keep_one_convention(small):
    """captum gives (T, N), dattri (N, T), kronfluence another sign: the adapter takes a function and says what is
    wrong."""
    data = small.data
    inner = GradDot().fit(small.model, data.X_train, data.y_train)
    right = FromCallable(lambda X, t: torch.as_tensor(inner.attribute(X, t))).fit(None, data.X_train, data.y_train)
    np.testing.assert_array_equal(right.attribute(data.X_test, data.y_test), inner.attribute(data.X_test, data.y_test))
    turned = FromCallable(lambda X, t: inner.attribute(X, t).T).fit(None, data.X_train, data.y_train)
    with pytest.raises(AttributionError, match="it looks transposed"):
        turned.attribute(data.X_test, data.y_test)
    negative = FromCallable(lambda X, t: -inner.attribute(X, t), sign=-1).fit(None, data.X_train, data.y_train)
    np.testing.assert_array_equal(
        negative.attribute(data.X_test[:3], data.y_test[:3]), inner.attribute(data.X_test[:3], data.y_test[:3])
    )
    np.testing.assert_allclose(right.self_influence(), inner.self_influence(), rtol=1e-4, atol=1e-4)


def test_leave_out_names_rows_that_stay():
    assert leave_out(4, [[1], []]).tolist() == [[0, 2, 3, -1], [0, 1, 2, 3]]


def test_models_are_named_so_that_benchmarks_load_anywhere():
    assert ModelSpec.from_json(ModelSpec.of("mlp", inputs=3, outputs=2, hidden=(4,)).to_json())().forward(
        torch.zeros(1, 3)
    ).shape == (1, 2)
