"""The order of forward and backward passes over pipeline stages, with activations sent from rank to rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from assay.difftest.testbed.parallel import LocalMicro, Stages


def order_1f1b(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """One forward, one backward, after a warm-up (Narayanan et al., "PipeDream", 2019).

    >>> order_1f1b(0, 2, 3)
    [('F', 0), ('F', 1), ('B', 0), ('F', 2), ('B', 1), ('B', 2)]
    """
    warm = min(stages - 1 - stage, microbatches)
    events = [("F", m) for m in range(warm)]
    for i in range(microbatches - warm):
        events += [("F", warm + i), ("B", i)]
    return events + [("B", m) for m in range(microbatches - warm, microbatches)]


class Pipeline:
    """Runs the chunks of this rank over all micro-batches."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        job = stages.job
        self.groups, self.layout, self.config = job.groups, job.layout, job.config
        self.total = self.layout.pp * self.layout.vpp
        self.inputs: dict[tuple[int, int], Tensor | None] = {}
        self.outputs: dict[tuple[int, int], Tensor] = {}
        self.works: list[Any] = []
        self.loss = 0.0

    def events(self) -> list[tuple[str, int, int]]:
        """(pass, micro-batch, chunk number) in this rank's order."""
        m = self.config.microbatches
        if self.layout.vpp == 1 and self.layout.schedule == "1f1b":
            at = self.groups.axis("pp")[0]
            return [(kind, i, at) for kind, i in order_1f1b(at, self.layout.pp, m)]
        forward = [("F", i, n) for i in range(m) for n in self.stages.numbers]
        return forward + [("B", i, n) for i in range(m) for n in reversed(self.stages.numbers)]

    def run(self, micros: list[LocalMicro], tracer: Any = None) -> float:
        """All passes of a step; gives this rank's share of the loss."""
        for kind, i, number in self.events():
            if kind == "F":
                self._forward(micros[i], i, number)
            else:
                self._backward(i, number)
        for work in self.works:
            work.wait()
        self.works.clear()
        return self.loss

    def _rank_of(self, number: int) -> int:
        return self.groups.members("pp")[number % self.layout.pp]

    def _shape(self) -> tuple[int, int, int]:
        c, layout = self.config, self.layout
        seq = c.seq // layout.cp // (layout.tp if self.stages.job.sp else 1)
        return c.batch // layout.dp, seq, c.width

    def _receive(self, number: int, tag: int) -> Tensor:
        x = torch.empty(self._shape(), dtype=self.config.torch_dtype)
        dist.recv(x, self._rank_of(number), group=self.groups["pp"], tag=tag)
        return x

    def _send(self, x: Tensor, number: int, tag: int) -> None:
        x = x.detach().contiguous()
        self.works.append(dist.isend(x, self._rank_of(number), group=self.groups["pp"], tag=tag))
        self.works.append(_Kept(x))

    def _forward(self, micro: LocalMicro, i: int, number: int) -> None:
        chunk = self.stages.chunks[self.stages.numbers.index(number)]
        x = None
        if number > 0:
            local = self.layout.pp == 1
            x = self.outputs[i, number - 1].detach() if local else self._receive(number - 1, 1000 * i + 2 * number)
            x.requires_grad_()
        y = chunk(x, micro)
        self.inputs[i, number], self.outputs[i, number] = x, y
        if number < self.total - 1:
            if self.layout.pp > 1:
                self._send(y, number + 1, 1000 * i + 2 * (number + 1))
        else:
            self.loss += float(y.detach())

    def _backward(self, i: int, number: int) -> None:
        y = self.outputs.pop((i, number))
        if number == self.total - 1:
            y.backward()
        else:
            local = self.layout.pp == 1
            gradient = self._gradient.pop(i) if local else self._receive(number + 1, 1000 * i + 2 * (number + 1) + 1)
            y.backward(gradient)
        x = self.inputs.pop((i, number))
        if number > 0 and x is not None and x.grad is not None:
            if self.layout.pp > 1:
                self._send(x.grad, number - 1, 1000 * i + 2 * number + 1)
            else:
                self._gradient[i] = x.grad

    @property
    def _gradient(self) -> dict[int, Tensor]:
        return self.__dict__.setdefault("_gradients", {})


class _Kept:
    """Holds a tensor that is being sent until the step is over."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def wait(self) -> None:
        """Nothing to wait for."""
