"""Arrays of probabilities: checks, random numbers that belong to a row, entropies of single distributions."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from assay.uncertainty.errors import NotADistribution, UncertaintyError

Probabilities = Float[np.ndarray, "*batch classes"]
Values = Float[np.ndarray, "*batch"]

BLOCK = 1 << 17
_TINY = 1e-300


def as_probabilities(
    p: ArrayLike, *, renormalize: bool = False, what: str = "probabilities", chunk: int | None = None
) -> NDArray[np.float64]:
    """Probabilities as ``float64[..., K]``, every row checked and brought to a sum of exactly one.

    Parameters
    ----------
    p : array_like, (..., K)
        float32 and float64 keep within 1e-4 and 1e-6 of a sum of one.
    renormalize : bool
        Accept any non-negative row with a positive sum (counts, rounded files).
    what : str
        Name in the messages.
    chunk : int, optional
        Rows checked at a time.

    Returns
    -------
    float64[..., K]
        The array itself where nothing had to change. A memory map stays one; where its rows had to change (float32 is
        enough), it is a mapped temporary file.

    Raises
    ------
    NotADistribution
        With the index of the first bad row and its sum.

    Examples
    --------
    >>> as_probabilities([[3, 1]], renormalize=True)
    array([[0.75, 0.25]])
    >>> as_probabilities([[0.5, 0.4]])
    Traceback (most recent call last):
    assay.uncertainty.errors.NotADistribution: probabilities: row 0 sums to 0.9, not 1 (renormalize=True lifts this)
    """
    raw = p if isinstance(p, np.ndarray) else np.asarray(p)
    if raw.ndim == 0 or raw.shape[-1] == 0:
        raise NotADistribution(f"{what}: an array (..., classes) is needed, not shape {raw.shape}")
    if raw.dtype.kind not in "fiub":
        raise NotADistribution(f"{what}: numbers are needed, not {raw.dtype}")
    limit = 1e-4 if raw.dtype.itemsize < 8 and raw.dtype.kind == "f" else 1e-6
    flat = raw.reshape(-1, raw.shape[-1])
    ones = np.ones(raw.shape[-1])
    step = chunk or max(1, BLOCK // raw.shape[-1])
    exact = raw.dtype == np.float64
    for low in range(0, len(flat), step):
        block = np.asarray(flat[low : low + step])
        sums = block @ ones
        off = np.abs(sums - 1)
        worst = off.max(initial=0.0)  # NaN where a row is not finite
        fine = sums.min(initial=np.inf) > 0 and np.isfinite(worst) if renormalize else worst <= limit
        if not fine or block.min() < 0:
            bad = ~np.isfinite(sums) | (block < 0).any(axis=1) | ((sums <= 0) if renormalize else (off > limit))
            at = int(np.flatnonzero(bad)[0])
            where = np.unravel_index(low + at, raw.shape[:-1]) if raw.ndim > 1 else (0,)
            row = int(where[0]) if len(where) == 1 else tuple(int(i) for i in where)
            _refuse(block[at], float(sums[at]), row, what)
        exact = exact and not worst > 1e-12
    if exact:
        return raw
    if isinstance(raw, np.memmap):  # the normalised copy is a mapped file too, gone with the last array that uses it
        with tempfile.TemporaryFile() as file:
            mapped = np.memmap(file, dtype=np.float64, mode="w+", shape=raw.shape)
        target = mapped.reshape(-1, raw.shape[-1])
        for low in range(0, len(flat), step):
            block = np.array(flat[low : low + step], dtype=np.float64)
            target[low : low + step] = block / block.sum(axis=-1, keepdims=True)
        return mapped
    wide = np.array(raw, dtype=np.float64)
    wide /= wide.sum(axis=-1, keepdims=True)
    return wide


def _refuse(row: NDArray[Any], total: float, index: Any, what: str) -> None:
    if not np.isfinite(row).all():
        raise NotADistribution(f"{what}: row {index} holds NaN or infinity (sum {total:.6g})")
    if (row < 0).any():
        raise NotADistribution(f"{what}: row {index} holds the negative value {row.min():.6g} (sum {total:.6g})")
    raise NotADistribution(f"{what}: row {index} sums to {total:.6g}, not 1 (renormalize=True lifts this)")


def entropy(p: Probabilities, base: int | float | str | None = None) -> Values:
    """Shannon entropy of each row, in nats unless ``base`` is given.

    Parameters
    ----------
    p : float64[..., K]
    base : float or "normalize", optional
        ``"normalize"`` divides by log K.

    Returns
    -------
    float64[...]

    Examples
    --------
    >>> float(entropy(np.array([0.5, 0.5])).round(6)), float(entropy(np.array([0.5, 0.5]), base=2))
    (0.693147, 1.0)
    """
    logs = np.log(np.maximum(p, _TINY))
    value = -np.einsum("...k,...k->...", p, logs)
    return np.asarray(np.maximum(value, 0.0) / log_base(base, p.shape[-1]))


def log_base(base: int | float | str | None, classes: int) -> float:
    """The number by which an entropy in nats is divided.

    Raises
    ------
    UncertaintyError
        If the base is neither a number above 1, ``"normalize"`` nor None.
    """
    if base is None:
        return 1.0
    if base == "normalize":
        return float(np.log(classes)) if classes > 1 else 1.0
    if isinstance(base, str) or not base > 1:
        raise UncertaintyError(f"base is a number above 1, 'normalize' or None, not {base!r}")
    return float(np.log(base))


def blocks(rows: int, floats_a_row: int, chunk: int | None = None) -> Iterator[slice]:
    """Slices of rows that fit a cache (or hold ``chunk`` rows)."""
    if chunk is not None and chunk < 1:
        raise UncertaintyError(f"chunk is the number of rows at a time, at least 1, not {chunk}")
    step = chunk or max(1, BLOCK // max(1, floats_a_row))
    for low in range(0, rows, step):
        yield slice(low, min(low + step, rows))


def row_uniform(seed: int, first: int, n: int, stream: int = 0) -> Float[np.ndarray, " rows"]:
    """Uniform numbers in (0, 1) of rows ``first ... first + n - 1``; the one of a row depends on ``(seed, stream,
    row)`` alone.

    Counter-based (the finaliser of SplitMix64, Steele, Lea and Flood, OOPSLA 2014), so it is the same for any size of
    batch.

    Examples
    --------
    >>> whole, parts = row_uniform(7, 0, 10), np.concatenate([row_uniform(7, 0, 4), row_uniform(7, 4, 6)])
    >>> bool((whole == parts).all())
    True
    """
    key = np.random.SeedSequence([seed & 0xFFFFFFFFFFFFFFFF, stream]).generate_state(2, np.uint64)
    with np.errstate(over="ignore"):
        z = (np.arange(first, first + n, dtype=np.uint64) + key[0]) * np.uint64(0x9E3779B97F4A7C15) + key[1]
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return np.asarray(((z >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
