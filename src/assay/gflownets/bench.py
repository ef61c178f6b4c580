"""Milliseconds an update: our side of the race, for any machine.

The policy is held still (its last layer is zero but for the preference for stopping, learning rates are 0, Adam runs
all the same), so that a block of updates is the same work whenever it is timed, and the same for a rival whose last
layer is set in the same way. The preference for stopping makes trajectories about as long as those of the target.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp

from assay.gflownets.envs import Environment
from assay.gflownets.errors import GFlowNetError
from assay.gflownets.train import Config, Trainer, TrainState

# Score of the stop action, where there is one; all other actions have 0.
STOP = {"grid2": -1.75, "grid4": -2.5, "dag": 0.4}


def _wine() -> Environment:
    from assay.gflownets.data import wine_measurements
    from assay.gflownets.problems import DAGProblem

    X, names = wine_measurements()
    return DAGProblem(X[:100], names=names).env


def _environments() -> dict[str, Callable[[], Environment]]:
    from assay.gflownets import envs, problems

    return {
        "grid2": lambda: envs.Hypergrid(2, 8),
        "grid4": lambda: envs.Hypergrid(4, 16),
        "bits": lambda: problems.bit_sequences(8, 2, modes=4).env,
        "tfbind8": lambda: problems.tfbind8().env,
        "qm9": lambda: problems.qm9_small().env,
        "ising": lambda: envs.Ising(6, 0.1),
        "dag": _wine,
    }


SCENARIOS = ("grid2", "grid4", "bits", "tfbind8", "qm9", "ising", "dag")


class Timing(NamedTuple):
    """Of one scenario.

    Attributes
    ----------
    ms : float
        An update, median of blocks.
    length : float
        Mean length of the trajectories, in actions.
    first : float
        Seconds until the first update was done: tracing and compilation, or reading the compilation cache.
    """

    ms: float
    length: float
    first: float


def environment(scenario: str) -> Environment:
    """The environment of a scenario.

    Raises
    ------
    GFlowNetError
        If there is no scenario of that name.
    """
    makers = _environments()
    if scenario not in makers:
        raise GFlowNetError(f"there is no scenario {scenario!r}; there is {', '.join(makers)}")
    return makers[scenario]()


class Updates:
    """Updates of trajectory balance with a learned backward policy and an MLP of two hidden layers of 256.

    Parameters
    ----------
    scenario : str
        One of `SCENARIOS`.
    batch : int

    Examples
    --------
    >>> updates = Updates("grid2", 16)
    >>> 1 < updates(100) < 15               # mean trajectory length
    True
    """

    def __init__(self, scenario: str, batch: int) -> None:
        config = Config(batch=batch, lr=0.0, log_z_lr=0.0, backward="learned", net={"hidden": 256, "depth": 2})
        self.trainer = Trainer(environment(scenario), "tb", "mlp", config)
        self.state = held_still(self.trainer.init(0), STOP.get(scenario))

    def __call__(self, n: int) -> float:
        """Do ``n`` updates; gives the mean trajectory length."""
        self.state, log = self.trainer.run(self.state, n)
        return float(log.length.mean())


def held_still(state: TrainState, stop: float | None) -> TrainState:
    """A state whose scores are all 0, but ``stop`` for the last action."""

    def heads(model: Any) -> list[Any]:
        net = model.net
        return [net.forward_head.weight, net.forward_head.bias, net.backward_head.weight, net.backward_head.bias]

    zeros = [jnp.zeros_like(leaf) for leaf in heads(state.params)]
    if stop is not None:
        zeros[1] = zeros[1].at[-1].set(stop)
    return state._replace(params=eqx.tree_at(heads, state.params, zeros))


def measure(scenario: str, batch: int = 16, *, repeats: int = 5, seconds: float = 0.5) -> Timing:
    """Time one scenario in this process, with the threads that it has.

    Raises
    ------
    GFlowNetError
        If there is no scenario of that name.
    """
    start = time.perf_counter()
    updates = Updates(scenario, batch)
    updates(1)
    first = time.perf_counter() - start
    start = time.perf_counter()
    updates(20)
    block = max(20, int(20 * seconds / (time.perf_counter() - start)))
    times, lengths = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        lengths.append(updates(block))
        times.append((time.perf_counter() - start) / block * 1e3)
    return Timing(statistics.median(times), statistics.fmean(lengths), first)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line a scenario and batch size."""
    import argparse

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--scenarios", nargs="+", default=list(SCENARIOS), choices=SCENARIOS)
    parser.add_argument("--batch", type=int, nargs="+", default=[16])
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args(arguments)
    from assay.gflownets.data import DataError

    for batch in given.batch:
        for name in given.scenarios:
            try:
                found = measure(name, batch, repeats=given.repeats)
            except DataError as error:
                print(f"{name}: left out, {error}")
                continue
            print(
                f"{name}, batch {batch}: {found.ms:.3f} ms an update, mean length {found.length:.1f}, "
                f"first update after {found.first:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
