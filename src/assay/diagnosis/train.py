"""The training loop of the neural models, with the stopping rule as a named factor.

Rules: ``valid_logloss``, ``valid_auc``, ``valid_doa`` keep the best epoch by a figure of the validation answers and
stop after ``patience`` epochs without a better one; ``train_loss`` stops when the training loss has not fallen by a
thousandth for ``patience`` epochs; ``fixed(n)`` trains n epochs and keeps the last.

Networks with non-negative layers begin with a plateau at the loss of a constant prediction, which may last dozens of
epochs. Patience counts only from the epoch in which the loss is a hundredth below it, whatever the rule [our design].

Why not `assay.training`: its patience follows one figure from the first epoch, and it has one optimiser. Here the rule
is the subject of the experiment (four figures, a relative tolerance on the training loss, the plateau), large tables
are updated row by row by a second, sparse optimiser, graphs draw a view before each epoch, and a batch is a slice of
one permutation instead of a tuple of tensors. Carrying that through the shared loop would take more code than this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.diagnosis.errors import DiagnosisError, UnknownName

STOPPING = ("valid_logloss", "valid_auc", "valid_doa", "train_loss")
HISTORY = ("train_loss", "valid_auc", "valid_logloss", "valid_doa")
SPARSE_ABOVE = 1_000_000  # elements of a table from which on only the rows of a batch are updated


@dataclass
class Trainer:
    """Settings of a training.

    Parameters
    ----------
    epochs : int
        At most.
    batch_size : int
    lr, weight_decay : float
        Adam; decay does not reach tables that are updated sparsely.
    stopping : str
    patience : int
    checkpoint : path, optional
        State after each epoch; a training that is started again with the same file goes on where it stopped.
    report : callable, optional
        Told (epoch, epochs, figures) after each epoch.
    """

    epochs: int = 200
    batch_size: int = 256
    lr: float = 0.002
    weight_decay: float = 0.0
    stopping: str = "valid_logloss"
    patience: int = 10
    checkpoint: Path | None = None
    report: Callable[[int, int, dict[str, float]], None] | None = None

    def __post_init__(self) -> None:
        self.rule, fixed = parse_stopping(self.stopping)
        if fixed is not None:
            self.epochs = fixed
        if min(self.epochs, self.batch_size, self.patience) < 1 or self.lr <= 0 or self.weight_decay < 0:
            raise DiagnosisError(
                f"epochs={self.epochs}, batch_size={self.batch_size}, patience={self.patience}, lr={self.lr} must "
                "be positive and "
                f"weight_decay={self.weight_decay} must not be negative"
            )

    def run(
        self,
        module: nn.Module,
        n: int,
        batch_loss: Callable[[Tensor], Tensor],
        validate: Callable[[], dict[str, float]],
        generator: torch.Generator,
        *,
        after_step: Callable[[], None] | None = None,
        before_epoch: Callable[[], None] | None = None,
        sparse: Iterable[nn.Parameter] = (),
        plateau: float = np.inf,
    ) -> tuple[NDArray[np.float64], int]:
        """Train in place and leave the module at its kept epoch.

        Parameters
        ----------
        module : Module
        n : int
            Training answers.
        batch_loss : callable
            Positions of a batch -> mean loss.
        validate : callable
            Figures of the validation answers, by the names in `HISTORY`.
        after_step, before_epoch : callable, optional
            Clipping of weights; new views of a graph.
        sparse : parameters
            Tables whose gradients are sparse.
        plateau : float
            Loss of a constant prediction.

        Returns
        -------
        float64[epochs, 4], int
            Figures after each epoch in the order of `HISTORY` (NaN where not computed), and the kept epoch, from 1.
        """
        rows = list(sparse)
        of_rows = {id(p) for p in rows}
        dense = [p for p in module.parameters() if id(p) not in of_rows]
        device = dense[0].device
        cpu = all(p.device.type == "cpu" for p in dense)
        optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam(dense, lr=self.lr, weight_decay=self.weight_decay, fused=cpu or None)
        ]
        if rows:
            optimizers.append(torch.optim.SparseAdam(rows, lr=self.lr))
        history: list[list[float]] = []
        best, best_epoch, kept, awake = np.inf, 0, None, 0
        if self.checkpoint is not None and self.checkpoint.is_file():
            stored = torch.load(self.checkpoint, weights_only=True, map_location="cpu")
            module.load_state_dict(stored["module"])
            for optimizer, state in zip(optimizers, stored["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            history, best, best_epoch, kept = stored["history"], stored["best"], stored["best_epoch"], stored["kept"]
            awake = stored["awake"]
            generator.set_state(stored["generator"])
            torch.set_rng_state(stored["dropout"])
            if device.type == "cuda":
                torch.cuda.set_rng_state(stored["dropout_gpu"], device)
        while len(history) < self.epochs and not self._over(len(history), best_epoch, awake):
            if before_epoch is not None:
                before_epoch()
            module.train()
            order = torch.randperm(n, generator=generator).to(device)
            total = torch.zeros((), device=device)
            for start in range(0, n, self.batch_size):
                batch = order[start : start + self.batch_size]
                for optimizer in optimizers:
                    optimizer.zero_grad(set_to_none=True)
                loss = batch_loss(batch)
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                if after_step is not None:
                    after_step()
                total += loss.detach() * len(batch)
            module.eval()
            figures = {"train_loss": float(total) / n, **validate()}
            history.append([figures.get(name, float("nan")) for name in HISTORY])
            loss_now = figures.get("valid_logloss", figures["train_loss"])
            if not awake and loss_now < 0.99 * plateau:
                awake = len(history)
            if not np.isfinite(figures["train_loss"]):
                raise DiagnosisError(
                    f"the training loss is {figures['train_loss']} after epoch {len(history)}; lower lr={self.lr}"
                )
            if self.rule == "fixed":
                best_epoch = len(history)
            else:
                figure = figures[self.rule]
                now = -figure if self.rule in ("valid_auc", "valid_doa") else figure
                better = now < best * (1 - 1e-3) if self.rule == "train_loss" else now < best
                if not np.isfinite(now):
                    raise DiagnosisError(
                        f"{self.rule} is undefined on the validation answers; choose another stopping rule"
                    )
                if better:
                    best, best_epoch = now, len(history)
                    if self.rule != "train_loss":
                        kept = {name: value.detach().clone() for name, value in module.state_dict().items()}
            if self.report is not None:
                self.report(len(history), self.epochs, figures)
            if self.checkpoint is not None:
                self._save(module, optimizers, history, best, best_epoch, kept, generator, awake)
        if kept is not None:
            module.load_state_dict(kept)
        if self.rule == "train_loss":
            best_epoch = len(history)
        return np.array(history), best_epoch

    def _over(self, done: int, best_epoch: int, awake: int) -> bool:
        return self.rule != "fixed" and awake > 0 and done - max(best_epoch, awake) >= self.patience

    def _save(
        self,
        module: nn.Module,
        optimizers: list[Any],
        history: Any,
        best: float,
        best_epoch: int,
        kept: Any,
        generator: Any,
        awake: int,
    ) -> None:
        assert self.checkpoint is not None
        part = self.checkpoint.with_name(f".{self.checkpoint.name}.part")
        device = next(module.parameters()).device
        state = {
            "module": module.state_dict(),
            "optimizers": [o.state_dict() for o in optimizers],
            "history": history,
            "best": float(best),
            "best_epoch": best_epoch,
            "kept": kept,
            "generator": generator.get_state(),
            "dropout": torch.get_rng_state(),
            "awake": awake,
        }
        if device.type == "cuda":
            state["dropout_gpu"] = torch.cuda.get_rng_state(device)
        torch.save(state, part)
        part.replace(self.checkpoint)


def parse_stopping(text: str) -> tuple[str, int | None]:
    """The rule's name, and the epochs of ``fixed(n)``.

    Raises
    ------
    UnknownName

    Examples
    --------
    >>> parse_stopping("fixed(20)"), parse_stopping("valid_auc")
    (('fixed', 20), ('valid_auc', None))
    """
    fixed = re.fullmatch(r"fixed\((\d+)\)", text.strip())
    if fixed:
        return "fixed", int(fixed[1])
    if text not in STOPPING:
        raise UnknownName.of("stopping rule", text, (*STOPPING, "fixed(20)"))
    return text, None
