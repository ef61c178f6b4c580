"""Networks that are drawn: MC-Dropout, DropConnect, mean-field posteriors, SWAG.

A pass is one network for all rows: its masks (weights) depend on ``(seed, pass, layer)``, so predictions do not change
with the size of a batch. During training every row has masks of its own, as usual.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.training import TrainConfig, seeded
from assay.uncertainty.representations import Sample
from assay.uncertainty.transforms_torch.base import (
    Network,
    TorchMethod,
    ce_loss,
    cross_entropy,
    outputs,
    probabilities,
    replace_layers,
)
from assay.uncertainty.transforms_torch.layers import (
    BayesianLayer,
    Drawn,
    DropConnectLayer,
    Layer,
    SampledDropout,
)


class _Passes(TorchMethod):
    """Methods that predict by drawing networks."""

    passes: int
    model_: nn.Module

    def _prepare(self, model: nn.Module) -> nn.Module:
        for i, layer in enumerate(m for m in model.modules() if isinstance(m, Drawn)):
            layer.place = i
        return model

    def _predict(self, x: Tensor) -> Sample:
        layers = [m for m in self.model_.modules() if isinstance(m, Drawn)]
        drawn = []
        for j in range(self.passes):
            for layer in layers:
                layer.draw = self._member_seed(10_000 + j)
            drawn.append(probabilities(outputs(self.model_, x)))
        for layer in layers:
            layer.draw = None
        return Sample(np.stack(drawn, axis=-2))


class MCDropout(_Passes):
    """Dropout before every layer but the first, kept on when predicting (Gal and Ghahramani, ICML 2016).

    Parameters
    ----------
    p : float
        Before linear layers.
    conv_p : float
        Of whole channels, before convolutions; 0 leaves them out, as `probly` does.
    passes : int

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from assay.training import TrainConfig
    >>> X, y = load_wine(return_X_y=True)
    >>> method = MCDropout(passes=20, config=TrainConfig(epochs=30, lr=0.01)).fit(X[::2], y[::2])
    >>> whole = method.predict(X[1::2])
    >>> # no effect of the batch
    >>> bool(np.allclose(method.predict(X[1:21:2]).probs, whole.probs[:10], atol=1e-6))
    True
    """

    def __init__(
        self,
        network: Network = None,
        *,
        p: float = 0.5,
        conv_p: float = 0.0,
        passes: int = 100,
        config: TrainConfig | None = None,
        batch_size: int = 64,
        seed: int = 0,
        standardize: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            network, config=config, batch_size=batch_size, seed=seed, standardize=standardize, device=device
        )
        self.p, self.conv_p, self.passes = p, conv_p, passes

    def _fit(self, x: Tensor, t: Tensor) -> None:
        def change(layer: Layer, i: int, _n: int) -> nn.Module | None:
            linear = isinstance(layer, nn.Linear)
            p = self.p if linear else self.conv_p
            return nn.Sequential(SampledDropout(p, not linear), layer) if i and p > 0 else None

        seed = self._member_seed(0)
        self.model_ = self._prepare(replace_layers(self._network(seed), change))
        self._train(self.model_, ce_loss, x, t, seed)


class DropConnect(_Passes):
    """Dropped weights in every layer but the first, kept on when predicting (Mobiny et al., 2021).

    Parameters
    ----------
    p : float
        In linear layers.
    conv_p : float
        In convolutions; 0 leaves them out.
    passes : int
    """

    def __init__(
        self,
        network: Network = None,
        *,
        p: float = 0.5,
        conv_p: float = 0.0,
        passes: int = 100,
        config: TrainConfig | None = None,
        batch_size: int = 64,
        seed: int = 0,
        standardize: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            network, config=config, batch_size=batch_size, seed=seed, standardize=standardize, device=device
        )
        self.p, self.conv_p, self.passes = p, conv_p, passes

    def _fit(self, x: Tensor, t: Tensor) -> None:
        seed = self._member_seed(0)

        def change(layer: Layer, i: int, _n: int) -> nn.Module | None:
            p = self.p if isinstance(layer, nn.Linear) else self.conv_p
            return DropConnectLayer(layer, p) if i and p > 0 else None

        self.model_ = self._prepare(replace_layers(self._network(seed), change))
        self._train(self.model_, ce_loss, x, t, seed)


class MeanFieldNetwork(_Passes):
    """Bayes by backprop: independent normal posteriors of the weights of linear and convolutional layers (Blundell et
    al., ICML 2015).

    Parameters
    ----------
    posterior_std, prior_std : float
        Standard deviations at the start, and of the prior.
    passes : int
    kl_weight : float
        1 is the evidence lower bound.
    """

    def __init__(
        self,
        network: Network = None,
        *,
        posterior_std: float = 0.05,
        prior_std: float = 0.5,
        passes: int = 100,
        kl_weight: float = 1.0,
        config: TrainConfig | None = None,
        batch_size: int = 64,
        seed: int = 0,
        standardize: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            network, config=config, batch_size=batch_size, seed=seed, standardize=standardize, device=device
        )
        self.posterior_std, self.prior_std, self.passes, self.kl_weight = posterior_std, prior_std, passes, kl_weight

    def _fit(self, x: Tensor, t: Tensor) -> None:
        seed = self._member_seed(0)
        change: Any = lambda layer, _i, _n: BayesianLayer(layer, self.posterior_std, self.prior_std)  # noqa: E731
        model = self._prepare(replace_layers(self._network(seed), change)).to(x.device)
        bayesian = [m for m in model.modules() if isinstance(m, BayesianLayer)]

        def loss(net: nn.Module, batch: tuple[Tensor, ...], _step: int) -> Tensor:
            kl = sum((m.divergence() for m in bayesian), torch.zeros((), device=x.device))
            return cross_entropy(net(batch[0]), batch[1]) + self.kl_weight * kl / len(x)

        self.model_ = model
        self._train(model, loss, x, t, seed, config=self._config(seed, weight_decay=0.0))


class SWAG(TorchMethod):
    """A normal posterior from the path of SGD at a constant rate (Maddox et al., NeurIPS 2019).

    Parameters
    ----------
    swag_epochs : int
        Epochs after the usual training; the weights are recorded after each.
    swag_lr : float
    rank : int
        Latest deviations kept for the covariance of low rank.
    passes : int
        Networks drawn.
    scale : float
        0.5 is the paper's covariance: half diagonal, half of low rank.
    """

    def __init__(
        self,
        network: Network = None,
        *,
        swag_epochs: int = 20,
        swag_lr: float = 0.01,
        rank: int = 20,
        passes: int = 30,
        scale: float = 0.5,
        config: TrainConfig | None = None,
        batch_size: int = 64,
        seed: int = 0,
        standardize: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            network, config=config, batch_size=batch_size, seed=seed, standardize=standardize, device=device
        )
        self.swag_epochs, self.swag_lr, self.rank, self.passes, self.scale = swag_epochs, swag_lr, rank, passes, scale

    def _fit(self, x: Tensor, t: Tensor) -> None:
        seed = self._member_seed(0)
        model = self._network(seed)
        self._train(model, ce_loss, x, t, seed)
        records: list[Tensor] = []

        def record(_progress: Any) -> None:
            records.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())

        path = TrainConfig(
            epochs=self.swag_epochs, lr=self.swag_lr, optimizer="sgd", weight_decay=1e-4, seed=self._member_seed(1),
            device=self.device, clip_norm=5.0,
        )  # fmt: skip
        self._train(model, ce_loss, x, t, seed, config=path, callback=record)
        weights = torch.stack(records).double()
        self.mean_ = weights.mean(0)
        self.diagonal_ = torch.clamp((weights**2).mean(0) - self.mean_**2, min=0)
        # Deviations from the running mean, the latest ones.
        running = (
            weights.cumsum(0) / torch.arange(1, len(weights) + 1, dtype=torch.float64, device=weights.device)[:, None]
        )
        self.deviations_ = (weights - running)[-self.rank :]
        self.model_, self.inputs_ = model, x

    def _predict(self, x: Tensor) -> Sample:
        model = copy.deepcopy(self.model_)
        drawn = []
        k = len(self.deviations_)
        for j in range(self.passes):
            g = torch.Generator().manual_seed(self._member_seed(10_000 + j))
            z1 = torch.randn(len(self.mean_), generator=g, dtype=torch.float64).to(self.mean_)
            z2 = torch.randn(k, generator=g, dtype=torch.float64).to(self.mean_)
            low_rank = z2 @ self.deviations_ / math.sqrt(max(k - 1, 1))
            step = math.sqrt(self.scale) * (torch.sqrt(self.diagonal_) * z1 + low_rank)
            nn.utils.vector_to_parameters((self.mean_ + step).float(), model.parameters())
            self._refresh(model)
            drawn.append(probabilities(outputs(model, x)))
        return Sample(np.stack(drawn, axis=-2))

    def _refresh(self, model: nn.Module) -> None:
        """Statistics of batch normalisation belong to the weights: taken again from the training rows."""
        norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        if not norms:
            return
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
        with torch.no_grad():
            seeded(0, lambda: [model(part) for part in self.inputs_.split(1024)])
        model.eval()
