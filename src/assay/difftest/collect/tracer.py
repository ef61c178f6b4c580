"""The collector: module hooks, gradient hooks, the optimizer, marked tensors and collectives of one step."""

from __future__ import annotations

import dataclasses
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from assay.difftest.collect.paths import mapped_modules, mapped_parameters
from assay.difftest.collect.recorder import Recorder, SpecRule
from assay.difftest.collect.values import Replaced, coords_of, in_backward, mapped, rank_world
from assay.difftest.collectives import CollectiveLog
from assay.difftest.errors import DiffTestError
from assay.difftest.names import RECOMPUTE, Name, NameMap, preset
from assay.difftest.shards import ShardSpec
from assay.difftest.writer import Entry, Writer

LEVELS = ("digest", "sample", "full")
_ACTIVE: list[Tracer] = []


def mark(
    name: str, tensor: Any, spec: str | ShardSpec | None = None, *, exact: bool = False, grad: bool = False,
    full: Sequence[int] | None = None,
) -> Any:  # fmt: skip
    """Trace a tensor inside functional code; nothing happens where no trace is active.

    Parameters
    ----------
    name : str
        ``loss`` and ``gnorm`` are phases of their own; other names are slots of the module that is running.
    tensor : Tensor or float
    spec : str or ShardSpec, optional
    exact : bool
        Copies and values must be equal bit for bit (FP8 scales, seeds, chosen experts).
    grad : bool
        Trace the gradient too (``name.grad``).
    full : sequence of int, optional
        The whole shape, where the specification does not tell it (uneven cuts).

    Returns
    -------
    The tensor.

    Examples
    --------
    >>> mark("router_logits", torch.zeros(2, 8), "t[sp] e").shape
    torch.Size([2, 8])
    """
    for tracer in _ACTIVE:
        tracer.mark(name, tensor, spec, exact=exact, grad=grad, full=full)
    return tensor


def trace(
    model: nn.Module | Sequence[nn.Module], out: str | Path, *, mesh: Any = None, names: str | NameMap | None = None,
    specs: Sequence[SpecRule] = (), level: str = "full", step: int = 0, every: int = 1, optimizer: Any = None,
    include: Sequence[str] = (), exclude: Sequence[str] = (), microbatches: int | None = None,
    collectives: bool = True, meta: Mapping[str, Any] | None = None, fsync: bool = False, sink: Any = None,
    replace_inputs: Any = None, **constants: int,
) -> Tracer:  # fmt: skip
    """Trace the steps of a model that run inside the ``with`` block.

    Parameters
    ----------
    model : Module or sequence of Module
        The model, or the chunks of a pipeline stage (their paths then begin with ``chunk0.``, ``chunk1.``, ...).
    out : path
        Folder of the trace; every rank writes its own files there.
    mesh : DeviceMesh or mapping of axis -> (position, size), optional
        Where this rank stands.
    names : str or NameMap, optional
        How the paths of this model become those of the reference: a preset (`names.preset`) or a map of your own.
    specs : sequence of (pattern, specification)
        For tensors that are no DTensors. A pattern is searched in ``phase/module/slot`` (canonical); the first counts.
    level : str
        ``full`` keeps tensors, ``sample`` 1024 elements of each, ``digest`` 4 KB sketches.
    step : int
        Number of the first step.
    every : int
        Trace each n-th step only; the others run without hooks (`Tracer.next_step` between steps).
    optimizer : Optimizer, optional
        Then gradients before and parameters and states after its step are traced.
    include, exclude : sequence of str
        Patterns searched in canonical module paths.
    microbatches : int, optional
        Forward passes a step. With it, gradients are kept once, after the last; without, after each.
    collectives : bool
        Log what goes through `torch.distributed`.
    meta : mapping, optional
        Facts kept with the trace (tokens, seed, layout).
    fsync : bool
    sink : callable, optional
        ``(Entry, Tensor)`` instead of files.
    replace_inputs : Trace, optional
        The reference. Every module is then fed the reference's inputs and output gradients in place of those that
        arrive, so that each is judged by itself and an error does not spread.
    **constants : int
        For the preset of names.

    Returns
    -------
    Tracer
        A context manager.

    Examples
    --------
    >>> import tempfile
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with trace(model, tempfile.mkdtemp(), optimizer=optimizer) as t:
    ...     mark("loss", model(torch.ones(2, 4)).sum()).backward()
    ...     optimizer.step()
    >>> sorted({name.split("/")[2] for name in t.recorded})
    ['gin', 'gout', 'grad', 'in', 'loss', 'main_grad', 'out', 'param', 'param_after']
    """
    return Tracer(
        model, out, mesh=mesh, names=names, specs=specs, level=level, step=step, every=every, optimizer=optimizer,
        include=include, exclude=exclude, microbatches=microbatches, collectives=collectives, meta=meta, fsync=fsync,
        sink=sink, replace_inputs=replace_inputs, **constants,
    )  # fmt: skip


class Tracer:
    """What `trace` returns; see there."""

    def __init__(
        self, model: nn.Module | Sequence[nn.Module], out: str | Path, *, mesh: Any = None,
        names: str | NameMap | None = None, specs: Sequence[SpecRule] = (), level: str = "full", step: int = 0,
        every: int = 1, optimizer: Any = None, include: Sequence[str] = (), exclude: Sequence[str] = (),
        microbatches: int | None = None, collectives: bool = True, meta: Mapping[str, Any] | None = None,
        fsync: bool = False, sink: Any = None, replace_inputs: Any = None, **constants: int,
    ) -> None:  # fmt: skip
        if level not in LEVELS:
            raise DiffTestError(f"there is no level {level!r}; there are {', '.join(LEVELS)}")
        self.models = [model] if isinstance(model, nn.Module) else list(model)
        prefixes = [""] if isinstance(model, nn.Module) else [f"chunk{v}." for v in range(len(self.models))]
        self.coords = coords_of(mesh)
        self.names = preset(names, **constants) if isinstance(names, str) else names or NameMap()
        self.level, self.step, self.every, self.optimizer = level, step, every, optimizer
        self.include = [re.compile(p) for p in include]
        self.exclude = [re.compile(p) for p in exclude]
        self.microbatches = microbatches
        self.notes: list[str] = []
        self._replace = replace_inputs
        self._known = set(replace_inputs.names()) if replace_inputs is not None else set()
        rank, world = rank_world()
        self._meta = {"microbatches": microbatches, "level": level, **(meta or {})}
        self._writer = None if sink else Writer(out, rank, world, self.coords, meta=self._meta, fsync=fsync)
        self._kept = Recorder(level, self.coords, specs, world=world, writer=self._writer, sink=sink)
        self._log = CollectiveLog(self._where) if collectives else None
        self._first_step = step
        chunks = list(zip(prefixes, self.models))
        self._modules = mapped_modules(chunks, self.names, self._wanted, self.notes)
        self._parameters = mapped_parameters(chunks, self.names, self._wanted)
        self._handles: list[Any] = []
        self._forwards = [0] * len(self.models)
        self._explicit: int | None = None
        self._backward_microbatch: int | None = None
        self._calls: dict[tuple[str, int | None, bool], int] = {}
        self._stack: list[tuple[str, int | None, int, bool]] = []
        self._last_gradient = ""
        self._gradients: dict[int, tuple[Any, str]] = {}
        self._aliases: list[tuple[str, str]] = []
        self._accumulated: dict[int, int] = {}
        self._stepped = False

    @property
    def recorded(self) -> dict[str, Entry]:
        """What was kept in this step."""
        return self._kept.recorded

    def _wanted(self, name: str) -> bool:
        if self.include and not any(p.search(name) for p in self.include):
            return False
        return not any(p.search(name) for p in self.exclude)

    def _where(self) -> str:
        if in_backward():
            return f"after gout of {self._last_gradient}" if self._last_gradient else "backward"
        return self._stack[-1][0] if self._stack else ""

    # --- the with block ------------------------------------------------------------------------------------------

    def __enter__(self) -> Tracer:
        _ACTIVE.append(self)
        self._begin()
        return self

    def __exit__(self, kind: Any, *rest: Any) -> None:
        _ACTIVE.remove(self)
        try:
            if kind is None:
                self._end()
        finally:
            self._remove()
            if self._writer is not None:
                self._writer.close()

    def next_step(self) -> None:
        """Finish the step and begin the next one (which is traced if its number is a multiple of ``every``)."""
        self._end(wait=False)
        self._remove()
        self.step += 1
        self._begin()

    @property
    def tracing(self) -> bool:
        """Whether the present step is traced."""
        return (self.step - self._first_step) % self.every == 0

    def _begin(self) -> None:
        self._stepped = False
        self._forwards = [0] * len(self.models)
        self._last_gradient = ""
        self._kept.begin()
        for box in (self._calls, self._gradients, self._accumulated):
            box.clear()
        self._stack.clear()
        self._aliases.clear()
        if not self.tracing:
            return
        for i, model in enumerate(self.models):
            self._handles.append(model.register_forward_pre_hook(self._count(i), prepend=True))
        for module, path in self._modules:
            self._handles.append(module.register_forward_pre_hook(self._before(path), with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._after(path), with_kwargs=True))
        for name, parameter in self._parameters.items():
            self._parameter("param", name, parameter)
            if parameter.requires_grad:
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._accumulate(name)))
        if self.optimizer is not None and hasattr(self.optimizer, "register_step_pre_hook"):
            self._handles.append(self.optimizer.register_step_pre_hook(lambda *_: self.before_step()))
            self._handles.append(self.optimizer.register_step_post_hook(lambda *_: self.after_step()))
        self._patch_norm()
        if self._log is not None:
            self._log.start()

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove() if hasattr(handle, "remove") else handle()
        self._handles.clear()
        if self._log is not None:
            self._log.stop()

    def _end(self, *, wait: bool = True) -> None:
        if not self.tracing:
            return
        if not self._stepped:
            self.before_step()
        for alias, target in self._aliases:
            if target in self.recorded and alias not in self.recorded:
                self._kept.alias(alias, target)
        if self._writer is not None:
            collectives = self._log.entries if self._log is not None else []
            self._writer.finish(
                self.step, list(self.recorded.values()), wait=wait, collectives=collectives, notes=list(self.notes)
            )
        if self._log is not None:
            self._log.entries = []

    @contextmanager
    def microbatch(self, index: int) -> Iterator[None]:
        """Say which micro-batch the enclosed passes are of, where counting forward passes does not tell."""
        before, self._explicit = self._explicit, index
        try:
            yield
        finally:
            self._explicit = before

    # --- hooks ---------------------------------------------------------------------------------------------------

    def _count(self, which: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            if not in_backward():
                self._forwards[which] += 1
                self._calls.clear() if which == 0 else None
            self._current = self._forwards[which] - 1

        return hook

    def _microbatch(self) -> int | None:
        if self._explicit is not None:
            return self._explicit
        if in_backward():
            return self._backward_microbatch
        return getattr(self, "_current", 0)

    def _before(self, path: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            again = in_backward()
            microbatch = self._microbatch()
            key = (path, microbatch, again)
            call = self._calls.get(key, 0)
            self._calls[key] = call + 1
            self._stack.append((path, microbatch, call, again))
            changed = False

            def visit(slot: str, tensor: Tensor) -> Tensor:
                nonlocal changed
                name = Name(self.step, microbatch, "in" + (RECOMPUTE if again else ""), path, slot, call)
                value = self._replacement(name, tensor)
                if value is not None:
                    tensor, changed = Replaced.apply(tensor, value), True
                stored = self._kept.record(name, tensor)
                if torch.is_grad_enabled() and tensor.requires_grad and type(tensor) is not nn.Parameter:
                    view = tensor.view_as(tensor)
                    self._gradient_hook(Name(self.step, microbatch, "gin", path, slot, call), view)
                    self._kept.stands_for(view, stored)
                    changed = True
                    return view
                return tensor

            new_args = tuple(mapped(a, str(i), visit) for i, a in enumerate(args))
            new_kwargs = {k: mapped(v, k, visit) for k, v in kwargs.items()}
            return (new_args, new_kwargs) if changed else None

        return hook

    def _after(self, path: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if not self._stack or self._stack[-1][0] != path:
                while self._stack and self._stack[-1][0] != path:  # a module inside raised and was caught
                    self._stack.pop()
                if not self._stack:
                    return
            _, microbatch, call, again = self._stack.pop()
            for i, arg in enumerate(args):
                if isinstance(arg, Tensor) and self._kept.changed(arg):
                    note = f"{path} changes its input {i} in place"
                    if note not in self.notes:
                        self.notes.append(note)

            def visit(slot: str, tensor: Tensor) -> Tensor:
                name = Name(self.step, microbatch, "out" + (RECOMPUTE if again else ""), path, slot, call)
                self._kept.record(name, tensor)
                if torch.is_grad_enabled() and tensor.requires_grad:
                    self._gradient_hook(Name(self.step, microbatch, "gout", path, slot, call), tensor)
                return tensor

            if isinstance(output, (tuple, list)):
                for i, item in enumerate(output):
                    mapped(item, str(i), visit)
            elif isinstance(output, Mapping):
                for k, item in output.items():
                    mapped(item, str(k), visit)
            else:
                mapped(output, "0", visit)

        return hook

    def _gradient_hook(self, name: Name, tensor: Tensor) -> None:
        known = self._gradients.get(id(tensor))
        text = str(name)
        if known is not None and known[0]() is tensor:
            self._aliases.append((text, known[1]))
            return
        self._gradients[id(tensor)] = (weakref.ref(tensor), text)

        def hook(gradient: Tensor) -> Tensor | None:
            if text in self.recorded:  # both passes of a checkpointed part have hooks; the first to fire counts
                return None
            self._backward_microbatch = name.microbatch
            self._last_gradient = name.module
            self._kept.record(name, gradient)
            return self._replacement(name, gradient) if name.phase == "gout" else None

        tensor.register_hook(hook)

    def _replacement(self, name: Name, tensor: Tensor) -> Tensor | None:
        """The reference's value of an input or gradient, cut for this rank."""
        if self._replace is None:
            return None
        text = str(name.first_pass())
        if text not in self._known or not tensor.is_floating_point():
            return None
        value = self._kept.spec_for(name, tensor).cut(self._replace.tensor(text), self.coords)
        if tuple(value.shape) != tuple(tensor.shape):
            return None
        return value.to(dtype=tensor.dtype, device=tensor.device)

    def _accumulate(self, name: str) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            n = self._accumulated.get(id(parameter), 0) + 1
            self._accumulated[id(parameter)] = n
            if parameter.grad is None:
                return
            if self.microbatches is None:
                self._parameter("grad", name, parameter.grad, self._backward_microbatch)
            elif n == self.microbatches:
                self._parameter("grad", name, parameter.grad)

        return hook

    def before_step(self) -> None:
        """Trace gradients as the optimizer sees them. Called by hook for a `torch.optim.Optimizer`."""
        if self._stepped or not self.tracing:
            return
        self._stepped = True
        for name, parameter in self._parameters.items():
            gradient = getattr(parameter, "main_grad", None)
            gradient = parameter.grad if gradient is None else gradient
            if gradient is not None and self._name_of("main_grad", name) not in self.recorded:
                self._parameter("main_grad", name, gradient)

    def after_step(self) -> None:
        """Trace states and updated parameters. Called by hook for a `torch.optim.Optimizer`."""
        if not self.tracing:
            return
        states = getattr(self.optimizer, "state", {})
        for name, parameter in self._parameters.items():
            for key, value in states.get(parameter, {}).items():
                if isinstance(value, Tensor) and value.ndim:
                    self._parameter(f"optim.{key}", name, value)
            self._parameter("param_after", name, parameter)

    def _patch_norm(self) -> None:
        original = torch.nn.utils.clip_grad_norm_

        def traced(*args: Any, **kwargs: Any) -> Any:
            norm = original(*args, **kwargs)
            self.mark("gnorm", norm)
            return norm

        torch.nn.utils.clip_grad_norm_ = traced
        self._handles.append(lambda: setattr(torch.nn.utils, "clip_grad_norm_", original))

    # --- recording -----------------------------------------------------------------------------------------------

    def _name_of(self, phase: str, parameter: str, microbatch: int | None = None) -> str:
        module, _, leaf = parameter.rpartition(".")
        return str(Name(self.step, microbatch, phase, module or "model", leaf))

    def _parameter(self, phase: str, name: str, tensor: Tensor, microbatch: int | None = None) -> None:
        split = self.names.split(name)
        parts = [(name, tensor)] if split is None else list(zip(split.templates, split.cut(tensor)))
        for own, part in parts:
            module, _, leaf = own.rpartition(".")
            self._kept.record(Name(self.step, microbatch, phase, module or "model", leaf), part)

    def record(
        self, phase: str, parameter: str, tensor: Tensor, spec: str | ShardSpec | None = None, *,
        full: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """Trace a tensor of a parameter (``main_grad`` of a flat buffer, states of an optimizer of your own)."""
        module, _, leaf = parameter.rpartition(".")
        name = Name(self.step, None, phase, module or "model", leaf)
        self._kept.record(name, tensor, ShardSpec.parse(spec) if isinstance(spec, str) else spec, full=full)

    def mark(
        self, name: str, tensor: Any, spec: str | ShardSpec | None = None, *, exact: bool = False, grad: bool = False,
        full: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """As the function `mark`, for this trace alone."""
        if not self.tracing:
            return
        value = tensor if isinstance(tensor, Tensor) else torch.tensor(float(tensor))
        parsed = ShardSpec.parse(spec) if isinstance(spec, str) else spec
        again = in_backward() and bool(self._stack) and self._stack[-1][3]
        if name in ("loss", "gnorm"):
            at = None if name == "gnorm" else self._microbatch()
            place = Name(self.step, at, name, "model", "0")
        else:
            path, microbatch, call, _ = self._stack[-1] if self._stack else ("model", self._microbatch(), 0, False)
            place = Name(self.step, microbatch, "mark" + (RECOMPUTE if again else ""), path, name, call)
        if not self._wanted(place.module):
            return
        text = str(place)
        number = 0
        while text in self.recorded:
            number += 1
            text = str(dataclasses.replace(place, slot=f"{place.slot}.{number}"))
        self._kept.record(Name.parse(text), value, parsed, exact=exact, full=full)
        if grad and value.requires_grad and torch.is_grad_enabled():
            self._gradient_hook(dataclasses.replace(place, phase="gout", slot=f"{place.slot}.grad"), value)
