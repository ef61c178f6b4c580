"""The benchmark of the field: correct and broken distributed runs, judged by several methods."""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.benchmark import Benchmark, Method, Metric, Task
from assay.core.errors import SkipRun
from assay.core.run import RunContext
from assay.difftest.errors import Undecided
from assay.difftest.testbed.bugs import BUGS
from assay.difftest.testbed.config import Config, Layout

if TYPE_CHECKING:
    from assay.difftest.methods import Answer, Scenario


@dataclass(frozen=True)
class Run:
    """A configuration and its bug (0: none)."""

    config: Config
    layout: Layout
    bug: int = 0

    def fingerprint(self) -> str:
        """All that decides the run, the seed aside."""
        return repr(self)


class Traces:
    """Traces, tolerances and loss curves of the last few runs, shared by the methods of a process."""

    def __init__(self, keep: int = 3) -> None:
        self.keep = keep
        self.folder: Path | None = None
        self.references: dict[Config, Any] = {}
        self.candidates: dict[Any, Any] = {}
        self.curves: dict[Any, Any] = {}

    def scenario(self, run: Run, seed: int) -> Scenario:
        """What methods get."""
        from assay.difftest.methods import Scenario

        config = run.config.with_(seed=seed)
        return Scenario(
            config, run.layout, run.bug, partial(self.traces, config, run), partial(self.losses, config, run)
        )

    def traces(self, config: Config, run: Run) -> Any:
        """Reference, tolerance, candidate."""
        from assay.difftest.testbed.launch import launch, reference_tolerance, run_reference

        if config not in self.references:
            self._room(self.references)
            reference = run_reference(config, self._new())
            self.references[config] = (reference, reference_tolerance(config, reference))
        reference, tolerance = self.references[config]
        key = (config, run.layout, run.bug)
        if key not in self.candidates:
            self._room(self.candidates)
            self.candidates[key] = launch(
                config, run.layout, self._new(), bug=run.bug or None, reference=reference.folder
            )
        return reference, tolerance, self.candidates[key]

    def losses(self, config: Config, run: Run, steps: int) -> Any:
        """Loss curves of three reference seeds, and of the run."""
        from assay.difftest.testbed.curves import candidate_curve, reference_curves

        small = config.with_(
            width=64, ffn=min(config.ffn, 128), seq=32, batch=max(2, run.layout.dp), steps=steps, text=True
        )
        key = (replace(small, seed=0), "reference")
        if key not in self.curves:
            self.curves[key] = reference_curves(small.with_(seed=0), seeds=(0, 1, 2))
        own = (small, run.layout, run.bug)
        if own not in self.curves:
            self.curves[own] = candidate_curve(small, run.layout, run.bug)
        return self.curves[key], self.curves[own]

    def _new(self) -> Path:
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="assay-difftest-"))
            atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        return Path(tempfile.mkdtemp(dir=self.folder))

    def _room(self, box: dict[Any, Any]) -> None:
        while len(box) >= self.keep:
            old = box.pop(next(iter(box)))
            shutil.rmtree((old[0] if isinstance(old, tuple) else old).folder, ignore_errors=True)


TRACES = Traces()


def evaluate(task: Task, method: Method, context: RunContext) -> Mapping[str, float]:
    """One method on one run."""
    run: Run = task.data()
    try:
        answer: Answer = method.make().judge(TRACES.scenario(run, context.seed))
    except (ImportError, Undecided) as error:
        raise SkipRun(str(error)) from error
    context.note(place=answer.place, kind=answer.kind, category=answer.category, **answer.notes)
    nan = float("nan")
    if not run.bug:
        return {"right": float(not answer.found), "false_findings": float(answer.findings), "module": nan, "kind": nan,
                "diagnosis": nan}  # fmt: skip
    bug = BUGS[run.bug]
    return {
        "right": float(answer.found), "false_findings": nan,
        "module": float(answer.found and bool(answer.place) and re.match(bug.first, answer.place) is not None),
        "kind": float(answer.found and answer.category == bug.kind),
        "diagnosis": float(answer.found and answer.kind in bug.diagnoses),
    }  # fmt: skip


@dataclass(frozen=True)
class Named:
    """Makes a method of `assay.difftest.methods` by its name, imported at the first call."""

    name: str

    def __call__(self, **params: Any) -> Any:
        from assay.difftest import methods

        return getattr(methods, self.name)(**params)

    def parameter_names(self) -> list[str]:
        """Parameters that the method takes."""
        import inspect

        from assay.difftest import methods

        return list(inspect.signature(getattr(methods, self.name)).parameters)


benchmark = Benchmark(
    "difftest",
    "Silent bugs in distributed training",
    [
        Metric("right", higher_is_better=True, title="right verdict", format=".2f", bounds=(0, 1)),
        *(
            Metric(name, higher_is_better=True, title=title, format=".2f", may_be_undefined=True, bounds=(0, 1))
            for name, title in (("module", "right module"), ("kind", "right kind"), ("diagnosis", "right diagnosis"))
        ),
        Metric("false_findings", higher_is_better=False, title="false findings", format=".0f", may_be_undefined=True),
    ],
    evaluate,
    version="1",
    description="A small GPT on 1 to 4 processes, correct or with one of 26 bugs; what does each method say?",
    packages=("torch", "safetensors"),
    default_seeds=range(3),
)
for _bug in BUGS.values():
    benchmark.add_task(
        f"bug-{_bug.number:02d}",
        partial(Run, config=_bug.settings(text=True), layout=_bug.layout, bug=_bug.number),
        title=f"{_bug.axis}: {_bug.title}",
        fingerprint=repr((_bug.config, _bug.layout, _bug.number, "text")),
        tags={"bug", _bug.kind},
        citation=_bug.source,
    )
_CORRECT: dict[str, tuple[dict[str, Any], Layout]] = {
    "tp2": ({}, Layout(tp=2)), "tp2-sp": ({}, Layout(tp=2, sp=True)), "cp2": ({}, Layout(cp=2)),
    "dp2-zero": ({}, Layout(dp=2, zero=True)), "dp2-fsdp": ({}, Layout(dp=2, fsdp=True)), "pp2": ({}, Layout(pp=2)),
    "pp2-vpp2": ({"tied": True}, Layout(pp=2, vpp=2)), "tp2-recompute": ({}, Layout(tp=2, recompute="layer")),
    "moe-tp2-sp": ({"experts": 8, "ffn": 64}, Layout(tp=2, sp=True)),
    "moe-ep2": ({"experts": 8, "ffn": 64}, Layout(dp=2, ep=2)),
}  # fmt: skip
for _name, (_config, _layout) in _CORRECT.items():
    for _dtype in ("fp32", "bf16", "fp8"):
        benchmark.add_task(
            f"correct-{_name}-{_dtype}",
            partial(Run, config=Config(text=True, dtype=_dtype, **_config), layout=_layout),
            title=f"Correct: {_layout}, {_dtype}",
            fingerprint=repr((_config, _layout, _dtype, "text")),
            tags={"correct", _dtype},
        )
benchmark.add_method("perturb", Named("Checker"), title="Comparison, tolerances by perturbation")
benchmark.add_method("theory", Named("Checker"), title="Comparison, closed-form tolerances", mode="theory")
benchmark.add_method("fixed", Named("Checker"), title="Comparison, one tolerance for all", mode="fixed", value=1e-3)
benchmark.add_method("loss_curve", Named("LossCurve"), title="Loss curve, 3 sigma of three seeds", baseline=True)
benchmark.add_method("traincheck", Named("TrainCheck"), title="TrainCheck 0.2.0, invariants of a correct run")
benchmark.add_method("nothing", Named("Nothing"), title="Trust every run", baseline=True)
benchmark.quick(
    tasks=["bug-01", "bug-03", "bug-12", "bug-26", "correct-tp2-sp-fp32", "correct-tp2-sp-bf16"],
    methods=["perturb", "theory", "fixed", "loss_curve(steps=12)", "nothing"],
    seeds=(0,),
)
benchmark.full(methods=["perturb", "theory", "fixed", "loss_curve", "nothing"])
