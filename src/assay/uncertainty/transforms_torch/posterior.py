"""Posterior networks: evidence from the density of a latent space (Charpentier, Zuegner and Guennemann, NeurIPS
2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from assay.training import TrainConfig, seeded
from assay.uncertainty.representations import Dirichlet
from assay.uncertainty.transforms_torch.base import Network, TorchMethod, outputs


class RadialFlows(nn.Module):
    """A stack of radial flows a class on one latent space (Rezende and Mohamed, ICML 2015, eq. 14).

    Parameters
    ----------
    n_classes, dim, n_flows : int
    """

    def __init__(self, n_classes: int, dim: int, n_flows: int) -> None:
        super().__init__()
        self.dim = dim
        self.center = nn.Parameter(torch.randn(n_flows, n_classes, dim) / math.sqrt(dim))
        self.alpha = nn.Parameter(torch.rand(n_flows, n_classes) - 0.5)
        self.beta = nn.Parameter(torch.rand(n_flows, n_classes) - 0.5)

    def forward(self, z: Tensor) -> Tensor:
        """Log density of each class at ``z (n, dim)``: ``(n, K)``."""
        x = z[:, None].expand(-1, self.center.shape[1], -1)
        log_det = z.new_zeros(x.shape[:2])
        for center, a, b in zip(self.center, self.alpha, self.beta, strict=True):
            alpha = nn.functional.softplus(a)
            beta = -alpha + nn.functional.softplus(b)  # invertible: beta >= -alpha
            difference = x - center
            r = difference.norm(dim=-1)
            h = 1 / (alpha + r)
            bh = beta * h
            x = x + bh[..., None] * difference
            log_det = log_det + (self.dim - 1) * torch.log1p(bh) + torch.log1p(bh - beta * r * h**2)
        return -0.5 * (x**2).sum(-1) - 0.5 * self.dim * math.log(2 * math.pi) + log_det


def expected_cross_entropy(alpha: Tensor, target: Tensor) -> Tensor:
    """``E_Dirichlet[-log p_y]``, a value a row."""
    return (target * (torch.digamma(alpha.sum(-1, keepdim=True)) - torch.digamma(alpha))).sum(-1)


def dirichlet_entropy(alpha: Tensor) -> Tensor:
    """Differential entropy, a value a row."""
    a0, k = alpha.sum(-1), alpha.shape[-1]
    log_beta = torch.lgamma(alpha).sum(-1) - torch.lgamma(a0)
    return log_beta + (a0 - k) * torch.digamma(a0) - ((alpha - 1) * torch.digamma(alpha)).sum(-1)


class _LatentDensities(nn.Module):
    """Encoder, batch normalisation of the latent, flows; gives ``log N_k + log density_k``."""

    def __init__(self, encoder: nn.Module, latent: int, flows: int, log_counts: Tensor) -> None:
        super().__init__()
        self.encoder, self.norm = encoder, nn.BatchNorm1d(latent)
        self.flows = RadialFlows(len(log_counts), latent, flows)
        self.register_buffer("log_counts", log_counts)

    def forward(self, x: Tensor) -> Tensor:
        """Log evidence ``(n, K)``."""
        return self.flows(self.norm(self.encoder(x))) + self.log_counts


class PosteriorNetwork(TorchMethod):
    """PostNet: ``alpha_k = 1 + N_k p(z | k)`` with a density of the latent z a class.

    Parameters
    ----------
    latent, flows : int
    entropy_weight : float
        Of the Dirichlet's entropy in the loss.
    """

    def __init__(
        self,
        network: Network = None,
        *,
        latent: int = 6,
        flows: int = 6,
        entropy_weight: float = 1e-5,
        config: TrainConfig | None = None,
        batch_size: int = 64,
        seed: int = 0,
        standardize: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            network, config=config, batch_size=batch_size, seed=seed, standardize=standardize, device=device
        )
        self.latent, self.flows, self.entropy_weight = latent, flows, entropy_weight

    def _fit(self, x: Tensor, t: Tensor) -> None:
        seed = self._member_seed(0)
        encoder = self._network(seed, self.latent)
        log_counts = torch.log(torch.clamp(t.sum(0), min=1e-6))
        self.model_ = seeded(seed, lambda: _LatentDensities(encoder, self.latent, self.flows, log_counts)).to(x.device)

        def loss(net: nn.Module, batch: tuple[Tensor, ...], _step: int) -> Tensor:
            alpha = 1 + torch.exp(torch.clamp(net(batch[0]), max=30))
            return (expected_cross_entropy(alpha, batch[1]) - self.entropy_weight * dirichlet_entropy(alpha)).mean()

        self._train(self.model_, loss, x, t, seed)

    def _predict(self, x: Tensor) -> Dirichlet:
        log_evidence = outputs(self.model_, x).double()
        return Dirichlet((1 + torch.exp(torch.clamp(log_evidence, max=30))).numpy(force=True))
