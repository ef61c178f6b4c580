"""The training loop: rollouts, loss and optimiser in one compiled function, a hundred updates a call."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from assay.gflownets import buffers
from assay.gflownets.buffers import Buffer, Replay
from assay.gflownets.envs.base import Environment, State
from assay.gflownets.errors import DivergedLoss, GFlowNetError
from assay.gflownets.nets import make_net
from assay.gflownets.nets.layers import Linear as Layer
from assay.gflownets.objectives import TB, Objective, make_objective
from assay.gflownets.rollout import (
    Evaluation,
    Trajectories,
    _select,
    back_and_forth,
    backward,
    evaluate,
    forward,
    masked_logsumexp,
    needs_terminal,
    rows_of,
)
from assay.gflownets.rows import Rows, row_sizes
from assay.gflownets.schedules import as_schedule

CHUNK = 100
BACKWARD = ("uniform", "learned", "maxent", "tlm", "pessimistic")


class Model(eqx.Module):
    """What is trained: the network, and log Z (with a head for it where there is a condition)."""

    net: Any
    log_z: Float[Array, ""]
    log_z_head: tuple[Layer, Layer] | None

    def log_z_of(self, condition: Array | None) -> Array:
        """log Z, one a condition."""
        if self.log_z_head is None or condition is None:
            return self.log_z
        first, second = self.log_z_head
        return self.log_z + second(jax.nn.relu(first(condition)))[..., 0]


class TrainState(NamedTuple):
    """Everything that training goes on from."""

    params: Any
    optimizer: Any
    target: Any
    buffer: Buffer | None
    recent: State | None
    step: Array
    key: Array


class Log(NamedTuple):
    """One row an update: loss, mean and largest log reward, mean reward, mean length."""

    loss: Array
    log_r: Array
    best: Array
    reward: Array
    length: Array


@dataclass(frozen=True)
class Config:
    """How a policy is trained.

    Parameters
    ----------
    batch : int
        Trajectories an update.
    lr, log_z_lr : float or schedule
    weight_decay : float
    clip : float, optional
        Largest norm of the gradient.
    explore : float or schedule
        Share of uniform actions, per step and trajectory.
    temperature : float
        Of the sampling policy.
    backward : {"uniform", "learned", "maxent", "tlm", "pessimistic"}
        ``tlm`` and ``pessimistic`` learn P_B by likelihood alone, from sampled and from replayed trajectories.
    log_z : float
        Initial value.
    target_tau, target_every : float, int
        Polyak step of the target network, and how often it is taken.
    recent : int
        Terminal states that are kept for empirical figures.
    offline : bool
        Train on the buffer alone (measured data), never on samples.
    local_search : int
        Steps back and forth from each sample; what is no worse is trained on too, along a fresh backward trajectory.
    """

    batch: int = 16
    lr: Any = 1e-3
    log_z_lr: Any = 0.1
    weight_decay: float = 0.0
    clip: float | None = None
    explore: Any = 0.0
    temperature: float = 1.0
    backward: str = "uniform"
    log_z: float = 0.0
    target_tau: float | None = None
    target_every: int | None = None
    recent: int = 0
    offline: bool = False
    local_search: int = 0
    replay: Replay | None = None
    condition: Any = None
    net: dict[str, Any] = field(default_factory=dict)


class Trainer:
    """Compiles and runs updates for one environment, objective and network.

    Parameters
    ----------
    env : Environment
    objective : str or Objective
    net : str or network
    config : Config

    Raises
    ------
    GFlowNetError
        If objective, network, environment and settings do not fit each other.
    """

    def __init__(
        self,
        env: Environment,
        objective: str | Objective = "tb",
        net: Any = "mlp",
        config: Config | None = None,
        prior: Any = None,
    ) -> None:
        self.config = config = config or Config()
        self.objective = make_objective(objective)
        self.env_arrays, self.env_static = eqx.partition(env, eqx.is_array)
        self.net, self.prior = net, prior
        if config.backward not in BACKWARD:
            raise GFlowNetError(f"there is no backward policy {config.backward!r}; there is {', '.join(BACKWARD)}")
        if config.batch < 1:
            raise GFlowNetError(f"batch must be at least 1, not {config.batch}")
        if self.objective.stop_only and env.stop_action is None:
            raise GFlowNetError(
                f"modified detailed balance needs an environment that may stop anywhere; {type(env).__name__} may not"
            )
        if config.backward == "pessimistic" and (config.replay is None or config.replay.kind == "terminal"):
            raise GFlowNetError(
                "the pessimistic backward policy learns from replayed trajectories: give a replay of another "
                "kind than 'terminal'"
            )
        if config.backward in ("tlm", "pessimistic"):
            if not isinstance(self.objective, TB):
                raise GFlowNetError(
                    f"backward={config.backward!r} goes with trajectory balance, not {type(self.objective).__name__}"
                )
            self.objective = TB(self.objective.regression, 1.0)
        self.kind = "learned" if config.backward in ("tlm", "pessimistic") else config.backward
        if self.kind == "maxent":
            env.log_paths(env.reset())
        if config.offline and config.replay is None:
            raise GFlowNetError("offline training needs a replay that holds the data")
        if config.replay is not None:
            buffers.check_replay(config.replay)
        if config.condition is not None:
            config.condition.check()
        if prior is not None:
            self.prior_arrays, self.prior_static = eqx.partition(prior, eqx.is_array)
        # Shapes are all that is needed here; a network of the user's own is taken as it is.
        make = eqx.filter_eval_shape if isinstance(net, str) else (lambda f, key: f(key))
        shapes, self.static = eqx.partition(make(self._model, jax.random.key(0)), _is_parameter)
        self.optimizer = self._optimizer(shapes)
        self._run = jax.jit(self._chunk, donate_argnums=0)
        self._run_seeds = jax.jit(jax.vmap(self._chunk, in_axes=(0, None, None)), donate_argnums=0)
        tau, every = {"MDB": (1.0, 1000), "FLDB": (0.005, 1), "SoftDQN": (0.25, 1)}.get(
            type(self.objective).__name__, (0.005, 1)
        )
        self.target_tau = tau if config.target_tau is None else config.target_tau
        self.target_every = every if config.target_every is None else config.target_every

    @property
    def env(self) -> Environment:
        """The environment."""
        found: Environment = eqx.combine(self.env_arrays, self.env_static)
        return found

    @property
    def replayed(self) -> int:
        """Trajectories of a batch that come from the buffer."""
        replay, B = self.config.replay, self.config.batch
        if replay is None:
            return 0
        return B if self.config.offline else max(1, min(B - 1, round(B * replay.share))) if B > 1 else 0

    def _model(self, key: Array) -> Model:
        a, b, c = jax.random.split(key, 3)
        size = 0 if self.config.condition is None else self.config.condition.size
        net = self.net
        if isinstance(net, str):
            options = dict(self.config.net)
            if net == "mlp":
                options = {"dueling": type(self.objective).__name__ == "SoftDQN", **options}
            net = make_net(net, self.env, a, condition=size, **options)
        head = (Layer(size, 64, b), Layer(64, 1, c)) if size else None
        return Model(net, jnp.asarray(self.config.log_z, jnp.result_type(float)), head)

    def _optimizer(self, params: Any) -> Any:
        config = self.config
        labels = jax.tree.map(lambda _: "net", params)
        labels = eqx.tree_at(lambda m: m.log_z, labels, "log_z")
        if params.log_z_head is not None:
            labels = eqx.tree_at(lambda m: m.log_z_head, labels, jax.tree.map(lambda _: "log_z", params.log_z_head))
        rate, z_rate = as_schedule(config.lr), as_schedule(config.log_z_lr)
        plain = optax.adamw(rate, weight_decay=config.weight_decay) if config.weight_decay else optax.adam(rate)
        chain = [] if config.clip is None else [optax.clip_by_global_norm(config.clip)]
        return optax.chain(*chain, optax.partition({"net": plain, "log_z": optax.adam(z_rate)}, labels))

    def init(self, seed: int | Array = 0) -> TrainState:
        """A fresh state."""
        key = jax.random.key(seed)
        params = eqx.filter(self._model(jax.random.fold_in(key, 1)), eqx.is_inexact_array)
        config, env = self.config, self.env
        size = 0 if config.condition is None else config.condition.size
        recent = None
        if config.recent:
            recent = jax.tree.map(
                lambda leaf: jnp.broadcast_to(leaf, (config.recent, *leaf.shape)) + jnp.zeros_like(leaf), env.reset()
            )
        return TrainState(
            params,
            self.optimizer.init(params),
            jax.tree.map(jnp.array, params) if self.objective.target else None,
            buffers.empty(env, config.replay, size) if config.replay is not None else None,
            recent,
            jnp.zeros((), jnp.int32),
            jax.random.key_data(jax.random.fold_in(key, 2)),
        )

    def model(self, state: TrainState) -> Model:
        """Network and log Z of a state."""
        found: Model = eqx.combine(state.params, self.static)
        return found

    # -- one update ---------------------------------------------------------------------------------------------------

    def sample(self, params: Any, env: Environment, key: Array, eps: Any, n: int) -> Trajectories:
        """Trajectories of the (exploring) policy, with a condition drawn for each where there is one."""
        model = eqx.combine(params, self.static)
        rule = self.config.condition
        code = value = None
        if rule is not None:
            value = rule.draw(jax.random.fold_in(key, 11), n)
            code = rule.encode(value)
        traj = forward(
            env, model.net, jax.random.fold_in(key, 0), n, eps=eps, temperature=self.config.temperature, condition=code
        )
        return traj if rule is None else traj._replace(log_r=rule.reward(traj.log_r, value))

    def loss(
        self,
        params: Any,
        target: Any,
        env: Environment,
        traj: Trajectories,
        rows: Rows | None = None,
        n: int | None = None,
    ) -> Float[Array, ""]:
        """The objective on trajectories (``rows`` and ``n`` as in `evaluate`)."""
        model = eqx.combine(params, self.static)
        needs = self.objective.needs
        e = evaluate(env, model.net, traj, needs, self.kind, rows, n)
        if self.objective.inflow:
            e = e._replace(log_flow=inflow(env, model.net, traj))
        if self.prior is not None:
            prior = eqx.combine(self.prior_arrays, self.prior_static)
            e = e._replace(
                log_prior=jax.lax.stop_gradient(evaluate(env, prior, traj, _PRIOR_NEEDS, "uniform", rows, n).log_pf)
            )
        frozen: Evaluation | None = None
        if target is not None:
            net = eqx.combine(target, self.static).net
            frozen = evaluate(env, net, traj, needs._replace(log_pb=False), self.kind, rows, n)
        return self.objective(e, model.log_z_of(traj.condition), frozen)

    def loss_and_gradient(self, params: Any, target: Any, env: Environment, traj: Trajectories) -> tuple[Array, Any]:
        """Loss and gradient, evaluated on the states that are needed, rounded up to one of a few sizes."""
        T, B = traj.actions.shape
        terminal = needs_terminal(env, self.kind)
        rows = rows_of(env, eqx.combine(params, self.static).net, traj, terminal)
        sizes = (None,) if rows is None else row_sizes(env, B, T, terminal)
        branches = [partial(_value_and_grad, self.loss, env, n) for n in sizes]
        if rows is None:
            found: tuple[Array, Any] = branches[0](params, target, traj, rows)
            return found
        which = jnp.searchsorted(jnp.asarray(sizes), rows.needed)
        found = jax.lax.switch(which, branches, params, target, traj, rows)
        return found

    def update(self, state: TrainState, env: Environment) -> tuple[TrainState, Log]:
        """One update."""
        config = self.config
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        eps = as_schedule(config.explore)(state.step)
        buffer, recent = state.buffer, state.recent
        fresh = config.batch - self.replayed
        traj = None
        if fresh:
            traj = self.sample(state.params, env, key, eps, fresh)
            if config.local_search:
                traj = self._searched(state.params, env, traj, jax.random.fold_in(key, 13))
            if recent is not None:
                kept = traj.log_r.shape[0]
                at = (state.step * kept + jnp.arange(kept)) % config.recent
                recent = jax.tree.map(lambda rows, new: rows.at[at].set(new), recent, traj.terminal)
        seen = traj
        if buffer is not None and config.replay is not None:
            if traj is not None:
                buffer = buffers.add(env, config.replay, buffer, traj)
            if self.replayed:
                old = self._replay(state.params, env, buffer, jax.random.fold_in(key, 12), self.replayed)
                traj = old if traj is None else buffers.join(traj, old)
                seen = old if seen is None else seen
        assert traj is not None and seen is not None
        loss, gradient = self.loss_and_gradient(state.params, state.target, env, traj)
        change, optimizer = self.optimizer.update(gradient, state.optimizer, state.params)
        params = optax.apply_updates(state.params, change)
        target = state.target
        if target is not None:
            tau = jnp.where((state.step + 1) % self.target_every == 0, self.target_tau, 0.0)
            target = jax.tree.map(lambda t, p: t + tau * (p - t), target, params)
        log = Log(loss, seen.log_r.mean(), seen.log_r.max(), jnp.exp(seen.log_r).mean(), seen.lengths.mean())
        return TrainState(params, optimizer, target, buffer, recent, state.step + 1, state.key), log

    def _searched(self, params: Any, env: Environment, traj: Trajectories, key: Array) -> Trajectories:
        net = eqx.combine(params, self.static).net
        more: dict[str, Any] = {"kind": self.kind, "condition": traj.condition}
        move = back_and_forth(
            env, net, jax.random.fold_in(key, 0), traj.terminal, traj.log_r, self.config.local_search, **more
        )
        log_r = move.trajectories.log_r
        if self.config.condition is not None:
            log_r = self.config.condition.reward(log_r, self.config.condition.decode(traj.condition))
        better = log_r >= traj.log_r
        terminal = _select(better, move.trajectories.terminal, traj.terminal)
        fresh = backward(env, net, jax.random.fold_in(key, 1), terminal, jnp.where(better, log_r, traj.log_r), **more)
        return buffers.join(traj, fresh)

    def _replay(self, params: Any, env: Environment, buffer: Buffer, key: Array, n: int) -> Trajectories:
        assert self.config.replay is not None
        rows = buffers.choose(self.config.replay, buffer, jax.random.fold_in(key, 0), n)
        terminal = jax.tree.map(lambda leaf: leaf[rows], buffer.terminal)
        condition = None if buffer.condition is None else buffer.condition[rows]
        if self.config.replay.kind == "terminal" or self.config.offline:
            net = eqx.combine(params, self.static).net
            return backward(
                env, net, jax.random.fold_in(key, 1), terminal, buffer.log_r[rows], kind=self.kind, condition=condition
            )
        return buffers.retrace(env, buffer.actions[rows].T, buffer.lengths[rows], buffer.log_r[rows], condition)

    def _chunk(self, state: TrainState, env_arrays: Any, n: Array) -> tuple[TrainState, Log]:
        env = eqx.combine(env_arrays, self.env_static)
        dtype = jnp.result_type(float)
        rows = Log(*(jnp.zeros(CHUNK, dtype) for _ in Log._fields))

        def one(i: Array, carry: tuple[TrainState, Log]) -> tuple[TrainState, Log]:
            state, rows = carry
            state, log = self.update(state, env)
            return state, jax.tree.map(lambda all_, new: all_.at[i].set(new.astype(dtype)), rows, log)

        return jax.lax.fori_loop(0, n, one, (state, rows))

    # -- many updates -------------------------------------------------------------------------------------------------

    def run(
        self,
        state: TrainState,
        steps: int,
        *,
        each: Callable[[TrainState, Log], Any] | None = None,
        every: int = CHUNK,
    ) -> tuple[TrainState, Log]:
        """Do ``steps`` updates; the given state is used up.

        Parameters
        ----------
        each : callable, optional
            ``(state, log rows of this call)`` after every ``every`` updates; it may return True to stop.

        Returns
        -------
        state : TrainState
        log : Log of float[steps]

        Raises
        ------
        DivergedLoss
            With the last good state in its attribute ``state``.
        """
        return self._drive(self._run, state, steps, each, every)

    def run_seeds(self, states: TrainState, steps: int, *, vectorised: bool | None = None) -> tuple[TrainState, Log]:
        """The same for states stacked over seeds (`init_seeds`), with one compilation.

        Parameters
        ----------
        vectorised : bool, optional
            One program over all seeds (``vmap``) or one seed after the other in the program of `run`. Default: the
            latter on a CPU, where the batched program costs about twice as much, the former elsewhere.

        Returns
        -------
        states : TrainState
            Stacked over seeds.
        log : Log of float[seeds, steps]
        """
        if vectorised is None:
            vectorised = jax.default_backend() != "cpu"
        return self._drive(self._run_seeds if vectorised else self._in_turn, states, steps, None, CHUNK)

    def _in_turn(self, states: TrainState, env_arrays: Any, n: Array) -> tuple[TrainState, Log]:
        together: tuple[TrainState, Log] = _stacked([self._run(one, env_arrays, n) for one in _unstacked(states)])
        return together

    def init_seeds(self, seeds: Sequence[int]) -> TrainState:
        """Fresh states, stacked over seeds."""
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(self.init(seed) for seed in seeds))

    def _drive(self, run: Any, state: TrainState, steps: int, each: Any, every: int) -> tuple[TrainState, Log]:
        rows: list[Log] = []
        done = since = told = 0
        reward = getattr(self.env, "reward", None)
        while done < steps:
            n = min(CHUNK, steps - done, every - since if each is not None else CHUNK)
            good = jax.tree.map(np.array, state)  # a copy: the call uses its argument up
            state, log = run(state, self.env_arrays, jnp.int32(n))
            part = Log(*(np.asarray(values)[..., :n] for values in log))  # type: ignore[arg-type]
            if reward is not None and hasattr(reward, "raise_pending"):
                reward.raise_pending()
            if not np.isfinite(part.loss).all():
                at = int(np.argwhere(~np.isfinite(part.loss))[0][-1])
                error = DivergedLoss(
                    f"the loss became {part.loss.reshape(-1, n)[:, at]} at update "
                    f"{int(np.ravel(good.step)[0]) + at}; the state before it was "
                    "kept. Lower the learning rates, clip the gradient (clip=1.0), or start log Z nearer its "
                    "value (log_z=)"
                )
                error.state = jax.tree.map(jnp.asarray, good)  # type: ignore[attr-defined]
                raise error
            rows.append(part)
            done, since = done + n, since + n
            if each is not None and (since >= every or done >= steps):
                new, told, since = rows[told:], len(rows), 0
                if each(state, _joined(new)):
                    break
        return state, _joined(rows)


@jax.jit
def _stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@jax.jit
def _unstacked(tree: Any) -> list[Any]:
    leaves, form = jax.tree.flatten(tree)
    return [jax.tree.unflatten(form, row) for row in zip(*leaves, strict=True)]


def _joined(parts: list[Log]) -> Log:
    return Log(*(np.concatenate(values, axis=-1) for values in zip(*parts, strict=True)))  # type: ignore[arg-type]


def _is_parameter(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)


_PRIOR_NEEDS = Objective.needs._replace(log_pb=False)


def _value_and_grad(
    loss: Any, env: Environment, n: int | None, params: Any, target: Any, traj: Trajectories, rows: Rows | None
) -> tuple[Array, Any]:
    return jax.value_and_grad(lambda p: loss(p, target, env, traj, rows, n))(params)


def inflow(env: Environment, net: Any, traj: Trajectories) -> Float[Array, "T1 B"]:
    """Log of the summed flow of all edges into each state (scores are log edge flows); 0 at the source."""
    T1, B = traj.actions.shape[0] + 1, traj.actions.shape[1]
    flat = jax.tree.map(lambda leaf: leaf.reshape(T1 * B, *leaf.shape[2:]), traj.states)
    ys = jnp.arange(env.n_bactions, dtype=jnp.int32)

    def parents(state: State) -> tuple[Array, Array]:
        def one(y: Array) -> tuple[Array, Array]:
            parent = env.undo(state, y)
            return env.obs(parent), env.faction(state, y, parent)

        return jax.vmap(one)(ys)

    obs, actions = jax.vmap(parents)(flat)
    mask = jax.vmap(env.bmask)(flat)
    condition = None if traj.condition is None else jnp.repeat(jnp.tile(traj.condition, (T1, 1)), len(ys), axis=0)
    scores = net.forward(net.embed(obs.reshape(-1, *obs.shape[2:]), condition))
    actions = jnp.where(mask, actions, 0).reshape(-1)
    taken = jnp.take_along_axis(scores, actions[:, None], -1)[:, 0].reshape(mask.shape)
    return masked_logsumexp(taken, mask).reshape(T1, B)


def compile_cache(folder: str | Path) -> None:
    """Keep compiled programs in a folder, so that the next process starts at once. Sets JAX options of the whole
    process."""
    os.makedirs(folder, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
