"""The cascade: cheap systems first, each trusted as far as it was right on a validation split; below it, silence."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from assay.formulas.errors import FormulaError
from assay.formulas.grammar import parse
from assay.formulas.systems.aggregate import Aggregate
from assay.formulas.systems.base import Suggestion, System
from assay.formulas.systems.calibrate import Calibration, load, situation
from assay.formulas.systems.joint import Joint, load_joint
from assay.formulas.systems.neighbour import Neighbour
from assay.formulas.tasks import Task


class Cascade:
    """Systems in order; a later one is asked only while no suggestion is sure enough.

    Parameters
    ----------
    systems : sequence of System, optional
        Default: neighbour, aggregate, retrieval over made workbooks.
    accept : float
        Calibrated share of right suggestions from which on no further system is asked.
    threshold : float
        Suggestions below this share are not given.
    calibration : mapping of ``system/situation`` or system name to `Calibration`, optional
        Default: the one of the package, fitted on made workbooks whose words neither the corpus of retrieval nor any
        test uses (`assay formulas calibrate`).
    joint : `Joint`, optional
        How the shares of several systems go together; where it has no weights for the systems that were asked, the best
        calibrated share counts. Default: the one of the package, none where a calibration is given.

    Raises
    ------
    FormulaError
        If a threshold lies outside 0 to 1, or there is no system.

    Examples
    --------
    >>> from assay.formulas import Workbook, task_at
    >>> cells = {f"A{i}": i for i in range(1, 6)} | {f"B{i}": f"=A{i}*2" for i in range(1, 5)}
    >>> best = Cascade([Neighbour(), Aggregate()]).suggest(task_at(Workbook.from_cells({"S": cells}), "S!B5"))[0]
    >>> best.formula, best.source, best.evidence[0].address
    ('A5*2', 'neighbour', 'B4')
    """

    name = "cascade"

    def __init__(
        self,
        systems: Sequence[System] | None = None,
        *,
        accept: float = 0.9,
        threshold: float = 0.3,
        calibration: Mapping[str, Calibration] | None = None,
        joint: Joint | None = None,
    ) -> None:
        if not (0 <= accept <= 1 and 0 <= threshold <= 1):
            raise FormulaError(f"accept and threshold are shares between 0 and 1, not {accept} and {threshold}")
        default: list[System] = [Neighbour(), Aggregate()]
        self.systems = list(systems) if systems is not None else [*default, _default_retrieval()]
        if not self.systems:
            raise FormulaError("a cascade needs at least one system")
        self.accept, self.threshold = accept, threshold
        self.joint = joint if joint is not None or calibration is not None else load_joint()
        self.calibration = dict(calibration if calibration is not None else load())

    def suggest(self, task: Task, k: int = 5) -> list[Suggestion]:
        """See `System.suggest`; ``parts`` of each suggestion says where the time went."""
        began = time.perf_counter()
        pool: dict[str, Suggestion] = {}
        shares: dict[str, dict[str, float]] = {}
        parts: list[tuple[str, float]] = []
        where = situation(task)
        for system in self.systems:
            start = time.perf_counter()
            found = system.suggest(task, k)
            parts.append((system.name, (time.perf_counter() - start) * 1000))
            scale = self.calibration.get(f"{system.name}/{where}") or self.calibration.get(system.name)
            own = shares.setdefault(system.name, {})
            for suggestion in found:
                share = scale(suggestion.score) if scale is not None else suggestion.score
                form = parse(suggestion.formula, task.cell).canonical()
                own[form] = max(own.get(form, 0.0), share)
                old = pool.get(form)
                if old is None:
                    pool[form] = replace(suggestion, score=share)
                else:  # two systems that agree
                    both = 1 - (1 - old.score) * (1 - 0.5 * share)
                    pool[form] = replace(
                        old,
                        score=max(old.score, share, min(both, 0.99)),
                        reason=f"{old.reason}; also {suggestion.reason}",
                        evidence=tuple(dict.fromkeys((*old.evidence, *suggestion.evidence))),
                    )
            if self.joint is not None and self.joint.knows(list(shares)):
                for form, share in self.joint(shares, list(shares), where == "beside").items():
                    pool[form] = replace(pool[form], score=share)
            if pool and max(s.score for s in pool.values()) >= self.accept:
                break
        ms = (time.perf_counter() - began) * 1000
        best = sorted((s for s in pool.values() if s.score >= self.threshold), key=lambda s: -s.score)[:k]
        return [replace(s, ms=ms, parts=tuple(parts)) for s in best]


@lru_cache(maxsize=1)
def _default_retrieval() -> System:
    from assay.formulas.systems.retrieval import Retrieval

    return Retrieval()
