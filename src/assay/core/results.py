"""The outcome of a grid, in columns: what leaderboards, tests and reports are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.benchmark import Benchmark
from assay.core.run import RunRecord
from assay.core.store import Store


class Results:
    """Runs of one benchmark as columns.

    Attributes
    ----------
    columns : dict of arrays, all of one length
        ``key, task, method, seed, status, wall_seconds, cpu_seconds, peak_memory_bytes, params, failure`` and one
        ``m:<name>`` a metric (float64, NaN where there is none).
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
            wanted = [
                "key", "task", "method", "seed", "status", "params", "failure", "wall_seconds", "cpu_seconds",
                "peak_memory_bytes", "started",
            ]  # fmt: skip
            fixed = ", ".join(name if name in present else f"NULL AS {name}" for name in wanted)
            metrics = ", ".join(
                (f'"m:{name}"' if f"m:{name}" in present else f'NULL::DOUBLE AS "m:{name}"') for name in benchmark.metrics
            )
            where = ["true"]
            if "version" in present:
                where.append(f"version = '{benchmark.version}'")
            if keys is not None:
                connection.execute("CREATE TEMP TABLE wanted AS SELECT unnest(?) AS key", [list(keys) or [""]])
                where.append("key IN (SELECT key FROM wanted)")
            newest = "row_number() OVER (PARTITION BY task, method, seed ORDER BY started DESC) = 1"
            query = f"SELECT {fixed}, {metrics} FROM runs WHERE {' AND '.join(where)} QUALIFY {newest} ORDER BY task, method, seed"
            columns = connection.execute(query).fetchnumpy()
        finally:
            connection.close()
        plain = {}
        for name, column in columns.items():
            if name.startswith("m:"):
                plain[name] = np.ma.filled(np.ma.asarray(column, dtype=np.float64), np.nan)
            else:
                plain[name] = np.ma.filled(column, None) if np.ma.isMaskedArray(column) and column.dtype == object else np.asarray(column)
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
