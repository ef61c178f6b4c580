"""Measures of suggestions, and reports over many tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.formulas.errors import FormulaError
from assay.formulas.grammar import CellRef, parse
from assay.formulas.tasks import Task, prefixes


@dataclass(frozen=True)
class Likeness:
    """How a candidate compares with the truth as text.

    Attributes
    ----------
    exact : bool
        Equal in canonical form.
    positions : bool
        Equal, ``$`` aside.
    r1c1, sketch : bool
    function_f1 : float
        Of the sets of functions and operators.
    parses : bool
    """

    exact: bool = False
    positions: bool = False
    r1c1: bool = False
    sketch: bool = False
    function_f1: float = 0.0
    parses: bool = False


def likeness(candidate: str, truth: str, at: CellRef) -> Likeness:
    """Compare two formulas of one cell.

    >>> likeness("sum($A$1:A3)", "SUM(A1:A3)", CellRef("S", 4, 1))
    Likeness(exact=False, positions=True, r1c1=False, sketch=True, function_f1=1.0, parses=True)
    """
    right = parse(truth, at)
    try:
        read = parse(candidate, at)
    except FormulaError:
        return Likeness()
    a, b = _operations(read.tree), _operations(right.tree)
    f1 = 1.0 if not a and not b else 2 * len(a & b) / (len(a) + len(b))
    return Likeness(
        read.canonical() == right.canonical(),
        read.canonical(dollars=False) == right.canonical(dollars=False),
        read.canonical_r1c1() == right.canonical_r1c1(),
        read.sketch() == right.sketch(),
        f1,
        True,
    )


def _operations(tree: Any) -> set[str]:
    from assay.formulas.grammar.nodes import Binary, Call

    return {n.function if isinstance(n, Call) else n.op for n in tree.walk() if isinstance(n, (Call, Binary))}


def keystrokes_saved(
    task: Task, top: Callable[[Task], str | None], right: Callable[[str], bool] | None = None
) -> float:
    """``(L - p - 1) / L``: L characters of the truth, p of the shortest prefix from which the first suggestion stays
    right, 1 for the key that accepts it; 0 where it never does.

    Parameters
    ----------
    top : callable
        First suggestion for a task with a prefix, None for none.
    right : callable, optional
        Default: equal in canonical form.

    Examples
    --------
    >>> from assay.formulas import Workbook, parse_address
    >>> book = Workbook.from_cells({"S": {"A1": 1, "A2": 2}})
    >>> task = Task("t", book, parse_address("S!A3"), truth="SUM(A1:A2)")
    >>> round(keystrokes_saved(task, lambda t: "SUM(A1:A2)" if len(t.prefix) >= 5 else "A1"), 3)
    0.455
    """
    truth = "=" + (task.truth or "").lstrip("=")
    check = right or (lambda formula: likeness(formula, task.truth or "", task.cell).exact)
    shortest = None
    for prefix in reversed(prefixes(truth)):
        found = top(task.with_prefix(prefix))
        if found is None or not check(found):
            break
        shortest = prefix
    return (len(truth) - len(shortest) - 1) / len(truth) if shortest is not None else 0.0


# -- records and reports ---------------------------------------------------------------------------------------------


@dataclass
class Result:
    """One task, one system.

    Attributes
    ----------
    task, system : str
    abstain : bool
        No formula belongs there.
    suggestions : list of dict
        formula, score, source, ms, reason, outcome, text_copy and the fields of `Likeness`.
    top1, topk : bool
        The first is correct; one of them is. For an abstain task: nothing was suggested.
    ms : float
        Wall time of the call.
    reproduces : bool or None
        The truth gives its stored value.
    tokens, price : float
    error : str
        Of the system, where it raised.
    """

    task: str
    system: str
    abstain: bool = False
    function: str = ""
    suggestions: list[dict[str, Any]] = field(default_factory=list)
    top1: bool = False
    topk: bool = False
    ms: float = 0.0
    reproduces: bool | None = None
    executable: bool = True
    tokens: float = 0.0
    price: float = 0.0
    keystrokes: float | None = None
    error: str = ""
    key: str = ""
    note: str = ""


@dataclass
class Report:
    """Figures of one system over the tasks, and what they rest on.

    Attributes
    ----------
    system : str
    figures : dict of str to float
    interval : tuple of float
        Of ``correct``, bootstrap over tasks, 95 %.
    notes : list of str
    """

    system: str
    figures: dict[str, float]
    interval: tuple[float, float]
    notes: list[str] = field(default_factory=list)


def bootstrap(values: Sequence[float], seed: int = 0, rounds: int = 2000) -> tuple[float, float]:
    """95 % interval of a mean.

    >>> low, high = bootstrap([0, 1] * 50)
    >>> 0.39 < low < 0.42, 0.58 < high < 0.61
    (True, True)
    """
    x = np.asarray(values, float)
    if not len(x):
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    means = x[rng.integers(0, len(x), (rounds, len(x)))].mean(1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def summarise(results: Sequence[Result]) -> Report:
    """Figures of one system.

    Raises
    ------
    FormulaError
        If there is no result.
    """
    if not results:
        raise FormulaError("there are no results to summarise")
    rows = list(results)
    with_truth = [r for r in rows if not r.abstain]
    first = [r.suggestions[0] for r in with_truth if r.suggestions]
    n = max(len(with_truth), 1)
    shown = [r for r in rows if r.suggestions]
    ms = np.array([r.ms for r in rows])
    figures = {
        "correct": float(np.mean([r.top1 for r in rows])),
        "correct_k": float(np.mean([r.topk for r in rows])),
        "exact": sum(s["exact"] for s in first) / n if with_truth else float("nan"),
        "exact_positions": sum(s["positions"] for s in first) / n if with_truth else float("nan"),
        "r1c1": sum(s["r1c1"] for s in first) / n if with_truth else float("nan"),
        "sketch": sum(s["sketch"] for s in first) / n if with_truth else float("nan"),
        "function_f1": sum(s["function_f1"] for s in first) / n if with_truth else float("nan"),
        "correct_with_truth": sum(r.top1 for r in with_truth) / n if with_truth else float("nan"),
        "abstained_rightly": float(np.mean([r.top1 for r in rows if r.abstain]))
        if len(rows) > len(with_truth)
        else float("nan"),
        "precision": float(np.mean([r.top1 for r in shown])) if shown else float("nan"),
        "shown": len(shown) / len(rows),
        "parses": sum(s["parses"] for s in first) / len(first) if first else float("nan"),
        "not_executable": sum(not r.executable for r in with_truth) / n if with_truth else float("nan"),
        "text_copy": _share([s.get("text_copy") for s in first if s.get("outcome") == "right"]),
        "keystrokes_saved": _share([r.keystrokes for r in with_truth]),
        "p50_ms": float(np.quantile(ms, 0.5)),
        "p95_ms": float(np.quantile(ms, 0.95)),
        "tokens": float(np.mean([r.tokens for r in rows])),
        "price": float(np.sum([r.price for r in rows])),
        "tasks": float(len(rows)),
    }
    notes = []
    stale = [r.task for r in with_truth if r.reproduces is False]
    if stale:
        notes.append(
            f"{len(stale)} truths do not give their stored value here (marked, not left out): {', '.join(stale[:5])}"
        )
    failed = [r for r in rows if r.error]
    if failed:
        notes.append(f"{len(failed)} calls failed, the first: {failed[0].error}")
    return Report(rows[0].system, figures, bootstrap([r.top1 for r in rows]), notes)


def _share(values: Sequence[Any]) -> float:
    known = [float(v) for v in values if v is not None]
    return sum(known) / len(known) if known else float("nan")


@dataclass(frozen=True)
class Curve:
    """Precision and recall of suggestions over the threshold of their score.

    Attributes
    ----------
    threshold, precision, recall : float array[n]
        Recall is correct suggestions over tasks with a truth.
    """

    threshold: np.ndarray
    precision: np.ndarray
    recall: np.ndarray

    def at_precision(self, wanted: float) -> float:
        """The lowest threshold from which on precision is at least so high; above 1 where there is none."""
        good = np.flatnonzero(self.precision >= wanted)
        return float(self.threshold[good[-1]]) if len(good) else 1.01


def precision_recall(results: Sequence[Result]) -> Curve:
    """The curve of the first suggestions; thresholds fall along it.

    >>> a = Result("a", "s", suggestions=[{"score": 0.9}], top1=True)
    >>> b = Result("b", "s", suggestions=[{"score": 0.4}], top1=False)
    >>> curve = precision_recall([a, b])
    >>> curve.precision.tolist(), curve.recall.tolist(), curve.at_precision(0.8)
    ([1.0, 0.5], [0.5, 0.5], 0.9)
    """
    shown = sorted((-r.suggestions[0]["score"], r.top1 and not r.abstain) for r in results if r.suggestions)
    with_truth = max(1, sum(not r.abstain for r in results))
    scores = np.array([-s for s, _ in shown])
    right = np.cumsum([float(x) for _, x in shown])
    if not len(scores):
        return Curve(np.zeros(0), np.zeros(0), np.zeros(0))
    last = np.append(scores[1:] != scores[:-1], True)
    count = np.arange(1, len(scores) + 1)
    return Curve(scores[last], (right / count)[last], (right / with_truth)[last])


def paired_difference(a: Sequence[Result], b: Sequence[Result], seed: int = 0) -> tuple[float, float, float]:
    """Difference of ``correct`` (a minus b) over the tasks that both have, with its 95 % interval.

    >>> x = [Result(str(i), "x", top1=True) for i in range(20)]
    >>> y = [Result(str(i), "y", top1=i % 2 == 0) for i in range(20)]
    >>> paired_difference(x, y)[0]
    0.5
    """
    other = {r.task: r.top1 for r in b}
    differences = [float(r.top1) - float(other[r.task]) for r in a if r.task in other]
    if not differences:
        raise FormulaError("the two systems have no task in common")
    low, high = bootstrap(differences, seed)
    return float(np.mean(differences)), low, high
