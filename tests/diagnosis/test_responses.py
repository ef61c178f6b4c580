"""Own tables, public formats, preprocessing and splits."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pandas as pd
import pytest

from assay.diagnosis import (
    ResponseData,
    check_data,
    from_frame,
    from_matrix,
    load,
    load_groups,
    preprocess,
    read_table,
    simulate_platform,
)
from assay.diagnosis import formats as r
from assay.diagnosis.responses import SCHEMES


@pytest.mark.parametrize("scheme", SCHEMES)
def test_splits_partition_the_answers_and_repeat(scheme):
    data = simulate_platform(100, 30, 4, density=0.7, seed=0).data
    split = data.split(scheme, 3)
    parts = [p for p in (split.train, split.valid, split.test, split.support) if p is not None]
    assert sorted(np.concatenate([p.cells() for p in parts])) == sorted(data.cells())
    assert data.split(scheme, 3).hash == split.hash != data.split(scheme, 4).hash
    if scheme == "new_students":
        assert not set(split.train.student) & set(split.test.student)
        assert set(split.test.student) <= set(split.support.student)
    if scheme == "new_items":
        assert not set(split.train.item) & set(split.test.item)
    if scheme == "student":
        m = np.bincount(data.student, minlength=100)
        assert np.array_equal(np.bincount(split.test.student, minlength=100), np.floor(0.2 * m + 0.5))


def test_preprocess_repeats_until_stable_and_counts():
    data = from_matrix(
        [[1, 0, 1, np.nan], [1, 1, np.nan, np.nan], [0, 1, 1, 1], [1, 0, 0, np.nan]], [[1, 0], [1, 0], [0, 1], [0, 1]]
    )
    kept = preprocess(data, min_logs=3, min_item_logs=2)
    assert (kept.n_students, kept.n_items, kept.student_ids) == (3, 3, (0, 2, 3))
    assert kept.notes["preprocess"]["before"] == {"students": 4, "items": 4, "skills": 2, "responses": 12}
    timss = preprocess(simulate_platform(50, 20, 3, density=0.4, seed=1).data, min_logs=6)
    assert np.bincount(timss.student).min() >= 6


def test_check_says_what_is_wrong():
    data = from_matrix([[1, 0, 0], [1, 1, 0], [1, 0, 0]], [[1, 1], [1, 1], [1, 1]])
    warned = " ".join(check_data(data).warnings)
    assert "only right or only wrong" in warned
    assert "cannot tell all classes apart" in warned
    assert "exactly the same items" in warned


def test_names_sort_and_wide_files_read(tmp_path):
    long = pd.DataFrame(
        {"user": [2, 10, 2], "question": [9, 10, 10], "correct": [1, 0, 1], "skills": ["b~a", "a", "a"]}
    )
    data = from_frame(long)
    assert data.item_ids == (9, 10)
    assert data.student_ids == (2, 10)
    wide = pd.DataFrame({"name": ["ann", "bob"], "i1": [1, 0], "i2": [None, 1]})
    q = pd.DataFrame({"item": ["i2", "i1"], "add": [1, 0], "carry": [0, 1]})
    wide.to_csv(tmp_path / "w.csv", index=False)
    q.to_csv(tmp_path / "q.csv", index=False)
    read = read_table(tmp_path / "w.csv", tmp_path / "q.csv")
    assert read.student_ids == ("ann", "bob")
    assert read.dense_q().tolist() == [[False, True], [True, False]], "rows of Q follow the items by name"
    assert len(read) == 3
    long.to_csv(tmp_path / "l.csv", index=False)
    assert read_table(tmp_path / "l.csv").fingerprint() == data.fingerprint()


def test_public_tables_have_the_published_shape(table):
    for name, mean in (("frcsub", None), ("timss11", 0.5131)):
        data = table(name)
        if mean is not None:
            assert data.correct.mean() == pytest.approx(mean, abs=5e-5)
            assert len(data) == 115_983
    assert load_groups("timss07").shape == (698,)
    assert load("lsat6").correct.reshape(-1, 5).mean(0).tolist() == pytest.approx([0.924, 0.709, 0.553, 0.763, 0.870])


def test_formats_of_public_logs(tmp_path):
    users = [
        {
            "user_id": 1,
            "logs": [
                {"exer_id": 5, "score": 1.0, "knowledge_code": [3, 7]},
                {"exer_id": 6, "score": 0, "knowledge_code": [3]},
            ],
        }
    ]
    (tmp_path / "log_data.json").write_text(json.dumps(users))
    data = r.read_ncdm_release(tmp_path / "log_data.json")
    assert (data.kc_names, data.correct.tolist(), data.dense_q().sum()) == (("3", "7"), [1, 0], 3)

    assist = pd.DataFrame(
        {
            "order_id": [1, 1, 2, 3],
            "user_id": [7, 7, 7, 8],
            "problem_id": [1, 1, 2, 1],
            "original": 1,
            "correct": [1, 1, 0, 0],
            "skill_id": [4, 5, 4, 4],
            "skill_name": ["A", "B", "A", "A"],
        }
    )
    assist.to_csv(tmp_path / "a.csv", index=False)
    data = r.read_assistments_2009(tmp_path / "a.csv")
    assert (len(data), data.notes["merged_rows"], data.kc_names) == (3, 1, ("A", "B"))

    pd.DataFrame({"QuestionId": [1, 2], "UserId": [1, 1], "IsCorrect": [1, 0]}).to_csv(
        tmp_path / "train_task_3_4.csv", index=False
    )
    pd.DataFrame({"QuestionId": [1, 2], "SubjectId": ["[3, 71, 98]", "[3, 71]"]}).to_csv(
        tmp_path / "question_metadata_task_3_4.csv", index=False
    )
    pd.DataFrame(
        {"SubjectId": [3, 71, 98], "Name": ["Maths", "Number", "Fractions"], "ParentId": [None, 3, 71]}
    ).to_csv(tmp_path / "subject_metadata.csv", index=False)
    assert r.read_eedi(tmp_path).kc_names == ("Fractions", "Number")

    (tmp_path / "data.txt").write_text("1 0.5\n0 1\n")
    (tmp_path / "q.txt").write_text("1 0\n0 1\n")
    (tmp_path / "problemdesc.txt").write_text("No.\tType\tFull Score\n1\tObj\t4\n2\tSub\t12\n")
    assert r.read_math_folder(tmp_path).notes["kinds"] == ["Obj", "Sub"]
    assert r.read_math_folder(tmp_path).correct.tolist() == [1, 0, 0, 1]

    (tmp_path / "response.csv").write_text("0,0,1\n0,1,0\n1,0,0\n1,0,1\n")
    (tmp_path / "q_matrix.csv").write_text("1,0\n0,1\n")
    data = r.read_inscd_folder(tmp_path)
    assert (len(data), data.notes["repeated"]) == (3, 1)

    pd.DataFrame({"uid": [1], "questions": ["5,6,-1"], "concepts": ["1_2,2,-1"], "responses": ["1,0,-1"]}).to_csv(
        tmp_path / "seq.csv", index=False
    )
    assert r.read_pykt_sequences(tmp_path / "seq.csv").dense_q().tolist() == [[True, True], [False, True]]

    (tmp_path / "kt1").mkdir()
    pd.DataFrame({"timestamp": [2, 1], "question_id": ["q1", "q1"], "user_answer": ["a", "b"]}).to_csv(
        tmp_path / "kt1" / "u1.csv", index=False
    )
    pd.DataFrame({"question_id": ["q1"], "correct_answer": ["a"], "tags": ["1;2"]}).to_csv(
        tmp_path / "questions.csv", index=False
    )
    data = r.read_ednet_kt1(tmp_path / "kt1", tmp_path / "questions.csv")
    assert (data.correct.tolist(), data.kc_names) == ([0], ("1", "2")), "the first attempt in time counts"

    slp = pd.DataFrame(
        {
            "student_id": [1, 1],
            "question_id": ["a", "b"],
            "score": [2, 1],
            "full_score": [2, 2],
            "concept": ["x;y", "y"],
        }
    )
    slp.to_csv(tmp_path / "term-math.csv", index=False)
    assert r.read_slp(tmp_path).correct.tolist() == [1, 0]

    a12 = pd.DataFrame({"user_id": [1], "problem_id": [2], "correct": [0.5], "skill_id": [3.0], "start_time": ["2012"]})
    a12.to_csv(tmp_path / "a12.csv", index=False)
    assert r.read_assistments_2012(tmp_path / "a12.csv").kc_names == ("3",)
    pd.DataFrame({"studentId": [1], "problemId": [2], "correct": [1], "skill": ["s"], "startTime": [3]}).to_csv(
        tmp_path / "a17.csv", index=False
    )
    assert len(r.read_assistments_2017(tmp_path / "a17.csv")) == 1


def test_junyi_ratings_are_oriented_by_accuracy(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"ex_{j}" for j in range(6)]
    ease = np.linspace(0.9, 0.2, 6)
    rows = [
        (u, n, bool(rng.random() < e), u * 100 + k)
        for u in range(80)
        for k, (n, e) in enumerate(zip(names, ease, strict=True))
    ]
    pd.DataFrame(rows, columns=["user_id", "exercise", "correct", "time_done"]).to_csv(
        tmp_path / "junyi_ProblemLog_original.csv", index=False
    )
    pd.DataFrame(
        {
            "name": names,
            "topic": ["a", "a", "b", "b", "c", "c"],
            "prerequisites": [None, None, "ex_1", None, "ex_3,ex_0", None],
        }
    ).to_csv(tmp_path / "junyi_Exercise_table.csv", index=False)
    pairs = [(a, b) for a in range(6) for b in range(6) if a != b]
    for upside in (1, -1):  # whichever end of the scale means harder
        for part, chosen in (("training", pairs[:20]), ("testing", pairs[20:])):
            frame = pd.DataFrame(
                {
                    "Exercise_A": [names[a] for a, _ in chosen],
                    "Exercise_B": [names[b] for _, b in chosen],
                    "Difficulty_avg": [5 + upside * np.sign(b - a) * 2 for a, b in chosen],
                }
            )
            frame.to_csv(tmp_path / f"relationship_annotation_{part}.csv", index=False)
        data = r.read_junyi(tmp_path)
        assert data.prerequisites == ((0, 1), (0, 2), (1, 2))
        ratings = r.read_junyi_ratings(tmp_path, data)
        assert len(ratings) == 30
        assert all((rating > 0) == (b > a) for a, b, rating in ratings)


def test_data_is_read_only_and_hashes_by_content(tmp_path):
    data = load("lsat7")
    with pytest.raises(ValueError, match="read-only"):
        data.correct[0] = 1
    same = ResponseData(data.student, data.item, data.correct, data.q)
    assert same.fingerprint() == data.fingerprint() != data.with_correct(1 - data.correct).fingerprint()
    with gzip.open(tmp_path / "x.csv.gz", "wt") as file:
        pd.DataFrame({"user": [1], "question": [1], "correct": [1], "skills": ["a"]}).to_csv(file, index=False)
    assert len(read_table(tmp_path / "x.csv.gz")) == 1
