"""Figures, searches, comparisons, the benchmark, reports, pictures and the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as sk
from typer.testing import CliRunner

from assay.diagnosis import (
    GDINA,
    IRT,
    MIRT,
    DiagnosisError,
    ItemMean,
    KCAccuracy,
    compare,
    diagnose,
    evaluate,
    load,
    search,
    simulate_platform,
    write_report,
)
from assay.diagnosis import metrics as m
from assay.diagnosis.estimator import skill_weights
from assay.diagnosis.metrics.doa import doa_inscd
from assay.diagnosis.simulate import wording_judge


@pytest.fixture(scope="module")
def made():
    return simulate_platform(200, 24, 3, density=0.8, slip=0.1, guess=0.1, seed=0)


def test_prediction_figures_against_scikit_learn():
    rng = np.random.default_rng(0)
    y, p = rng.integers(0, 2, 500), rng.integers(1, 20, 500) / 20
    assert m.auc(y, p) == pytest.approx(sk.roc_auc_score(y, p), abs=1e-12)
    assert m.accuracy(y, p) == pytest.approx(sk.accuracy_score(y, p >= 0.5))
    assert m.rmse(y, p) == pytest.approx(np.sqrt(sk.mean_squared_error(y, p)))
    assert m.log_loss(y, p) == pytest.approx(sk.log_loss(y, p))
    with pytest.warns(UserWarning, match="only one kind"):
        assert np.isnan(m.auc(np.ones(3, dtype=int), np.array([0.1, 0.2, 0.3])))
    assert m.kappa(np.array([[True, False]]), np.array([[True, False]]))["kappa"] == 1.0


def test_pair_mean_doa_against_pairs_one_by_one(made):
    data = made.data.only_students(range(40))
    mastery = np.random.default_rng(0).integers(0, 6, (40, 3)) / 6
    x, q = data.matrix(), data.dense_q()
    for option in ("skip", "one"):
        values = []
        for k in range(3):
            cells = x[:, q[:, k]]
            shares = []
            for a in range(40):
                for b in range(40):
                    if mastery[a, k] > mastery[b, k]:
                        both = ~np.isnan(cells[a]) & ~np.isnan(cells[b])
                        won, lost = ((cells[a] > cells[b]) & both).sum(), ((cells[a] < cells[b]) & both).sum()
                        if won + lost:
                            shares.append(won / (won + lost))
                        elif option == "one" and both.any():
                            shares.append(1.0)
            values.append(np.mean(shares))
        assert m.doa_pair_mean(mastery, data, no_difference=option, block=7) == pytest.approx(np.mean(values), abs=1e-6)
    assert 0 < doa_inscd(mastery, data) < 1


def test_doa_on_training_answers_is_inflated(made):
    split = made.data.split("student", 0)
    found = evaluate(KCAccuracy(strength=0.5).fit(split.train), split).set_index("metric")["value"]
    assert found["doa_train"] > found["doa_all"] > found["doa"]


def test_one_ability_is_not_specific_and_skills_are(made):
    split = made.data.split("student", 0)
    rng = np.random.default_rng(0)
    one, many = IRT().fit(split.train), GDINA("DINA").fit(split.train)
    assert m.kc_specificity(one.mastery_, split.test, rng) == pytest.approx(0, abs=1e-9)
    assert m.kc_specificity(many.mastery_, split.test, rng) > 0.05
    assert m.doa_gain(made.alpha, one.theta_, split.test) > 0.05


def test_classification_against_the_truth(made):
    split = made.data.split("student", 0)
    model = GDINA("DINA").fit(split.train)
    found = evaluate(model, split, ["classification_accuracy", "classification_kappa"], alpha=made.alpha)
    values = found.set_index("metric")["value"]
    said, true = model.mastery_ > 0.5, made.alpha > 0.5
    assert values["classification_accuracy"] == pytest.approx((said == true).mean())
    assert values["classification_kappa"] == pytest.approx(sk.cohen_kappa_score(said.ravel(), true.ravel()))


def test_properties_of_mastery(made):
    rng = np.random.default_rng(0)
    f = rng.random((50, 3))
    plain = np.mean([np.linalg.norm(f[i] - f[j]) for i in range(50) for j in range(50) if i != j])
    assert m.mean_distance(f) == pytest.approx(plain)
    big = rng.random((4000, 3))
    assert m.mean_distance(big, rng) == pytest.approx(m.mean_distance(big), abs=0.005)
    assert 0 < m.normalised_distance(f) < 1
    reliability = m.split_half_reliability(MIRT(), made.data, rng)
    assert reliability.shape == (3,)
    assert (reliability > 0.3).all()
    assert m.mastery_vs_heldout(made.alpha, made.data) > 0.4
    assert np.isnan(m.identifiability(f, simulate_platform(50, 30, 3, density=1.0, seed=9).data))
    falling = lambda mastery, item: 1 - mastery.mean(1)  # noqa: E731
    assert m.monotonicity_violations(falling, f, np.ones((4, 3), dtype=bool), rng, probes=200) > 0.9


def test_difficulty_of_every_model_is_on_one_scale(made):
    for model in (ItemMean(), IRT(), MIRT(), GDINA("DINA"), KCAccuracy()):
        assert np.corrcoef(model.fit(made.data).difficulty_, made.difficulty)[0, 1] > 0.75
    split = made.data.split(seed=0)
    found = evaluate(IRT().fit(split.train), split, ["difficulty_accuracy"], ratings=made.ratings)
    assert 0.55 < found["value"][0] < 0.95, "the items differ little here, and raters err"


def test_sources_of_difficulty_against_ratings(made, tmp_path):
    from assay.diagnosis import compare_difficulty, read_ratings

    truth = {"truth": made.difficulty, "backwards": -made.difficulty}
    table = compare_difficulty({"2pl": IRT(), "classes": GDINA("DINA")}, made.data, made.ratings, others=truth)
    table = table.set_index("source")
    assert table.index[0] == "truth"
    assert table.index[-1] == "backwards"
    for name in ("truth", "2pl"):
        assert table.loc[name, "low"] < table.loc[name, "pairwise_accuracy"] < table.loc[name, "high"]
    assert table.loc["accuracy baseline", ["over_baseline", "over_low", "over_high"]].tolist() == [0, 0, 0]
    assert table.loc["backwards", "over_high"] < 0
    assert table.loc["truth", "pairwise_accuracy"] == pytest.approx(
        m.pairwise_accuracy(made.difficulty, made.ratings), abs=1e-12
    )
    names = made.data.item_ids
    rows = [(names[a], names[b], r) for a, b, r in made.ratings]
    pd.DataFrame(rows, columns=["a", "b", "harder"]).to_csv(tmp_path / "r.csv", index=False)
    assert read_ratings(tmp_path / "r.csv", made.data) == made.ratings
    for text, message in (
        ("a,b\n", "no column"),
        ("a,b,harder\nx,y,1\n", "none of"),
        ("a,b,harder\n0,1,z\n", "no number"),
    ):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(DiagnosisError, match=message):
            read_ratings(tmp_path / "bad.csv", made.data)
    with pytest.raises(DiagnosisError, match="tie"):
        compare_difficulty({}, made.data, [(0, 1, 0.0)])


def test_a_killed_search_goes_on(made, tmp_path):
    split = made.data.split("student", 0)
    first = search(KCAccuracy(), split, trials=3, folder=tmp_path)
    kept = json.loads(next(tmp_path.glob("search-*.json")).read_text())
    assert len(kept) == 3
    more = search(KCAccuracy(), split, trials=6, folder=tmp_path)
    assert list(more.trials[:3]) == list(first.trials)
    assert min(t["value"] for t in more.trials) <= min(t["value"] for t in first.trials)


def test_comparison_keeps_cells_and_ranks(made, tmp_path):
    from assay.diagnosis import KSCD

    models = {"mean": ItemMean(), "2pl": IRT(), "classes": GDINA("DINA"), "kscd": KSCD(lr=0.02, epochs=15, patience=3)}
    arguments = {"seeds": [0, 1], "stopping": ["valid_logloss", "fixed(2)"], "alpha": made.alpha}
    found = compare(models, made.data, folder=tmp_path, **arguments)
    assert len(found.cells) == 2 * (3 + 2)
    files = {f: f.stat().st_mtime_ns for f in tmp_path.glob("cell-*.json")}
    again = compare(models, made.data, folder=tmp_path, **arguments)
    assert {f: f.stat().st_mtime_ns for f in tmp_path.glob("cell-*.json")} == files
    assert np.allclose(found.cells["auc"], again.cells["auc"])
    assert found.stopping_table().loc["kscd", "range"] > 0
    gains = found.table().set_index("model")
    assert gains.loc["classes", "gain_low"] > 0, "skills decide here, and that is beyond chance"
    assert gains.loc["mean", "gain_high"] < 0
    assert gains.loc["2pl", "gain_over_2pl"] == pytest.approx(0, abs=1e-9)
    ranks = found.rankings().set_index("metric")
    assert -1 <= ranks.loc["doa", "kendall_tau"] <= 1
    assert found.cells.groupby("seed")["split"].nunique().eq(1).all(), "all cells of a seed share one split"


def test_report_of_a_class(made, tmp_path):
    model = GDINA("DINA").fit(made.data)
    found = diagnose(model, made.data, seed=1)
    assert np.array_equal(found.mastery, diagnose(model, made.data, seed=1).mastery)
    for i, plan in enumerate(found.practise):
        for k, items in plan:
            assert found.state()[i, k] != 0
            assert all(made.data.dense_q()[j, k] for j in items)
            solved = made.data.item[(made.data.student == i) & (made.data.correct == 1)]
            assert not set(items) & set(solved.tolist())
    frame = found.frame()
    assert len(frame) == 600
    assert set(frame["state"]) <= {"can", "unsure", "not yet"}
    assert ((frame["low"] <= frame["mastery"]) & (frame["mastery"] <= frame["high"])).all()
    page = write_report(found, tmp_path / "page.html", title="Class <7b>", students=150).read_text()
    assert "Class &lt;7b&gt;" in page
    assert page.count("class='panel student'") == 150
    assert "50 more students are in the table" in page
    assert "http" not in page, "the page needs no network"
    assert "prefers-color-scheme:dark" in page
    assert "@media print" in page


class _Page(HTMLParser):
    """Tags in balance, and what is written between them."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.tags = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_names_are_escaped_wherever_they_stand(made, tmp_path):
    evil = "<script>alert('1')</script>\"' onclick='x"
    names = (evil, *(f"s{i}" for i in range(1, 200)))
    data = replace(
        made.data, student_ids=names, kc_names=(evil, "b", "c"), titles=tuple(f"{evil}{j}" for j in range(24))
    )
    found = diagnose(GDINA("DINA", max_iter=50, tol=1e-2).fit(data), data, refits=0)
    page = _Page()
    page.feed(write_report(found, tmp_path / "page.html", title=evil).read_text())
    assert not page.open
    assert [tag for tag, _ in page.tags].count("script") == 1, "the page's own"
    assert not any("onclick" in attrs for _, attrs in page.tags)
    assert page.text.count(evil) >= 5, "title, heading, grid, student, skill"
    assert any(attrs.get("data-name") == evil for _, attrs in page.tags)


def test_bars_count_the_uncertainty_of_the_items():
    """Truth: the real chance on a typical item. Bars of nine in ten miss it far too often if items count as known."""
    held = {0: [], 20: []}
    for seed in range(3):
        made = simulate_platform(100, 24, 3, density=0.9, slip=(0.05, 0.2), guess=(0.05, 0.3), seed=seed)
        truth = made.probability @ skill_weights(made.data.dense_q())
        model = GDINA("DINA").fit(made.data)
        for refits, shares in held.items():
            low, high = diagnose(model, made.data, refits=refits, seed=seed).interval()
            shares.append(((low <= truth) & (truth <= high)).mean())
    assert np.mean(held[0]) < 0.4
    assert 0.85 <= np.mean(held[20]) <= 0.99


def test_refits_need_the_training_answers(made):
    known, new = made.data.only_students(range(150)), made.data.only_students(range(150, 200))
    model = GDINA("DINA").fit(known)
    assert diagnose(model, new).refits == 0
    with pytest.raises(DiagnosisError, match="training="):
        diagnose(model, new, refits=5)
    found = diagnose(model, new, refits=5, training=known)
    assert found.refits == 5
    assert found.sd.mean() > diagnose(model, new).sd.mean()
    with pytest.raises(DiagnosisError, match="negative"):
        diagnose(model, known, refits=-1)


def test_pictures(made, tmp_path):
    from assay.diagnosis import KSCD
    from assay.diagnosis.plots import (
        plot_auc_against_doa,
        plot_item_classes,
        plot_item_curves,
        plot_mastery,
        plot_stopping,
    )

    model = GDINA("DINA").fit(made.data)
    comparison = compare(["ItemMean", "IRT", "KCAccuracy"], made.data, seeds=[0], metrics=["auc", "doa"])
    rules = ["valid_logloss", "fixed(1)", "fixed(6)"]
    stopped = compare(
        {"kscd": KSCD(lr=0.02, epochs=10), "2pl": IRT()}, made.data, seeds=[0], stopping=rules, metrics=["auc", "doa"]
    )
    lines = plot_stopping(stopped, "auc")
    table = stopped.stopping_table("auc")
    assert table.index.tolist() == ["kscd"], "a model without epochs has no stopping rule"
    (line,) = lines.axes[0].get_lines()
    assert line.get_ydata().tolist() == table.loc["kscd", rules].tolist()
    assert [t.get_text() for t in lines.axes[0].get_xticklabels()] == rules
    for name, figure in (
        ("mastery", plot_mastery(diagnose(model, made.data, refits=0))),
        ("curves", plot_item_curves(IRT(estimator="em").fit(load("lsat7")))),
        ("classes", plot_item_classes(model, 10)),
        ("doa", plot_auc_against_doa(comparison)),
        ("stopping", lines),
    ):
        figure.savefig(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 5000


def test_prerequisites_come_first():
    made = simulate_platform(200, 24, 3, density=1.0, hierarchy=[(0, 1), (1, 2)], slip=0.1, guess=0.1, seed=0)
    found = diagnose(GDINA("DINA", hierarchy=[(0, 1), (1, 2)]).fit(made.data), made.data)
    for i, plan in enumerate(found.practise):
        if found.state()[i, 0] == 2:
            assert {k for k, _ in plan} <= {0, 2}
            assert 1 not in {k for k, _ in plan}


def test_uncertainty_falls_with_answers():
    made = simulate_platform(300, 60, 3, density=0.5, seed=0)
    n = np.bincount(made.data.student, minlength=300)
    few, many = n < np.quantile(n, 0.2), n > np.quantile(n, 0.8)
    for model in (IRT(), MIRT(), KCAccuracy()):
        se = model.fit(made.data).mastery_se_
        assert se[few].mean() > 1.1 * se[many].mean()


def test_benchmark_runs_and_checks(tmp_path):
    from assay.core.check import check_method
    from assay.diagnosis.benchmark import benchmark

    methods = ["itemmean", "irt-em", "hiercdf(epochs=5)", "kcaccuracy(trials=3)"]
    results = benchmark.run(["lsat7"], methods, [0], store=tmp_path, progress=False)
    records = {record.method: record for record in results.records}
    assert all(record.status == "ok" for record in records.values())
    assert records["kcaccuracy(trials=3)"].notes["trials"] == 3
    assert records["hiercdf(epochs=5)"].notes["epochs"] == 5
    assert len({record.notes["split"] for record in records.values()}) == 1
    assert check_method(benchmark, benchmark.get_method("kcaccuracy"), task="lsat7").passed
    assert benchmark.applicable(benchmark.get_task("made-dina"), benchmark.get_method("gdina")) is None
    for task in ("made-hierarchy", "made-new-students", "made-new-items"):
        ok = benchmark.run([task], ["irt"], [0], store=tmp_path, progress=False)
        assert [r.status for r in ok.records] == ["ok"]


def test_budgets_are_the_task_s_and_the_same_for_all_methods(tmp_path):
    from assay.core.benchmark import Task
    from assay.core.run import RunContext
    from assay.diagnosis.benchmark import SMALL_SETS, benchmark, diagnose_once, load_table

    assert {f"{name}-{kind}" for name in SMALL_SETS for kind in ("capped", "searched")} <= set(benchmark.tasks)
    searched = Task("searched", load_table, {"dataset": "lsat7", "trials": 3})
    for name in ("kcaccuracy", "rasch", "irt-em", "kscd(epochs=2)"):
        context = RunContext(0, tmp_path / name, tmp_path / f"{name}-c")
        diagnose_once(searched, benchmark.get_method(name), context)
        assert context.notes["trials"] == 3
    capped = Task("capped", load_table, {"dataset": "lsat7", "seen": 9_500})
    for name in ("kscd", "hiercdf", "hiercdf(stopping=fixed(50))"):
        context = RunContext(0, tmp_path / name, tmp_path / f"{name}-c")
        diagnose_once(capped, benchmark.get_method(name), context)
        assert context.notes["epochs"] == 3, "3,000 training answers; a fourth epoch would see more than 9,500"
    assert searched.data_fingerprint() != capped.data_fingerprint()


def test_command_line(tmp_path, monkeypatch):
    from assay.diagnosis.cli import app

    monkeypatch.chdir(tmp_path)
    run = CliRunner()

    def call(*words):
        result = run.invoke(app, list(words))
        assert result.exit_code == 0, result.output + str(result.exception)
        return result.output

    call("simulate", "made", "--students", "80", "--items", "20", "--skills", "3")
    data = ("made/responses.csv", "--q", "made/q.csv")
    assert "80" in call("check", *data)
    assert "on held-out answers: auc" in call("fit", *data, "-m", "GDINA(rule=DINA)", "--items", "items.csv")
    assert {"difficulty", "guess", "slip"} <= set(pd.read_csv("items.csv").columns)
    call("diagnose", *data, "--fitted", "model.npz", "--table", "t.csv", "-o", "page.html")
    assert len(pd.read_csv("t.csv")) == 240
    assert (tmp_path / "page.html").stat().st_size > 10_000
    few = ("-m", "IRT", "-m", "KCAccuracy", "-m", "ItemMean")
    few += ("-m", "KSCD(epochs=4)", "--stopping", "valid_logloss", "--stopping", "fixed(1)", "--seeds", "1")
    more = ("--min-logs", "1", "--reliability", "-o", "cells.csv")
    output = call("bench", "made/responses.csv", *few, *more)
    assert "Do the rankings agree" in output
    assert "DOA under each stopping rule" in output
    cells = pd.read_csv("cells.csv").set_index(["model", "stopping"])
    assert cells.loc[("IRT", "none"), "gain_over_2pl"] == pytest.approx(0, abs=1e-9)
    assert (cells["gain_low"] <= cells["gain_over_2pl"]).all()
    assert (cells["gain_over_2pl"] <= cells["gain_high"]).all()
    assert np.isfinite(cells.loc[("KSCD(epochs=4)", "fixed(1)"), "kc_reliability"])
    assert len(list(Path("cells").glob("split-*.npz"))) == 1
    output = run.invoke(app, ["bench", "made/responses.csv", "--min-logs", "50"])
    assert output.exit_code != 0, "nobody has so many answers"
    titles = pd.read_csv("made/titles.csv")["title"]
    pairs = [(i, (i * 7 + 3) % 20) for i in range(20) if i != (i * 7 + 3) % 20]
    ids = [f"item{j + 1}" for j in range(20)]
    rows = [(ids[a], ids[b], ids[(a, b)[wording_judge(titles[a], titles[b])]]) for a, b in pairs]
    pd.DataFrame(rows, columns=["first", "second", "harder"]).to_csv("judge.csv", index=False)
    output = call("difficulty", *data, "--ratings", "made/ratings.csv", "--judgements", "judge.csv", "-m", "IRT")
    assert [word in output for word in ("accuracy baseline", "IRT", "judge")] == [True] * 3
    assert "assistments2009" in call("formats")
    assert "NCDM" in call("models")
    assert run.invoke(app, ["check", "nothing.csv"]).exit_code != 0
