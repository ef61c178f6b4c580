"""AdamW over stacked parameters, where every row of the stack has its own step count: as a kernel and on tensors.

Loshchilov and Hutter, ICLR 2019, algorithm 2, with the constants that torch takes by default.
"""

from __future__ import annotations

import math

import torch

from assay.streams.jit import njit

FIRST, SECOND, EPSILON = 0.9, 0.999, 1e-8
# Added to the moments at each step. A unit that gets no gradient any more would else see its moments shrink into the
# subnormal numbers and stay there, where arithmetic is many times slower. Far below EPSILON it changes no result.
TINY, TINY_SINGLE = 1e-200, 1e-30


@njit
def sized(step, rate):
    """Step size, and the factor of the root of the second moment, both corrected for moments that start at 0."""
    return rate / (1.0 - FIRST**step), 1.0 / math.sqrt(1.0 - SECOND**step)


@njit
def adamw(value, factor, gradient, first, second, size, root, shrink):
    """One step, in place, of a vector whose gradient is ``factor gradient``; ``shrink`` is 1 - rate x decay."""
    for i in range(len(value)):
        g = factor * gradient[i]
        first[i] = FIRST * first[i] + (1.0 - FIRST) * g + TINY
        second[i] = SECOND * second[i] + (1.0 - SECOND) * g * g + TINY
        value[i] = shrink * value[i] - size * first[i] / (math.sqrt(second[i]) * root + EPSILON)


def adamw_tensor(
    value: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    step: torch.Tensor | float,
    rate: float,
    decay: float,
) -> None:
    """`adamw` on tensors of any shape, in place.

    Parameters
    ----------
    value, gradient, first, second : tensors of one shape
        Parameter, its gradient and the running moments.
    step : number, or tensor that broadcasts against them
        Steps including this one: of the whole, or of each row of a stack.
    rate, decay : float
        Step size, and weight decay (decoupled from the gradient).
    """
    tiny = TINY if value.dtype == torch.float64 else TINY_SINGLE
    first.lerp_(gradient, 1.0 - FIRST).add_(tiny)
    second.mul_(SECOND).addcmul_(gradient, gradient, value=1.0 - SECOND).add_(tiny)
    spread = second.sqrt().div_((1.0 - SECOND**step) ** 0.5).add_(EPSILON)
    value.mul_(1.0 - rate * decay).sub_(rate / (1.0 - FIRST**step) * first / spread)
