"""Errors of the field, by the names that its documentation uses."""

from __future__ import annotations


class GFlowNetError(ValueError):
    """Base of the errors that `assay.gflownets` raises on bad input."""


class NonPositiveReward(GFlowNetError):
    """A reward is zero, negative, infinite or NaN; the message names the object. ``floor=`` replaces small rewards."""


class RewardShape(GFlowNetError):
    """A reward function returned something else than one number an object."""


class DeadEnd(GFlowNetError):
    """A state that is not terminal has no legal action; the message holds state and trajectory."""


class MaskMismatch(GFlowNetError):
    """Forward and backward moves of an environment disagree; the message holds state, action and mask."""


class NotEnumerable(GFlowNetError):
    """A state space is too large to be enumerated, or is not finite."""

    def __init__(self, size: int | float, limit: int) -> None:
        self.size = size
        super().__init__(
            f"the state space has more than {limit:,} states (at least {size:,} were found); raise limit=, take "
            f"a smaller "
            "space, or use the sampled figures (log_z_bounds, elbo, correlation), which need no enumeration"
        )


class BadAlignment(GFlowNetError):
    """Sequences of an alignment differ in length or hold an unknown character; the message names record and column."""


class DuplicateTaxa(GFlowNetError):
    """Two records of an alignment have one name."""


class DivergedLoss(GFlowNetError):
    """The loss or a parameter is no longer finite; training stopped and the last good state was kept."""


class CheckpointMismatch(GFlowNetError):
    """A checkpoint belongs to another environment, objective, network or version."""
