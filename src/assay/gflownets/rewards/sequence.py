"""Rewards of sequences: modes in Hamming distance, and tables over all sequences."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from assay.gflownets.errors import GFlowNetError, NonPositiveReward

# The five building blocks of the published task (Malkin et al. 2022, appendix C.2), eight bits each.
_BLOCKS = np.array([[int(c) for c in b] for b in ("00000000", "11111111", "11110000", "00001111", "00111100")])


class BitModes(eqx.Module):
    """log R = -beta * (least Hamming distance to a mode) / n, over words of k bits.

    Attributes
    ----------
    modes : int32[modes, n]
    """

    modes: Int[Array, "modes bits"]
    word: int = eqx.field(static=True)
    beta: float = eqx.field(static=True)

    def __call__(self, tokens: Int[Array, " words"]) -> Float[Array, ""]:
        shifts = jnp.arange(self.word - 1, -1, -1)
        bits = ((tokens[:, None] >> shifts) & 1).reshape(-1)
        distance = (bits != self.modes).sum(-1).min()
        return -self.beta * distance / self.modes.shape[1]


def bit_modes(n: int, count: int = 60, seed: int = 0, block: int = 8) -> Int[np.ndarray, "modes bits"]:
    """Distinct modes: random concatenations of five blocks; a last block that does not fit is cut.

    The published task has blocks of eight bits whatever the word size; so short n need no special care here.
    """
    rng = np.random.default_rng(seed)
    blocks = _BLOCKS if block == 8 else _BLOCKS[:, np.linspace(0, 7, block).round().astype(int)]
    per = -(-n // block)
    possible = 5**per if per < 12 else np.inf
    found: dict[bytes, np.ndarray] = {}
    while len(found) < min(count, possible):
        mode = blocks[rng.integers(0, 5, per)].reshape(-1)[:n].astype(np.int32)
        size = len(found)
        found.setdefault(mode.tobytes(), mode)
        if len(found) == size and len(found) >= _distinct(blocks, n, per):
            break
    return np.array(list(found.values()))


def _distinct(blocks: np.ndarray, n: int, per: int) -> int:
    last = n - (per - 1) * blocks.shape[1]
    return 5 ** (per - 1) * len(np.unique(blocks[:, :last], axis=0))


class TokenTable(eqx.Module):
    """log R looked up by the base-K number of a sequence of fixed length, first token most significant."""

    log_r: Float[Array, " sequences"]
    size: int = eqx.field(static=True)

    def __init__(self, log_r: np.ndarray, size: int) -> None:
        values = np.asarray(log_r, np.float64)
        if values.ndim != 1 or not np.isfinite(values).all():
            bad = int(np.argmax(~np.isfinite(values.ravel())))
            raise NonPositiveReward(f"the log reward of entry {bad} is {values.ravel()[bad]}; all must be finite")
        length = round(np.log(len(values)) / np.log(size))
        if size**length != len(values):
            raise GFlowNetError(f"{len(values)} log rewards are not all sequences over {size} letters of one length")
        self.log_r = jnp.asarray(values, jnp.result_type(float))
        self.size = size

    def __call__(self, tokens: Int[Array, " length"]) -> Float[Array, ""]:
        power = self.size ** np.arange(tokens.shape[-1] - 1, -1, -1)
        return self.log_r[(tokens * jnp.asarray(power)).sum(-1)]
