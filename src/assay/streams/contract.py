"""What every model must hold, as checks that a person can run on a model of their own.

`check_model` is what the library's own tests run on each of its models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import NotCausal
from assay.streams.models.base import StreamModel
from assay.streams.rows import RowBlock


def easy_stream(
    n: int = 2000, d: int = 5, seed: int = 0, presence: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """A stream that any model should learn: y is the sign of column 0, or its presence (``presence=True``).

    Returns
    -------
    X : float64[n, d]
        Standard normal, each cell absent with probability one half; column 0 is always there unless ``presence``.
    y : int64[n]
    """
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    absent = rng.random((n, d)) < 0.5
    if not presence:
        absent[:, 0] = False
    y = (~absent[:, 0] if presence else X[:, 0] > 0).astype(np.int64)
    X[absent] = np.nan
    return X, y


def scores_by_row(model: StreamModel, X: NDArray[np.float64], y: Any) -> NDArray[np.float64]:
    """Scores of the row-by-row path: `score_one`, then `learn_one`."""
    block = RowBlock.from_array(X)
    scores = []
    for t in range(len(block)):
        row = block.row(t)
        scores.append(np.atleast_1d(model.score_one(row)))
        model.learn_one(row, y[t])
    width = max(len(s) for s in scores)
    table = np.array([np.pad(s, (0, width - len(s))) for s in scores])
    return table[:, 0] if width == 1 else table


def check_causal(make: Callable[[], StreamModel], X: NDArray[np.float64], y: NDArray[Any], at: int) -> None:
    """Scores up to row ``at`` must not change when the rows after it are replaced by garbage.

    Raises
    ------
    NotCausal
        With the first row whose score changed.
    """
    rng = np.random.default_rng(1)
    garbage = X.copy()
    garbage[at + 1 :] = rng.normal(1e3, 1e3, garbage[at + 1 :].shape)
    other = y.copy()
    other[at + 1 :] = rng.permutation(other[at + 1 :])
    a = make().run_arrays(X, y)[: at + 1]
    b = make().run_arrays(garbage, other)[: at + 1]
    different = np.flatnonzero((a != b).reshape(len(a), -1).any(axis=1))
    if len(different):
        raise NotCausal(f"{make()!r}: the score of row {different[0]} changed when rows after {at} were replaced")


def check_model(
    make: Callable[[], StreamModel],
    *,
    auroc: float = 0.95,
    n: int = 2000,
    presence: bool = False,
    rows: int = 200,
) -> None:
    """Run every check on a model.

    Parameters
    ----------
    make : callable
        Gives a fresh model, the same one each time (seed included).
    auroc : float
        Least AUROC on the last half of `easy_stream`.
    n : int
        Rows of the easy stream.
    presence : bool
        The model sees presence only (naive Bayes on words).
    rows : int
        Rows for the checks of equality, which run the stream several times.

    Raises
    ------
    AssertionError, NotCausal
    """
    from scipy.stats import rankdata

    def area(labels: NDArray[np.int64], scores: NDArray[np.float64]) -> float:
        positive = labels == 1
        ranks = rankdata(scores)
        p, q = positive.sum(), (~positive).sum()
        return float((ranks[positive].sum() - p * (p + 1) / 2) / (p * q))

    X, y = easy_stream(n, presence=presence)
    half = n // 2
    first = area(y[half:], make().run_arrays(X, y)[half:])
    assert first > auroc, f"AUROC on the easy stream is {first:.3f}, expected above {auroc}"
    flipped = area(1 - y[half:], make().run_arrays(X, 1 - y)[half:])
    slack = 0.02 if make().deterministic else 0.05
    assert abs(first - flipped) <= slack, f"AUROC {first:.3f} became {flipped:.3f} when trained on flipped labels"

    X, y = X[:rows].copy(), y[:rows]
    X[rows // 3] = np.nan  # an empty row
    reference = make().run_arrays(X, y)
    assert np.isfinite(reference).all(), "a score is not finite"
    assert reference[0] == 0.0, f"the score before any update is {reference[0]}, not 0"
    np.testing.assert_array_equal(make().run_arrays(X, y), reference, err_msg="two runs differ")
    np.testing.assert_array_equal(scores_by_row(make(), X, y), reference, err_msg="row path and array path differ")

    cut = rows // 2
    model = make()
    model.run_arrays(X[:cut], y[:cut])
    state = model.state_dict()
    resumed = make().load_state_dict(state).run_arrays(X[cut:], y[cut:])
    np.testing.assert_array_equal(resumed, reference[cut:], err_msg="a resumed run differs")

    check_causal(make, X, y, cut)

    missing = y.astype(float)
    missing[rows // 4 : cut] = np.nan
    with_gaps = make().run_arrays(X, missing)
    np.testing.assert_array_equal(scores_by_row(make(), X, missing), with_gaps, err_msg="missing labels: paths differ")

    frozen = make()
    frozen.run_arrays(X, y)
    before = frozen.memory_bytes()
    frozen.freeze().run_arrays(X, y, columns=[f"new{j}" for j in range(X.shape[1])])
    assert frozen.memory_bytes() == before, "a frozen model grew"

    growing = make()
    for t in range(30):  # a new feature each row, others gone for good
        values = np.full((1, 3), 1.0 + t)
        growing.run_arrays(values, [t % 2], columns=[f"a{t}", f"a{t + 1}", f"b{t % 4}"])
    assert len(growing.features_) == 35
