"""The standard normal distribution: its quantiles, and its moments when it is cut to an interval."""

from __future__ import annotations

import math

from assay.streams.jit import njit


@njit
def normal_quantile(p):
    """Inverse of the standard normal distribution function: a rough start, then Halley steps."""
    if p == 0.5:
        return 0.0
    tail = min(p, 1.0 - p)
    t = math.sqrt(-2.0 * math.log(tail))
    z = t - (2.30753 + 0.27061 * t) / (1.0 + t * (0.99229 + 0.04481 * t))  # Abramowitz and Stegun 26.2.22
    for _ in range(3):
        density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        newton = (0.5 * math.erfc(z / math.sqrt(2.0)) - tail) / density
        z += newton / (1.0 - 0.5 * z * newton)
    return z if p > 0.5 else -z


@njit
def cut_normal(mean, deviation, low, high):
    """Mean and variance of a normal distribution cut to an interval (ends may be infinite)."""
    a = (low - mean) / deviation
    b = (high - mean) / deviation
    if a > 0.0:
        mass = 0.5 * (math.erfc(a / math.sqrt(2.0)) - math.erfc(b / math.sqrt(2.0)))
    else:
        mass = 0.5 * (math.erfc(-b / math.sqrt(2.0)) - math.erfc(-a / math.sqrt(2.0)))
    if mass <= 1e-200:
        return min(max(mean, low), high), 0.0
    density_a = math.exp(-0.5 * a * a) / math.sqrt(2.0 * math.pi)
    density_b = math.exp(-0.5 * b * b) / math.sqrt(2.0 * math.pi)
    shift = (density_a - density_b) / mass
    spread = 1.0 - shift * shift
    if density_a > 0.0:
        spread += a * density_a / mass
    if density_b > 0.0:
        spread -= b * density_b / mass
    center = min(max(mean + deviation * shift, low), high)
    return center, deviation * deviation * min(max(spread, 0.0), 1.0)
