"""Settings of a training run, typed and checked where they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass

OPTIMIZERS = ("adam", "adamw", "sgd")
SCHEDULES = ("constant", "cosine", "linear", "step")


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    Parameters
    ----------
    epochs : int
    min_steps : int
        Go on for more epochs where these make fewer optimiser steps (few rows); needs batches of known number.
    lr : float
    optimizer : {"adam", "adamw", "sgd"}
    weight_decay, momentum : float
        Momentum is for SGD.
    schedule : {"constant", "cosine", "linear", "step"}
        Of the learning rate over all steps, after the warm-up; ``step`` multiplies by 0.2 after 30, 60 and 80 % of
        them.
    warmup : float
        Share of steps over which the rate rises from 0.
    clip_norm : float, optional
        Largest norm of the gradient.
    accumulate : int
        Batches that make one step.
    patience : int, optional
        Stop after so many epochs without a better validation value, and go back to the best weights.
    min_delta : float
        What counts as better.
    seed : int
        Of the order of the data and of all random numbers inside the model.
    device : str
        ``"cpu"``, or ``"auto"`` for what accelerate finds.
    precision : {"no", "bf16", "fp16"}
        Mixed precision.
    checkpoint_every : int
        Epochs between checkpoints, if there is a file for them.

    Raises
    ------
    ValueError
        If a setting is out of its range; the message names it.

    Examples
    --------
    >>> TrainConfig(lr=-1)
    Traceback (most recent call last):
    ValueError: lr is a finite number of at least 0, not -1
    """

    epochs: int = 100
    lr: float = 1e-3
    optimizer: str = "adam"
    weight_decay: float = 0.0
    momentum: float = 0.9
    schedule: str = "constant"
    warmup: float = 0.0
    clip_norm: float | None = None
    accumulate: int = 1
    patience: int | None = None
    min_delta: float = 0.0
    seed: int = 0
    device: str = "cpu"
    precision: str = "no"
    checkpoint_every: int = 1
    min_steps: int = 0

    def __post_init__(self) -> None:
        for name in ("lr", "weight_decay", "momentum", "min_delta"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is a finite number of at least 0, not {value}")
        for name, least in (("epochs", 0), ("min_steps", 0), ("accumulate", 1), ("checkpoint_every", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is at least {least}, not {getattr(self, name)}")
        for name, known in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("precision", ("no", "bf16", "fp16"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is one of {', '.join(known)}, not {getattr(self, name)!r}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is a share of the steps, at least 0 and below 1, not {self.warmup}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm is above 0, not {self.clip_norm}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience is at least 1, not {self.patience}")

    def rate(self, step: int, total: int) -> float:
        """Factor of the learning rate at a step of ``total``.

        >>> [round(TrainConfig(schedule="cosine", warmup=0.2).rate(s, 10), 2) for s in (0, 1, 2, 6, 9)]
        [0.5, 1.0, 1.0, 0.5, 0.04]
        """
        rising = round(self.warmup * total)
        if step < rising:
            return (step + 1) / rising
        done = (step - rising) / max(total - rising, 1)
        if self.schedule == "cosine":
            return (1 + math.cos(math.pi * done)) / 2
        if self.schedule == "linear":
            return 1 - done
        if self.schedule == "step":
            return float(0.2 ** sum(done >= at for at in (0.3, 0.6, 0.8)))
        return 1.0
