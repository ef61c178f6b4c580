"""Readers on generated logs of the size and layout of the public ones: what comes out, and what it takes.

Answers are generated, so every count is known: the first answer of a student to an item is the one that must be kept.
"""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from assay.diagnosis import formats as r

pytestmark = pytest.mark.slow


def _log(rows, students, items, skills, seed=0):
    """A log in time order with repeats, and the first answers of its cells."""
    rng = np.random.default_rng(seed)
    student = (rng.beta(0.6, 3, rows) * students).astype(np.int64)
    item = (rng.beta(0.7, 2, rows) * items).astype(np.int64)
    correct = rng.integers(0, 2, rows)
    skill = rng.integers(0, skills, items)
    cells, first = np.unique(student * items + item, return_index=True)
    return student, item, correct, skill, cells, correct[first]


def _same(data, student_name, item_name, cells, items, first):
    """Every cell once, with its first answer, under the right names."""
    assert len(data) == len(cells)
    names = {student_name(int(s)): int(s) for s in np.unique(cells // items)}
    who = np.array([names[str(i)] for i in data.student_ids])
    what = np.array([item_name[str(j)] for j in data.item_ids])
    found = who[data.student] * items + what[data.item]
    order = np.argsort(found)
    assert np.array_equal(found[order], cells)
    assert np.array_equal(data.correct[order], first)


def test_assistments_2009_525_534_rows(tmp_path):
    """Skill builder: 346,860 answers of 4,217 students to 26,688 problems; a row a skill makes them 525,534."""
    student, item, correct, skill, cells, first = _log(346_860, 4_217, 26_688, 123)
    second = np.random.default_rng(1).random(26_688) < 0.5
    frame = pd.DataFrame({"order_id": np.arange(len(item)) + 10**7, "user_id": student, "problem_id": item})
    frame["original"], frame["correct"] = 1, correct
    frame["skill_id"], frame["skill_name"] = skill[item], np.char.add("Skill ", skill[item].astype(str))
    for name in ("assignment_id", "tutor_mode", "ms_first_response", "hint_count", "attempt_count", "opportunity"):
        frame[name] = 0
    more = frame[second[item]].assign(
        skill_id=(skill[item][second[item]] + 1) % 123,
        skill_name=np.char.add("Skill ", ((skill[item][second[item]] + 1) % 123).astype(str)),
    )
    both = pd.concat([frame, more]).sort_values("order_id", kind="stable")
    both.to_csv(tmp_path / "a.csv", index=False)
    data = r.read_assistments_2009(tmp_path / "a.csv")
    assert data.notes["merged_rows"] == len(more)
    assert data.notes["repeated"] == len(frame) - len(cells)
    _same(data, str, {str(j): j for j in range(26_688)}, cells, 26_688, first)
    used = np.unique(item)
    assert np.array_equal(np.diff(data.q.indptr), 1 + second[used])


def test_assistments_2012_6_123_270_rows(tmp_path):
    student, item, correct, skill, cells, first = _log(6_123_270, 46_674, 179_999, 265)
    when = pd.Series(np.datetime64("2012-09-01") + np.arange(len(item)).astype("timedelta64[s]"))
    frame = pd.DataFrame({"user_id": student, "problem_id": item, "correct": correct.astype(float)})
    frame["skill_id"], frame["start_time"] = skill[item].astype(float), when.astype(str)
    frame["problem_type"], frame["hint_count"], frame["Average_confidence(FRUSTRATED)"] = "algebra", 0, 0.25
    frame.to_csv(tmp_path / "a.csv", index=False)
    data = r.read_assistments_2012(tmp_path / "a.csv")
    _same(data, str, {str(j): j for j in range(179_999)}, cells, 179_999, first)


def test_assistments_2017_942_816_rows(tmp_path):
    student, item, correct, skill, cells, first = _log(942_816, 1_709, 3_162, 102)
    frame = pd.DataFrame(
        {"studentId": student, "problemId": item, "correct": correct, "startTime": np.arange(len(item))}
    )
    frame["skill"] = np.char.add("skill-", skill[item].astype(str))
    for name in ("AveKnow", "AveCarelessness", "timeTaken", "hint", "sumRight", "Ln-1", "Ln"):
        frame[name] = 0.5
    frame.sample(frac=1.0, random_state=0).to_csv(tmp_path / "a.csv", index=False)  # time decides, not place
    data = r.read_assistments_2017(tmp_path / "a.csv")
    _same(data, str, {str(j): j for j in range(3_162)}, cells, 3_162, first)


def test_ncdm_release_324_572_answers(tmp_path):
    student, item, correct, skill, cells, first = _log(324_572, 4_163, 17_746, 123)
    logs: dict[int, list] = {}
    for s, j, y in zip(student.tolist(), item.tolist(), correct.tolist(), strict=True):
        logs.setdefault(s, []).append({"exer_id": j, "score": float(y), "knowledge_code": [int(skill[j])]})
    users = [{"user_id": s, "log_num": len(rows), "logs": rows} for s, rows in logs.items()]
    (tmp_path / "log_data.json").write_text(json.dumps(users))
    data = r.read_ncdm_release(tmp_path / "log_data.json")
    _same(data, str, {str(j): j for j in range(17_746)}, cells, 17_746, first)


def test_eedi_1_382_727_rows(tmp_path):
    student, item, correct, skill, cells, first = _log(1_382_727, 4_918, 948, 86)
    frame = pd.DataFrame(
        {"QuestionId": item, "UserId": student, "AnswerId": np.arange(len(item)), "IsCorrect": correct}
    )
    frame["CorrectAnswer"], frame["AnswerValue"] = 1, 2
    frame.to_csv(tmp_path / "train_task_3_4.csv", index=False)
    subject = [f"[3, {100 + s // 10}, {200 + s}]" for s in skill]
    pd.DataFrame({"QuestionId": np.arange(948), "SubjectId": subject}).to_csv(
        tmp_path / "question_metadata_task_3_4.csv", index=False
    )
    tree = [(3, "Maths", None), *((100 + t, f"Topic {t}", 3) for t in range(9))]
    tree += [(200 + s, f"Leaf {s}", 100 + s // 10) for s in range(86)]
    pd.DataFrame(tree, columns=["SubjectId", "Name", "ParentId"]).to_csv(tmp_path / "subject_metadata.csv", index=False)
    data = r.read_eedi(tmp_path)
    assert all(name.startswith("Leaf") for name in data.kc_names)
    _same(data, str, {str(j): j for j in range(948)}, cells, 948, first)


def test_junyi_25_925_922_rows(tmp_path):
    """247,606 students, 722 exercises, 1.5 GB of text."""
    n, items = 25_925_922, 722
    student, item, correct, skill, cells, first = _log(n, 247_606, items, 40)
    names = np.char.add("exercise_", np.arange(items).astype(str))
    path = tmp_path / "junyi_ProblemLog_original.csv"
    for start in range(0, n, 2_000_000):
        part = slice(start, start + 2_000_000)
        frame = pd.DataFrame({"user_id": student[part], "exercise": names[item[part]]})
        frame["problem_type"], frame["problem_number"], frame["topic_mode"] = 0, 1, False
        frame["time_done"] = 1_420_714_810_324_490 + np.arange(start, start + len(frame))
        frame["time_taken"], frame["correct"], frame["count_hints"] = 9, correct[part] == 1, 0
        frame.to_csv(path, mode="a", header=start == 0, index=False)
    earlier = ["", *names[:-1]]
    table = pd.DataFrame({"name": names, "prerequisites": earlier, "topic": np.char.add("topic_", skill.astype(str))})
    table.to_csv(tmp_path / "junyi_Exercise_table.csv", index=False)
    data = r.read_junyi(tmp_path)
    assert data.n_kcs == 40
    assert data.prerequisites
    _same(data, str, {f"exercise_{j}": j for j in range(items)}, cells, items, first)


def test_xes3g5m_5_549_635_answers(tmp_path):
    """18,066 students in rows of 200 answers, padded with -1."""
    student, item, correct, skill, cells, first = _log(5_549_635, 18_066, 7_652, 865)
    order = np.argsort(student, kind="stable")
    student, item, correct = student[order], item[order], correct[order]
    one, other = skill.astype(str), ((skill + 1) % 865).astype(str)
    concept = np.where(skill % 3 == 0, np.char.add(np.char.add(one, "_"), other), one)
    bounds = np.flatnonzero(np.r_[True, student[1:] != student[:-1], True])
    rows = []
    for a, b in pairwise(bounds):
        for start in range(a, b, 200):
            end = min(b, start + 200)
            pad = ["-1"] * (200 - (end - start))
            columns = (item[start:end].astype(str), concept[item[start:end]], correct[start:end].astype(str))
            rows.append((0, student[a], *(",".join([*c.tolist(), *pad]) for c in columns)))
    pd.DataFrame(rows, columns=["fold", "uid", "questions", "concepts", "responses"]).to_csv(
        tmp_path / "train_valid_sequences.csv", index=False
    )
    data = r.read_pykt_sequences(tmp_path / "train_valid_sequences.csv")
    _same(data, str, {str(j): j for j in range(7_652)}, cells, 7_652, first)


def test_ednet_20_000_of_784_309_files(tmp_path):
    """2.4 million rows, 121 a user as in the whole; reading is linear in files."""
    student, item, correct, skill, cells, first = _log(2_420_000, 20_000, 13_169, 188)
    folder = tmp_path / "kt1"
    folder.mkdir()
    order = np.argsort(student, kind="stable")
    student, item, correct = student[order], item[order], correct[order]
    bounds = np.flatnonzero(np.r_[True, student[1:] != student[:-1], True])
    for a, b in pairwise(bounds):
        lines = [
            f"{1_560_000_000_000 + t},{t},q{j},{'a' if y else 'b'},23000"
            for t, (j, y) in enumerate(zip(item[a:b].tolist(), correct[a:b].tolist(), strict=True))
        ]
        (folder / f"u{student[a]}.csv").write_text(
            "timestamp,solving_id,question_id,user_answer,elapsed_time\n" + "\n".join(lines) + "\n"
        )
    questions = pd.DataFrame({"question_id": np.char.add("q", np.arange(13_169).astype(str)), "correct_answer": "a"})
    questions["tags"] = np.char.add(skill.astype(str), np.char.add(";", ((skill + 7) % 188).astype(str)))
    questions.to_csv(tmp_path / "questions.csv", index=False)
    data = r.read_ednet_kt1(folder, tmp_path / "questions.csv")
    assert data.notes["rows"] == 2_420_000
    _same(data, lambda s: f"u{s}", {f"q{j}": j for j in range(13_169)}, cells, 13_169, first)
    few = r.read_ednet_kt1(folder, tmp_path / "questions.csv", users=100)
    assert few.n_students == 100


def test_math1_and_slp(tmp_path):
    """Math1: 4,209 students, 20 items, 11 skills, points in [0, 1]. SLP math: 1,499 students."""
    rng = np.random.default_rng(0)
    points = rng.choice([0, 0.5, 1], (4_209, 20))
    q = np.zeros((20, 11), dtype=int)
    q[np.arange(20), np.arange(20) % 11] = 1
    np.savetxt(tmp_path / "data.txt", points, fmt="%g", delimiter="\t")
    np.savetxt(tmp_path / "q.txt", q, fmt="%d", delimiter="\t")
    assert np.array_equal(r.read_math_folder(tmp_path).matrix(), points >= 1)
    student, item, correct, skill, cells, first = _log(57_244, 1_499, 135, 32)
    frame = pd.DataFrame({"student_id": student, "question_id": item, "score": 3 * correct, "full_score": 3})
    frame["concept"] = np.char.add("c", skill[item].astype(str))
    frame.to_csv(tmp_path / "term-math.csv", index=False)
    _same(r.read_slp(tmp_path), str, {str(j): j for j in range(135)}, cells, 135, first)
