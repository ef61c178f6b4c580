"""The models by name; a module is imported when one of its models is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from assay.diagnosis.errors import UnknownName

_WHERE = {
    "baselines": ("ItemMean", "StudentItemLogit", "KCAccuracy", "Rasch"),
    "irt": ("IRT", "MIRT"),
    "dcm": ("DINA", "DINO", "GDINA"),
    "neural": ("NCDM", "KaNCD", "CDMFKC", "KSCD", "HierCDF", "IDCDF", "GradientDINA"),
    "graph": ("RCD", "ORCDF"),
}
MODELS: dict[str, str] = {name: module for module, names in _WHERE.items() for name in names}


def model_class(name: str) -> Any:
    """The class of that name.

    Raises
    ------
    UnknownName
        If there is none.

    Examples
    --------
    >>> model_class("IRT")()
    IRT()
    """
    found = next((n for n in MODELS if n.lower() == name.lower().replace("-", "")), None)
    if found is None:
        raise UnknownName.of("model", name, MODELS)
    return getattr(import_module(f"assay.diagnosis.{MODELS[found]}"), found)
