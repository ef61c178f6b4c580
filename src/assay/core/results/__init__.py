"""The outcome of a grid, in columns: what leaderboards, tests and reports are made of."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from assay.core import compare
from assay.core.benchmark import Benchmark, Metric
from assay.core.errors import AssayError, UnknownNameError
from assay.core.run import RunRecord
from assay.core.store import Store

if TYPE_CHECKING:
    from assay.core.report.tables import Table

ALPHA = 0.05
Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


class Results:
    """Runs of one benchmark as columns.

    Attributes
    ----------
    columns : dict of arrays, all of one length
        ``key, task, method, seed, status, wall_seconds, cpu_seconds, peak_memory_bytes, params, failure, data, started``
        and one ``m:<name>`` a metric (float64, NaN where there is none).
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
            wanted = {name: kind for name, kind in _COLUMNS.items()} | {f"m:{name}": "DOUBLE" for name in benchmark.metrics}
            select = ", ".join(
                _identifier(name) if name in present else f"NULL::{kind} AS {_identifier(name)}" for name, kind in wanted.items()
            )
            where = ["true"]
            if "version" in present:
                connection.execute("SET VARIABLE version = $1", [benchmark.version])
                where.append("version = getvariable('version')")
            if keys is not None:
                connection.execute("CREATE TEMP TABLE wanted AS SELECT unnest($1) AS key", [list(keys) or [""]])
                where.append("key IN (SELECT key FROM wanted)")
            newest = "row_number() OVER (PARTITION BY task, method, seed ORDER BY started DESC) = 1"
            query = f"SELECT {select} FROM runs WHERE {' AND '.join(where)} QUALIFY {newest} ORDER BY task, method, seed"
            columns = connection.execute(query).fetchnumpy()
        finally:
            connection.close()
        plain = {}
        for name, column in columns.items():
            if column.dtype == object:
                plain[name] = np.ma.filled(column, None)
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
        return self._grid.tasks

    @property
    def methods(self) -> list[str]:
        """Methods that have runs, in the order of the benchmark."""
        return self._grid.methods

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
        grid = self._grid
        for kind, names, codes in (("task", tasks, grid.t), ("method", methods, grid.m)):
            if names is not None:
                wanted = [self._position(kind, name) for name in ([names] if isinstance(names, str) else names)]
                keep &= np.isin(codes, wanted)
        return Results(self.benchmark, self.store, {name: column[keep] for name, column in self.columns.items()})

    # -- leaderboards ------------------------------------------------------------------------------------------------

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
        grid, scores = self._grid, self._scores(chosen)
        group = np.tile(np.arange(grid.n_methods), grid.n_tasks)
        of = compare.mean_intervals(scores.values, grid.cell, group)
        ranks = compare.rank_rows(scores.cell_mean, chosen.higher_is_better)
        with np.errstate(invalid="ignore"):
            mean_rank = np.nansum(ranks, axis=0) / np.count_nonzero(~np.isnan(ranks), axis=0)
            seconds = np.bincount(grid.m, self.columns["wall_seconds"] * grid.ok, grid.n_methods) / np.bincount(
                grid.m, grid.ok, grid.n_methods
            )
        signed = -of.mean if chosen.higher_is_better else of.mean
        order = np.argsort(signed, kind="stable")
        apart, p, tests = self._apart(chosen, int(order[0]), np.arange(grid.n_tasks))
        runs = np.bincount(grid.m, grid.ok, grid.n_methods).astype(int)
        failed = np.bincount(grid.m, grid.failed, grid.n_methods).astype(int)
        rows: list[LeaderboardRow] = []
        for i, m in enumerate(order):
            rank = None if math.isnan(of.mean[m]) else i + 1
            if rank and i and of.mean[m] == rows[-1].mean:
                rank = rows[-1].rank
            rows.append(
                LeaderboardRow(
                    rank, grid.methods[m], float(of.mean[m]), float(of.low[m]), float(of.high[m]), int(runs[m]), int(failed[m]),
                    int(np.count_nonzero(scores.n[:, m])), float(mean_rank[m]), float(seconds[m]),
                    None if apart[m] < 0 else bool(apart[m]), float(p[m]), tuple(self._gaps(int(m), scores)),
                )  # fmt: skip
            )
        verdict, notes = self._verdict(rows, chosen, tests)
        return Leaderboard(self.benchmark, chosen, grid.tasks, rows, verdict, notes)

    def table(self, metric: str | None = None) -> ScoreTable:
        """Means and intervals of a metric, tasks x methods."""
        chosen = self.benchmark.get_metric(metric)
        grid, scores = self._grid, self._scores(chosen)
        shape = (grid.n_tasks, grid.n_methods)
        of = compare.mean_intervals(scores.values, grid.cell, np.arange(grid.n_tasks * grid.n_methods))
        apart = np.full(shape, -1)
        signed = scores.cell_mean if chosen.higher_is_better else -scores.cell_mean
        for t in range(grid.n_tasks):
            if not np.isnan(signed[t]).all():
                apart[t] = self._apart(chosen, int(np.nanargmax(signed[t])), np.array([t]))[0]
        failed = np.bincount(grid.cell, grid.failed, shape[0] * shape[1]).astype(np.int64)
        mean, low, high = (column.reshape(shape) for column in (of.mean, of.low, of.high))
        return ScoreTable(
            self.benchmark, chosen, grid.tasks, grid.methods, mean, low, high, scores.n, failed.reshape(shape), apart
        )

    def ranks(self, metric: str | None = None) -> Ranks:
        """Friedman test and critical difference over tasks.

        Each method needs a value on each task: methods or tasks that lack one are left out, whichever loses fewer values.

        Raises
        ------
        AssayError
            If fewer than two tasks or two methods are left.
        """
        chosen = self.benchmark.get_metric(metric)
        grid = self._grid
        mean = self._scores(chosen).cell_mean if len(self) else np.empty((0, 0))
        there = ~np.isnan(mean)
        some_task, some_method = there.any(axis=1), there.any(axis=0)
        full_methods = there[some_task].all(axis=0)
        full_tasks = there[:, some_method].all(axis=1)
        if some_task.sum() * full_methods.sum() >= full_tasks.sum() * some_method.sum():
            keep_tasks, keep_methods = some_task, full_methods
        else:
            keep_tasks, keep_methods = full_tasks, some_method
        tasks = [name for name, keep in zip(grid.tasks, keep_tasks) if keep]
        methods = [name for name, keep in zip(grid.methods, keep_methods) if keep]
        if len(tasks) < 2 or len(methods) < 2:
            raise AssayError(
                f"ranks of {self.benchmark.name} need two tasks and two methods with a value of {chosen.name} in every cell; "
                f"there are {len(tasks)} and {len(methods)}"
            )
        left_out = [n for n in [*grid.tasks, *grid.methods] if n not in {*tasks, *methods}]
        scores = mean[np.ix_(keep_tasks, keep_methods)]
        found = compare.friedman(scores, chosen.higher_is_better)
        order = np.argsort(found.mean_ranks, kind="stable")
        difference = compare.critical_difference(len(methods), len(tasks), ALPHA)
        ranked = [methods[i] for i in order]
        return Ranks(
            chosen, tasks, ranked, compare.rank_rows(scores, chosen.higher_is_better)[:, order], found.mean_ranks[order], found,
            difference, [[methods[i] for i in c] for c in compare.cliques(found.mean_ranks, difference)],
            compare.win_tie_loss(scores[:, order], chosen.higher_is_better), left_out,
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
        pairs = self._pairs(chosen)
        d = self._differences(chosen, first, np.array([second]), np.arange(self._grid.n_tasks))[:, 0]
        there = ~np.isnan(d)
        d, task_of = d[there], pairs.task[there]
        n_tasks = len(np.unique(task_of))
        one_each = n_tasks > 1 and len(d) == n_tasks  # the spread that is left is that between tasks
        tests = compare.paired_tests(d, np.zeros(len(d)), None if one_each else task_of)
        seeds = math.ceil(compare.pairs_needed(ALPHA) / n_tasks) if n_tasks else 0
        copies = np.count_nonzero(~np.isnan(pairs.values[:, first]) & ~np.isnan(pairs.values[:, second])) > len(d)
        unit = "tasks (their seeds change nothing)" if copies and len(d) == n_tasks else "(task, seed) pairs"
        winner = None
        if tests.permutation <= ALPHA:
            winner = a if (tests.difference > 0) == chosen.higher_is_better else b
        return Comparison(a, b, chosen, tests, unit, n_tasks, winner, 0 if copies else seeds)

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
            Default: as the metric of that name has it, else False (a loss).

        Raises
        ------
        UnknownNameError
            If there are no such row values.
        AssayError
            If the methods have no seed in common, or other numbers of rows for the same seed.
        """
        of_a, of_b = self.rows(name, task, a), self.rows(name, task, b)
        seeds = sorted(set(of_a) & set(of_b))
        if not seeds:
            raise AssayError(f"{a} and {b} have no seed in common with row values {name!r} on {task}")
        for s in seeds:
            if len(of_a[s]) != len(of_b[s]):
                raise AssayError(
                    f"on {task} with seed {s}, {a} has {len(of_a[s])} row values {name!r} and {b} has {len(of_b[s])}: not paired"
                )
        differences = [of_a[s].astype(float) - of_b[s].astype(float) for s in seeds]
        same = len({len(d) for d in differences}) == 1
        d = np.mean(differences, axis=0) if same else np.concatenate(differences)
        d = d[~np.isnan(d)]
        if len(d) < 2:
            raise AssayError(f"{a} and {b} have {len(d)} row values {name!r} on {task}; a test needs two")
        known = self.benchmark.metrics.get(name)
        if higher_is_better is None:
            higher_is_better = known.higher_is_better if known else False
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
        found: dict[int, NDArray[Any]] = {}
        names: set[str] = set()
        for seed, folder in self._folders(task, method):
            if (folder / "rows.npz").is_file():
                with np.load(folder / "rows.npz", allow_pickle=False) as stored:
                    names.update(stored.files)
                    if name in stored.files:
                        found[seed] = stored[name]
        if not found:
            raise UnknownNameError("row values", name, names, f"{method} on {task}")
        return found

    # -- curves ------------------------------------------------------------------------------------------------------

    def curve_names(self, task: str | None = None) -> list[str]:
        """Names of the curves that runs kept; one run of each (task, method) is looked at."""
        names: dict[str, None] = {}
        for t in self.tasks if task is None else [task]:
            for method in self.methods:
                folder = next((f for _, f in self._folders(t, method)), None)
                if folder is not None:
                    names.update(dict.fromkeys(_read_curves(folder)))
        return list(names)

    def curves(self, name: str, task: str, *, points: int = 100, max_runs: int = 50) -> Curves:
        """A curve of each method on a task: mean over seeds with an interval.

        Where all runs of a method have the same x those are kept (thinned to ``points``), else values are interpolated on an
        even grid. Beyond its last point a run no longer counts.

        Parameters
        ----------
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
            for _, folder in self._folders(task, method)[:max_runs]:
                curve = _read_curves(folder).get(name)
                if curve and len(curve["x"]):
                    x_label = curve.get("x_label", x_label)
                    drawn.append(_ordered(curve["x"], curve["y"]))
            drawn = [(x, y) for x, y in drawn if len(x)]
            if drawn:
                bands[method] = _band(drawn, points)
        if not bands:
            raise UnknownNameError("curve", name, self.curve_names(task), f"{self.benchmark.name} on {task}")
        return Curves(name, task, x_label, bands)

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
        """Write a self-contained HTML page."""
        from assay.core.report import write_report

        return write_report(path, [self], title=title)

    # -- inside ------------------------------------------------------------------------------------------------------

    @cached_property
    def _grid(self) -> _Grid:
        tasks, t = _codes(self.columns["task"], self.benchmark.tasks)
        methods, m = _codes(self.columns["method"], self.benchmark.methods)
        status = self.columns["status"]
        return _Grid(tasks, methods, t, m, status == "ok", status == "failed", status == "skipped")

    @cached_property
    def _cached(self) -> dict[Any, Any]:
        return {}

    def _once(self, key: tuple[str, str], make: Callable[[], Any]) -> Any:
        if key not in self._cached:
            self._cached[key] = make()
        return self._cached[key]

    def _position(self, kind: str, name: str) -> int:
        known = self.tasks if kind == "task" else self.methods
        if name not in known:
            raise UnknownNameError(kind, name, known, f"this set of {self.benchmark.name} runs")
        return known.index(name)

    def _scores(self, metric: Metric) -> _Scores:
        def make() -> _Scores:
            grid = self._grid
            values = np.where(grid.ok, self.columns.get(f"m:{metric.name}", np.full(len(self), np.nan)), np.nan)
            size, shape = grid.n_tasks * grid.n_methods, (grid.n_tasks, grid.n_methods)
            there = ~np.isnan(values)
            n = np.bincount(grid.cell[there], minlength=size)
            with np.errstate(invalid="ignore"):
                mean = np.bincount(grid.cell[there], values[there], size) / n
            return _Scores(values, n.reshape(shape), mean.reshape(shape))

        found: _Scores = self._once(("scores", metric.name), make)
        return found

    def _pairs(self, metric: Metric) -> _Pairs:
        """Values of all methods on each (task, seed), NaN where there is none."""

        def make() -> _Pairs:
            grid, values = self._grid, self._scores(metric).values
            _, seed = np.unique(self.columns["seed"], return_inverse=True)
            width = int(seed.max()) + 1
            pair, row = np.unique(grid.t * width + seed, return_inverse=True)
            matrix = np.full((len(pair), grid.n_methods), np.nan)
            matrix[row, grid.m] = values
            task = pair // width
            starts = np.searchsorted(task, np.arange(grid.n_tasks))
            constant = np.fmin.reduceat(matrix, starts, axis=0) == np.fmax.reduceat(matrix, starts, axis=0)
            return _Pairs(matrix, task, starts, constant)

        found: _Pairs = self._once(("pairs", metric.name), make)
        return found

    def _differences(self, metric: Metric, first: int, others: NDArray[np.int64], tasks: NDArray[np.int64]) -> Floats:
        """Value of the first less that of each other, on all pairs, NaN outside ``tasks``: shape (pairs, others).

        Where neither of two methods depends on the seed, one pair of the task is kept: the others are copies of it, and a test that
        counted them would take the same evidence many times.
        """
        pairs = self._pairs(metric)
        d = pairs.values[:, [first]] - pairs.values[:, others]
        if len(tasks) < self._grid.n_tasks:
            d[~np.isin(pairs.task, tasks)] = np.nan
        both = pairs.constant[:, [first]] & pairs.constant[:, others]
        ends = np.append(pairs.starts[1:], len(d))
        for t in tasks[both[tasks].any(axis=1)]:
            block = d[pairs.starts[t] : ends[t]]
            seen = np.cumsum(~np.isnan(block), axis=0)
            block[(seen > 1) & both[t]] = np.nan
        return d

    def _apart(
        self, metric: Metric, best: int, tasks: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], Floats, Counts]:
        """Of each method against the best: told apart (1, 0; -1 too few pairs), adjusted p, number of pairs."""
        grid, pairs = self._grid, self._pairs(metric)
        others = np.arange(grid.n_methods)
        d = self._differences(metric, best, others, tasks)
        if len(tasks) == 1:
            ends = np.append(pairs.starts[1:], len(d))
            d, task = d[pairs.starts[tasks[0]] : ends[tasks[0]]], np.zeros(ends[tasks[0]] - pairs.starts[tasks[0]], dtype=int)
            starts = np.array([0])
        else:
            task, starts = pairs.task, pairs.starts
        there = ~np.isnan(d)
        n_task = np.add.reduceat(there.astype(np.int64), starts, axis=0)
        weight = 1 / (np.maximum(n_task, 1)[task] * np.maximum(np.count_nonzero(n_task, axis=0), 1))
        n = there.sum(axis=0)
        p = compare.sign_flip_test(np.where(there, d * weight, 0.0))
        p[(n == 0) | (others == best)] = np.nan
        tested = max(1, np.count_nonzero(~np.isnan(p)))
        p = compare.holm(p)
        apart = (p <= ALPHA).astype(np.int64)
        apart[(2.0 ** (1.0 - n) * tested > ALPHA) & (others != best)] = -1
        return apart, p, n

    def _gaps(self, m: int, scores: _Scores) -> list[Gap]:
        grid, counts = self._grid, self._counts
        found = []
        for t, task in enumerate(grid.tasks):
            ok, failed, skipped, seeds = (int(counts[kind][t, m]) for kind in ("ok", "failed", "skipped", "seeds"))
            if failed:
                found.append(Gap(task, "failed", failed, seeds, self._reason(t, m, "failed")))
            if skipped:
                found.append(Gap(task, "skipped", skipped, seeds, self._reason(t, m, "skipped")))
            missing = seeds - ok - failed - skipped
            if missing > 0:
                reason = self._why_not(task, grid.methods[m]) if missing == seeds else None
                found.append(Gap(task, "not applicable" if reason else "missing", missing, seeds, reason or ""))
            undefined = ok - int(scores.n[t, m])
            if undefined:
                found.append(Gap(task, "undefined", undefined, seeds))
        return found

    @cached_property
    def _counts(self) -> dict[str, Counts]:
        grid = self._grid
        shape = (grid.n_tasks, grid.n_methods)
        counts = {
            kind: np.bincount(grid.cell, mask, shape[0] * shape[1]).astype(np.int64).reshape(shape)
            for kind, mask in (("ok", grid.ok), ("failed", grid.failed), ("skipped", grid.skipped))
        }
        _, seed = np.unique(self.columns["seed"], return_inverse=True)
        pairs = np.unique(grid.t * (int(seed.max()) + 1) + seed) // (int(seed.max()) + 1)
        counts["seeds"] = np.repeat(np.bincount(pairs, minlength=shape[0])[:, None], shape[1], axis=1)
        return counts

    def _reason(self, t: int, m: int, status: str) -> str:
        """The most common first line of what the failed runs of a cell said."""
        grid = self._grid
        at = (grid.t == t) & (grid.m == m) & (self.columns["status"] == status)
        said = Counter((str(text or "").strip().splitlines() or [""])[0] for text in self.columns["failure"][at])
        text = said.most_common(1)[0][0]
        return text if len(text) <= 160 else text[:159] + "…"

    def _why_not(self, task: str, method: str) -> str | None:
        known = self.benchmark
        if known.applicable is None or task not in known.tasks or method not in known.methods:
            return None
        return known.applicable(known.tasks[task], known.methods[method])

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
            least = int(min(pairs[self.methods.index(row.method)] for row in untested))
            need = compare.pairs_needed(ALPHA / max(1, len(ranked) - 1))
            notes.append(
                f"{_names([row.method for row in untested])} cannot be tested against {ranked[0].method}: {len(ranked) - 1} tests at "
                f"{ALPHA:g} after Holm need {need} pairs each, and there are {least}."
            )
        for row in rows:
            if row.gaps:
                shown = "; ".join(map(str, row.gaps[:3]))
                more = f"; and {len(row.gaps) - 3} more tasks" if len(row.gaps) > 3 else ""
                ranked_on = "is ranked on what it has" if row.rank else "is not ranked"
                notes.append(f"{row.method} {ranked_on} ({shown}{more}).")
        return verdict, notes

    def _folders(self, task: str, method: str) -> list[tuple[int, Path]]:
        """Seeds and folders of the runs with a result."""
        grid = self._grid
        at = grid.ok & (grid.t == self._position("task", task)) & (grid.m == self._position("method", method))
        name = self.benchmark.name
        found = [(int(s), self.store.run_folder(name, str(k))) for s, k in zip(self.columns["seed"][at], self.columns["key"][at])]
        return sorted(found, key=lambda pair: pair[0])


@dataclass(frozen=True)
class _Grid:
    """Tasks and methods of the runs as integers."""

    tasks: list[str]
    methods: list[str]
    t: Counts
    m: Counts
    ok: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    skipped: NDArray[np.bool_]

    @property
    def n_tasks(self) -> int:
        return len(self.tasks)

    @property
    def n_methods(self) -> int:
        return len(self.methods)

    @cached_property
    def cell(self) -> Counts:
        return self.t * self.n_methods + self.m


@dataclass(frozen=True)
class _Scores:
    """Values of a metric: one a run, and by cell (tasks, methods)."""

    values: Floats
    n: Counts
    cell_mean: Floats


@dataclass(frozen=True)
class _Pairs:
    """Values (pairs, methods), the task of each pair, where tasks start, and whether a cell has one value only."""

    values: Floats
    task: Counts
    starts: Counts
    constant: NDArray[np.bool_]


_COLUMNS = {
    "key": "VARCHAR", "task": "VARCHAR", "method": "VARCHAR", "seed": "BIGINT", "status": "VARCHAR", "params": "VARCHAR",
    "failure": "VARCHAR", "wall_seconds": "DOUBLE", "cpu_seconds": "DOUBLE", "peak_memory_bytes": "BIGINT", "data": "VARCHAR",
    "started": "VARCHAR",
}  # fmt: skip


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _codes(column: NDArray[Any], order: Iterable[str]) -> tuple[list[str], Counts]:
    present = set(column.tolist())
    known = [name for name in order if name in present]
    names = known + sorted(present - set(known))
    position = {name: i for i, name in enumerate(names)}
    return names, np.fromiter((position[name] for name in column.tolist()), dtype=np.int64, count=len(column))


def _names(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _read_curves(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / "curves.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _ordered(x: Sequence[float], y: Sequence[float]) -> tuple[Floats, Floats]:
    """A curve by increasing x, the last of several values at one x, without NaN."""
    xs, ys = np.asarray(x, dtype=np.float64)[::-1], np.asarray(y, dtype=np.float64)[::-1]
    keep = np.isfinite(xs) & np.isfinite(ys)
    xs, first = np.unique(xs[keep], return_index=True)
    return xs, ys[keep][first]


def _band(drawn: list[tuple[Floats, Floats]], points: int) -> Band:
    x = drawn[0][0]
    if not all(np.array_equal(x, other) for other, _ in drawn[1:]):
        x = np.linspace(min(xs[0] for xs, _ in drawn), max(xs[-1] for xs, _ in drawn), points)
    elif len(x) > points:
        x = x[np.linspace(0, len(x) - 1, points).round().astype(int)]
    values = np.stack([np.interp(x, xs, ys, left=np.nan, right=np.nan) for xs, ys in drawn])
    of = compare.mean_intervals(values.ravel(), np.tile(np.arange(len(x)), len(drawn)), np.arange(len(x)), resamples=500)
    return Band(x, of.mean, of.low, of.high, len(drawn))
