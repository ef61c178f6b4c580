"""One share for a formula that several systems speak for or against: a logistic regression over their shares.

A calibration looks at one system. The cascade asks several, and what the others suggest instead says as much as a
system's own score: a copy of the neighbour is right where nothing else is suggested, and wrong in a total row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from assay.formulas.errors import FormulaError, TaskFileError
from assay.formulas.metrics import Result
from assay.formulas.systems.calibrate import Calibration, situation
from assay.formulas.tasks import Task

Shares = Mapping[str, Mapping[str, float]]
"""System -> formula (in canonical form) -> calibrated share of right ones."""
_LEAST = 0.02


def _logit(share: float) -> float:
    """Log odds; a share of 0 (not suggested) counts as the least."""
    clipped = min(max(share, _LEAST), 1 - _LEAST)
    return float(np.log(clipped / (1 - clipped)))


def evidence(shares: Shares, names: Sequence[str], beside: bool) -> tuple[list[str], Float[np.ndarray, "n features"]]:
    """Formulas, and for each what every system says of it; then a constant and whether a formula stands beside.

    Of a system: the log odds of its share, those of its best other formula, whether it suggests the formula, and
    whether first.
    """
    formulas = list(dict.fromkeys(f for name in names for f in shares.get(name, {})))
    rows = np.zeros((len(formulas), 4 * len(names) + 2))
    rows[:, -2:] = 1.0, float(beside)
    for j, name in enumerate(names):
        given = shares.get(name, {})
        order = sorted(given.items(), key=lambda item: -item[1])
        for i, formula in enumerate(formulas):
            own = given.get(formula, 0.0)
            other = next((value for text, value in order if text != formula), 0.0)
            rows[i, 4 * j : 4 * j + 4] = _logit(own), _logit(other), own > 0, own > other
    return formulas, rows


@dataclass(frozen=True)
class Joint:
    """Weights by the systems asked so far (their names, joined by blanks).

    Attributes
    ----------
    weights : dict
    n : int
        Tasks that it was fitted on.
    """

    weights: dict[str, tuple[float, ...]]
    n: int = 0

    def knows(self, names: Sequence[str]) -> bool:
        """Whether there are weights for these systems in this order."""
        return " ".join(names) in self.weights

    def __call__(self, shares: Shares, names: Sequence[str], beside: bool) -> dict[str, float]:
        """Share of right ones, all systems taken together, by formula."""
        formulas, rows = evidence(shares, names, beside)
        together = 1 / (1 + np.exp(-rows @ np.array(self.weights[" ".join(names)])))
        return dict(zip(formulas, together.tolist(), strict=True))


def _logistic(x: Float[np.ndarray, "n features"], y: Float[np.ndarray, " n"], ridge: float = 0.3) -> tuple[float, ...]:
    """Weights by Newton's method with a quadratic penalty."""
    w = np.zeros(x.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-x @ w))
        step = np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x + ridge * np.eye(len(w)), x.T @ (p - y) + ridge * w)
        w = w - step
        if np.abs(step).max() < 1e-9:
            break
    return tuple(float(v) for v in w)


def fit_joint(
    results: Sequence[Result], tasks: Sequence[Task], names: Sequence[str], calibrations: Mapping[str, Calibration]
) -> Joint:
    """Fit on the suggestions of every task (all of those where no formula belongs are wrong), for each beginning of
    the list of at least two systems; one alone is what its calibration is for.

    Raises
    ------
    FormulaError
        If a system has no result.
    """
    from assay.formulas.grammar import parse

    missing = sorted(set(names) - {r.system for r in results})
    if missing:
        raise FormulaError(f"there is no result of {', '.join(missing)}")
    by_task: dict[str, dict[str, dict[str, float]]] = {}
    right: set[tuple[str, str]] = set()
    known = {task.id: task for task in tasks}
    where = {task.id: situation(task) for task in tasks}
    for result in results:
        task = known[result.task]
        for suggestion in result.suggestions:
            form = parse(suggestion["formula"], task.cell).canonical()
            given = by_task.setdefault(task.id, {}).setdefault(result.system, {})
            share = calibrations[f"{result.system}/{where[task.id]}"](suggestion["score"])
            given[form] = max(given.get(form, 0.0), share)
            if suggestion.get("outcome") == "right" and not task.abstain:
                right.add((task.id, form))
    weights = {}
    for count in range(2, len(names) + 1):
        x, y = [], []
        for name, shares in by_task.items():
            formulas, rows = evidence(shares, names[:count], where[name] == "beside")
            x.append(rows)
            y += [float((name, formula) in right) for formula in formulas]
        weights[" ".join(names[:count])] = _logistic(np.concatenate(x), np.array(y))
    return Joint(weights, len(by_task))


def save_joint(joint: Joint, path: str | os.PathLike[str]) -> None:
    """Write the weights as JSON, whole or not at all."""
    target = Path(path)
    part = target.with_name(f".{target.name}.part")
    data = {"n": joint.n, "weights": {k: [round(w, 4) for w in v] for k, v in joint.weights.items()}}
    try:
        part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def load_joint(path: str | os.PathLike[str] | None = None) -> Joint:
    """Read weights; those of the package where no path is given.

    Raises
    ------
    TaskFileError
    """
    place = Path(path) if path is not None else Path(__file__).with_name("joint.json")
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
        return Joint({k: tuple(v) for k, v in data["weights"].items()}, int(data["n"]))
    except (OSError, json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise TaskFileError(f"{place} is no file of joint weights ({type(error).__name__}: {error})") from error
