"""Networks: observations of many states in, action scores out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from assay.gflownets.envs.base import Environment
from assay.gflownets.errors import GFlowNetError
from assay.gflownets.nets.graph import GraphNet
from assay.gflownets.nets.mlp import MLP
from assay.gflownets.nets.pairs import PairNet
from assay.gflownets.nets.transformer import Transformer

NETS = ("mlp", "transformer", "causal", "pairs", "graph")

__all__ = ["MLP", "NETS", "GraphNet", "PairNet", "Transformer", "make_net"]


def make_net(
    name: str, env: Environment, key: Array, *, condition: int = 0, dueling: bool = False, **options: Any
) -> Any:
    """A network for an environment by name.

    Parameters
    ----------
    name : {"mlp", "transformer", "causal", "pairs", "graph"}
        ``causal`` is a transformer with cached decoding, for sequences that are appended to.
    condition : int
        Numbers that describe a condition.
    dueling : bool
        Scores as value plus advantage (soft DQN).
    **options
        Sizes, such as ``hidden=`` and ``depth=``.

    Raises
    ------
    GFlowNetError
        If the network does not fit the environment's observations.
    """
    spec = env.obs_spec
    shape = {"n_actions": env.n_actions, "n_bactions": env.n_bactions, "condition": condition}
    if name == "mlp":
        return MLP(spec, key=key, dueling=dueling, **shape, **options)
    if name in ("transformer", "causal") and spec.kind == "codes":
        if name == "causal" and getattr(env, "mode", "") != "append":
            raise GFlowNetError("the causal transformer needs sequences that are appended to (mode='append')")
        return Transformer(spec, key=key, causal=name == "causal", **shape, **options)
    if name == "pairs" and spec.kind == "pairs":
        return PairNet(spec, key=key, **shape, **options)
    if name == "graph" and hasattr(env, "d"):
        return GraphNet(env.d, key=key, **shape, **options)
    if name not in NETS:
        raise GFlowNetError(f"there is no network {name!r}; there is {', '.join(NETS)}")
    raise GFlowNetError(f"the network {name!r} does not fit {type(env).__name__}, whose observations are {spec.kind}")


def parameter_count(net: Any) -> int:
    """Trainable numbers of a network."""
    return sum(
        leaf.size
        for leaf in jax.tree.leaves(net)
        if isinstance(leaf, jnp.ndarray) and jnp.issubdtype(leaf.dtype, jnp.floating)
    )
