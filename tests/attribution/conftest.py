"""Shared by the tests of the field: the recipe of the published figures, trained once."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from assay.attribution import FitSpec, ModelSpec, RetrainingFarm, as_tensors, fit_one, load_digits_split


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def digits():
    """Digits, 1437 rows for training and 360 for the test; MLP 64-64-10, 20 epochs of SGD; 50 retrained models."""
    torch.set_num_threads(1)
    data = load_digits_split()
    make, spec = ModelSpec.of("mlp", inputs=64, outputs=10), FitSpec()
    x, y = as_tensors(data.X_train, data.y_train)
    model, _ = fit_one(make, spec, x, y)
    truth = RetrainingFarm(make, spec, n_subsets=50).run(data.X_train, data.y_train, data.X_test, data.y_test)
    return SimpleNamespace(data=data, make=make, spec=spec, x=x, y=y, model=model, truth=truth)


@pytest.fixture(scope="session")
def small():
    """300 digits and a network of 26 x 10 weights, with checkpoints; 40 test rows."""
    torch.set_num_threads(1)
    data = load_digits_split(train=300, test=40)
    make, spec = ModelSpec.of("mlp", inputs=64, outputs=10, hidden=(16,)), FitSpec(epochs=15)
    x, y = as_tensors(data.X_train, data.y_train)
    model, states = fit_one(make, spec, x, y, checkpoints=[5, 10, 15])
    return SimpleNamespace(data=data, make=make, spec=spec, x=x, y=y, model=model, states=states)


@pytest.fixture
def rng():
    return np.random.default_rng(0)
