"""Objectives: what makes a policy sample in proportion to the reward. Each reads like its paper's box."""

from __future__ import annotations

from typing import Any

from assay.gflownets.errors import GFlowNetError
from assay.gflownets.objectives.base import REGRESSIONS, Objective
from assay.gflownets.objectives.trajectory import RTB, TB, SubTB, VarGrad
from assay.gflownets.objectives.transition import DB, FLDB, FM, MDB, SoftDQN

OBJECTIVES: dict[str, type[Objective]] = {
    "tb": TB,
    "vargrad": VarGrad,
    "subtb": SubTB,
    "db": DB,
    "fm": FM,
    "fldb": FLDB,
    "flsubtb": SubTB,
    "mdb": MDB,
    "soft_dqn": SoftDQN,
    "munchausen_dqn": SoftDQN,
    "rtb": RTB,
}
_PRESETS: dict[str, dict[str, Any]] = {"flsubtb": {"forward_looking": True}, "munchausen_dqn": {"alpha": 0.15}}

__all__ = [
    "DB",
    "FLDB",
    "FM",
    "MDB",
    "OBJECTIVES",
    "REGRESSIONS",
    "RTB",
    "TB",
    "Objective",
    "SoftDQN",
    "SubTB",
    "VarGrad",
    "make_objective",
]


def make_objective(objective: str | Objective, **options: Any) -> Objective:
    """An objective by name, with options such as ``lam=`` of ``subtb``.

    Raises
    ------
    GFlowNetError
        If there is none of that name, or it takes no such option.
    """
    if isinstance(objective, Objective):
        return objective
    if objective not in OBJECTIVES:
        raise GFlowNetError(f"there is no objective {objective!r}; there is {', '.join(OBJECTIVES)}")
    try:
        return OBJECTIVES[objective](**{**_PRESETS.get(objective, {}), **options})
    except TypeError as error:
        raise GFlowNetError(f"the objective {objective!r} cannot be made with {options}: {error}") from error
