"""Noise of the size of rounding, put into a model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from assay.difftest.errors import DiffTestError

KINDS = ("input", "rounding")


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
