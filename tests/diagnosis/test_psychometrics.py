"""Scores, standard errors, fit, hierarchies, rules, differential functioning and Bradley-Terry against plain versions
of themselves.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize_scalar
from scipy.special import expit

from assay.diagnosis import (
    DINA,
    DINO,
    GDINA,
    IRT,
    MIRT,
    ResponseData,
    bradley_terry,
    choose_rules,
    differential_item_functioning,
    difficulty_from_titles,
    empirical_difficulty,
    fit_statistics,
    from_matrix,
    human_agreement,
    item_fit,
    load,
    preprocess,
    simulate_platform,
)
from assay.diagnosis.dcm.em import EM, ClassSpace, Parameters, merged_classes
from assay.diagnosis.dcm.fit import score_vectors, standard_errors
from assay.diagnosis.dcm.rules import item_rule
from assay.diagnosis.irt.likelihood import Collapsed, score_students
from assay.diagnosis.simulate import wording_judge


def test_scores_against_direct_optimisation():
    data = load("lsat7")
    model = IRT(estimator="em").fit(data)
    x = data.matrix()
    a, d, c = model.slope_, model.intercept_, model.lower_
    rows = [0, 100, 500, 999]

    def log_likelihood(t, i):
        z = a * t - d
        return float(x[i] @ z - np.logaddexp(0, z).sum())

    def information(t):
        p = expit(a * t - d)
        return float(np.sum(a**2 * p * (1 - p)))

    for method, weight in (("map", lambda t: t**2 / 2), ("wle", lambda t: -0.5 * np.log(information(t)))):
        theta, se = score_students(data, a, d, c, method)
        for i in rows:
            found = minimize_scalar(
                lambda t, i=i, weight=weight: -log_likelihood(t, i) + weight(t),
                bounds=(-6, 6),
                method="bounded",
                options={"xatol": 1e-9},
            )
            best = found.x
            assert theta[i] == pytest.approx(best, abs=1e-4)
            assert se[i] == pytest.approx(1 / np.sqrt(information(best) + (method == "map")), abs=1e-4)
    theta, se = score_students(data, a, d, c, "eap")
    grid = np.linspace(-8, 8, 4001)
    for i in rows:
        w = np.exp([log_likelihood(t, i) - t**2 / 2 for t in grid])
        mean = (w @ grid) / w.sum()
        assert theta[i] == pytest.approx(mean, abs=2e-4)
        assert se[i] == pytest.approx(np.sqrt(w @ (grid - mean) ** 2 / w.sum()), abs=2e-4)


def test_lsat_likelihoods_as_published():
    """R's ltm and mirt: LSAT 6 2PL -2466.65, Rasch -2466.94; LSAT 7 2PL -2658.805."""
    for name, model, value in (("lsat6", "2pl", -2466.653), ("lsat6", "1pl", -2466.938), ("lsat7", "2pl", -2658.805)):
        assert IRT(model, estimator="em").fit(load(name)).loglik_ == pytest.approx(value, abs=0.005)


def test_mirt_gradient_and_standard_errors():
    made = simulate_platform(150, 12, 2, density=0.8, model="mirt", guess=0.0, seed=0)
    model = MIRT(tol=1e-5).fit(made.data)
    gradient, hessian = model._information(model.states_[:, :2], made.data)
    assert np.abs(gradient).max() < 1e-3, "students stand at the mode of their posteriors"
    assert model.states_[:, 2:] == pytest.approx(np.sqrt(np.diagonal(np.linalg.inv(hessian), axis1=1, axis2=2)))
    assert model.slope_[~made.data.dense_q()].max() == 0.0
    free = MIRT(dims=3, tol=0.1).fit(made.data)
    assert free.predict_proba([0, 1], [0, 1]).shape == (2,)


def test_hierarchy_removes_classes_and_its_likelihood_is_lower():
    made = simulate_platform(600, 20, 3, density=1.0, hierarchy=[(0, 1), (1, 2)], slip=0.1, guess=0.1, seed=0)
    full, chain = DINA().fit(made.data), DINA(hierarchy=[(0, 1), (1, 2)]).fit(made.data)
    assert (len(full.class_prob_), len(chain.class_prob_)) == (8, 4)
    assert full.loglik_ >= chain.loglik_ - 1e-6
    assert 2 * (full.loglik_ - chain.loglik_) < 20, "the truth is a chain"


def test_monotone_constraint_holds():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (200, 8))
    data = from_matrix(x, [[1, 1]] * 4 + [[1, 0], [0, 1]] * 2)
    model = GDINA(monotone=True, tol=1e-6).fit(data)
    assert np.diff(model.history_).min() >= -1e-7
    for j in range(4):
        table = model.success_table(j)
        assert table[()] <= min(table[(0,)], table[(1,)]) + 1e-6
        assert max(table[(0,)], table[(1,)]) <= table[(0, 1)] + 1e-6
    for kind in (DINA(), DINO()):
        kind.fit(data)
        assert (kind.item_params_[:, 0] <= 1 - kind.item_params_[:, 1] + 1e-6).all()


def test_rules_are_nested():
    data = simulate_platform(500, 20, 3, density=1.0, model="gdina", seed=0).data
    full = GDINA().fit(data)
    for rule in ("DINA", "DINO", "ACDM", "LLM", "RRUM"):
        small = GDINA(rule).fit(data)
        assert small.loglik_ <= full.loglik_ + 0.05
        assert small.n_params_ < full.n_params_
    assert (choose_rules(full, data)["rule"] != "GDINA").sum() >= 1


def test_wald_test_finds_the_rule():
    for kind, expected in (("dina", {"DINA"}), ("gdina", {"ACDM", "LLM", "RRUM"})):
        data = simulate_platform(
            3000, 20, 2, density=1.0, model=kind, slip=0.1, guess=0.15, q_density=0.25, seed=0
        ).data
        table = choose_rules(GDINA().fit(data), data)
        chosen = table.loc[data.dense_q().sum(1) > 1, "rule"]
        assert chosen.isin(expected).mean() > 0.7, "additive rules with as many parameters are hard to tell apart"


@pytest.mark.parametrize("rule", ["DINA", "GDINA", "ACDM", "LLM"])
def test_score_vectors_are_the_gradient(rule):
    """Derivatives by success probabilities of one item against finite differences of the log-likelihood."""
    data = simulate_platform(120, 10, 2, density=0.9, seed=0).data
    model = GDINA(rule, tol=1e-4).fit(data)
    scores, counts, slices = score_vectors(model, data)
    em = EM(Collapsed(data), model.space, model.rules)
    j = int(np.flatnonzero(data.dense_q().sum(1) > 1)[0])
    item = model.rules[j]
    part = slice(model.space.offset[j], model.space.offset[j + 1])
    from assay.diagnosis.dcm.rules import from_probability, to_probability

    eta = np.linalg.lstsq(item.design, from_probability(model.success_[part], item.link), rcond=None)[0]

    def value(delta):
        success = model.success_.copy()
        success[part] = to_probability(item.design @ delta, item.link)
        return em.expectation(Parameters(model.class_prob_, success, {}))[1]

    numeric = approx_fprime(eta, value, 1e-6)
    assert (counts @ scores[:, slices[j]]) == pytest.approx(numeric, abs=0.05)


def test_standard_errors_cover_the_truth():
    made = simulate_platform(3000, 20, 3, density=1.0, slip=(0.1, 0.2), guess=(0.1, 0.3), seed=0)
    estimates, errors = standard_errors(DINA(monotone=False).fit(made.data), made.data)
    guess = np.array([e[0] for e in estimates])
    se = np.array([e[0] for e in errors])
    assert (np.abs(guess - made.guess) < 2 * se).mean() > 0.85


def test_m2_accepts_the_truth_and_rejects_a_wrong_model():
    made = simulate_platform(2000, 15, 3, density=1.0, slip=0.1, guess=0.1, q_density=0.8, seed=2)
    right = fit_statistics(DINA(monotone=False).fit(made.data), made.data)
    wrong = fit_statistics(DINO(monotone=False).fit(made.data), made.data)
    assert right.m2_p > 0.001
    assert wrong.m2_p < 1e-6
    assert wrong.srmsr > 1.3 * right.srmsr
    table = item_fit(DINA().fit(made.data), made.data)
    assert (table["rmsea"] < 0.1).all()
    many = fit_statistics(DINA(tol=1e-3).fit(data := load("lsat6")), data)
    assert np.isfinite(many.srmsr)


def test_fit_statistics_need_classes_and_the_same_students():
    made = simulate_platform(100, 15, 3, density=1.0, seed=2)
    model = DINA().fit(made.data)
    with pytest.raises(ValueError, match="training data"):
        fit_statistics(model, made.data.only_students(range(50)))
    with pytest.raises(ValueError, match="latent classes"):
        fit_statistics(DINA(method="variational").fit(made.data), made.data)


def test_variational_bound_never_falls_and_agrees_with_em():
    made = simulate_platform(500, 40, 4, density=0.8, slip=0.1, guess=0.1, seed=0)
    for kind in (DINA, DINO):
        fast, exact = kind(method="variational").fit(made.data), kind().fit(made.data)
        assert (np.diff(fast.history_) > -1e-2).all(), "pseudo-answers may cost the bound a trifle"
        if kind is DINA:
            assert fast.loglik_ <= exact.loglik_ + 1e-6, "a lower bound of the likelihood"
            assert np.corrcoef(fast.item_params_.ravel(), exact.item_params_.ravel())[0, 1] > 0.95
            assert ((fast.mastery_ > 0.5) == (exact.mastery_ > 0.5)).mean() > 0.93


def test_classification_accuracy_of_certain_posteriors():
    made = simulate_platform(500, 40, 3, density=1.0, slip=0.01, guess=0.01, seed=0)
    model = DINA().fit(made.data)
    found = model.accuracy()
    assert found["pattern"] > 0.97
    assert found["skills"].shape == (3,)
    for method in ("eap", "map", "mle"):
        assert (model.classify(method) == (made.alpha > 0.5)).mean() > 0.97


def test_dif_finds_the_item_that_favours_a_group():
    rng = np.random.default_rng(0)
    theta, group = rng.normal(size=2000), np.arange(2000) % 2
    b = np.linspace(-1, 1, 15)
    z = theta[:, None] - b
    z[:, 7] -= 1.0 * group
    x = (rng.random(z.shape) < expit(1.5 * z)).astype(int)
    data = from_matrix(x, np.ones((15, 1)))
    for match in ("score", "theta"):
        table = differential_item_functioning(data, group, match=match)
        assert table["ets"][7] == "C"
        assert table["mh_odds"][7] > 2
        assert table["lr_uniform_p"][7] < 1e-8
        assert (table["ets"].drop(7) == "A").mean() > 0.9
    with pytest.raises(ValueError, match="students"):
        differential_item_functioning(data, group[:5])
    with pytest.raises(ValueError, match="0 .reference. and 1"):
        differential_item_functioning(data, np.zeros(2000))


def test_mantel_haenszel_by_hand():
    """One stratum: odds ratio (10 x 9) / (5 x 6) = 3; chi2 = (|10 - 7.5| - .5)^2 / var."""
    y = np.r_[np.ones(10), np.zeros(5), np.ones(6), np.zeros(9)]
    group = np.r_[np.zeros(15), np.ones(15)].astype(int)
    from assay.diagnosis.dif import _mantel_haenszel

    odds, chi2, _, se = _mantel_haenszel(y, group, np.zeros(30, dtype=np.int64))
    assert odds == pytest.approx(3.0)
    variance = 15 * 15 * 16 * 14 / (30**2 * 29)
    assert chi2 == pytest.approx((abs(10 - 8) - 0.5) ** 2 / variance)
    assert se == pytest.approx(np.sqrt(1 / 10 + 1 / 5 + 1 / 6 + 1 / 9))


def test_bradley_terry_against_choix_and_its_own_equations():
    rng = np.random.default_rng(0)
    strength = np.array([0.0, 1.0, -1.0, 0.5])
    pairs = []
    for a, b in itertools.permutations(range(4), 2):
        for _ in range(30):
            pairs.append((a, b) if rng.random() < expit(strength[a] - strength[b]) else (b, a))
    found = bradley_terry(pairs, 4, prior=1e-9)
    won, lost = np.array(pairs).T
    expected = sum(
        expit(found[a] - found[b]) * ((won == a) & (lost == b) | (won == b) & (lost == a)).sum()
        for a in [0]
        for b in (1, 2, 3)
    )
    assert expected == pytest.approx((won == 0).sum(), abs=1e-4), "expected wins equal observed wins at the maximum"
    choix = pytest.importorskip("choix")
    assert found == pytest.approx(choix.opt_pairwise(4, pairs) - np.mean(choix.opt_pairwise(4, pairs)), abs=1e-3)


def test_judge_of_titles(tmp_path):
    made = simulate_platform(300, 40, 4, density=0.8, seed=0)
    judged = difficulty_from_titles(made.data.titles, wording_judge, seed=0)
    blind = human_agreement(judged.difficulty, made.ratings)
    accuracy = human_agreement(empirical_difficulty(made.data), made.ratings)
    assert 0.55 < blind["pairwise_accuracy"] < accuracy["pairwise_accuracy"]
    assert judged.calls == 2 * 10 * 40
    assert judged.first_bias < 0.5, "ties go to the second"
    refusing = difficulty_from_titles(["a", "bb", "ccc"], lambda a, b: None if "c" in a else max(a, b, key=len), seed=0)
    assert refusing.refusals > 0
    assert refusing.difficulty.argmax() == 2
    (tmp_path / "j.csv").write_text("first,second,harder\n0,1,1\n1,2,2\n2,0,None\n")
    stored = difficulty_from_titles(["a", "b", "c"], tmp_path / "j.csv")
    assert stored.difficulty.argsort().tolist() == [0, 1, 2]
    assert stored.refusals == 1
    for bad in (
        lambda: difficulty_from_titles(["a"], wording_judge),
        lambda: difficulty_from_titles(["a", "b"], lambda a, b: None),
        lambda: bradley_terry([(0, 9)], 2),
    ):
        with pytest.raises(ValueError):
            bad()


def test_unseen_items_and_students_stand_at_the_mean():
    data = simulate_platform(60, 12, 2, density=1.0, seed=0).data
    train = data.take((data.item != 11) & (data.student != 59))
    for model in (IRT(), IRT(estimator="em"), MIRT(), DINA()):
        model.fit(train)
        p = model.predict_proba([59, 0], [0, 11])
        assert np.isfinite(p).all()
    assert IRT().fit(train).theta_[59] == pytest.approx(0, abs=1e-3)


def test_single_skill_table_of_two_items():
    data = ResponseData([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1], [1, 1, 0, 0, 1, 0], [[1], [1]])
    for model in (IRT(), DINA(), GDINA()):
        assert np.isfinite(model.fit(data).mastery_).all()


def test_classes_that_no_item_tells_apart_are_one_class():
    """DINA merges them, the plain algorithm over all classes does not: same likelihood, items, classes, posteriors."""
    full = simulate_platform(400, 12, 5, density=0.8, q_density=1.0, seed=4).data
    data = preprocess(full.take(full.item >= 3), min_logs=1, min_item_logs=1)
    q = data.dense_q()
    for rule in ("DINA", "DINO"):
        model = GDINA(rule, tol=1e-9).fit(data)
        rules = [item_rule(rule, int(n)) for n in q.sum(1)]
        space = ClassSpace(q, model.classes_)
        first, _ = merged_classes(space, rules)
        assert len(first) < len(space.classes)
        em = EM(Collapsed(data), space, rules)
        plain = em.run(em.start(), tol=1e-9)
        assert model.loglik_ == pytest.approx(plain.log_likelihood, abs=1e-5)
        assert model.success_ == pytest.approx(plain.parameters.success, abs=2e-4)
        assert model.class_prob_ == pytest.approx(plain.parameters.classes, abs=2e-4)
        assert model.posterior_ == pytest.approx(plain.posterior[em.collapsed.pattern], abs=2e-3)
        assert model.transform(data) == pytest.approx(model.mastery_, abs=1e-5)
