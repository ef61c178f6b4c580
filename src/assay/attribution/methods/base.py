"""`Attributor`: one convention of shape and sign for every method.

Scores are (test rows, training rows), 32-bit; ``A[t, i] > 0`` means that training row i raises the explained number of
test row t (a proponent), and larger is more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator
from torch import Tensor

from assay.attribution.adapter import TorchModel
from assay.attribution.errors import (
    AttributionError,
    CheckpointMismatch,
    NonFiniteAttribution,
    NotFitted,
    ShapeMismatch,
)
from assay.attribution.gradients.containers import Gradients


class Attributor(BaseEstimator):
    """Base of all methods: ``fit`` on a model and its training rows, then ask.

    A subclass gives ``_fit`` and ``_parts(X, targets)``, which yields ``(training rows, scores)`` piece by piece, so
    that no question needs the whole matrix in memory unless it asks for it.
    """

    #: whether the method reads several states of the model
    uses_checkpoints: ClassVar[bool] = False
    #: whether scores do not depend on the test row (one value a training row)
    one_value_a_row: ClassVar[bool] = False

    def fit(self, model: Any, X_train: Any, y_train: Any, checkpoints: Sequence[Any] | None = None) -> Any:
        """Prepare for questions about this model.

        Parameters
        ----------
        model : nn.Module, TorchModel or scikit-learn estimator
            Trained.
        X_train, y_train : arrays (N, ...), (N,)
            The rows that it was trained on, in the order of the columns of the answer.
        checkpoints : sequence of state dicts, optional

        Returns
        -------
        self

        Raises
        ------
        ShapeMismatch, LabelError, UnsupportedModel, CheckpointMismatch
        """
        self.n_train_ = len(X_train)
        if len(y_train) != self.n_train_:
            raise ShapeMismatch(f"{self.n_train_} rows of X_train and {len(y_train)} labels")
        self.checkpoints_ = None if checkpoints is None else list(checkpoints)
        self._fit(model, X_train, y_train)
        return self

    # -- questions ---------------------------------------------------------------------------------------------------

    def attribute(self, X_test: Any, targets: Any = None, batch_size: int = 256) -> Float[np.ndarray, "t n"]:
        """Scores of all training rows for each test row.

        Parameters
        ----------
        X_test : array (T, ...)
        targets : array (T,), optional
            The class (or value) that is explained; default: what the model predicts.
        batch_size : int
            Test rows at a time.

        Returns
        -------
        array (T, N), float32

        Raises
        ------
        NotFitted, ShapeMismatch, LabelError
        NonFiniteAttribution
            Names the first bad row.
        """
        self._ready(X_test, targets)
        out: np.ndarray | None = None
        for rows, part, scores in self._all_parts(X_test, targets, batch_size):
            if tuple(scores.shape) == (len(X_test), self.n_train_):
                return scores.detach().to(torch.float32).cpu().numpy()  # one block is the whole answer: no copy
            if out is None:
                out = np.empty((len(X_test), self.n_train_), dtype=np.float32)
            out[rows, part] = scores.cpu().numpy()
        assert out is not None
        return out

    def top_k(
        self, X_test: Any, targets: Any = None, k: int = 10, *, lowest: bool = False, batch_size: int = 256
    ) -> tuple[Int[np.ndarray, "t k"], Float[np.ndarray, "t k"]]:
        """The k strongest proponents of each test row (opponents with ``lowest``), without the (T, N) matrix.

        Of equal scores the first row comes first.

        Returns
        -------
        indices : int64 array (T, k)
        scores : float32 array (T, k)
        """
        self._ready(X_test, targets)
        if not 1 <= k <= self.n_train_:
            raise AttributionError(f"k is at least 1 and at most {self.n_train_} (training rows), not {k}")
        budget = getattr(self, "memory", 1 << 30)
        batch_size = max(1, min(batch_size, budget // (64 * self.n_train_)))  # scores of a batch: a sixteenth of it
        indices = np.zeros((len(X_test), k), dtype=np.int64)
        best = np.full((len(X_test), k), -np.inf, dtype=np.float32)
        filled = np.zeros(len(X_test), dtype=np.int64)
        for rows, part, scores in self._all_parts(X_test, targets, batch_size):
            new = torch.as_tensor(scores).float()
            places, values = _first_k(-new if lowest else new, k)
            had = int(filled[rows.start])
            # rows kept so far have smaller numbers, so that a stable sort keeps the first of equal scores first
            values = torch.cat([torch.as_tensor(best[rows, :had]).to(values), values], 1)
            places = torch.cat([torch.as_tensor(indices[rows, :had]).to(places.device), places + part.start], 1)
            keep = min(k, values.shape[1])
            values, chosen = values.sort(dim=1, descending=True, stable=True)
            best[rows, :keep] = values[:, :keep].cpu().numpy()
            indices[rows, :keep] = places.gather(1, chosen[:, :keep]).cpu().numpy()
            filled[rows] = keep
        return indices, -best if lowest else best

    def attribute_set(self, X_test: Any, targets: Any = None, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """One score a training row for a whole set of test rows: that of the sum of the explained numbers."""
        self._ready(X_test, targets)
        out = np.zeros(self.n_train_)
        for _, part, scores in self._all_parts(X_test, targets, batch_size):
            out[part] += np.asarray(torch.as_tensor(scores).sum(0).cpu(), dtype=float)
        return out.astype(np.float32)

    def self_influence(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """``A[i, i]`` of each training row for its own label, without the (N, N) matrix."""
        raise AttributionError(
            f"{type(self).__name__} has no self-influence; methods that have it are the gradient methods and TRAK"
        )

    def suspicion(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """How suspicious each training row's label is (larger is more); self-influence for most methods."""
        return self.self_influence(batch_size)

    # -- for subclasses ----------------------------------------------------------------------------------------------

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        raise NotImplementedError

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Any]]:
        """``(slice of training rows, scores (rows of X, rows of the slice))`` over all training rows."""
        raise NotImplementedError

    def _explain_failure(self) -> str:
        """What a method knows of the cause of scores that are not finite."""
        return ""

    def _ready(self, X_test: Any, targets: Any) -> None:
        if not hasattr(self, "n_train_"):
            raise NotFitted(f"{type(self).__name__}: call fit(model, X_train, y_train) first")
        if targets is not None and len(targets) != len(X_test):
            raise ShapeMismatch(f"{len(X_test)} test rows and {len(targets)} targets")
        if len(X_test) == 0:
            raise ShapeMismatch("there is no test row")

    def _all_parts(self, X: Any, targets: Any, batch_size: int) -> Iterator[tuple[slice, slice, Any]]:
        for low in range(0, len(X), batch_size):
            rows = slice(low, min(low + batch_size, len(X)))
            for part, scores in self._parts(X[rows], None if targets is None else targets[rows]):
                values = torch.as_tensor(scores)
                if not bool(torch.isfinite(values.sum())) and not bool(torch.isfinite(values).all()):
                    t, i = (int(v[0]) for v in torch.nonzero(~torch.isfinite(values), as_tuple=True))
                    count = int((~torch.isfinite(values)).sum())
                    raise NonFiniteAttribution(
                        f"{type(self).__name__}: the score of training row {part.start + i} for test row {low + t} is "
                        f"{float(values[t, i])} ({count} such scores in this block){self._explain_failure()}"
                    )
                yield rows, part, values


def _first_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Places (in rising order) and values of the k highest of each row; of equal scores the first are taken.

    ``topk`` alone leaves the order of equal scores open; a sort of whole rows takes several times their memory.
    """
    k = min(k, scores.shape[1])
    border = scores.topk(k, dim=1).values[:, -1:]
    inside = scores >= border
    extra = inside.sum(1) > k
    for t in torch.nonzero(extra).flatten().tolist():  # equal scores at the border: drop the last of them
        tied = torch.nonzero(scores[t] == border[t]).flatten()
        inside[t, tied[k - int((scores[t] > border[t]).sum()) :]] = False
    places = inside.nonzero()[:, 1].reshape(len(scores), k)
    return places, scores.gather(1, places)


class TrainGradients:
    """Gradients of the training rows in blocks: kept if they fit into half of ``memory`` bytes, else made again.

    ``kept`` may be given by who has them already.
    """

    def __init__(
        self, model: TorchModel, X: Tensor, y: Tensor, memory: int, *, of: Any = "-loss", bias: bool = True,
        kept: Gradients | None = None,
    ) -> None:  # fmt: skip
        self.model, self.X, self.y, self.of, self.bias, self.memory = model, X, y, of, bias, memory
        each = model.row_bytes(X, y)
        # making a block needs the activations too, about as much again as its factors
        self.block = int(np.clip(memory // (4 * each), 1, len(X)))
        self.kept = kept
        if kept is None and each * len(X) <= memory // 2:
            step = min(self.block, 4096)
            self.kept = Gradients.join(
                [model.gradients(X[i : i + step], y[i : i + step], of=of, bias=bias) for i in range(0, len(X), step)]
            )

    def __iter__(self) -> Iterator[tuple[slice, Gradients]]:
        if self.kept is not None:
            yield slice(0, len(self.X)), self.kept
            return
        for low in range(0, len(self.X), self.block):
            rows = slice(low, min(low + self.block, len(self.X)))
            yield rows, self.model.gradients(self.X[rows], self.y[rows], of=self.of, bias=self.bias)

    def squares(self) -> Tensor:
        """Squared norms of all rows."""
        return torch.cat([g.squares() for _, g in self])


class GradientAttributor(Attributor):
    """Base of the methods that read gradients of one network.

    Parameters
    ----------
    target : str, optional
        The number that is explained: ``"margin"`` (default for classification), ``"logit"``, ``"log_prob"``, ``"loss"``
        (minus the loss), ``"prediction"`` (regression).
    layers : sequence of str, optional
        Names or patterns of layers or parameters that count.
    task : str, optional
    memory : int
        Bytes that blocks of gradients may take.
    scale : {"raw", "nats"}
        "nats" divides by N, so that a score estimates the change of the explained number if the row were removed
        (its sign turned: the row's contribution).
    """

    def __init__(
        self, target: str | None = None, layers: Sequence[str] | None = None, task: str | None = None,
        memory: int = 1 << 30, scale: str = "raw",
    ) -> None:  # fmt: skip
        self.target, self.layers, self.task, self.memory, self.scale = target, layers, task, memory, scale

    def _open(self, model: Any, X: Any, y: Any) -> tuple[TorchModel, Tensor, Tensor]:
        if self.scale not in ("raw", "nats"):
            raise AttributionError(f"scale is raw or nats, not {self.scale!r}")
        adapter = as_torch_model(model, task=self.task, target=self.target, layers=self.layers)
        x, labels = adapter.tensors(X, y)
        assert labels is not None
        adapter.settle(x, labels)
        return adapter, x, labels

    def _questions(self, X: Any, targets: Any) -> tuple[Tensor, Tensor]:
        x, labels = self.model_.tensors(X, targets)
        if labels is None:
            labels = self.model_.predicted(x)
        elif targets is not None:
            self.model_.check(x, labels)
        return x, labels

    @property
    def _factor(self) -> float:
        return 1 / self.n_train_ if self.scale == "nats" else 1.0


def as_torch_model(model: Any, **options: Any) -> TorchModel:
    """A network, a `TorchModel`, or a fitted linear model of scikit-learn, as a `TorchModel`.

    Raises
    ------
    UnsupportedModel
    """
    if isinstance(model, TorchModel):
        changed = {k: v for k, v in options.items() if v is not None}
        if not changed:
            return model
        return TorchModel(
            model.module, task=changed.get("task", model.task), target=changed.get("target", model._target),
            layers=changed.get("layers", model.layers), l2=model.l2,
        )  # fmt: skip
    if isinstance(model, torch.nn.Module):
        return TorchModel(model, **options)
    from assay.attribution.linear import from_sklearn

    return from_sklearn(model, **options)


def states_of(checkpoints: Sequence[Any]) -> list[dict[str, Tensor]]:
    """Checkpoints as state dicts; files are read as plain tensors only.

    Raises
    ------
    CheckpointMismatch
        If there is none.
    """
    from assay.attribution.formats import read_state

    if not checkpoints:
        raise CheckpointMismatch("the list of checkpoints is empty")
    return [dict(c) if isinstance(c, dict) else read_state(c) for c in checkpoints]
