"""Benchmarks of a user's own data: made, saved, loaded, resumed; corruptions; fact tracing; the field's protocol."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from assay.attribution import (
    EKFAC,
    KINDS,
    AttributionBenchmark,
    AttributionError,
    CheckpointMismatch,
    Datamodel,
    FactTracing,
    FitSpec,
    GradCos,
    GradDot,
    Influence,
    LexicalOverlap,
    Random,
    Training,
    add_artifact,
    duplicate_rows,
    flip_labels,
    group_classes,
    load_facts,
    load_shapes_split,
    make_fact_corpus,
    make_linear,
    make_shapes,
    mix_source,
    white_square,
)
from assay.attribution.corpus import TEMPLATES
from assay.attribution.data import SMS
from assay.attribution.text import words_of

OPTIONS = {
    "lds": {"n_subsets": 8}, "loo": {"rows": 10}, "brittleness": {"n_test": 5, "k": 20}, "mixed": {},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_built_saved_loaded_and_judged_alike(small, tmp_path, kind):
    options = dict(OPTIONS.get(kind, {}))
    if kind == "mixed":
        options["X_other"] = make_shapes(60, 3, side=8)[0].reshape(60, 64)
    spec = FitSpec(epochs=8)
    made = AttributionBenchmark.from_split(kind, small.data, small.make, spec, folder=tmp_path / "b", **options)
    method = Influence()
    first = made.evaluate(method)
    assert first.ci[0] <= first.score <= first.ci[1] or kind == "topk"
    assert np.isfinite([first.score, first.chance, first.ceiling]).all()
    loaded = AttributionBenchmark.load(tmp_path / "b")
    assert loaded.content_hash() == made.content_hash()
    assert loaded.evaluate(Influence()).score == first.score
    if kind not in ("topk", "loo", "removal", "brittleness"):
        assert first.normalized > made.evaluate(Random()).normalized


def test_a_changed_benchmark_is_refused(small, tmp_path):
    folder = tmp_path / "b"
    AttributionBenchmark.from_split("class", small.data, small.make, FitSpec(epochs=1), folder=folder)
    with pytest.raises(CheckpointMismatch, match="other data or settings"):
        AttributionBenchmark.from_split("class", small.data, small.make, FitSpec(epochs=2), folder=folder)
    with np.load(folder / "data.npz") as file:
        arrays = dict(file)
    arrays["y_train"] = (arrays["y_train"] + 1) % 10
    np.savez(folder / "data.npz", **arrays)
    with pytest.raises(CheckpointMismatch, match="content hash differs"):
        AttributionBenchmark.load(folder)


def test_a_network_of_ones_own_is_given_again_at_load(small, tmp_path):
    def mine():
        return torch.nn.Sequential(torch.nn.Linear(64, 10))

    AttributionBenchmark.from_split("class", small.data, mine, FitSpec(epochs=2), folder=tmp_path)
    with pytest.raises(CheckpointMismatch, match="give make_model"):
        AttributionBenchmark.load(tmp_path)
    assert AttributionBenchmark.load(tmp_path, mine).evaluate(GradDot()).n_used == 40


def test_finished_blocks_of_attributions_are_not_asked_for_again(small, tmp_path):
    bench = AttributionBenchmark.from_split("class", small.data, small.make, FitSpec(epochs=2), folder=tmp_path)
    method = bench.fit(GradDot())
    asked = []
    true = method.attribute
    method.attribute = lambda X, t: asked.append(len(X)) or true(X, t)
    one = bench.attributions(method, small.data.X_test, small.data.y_test, block=15)
    assert asked == [15, 15, 10]
    files = sorted((tmp_path / "attributions").rglob("*.npy"))
    files[1].unlink()
    again = bench.attributions(method, small.data.X_test, small.data.y_test, block=15)
    assert asked == [15, 15, 10, 15]
    np.testing.assert_array_equal(one, again)
    # a method with other settings does not read them
    other = bench.fit(GradDot(target="loss"))
    assert not np.array_equal(bench.attributions(other, small.data.X_test, small.data.y_test, block=15), one)


def test_five_checkpoints_are_kept(small):
    bench = AttributionBenchmark.from_split("class", small.data, small.make, FitSpec(epochs=20))
    assert len(bench.states) == 5
    final = bench.model.state_dict()
    assert all(torch.equal(bench.states[-1][k], final[k]) for k in final)
    assert not torch.equal(bench.states[0]["0.weight"], final["0.weight"])


def test_own_rows_in_one_call(rng):
    X, y = rng.normal(size=(90, 4)).astype("float32"), np.arange(90) % 3
    X[np.arange(90), y] += 3
    from assay.attribution import MLP

    bench = AttributionBenchmark.build("mislabel", X, y, lambda: MLP(4, 3, hidden=(8,)), FitSpec(epochs=10), test=0.2)
    assert len(bench.data.X_test) == 18
    assert bench.data.facts["mislabeled"].sum() == 7
    assert bench.evaluate(GradCos()).normalized > 0.3


# -- corruptions and generators --------------------------------------------------------------------------------------


def test_corruptions_say_what_they_changed(rng):
    y = np.arange(200) % 5
    labels, bad = flip_labels(y, 0.1, groups=[(0, 1), (2, 3, 4)], seed=1)
    assert bad.sum() == 20 and (labels[~bad] == y[~bad]).all() and (labels[bad] != y[bad]).all()
    assert all((a < 2) == (b < 2) for a, b in zip(labels[bad], y[bad], strict=True))
    groups, mapping = group_classes(y, 2, seed=0)
    assert sorted(set(groups)) == [0, 1] and len(mapping) == 5
    X = rng.random((200, 64)).astype("float32")
    marked, where = add_artifact(X, y, white_square, 0.5, 3)
    assert where.sum() == 20 and (y[where] == 3).all()
    assert (marked[where].reshape(-1, 8, 8)[:, -2:, -2:] == 1).all()
    np.testing.assert_array_equal(marked[~where], X[~where])
    rows, labels, foreign = mix_source(X, y, np.full((30, 64), 9.0), 2)
    assert foreign.sum() == 30 and (labels[foreign] == 2).all() and (rows[foreign] == 9).all()
    copies, source = duplicate_rows(X, 0.1)
    np.testing.assert_array_equal(copies, X[source])


def test_generated_images_can_be_told_apart():
    from sklearn.ensemble import RandomForestClassifier

    data = load_shapes_split(train=400, test=150)
    forest = RandomForestClassifier(60, random_state=0).fit(data.X_train.reshape(400, -1), data.y_train)
    assert forest.score(data.X_test.reshape(150, -1), data.y_test) > 0.55  # chance is 0.25
    X, y, w = make_linear(2000, 4, noise=0.1)
    np.testing.assert_allclose(np.linalg.lstsq(X, y, rcond=None)[0], w, atol=0.02)


# -- facts -----------------------------------------------------------------------------------------------------------


def test_facts_are_those_of_the_packages():
    facts = {(f.subject, f.relation): f.object for f in load_facts()}
    assert facts["japan", "capital"] == "tokyo"
    assert facts["gold", "symbol"] == "au"
    assert facts["iron", "number"] == "26"
    assert facts["helium", "series"] == "noble gases"
    assert facts["kenya", "currency"] == "kes"
    assert len(facts) > 1000


def test_entailment_is_exact():
    corpus = make_fact_corpus(40, evidence_per_fact=3, distractors=100, counterfactuals=1, seed=2)
    assert corpus.entailment.sum(1).tolist() == [3] * 40
    for t, fact in enumerate(corpus.facts):
        stated = {template.format(s=fact.subject, o=fact.object) for template in TEMPLATES[fact.relation][1]}
        for i in np.flatnonzero(corpus.entailment[t]):
            assert corpus.texts[i] in stated and corpus.kinds[i] == "evidence"
        for i in np.flatnonzero(corpus.counterfactual[t]):
            assert corpus.texts[i] not in stated and fact.subject in corpus.texts[i]
    # the answer's tokens alone are labelled, and decode to the answer
    for tokens, labels, answer in zip(corpus.query_tokens, corpus.query_labels, corpus.answers, strict=True):
        assert corpus.vocabulary.decode(tokens[labels >= 0]) == " ".join(words_of(answer))
    again = make_fact_corpus(40, evidence_per_fact=3, distractors=100, counterfactuals=1, seed=2)
    assert again.texts == corpus.texts


@pytest.fixture(scope="module")
def tracing():
    torch.set_num_threads(1)
    corpus = make_fact_corpus(20, evidence_per_fact=3, distractors=60, counterfactuals=0, seed=0)
    return FactTracing.build(corpus, Training(dim=32, layers=1, epochs=25))


def test_gradients_trace_facts_far_above_chance(tracing):
    found = {
        type(m).__name__: tracing.evaluate(m, lr=1e-3) for m in (Random(), EKFAC(layers=["blocks.*"]), LexicalOverlap())
    }
    chance = found["Random"]["mrr"].chance
    assert found["Random"]["mrr"].score < 3 * chance
    assert found["EKFAC"]["mrr"].score > 5 * chance
    assert found["EKFAC"]["recall_at_10"].score > found["Random"]["recall_at_10"].score
    assert found["EKFAC"]["tail_patch"].score > found["Random"]["tail_patch"].score
    assert found["LexicalOverlap"]["mrr"].score > 3 * chance  # the subject's name alone goes far


def test_a_language_model_training_goes_on_after_a_stop(tmp_path):
    from assay.attribution import train_language_model

    corpus = make_fact_corpus(5, evidence_per_fact=2, distractors=10, counterfactuals=0)
    settings = Training(dim=16, layers=1, epochs=10)
    whole, states = train_language_model(corpus, settings)
    assert len(states) == 5
    train_language_model(corpus, settings, checkpoint=tmp_path / "lm.pt")
    resumed, _ = train_language_model(corpus, settings, checkpoint=tmp_path / "lm.pt")
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_fact_tracing_at_the_size_of_the_page():
    corpus = make_fact_corpus(60, distractors=240)
    tracing = FactTracing.build(corpus, Training(dim=48, epochs=40))
    ekfac = tracing.evaluate(EKFAC(), lr=1e-3)
    dot = tracing.evaluate(GradDot(), lr=1e-3)
    assert ekfac["mrr"].score > dot["mrr"].score > 5 * dot["mrr"].chance
    assert ekfac["tail_patch"].score > ekfac["tail_patch"].chance


# -- the protocol ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    from assay.attribution.benchmark import benchmark

    store = tmp_path_factory.mktemp("store")
    return benchmark.run(quick=True, seeds=[0], store=store, progress=False), store, benchmark


def test_the_quick_grid_has_a_baseline_and_ranks_as_it_should(quick):
    results, _, benchmark = quick
    assert results.exit_code == 0
    assert [m for m in results.methods if benchmark.methods[m].baseline] == ["random"]
    board = [row.method for row in results.leaderboard("normalized", task="digits-small-lds").rows]
    assert board.index("influence") < board.index("graddot") < board.index("random")


def test_a_record_says_what_was_done(quick):
    results, store, _ = quick
    record = next(r for r in results.records if r.task == "digits-small-lds" and r.method == "influence")
    assert record.notes["metric"] == "lds" and record.notes["n_used"] == 120
    with np.load(store / "attribution" / record.key / "rows.npz") as rows:
        assert np.nanmean(rows["per_sample"]) == pytest.approx(record.metrics["score"])
    assert json.loads((store / "attribution" / record.key / "run.json").read_text())["status"] == "ok"


def test_runs_repeat_from_their_seeds(quick, tmp_path):
    results, _, benchmark = quick
    from assay.attribution.benchmark import prepared

    prepared.cache_clear()
    again = benchmark.run(["digits-small-lds"], ["trak", "influence"], [0], store=tmp_path, progress=False)
    old = {r.method: r.metrics["score"] for r in results.records if r.task == "digits-small-lds"}
    for record in again.records:
        assert record.metrics["score"] == old[record.method]


def test_a_function_of_the_users_own_is_a_method(tmp_path):
    from assay.attribution.benchmark import benchmark

    results = benchmark.run(
        ["digits-small-class"], {"mine": GradDot, "constant": _Constant}, [0], store=tmp_path, progress=False
    )
    scores = {r.method: r.metrics["score"] for r in results.records}
    assert scores["mine"] > 0.5
    assert scores["constant"] == pytest.approx(0.1, abs=0.02)


class _Constant(Random):
    def _parts(self, X, targets):
        yield slice(0, self.n_train_), np.ones((len(X), self.n_train_))


def test_methods_that_retrain_take_their_models_from_benchmarks_on_the_same_rows(small, tmp_path):
    """Two kinds on the same rows share a folder of models; another seed, or changed labels, does not."""
    made = [
        AttributionBenchmark.from_split(kind, small.data, small.make, FitSpec(epochs=4), seed=seed)
        for kind, seed in (("class", 0), ("topk", 0), ("class", 1), ("mislabel", 0))
    ]
    found = []
    for bench in made:
        bench.shared = tmp_path
        method = bench.fit(Datamodel())
        found.append((len(list(tmp_path.iterdir())), method.attribute(small.data.X_test[:3], small.data.y_test[:3])))
    assert [count for count, _ in found] == [1, 1, 2, 3]
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert not np.array_equal(found[0][1], found[2][1])


def test_a_task_whose_file_must_be_fetched_by_hand_is_skipped_with_its_address(tmp_path, monkeypatch):
    """Skipped, and not failed; with the file there it is another run, which is then done."""
    from assay.attribution.benchmark import benchmark

    monkeypatch.setenv("ASSAY_DATA_DIR", str(tmp_path / "empty"))
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / "cache"))
    if SMS.find() is not None:
        pytest.skip("sms_spam_collection.tsv.gz is in the cache of this machine")
    results = benchmark.run(
        tasks=["sms-class", "sms-transformer-mislabel"], methods=["random"], seeds=[0], store=tmp_path, progress=False
    )
    records = list(results.records)
    assert [r.status for r in records] == ["skipped", "skipped"]
    assert all(
        "sms_spam_collection.tsv.gz" in r.failure.message and "ASSAY_DATA_DIR" in r.failure.message for r in records
    )


def test_a_cloze_is_the_beginning_of_a_sentence_of_the_corpus():
    corpus = make_fact_corpus(20, distractors=20, prompts="cloze", seed=1)
    for fact, prompt, answer in zip(corpus.facts, corpus.prompts, corpus.answers, strict=True):
        assert fact.subject in prompt and answer == fact.object
        assert any(t.format(s=fact.subject, o=answer) == f"{prompt} {answer}" for t in TEMPLATES[fact.relation][1])
    with pytest.raises(AttributionError, match="question or cloze"):
        make_fact_corpus(20, prompts="riddle")


def test_exact_match_counts_whole_answers():
    corpus = make_fact_corpus(8, evidence_per_fact=4, distractors=0, counterfactuals=0, prompts="cloze")
    untrained = FactTracing.build(corpus, Training(dim=16, layers=1, epochs=1))
    learned = FactTracing.build(corpus, Training(dim=32, layers=1, epochs=60))
    assert untrained.exact_match() < 0.5 < learned.exact_match() <= 1
    # an answer of more than even probability is the most likely one, word by word
    assert 0 < (learned.answer_probability() > 0.5).mean() <= learned.exact_match()
