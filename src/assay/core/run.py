"""One run: what a method is given (`RunContext`) and what is kept of it (`RunRecord`)."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, Field

from assay.core.errors import AssayError

RECORD_FORMAT = 1
Status = Literal["ok", "failed", "skipped"]


class Failure(BaseModel):
    """Why a run has no result."""

    type: str
    message: str
    traceback: str = ""


class Provenance(BaseModel):
    """Where a result comes from."""

    versions: dict[str, str] = Field(default_factory=dict)
    python: str = ""
    platform: str = ""
    processor: str = ""
    cores: int = 0
    device: str = "cpu"


class RunRecord(BaseModel):
    """The file ``run.json``: what was run, what came out, at what cost, with which versions.

    ``metrics`` holds ``None`` where a metric is undefined (NaN has no JSON form). Seconds are wall and CPU time of the
    evaluation alone; ``peak_memory_bytes`` is the peak resident size of the process during it (the process's size
    before the run included).
    """

    model_config = ConfigDict(extra="forbid")

    format: int = RECORD_FORMAT
    key: str
    benchmark: str
    version: str
    task: str
    task_params: dict[str, Any] = Field(default_factory=dict)
    method: str
    params: dict[str, Any] = Field(default_factory=dict)
    seed: int
    status: Status
    metrics: dict[str, float | None] = Field(default_factory=dict)
    failure: Failure | None = None
    notes: dict[str, Any] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)
    data_fingerprint: str = ""
    started: str = ""
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0
    artifacts: list[str] = Field(default_factory=list)
    provenance: Provenance = Field(default_factory=Provenance)

    def metric(self, name: str) -> float:
        """Value of a metric, NaN where it is undefined or the run has none."""
        value = self.metrics.get(name)
        return math.nan if value is None else value


class RunContext:
    """What a run may use beside task and method.

    Attributes
    ----------
    seed : int
        The seed of the run. Methods get it, or a generator made from it, explicitly.
    device : str
        ``"cpu"``, ``"cuda"``, ...
    folder : Path
        Files written here are kept with the run.
    checkpoints : Path
        Files written here survive a killed run and are there when it is started again; gone once it has finished.
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        checkpoints: Path,
        *,
        device: str = "cpu",
        report: Callable[[float, str], None] | None = None,
    ) -> None:
        self.seed = seed
        self.device = device
        self.folder = folder
        self._checkpoints = checkpoints
        self._report = report
        self._reported = 0.0
        self._curves: dict[str, dict[str, list[float]]] = {}
        self._rows: dict[str, np.ndarray] = {}
        self.notes: dict[str, Any] = {}

    @property
    def checkpoints(self) -> Path:
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        return self._checkpoints

    def rng(self, purpose: str = "") -> np.random.Generator:
        """A generator of its own for each purpose, the same in every run with this seed.

        >>> from pathlib import Path
        >>> ctx = RunContext(0, Path(), Path())
        >>> float(ctx.rng("mask").random()) == float(ctx.rng("mask").random()) != float(ctx.rng("model").random())
        True
        """
        return np.random.default_rng([self.seed, *_words(purpose)])

    def integer_seed(self, purpose: str = "") -> int:
        """A seed below 2**31 for libraries that want an integer (``torch.Generator().manual_seed``)."""
        return int(np.random.SeedSequence([self.seed, *_words(purpose)]).generate_state(1)[0] >> 1)

    def jax_key(self, purpose: str = "") -> Any:
        """A JAX random key."""
        import jax

        return jax.random.key(self.integer_seed(purpose))

    def curve(self, name: str, x: float, y: float, *, x_label: str = "step") -> None:
        """Add a point to a curve that the report shows (metric over steps, reward over seconds, ...)."""
        curve = self._curves.setdefault(name, {"x": [], "y": [], "x_label": x_label})  # type: ignore[dict-item]
        curve["x"].append(float(x))
        curve["y"].append(float(y))

    def rows(self, name: str, values: ArrayLike) -> None:
        """Keep one value a test row (loss, correctness), for paired tests over rows between methods."""
        array = np.asarray(values)
        if array.ndim != 1 or array.dtype.kind not in "biuf":
            raise AssayError(
                f"row values {name!r} must be numbers in one dimension, not {array.dtype}{list(array.shape)}"
            )
        self._rows[name] = array

    def note(self, **facts: Any) -> None:
        """Keep facts about the run that are no metrics: settings that were chosen, sizes, counts (JSON values)."""
        from assay.core.benchmark import plain

        self.notes.update({name: plain(value) for name, value in facts.items()})

    def artifact(self, name: str) -> Path:
        """Path for a file that is kept with the run."""
        path = self.folder / name
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise AssayError(f"artifact {name!r} lies outside the folder of the run")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def progress(self, done: float, total: float, text: str = "") -> None:
        """Say how far the run is; shown at most twice a second."""
        now = time.monotonic()
        if self._report is not None and (now - self._reported > 0.5 or done >= total):
            self._reported = now
            self._report(done / total if total else 1.0, text)

    def save(self) -> None:
        """Write curves and rows into the folder."""
        if self._curves:
            (self.folder / "curves.json").write_text(json.dumps(self._curves))
        if self._rows:
            np.savez_compressed(self.folder / "rows.npz", **self._rows)  # type: ignore[arg-type]


def _words(purpose: str) -> list[int]:
    if not purpose:
        return []
    digest = hashlib.sha256(purpose.encode()).digest()
    return [int.from_bytes(digest[i : i + 4], "little") for i in (0, 4)]


@lru_cache(maxsize=8)
def provenance(packages: Sequence[str], device: str) -> Provenance:
    """Versions and machine, read once a process."""
    versions = {}
    for name in ("assay", "numpy", "scipy", *packages):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return Provenance(
        versions=versions,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 0),
        device=device,
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        return names[0] if names else platform.processor()
    except OSError:
        return platform.processor()


class Meter:
    """Wall seconds, CPU seconds and peak memory of a stretch of work in this process."""

    def __enter__(self) -> Meter:
        self.started = datetime.now(UTC).isoformat(timespec="milliseconds")
        _reset_peak()
        self._wall = time.perf_counter()
        self._cpu = time.process_time()
        return self

    def __exit__(self, *exc: object) -> None:
        self.wall = time.perf_counter() - self._wall
        self.cpu = time.process_time() - self._cpu
        self.peak = _peak()


def _reset_peak() -> None:
    # On Linux the high-water mark can be set back; elsewhere the peak of the process's whole life is reported.
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        pass


def _peak() -> int:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def clean_metrics(values: Mapping[str, Any], benchmark: Any) -> dict[str, float | None]:
    """Metrics as plain floats, checked against those that the benchmark declares.

    Raises
    ------
    MethodError
        If one is missing, unknown, not a number, outside its bounds, or NaN where that is no possible value.
    """
    from assay.core.errors import MethodError

    if not isinstance(values, Mapping):
        raise MethodError(f"the evaluation returned {type(values).__name__}, not a dictionary of metrics")
    unknown = set(values) - set(benchmark.metrics)
    if unknown:
        raise MethodError(
            f"unknown metric {sorted(map(str, unknown))}; {benchmark.name} declares {list(benchmark.metrics)}"
        )
    clean: dict[str, float | None] = {}
    for name, metric in benchmark.metrics.items():
        if name not in values:
            if metric.may_be_undefined:
                clean[name] = None
                continue
            raise MethodError(f"the evaluation returned no {name!r}")
        try:
            value = float(values[name])
        except (TypeError, ValueError) as error:
            raise MethodError(f"metric {name!r} is {type(values[name]).__name__}, not a number") from error
        if math.isnan(value) and not metric.may_be_undefined:
            raise MethodError(f"metric {name!r} is NaN: the method's output has NaN in it or is empty")
        if math.isinf(value):
            raise MethodError(f"metric {name!r} is {value}")
        low, high = metric.bounds
        slack = 1e-9 * max(1.0, abs(value))  # rounding of a mean
        if value < low - slack or value > high + slack:
            raise MethodError(f"metric {name!r} is {value:g}; it cannot lie outside {low:g} to {high:g}")
        clean[name] = None if math.isnan(value) else min(max(value, low), high)
    return clean
