"""What the test bed trains, and how it is spread over ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from assay.difftest.errors import DiffTestError
from assay.difftest.tensors import Batch, coverage_batch
from assay.difftest.testbed.text import text_tokens

DTYPES = ("fp32", "bf16", "fp8")


@dataclass(frozen=True)
class Config:
    """A small GPT: rotary attention with grouped queries, SwiGLU or experts, layer norms, a tied or free head.

    Attributes
    ----------
    vocab, width, heads, kv_heads, layers, ffn, seq : int
    batch : int
        Sequences of a micro-batch, over all data-parallel ranks.
    microbatches : int
    experts, top_k : int
        0 experts: a dense model. The last expert is kept idle.
    tied : bool
        Head and embedding share their weight.
    smoothing : float
        Label smoothing, spread over all classes as torch does.
    dropout : float
    sinks : bool
        One attention-sink logit a head.
    dtype : str
        ``fp32``; ``bf16`` (weights and activations; gradients summed and optimizer states in FP32); ``fp8`` (as bf16,
        with E4M3 inputs and weights and E5M2 gradients of the linear layers, emulated).
    recompute : str
        ``none``, ``layer``, or ``chunk`` (two layers at a time).
    unused : bool
        A parameter that gets no gradient.
    text : bool
        Tokens of real text (the help texts of Python), with the ids that coverage needs put in; else random ones.
    """

    vocab: int = 512
    width: int = 128
    heads: int = 4
    kv_heads: int = 2
    layers: int = 4
    ffn: int = 256
    seq: int = 64
    batch: int = 4
    microbatches: int = 2
    experts: int = 0
    top_k: int = 2
    tied: bool = False
    smoothing: float = 0.0
    dropout: float = 0.0
    sinks: bool = False
    dtype: str = "fp32"
    aux: float = 0.01
    z: float = 0.001
    lr: float = 1e-3
    clip: float = 1.0
    unused: bool = False
    steps: int = 1
    text: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise DiffTestError(f"the test bed computes in {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.heads % self.kv_heads or self.width % self.heads:
            raise DiffTestError(f"{self.heads} heads do not fit {self.kv_heads} key-value heads or width {self.width}")

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.width // self.heads

    @property
    def torch_dtype(self) -> torch.dtype:
        """Storage type of weights and activations."""
        return torch.float32 if self.dtype == "fp32" else torch.bfloat16

    def data(self, step: int = 0) -> Batch:
        """The batch of a step."""
        return _batch(self.vocab, self.seq, self.batch, self.microbatches, self.seed * 1000 + step, self.text)

    def with_(self, **changes: Any) -> Config:
        """A copy with changes."""
        return replace(self, **changes)

    def facts(self) -> dict[str, Any]:
        """What a trace keeps of it."""
        return asdict(self)


@lru_cache(maxsize=8)
def _batch(vocab: int, seq: int, batch: int, microbatches: int, seed: int, text: bool) -> Batch:
    tokens = text_tokens(vocab) if text else None
    return coverage_batch(vocab=vocab, seq=seq, batch=batch, microbatches=microbatches, seed=seed, text=tokens)


@dataclass(frozen=True)
class Layout:
    """Sizes of the parallel axes and how the work is done on them.

    Attributes
    ----------
    tp, cp, dp, pp, vpp, ep : int
        Tensor, context, data, pipeline parallel sizes, virtual chunks a stage, experts' share of the data ranks.
    sp : bool
        Sequence parallelism in the tensor-parallel group.
    zero : bool
        Optimizer states and the reduced gradients in shards over data and context ranks (ZeRO-1).
    fsdp : bool
        FSDP2 of torch over the data ranks (alone).
    recompute : str
        ``none``, ``layer``, ``chunk``.
    schedule : str
        Pipeline order: ``1f1b`` (one chunk a stage) or ``gpipe``.
    cp_kind : str
        ``ring`` (keys and values travel) or ``gather`` (all keys and values are gathered).
    """

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    vpp: int = 1
    ep: int = 1
    sp: bool = False
    zero: bool = False
    fsdp: bool = False
    recompute: str = "none"
    schedule: str = "1f1b"
    cp_kind: str = "ring"

    def __post_init__(self) -> None:
        if self.dp % self.ep:
            raise DiffTestError(f"ep={self.ep} must divide dp={self.dp}")
        if self.fsdp and self.world != self.dp:
            raise DiffTestError("fsdp goes with dp alone")
        if self.recompute not in ("none", "layer", "chunk"):
            raise DiffTestError(f"recompute is none, layer or chunk, not {self.recompute!r}")

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp

    def coords(self, rank: int) -> dict[str, tuple[int, int]]:
        """Axis -> (position, size); tp runs fastest, then cp, dp, pp."""
        tp = rank % self.tp
        cp = rank // self.tp % self.cp
        dp = rank // (self.tp * self.cp) % self.dp
        pp = rank // (self.tp * self.cp * self.dp)
        return {
            "tp": (tp, self.tp), "cp": (cp, self.cp), "dp": (dp, self.dp), "pp": (pp, self.pp),
            "ep": (dp % self.ep, self.ep), "edp": (dp // self.ep, self.dp // self.ep),
        }  # fmt: skip

    def check(self, config: Config) -> None:
        """Raise where a configuration does not fit.

        Raises
        ------
        DiffTestError
        """
        problems = []
        if config.heads % self.tp or config.kv_heads % self.tp:
            problems.append(f"{config.heads} and {config.kv_heads} heads over tp={self.tp}")
        if config.seq % (2 * self.cp * (self.tp if self.sp else 1)):
            problems.append(f"sequence {config.seq} over cp={self.cp}, tp={self.tp}")
        if config.batch % self.dp:
            problems.append(f"batch {config.batch} over dp={self.dp}")
        if config.layers < self.pp * self.vpp:
            problems.append(f"{config.layers} layers over {self.pp * self.vpp} stages")
        if self.ep > 1 and (not config.experts or config.experts % self.ep):
            problems.append(f"{config.experts} experts over ep={self.ep}")
        if problems:
            raise DiffTestError("the layout does not fit the model: " + "; ".join(problems))

    def __str__(self) -> str:
        words = [
            f"{a}{n}"
            for a, n in (
                ("tp", self.tp),
                ("cp", self.cp),
                ("dp", self.dp),
                ("pp", self.pp),
                ("vpp", self.vpp),
                ("ep", self.ep),
            )
            if n > 1
        ]
        words += [w for w, on in (("sp", self.sp), ("zero", self.zero), ("fsdp", self.fsdp)) if on]
        words += [f"recompute-{self.recompute}"] if self.recompute != "none" else []
        words += ["gather"] if self.cp > 1 and self.cp_kind == "gather" else []
        return "-".join(words) or "single"
