"""The progress line of a grid."""

from __future__ import annotations

import threading
from typing import Any

from assay.core.benchmark import Benchmark


class Display:
    """The progress line: how many runs, how many failed, what is being run. Written to stderr, only on a terminal."""

    def __init__(self, benchmark: Benchmark, total: int, done: int, show: bool) -> None:
        self.benchmark = benchmark
        self.total = total
        self.done = done
        self.failed = 0
        self._lock = threading.Lock()
        self._progress: Any = None
        if show:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("[bold]{task.fields[name]}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[now]}", markup=False),
                console=Console(stderr=True),
            )

    def __enter__(self) -> Display:
        if self._progress is not None:
            self._progress.start()
            self._bar = self._progress.add_task(
                "", total=self.total, completed=self.done, name=self.benchmark.name, now=""
            )
        return self

    def __exit__(self, *exc: object) -> None:
        if self._progress is not None:
            now = f"{self.failed} failed" if self.failed else ""
            self._progress.update(self._bar, now=now)
            self._progress.stop()

    def at(self, lane: int, what: str, fraction: float = 0.0, text: str = "") -> None:
        if self._progress is not None:
            share = f" {fraction:.0%}" if fraction else ""
            self._progress.update(self._bar, now=f"{what}{share} {text}".rstrip())

    def finished(self, status: str) -> None:
        if status == "elsewhere":
            return
        with self._lock:
            self.done += 1
            self.failed += status == "failed"
        if self._progress is not None:
            self._progress.update(self._bar, completed=self.done)
