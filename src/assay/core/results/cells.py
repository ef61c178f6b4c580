"""Columns of runs as cells (task, method) and pairs (task, seed): the arrays under leaderboards and tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core import compare
from assay.core.benchmark import Benchmark, Metric
from assay.core.results.outcomes import ALPHA, Counts, Floats, Gap


@dataclass(frozen=True)
class Scores:
    """Values of a metric.

    Attributes
    ----------
    values : float array, shape (runs,)
        NaN where a run has none.
    n : int array, shape (tasks, methods)
    mean : float array, shape (tasks, methods)
    """

    values: Floats
    n: Counts
    mean: Floats


@dataclass(frozen=True)
class Pairs:
    """Values of a metric by (task, seed).

    Attributes
    ----------
    values : float array, shape (pairs, methods)
        Sorted by task; NaN where there is no value.
    task : int array, shape (pairs,)
    starts : int array, shape (tasks + 1,)
        First pair of each task, and the number of pairs.
    constant : bool array, shape (tasks, methods)
        All seeds gave one and the same value.
    """

    values: Floats
    task: Counts
    starts: Counts
    constant: NDArray[np.bool_]


class Cells:
    """Tasks, methods and statuses of runs as integers, and what is computed from them once.

    Attributes
    ----------
    tasks, methods : list of str
        Those that have runs, in the order of the benchmark, unknown ones after them.
    t, m, cell : int arrays, shape (runs,)
        Task, method, and task * number of methods + method of each run.
    ok, failed, skipped : bool arrays, shape (runs,)
    shape : (int, int)
        Number of tasks and methods.
    seeds : int array, shape (tasks,)
        Seeds with which some method was run on the task.
    """

    def __init__(self, benchmark: Benchmark, columns: Mapping[str, NDArray[Any]]) -> None:
        self.benchmark = benchmark
        self.columns = columns
        self.tasks, self.t = _codes(columns["task"], benchmark.tasks)
        self.methods, self.m = _codes(columns["method"], benchmark.methods)
        self.shape = (len(self.tasks), len(self.methods))
        self.cell = self.t * self.shape[1] + self.m
        status = columns["status"]
        self.ok, self.failed, self.skipped = status == "ok", status == "failed", status == "skipped"
        _, seed = np.unique(columns["seed"], return_inverse=True)
        width = int(seed.max(initial=0)) + 1
        pair, self._pair = np.unique(self.t * width + seed, return_inverse=True)
        self._pair_task = pair // width
        self.seeds = np.bincount(self._pair_task, minlength=self.shape[0])
        self._scores: dict[str, Scores] = {}
        self._pairs: dict[str, Pairs] = {}

    def count(self, mask: NDArray[np.bool_]) -> Counts:
        """Runs that fit, by (task, method)."""
        return np.bincount(self.cell[mask], minlength=self.shape[0] * self.shape[1]).reshape(self.shape)

    def scores(self, metric: Metric) -> Scores:
        """Values of a metric of the runs that have a result."""
        if metric.name not in self._scores:
            column = self.columns.get(f"m:{metric.name}", np.full(len(self.t), np.nan))
            values = np.where(self.ok, column, np.nan)
            there = ~np.isnan(values)
            n = self.count(there)
            total = np.bincount(self.cell[there], values[there], self.shape[0] * self.shape[1]).reshape(self.shape)
            with np.errstate(invalid="ignore"):
                self._scores[metric.name] = Scores(values, n, total / n)
        return self._scores[metric.name]

    def pairs(self, metric: Metric) -> Pairs:
        """Values of all methods side by side."""
        if metric.name not in self._pairs:
            values = np.full((len(self._pair_task), self.shape[1]), np.nan)
            values[self._pair, self.m] = self.scores(metric).values
            starts = np.searchsorted(self._pair_task, np.arange(self.shape[0] + 1))
            least = np.fmin.reduceat(values, starts[:-1], axis=0)
            constant = least == np.fmax.reduceat(values, starts[:-1], axis=0)
            self._pairs[metric.name] = Pairs(values, self._pair_task, starts, constant)
        return self._pairs[metric.name]

    def differences(self, metric: Metric, first: int, others: Counts, tasks: Iterable[int]) -> tuple[Floats, Counts]:
        """Value of the first method less that of each other, pair by pair.

        Where neither of two methods depends on the seed, one pair of the task is kept (the rest become NaN): they are
        copies of it, and a test that counted them would take the same evidence many times.

        Returns
        -------
        differences : float array, shape (pairs, others)
        task : int array, shape (pairs,)
        """
        pairs = self.pairs(metric)
        blocks = []
        for t in tasks:
            rows = pairs.values[pairs.starts[t] : pairs.starts[t + 1]]
            block = rows[:, [first]] - rows[:, others]
            copies = pairs.constant[t, first] & pairs.constant[t, others]
            if copies.any():
                block[(np.cumsum(~np.isnan(block), axis=0) > 1) & copies] = np.nan
            blocks.append(block)
        return np.concatenate(blocks), np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])

    def apart(self, metric: Metric, best: int, tasks: Iterable[int]) -> tuple[Counts, Floats, Counts]:
        """Each method against the best over the pairs that both have: sign-flip test, p-values adjusted after Holm.

        Returns
        -------
        apart : int array, shape (methods,)
            1 told apart, 0 not, -1 too few pairs to tell.
        p : float array, shape (methods,)
            NaN for the best, and without pairs.
        n : int array, shape (methods,)
            Pairs.
        """
        others = np.arange(self.shape[1])
        d, task = self.differences(metric, best, others, tasks)
        there = ~np.isnan(d)
        of_task = np.zeros((int(task[-1]) + 1, len(others)))
        np.add.at(of_task, task, there)
        weight = 1 / (np.maximum(of_task, 1)[task] * np.maximum(np.count_nonzero(of_task, axis=0), 1))
        n = there.sum(axis=0)
        p = compare.sign_flip_test(np.where(there, d * weight, 0.0))
        p[(n == 0) | (others == best)] = np.nan
        p = compare.holm(p)
        tests = max(1, np.count_nonzero(~np.isnan(p)))
        apart = np.where(p <= ALPHA, 1, 0)
        apart[(2.0 ** (1.0 - n) * tests > ALPHA) & (others != best)] = -1
        return apart, p, n

    def gaps(self, metric: Metric) -> list[list[Gap]]:
        """What each method lacks, task by task."""
        ok, failed, skipped = (self.count(mask) for mask in (self.ok, self.failed, self.skipped))
        missing = self.seeds[:, None] - ok - failed - skipped
        undefined = ok - self.scores(metric).n
        said = self._reasons()
        found: list[list[Gap]] = [[] for _ in self.methods]
        for t, m in zip(*np.nonzero(failed + skipped + missing + undefined)):
            task, seeds = self.tasks[t], int(self.seeds[t])
            for kind, counts in (("failed", failed), ("skipped", skipped)):
                if counts[t, m]:
                    found[m].append(Gap(task, kind, int(counts[t, m]), seeds, said.get((int(t), int(m), kind), "")))
            if missing[t, m]:
                reason = self._not_applicable(task, self.methods[m]) if missing[t, m] == seeds else None
                kind = "not applicable" if reason else "missing"
                found[m].append(Gap(task, kind, int(missing[t, m]), seeds, reason or ""))
            if undefined[t, m]:
                found[m].append(Gap(task, "undefined", int(undefined[t, m]), seeds))
        return found

    def _reasons(self) -> dict[tuple[int, int, str], str]:
        """The most common first line of what the failed and the skipped runs of a cell said."""
        said: dict[tuple[int, int, str], Counter[str]] = {}
        failure = self.columns["failure"]
        for i in np.flatnonzero(self.failed | self.skipped):
            kind = "failed" if self.failed[i] else "skipped"
            line = (str(failure[i] or "").strip().splitlines() or [""])[0]
            said.setdefault((int(self.t[i]), int(self.m[i]), kind), Counter())[line] += 1
        shown = {cell: lines.most_common(1)[0][0] for cell, lines in said.items()}
        return {cell: line if len(line) <= 160 else line[:159] + "…" for cell, line in shown.items()}

    def _not_applicable(self, task: str, method: str) -> str | None:
        known = self.benchmark
        if known.applicable is None or task not in known.tasks or method not in known.methods:
            return None
        return known.applicable(known.tasks[task], known.methods[method])


def _codes(column: NDArray[Any], order: Iterable[str]) -> tuple[list[str], Counts]:
    present = set(column.tolist())
    known = [name for name in order if name in present]
    names = known + sorted(present - set(known))
    position = {name: i for i, name in enumerate(names)}
    return names, np.fromiter((position[name] for name in column.tolist()), dtype=np.int64, count=len(column))
