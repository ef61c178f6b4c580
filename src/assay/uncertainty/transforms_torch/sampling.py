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
    Replacement,
    TorchMethod,
    ce_loss,
    cross_entropy,
    outputs,
    probabilities,
    replace_linears,
)


class Drawn(nn.Module):
    """A layer with a state ``draw``: None for its mean, an integer for the network of that pass."""

    draw: int | None = None
    place: int = 0

    def _generator(self) -> torch.Generator:
        assert self.draw is not None
        return torch.Generator().manual_seed(int(np.random.SeedSequence([self.draw, self.place]).generate_state(1)[0]))


class SampledDropout(Drawn):
    """Dropout that can also draw one mask for a whole pass."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Masked and scaled input."""
        if self.training:
            return nn.functional.dropout(x, self.p, True)
        if self.draw is None:
            return x
        keep = torch.rand(x.shape[1:], generator=self._generator()) >= self.p
        return x * (keep.to(x) / (1 - self.p))


class DropConnectLinear(Drawn, Replacement):
    """A linear layer that drops weights (Wan et al., ICML 2013)."""

    def __init__(self, linear: nn.Linear, p: float) -> None:
        super().__init__()
        self.linear, self.p = linear, p

    def forward(self, x: Tensor) -> Tensor:
        """Linear map with dropped weights."""
        weight = self.linear.weight
        if self.training:
            weight = nn.functional.dropout(weight, self.p, True)
        elif self.draw is not None:
            weight = weight * (
                (torch.rand(weight.shape, generator=self._generator()) >= self.p).to(weight) / (1 - self.p)
            )
        return nn.functional.linear(x, weight, self.linear.bias)


class BayesianLinear(Drawn, Replacement):
    """Independent normal weights; training uses the local reparameterisation (Kingma, Salimans and Welling, 2015)."""

    def __init__(self, linear: nn.Linear, posterior_std: float, prior_std: float) -> None:
        super().__init__()
        rho = math.log(math.expm1(posterior_std))
        self.weight = nn.Parameter(linear.weight.detach().clone())
        self.weight_rho = nn.Parameter(torch.full_like(linear.weight, rho).detach())
        bias = torch.zeros(linear.out_features) if linear.bias is None else linear.bias.detach().clone()
        self.bias = nn.Parameter(bias)
        self.bias_rho = nn.Parameter(torch.full_like(bias, rho))
        self.prior_std = prior_std

    def forward(self, x: Tensor) -> Tensor:
        """A draw of the outputs (training) or outputs of a draw of the weights."""
        sw, sb = nn.functional.softplus(self.weight_rho), nn.functional.softplus(self.bias_rho)
        if self.training:
            mean = nn.functional.linear(x, self.weight, self.bias)
            var = nn.functional.linear(x**2, sw**2, sb**2)
            return mean + torch.sqrt(var + 1e-12) * torch.randn_like(mean)
        if self.draw is None:
            return nn.functional.linear(x, self.weight, self.bias)
        g = self._generator()
        weight = self.weight + sw * torch.randn(sw.shape, generator=g).to(sw)
        return nn.functional.linear(x, weight, self.bias + sb * torch.randn(sb.shape, generator=g).to(sb))

    def divergence(self) -> Tensor:
        """KL to the prior N(0, prior_std^2), in nats."""
        total = self.weight.new_zeros(())
        for mu, rho in ((self.weight, self.weight_rho), (self.bias, self.bias_rho)):
            s = nn.functional.softplus(rho)
            ratio = (s / self.prior_std) ** 2
            total = total + 0.5 * (ratio + (mu / self.prior_std) ** 2 - 1 - torch.log(ratio)).sum()
        return total


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
    """Dropout before every linear layer but the first, kept on when predicting (Gal and Ghahramani, ICML 2016).

    Parameters
    ----------
    p : float
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
        self.p, self.passes = p, passes

    def _fit(self, x: Tensor, t: Tensor) -> None:
        def change(layer: nn.Linear, i: int, _n: int) -> nn.Module | None:
            return nn.Sequential(SampledDropout(self.p), layer) if i else None

        seed = self._member_seed(0)
        self.model_ = self._prepare(replace_linears(self._network(seed), change))
        self._train(self.model_, ce_loss, x, t, seed)


class DropConnect(_Passes):
    """Dropped weights in every linear layer but the first, kept on when predicting (Mobiny et al., 2021).

    Parameters
    ----------
    p : float
    passes : int
    """

    def __init__(
        self,
        network: Network = None,
        *,
        p: float = 0.5,
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
        self.p, self.passes = p, passes

    def _fit(self, x: Tensor, t: Tensor) -> None:
        seed = self._member_seed(0)
        change: Any = lambda layer, i, _n: DropConnectLinear(layer, self.p) if i else None  # noqa: E731
        self.model_ = self._prepare(replace_linears(self._network(seed), change))
        self._train(self.model_, ce_loss, x, t, seed)


class MeanFieldNetwork(_Passes):
    """Bayes by backprop: independent normal posteriors of all weights (Blundell et al., ICML 2015).

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
        change: Any = lambda layer, _i, _n: BayesianLinear(layer, self.posterior_std, self.prior_std)  # noqa: E731
        model = self._prepare(replace_linears(self._network(seed), change)).to(x.device)
        bayesian = [m for m in model.modules() if isinstance(m, BayesianLinear)]

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
