"""Online learning when features come and go ("haphazard inputs").

Each row of a stream has a different subset of columns, new columns appear, old ones stop, and the full list is never
known. Every model predicts each row before it learns it, once, in order, and takes any feature by name at any row.

>>> from assay.streams import load, run
>>> stream = load("wdbc").masked("probabilistic", p=0.5, seed=0)      # half of the cells are absent
>>> result = run("masked_logistic", stream)
>>> round(result.metrics["auroc"], 3), round(result.metrics["balanced_accuracy"], 3)
(0.982, 0.928)

Your own table, or rows as they arrive:

>>> from assay.streams import from_dicts
>>> rows = [({"temp": 20.5, "valve": "open"}, "ok"), ({"valve": "shut"}, "fault"), ({"valve": "shut"}, "fault")]
>>> history = from_dicts(rows)
>>> run("nb3", history, normalizer="none").predictions.tolist()
[0, 0, 1]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from assay.streams.contract import check_causal, check_model
from assay.streams.errors import (
    CheckpointMismatch,
    LabelOutOfRange,
    NotCausal,
    RegimeError,
    SingleClassWarning,
    StateLimitExceeded,
    StreamError,
    UnknownFeatureValue,
)
from assay.streams.generators import make_stream
from assay.streams.impute import Imputer
from assay.streams.inspect import inspect_stream
from assay.streams.metrics import METRICS
from assay.streams.models import MODELS, StreamModel, learn_many, make_model
from assay.streams.normalize import NORMALIZERS, normalizer
from assay.streams.protocol import RunResult, TuneResult, run, tune
from assay.streams.regimes import REGIMES, regime
from assay.streams.rows import Row, RowBlock
from assay.streams.stream import HaphazardStream, from_arrays, from_dicts

if TYPE_CHECKING:
    from assay.streams.adapters import FromRiver, StreamClassifier, StreamRegressor, ToRiver
    from assay.streams.data import DATASETS, load
    from assay.streams.readers import from_arff, from_csv, from_frame, from_libsvm, from_parquet

_MODELS = (
    "DynFo", "FAE", "LastLabel", "Majority", "MaskedGaussianNB", "MaskedHoeffdingTree", "MaskedLogistic", "MaskedPA",
    "NB3", "OCDS", "OLI2DS", "OLIFL", "OLVF", "ORF3V", "OVFM", "OneVsRest", "ScaledTarget", "Thresholded",
)  # fmt: skip
_NEURAL = ("AuxDropODL", "AuxDropOGD", "AuxNet", "HI2", "PacketLSTM")
# What needs pandas, scikit-learn or torch is imported when it is used.
_LAZY = {
    **dict.fromkeys(("FromRiver", "StreamClassifier", "StreamRegressor", "ToRiver"), "adapters"),
    **dict.fromkeys(("DATASETS", "load"), "data"),
    **dict.fromkeys(("from_arff", "from_csv", "from_frame", "from_libsvm", "from_parquet"), "readers"),
    **dict.fromkeys((*_MODELS, *_NEURAL), "models"),
}

__all__ = [
    "DATASETS", "METRICS", "MODELS", "NORMALIZERS", "REGIMES", "CheckpointMismatch", "FromRiver", "HaphazardStream",
    "Imputer", "LabelOutOfRange", "NotCausal", "RegimeError", "Row", "RowBlock", "RunResult", "SingleClassWarning",
    "StateLimitExceeded", "StreamClassifier", "StreamError", "StreamModel", "StreamRegressor", "ToRiver", "TuneResult",
    "UnknownFeatureValue", "check_causal", "check_model", "from_arff", "from_arrays", "from_csv", "from_dicts",
    "from_frame", "from_libsvm", "from_parquet", "inspect_stream", "learn_many", "load", "make_model", "make_stream",
    "normalizer", "regime", "run", "tune", *_MODELS,
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"assay.streams.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_NEURAL])
