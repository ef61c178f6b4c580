"""What every part needs to know, and a rank's part of a micro-batch."""

from __future__ import annotations

from torch import Tensor

from assay.difftest.shards import ShardSpec
from assay.difftest.tensors import Batch
from assay.difftest.testbed.bugs import Switches
from assay.difftest.testbed.config import Config, Layout
from assay.difftest.testbed.groups import Groups
from assay.difftest.testbed.ring import local_positions


class Job:
    """What every part needs to know: configuration, layout, groups, bugs."""

    def __init__(self, config: Config, layout: Layout, groups: Groups, bugs: Switches) -> None:
        self.config, self.layout, self.groups, self.bugs = config, layout, groups, bugs
        self.tp = layout.tp
        self.sp = layout.sp and layout.tp > 1
        self.coords = groups.coords
        self.sequence_axis = "s" + _brackets(["cp:zigzag"] * (layout.cp > 1) + ["tp"] * self.sp)
        self.plain_axis = "s" + _brackets(["cp:zigzag"] * (layout.cp > 1))


def _brackets(cuts: list[str]) -> str:
    return f"[{','.join(cuts)}]" if cuts else ""


class LocalMicro:
    """A rank's part of a micro-batch: its sequences, its tokens in zigzag order; documents of the whole."""

    def __init__(
        self, job: Job, batch: Batch, index: int, *, step: int = 0, routing: dict[str, Tensor] | None = None
    ) -> None:
        self.index, self.step = index, step
        spec = ShardSpec.parse(f"b[dp] {job.plain_axis}")
        coords = job.coords
        self.tokens, self.labels, self.mask, self.position = (
            spec.cut(t[index], coords) for t in (batch.tokens, batch.labels, batch.mask, batch.position)
        )
        self.document = ShardSpec.parse("b[dp] s").cut(batch.document[index], coords)
        self.count = batch.count
        # tokens of the step on this rank, as a local normalisation would count them
        self.local_count = int(ShardSpec.parse(f"m b[dp] {job.plain_axis}").cut(batch.mask, coords).sum())
        self.microbatches = batch.tokens.shape[0]
        self.padding_count = int((batch.document[index] >= 0).sum())
        self.routing = routing or {}

    def valid(self, job: Job, *, sequence_parallel: bool) -> Tensor:
        """Tokens that are no padding, of this rank's (sequence-parallel) part."""
        at, size = job.groups.axis("cp")
        here = self.document[:, local_positions(self.document.shape[1], at, size)] >= 0
        if sequence_parallel:
            part = job.groups.axis("tp")[0]
            if job.bugs.on(19):
                part = job.groups.axis("dp")[0] % job.tp
            here = here.chunk(job.tp, 1)[part]
        return here
