"""From a system's own score to the share of its suggestions that are right (isotonic regression)."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from assay.formulas.errors import FormulaError, TaskFileError
from assay.formulas.metrics import Result
from assay.formulas.tasks import Task


@dataclass(frozen=True)
class Calibration:
    """A rising step function through (score, share right), straight between the steps.

    Attributes
    ----------
    scores, shares : tuple of float
    n : int
        Suggestions that it was fitted on.
    """

    scores: tuple[float, ...]
    shares: tuple[float, ...]
    n: int = 0

    def __call__(self, score: float) -> float:
        """Share of suggestions with that score that are right."""
        if not self.scores:
            return score
        return float(np.interp(score, self.scores, self.shares))


def fit(scores: Sequence[float], right: Sequence[bool]) -> Calibration:
    """Isotonic regression (pool adjacent violators), each pool drawn towards the mean by one pseudo-count.

    >>> c = fit([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [False, False, True, False, True, True])
    >>> c(0.1) < c(0.35) < c(0.6)
    True
    """
    if len(scores) != len(right):
        raise FormulaError(f"{len(scores)} scores, {len(right)} outcomes")
    if not len(scores):
        return Calibration((), ())
    order = np.argsort(scores, kind="stable")
    x, y = np.asarray(scores, float)[order], np.asarray(right, float)[order]
    mean = float(y.mean())
    pools: list[list[float]] = []  # sum, count, lowest and highest score
    for a, b in zip(x, y, strict=True):
        if pools and pools[-1][3] == a:
            pools[-1][0] += b
            pools[-1][1] += 1
        else:
            pools.append([float(b), 1.0, float(a), float(a)])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] >= pools[-1][0] / pools[-1][1]:
            total, count, _, high = pools.pop()
            pools[-1][0] += total
            pools[-1][1] += count
            pools[-1][3] = high
    scores_out: list[float] = []
    shares_out: list[float] = []
    for total, count, low, high in pools:
        share = (total + mean) / (count + 1)
        for place in (low, high) if high > low else (low,):
            scores_out.append(place)
            shares_out.append(max(share, shares_out[-1]) if shares_out else share)
    return Calibration(tuple(scores_out), tuple(shares_out), len(x))


def situation(task: Task) -> str:
    """Whether a formula stands beside the target: ``beside`` or ``alone``. Scores mean different things in the two.

    >>> from assay.formulas import Workbook, task_at
    >>> book = Workbook.from_cells({"S": {"A1": 1, "A2": "=A1+1"}})
    >>> situation(task_at(book, "S!A3")), situation(task_at(book, "S!C3"))
    ('beside', 'alone')
    """
    sheet = task.view.sheet(task.cell.sheet)
    row, col = task.cell.row, task.cell.col
    places = ((row - 1, col), (row, col - 1), (row + 1, col), (row, col + 1))
    return "beside" if any(min(p) > 0 and sheet.formula(*p) is not None for p in places) else "alone"


def fit_results(results: Sequence[Result], tasks: Sequence[Task]) -> dict[str, Calibration]:
    """A calibration a system and `situation`, from the first suggestion of every task (abstain tasks count as wrong).

    Keys are ``system/situation``.
    """
    where = {task.id: situation(task) for task in tasks}
    pairs: dict[str, tuple[list[float], list[bool]]] = {}
    for result in results:
        if result.suggestions:
            scores, right = pairs.setdefault(f"{result.system}/{where[result.task]}", ([], []))
            scores.append(result.suggestions[0]["score"])
            right.append(result.top1 and not result.abstain)
    return {system: fit(*pair) for system, pair in pairs.items()}


def save(calibrations: dict[str, Calibration], path: str | os.PathLike[str]) -> None:
    """Write calibrations as JSON, whole or not at all."""
    target = Path(path)
    part = target.with_name(f".{target.name}.part")
    data = {
        name: {"scores": [round(s, 4) for s in c.scores], "shares": [round(s, 4) for s in c.shares], "n": c.n}
        for name, c in sorted(calibrations.items())
    }
    try:
        part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def load(path: str | os.PathLike[str] | None = None) -> dict[str, Calibration]:
    """Read calibrations; those of the package where no path is given.

    Raises
    ------
    TaskFileError
    """
    place = Path(path) if path is not None else Path(__file__).with_name("calibration.json")
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
        return {k: Calibration(tuple(v["scores"]), tuple(v["shares"]), int(v["n"])) for k, v in data.items()}
    except FileNotFoundError:
        if path is None:
            return {}
        raise TaskFileError(f"there is no file of calibrations {place}") from None
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise TaskFileError(f"{place} is no file of calibrations ({type(error).__name__}: {error})") from error
