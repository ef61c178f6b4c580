"""Evidential networks: the parameters of a second-order distribution from one pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from assay.training import TrainConfig
from assay.uncertainty.errors import UncertaintyError
from assay.uncertainty.representations import Dirichlet, NormalInverseGamma
from assay.uncertainty.transforms_torch.base import Network, TorchMethod, outputs


def dirichlet_to_uniform(alpha: Tensor) -> Tensor:
    """KL divergence of Dirichlet(alpha) to Dirichlet(1, ..., 1), a value a row."""
    a0 = alpha.sum(-1)
    k = alpha.shape[-1]
    value = torch.lgamma(a0) - torch.lgamma(alpha).sum(-1) - torch.lgamma(torch.tensor(float(k), device=alpha.device))
    return value + ((alpha - 1) * (torch.digamma(alpha) - torch.digamma(a0)[..., None])).sum(-1)


def evidence_loss(kind: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Expected loss under the Dirichlet, a value a row (Sensoy, Kaplan and Kandemir, 2018, eq. 3-5)."""

    def mse(alpha: Tensor, t: Tensor) -> Tensor:
        a0 = alpha.sum(-1, keepdim=True)
        p = alpha / a0
        return ((t - p) ** 2 + p * (1 - p) / (a0 + 1)).sum(-1)

    def log(alpha: Tensor, t: Tensor) -> Tensor:
        return (t * (torch.log(alpha.sum(-1, keepdim=True)) - torch.log(alpha))).sum(-1)

    def ce(alpha: Tensor, t: Tensor) -> Tensor:
        return (t * (torch.digamma(alpha.sum(-1, keepdim=True)) - torch.digamma(alpha))).sum(-1)

    losses = {"mse": mse, "log": log, "ce": ce}
    if kind not in losses:
        raise UncertaintyError(f"loss is one of {', '.join(losses)}, not {kind!r}")
    return losses[kind]


class EvidentialClassifier(TorchMethod):
    """A Dirichlet distribution from one pass, ``alpha = softplus(logits) + 1`` (Sensoy, Kaplan and Kandemir, NeurIPS
    2018).

    Parameters
    ----------
    loss : {"mse", "ce", "log"}
    kl_weight : float
        Of the divergence to the uniform Dirichlet once the evidence of the true class is taken out.
    anneal : int
        Epochs over which that weight rises from 0.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from assay.training import TrainConfig
    >>> X, y = load_wine(return_X_y=True)
    >>> rep = EvidentialClassifier(config=TrainConfig(epochs=40, lr=0.01)).fit(X[::2], y[::2]).predict(X[1::2])
    >>> bool((rep.alpha >= 1).all()), bool((rep.predict() == y[1::2]).mean() > 0.9)
    (True, True)
    """

    def __init__(
        self,
        network: Network = None,
        *,
        loss: str = "mse",
        kl_weight: float = 1.0,
        anneal: int = 100,
        config: TrainConfig | None = None,
        batch_size: int = 64,
        seed: int = 0,
        standardize: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            network, config=config, batch_size=batch_size, seed=seed, standardize=standardize, device=device
        )
        self.loss, self.kl_weight, self.anneal = loss, kl_weight, anneal

    def _fit(self, x: Tensor, t: Tensor) -> None:
        seed = self._member_seed(0)
        expected = evidence_loss(self.loss)
        per_epoch = -(-len(x) // min(self.batch_size, len(x)))

        def loss(net: nn.Module, batch: tuple[Tensor, ...], step: int) -> Tensor:
            alpha = nn.functional.softplus(net(batch[0])) + 1
            target = batch[1]
            weight = self.kl_weight * min(1.0, (step // per_epoch) / max(self.anneal, 1))
            misleading = target + (1 - target) * alpha
            return (expected(alpha, target) + weight * dirichlet_to_uniform(misleading)).mean()

        self.model_ = self._network(seed)
        self._train(self.model_, loss, x, t, seed)

    def _predict(self, x: Tensor) -> Dirichlet:
        logits = outputs(self.model_, x).double()
        return Dirichlet((nn.functional.softplus(logits) + 1).numpy(force=True))


class EvidentialRegressor(TorchMethod):
    """A normal-inverse-gamma distribution from one pass (Amini et al., NeurIPS 2020).

    Parameters
    ----------
    penalty : float
        Weight of ``|y - gamma| (2 nu + alpha)``, eq. 9.
    """

    _regression = True

    def __init__(
        self,
        network: Network = None,
        *,
        penalty: float = 0.01,
        config: TrainConfig | None = None,
        batch_size: int = 64,
        seed: int = 0,
        standardize: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            network, config=config, batch_size=batch_size, seed=seed, standardize=standardize, device=device
        )
        self.penalty = penalty

    @staticmethod
    def _parameters(out: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        gamma, nu, alpha, beta = out.unbind(-1)
        positive = nn.functional.softplus
        return gamma, positive(nu) + 1e-6, positive(alpha) + 1 + 1e-6, positive(beta) + 1e-6

    def _fit(self, x: Tensor, t: Tensor) -> None:
        seed = self._member_seed(0)

        def loss(net: nn.Module, batch: tuple[Tensor, ...], _step: int) -> Tensor:
            y = batch[1]
            gamma, nu, alpha, beta = self._parameters(net(batch[0]))
            omega = 2 * beta * (1 + nu)
            nll = (
                0.5 * torch.log(torch.pi / nu)
                - alpha * torch.log(omega)
                + (alpha + 0.5) * torch.log(nu * (y - gamma) ** 2 + omega)
            )
            nll = nll + torch.lgamma(alpha) - torch.lgamma(alpha + 0.5)
            return (nll + self.penalty * (y - gamma).abs() * (2 * nu + alpha)).mean()

        self.model_ = self._network(seed, 4)
        self._train(self.model_, loss, x, t, seed)

    def _predict(self, x: Tensor) -> NormalInverseGamma:
        gamma, nu, alpha, beta = (v.numpy(force=True) for v in self._parameters(outputs(self.model_, x).double()))
        s = self.target_scale_
        return NormalInverseGamma(np.asarray(gamma * s + self.target_center_), nu, alpha, beta * s * s)
