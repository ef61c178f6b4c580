"""The outcome of a grid, in columns: what leaderboards, tests and reports are made of."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core import compare
from assay.core.benchmark import Benchmark, Metric
from assay.core.errors import AssayError, UnknownNameError
from assay.core.results import kept
from assay.core.results.cells import Cells
from assay.core.results.outcomes import (
    ALPHA,
    Band,
    Comparison,
    Counts,
    Curves,
    Gap,
    Leaderboard,
    LeaderboardRow,
    Ranks,
    ScoreTable,
)
from assay.core.run import RunRecord
from assay.core.store import Store

__all__ = [
    "Band",
    "Comparison",
    "Curves",
    "Gap",
    "Leaderboard",
    "LeaderboardRow",
    "Ranks",
    "Results",
    "ScoreTable",
]


class Results:
    """Runs of one benchmark as columns.

    Attributes
    ----------
    columns : dict of arrays, all of one length
        ``key, task, method, seed, status, wall_seconds, cpu_seconds, peak_memory_bytes, params, failure, data,
        started`` and one ``m:<name>`` a metric (float64, NaN where there is none).
    """

    def __init__(self, benchmark: Benchmark, store: Store, columns: dict[str, NDArray[Any]]) -> None:
        self.benchmark = benchmark
        self.store = store
        self.columns = columns

    @classmethod
    def from_store(cls, benchmark: Benchmark, store: Store, keys: Iterable[str] | None = None) -> Results:
        """Runs of the present version of the benchmark, only those of ``keys`` if given.

        Where the store holds several runs of one (task, method, seed), say with older data, the newest counts.
        """
        connection = store.connect(benchmark.name)
        try:
            present = {row[0] for row in connection.execute("DESCRIBE runs").fetchall()}
            wanted = _COLUMNS | {f"m:{name}": "DOUBLE" for name in benchmark.metrics}
            select = ", ".join(
                _identifier(name) if name in present else f"NULL::{kind} AS {_identifier(name)}"
                for name, kind in wanted.items()
            )
            where = ["true"]
            if "version" in present:
                connection.execute("SET VARIABLE version = $1", [benchmark.version])
                where.append("version = getvariable('version')")
            if keys is not None:
                connection.execute("CREATE TEMP TABLE wanted AS SELECT unnest($1) AS key", [list(keys) or [""]])
                where.append("key IN (SELECT key FROM wanted)")
            newest = "row_number() OVER (PARTITION BY task, method, seed ORDER BY started DESC) = 1"
            columns = connection.execute(
                f"SELECT {select} FROM runs WHERE {' AND '.join(where)} QUALIFY {newest} ORDER BY task, method, seed"
            ).fetchnumpy()
        finally:
            connection.close()
        plain: dict[str, NDArray[Any]] = {}
        for name, column in columns.items():
            if wanted[name] == "VARCHAR":
                plain[name] = np.ma.filled(column.astype(object), None)
            elif wanted[name] == "BIGINT":
                plain[name] = np.ma.filled(column, 0).astype(np.int64)
            else:
                plain[name] = np.ma.filled(np.ma.asarray(column, dtype=np.float64), np.nan)
        return cls(benchmark, store, plain)

    def __len__(self) -> int:
        return len(self.columns["key"])

    def __repr__(self) -> str:
        return f"Results({self.benchmark.name!r}: {len(self)} runs, {len(self.failed_keys)} failed)"

    @property
    def failed_keys(self) -> list[str]:
        """Keys of the failed runs."""
        return [str(k) for k in self.columns["key"][self.columns["status"] == "failed"]]

    @property
    def failures(self) -> list[RunRecord]:
        """Records of the failed runs."""
        return self.store.records(self.benchmark.name, self.failed_keys)

    @property
    def exit_code(self) -> int:
        """1 if a run failed, else 0."""
        return int(bool(self.failed_keys))

    @property
    def records(self) -> list[RunRecord]:
        """All records, read from their files."""
        return self.store.records(self.benchmark.name, [str(k) for k in self.columns["key"]])

    @property
    def tasks(self) -> list[str]:
        """Tasks that have runs, in the order of the benchmark."""
        return self.cells.tasks

    @property
    def methods(self) -> list[str]:
        """Methods that have runs, in the order of the benchmark."""
        return self.cells.methods

    @cached_property
    def cells(self) -> Cells:
        """The columns as integers, with what is computed from them once."""
        return Cells(self.benchmark, self.columns)

    @property
    def empty_message(self) -> str:
        """What to tell someone who wants to see results where there are none."""
        return (
            f"There are no runs of {self.benchmark.name} (version {self.benchmark.version}) in {self.store.root}; "
            f"make some with: assay run {self.benchmark.name}"
        )

    def only(self, tasks: str | Sequence[str] | None = None, methods: str | Sequence[str] | None = None) -> Results:
        """The results of some tasks or methods.

        Raises
        ------
        UnknownNameError
            If there are no runs of that name; suggests the nearest.
        """
        keep = np.ones(len(self), dtype=bool)
        for kind, names, codes in (("task", tasks, self.cells.t), ("method", methods, self.cells.m)):
            if names is not None:
                wanted = [self._position(kind, name) for name in ([names] if isinstance(names, str) else names)]
                keep &= np.isin(codes, wanted)
        return Results(self.benchmark, self.store, {name: column[keep] for name, column in self.columns.items()})

    # -- many methods ------------------------------------------------------------------------------------------------

    def leaderboard(self, metric: str | None = None, task: str | Sequence[str] | None = None) -> Leaderboard:
        """Methods by their mean over tasks of the means over seeds, best first.

        Parameters
        ----------
        metric : str, optional
            Default: the benchmark's first.
        task : str or sequence of str, optional
            Only these tasks.

        Raises
        ------
        UnknownNameError
        """
        chosen = self.benchmark.get_metric(metric)
        if task is not None:
            return self.only(tasks=task).leaderboard(metric)
        if not len(self):
            return Leaderboard(self.benchmark, chosen, [], [], self.empty_message)
        cells, scores = self.cells, self.cells.scores(chosen)
        # A task that the metric does not measure (accuracy of a regression) says nothing about any method.
        silent = (scores.n.sum(axis=1) == 0) & (cells.count(cells.ok).sum(axis=1) > 0)
        if silent.any() and not silent.all():
            left = [name for name, out in zip(cells.tasks, silent, strict=True) if not out]
            board = self.only(tasks=left).leaderboard(metric)
            out = _names([name for name in cells.tasks if name not in left])
            board.notes.insert(0, f"Left out, since no run there has a value of {chosen.title}: {out}.")
            return board
        n_tasks, n_methods = cells.shape
        of = compare.mean_intervals(scores.values, cells.cell, np.tile(np.arange(n_methods), n_tasks))
        of = of.within(chosen.bounds)
        ranks = compare.rank_rows(scores.mean, chosen.higher_is_better)
        runs, failed = cells.count(cells.ok).sum(axis=0), cells.count(cells.failed).sum(axis=0)
        with np.errstate(invalid="ignore"):
            mean_rank = np.nansum(ranks, axis=0) / np.count_nonzero(~np.isnan(ranks), axis=0)
            seconds = np.bincount(cells.m, self.columns["wall_seconds"] * cells.ok, n_methods) / runs
        held = np.count_nonzero(scores.n, axis=0)
        thin = 2 * held < np.count_nonzero(scores.n.any(axis=1))
        if thin[held > 0].all():  # then all are judged on what they have
            thin[:] = False
        order = np.lexsort((-of.mean if chosen.higher_is_better else of.mean, thin))
        apart, p, pairs = cells.apart(chosen, int(order[0]), range(n_tasks))
        gaps = cells.gaps(chosen)
        rows: list[LeaderboardRow] = []
        for i, m in enumerate(order):
            rank = None if math.isnan(of.mean[m]) or thin[m] else i + 1
            if rank and i and of.mean[m] == rows[-1].mean:
                rank = rows[-1].rank
            row = LeaderboardRow(
                rank, cells.methods[m], float(of.mean[m]), float(of.low[m]), float(of.high[m]), int(runs[m]),
                int(failed[m]), int(held[m]), float(mean_rank[m]), float(seconds[m]),
                None if apart[m] < 0 else bool(apart[m]), float(p[m]), tuple(gaps[m]),
            )  # fmt: skip
            rows.append(row)
        verdict, notes = self._verdict(rows, chosen, pairs)
        return Leaderboard(self.benchmark, chosen, cells.tasks, rows, verdict, notes)

    def _verdict(self, rows: list[LeaderboardRow], metric: Metric, pairs: Counts) -> tuple[str, list[str]]:
        ranked = [row for row in rows if row.rank is not None]
        notes = []
        if not ranked:
            verdict = f"No run has a value of {metric.title}."
        elif len(ranked) == 1:
            verdict = f"Only {ranked[0].method} has a value of {metric.title}: there is nothing to compare it with."
        else:
            verdict = str(self.compare(ranked[0].method, ranked[1].method, metric.name))
        untested = [row for row in ranked[1:] if row.apart is None]
        if untested and len(ranked) > 2:
            tests = len(ranked) - 1
            least = int(min(pairs[self.methods.index(row.method)] for row in untested))
            notes.append(
                f"{_names([row.method for row in untested])} cannot be tested against {ranked[0].method}: {tests} "
                f"tests at {ALPHA:g} after Holm need {compare.pairs_needed(ALPHA / tests)} pairs each, and there "
                f"{'is' if least == 1 else 'are'} {least}."
            )
        for row in rows:
            if row.gaps:
                shown = "; ".join(map(str, row.gaps[:3]))
                more = f"; and {len(row.gaps) - 3} more" if len(row.gaps) > 3 else ""
                how = "is ranked on what it has" if row.rank else "is not ranked"
                if row.rank is None and row.tasks:
                    how += f" with {row.tasks} of {len(self.tasks)} tasks"
                notes.append(f"{row.method} {how} ({shown}{more}).")
        return verdict, notes

    def table(self, metric: str | None = None) -> ScoreTable:
        """Means and intervals of a metric, tasks x methods.

        Raises
        ------
        UnknownNameError
        """
        chosen = self.benchmark.get_metric(metric)
        cells, scores = self.cells, self.cells.scores(chosen)
        of = compare.mean_intervals(scores.values, cells.cell, np.arange(cells.shape[0] * cells.shape[1]))
        of = of.within(chosen.bounds)
        mean, low, high = (column.reshape(cells.shape) for column in (of.mean, of.low, of.high))
        apart = np.full(cells.shape, -1)
        signed = scores.mean if chosen.higher_is_better else -scores.mean
        for t in range(cells.shape[0]):
            if not np.isnan(signed[t]).all():
                apart[t] = cells.apart(chosen, int(np.nanargmax(signed[t])), [t])[0]
        failed = cells.count(cells.failed)
        return ScoreTable(
            self.benchmark, chosen, cells.tasks, cells.methods, mean, low, high, scores.n, failed, apart
        )  # fmt: skip

    def ranks(self, metric: str | None = None) -> Ranks:
        """Friedman test and critical difference over tasks.

        Each method needs a value on each task: methods or tasks that lack one are left out, whichever loses fewer
        values.

        Raises
        ------
        UnknownNameError
        AssayError
            If fewer than two tasks or two methods are left.
        """
        chosen = self.benchmark.get_metric(metric)
        cells = self.cells
        mean = cells.scores(chosen).mean
        there = ~np.isnan(mean)
        some_task, some_method = there.any(axis=1), there.any(axis=0)
        full_method, full_task = there[some_task].all(axis=0), there[:, some_method].all(axis=1)
        by_methods = some_task.sum() * full_method.sum() >= full_task.sum() * some_method.sum()
        keep_task = np.flatnonzero(some_task if by_methods else full_task)
        keep_method = np.flatnonzero(full_method if by_methods else some_method)
        tasks, methods = [cells.tasks[t] for t in keep_task], [cells.methods[m] for m in keep_method]
        if len(tasks) < 2 or len(methods) < 2:
            raise AssayError(
                f"ranks of {self.benchmark.name} need two tasks and two methods with a value of {chosen.name} in every "
                f"cell; there are {len(tasks)} and {len(methods)}"
            )
        scores = mean[np.ix_(keep_task, keep_method)]
        found = compare.friedman(scores, chosen.higher_is_better)
        order = np.argsort(found.mean_ranks, kind="stable")
        difference = compare.critical_difference(len(methods), len(tasks), ALPHA)
        return Ranks(
            chosen, tasks, [methods[i] for i in order], compare.rank_rows(scores, chosen.higher_is_better)[:, order],
            found.mean_ranks[order], found, difference,
            [[methods[i] for i in clique] for clique in compare.cliques(found.mean_ranks, difference)],
            compare.win_tie_loss(scores[:, order], chosen.higher_is_better),
[name for name in [*cells.tasks, *cells.methods] if name not in {*tasks, *methods}],
        )  # fmt: skip

    # -- two methods -------------------------------------------------------------------------------------------------

    def compare(self, a: str, b: str, metric: str | None = None, task: str | Sequence[str] | None = None) -> Comparison:
        """Two methods over the (task, seed) pairs that both have.

        A task on which the seed changes neither method counts as one pair: its runs are copies of one another.

        Raises
        ------
        UnknownNameError
        """
        if task is not None:
            return self.only(tasks=task).compare(a, b, metric)
        chosen = self.benchmark.get_metric(metric)
        first, second = self._position("method", a), self._position("method", b)
        d, task_of = self.cells.differences(chosen, first, np.array([second]), range(len(self.tasks)))
        there = ~np.isnan(d[:, 0])
        d, task_of = d[there, 0], task_of[there]
        n_tasks = len(np.unique(task_of))
        pairs = self.cells.pairs(chosen)
        every = pairs.values[:, first] - pairs.values[:, second]
        copies = np.count_nonzero(~np.isnan(every)) > len(d)
        # With one pair a task the only spread is that between tasks.
        over_tasks = len(d) == n_tasks > 1
        tests = compare.paired_tests(d, np.zeros(len(d)), None if over_tasks else task_of)
        if copies and not over_tasks:
            # For the interval the copies count: they show that the seed changes nothing there.
            interval = compare.mean_intervals(every, pairs.task, np.zeros(len(self.tasks), dtype=np.int64))
            tests = dataclasses.replace(tests, low=float(interval.low[0]), high=float(interval.high[0]))
        unit = "(task, seed) pairs"
        if copies and len(d) == n_tasks:
            unit = "tasks, on which seeds change nothing" if n_tasks > 1 else "task, on which seeds change nothing"
        winner = None
        if tests.permutation <= ALPHA:
            winner = a if (tests.difference > 0) == chosen.higher_is_better else b
        seeds = 0 if copies or not n_tasks else math.ceil(compare.pairs_needed(ALPHA) / n_tasks)
        return Comparison(a, b, chosen, tests, unit, n_tasks, winner, seeds)

    def compare_rows(
        self, a: str, b: str, name: str, task: str, *, higher_is_better: bool | None = None, seed: int = 0
    ) -> Comparison:
        """Two methods over the test rows of a task, from the values that runs kept with ``RunContext.rows``.

        Values of a row are averaged over the seeds that both methods have; where the number of rows depends on the seed
        (another split), rows of all seeds are put one after the other instead.

        Parameters
        ----------
        name : str
            Name of the row values.
        higher_is_better : bool, optional
            Default: as the metric of that name has it.

        Raises
        ------
        UnknownNameError
            If there are no such row values.
        AssayError
            If the methods have no seed in common, or other numbers of rows for the same seed; or if no metric has that
            name and ``higher_is_better`` is not given.
        """
        known = self.benchmark.metrics.get(name)
        if higher_is_better is None:
            if known is None:
                raise AssayError(
                    f"say which is better: no metric is named {name!r}, so pass higher_is_better=True or False"
                )
            higher_is_better = known.higher_is_better
        of_a, of_b = self.rows(name, task, a), self.rows(name, task, b)
        seeds = sorted(set(of_a) & set(of_b))
        if not seeds:
            raise AssayError(f"{a} and {b} have no seed in common with row values {name!r} on {task}")
        for s in seeds:
            if len(of_a[s]) != len(of_b[s]):
                raise AssayError(
                    f"row values {name!r} on {task} with seed {s} are not paired: {a} has {len(of_a[s])} and {b} "
                    f"{len(of_b[s])}"
                )
        differences = [of_a[s].astype(np.float64) - of_b[s].astype(np.float64) for s in seeds]
        one_size = len({len(d) for d in differences}) == 1
        d = np.mean(differences, axis=0) if one_size else np.concatenate(differences)
        d = d[~np.isnan(d)]
        if len(d) < 2:
            raise AssayError(f"{a} and {b} have {len(d)} row values {name!r} on {task}; a test needs two")
        interval = compare.row_interval(d, seed=seed)
        p = float(compare.sign_flip_test(d[:, None], seed=seed)[0])
        tests = compare.PairedTests(
            len(d), interval.value, interval.low, interval.high, p, compare.student_test(d), compare.wilcoxon_test(d),
            len(d) <= compare.EXACT_PAIRS, compare.least_p(len(d)),
        )  # fmt: skip
        metric = Metric(name, higher_is_better, format=known.format if known else ".3f")
        winner = (a if (interval.value > 0) == higher_is_better else b) if p <= ALPHA else None
        return Comparison(a, b, metric, tests, "test rows", 1, winner)

    def rows(self, name: str, task: str, method: str) -> dict[int, NDArray[Any]]:
        """Row values that runs kept, by seed.

        Raises
        ------
        UnknownNameError
        """
        by_seed = {seed: kept.read_rows(folder) for seed, folder in self.folders(task, method)}
        found = {seed: rows[name] for seed, rows in by_seed.items() if name in rows}
        if not found:
            known = {name for rows in by_seed.values() for name in rows}
            raise UnknownNameError("row values", name, known, f"{method} on {task}")
        return found

    # -- curves ------------------------------------------------------------------------------------------------------

    def curve_names(self, task: str | None = None) -> list[str]:
        """Names of the curves that runs kept; one run of each (task, method) is looked at."""
        names: dict[str, None] = {}
        for name in self.tasks if task is None else [task]:
            for method in self.methods:
                for _, folder in self.folders(name, method, most=1):
                    names.update(dict.fromkeys(kept.read_curves(folder)))
        return list(names)

    def curves(self, name: str, task: str, *, points: int = 100, max_runs: int = 50) -> Curves:
        """A curve of each method on a task: mean over seeds with an interval.

        Parameters
        ----------
        points : int
            Of a curve, at most.
        max_runs : int
            Runs of a method that are read, by seed.

        Raises
        ------
        UnknownNameError
        """
        bands: dict[str, Band] = {}
        x_label = "step"
        for method in self.methods:
            drawn = []
            for _, folder in self.folders(task, method, most=max_runs):
                curve = kept.read_curves(folder).get(name)
                if curve:
                    x_label = curve.get("x_label", x_label)
                    drawn.append(kept.ordered(curve["x"], curve["y"]))
            drawn = [(x, y) for x, y in drawn if len(x)]
            if drawn:
                bands[method] = kept.band(drawn, points)
        if not bands:
            raise UnknownNameError("curve", name, self.curve_names(task), f"{self.benchmark.name} on {task}")
        return Curves(name, task, x_label, bands)

    def folders(self, task: str, method: str, *, most: int | None = None) -> list[tuple[int, Path]]:
        """Seeds and folders of the runs with a result, by seed, the first ``most`` of them.

        Raises
        ------
        UnknownNameError
        """
        cells = self.cells
        cell = self._position("task", task) * len(self.methods) + self._position("method", method)
        at = np.flatnonzero(cells.ok & (cells.cell == cell))
        at = at[np.argsort(self.columns["seed"][at], kind="stable")][:most]
        name = self.benchmark.name
        return [(int(self.columns["seed"][i]), self.store.run_folder(name, str(self.columns["key"][i]))) for i in at]

    # -- output ------------------------------------------------------------------------------------------------------

    def to_text(self, metric: str | None = None, task: str | Sequence[str] | None = None) -> str:
        """The leaderboard in aligned columns."""
        return self.leaderboard(metric, task).to_text()

    def to_markdown(self, metric: str | None = None, task: str | Sequence[str] | None = None) -> str:
        """The leaderboard in Markdown."""
        return self.leaderboard(metric, task).to_markdown()

    def to_latex(self, metric: str | None = None, task: str | Sequence[str] | None = None) -> str:
        """The leaderboard in LaTeX (package booktabs)."""
        return self.leaderboard(metric, task).to_latex()

    def to_csv(self, metric: str | None = None, task: str | Sequence[str] | None = None) -> str:
        """The leaderboard as CSV, full precision."""
        return self.leaderboard(metric, task).to_csv()

    def report(self, path: str | Path, title: str | None = None) -> Path:
        """Write a self-contained HTML page; see `assay.core.report.write_report`."""
        from assay.core.report import write_report

        return write_report(path, [self], title=title)

    def _position(self, kind: str, name: str) -> int:
        known = self.tasks if kind == "task" else self.methods
        if name not in known:
            raise UnknownNameError(kind, name, known, f"this set of {self.benchmark.name} runs")
        return known.index(name)


_COLUMNS = {
    "key": "VARCHAR", "task": "VARCHAR", "method": "VARCHAR", "seed": "BIGINT", "status": "VARCHAR",
    "params": "VARCHAR", "failure": "VARCHAR", "wall_seconds": "DOUBLE", "cpu_seconds": "DOUBLE",
    "peak_memory_bytes": "BIGINT", "data": "VARCHAR", "started": "VARCHAR",
}  # fmt: skip


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _names(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
