"""HetNet: label noise as a normal distribution over logits with a covariance of low rank (Collier et al., CVPR
2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from assay.training import TrainConfig
from assay.uncertainty.representations import Categorical
from assay.uncertainty.transforms_torch.base import Network, TorchMethod, outputs


class HetNet(TorchMethod):
    """``mean softmax((mu + V e + d * z) / temperature)`` over draws of e and z; mu, V (K x R) and d depend on the
    input.

    It models label noise, which is aleatoric; it has no epistemic uncertainty, and `Decomposition.get` falls back with
    a warning.

    Parameters
    ----------
    factors : int
        R.
    temperature : float
    draws : int
    """

    def __init__(
        self,
        network: Network = None,
        *,
        factors: int = 15,
        temperature: float = 0.9,
        draws: int = 100,
        config: TrainConfig | None = None,
        batch_size: int = 64,
        seed: int = 0,
        standardize: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            network, config=config, batch_size=batch_size, seed=seed, standardize=standardize, device=device
        )
        self.factors, self.temperature, self.draws = factors, temperature, draws

    def _log_mean(self, out: Tensor, k: int, generator: torch.Generator | None) -> Tensor:
        mu, diagonal, low_rank = out.split([k, k, k * self.factors], dim=-1)
        n, device = len(out), out.device
        if generator is None:
            e, z = torch.randn(self.draws, n, self.factors, device=device), torch.randn(self.draws, n, k, device=device)
        else:  # the same draws for every row: no effect of the batch
            e = torch.randn(self.draws, 1, self.factors, generator=generator).to(out).expand(-1, n, -1)
            z = torch.randn(self.draws, 1, k, generator=generator).to(out).expand(-1, n, -1)
        noise = torch.einsum("nkr,snr->snk", low_rank.reshape(n, k, self.factors), e)
        noise = noise + nn.functional.softplus(diagonal) * z
        logp = torch.log_softmax((mu + noise) / self.temperature, -1)
        return torch.logsumexp(logp, 0) - torch.log(torch.tensor(float(self.draws), device=device))

    def _fit(self, x: Tensor, t: Tensor) -> None:
        seed = self._member_seed(0)
        k = t.shape[1]

        def loss(net: nn.Module, batch: tuple[Tensor, ...], _step: int) -> Tensor:
            return -(batch[1] * self._log_mean(net(batch[0]), k, None)).sum(-1).mean()

        self.model_ = self._network(seed, k * (2 + self.factors))
        self._train(self.model_, loss, x, t, seed)

    def _predict(self, x: Tensor) -> Categorical:
        k = len(self.classes_)
        generator = torch.Generator().manual_seed(self._member_seed(1))
        logp = self._log_mean(outputs(self.model_, x).double(), k, generator)
        return Categorical(torch.softmax(logp, -1).numpy(force=True))
