"""Normalisers against NumPy at every prefix, and the invariants that all of them share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from assay.streams.errors import CheckpointMismatch, StreamError
from assay.streams.normalize import NORMALIZERS, Decimal, ZScore, normalizer
from assay.streams.rows import Row, RowBlock


def masked(n=120, d=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.exponential(size=(n, d)) * 10.0 ** np.arange(d)
    X[rng.random((n, d)) < 0.5] = np.nan
    return X


def dense(block: RowBlock, d: int) -> np.ndarray:
    X = np.full((len(block), d), np.nan)
    X[np.repeat(np.arange(len(block)), np.diff(block.indptr)), block.codes] = block.values
    return X


@pytest.mark.parametrize("name", NORMALIZERS)
def test_rows_and_blocks_give_the_same_and_a_pass_starts_afresh(name):
    block = RowBlock.from_array(masked())
    whole = normalizer(name).transform_block(block).values
    one = normalizer(name)
    np.testing.assert_array_equal(
        whole, np.concatenate([one.transform_one(block.row(t)).values for t in range(len(block))])
    )
    np.testing.assert_array_equal(whole, normalizer(one).transform_block(block).values)
    resumed = normalizer(name)
    resumed.transform_block(block.slice(0, 50))
    other = normalizer(name).load_state_dict(resumed.state_dict())
    tail = other.transform_block(block.slice(50, len(block)))
    np.testing.assert_array_equal(whole[block.indptr[50] :], tail.values)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_later_rows_and_other_features_do_not_matter(name):
    X = masked()
    garbage = X.copy()
    garbage[60:] = 1e9
    a = dense(normalizer(name).transform_block(RowBlock.from_array(X)), 5)
    b = dense(normalizer(name).transform_block(RowBlock.from_array(garbage)), 5)
    np.testing.assert_array_equal(a[:60], b[:60])
    order = [3, 0, 4, 1, 2]
    c = dense(normalizer(name).transform_block(RowBlock.from_array(X[:, order], [f"c{j}" for j in order])), 5)
    np.testing.assert_allclose(a[:, order], c, rtol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_transforming_without_learning_changes_nothing_and_takes_unknown_features(name):
    block = RowBlock.from_array(masked())
    scale = normalizer(name)
    scale.transform_block(block)
    before = scale.state_dict()
    row = Row.from_dict({0: 3.0, "never seen": 5.0})
    first = scale.transform_one(row, learn=False)
    assert np.isfinite(first.values).all()
    np.testing.assert_array_equal(first.values, scale.transform_one(row, learn=False).values)
    assert scale.state_dict()["ids"] == before["ids"]
    np.testing.assert_array_equal(scale.state_dict()["state"], before["state"])


@given(arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e6, 1e6)))
@settings(max_examples=60, deadline=None)
def test_minmax_mean_and_unit_against_numpy(values):
    rows = [Row.from_dict({"a": v}) for v in values]
    minmax, mean, unit = (normalizer(n) for n in ("minmax", "mean", "unit"))
    for t, row in enumerate(rows):
        past = values[: t + 1]
        span = past.max() - past.min()
        expected = (values[t] - past.min()) / span if span > 0 else 0.0
        assert minmax.transform_one(row).values[0] == pytest.approx(expected, abs=1e-12)
        assert mean.transform_one(row).values[0] == pytest.approx(values[t] - past.mean(), abs=1e-6)
        assert abs(unit.transform_one(row).values[0]) == pytest.approx(1.0 if values[t] else 0.0)


def test_decimal_divides_by_a_power_of_ten():
    fixed, auto = Decimal(), Decimal("auto")
    assert fixed.transform_one(Row.from_dict({"a": 1234.0})).values[0] == 1.234
    steps = [auto.transform_one(Row.from_dict({"a": v})).values[0] for v in (5.0, 99.0, 100.0, 7.0, -0.5)]
    np.testing.assert_allclose(steps, [0.5, 0.99, 0.1, 0.007, -0.0005])
    with pytest.raises(StreamError, match="'auto'"):
        Decimal(1.5)


def test_robust_and_rank_against_exact_quantiles_of_the_past():
    rng = np.random.default_rng(0)
    values = rng.standard_t(2, 2000)
    robust, rank = normalizer("robust"), normalizer("rank")
    for t, v in enumerate(values):
        r = robust.transform_one(Row.from_dict({"a": v})).values[0]
        share = rank.transform_one(Row.from_dict({"a": v})).values[0]
        if t % 100 == 99:
            past = values[: t + 1]
            low, middle, high = np.quantile(past, [0.25, 0.5, 0.75])
            assert r == pytest.approx(np.clip((v - middle) / (high - low), -3, 3), abs=0.08)
            exact = ((past < v).sum() + 0.5 * (past == v).sum()) / len(past)
            assert share == pytest.approx(exact, abs=0.02)


def test_zscore_is_clipped_and_a_constant_feature_stays_finite():
    scale = ZScore()
    values = [scale.transform_one(Row.from_dict({"a": 5.0})).values[0] for _ in range(20)]
    assert values == [0.0] * 20
    assert scale.transform_one(Row.from_dict({"a": 1e9})).values[0] == 3.0


def test_bad_names_and_strange_states_are_errors():
    with pytest.raises(StreamError, match="did you mean zscore"):
        normalizer("zscor")
    with pytest.raises(CheckpointMismatch):
        ZScore().load_state_dict(normalizer("mean").state_dict())
    with pytest.raises(CheckpointMismatch):
        Decimal(3).load_state_dict(Decimal(2).state_dict())
