"""The race against gfnx 0.0.1 and torchgfn 2.4.1: milliseconds an update of trajectory balance, the same work on all
sides.

    make bench FIELD=gflownets
    python benchmarks/gflownets.py --threads 1 2 --batch 16 512 --repeats 5
    python benchmarks/gflownets.py --scenarios grid2 ising --skip compile extras

Every side samples a batch with its own policy, computes trajectory balance with a learned backward policy, and takes
an Adam step, for an MLP of two hidden layers of 256. The policies are held still and alike: last layers are 0 but for
one preference for stopping, learning rates are 0 (Adam runs all the same); so all sides sample trajectories of the same
law, whose mean lengths are printed (torchgfn has one more action where the others need no stop). gfnx has no trainer to
import: its side is its
environments and its `forward_rollout` inside one compiled step, with one evaluation of the network in the loss and
without metrics or logging (less than its own scripts do). torchgfn's side is its `TBGFlowNet` with its sampler.
TFBind8 and QM9 rewards of gfnx read files that it does not ship: it is given our table through a reward module of its
own interface. The sides take turns in blocks, medians of blocks are compared. Each number of threads is a process of
its own, pinned to that many cores. Compilation is timed in fresh processes, first with an empty cache of programs,
then with the one that the first left. Peers go into build/peers/gflownets.

On a machine that others use, `--clock cpu` takes CPU time of the process in place of wall time (one thread only).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "build" / "peers" / "gflownets"
NAMES = ("grid2", "grid4", "bits", "tfbind8", "qm9", "ising", "dag")
TARGETS = {"gfnx": (1.5, 1.0), "torchgfn": (5.0, 3.0)}  # geometric mean, least


def pinned(threads: int) -> None:
    """Pin the process and its numeric libraries, before any of them is imported."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    if threads == 1:
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, set(cores[-threads:]))


def peers() -> bool:
    """Install the rivals once; False where they cannot be had."""
    if not (PEERS / "gfnx").is_dir():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(PEERS),
            "-r",
            str(ROOT / "benchmarks/peers/gflownets.txt"),
        ]
        if subprocess.run(command, check=False).returncode:
            return False
    return True


Step = Callable[[int], float]  # does n updates, gives the mean trajectory length


def gfnx_side(
    env: Any, params: Any, encode: Callable[[Any], Any], width: int, batch: int, stop: float | None = None
) -> Step:
    import equinox as eqx
    import gfnx
    import jax
    import jax.numpy as jnp
    import optax

    n_forward, n_backward = env.action_space.n, env.backward_action_space.n
    net = eqx.nn.MLP(width, n_forward + n_backward, 256, 2, key=jax.random.PRNGKey(0))
    last = net.layers[-1]
    bias = jnp.zeros_like(last.bias)
    if stop is not None:
        bias = bias.at[n_forward - 1].set(stop)
    net = eqx.tree_at(lambda m: (m.layers[-1].weight, m.layers[-1].bias), net, (jnp.zeros_like(last.weight), bias))
    arrays, static = eqx.partition(net, eqx.is_array)
    everything = {"net": arrays, "log_z": jnp.zeros(())}
    labels = {"net": jax.tree.map(lambda _: "net", arrays), "log_z": "log_z"}
    optimizer = optax.multi_transform({"net": optax.adam(0.0), "log_z": optax.adam(0.0)}, labels)

    def heads(weights: Any, obs: Any) -> dict[str, Any]:
        out = jax.vmap(eqx.combine(weights, static))(encode(obs))
        return {"forward_logits": out[:, :n_forward], "backward_logits": out[:, n_forward:]}

    def policy(key: Any, obs: Any, weights: Any) -> tuple[Any, dict[str, Any]]:
        found = heads(weights, obs)
        return found["forward_logits"], found

    @jax.jit
    def update(all_params: Any, opt: Any, key: Any, env_params: Any) -> Any:
        traj, info = gfnx.utils.forward_rollout(
            rng_key=key,
            num_envs=batch,
            policy_fn=policy,
            policy_params=all_params["net"],
            env=env,
            env_params=env_params,
        )

        def loss(p: Any) -> Any:
            obs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), traj.obs)
            found = heads(p["net"], obs)
            shaped = {k: v.reshape(batch, -1, v.shape[-1]) for k, v in found.items()}
            seen = traj.replace(info={**traj.info, **shaped})
            log_pf, log_pb = gfnx.utils.forward_trajectory_log_probs(env, seen, env_params)
            return ((p["log_z"] + log_pf - log_pb - info["log_gfn_reward"]) ** 2).mean()

        value, gradient = jax.value_and_grad(loss)(all_params)
        change, opt = optimizer.update(gradient, opt, all_params)
        return optax.apply_updates(all_params, change), opt, value, info["trajectory_length"].mean()

    opt = optimizer.init(everything)
    key = jax.random.PRNGKey(1)
    count = 0

    def step(n: int) -> float:
        nonlocal everything, opt, count
        total = 0.0
        for _ in range(n):
            count += 1
            everything, opt, value, length = update(everything, opt, jax.random.fold_in(key, count), params)
            total = total + length
        value.block_until_ready()
        return float(total) / n

    return step


def torch_side(env: Any, preprocessor: Any, batch: int, stop: float | None = None) -> Step:
    import torch
    from gfn.estimators import DiscretePolicyEstimator
    from gfn.gflownet import TBGFlowNet
    from gfn.utils.modules import MLP

    torch.manual_seed(0)
    width = preprocessor.output_dim
    forward = MLP(input_dim=width, output_dim=env.n_actions, hidden_dim=256, n_hidden_layers=2)
    backward = MLP(
        input_dim=width, output_dim=env.n_actions - 1, hidden_dim=256, n_hidden_layers=2, trunk=forward.trunk
    )
    with torch.no_grad():
        for head in (forward.last_layer, backward.last_layer):
            head.weight.zero_()
            head.bias.zero_()
        if stop is not None:
            forward.last_layer.bias[-1] = stop
    pf = DiscretePolicyEstimator(forward, env.n_actions, preprocessor=preprocessor)
    pb = DiscretePolicyEstimator(backward, env.n_actions, preprocessor=preprocessor, is_backward=True)
    gflownet = TBGFlowNet(pf=pf, pb=pb, init_logZ=0.0)
    optimizer = torch.optim.Adam(
        [
            {"params": list(dict.fromkeys(gflownet.pf_pb_parameters())), "lr": 0.0},
            {"params": gflownet.logz_parameters(), "lr": 0.0},
        ]
    )

    def step(n: int) -> float:
        total = 0.0
        for _ in range(n):
            found = gflownet.sample_trajectories(
                env, n=batch, save_logprobs=True, save_estimator_outputs=False, epsilon=0.0
            )
            optimizer.zero_grad()
            loss = gflownet.loss(env, found, recalculate_all_logprobs=False)
            loss.backward()
            optimizer.step()
            total += float(found.terminating_idx.float().mean())
        return total / n

    return step


def gfnx_table(log_r: Any, size: int) -> Any:
    """A reward module of gfnx's interface over a table."""
    import jax.numpy as jnp
    import numpy as np
    from gfnx.base import BaseRewardModule

    class Table(BaseRewardModule):
        def init(self, rng_key: Any, dummy_state: Any) -> Any:
            return {"log_r": jnp.asarray(log_r, jnp.float32)}

        def log_reward(self, state: Any, env_params: Any) -> Any:
            length = state.tokens.shape[-1]
            power = jnp.asarray(size ** np.arange(length - 1, -1, -1))
            tokens = jnp.clip(state.tokens[:, :length], 0, size - 1)
            return env_params.reward_params["log_r"][(tokens * power).sum(-1)]

        def reward(self, state: Any, env_params: Any) -> Any:
            return jnp.exp(self.log_reward(state, env_params))

    return Table()


def scenario(name: str, batch: int) -> dict[str, Callable[[], Step]]:
    """Makers of the sides of a scenario."""
    import gfnx
    import jax
    import jax.numpy as jnp
    import numpy as np

    from assay.gflownets import Ising
    from assay.gflownets.bench import STOP, Updates
    from assay.gflownets.data import qm9_small_log_reward, tfbind8_log_reward, wine_measurements

    key = jax.random.PRNGKey(0)
    stop = STOP.get(name)

    def ours() -> Step:
        return Updates(name, batch)

    def one_hot(levels: int) -> Callable[[Any], Any]:
        return lambda obs: jax.nn.one_hot(obs, levels).reshape(obs.shape[0], -1)

    def sequence(made: Any) -> Step:
        width = made.ntoken * made.get_obs(made.get_init_state(1), made.init(key)).shape[-1]
        return gfnx_side(made, made.init(key), one_hot(made.ntoken), width, batch)

    if name.startswith("grid"):
        dim, side = (2, 8) if name == "grid2" else (4, 16)

        def rival() -> Step:
            made = gfnx.HypergridEnvironment(gfnx.EasyHypergridRewardModule(), dim=dim, side=side)
            return gfnx_side(made, made.init(key), lambda obs: obs, dim * side, batch, stop)

        def torch_rival() -> Step:
            from gfn.gym import HyperGrid
            from gfn.preprocessors import KHotPreprocessor

            made = HyperGrid(
                ndim=dim, height=side, reward_fn_kwargs={"R0": 1e-3, "R1": 0.5, "R2": 2.0}, validate_modes=False
            )
            return torch_side(made, KHotPreprocessor(side, dim), batch, stop)

        return {"ours": ours, "gfnx": rival, "torchgfn": torch_rival}
    if name == "bits":

        def bits_rival() -> Step:
            from gfnx.environment.bitseq import BitseqEnvironment

            return sequence(BitseqEnvironment(gfnx.BitseqRewardModule(8, 2, 4, 3.0), n=8, k=2))

        def bits_torch() -> Step:
            from gfn.gym.bitSequenceNonAutoregressive import NonAutoregressiveBitSequence
            from gfn.preprocessors import IdentityPreprocessor

            made = NonAutoregressiveBitSequence(word_size=2, seq_size=8, n_modes=4)
            return torch_side(made, IdentityPreprocessor(output_dim=4), batch)

        return {
            "ours": ours,
            "gfnx": bits_rival,
            "torchgfn": bits_torch,
        }
    if name == "ising":

        def ising_rival() -> Step:
            made = gfnx.IsingEnvironment(gfnx.IsingRewardModule(), dim=36)
            params = made.init(key)
            params = params.replace(reward_params=params.reward_params.replace(J=Ising(6, 0.1).J))
            return gfnx_side(
                made, params, lambda obs: jnp.concatenate([obs == 0, obs == 1], -1).astype(jnp.float32), 72, batch
            )

        def ising_torch() -> Step:
            import torch
            from gfn.gym.discrete_ebm import DiscreteEBM, IsingModel
            from gfn.preprocessors import IdentityPreprocessor

            made = DiscreteEBM(36, energy=IsingModel(torch.tensor(np.asarray(Ising(6, 0.1).J))), alpha=1.0)
            return torch_side(made, IdentityPreprocessor(output_dim=36), batch)

        return {"ours": ours, "gfnx": ising_rival, "torchgfn": ising_torch}
    if name == "tfbind8":
        return {
            "ours": ours,
            "gfnx": lambda: sequence(gfnx.TFBind8Environment(gfnx_table(tfbind8_log_reward(), 4))),
        }
    if name == "qm9":
        return {
            "ours": ours,
            "gfnx": lambda: sequence(gfnx.QM9SmallEnvironment(gfnx_table(qm9_small_log_reward(), 11))),
        }
    if name == "dag":
        X, _ = wine_measurements()

        def dag_rival() -> Step:
            from gfnx.reward.dag import DAGRewardModule
            from gfnx.reward.dag_likelihood import BGeScore
            from gfnx.reward.dag_prior import UniformDAGPrior

            reward = DAGRewardModule(prior=UniformDAGPrior(5), likelihood=BGeScore(jnp.asarray(X[:100], jnp.float32)))
            made = gfnx.DAGEnvironment(reward, num_variables=5)
            return gfnx_side(
                made, made.init(key), lambda obs: obs.reshape(obs.shape[0], -1).astype(jnp.float32), 25, batch, stop
            )

        return {"ours": ours, "gfnx": dag_rival}
    raise SystemExit(f"there is no scenario {name!r}")


def race(name: str, batch: int, given: argparse.Namespace) -> dict[str, float]:
    """Milliseconds an update of each side: medians of blocks that take turns."""
    from assay.core.errors import DataError

    clock = clock_of(given)
    try:
        makers = scenario(name, batch)
        made = {side: maker() for side, maker in makers.items() if side == "ours" or side in given.against}
    except DataError as error:
        print(f"{name} is left out: {error}")
        return {}
    block, lengths = {}, {}
    for side, step in made.items():
        step(2)  # compiles
        start = time.perf_counter()
        step(5)
        block[side] = int(min(max(given.seconds / max((time.perf_counter() - start) / 5, 1e-5), 5), 400))
        step(block[side])
    times: dict[str, list[float]] = {side: [] for side in made}
    for _ in range(given.repeats):
        for side, step in made.items():
            start = clock()
            lengths[side] = step(block[side])
            times[side].append((clock() - start) / block[side] * 1e3)
    found = {side: statistics.median(values) for side, values in times.items()}
    shown = "  ".join(f"{side} {found[side]:.3f} ms (length {lengths[side]:.1f})" for side in found)
    print(f"{name} batch {batch}: {shown}", flush=True)
    return found


def clock_of(given: argparse.Namespace) -> Callable[[], float]:
    return time.process_time if given.clock == "cpu" else time.perf_counter


def extras(clock: Callable[[], float]) -> dict[str, float]:
    """Seeds together against one seed, exact answers, and updates of modified detailed balance a second."""
    import numpy as np

    from assay.gflownets import Hypergrid, StateGraph, exact_posterior
    from assay.gflownets.bench import environment
    from assay.gflownets.data import wine_measurements
    from assay.gflownets.graphs import all_parents
    from assay.gflownets.rewards import bge_table
    from assay.gflownets.train import Config, Trainer

    def timed(call: Callable[[], Any], repeats: int = 3) -> float:
        values = []
        for _ in range(repeats):
            start = clock()
            call()
            values.append(clock() - start)
        return statistics.median(values)

    trainer = Trainer(Hypergrid(2, 8), "tb", "mlp", Config(backward="learned"))
    # Trajectories of one seed are up to half as long again as those of another: one seed is the mean of the eight.
    alone, eight = [trainer.init(seed) for seed in range(8)], trainer.init_seeds(range(8))

    def single() -> None:
        for seed in range(8):
            alone[seed], _ = trainer.run(alone[seed], 200)

    def together() -> None:
        nonlocal eight
        eight, _ = trainer.run_seeds(eight, 200)

    single(), together()
    found = {"seeds": 8 * timed(together) / timed(single)}
    X, _ = wine_measurements()
    table = bge_table(X[:100])

    def posterior() -> None:
        all_parents.cache_clear()
        exact_posterior(table)

    found["posterior"] = timed(posterior)
    graph = StateGraph(Hypergrid(4, 20))
    net = trainer_net(Hypergrid(4, 20))

    def exact() -> None:
        assert abs(np.exp(graph.log_terminal(graph.log_pf(net))).sum() - 1) < 1e-6

    exact()
    found["exact"] = timed(exact)
    # 16 transitions are about three trajectories of the wine posterior, whose mean length is about 5
    for name, batch in (("mdb_transitions", 3), ("mdb_trajectories", 16)):
        trainer = Trainer(environment("dag"), "mdb", "mlp", Config(batch=batch))
        state, log = trainer.run(trainer.init(0), 300)
        box = [state]

        def go(trainer: Trainer = trainer, box: list[Any] = box) -> None:
            box[0], _ = trainer.run(box[0], 200)

        found[name] = 200 / timed(go)
        found[name + "_length"] = float(log.length.mean())
    return found


def trainer_net(env: Any) -> Any:
    """An untrained MLP of two layers of 256."""
    from assay.gflownets.train import Trainer

    trainer = Trainer(env)
    return trainer.model(trainer.init(0)).net


def child(given: argparse.Namespace) -> dict[str, Any]:
    """What one process measures."""
    threads = given.threads[0]
    pinned(threads)
    warnings.simplefilter("ignore")
    sys.path.append(str(PEERS))
    if given.child == "compile":
        from assay.gflownets.bench import Updates
        from assay.gflownets.train import compile_cache

        compile_cache(given.cache)
        start = clock_of(given)()
        Updates(given.scenarios[0], 16)(1)
        return {"seconds": clock_of(given)() - start}
    if given.child == "extras":
        return extras(clock_of(given))
    if "torchgfn" in given.against:
        import torch

        torch.set_num_threads(threads)
    return {name: race(name, given.batch[0], given) for name in given.scenarios}


def ask(given: argparse.Namespace, kind: str, **changes: Any) -> dict[str, Any]:
    """Run `child` in a process of its own and give what it found."""
    values = {**vars(given), **changes}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, __file__, "--child", kind, "--out", str(out)]
        for name in ("scenarios", "against", "threads", "batch"):
            if values[name]:
                command += [f"--{name}", *map(str, values[name])]
        for name in ("repeats", "seconds", "clock", "cache"):
            if values[name] is not None:
                command += [f"--{name}", str(values[name])]
        subprocess.run(command, check=True)
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def geometric(values: Iterable[float]) -> float:
    """Geometric mean."""
    return statistics.geometric_mean(list(values))


def verdict(what: str, ratio: float, target: float, least: bool = True) -> str:
    """The line that says whether a target was met."""
    met = ratio >= target if least else ratio <= target
    return f"gflownets {what}: ratio {ratio:.2f} target {target:g} {'ok' if met else 'short'}"


def race_lines(given: argparse.Namespace) -> list[str]:
    lines = []
    for threads in given.threads:
        for batch in given.batch:
            where = f"batch {batch}, threads {threads}"
            print(where, flush=True)
            found = ask(given, "race", threads=[threads], batch=[batch])
            for rival in given.against:
                ratios = {name: times[rival] / times["ours"] for name, times in found.items() if rival in times}
                if ratios:
                    mean, least = TARGETS[rival]
                    lines += [verdict(f"{name} against {rival}, {where}", r, least) for name, r in ratios.items()]
                    lines.append(verdict(f"geometric mean against {rival}, {where}", geometric(ratios.values()), mean))
    return lines


def compile_lines(given: argparse.Namespace) -> list[str]:
    lines = []
    for name in given.scenarios:
        with tempfile.TemporaryDirectory() as cache:
            first, second = (
                ask(given, "compile", scenarios=[name], threads=[1], cache=cache)["seconds"] for _ in range(2)
            )
        lines.append(verdict(f"{name}, seconds to the first update", first, 20.0, least=False))
        lines.append(verdict(f"{name}, seconds to the first update of a second run", second, 3.0, least=False))
        print("\n".join(lines[-2:]), flush=True)
    return lines


def extra_lines(given: argparse.Namespace) -> list[str]:
    found = ask(given, "extras", threads=[1])
    return [
        verdict("8 seeds in one program, times one seed", found["seeds"], 8.0, least=False),
        verdict("exact posterior of 29,281 graphs, seconds", found["posterior"], 2.0, least=False),
        verdict("exact distribution of 160,000 cells, seconds", found["exact"], 1.0, least=False),
        verdict(
            f"DAG of five, MDB, 3 trajectories of {found['mdb_transitions_length']:.1f} transitions, updates a second",
            found["mdb_transitions"],
            1000.0,
        ),
        verdict("DAG of five, MDB, 16 trajectories, updates a second", found["mdb_trajectories"], 200.0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", nargs="*", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 512])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a block")
    parser.add_argument("--scenarios", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--skip", nargs="*", default=[], choices=["race", "compile", "extras"])
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    for name in ("--child", "--cache", "--out"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        Path(given.out).write_text(json.dumps(child(given)))
        return
    if given.against and not peers():
        raise SystemExit("the rivals could not be installed; see benchmarks/peers/gflownets.txt")
    lines: list[str] = []
    for name, make in (("compile", compile_lines), ("extras", extra_lines), ("race", race_lines)):
        if name not in given.skip:
            lines += make(given)
    print("\n".join(["", *lines]))


if __name__ == "__main__":
    main()
