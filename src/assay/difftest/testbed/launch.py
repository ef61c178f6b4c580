"""Run the reference and the distributed model, traced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assay.difftest.collect import Tracer, trace
from assay.difftest.names import Name, NameMap
from assay.difftest.store import Trace
from assay.difftest.testbed.bugs import BUGS, Switches
from assay.difftest.testbed.config import Config, Layout
from assay.difftest.testbed.pool import Pool, shared_pool
from assay.difftest.testbed.train import Reference
from assay.difftest.tolerance import Tolerance, estimate_tolerance


def run_reference(
    config: Config, out: str | Path, *, level: str = "full", routing: dict[str, Tensor] | None = None
) -> Trace:
    """Trace ``config.steps`` steps of the reference."""
    fresh(out)
    reference = Reference(config, routing=routing)
    with (
        one_thread(),
        trace(reference.model, out, level=level, meta={**config.facts(), "tokens": config.data().count}) as tracer,
    ):
        for step in range(config.steps):
            if step:
                tracer.next_step()
            reference.step(step, tracer)
    return Trace.open(out)


class one_thread:
    """One thread for torch inside the block, so that sums do not depend on how many there are."""

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *exc: object) -> None:
        torch.set_num_threads(self.before)


def fresh(out: str | Path) -> None:
    """Remove the files of an older trace (nothing else) from a folder."""
    folder = Path(out)
    for pattern in ("rank*-step*.json", "rank*-step*.safetensors", ".rank*.part"):
        for old in folder.glob(pattern) if folder.is_dir() else ():
            old.unlink()


def routing_of(reference: Trace) -> dict[str, Tensor]:
    """Experts chosen by the reference: ``module/step/micro-batch`` -> indices."""
    found = {}
    for name in reference.names():
        parsed = Name.parse(name)
        if parsed.phase == "mark" and parsed.slot == "chosen":
            found[f"{parsed.module.removesuffix('.router')}/{parsed.step}/{parsed.microbatch}"] = reference.tensor(name)
    return found


def run_candidate(
    config: dict[str, Any], layout: dict[str, Any], bug: Any, out: str, level: str = "full", routing: str = "",
    skip: Sequence[int] = (), replace: str = "", losses_only: bool = False,
) -> Any:  # fmt: skip
    """One rank of the distributed run (called by the pool)."""
    from assay.difftest.testbed.trainer import FsdpTrainer, Trainer

    c, at, bugs = Config(**config), Layout(**layout), Switches(bug)
    chosen = routing_of(Trace.open(routing)) if routing else None
    trainer: Any = (FsdpTrainer if at.fsdp else Trainer)(c, at, bugs, routing=chosen)
    for chunk in [] if at.fsdp else trainer.stages.chunks:
        for layer, block in zip(chunk.held, chunk.layers):
            block.attention.proj.skip = layer in skip
    if losses_only:
        return [trainer.step(step) for step in range(c.steps)]
    rank = torch.distributed.get_rank()
    specs = trainer.specs() if at.fsdp else [*trainer.stages.specs(), (r"^loss/", "{dp:sum,cp:sum}")]
    names = NameMap([("model", None)] if at.fsdp else trainer.stages.rules)
    mesh = {**at.coords(rank)}
    tracer: Tracer
    with trace(
        trainer.models, out, mesh=mesh, names=names, specs=specs, level=level,
        meta={**c.facts(), "layout": asdict(at), "tokens": c.data().count, "bug": bug, "fsdp": at.fsdp},
        replace_inputs=Trace.open(replace) if replace else None,
    ) as tracer:  # fmt: skip
        for step in range(c.steps):
            if step:
                tracer.next_step()
            trainer.step(step, tracer)
    return trainer.losses


def launch(
    config: Config, layout: Layout, out: str | Path, *, bug: int | Iterable[int] | None = None, level: str = "full",
    reference: str | Path | None = None, replay_routing: bool | None = None, pool: Pool | None = None,
    skip_reduction: Sequence[int] = (), replace_inputs: bool = False,
) -> Trace:  # fmt: skip
    """Trace the distributed model on as many processes as the layout needs.

    Parameters
    ----------
    config, layout
    out : path
        Folder of the trace.
    bug : int, optional
        Number of an injected bug (`bugs.BUGS`).
    level : str
    reference : path, optional
        Trace of the reference, for routing replay and input replacement.
    replay_routing : bool, optional
        Follow the reference's experts; default: for mixtures below FP32.
    pool : Pool, optional
    skip_reduction : sequence of int
        Layers whose attention projection leaves its reduction out.
    replace_inputs : bool
        Feed every module the reference's input (isolation).

    Raises
    ------
    LaunchError
    """
    layout.check(config)
    fresh(out)
    if replay_routing is None:
        replay_routing = bool(config.experts) and config.dtype != "fp32"
    (pool or shared_pool()).run(
        run_candidate, layout.world, config=config.facts(), layout=asdict(layout), bug=bug, out=str(out), level=level,
        routing=str(reference) if replay_routing and reference else "", skip=tuple(skip_reduction),
        replace=str(reference) if replace_inputs and reference else "",
    )  # fmt: skip
    return Trace.open(out)


def reference_tolerance(config: Config, reference: Trace, **options: Any) -> Tolerance:
    """Tolerances of a configuration, from perturbed runs of the reference that follow its routing."""
    routing = routing_of(reference) if config.experts else None
    model = Reference(config, routing=routing)
    holder: list[Any] = []

    def step() -> None:
        for number in range(config.steps):
            if number:
                holder[0].next_step()
            model.step(number, holder[0])

    with one_thread():
        return estimate_tolerance(
            step, model.model, optimizer=_Handle(model.optimizer), base=reference, tracer_holder=holder, **options
        )


class _Handle:
    """State of the reference's optimizer, for putting it back."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def state_dict(self) -> dict[str, Any]:
        """As an optimizer's."""
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As an optimizer's."""
        self.inner.load_state_dict(state)


def demo_settings(bug: int) -> tuple[Config, Layout]:
    """Configuration and layout that show a bug."""
    return BUGS[bug].settings(), BUGS[bug].layout


__all__ = ["demo_settings", "launch", "reference_tolerance", "routing_of", "run_reference"]
