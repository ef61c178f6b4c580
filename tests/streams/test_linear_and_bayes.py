"""What the linear and Bayes models hold in common: real data, other column orders, plain Python instead of numba."""

import os
import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from assay.streams.contract import easy_stream, scores_by_row
from assay.streams.models.baselines import Majority
from assay.streams.models.fae import FAE
from assay.streams.models.gaussian_nb import MaskedGaussianNB
from assay.streams.models.logistic import MaskedLogistic
from assay.streams.models.nb3 import NB3
from assay.streams.models.ocds import OCDS
from assay.streams.models.oli2ds import OLI2DS
from assay.streams.models.olifl import OLIFL
from assay.streams.models.olvf import OLVF
from assay.streams.models.passive_aggressive import MaskedPA
from assay.streams.normalize import ZScore
from assay.streams.rows import RowBlock


def wdbc(seed):
    """Rows in the order of default_rng(42), half of the cells masked by default_rng(seed); malignant is 1."""
    X, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(42).permutation(len(y))
    X, y = X[order], 1 - y[order]
    rng = np.random.default_rng(seed)
    kept = rng.random(X.shape) < 0.5
    for t in np.flatnonzero(~kept.any(axis=1)):
        kept[t, rng.integers(X.shape[1])] = True
    return ZScore().transform_block(RowBlock.from_array(np.where(kept, X, np.nan))), y


@pytest.mark.parametrize(
    ("model", "auroc", "balanced"),
    [
        (MaskedLogistic(), 0.965, 0.905),
        (MaskedPA(), 0.965, 0.905),
        (OLVF(), 0.96, 0.90),
        (OLIFL(C=0.1, option=1), 0.94, 0.88),
        (OLI2DS(theta=8.0, C=0.01), 0.96, 0.90),
        (OCDS(), 0.95, 0.90),
        (MaskedGaussianNB(), 0.95, 0.88),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "score_one") else None,
)
def test_wdbc_on_every_mask(model, auroc, balanced):
    areas, accuracies = [], []
    for seed in range(5):
        block, y = wdbc(seed)
        fresh = model.clone()
        scores = fresh.collapse(fresh.run_block(block, y))
        areas.append(roc_auc_score(y, scores))
        accuracies.append(balanced_accuracy_score(y, scores > 0))
    assert min(areas) >= auroc
    assert min(accuracies) >= balanced
    assert max(areas) - min(areas) <= 0.04


MODELS = [
    (MaskedLogistic(), False),
    (MaskedLogistic("ftrl", l1=0.1), False),
    (MaskedPA(), False),
    (OLVF(C=1.0, C_bar=1.0, B=0.3, reg=0.01), False),
    (OLIFL(), False),
    (OLI2DS(B=0.5, reg=0.1), False),
    (OCDS(gamma=0.5), False),
    (NB3(fraction=0.5), True),
    (FAE(M=0.5), True),
    (FAE(M=0.5, vote="hard"), True),
    (MaskedGaussianNB(), False),
    (Majority(), False),
]


@pytest.mark.parametrize(("model", "presence"), MODELS, ids=lambda value: repr(value))
def test_order_and_names_of_columns_do_not_matter(model, presence):
    X, y = easy_stream(300, d=7, presence=presence)
    scores = model.clone().run_arrays(X, y)
    order = np.random.default_rng(5).permutation(7)
    other = model.clone().run_arrays(X[:, order], y, columns=[f"sensor {j}" for j in range(7)])
    np.testing.assert_allclose(other, scores, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("model", "presence"), MODELS, ids=lambda value: repr(value))
def test_paths_agree_where_features_first_appear_in_unlabelled_rows(model, presence):
    """Bit for bit: row by row, at once, and in blocks of 17 rows, half of the labels missing."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X, y = easy_stream(120, d=12, seed=seed, presence=presence)
        for j in range(12):
            X[: rng.integers(0, 40), j] = np.nan
        labels = np.where(rng.random(120) < 0.5, np.nan, y)
        scores = model.clone().run_arrays(X, labels)
        np.testing.assert_array_equal(scores_by_row(model.clone(), X, labels), scores)
        piecewise = model.clone()
        parts = [piecewise.run_arrays(X[i : i + 17], labels[i : i + 17]) for i in range(0, 120, 17)]
        np.testing.assert_array_equal(np.concatenate(parts), scores)


FALLBACK = """
import sys
import numpy as np
from assay.streams.contract import easy_stream
from assay.streams.jit import COMPILED
from assay.streams.models.baselines import LastLabel, Majority
from assay.streams.models.fae import FAE
from assay.streams.models.gaussian_nb import MaskedGaussianNB
from assay.streams.models.logistic import MaskedLogistic
from assay.streams.models.nb3 import NB3
from assay.streams.models.ocds import OCDS
from assay.streams.models.oli2ds import OLI2DS
from assay.streams.models.olifl import OLIFL
from assay.streams.models.olvf import OLVF
from assay.streams.models.one_vs_rest import OneVsRest
from assay.streams.models.passive_aggressive import MaskedPA
from assay.streams.models.thresholded import Thresholded

X, y = easy_stream(60)
models = [
    MaskedLogistic(), MaskedLogistic("ftrl"), MaskedPA(), OLVF(B=0.5), OLIFL(), OLI2DS(B=0.5), OCDS(gamma=0.5), NB3(),
    FAE(), FAE(vote="hard"), MaskedGaussianNB(), Majority(), LastLabel(), OneVsRest(MaskedPA()),
    Thresholded(MaskedPA(), least=5, window=20),
]
np.save(sys.argv[1], np.array([model.run_arrays(X, y) for model in models]))
print(COMPILED)
"""


def test_without_numba_the_scores_are_the_same(tmp_path):
    found = {}
    for jit in ("0", "1"):
        environment = {**os.environ, "ASSAY_STREAMS_JIT": jit}
        command = [sys.executable, "-W", "error", "-c", FALLBACK, str(tmp_path / f"{jit}.npy")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found[jit] = done.stdout.strip()
    assert found == {"0": "False", "1": "True"}
    np.testing.assert_allclose(np.load(tmp_path / "0.npy"), np.load(tmp_path / "1.npy"), rtol=0, atol=1e-12)
