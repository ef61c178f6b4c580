"""Laplace approximation of the last layer of any network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.training import TrainConfig
from assay.uncertainty.laplace import kronecker_laplace, warn_if_retuned
from assay.uncertainty.representations import GaussianLogits
from assay.uncertainty.transforms_torch.base import Network, TorchMethod, ce_loss, last_layer_inputs, linears


class LastLayerLaplace(TorchMethod):
    """A normal posterior over the last layer's weights, Kronecker-factored (Daxberger et al., NeurIPS 2021).

    The prior precision is the one of largest evidence on 100 points in 10^-4 ... 10^4. Predictions are normal logits;
    their mean-field (probit) probabilities are `mean`.

    Parameters
    ----------
    network, config, batch_size, seed, standardize, device
        As in `TorchMethod`.

    Warns
    -----
    PriorRetuned
        If that precision is far from ``rows x weight_decay``, with which the weights were fitted.
    """

    def __init__(
        self, network: Network = None, *, config: TrainConfig | None = None, batch_size: int = 64, seed: int = 0,
        standardize: bool = True, device: str = "cpu",
    ) -> None:  # fmt: skip
        super().__init__(
            network, config=config, batch_size=batch_size, seed=seed, standardize=standardize, device=device
        )

    def _fit(self, x: Tensor, t: Tensor) -> None:
        seed = self._member_seed(0)
        self.model_ = self._network(seed)
        self._train(self.model_, ce_loss, x, t, seed)
        features, logits = self._features(x)
        found = linears(self.model_)
        layer: Any = found[-1][2] if found else self.model_
        weight = layer.weight.detach().double().numpy(force=True)
        bias = np.zeros(len(weight)) if layer.bias is None else layer.bias.detach().double().numpy(force=True)
        weights = np.concatenate([weight, bias[:, None]], axis=1)
        self.posterior_ = kronecker_laplace(features, logits, t.double().numpy(force=True), weights)
        warn_if_retuned(len(x) * self._config(seed).weight_decay, self.posterior_.delta)

    def _features(self, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
        self.model_.eval()
        features, logits = [], []
        with torch.no_grad(), last_layer_inputs(self.model_) as kept:
            for part in x.split(4096):
                logits.append(self.model_(part).double().numpy(force=True))
                features.append(kept[0].double().numpy(force=True))
        phi = np.concatenate(features)
        return np.concatenate([phi, np.ones((len(phi), 1))], axis=1), np.concatenate(logits)

    def _predict(self, x: Tensor) -> GaussianLogits:
        features, logits = self._features(x)
        return GaussianLogits(logits, self.posterior_.logit_variance(features))
