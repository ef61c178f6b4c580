"""Which modules and parameters of a rank are traced, and under which names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from assay.difftest.errors import AmbiguousName
from assay.difftest.names import NameMap

WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
Models = Sequence[tuple[str, nn.Module]]
"""Prefix of the paths (``""``, or ``chunk0.``, ...) and model."""


def mapped_modules(
    models: Models, names: NameMap, wanted: Callable[[str], bool], notes: list[str]
) -> list[tuple[nn.Module, str]]:
    """Modules with their canonical paths, in the order of the model.

    Raises
    ------
    AmbiguousName
        If two of them have one path.
    """
    found: list[tuple[nn.Module, str]] = []
    seen: set[int] = set()
    taken: dict[str, str] = {}
    for prefix, model in models:
        for path, module in model.named_modules():
            own = WRAPPERS.sub("", prefix + path + ".").rstrip(".") or "model"
            name = names.module(own)
            if name is None or not wanted(name):
                continue
            if name in taken and not own.endswith(("module", "_orig_mod")):
                raise AmbiguousName(
                    f"the modules {taken[name]!r} and {own!r} both become {name!r}; mend the name rules"
                )
            if type(module).__name__ == "OptimizedModule":
                notes.append(f"{name} is compiled: the hooks break its graph; compare the eager model first")
                continue
            taken[name] = own
            if id(module) not in seen:
                seen.add(id(module))
                found.append((module, name))
    return found


def mapped_parameters(models: Models, names: NameMap, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """Canonical name -> parameter.

    Raises
    ------
    AmbiguousName
    """
    found: dict[str, Tensor] = {}
    for prefix, model in models:
        for path, parameter in model.named_parameters():
            own = WRAPPERS.sub("", prefix + path)
            parent, _, leaf = own.rpartition(".")
            mapped = names.module(own) if names.module(own) != own else None
            if mapped is None:
                parent_name = names.module(parent or "model")
                if parent_name is None:
                    continue
                mapped = leaf if parent_name == "model" else f"{parent_name}.{leaf}"
            if not wanted(mapped.rpartition(".")[0]):
                continue
            if mapped in found:
                raise AmbiguousName(f"two parameters of this rank both become {mapped!r}; mend the name rules")
            found[mapped] = parameter
    return found
