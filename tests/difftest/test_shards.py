"""Cutting and merging, case by case (random specifications: check 6 of the known values)."""

from __future__ import annotations

import pytest
import torch

from assay.difftest.errors import ShardSpecError
from assay.difftest.shards import Piece, ShardSpec, merge


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
