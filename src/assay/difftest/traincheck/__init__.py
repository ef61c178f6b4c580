"""TrainCheck, as a rival: invariants inferred from a correct run, checked on another.

It lives in an environment of its own (``benchmarks/peers/difftest.txt``); ``ASSAY_TRAINCHECK`` names the folder of its
commands (``.../bin``). Its pipeline is one rank of the test bed's training; parameters say whether they are cut over
the tensor-parallel group, as Megatron's do, since its consistency rules build on that.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.difftest.errors import LaunchError, Undecided
from assay.difftest.testbed.config import Config, Layout

if TYPE_CHECKING:
    from assay.difftest.methods import Answer, Scenario

VARIABLE = "ASSAY_TRAINCHECK"
SMALL: dict[str, Any] = {"width": 32, "seq": 16, "vocab": 64, "steps": 3, "text": True}

# TrainCheck rewrites this file: the tracked model and its optimizer have to be assigned here, under these names.
PIPELINE = """\
import json
import os
import sys

facts = json.loads(os.environ["ASSAY_RUN"])
sys.path.insert(0, facts["path"])

import torch
import torch.distributed as dist

from assay.difftest.testbed.bugs import Switches
from assay.difftest.testbed.config import Config, Layout
from assay.difftest.testbed.trainer import FsdpTrainer, Trainer
from traincheck import annotate_stage

annotate_stage("init")
torch.set_num_threads(1)
dist.init_process_group(
    "gloo", init_method="file://" + facts["rendezvous"], rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
)
config, layout = Config(**facts["config"]), Layout(**facts["layout"])
trainer = (FsdpTrainer if layout.fsdp else Trainer)(config, layout, Switches(facts["bug"] or None))
model = trainer.models[0] if len(trainer.models) == 1 else torch.nn.ModuleList(trainer.models)
if not layout.fsdp:
    for name, parameter in trainer.parameters.items():
        parameter.tensor_model_parallel = "[tp" in trainer.stages.spec(name)
optimizer = trainer.optimizer if model is None or layout.fsdp else trainer.optimizer.inner
annotate_stage("training")
for step in range(config.steps):
    print(step, trainer.step(step))
dist.destroy_process_group()
"""
RANKS = """\
for rank in $(seq 0 $((WORLD_SIZE - 1))); do RANK=$rank "$ASSAY_PYTHON" -u pipeline.py & pids="$pids $!"; done
code=0
for pid in $pids; do wait $pid || code=1; done
exit $code
"""


class TrainCheck:
    """Found is what a run violates and another correct run of the same configuration does not.

    Parameters
    ----------
    budget : float
        CPU seconds for the invariants of one run, in an order drawn at random with a fixed seed.
    each : float
        CPU seconds for a single one, after which it counts as not checked.
    timeout : float
        Seconds that collecting a trace and inferring invariants may take.

    Raises
    ------
    ImportError
        When it judges, if the variable ``ASSAY_TRAINCHECK`` names no folder with its commands.
    Undecided
        If the budget ended before all invariants were checked, and none of those that were is violated by this run
        alone: it can be said of none that it was missed, nor that the run is clean.
    """

    def __init__(self, budget: float = 240.0, each: float = 10.0, timeout: float = 1800.0) -> None:
        self.budget, self.each, self.timeout = budget, each, timeout

    def judge(self, scenario: Scenario) -> Answer:
        """Collect, check; then check what is violated on a correct run as well. Inference is done once a layout."""
        from assay.difftest.methods import Answer

        binaries = commands()
        changes = {**SMALL, "ffn": 32, "batch": max(2, scenario.layout.dp)}
        if scenario.config.layers == Config().layers:
            changes["layers"] = 2 * scenario.layout.pp * scenario.layout.vpp
        config = scenario.config.with_(**changes)
        key = (config.with_(seed=0), scenario.layout)
        if key not in _KNOWN:
            folder = Path(tempfile.mkdtemp(prefix="assay-traincheck-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            for more, name in enumerate(("first", "second"), start=1):
                self._collect(binaries, config.with_(seed=config.seed + more), scenario.layout, 0, folder / name)
            self._call(binaries, "traincheck-infer", "-f", folder / "first", "-o", folder / "invariants.json")
            _KNOWN[key] = folder
        folder = _KNOWN[key]
        run = folder / "run"
        try:
            self._collect(binaries, config, scenario.layout, scenario.bug, run)
            total, checked = self._check(binaries, folder, "run")
        finally:
            for old in folder.glob("run*"):
                shutil.rmtree(old, ignore_errors=True)
        violated = [line["invariant"] for line in checked if line["passed"] is False]
        usual = self._check(binaries, folder, "second", violated)[1] if violated else []
        passed = {line["invariant"]: line["text"] for line in usual if line["passed"]}
        done = sum(line["passed"] is not None for line in checked)
        notes = {
            "invariants": total, "checked": done, "triggered": sum(bool(line["triggered"]) for line in checked),
            "violated": len(violated), "violated by a correct run too": sum(u["passed"] is False for u in usual),
            "evidence": list(passed.values())[:5],
        }  # fmt: skip
        if not passed and done < total:
            raise Undecided(
                f"{done} of {total} invariants were checked in {self.budget:g} CPU seconds, {len(violated)} violated, "
                f"none by this run alone"
            )
        return Answer(bool(passed), findings=len(passed), notes=notes)

    def _check(
        self, binaries: Path, folder: Path, name: str, only: list[int] | None = None
    ) -> tuple[int, list[dict[str, Any]]]:
        """Number of invariants, and what became of each that came to its turn."""
        out = folder / f"check-{name}.jsonl"
        facts = {
            "trace": str(folder / name), "invariants": str(folder / "invariants.json"), "out": str(out),
            "budget": self.budget, "each": self.each, "only": only,
        }  # fmt: skip
        self._call(binaries, "python", Path(__file__).with_name("driver.py"), json.dumps(facts), cwd=folder)
        lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        return lines[0]["invariants"], lines[1:]

    def _collect(self, binaries: Path, config: Config, layout: Layout, bug: int, out: Path) -> None:
        work = out.with_name(out.name + "-pipeline")
        work.mkdir(parents=True, exist_ok=True)
        (work / "pipeline.py").write_text(PIPELINE, encoding="utf-8")
        (work / "ranks.sh").write_text(RANKS, encoding="utf-8")
        facts = {
            "path": str(Path(__file__).parents[3]), "config": config.facts(), "layout": asdict(layout), "bug": bug,
            "rendezvous": str(work / "rendezvous"),
        }  # fmt: skip
        more = {
            "ASSAY_RUN": json.dumps(facts), "WORLD_SIZE": str(layout.world), "RANK": "0",
            "ASSAY_PYTHON": str(binaries / "python"),
        }  # fmt: skip
        self._call(
            binaries, "traincheck-collect", "-p", work / "pipeline.py", "-s", work / "ranks.sh", "--output-dir", out,
            "--models-to-track", "model", "--model-tracker-style", "sampler", cwd=work, env=more,
        )  # fmt: skip

    def _call(self, binaries: Path, what: str, *arguments: Any, cwd: Path | None = None, env: Any = None) -> None:
        command = [str(binaries / what), *map(str, arguments)]
        try:
            done = subprocess.run(
                command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True,
                timeout=self.timeout,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise LaunchError(f"{what} did not end within {self.timeout:g} s") from error
        if done.returncode:
            lines = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
            raise LaunchError(f"{what} ended with code {done.returncode}: {lines}")


_KNOWN: dict[Any, Path] = {}


def commands() -> Path:
    """Folder of TrainCheck's commands.

    Raises
    ------
    ImportError
    """
    folder = os.environ.get(VARIABLE, "")
    if not folder or not (Path(folder) / "traincheck-collect").exists():
        raise ImportError(
            f"TrainCheck is not here: install benchmarks/peers/difftest.txt into an environment of its own and let "
            f"{VARIABLE} name its folder bin"
        )
    return Path(folder).absolute()
