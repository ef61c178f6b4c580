"""Random numbers of torch from explicit seeds; the global state is as it was afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

T = TypeVar("T")


@contextmanager
def seeding(seed: int) -> Iterator[None]:
    """Within the block torch draws from this seed; the state outside is untouched."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def seeded(seed: int, make: Callable[[], T]) -> T:
    """What ``make`` gives, with torch's random numbers from this seed.

    >>> a, b = (seeded(3, lambda: torch.nn.Linear(2, 2)) for _ in range(2))
    >>> bool((a.weight == b.weight).all())
    True
    """
    with seeding(seed):
        return make()


def reset_parameters(model: nn.Module, seed: int) -> nn.Module:
    """Draw the weights anew, module by module (those that have ``reset_parameters``); returns the model."""
    with seeding(seed):
        for module in model.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
    return model
