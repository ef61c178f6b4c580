"""EK-FAC influence: eigenvalue-corrected Kronecker factors, a block a layer (George et al., 2018; Grosse et al.,
2023)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.attribution.adapter import TorchModel
from assay.attribution.errors import AttributionError, NotFitted, UnsupportedModel
from assay.attribution.gradients.containers import Factor, Flat, Gradients, flat_product
from assay.attribution.methods.base import GradientAttributor, TrainGradients
from assay.attribution.methods.gradient import pairwise
from assay.attribution.methods.solvers import eigenvectors
from assay.attribution.outputs import IGNORE, two_columns

LABELS = ("auto", "exact", "sampled", "empirical")
EXACT_CLASSES = 50


@dataclass
class _Basis:
    """Eigenbases of inputs and output gradients of a layer, and ``1 / (L + lam)``."""

    inputs: Tensor
    outputs: Tensor
    inverse: Tensor

    def turn(self, layer: Factor) -> Factor:
        return Factor(layer.a @ self.inputs, layer.d @ self.outputs)


class EKFAC(GradientAttributor):
    """Influence with the Gauss-Newton matrix approximated by Kronecker factors with corrected eigenvalues.

    For a layer with inputs a and output gradients d: ``A = E[a a']``, ``S = E[d d']``, their eigenbases, and
    ``L = E[(Q_S' D Q_A)^2]`` for the gradients D; a score is taken in the turned basis with ``1 / (L + lam)``.

    Parameters
    ----------
    damping : float, optional
        lam, the same for all layers; default ``0.1 * mean(L)`` of each layer.
    labels : {"auto", "exact", "sampled", "empirical"}
        Whose loss the gradients d are of: the expectation over the model's own classes; one label drawn from the model;
        the true label. "auto": exact up to 50 classes and for regression, else sampled.
    seed : int
        Of the drawn labels.
    layers : sequence of str, optional
        Linear and convolutional layers only; others are left out and listed in ``left_out_``.

    Examples
    --------
    >>> torch_model = torch.nn.Linear(3, 1).double()
    >>> X = np.random.default_rng(0).normal(size=(50, 3)); y = X[:, 0]
    >>> A = EKFAC(damping=0.1).fit(torch_model, X, y).attribute(X[:2], y[:2])
    >>> A.shape
    (2, 50)
    """

    def __init__(
        self, damping: float | None = None, labels: str = "auto", seed: int = 0, target: str | None = None,
        layers: Sequence[str] | None = None, task: str | None = None, memory: int = 1 << 30, scale: str = "raw",
    ) -> None:  # fmt: skip
        super().__init__(target, layers, task, memory, scale)
        self.damping, self.labels, self.seed = damping, labels, seed

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        if self.labels not in LABELS:
            raise AttributionError(f"labels is one of {', '.join(LABELS)}, not {self.labels!r}")
        if self.damping is not None and not self.damping > 0:
            raise AttributionError(f"damping is a number above 0, not {self.damping}")
        whole, x, labels = self._open(model, X, y)
        self.model_, self.left_out_ = only_factors(whole, x, labels)
        self.X_, self.y_ = x, labels
        self.labels_ = self._labels(x, labels)
        step = self._step()
        parts: list[Gradients] = []
        sums: list[list[Tensor]] = []
        # first pass: A and S, and the pushes on the way if there is room to keep them
        keep_all = True
        pushes: list[Gradients] = []
        for low in range(0, self.n_train_, step):
            rows = slice(low, low + step)
            found = self._pseudo(rows, with_push=True)
            sums.append(_sum_all(sums.pop() if sums else [], _moments(found[:-1])))
            keep_all = keep_all and self.n_train_ <= step
            if keep_all:
                parts, pushes = found[:-1], [found[-1]]
        count = self.n_train_
        bases = []
        a_s = sums[0]
        for a, s in zip(a_s[::2], a_s[1::2], strict=True):
            bases.append((eigenvectors(a / count), eigenvectors(s / count)))
        # second pass: corrected eigenvalues in those bases
        corrected = [torch.zeros(q_s.shape[1], q_a.shape[1], dtype=q_a.dtype, device=q_a.device) for q_a, q_s in bases]
        for low in range(0, self.n_train_, step):
            found = parts if keep_all else self._pseudo(slice(low, low + step))
            _add_corrected(corrected, found, bases)
        self.bases_ = []
        self.lambda_ = []
        for (q_a, q_s), total in zip(bases, corrected, strict=True):
            values = total / count
            lam = 0.1 * float(values.mean()) if self.damping is None else self.damping
            lam = max(lam, 1e-30)
            self.lambda_.append(lam)
            self.bases_.append(_Basis(q_a, q_s, 1 / (values + lam)))
        self.corrected_ = [c / count for c in corrected]
        self.train_ = TrainGradients(self.model_, x, labels, self.memory, kept=pushes[0] if keep_all else None)
        self.turned_ = self._turn(self.train_.kept) if self.train_.kept is not None else None

    def _labels(self, x: Tensor, y: Tensor) -> str:
        logits = self.model_.logits(x[:2])
        classes = logits.reshape(len(logits), -1).shape[1] if self.model_.task == "regression" else logits.shape[-1]
        if self.labels != "auto":
            return self.labels
        if self.model_.task == "regression":
            return "exact" if classes <= EXACT_CLASSES else "sampled"
        return "exact" if classes <= EXACT_CLASSES and self.model_.task == "classification" else "sampled"

    def _step(self) -> int:
        classes = 1
        if self.labels_ == "exact":
            classes = max(2, self.model_.logits(self.X_[:1]).shape[-1])
        each = self.model_.row_bytes(self.X_, self.y_) * (classes + 2)
        return int(np.clip(self.memory // (4 * each), 1, 1 << 15))

    def _pseudo(self, rows: slice, with_push: bool = False) -> list[Gradients]:
        """Gradients under the model's own labels, one an entry (weights are in d), and the pushes at the end."""
        x, y = self.X_[rows], self.y_[rows]
        task = self.model_.task
        ends: list[Any] = ["-loss"] if with_push else []
        if self.labels_ == "empirical":
            return self.model_.many_gradients(x, y, ["-loss", *ends])
        if task == "regression":
            if self.labels_ == "exact":  # unit noise on each output: E[e e'] = I
                outputs = self.model_.logits(x[:1]).reshape(1, -1).shape[1]
                return self.model_.many_gradients(x, y, [*[_unit(j) for j in range(outputs)], *ends])
            return self.model_.many_gradients(x, y, [_noise(self.seed + (rows.start or 0)), *ends])
        if self.labels_ == "exact":
            if task != "classification":
                raise AttributionError("labels='exact' is for classification and regression; use sampled here")
            classes = two_columns(self.model_.logits(x[:1])).shape[1]
            return self.model_.many_gradients(x, y, [*[_class(c) for c in range(classes)], *ends])
        return self.model_.many_gradients(x, y, [_drawn(self.seed + (rows.start or 0), y, task or ""), *ends])

    def _turn(self, g: Gradients) -> Gradients:
        return Gradients([b.turn(layer) for b, layer in zip(self.bases_, g.layers, strict=True)])  # type: ignore[arg-type]

    def _precondition(self, g: Gradients) -> list[Tensor]:
        """``Q_S' D Q_A / (L + lam)`` of each row and layer, flat."""
        return [
            (b.turn(layer).matrix() * b.inverse).flatten(1)  # type: ignore[arg-type]
            for b, layer in zip(self.bases_, g.layers, strict=True)
        ]

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Tensor]]:
        x, labels = self._questions(X, targets)
        asked = self._precondition(self.model_.gradients(x, labels, of=self.model_.target))
        yield from self._scored(asked)

    def _scored(self, asked: list[Tensor]) -> Iterator[tuple[slice, Tensor]]:
        for rows, g in self.train_:
            turned = self.turned_ if self.turned_ is not None else self._turn(g)
            scores: Tensor | None = None
            for one, layer in zip(asked, turned.layers, strict=True):
                part = _against(one, layer)  # type: ignore[arg-type]
                scores = part if scores is None else scores.add_(part)
            assert scores is not None
            yield rows, scores * self._factor if self._factor != 1 else scores

    def attribute_set(self, X_test: Any, targets: Any = None, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """One score a training row for a set of test rows, whose gradients are added up before they are turned."""
        self._ready(X_test, targets)
        total: list[Tensor] | None = None
        for low in range(0, len(X_test), batch_size):
            rows = slice(low, low + batch_size)
            x, labels = self._questions(X_test[rows], None if targets is None else targets[rows])
            one = [
                v.sum(0, keepdim=True)
                for v in self._precondition(self.model_.gradients(x, labels, of=self.model_.target))
            ]
            total = one if total is None else [a + b for a, b in zip(total, one, strict=True)]
        assert total is not None
        out = np.empty(self.n_train_, dtype=np.float32)
        for part, scores in self._scored(total):
            out[part] = scores[0].float().cpu().numpy()
        return out

    def self_influence(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """``A[i, i]`` of each training row for its own label, O(N P)."""
        if not hasattr(self, "bases_"):
            raise NotFitted("EKFAC: call fit first")
        out = np.empty(self.n_train_, dtype=np.float32)
        parallel = self.model_.target in ("loss", "log_prob", "margin")
        for low in range(0, self.n_train_, batch_size):
            rows = slice(low, min(low + batch_size, self.n_train_))
            x, y = self.X_[rows], self.y_[rows]
            turned = self._turn(self.model_.gradients(x, y))
            if parallel:
                value = torch.zeros(len(x), dtype=self.model_.dtype, device=x.device)
                for basis, layer in zip(self.bases_, turned.layers, strict=True):
                    assert isinstance(layer, Factor)
                    if layer.a.ndim == 2:
                        value = value + ((layer.d**2) @ basis.inverse * (layer.a**2)).sum(1)
                    else:
                        value = value + ((layer.matrix() ** 2) * basis.inverse).sum((1, 2))
                if self.model_.target == "margin":
                    value = value / torch.sigmoid(-self.model_.explained(x, y))
            else:
                asked = self._precondition(self.model_.gradients(x, y, of=self.model_.target))
                value = pairwise(Gradients([Flat(v) for v in asked]), turned)
            out[rows] = (value * self._factor).float().cpu().numpy()
        return out

    def _explain_failure(self) -> str:
        top = max(float(c.max()) for c in self.corrected_) if hasattr(self, "corrected_") else float("nan")
        return f"; largest corrected eigenvalue {top:.2e}, damping {self.lambda_}: raise damping"


def only_factors(model: TorchModel, x: Tensor, y: Tensor) -> tuple[TorchModel, list[str]]:
    """The model with its linear and convolutional layers only, and the parameters that are left out.

    Raises
    ------
    UnsupportedModel
        If there is no such layer; the message names the layers that there are.
    """
    model.gradients(x[:2], y[:2])  # so that shared weights are known
    if not model._flat:
        return model, []
    if not model._hooked:
        kinds = sorted({type(m).__name__ for m in model.module.modules() if not list(m.children())})
        raise UnsupportedModel(
            f"Kronecker factors need a linear or convolutional layer used once; the chosen layers are "
            f"{', '.join(model._flat[:5])} (layers of kinds {', '.join(kinds)})"
        )
    left = list(model._flat)
    covered = [n for n in model.parameters if n not in left]
    smaller = TorchModel(model.module, task=model.task, target=model._target, layers=covered, l2=model.l2)
    return smaller, left


def _against(asked: Tensor, layer: Factor) -> Tensor:
    """``<asked_t, d_i a_i'>`` for all pairs, without the flat form of the many training rows where that is cheaper."""
    outputs, inputs = layer.d.shape[-1], layer.a.shape[-1]
    if layer.a.ndim == 2 and len(asked) <= 4:
        return torch.stack([((layer.d @ m.reshape(outputs, inputs)) * layer.a).sum(1) for m in asked])
    return flat_product(asked, layer)


def _class(c: int) -> Any:
    def seed(logits: Tensor) -> Tensor:
        if logits.ndim == 1 or logits.shape[-1] == 1:  # one logit: its derivative for label c, weighted
            p = torch.sigmoid(logits)
            weight = p if c == 1 else 1 - p
            return (float(c) - p) * weight.sqrt()
        p = logits.softmax(-1)
        d = -p
        d = d.clone()
        d[:, c] += 1
        return d * p[:, c : c + 1].sqrt()

    return seed


def _unit(j: int) -> Any:
    def seed(outputs: Tensor) -> Tensor:
        flat = torch.zeros_like(outputs).reshape(len(outputs), -1)
        flat[:, j] = 1
        return flat.reshape(outputs.shape)

    return seed


def _noise(seed: int) -> Any:
    def make(outputs: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(outputs.shape, generator=generator).to(outputs)

    return make


def _drawn(seed: int, y: Tensor, task: str) -> Any:
    def make(logits: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        if logits.ndim == 1 or logits.shape[-1] == 1:
            p = torch.sigmoid(logits)
            return (torch.rand(p.shape, generator=generator).to(p) < p).to(p) - p
        p = logits.softmax(-1)
        flat = p.reshape(-1, p.shape[-1])
        # by the inverse of the cumulative distribution, so that the draw is from our own generator on any device
        u = torch.rand(len(flat), 1, generator=generator).to(flat)
        label = (flat.cumsum(1) < u).sum(1).clamp(max=flat.shape[1] - 1)
        d = -flat
        d = d.clone()
        d[torch.arange(len(flat), device=d.device), label] += 1
        d = d.reshape(p.shape)
        if task == "language":
            counts = torch.zeros(y.shape, dtype=torch.bool, device=y.device)
            counts[:, :-1] = y[:, 1:] != IGNORE
            d = d * counts.unsqueeze(-1)
        return d

    return make


def _moments(found: list[Gradients]) -> list[Tensor]:
    """``A, S`` of each layer, summed over rows (positions too)."""
    out: list[Tensor] = []
    for layers in zip(*(g.layers for g in found), strict=True):
        a = layers[0].a.flatten(0, -2)
        out.append(a.T @ a)
        total = None
        for layer in layers:
            d = layer.d.flatten(0, -2)
            one = d.T @ d
            total = one if total is None else total + one
        assert total is not None
        out.append(total)
    return out


def _sum_all(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:
    return b if not a else [x + y for x, y in zip(a, b, strict=True)]


def _add_corrected(corrected: list[Tensor], found: list[Gradients], bases: list[tuple[Tensor, Tensor]]) -> None:
    for k, (q_a, q_s) in enumerate(bases):
        first = found[0].layers[k]
        turned_a = first.a @ q_a  # type: ignore[union-attr]
        squared_a = turned_a**2 if turned_a.ndim == 2 else None
        total_d = None
        for g in found:
            d = g.layers[k].d @ q_s  # type: ignore[union-attr]
            if squared_a is not None:
                total_d = d**2 if total_d is None else total_d.add_(d**2)
            else:
                for low in range(0, len(d), 256):
                    part = slice(low, low + 256)
                    corrected[k] += ((d[part].transpose(1, 2) @ turned_a[part]) ** 2).sum(0)
        if squared_a is not None and total_d is not None:
            corrected[k] += total_d.T @ squared_a
