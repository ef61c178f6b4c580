"""Models of fewer layers, for a reference that has to fit where the whole model does not."""

from __future__ import annotations

import re
from typing import TypeVar

from torch import nn

from assay.difftest.errors import DiffTestError

M = TypeVar("M", bound=nn.Module)


def cut_layers(model: M, n: int, *, path: str | None = None) -> M:
    """Keep the first ``n`` of a model's repeated layers, in place; names and weights of what stays do not change.

    A model that is too large for one device is made on the ``meta`` device, cut, given memory (``to_empty``) and then
    weights (`fill_parameters`, `scatter_state`, or a checkpoint). Cut both sides to compare whole steps; a cut
    reference beside a whole candidate can be compared on the way to layer ``n`` (`forward_of_first`).

    Parameters
    ----------
    model : Module
    n : int
        At least 1, at most the number of layers.
    path : str, optional
        Where the list of layers is (``model.layers``); default: the longest `ModuleList` or `Sequential`.

    Returns
    -------
    Module
        The same model.

    Raises
    ------
    DiffTestError
        If there is no such list, or it has fewer layers.

    Examples
    --------
    >>> import torch
    >>> with torch.device("meta"):
    ...     blocks = nn.Sequential(*(nn.Linear(8192, 8192) for _ in range(80)))
    ...     model = nn.Sequential(nn.Embedding(50_000, 8192), blocks)
    >>> model = cut_layers(model, 2, path="1")
    >>> len(model[1]), sum(p.numel() for p in model[1].parameters()) == 2 * (8192 + 1) * 8192
    (2, True)
    """
    lists = {p: m for p, m in model.named_modules() if isinstance(m, (nn.ModuleList, nn.Sequential)) and len(m)}
    if path is None and lists:
        path = max(lists, key=lambda p: len(lists[p]))
    if path is None or path not in lists:
        known = ", ".join(lists) or "none"
        raise DiffTestError(f"the model has no list of layers at {path!r}; its lists: {known}")
    if not 1 <= n <= len(lists[path]):
        raise DiffTestError(f"{path or 'the model'} has {len(lists[path])} layers; n must be 1 to that, not {n}")
    del lists[path][n:]
    return model


def forward_of_first(n: int, path: str = "layers") -> list[str]:
    """Patterns for ``compare(include=...)``: what a model cut to ``n`` layers has in common with the whole one.

    Weights, and inputs and outputs up to the output of the last layer that was kept; what comes after it, and all
    gradients, depend on the layers that are missing. Give ``allow_extra=True`` too.

    Examples
    --------
    >>> patterns = forward_of_first(2)
    >>> [any(re.search(p, name) for p in patterns)
    ...  for name in ("0/0/out/layers.1.mlp/0", "0/0/out/layers.2.mlp/0", "0/0/gout/layers.1/0", "0/0/out/head/0")]
    [True, False, False, False]
    """
    kept = "|".join(str(i) for i in range(n))
    return [
        rf"/(in|out|mark|param)/{re.escape(path)}\.({kept})[./#]",
        r"/(in|out|param)/[^/]*(embed|wte|wpe)[^/]*/",
    ]
