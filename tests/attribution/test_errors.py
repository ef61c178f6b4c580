"""Bad input, each with the error that the documentation names."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from torch import nn

from assay.attribution import (
    EKFAC,
    TRAK,
    AttributionBenchmark,
    AttributionError,
    BanzhafMSR,
    CheckpointMismatch,
    ConstantOutput,
    ConstantOutputWarning,
    ExactLOO,
    FitSpec,
    GradDot,
    GroundTruth,
    Influence,
    KNNShapley,
    LabelError,
    LeafKernel,
    ModelSpec,
    NoEligibleSamples,
    NonFiniteAttribution,
    NotFitted,
    RepresenterPoints,
    RetrainingFarm,
    ShapeMismatch,
    Similarity,
    TorchModel,
    TracIn,
    UnsupportedModel,
    class_detection,
    compare,
    fit_one,
    lds,
    mislabel_detection,
    mixed_datasets,
    paired_test,
    shortcut_detection,
)


def test_shape_mismatch(small):
    data = small.data
    with pytest.raises(ShapeMismatch, match="300 rows of X_train and 299 labels"):
        GradDot().fit(small.model, data.X_train, data.y_train[:-1])
    fitted = GradDot().fit(small.model, data.X_train, data.y_train)
    with pytest.raises(ShapeMismatch, match="40 test rows and 3 targets"):
        fitted.attribute(data.X_test, data.y_test[:3])
    with pytest.raises(ShapeMismatch, match="transposed"):
        class_detection(np.ones((300, 40)), data.y_train, data.y_test, s=1)
    with pytest.raises(ShapeMismatch, match="names row 400, there are 300 rows"):
        RetrainingFarm(small.make, small.spec).run(
            data.X_train, data.y_train, data.X_test, data.y_test, subsets=np.array([[0, 400]])
        )
    with pytest.raises(ShapeMismatch, match="subset 1 has no row"):
        RetrainingFarm(small.make, small.spec).run(
            data.X_train, data.y_train, data.X_test, data.y_test, subsets=np.array([[0, 4], [-1, -1]])
        )


def test_label_error(small):
    data = small.data
    with pytest.raises(LabelError, match="row 0 has label 10, but the model has 10 classes"):
        GradDot().fit(small.model, data.X_train, np.full(300, 10))
    with pytest.raises(LabelError, match="encode them as whole numbers"):
        GradDot().fit(small.model, data.X_train, np.array(["a"] * 300))
    with pytest.raises(LabelError, match="training row 1 carries the artefact but has class 2, not 0"):
        shortcut_detection(np.ones((1, 3)), [True, True, False], [0, 2, 0], 0, [True], [1], [0])
    with pytest.raises(LabelError, match="must share one label"):
        mixed_datasets(np.ones((1, 3)), [True, True, False], [0, 2, 0], [True])
    with pytest.raises(LabelError, match="needs some, and not all"):
        mislabel_detection(np.ones(5), np.zeros(5, dtype=bool))
    fitted = GradDot().fit(small.model, data.X_train, data.y_train)
    with pytest.raises(LabelError, match="label 11"):
        fitted.attribute(data.X_test[:1], np.array([11]))


def test_no_eligible_samples(small):
    with pytest.raises(NoEligibleSamples, match="predicts no test row right"):
        class_detection(np.eye(3), [0, 1, 2], [0, 1, 2], s=1, predictions=[1, 2, 0])
    with pytest.raises(NoEligibleSamples, match="other source"):
        mixed_datasets(np.ones((2, 3)), [True, True, False], [0, 0, 1], [False, False])


def test_non_finite_attribution_names_the_rows(small):
    A = np.ones((4, 300))
    A[2, 5] = np.nan
    with pytest.raises(NonFiniteAttribution, match=r"test rows \[2\] are not finite"):
        class_detection(A, small.data.y_train, small.data.y_test[:4])
    X = small.data.X_test.copy()
    X[3, 0] = np.nan
    with pytest.raises(NonFiniteAttribution, match="for test row 3 is nan"):
        GradDot().fit(small.model, small.data.X_train, small.data.y_train).attribute(X, small.data.y_test)


def test_constant_output_is_counted_and_total_loss_is_an_error(rng):
    subsets = np.stack([rng.permutation(20)[:10] for _ in range(12)]).astype(np.int32)
    outputs = rng.normal(size=(12, 3))
    outputs[:, 1] = 4.0
    truth = GroundTruth(subsets, outputs, outputs[None], outputs[None], (0,), 20)
    with pytest.warns(ConstantOutputWarning, match="1 of 3 test rows"):
        found = lds(rng.normal(size=(3, 20)), truth)
    assert (found.n_used, found.n_dropped) == (2, 1)
    assert np.isnan(found.per_sample[1])
    with pytest.raises(ConstantOutput, match="any of 3 test rows"):
        lds(np.zeros((3, 20)), truth)


def test_unsupported_model_names_the_layer(small):
    data = small.data

    def normed():
        return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))

    with pytest.raises(UnsupportedModel, match=r"1 \(BatchNorm1d\)"):
        RetrainingFarm(normed, small.spec, engine="vmap").run(data.X_train, data.y_train, data.X_test, data.y_test)
    with pytest.raises(UnsupportedModel, match="there are 0.weight"):
        GradDot(layers=["no_such"]).fit(small.model, data.X_train, data.y_train)
    embedding = nn.Sequential(nn.Embedding(20, 4), nn.Flatten())
    with pytest.raises(UnsupportedModel, match="linear or convolutional layer"):
        EKFAC().fit(embedding, data.X_train[:, :1].astype(int), np.zeros(300, int))
    with pytest.raises(UnsupportedModel, match="no linear layer"):
        RepresenterPoints().fit(embedding, data.X_train[:, :1].astype(int), np.zeros(300, int))
    with pytest.raises(UnsupportedModel, match="no layer 'nope'"):
        Similarity("nope").fit(small.model, data.X_train, data.y_train)
    forest = RandomForestClassifier(3).fit(data.X_train, data.y_train)
    with pytest.raises(UnsupportedModel, match="use LeafKernel"):
        GradDot().fit(forest, data.X_train, data.y_train)
    with pytest.raises(UnsupportedModel, match="HistGradientBoostingClassifier does not say which leaf"):
        LeafKernel().fit(
            HistGradientBoostingClassifier(max_iter=2).fit(data.X_train, data.y_train), data.X_train, data.y_train
        )
    with pytest.raises(UnsupportedModel, match="needs farm"):
        ExactLOO().fit(small.model, data.X_train, data.y_train)
    with pytest.raises(UnsupportedModel, match="for classes"):
        KNNShapley().fit(None, data.X_train, np.linspace(0, 1, 300))


def test_checkpoint_mismatch(small, tmp_path):
    data = small.data
    other = ModelSpec.of("mlp", inputs=64, outputs=10, hidden=(8,))().state_dict()
    with pytest.raises(CheckpointMismatch, match=r"0.weight has shape \(8, 64\) in a checkpoint and \(16, 64\)"):
        TracIn(checkpoints=[other]).fit(small.model, data.X_train, data.y_train)
    with pytest.raises(CheckpointMismatch, match="3 checkpoints and 1 learning rates"):
        TracIn(checkpoints=small.states, lrs=[0.1]).fit(small.model, data.X_train, data.y_train)
    with pytest.raises(CheckpointMismatch, match="no checkpoint"):
        TracIn(checkpoints=[tmp_path / "gone.pt"]).fit(small.model, data.X_train, data.y_train)
    (tmp_path / "bad.pt").write_bytes(b"no tensors here")
    with pytest.raises(CheckpointMismatch, match="cannot be|can be read"):
        TracIn(checkpoints=[tmp_path / "bad.pt"]).fit(small.model, data.X_train, data.y_train)
    spec = FitSpec(epochs=1)
    farm = RetrainingFarm(small.make, spec, n_subsets=2, folder=tmp_path / "farm")
    farm.run(data.X_train, data.y_train, data.X_test, data.y_test)
    changed = data.y_train.copy()
    changed[0] = (changed[0] + 1) % 10
    with pytest.raises(CheckpointMismatch, match="different: data"):
        farm.run(data.X_train, changed, data.X_test, data.y_test)
    with pytest.raises(CheckpointMismatch, match="no benchmark"):
        AttributionBenchmark.load(tmp_path)


def test_a_state_file_never_runs_code(tmp_path):
    class Evil:
        def __reduce__(self):
            import os

            return os.system, (f"touch {tmp_path / 'pwned'}",)

    torch.save({"weight": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointMismatch):
        TracIn(checkpoints=[tmp_path / "evil.pt"]).fit(nn.Linear(2, 2), np.eye(2, dtype="float32"), np.arange(2))
    assert not (tmp_path / "pwned").exists()


def test_not_fitted_and_bad_settings(small):
    data = small.data
    for method in (GradDot(), Influence(), EKFAC(), TRAK(), Similarity(), KNNShapley(), LeafKernel()):
        with pytest.raises(NotFitted):
            method.attribute(data.X_test, data.y_test)
        with pytest.raises(NotFitted):
            method.self_influence()
    bad = [
        (Influence(curvature="fish"), "curvature is one of"), (Influence(solver="magic"), "solver is one of"),
        (Influence(damping=-1.0), "finite number of at least 0"), (Influence(damping="lots"), "'gcv' or 'auto'|'auto'"),
        (Influence(curvature="gn", solver="dual"), "dual form is that of the Fisher"), (EKFAC(labels="x"),
        "labels is one of"),
        (EKFAC(damping=0), "above 0"), (TRAK(projection="x"), "projection is one of"), (TRAK(reg=0), "reg is a number"),
        (GradDot(scale="bits"), "raw or nats"), (Similarity(kind="x"), "kind is one of"), (KNNShapley(k=0),
        "at least 1"),
        (BanzhafMSR(), "needs farm"), (RepresenterPoints(l2=0), "l2 is a number"), (GradDot(target="x"),
        "target is one of"),
        (GradDot(target="prediction"), "for regression"), (TRAK(n_models=3), "make_model and fit_spec"),
    ]  # fmt: skip
    for method, message in bad:
        with pytest.raises(AttributionError, match=message):
            method.fit(small.model, data.X_train, data.y_train).attribute(data.X_test, data.y_test)
    with pytest.raises(AttributionError, match="k is at least 1 and at most 300"):
        GradDot().fit(small.model, data.X_train, data.y_train).top_k(data.X_test, data.y_test, 301)
    with pytest.raises(AttributionError, match="kind is one of"):
        AttributionBenchmark.build("nope", data.X_train, data.y_train, small.make)
    with pytest.raises(AttributionError, match="training diverged"):
        fit_one(small.make, FitSpec(lr=1e30, epochs=3), small.x, small.y)
    with pytest.raises(AttributionError, match="training diverged for"):
        RetrainingFarm(small.make, FitSpec(lr=1e30, epochs=3), n_subsets=2).run(
            data.X_train, data.y_train, data.X_test, data.y_test
        )
    with pytest.raises(UnsupportedModel, match="the model has no parameters"):
        TorchModel(nn.ReLU())
    a = mislabel_detection(np.arange(6), np.arange(6) < 2)
    b = class_detection(np.eye(3), [0, 1, 2], [0, 1, 2], s=1)
    with pytest.raises(AttributionError, match="one metric"):
        paired_test(a, b)
    with pytest.raises(AttributionError, match="nothing to compare"):
        compare({})
