"""HI2: a row as a picture, and a network that looks at it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import functional_call

from assay.streams.errors import StreamError
from assay.streams.models.base import grown
from assay.streams.models.neural.adamw import adamw_tensor
from assay.streams.models.neural.base import NeuralModel, one_of, require
from assay.streams.models.neural.pictures import Picture, bars, crossed_bars, pie
from assay.streams.models.neural.vision import initial, read_weights, skeleton
from assay.streams.rows import Row

_BODY = "body."
_STATISTICS = ("running_mean", "running_var")


class HI2(NeuralModel):
    """Haphazard inputs as images: each row is drawn, and one step of Adam a row trains a network on the pictures.

    A feature has a colour of its own, so a new or an absent feature changes the picture and nothing else. Pictures are
    made with array operations, without a plotting library.

    Parameters
    ----------
    picture : {"bar", "cross", "pie"}
        A bar for each feature present; a place for each known feature, with a red cross where it is absent; a pie.
    backbone : {"small", "resnet34", "vit_small"}
        Three convolutions, for training from scratch; ResNet-34; ViT-S/16.
    weights : str, optional
        File of a public checkpoint of the backbone (torchvision's resnet34, timm's vit_small_patch16_224). Read
        without running code from it. Without it the backbone starts from random weights.
    size : int, optional
        Pixels of a side. Default: 32 for "small", else 224. With many features take at least two pixels a feature.
    batch_norm : {"row", "frozen"}
        ResNet-34 only: normalise by the statistics of each picture, as published, or by those of the checkpoint.
    rate : float
        Step size of Adam; 2e-5 is the published one for pretrained weights.
    task : {"classification", "regression"}
    classes : sequence of labels, optional
        Default: grown on first sight.
    seed : int
        Seed of the initial weights and of the colours.
    device : str
        "cpu", or a torch device.

    References
    ----------
    Agarwal, Dessai, Sekh, Agarwal, Horsch, Prasad: Haphazard Inputs as Images in Online Learning, arXiv 2504.02912
    (2025).

    Examples
    --------
    >>> from assay.streams.contract import easy_stream
    >>> X, y = easy_stream(200)
    >>> scores = HI2(size=16).run_arrays(X, y)
    >>> round(float(np.mean((scores[100:] > 0) == y[100:])), 1)
    0.9
    """

    precision = torch.float32
    widened = ("head", "head_bias", "m_head", "m_head_bias", "v_head", "v_head_bias")

    def __init__(
        self,
        picture: str = "bar",
        backbone: str = "small",
        weights: str | None = None,
        size: int | None = None,
        batch_norm: str = "row",
        rate: float = 1e-3,
        task: str = "classification",
        classes: Sequence[Hashable] | None = None,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        self.picture = picture
        self.backbone = backbone
        self.weights = weights
        self.size = size
        self.batch_norm = batch_norm
        self.rate = rate
        self.task = task
        self.classes = classes
        self.seed = seed
        self.device = device
        self.reset()

    # -- state -----------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        one_of("picture", self.picture, ("bar", "cross", "pie"))
        one_of("backbone", self.backbone, ("small", "resnet34", "vit_small"))
        one_of("batch_norm", self.batch_norm, ("row", "frozen"))
        require("rate", self.rate, 0.0, 1e3, open_low=True)
        low, step = {"small": (8, 8), "resnet34": (64, 1), "vit_small": (16, 16)}[self.backbone]
        require("size", self._pixels, low, 4096, whole=True)
        if self._pixels % step:
            raise StreamError(f"size must be a multiple of {step} for {self.backbone!r}, not {self._pixels}")
        network = self._network
        if self.weights is None:
            body = initial(network, self._init_rng(0))
        else:
            body = read_weights(self.weights, network)
        width = {"small": 64, "resnet34": 512, "vit_small": 384}[self.backbone]
        arrays: dict[str, NDArray[np.float32]] = {
            "head": np.zeros((width, self._outputs), np.float32),
            "head_bias": np.zeros(self._outputs, np.float32),
        }
        arrays |= {_BODY + name: array for name, array in body.items()}
        moments = {f"{m}_{name}": np.zeros_like(a) for name, a in arrays.items() if _trained(name) for m in "mv"}
        self._net = {name: self._live(array) for name, array in (arrays | moments).items()}
        self._place = np.full(8, -1, dtype=np.int64)  # slot -> order in which the features were first learned
        self._colours = np.zeros((0, 3), np.float32)
        self._counts = np.zeros(2, dtype=np.int64)  # features learned, steps

    @property
    def _pixels(self) -> int:
        return (32 if self.backbone == "small" else 224) if self.size is None else self.size

    @property
    def _network(self) -> torch.nn.Module:
        return skeleton(self.backbone, self._pixels, self.batch_norm == "frozen")

    def _grow(self, n: int) -> None:
        self._place = grown(self._place, n, -1)
        old = len(self._colours)
        self._colours = grown(self._colours, n)
        for place in range(old, len(self._colours)):
            # not too close to the white of the paper
            self._colours[place] = self._init_rng(place + 1).uniform(0.0, 0.85, 3)

    # -- rows ------------------------------------------------------------------------------------------------------

    def draw(self, row: Row) -> Picture:
        """The picture in which the network sees a row: float32[3, size, size] in [0, 1]."""
        return self._draw(*self._known(row))

    def _draw(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> Picture:
        places = self._place[slots]
        if self.picture == "cross":
            d = int(self._counts[0])
            row = np.full(d, np.nan)
            row[places] = values
            return crossed_bars(np.nan_to_num(row), ~np.isnan(row), self._colours[:d], self._pixels)
        order = np.argsort(places)
        shape = bars if self.picture == "bar" else pie
        return shape(values[order], self._colours[places[order]], self._pixels)

    def _forward(self, picture: Picture, net: dict[str, Any]) -> torch.Tensor:
        pixels = torch.tensor(picture, device=self.device)[None]
        body = {name.removeprefix(_BODY): value for name, value in net.items() if name.startswith(_BODY)}
        return (functional_call(self._network, body, (pixels,)) @ net["head"] + net["head_bias"])[0]

    def _predict(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> torch.Tensor:
        return self._forward(self._draw(slots, values), self._net)

    def _update(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> torch.Tensor:
        for slot in slots.tolist():
            if self._place[slot] < 0:
                self._place[slot] = self._counts[0]
                self._counts[0] += 1
        leaves = {name: value.detach().requires_grad_() for name, value in self._net.items() if _trained(name)}
        outputs = self._forward(self._draw(slots, values), self._net | leaves)
        loss = self._losses(outputs[None], self._aim(target))[0]
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        self._counts[1] += 1
        with torch.no_grad():
            for name, gradient in zip(leaves, gradients, strict=True):
                first, second = self._net[f"m_{name}"], self._net[f"v_{name}"]
                adamw_tensor(self._net[name], gradient, first, second, float(self._counts[1]), self.rate, 0.0)
        return outputs.detach()


def _trained(name: str) -> bool:
    return name.startswith((_BODY, "head")) and not name.endswith(_STATISTICS)
