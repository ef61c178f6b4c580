"""`GFlowNet`: train a sampler, sample from it, and know how good it is."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from assay.gflownets import buffers, checkpoint
from assay.gflownets.buffers import Replay
from assay.gflownets.envs.base import Environment, State
from assay.gflownets.errors import GFlowNetError, RewardShape
from assay.gflownets.exact import StateGraph
from assay.gflownets.inference import BLOCK, sample_block, weigh
from assay.gflownets.metrics import Bounds, log_z_bounds, total_variation
from assay.gflownets.objectives import Objective, make_objective
from assay.gflownets.results import Report, Samples
from assay.gflownets.train import Config, Log, Trainer, TrainState


class GFlowNet:
    """A sampler of objects with probability proportional to their reward.

    Parameters
    ----------
    env : Environment
    objective : str or Objective
        ``tb``, ``vargrad``, ``subtb``, ``db``, ``fm``, ``fldb``, ``flsubtb``, ``mdb``, ``soft_dqn``,
        ``munchausen_dqn``, ``rtb``.
    net : str or network
        ``mlp``, ``transformer``, ``causal``, ``pairs``, ``graph``, or a module with their methods.
    backward : {"uniform", "learned", "maxent", "tlm", "pessimistic"}
    explore : float or schedule
        Share of uniform actions.
    buffer : Replay or str, optional
    condition : Temperature or Preference, optional
        One policy for a family of rewards.
    prior : network, optional
        Prior policy of relative trajectory balance.
    seed : int
    net_options : dict, optional
        Sizes of the network, such as ``{"hidden": 256, "depth": 4}``.
    objective_options : dict, optional
        Such as ``{"lam": 0.9}``.
    **settings
        Further fields of `Config`: ``batch``, ``lr``, ``log_z_lr``, ``weight_decay``, ``clip``, ``temperature``,
        ``log_z``, ``target_tau``, ``target_every``, ``recent``, ``local_search``.

    Examples
    --------
    >>> from assay.gflownets import GFlowNet, Hypergrid
    >>> gfn = GFlowNet(Hypergrid(2, 4), "tb", net_options={"hidden": 32}, lr=3e-3, seed=0).fit(600)
    >>> abs(gfn.log_z - gfn.graph().log_z) < 0.1
    True
    """

    def __init__(
        self,
        env: Environment,
        objective: str | Objective = "tb",
        net: Any = "mlp",
        *,
        backward: str = "uniform",
        explore: Any = 0.0,
        buffer: Replay | str | None = None,
        condition: Any = None,
        prior: Any = None,
        seed: int = 0,
        net_options: dict[str, Any] | None = None,
        objective_options: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        unknown = set(settings) - {f.name for f in dataclasses.fields(Config)}
        if unknown:
            raise GFlowNetError(
                f"there is no setting {sorted(unknown)}; there is "
                f"{', '.join(f.name for f in dataclasses.fields(Config))}"
            )
        replay = Replay(buffer) if isinstance(buffer, str) else buffer
        self.config = Config(
            backward=backward,
            explore=explore,
            replay=replay,
            condition=condition,
            net=dict(net_options or {}),
            **settings,
        )
        self.objective = make_objective(objective, **(objective_options or {}))
        self.net, self.prior, self.seed = net, prior, seed
        self.trainer = Trainer(env, self.objective, net, self.config, prior)
        self.state: TrainState = self.trainer.init(seed)
        self.history: list[Log] = []
        self.seconds = 0.0
        self._clock = 0.0
        self._graph: StateGraph | None = None
        self._data: tuple[list[Any], list[float]] = ([], [])
        self._draws = 0

    @property
    def env(self) -> Environment:
        """The environment."""
        return self.trainer.env

    @property
    def steps(self) -> int:
        """Updates done."""
        return int(self.state.step)

    # -- training -----------------------------------------------------------------------------------------------------

    def fit(
        self,
        steps: int = 10_000,
        *,
        batch: int | None = None,
        data: tuple[Sequence[Any], Sequence[float]] | None = None,
        eval_every: int | None = None,
        callback: Callable[[GFlowNet, Log], Any] | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 1000,
    ) -> GFlowNet:
        """Train until ``steps`` updates are done.

        Parameters
        ----------
        steps : int
            Total, those done before included.
        batch : int, optional
            Another batch size from now on.
        data : (objects, log rewards), optional
            Train on these alone, along backward trajectories; rewards of the environment are not asked for. Ratios of
            probabilities among measured objects are then right; the others get what the network makes of them.
        eval_every, callback
            ``callback(self, log)`` after every ``eval_every`` updates; it may return True to stop.
        checkpoint : path, optional
            File to save into every ``checkpoint_every`` updates. If it is there already, training goes on from it,
            to the last bit.

        Raises
        ------
        DivergedLoss
            The last good state is kept.
        NonPositiveReward, RewardShape
            Of a reward function; the state before that step is kept.
        """
        if data is not None:
            self.tell(*data)
        if batch is not None and batch != self.config.batch:
            self._configure(batch=batch)
        if checkpoint is not None and Path(checkpoint).exists():
            self.load(checkpoint)
        every = min(
            x for x in (eval_every, checkpoint_every if checkpoint is not None else None, 2**31) if x is not None
        )
        saved = self.steps

        def each(state: TrainState, log: Log) -> Any:
            nonlocal saved
            self.state = state
            self.history.append(log)
            self.seconds += time.perf_counter() - self._clock
            done = (
                callback(self, log)
                if callback is not None and (eval_every is None or self.steps % eval_every == 0)
                else None
            )
            if checkpoint is not None and (self.steps - saved >= checkpoint_every or self.steps >= steps):
                self.save(checkpoint)
                saved = self.steps
            self._clock = time.perf_counter()
            return done

        self._clock = time.perf_counter()
        start = self.steps
        if steps > start:
            every = every - start % every if every < 2**31 and start % every else every
            kept = jax.tree.map(np.array, self.state)
            try:
                if every < steps - start or callback is not None or checkpoint is not None:
                    self.state, _ = self.trainer.run(
                        self.state, steps - start, each=each, every=min(every, steps - start)
                    )
                else:
                    self.state, log = self.trainer.run(self.state, steps - start)
                    self.history.append(log)
                    self.seconds += time.perf_counter() - self._clock
            except GFlowNetError as error:
                good = getattr(error, "state", None)
                self.state = good if good is not None else jax.tree.map(jnp.asarray, kept)
                raise
        return self

    def _configure(self, **changes: Any) -> None:
        self.config = dataclasses.replace(self.config, **changes)
        fresh = Trainer(self.env, self.objective, self.net, self.config, self.prior)
        buffer = self.state.buffer
        if changes.keys() & {"replay"}:
            size = 0 if self.config.condition is None else self.config.condition.size
            buffer = buffers.empty(self.env, self.config.replay, size) if self.config.replay is not None else None
        self.trainer, self.state = fresh, self.state._replace(buffer=buffer)

    def ask(self, n: int) -> list[Any]:
        """Distinct objects to measure next, none that was told before.

        They are drawn from the policy; while it gives too few new ones it is made warmer, up to a temperature of
        about 30. Fewer than ``n`` come back only if hardly anything new is left.
        """
        known = set(self._data[0])
        found: dict[Any, None] = {}
        for round_ in range(20):
            for item in self.sample(max(n, 64), temperature=1.2**round_).objects:
                if item not in known:
                    found.setdefault(item)
            if len(found) >= n:
                break
        return list(found)[:n]

    def tell(self, objects: Iterable[Any], log_r: Iterable[float]) -> GFlowNet:
        """Add measured objects; `fit` then trains on all measured ones alone.

        Raises
        ------
        RewardShape
            If there is not one finite log reward an object.
        """
        objects, values = list(objects), np.asarray(list(log_r), np.float64)
        if values.shape != (len(objects),) or not len(objects):
            raise RewardShape(f"{len(objects)} objects need {len(objects)} log rewards, not {values.shape}")
        if not np.isfinite(values).all():
            bad = int(np.argmin(np.isfinite(values)))
            raise RewardShape(f"the log reward of {objects[bad]!r} is {values[bad]}")
        if self.config.condition is not None:
            raise GFlowNetError("measured data and a condition cannot be combined: the rewards belong to one condition")
        self._data[0].extend(objects)
        self._data[1].extend(values.tolist())
        states = self.env.states_of(self._data[0])
        n = len(self._data[0])
        self._configure(replay=Replay("terminal", n), offline=True)
        buffer = self.state.buffer
        assert buffer is not None
        self.state = self.state._replace(
            buffer=buffer._replace(
                terminal=states,
                log_r=jnp.asarray(self._data[1], jnp.result_type(float)),
                size=jnp.int32(n),
                next=jnp.int32(0),
            )
        )
        return self

    # -- after training -----------------------------------------------------------------------------------------------

    @property
    def model(self) -> Any:
        """Network and log Z."""
        return self.trainer.model(self.state)

    def _condition(self, value: float | None, n: int) -> Array | None:
        rule = self.config.condition
        if rule is None:
            if value is not None:
                raise GFlowNetError("this policy was trained without a condition")
            return None
        if value is None:
            raise GFlowNetError("this policy is conditional: say condition=")
        return rule.encode(jnp.full(n, value, jnp.result_type(float)))

    def sample(
        self, n: int, *, condition: float | None = None, temperature: float = 1.0, seed: int | None = None
    ) -> Samples:
        """Draw objects, without exploration.

        Parameters
        ----------
        condition : float, optional
            Value of the condition, for a conditional policy.
        seed : int, optional
            Default: another stream at each call.
        """
        if n < 1:
            raise GFlowNetError(f"n must be at least 1, not {n}")
        self._draws += 1
        key = jax.random.key(self.seed if seed is None else seed)
        key = jax.random.fold_in(key, 7_000_003 + (self._draws if seed is None else 0))
        parts = []
        for i in range(-(-n // BLOCK)):
            code = self._condition(condition, BLOCK)
            traj, pf, pb = sample_block(
                self.env, self.model.net, jax.random.fold_in(key, i), temperature, code, self.trainer.kind
            )
            reward = getattr(self.env, "reward", None)
            if reward is not None and hasattr(reward, "raise_pending"):
                reward.raise_pending()
            parts.append(jax.tree.map(np.asarray, (traj.terminal, traj.log_r, pf, pb, traj.lengths)))
        states, log_r, pf, pb, lengths = jax.tree.map(lambda *x: np.concatenate(x)[:n], *parts)
        log_r, pf, pb = (x.astype(np.float64) for x in (log_r, pf, pb))
        if self.config.condition is not None:
            log_r = np.asarray(
                self.config.condition.reward(jnp.asarray(log_r), jnp.full(n, float(condition or 0.0))), np.float64
            )
        return Samples(self.env.objects(states), log_r, pf, pb, log_r + pb - pf, lengths, states)

    def sample_to(self, path: str | Path, n: int, *, condition: float | None = None) -> None:
        """Append samples to a file of JSON lines, block by block, so that nothing is lost if the process ends."""
        with Path(path).open("a", encoding="utf-8") as file:
            for start in range(0, n, 1024):
                found = self.sample(min(1024, n - start), condition=condition)
                for item, r, w in zip(found.objects, found.log_r.tolist(), found.log_w.tolist(), strict=True):
                    file.write(json.dumps({"object": item, "log_reward": r, "log_weight": w}) + "\n")
                file.flush()

    def log_prob(
        self, objects: Sequence[Any], n: int = 10, *, condition: float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """log p(x) of objects and its standard error, from ``n`` backward trajectories each.

        p(x) = E over P_B(tau | x) of P_F(tau) / P_B(tau | x).
        """
        if n < 1:
            raise GFlowNetError(f"n must be at least 1, not {n}")
        states = self.env.states_of(objects)
        count = len(objects)
        code = self._condition(condition, count)
        log_r = jnp.zeros(count)
        rounds = []
        for i in range(n):
            key = jax.random.fold_in(jax.random.key(self.seed), 9_000_011 + i)
            rounds.append(
                np.asarray(weigh(self.env, self.model.net, key, states, log_r, code, self.trainer.kind)[0], np.float64)
            )
        w = np.stack(rounds)
        top = w.max(0)
        scaled = np.exp(w - top)
        mean = scaled.mean(0)
        se = scaled.std(0, ddof=1) / np.sqrt(n) / mean if n > 1 else np.full(count, np.nan)
        return np.log(mean) + top, se

    def eubo(self, objects: Sequence[Any], log_r: Sequence[float], *, condition: float | None = None) -> np.ndarray:
        """Log weights of backward trajectories from samples of the target; their mean bounds log Z from above."""
        key = jax.random.fold_in(jax.random.key(self.seed), 9_500_003)
        states = self.env.states_of(objects)
        code = self._condition(condition, len(objects))
        values = np.asarray(log_r, np.float64)
        ratio = weigh(
            self.env, self.model.net, key, states, jnp.asarray(values, jnp.result_type(float)), code, self.trainer.kind
        )[0]
        return values - np.asarray(ratio, np.float64)

    def log_z_bounds(self, n: int = 2048, *, condition: float | None = None) -> Bounds:
        """Lower and upper bound on log Z and an estimate of the distance to the target, from ``n`` trajectories."""
        return log_z_bounds(self.sample(n, condition=condition).log_w)

    @property
    def log_z(self) -> float:
        """The model's own log Z (of a conditional one: see `log_z_at`)."""
        return self.log_z_at(None)

    def log_z_at(self, condition: float | None) -> float:
        """The model's own log Z at a condition."""
        model, where = self.model, self.objective.log_z
        code = self._condition(condition, 1) if self.config.condition is not None else None
        if where == "parameter":
            return float(np.asarray(model.log_z_of(code)).ravel()[0])
        if where == "batch":
            return self.log_z_bounds(1024, condition=condition).log_z.value
        source = jax.tree.map(lambda leaf: leaf[None], self.env.reset())
        h = model.net.embed(jax.vmap(self.env.obs)(source), code)
        if where == "flow":
            ahead = getattr(self.objective, "forward_looking", False)
            return float(model.net.flow(h)[0]) + (float(self.env.potential(self.env.reset())) if ahead else 0.0)
        mask = self.env.mask(self.env.reset())
        scale = 1 / (1 - getattr(self.objective, "alpha", 0.0))
        return scale * float(jax.nn.logsumexp(model.net.forward(h)[0], where=mask))

    def graph(self, limit: int = 2_000_000) -> StateGraph:
        """All states, enumerated once."""
        if self._graph is None:
            self._graph = StateGraph(self.env, limit)
        return self._graph

    def distribution(self, *, condition: float | None = None) -> Float[np.ndarray, " terminal"]:
        """Exact probability of every terminal state of `graph` under the policy."""
        graph = self.graph()
        code = self._condition(condition, 1)
        return np.exp(graph.log_terminal(graph.log_pf(self.model.net, code)))

    def total_variation(self, *, condition: float | None = None) -> float:
        """Exact distance of the policy's distribution to the target."""
        graph = self.graph()
        log_r = graph.log_r
        if condition is not None:
            log_r = np.asarray(
                self.config.condition.reward(jnp.asarray(log_r), jnp.full(len(log_r), condition)), np.float64
            )
        target = np.exp(log_r - log_r.max())
        return total_variation(self.distribution(condition=condition), target / target.sum()).value

    def report(self, n: int = 2048, limit: int = 100_000, *, condition: float | None = None) -> Report:
        """Bounds, rewards, and exact figures where the space has at most ``limit`` states."""
        found = self.sample(n, condition=condition)
        exact = distance = None
        if self._graph is not None and len(self._graph) <= limit:
            distance = self.total_variation(condition=condition)
            exact = self._graph.log_z if condition is None else None
        return Report(
            self.steps,
            self.seconds,
            self.log_z_at(condition),
            log_z_bounds(found.log_w),
            float(found.log_r.mean()),
            float(found.log_r.max()),
            distance,
            exact,
        )

    def recent(self) -> tuple[State, int]:
        """The last terminal states of training (``recent=`` of the settings), and how many there are."""
        if self.state.recent is None:
            raise GFlowNetError("no samples of training were kept; give recent=, such as recent=200_000")
        per = self.config.batch - self.trainer.replayed
        return self.state.recent, min(self.config.recent, self.steps * per * (2 if self.config.local_search else 1))

    # -- files --------------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """A hash of environment, objective, network and settings."""
        net = self.net if isinstance(self.net, str) else type(self.net).__qualname__
        parts = (
            checkpoint.described(self.env),
            self.trainer.env_arrays,
            repr(self.objective),
            net,
            repr(self.config),
            self.seed,
        )
        return checkpoint.digest(*parts)

    def save(self, path: str | Path) -> None:
        """Write the whole training state (parameters, optimiser, buffer, target network, position of the random
        numbers)."""
        log = {name: [float(x) for part in self.history for x in np.ravel(getattr(part, name))] for name in Log._fields}
        about = {
            "identity": self.identity,
            "title": f"{type(self.env).__name__}, {type(self.objective).__name__}, "
            f"{self.net if isinstance(self.net, str) else type(self.net).__name__}",
            "steps": self.steps,
            "seconds": self.seconds,
            "draws": self._draws,
            "log": log,
        }
        checkpoint.save(path, self.state, about)

    def load(self, path: str | Path) -> GFlowNet:
        """Go on from a saved state.

        Raises
        ------
        CheckpointMismatch
        """
        self.state, about = checkpoint.load(path, self.state, self.identity)
        self.seconds, self._draws = float(about["seconds"]), int(about["draws"])
        self.history = [Log(*(np.asarray(about["log"][name]) for name in Log._fields))]  # type: ignore[arg-type]
        return self

    @property
    def losses(self) -> Float[np.ndarray, " steps"]:
        """Loss of every update."""
        return np.concatenate([np.ravel(part.loss) for part in self.history]) if self.history else np.zeros(0)
