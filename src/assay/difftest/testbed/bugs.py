"""The bugs that the test bed can have: 14 of the list that the method was published with, and 12 more public ones.

Each is one switch. Sources are public issues and pull requests; where the entry of the published list could not be
identified in public text, ``source`` says so and the bug is our candidate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from assay.difftest.errors import DiffTestError
from assay.difftest.testbed.config import Config, Layout

COMPUTE, COMMUNICATION, MISSING = "wrong computation", "wrong communication", "missing communication"


@dataclass(frozen=True)
class Bug:
    """One injected bug.

    Attributes
    ----------
    number : int
    title : str
    axis : str
    kind : str
        ``wrong computation``, ``wrong communication`` or ``missing communication``.
    source : str
    first : str
        Regular expression for ``phase/module/slot`` of the first wrong tensor.
    diagnoses : tuple of str
        Diagnoses that are right.
    layout : Layout
        The smallest layout that shows it.
    config : dict
        Changes of the default configuration.
    """

    number: int
    title: str
    axis: str
    kind: str
    source: str
    first: str
    diagnoses: tuple[str, ...]
    layout: Layout
    config: dict[str, Any] = field(default_factory=dict)

    def settings(self, **changes: Any) -> Config:
        """The configuration that shows it."""
        return Config(**{**self.config, **changes})


_MOE = {"experts": 8, "ffn": 64}
BUGS: dict[int, Bug] = {
    b.number: b
    for b in [
        Bug(1, "vocabulary-parallel embedding masks the first id of each shard", "TP", COMPUTE,
            "in the published table as far as known; no public number found",
            r"out/embedding/", ("wrong rows",), Layout(tp=2)),
        Bug(2, "uniform recompute feeds every layer of a chunk with the chunk's input", "AR", COMPUTE,
            "Megatron-LM commits fc2c81d3 and 6771c773",
            r"in/layers\.1(\.norm1)?/", ("wrong input", "wrong value"), Layout(recompute="chunk")),
        Bug(3, "loss multiplied by the context-parallel size", "CP", COMPUTE, "Megatron-LM#673",
            r"(gout/loss|loss/model)/", ("scale",), Layout(cp=2)),
        Bug(4, "gradients divided by the data-parallel size without context parallelism", "DP", COMPUTE,
            "Megatron-LM#906", r"main_grad/", ("scale",), Layout(dp=2, cp=2)),
        Bug(5, "tied head and embedding updated from separate optimizer shards", "ZeRO", COMPUTE, "Megatron-LM#656",
            r"(param_after|optim\.\w+)/embedding/weight", ("untied",), Layout(dp=2, pp=2, zero=True), {"tied": True}),
        Bug(6, "router weight's gradient not reduced over the tensor-parallel group", "SP+MoE", MISSING,
            "Megatron-LM#599", r"main_grad/layers\.\d\.mlp\.router/weight", ("missing reduction",),
            Layout(tp=2, sp=True), _MOE),
        Bug(7, "parameters gathered before the optimizer has written them", "ZeRO", MISSING, "Megatron-LM#663",
            r"param_after/", ("not updated",), Layout(dp=2, zero=True)),
        Bug(8, "stage split drops the layers that are over", "PP", COMPUTE, "Megatron-LM#1304",
            r"(param|in)/layers\.4", ("missing layers",), Layout(pp=2), {"layers": 5}),
        Bug(9, "FP8 amax reduced over the data-parallel group instead of the tensor-parallel one", "TP+SP+FP8",
            COMMUNICATION, "Megatron-LM PR#442, TransformerEngine#335",
            r"mark/layers\.0\.attention\.qkv/scale_x", ("wrong amax group",), Layout(tp=2, dp=2, sp=True),
            {"dtype": "fp8"}),
        Bug(10, "FP8 recompute uses the updated scale instead of the saved one", "AR+FP8", COMPUTE,
            "TransformerEngine PR#1254, PR#1723", r"(mark|out)\+recompute/layers\.\d\.", ("recompute differs",),
            Layout(recompute="layer"), {"dtype": "fp8"}),
        Bug(11, "gather buffer reused before the weight gradient has read it", "TP overlap", COMMUNICATION,
            "our candidate: TransformerEngine#1616", r"grad/layers\.\d\.(attention\.qkv|mlp\.fc1)/weight",
            ("wrong weight gradient",), Layout(tp=2, sp=True)),
        Bug(12, "final layer norm's gradient not reduced over the tensor-parallel group", "TP+SP", MISSING,
            "Megatron-LM#1446", r"main_grad/final_norm/", ("missing reduction",), Layout(tp=2, sp=True)),
        Bug(13, "ring attention's backward uses the softmax statistics of the previous step", "CP", COMPUTE,
            "Megatron-LM#1464, TransformerEngine#1557", r"gin/layers\.3\.attention\.core/",
            ("wrong value", "wrong rows"),
            Layout(cp=2)),
        Bug(14, "fused gradient accumulation adds the first micro-batch twice", "DP overlap", COMPUTE,
            "not identified in public text; our candidate", r"main_grad/", ("accumulation",), Layout(dp=2)),
        Bug(15, "label smoothing uses the statistics of the local vocabulary shard", "TP", MISSING, "Megatron-LM#737",
            r"out/loss/", ("missing reduction",), Layout(tp=2), {"smoothing": 0.1}),
        Bug(16, "gradient norm counts the sharded attention sinks on rank 0 only", "TP", COMPUTE,
            "Megatron-LM#7452, finding 8", r"gnorm/", ("norm counts",), Layout(tp=2), {"sinks": True}),
        Bug(17, "masked loss normalised by the tokens of the rank", "CP", COMPUTE, "Megatron-LM#7452, finding 9",
            r"(gout/loss|loss/model)/", ("scale by rank", "scale"), Layout(cp=2)),
        Bug(18, "gradient of the router's auxiliary loss multiplied by the tensor-parallel size", "MoE", COMPUTE,
            "Megatron-LM#5047, #2237", r"(gin/layers\.3\.mlp\.router|grad/layers\.3\.mlp\.router|mark/.*auxiliary)/?",
            ("scale", "wrong value"), Layout(tp=2, sp=True), _MOE),
        Bug(19, "padding mask cut by the position in the wrong group", "SP+MoE", COMPUTE,
            "Megatron-LM#7452, finding 5", r"(out|mark)/layers\.0\.mlp\.router/", ("wrong rows",),
            Layout(tp=2, dp=2, sp=True), _MOE),
        Bug(20, "gradients not reduced between two optimizer instances", "DP", MISSING, "Megatron-LM#3670",
            r"main_grad/", ("missing reduction",), Layout(dp=4)),
        Bug(21, "FSDP divides gradients by the wrong size", "FSDP", COMPUTE, "Megatron-LM#3023", r"(main_)?grad/",
            ("scale",), Layout(dp=2, fsdp=True)),
        Bug(22, "SwiGLU weight cut across gate and up when the tensor-parallel size changes", "TP", COMPUTE,
            "Megatron-LM PR#520", r"param/layers\.0\.mlp\.fc1/", ("permutation",), Layout(tp=2)),
        Bug(23, "dropout drops the same elements on all tensor-parallel ranks", "TP", COMPUTE,
            "public fault class; no single number", r"out/layers\.0\.mlp\.drop/", ("wrong rows", "wrong mask"),
            Layout(tp=2), {"dropout": 0.1}),
        Bug(24, "a parameter without gradient keeps its bucket from being reduced", "DP", MISSING,
            "public fault class; no single number", r"main_grad/", ("missing reduction",), Layout(dp=2),
            {"unused": True}),
        Bug(25, "norm gradients reduced before the last micro-batch is added", "TP+SP", MISSING, "gpt-neox PR#1259",
            r"main_grad/.*norm", ("missing reduction",), Layout(tp=2, sp=True)),
        Bug(26, "causal mask off by one between the chunks of a zigzag", "CP", COMPUTE,
            "public fault class; no single number", r"out/layers\.0\.attention\.core/", ("wrong rows", "wrong mask"),
            Layout(cp=2)),
    ]
}  # fmt: skip


class Switches:
    """Which bugs are on.

    >>> Switches(12).on(12), Switches(None).on(12)
    (True, False)
    """

    def __init__(self, bug: int | Iterable[int] | None = None) -> None:
        numbers = [] if bug is None else [bug] if isinstance(bug, int) else list(bug)
        for number in numbers:
            if number not in BUGS:
                raise DiffTestError(f"there is no bug {number}; there are 1 to {max(BUGS)}")
        self._on = frozenset(numbers)

    def on(self, number: int) -> bool:
        """Whether a bug is on."""
        return number in self._on
