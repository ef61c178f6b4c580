"""The formats in which public logs come."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.diagnosis.errors import DiagnosisError
from assay.diagnosis.readers import deduplicate, from_frame, from_matrix
from assay.diagnosis.responses import ResponseData

if TYPE_CHECKING:
    import pandas as pd


def read_assistments_2009(path: str | Path) -> ResponseData:
    """ASSISTments 2009 skill builder (corrected): a row a skill, merged by ``order_id``; scaffolding is left out
    where marked.
    """
    columns = ("user_id", "problem_id", "correct", "skill_id", "skill_name", "order_id", "original")
    frame = _csv(path, columns, encoding="latin-1")
    if "original" in frame:
        frame = frame[frame["original"] == 1]
    names = (
        frame["skill_name"].where(frame["skill_name"].notna(), frame["skill_id"])
        if "skill_name" in frame
        else frame["skill_id"]
    )
    return from_frame(
        frame.assign(skill=names), "user_id", "problem_id", "correct", "skill", sep="\0", order="order_id"
    )


def read_assistments_2012(path: str | Path) -> ResponseData:
    """ASSISTments 2012 (a skill an item)."""
    frame = _csv(path, ("user_id", "problem_id", "correct", "skill_id", "start_time"), encoding="latin-1")
    return from_frame(
        frame, "user_id", "problem_id", "correct", "skill_id", sep="\0", order="start_time", threshold=1.0
    )


def read_assistments_2017(path: str | Path) -> ResponseData:
    """ASSISTments 2017 data mining competition."""
    frame = _csv(path, ("studentId", "problemId", "correct", "skill", "startTime"), encoding="latin-1")
    return from_frame(frame, "studentId", "problemId", "correct", "skill", sep="\0", order="startTime")


def read_ncdm_release(path: str | Path) -> ResponseData:
    """``log_data.json`` as NCDM published it: a list of users with their logs of exer_id, score and knowledge_code."""
    try:
        users = json.loads(Path(path).read_text(encoding="utf-8"))
        rows = [
            (u["user_id"], log["exer_id"], log["score"], "~".join(map(str, log["knowledge_code"])))
            for u in users
            for log in u["logs"]
        ]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise DiagnosisError(
            f"{path} is not in the format of the NCDM release: {type(error).__name__} {error}"
        ) from error
    import pandas as pd

    return from_frame(
        pd.DataFrame(rows, columns=["user", "question", "score", "skills"]), correct="score", threshold=1.0
    )


def read_eedi(folder: str | Path) -> ResponseData:
    """Eedi, NeurIPS 2020 tasks 3 and 4: ``train_task_3_4.csv``, ``question_metadata_task_3_4.csv``,
    ``subject_metadata.csv``.

    Of the subjects of a question only those count that have no child among them (the leaves of the tree).
    """
    import ast

    import pandas as pd

    answers = _csv(_in(folder, "train_task_3_4.csv"), ("UserId", "QuestionId", "IsCorrect"))
    questions = _csv(_in(folder, "question_metadata_task_3_4.csv"))
    subjects = _csv(_in(folder, "subject_metadata.csv")).set_index("SubjectId")
    parent = subjects["ParentId"].to_dict()
    names = subjects["Name"].to_dict()

    def leaves(text: str) -> str:
        found = ast.literal_eval(text)
        above = {parent.get(s) for s in found}
        return "~".join(str(names.get(s, s)) for s in found if s not in above)

    skills = pd.Series(questions["SubjectId"].map(leaves).to_numpy(), index=questions["QuestionId"])
    return from_frame(answers.assign(skills=answers["QuestionId"].map(skills)), "UserId", "QuestionId", "IsCorrect")


def read_junyi(folder: str | Path) -> ResponseData:
    """Junyi Academy 2015: problem log, exercise table (topics as skills, prerequisites between them)."""
    columns = ("user_id", "exercise", "correct", "time_done")
    log = _csv(_in(folder, "junyi_ProblemLog_original.csv"), columns, dtype={"exercise": "category"})
    exercises = _csv(_in(folder, "junyi_Exercise_table.csv"))
    topic = exercises.set_index("name")["topic"]
    if log["correct"].dtype != bool:
        log["correct"] = log["correct"].map({True: 1, False: 0, "true": 1, "false": 0})
    log = log.assign(skill=log["exercise"].map(topic), right=log.pop("correct").astype(float))
    data = from_frame(log, "user_id", "exercise", "right", "skill", sep="\0", order="time_done")
    place = {name: k for k, name in enumerate(data.kc_names)}
    edges = set()
    for name, before in zip(exercises["name"], exercises["prerequisites"].fillna(""), strict=True):
        for earlier in str(before).split(","):
            a, b = place.get(str(topic.get(earlier.strip()))), place.get(str(topic.get(name)))
            if a is not None and b is not None and a != b:
                edges.add((a, b))
    return replace(
        data, prerequisites=tuple(sorted(edges)), titles=tuple(str(i).replace("_", " ") for i in data.item_ids)
    )


def read_junyi_ratings(folder: str | Path, data: ResponseData) -> list[tuple[int, int, float]]:
    """Human ratings of Junyi: (item a, item b, how much harder b is), oriented by the accuracy of the items.

    The files give a rating of 1 to 9 for ``Exercise_A`` against ``Exercise_B``; which end means harder is taken from
    the data:
    the orientation that agrees with the share of wrong answers.
    """
    import pandas as pd

    place = {str(name): j for j, name in enumerate(data.item_ids)}
    frames = [_csv(_in(folder, f"relationship_annotation_{part}.csv")) for part in ("training", "testing")]
    table = pd.concat(frames)
    rows = [
        (place[str(a)], place[str(b)], float(r) - 5)
        for a, b, r in zip(table["Exercise_A"], table["Exercise_B"], table["Difficulty_avg"], strict=True)
        if str(a) in place and str(b) in place
    ]
    n, right = (np.bincount(data.item, w, data.n_items) for w in (None, data.correct))
    wrong = 1 - right / np.maximum(n, 1)
    agreement = sum(np.sign(r) * np.sign(wrong[b] - wrong[a]) for a, b, r in rows)
    return [(a, b, r if agreement >= 0 else -r) for a, b, r in rows]


def read_math_folder(folder: str | Path, *, threshold: float = 1.0) -> ResponseData:
    """Math1, Math2 or FrcSub: ``data.txt`` (points in [0, 1], students in rows), ``q.txt``, ``qnames.txt``.

    Where ``problemdesc.txt`` says which items are objective and which are worked out in writing (``Obj``, ``Sub``),
    ``notes["kinds"]`` holds it: points of the latter are shares, and ``threshold`` decides on them.
    """
    table = np.loadtxt(_in(folder, "data.txt"))
    q = np.loadtxt(_in(folder, "q.txt"), ndmin=2)
    names: list[str] = []
    if (Path(folder) / "qnames.txt").is_file():
        lines = (Path(folder) / "qnames.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        names = [line.split("\t")[-1].strip() for line in lines if line.strip()]
    names = names[-q.shape[1] :] if len(names) >= q.shape[1] else []
    data = from_matrix((table >= threshold).astype(float), q, kc_names=names or None)
    described = Path(folder) / "problemdesc.txt"
    if described.is_file():
        words = [line.split() for line in described.read_text(encoding="utf-8", errors="replace").splitlines()]
        kinds = [next((w for w in row if w in ("Obj", "Sub")), None) for row in words]
        kinds = [kind for kind in kinds if kind]
        if len(kinds) == data.n_items:
            data = replace(data, notes={**data.notes, "kinds": kinds})
    return data


def read_inscd_folder(folder: str | Path) -> ResponseData:
    """``response.csv`` (student, item, score; zero-based, no header) and ``q_matrix.csv`` (no header)."""
    rows = np.loadtxt(_in(folder, "response.csv"), delimiter=",", ndmin=2)
    q = np.loadtxt(_in(folder, "q_matrix.csv"), delimiter=",", ndmin=2)
    cells = rows[:, 0].astype(np.int64) * len(q) + rows[:, 1].astype(np.int64)
    keep, answer = deduplicate(cells, (rows[:, 2] >= 1).astype(np.uint8), "first")
    used = q.any(0)
    return ResponseData(
        rows[keep, 0].astype(np.int64),
        rows[keep, 1].astype(np.int64),
        answer,
        q[:, used],
        notes={"repeated": len(rows) - len(keep)},
    )


def read_pykt_sequences(path: str | Path) -> ResponseData:
    """Sequence files of XES3G5M (and of pykt): comma-joined questions, concepts, responses a row; -1 is padding."""
    import pandas as pd

    frame = _csv(path, ("uid", "questions", "concepts", "responses"), dtype=str)
    parts = {name: [text.split(",") for text in frame[name]] for name in ("questions", "concepts", "responses")}
    n = [len(row) for row in parts["questions"]]
    for name, column in parts.items():
        bad = next((i for i, row in enumerate(column) if len(row) != n[i]), None)
        if bad is not None:
            raise DiagnosisError(f"line {bad + 2} of {path} has {n[bad]} questions and {len(column[bad])} {name}")
    flat = {name: np.concatenate(column) for name, column in parts.items()}
    there = (flat["questions"] != "-1") & (flat["responses"] != "-1")
    table = pd.DataFrame({"user": np.repeat(frame["uid"].to_numpy(), n)[there]})
    table["question"] = flat["questions"][there]
    table["correct"] = flat["responses"][there].astype(np.int64)
    table["skills"] = pd.Series(flat["concepts"][there]).str.replace("_", "~")
    for name in ("user", "question"):  # numbers in order where they are numbers
        if table[name].str.isdigit().all():
            table[name] = table[name].astype(np.int64)
    return from_frame(table)


def read_ednet_kt1(folder: str | Path, questions: str | Path, *, users: int | None = None) -> ResponseData:
    """EdNet KT1: a file a user (``u*.csv`` with timestamp, question_id and user_answer), and ``questions.csv``
    (correct_answer, tags).

    Of each user only the first answer to a question is kept while reading, so that memory is that of the result.

    Parameters
    ----------
    folder, questions : path
    users : int, optional
        Read only so many files (the first by name); all of EdNet are 784,309.
    """
    import pandas as pd

    key = _csv(questions, ("question_id", "correct_answer", "tags")).drop_duplicates("question_id")
    place = {name: j for j, name in enumerate(key["question_id"].astype(str))}
    correct = key["correct_answer"].astype(str).tolist()
    files = sorted(Path(folder).glob("u*.csv"))[:users]
    if not files:
        raise DiagnosisError(f"there is no file u*.csv in {folder}")
    parts: list[NDArray[np.int32]] = []
    answers: list[NDArray[np.uint8]] = []
    rows = 0
    for file in files:
        head, *lines = file.read_text(encoding="utf-8").splitlines()
        names = head.split(",")
        absent = [c for c in ("timestamp", "question_id", "user_answer") if c not in names]
        if absent:
            raise DiagnosisError(f"{file} has no column {absent}; its columns are {names}")
        when, what, said = (names.index(c) for c in ("timestamp", "question_id", "user_answer"))
        log = [line.split(",") for line in lines if line]
        rows += len(log)
        log.sort(key=lambda row: int(row[when]))
        first: dict[int, bool] = {}
        for row in log:
            j = place.get(row[what], -1)
            if j >= 0 and row[said] and j not in first:
                first[j] = row[said] == correct[j]
        parts.append(np.fromiter(first.keys(), np.int32, len(first)))
        answers.append(np.fromiter(first.values(), np.uint8, len(first)))
    item = np.concatenate(parts)
    tags = pd.Categorical(key["tags"].astype(str))
    user = np.repeat(np.arange(len(parts)), [len(p) for p in parts])
    table = pd.DataFrame(
        {
            "user": pd.Categorical.from_codes(user, pd.Index([file.stem for file in files])),
            "question": pd.Categorical.from_codes(item, pd.Index(list(place))),
            "right": np.concatenate(answers),
            "tags": pd.Categorical.from_codes(tags.codes[item], pd.Index(tags.categories)),
        }
    )
    data = from_frame(table, "user", "question", "right", "tags", sep=";")
    return replace(data, notes={**data.notes, "rows": rows})


def read_slp(folder: str | Path, subject: str = "math") -> ResponseData:
    """Smart Learning Partner: ``term-<subject>.csv`` (student_id, question_id, score, full_score, concept)."""
    columns = ("student_id", "question_id", "score", "full_score", "concept")
    frame = _csv(_in(folder, f"term-{subject}.csv"), columns)
    share = frame["score"] / frame["full_score"].where(frame["full_score"] > 0)
    return from_frame(
        frame.assign(share=share), "student_id", "question_id", "share", "concept", sep=";", threshold=1.0
    )


READERS: Mapping[str, Callable[..., ResponseData]] = {
    "assistments2009": read_assistments_2009,
    "assistments2012": read_assistments_2012,
    "assistments2017": read_assistments_2017,
    "ncdm": read_ncdm_release,
    "eedi": read_eedi,
    "junyi": read_junyi,
    "math": read_math_folder,
    "inscd": read_inscd_folder,
    "xes3g5m": read_pykt_sequences,
    "ednet": read_ednet_kt1,
    "slp": read_slp,
}


def _csv(path: str | Path, columns: Sequence[str] | None = None, **options: Any) -> pd.DataFrame:
    """A table; of ``columns`` those that are there, because public logs hold dozens that nobody needs here."""
    import pandas as pd

    if not Path(path).is_file():
        raise DiagnosisError(f"there is no file {path}")
    if columns is None:
        return pd.read_csv(path, low_memory=False, **options)
    frame = pd.read_csv(path, low_memory=False, usecols=lambda name: name in columns, **options)
    if frame.shape[1] < 2:
        raise DiagnosisError(f"{path} has none of the columns {list(columns)}: is it another file?")
    return frame


def _in(folder: str | Path, name: str) -> Path:
    path = Path(folder) / name
    if not path.is_file():
        raise DiagnosisError(f"{folder} has no file {name}")
    return path
