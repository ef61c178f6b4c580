"""Ways to look for silent bugs, behind one interface: traces (or losses) in, an answer out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from assay.difftest.check import Result, compare
from assay.difftest.monitor import LossMonitor
from assay.difftest.store import Trace
from assay.difftest.testbed.config import Config, Layout
from assay.difftest.tolerance import Tolerance
from assay.difftest.traincheck import TrainCheck

STEPS = 200


@dataclass
class Answer:
    """What a method says of one run.

    Attributes
    ----------
    found : bool
    place : str
        ``phase/module/slot`` of the first wrong tensor, where the method can say.
    kind, category : str
    findings : int
    """

    found: bool
    place: str = ""
    kind: str = ""
    category: str = ""
    findings: int = 0
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass
class Scenario:
    """One run of the test bed, correct or with a bug, and how to get at it.

    Attributes
    ----------
    config, layout
    bug : int
        0 for a correct one.
    traces : callable
        ``() -> (reference, tolerance of mode perturb, candidate)``.
    curves : callable
        ``(steps) -> (reference losses of three seeds, candidate losses)``.
    """

    config: Config
    layout: Layout
    bug: int
    traces: Callable[[], tuple[Trace, Tolerance, Trace]]
    curves: Callable[[int], tuple[np.ndarray, np.ndarray]]


class Detector(Protocol):
    """What a method has to have."""

    def judge(self, scenario: Scenario) -> Answer:
        """Look at a run."""


class Checker:
    """Comparison with the reference.

    Parameters
    ----------
    mode : str
        ``perturb`` (default), ``theory`` (closed form with C = 1.03), ``fixed`` (one relative error for all) .
    value : float
        For ``fixed``.
    """

    def __init__(self, mode: str = "perturb", value: float = 1e-3) -> None:
        self.mode, self.value = mode, value

    def judge(self, scenario: Scenario) -> Answer:
        """Look at a run."""
        reference, perturb, candidate = scenario.traces()
        if self.mode == "perturb":
            tolerance = perturb
        elif self.mode == "fixed":
            tolerance = Tolerance(eps=perturb.eps).with_rules([("", self.value)])
        elif self.mode == "theory":
            tolerance = theory_of(reference, perturb.eps, scenario.config.layers)
        else:
            raise ValueError(f"a checker's mode is perturb, theory or fixed, not {self.mode!r}")
        return answer_of(compare(reference, candidate, tolerance))


def theory_of(reference: Trace, eps: float, layers: int, *, C: float = 1.03) -> Tolerance:
    """Closed-form tolerances for all tensors of a trace."""
    from assay.difftest.names import Name
    from assay.difftest.tolerance import layer_of, theory_tolerance

    made = Tolerance(eps=eps)
    for name in reference.names():
        n = Name.parse(name)
        made.relative[name] = theory_tolerance(layer_of(n.module, layers), layers, eps=eps, C=C, phase=n.phase)
        made.reasons[name] = "theory"
    return made


def answer_of(result: Result) -> Answer:
    """The first finding as an answer."""
    if not result.findings:
        return Answer(False)
    first = result.findings[0]
    place = "/".join(first.name.split("/")[2:])
    return Answer(True, place, first.kind, first.category, len(result.findings), {"evidence": first.evidence})


class LossCurve:
    """The loss curve against the spread of three reference seeds; says nothing of where.

    Parameters
    ----------
    steps : int
    sigmas : float
    """

    def __init__(self, steps: int = STEPS, sigmas: float = 3.0) -> None:
        self.steps, self.sigmas = steps, sigmas

    def judge(self, scenario: Scenario) -> Answer:
        """Look at a run."""
        reference, candidate = scenario.curves(self.steps)
        window = max(1, min(10, self.steps // 4))
        monitor = LossMonitor(
            sigmas=self.sigmas, window=window, patience=min(3, max(1, self.steps // window // 2))
        ).fit(reference)
        at = monitor.alarm(candidate)
        return Answer(at is not None, notes={"step": None if at is None else at * window}, findings=int(at is not None))


class Nothing:
    """Trusts every run."""

    def judge(self, scenario: Scenario) -> Answer:
        """Look at a run."""
        return Answer(False)


__all__ = ["Answer", "Checker", "Detector", "LossCurve", "Nothing", "Scenario", "TrainCheck", "answer_of", "theory_of"]
