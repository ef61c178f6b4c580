"""How large a correct difference may be, tensor by tensor.

Four modes, combined by their maximum: `estimate_tolerance` (``perturb``, ``theory``), `replay_tolerance`, and fixed
rules, which replace the rest.

The recurrence behind all: layer l maps x_{l-1} to x_l with relative condition number kappa_l and makes an error of at
most c_l eps itself, so ``e_l <= kappa_l e_{l-1} + c_l eps``. Backward it goes the same way from the top.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.difftest.collect import Tracer
from assay.difftest.errors import DiffTestError, NondeterministicReference
from assay.difftest.metrics import distance, eps_of
from assay.difftest.names import Name
from assay.difftest.store import Entry, Trace, write_text

FLOOR = 0.5
# A single number does not average roundings as a tensor does: half an eps is less than the distance to its neighbour,
# which a correct sum in another order may well give. Tensors of few elements have a floor of 2 eps.
SCALAR_FLOOR, SCALAR = 2.0, 8
KINDS = ("input", "rounding")


@dataclass
class Tolerance:
    """Tolerance of every tensor, with its reason.

    Attributes
    ----------
    relative : dict
        Name -> largest relative Frobenius error of a correct run.
    absolute : dict
        Name -> largest absolute error, used where the reference is zero.
    reasons : dict
        Name -> mode that gave it.
    rules : list of (pattern, value)
        Fixed ones; the first pattern that is found in a name replaces all else.
    eps : float
        Machine epsilon of the run (of its lowest storage type among activations).
    safety : float
    """

    relative: dict[str, float] = field(default_factory=dict)
    absolute: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    rules: list[tuple[str, float]] = field(default_factory=list)
    eps: float = 2.0**-23
    safety: float = 4.0
    default: float = 16.0

    def of(self, name: str, dtype: str = "float32") -> tuple[float, str]:
        """Tolerance and reason. A tensor that no mode saw gets ``default`` eps of the lower of the two types."""
        for pattern, value in self.rules:
            if re.search(pattern, name):
                return value, f"fixed rule {pattern}"
        if name in self.relative:
            return self.relative[name], self.reasons.get(name, "perturb")
        first = str(Name.parse(name).first_pass())
        if first in self.relative:
            return self.relative[first], self.reasons.get(first, "perturb")
        return self.default * max(self.eps, eps_of(dtype)), f"default, {self.default:g} eps"

    def merge(self, other: Tolerance) -> Tolerance:
        """The larger of both for each tensor; rules of both."""
        joined = Tolerance(dict(self.relative), dict(self.absolute), dict(self.reasons), [*self.rules, *other.rules],
                           max(self.eps, other.eps), self.safety, self.default)  # fmt: skip
        for name, value in other.relative.items():
            if value > joined.relative.get(name, -1.0):
                joined.relative[name] = value
                joined.reasons[name] = other.reasons.get(name, "")
        for name, value in other.absolute.items():
            joined.absolute[name] = max(value, joined.absolute.get(name, 0.0))
        return joined

    def with_rules(self, rules: Iterable[tuple[str, float]]) -> Tolerance:
        """With fixed rules in front."""
        for pattern, value in rules:
            try:
                re.compile(pattern)
            except re.error as error:
                raise DiffTestError(f"the pattern {pattern!r} of a tolerance rule is no regular expression") from error
            if not (isinstance(value, (int, float)) and value >= 0):
                raise DiffTestError(f"the tolerance of {pattern!r} is {value!r}, not a number from 0 up")
        return Tolerance(
            self.relative, self.absolute, self.reasons, [*rules, *self.rules], self.eps, self.safety, self.default
        )

    def save(self, path: str | Path) -> Path:
        """Write as JSON."""
        return write_text(Path(path), json.dumps({"format": 1, **vars(self)}, indent=0))

    @classmethod
    def load(cls, path: str | Path) -> Tolerance:
        """Read what `save` wrote, or a plain ``{pattern: value}`` object of fixed rules (others' thresholds)."""
        try:
            raw = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError) as error:
            raise DiffTestError(f"{path} cannot be read as a tolerance file: {error}") from error
        if not isinstance(raw, dict):
            raise DiffTestError(f"{path} holds no JSON object")
        if raw.pop("format", None) is None:
            return cls().with_rules([(str(k), v) for k, v in raw.items()])
        raw["rules"] = [(p, float(v)) for p, v in raw.get("rules", [])]
        return cls(**raw)


def theory_tolerance(
    layer: int, layers: int, *, eps: float = 2.0**-7, k: float = 4.0, C: float = 1.03, phase: str = "grad"
) -> float:
    """Closed form for a residual network whose blocks have condition number C.

    Parameters
    ----------
    layer : int
        1 for the first block; 0 for the embedding.
    layers : int
    eps : float
        Of the compute type; for FP8 recipes that of BF16.
    k, C : float
        2 to 8, 1.01 to 1.05.
    phase : str
        ``out`` and ``in``: ``k eps (C^(l+1) - 1) / (C - 1)``; else ``k C^(L+1-l) eps``, the form that Megatron-LM's
        tests use for first moments (where beta is 0, so that they equal the gradients).

    Examples
    --------
    >>> [round(theory_tolerance(l, 32), 4) for l in (0, 1, 32)]
    [0.0829, 0.0805, 0.0322]
    """
    if phase.removesuffix("+recompute") in ("out", "in", "mark", "loss"):
        return k * eps * ((C ** (layer + 1) - 1) / (C - 1) if C != 1.0 else layer + 1)
    return k * C ** (layers + 1 - layer) * eps


def layer_of(module: str, layers: int) -> int:
    """1-based number of the block that a path lies in; 0 for the embedding, ``layers`` for what comes after.

    >>> layer_of("layers.3.mlp.fc1", 12), layer_of("embedding", 12), layer_of("head", 12)
    (4, 0, 12)
    """
    match = re.search(r"(?:layers|blocks|h)\.(\d+)", module)
    if match:
        return int(match[1]) + 1
    return 0 if re.search(r"embed|wte|wpe", module) else layers


def condition_number(
    function: Callable[[Tensor], Tensor], x: Float[Tensor, "*shape"], *, directions: int = 4, seed: int = 0
) -> float:
    """Relative condition number along random directions, ``||J v|| / ||v|| * ||x|| / ||f(x)||``.

    Parameters
    ----------
    function : callable
        A module or function of one tensor.
    x : Tensor
    directions : int
        Root mean square over so many.
    seed : int

    Examples
    --------
    Cancellation: x - 0.999 near 1 loses three digits.

    >>> x = torch.ones(100, dtype=torch.float64)
    >>> round(condition_number(lambda t: t - 0.999, x))
    1000
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    total = 0.0
    x = x.detach()
    for _ in range(directions):
        v = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype).to(x.device)
        y, jv = torch.func.jvp(function, (x,), (v,))[:2]
        norm = torch.linalg.vector_norm
        total += (
            float(norm(jv.detach().double()) / norm(v.double()) * norm(x.double()) / norm(y.detach().double())) ** 2
        )
    return math.sqrt(total / directions)


def perturbed(tensor: Tensor, size: float, generator: torch.Generator, *, signs: bool = False) -> Tensor:
    """``x (1 + size u)`` with u standard normal, or +-1; in the tensor's dtype."""
    u = torch.randn(tensor.shape, generator=generator, device=generator.device)
    if signs:
        u = torch.where(u < 0, -1.0, 1.0)
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return (tensor.to(wide) * (1.0 + size * u.to(tensor.device, wide))).to(tensor.dtype)


@contextmanager
def perturbation(model: nn.Module, kind: str, eps: float, *, at: str | None = None, seed: int = 0) -> Any:
    """Hooks that make a model's run differ as rounding would.

    Parameters
    ----------
    model : Module
    kind : str
        ``input``: the output of the first module (the embedding) is multiplied by ``1 + eps u`` elementwise.
        ``rounding``: each leaf module's outputs and their gradients go up or down by half an eps at random.
    eps : float
    at : str, optional
        Path of the module for ``input``; default: the first leaf that gets integers, else the first leaf.
    seed : int
    """
    if kind not in KINDS:
        raise DiffTestError(f"a perturbation is {' or '.join(KINDS)}, not {kind!r}")
    generator = torch.Generator(device="cpu").manual_seed(seed)
    handles: list[Any] = []
    leaves = {p: m for p, m in model.named_modules() if not any(True for _ in m.children())}
    if kind == "input":
        fired: dict[int, bool] = {}
        embeds = any(isinstance(m, nn.Embedding) or "embedding" in type(m).__name__.lower() for m in leaves.values())

        def first(module: nn.Module, args: Any, output: Any) -> Any:
            integers = any(isinstance(a, Tensor) and not a.is_floating_point() for a in args)
            if at is None and fired and id(module) not in fired:
                return None
            if at is None and not integers and embeds:
                return None
            fired[id(module)] = True
            return _on_first(output, lambda t: _Noise.apply(t, perturbed(t.detach(), eps, generator)))

        if at is not None:
            modules = dict(model.named_modules())
            if at not in modules:
                raise DiffTestError(f"there is no module {at!r} to perturb")
            handles.append(modules[at].register_forward_hook(first))
        else:
            handles.extend(m.register_forward_hook(first) for m in leaves.values())
    else:

        def rounded(module: nn.Module, args: Any, output: Any) -> Any:
            def change(t: Tensor) -> Tensor:
                noisy = _Noise.apply(t, perturbed(t.detach(), eps / 2, generator, signs=True))
                if noisy.requires_grad:
                    noisy.register_hook(lambda g: perturbed(g, eps / 2, generator, signs=True))
                return noisy

            return _on_first(output, change)

        handles.extend(m.register_forward_hook(rounded) for m in leaves.values())
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Noise(torch.autograd.Function):
    """The noisy value forward, the gradient untouched."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, noisy: Tensor) -> Tensor:
        return noisy

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def _on_first(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(output, Tensor):
        return change(output) if output.is_floating_point() else output
    if isinstance(output, tuple):
        return tuple(change(o) if isinstance(o, Tensor) and o.is_floating_point() else o for o in output)
    return output


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
    keeper = _State(model, optimizer)
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
            theory = _theory(dtypes, size, C, layers, model, run, step, keeper)
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


def _theory(
    dtypes: Mapping[str, str], size: float, C: float | None, layers: int | None, model: nn.Module, run: Any, step: Any,
    keeper: _State,
) -> Tolerance:  # fmt: skip
    parsed = {name: Name.parse(name) for name in dtypes}
    if layers is None:
        layers = max((layer_of(n.module, 0) for n in parsed.values()), default=1) or 1
    if C is None:
        keeper.restore()
        measured = block_conditions(model, step)
        C = max(1.001, math.exp(sum(map(math.log, measured.values())) / len(measured))) if measured else 1.03
    made = Tolerance(eps=size)
    for name, n in parsed.items():
        if eps_of(dtypes[name]):
            made.relative[name] = theory_tolerance(layer_of(n.module, layers), layers, eps=size, C=C, phase=n.phase)
            made.reasons[name] = f"theory, C = {C:.3g}"
    return made


def block_conditions(
    model: nn.Module, step: Callable[[], Any], *, pattern: str = r"(?:.*\.)?(?:layers|blocks|h)\.\d+"
) -> dict[str, float]:
    """Condition number of each block (a module whose path matches), at the input that ``step`` feeds it."""
    inputs: dict[str, tuple[Any, Any]] = {}
    handles = []
    for path, module in model.named_modules():
        if re.fullmatch(pattern, path):

            def hook(m: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
                inputs.setdefault(path, (args, kwargs))

            handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
    try:
        step()
    finally:
        for handle in handles:
            handle.remove()
    found = {}
    modules = dict(model.named_modules())
    for path, (args, kwargs) in inputs.items():
        if not args or not isinstance(args[0], Tensor):
            continue

        def block(x: Tensor, path: str = path, rest: Any = args[1:], kwargs: Any = kwargs) -> Tensor:
            out = modules[path](x, *rest, **kwargs)
            return out[0] if isinstance(out, tuple) else out

        try:
            found[path] = condition_number(block, args[0], directions=1)
        except (RuntimeError, NotImplementedError):  # no forward-mode rule for something inside
            found[path] = _condition_by_differences(block, args[0])
    return found


def _condition_by_differences(function: Callable[[Tensor], Tensor], x: Tensor) -> float:
    generator = torch.Generator(device="cpu").manual_seed(0)
    v = torch.randn(x.shape, generator=generator).to(x.device, torch.float64)
    size = 64 * eps_of(x.dtype)
    norm = torch.linalg.vector_norm
    v = v * (size * norm(x.double()) / norm(v))
    with torch.no_grad():
        moved = (x.double() + v).to(x.dtype)
        y, z = function(x.detach()).double(), function(moved).double()
    step = float(norm(moved.double() - x.double()) / norm(x.double()))
    return float(norm(z - y) / norm(y)) / step


class _State:
    """Parameters, buffers, gradients and the optimizer's state, to be put back before each run."""

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        self.model, self.optimizer = model, optimizer
        self.tensors = {n: t.detach().clone() for n, t in [*model.named_parameters(), *model.named_buffers()]}
        self.gradients = {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
        self.states = copy.deepcopy(optimizer.state_dict()) if optimizer is not None else None

    def restore(self) -> None:
        with torch.no_grad():
            for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
                tensor.copy_(self.tensors[name])
        for name, parameter in self.model.named_parameters():
            kept = self.gradients[name]
            parameter.grad = None if kept is None else kept.clone()
        if self.optimizer is not None:
            self.optimizer.load_state_dict(copy.deepcopy(self.states))


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
