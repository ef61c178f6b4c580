"""Compiled passes over a trained policy: sample with log probabilities, and weigh given objects."""

from __future__ import annotations

from typing import Any

import equinox as eqx
from jaxtyping import Array

from assay.gflownets.envs.base import Environment, State
from assay.gflownets.rollout import Needs, Trajectories, backward, evaluate, forward

BLOCK = 256


@eqx.filter_jit
def sample_block(
    env: Environment, net: Any, key: Array, temperature: float, condition: Any, kind: str
) -> tuple[Trajectories, Array, Array]:
    traj = forward(env, net, key, BLOCK, temperature=temperature, condition=condition)
    e = evaluate(env, net, traj, Needs(), kind)
    return traj, e.log_pf.sum(0), e.log_pb.sum(0)


@eqx.filter_jit
def weigh(
    env: Environment, net: Any, key: Array, states: State, log_r: Array, condition: Any, kind: str
) -> tuple[Array, Array]:
    traj = backward(env, net, key, states, log_r, kind=kind, condition=condition)
    e = evaluate(env, net, traj, Needs(), kind)
    return e.log_pf.sum(0) - e.log_pb.sum(0), traj.lengths
