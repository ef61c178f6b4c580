"""What an objective is, and the regression losses that all of them share."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from assay.gflownets.errors import GFlowNetError
from assay.gflownets.rollout import Evaluation, Needs

Regression = Callable[[Array], Array]

REGRESSIONS: dict[str, Regression] = {
    "squared": lambda x: x**2,
    "half_squared": lambda x: 0.5 * x**2,
    "huber": lambda x: jnp.where(jnp.abs(x) <= 1, 0.5 * x**2, jnp.abs(x) - 0.5),
    "shifted_cosh": lambda x: jnp.exp(jnp.clip(x, -30, 30)) + jnp.exp(-jnp.clip(x, -30, 30)) - 2,
    "linex": lambda x: jnp.exp(jnp.clip(x, -30, 30)) - x - 1,
}


class Objective(eqx.Module):
    """A loss on an `Evaluation`.

    Parameters
    ----------
    regression : str
        How a residual counts: ``squared``, ``half_squared``, ``huber`` (threshold 1), ``shifted_cosh`` (e^x + e^-x -
        2) or ``linex`` (e^x - x - 1). The last two are those of Hu et al. 2025.

    Attributes
    ----------
    needs : Needs
    log_z : {"parameter", "flow", "scores", "batch"}
        Where log Z is: a trained number; the flow head at the source; the logsumexp of the scores there; the batch
        mean.
    target : bool
        Whether it reads a target network.
    """

    regression: str = eqx.field(static=True, default="squared")

    needs = Needs()
    log_z = "parameter"
    target = False
    inflow = False
    forward_looking = False
    stop_only = False

    def __check_init__(self) -> None:
        if self.regression not in REGRESSIONS:
            raise GFlowNetError(f"there is no regression loss {self.regression!r}; there is {', '.join(REGRESSIONS)}")

    def distance(self, residual: Array) -> Array:
        """The regression loss of residuals."""
        return REGRESSIONS[self.regression](residual)

    def __call__(self, e: Evaluation, log_z: Float[Array, "*B"], target: Evaluation | None = None) -> Float[Array, ""]:
        raise GFlowNetError(
            f"{type(self).__name__} is no objective: it must say what its loss is"
        )  # overridden by each


def mean_over_steps(values: Float[Array, "T B"], step: Array) -> Float[Array, ""]:
    """Mean over the steps that exist."""
    return jnp.where(step, values, 0.0).sum() / jnp.maximum(step.sum(), 1)
