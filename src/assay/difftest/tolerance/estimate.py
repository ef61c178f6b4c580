"""Tolerances from perturbed runs of the reference, and from other correct runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from assay.difftest.collect import Tracer
from assay.difftest.errors import DiffTestError, NondeterministicReference
from assay.difftest.metrics import distance, eps_of
from assay.difftest.names import Name
from assay.difftest.store import Trace
from assay.difftest.tolerance.noise import KINDS, perturbation
from assay.difftest.tolerance.state import ModelState
from assay.difftest.tolerance.theory import theory_of_model
from assay.difftest.tolerance.tolerance import FLOOR, SCALAR, SCALAR_FLOOR, Tolerance
from assay.difftest.writer import Entry


def estimate_tolerance(
    step: Callable[[], Any], model: nn.Module, *, modes: Sequence[str] = ("perturb",), repeats: int = 3,
    eps: float | str = "auto", safety: float = 4.0, floor: float = FLOOR, optimizer: Any = None,
    base: Trace | None = None, kinds: Sequence[str] = KINDS, at: str | None = None, C: float | None = None,
    layers: int | None = None, seed: int = 0, check_determinism: bool = True,
    tracer_holder: list[Any] | None = None, **trace_options: Any,
) -> Tolerance:  # fmt: skip
    """Run the reference several times with noise of the size of rounding, and see how far each tensor moves.

    Parameters
    ----------
    step : callable
        Runs one step on ``model`` from its present state: forward, backward, ``optimizer.step()`` if there is one. It
        is called ``1 + repeats * len(kinds)`` times; parameters, gradients and the optimizer's state are put back.
    model : Module
        The reference.
    modes : sequence of str
        ``perturb``, ``theory``, or both (the larger counts).
    repeats : int
    eps : float or "auto"
        Size of the noise; ``auto``: epsilon of the lowest floating type among the module outputs.
    safety : float
        ``tau = max(safety * largest deviation, floor * eps of the tensor's type)``; for tensors of at most 8 elements
        the factor is doubled and the floor is 2 eps.
    floor : float
    optimizer : Optimizer, optional
    base : Trace, optional
        The reference's trace (level ``full``); without it the first run is kept in memory.
    kinds : sequence of str
        Kinds of `perturbation`.
    at : str, optional
        Module whose output the kind ``input`` changes.
    C : float, optional
        Condition number of a block for the mode ``theory``; measured along random directions where not given.
    layers : int, optional
        Number of blocks; counted from the names where not given.
    seed : int
    check_determinism : bool
        Compare the undisturbed run with ``base``, or with itself run again.
    tracer_holder : list, optional
        Gets the tracer of each run, for a ``step`` that records tensors of its own.
    **trace_options
        For `trace` (``microbatches``, ``specs``, ``step``, ...).

    Raises
    ------
    NondeterministicReference
        If two undisturbed runs differ; the message names the first tensor.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    >>> x = torch.linspace(-1, 1, 16).reshape(2, 8)
    >>> tolerance = estimate_tolerance(lambda: model(x).sum().backward(), model)
    >>> 0.5 * 2**-23 <= tolerance.of("0/0/out/1/0")[0] < 1e-5
    True
    """
    unknown = set(modes) - {"perturb", "theory"}
    if unknown:
        raise DiffTestError(f"estimate_tolerance knows the modes perturb and theory, not {sorted(unknown)}")
    keeper = ModelState(model, optimizer)
    trace_options = {"optimizer": optimizer, "collectives": False, **trace_options}

    def run(sink: Callable[[Entry, Tensor], None]) -> None:
        keeper.restore()
        with Tracer(model, ".", sink=sink, **trace_options) as tracer:
            if tracer_holder is not None:
                tracer_holder[:] = [tracer]
            step()

    memory: dict[str, Tensor] = {}
    order: list[str] = []

    def keep(entry: Entry, tensor: Tensor) -> None:
        memory[entry.name] = tensor.clone()
        order.append(entry.name)

    try:
        get: Callable[[str], Tensor | None]
        if base is None:
            run(keep)
            get = memory.get
        else:
            known = set(base.names())
            get = lambda name: base.tensor(name) if name in known else None  # noqa: E731
        dtypes: dict[str, str] = {}
        if check_determinism or not dtypes:

            def same(entry: Entry, tensor: Tensor) -> None:
                dtypes[entry.name] = entry.dtype
                first = get(entry.name)
                if check_determinism and first is not None and not _equal(first, tensor):
                    gap = distance(first, tensor)
                    raise NondeterministicReference(
                        f"the reference differs from itself at {entry.name} (relative {gap.relative:.2g}); make it "
                        "deterministic (torch.use_deterministic_algorithms, fixed seeds) before comparing with it"
                    )

            run(same)
        types = {eps_of(d) for n, d in dtypes.items() if "/out/" in n and eps_of(d)}
        size = max(types, default=2.0**-23) if eps == "auto" else float(eps)
        tolerance = Tolerance(eps=size, safety=safety)
        if "perturb" in modes:
            _perturb(tolerance, run, get, model, dtypes, kinds, repeats, size, safety, floor, at, seed)
        if "theory" in modes:
            theory = theory_of_model(dtypes, size, C, layers, model, run, step, keeper)
            tolerance = tolerance.merge(theory)
        return tolerance
    finally:
        keeper.restore()


def _perturb(
    tolerance: Tolerance, run: Any, get: Any, model: nn.Module, dtypes: Mapping[str, str], kinds: Sequence[str],
    repeats: int, size: float, safety: float, floor: float, at: str | None, seed: int,
) -> None:  # fmt: skip
    moved: dict[str, float] = {}
    lowest: dict[str, float] = {}

    def deviation(entry: Entry, tensor: Tensor) -> None:
        first = get(entry.name)
        if first is None or first.shape != tensor.shape or not tensor.is_floating_point():
            return
        gap = distance(first, tensor)
        value = gap.relative if gap.reference else 0.0
        lowest[entry.name] = (SCALAR_FLOOR if tensor.numel() <= SCALAR else floor) * eps_of(entry.dtype)
        # one number is one draw, and the largest of a few draws may be small by luck: twice the factor for scalars
        value *= 2.0 if tensor.numel() <= SCALAR else 1.0
        moved[entry.name] = max(moved.get(entry.name, 0.0), value)
        tolerance.absolute[entry.name] = max(tolerance.absolute.get(entry.name, 0.0), safety * gap.error)

    for kind in kinds:
        for k in range(repeats):
            with perturbation(model, kind, size, at=at, seed=seed * 1000 + 10 * k + len(kind)):
                run(deviation)
    for name, value in moved.items():
        tolerance.relative[name] = max(safety * value, lowest[name])
        tolerance.reasons[name] = "perturb" if safety * value >= tolerance.relative[name] else "floor"
    for name, value in _turned_updates(get, dtypes, tolerance).items():
        if value > tolerance.relative.get(name, math.inf):
            tolerance.relative[name] = value
            tolerance.reasons[name] = "turned updates"


FLIPS = 4


def _turned_updates(get: Any, dtypes: Mapping[str, str], tolerance: Tolerance) -> dict[str, float]:
    """Floor for parameters after the step.

    An optimizer that divides by the size of the gradient (Adam: its first update is the learning rate times the sign)
    turns an element's update round where the gradient is smaller than its error. m such elements move the parameter by
    ``2 sqrt(m) max|update|``. The gradient's tolerance tau allows an element an error of three times
    ``tau ||g|| / sqrt(n)``, so m is the number of elements below that; at least 4, since a few perturbed runs without
    any do not mean that there can be none.
    """
    floors: dict[str, float] = {}
    for name in dtypes:
        n = Name.parse(name)
        if n.phase not in ("param_after", "optim.main_param", "optim.master_param"):
            continue
        before, after = get(str(Name(n.step, None, "param", n.module, n.slot))), get(name)
        if before is None or after is None or before.shape != after.shape or not after.is_floating_point():
            continue
        norm = float(torch.linalg.vector_norm(after.double()))
        largest = float((after.double() - before.double()).abs().max())
        gradient_name = str(Name(n.step, None, "main_grad", n.module, n.slot))
        gradient = get(gradient_name)
        turned = FLIPS
        if gradient is not None and gradient.numel():
            typical = float(torch.linalg.vector_norm(gradient.double())) / math.sqrt(gradient.numel())
            limit = 3 * tolerance.of(gradient_name)[0] * typical
            turned = max(FLIPS, int((gradient.double().abs() < limit).sum()))
        value = 2 * math.sqrt(turned) * largest / norm if norm else 0.0
        floors[name] = value
    return floors


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def replay_tolerance(
    reference: Trace, runs: Sequence[Trace], *, safety: float = 2.0, floor: float = FLOOR
) -> Tolerance:
    """From the spread of several correct distributed runs (TP=2 and TP=4, two orders of accumulation).

    Each tensor may be off by ``safety`` times the largest distance that two of the runs, or one and the reference,
    have.
    """
    if not runs:
        raise DiffTestError("the mode replay needs at least one correct run besides the reference")
    made = Tolerance(safety=safety)
    for name in reference.names():
        if reference.alias(name) or not all(name in run for run in runs):
            continue
        entry = reference.entries(name)[0][1]
        if not eps_of(entry.dtype) or entry.level != "full":
            continue
        shape = reference.shape(name)
        tensors = [t for t in (reference.tensor(name), *(r.merged(name, shape).tensor for r in runs)) if t is not None]
        gaps = [distance(tensors[i], tensors[j]).relative for j in range(len(tensors)) for i in range(j)]
        made.relative[name] = max(safety * max(gaps, default=0.0), floor * eps_of(entry.dtype))
        made.reasons[name] = "replay"
    return made
