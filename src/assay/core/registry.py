"""Which fields and plug-ins exist, without importing them; and importing one when it is used."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import AssayError, MissingExtraError, PluginError, UnknownNameError

if TYPE_CHECKING:
    from assay.core.benchmark import Benchmark

ENTRY_POINTS = "assay.benchmarks"
_PACKAGE = Path(__file__).parent.parent


@dataclass(frozen=True)
class Field:
    """A field of the library: its name, the system that it holds, and what that does."""

    name: str
    system: str
    what: str

    @property
    def present(self) -> bool:
        """Whether this version has it."""
        return (_PACKAGE / self.name / "benchmark.py").is_file()

    @property
    def has_commands(self) -> bool:
        """Whether it has verbs of its own on the command line."""
        return (_PACKAGE / self.name / "cli.py").is_file()


FIELDS = {
    name: Field(name, system, what)
    for name, system, what in [
        ("streams", "haphazard", "online learning when features come and go"),
        ("uncertainty", "probly", "uncertainty representation, quantification and evaluation"),
        ("attribution", "quanda", "evaluation of training data attribution"),
        ("diagnosis", "pyCD", "cognitive diagnosis of students"),
        ("gflownets", "gfnx", "GFlowNet environments and objectives in JAX"),
        ("difftest", "nnTrace", "differential testing of distributed training"),
        ("experts", "vExpert", "MoE load balancing with virtualised experts"),
        ("language", "muLM", "language models below 100M parameters, memory first"),
        ("formulas", "fxbench", "spreadsheet formula suggestion"),
        ("proofs", "s2n-bignum-bench", "HOL Light proof synthesis for machine code"),
        ("shapes", "scShapeBench, scReebTower", "the shape of single-cell data"),
        ("spatial", "sMMC-22M, STBoost", "histology to gene expression, a cell at a time"),
        ("graphs", "xVGAE", "exchangeable graph generation"),
        ("causal", "xWhyL, CIL", "causal discovery from explanations"),
        ("driving", "nuReasoning", "reasoning and planning in long-tail driving"),
        ("radar", "mmLIP", "radar-language pretraining"),
        ("detection", "iDETR", "tiny object detection"),
        ("equilibrium", "i-DEQ", "inertial deep equilibrium image restoration"),
        ("volterra", "kVNN", "kernelised Volterra layers"),
    ]
}


def import_field(name: str, module: str = "") -> Any:
    """The package ``assay.<name>`` (or a module in it).

    Raises
    ------
    UnknownNameError
        If there is no such field in this version.
    MissingExtraError
        If packages that the field needs are not installed.
    """
    if name not in FIELDS or not FIELDS[name].present:
        raise UnknownNameError("field", name, [f.name for f in FIELDS.values() if f.present])
    try:
        return importlib.import_module(f"assay.{name}" + (f".{module}" if module else ""))
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if not missing or missing == "assay":
            raise
        raise MissingExtraError(f"assay.{name}", name, missing) from error


class Benchmarks(Mapping[str, "Benchmark"]):
    """All benchmarks by name: those of the fields, of installed packages (entry points) and of plug-in files.

    A benchmark is imported when it is asked for.

    Plug-ins
    --------
    A plug-in file, or the object behind an entry point of the group ``assay.benchmarks``, is a function
    ``register(benchmarks)``, which may call ``benchmarks["streams"].add_method("mine", MyMethod)`` and
    ``benchmarks.add(Benchmark(...))``, or a `Benchmark`. Loading one runs its code.
    """

    def __init__(self, *, entry_points: bool = True) -> None:
        self._loaded: dict[str, Benchmark] = {}
        self._entry_points_due = entry_points

    def add(self, benchmark: Benchmark) -> Benchmark:
        """Add a whole benchmark.

        Raises
        ------
        PluginError
            If there is one of that name.
        """
        if benchmark.name in self._loaded or (benchmark.name in FIELDS and FIELDS[benchmark.name].present):
            raise PluginError(f"there is a benchmark {benchmark.name!r} already; give yours another name")
        self._loaded[benchmark.name] = benchmark
        return benchmark

    def load_plugin(self, file: str | Path) -> None:
        """Run a plug-in file.

        Raises
        ------
        PluginError
            If it cannot be run, or neither has ``register`` nor holds a `Benchmark`; the message names file and line.
        """
        from assay.core.benchmark import Benchmark

        path = Path(file)
        if not path.is_file():
            raise PluginError(f"there is no plug-in file {path}")
        name = f"assay_plugin_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:6]}".replace(
            "-", "_"
        )
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise PluginError(f"{path} is not a Python file (its name must end in .py)")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            raise PluginError(f"the plug-in {path} raised {_where(error, path)}") from error
        import cloudpickle

        cloudpickle.register_pickle_by_value(module)  # worker processes do not have the module
        register = getattr(module, "register", None)
        own = [value for value in vars(module).values() if isinstance(value, Benchmark)]
        if register is None and not own:
            raise PluginError(f"the plug-in {path} has neither a function register(benchmarks) nor a Benchmark")
        if register is None:
            for benchmark in own:
                self.add(benchmark)
            return
        try:
            register(self)
        except AssayError:
            raise
        except Exception as error:
            raise PluginError(f"register() of the plug-in {path} raised {_where(error, path)}") from error

    def __getitem__(self, name: str) -> Benchmark:
        if name in self._loaded:
            return self._loaded[name]
        if name in FIELDS and FIELDS[name].present:
            self._loaded[name] = import_field(name, "benchmark").benchmark
            self._load_entry_points()
            return self._loaded[name]
        self._load_entry_points()
        if name not in self._loaded:
            raise UnknownNameError("benchmark", name, list(self))
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        self._load_entry_points()
        yield from dict.fromkeys([f.name for f in FIELDS.values() if f.present] + list(self._loaded))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _load_entry_points(self) -> None:
        if not self._entry_points_due:
            return
        self._entry_points_due = False
        from importlib.metadata import entry_points

        from assay.core.benchmark import Benchmark

        for entry in entry_points(group=ENTRY_POINTS):
            try:
                value = entry.load()
                if isinstance(value, Benchmark):
                    self.add(value)
                else:
                    value(self)
            except Exception as error:
                raise PluginError(
                    f"the entry point {entry.name!r} of the package {entry.dist.name if entry.dist else '?'} raised "
                    f"{type(error).__name__}: {error}; uninstall or mend that package"
                ) from error


def _where(error: Exception, path: Path) -> str:
    import traceback

    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.lineno:
        lines.append(error.lineno)
    at = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{at}"
