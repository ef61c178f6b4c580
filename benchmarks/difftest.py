"""The race against torch's DebugMode (hashes): what tracing costs, and how fast traces are compared.

    make bench FIELD=difftest

One GPT of 4 layers and width 256, batch 4 x 128, one thread; every mode runs in this process on the same steps, turn by
turn, medians. A traced step stands among four plain ones, twice: its cost is that of the ten and of ending the trace,
less eight plain ones, halved, so that the writer's work in the background counts; the CPU seconds of both threads stand
beside it. DebugMode hashes the output of every operation, as its user would have it
for a comparison. The comparison is timed on pairs of FP32 tensors (bytes of one side).
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROUNDS = 9
EVERY = 5
TRACED = 2


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.act, self.fc2 = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.proj(a)
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, vocab: int = 512, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def setting() -> tuple[Model, Callable[[], None]]:
    torch.manual_seed(0)
    model = Model()
    tokens = torch.randint(0, 512, (4, 128))

    def step() -> None:
        model.zero_grad()
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()

    return model, step


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def debug_mode(step: Callable[[], None]) -> float:
    from torch.utils._debug_mode import DebugMode

    def run() -> None:
        with DebugMode() as mode, mode.log_tensor_hashes(hash_inputs=False):
            step()

    return timed(run)


def overheads() -> tuple[float, dict[str, float], float]:
    """Seconds of a plain step, cost of a traced one by mode (in plain steps), seconds of writing the same bytes."""
    from assay.difftest import Trace, trace

    model, step = setting()
    for _ in range(2):
        step()
    debug_mode(step)
    plain: list[float] = []
    costs: dict[str, list[float]] = {k: [] for k in ("digest", "sample", "full", "every step full", "DebugMode")}
    cpu: dict[str, list[float]] = {k: [] for k in ("digest", "sample", "full")}
    raw: list[float] = []
    with tempfile.TemporaryDirectory() as folder:

        def steps(number: int, out: str, **options: Any) -> tuple[float, float]:
            """Wall and CPU seconds of so many steps inside a trace, and of its end."""
            began, used = time.perf_counter(), time.process_time()
            with trace(model, out, microbatches=1, **options) as tracer:
                for k in range(number):
                    if k:
                        tracer.next_step()
                    step()
            return time.perf_counter() - began, time.process_time() - used

        for number in range(ROUNDS):
            alone = statistics.median(timed(step) for _ in range(3))
            used = time.process_time()
            step()
            used = time.process_time() - used
            plain.append(alone)
            for mode in ("digest", "sample", "full"):
                wall, busy = steps(TRACED * EVERY, f"{folder}/{mode}{number}", level=mode, every=EVERY)
                costs[mode].append((wall - TRACED * (EVERY - 1) * alone) / TRACED)
                cpu[mode].append((busy - TRACED * (EVERY - 1) * used) / TRACED / used)
            costs["every step full"].append(steps(3, f"{folder}/each{number}")[0] / 3)
            size = Trace.open(f"{folder}/full{number}").nbytes() // TRACED
            payload = os.urandom(size)
            raw.append(timed(lambda payload=payload: Path(folder, "raw").write_bytes(payload)))
            costs["DebugMode"].append(debug_mode(step))
            for old in Path(folder).iterdir():
                shutil.rmtree(old) if old.is_dir() else old.unlink()
    base = statistics.median(plain)
    print(
        f"plain step {base * 1000:.0f} ms, {size / 1e6:.0f} MB traced a step, "
        f"raw write {statistics.median(raw) * 1000:.0f} ms"
    )
    ratios = {k: statistics.median(c / p for c, p in zip(v, plain)) for k, v in costs.items()}
    for mode, ratio in ratios.items():
        work = f"   of CPU, both threads: {statistics.median(cpu[mode]):.2f}x" if mode in cpu else ""
        print(f"{mode:18s}{ratio:6.2f}x{work}")
    return base, ratios, statistics.median(raw)


def comparison_rate() -> float:
    """Gigabytes a second, of one side."""
    from assay.difftest import distance

    pairs = [
        (torch.randn(4, 128, n), torch.randn(4, 128, n)) for n in (256, 512, 768, 1024, 1024, 2048) for _ in range(4)
    ]
    size = sum(a.numel() * 4 for a, _ in pairs)
    times = [timed(lambda: [distance(a, b) for a, b in pairs]) for _ in range(ROUNDS)]
    return size / statistics.median(times) / 1e9


def digest_sum_cost() -> float:
    """Milliseconds a tensor and rank to add digests at compare time."""
    from assay.difftest import digest

    one = digest(torch.randn(1000, 256))
    n = 256
    return timed(lambda: [one + one for _ in range(n)]) / n * 1000


def main() -> None:
    torch.set_num_threads(1)
    print(f"{os.cpu_count()} processors, one thread\n")
    base, ratios, raw = overheads()
    rate = comparison_rate()
    cost = digest_sum_cost()
    lines = [
        ("digest, against a plain step", ratios["digest"], 1.35, False),
        ("sample, against a plain step", ratios["sample"], 1.10, False),
        ("full, against a plain step", ratios["full"], 1.25, False),
        (
            "full every step, against the larger of step and raw write",
            ratios["every step full"] * base / max(base, raw),
            1.15,
            False,
        ),
        ("digest, against DebugMode", ratios["digest"] / ratios["DebugMode"], 1.0, False),
        ("sample, against DebugMode", ratios["sample"] / ratios["DebugMode"], 1.0, False),
        ("comparison in GB/s", rate, 2.0, True),
        ("digest sum in ms a tensor and rank", cost, 1.0, False),
    ]
    print()
    for what, ratio, target, more in lines:
        good = ratio >= target if more else ratio <= target
        print(f"difftest {what}: ratio {ratio:.2f} target {target:g} {'ok' if good else 'short'}")


if __name__ == "__main__":
    main()
