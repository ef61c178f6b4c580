"""The models, one file each; imported when they are asked for."""

from __future__ import annotations

from typing import Any

from assay.streams.models.base import StreamModel, learn_many
from assay.streams.models.registry import MODELS, make_model, model_class

_CLASSES = {attribute: name for name, (_, attribute) in MODELS.items()}

__all__ = ["MODELS", "StreamModel", "learn_many", "make_model", "model_class", *_CLASSES]


def __getattr__(name: str) -> Any:
    if name in _CLASSES:
        return model_class(_CLASSES[name])
    if name in ("OneVsRest", "Thresholded"):
        from assay.streams.models import one_vs_rest, thresholded

        return one_vs_rest.OneVsRest if name == "OneVsRest" else thresholded.Thresholded
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
