"""The numbers that the field must reproduce, one test a check."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import chi2, spearmanr

from assay.diagnosis import (
    DINA,
    DINO,
    GDINA,
    IRT,
    MIRT,
    Hierarchy,
    Rasch,
    ResponseData,
    StudentItemLogit,
    UndefinedMetric,
    leakage_probe,
    qmatrix_validation,
    simulate_platform,
)
from assay.diagnosis.dcm.em import EM, ClassSpace
from assay.diagnosis.dcm.rules import item_rule
from assay.diagnosis.evaluation import figures
from assay.diagnosis.irt.likelihood import Collapsed
from assay.diagnosis.metrics import auc, doa, doa_gain, doa_pooled, identifiability, monotonicity_violations

ALL_RULES = ("GDINA", "DINA", "DINO", "ACDM", "LLM", "RRUM")


def test_check_1_ecpe_gdina_and_dina_likelihoods(table):
    data = table("ecpe")
    full, small = GDINA().fit(data), DINA(monotone=False).fit(data)
    assert full.loglik_ == pytest.approx(-42738.56, abs=0.05)
    assert full.n_params_ == 81
    assert full.aic_ == pytest.approx(85639.1, abs=0.1)
    assert full.bic_ == pytest.approx(86123.5, abs=0.1)
    assert small.loglik_ == pytest.approx(-42841.49, abs=0.05)
    assert small.n_params_ == 63
    ratio = 2 * (full.loglik_ - small.loglik_)
    assert ratio == pytest.approx(206, abs=0.5)
    assert full.n_params_ - small.n_params_ == 18
    assert chi2.sf(ratio, 18) < 1e-30
    assert full.mastery_.mean(0) == pytest.approx([0.380, 0.560, 0.670], abs=0.001)


def test_check_2_fraction15_dina_and_gdina(table):
    data = table("fraction15")
    model = DINA(monotone=False, starts=4).fit(data)
    assert model.n_params_ == 61
    assert model.start_logliks_ == pytest.approx([-3455.76] * 4, abs=0.05)
    assert model.item_params_[[0, 2], 1] == pytest.approx([0.278, 0.038], abs=0.002)
    model = DINA(monotone=False).fit(data)
    assert model.mastery_.mean(0) == pytest.approx([0.798, 0.822, 0.763, 0.606, 0.630], abs=0.002)
    full = GDINA().fit(data)
    assert full.n_params_ == 217
    assert full.loglik_ == pytest.approx(-3216.72, abs=0.05)
    many = GDINA(starts=6).fit(data)
    assert many.loglik_ == pytest.approx(max(many.start_logliks_), abs=1e-4)
    assert many.loglik_ >= full.loglik_
    assert len({round(v, 1) for v in many.start_logliks_}) > 1, "there are local maxima, so several starts matter"


def test_check_3_frcsub_dina_with_eight_skills(table):
    data = table("frcsub")
    model = DINA(monotone=False, starts=4).fit(data)
    assert model.n_params_ == 295
    assert model.start_logliks_ == pytest.approx([-4402.29] * 4, abs=0.01)
    assert model.item_params_[[2, 9], 0] == pytest.approx([0.000, 0.029], abs=0.002)
    assert model.item_params_[12, 1] == pytest.approx(0.335, abs=0.002)


def test_check_4_dtmr_classes_and_accuracy(table):
    import pandas as pd

    from assay.diagnosis.data import SOURCES

    data = table("dtmr")
    model = GDINA().fit(data)
    assert model.loglik_ == pytest.approx(-75887.41, abs=0.05)
    assert model.n_params_ == 85
    truth = pd.read_csv(SOURCES["dtmr_sim_skill_distribution.csv.gz"].fetch())
    given = {tuple(row[:4]): row[4] / truth["freq"].sum() for row in truth.to_numpy()}
    frequency = np.array([given[tuple(c)] for c in model.classes_.astype(int)])
    assert np.abs(model.class_prob_ - frequency).max() <= 0.01
    assert model.mastery_.mean(0) == pytest.approx([0.314, 0.552, 0.630, 0.616], abs=0.02)
    assert model.accuracy()["skills"] == pytest.approx([0.938, 0.932, 0.906, 0.920], abs=0.005)


def test_check_4_true_accuracy_on_simulated_dina():
    for seed in range(3):
        made = simulate_platform(2000, 30, 5, density=1.0, slip=0.1, guess=0.1, seed=seed)
        model = DINA().fit(made.data)
        accuracy = (model.classify() == (made.alpha > 0.5)).mean()
        assert accuracy >= 0.95
        assert model.accuracy()["skills"].mean() == pytest.approx(accuracy, abs=0.02)


def _plain_doa(mastery, data):
    """Pairs one by one."""
    values = []
    q = data.dense_q()
    for k in range(data.n_kcs):
        wins = pairs = 0
        for j in np.flatnonzero(q[:, k]):
            at = data.item == j
            right, wrong = data.student[at & (data.correct == 1)], data.student[at & (data.correct == 0)]
            for a, b in itertools.product(right, wrong):
                if mastery[a, k] != mastery[b, k]:
                    pairs += 1
                    wins += mastery[a, k] > mastery[b, k]
        if pairs:
            values.append(wins / pairs)
    return np.mean(values)


def test_check_5_doa_equals_brute_force_with_ties():
    rng = np.random.default_rng(0)
    for seed in range(5):
        made = simulate_platform(50, 20, 3, density=0.7, seed=seed)
        mastery = rng.integers(0, 5, (50, 3)) / 5
        assert doa_pooled(mastery, made.data) == pytest.approx(_plain_doa(mastery, made.data), abs=1e-12)


def test_check_5_doa_equals_brute_force_where_most_students_have_no_answer():
    rng = np.random.default_rng(1)
    for seed in range(5):
        made = simulate_platform(300, 20, 6, density=0.7, seed=seed)
        few = made.data.take(np.flatnonzero(rng.random(len(made.data)) < 0.04))
        assert len(few.per_skill()[0]) < 300 * 6 / 4
        mastery = rng.integers(0, 4, (300, 6)) / 4
        assert doa_pooled(mastery, few) == pytest.approx(_plain_doa(mastery, few), abs=1e-12)


def test_check_5_doa_equals_edustudio():
    try:
        from edustudio.evaltpl.interpretability_evaltpl import InterpretabilityEvalTPL
    except ImportError as error:
        pytest.skip(f"edustudio is not here: {error}")
    made = simulate_platform(200, 20, 3, density=0.7, seed=1)
    mastery = np.random.default_rng(0).integers(0, 9, (200, 3)) / 9
    peer = InterpretabilityEvalTPL.doa_report(
        InterpretabilityEvalTPL.__new__(InterpretabilityEvalTPL),
        made.data.student,
        made.data.item,
        made.data.correct,
        mastery,
        made.data.q.toarray(),
    )
    assert doa_pooled(mastery, made.data) == pytest.approx(float(peer), abs=1e-9)


def test_check_5_doa_of_random_true_and_constant_mastery(table):
    for name in ("timss11", "frcsub"):
        split = table(name).split("response", 0)
        draws = [
            doa(np.random.default_rng(s).random((split.test.n_students, split.test.n_kcs)), split) for s in range(20)
        ]
        assert np.mean(draws) == pytest.approx(0.5, abs=0.01)
    made = simulate_platform(100, 30, 4, density=1.0, slip=0.0, guess=0.0, q_density=0.0, seed=0)
    assert (made.data.q.sum(1) == 1).all()
    assert doa(made.alpha, made.data) == 1.0
    with pytest.warns(UndefinedMetric):
        assert np.isnan(doa(np.full((100, 4), 0.5), made.data))


def test_check_6_doa_gain_of_2pl_is_zero_and_permuted_students_are_chance(table):
    for name in ("timss11", "ecpe"):
        split = table(name).split("response", 0)
        model = IRT().fit(split.train)
        theta = np.repeat(model.theta_[:, None], split.test.n_kcs, axis=1)
        assert doa_gain(theta, model.theta_, split.test) == 0.0
        rng = np.random.default_rng(0)
        shuffled = [doa(theta[rng.permutation(len(theta))], split) for _ in range(20)]
        assert np.mean(shuffled) == pytest.approx(0.5, abs=0.015)


def test_check_7_em_never_falls_and_collapsing_changes_nothing():
    made = simulate_platform(300, 15, 3, density=0.7, seed=0)
    for rule in ALL_RULES:
        model = GDINA(rule, max_iter=400, tol=1e-6).fit(made.data)
        assert np.diff(model.history_).min() >= -1e-8
    for estimator in (IRT(estimator="em"), IRT("3pl", estimator="em", tol=1e-3), Rasch(estimator="em")):
        assert np.diff(estimator.fit(made.data).history_).min() >= -1e-8
    q = made.data.dense_q()
    space = ClassSpace(q, Hierarchy(3).classes())
    rules = [item_rule("DINA", int(n)) for n in q.sum(1)]
    runs = []
    for collapse in (True, False):
        em = EM(Collapsed(made.data, collapse=collapse), space, rules)
        found = em.run(em.start())
        runs.append((found.log_likelihood, found.parameters.success, found.posterior[em.collapsed.pattern]))
    assert runs[0][0] == pytest.approx(runs[1][0], abs=1e-7)
    assert runs[0][1] == pytest.approx(runs[1][1], abs=1e-6)
    assert runs[0][2] == pytest.approx(runs[1][2], abs=1e-5)


def test_check_7_booklets_of_timss_are_missing_not_wrong(table):
    data = table("timss11-content")
    model = GDINA("DINA", tol=1e-4).fit(data)
    assert np.isfinite(model.loglik_)
    assert np.isfinite(model.item_params_).all()
    # read as wrong, 85.7 per cent of the cells would pull every item to the floor
    correct = np.bincount(data.item, data.correct, data.n_items) / np.bincount(data.item, minlength=data.n_items)
    predicted = np.array(
        [model.predict_proba(data.student[data.item == j], data.item[data.item == j]).mean() for j in range(10)]
    )
    assert predicted == pytest.approx(correct[:10], abs=0.02)


def _two_parameter_sample(seed):
    rng = np.random.default_rng(seed)
    theta, b, a = rng.normal(size=1000), rng.normal(size=30), np.exp(rng.normal(0, 0.3, 30))
    p = 1 / (1 + np.exp(-a * (theta[:, None] - b)))
    x = (rng.random(p.shape) < p).astype(np.int64)
    i, j = np.indices(x.shape)
    return ResponseData(i.ravel(), j.ravel(), x.ravel(), np.ones((30, 1))), x, a, b


@pytest.mark.parametrize("seed", [0, 1])
def test_check_8_irt_recovers_the_truth(seed):
    data, x, a, b = _two_parameter_sample(seed)
    model = IRT(estimator="em").fit(data)
    assert np.sqrt(np.mean((model.item_params_[:, 1] - b) ** 2)) <= 0.2
    assert np.corrcoef(model.item_params_[:, 0], a)[0, 1] >= 0.9
    inside = np.abs(model.item_params_[:, 0] - a) < 3 * model.item_se_[:, 0]
    assert inside.mean() >= 0.9
    rasch = Rasch(estimator="em").fit(data)
    assert np.array_equal(np.argsort(rasch.difficulty_), np.argsort(-x.mean(0), kind="stable")) or spearmanr(
        rasch.difficulty_, -x.mean(0)
    ).statistic == pytest.approx(1.0, abs=1e-9)


def test_check_8_irt_equals_girth_and_mirt():
    girth, mirt = (pytest.importorskip(name) for name in ("girth", "mirt"))
    data, x, _, _ = _two_parameter_sample(0)
    model = IRT(estimator="em", tol=1e-6).fit(data)
    peer = girth.twopl_mml(x.T)
    assert np.sqrt(np.mean((model.item_params_[:, 1] - peer["Difficulty"]) ** 2)) <= 0.01
    assert np.sqrt(np.mean((model.item_params_[:, 0] - peer["Discrimination"]) ** 2)) <= 0.01
    other = mirt.fit_mirt(x, model="2PL", verbose=False)
    assert float(other.log_likelihood) == pytest.approx(model.loglik_, abs=1.0)


def test_check_9_product_form_equals_enumeration_of_parent_states():
    import torch

    from assay.diagnosis.neural.hierarchical import hierarchical_mastery

    for n, dtype, tolerance in itertools.product(range(1, 7), (torch.float32, torch.float64), (None,)):
        tolerance = 1e-6 if dtype is torch.float32 else 1e-14
        generator = torch.Generator().manual_seed(n)
        hierarchy = Hierarchy(n + 1, [(p, n) for p in range(n)])
        prior, given, without = (torch.rand(4, size, generator=generator, dtype=dtype) for size in (n + 1, n, n))
        fast = hierarchical_mastery(prior, given, without, hierarchy)[:, n]
        slow = torch.zeros(4, dtype=dtype)
        for state in itertools.product((0, 1), repeat=n):
            on = torch.tensor(state, dtype=torch.bool)
            weight = torch.where(on, prior[:, :n], 1 - prior[:, :n]).prod(1)
            slow += weight * (torch.where(on, given, without) ** (1 / n)).prod(1)
        assert (fast - slow).abs().max() <= tolerance
    free = hierarchical_mastery(prior, given[:, :0], without[:, :0], Hierarchy(7))
    assert torch.equal(free, prior)


def _trained(name, made):
    from assay.diagnosis import model_class

    kind = model_class(name)
    changes = {"stopping": "fixed(4)", "lr": 0.01} if "stopping" in kind._parameter_names() else {}
    if name == "HierCDF":
        changes["hierarchy"] = [(0, 1)]
    return kind(**changes).fit(made.data)


MONOTONE = (
    "IRT",
    "MIRT",
    "DINA",
    "DINO",
    "GradientDINA",
    "NCDM",
    "KaNCD",
    "CDMFKC",
    "KSCD",
    "RCD",
    "HierCDF",
    "IDCDF",
    "ORCDF",
)


@pytest.mark.parametrize("name", MONOTONE)
def test_check_10_more_mastery_never_lowers_a_prediction(name):
    made = simulate_platform(200, 20, 4, density=0.8, seed=0)
    model = _trained(name, made)
    uniform = np.random.default_rng(1).random((500, 4))
    rng = np.random.default_rng(0)
    assert monotonicity_violations(model.predict_from_mastery, uniform, model.q_, rng, probes=10_000) == 0.0
    if name == "NCDM":
        assert all((layer.positive >= 0).all() for layer in model.network.layers.layers)
        clipped = type(model)(positive="clip", stopping="fixed(3)").fit(made.data)
        assert all((layer.weight >= 0).all() for layer in clipped.network.layers.layers)


def test_check_11_equal_rows_equal_mastery_in_idcdf():
    from assay.diagnosis import IDCDF

    rng = np.random.default_rng(0)
    x = np.repeat(rng.integers(0, 2, (30, 10)), 2, axis=0)
    i, j = np.indices(x.shape)
    data = ResponseData(i.ravel(), j.ravel(), x.ravel(), np.eye(10, 5, dtype=int) + np.eye(10, 5, -5, dtype=int))
    model = IDCDF(stopping="fixed(3)", lr=1e-3).fit(data)
    assert identifiability(model.mastery_, data) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("model", [IRT(), IRT(estimator="em"), MIRT(), DINA(), GDINA()], ids=repr)
def test_check_11_transform_of_training_students_is_their_mastery(model):
    made = simulate_platform(300, 30, 3, density=0.8, model="dina", seed=0)
    model.fit(made.data)
    again = model.transform(made.data)
    for k in range(3):
        assert spearmanr(again[:, k], model.mastery_[:, k]).statistic >= 0.98


def test_check_11_scoring_a_neural_model_again_is_no_worse(table):
    from assay.diagnosis import IDCDF, NCDM

    split = table("frcsub").split("response", 0)
    model = NCDM(lr=0.01, stopping="fixed(12)").fit(split.train, split.valid)
    scored = model.with_students(split.train)
    assert model.penalised_loss(split.train, scored.states_) <= model.penalised_loss(split.train, model.states_)
    first, second = (
        auc(split.test.correct, m.predict_proba(split.test.student, split.test.item)) for m in (model, scored)
    )
    assert abs(first - second) <= 0.03
    inductive = IDCDF(stopping="fixed(5)", lr=1e-3).fit(split.train)
    assert inductive.transform(split.train) == pytest.approx(inductive.mastery_, abs=1e-6)


@pytest.mark.parametrize("name", ["StudentItemLogit", "KCAccuracy", "IRT", "DINA", "NCDM", "IDCDF", "RCD", "ORCDF"])
def test_check_12_flipped_test_labels_change_nothing(name):
    from assay.diagnosis import model_class

    kind = model_class(name)
    model = kind(epochs=2) if "epochs" in kind._parameter_names() else kind()
    leakage_probe(model, simulate_platform(80, 12, 2, density=1.0, seed=5).data.split("student", 0))


def test_check_12_two_stopping_rules_one_split():
    from assay.diagnosis import KSCD

    data = simulate_platform(150, 20, 3, density=0.8, seed=0).data
    stopped = {}
    for rule in ("valid_auc", "fixed(3)"):
        split = data.split("student", 7)
        stopped[rule] = (
            len(KSCD(stopping=rule, lr=0.02, patience=2).fit(split.train, split.valid).history_),
            split.hash,
        )
    assert stopped["valid_auc"][0] != stopped["fixed(3)"][0]
    assert stopped["valid_auc"][1] == stopped["fixed(3)"][1]


@pytest.mark.parametrize(
    ("name", "logit", "two"), [("timss11", 0.7960, 0.7962), ("ecpe", 0.7509, 0.7506), ("frcsub", 0.8852, 0.8908)]
)
def test_check_13_baselines_on_the_response_split(table, name, logit, two):
    split = table(name).split("response", 0)
    for model, value, tolerance in ((StudentItemLogit(), logit, 0.0005), (IRT(), two, 0.001)):
        model.fit(split.train)
        assert auc(split.test.correct, model.predict_proba(split.test.student, split.test.item)) == pytest.approx(
            value, abs=tolerance
        )
    if name == "timss11":
        assert figures(model, split, ["doa"])["doa"] == pytest.approx(0.6901, abs=0.001)


def _pvaf_sample(seed):
    """2,000 x 30, K = 5, slip = guess = .1; ten items each of one, two and three skills, half of the students master
    each; correlation .5 between the abilities behind the skills."""
    rng = np.random.default_rng(seed)
    pairs, triples = (list(itertools.combinations(range(5), n)) for n in (2, 3))
    truth = np.zeros((30, 5), dtype=bool)
    for j in range(30):
        truth[j, [j % 5] if j < 10 else pairs[j % 10] if j < 20 else triples[j % 10]] = True
    alpha = (rng.normal(size=(2000, 1)) + rng.normal(size=(2000, 5))) > 0
    eta = (alpha[:, None, :] | ~truth[None]).all(2)
    x = (rng.random(eta.shape) < np.where(eta, 0.9, 0.1)).astype(int)
    return x, truth, rng


def _answers(x, q):
    i, j = np.indices(x.shape)
    return ResponseData(i.ravel(), j.ravel(), x.ravel(), q.astype(int))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_check_14_pvaf_restores_two_spoilt_rows(seed):
    """One entry removed from an item of two or three skills, one added to an item of one skill, both at random."""
    x, truth, rng = _pvaf_sample(seed)
    q = truth.copy()
    short, long = int(rng.integers(10, 30)), int(rng.integers(10))
    q[short, rng.choice(np.flatnonzero(q[short]))] = False
    q[long, rng.choice(np.flatnonzero(~q[long]))] = True
    spoilt = _answers(x, q)
    proposal = qmatrix_validation(GDINA(tol=1e-6).fit(spoilt), spoilt)
    assert set(proposal.changed) == {short, long}
    assert np.array_equal(proposal.q, truth)


def test_check_14_a_skill_that_nearly_all_have_is_dropped_by_the_cutoff():
    """The limit of the rule, in closed form. Two independent skills, shares r and r'; P = .9 with both, .1 otherwise.

    Given the first alone, P is .1 + .8 r' or .1; its PVAF is r(1-r) r'^2 / (r r' (1 - r r')) = (1-r) r' / (1 - r r').
    With r = .3 and r' = .95 that is .9301, with r' = .97 .9577: above the cutoff of .95 the second skill goes, whatever
    the sample size.
    """
    rng = np.random.default_rng(0)
    for share, expected in ((0.95, 0.9301), (0.97, 0.9577)):
        alpha = rng.random((40_000, 2)) < (0.3, share)
        q = np.array([[1, 0]] * 6 + [[0, 1]] * 6 + [[1, 1]], dtype=bool)
        eta = (alpha[:, None, :] | ~q[None]).all(2)
        data = _answers((rng.random(eta.shape) < np.where(eta, 0.9, 0.1)).astype(int), q)
        proposal = qmatrix_validation(GDINA(tol=1e-4).fit(data), data)
        assert proposal.pvaf[12][(0,)] == pytest.approx(expected, abs=0.015)
        assert proposal.q[12].tolist() == [True, expected < 0.95]


def test_qmatrix_validation_in_rounds_repairs_more():
    """With six of 30 rows spoilt the first fit is off; refitting with what is proposed ends at the truth."""
    x, truth, rng = _pvaf_sample(11)
    q = truth.copy()
    for j in rng.choice(np.arange(10, 30), 3, replace=False):
        q[j, rng.choice(np.flatnonzero(q[j]))] = False
    for j in rng.choice(10, 3, replace=False):
        q[j, rng.choice(np.flatnonzero(~q[j]))] = True
    data = _answers(x, q)
    model = GDINA(tol=1e-5).fit(data)
    proposal = qmatrix_validation(model, data, rounds=5)
    assert np.array_equal(proposal.q, truth)
    assert set(proposal.changed) == set(np.flatnonzero((q != truth).any(1)))
    assert 1 <= proposal.rounds <= 5


def test_dino_is_dina_of_negated_answers():
    """Duality: P_DINO(x = 1 | alpha) with (g, s) equals P_DINA(x = 0 | 1 - alpha) with (s, g)."""
    made = simulate_platform(400, 15, 3, density=1.0, seed=3)
    negated = made.data.with_correct(1 - made.data.correct)
    a, b = DINO(monotone=False).fit(made.data), DINA(monotone=False).fit(negated)
    assert a.loglik_ == pytest.approx(b.loglik_, abs=1e-4)
