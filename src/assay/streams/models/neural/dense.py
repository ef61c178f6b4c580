"""Dense layers of one row, forward and backward, as kernels over plain arrays.

Weights lie as ``[inputs, outputs]``. A unit that is 0 (dropped, or cut by the ReLU) takes no part in the next layer and
gets no gradient, so both passes skip it: a layer costs (active inputs) x outputs. The sums keep one fixed order, which
is what lets a resumed run repeat the scores bit for bit; a BLAS call would not promise it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from assay.streams.jit import njit

LOGITS, DOUBLE, SQUARED = 0, 1, 2
"""Losses of a head: cross entropy on logits, the same on softmax outputs (applied twice), half the squared error."""


def he_uniform(rng: np.random.Generator, fan_in: int, *shape: int) -> NDArray[np.float64]:
    """Uniform in +-sqrt(6 / fan_in), which keeps the scale through ReLU layers (He et al., ICCV 2015, equation 10)."""
    bound = math.sqrt(6.0 / fan_in)
    return rng.uniform(-bound, bound, shape)


@njit
def affine(x, weight, bias, out):
    """``out = bias + x weight``."""
    for i in range(len(out)):
        out[i] = bias[i]
    add_product(x, weight, out)


@njit
def add_product(x, weight, out):
    """``out += x weight``."""
    for j in range(len(x)):
        a = x[j]
        if a != 0.0:
            row = weight[j]
            for i in range(len(out)):
                out[i] += a * row[i]


@njit
def relu(x):
    """Cut negative entries to 0 in place."""
    for i in range(len(x)):
        x[i] = max(x[i], 0.0)


@njit
def dot(a, b):
    """Inner product with four running sums, so that it vectorises without leave to reorder."""
    s0 = s1 = s2 = s3 = 0.0
    whole = len(a) // 4 * 4
    for i in range(0, whole, 4):
        s0 += a[i] * b[i]
        s1 += a[i + 1] * b[i + 1]
        s2 += a[i + 2] * b[i + 2]
        s3 += a[i + 3] * b[i + 3]
    for i in range(whole, len(a)):
        s0 += a[i] * b[i]
    return (s0 + s1) + (s2 + s3)


@njit
def back(x, weight, dy, dx):
    """``dx += weight dy`` where the ReLU unit ``x`` is active, and ``dx = 0`` where it is not."""
    for j in range(len(x)):
        if x[j] != 0.0:
            dx[j] += dot(weight[j], dy)
        else:
            dx[j] = 0.0


@njit
def step(x, weight, dy, rate):
    """``weight -= rate x dy``, the gradient step of a layer."""
    for j in range(len(x)):
        if x[j] != 0.0:
            subtract(weight[j], rate * x[j], dy)


@njit
def subtract(out, rate, dy):
    """``out -= rate dy``."""
    for i in range(len(out)):
        out[i] -= rate * dy[i]


@njit
def square_norm(x, dy):
    """Squared norm of a layer's gradient, bias included: the gradient is the outer product of (x, 1) and dy."""
    return (1.0 + dot(x, x)) * dot(dy, dy)


@njit
def clipped(rate, norm2, clip):
    """The rate with which a gradient of this squared norm moves as if its norm were at most ``clip``."""
    return rate if norm2 <= clip * clip else rate * clip / math.sqrt(norm2)


@njit
def head_loss(logits, target, kind, gradient):
    """Loss of a head, and its gradient by the logits. ``target`` is a class code or a (standardised) value."""
    if kind == SQUARED:
        gradient[0] = logits[0] - target
        return 0.5 * gradient[0] * gradient[0]
    code = int(target)
    if kind == LOGITS:
        loss = softmax(logits, gradient) - logits[code]
        gradient[code] -= 1.0
        return loss
    outer = np.empty(len(logits))
    softmax(logits, gradient)
    loss = softmax(gradient, outer) - gradient[code]
    outer[code] -= 1.0
    mean = dot(gradient, outer)
    for i in range(len(logits)):
        gradient[i] *= outer[i] - mean
    return loss


@njit
def softmax(logits, out):
    """Softmax of the logits in ``out``; returns the log of the sum of their exponentials."""
    top = logits[0]
    for i in range(1, len(logits)):
        top = max(top, logits[i])
    total = 0.0
    for i in range(len(logits)):
        out[i] = math.exp(logits[i] - top)
        total += out[i]
    for i in range(len(logits)):
        out[i] /= total
    return top + math.log(total)


@njit
def scale_of(moments):
    """Mean and standard deviation behind ``[count, mean, sum of squared deviations]``; 1 while there is no spread."""
    if moments[0] < 2.0 or moments[2] <= 0.0:
        return moments[1], 1.0
    return moments[1], math.sqrt(moments[2] / (moments[0] - 1.0))


@njit
def observe(moments, y):
    """Count a target of a regression (Welford) and return it in units of the targets so far.

    A network learns at a fixed rate, so it must not meet targets in the user's units; classification leaves it out.
    """
    moments[0] += 1.0
    before = y - moments[1]
    moments[1] += before / moments[0]
    moments[2] += before * (y - moments[1])
    mean, deviation = scale_of(moments)
    return (y - mean) / deviation
