"""A log of what goes through `torch.distributed` while a trace is active, tied to the module that asked for it."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# operation -> position of the tensor that is sent, of the one that receives
_OPERATIONS = {
    "all_reduce": (0, 0), "reduce_scatter_tensor": (1, 0), "all_gather_into_tensor": (1, 0), "all_gather": (1, None),
    "reduce_scatter_single": (1, 0), "all_gather_single": (1, 0), "reduce_scatter": (None, 0),
    "all_to_all_single": (1, 0), "all_to_all": (None, None), "broadcast": (0, 0),
    "reduce": (0, 0), "send": (0, None), "recv": (None, 0), "isend": (0, None), "irecv": (None, None),
    "batch_isend_irecv": (None, None),
}  # fmt: skip


class CollectiveLog:
    """Wraps the functions of `torch.distributed` between `start` and `stop`.

    Each entry holds: operation, ranks of the group, reduction, dtype, bytes, norms before and after (after only where
    the call waited), and the module on top of the stack.
    """

    def __init__(self, where: Callable[[], str]) -> None:
        self._where = where
        self._originals: dict[str, Any] = {}
        self._depth = 0
        self.entries: list[dict[str, Any]] = []

    def start(self) -> None:
        """Put the wrappers in place."""
        if not dist.is_available() or not dist.is_initialized():
            return
        for name, places in _OPERATIONS.items():
            original = getattr(dist, name, None)
            if original is not None and name not in self._originals:
                self._originals[name] = original
                setattr(dist, name, self._wrapped(name, original, *places))

    def stop(self) -> None:
        """Take them out again."""
        for name, original in self._originals.items():
            setattr(dist, name, original)
        self._originals.clear()

    def _wrapped(self, name: str, original: Any, sent: int | None, received: int | None) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return original(*args, **kwargs)
            self._depth += 1
            try:
                source = _argument(args, kwargs, sent)
                entry: dict[str, Any] = {
                    "op": name,
                    "module": self._where(),
                    "group": _ranks(
                        kwargs.get("group") or next((a for a in args if isinstance(a, dist.ProcessGroup)), None)
                    ),
                    "reduce": str(kwargs.get("op", "")).split(".")[-1].lower(),
                }
                if isinstance(source, Tensor):
                    entry["dtype"] = str(source.dtype).removeprefix("torch.")
                    entry["bytes"] = source.numel() * source.element_size()
                    entry["before"] = _norm(source)
                self.entries.append(entry)
                result = original(*args, **kwargs)
                target = _argument(args, kwargs, received)
                if isinstance(target, Tensor) and not kwargs.get("async_op") and name != "isend":
                    entry["after"] = _norm(target)
                return result
            finally:
                self._depth -= 1

        return call


def _argument(args: Any, kwargs: Mapping[str, Any], place: int | None) -> Any:
    if place is None:
        return None
    if place < len(args):
        return args[place]
    names = ("output", "output_tensor") if place == 0 else ("input", "input_tensor", "tensor")
    return next((kwargs[k] for k in (*names, "tensor") if k in kwargs), None)


def _ranks(group: Any) -> list[int]:
    try:
        return list(dist.get_process_group_ranks(group if group is not None else dist.group.WORLD))
    except (RuntimeError, KeyError, ValueError):
        return []


def _norm(tensor: Tensor) -> float:
    with torch.no_grad():
        flat = tensor.detach()
        flat = flat.float() if flat.element_size() == 1 or not flat.is_floating_point() else flat
        return float(torch.linalg.vector_norm(flat, dtype=torch.float32 if flat.dtype != torch.float64 else None))


def profile(entries: Iterable[Mapping[str, Any]], rank: int = 0) -> dict[str, Counter[tuple[str, int]]]:
    """Module -> how often it asked for which operation over how many ranks, on one rank."""
    found: dict[str, Counter[tuple[str, int]]] = defaultdict(Counter)
    for e in entries:
        if e.get("rank", rank) == rank:
            found[e["module"]][(e["op"], len(e["group"]))] += 1
    return dict(found)


def odd_ones(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Modules whose collectives differ from those of the same module in other layers.

    Layers of one kind must communicate alike; one that has an operation less (or more, or over a group of another
    size) than most is named.

    Examples
    --------
    >>> log = [{"module": f"layers.{i}.proj", "op": "all_reduce", "group": [0, 1], "rank": 0} for i in (0, 1, 3)]
    >>> log += [{"module": f"layers.{i}.norm", "op": "broadcast", "group": [0, 1], "rank": 0} for i in (0, 1, 2, 3)]
    >>> odd_ones(log)
    ['layers.2.proj: no all_reduce over 2 ranks, the same module of layers 0, 1, 3 has 1']
    """
    import re

    by_rank: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for e in entries:
        by_rank[e.get("rank", 0)].append(e)
    notes: list[str] = []
    for rank, own in sorted(by_rank.items()):
        found = profile(own, rank)
        kinds: dict[str, dict[int, Counter[tuple[str, int]]]] = defaultdict(dict)
        layers: set[int] = set()
        for module, counts in found.items():
            match = re.search(r"layers\.(\d+)", module)
            if match:
                kinds[module[: match.start(1)] + "{}" + module[match.end(1) :]][int(match[1])] = counts
                layers.add(int(match[1]))
        for kind, per_layer in kinds.items():
            for operation in {o for c in per_layer.values() for o in c}:
                by_layer = {layer: per_layer.get(layer, Counter())[operation] for layer in sorted(layers)}
                usual, votes = Counter(by_layer.values()).most_common(1)[0]
                odd = [layer for layer, n in by_layer.items() if n != usual]
                if len(odd) != 1 or votes < 2:
                    continue
                others = ", ".join(str(layer) for layer in by_layer if layer not in odd)
                n = by_layer[odd[0]]
                note = (
                    f"{kind.format(odd[0])}: {n or 'no'} {operation[0]} over {operation[1]} ranks, the same module of "
                    f"layers {others} has {usual}"
                )
                if note not in notes:
                    notes.append(note)
    return notes
