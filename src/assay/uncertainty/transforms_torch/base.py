"""What the torch methods share: networks, inputs, targets, training, and a way into any module's last layer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from assay.training import TrainConfig, TrainResult, reset_parameters, seeded, tensor_batches, train
from assay.uncertainty.errors import NotFitted, TargetShape, UncertaintyError
from assay.uncertainty.representations import Categorical
from assay.uncertainty.representations.base import row_names
from assay.uncertainty.simplex import as_probabilities
from assay.uncertainty.transforms_torch.layers import CONVOLUTIONS, Layer, Replacement

Network = nn.Module | Callable[[int, int], nn.Module] | None
DEFAULT = TrainConfig(epochs=60, lr=3e-3, optimizer="adamw", weight_decay=1e-4, schedule="cosine", clip_norm=5.0)


class MLP(nn.Sequential):
    """Linear layers with ReLU between them.

    Parameters
    ----------
    n_in, n_out : int
    hidden : tuple of int
    """

    def __init__(self, n_in: int, n_out: int, hidden: tuple[int, ...] = (64, 64)) -> None:
        sizes = [n_in, *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for a, b in pairwise(sizes):
            layers += [nn.Linear(a, b), nn.ReLU()]
        super().__init__(*layers, nn.Linear(sizes[-1], n_out))


class ResidualMLP(nn.Module):
    """A linear layer, residual blocks ``h + relu(W h)``, a linear head: distances survive where W is bounded (SNGP,
    DDU, DUQ)."""

    def __init__(self, n_in: int, n_out: int, width: int = 64, blocks: int = 2) -> None:
        super().__init__()
        self.inner = nn.Linear(n_in, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.head = nn.Linear(width, n_out)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        h = self.inner(x.flatten(1))
        for block in self.blocks:
            h = h + torch.relu(block(h))
        return self.head(h)


def linears(model: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    """All linear layers with their parents and names, in order of definition."""
    found = []
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear):
                found.append((parent, name, child))
    order = {id(m): i for i, m in enumerate(model.modules())}
    return sorted(found, key=lambda item: order[id(item[2])])


def replace_layers(model: nn.Module, make: Callable[[Layer, int, int], nn.Module | None]) -> nn.Module:
    """Put ``make(layer, i, n)`` in the place of each linear and convolutional layer where it is not None.

    Layers are numbered in the order of definition; a module that is used twice is replaced in both places by one.
    Returns the model, or what replaces it where it is such a layer itself.

    Raises
    ------
    UncertaintyError
        If the network has no such layer.
    """
    kinds = (nn.Linear, *CONVOLUTIONS)
    if isinstance(model, kinds):
        model = nn.Sequential(model)
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    layers: dict[int, Layer] = {}
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, kinds):
                places.setdefault(id(child), []).append((parent, name))
                layers[id(child)] = child
    if not layers:
        raise UncertaintyError(
            f"{type(model).__name__} has no nn.Linear or convolutional layer, so there is nothing to transform"
        )
    order = {id(m): i for i, m in enumerate(model.modules())}
    for i, key in enumerate(sorted(layers, key=order.__getitem__)):
        new = make(layers[key], i, len(layers))
        if new is not None:
            for parent, name in places[key]:
                setattr(parent, name, new)
    return model


@contextmanager
def last_layer_inputs(model: nn.Module) -> Iterator[list[Tensor]]:
    """Within the block, the list holds what went into the last linear layer at the latest call."""
    inner = {id(m) for layer in model.modules() if isinstance(layer, Replacement) for m in layer.children()}
    found = [m for m in model.modules() if isinstance(m, (nn.Linear, Replacement)) and id(m) not in inner]
    if not found:
        raise UncertaintyError(f"{type(model).__name__} has no nn.Linear layer to be its last")
    kept: list[Tensor] = []

    def keep(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        kept[:] = [args[0]]

    handle = found[-1].register_forward_pre_hook(keep)
    try:
        yield kept
    finally:
        handle.remove()


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy against distributions."""
    return -(target * torch.log_softmax(logits, -1)).sum(-1).mean()


class TorchMethod(BaseEstimator):
    """Base of the methods: ``fit(X, y)`` with labels ``(n)`` or distributions ``(n, K)``, ``predict(X)`` to a
    representation.

    Parameters
    ----------
    network : nn.Module, callable or None
        A module that maps ``(n, ...)`` to ``(n, K)`` logits (copied, its weights drawn anew unless ``pretrained``), a
        function ``(n_in, n_out) -> module``, or None for an `MLP`.
    config : TrainConfig, optional
        Its seed is replaced by ``seed``.
    batch_size : int
    seed : int
    standardize : bool
        Scale each column of a table by the training rows' mean and standard deviation.
    device : str
    """

    def __init__(
        self, network: Network = None, *, config: TrainConfig | None = None, batch_size: int = 64, seed: int = 0,
        standardize: bool = True, device: str = "cpu",
    ) -> None:  # fmt: skip
        self.network, self.config, self.batch_size = network, config, batch_size
        self.seed, self.standardize, self.device = seed, standardize, device

    _regression = False
    _default_network: Callable[[int, int], nn.Module] = MLP

    def fit(self, X: ArrayLike, y: ArrayLike) -> Any:
        """Train; returns self.

        Raises
        ------
        TargetShape
            If y has another number of rows, or is neither labels nor distributions.
        UncertaintyError
            If X holds NaN or infinity.
        """
        x = np.asarray(X, dtype=np.float32)
        if x.ndim < 2 or not len(x):
            raise UncertaintyError(f"X is an array (rows, ...), not of shape {x.shape}")
        if x.ndim == 2 and self.standardize:
            self.center_, spread = x.mean(0), x.std(0)
            self.scale_ = np.where(spread > 1e-8, spread, 1).astype(np.float32)
        self.n_features_in_ = int(np.prod(x.shape[1:]))
        target = self._targets(y, len(x))
        inputs = self._inputs(x)
        self.n_rows_ = len(inputs)
        self._fit(inputs, target)
        return self

    def predict(self, X: ArrayLike) -> Any:
        """The method's representation of each row."""
        if not hasattr(self, "n_rows_"):
            raise NotFitted(f"{type(self).__name__} is not fitted: call fit(X, y) first")
        with torch.no_grad():
            rep = self._predict(self._inputs(np.asarray(X, dtype=np.float32)))
        names = None if self._regression else self.classes_.tolist()
        return rep.named(names, row_names(X))

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Mean probabilities ``float64[n, K]``."""
        return np.asarray(self.predict(X).mean())

    def embed(self, X: ArrayLike) -> NDArray[np.float64]:
        """What goes into the last linear layer of the (first) network, ``float64[n, D]``: the features of BADGE."""
        if not hasattr(self, "n_rows_"):
            raise NotFitted(f"{type(self).__name__} is not fitted: call fit(X, y) first")
        model = self.models_[0] if hasattr(self, "models_") else self.model_
        model.eval()
        found = []
        with torch.no_grad(), last_layer_inputs(model) as kept:
            for part in self._inputs(np.asarray(X, dtype=np.float32)).split(4096):
                self._forward(model, part)
                found.append(kept[0][: len(part)].flatten(1).double().numpy(force=True))
        return np.concatenate(found)

    def _forward(self, model: nn.Module, x: Tensor) -> Tensor:
        return model(x)

    def _fit(self, x: Tensor, t: Tensor) -> None:
        raise UncertaintyError(f"{type(self).__name__} is a base class")  # pragma: no cover

    def _predict(self, x: Tensor) -> Any:
        raise UncertaintyError(f"{type(self).__name__} is a base class")  # pragma: no cover

    def _inputs(self, x: NDArray[np.float32]) -> Tensor:
        if not np.isfinite(x).all():
            raise UncertaintyError(
                f"row {int(np.argwhere(~np.isfinite(x))[0, 0])} of X holds NaN or infinity; impute it first"
            )
        if hasattr(self, "center_") and x.ndim == 2:
            x = (x - self.center_) / self.scale_
        return torch.from_numpy(np.ascontiguousarray(x)).to(self.device if self.device != "auto" else "cpu")

    def _targets(self, y: ArrayLike, n: int) -> Tensor:
        values = np.asarray(y)
        if len(values) != n:
            raise TargetShape(f"{n} rows and {len(values)} targets")
        if self._regression:
            if values.ndim != 1:
                raise TargetShape(f"a number a row is needed, not targets of shape {values.shape}")
            goal = values.astype(np.float64)
            self.target_center_, self.target_scale_ = float(goal.mean()), float(goal.std()) or 1.0
            scaled = (goal - self.target_center_) / self.target_scale_
            return torch.tensor(scaled, dtype=torch.float32, device=self.device)
        if values.ndim == 2:
            target = as_probabilities(values, what="targets")
            self.classes_ = np.arange(values.shape[1])
        elif values.ndim == 1:
            self.classes_, codes = np.unique(values, return_inverse=True)
            target = np.eye(len(self.classes_))[codes]
        else:
            raise TargetShape(f"targets are labels (n) or distributions (n, K), not shape {values.shape}")
        return torch.tensor(target, dtype=torch.float32, device=self.device)

    def _network(self, seed: int, n_out: int | None = None) -> nn.Module:
        n_out = n_out or len(self.classes_)
        if isinstance(self.network, nn.Module):
            return reset_parameters(copy.deepcopy(self.network), seed).to(self.device)
        make = self.network or type(self)._default_network
        return seeded(seed, lambda: make(self.n_features_in_, n_out)).to(self.device)

    def _config(self, seed: int, **changes: Any) -> TrainConfig:
        return replace(self.config or DEFAULT, seed=seed, device=self.device, **changes)

    def _train(self, model: nn.Module, loss: Any, x: Tensor, t: Tensor, seed: int, **options: Any) -> TrainResult:
        config = options.pop("config", None) or self._config(seed)
        batches = tensor_batches(x, t, batch_size=min(self.batch_size, len(x)))
        return train(model, loss, batches, config, **options)

    def _member_seed(self, j: int) -> int:
        return int(np.random.SeedSequence([self.seed, j]).generate_state(1)[0] >> 1)


def outputs(model: nn.Module, x: Tensor, batch: int = 4096) -> Tensor:
    """What the model gives, in batches, without gradients."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model(part) for part in x.split(batch)])


def probabilities(logits: Tensor) -> NDArray[np.float64]:
    """Softmax in float64."""
    return np.asarray(torch.softmax(logits.double(), -1).numpy(force=True))


def ce_loss(model: nn.Module, batch: tuple[Tensor, ...], _step: int) -> Tensor:
    """The usual loss."""
    return cross_entropy(model(batch[0]), batch[1])


class TorchClassifier(TorchMethod):
    """A plain network: one softmax a row, the baseline of all others."""

    def _fit(self, x: Tensor, t: Tensor) -> None:
        self.model_ = self._network(self._member_seed(0))
        self._train(self.model_, ce_loss, x, t, self._member_seed(0))

    def _predict(self, x: Tensor) -> Categorical:
        return Categorical(probabilities(outputs(self.model_, x)))
