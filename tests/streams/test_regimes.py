"""Masks: exact counts where they are exact, distributions where they are random, and independence of how blocks are
cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.streams.errors import RegimeError
from assay.streams.regimes import REGIMES, Bursts, Evolvable, Probabilistic, Regime, masked_blocks, regime

ALL = [REGIMES[name]() for name in REGIMES]


@pytest.mark.parametrize("kind", ALL, ids=lambda r: r.name)
@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_mask_does_not_depend_on_how_blocks_are_cut(kind: Regime, size):
    whole = kind.mask(200, 9, seed=4)
    pieces = np.concatenate(list(kind.blocks(200, 9, seed=4, size=size)))
    np.testing.assert_array_equal(whole, pieces)
    with_rule = kind.mask(200, 9, seed=4, empty="one")
    present = np.ones((200, 9), dtype=bool)
    blocks = [present[i : i + size] for i in range(0, 200, size)]
    np.testing.assert_array_equal(
        with_rule, np.concatenate(list(masked_blocks(kind, 200, 9, 4, blocks, empty="one", size=size)))
    )


@pytest.mark.parametrize("kind", ALL, ids=lambda r: r.name)
def test_masks_repeat_with_the_seed(kind: Regime):
    np.testing.assert_array_equal(kind.mask(100, 6, seed=1), kind.mask(100, 6, seed=1))
    if kind.name in ("probabilistic", "trapezoidal", "capricious", "evolvable", "bursts"):
        assert (kind.mask(100, 6, seed=1) != kind.mask(100, 6, seed=2)).any()


@given(n=st.integers(1, 400), d=st.integers(1, 40), C=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_blocks_of_the_chunked_regimes_cover_every_row(n, d, C):
    edges = [c * n // C for c in range(C + 1)]
    for name, columns in (
        ("sudden", lambda c: (0, d * (c + 1) // C)),
        ("obsolete", lambda c: (0, d * (C - c) // C)),
        ("reappearing", lambda c: (0, d // 2) if c % 2 == 0 else (d // 2, d)),
    ):
        mask = regime(name, C=C).mask(n, d)
        for c in range(C):
            expected = np.zeros(d, dtype=bool)
            expected[slice(*columns(c))] = True
            assert (mask[edges[c] : edges[c + 1]] == expected).all()


@given(p=st.floats(0, 1))
@settings(max_examples=20, deadline=None)
def test_probabilistic_keeps_the_share_it_says(p):
    share = Probabilistic(p).mask(2000, 10).mean()
    assert abs(share - p) < 5 * np.sqrt(p * (1 - p) / 20_000) + 1e-12


def test_bursts_have_the_mean_lengths_they_say():
    mask = Bursts(up=40, down=10).mask(60_000, 8, seed=0)
    assert abs(mask.mean() - 0.8) < 0.02
    lengths = {True: [], False: []}
    for column in mask.T:
        edges = np.flatnonzero(np.diff(column.astype(int))) + 1
        runs = np.diff(edges)  # whole runs only
        states = column[edges[:-1]]
        for state in (True, False):
            lengths[state].extend(runs[states == state])
    assert abs(np.mean(lengths[True]) - 40) < 2
    assert abs(np.mean(lengths[False]) - 10) < 0.5


def test_trapezoidal_features_never_leave_and_one_is_there_from_the_start():
    mask = regime("trapezoidal").mask(500, 12, seed=3)
    assert (np.diff(mask.astype(int), axis=0) >= 0).all()
    assert mask[0].any()
    assert mask[-1].all()


def test_capricious_features_have_rates_of_their_own_within_the_bounds():
    rates = regime("capricious", lo=0.2, hi=0.6).mask(20_000, 30, seed=0).mean(axis=0)
    assert rates.min() > 0.2 - 0.02
    assert rates.max() < 0.6 + 0.02
    assert rates.std() > 0.05


def test_evolvable_segments_are_disjoint_but_for_the_overlap():
    mask = Evolvable(segments=3, overlap=0.2).mask(900, 10, seed=0)
    first, last = mask[0], mask[-1]
    assert not (first & last).any()
    assert (mask[300] & first).sum() == first.sum()  # the old ones are still there
    assert not (mask[360:600] & first).any()  # and then gone
    assert mask[400].sum() + first.sum() + last.sum() == 10


def test_absent_values_stay_absent_and_empty_rows_get_a_present_column():
    present = np.random.default_rng(0).random((300, 5)) < 0.3
    for kind in ALL:
        kept = kind.mask(300, 5, seed=1, present=present, empty="keep")
        assert not (kept & ~present).any()
        filled = kind.mask(300, 5, seed=1, present=present, empty="one")
        assert not (filled & ~present).any()
        assert (filled.any(axis=1) == present.any(axis=1)).all()
        rows = kept.any(axis=1)
        np.testing.assert_array_equal(filled[rows], kept[rows])
        assert (filled[~rows].sum(axis=1) <= 1).all()


def test_endless_streams_have_regimes_that_need_no_length():
    for name in ("probabilistic", "capricious", "bursts", "intrinsic"):
        blocks = regime(name).blocks(None, 3, size=10)
        assert [next(blocks).shape for _ in range(3)] == [(10, 3)] * 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: regime("suden"), "did you mean sudden"),
        (lambda: regime("probabilistic", q=1), "its parameters are: p"),
        (lambda: regime("probabilistic", p=1.5), r"p is a share and must lie in \[0, 1\]"),
        (lambda: regime("sudden", C=0), "at least 1"),
        (lambda: regime("bursts", up=0.5), "at least 1"),
        (lambda: regime("capricious", lo=0.8, hi=0.2), "lo must not be above hi"),
        (lambda: regime("evolvable", segments=8).mask(100, 3), "a column for each of its 8 segments"),
        (lambda: next(regime("sudden").blocks(None, 3)), "must know its length"),
        (lambda: regime("sudden").mask(10, 0), "at least one column"),
        (lambda: regime("sudden").mask(10, 2, empty="two"), "'keep' or 'one'"),
    ],
)
def test_bad_regimes_are_named(call, message):
    with pytest.raises(RegimeError, match=message):
        call()
    assert regime("obstruct-25") == Probabilistic(0.25)
