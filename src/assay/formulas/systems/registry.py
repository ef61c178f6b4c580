"""Systems by name, imported when they are made."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

from assay.formulas.errors import FormulaError

_WHERE = {
    "neighbour": ("assay.formulas.systems.neighbour", "Neighbour"),
    "aggregate": ("assay.formulas.systems.aggregate", "Aggregate"),
    "retrieval": ("assay.formulas.systems.retrieval", "Retrieval"),
    "cascade": ("assay.formulas.systems.cascade", "Cascade"),
    "sketch_pointer": ("assay.formulas.learned.system", "SketchPointer"),
    "llm": ("assay.formulas.endpoint", "Endpoint"),
}
# The parameters that the benchmark gives each.
SYSTEMS: dict[str, dict[str, Any]] = {name: {} for name in _WHERE}


def system_class(name: str) -> type:
    """The class of a system.

    Raises
    ------
    FormulaError
    """
    if name not in _WHERE:
        raise FormulaError(f"there is no system {name!r}; there is {', '.join(_WHERE)}")
    module, attribute = _WHERE[name]
    found: type = getattr(importlib.import_module(module), attribute)
    return found


def make_system(name: str, **params: Any) -> Any:
    """A system by name.

    >>> make_system("neighbour", gap=1).gap
    1
    """
    return system_class(name)(**params)


@dataclass(frozen=True)
class NamedSystem:
    """Makes a system by its name; the module is imported at the first call."""

    name: str

    def __call__(self, **params: Any) -> Any:
        return make_system(self.name, **params)

    def parameter_names(self) -> list[str]:
        """Parameters that the system takes."""
        return list(inspect.signature(system_class(self.name)).parameters)
