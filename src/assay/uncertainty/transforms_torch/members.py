"""Ensembles, whole and partly shared: deep ensembles, BatchEnsemble, Masksembles, sub-ensembles."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.training import TrainConfig, reset_parameters, seeded, train
from assay.uncertainty.errors import UncertaintyError
from assay.uncertainty.representations import Sample
from assay.uncertainty.transforms_torch.base import (
    Network,
    TorchMethod,
    ce_loss,
    cross_entropy,
    linears,
    outputs,
    probabilities,
    replace_layers,
)
from assay.uncertainty.transforms_torch.layers import BatchEnsembleLayer, Layer, MaskedLayer, channels
from assay.uncertainty.transforms_torch.stacked import MemberBatches, Stacked, can_stack, stacked_cross_entropy


class DeepEnsemble(TorchMethod):
    """Members that differ in initial weights and order of the data (Lakshminarayanan, Pritzel and Blundell, NeurIPS
    2017).

    Parameters
    ----------
    network, config, batch_size, seed, standardize, device
        As in `TorchMethod`.
    n : int
        Members.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from assay.training import TrainConfig
    >>> X, y = load_wine(return_X_y=True)
    >>> rep = DeepEnsemble(n=3, config=TrainConfig(epochs=15, lr=0.01)).fit(X[::2], y[::2]).predict(X[1::2])
    >>> rep, bool((rep.predict() == y[1::2]).mean() > 0.9)
    (Sample(batch [89], 3 members, 3 classes), True)
    """

    def __init__(
        self,
        network: Network = None,
        *,
        n: int = 10,
        config: TrainConfig | None = None,
        batch_size: int = 64,
        seed: int = 0,
        standardize: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            network, config=config, batch_size=batch_size, seed=seed, standardize=standardize, device=device
        )
        self.n = n

    def _fit(self, x: Tensor, t: Tensor) -> None:
        models = [self._network(self._member_seed(j)) for j in range(self.n)]
        self.models_ = train_members(self, models, [self._member_seed(j) for j in range(self.n)], x, t)

    def _predict(self, x: Tensor) -> Sample:
        return Sample(np.stack([probabilities(outputs(m, x)) for m in self.models_], axis=-2))


def train_members(
    method: TorchMethod, models: list[nn.Module], seeds: list[int], x: Tensor, t: Tensor, names: set[str] | None = None
) -> list[nn.Module]:  # fmt: skip
    """Train networks of one architecture, each with its own seed: side by side where that is possible, else in turn.

    Parameters
    ----------
    names : set of str, optional
        Parameters to train; default: all.
    """
    if can_stack(models):
        stack = Stacked(models, names).to(x.device)
        batches = MemberBatches(seeds, min(method.batch_size, len(x)), x, t)
        train(stack, stacked_cross_entropy, batches, method._config(seeds[0]))
        return stack.members()
    for model, seed in zip(models, seeds, strict=True):
        own = None if names is None else [p for name, p in model.named_parameters() if name in names]
        method._train(model, ce_loss, x, t, seed, parameters=own)
    return models


class SubEnsemble(TorchMethod):
    """One trunk, several heads: the last ``layers`` linear layers are drawn and trained anew (Valdenegro-Toro, 2019).

    Parameters
    ----------
    n : int
        Heads.
    layers : int
        Linear layers of a head. With 1 the heads solve the same convex problem and end up alike.
    """

    def __init__(
        self,
        network: Network = None,
        *,
        n: int = 10,
        layers: int = 2,
        config: TrainConfig | None = None,
        batch_size: int = 64,
        seed: int = 0,
        standardize: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            network, config=config, batch_size=batch_size, seed=seed, standardize=standardize, device=device
        )
        self.n, self.layers = n, layers

    def _fit(self, x: Tensor, t: Tensor) -> None:
        trunk = self._network(self._member_seed(0))
        self._train(trunk, ce_loss, x, t, self._member_seed(0))
        found = len(linears(trunk))
        if not 1 <= self.layers <= found:
            raise UncertaintyError(f"layers is 1 ... {found} for this network, not {self.layers}")
        models, names = [], set()
        for j in range(1, self.n):
            model = copy.deepcopy(trunk)
            heads = [layer for _, _, layer in linears(model)[-self.layers :]]
            for i, layer in enumerate(heads):
                reset_parameters(layer, self._member_seed(j) + i)
            own = {id(p) for layer in heads for p in layer.parameters()}
            names = {name for name, p in model.named_parameters() if id(p) in own}
            models.append(model)
        seeds = [self._member_seed(j) for j in range(1, self.n)]
        self.models_ = [trunk, *(train_members(self, models, seeds, x, t, names) if models else [])]

    def _predict(self, x: Tensor) -> Sample:
        return Sample(np.stack([probabilities(outputs(m, x)) for m in self.models_], axis=-2))


class _Tiled(TorchMethod):
    """Methods whose one network holds all members: the batch is repeated once a member."""

    n: int

    def _tile(self, x: Tensor) -> Tensor:
        return x.repeat(self.n, *([1] * (x.ndim - 1)))

    def _forward(self, model: nn.Module, x: Tensor) -> Tensor:
        return model(self._tile(x))

    def _tiled_loss(self, model: nn.Module, batch: tuple[Tensor, ...], _step: int) -> Tensor:
        return cross_entropy(model(self._tile(batch[0])), self._tile(batch[1]))

    def _predict(self, x: Tensor) -> Sample:
        self.model_.eval()
        parts = [probabilities(self.model_(self._tile(p))).reshape(self.n, len(p), -1) for p in x.split(2048)]
        return Sample(np.concatenate(parts, axis=1), axis=0)

    model_: nn.Module


class BatchEnsemble(_Tiled):
    """Members share their matrices and differ by fast weights of rank one.

    Parameters
    ----------
    n : int
    std : float
        Fast weights start at N(1, std^2).
    fast_rate : float
        Factor of their learning rate.
    """

    def __init__(
        self,
        network: Network = None,
        *,
        n: int = 10,
        std: float = 0.5,
        fast_rate: float = 0.25,
        config: TrainConfig | None = None,
        batch_size: int = 64,
        seed: int = 0,
        standardize: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            network, config=config, batch_size=batch_size, seed=seed, standardize=standardize, device=device
        )
        self.n, self.std, self.fast_rate = n, std, fast_rate

    def _fit(self, x: Tensor, t: Tensor) -> None:
        seed = self._member_seed(0)
        base = self._network(seed)
        change: Any = lambda layer, _i, _n: BatchEnsembleLayer(layer, self.n, self.std)  # noqa: E731
        self.model_ = seeded(seed, lambda: replace_layers(base, change)).to(x.device)
        fast = [p for name, p in self.model_.named_parameters() if name.rsplit(".", 1)[-1] in ("r", "s")]
        ids = {id(p) for p in fast}
        groups = [
            {"params": [p for p in self.model_.parameters() if id(p) not in ids]},
            {"params": fast, "lr_scale": self.fast_rate, "weight_decay": 0.0},
        ]
        self._train(self.model_, self._tiled_loss, x, t, seed, parameters=groups)


def member_masks(channels: int, n: int, scale: float, rng: np.random.Generator) -> np.ndarray:
    """Masks ``(n, channels)`` with an equal number of ones each, which overlap less the larger the scale (Durasov et
    al., CVPR 2021).

    ``ones`` of ``round(ones * scale)`` positions are drawn for each mask, and positions that no mask uses are left out.
    The number of ones is the one for which ``channels`` positions are expected to stay, then drawn again until they do.

    Examples
    --------
    >>> masks = member_masks(32, 4, 2.0, np.random.default_rng(0))
    >>> masks.shape, bool((masks.max(0) == 1).all()), bool(np.ptp(masks.sum(1)) <= 1)
    ((4, 32), True, True)
    """
    if not scale >= 1 or n < 1:
        raise UncertaintyError(f"scale is at least 1 and n at least 1, not {scale} and {n}")
    expected = scale * (1 - (1 - 1 / scale) ** n) if scale > 1 else 1.0
    ones = max(1, round(channels / expected))
    closest = None
    for _ in range(200):
        positions = max(ones, round(ones * scale))
        masks = np.zeros((n, positions))
        for row in masks:
            row[rng.choice(positions, ones, replace=False)] = 1
        masks = masks[:, masks.max(0) > 0]
        if masks.shape[1] == channels:
            return masks
        if closest is None or abs(masks.shape[1] - channels) < abs(closest.shape[1] - channels):
            closest = masks
    assert closest is not None
    if closest.shape[1] > channels:  # leave out the columns that the fewest masks use
        keep = np.sort(np.argsort(-closest.sum(0), kind="stable")[:channels])
        return closest[:, keep]
    extra = np.zeros((n, channels - closest.shape[1]))
    extra[np.arange(extra.shape[1]) % n, np.arange(extra.shape[1])] = 1
    return np.concatenate([closest, extra], axis=1)


class Masksembles(_Tiled):
    """Members are fixed masks of the hidden units, and of the channels before convolutions.

    Parameters
    ----------
    n : int
    scale : float
        1 makes all masks alike; the larger, the less they overlap.
    """

    def __init__(
        self,
        network: Network = None,
        *,
        n: int = 4,
        scale: float = 2.0,
        config: TrainConfig | None = None,
        batch_size: int = 64,
        seed: int = 0,
        standardize: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            network, config=config, batch_size=batch_size, seed=seed, standardize=standardize, device=device
        )
        self.n, self.scale = n, scale

    def _fit(self, x: Tensor, t: Tensor) -> None:
        seed = self._member_seed(0)
        rng = np.random.default_rng(seed)

        def change(layer: Layer, i: int, _n: int) -> nn.Module | None:
            if i == 0:
                return None
            masks = member_masks(channels(layer)[0], self.n, self.scale, rng)
            return MaskedLayer(layer, torch.tensor(masks, dtype=torch.float32))

        self.model_ = replace_layers(self._network(seed), change).to(x.device)
        self._train(self.model_, self._tiled_loss, x, t, seed)
