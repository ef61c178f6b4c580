"""Models by name, without importing those that are not asked for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Hashable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import StreamError
from assay.streams.models.base import StreamModel
from assay.streams.rows import Row, RowBlock

MODELS = {
    "majority": ("baselines", "Majority"),
    "last_label": ("baselines", "LastLabel"),
    "masked_logistic": ("logistic", "MaskedLogistic"),
    "masked_pa": ("passive_aggressive", "MaskedPA"),
    "masked_gaussian_nb": ("gaussian_nb", "MaskedGaussianNB"),
    "hoeffding_tree": ("hoeffding", "MaskedHoeffdingTree"),
    "nb3": ("nb3", "NB3"),
    "fae": ("fae", "FAE"),
    "olvf": ("olvf", "OLVF"),
    "olifl": ("olifl", "OLIFL"),
    "oli2ds": ("oli2ds", "OLI2DS"),
    "ocds": ("ocds", "OCDS"),
    "ovfm": ("ovfm", "OVFM"),
    "dynfo": ("dynfo", "DynFo"),
    "orf3v": ("orf3v", "ORF3V"),
    "aux_net": ("neural", "AuxNet"),
    "aux_drop_odl": ("neural", "AuxDropODL"),
    "aux_drop_ogd": ("neural", "AuxDropOGD"),
    "packet_lstm": ("neural", "PacketLSTM"),
    "hi2": ("neural", "HI2"),
}


def model_class(name: str) -> type[StreamModel]:
    """The class behind a name.

    Raises
    ------
    StreamError
        If there is none; the nearest names are suggested.
    """
    if name not in MODELS:
        near = get_close_matches(name.lower(), list(MODELS), n=3, cutoff=0.4) or list(MODELS)
        raise StreamError(f"there is no model {name!r}; did you mean {', '.join(near)}?")
    module, attribute = MODELS[name]
    found: type[StreamModel] = getattr(importlib.import_module(f"assay.streams.models.{module}"), attribute)
    return found


def make_model(
    model: Any, task: str = "classification", classes: Sequence[Hashable] | None = None, seed: int | None = None
) -> Any:
    """A model ready for a stream: by name or class, or a model of one's own.

    Binary models are wrapped in `OneVsRest` for more than two classes; a model that has learned already is used as it
    is.

    Raises
    ------
    StreamError
        If the model does no regression and the stream is one.
    """
    if isinstance(model, str):
        model = model_class(model)
    if inspect.isclass(model):
        model = model()
    if not isinstance(model, StreamModel):
        return ForeignModel(model)
    if model.features_:
        return model
    changes: dict[str, Any] = {}
    parameters = model.get_params()
    if seed is not None and "seed" in parameters:
        changes["seed"] = seed
    if task == "regression":
        if not model.regression:
            raise StreamError(f"{type(model).__name__} does classification only; the stream is one of regression")
        changes["task"] = "regression"
        model = model.clone(**changes)
        if model.unit_target:
            from assay.streams.models.scaled_target import ScaledTarget

            return ScaledTarget(model)
        return model
    many = classes is not None and len(classes) > 2
    if (
        "classes" in parameters
        and parameters["classes"] is None
        and classes is not None
        and (model.native_multiclass or not many)
    ):
        changes["classes"] = tuple(classes)
    model = model.clone(**changes)
    if many and not model.native_multiclass:
        from assay.streams.models.one_vs_rest import OneVsRest

        return OneVsRest(model, classes=tuple(classes or ()))
    return model


class ForeignModel:
    """Any object with ``score_one(row)`` and ``learn_one(row, y)`` as a model of this library."""

    def __init__(self, model: Any) -> None:
        for name in ("score_one", "learn_one"):
            if not callable(getattr(model, name, None)):
                raise StreamError(
                    f"{type(model).__name__} is no model: it has no method {name}(row{', y' * (name[0] == 'l')})"
                )
        self.model = model

    def __repr__(self) -> str:
        return repr(self.model)

    @property
    def classes_(self) -> list[Hashable]:
        return list(getattr(self.model, "classes_", []))

    def raw_score_one(self, row: Row) -> NDArray[np.float64]:
        score = np.atleast_1d(np.asarray(self.model.score_one(row), dtype=np.float64))
        if score.ndim != 1:
            raise StreamError(
                f"{self!r}: score_one returned an array of shape {score.shape}; a float or one float a class is due"
            )
        return score

    def learn_one(self, row: Row, y: Any) -> None:
        self.model.learn_one(row, y)

    def run_block(self, block: RowBlock, y: Any) -> NDArray[np.float64]:
        scores = []
        for t in range(len(block)):
            row = block.row(t)
            scores.append(self.raw_score_one(row))
            self.model.learn_one(row, y[t].item() if isinstance(y[t], np.generic) else y[t])
        width = max((len(s) for s in scores), default=1)
        return np.array([np.pad(s, (0, width - len(s))) for s in scores]).reshape(len(block), width)

    def memory_bytes(self) -> int:
        own = getattr(self.model, "memory_bytes", None)
        return int(own()) if callable(own) else 0

    def state_dict(self) -> Any:
        if not callable(getattr(self.model, "state_dict", None)):
            raise StreamError(
                f"{self!r} has no state_dict() and load_state_dict(), so a pass with it cannot be checkpointed"
            )
        return self.model.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.model.load_state_dict(state)
