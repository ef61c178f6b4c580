"""Tolerances of tensors, with their reasons; files of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from assay.difftest.errors import DiffTestError
from assay.difftest.metrics import eps_of
from assay.difftest.names import Name
from assay.difftest.writer import write_text

FLOOR = 0.5


# A single number does not average roundings as a tensor does: half an eps is less than the distance to its neighbour,
# which a correct sum in another order may well give. Tensors of few elements have a floor of 2 eps.
SCALAR_FLOOR, SCALAR = 2.0, 8


@dataclass
class Tolerance:
    """Tolerance of every tensor, with its reason.

    Attributes
    ----------
    relative : dict
        Name -> largest relative Frobenius error of a correct run.
    absolute : dict
        Name -> largest absolute error, used where the reference is zero.
    reasons : dict
        Name -> mode that gave it.
    rules : list of (pattern, value)
        Fixed ones; the first pattern that is found in a name replaces all else.
    eps : float
        Machine epsilon of the run (of its lowest storage type among activations).
    safety : float
    """

    relative: dict[str, float] = field(default_factory=dict)
    absolute: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    rules: list[tuple[str, float]] = field(default_factory=list)
    eps: float = 2.0**-23
    safety: float = 4.0
    default: float = 16.0

    def of(self, name: str, dtype: str = "float32") -> tuple[float, str]:
        """Tolerance and reason. A tensor that no mode saw gets ``default`` eps of the lower of the two types."""
        for pattern, value in self.rules:
            if re.search(pattern, name):
                return value, f"fixed rule {pattern}"
        if name in self.relative:
            return self.relative[name], self.reasons.get(name, "perturb")
        first = str(Name.parse(name).first_pass())
        if first in self.relative:
            return self.relative[first], self.reasons.get(first, "perturb")
        return self.default * max(self.eps, eps_of(dtype)), f"default, {self.default:g} eps"

    def merge(self, other: Tolerance) -> Tolerance:
        """The larger of both for each tensor; rules of both."""
        joined = Tolerance(dict(self.relative), dict(self.absolute), dict(self.reasons), [*self.rules, *other.rules],
                           max(self.eps, other.eps), self.safety, self.default)  # fmt: skip
        for name, value in other.relative.items():
            if value > joined.relative.get(name, -1.0):
                joined.relative[name] = value
                joined.reasons[name] = other.reasons.get(name, "")
        for name, value in other.absolute.items():
            joined.absolute[name] = max(value, joined.absolute.get(name, 0.0))
        return joined

    def with_rules(self, rules: Iterable[tuple[str, float]]) -> Tolerance:
        """With fixed rules in front."""
        for pattern, value in rules:
            try:
                re.compile(pattern)
            except re.error as error:
                raise DiffTestError(f"the pattern {pattern!r} of a tolerance rule is no regular expression") from error
            if not (isinstance(value, (int, float)) and value >= 0):
                raise DiffTestError(f"the tolerance of {pattern!r} is {value!r}, not a number from 0 up")
        return Tolerance(
            self.relative, self.absolute, self.reasons, [*rules, *self.rules], self.eps, self.safety, self.default
        )

    def save(self, path: str | Path) -> Path:
        """Write as JSON."""
        return write_text(Path(path), json.dumps({"format": 1, **vars(self)}, indent=0))

    @classmethod
    def load(cls, path: str | Path) -> Tolerance:
        """Read what `save` wrote, or a plain ``{pattern: value}`` object of fixed rules (others' thresholds)."""
        try:
            raw = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError) as error:
            raise DiffTestError(f"{path} cannot be read as a tolerance file: {error}") from error
        if not isinstance(raw, dict):
            raise DiffTestError(f"{path} holds no JSON object")
        if raw.pop("format", None) is None:
            return cls().with_rules([(str(k), v) for k, v in raw.items()])
        raw["rules"] = [(p, float(v)) for p, v in raw.get("rules", [])]
        return cls(**raw)
