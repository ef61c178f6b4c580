"""Leaderboards, tables, comparisons, ranks, row tests and curves over stored runs."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.core import compare
from assay.core.benchmark import Benchmark, Metric
from assay.core.errors import AssayError, UnknownNameError
from assay.core.results import Results
from assay.core.run import Failure, RunRecord
from assay.core.store import Store

Scores = Mapping[tuple[str, str], list[float | str | None]]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Results]:
    """Writes runs, one a seed: a float is a result, None an undefined metric, a text the message of a failure."""

    stores = itertools.count()

    def make(
        scores: Scores, *, metric: Metric | None = None, benchmark: Benchmark | None = None, **fields: Any
    ) -> Results:
        metric = metric or Metric("accuracy", higher_is_better=True, may_be_undefined=True)
        benchmark = benchmark or Benchmark("trial", "A trial", [metric], lambda task, method, context: {})
        store = Store(tmp_path / f"runs{next(stores)}")
        store.prepare(benchmark.name)
        for (task, method), values in scores.items():
            for seed, value in enumerate(values):
                if value == "not run":
                    continue
                key = f"{abs(hash((task, method, seed))):024x}"[:24]
                outcome: dict[str, Any] = {"status": "ok", "metrics": {metric.name: value}}
                if isinstance(value, str):
                    skipped = value.startswith("skip")
                    outcome = {
                        "status": "skipped" if skipped else "failed",
                        "failure": Failure(type="ValueError", message=value, traceback="Traceback: " + value),
                    }
                record = RunRecord(
                    key=key, benchmark=benchmark.name, version=benchmark.version, task=task, method=method, seed=seed,
                    started="2026-01-01T00:00:00.000+00:00", wall_seconds=1.0 + seed, **outcome, **fields,
                )  # fmt: skip
                store.commit(record, store.stage(benchmark.name, key))
        return Results.from_store(benchmark, store)

    return make


def row_of(results: Results, method: str, **options: Any) -> Any:
    return next(row for row in results.leaderboard(**options).rows if row.method == method)


A = [0.80, 0.82, 0.81, 0.83, 0.79, 0.84, 0.80, 0.82]
B = [0.70, 0.73, 0.70, 0.72, 0.71, 0.75, 0.70, 0.71]


# -- leaderboards ----------------------------------------------------------------------------------------------------


def test_order_means_and_intervals(write) -> None:
    board = write({("t", "a"): A, ("t", "b"): B}).leaderboard()
    assert [(row.rank, row.method) for row in board.rows] == [(1, "a"), (2, "b")]
    assert board.rows[0].mean == pytest.approx(np.mean(A))
    expected = compare.mean_intervals(A, np.zeros(8, dtype=int))
    assert board.rows[0].low == pytest.approx(expected.low[0])
    assert board.rows[0].high == pytest.approx(expected.high[0])
    assert board.rows[0].runs == 8
    assert board.rows[0].wall_seconds == pytest.approx(4.5)
    assert board.rows[1].apart is True
    assert board.rows[1].p == pytest.approx(compare.sign_flip_test((np.array(A) - B)[:, None])[0])


def test_lower_may_be_better(write) -> None:
    loss = Metric("loss", higher_is_better=False, may_be_undefined=True)
    results = write({("t", "a"): A, ("t", "b"): B}, metric=loss)
    assert [row.method for row in results.leaderboard().rows] == ["b", "a"]
    assert str(results.leaderboard().verdict).startswith("b is better than a by 0.099 (95% interval 0.089 to 0.108)")
    assert results.compare("a", "b").winner == "b"


def test_intervals_end_where_the_metric_does(write) -> None:
    values = {("t", "a"): [1.0, 0.6], ("t", "b"): [0.1, 0.2]}
    free = write(values).leaderboard().rows[0]
    assert free.high == pytest.approx(0.8 + 0.2 * math.tan(math.pi * 0.475))  # Student's with one degree of freedom
    share = Metric("accuracy", higher_is_better=True, bounds=(0.0, 1.0))
    results = write(values, metric=share)
    best = results.leaderboard().rows[0]
    assert (best.low, best.high) == (0.0, 1.0)
    assert results.table().high[0].max() == 1.0
    with pytest.raises(AssayError, match="least, greatest"):
        Metric("accuracy", higher_is_better=True, bounds=(1.0, 0.0))


def test_tasks_have_equal_weight_whatever_their_seeds(write) -> None:
    results = write({("t", "a"): [1.0] * 8, ("u", "a"): [0.0, 0.0], ("t", "b"): [0.6] * 8, ("u", "b"): [0.3, 0.3]})
    board = results.leaderboard()
    assert [row.mean for row in board.rows] == pytest.approx([0.5, 0.45])
    assert [row.mean_rank for row in board.rows] == [1.5, 1.5]


def test_one_task_or_several(write) -> None:
    results = write({(t, m): [x + 0.1 * (t == "u")] * 3 for t in "tuv" for m, x in (("a", 0.5), ("b", 0.4))})
    assert row_of(results, "a", task="u").mean == pytest.approx(0.6)
    assert row_of(results, "a", task=["u", "t"]).mean == pytest.approx(0.55)
    assert results.leaderboard(task=["u", "t"]).tasks == ["t", "u"]
    assert results.only(methods="b").methods == ["b"]


def test_equal_means_share_a_rank(write) -> None:
    results = write({("t", "a"): [0.5, 0.7], ("t", "b"): [0.7, 0.5], ("t", "c"): [0.1, 0.2]})
    assert [row.rank for row in results.leaderboard().rows] == [1, 1, 3]


def test_benchmark_order_comes_before_the_alphabet(write) -> None:
    benchmark = Benchmark("trial", "", [Metric("accuracy", True, may_be_undefined=True)], lambda t, m, c: {})
    for name in ("z", "y"):
        benchmark.add_method(name, lambda: None)
    results = write({("t", m): [0.5, 0.5] for m in ("a", "y", "z")}, benchmark=benchmark)
    assert results.methods == ["z", "y", "a"]


def test_single_method(write) -> None:
    assert "nothing to compare" in write({("t", "a"): A}).leaderboard().verdict


def test_no_runs(tmp_path: Path) -> None:
    benchmark = Benchmark("trial", "A trial", [Metric("accuracy", True)], lambda t, m, c: {})
    results = benchmark.results(tmp_path)
    board = results.leaderboard()
    assert len(results) == 0
    assert board.rows == []
    assert "no runs of trial" in board.verdict
    assert "assay run trial" in board.to_text()
    assert board.to_csv() == ""
    with pytest.raises(AssayError, match="need two tasks"):
        results.ranks()
    with pytest.raises(AssayError, match="no runs of trial"):
        results.report(tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda r: r.leaderboard("accuracyy"), "did you mean accuracy"),
        (lambda r: r.leaderboard(task="wpbd"), "did you mean wpbc"),
        (lambda r: r.compare("olvf", "olvd"), "has no method 'olvd'; did you mean olvf"),
        (lambda r: r.only(methods=["xyz"]), "has no method 'xyz'"),
        (lambda r: r.curves("loss", "wpbc"), "has no curve 'loss'"),
        (lambda r: r.rows("loss", "wpbc", "olvf"), "has no row values 'loss'"),
        (lambda r: r.table("f1"), "has no metric 'f1'"),
    ],
)
def test_unknown_names(write, call, words: str) -> None:
    results = write({("wpbc", "olvf"): [0.5, 0.6], ("wpbc", "nb3"): [0.5, 0.6]})
    with pytest.raises(UnknownNameError, match=words):
        call(results)


# -- gaps ------------------------------------------------------------------------------------------------------------


def test_failed_missing_skipped_and_undefined_runs_are_named(write) -> None:
    results = write(
        {
            ("t", "whole"): [0.5, 0.6, 0.7],
            ("t", "fails"): [0.9, "out of range\nsecond line", "out of range"],
            ("t", "short"): [0.4, "not run", "not run"],
            ("t", "skips"): [0.3, 0.2, "skip: needs a GPU"],
            ("t", "vague"): [0.3, None, 0.1],
            ("t", "nothing"): ["broken", "broken", "broken"],
        }
    )
    board = results.leaderboard()
    gaps = {row.method: [str(gap) for gap in row.gaps] for row in board.rows}
    assert gaps["whole"] == []
    assert gaps["fails"] == ["t: 2 of 3 failed (out of range)"]
    assert gaps["short"] == ["t: 2 of 3 not run"]
    assert gaps["skips"] == ["t: 1 of 3 skipped (skip: needs a GPU)"]
    assert gaps["vague"] == ["t: 1 of 3 without a value"]
    assert (board.rows[0].method, board.rows[0].rank, board.rows[0].failed) == ("fails", 1, 2)
    assert (board.rows[-1].method, board.rows[-1].rank) == ("nothing", None)
    assert "fails is ranked on what it has (t: 2 of 3 failed (out of range))." in board.notes
    assert any(note.startswith("nothing is not ranked") for note in board.notes)
    assert results.exit_code == 1


def test_a_method_with_few_tasks_is_not_ranked(write) -> None:
    tasks = {("abcde"[t], "all"): [0.5 + 0.05 * t] for t in range(5)}
    tasks |= {("abcde"[t], "half"): [0.4] for t in range(3)}
    results = write(tasks | {(t, "easy"): [0.99] for t in "ab"})
    board = results.leaderboard()
    found = [(row.method, row.rank, row.tasks) for row in board.rows]
    assert found == [("all", 1, 5), ("half", 2, 3), ("easy", None, 2)]
    assert any(note.startswith("easy is not ranked with 2 of 5 tasks (") for note in board.notes)
    assert board.verdict.startswith("all is ahead of half")
    # on the tasks that it has it is ranked, and where no method has many tasks all are
    assert results.leaderboard(task=["a", "b"]).rows[0].method == "easy"
    apart = write({(t, t): [0.1 * i] for i, t in enumerate("pqr")}).leaderboard()
    assert [(row.method, row.rank) for row in apart.rows] == [("r", 1), ("q", 2), ("p", 3)]


def test_a_task_without_any_result_of_a_method(write) -> None:
    benchmark = Benchmark(
        "trial", "", [Metric("accuracy", True, may_be_undefined=True)], lambda t, m, c: {},
        applicable=lambda task, method: "wants images" if (task.name, method.name) == ("u", "b") else None,
    )  # fmt: skip
    for name in "tu":
        benchmark.add_task(name, lambda: None)
    for name in "abc":
        benchmark.add_method(name, lambda: None)
    results = write(
        {("t", "a"): [0.5, 0.5], ("u", "a"): [0.5, 0.5], ("t", "b"): [0.9, 0.9], ("t", "c"): [0.1, 0.1]},
        benchmark=benchmark,
    )
    gaps = {row.method: [str(gap) for gap in row.gaps] for row in results.leaderboard().rows}
    assert gaps == {"a": [], "b": ["u: 2 of 2 not applicable (wants images)"], "c": ["u: 2 of 2 not run"]}
    assert row_of(results, "b").tasks == 1


def test_newest_run_counts_and_old_versions_do_not(write) -> None:
    results = write({("t", "a"): [0.5]})
    store, benchmark = results.store, results.benchmark
    for key, version, started, value in (("new", "1", "2026-02-01", 0.7), ("other", "0", "2026-03-01", 0.9)):
        record = RunRecord(
            key=key, benchmark="trial", version=version, task="t", method="a", seed=0, status="ok", started=started,
            metrics={"accuracy": value},
        )  # fmt: skip
        store.commit(record, store.stage("trial", key))
    again = Results.from_store(benchmark, store)
    assert len(again) == 1
    assert row_of(again, "a").mean == 0.7
    assert len(Results.from_store(benchmark, store, keys=[])) == 0
    assert len(Results.from_store(benchmark, store, keys=["new", "absent"])) == 1


def test_versions_and_metrics_with_quotes(write) -> None:
    metric = Metric('it\'s "m"', True)
    benchmark = Benchmark("trial", "", [metric], lambda t, m, c: {}, version="1'; DROP TABLE runs; --")
    results = write({("t'", 'a"'): [0.25]}, metric=metric, benchmark=benchmark)
    assert row_of(results, 'a"').mean == 0.25


# -- verdicts --------------------------------------------------------------------------------------------------------


def test_told_apart(write) -> None:
    verdict = write({("t", "a"): A, ("t", "b"): B}).leaderboard().verdict
    assert verdict == (
        "a is better than b by 0.099 (95% interval 0.089 to 0.108) over 8 (task, seed) pairs "
        "(exact sign-flip permutation test, p = 0.008)."
    )


def test_not_told_apart(write) -> None:
    noisy = [x + d for x, d in zip(A, [0.03, -0.05, 0.02, -0.04, 0.05, -0.03, 0.01, -0.01])]
    board = write({("t", "a"): A, ("t", "b"): noisy}).leaderboard()
    assert "a and b cannot be told apart: the difference is" in board.verdict
    assert board.rows[1].apart is False


def test_too_few_pairs_and_how_many_seeds_would_do(write) -> None:
    board = write({("t", "a"): A[:5], ("t", "b"): B[:5]}).leaderboard()
    assert "a is ahead of b by 0.098" in board.verdict
    assert "over 5 (task, seed) pairs, but so few cannot tell them apart" in board.verdict
    assert "the least p that a sign-flip or signed-rank test can give is 0.0625" in board.verdict
    assert "at least 6 seeds would be needed" in board.verdict
    assert "Student's t, which assumes normal differences, gives p < 0.001" in board.verdict
    assert board.rows[1].apart is None
    two_tasks = {(t, m): values[:2] for t in "tu" for m, values in (("a", A), ("b", B))}
    assert "at least 3 seeds would be needed" in write(two_tasks).leaderboard().verdict


def test_holm_asks_for_more_pairs_when_there_are_more_methods(write) -> None:
    rng = np.random.default_rng(0)
    scores = {("t", f"m{i}"): (0.9 - 0.1 * i + rng.normal(0, 0.001, 6)).tolist() for i in range(5)}
    board = write(scores).leaderboard()
    assert all(row.apart is None for row in board.rows[1:])
    assert board.notes == [
        "m1, m2, m3, m4 cannot be tested against m0: 4 tests at 0.05 after Holm need 8 pairs each, and there are 6."
    ]
    assert board.verdict.startswith("m0 is better than m1")  # one test, of the first two, needs six


def test_adjusted_p_values_are_holms(write) -> None:
    rng = np.random.default_rng(1)
    scores = {("t", f"m{i}"): (0.9 - 0.01 * i + rng.normal(0, 0.01, 12)).tolist() for i in range(4)}
    results = write(scores)
    rows = results.leaderboard().rows
    first = rows[0].method
    raw = [results.compare(first, row.method).tests.permutation for row in rows[1:]]
    np.testing.assert_allclose([row.p for row in rows[1:]], compare.holm(raw))


def test_seeds_that_change_nothing_are_not_evidence(write) -> None:
    """Twenty copies of one number are one number."""
    results = write({("t", "a"): [0.9] * 20, ("t", "b"): [0.8] * 20})
    found = results.compare("a", "b")
    assert found.tests.n == 1
    assert found.winner is None
    assert "over 1 task, on which seeds change nothing" in results.leaderboard().verdict
    assert results.leaderboard().rows[1].apart is None
    many = {(f"t{i}", m): [x + 0.01 * i] * 3 for i in range(8) for m, x in (("a", 0.9), ("b", 0.8 - 0.002 * i))}
    over_tasks = write(many)
    found = over_tasks.compare("a", "b")
    assert (found.tests.n, found.winner) == (8, "a")
    assert "8 tasks, on which seeds change nothing" in str(found)
    assert found.tests.low < found.tests.difference < found.tests.high


def test_copies_count_for_the_interval_but_not_for_the_test(write) -> None:
    """On u neither method depends on the seed: one pair of evidence, and no spread."""
    results = write({("t", "a"): A, ("t", "b"): B, ("u", "a"): [0.9] * 8, ("u", "b"): [0.8] * 8})
    found = results.compare("a", "b")
    assert found.tests.n == 9
    assert found.unit == "(task, seed) pairs"
    alone = results.compare("a", "b", task="t").tests
    assert found.tests.high - found.tests.low == pytest.approx((alone.high - alone.low) / 2, rel=0.05)


def test_one_of_two_depends_on_the_seed(write) -> None:
    assert write({("t", "a"): A, ("t", "b"): [0.5] * 8}).compare("a", "b").tests.n == 8


def test_pairs_are_shared_ones(write) -> None:
    results = write({("t", "a"): [0.9, 0.8, "failed", 0.7], ("t", "b"): ["failed", 0.5, 0.5, 0.5], ("u", "a"): [0.9]})
    found = results.compare("a", "b")
    assert found.tests.n == 2
    assert found.tests.difference == pytest.approx(0.25)
    nothing = write({("t", "a"): [0.9, "not run"], ("t", "b"): ["not run", 0.5]})
    assert "share no (task, seed) pairs with a result of both" in nothing.leaderboard().verdict


def test_methods_with_the_same_values(write) -> None:
    assert "have the same accuracy over 8" in write({("t", "a"): A, ("t", "b"): A}).leaderboard().verdict


def test_units_and_formats(write) -> None:
    metric = Metric("latency", False, title="time to answer", format=".1f", unit="ms", may_be_undefined=True)
    results = write({("t", "a"): [x * 100 for x in A], ("t", "b"): [x * 100 for x in B]}, metric=metric)
    assert "by 9.9 ms" in results.leaderboard().verdict
    assert "time to answer (ms) ↓" in results.to_text()


# -- tables and ranks ------------------------------------------------------------------------------------------------


def test_table(write) -> None:
    results = write({("t", "a"): A, ("t", "b"): B, ("u", "a"): ["broken"] * 8, ("u", "b"): [0.5, "broken"]})
    table = results.table()
    assert table.mean.shape == (2, 2)
    assert table.mean[0, 0] == pytest.approx(np.mean(A))
    assert math.isnan(table.mean[1, 0])
    assert table.n.tolist() == [[8, 8], [0, 1]]
    assert table.failed.tolist() == [[0, 0], [8, 1]]
    assert table.apart[0].tolist() == [0, 1]
    assert math.isnan(table.low[1, 1])
    lines = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [(line["task"], line["method"], line["runs"]) for line in lines][:2] == [("t", "a", "8"), ("t", "b", "8")]
    assert float(lines[0]["mean"]) == table.mean[0, 0]
    assert "0.814 ± 0.0" in table.to_text()


def test_ranks_are_friedmans(write) -> None:
    rng = np.random.default_rng(0)
    means = {(f"t{i}", f"m{j}"): [0.5 + 0.05 * j + rng.normal(0, 0.05)] for i in range(6) for j in range(4)}
    results = write(means)
    found = results.ranks()
    scores = np.array([[means[f"t{i}", f"m{j}"][0] for j in range(4)] for i in range(6)])
    expected = compare.friedman(scores)
    assert found.friedman.chi_square == pytest.approx(expected.chi_square)
    assert found.mean_ranks.tolist() == sorted(expected.mean_ranks.tolist())
    assert found.critical_difference == compare.critical_difference(4, 6)
    assert found.ranks.mean(axis=0) == pytest.approx(found.mean_ranks)
    assert found.left_out == []
    rows = {row.method: row.mean_rank for row in results.leaderboard().rows}
    assert [rows[m] for m in found.methods] == pytest.approx(found.mean_ranks.tolist())
    assert "critical difference 1.91" in str(found)


def test_ranks_leave_out_what_loses_fewer_values(write) -> None:
    full = {(f"t{i}", f"m{j}"): [0.1 * j + 0.01 * i] for i in range(5) for j in range(4)}
    results = write({k: v for k, v in full.items() if k not in {("t0", "m3"), ("t1", "m3")}})
    assert results.ranks().left_out == ["m3"]
    results = write({k: v for k, v in full.items() if k not in {("t0", "m3"), ("t0", "m2")}})
    assert results.ranks().left_out == ["t0"]


# -- row values ------------------------------------------------------------------------------------------------------


def with_files(results: Results, files: Callable[[str, str, int], Mapping[str, Any]]) -> Results:
    """Put curves and row values beside runs, as `RunContext.save` does."""
    for record in results.records:
        folder = results.store.run_folder(record.benchmark, record.key)
        for name, content in files(record.task, record.method, record.seed).items():
            if name == "rows":
                np.savez_compressed(folder / "rows.npz", **content)
            else:
                (folder / "curves.json").write_text(json.dumps(content))
    return results


def test_test_over_rows(write) -> None:
    rng = np.random.default_rng(0)
    hard = rng.normal(size=200)

    def files(task: str, method: str, seed: int) -> dict[str, Any]:
        loss = hard + (0.1 if method == "b" else 0.0) + np.random.default_rng([seed, ord(method)]).normal(0, 0.05, 200)
        return {"rows": {"accuracy": -loss, "loss": loss}}

    results = with_files(write({("t", m): [0.5, 0.6, 0.7] for m in "ab"}), files)
    found = results.compare_rows("a", "b", "loss", "t", higher_is_better=False)
    assert found.winner == "a"
    assert found.tests.n == 200
    assert found.tests.difference == pytest.approx(-0.1, abs=0.02)
    assert found.tests.low < -0.1 < found.tests.high
    assert "over 200 test rows" in str(found)
    assert results.compare_rows("b", "a", "accuracy", "t").winner == "a"  # a metric's name says which is better
    with pytest.raises(AssayError, match="say which is better"):
        results.compare_rows("a", "b", "loss", "t")
    assert sorted(results.rows("loss", "t", "a")) == [0, 1, 2]


def test_rows_of_splits_of_different_size_are_put_one_after_the_other(write) -> None:
    results = with_files(
        write({("t", m): [0.5, 0.6] for m in "ab"}),
        lambda t, m, s: {"rows": {"hit": np.arange(10 + s) % 3 == (0 if m == "a" else 1)}},
    )
    assert results.compare_rows("a", "b", "hit", "t", higher_is_better=True).tests.n == 21


def test_rows_that_are_not_paired(write) -> None:
    results = with_files(
        write({("t", m): [0.5, "not run" if m == "a" else 0.5] for m in "ab"}),
        lambda t, m, s: {"rows": {"hit": np.ones(10 + (m == "b"))}},
    )
    with pytest.raises(AssayError, match=r"not paired: a has 10 and b 11"):
        results.compare_rows("a", "b", "hit", "t", higher_is_better=True)
    results = with_files(
        write(
            {("t", "a"): [0.5, "not run"], ("t", "b"): ["not run", 0.5]},
        ),
        lambda t, m, s: {"rows": {"hit": np.ones(10)}},
    )
    with pytest.raises(AssayError, match="no seed in common"):
        results.compare_rows("a", "b", "hit", "t", higher_is_better=True)


# -- curves ----------------------------------------------------------------------------------------------------------


def test_curves_on_a_common_grid(write) -> None:
    results = with_files(
        write({("t", m): [0.5, 0.6, 0.7] for m in "ab"}),
        lambda t, m, s: {"curves": {"loss": {"x": [0, 10, 20], "y": [3 + s, 2 + s, 1 + s], "x_label": "rows"}}},
    )
    assert results.curve_names() == ["loss"]
    found = results.curves("loss", "t")
    assert found.x_label == "rows"
    assert list(found.bands) == ["a", "b"]
    assert found.bands["a"].x.tolist() == [0, 10, 20]
    assert found.bands["a"].mean.tolist() == [4, 3, 2]
    assert found.bands["a"].runs == 3
    assert np.all(found.bands["a"].low < 4)
    assert results.curves("loss", "t", max_runs=1).bands["a"].mean.tolist() == [3, 2, 1]


def test_curves_that_end_early_and_come_out_of_order(write) -> None:
    curves = {
        0: {"x": [0.0, 100.0], "y": [1.0, 1.0]},
        1: {"x": [50.0, 0.0, 0.0, math.inf], "y": [0.0, 9.0, 0.0, 7.0]},
    }
    results = with_files(write({("t", "a"): [0.5, 0.6]}), lambda t, m, s: {"curves": {"loss": curves[s]}})
    band = results.curves("loss", "t", points=5).bands["a"]
    assert band.x.tolist() == [0, 25, 50, 75, 100]
    assert band.mean.tolist() == [0.5, 0.5, 0.5, 1, 1]
    assert np.isnan(band.low[3:]).all()


def test_long_curves_are_thinned(write) -> None:
    results = with_files(
        write({("t", "a"): [0.5]}),
        lambda t, m, s: {"curves": {"loss": {"x": list(range(5000)), "y": list(range(5000))}}},
    )
    band = results.curves("loss", "t", points=100).bands["a"]
    assert len(band.x) == 100
    assert (band.x[0], band.x[-1]) == (0, 4999)
    np.testing.assert_array_equal(band.mean, band.x)


# -- speed -----------------------------------------------------------------------------------------------------------


def test_leaderboard_of_many_runs_is_fast() -> None:
    """From columns of 100,000 runs; the store adds the time to list its files."""
    rng = np.random.default_rng(0)
    tasks, methods, seeds = 20, 50, 100
    n = tasks * methods * seeds
    columns = {
        "key": np.array([f"{i:06d}" for i in range(n)], dtype=object),
        "task": np.repeat([f"t{i}" for i in range(tasks)], methods * seeds).astype(object),
        "method": np.tile(np.repeat([f"m{i}" for i in range(methods)], seeds), tasks).astype(object),
        "seed": np.tile(np.arange(seeds), tasks * methods),
        "status": np.full(n, "ok", dtype=object),
        "failure": np.full(n, None, dtype=object),
        "wall_seconds": np.ones(n),
        "m:accuracy": rng.normal(size=n),
    }
    benchmark = Benchmark("trial", "", [Metric("accuracy", True)], lambda t, m, c: {})
    Results(benchmark, Store("nowhere"), {k: v[:1000] for k, v in columns.items()}).leaderboard()
    start = time.process_time()
    board = Results(benchmark, Store("nowhere"), columns).leaderboard()
    assert time.process_time() - start < 3  # of CPU, all threads
    assert len(board.rows) == 50


def test_a_task_that_the_metric_does_not_measure_is_left_out_and_named(tmp_path):
    benchmark = Benchmark(
        "two",
        "Two kinds of tasks",
        [Metric("accuracy", True, may_be_undefined=True), Metric("rmse", False, may_be_undefined=True)],
        lambda task, method, context: {task.data(): float(method.make() + context.seed)},
    )
    benchmark.add_task("classes", lambda: "accuracy", fingerprint="1")
    benchmark.add_task("values", lambda: "rmse", fingerprint="2")
    for name, value in (("low", 1.0), ("high", 2.0)):
        benchmark.add_method(name, lambda value=value: value)
    results = benchmark.run(seeds=range(3), store=tmp_path, progress=False)
    board = results.leaderboard("accuracy")
    assert [(row.method, row.mean, row.gaps) for row in board.rows] == [("high", 3.0, ()), ("low", 2.0, ())]
    assert board.notes[0] == "Left out, since no run there has a value of accuracy: values."
    assert results.leaderboard("rmse").rows[0].method == "low"
