"""Estimators around a head: training, scoring of new students by MAP, uncertainty by curvature, new items, files."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.diagnosis.errors import DiagnosisError, UnknownName
from assay.diagnosis.estimator import DiagnosisModel
from assay.diagnosis.metrics.doa import doa_pooled
from assay.diagnosis.metrics.prediction import auc, log_loss
from assay.diagnosis.neural.layers import Head
from assay.diagnosis.responses import ResponseData
from assay.diagnosis.train import SPARSE_ABOVE, Trainer, parse_stopping

Array = NDArray[Any]
PREDICT_AT_ONCE = 16_384


class _Trained(nn.Module):
    """A table of students and a head."""

    def __init__(self, states: Tensor, head: Head, *, sparse: bool) -> None:
        super().__init__()
        self.students = nn.Parameter(states)
        self.head = head
        self.sparse = sparse

    def forward(self, student: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        states = F.embedding(student, self.students, sparse=self.sparse)
        return self.head(states, item), states


class NeuralModel(DiagnosisModel):
    """Base of the models with a head: Adam on binary cross-entropy, a stopping rule, and everything after training.

    Parameters
    ----------
    epochs, lr, weight_decay, stopping, patience
        See `Trainer`.
    batch_size : int, optional
        Default: a fortieth of the training answers, between 16 and 256.
    seed : int
        Of initial values, order of answers and dropout.
    device : str
    checkpoint : str, optional
        File of the training's state; an interrupted training goes on from it.

    Attributes
    ----------
    history_ : float64[epochs, 4]
        Training loss, validation AUC, log loss and DOA after each epoch (NaN where not computed).
    best_epoch_ : int
        The kept epoch, from 1.
    """

    def __init__(
        self,
        epochs: int = 200,
        lr: float = 0.002,
        batch_size: int | None = None,
        weight_decay: float = 0.0,
        stopping: str = "valid_logloss",
        patience: int = 10,
        seed: int = 0,
        device: str = "cpu",
        checkpoint: str | None = None,
    ) -> None:
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.weight_decay = weight_decay
        self.stopping = stopping
        self.patience = patience
        self.seed = seed
        self.device = device
        self.checkpoint = checkpoint
        self.report: Callable[[int, int, dict[str, float]], None] | None = None

    # -- what a model writes ---------------------------------------------------------------------------------------

    def _head(self, q: Tensor) -> Head:
        raise TypeError(f"{type(self).__name__} has no head")

    # -- training --------------------------------------------------------------------------------------------------

    def _trainer(self, n: int, default_batch: int | None = None) -> Trainer:
        size = self.batch_size or default_batch or max(16, min(256, n // 40))
        path = Path(self.checkpoint) if self.checkpoint else None
        return Trainer(self.epochs, size, self.lr, self.weight_decay, self.stopping, self.patience, path, self.report)

    def _with_validation(
        self, data: ResponseData, valid: ResponseData | None
    ) -> tuple[ResponseData, ResponseData | None]:
        """Training and validation answers: a tenth is held out where a rule needs validation and there is none."""
        rule, _ = parse_stopping(self.stopping)
        if valid is not None or not rule.startswith("valid"):
            return data, valid
        held = np.random.default_rng(self.seed).random(len(data)) < 0.1
        if not held.any() or held.all():
            raise DiagnosisError(
                "there are too few answers to hold some out for the stopping rule; use stopping='fixed(50)'"
            )
        return data.take(~held), data.take(held)

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Torch's generators are seeded inside and as before outside, that of the model's own GPU too."""
        device = torch.device(self.device)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            yield

    def _fit(self, data: ResponseData, valid: ResponseData | None) -> None:
        fit, valid = self._with_validation(data, valid)
        with self._own_randomness():
            q = torch.as_tensor(self.q_, dtype=torch.float32)
            head = self._head(q)
            states = head.initial_states(data.n_students)
            module = _Trained(states, head, sparse=states.numel() > SPARSE_ABOVE).to(self.device)
            head.sparse_tables = frozenset(n for n, t in head.items.items() if t.numel() > SPARSE_ABOVE)
            rows = ([module.students] if module.sparse else []) + [head.items[n] for n in head.sparse_tables]
            student, item, y = self._tensors(fit)

            def batch_loss(batch: Tensor) -> Tensor:
                logits, used = module(student[batch], item[batch])
                loss = F.binary_cross_entropy_with_logits(logits, y[batch])
                extra = head.penalty(used)
                return loss if extra is None else loss + extra

            generator = torch.Generator().manual_seed(self.seed)
            self.history_, self.best_epoch_ = self._trainer(len(fit)).run(
                module, len(fit), batch_loss, lambda: self._validate(head, module.students.detach(), valid), generator,
                after_step=head.clip, before_epoch=head.next_epoch, sparse=rows, plateau=plateau(fit, valid),
            )  # fmt: skip
        self._keep(module.head, module.students.detach(), data)

    def _tensors(self, data: ResponseData) -> tuple[Tensor, Tensor, Tensor]:
        student, item, y = data.student.astype(np.int64), data.item.astype(np.int64), data.correct.astype(np.float32)
        return tuple(torch.as_tensor(v, device=self.device) for v in (student, item, y))  # type: ignore[return-value]

    def _validate(self, head: Head, states: Tensor, valid: ResponseData | None, tables: Any = None) -> dict[str, float]:
        if valid is None:
            return {}
        student, item, _ = self._tensors(valid)
        p = self._probability(head, states, student, item, tables)
        figures = {"valid_logloss": log_loss(valid.correct, p)}
        if 0 < valid.correct.sum() < len(valid):
            figures["valid_auc"] = auc(valid.correct, p)
        if self.stopping == "valid_doa":
            with torch.no_grad():
                figures["valid_doa"] = doa_pooled(head.mastery(states).numpy(force=True), valid)
        return figures

    def _keep(self, head: Head, states: Tensor, data: ResponseData) -> None:
        """Take over what was learned; items and students without an answer stand at the mean of the others."""
        head = head.to(self.device).eval()
        head.sparse_tables = frozenset()
        seen = torch.as_tensor(self.seen_items_, device=self.device)
        if not bool(seen.all()):
            with torch.no_grad():
                for table in head.items.values():
                    table[~seen] = table[seen].mean(0)
        kept = states.numpy(force=True).astype(np.float64)
        if not self.seen_students_.all():
            kept[~self.seen_students_] = kept[self.seen_students_].mean(0)
        self._network = head.requires_grad_(False)
        self.prior_mean_ = kept[self.seen_students_].mean(0)
        self.prior_sd_ = np.maximum(kept[self.seen_students_].std(0), 1e-3)
        self.states_ = np.hstack([kept, self._state_sd(kept, data)])
        self.n_params_ = sum(p.numel() for p in head.parameters()) + kept.size
        p = np.clip(self._predict(self.states_, data.student, data.item), 1e-7, 1 - 1e-7)
        self.loglik_ = float(np.sum(np.where(data.correct == 1, np.log(p), np.log1p(-p))))

    # -- after training --------------------------------------------------------------------------------------------

    @property
    def network(self) -> Head:
        """The trained head."""
        self._fitted()
        return self._network

    def _states(self, states: Array) -> Tensor:
        return torch.as_tensor(states[:, : self._network.state_dim], dtype=torch.float32, device=self.device)

    def _probability(self, head: Head, states: Tensor, student: Tensor, item: Tensor, tables: Any = None) -> Array:
        out = np.empty(len(item), dtype=np.float32)
        with torch.no_grad():
            for start in range(0, len(item), PREDICT_AT_ONCE):
                part = slice(start, start + PREDICT_AT_ONCE)
                out[part] = torch.sigmoid(head(states[student[part]], item[part], tables)).numpy(force=True)
        return out

    def _predict(self, states: Array, student: Array, item: Array) -> Array:
        index = (torch.as_tensor(np.asarray(v, dtype=np.int64), device=self.device) for v in (student, item))
        return self._probability(self._network, self._states(states), *index)

    def _mastery(self, states: Array) -> Array:
        with torch.no_grad():
            return self._network.mastery(self._states(states)).numpy(force=True)

    def predict_from_mastery(self, mastery: Array, item: Array) -> Array:
        """Probability of a right answer for given mastery ``[m, K]`` and items ``[m]``, ``float32[m]``."""
        with torch.no_grad():
            m = torch.as_tensor(mastery, dtype=torch.float32, device=self.device)
            j = torch.as_tensor(np.asarray(item, dtype=np.int64), device=self.device)
            return torch.sigmoid(self._network.from_mastery(m, j)).numpy(force=True)

    def _state_sd(self, states: Array, data: ResponseData) -> Array:
        """Posterior sd of each number of a state: 1 / sqrt(expected information + prior precision), information taken
        apart.
        """
        student, item, _ = self._tensors(data)
        information = torch.zeros(len(states), self._network.state_dim, device=self.device)
        all_states = torch.as_tensor(states, dtype=torch.float32, device=self.device)
        for start in range(0, len(item), PREDICT_AT_ONCE):
            part = slice(start, start + PREDICT_AT_ONCE)
            rows = all_states[student[part]].clone().requires_grad_(True)
            logits = self._network(rows, item[part])
            (slope,) = torch.autograd.grad(logits.sum(), rows)
            p = torch.sigmoid(logits.detach())
            information.index_add_(0, student[part], slope**2 * (p * (1 - p))[:, None])
        return 1 / np.sqrt(information.numpy(force=True) + 1 / self.prior_sd_**2)

    def _mastery_se(self, states: Array) -> Array:
        """Delta method: the gradient of each mastery by the state, times the sd of the state."""
        d = self._network.state_dim
        variance = torch.as_tensor(states[:, d:] ** 2, dtype=torch.float32, device=self.device)
        rows = self._states(states).requires_grad_(True)
        mastery = self._network.mastery(rows)
        se = np.empty(mastery.shape)
        for k in range(mastery.shape[1]):
            (slope,) = torch.autograd.grad(mastery[:, k].sum(), rows, retain_graph=True)
            se[:, k] = torch.sqrt((slope**2 * variance).sum(1)).numpy(force=True)
        return se

    def penalised_loss(self, data: ResponseData, states: Array) -> float:
        """What scoring minimises: negative log-likelihood plus the Gaussian prior on states (mean and sd of the
        fitted ones).
        """
        student, item, y = self._tensors(data)
        with torch.no_grad():
            s = self._states(states)
            return float(self._objective(s, student, item, y))

    def _objective(self, states: Tensor, student: Tensor, item: Tensor, y: Tensor) -> Tensor:
        mean, sd = (
            torch.as_tensor(v, dtype=torch.float32, device=self.device) for v in (self.prior_mean_, self.prior_sd_)
        )
        loss = F.binary_cross_entropy_with_logits(self._network(F.embedding(student, states), item), y, reduction="sum")
        return loss + 0.5 * (((states - mean) / sd) ** 2).sum()

    def _estimate(self, data: ResponseData) -> Array:
        """The mode of each student's state, students in blocks (they are independent once items are fixed), so that
        memory does not grow with the log.
        """
        student, item, y = self._tensors(data)
        order = torch.argsort(student, stable=True)
        student, item, y = student[order], item[order], y[order]
        ends = torch.cumsum(torch.bincount(student, minlength=data.n_students), 0).tolist()
        found = np.empty((data.n_students, self._network.state_dim))
        first = begin = 0
        while first < data.n_students:
            last = max(first + 1, bisect.bisect_right(ends, begin + PREDICT_AT_ONCE))
            part = slice(begin, ends[last - 1])
            found[first:last] = self._mode(student[part] - first, item[part], y[part], last - first)
            first, begin = last, ends[last - 1]
        return np.hstack([found, self._state_sd(found, data)])

    def _mode(self, student: Tensor, item: Tensor, y: Tensor, n: int) -> Array:
        mean = torch.as_tensor(self.prior_mean_, dtype=torch.float32, device=self.device)
        states = mean.repeat(n, 1).requires_grad_(True)
        optimizer = torch.optim.LBFGS(
            [states], lr=1.0, max_iter=150, history_size=20, line_search_fn="strong_wolfe", tolerance_grad=1e-4
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self._objective(states, student, item, y)
            loss.backward()
            return loss

        optimizer.step(closure)
        return states.numpy(force=True).astype(np.float64)

    def extend_items(self, data: ResponseData, *, steps: int = 300, lr: float = 0.05) -> Self:
        """The model with more items: their rows are trained, everything else stays; see `IRT.extend_items`."""
        from assay.diagnosis.extend import extended, new_item_rows

        rows, first = new_item_rows(self, data)
        model = extended(self, data)
        old = self._network.state_dict()
        with self._own_randomness():
            head = self._head(torch.as_tensor(model.q_, dtype=torch.float32)).to(self.device)
        state = head.state_dict()
        for name, value in old.items():
            if name == "q":
                continue
            if name.startswith("items."):
                state[name][:first] = value
                state[name][first:] = value.mean(0)
            else:
                state[name] = value
        head.load_state_dict(state)
        head.eval().requires_grad_(False)
        fresh = {name: table[first:].clone().requires_grad_(True) for name, table in head.items.items()}
        centre = {name: table[:first].mean(0) for name, table in head.items.items()}
        spread = {name: table[:first].std(0).clamp_min(1e-2) for name, table in head.items.items()}
        optimizer = torch.optim.Adam(list(fresh.values()), lr=lr)
        student, item, y = self._tensors(rows)
        states = self._states(self.states_)[student]
        for _ in range(steps):
            optimizer.zero_grad()
            tables = {name: torch.cat([head.items[name][:first], value]) for name, value in fresh.items()}
            loss = F.binary_cross_entropy_with_logits(head(states, item, tables), y, reduction="sum")
            loss = loss + sum(0.5 * (((v - centre[n]) / spread[n]) ** 2).sum() for n, v in fresh.items())
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            for name, value in fresh.items():
                head.items[name][first:] = value
        model._network = head
        return model

    # -- files -----------------------------------------------------------------------------------------------------

    def _learned(self) -> dict[str, Any]:
        arrays = {f"network.{n}": v.numpy(force=True) for n, v in self._network.state_dict().items()}
        return super()._learned() | arrays

    def _restore(self, learned: dict[str, Any]) -> None:
        network = {
            n.removeprefix("network."): torch.as_tensor(v) for n, v in learned.items() if n.startswith("network.")
        }
        super()._restore({n: v for n, v in learned.items() if not n.startswith("network.")})
        head = self._head(network["q"])
        head.load_state_dict(network)
        self._network = head.to(self.device).eval().requires_grad_(False)


def plateau(data: ResponseData, valid: ResponseData | None) -> float:
    """Log loss of always predicting the training mean, on the validation answers where there are some."""
    on = data if valid is None else valid
    return log_loss(on.correct, np.full(len(on), data.correct.mean()))


def choice(value: str, allowed: tuple[str, ...], what: str) -> str:
    """The value, if it is allowed.

    Raises
    ------
    UnknownName
    """
    if value not in allowed:
        raise UnknownName.of(what, value, allowed)
    return value
