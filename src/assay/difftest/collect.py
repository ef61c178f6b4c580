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
from torch.multiprocessing.reductions import StorageWeakRef

from assay.difftest.collectives import CollectiveLog
from assay.difftest.errors import AmbiguousName, DiffTestError
from assay.difftest.names import RECOMPUTE, Name, NameMap, preset
from assay.difftest.shards import Coords, Index, ShardSpec, spec_of
from assay.difftest.sketch import digest
from assay.difftest.store import Entry, Writer, sample_indices

LEVELS = ("digest", "sample", "full")
_TWINS = ("in", "out", "gin", "gout")
_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_ACTIVE: list[Tracer] = []

SpecRule = tuple[str, "str | ShardSpec"]


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


def coords_of(mesh: Any) -> dict[str, tuple[int, int]]:
    """Axis -> (position, size) from a DeviceMesh or a mapping."""
    if mesh is None:
        return {}
    if isinstance(mesh, Mapping):
        return {str(a): (int(i), int(n)) for a, (i, n) in mesh.items()}
    dims = mesh.mesh_dim_names or tuple(f"mesh{i}" for i in range(mesh.ndim))
    return {dim: (mesh.get_local_rank(i), mesh.size(i)) for i, dim in enumerate(dims)}


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
        self._prefix = [""] if isinstance(model, nn.Module) else [f"chunk{v}." for v in range(len(self.models))]
        self.coords = coords_of(mesh)
        self.names = preset(names, **constants) if isinstance(names, str) else names or NameMap()
        self.specs = [(re.compile(p), ShardSpec.parse(s) if isinstance(s, str) else s) for p, s in specs]
        self.level, self.step, self.every, self.optimizer = level, step, every, optimizer
        self.include = [re.compile(p) for p in include]
        self.exclude = [re.compile(p) for p in exclude]
        self.microbatches = microbatches
        self.recorded: dict[str, Entry] = {}
        self.notes: list[str] = []
        self._sink = sink
        self._replace = replace_inputs
        self._known = set(replace_inputs.names()) if replace_inputs is not None else set()
        rank, world = _rank_world()
        self._world = world
        self._meta = {"microbatches": microbatches, "level": level, **(meta or {})}
        self._writer = None if sink else Writer(out, rank, world, self.coords, meta=self._meta, fsync=fsync)
        self._log = CollectiveLog(self._where) if collectives else None
        self._first_step = step
        self._paths = self._mapped_paths()
        self._parameters = self._mapped_parameters()
        self._handles: list[Any] = []
        self._forwards = [0] * len(self.models)
        self._explicit: int | None = None
        self._backward_microbatch: int | None = None
        self._order = 0
        self._calls: dict[tuple[str, int | None, bool], int] = {}
        self._stack: list[tuple[str, int | None, int, bool]] = []
        self._last_gradient = ""
        self._seen: dict[int, tuple[Any, int, str]] = {}
        self._gradients: dict[int, tuple[Any, str]] = {}
        self._aliases: list[tuple[str, str]] = []
        self._storages: dict[tuple[Any, ...], tuple[Any, Tensor, str, int]] = {}
        self._accumulated: dict[int, int] = {}
        self._stepped = False
        self._places: dict[Any, tuple[tuple[int, ...], Index]] = {}
        self._spec_cache: dict[tuple[str, str, str], ShardSpec | None] = {}

    # --- names ---------------------------------------------------------------------------------------------------

    def _mapped_paths(self) -> dict[int, str]:
        found: dict[int, str] = {}
        taken: dict[str, str] = {}
        for prefix, model in zip(self._prefix, self.models):
            for path, module in model.named_modules():
                own = _WRAPPERS.sub("", prefix + path + ".").rstrip(".") or "model"
                name = self.names.module(own)
                if name is None or not self._wanted(name):
                    continue
                if name in taken and not own.endswith(("module", "_orig_mod")):
                    raise AmbiguousName(
                        f"the modules {taken[name]!r} and {own!r} both become {name!r}; mend the name rules"
                    )
                if type(module).__name__ == "OptimizedModule":
                    self.notes.append(f"{name} is compiled: the hooks break its graph; compare the eager model first")
                    continue
                taken[name] = own
                found[id(module)] = name
        return found

    def _mapped_parameters(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for prefix, model in zip(self._prefix, self.models):
            for path, parameter in model.named_parameters():
                own = _WRAPPERS.sub("", prefix + path)
                parent, _, leaf = own.rpartition(".")
                mapped = self.names.module(own) if self.names.module(own) != own else None
                if mapped is None:
                    parent_name = self.names.module(parent or "model")
                    if parent_name is None:
                        continue
                    mapped = leaf if parent_name == "model" else f"{parent_name}.{leaf}"
                if not self._wanted(mapped.rpartition(".")[0]):
                    continue
                if mapped in found:
                    raise AmbiguousName(f"two parameters of this rank both become {mapped!r}; mend the name rules")
                found[mapped] = parameter
        return found

    def _wanted(self, name: str) -> bool:
        if self.include and not any(p.search(name) for p in self.include):
            return False
        return not any(p.search(name) for p in self.exclude)

    def _where(self) -> str:
        if _in_backward():
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
        self._order = 0
        self._stepped = False
        self._forwards = [0] * len(self.models)
        self._last_gradient = ""
        for box in (self.recorded, self._calls, self._seen, self._gradients, self._accumulated, self._storages):
            box.clear()
        self._stack.clear()
        self._aliases.clear()
        if not self.tracing:
            return
        for i, model in enumerate(self.models):
            self._handles.append(model.register_forward_pre_hook(self._count(i), prepend=True))
            for module in model.modules():
                path = self._paths.get(id(module))
                if path is not None:
                    self._handles.append(module.register_forward_pre_hook(self._before(path), with_kwargs=True))
                    self._handles.append(
                        module.register_forward_hook(self._after(path), with_kwargs=True, always_call=False)
                    )
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
                kept = self.recorded[target]
                self.recorded[alias] = Entry(alias, kept.order, kept.dtype, kept.shape, kept.spec, kept.level,
                                             kept.full, alias=target)  # fmt: skip
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
            if not _in_backward():
                self._forwards[which] += 1
                self._calls.clear() if which == 0 else None
            self._current = self._forwards[which] - 1

        return hook

    def _microbatch(self) -> int | None:
        if self._explicit is not None:
            return self._explicit
        if _in_backward():
            return self._backward_microbatch
        return getattr(self, "_current", 0)

    def _before(self, path: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            again = _in_backward()
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
                    tensor, changed = _Replaced.apply(tensor, value), True
                stored = self._tensor(name, tensor)
                if torch.is_grad_enabled() and tensor.requires_grad and type(tensor) is not nn.Parameter:
                    view = tensor.view_as(tensor)
                    self._gradient_hook(Name(self.step, microbatch, "gin", path, slot, call), view)
                    if stored:
                        self._seen[id(view)] = (weakref.ref(view), _version(view), stored)
                    changed = True
                    return view
                return tensor

            new_args = tuple(_mapped(a, str(i), visit) for i, a in enumerate(args))
            new_kwargs = {k: _mapped(v, k, visit) for k, v in kwargs.items()}
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
                if isinstance(arg, Tensor):
                    seen = self._seen.get(id(arg))
                    if seen is not None and seen[0]() is arg and seen[1] != _version(arg):
                        note = f"{path} changes its input {i} in place"
                        if note not in self.notes:
                            self.notes.append(note)

            def visit(slot: str, tensor: Tensor) -> Tensor:
                name = Name(self.step, microbatch, "out" + (RECOMPUTE if again else ""), path, slot, call)
                self._tensor(name, tensor)
                if torch.is_grad_enabled() and tensor.requires_grad:
                    self._gradient_hook(Name(self.step, microbatch, "gout", path, slot, call), tensor)
                return tensor

            if isinstance(output, (tuple, list)):
                for i, item in enumerate(output):
                    _mapped(item, str(i), visit)
            elif isinstance(output, Mapping):
                for k, item in output.items():
                    _mapped(item, str(k), visit)
            else:
                _mapped(output, "0", visit)

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
            self._tensor(name, gradient)
            return self._replacement(name, gradient) if name.phase == "gout" else None

        tensor.register_hook(hook)

    def _replacement(self, name: Name, tensor: Tensor) -> Tensor | None:
        """The reference's value of an input or gradient, cut for this rank."""
        if self._replace is None:
            return None
        text = str(name.first_pass())
        if text not in self._known or not tensor.is_floating_point():
            return None
        spec = self._spec(name, tensor) or ShardSpec()
        value = spec.cut(self._replace.tensor(text), self.coords)
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
            self._tensor(Name(self.step, microbatch, phase, module or "model", leaf), part)

    def record(
        self, phase: str, parameter: str, tensor: Tensor, spec: str | ShardSpec | None = None, *,
        full: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """Trace a tensor of a parameter (``main_grad`` of a flat buffer, states of an optimizer of your own)."""
        module, _, leaf = parameter.rpartition(".")
        name = Name(self.step, None, phase, module or "model", leaf)
        self._tensor(name, tensor, ShardSpec.parse(spec) if isinstance(spec, str) else spec, full=full)

    def mark(
        self, name: str, tensor: Any, spec: str | ShardSpec | None = None, *, exact: bool = False, grad: bool = False,
        full: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """As the function `mark`, for this trace alone."""
        if not self.tracing:
            return
        value = tensor if isinstance(tensor, Tensor) else torch.tensor(float(tensor))
        parsed = ShardSpec.parse(spec) if isinstance(spec, str) else spec
        again = _in_backward() and bool(self._stack) and self._stack[-1][3]
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
        self._tensor(Name.parse(text), value, parsed, exact=exact, full=full)
        if grad and value.requires_grad and torch.is_grad_enabled():
            self._gradient_hook(dataclasses.replace(place, phase="gout", slot=f"{place.slot}.grad"), value)

    def _spec(self, name: Name, tensor: Tensor) -> ShardSpec | None:
        carried = spec_of(tensor)
        key = (name.phase.removesuffix(RECOMPUTE), name.module, name.slot)
        if key not in self._spec_cache:
            text = "/".join(key)
            self._spec_cache[key] = next((s for p, s in self.specs if p.search(text)), None)
        rule = self._spec_cache[key]
        return rule if carried is None else carried

    def _tensor(
        self, name: Name, tensor: Tensor, spec: ShardSpec | None = None, *, exact: bool = False,
        full: Sequence[int] | None = None,
    ) -> str:  # fmt: skip
        """Record a tensor; gives the name under which it is stored."""
        text = str(name)
        with torch.no_grad():
            spec = spec or self._spec(name, tensor) or ShardSpec()
            if full is None and hasattr(tensor, "placements"):
                full = tuple(tensor.shape)
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            if hasattr(local, "wait"):
                local = local.wait()
            local = local.detach()
            self._order += 1
            seen = self._seen.get(id(tensor)) if self._may_be_twin(name) else None
            if seen is not None and seen[0]() is tensor and seen[1] == _version(tensor) and not exact:
                if seen[2] != text and seen[2] in self.recorded:
                    kept = self.recorded[seen[2]]
                    self.recorded[text] = Entry(
                        text, self._order, kept.dtype, kept.shape, str(spec) if spec.placements else kept.spec,
                        kept.level, kept.full, alias=seen[2],
                    )  # fmt: skip
                return seen[2]
            twin = self._twin(name, local) if not exact else ""
            if twin:
                kept = self.recorded[twin]
                self.recorded[text] = Entry(
                    text, self._order, kept.dtype, kept.shape, str(spec) if spec.placements else kept.spec, kept.level,
                    kept.full, alias=twin,
                )  # fmt: skip
                self._seen[id(tensor)] = (weakref.ref(tensor), _version(tensor), twin)
                return twin
            entry = Entry(
                text, self._order, str(local.dtype).removeprefix("torch."), tuple(local.shape), str(spec), self.level,
                tuple(full) if full is not None else None, exact=exact,
            )  # fmt: skip
            self.recorded[text] = entry
            self._seen[id(tensor)] = (weakref.ref(tensor), _version(tensor), text)
            self._keep(entry, local, spec)
        return text

    def _may_be_twin(self, name: Name) -> bool:
        phase = name.phase.removesuffix(RECOMPUTE)
        return phase in _TWINS or (phase in ("grad", "main_grad") and self._world == 1)

    def _twin(self, name: Name, local: Tensor) -> str:
        """Name under which the same memory was recorded before, if it is still alive and still holds the same.

        A gradient passes unchanged from a module's input to the output of the one before it, as another tensor object.
        Autograd may add to it in place without a trace in the version counter, so that 64 elements are compared too.
        Parameters and what a reduction writes into are always recorded anew: an update may leave most elements alone.
        """
        if not self._may_be_twin(name):
            return ""
        if local.numel() < 4096 or not local.is_contiguous() or local.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            return ""
        key = (local.data_ptr(), local.shape, local.dtype)
        few = local.view(-1)[:: local.numel() // 64]
        known = self._storages.get(key)
        same = known is not None and not known[0].expired() and known[3] == _version(local)
        if known is not None and same and torch.equal(known[1], few) and known[2] in self.recorded:
            return known[2]
        self._storages[key] = (StorageWeakRef(local.untyped_storage()), few.clone(), str(name), _version(local))
        return ""

    def _keep(self, entry: Entry, local: Tensor, spec: ShardSpec) -> None:
        small = entry.level != "full" and local.numel() <= 1024
        if small or entry.exact or self._sink is not None:
            entry.level = "full"
        if entry.level == "full":
            if self._sink is not None:
                self._sink(entry, local)
                return
            copy, ready = _host_copy(local)
            self._writer.put(entry, copy, ready)  # type: ignore[union-attr]
            return
        key = (spec, entry.full, entry.shape)
        if key not in self._places:
            shape = entry.full or spec.full_shape(entry.shape, self.coords)
            self._places[key] = (shape, spec.index(shape, self.coords))
        entry.full, index = self._places[key]
        if entry.level == "digest" and local.device.type == "cpu":
            copy = local.clone(memory_format=torch.contiguous_format)
            self._writer.put(entry, copy, digest_of=index)  # type: ignore[union-attr]
        elif entry.level == "digest":
            made = digest(local, index)
            entry.stats = made.stats()
            self._writer.put(entry, made.sketch)  # type: ignore[union-attr]
        else:
            values, places = _sampled(local, index)
            entry.stats = {"count": float(local.numel())}
            self._writer.put(entry, torch.stack([places.double(), values]))  # type: ignore[union-attr]


class _Replaced(torch.autograd.Function):
    """Another value forward; the gradient goes to where the tensor came from."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def _sampled(local: Tensor, index: Index) -> tuple[Tensor, Tensor]:
    import numpy as np

    wanted = sample_indices(index.shape)
    if index.whole:
        at = torch.from_numpy(wanted)
        return local.reshape(-1)[at.to(local.device)].double().cpu(), at
    if index.flat is not None:
        start, stop, _ = index.flat
        held = wanted[(wanted >= start) & (wanted < stop)]
        return local.reshape(-1)[torch.from_numpy(held - start).to(local.device)].double().cpu(), torch.from_numpy(held)
    position = np.zeros(len(wanted), np.int64)
    there = np.ones(len(wanted), bool)
    for axis, vector in zip(np.unravel_index(wanted, index.shape), index.vectors):
        inverse = np.full(int(axis.max()) + 1 if len(axis) else 1, -1, np.int64)
        inside = (vector >= 0) & (vector < len(inverse))
        inverse[vector[inside]] = np.flatnonzero(inside)
        found = inverse[axis]
        there &= found >= 0
        position = position * len(vector) + np.maximum(found, 0)
    at = torch.from_numpy(position[there]).to(local.device)
    return local.reshape(-1)[at].double().cpu(), torch.from_numpy(wanted[there])


def _host_copy(tensor: Tensor) -> tuple[Tensor, Any]:
    if tensor.device.type != "cuda":
        return tensor.clone(memory_format=torch.contiguous_format), None
    # the copy runs behind the computation on the same stream; the writer waits for the event
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return host, event


def _mapped(value: Any, slot: str, visit: Callable[[str, Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return visit(slot, value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(v, f"{slot}.{k}", visit) for k, v in zip(value._fields, value)))
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(v, f"{slot}.{i}", visit) for i, v in enumerate(value))
    if type(value) is dict:
        return {k: _mapped(v, f"{slot}.{k}", visit) for k, v in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes: dict[str, Any] = {}
        for f in dataclasses.fields(value):
            old = getattr(value, f.name)
            new = _mapped(old, f"{slot}.{f.name}", visit)
            if new is not old and f.init:
                changes[f.name] = new
        return dataclasses.replace(value, **changes) if changes else value
    return value


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _version(tensor: Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # inference tensors have none
        return 0


def _rank_world() -> tuple[int, int]:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


__all__ = ["Coords", "Tracer", "coords_of", "mark", "trace"]
