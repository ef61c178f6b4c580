"""Closed form, and condition numbers of modules."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.difftest.metrics import eps_of
from assay.difftest.names import Name
from assay.difftest.tolerance.state import ModelState
from assay.difftest.tolerance.tolerance import Tolerance


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


def theory_of_model(
    dtypes: Mapping[str, str], size: float, C: float | None, layers: int | None, model: nn.Module, run: Any, step: Any,
    keeper: ModelState,
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
