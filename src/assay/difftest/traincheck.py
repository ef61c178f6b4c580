"""TrainCheck, as a rival: invariants inferred from a correct run, checked on another.

It lives in an environment of its own (``benchmarks/peers/difftest.txt``); ``ASSAY_TRAINCHECK`` names the folder of its
commands (``.../bin``). Its pipeline is one rank of the test bed's training; parameters say whether they are cut over
the tensor-parallel group, as Megatron's do, since its consistency rules build on that.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.difftest.errors import LaunchError
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
    timeout : float
        Seconds that each of its commands may take.

    Raises
    ------
    ImportError
        When it judges, if the variable ``ASSAY_TRAINCHECK`` names no folder with its commands.
    """

    def __init__(self, timeout: float = 1800.0) -> None:
        self.timeout = timeout

    def judge(self, scenario: Scenario) -> Answer:
        """Three runs (to infer, to tell what correct runs violate, the one in question), two checks."""
        from assay.difftest.methods import Answer

        binaries = commands()
        changes = {**SMALL, "ffn": 32, "batch": max(2, scenario.layout.dp)}
        if scenario.config.layers == Config().layers:
            changes["layers"] = 2 * scenario.layout.pp * scenario.layout.vpp
        config = scenario.config.with_(**changes)
        key = (config.with_(seed=0), scenario.layout)
        if key not in _KNOWN:
            folder = Path(tempfile.mkdtemp(prefix="assay-traincheck-"))
            seeds = [config.seed + 1, config.seed + 2]
            for seed, name in zip(seeds, ("first", "second")):
                self._collect(binaries, config.with_(seed=seed), scenario.layout, 0, folder / name)
            self._call(binaries, "infer", "-f", folder / "first", "-o", folder / "invariants.json")
            _KNOWN[key] = (folder, self._violated(binaries, folder, "second"))
        folder, usual = _KNOWN[key]
        self._collect(binaries, config, scenario.layout, scenario.bug, folder / f"run{scenario.bug}")
        found = self._violated(binaries, folder, f"run{scenario.bug}")
        new = [text for key, text in found.items() if key not in usual]
        invariants = sum(1 for _ in (folder / "invariants.json").open(encoding="utf-8"))
        notes = {"invariants": invariants, "violated by a correct run": len(usual), "evidence": new[:5]}
        return Answer(bool(new), findings=len(new), notes=notes)

    def _collect(self, binaries: Path, config: Config, layout: Layout, bug: int, out: Path) -> None:
        work = out.with_name(out.name + "-pipeline")
        work.mkdir(parents=True, exist_ok=True)
        (work / "pipeline.py").write_text(PIPELINE, encoding="utf-8")
        (work / "ranks.sh").write_text(RANKS, encoding="utf-8")
        facts = {
            "path": str(Path(__file__).parents[2]), "config": config.facts(), "layout": asdict(layout), "bug": bug,
            "rendezvous": str(work / "rendezvous"),
        }  # fmt: skip
        more = {
            "ASSAY_RUN": json.dumps(facts), "WORLD_SIZE": str(layout.world), "RANK": "0",
            "ASSAY_PYTHON": str(binaries / "python"),
        }  # fmt: skip
        self._call(
            binaries, "collect", "-p", work / "pipeline.py", "-s", work / "ranks.sh", "--models-to-track", "model",
            "--model-tracker-style", "sampler", "--output-dir", out, cwd=work, env=more,
        )  # fmt: skip

    def _violated(self, binaries: Path, folder: Path, name: str) -> dict[str, str]:
        """Violated invariants: what identifies each, and its text."""
        out = folder / f"check-{name}"
        self._call(binaries, "check", "-f", folder / name, "-i", folder / "invariants.json", "-o", out,
                   "--no-html-report", cwd=folder)  # fmt: skip
        found = {}
        for failed in _objects((out / name / "failed.log").read_text(encoding="utf-8")):
            invariant = failed["invariant"]
            found[json.dumps([invariant["relation"], invariant["params"]], sort_keys=True)] = invariant[
                "text_description"
            ]
        return found

    def _call(self, binaries: Path, what: str, *arguments: Any, cwd: Path | None = None, env: Any = None) -> None:
        command = [str(binaries / f"traincheck-{what}"), *map(str, arguments)]
        try:
            done = subprocess.run(
                command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True,
                timeout=self.timeout,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise LaunchError(f"traincheck-{what} did not end within {self.timeout:g} s") from error
        if done.returncode:
            lines = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
            raise LaunchError(f"traincheck-{what} ended with code {done.returncode}: {lines}")


_KNOWN: dict[Any, tuple[Path, dict[str, str]]] = {}


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


def _objects(text: str) -> Iterator[dict[str, Any]]:
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        value, at = decoder.raw_decode(text, at)
        yield value
