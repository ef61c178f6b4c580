"""Cutting and merging: every specification comes back bit for bit, and a lost rank is named with its range."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.difftest.errors import ShardSpecError
from assay.difftest.shards import Piece, ShardSpec, merge


@st.composite
def layouts(draw):
    """A specification, a shape that it fits, and the axes."""
    axes = draw(st.permutations(["dp", "tp", "cp", "ep", "fsdp"]))
    sizes: dict[str, int] = {}
    words, shape = [], []
    free = iter(axes)
    flat = draw(st.integers(0, 9)) == 0
    ndim = draw(st.integers(1, 3))
    if flat:
        sizes["dp"] = draw(st.integers(1, 5))
        shape = [draw(st.integers(1, 9)) for _ in range(ndim)]
        words = ["flat[dp]"]
    for d in range(0 if flat else ndim):
        kind = draw(
            st.sampled_from(
                ["none", "even", "uneven", "zigzag", "stripe", "blocks", "qkv", "sizes", "pad", "nested", "ids"]
            )
        )
        size = draw(st.sampled_from([2, 3, 4]))
        axis = next(free)
        name = "bsh"[d]
        if kind == "none":
            words.append(name)
            shape.append(draw(st.integers(1, 5)))
            continue
        sizes[axis] = size
        if kind in ("even", "uneven", "pad"):
            n = size * draw(st.integers(1, 3)) + (0 if kind == "even" else draw(st.integers(0, size)))
            words.append(f"{name}[{axis}{':pad' if kind == 'pad' else ''}]")
        elif kind == "zigzag":
            sizes[axis] = size = 4 if size == 3 else size
            n = 2 * size * draw(st.integers(1, 2))
            words.append(f"{name}[{axis}:zigzag]")
        elif kind == "stripe":
            unit = draw(st.integers(1, 2))
            n = unit * size * draw(st.integers(1, 3))
            words.append(f"{name}[{axis}:stripe={unit}]")
        elif kind == "blocks":
            blocks = [draw(st.integers(1, 9)) for _ in range(3)]
            n = sum(blocks)
            words.append(f"{name}[{axis}:blocks={'/'.join(map(str, blocks))}]")
        elif kind == "qkv":
            sizes[axis] = size = 2
            n = 8 * draw(st.integers(1, 2))  # 4 heads in 2 groups
            words.append(f"{name}[{axis}:qkv=4x2]")
        elif kind == "sizes":
            parts = [draw(st.integers(0, 4)) for _ in range(size)]
            parts[0] += 1
            n = sum(parts)
            words.append(f"{name}[{axis}:sizes={'/'.join(map(str, parts))}]")
        elif kind == "ids":
            ids = draw(st.permutations(list(range(2 * size))))
            n = 2 * size
            words.append(
                f"{name}[{axis}:ids={'/'.join('.'.join(map(str, ids[2 * r : 2 * r + 2])) for r in range(size))}]"
            )
        else:
            inner = next(free, None)
            if inner is None:
                n = size
                words.append(f"{name}[{axis}]")
            else:
                sizes[axis], sizes[inner] = 2, 2
                n = 8 * draw(st.integers(1, 2))
                words.append(f"{name}[{axis}:zigzag,{inner}]")
        shape.append(n)
    if not flat and draw(st.booleans()):
        axis = next(free, None)
        if axis:
            sizes[axis] = 2
            words.append("{" + axis + ":" + draw(st.sampled_from(["sum", "mean", "max"])) + "}")
    return " ".join(words), tuple(shape), sizes


def pieces_of(spec: ShardSpec, full: torch.Tensor, sizes: dict[str, int], seed: int = 0) -> list[Piece]:
    """What every rank of the mesh holds; contributions of partial axes that add up exactly."""
    rng = np.random.default_rng(seed)
    partial = spec.partial_axes
    found = []
    for rank, at in enumerate(itertools.product(*(range(n) for n in sizes.values()))):
        coords = {axis: (i, n) for (axis, n), i in zip(sizes.items(), at)}
        local = spec.index(full.shape, coords).take(full).clone()
        for axis, op in partial.items():
            i, _n = coords[axis]
            if op == "sum":  # small integers, so that the sum is exact
                share = torch.from_numpy(np.random.default_rng(seed + 1).integers(-5, 5, local.shape)).to(local.dtype)
                local = local - share if i == 0 else (share if i == 1 else torch.zeros_like(local))
            elif op == "max" and i > 0:
                local = local - 1 - float(rng.random() > 0.5)
        found.append(Piece(rank, coords, local, spec))
    return found


@settings(max_examples=500, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(layouts(), st.randoms(use_true_random=False))
def test_check_6_500_random_layouts_come_back_and_a_lost_rank_is_named(layout, random):
    text, shape, sizes = layout
    spec = ShardSpec.parse(text)
    assert ShardSpec.parse(str(spec)) == spec
    full = torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape)
    pieces = pieces_of(spec, full, sizes)
    merged = merge(pieces, shape)
    assert not merged.problems
    assert torch.equal(merged.tensor, full)

    held = {axis for axis, _ in spec.placements}
    lost = random.choice(pieces)
    if any(a not in held and n > 1 for a, n in sizes.items()):
        return  # another rank has a copy
    mine = spec.index(shape, lost.coords).flat_indices()
    if not (mine >= 0).any():
        return
    rest = [p for p in pieces if p.rank != lost.rank]
    if not rest:
        return
    problems = merge(rest, shape).problems
    assert [p.kind for p in problems] == ["missing region"]
    if not spec.partial_axes:
        assert problems[0].message == "no rank holds " + expected_region(mine, shape, spec)


def expected_region(flat: np.ndarray, shape: tuple[int, ...], spec: ShardSpec) -> str:
    def ranges(values):
        values = sorted(set(values.tolist()))
        out, start = [], values[0]
        for a, b in zip(values, [*values[1:], None]):
            if b != a + 1:
                out.append(f"{start}..{a}" if a > start else f"{a}")
                start = b
        return ",".join(out)

    flat = flat[flat >= 0]
    if any(axis == "dp" and type(p).__name__ == "Flat" for axis, p in spec.placements):
        return "flat " + ranges(flat)
    words = []
    for d, held in enumerate(np.unravel_index(flat, shape)):
        if len(set(held.tolist())) < shape[d]:
            words.append(f"{spec.dims[d]} {ranges(held)}")
    return ", ".join(words) or "all of it"


def test_zigzag_against_the_definition():
    spec = ShardSpec.parse("s[cp:zigzag]")
    x = torch.arange(16)
    assert [spec.cut(x, {"cp": (r, 4)}).tolist() for r in range(4)] == [
        [0, 1, 14, 15], [2, 3, 12, 13], [4, 5, 10, 11], [6, 7, 8, 9]
    ]  # fmt: skip


def test_fused_gate_and_up_keep_their_halves():
    spec = ShardSpec.parse("o[tp:blocks=4/4] i")
    w = torch.arange(8.0)[:, None]
    assert spec.cut(w, {"tp": (1, 2)})[:, 0].tolist() == [2, 3, 6, 7]


def test_qkv_in_groups_is_megatrons_order():
    spec = ShardSpec.parse("o[tp:qkv=4x2]")  # q0 q1 q2 q3 k0 k1 v0 v1, head size 1
    assert spec.cut(torch.arange(8), {"tp": (0, 2)}).tolist() == [0, 1, 4, 6]
    assert spec.cut(torch.arange(8), {"tp": (1, 2)}).tolist() == [2, 3, 5, 7]


def test_double_cover_and_replica_conflict():
    spec = ShardSpec.parse("s[tp:sizes=4/2]")
    other = ShardSpec.parse("s[tp:sizes=2/4]")
    x = torch.arange(6.0)
    pieces = [Piece(0, {"tp": (0, 2)}, x[:4], spec), Piece(1, {"tp": (1, 2)}, x[2:], other)]
    assert merge(pieces, (6,)).problems[0].message == "more than one rank holds s 2..3"
    copies = [
        Piece(r, {"tp": (r % 2, 2), "dp": (r // 2, 2)}, torch.full((3,), float(r % 2)), ShardSpec()) for r in range(4)
    ]
    problem = merge(copies, (3,)).problems[0]
    assert problem.kind == "replica conflict" and problem.axes == ("tp",) and problem.max_abs == 1.0


def test_a_piece_of_another_shape_is_named():
    spec = ShardSpec.parse("s[tp]")
    pieces = [Piece(0, {"tp": (0, 2)}, torch.zeros(3), spec), Piece(1, {"tp": (1, 2)}, torch.zeros(2), spec)]
    problem = merge(pieces, (6,)).problems[0]
    assert problem.kind == "shape mismatch" and problem.ranks == (1,)
    assert problem.message == "rank 1 holds [2], s[tp] of [6] makes [3]"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("b s[cp:zagzig]", "zigzag"), ("b s[tp] h[tp]", "stands twice"), ("b ]", "cannot read"),
        ("b {tp:min}", "sum, mean or max"),
        ("b[tp:blocks=2/x]", "cannot read"), ("b *two", "scale"),
    ],
)  # fmt: skip
def test_unreadable_specifications(text, words):
    with pytest.raises(ShardSpecError, match=words):
        ShardSpec.parse(text)


def test_specifications_that_do_not_fit_name_axis_and_sizes():
    with pytest.raises(ShardSpecError, match="'cp' of size 2 in zigzag needs a multiple of 4, not 6"):
        ShardSpec.parse("s[cp:zigzag]").index((6,), {"cp": (0, 2)})
    with pytest.raises(ShardSpecError, match="sum to 6, the dimension holds 7"):
        ShardSpec.parse("s[tp:blocks=4/2]").index((7,), {"tp": (0, 2)})
    with pytest.raises(ShardSpecError, match="names 2 dimensions"):
        ShardSpec.parse("b s").index((7,), {})
