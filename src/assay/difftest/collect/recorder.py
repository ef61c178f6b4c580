"""What is kept of a tensor that a hook hands over: nothing but a name where it was kept before, else a copy."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from assay.difftest.collect.values import version
from assay.difftest.names import RECOMPUTE, Name
from assay.difftest.samples import held_samples
from assay.difftest.shards import Index, ShardSpec, spec_of
from assay.difftest.sketch import digest
from assay.difftest.writer import Entry, Writer

_TWINS = ("in", "out", "gin", "gout")
_FORWARD = ("in", "out")
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_PLAIN = (Tensor, nn.Parameter)
SMALL = 1024  # elements; such tensors are kept whole at every level
SpecRule = tuple[str, "str | ShardSpec"]


class Recorder:
    """Keeps the tensors of one step at a time.

    Parameters
    ----------
    level : str
    coords : mapping
        Axis -> (position, size) of this rank.
    specs : sequence of (pattern, specification)
    world : int
    writer : Writer or None
    sink : callable or None
        ``(Entry, Tensor)``, in place of a writer.
    """

    def __init__(
        self, level: str, coords: Mapping[str, tuple[int, int]], specs: Sequence[SpecRule], *, world: int,
        writer: Writer | None, sink: Callable[[Entry, Tensor], Any] | None,
    ) -> None:  # fmt: skip
        self.level, self.coords, self.world, self.writer, self.sink = level, coords, world, writer, sink
        self.specs = [(re.compile(p), ShardSpec.parse(s) if isinstance(s, str) else s) for p, s in specs]
        self.recorded: dict[str, Entry] = {}
        self._order = 0
        self._seen: dict[int, tuple[Any, int, str]] = {}
        self._storages: dict[tuple[Any, ...], tuple[Any, Tensor | None, str, int]] = {}
        self._by_rule: dict[tuple[str, str, str], tuple[ShardSpec, str]] = {}
        self._places: dict[Any, tuple[tuple[int, ...], Index | None, Tensor | None]] = {}

    def begin(self) -> None:
        """Forget the last step."""
        self._order = 0
        for box in (self.recorded, self._seen, self._storages):
            box.clear()

    def same(self, tensor: Tensor) -> str | None:
        """Name under which this very tensor object was kept, whatever was written into it since."""
        seen = self._seen.get(id(tensor))
        return seen[2] if seen is not None and seen[0]() is tensor else None

    def changed(self, tensor: Tensor) -> bool:
        """Whether this very tensor object was kept, and was written into since."""
        seen = self._seen.get(id(tensor))
        return seen is not None and seen[0]() is tensor and seen[1] != version(tensor)

    def stands_for(self, tensor: Tensor, name: str) -> None:
        """Note a tensor object that holds what is kept under a name."""
        self._seen[id(tensor)] = (weakref.ref(tensor), version(tensor), name)

    def alias(self, name: str, target: str, spec: str = "", order: int | None = None) -> None:
        """Let a name stand for what is kept under another."""
        kept = self.recorded[target]
        self.recorded[name] = Entry(
            name, kept.order if order is None else order, kept.dtype, kept.shape, spec or kept.spec, kept.level,
            kept.full, alias=target,
        )  # fmt: skip

    def spec_for(self, name: Name, tensor: Tensor) -> ShardSpec:
        """The specification of a tensor: its own (DTensor), else that of the first rule."""
        return self._spec(name, tensor)[0]

    def _spec(self, name: Name, tensor: Tensor) -> tuple[ShardSpec, str]:
        carried = None if type(tensor) in _PLAIN else spec_of(tensor)
        if carried is not None:
            return carried, str(carried)
        key = (name.phase, name.module, name.slot)
        if key not in self._by_rule:
            text = f"{name.phase.removesuffix(RECOMPUTE)}/{name.module}/{name.slot}"
            rule = next((s for p, s in self.specs if p.search(text)), ShardSpec())
            self._by_rule[key] = (rule, str(rule))
        return self._by_rule[key]

    def record(
        self, name: Name, tensor: Tensor, spec: ShardSpec | None = None, *, exact: bool = False,
        full: Sequence[int] | None = None,
    ) -> str:  # fmt: skip
        """Keep a tensor; gives the name under which it is stored."""
        text = str(name)
        spec, written = (spec, str(spec)) if spec is not None else self._spec(name, tensor)
        self._order += 1
        now = version(tensor)
        twins = not exact and self._may_be_twin(name.phase)
        if twins:
            seen = self._seen.get(id(tensor))
            if seen is not None and seen[0]() is tensor and seen[1] == now:
                if seen[2] != text and seen[2] in self.recorded:
                    self.alias(text, seen[2], written if spec.placements else "", self._order)
                return seen[2]
        local = tensor.detach()
        if type(tensor) not in _PLAIN:
            if full is None and hasattr(tensor, "placements"):
                full = tuple(tensor.shape)
            if hasattr(local, "to_local"):
                local = local.to_local()
            if hasattr(local, "wait"):
                local = local.wait()
        if twins:
            twin = self._twin(text, local, name.phase in _FORWARD)
            if twin:
                self.alias(text, twin, written if spec.placements else "", self._order)
                self.stands_for(tensor, twin)
                return twin
        entry = Entry(
            text, self._order, _dtype_name(local.dtype), tuple(local.shape), written, self.level,
            tuple(full) if full is not None else None, exact=exact,
        )  # fmt: skip
        self.recorded[text] = entry
        self._seen[id(tensor)] = (weakref.ref(tensor), now, text)
        self._keep(entry, local, spec)
        return text

    def _may_be_twin(self, phase: str) -> bool:
        phase = phase.removesuffix(RECOMPUTE)
        return phase in _TWINS or (self.world == 1 and phase in ("grad", "main_grad"))

    def _twin(self, name: str, local: Tensor, forward: bool) -> str:
        """Name under which the same memory was recorded before, if it is still alive and still holds the same.

        A gradient passes unchanged from a module's input to the output of the one before it, as another tensor object.
        Autograd may add to it in place without a trace in the version counter, so that 64 elements are compared too
        (the forward pass has to count versions, since autograd depends on it).
        Parameters and what a reduction writes into are always recorded anew: an update may leave most elements alone.
        """
        n = local.numel()
        if n < 4096 or local.dtype in _FP8 or not local.is_contiguous():
            return ""
        key = (local.data_ptr(), local.shape, local.dtype)
        known = self._storages.get(key)
        now = version(local)
        few = None if forward else local.as_strided((64,), (n // 64,))
        if known is not None and not known[0].expired() and known[3] == now and known[2] in self.recorded:
            before = known[1]
            if few is None or before is None or torch.equal(before, few):
                return known[2]
        self._storages[key] = (
            StorageWeakRef(local.untyped_storage()), None if few is None else few.clone(), name, now
        )  # fmt: skip
        return ""

    def _keep(self, entry: Entry, local: Tensor, spec: ShardSpec) -> None:
        if entry.exact or self.sink is not None:
            entry.level = "full"
        if self.sink is not None:
            self.sink(entry, local)
            return
        assert self.writer is not None
        if entry.level != "full":
            shape, index, held = self._place(entry, spec)
            # by the size of the whole tensor: all ranks must hold it at one level
            if index is None:
                entry.level = "full"
        if entry.level == "full":
            self.writer.put(entry, *self.writer.copy(local), reuse=True)
            return
        entry.full = shape
        if held is not None:
            entry.stats = {"count": float(local.numel())}
            flat = local.reshape(-1)
            if local.is_cpu:
                self.writer.put(entry, flat.index_select(0, held))
            else:
                self.writer.put(entry, flat.index_select(0, held.to(local.device)).cpu())
            return
        made = digest(local, index)
        entry.stats = made.stats()
        self.writer.put(entry, made.sketch)

    def _place(self, entry: Entry, spec: ShardSpec) -> tuple[tuple[int, ...], Index | None, Tensor | None]:
        """Whole shape, where the local tensor lies (None: it is small and kept whole), and what a sample takes."""
        key = (entry.spec, entry.full, entry.shape)
        if key not in self._places:
            shape = entry.full or spec.full_shape(entry.shape, self.coords)
            index = spec.index(shape, self.coords) if math.prod(shape) > SMALL else None
            held = None
            if index is not None and self.level == "sample":
                held = torch.from_numpy(held_samples(index)[0])
            self._places[key] = (shape, index, held)
        return self._places[key]


_NAMES: dict[torch.dtype, str] = {}


def _dtype_name(dtype: torch.dtype) -> str:
    if dtype not in _NAMES:
        _NAMES[dtype] = str(dtype).removeprefix("torch.")
    return _NAMES[dtype]
