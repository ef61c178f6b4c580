"""What comes out of a comparison."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from assay.difftest.routing import Flips
from assay.difftest.shards import Problem


@dataclass
class Verdict:
    """What came out for one tensor.

    Attributes
    ----------
    name : str
    order : int
    relative, tolerance : float
        Relative Frobenius error and what a correct run may have.
    reason : str
        Where the tolerance comes from.
    status : str
        ``ok``, ``wrong``, ``left out``.
    norm : float
        Of the reference.
    largest, cosine, scale : float
    problems : list of Problem
    note : str
    """

    name: str
    order: int
    relative: float
    tolerance: float
    reason: str
    status: str
    norm: float = 0.0
    largest: float = 0.0
    cosine: float = 1.0
    scale: float = 1.0
    problems: list[Problem] = field(default_factory=list)
    note: str = ""

    @property
    def floor(self) -> float:
        """Detection floor: the smallest relative effect on this tensor that would have been seen."""
        return self.tolerance

    @property
    def excess(self) -> float:
        """Error over tolerance."""
        if self.tolerance == 0.0:
            return math.inf if self.relative > 0 else 0.0
        return self.relative / self.tolerance


@dataclass
class Finding:
    """One thing that is wrong, in the order of execution; the first is the root candidate.

    Attributes
    ----------
    name, module, phase : str
    kind : str
        Diagnosis, such as ``scale``, ``missing reduction``, ``wrong rows``.
    category : str
        ``wrong computation``, ``wrong communication`` or ``missing communication``.
    confidence : float
        0 to 1, of the diagnosis.
    ranks : tuple of int
        Ranks on which it shows.
    rel_error, tolerance : float
    evidence : list of str
    consequence : bool
        Whether an earlier finding explains it.
    """

    name: str
    module: str
    phase: str
    kind: str
    ranks: tuple[int, ...] = ()
    rel_error: float = 0.0
    tolerance: float = 0.0
    evidence: list[str] = field(default_factory=list)
    category: str = "wrong computation"
    confidence: float = 0.5
    consequence: bool = False
    order: int = 0

    def __str__(self) -> str:
        where = f"{self.phase} of {self.module}"
        return f"{where}: {self.kind} (error {self.rel_error:.3g}, tolerance {self.tolerance:.3g})"


@dataclass
class Result:
    """Outcome of a comparison.

    Attributes
    ----------
    ok : bool
        Nothing was found.
    findings : list of Finding
    verdicts : list of Verdict
        Every tensor that was compared, in the order of execution.
    not_compared : list of str
        Names of the reference that the candidate does not have.
    notes : list of str
    flips : list of Flips
        Discrete decisions that differ and may.
    """

    findings: list[Finding]
    verdicts: list[Verdict]
    not_compared: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    flips: list[Flips] = field(default_factory=list)
    dead_ranks: list[int] = field(default_factory=list)
    reference: str = ""
    candidate: str = ""
    coverage: Any = None

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def partial(self) -> bool:
        """Whether the pass has holes: tensors not compared, ranks missing, inputs that do not reach everything."""
        holes = self.coverage is not None and not self.coverage.complete
        return bool(self.not_compared or self.dead_ranks or holes)

    @property
    def verdict(self) -> str:
        """``FAIL``, ``PASS (partial)`` or ``PASS``."""
        if self.findings:
            return "FAIL"
        return "PASS (partial)" if self.partial else "PASS"

    def floors(self) -> dict[str, float]:
        """Name -> smallest relative effect that would have been seen."""
        return {v.name: v.floor for v in self.verdicts if v.status != "left out"}

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "verdict": self.verdict, "reference": self.reference, "candidate": self.candidate,
            "findings": [asdict(f) for f in self.findings], "verdicts": [asdict(v) for v in self.verdicts],
            "not_compared": self.not_compared, "notes": self.notes, "dead_ranks": self.dead_ranks,
            "flips": [asdict(f) for f in self.flips],
            "coverage": asdict(self.coverage) if self.coverage is not None else None,
        }  # fmt: skip
