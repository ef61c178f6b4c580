"""One network, one pass: SNGP, DUQ and DDU, which keep distances between inputs and look at where a new one lies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.training import TrainConfig, seeded
from assay.uncertainty.density import ClassGaussians
from assay.uncertainty.representations import GaussianLogits, WithDensity
from assay.uncertainty.transforms_torch.base import (
    Network,
    ResidualMLP,
    TorchMethod,
    ce_loss,
    last_layer_inputs,
    linears,
    outputs,
    probabilities,
)
from assay.uncertainty.transforms_torch.layers import CONVOLUTIONS


class SpectralBound:
    """After each step, scales layers back to a largest singular value of at most ``bound``.

    Linear layers by their matrix; convolutions as the linear map on inputs of the size that they see, found by power
    iteration, which goes on from step to step (Gouk et al., 2021), not by their reshaped kernel.

    Parameters
    ----------
    model : nn.Module
    bound : float
    keep : nn.Module, optional
        A layer that is left alone.
    """

    def __init__(self, model: nn.Module, bound: float, keep: nn.Module | None = None) -> None:
        self.bound = bound
        self.layers = [layer for _, _, layer in linears(model) if layer is not keep]
        self.convolutions: list[Any] = [m for m in model.modules() if isinstance(m, CONVOLUTIONS) and m is not keep]
        self.vectors: dict[int, Tensor] = {}
        for layer in self.convolutions:
            layer.register_forward_pre_hook(self._see)

    def _see(self, layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        shape = (1, *args[0].shape[1:])
        if id(layer) not in self.vectors or self.vectors[id(layer)].shape != shape:
            g = torch.Generator().manual_seed(0)
            self.vectors[id(layer)] = torch.randn(shape, generator=g).to(args[0])

    def norm(self, layer: Any, iterations: int = 1) -> Tensor:
        """Largest singular value of a convolution, from below."""
        v = self.vectors[id(layer)]
        sigma = v.new_zeros(())
        with torch.enable_grad():
            for _ in range(iterations):
                v = (v / v.norm()).detach().requires_grad_()
                sigma = layer._conv_forward(v, layer.weight.detach(), None).norm()
                (v,) = torch.autograd.grad(sigma, v)
        self.vectors[id(layer)] = v.detach()
        return sigma.detach()

    def __call__(self, _model: nn.Module, step: int) -> None:
        """The projection; the first one iterates until the norms of the start are known."""
        with torch.no_grad():
            for layer in self.layers:
                norm = torch.linalg.matrix_norm(layer.weight, 2)
                layer.weight.mul_(torch.clamp(self.bound / norm, max=1.0))
            for conv in self.convolutions:
                norm = self.norm(conv, 30 if step <= 1 else 1)
                conv.weight.mul_(torch.clamp(self.bound / norm, max=1.0))


class RandomFeatures(nn.Module):
    """``sqrt(2 / D) cos(W h + b)``, fixed: random Fourier features of an RBF kernel (Rahimi and Recht, 2007).

    The kernel's length is ``sqrt(n_in)``: that is the norm of a layer-normalised h.
    """

    def __init__(self, n_in: int, n_features: int) -> None:
        super().__init__()
        self.register_buffer("w", torch.randn(n_features, n_in) / math.sqrt(n_in))
        self.register_buffer("b", 2 * math.pi * torch.rand(n_features))

    def forward(self, h: Tensor) -> Tensor:
        """Features ``(n, D)``."""
        w: Any = self.w
        b: Any = self.b
        return math.sqrt(2 / len(w)) * torch.cos(nn.functional.linear(h, w, b))


class _GaussianProcessHead(nn.Module):
    """A body, layer normalisation, random features and a linear map."""

    def __init__(self, body: nn.Module, width: int, n_features: int, n_out: int) -> None:
        super().__init__()
        self.body, self.norm = body, nn.LayerNorm(width, elementwise_affine=False)
        self.features = RandomFeatures(width, n_features)
        self.beta = nn.Linear(n_features, n_out, bias=False)
        nn.init.normal_(self.beta.weight, std=0.05)

    def phi(self, x: Tensor) -> Tensor:
        """Random features of the body's last hidden layer."""
        with last_layer_inputs(self.body) as kept:
            self.body(x)
            hidden = kept[0]
        return self.features(self.norm(hidden.flatten(1)))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.beta(self.phi(x))


class SNGP(TorchMethod):
    """Spectral-normalised neural Gaussian process (Liu et al., NeurIPS 2020).

    The last linear layer of the network gives way to a Gaussian process on random features; its covariance is the
    inverse of ``ridge I + sum p (1 - p) phi phi^T`` over the training rows, p the probability of the top class.

    Parameters
    ----------
    features : int
        Random features.
    norm : float
        Largest singular value of the hidden layers, linear and convolutional.
    ridge : float
    """

    _default_network = ResidualMLP

    def __init__(
        self,
        network: Network = None,
        *,
        features: int = 1024,
        norm: float = 6.0,
        ridge: float = 1.0,
        config: TrainConfig | None = None,
        batch_size: int = 64,
        seed: int = 0,
        standardize: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            network, config=config, batch_size=batch_size, seed=seed, standardize=standardize, device=device
        )
        self.features, self.norm, self.ridge = features, norm, ridge

    def _fit(self, x: Tensor, t: Tensor) -> None:
        seed = self._member_seed(0)
        body = self._network(seed)
        width = linears(body)[-1][2].in_features
        make = lambda: _GaussianProcessHead(body, width, self.features, t.shape[1])  # noqa: E731
        self.model_ = seeded(seed, make).to(x.device)
        self._train(
            self.model_, ce_loss, x, t, seed, after_step=SpectralBound(self.model_, self.norm, self.model_.beta),
        )  # fmt: skip
        precision = self.ridge * torch.eye(self.features, dtype=torch.float64, device=x.device)
        with torch.no_grad():
            for part in x.split(1024):
                phi = self.model_.phi(part).double()
                p = torch.softmax(self.model_.beta(phi.float()).double(), -1).amax(-1)
                precision += (phi * (p * (1 - p))[:, None]).T @ phi
        self.covariance_ = torch.cholesky_inverse(torch.linalg.cholesky(precision))

    def _predict(self, x: Tensor) -> GaussianLogits:
        self.model_.eval()
        means, variances = [], []
        for part in x.split(2048):
            phi = self.model_.phi(part).double()
            means.append(self.model_.beta(phi.float()).double())
            variances.append(((phi @ self.covariance_) * phi).sum(-1))
        mu = torch.cat(means).numpy(force=True)
        return GaussianLogits(mu, np.maximum(torch.cat(variances).numpy(force=True), 0)[:, None] * np.ones(mu.shape[1]))


class DDU(TorchMethod):
    """Deep deterministic uncertainty: a normal density a class on the features of a bounded network (Mukhoti et al.,
    CVPR 2023).

    Parameters
    ----------
    norm : float
        Largest singular value of the hidden layers, linear and convolutional.
    """

    _default_network = ResidualMLP

    def __init__(
        self,
        network: Network = None,
        *,
        norm: float = 3.0,
        config: TrainConfig | None = None,
        batch_size: int = 64,
        seed: int = 0,
        standardize: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            network, config=config, batch_size=batch_size, seed=seed, standardize=standardize, device=device
        )
        self.norm = norm

    def _fit(self, x: Tensor, t: Tensor) -> None:
        seed = self._member_seed(0)
        self.model_ = self._network(seed)
        head = linears(self.model_)[-1][2]
        self._train(self.model_, ce_loss, x, t, seed, after_step=SpectralBound(self.model_, self.norm, head))
        self.density_ = ClassGaussians().fit(self._hidden(x), t.double().numpy(force=True))

    def _hidden(self, x: Tensor) -> np.ndarray:
        self.model_.eval()
        found = []
        with torch.no_grad(), last_layer_inputs(self.model_) as kept:
            for part in x.split(4096):
                self.model_(part)
                found.append(kept[0].flatten(1).double().numpy(force=True))
        return np.concatenate(found)

    def _predict(self, x: Tensor) -> WithDensity:
        return WithDensity(probabilities(outputs(self.model_, x)), self.density_.log_density(self._hidden(x)))


class _Kernels(nn.Module):
    """Distances of an embedding to a moving centroid a class (DUQ, eq. 1-3)."""

    def __init__(self, body: nn.Module, width: int, n_classes: int, size: int, length: float, gamma: float) -> None:
        super().__init__()
        self.body, self.length, self.gamma = body, length, gamma
        self.w = nn.Parameter(torch.randn(size, n_classes, width) / math.sqrt(width))
        self.register_buffer("counts", torch.ones(n_classes) * 13)
        self.register_buffer("sums", torch.randn(size, n_classes) * 0.05 * 13)

    def hidden(self, x: Tensor) -> Tensor:
        """What goes into the body's last linear layer, ``(n, width)``."""
        with last_layer_inputs(self.body) as kept:
            self.body(x)
            return kept[0].flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """Kernel value of each class."""
        return torch.exp(-self.distances(self.hidden(x)) / (2 * self.length**2))

    def distances(self, h: Tensor) -> Tensor:
        """Mean squared distance of ``W_k h`` to the centroid e_k, ``(n, K)``.

        Written out, ``h' W'W h - 2 (W'e)' h + e'e``: the embeddings ``(n, size, K)`` are never made, of which two
        derivatives would be needed.
        """
        sums: Any = self.sums
        centroids = sums / self.counts
        size = len(self.w)
        gram = torch.einsum("skh,skg->khg", self.w, self.w)
        towards = torch.einsum("skh,sk->kh", self.w, centroids)
        squares = (torch.einsum("nh,khg->nkg", h, gram) * h[:, None]).sum(-1)
        total = squares - 2 * h @ towards.T + (centroids**2).sum(0)
        return total.clamp(min=0) / size

    def move(self, x: Tensor, t: Tensor) -> None:
        """Moving averages of class counts and embedding sums."""
        with torch.no_grad():
            counts: Any = self.counts
            sums: Any = self.sums
            counts.mul_(self.gamma).add_((1 - self.gamma) * t.sum(0))
            by_class = t.T @ self.hidden(x)  # embeddings are linear in h
            sums.mul_(self.gamma).add_((1 - self.gamma) * torch.einsum("skh,kh->sk", self.w, by_class))


class DUQ(TorchMethod):
    """Deterministic uncertainty quantification: an RBF network with a two-sided gradient penalty (van Amersfoort et
    al., ICML 2020).

    Parameters
    ----------
    size : int
        Of the centroids.
    length : float
        Of the kernel.
    gamma : float
        Memory of the moving averages.
    penalty : float
        Weight of ``(|gradient of the kernel sum|^2 - 1)^2``.
    """

    _default_network = ResidualMLP

    def __init__(
        self,
        network: Network = None,
        *,
        size: int = 512,
        length: float = 0.1,
        gamma: float = 0.999,
        penalty: float = 0.5,
        config: TrainConfig | None = None,
        batch_size: int = 64,
        seed: int = 0,
        standardize: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            network, config=config, batch_size=batch_size, seed=seed, standardize=standardize, device=device
        )
        self.size, self.length, self.gamma, self.penalty = size, length, gamma, penalty

    def _fit(self, x: Tensor, t: Tensor) -> None:
        seed = self._member_seed(0)
        body = self._network(seed)
        width = linears(body)[-1][2].in_features
        make = lambda: _Kernels(body, width, t.shape[1], self.size, self.length, self.gamma)  # noqa: E731
        model = seeded(seed, make).to(x.device)
        latest: list[Tensor] = []

        def loss(net: nn.Module, batch: tuple[Tensor, ...], _step: int) -> Tensor:
            inputs, target = batch
            latest[:] = [inputs, target]
            inputs = inputs.detach().requires_grad_(self.penalty > 0)
            kernel = net(inputs)
            value = nn.functional.binary_cross_entropy(kernel.clamp(1e-7, 1 - 1e-7), target)
            if self.penalty > 0:
                (gradient,) = torch.autograd.grad(kernel.sum(), inputs, create_graph=True)
                value = value + self.penalty * ((gradient.flatten(1).square().sum(1) - 1) ** 2).mean()
            return value

        def after(_net: nn.Module, _step: int) -> None:
            model.move(latest[0], latest[1])

        self.model_ = model
        self._train(model, loss, x, t, seed, after_step=after)

    def _predict(self, x: Tensor) -> WithDensity:
        kernel = outputs(self.model_, x).double().numpy(force=True)
        top = kernel.max(1)
        safe = np.maximum(kernel, 1e-300)
        return WithDensity(safe / safe.sum(1, keepdims=True), np.log(np.maximum(top, 1e-300)))
