"""The benchmark of the field: enumerable spaces, all objectives, distances to the exact distribution over seconds."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from assay.core.benchmark import Benchmark, Method, Metric, Task
from assay.core.run import RunContext

POINTS = 10
_compiled: dict[tuple[str, ...], Any] = {}


@dataclass(frozen=True)
class SpaceTask:
    """A problem, how long it is trained for, and whether its space is enumerated.

    Attributes
    ----------
    make : callable
        Gives the environment.
    batch, steps : int
    enumerable : bool
    net : str
    """

    name: str
    make: Any
    batch: int = 16
    steps: int = 2000
    enumerable: bool = True
    net: str = "mlp"
    options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def graph(self) -> Any:
        """All states, or None; enumerated once for all runs of a process."""
        from assay.gflownets.exact import StateGraph

        return StateGraph(self.make()) if self.enumerable else None

    def fingerprint(self) -> str:
        """Hash of the environment with its rewards, and of the training budget."""
        import equinox as eqx

        from assay.gflownets.checkpoint import described, digest

        env = self.make()
        return digest(
            self.name,
            described(env),
            eqx.filter(env, eqx.is_array),
            self.batch,
            self.steps,
            self.net,
            repr(self.options),
        )


def load_space(
    kind: str, batch: int = 16, steps: int = 2000, enumerable: bool = True, net: str = "mlp", **params: Any
) -> SpaceTask:
    """A space by name, with a budget of ``steps`` updates of ``batch`` trajectories."""
    space = SpaceTask(kind, lambda: _make(kind, params), batch, steps, enumerable, net)
    if kind in ("tfbind8", "qm9_small", "phylo"):
        space.make()  # a missing file is said before anything runs
    return space


def _make(kind: str, params: dict[str, Any]) -> Any:
    from assay.gflownets import envs, problems

    if kind == "hypergrid":
        return envs.Hypergrid(**params)
    if kind == "ising":
        return envs.Ising(params["n"], params["sigma"])
    if kind == "wine":
        from assay.gflownets.data import wine_measurements

        X, names = wine_measurements()
        return problems.DAGProblem(X[: params.get("rows", 100)], names=names).env
    if kind == "bits":
        return problems.bit_sequences(**params).env
    if kind == "phylo":
        return problems.phylogeny(params["alignment"], params.get("taxa")).env
    return getattr(problems, kind)(**params).env


class UniformPolicy:
    """Uniform over legal actions: what no training at all gives."""

    objective = ""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}


class Trained:
    """An objective with the settings of a `GFlowNet`."""

    def __init__(
        self,
        objective: str = "tb",
        backward: str = "uniform",
        lr: float = 1e-3,
        log_z_lr: float = 0.1,
        explore: float = 0.1,
        **settings: Any,
    ) -> None:
        self.objective = objective
        self.settings = {"backward": backward, "lr": lr, "log_z_lr": log_z_lr, "explore": explore, **settings}


def train_and_compare(task: Task, method: Method, context: RunContext) -> Mapping[str, float]:
    """Train on the task's space; figures are exact where it is enumerated, exploration is off when they are taken.

    Curves run over seconds of training: compilation and the taking of figures are not counted.
    """
    from assay.gflownets.model import GFlowNet
    from assay.gflownets.schedules import Linear

    space: SpaceTask = task.data()
    rule = method.make()
    steps = space.steps if rule.objective else 0
    every = max(steps // POINTS, 1)
    settings = dict(rule.settings)
    if steps:
        lr, explore = settings.pop("lr"), settings.pop("explore")
        settings["lr"] = Linear(lr, 0.02 * lr, steps)
        settings["explore"] = Linear(explore, 0.0, max(steps // 2, 1))
        settings["recent"] = every * space.batch
    gfn = GFlowNet(
        space.make(),
        rule.objective or "tb",
        space.net,
        batch=space.batch,
        seed=context.integer_seed("model") % 2**31,
        **settings,
    )
    key = (space.fingerprint(), repr(gfn.objective), repr(gfn.config))
    gfn.trainer = _compiled.setdefault(key, gfn.trainer)  # seeds share the compiled program
    if not steps:
        return _figures(gfn, space, None, float("nan"))
    progress = Progress(gfn, space, context)

    def each(model: Any, log: Any) -> None:
        progress.point(log)
        context.progress(model.steps, steps, f"loss {log.loss[-1]:.3g}")

    checkpoint = context.checkpoints / "training.npz"
    if checkpoint.exists():
        gfn.load(checkpoint)
    gfn.trainer.run(gfn.trainer.init(0), 1)  # compiles; a state that is thrown away
    progress.resume()
    begun, done = gfn.seconds, gfn.steps
    gfn.fit(steps, eval_every=every, callback=each, checkpoint=checkpoint, checkpoint_every=every)
    spent = gfn.seconds - begun
    context.note(
        parameters=int(sum(np.size(x) for x in _leaves(gfn.state.params))),
        objective=type(gfn.objective).__name__,
        reads=[name for name in gfn.objective.needs._fields if getattr(gfn.objective.needs, name)],
    )
    return _figures(gfn, space, progress.found, (steps - done) / spent if spent > 0 else float("nan"))


class Progress:
    """Points of the curves of a run, kept beside its checkpoint so that a killed run has all of them."""

    def __init__(self, gfn: Any, space: SpaceTask, context: RunContext) -> None:
        self.gfn, self.graph, self.context = gfn, space.graph, context
        self.file = context.checkpoints / "points.json"
        self.points: list[dict[str, float]] = []
        self.seen: set[int] = set()
        self.modes: set[int] = set()
        if self.graph is not None:
            self.modes = set(np.flatnonzero(self.graph.log_r >= self.graph.log_r.max() - 1e-4).tolist())

    @property
    def found(self) -> float:
        """Share of the best objects that training has met."""
        return len(self.seen) / len(self.modes) if self.modes else float("nan")

    def resume(self) -> None:
        """Take up the points of a run that was killed, or begin."""
        if self.file.exists() and self.gfn.steps:
            kept = json.loads(self.file.read_text())
            self.points = [point for point in kept["points"] if point["step"] <= self.gfn.steps]
            self.seen = set(kept["seen"])
            for point in self.points:
                self._draw(point)
        else:
            self.point(None)

    def point(self, log: Any) -> None:
        """Measure now, draw the point and keep it."""
        point: dict[str, float] = {"step": self.gfn.steps, "seconds": self.gfn.seconds}
        if log is not None:
            point["mean log reward"] = float(np.mean(log.log_r))
        if self.graph is not None:
            from assay.gflownets import metrics

            if log is not None:
                states, _ = self.gfn.recent()
                self.seen |= set(self.graph.terminal_number(states).tolist()) & self.modes
            p = np.exp(self.graph.log_terminal(self.graph.log_pf(self.gfn.model.net)))
            point["total variation"] = metrics.total_variation(p, self.graph.target).value
            point["mean log reward"] = float(p @ self.graph.log_r)
            point["modes found"] = len(self.seen)
        self.points.append(point)
        self._draw(point)
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps({"points": self.points, "seen": sorted(self.seen)}))
        os.replace(part, self.file)

    def _draw(self, point: dict[str, float]) -> None:
        for name in ("total variation", "mean log reward", "modes found"):
            if name in point:
                self.context.curve(name, point["seconds"], point[name], x_label="seconds of training")


def _leaves(tree: Any) -> list[Any]:
    import jax

    leaves: list[Any] = jax.tree.leaves(tree)
    return leaves


def _figures(gfn: Any, space: SpaceTask, modes: float | None, speed: float) -> dict[str, float]:
    from assay.gflownets import metrics

    nan, graph = float("nan"), space.graph
    if graph is None:
        found = gfn.sample(1024, seed=2)
        bounds = metrics.log_z_bounds(found.log_w)
        best, _ = metrics.distinct(found.objects, found.log_r)
        return {
            **dict.fromkeys(("total_variation", "jsd", "log_z_error", "correlation", "modes"), nan),
            "elbo_gap": bounds.gap,
            "mean_log_reward": float(found.log_r.mean()),
            "best_log_reward": float(found.log_r.max()),
            "distinct": len(best) / 1024,
            "updates_per_second": speed,
        }
    uniform = modes is None
    log_pf = graph.uniform() if uniform else graph.log_pf(gfn.model.net)
    p = np.exp(graph.log_terminal(log_pf))
    with np.errstate(divide="ignore"):
        log_p = np.log(p)
    there = np.isfinite(log_p)
    return {
        "total_variation": metrics.total_variation(p, graph.target).value,
        "jsd": metrics.jsd(p, graph.target).value,
        "log_z_error": nan if uniform else abs(gfn.log_z - graph.log_z),
        "correlation": metrics.correlation(log_p[there], graph.log_r[there]).value,
        "elbo_gap": graph.log_z - graph.elbo(log_pf, graph.log_pb(gfn.model.net, gfn.trainer.kind)),
        "mean_log_reward": float(p @ graph.log_r),
        "best_log_reward": nan,
        "distinct": nan,
        "modes": nan if modes is None else modes,
        "updates_per_second": speed,
    }


def applicable(task: Task, method: Method) -> str | None:
    """Modified detailed balance needs a stop action; a uniform policy is only compared where the space is
    enumerated."""
    if method.params.get("objective") == "mdb" and "stop" not in task.tags:
        return "modified detailed balance needs an environment that may stop anywhere"
    if method.baseline and "sampled" in task.tags:
        return "without training there is nothing to sample from the network"
    if method.params.get("objective") == "fm" and "wide" in task.tags:
        return "flow matching would ask the network about every parent of every state; too many here"
    return None


benchmark = Benchmark(
    "gflownets",
    "GFlowNets: sampling in proportion to a reward",
    [
        Metric("total_variation", False, format=".4f", may_be_undefined=True, bounds=(0, 1)),
        Metric("jsd", False, "Jensen-Shannon divergence", ".5f", "nats", may_be_undefined=True),
        Metric("log_z_error", False, "error of log Z", ".4f", may_be_undefined=True),
        Metric("elbo_gap", False, "log Z minus ELBO", ".4f", may_be_undefined=True),
        Metric("correlation", True, "correlation of log p and log R", may_be_undefined=True, bounds=(-1, 1)),
        Metric("mean_log_reward", True),
        Metric("best_log_reward", True, may_be_undefined=True),
        Metric("modes", True, "share of the best objects met in training", ".2f", may_be_undefined=True, bounds=(0, 1)),
        Metric("distinct", True, "share of distinct samples", may_be_undefined=True, bounds=(0, 1)),
        Metric("updates_per_second", True, "updates a second", ",.0f", may_be_undefined=True, cost=True),
    ],
    train_and_compare,
    version="2",
    description="Every method gets the same number of trajectories; the distribution that it samples is "
    "computed exactly where the space allows.",
    packages=("jax", "equinox", "optax"),
    applicable=applicable,
)

benchmark.add_task(
    "grid-8", load_space, title="Hypergrid, 8 x 8", kind="hypergrid", dim=2, side=8, steps=2000, tags={"stop"}
)
benchmark.add_task(
    "wine-dag",
    load_space,
    title="Bayesian networks of five wine measurements (BGe)",
    kind="wine",
    rows=20,
    steps=1500,
    tags={"stop"},
)
benchmark.add_task(
    "grid-4d-8", load_space, title="Hypergrid, 8^4", kind="hypergrid", dim=4, side=8, steps=20_000, tags={"stop"}
)
benchmark.add_task(
    "grid-hard-20",
    load_space,
    title="Hypergrid, 20 x 20, hard",
    kind="hypergrid",
    dim=2,
    side=20,
    reward="hard",
    steps=4000,
    tags={"stop"},
)
benchmark.add_task(
    "ising-3", load_space, title="Ising torus 3 x 3, sigma 0.2", kind="ising", n=3, sigma=0.2, steps=2000
)
benchmark.add_task(
    "bits-12",
    load_space,
    title="Bit sequences, 12 bits in words of 3, any order",
    kind="bits",
    n=12,
    k=3,
    modes=8,
    steps=2500,
)
benchmark.add_task(
    "tfbind8",
    load_space,
    title="DNA 8-mers, binding to SIX6",
    kind="tfbind8",
    batch=64,
    steps=15_000,
    licence="Apache-2.0",
    citation="Barrera et al. (2016)",
)
benchmark.add_task(
    "qm9-small", load_space, title="Molecules of five blocks", kind="qm9_small", batch=64, steps=15_000, licence="MIT"
)
benchmark.add_task(
    "phylo-DS1-6",
    load_space,
    title="Trees of six taxa of DS1",
    kind="phylo",
    alignment="DS1",
    taxa=6,
    net="pairs",
    steps=3000,
    licence="MIT",
)
benchmark.add_task(
    "phylo-DS1",
    load_space,
    title="Trees of the 27 taxa of DS1",
    kind="phylo",
    alignment="DS1",
    net="pairs",
    batch=32,
    steps=10_000,
    enumerable=False,
    licence="MIT",
    tags={"sampled", "wide"},
)

benchmark.add_method("uniform", UniformPolicy, title="Uniform policy", baseline=True)
benchmark.add_method("tb", Trained, title="Trajectory balance", objective="tb")
benchmark.add_method("tb-learned", Trained, title="Trajectory balance, learned P_B", objective="tb", backward="learned")
benchmark.add_method("vargrad", Trained, title="Log-partition variance", objective="vargrad")
benchmark.add_method("db", Trained, title="Detailed balance", objective="db")
benchmark.add_method("subtb", Trained, title="Sub-trajectory balance", objective="subtb")
benchmark.add_method("fm", Trained, title="Flow matching", objective="fm")
benchmark.add_method("fldb", Trained, title="Forward-looking DB", objective="fldb")
benchmark.add_method("mdb", Trained, title="Modified DB", objective="mdb")
benchmark.add_method("soft-dqn", Trained, title="Soft DQN", objective="soft_dqn")

benchmark.quick(tasks=["wine-dag"], methods=["uniform", "tb", "mdb"], seeds=(0, 1))
benchmark.full(tasks=["grid-8", "wine-dag", "grid-hard-20", "ising-3", "bits-12"])
