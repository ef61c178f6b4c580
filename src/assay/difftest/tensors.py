"""Tensors that both sides make alike, and inputs that reach every part.

A random value is a pure function of (seed, name, global index), so that any rank can make its shard without making the
whole. The generator is Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from assay.difftest.errors import CoverageHole, DiffTestError
from assay.difftest.shards import Coords, ShardSpec

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(32)
_BLOCK = 1 << 16
_SHARES = {"weight": 1.0, "residual": 1 / 3, "head": 1 / 8}


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox-4x32-10.

    Parameters
    ----------
    counter : uint64 array of shape [n]
        The low 64 bits of the 128-bit counter; the high ones are zero.
    key : two ints below 2**32

    Returns
    -------
    uint64 array of shape [4, n], values below 2**32

    Examples
    --------
    The published answer for counter and key zero:

    >>> [hex(int(w)) for w in philox(np.zeros(1, np.uint64), (0, 0))[:, 0]]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    counter = counter.astype(np.uint64)
    x0, x1 = counter & _LOW, counter >> _HIGH
    x2, x3 = np.zeros_like(x0), np.zeros_like(x0)
    k0, k1 = key
    for _ in range(10):
        p0, p1 = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        x0, x1, x2, x3 = (
            (p1 >> _HIGH) ^ x1 ^ np.uint64(k0), p1 & _LOW, (p0 >> _HIGH) ^ x3 ^ np.uint64(k1), p0 & _LOW,
        )  # fmt: skip
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([x0, x1, x2, x3])


def _key(seed: int, name: str) -> tuple[int, int]:
    digest = hashlib.sha256(f"{seed}\0{name}".encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def random_values(name: str, index: np.ndarray, seed: int = 0, kind: str = "normal") -> np.ndarray:
    """Values at global flat indices.

    Parameters
    ----------
    name : str
    index : int array of shape [n]
        Global flat indices; -1 (padding) gives 0.
    seed : int
    kind : str
        ``normal`` (standard, by Box-Muller) or ``uniform`` (in [0, 1)).

    Returns
    -------
    float64 array of shape [n]

    Examples
    --------
    >>> mixed = random_values("w", np.array([3, 1, 0, 2]))
    >>> random_values("w", np.arange(4)).tolist() == mixed[[2, 1, 3, 0]].tolist()
    True
    >>> random_values("w", np.arange(2), kind="uniform").round(3).tolist()
    [0.678, 0.643]
    """
    if kind not in ("normal", "uniform"):
        raise DiffTestError(f"random values are normal or uniform, not {kind!r}")
    key = _key(seed, name)
    out = np.empty(len(index))
    for start in range(0, len(index), _BLOCK):
        at = index[start : start + _BLOCK]
        padded = at < 0
        at = np.where(padded, 0, at).astype(np.uint64)
        words = philox(at >> np.uint64(1), key)
        odd = (at & np.uint64(1)).astype(bool)
        a = np.where(odd, words[2], words[0]).astype(np.float64)
        b = np.where(odd, words[3], words[1]).astype(np.float64)
        if kind == "uniform":
            value = (a + b * 2.0**-32) * 2.0**-32
        else:
            value = np.sqrt(-2.0 * np.log((a + 1.0) * 2.0**-32)) * np.cos(b * (2.0 * math.pi * 2.0**-32))
        value[padded] = 0.0
        out[start : start + _BLOCK] = value
    return out


def generate(
    name: str,
    shape: Sequence[int],
    *,
    seed: int = 0,
    kind: str = "normal",
    spec: ShardSpec | str | None = None,
    coords: Coords | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> Tensor:
    """A rank's shard of a random tensor, the same values for every layout; the dtype is cast last.

    Parameters
    ----------
    name : str
        Canonical name of the tensor.
    shape : sequence of int
        The whole shape.
    seed : int
    kind : str
        ``normal``, ``uniform``, ``weight`` (normal over the root of the last dimension), ``residual`` (a third of that,
        for what adds to a residual stream), ``head`` (an eighth), ``embedding`` (0.5 z), ``norm`` (1 + 0.1 z:
        ones would hide a swapped scale) or ``bias`` (0.1 z: zeros would hide a missing one).
    spec, coords
        The shard; default: the whole tensor.

    Examples
    --------
    >>> whole = generate("layers.0.w", (4, 6))
    >>> part = generate("layers.0.w", (4, 6), spec="o i[tp]", coords={"tp": (1, 2)})
    >>> torch.equal(part, whole[:, 3:])
    True
    """
    spec = ShardSpec.parse(spec) if isinstance(spec, str) else spec or ShardSpec()
    index = spec.index(shape, coords or {})
    values = random_values(name, index.flat_indices(), seed, "uniform" if kind == "uniform" else "normal")
    if kind in _SHARES:
        values *= _SHARES[kind] / math.sqrt(shape[-1])
    elif kind == "embedding":
        values *= 0.5
    elif kind == "norm":
        values = 1.0 + 0.1 * values
    elif kind == "bias":
        values *= 0.1
    elif kind not in ("normal", "uniform"):
        raise DiffTestError(
            f"a tensor is normal, uniform, weight, residual, head, embedding, norm or bias, not {kind!r}"
        )
    return torch.from_numpy(values).reshape(index.local_shape).to(device=device, dtype=dtype)


def parameter_kind(name: str, ndim: int) -> str:
    """What a parameter's name says of it: ``norm``, ``bias``, ``embedding``, ``head``, ``residual`` or ``weight``."""
    if name.endswith("bias") or (ndim == 1 and "norm" not in name.lower()):
        return "bias"
    if ndim == 1:
        return "norm"
    if "embed" in name.lower():
        return "embedding"
    if re.search(r"head|output_layer", name):
        return "head"
    return "residual" if re.search(r"(proj|fc2|w2)(\.weight)?$", name) and "qkv" not in name else "weight"


def fill_parameters(model: nn.Module, *, seed: int = 0) -> nn.Module:
    """Give every parameter of an unsharded model values that are a function of its name.

    Examples
    --------
    >>> model = fill_parameters(nn.Linear(3, 2))
    >>> model.bias.tolist()[0] != 0
    True
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            kind = parameter_kind(name, parameter.ndim)
            parameter.copy_(
                generate(name, tuple(parameter.shape), seed=seed, kind=kind, dtype=parameter.dtype).to(parameter.device)
            )
    return model


def dropout_mask(
    name: str,
    shape: Sequence[int],
    p: float,
    *,
    seed: int = 0,
    spec: ShardSpec | str | None = None,
    coords: Coords | None = None,
    device: str | torch.device = "cpu",
) -> Bool[Tensor, ...]:
    """True where an element is kept. The mask belongs to the global element, so every layout drops the same ones.

    >>> whole = dropout_mask("drop", (2, 8), 0.5)
    >>> part = dropout_mask("drop", (2, 8), 0.5, spec="b s[cp:zigzag]", coords={"cp": (0, 2)})
    >>> torch.equal(part, whole[:, [0, 1, 6, 7]])
    True
    """
    uniform = generate(name, shape, seed=seed, kind="uniform", spec=spec, coords=coords, dtype=torch.float64)
    return (uniform >= p).to(device)


@dataclass(frozen=True)
class Batch:
    """Inputs of one step; ``m`` micro-batches of ``b`` sequences of ``s`` tokens.

    Attributes
    ----------
    tokens, labels : int64 [m, b, s]
    mask : bool [m, b, s]
        Tokens whose loss counts.
    document : int64 [m, b, s]
        Number of the document that a token is of; -1 is padding. Attention stays within a document.
    position : int64 [m, b, s]
        Position within the document.
    """

    tokens: Int[Tensor, "m b s"]
    labels: Int[Tensor, "m b s"]
    mask: Bool[Tensor, "m b s"]
    document: Int[Tensor, "m b s"]
    position: Int[Tensor, "m b s"]

    @property
    def count(self) -> int:
        """Tokens whose loss counts, in the whole step."""
        return int(self.mask.sum())


def boundary_ids(vocab: int, sizes: Sequence[int] = (1, 2, 4, 8)) -> list[int]:
    """Both ends of every vocabulary shard, cut evenly with a rounded-up length, for every number of ranks.

    >>> boundary_ids(10, (1, 2))
    [0, 4, 5, 9]
    """
    ids: set[int] = set()
    for size in sizes:
        each = -(-vocab // size)
        for rank in range(size):
            if rank * each < vocab:
                ids |= {rank * each, min((rank + 1) * each, vocab) - 1}
    return sorted(ids)


def coverage_batch(
    *,
    vocab: int,
    seq: int,
    batch: int,
    microbatches: int = 1,
    sizes: Sequence[int] = (1, 2, 4, 8),
    padding: int = 3,
    seed: int = 0,
    text: Int[np.ndarray, n] | None = None,
) -> Batch:
    """A batch that reaches what silent bugs hide behind.

    Token ids hold both ends of every vocabulary shard, in labels too; sequences have document breaks at odd places
    and padding at the end; the number of masked labels differs between sequences, micro-batches and halves of a
    sequence (equal counts hide wrong normalisation).

    Parameters
    ----------
    vocab, seq, batch, microbatches : int
    sizes : sequence of int
        Numbers of vocabulary shards to cover.
    padding : int
        Padding of the last sequence of each micro-batch; the true length is then no multiple of anything.
    seed : int
    text : int array, optional
        Token ids of a text to take the sequences from (at random places); default: random ids.

    Examples
    --------
    >>> batch = coverage_batch(vocab=64, seq=32, batch=2)
    >>> set(boundary_ids(64)) <= set(batch.tokens.flatten().tolist())
    True
    >>> batch.mask.sum(-1).flatten().tolist()
    [28, 15]
    """
    if padding >= seq // 2:
        raise DiffTestError(f"{padding} tokens of padding leave too little of a sequence of {seq}")
    shape = (microbatches, batch, seq)
    total = math.prod(shape)
    rng = np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), 0x7E57]))
    if text is None:
        tokens = rng.integers(0, vocab, total)
    else:
        starts = rng.integers(0, len(text) - seq, microbatches * batch)
        tokens = np.concatenate([text[s : s + seq] for s in starts])
    ends = np.array(boundary_ids(vocab, sizes))
    places = rng.permutation(total)[: min(len(ends), total)]
    tokens[places] = ends[: len(places)]
    tokens = tokens.reshape(shape)
    labels = np.roll(tokens, -1, axis=-1)
    order = rng.permutation(total)
    mask = np.ones(shape, bool)
    document = np.zeros(shape, np.int64)
    position = np.tile(np.arange(seq), (*shape[:2], 1))
    for m in range(microbatches):
        for b in range(batch):
            breaks = sorted({int(seq * 0.37) + b + m, int(seq * 0.72) - b} & set(range(2, seq - 2)))
            for at in breaks:
                document[m, b, at:] += 1
                position[m, b, at:] = np.arange(seq - at)
            share = 0.1 + 0.15 * ((3 * m + 2 * b) % 4)
            mask[m, b, : seq // 2] = rng.random(seq // 2) >= share * 1.5
            mask[m, b, seq // 2 :] = rng.random(seq - seq // 2) >= share
            if b == batch - 1 and padding:
                document[m, b, -padding:] = -1
                mask[m, b, -padding:] = False
    counting = order[mask.reshape(-1)[order]]  # the ends stand in labels that count
    labels.reshape(-1)[counting[: len(ends)]] = ends[: len(counting)]
    as_tensor = torch.from_numpy
    return Batch(as_tensor(tokens), as_tensor(labels), as_tensor(mask), as_tensor(document), as_tensor(position))


@dataclass(frozen=True)
class Coverage:
    """What the inputs of a run touched; a part that was not touched could not have failed."""

    touched: dict[str, str] = field(default_factory=dict)
    holes: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether nothing was left out."""
        return not self.holes

    def __str__(self) -> str:
        lines = [f"touched  {k}: {v}" for k, v in self.touched.items()]
        lines += [f"HOLE     {k}: {v}" for k, v in self.holes.items()]
        return "\n".join(lines)


def coverage(
    batch: Batch,
    *,
    vocab: int,
    tp: int = 1,
    cp: int = 1,
    dp: int = 1,
    experts: Int[Tensor, "tokens k"] | Mapping[str, Tensor] | None = None,
    n_experts: int = 0,
    strict: bool = False,
) -> Coverage:
    """Which shards, masks and experts the inputs touch in a layout.

    Parameters
    ----------
    batch : Batch
    vocab, tp, cp, dp : int
    experts : chosen experts, by layer or of one layer
    n_experts : int
    strict : bool
        Raise instead of listing holes.

    Raises
    ------
    CoverageHole

    Examples
    --------
    >>> batch = coverage_batch(vocab=64, seq=32, batch=2)
    >>> coverage(batch, vocab=64, tp=2).complete
    True
    >>> batch.tokens[batch.tokens == 32] = 0
    >>> print(coverage(batch, vocab=64, tp=2).holes["vocabulary ends, tokens"])
    ids 32 never occur
    """
    touched: dict[str, str] = {}
    holes: dict[str, str] = {}

    def note(key: str, good: bool, yes: str, no: str) -> None:
        (touched if good else holes)[key] = yes if good else no

    ends = boundary_ids(vocab, (tp,))
    for what, values in (("tokens", batch.tokens), ("labels", batch.labels[batch.mask])):
        absent = sorted(set(ends) - set(values.flatten().tolist()))
        ids = ", ".join(map(str, absent))
        note(f"vocabulary ends, {what}", not absent, f"all {len(ends)} ends of {tp} shards", f"ids {ids} never occur")
    breaks = int(((batch.document[..., 1:] != batch.document[..., :-1]) & (batch.document[..., 1:] >= 0)).sum())
    note("document breaks", breaks > 0, f"{breaks} breaks", "every sequence is one document")
    padded = int((batch.document < 0).sum())
    note("padding", padded > 0, f"{padded} tokens of padding", "no sequence is padded")
    masked = int((~batch.mask).sum())
    note("masked labels", masked > 0, f"{masked} labels do not count", "every label counts")
    m, b, s = batch.mask.shape
    counts = {"micro-batches": batch.mask.sum((1, 2))} if m > 1 else {}
    if dp > 1 and b % dp == 0:
        counts["data-parallel ranks"] = batch.mask.reshape(m, dp, b // dp, s).sum((0, 2, 3))
    if cp > 1 and s % (2 * cp) == 0:
        spec = ShardSpec.parse("m b s[cp:zigzag]")
        held = [spec.cut(batch.mask, {"cp": (r, cp)}).sum() for r in range(cp)]
        counts["context-parallel ranks"] = torch.stack(held)
    for what, values in counts.items():
        uneven = len(set(values.tolist())) > 1
        text = "/".join(map(str, values.tolist()))
        note(f"label counts over {what}", uneven, text, f"all equal ({text}): wrong normalisation would not show")
    if experts is not None:
        layers = experts if isinstance(experts, Mapping) else {"": experts}
        for layer, chosen in layers.items():
            load = torch.bincount(chosen.flatten().cpu()[chosen.flatten().cpu() >= 0], minlength=n_experts)
            where = f"experts {layer}".strip()
            busy = int((load > 0).sum())
            text = "/".join(map(str, load.tolist()))
            note(where, busy >= 2, f"{busy} of {n_experts} used, load {text}", f"only {busy} used, load {text}")
            note(f"{where}, an idle one", busy < n_experts, "there is one", "every expert has tokens")
            over = bool((load > 1.5 * load.float().mean()).any())
            note(f"{where}, an overloaded one", over, "there is one", "no expert has 1.5 times the mean load")
    found = Coverage(touched, holes)
    if strict and holes:
        raise CoverageHole("; ".join(f"{k}: {v}" for k, v in holes.items()))
    return found


def relative_error(reference: Float[Tensor, ...], candidate: Float[Tensor, ...]) -> float:
    """``||candidate - reference||_F / ||reference||_F`` in double precision.

    >>> relative_error(torch.ones(4), torch.full((4,), 1.5))
    0.5
    """
    reference, candidate = reference.double(), candidate.double()
    norm = float(torch.linalg.vector_norm(reference))
    gap = float(torch.linalg.vector_norm(candidate - reference))
    return gap / norm if norm else (0.0 if gap == 0.0 else math.inf)
