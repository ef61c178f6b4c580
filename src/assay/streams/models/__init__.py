"""The models, one file each; imported when they are asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from assay.streams.models.base import StreamModel, learn_many
from assay.streams.models.registry import MODELS, make_model, model_class

_WRAPPERS = {"OneVsRest": "one_vs_rest", "ScaledTarget": "scaled_target", "Thresholded": "thresholded"}
_CLASSES = {attribute: name for name, (_, attribute) in MODELS.items()}

__all__ = ["MODELS", "StreamModel", "learn_many", "make_model", "model_class", *_CLASSES, *_WRAPPERS]


def __getattr__(name: str) -> Any:
    if name in _CLASSES:
        return model_class(_CLASSES[name])
    if name in _WRAPPERS:
        return getattr(import_module(f"assay.streams.models.{_WRAPPERS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
