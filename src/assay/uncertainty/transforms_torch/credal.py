"""CreRL: a credal set of networks that are nearly as likely as the best one (credal relative likelihood)."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor, nn

from assay.training import Progress, TrainConfig
from assay.uncertainty.errors import MemberDropped, UncertaintyError
from assay.uncertainty.representations import Intervals
from assay.uncertainty.transforms_torch.base import Network, TorchMethod, ce_loss, linears, outputs, probabilities


class CredalRelativeLikelihood(TorchMethod):
    """Probability intervals from members of bounded relative likelihood.

    Member 0 is trained to the end and sets the level ``L0``, its mean train log-likelihood. Member j starts with a
    large bias towards class ``j mod K`` and stops as soon as ``exp(LL_j - L0) >= tau_j``, checked each epoch, ``tau_j``
    evenly spaced from alpha to 1 (1 left out). Intervals are the members' smallest and largest probabilities, made
    reachable.

    Parameters
    ----------
    alpha : float
        In (0, 1]; smaller sets wider.
    n : int
        Members.
    bias : float
        At the start, on the class of the member.
    max_epochs : int, optional
        Members that have not reached their goal by then are dropped with a warning; default: three times those of
        member 0.

    Attributes
    ----------
    relative_likelihoods_, goals_ : float64[members]
        Of the members that are kept.

    Warns
    -----
    MemberDropped
    """

    def __init__(
        self,
        network: Network = None,
        *,
        alpha: float = 0.8,
        n: int = 10,
        bias: float = 100.0,
        max_epochs: int | None = None,
        config: TrainConfig | None = None,
        batch_size: int = 64,
        seed: int = 0,
        standardize: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            network, config=config, batch_size=batch_size, seed=seed, standardize=standardize, device=device
        )
        self.alpha, self.n, self.bias, self.max_epochs = alpha, n, bias, max_epochs

    def _fit(self, x: Tensor, t: Tensor) -> None:
        if not 0 < self.alpha <= 1 or self.n < 2:
            raise UncertaintyError(f"alpha lies in (0, 1] and n is at least 2, not {self.alpha} and {self.n}")
        first = self._network(self._member_seed(0))
        config = self._config(self._member_seed(0))
        self._train(first, ce_loss, x, t, self._member_seed(0))
        best = self._log_likelihood(first, x, t)
        self.models_, self.relative_likelihoods_, self.goals_ = [first], [1.0], [1.0]
        taus = np.linspace(self.alpha, 1, self.n, endpoint=False)[: self.n - 1]
        budget = self.max_epochs or 3 * config.epochs
        for j in range(1, self.n):
            goal = float(taus[j - 1])
            model = self._network(self._member_seed(j))
            favoured = j % t.shape[1]
            head = linears(model)[-1][2]
            if head.bias is None:
                raise UncertaintyError("the last linear layer needs a bias, on which the members start apart")
            with torch.no_grad():
                head.bias[favoured] += self.bias
            reached = [0.0]

            def stop(
                _progress: Progress, model: nn.Module = model, goal: float = goal, reached: list[float] = reached
            ) -> bool:
                reached[0] = float(np.exp(min(self._log_likelihood(model, x, t) - best, 0.0)))
                return reached[0] >= goal

            # A rate that stays up: a schedule would end where the member still has its way to go.
            longer = self._config(self._member_seed(j), epochs=budget, schedule="constant")
            self._train(model, ce_loss, x, t, self._member_seed(j), config=longer, callback=stop)
            if reached[0] < goal:
                warnings.warn(
                    f"member {j} (towards class {favoured}) reached a relative likelihood of {reached[0]:.3g} in "
                    f"{budget} epochs, its goal is {goal:.3g}; it is left out",
                    MemberDropped,
                    stacklevel=2,
                )
                continue
            self.models_.append(model)
            self.relative_likelihoods_.append(reached[0])
            self.goals_.append(goal)

    def _log_likelihood(self, model: nn.Module, x: Tensor, t: Tensor) -> float:
        logits = outputs(model, x)
        return float((t * torch.log_softmax(logits.double(), -1)).sum(-1).mean())

    def _predict(self, x: Tensor) -> Intervals:
        p = np.stack([probabilities(outputs(m, x)) for m in self.models_])
        return Intervals(p.min(0), p.max(0)).reachable()
