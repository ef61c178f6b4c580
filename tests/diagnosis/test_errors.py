"""Each named error is raised by the bad input that it is for, with a message that says what to do."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from assay.diagnosis import (
    DINA,
    GDINA,
    IRT,
    MIRT,
    CyclicHierarchy,
    DiagnosisError,
    DiagnosisModel,
    DuplicateResponses,
    EmptyKC,
    Hierarchy,
    LeakageError,
    NonBinaryResponse,
    NotConverged,
    NotFitted,
    QMatrix,
    QMatrixMismatch,
    ResponseData,
    TooManyClasses,
    UnknownName,
    calibrated_mastery,
    evaluate,
    from_frame,
    from_matrix,
    load,
    model_class,
    preprocess,
    read_table,
    simulate_platform,
)
from assay.diagnosis.responses import Split


def _log(**columns):
    return pd.DataFrame(
        {"user": ["a", "a", "b"], "question": ["x", "y", "x"], "correct": [1, 0, 1], "skills": "k", **columns}
    )


def test_items_missing_on_either_side_are_named():
    q = pd.DataFrame({"k": [1, 1]}, index=["x", "z"])
    with pytest.raises(QMatrixMismatch, match=r"no row in the Q-matrix \(y\).*have no response \(z\).*missing='drop'"):
        from_frame(_log(), q=q)
    assert from_frame(_log(), q=q, missing="drop").item_ids == ("x",)
    with pytest.raises(QMatrixMismatch, match="transposed"):
        from_matrix(np.ones((5, 3)), np.ones((2, 3)))
    with pytest.raises(QMatrixMismatch, match="only 1 rows"):
        ResponseData([0, 0], [0, 1], [1, 1], [[1]])
    with pytest.raises(QMatrixMismatch, match="needs no skill"):
        GDINA().fit(ResponseData([0, 1], [0, 1], [1, 0], [[1], [0]]))
    with pytest.raises(QMatrixMismatch, match="another Q-matrix"):
        IRT().fit(load("lsat6")).transform(from_matrix([[1, 0]], [[1], [1]]))


def test_a_skill_without_items_is_named():
    with pytest.raises(EmptyKC, match="carry"):
        from_matrix([[1, 0]], [[1, 0], [1, 0]], kc_names=["add", "carry"])
    with pytest.raises(EmptyKC, match="column 1"):
        QMatrix([[1, 0]])
    with pytest.raises(DiagnosisError, match="0 and 1"):
        QMatrix([[2, 1]])


def test_answers_that_are_no_zero_or_one_are_shown():
    with pytest.raises(NonBinaryResponse, match=r"0\.5.*graded"):
        from_frame(_log(correct=[1, 0.5, 0]))
    with pytest.raises(NonBinaryResponse, match="'yes'"):
        from_frame(_log(correct=["yes", "1", "0"]))
    with pytest.raises(NonBinaryResponse, match="2"):
        ResponseData([0], [0], [2], [[1]])
    assert from_frame(_log(correct=[1, 0.5, 0]), threshold=0.5).correct.tolist() == [1, 1, 0]


def test_repeated_answers_need_a_decision():
    with pytest.raises(DuplicateResponses, match=r"student 'ann' on item 'q'.*on_duplicate"):
        ResponseData([0, 0], [0, 0], [1, 0], [[1]], student_ids=("ann",), item_ids=("q",))
    with pytest.raises(DuplicateResponses):
        from_frame(_log(question=["x", "x", "x"]), on_duplicate="raise")


def test_too_many_skills_for_classes():
    made = simulate_platform(30, 20, 16, density=1.0, seed=0)
    with pytest.raises(TooManyClasses, match="variational"):
        GDINA().fit(made.data)
    with pytest.raises(TooManyClasses):
        Hierarchy(17, [(0, 1)]).classes()
    chain = [(k, k + 1) for k in range(15)]
    assert len(GDINA("DINA", hierarchy=chain).fit(made.data).class_prob_) == 17


def test_a_cycle_is_printed():
    with pytest.raises(
        CyclicHierarchy,
        match="add -> carry -> borrow -> add|carry -> borrow -> add -> carry|borrow -> add -> carry -> borrow",
    ):
        Hierarchy(4, [(0, 1), (1, 2), (2, 0), (2, 3)], names=["add", "carry", "borrow", "divide"])
    with pytest.raises(DiagnosisError, match="does not exist"):
        Hierarchy(2, [(0, 5)])


def test_an_optimiser_that_stops_early_says_so():
    with pytest.warns(NotConverged, match=r"max \|gradient\|"):
        IRT(max_iter=2).fit(load("lsat6"))
    with pytest.warns(NotConverged, match="gain"):
        IRT(estimator="em", max_iter=2).fit(load("lsat6"))
    with pytest.warns(NotConverged, match="gain"):
        DINA(max_iter=3).fit(simulate_platform(100, 12, 3, seed=0).data)


def test_test_answers_in_training_are_found():
    data = simulate_platform(100, 20, 3, density=1.0, seed=0).data
    split = data.split("student", 0)
    with pytest.raises(LeakageError, match=f"{len(split.test):,} of {len(split.test):,} test answers"):
        evaluate(IRT().fit(data), split, "auc")
    from assay.diagnosis import RCD

    with pytest.raises(LeakageError, match="graph"):
        evaluate(RCD(epochs=1).fit(data), split, "auc")
    with pytest.raises(LeakageError, match="in training and in validation"):
        IRT().fit(data, split.valid)


def test_use_before_fit_and_unknown_names():
    with pytest.raises(NotFitted, match="call fit"):
        IRT().predict_proba([0], [0])
    for bad in (
        lambda: load("frcsubb"),
        lambda: model_class("NCDMM"),
        lambda: load("lsat6").split("studnt"),
        lambda: IRT(model="4pl").fit(load("lsat6")),
        lambda: GDINA("DIMA").fit(load("lsat6")),
        lambda: IRT().set_params(slope=1),
        lambda: evaluate(IRT(), load("lsat6").split(), "aucc"),
    ):
        with pytest.raises(UnknownName, match="there is no"):
            bad()


def test_parameters_out_of_range_are_refused():
    data = load("lsat6")
    model = IRT().fit(data)
    for bad in (
        lambda: calibrated_mastery(model, threshold=1.5),
        lambda: MIRT(dims=0).fit(data),
        lambda: MIRT(correlation=1.0).fit(data),
        lambda: GDINA(starts=0).fit(data),
        lambda: simulate_platform(10, 2, 5),
        lambda: data.split(test=1.2),
        lambda: model.predict_proba([5000], [0]),
        lambda: preprocess(data, min_logs=50),
        lambda: from_frame(_log(), student="usr"),
        lambda: read_table("no-such-file.csv"),
        lambda: ResponseData([0.5], [0], [1], [[1]]),
        lambda: ResponseData([-1], [0], [1], [[1]]),
        lambda: MIRT(dims=3).fit(data).mastery_,
        lambda: model.fit(data.take(np.zeros(len(data), dtype=bool))),
    ):
        with pytest.raises(DiagnosisError):
            bad()


def test_files_that_are_not_ours(tmp_path):
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    with pytest.raises(DiagnosisError, match="not a saved"):
        DiagnosisModel.load(tmp_path / "other.npz")
    split = load("lsat6").split("student", 0)
    split.save(tmp_path / "split.npz")
    assert Split.load(tmp_path / "split.npz", load("lsat6")).hash == split.hash
    with pytest.raises(DiagnosisError, match="other data"):
        Split.load(tmp_path / "split.npz", load("lsat7"))
