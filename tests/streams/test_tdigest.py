"""The t-digest against exact quantiles."""

import math

import numpy as np
import pytest

from assay.streams.errors import StreamError
from assay.streams.models.tdigest import TDigest, cdf, empty_bank, quantile, update

RNG = np.random.default_rng(3)
QS = np.r_[1e-3, 0.01, 0.05, np.arange(1, 10) / 10, 0.95, 0.99, 0.999]
SAMPLES = {
    "normal": RNG.standard_normal(20_000),
    "exponential": RNG.exponential(size=20_000),
    "cauchy": RNG.standard_cauchy(20_000),
    "ascending": np.sort(RNG.standard_normal(20_000)),
    "descending": np.sort(RNG.standard_normal(20_000))[::-1],
    "ten values": RNG.integers(0, 10, 20_000).astype(float),
}


def rank_error(sample: np.ndarray, value: float, q: float) -> float:
    """Distance of q to the ranks that the value has in the sample."""
    ordered = np.sort(sample)
    low, high = (
        np.searchsorted(ordered, value, "left") / len(ordered),
        np.searchsorted(ordered, value, "right") / len(ordered),
    )
    return max(0.0, low - q, q - high)


def test_few_values_are_answered_exactly() -> None:
    values = RNG.normal(5, 3, 150)
    digest = TDigest().update_many(values)
    for q in [0, 0.01, 0.25, 0.5, 0.77, 1]:
        assert digest.quantile(q) == pytest.approx(np.quantile(values, q, method="hazen"), abs=1e-12)
    for v in values[:20]:
        assert digest.cdf(v) == pytest.approx((np.sum(values < v) + 0.5) / 150, abs=1e-12)


def test_ties_have_the_middle_rank() -> None:
    digest = TDigest().update_many([1, 2, 2, 2, 3])
    assert digest.cdf(2) == pytest.approx(0.5)
    assert digest.cdf(1) == pytest.approx(0.1)
    assert digest.cdf(0.999) == 0.0
    assert digest.cdf(3.001) == 1.0
    assert digest.quantile(0.5) == 2


@pytest.mark.parametrize("name", SAMPLES)
def test_rank_error_is_within_half_a_centroid(name: str) -> None:
    sample = SAMPLES[name]
    digest = TDigest(100).update_many(sample)
    for q in QS:
        bound = math.pi / 100 * math.sqrt(q * (1 - q)) + 1 / len(sample)
        assert rank_error(sample, digest.quantile(q), q) <= bound
        exact = np.quantile(sample, q)
        middle = (np.mean(sample < exact) + np.mean(sample <= exact)) / 2
        # a centroid may span two tied values, so here a whole one counts
        assert abs(digest.cdf(exact) - middle) <= 2 * math.pi / 100 * math.sqrt(middle * (1 - middle)) + 1 / len(sample)
    assert digest.minimum == sample.min()
    assert digest.maximum == sample.max()
    assert digest.quantile(0) == sample.min()
    assert digest.quantile(1) == sample.max()


def test_centroids_keep_the_size_bound_of_k1() -> None:
    delta = 60
    digest = TDigest(delta).update_many(SAMPLES["normal"])
    means, weights = digest.centroids
    assert len(means) <= 2 * delta
    assert np.all(np.diff(means) >= 0)
    assert weights.sum() == pytest.approx(20_000) == digest.count
    assert means @ weights == pytest.approx(SAMPLES["normal"].sum())
    ranks = np.r_[0, np.cumsum(weights)] / weights.sum()
    k1 = delta / (2 * math.pi) * np.arcsin(np.clip(2 * ranks - 1, -1, 1))
    merged = weights > 1
    assert merged.sum() > 10
    # centroids were made at ranks that later points have moved, hence the slack
    assert np.diff(k1)[merged].max() <= 1.2


def test_a_compression_leaves_at_most_compression_plus_one_centroids() -> None:
    for delta in (10, 25, 100):
        digest = TDigest(delta)
        smallest = 10**9
        for value in RNG.standard_normal(3000):
            before = len(digest.centroids[0])
            digest.update(value)
            after = len(digest.centroids[0])
            if after <= before:
                smallest = after
                assert after <= delta + 2
        assert smallest < 10**9


def test_weights_count_as_repeats() -> None:
    values, weights = RNG.standard_normal(500), RNG.integers(1, 5, 500)
    weighted = TDigest().update_many(values, weights.astype(float))
    repeated = np.repeat(values, weights)
    for q in (0.05, 0.3, 0.5, 0.9):
        assert rank_error(repeated, weighted.quantile(q), q) < 0.01
    assert weighted.count == len(repeated)


def test_merging_shards_equals_one_digest_within_the_bound() -> None:
    sample = SAMPLES["exponential"]
    total = TDigest()
    for shard in np.array_split(sample, 13):
        total.merge(TDigest().update_many(shard))
    assert total.count == len(sample)
    assert (total.minimum, total.maximum) == (sample.min(), sample.max())
    for q in QS:
        assert rank_error(sample, total.quantile(q), q) <= math.pi / 100 * math.sqrt(q * (1 - q)) + 1e-3


def test_cdf_and_quantile_are_inverse_between_centroids() -> None:
    digest = TDigest().update_many(SAMPLES["normal"])
    for q in np.linspace(0.02, 0.98, 33):
        assert digest.cdf(digest.quantile(q)) == pytest.approx(q, abs=1e-9)


def test_a_bank_holds_many_digests_beside_each_other() -> None:
    bank = empty_bank(3, 50)
    data = RNG.standard_normal((3, 400)) + np.array([[0.0], [10.0], [20.0]])
    for k in range(400):
        for row in range(3):
            update(bank, row, data[row, k], 1.0)
    for row in range(3):
        alone = TDigest(50).update_many(data[row])
        assert quantile(bank, row, 0.3) == alone.quantile(0.3)
        assert cdf(bank, row, 10.0 * row) == alone.cdf(10.0 * row)


def test_empty_and_bad_input() -> None:
    digest = TDigest()
    assert math.isnan(digest.quantile(0.5))
    assert math.isnan(digest.cdf(0.0))
    assert math.isnan(digest.minimum)
    with pytest.raises(StreamError, match="compression is 10 or more"):
        TDigest(5)
    with pytest.raises(StreamError, match=r"q is in \[0, 1\]"):
        digest.quantile(1.5)
    with pytest.raises(StreamError, match="finite"):
        digest.update(math.inf)
    with pytest.raises(StreamError, match="above 0"):
        digest.update(1.0, weight=0.0)
    with pytest.raises(StreamError, match="2 values but 1 weights"):
        digest.update_many([1, 2], [1])


def test_agrees_with_the_tdigest_package() -> None:
    package = pytest.importorskip("tdigest")
    sample = SAMPLES["cauchy"][:4000]
    theirs = package.TDigest(delta=0.01)
    theirs.batch_update(sample)
    ours = TDigest(200).update_many(sample)
    assert len(ours.centroids[0]) < len(theirs.C)
    assert max(rank_error(sample, ours.quantile(q), q) for q in QS) < 0.005
    assert max(rank_error(sample, theirs.percentile(100 * q), q) for q in QS) < 0.005
    for v in (-2.0, 0.0, 1.0):
        assert ours.cdf(v) == pytest.approx(theirs.cdf(v), abs=0.005)
