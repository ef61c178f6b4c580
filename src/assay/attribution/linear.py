"""Linear models of scikit-learn as networks of 64-bit precision, so that every gradient method takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from assay.attribution.adapter import TorchModel
from assay.attribution.errors import AttributionError, UnsupportedModel


def from_sklearn(estimator: Any, *, n_train: int | None = None, **options: Any) -> TorchModel:
    """A fitted ``LinearRegression``, ``Ridge`` or ``LogisticRegression`` as one linear layer.

    The penalty of the estimator becomes that of the mean loss, ``l2 = alpha / N`` for ``Ridge`` (whose loss is the sum
    of squares, twice ours) and ``1 / (C N)`` for ``LogisticRegression``, once N is known.

    Raises
    ------
    UnsupportedModel
        For other estimators, and those that are not fitted; trees are for `LeafKernel`.
    """
    name = type(estimator).__name__
    if not hasattr(estimator, "coef_") or not hasattr(estimator, "intercept_"):
        tree = hasattr(estimator, "apply") or name.endswith(("Forest", "Boosting", "ForestClassifier"))
        hint = "; use LeafKernel for forests and boosted trees" if tree else ""
        raise UnsupportedModel(
            f"{name} is not a network and has no coef_ and intercept_ (is it fitted?), so it has no gradients{hint}"
        )
    coef = np.atleast_2d(np.asarray(estimator.coef_, dtype=np.float64))
    layer = nn.Linear(coef.shape[1], coef.shape[0], bias=bool(getattr(estimator, "fit_intercept", True)))
    layer = layer.double()
    with torch.no_grad():
        layer.weight.copy_(torch.as_tensor(coef))
        if layer.bias is not None:
            layer.bias.copy_(torch.as_tensor(np.atleast_1d(estimator.intercept_).astype(np.float64)))
    classes = getattr(estimator, "classes_", None)
    if classes is not None and not np.array_equal(classes, np.arange(len(classes))):
        raise UnsupportedModel(
            f"{name} was fitted on classes {list(classes)[:5]}; encode them as 0 to {len(classes) - 1} before fitting"
        )
    model = TorchModel(
        layer, task=options.get("task") or ("classification" if classes is not None else "regression"),
        target=options.get("target"), layers=options.get("layers"),
    )  # fmt: skip
    if n_train is not None:
        model.l2 = penalty(estimator, n_train)
    model.estimator = estimator  # type: ignore[attr-defined]
    return model


def penalty(estimator: Any, n_train: int) -> float:
    """The estimator's L2 penalty on the mean loss.

    Raises
    ------
    AttributionError
        If its penalty is not L2.
    """
    if hasattr(estimator, "l1_ratio") and getattr(estimator, "l1_ratio", None) not in (None, 0, 0.0):
        raise AttributionError(f"{type(estimator).__name__} has an L1 penalty, whose optimum has no smooth influence")
    if hasattr(estimator, "C"):
        return 1 / (float(estimator.C) * n_train) if np.isfinite(estimator.C) else 0.0
    if hasattr(estimator, "alpha"):
        return float(np.max(estimator.alpha)) / n_train
    return 0.0
