"""Beam search under the grammar: every finished sequence is a formula."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from assay.formulas.learned.features import Encoded
from assay.formulas.learned.model import PointerNet
from assay.formulas.learned.symbols import INDEX, MAX_SYMBOLS, Machine, to_formula


@dataclass(frozen=True)
class Decoded:
    """A formula and the probability that the model gives it."""

    formula: str
    probability: float
    symbols: tuple[int, ...]


@torch.inference_mode()
def beam(net: PointerNet, encoded: Encoded, k: int = 5, limit: int = MAX_SYMBOLS) -> list[Decoded]:
    """The ``k`` most probable formulas, the best first.

    Closing is forced so that no sequence is longer than ``limit`` symbols.
    """
    device = next(net.parameters()).device
    if not len(encoded.features):
        return []
    features = torch.as_tensor(encoded.features, device=device)[None]
    words = torch.as_tensor(encoded.words, device=device)[None]
    present = torch.ones(features.shape[:2], dtype=torch.bool, device=device)
    memory, there = net.encode(features, words, present)
    beams: list[tuple[float, Machine]] = [(0.0, Machine(encoded.choices, limit=limit))]
    done: list[tuple[float, Machine]] = []
    for _ in range(limit):
        given = torch.tensor([[INDEX["<start>"], *m.symbols] for _, m in beams], device=device)
        n = len(beams)
        logits = net.decode(memory.expand(n, -1, -1), there.expand(n, -1), given)[:, -1].float()
        masks = np.stack([m.allowed() for _, m in beams])
        masked = logits.masked_fill(~torch.as_tensor(masks, device=device), -math.inf)
        steps = torch.log_softmax(masked, -1).tolist()
        grown: list[tuple[float, int, int]] = []
        for i, row in enumerate(steps):
            for symbol in np.argsort(-np.asarray(row))[:k]:
                if row[int(symbol)] > -1e8:
                    grown.append((beams[i][0] + row[int(symbol)], i, int(symbol)))
        grown.sort(key=lambda g: -g[0])
        following: list[tuple[float, Machine]] = []
        for value, i, symbol in grown[: 2 * k]:
            machine = beams[i][1].copy()
            machine.push(symbol)
            (done if machine.done else following).append((value, machine))
            if len(following) == k:
                break
        beams = following
        done.sort(key=lambda d: -d[0])
        if not beams or (len(done) >= k and beams[0][0] < done[k - 1][0]):
            break
    found: dict[str, Decoded] = {}
    for value, machine in done:
        formula = to_formula(machine.symbols, encoded.choices)
        if formula not in found:
            found[formula] = Decoded(formula, math.exp(value), tuple(machine.symbols))
    return list(found.values())[:k]


@torch.inference_mode()
def samples(
    net: PointerNet, encoded: Encoded, count: int, generator: torch.Generator, limit: int = MAX_SYMBOLS
) -> list[Decoded]:
    """Formulas drawn symbol by symbol from the masked distribution, all in one batch (those still open are of one
    length, so nothing is padded)."""
    device = next(net.parameters()).device
    features = torch.as_tensor(encoded.features, device=device)[None]
    words = torch.as_tensor(encoded.words, device=device)[None]
    present = torch.ones(features.shape[:2], dtype=torch.bool, device=device)
    memory, there = net.encode(features, words, present)
    machines = [Machine(encoded.choices, limit=limit) for _ in range(count)]
    totals = [0.0] * count
    going = list(range(count))
    while going:
        given = torch.tensor([[INDEX["<start>"], *machines[i].symbols] for i in going], device=device)
        n = len(going)
        logits = net.decode(memory.expand(n, -1, -1), there.expand(n, -1), given)[:, -1].float()
        masks = torch.as_tensor(np.stack([machines[i].allowed() for i in going]), device=device)
        chances = torch.softmax(logits.masked_fill(~masks, -math.inf), -1).cpu()
        drawn = torch.multinomial(chances, 1, generator=generator)
        for i, symbol, chance in zip(going, drawn[:, 0].tolist(), chances.gather(1, drawn)[:, 0].tolist(), strict=True):
            totals[i] += math.log(chance)
            machines[i].push(symbol)
        going = [i for i in going if not machines[i].done]
    return [
        Decoded(to_formula(m.symbols, encoded.choices), math.exp(total), tuple(m.symbols))
        for m, total in zip(machines, totals, strict=True)
    ]
