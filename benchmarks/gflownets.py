"""The race against gfnx 0.0.1 and torchgfn 2.4.1: milliseconds an update of trajectory balance, the same work on all
sides.

    make bench FIELD=gflownets
    python benchmarks/gflownets.py --batch 16 512 --scenarios grid2 ising --repeats 5

Every side samples a batch with its own policy, computes trajectory balance with a learned backward policy, and takes
an Adam step, for an MLP of two hidden layers of 256. gfnx has no trainer to import: its side is its environments and
its `forward_rollout` inside one compiled step, with one evaluation of the network in the loss and without metrics or
logging (less than its own scripts do). torchgfn's side is its `TBGFlowNet` with its sampler. One thread; the sides
take turns in blocks, medians of blocks are compared, and the mean trajectory length of each side is printed, because
a shorter trajectory is less work. TFBind8 and QM9 rewards of gfnx read files that it does not ship: it is given our
table through a reward module of its own interface. Peers go into build/peers/gflownets.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "build" / "peers" / "gflownets"


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
    sys.path.append(str(PEERS))
    return True


Step = Callable[[int], float]  # does n updates, gives the mean trajectory length


def ours(env: Any, batch: int) -> Step:
    from assay.gflownets.train import Config, Trainer

    trainer = Trainer(env, "tb", "mlp", Config(batch=batch, backward="learned", net={"hidden": 256, "depth": 2}))
    state = trainer.init(0)

    def step(n: int) -> float:
        nonlocal state
        state, log = trainer.run(state, n)
        return float(log.length.mean())

    return step


def gfnx_side(env: Any, params: Any, encode: Callable[[Any], Any], width: int, batch: int) -> Step:
    import equinox as eqx
    import gfnx
    import jax
    import jax.numpy as jnp
    import optax

    n_forward, n_backward = env.action_space.n, env.backward_action_space.n
    net = eqx.nn.MLP(width, n_forward + n_backward, 256, 2, key=jax.random.PRNGKey(0))
    arrays, static = eqx.partition(net, eqx.is_array)
    everything = {"net": arrays, "log_z": jnp.zeros(())}
    labels = {"net": jax.tree.map(lambda _: "net", arrays), "log_z": "log_z"}
    optimizer = optax.multi_transform({"net": optax.adam(1e-3), "log_z": optax.adam(1e-1)}, labels)

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


def torch_side(env: Any, preprocessor: Any, batch: int) -> Step:
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
    pf = DiscretePolicyEstimator(forward, env.n_actions, preprocessor=preprocessor)
    pb = DiscretePolicyEstimator(backward, env.n_actions, preprocessor=preprocessor, is_backward=True)
    gflownet = TBGFlowNet(pf=pf, pb=pb, init_logZ=0.0)
    optimizer = torch.optim.Adam(
        [
            {"params": list(dict.fromkeys(gflownet.pf_pb_parameters())), "lr": 1e-3},
            {"params": gflownet.logz_parameters(), "lr": 1e-1},
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

    from assay.gflownets import DAG, Hypergrid, Ising, bit_sequences, qm9_small, tfbind8
    from assay.gflownets.data import qm9_small_log_reward, tfbind8_log_reward, wine_measurements
    from assay.gflownets.rewards import bge_table

    key = jax.random.PRNGKey(0)

    def one_hot(levels: int) -> Callable[[Any], Any]:
        return lambda obs: jax.nn.one_hot(obs, levels).reshape(obs.shape[0], -1)

    def sequence(made: Any) -> Step:
        width = made.ntoken * made.get_obs(made.get_init_state(1), made.init(key)).shape[-1]
        return gfnx_side(made, made.init(key), one_hot(made.ntoken), width, batch)

    if name.startswith("grid"):
        dim, side = (2, 8) if name == "grid2" else (4, 16)

        def rival() -> Step:
            made = gfnx.HypergridEnvironment(gfnx.EasyHypergridRewardModule(), dim=dim, side=side)
            return gfnx_side(made, made.init(key), lambda obs: obs, dim * side, batch)

        def torch_rival() -> Step:
            from gfn.gym import HyperGrid
            from gfn.preprocessors import KHotPreprocessor

            made = HyperGrid(
                ndim=dim, height=side, reward_fn_kwargs={"R0": 1e-3, "R1": 0.5, "R2": 2.0}, validate_modes=False
            )
            return torch_side(made, KHotPreprocessor(side, dim), batch)

        return {"ours": lambda: ours(Hypergrid(dim, side), batch), "gfnx": rival, "torchgfn": torch_rival}
    if name == "bits":

        def bits_rival() -> Step:
            from gfnx.environment.bitseq import BitseqEnvironment

            return sequence(BitseqEnvironment(gfnx.BitseqRewardModule(8, 2, 4, 3.0), n=8, k=2))

        def bits_torch() -> Step:
            from gfn.gym.bitSequenceNonAutoregressive import BitSequenceNonAutoregressive
            from gfn.preprocessors import IdentityPreprocessor

            made = BitSequenceNonAutoregressive(word_size=2, seq_size=8, n_modes=4)
            return torch_side(made, IdentityPreprocessor(output_dim=4), batch)

        return {
            "ours": lambda: ours(bit_sequences(8, 2, modes=4).env, batch),
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

        return {"ours": lambda: ours(Ising(6, 0.1), batch), "gfnx": ising_rival, "torchgfn": ising_torch}
    if name == "tfbind8":
        return {
            "ours": lambda: ours(tfbind8().env, batch),
            "gfnx": lambda: sequence(gfnx.TFBind8Environment(gfnx_table(tfbind8_log_reward(), 4))),
        }
    if name == "qm9":
        return {
            "ours": lambda: ours(qm9_small().env, batch),
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
                made, made.init(key), lambda obs: obs.reshape(obs.shape[0], -1).astype(jnp.float32), 25, batch
            )

        return {"ours": lambda: ours(DAG(bge_table(X[:100])), batch), "gfnx": dag_rival}
    raise SystemExit(f"there is no scenario {name!r}")


NAMES = ("grid2", "grid4", "bits", "tfbind8", "qm9", "ising", "dag")


def race(name: str, batch: int, repeats: int, seconds: float) -> dict[str, float]:
    """Milliseconds an update of each side: medians of blocks that take turns."""
    from assay.core.errors import DataError

    try:
        makers = scenario(name, batch)
        made = {side: maker() for side, maker in makers.items()}
    except DataError as error:
        print(f"{name} is left out: {error}")
        return {}
    block, lengths = {}, {}
    for side, step in made.items():
        start = time.perf_counter()
        step(2)
        first = time.perf_counter() - start
        step(50)  # the measured block, compiled for
        start = time.perf_counter()
        step(10)
        block[side] = int(min(max(seconds / max((time.perf_counter() - start) / 10, 1e-5), 10), 400))
        if side == "ours":
            block[side] = max(100, block[side] // 100 * 100)
        print(f"  {name} {side}: first call {first:.1f} s", flush=True)
    times: dict[str, list[float]] = {side: [] for side in made}
    for _ in range(repeats):
        for side, step in made.items():
            start = time.perf_counter()
            lengths[side] = step(block[side])
            times[side].append((time.perf_counter() - start) / block[side] * 1e3)
    found = {side: statistics.median(values) for side, values in times.items()}
    shown = "  ".join(f"{side} {found[side]:.3f} ms (length {lengths[side]:.1f})" for side in found)
    print(f"{name} batch {batch}: {shown}", flush=True)
    return found


def geometric(values: list[float]) -> float:
    """Geometric mean."""
    return statistics.geometric_mean(values) if values else float("nan")


def verdict(what: str, ratio: float, target: float, least: bool = True) -> str:
    """The line that says whether a target was met."""
    met = ratio >= target if least else ratio <= target
    return f"gflownets {what}: ratio {ratio:.2f} target {target:g} {'ok' if met else 'short'}"


def extras() -> list[str]:
    """Seeds together against one seed, and exact answers, in one thread."""
    import numpy as np

    from assay.gflownets import Hypergrid, exact_posterior
    from assay.gflownets.data import wine_measurements
    from assay.gflownets.graphs import all_parents
    from assay.gflownets.rewards import bge_table
    from assay.gflownets.train import Config, Trainer

    trainer = Trainer(Hypergrid(2, 8), "tb", "mlp", Config(backward="learned"))
    one, eight = trainer.init(0), trainer.init_seeds(range(8))
    one, _ = trainer.run(one, 100)
    eight, _ = trainer.run_seeds(eight, 100)
    single, together = [], []
    for _ in range(3):
        start = time.perf_counter()
        one, _ = trainer.run(one, 200)
        single.append(time.perf_counter() - start)
        start = time.perf_counter()
        eight, _ = trainer.run_seeds(eight, 200)
        together.append(time.perf_counter() - start)
    X, _ = wine_measurements()
    table = bge_table(X[:100])
    all_parents.cache_clear()
    start = time.perf_counter()
    exact_posterior(table)
    posterior = time.perf_counter() - start
    return [
        verdict(
            "8 seeds in one program, times one seed",
            statistics.median(together) / statistics.median(single),
            8.0,
            least=False,
        ),
        verdict("exact posterior of 29,281 graphs, seconds", float(np.round(posterior, 3)), 2.0, least=False),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[16])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a block")
    parser.add_argument("--scenarios", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--no-extras", action="store_true")
    given = parser.parse_args()
    pinned(given.threads)
    warnings.simplefilter("ignore")
    if not peers():
        raise SystemExit("the rivals could not be installed; see benchmarks/peers/gflownets.txt")
    import torch

    torch.set_num_threads(given.threads)
    lines = []
    for batch in given.batch:
        against: dict[str, dict[str, float]] = {"gfnx": {}, "torchgfn": {}}
        for name in given.scenarios:
            found = race(name, batch, given.repeats, given.seconds)
            for rival, ratios in against.items():
                if rival in found:
                    ratios[name] = found[rival] / found["ours"]
        for rival, mean, least in (("gfnx", 1.5, 1.0), ("torchgfn", 5.0, 3.0)):
            ratios = against[rival]
            if ratios:
                lines += [
                    verdict(f"{name} against {rival}, batch {batch}", ratio, least) for name, ratio in ratios.items()
                ]
                lines.append(
                    verdict(f"geometric mean against {rival}, batch {batch}", geometric(list(ratios.values())), mean)
                )
    if not given.no_extras:
        lines += extras()
    print("\n".join(["", *lines]))


if __name__ == "__main__":
    main()
