"""Logs and tables of one's own."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from assay.diagnosis.errors import DiagnosisError, DuplicateResponses, NonBinaryResponse, QMatrixMismatch, UnknownName
from assay.diagnosis.responses import ResponseData

if TYPE_CHECKING:
    import pandas as pd

DUPLICATES = ("first", "last", "mean", "raise")


def from_frame(
    df: pd.DataFrame,
    student: str = "user",
    item: str = "question",
    correct: str = "correct",
    skills: str | None = "skills",
    *,
    sep: str = "~",
    q: pd.DataFrame | None = None,
    order: str | None = None,
    title: str | None = None,
    on_duplicate: str = "first",
    threshold: float | None = None,
    blank_is_wrong: bool = False,
    missing: str = "raise",
) -> ResponseData:
    """A long table, a row an answer.

    Rows that repeat an answer once for each skill (same student, item and ``order``) are merged first: the item then
    needs all of these skills, and the answer counts once.

    Parameters
    ----------
    df : DataFrame
    student, item, correct : str
        Columns. Rows with an empty answer are left out, or wrong with ``blank_is_wrong``.
    skills : str, optional
        Column of the item's skills, several joined by ``sep``; not needed with ``q``.
    q : DataFrame, optional
        Q-matrix with the items as index, the skills as columns.
    order : str, optional
        Column of time; answers are sorted by it before the first is taken.
    title : str, optional
        Column with the text of the item.
    on_duplicate : {"first", "last", "mean", "raise"}
        Which answer of several counts; ``mean`` is right if at least half of them were.
    threshold : float, optional
        Points at or above it are right.
    missing : {"raise", "drop"}
        What to do with items that are in only one of responses and ``q``.

    Raises
    ------
    DiagnosisError
        If a column is missing.
    NonBinaryResponse, DuplicateResponses, QMatrixMismatch

    Examples
    --------
    >>> import pandas as pd
    >>> log = pd.DataFrame({"user": ["ann", "ann", "bob", "ann"], "question": [7, 8, 7, 7], "correct": [1, 0, 1, 0],
    ...                     "skills": ["add~carry", "add", "add~carry", "add~carry"]})
    >>> data = from_frame(log)
    >>> data, data.kc_names, data.notes["repeated"]
    (ResponseData(2 students, 2 items, 2 skills, 3 responses, 75.0% of cells), ('add', 'carry'), 1)
    """
    import pandas as pd

    if on_duplicate not in DUPLICATES:
        raise UnknownName.of("treatment of duplicates", on_duplicate, DUPLICATES)
    wanted = [
        student,
        item,
        correct,
        *([skills] if skills and q is None else []),
        *([order] if order else []),
        *([title] if title else []),
    ]
    absent = [c for c in wanted if c not in df.columns]
    if absent:
        raise DiagnosisError(f"the table has no column {absent}; its columns are {list(df.columns)[:20]}")
    frame = df[df[student].notna() & df[item].notna()]
    blank = frame[correct].isna()
    notes: dict[str, Any] = {"rows": len(df), "blank": int(blank.sum())}
    answers = frame[correct].where(~blank, 0 if blank_is_wrong else np.nan)
    frame = frame.assign(**{correct: pd.to_numeric(answers, errors="coerce").astype(float)})
    bad = frame[correct].isna() & ~blank
    if bad.any():
        raise NonBinaryResponse(
            f"{int(bad.sum())} answers are no numbers, such as {df.loc[frame.index[bad][0], correct]!r}; code "
            "them as 0 and 1"
        )
    frame = frame[frame[correct].notna()]
    values = frame[correct].to_numpy()
    if threshold is not None:
        frame = frame.assign(**{correct: (values >= threshold).astype(float)})
    elif not np.isin(values, (0, 1)).all():
        shown = ", ".join(f"{v:g}" for v in np.unique(values[~np.isin(values, (0, 1))])[:5])
        raise NonBinaryResponse(
            f"column {correct!r} also holds {shown}; give threshold=... to say from where on an answer is right, "
            "or use a graded response model"
        )
    if order is not None:
        frame = frame.sort_values(order, kind="stable")

    item_ids, item_code = _coded(frame[item])
    student_ids, student_code = _coded(frame[student])
    if q is None:
        if skills is None:
            raise DiagnosisError("say which skills the items need: skills=COLUMN or q=TABLE")
        table, kc_names, item_mask = _q_from_column(frame[skills], item_code, len(item_ids), sep)
        if not item_mask.all():
            keep = item_mask[item_code]
            notes["without_skill"] = int((~item_mask).sum())
            frame, student_code = frame[keep], student_code[keep]
            item_code = (np.cumsum(item_mask) - 1)[item_code[keep]]
            item_ids, table = item_ids[item_mask], table[item_mask]
            seen, student_code = np.unique(student_code, return_inverse=True)
            student_ids = student_ids[seen]
    else:
        table, kc_names, item_ids, item_code, keep = _match(q, item_ids, item_code, missing)
        frame, student_code, item_code = frame[keep], student_code[keep], item_code[keep]
        seen, student_code = np.unique(student_code, return_inverse=True)
        student_ids = student_ids[seen]
    answer = frame[correct].to_numpy().astype(np.uint8)
    when = frame[order].to_numpy() if order is not None else None
    cells = student_code.astype(np.int64) * max(1, len(item_ids)) + item_code
    if when is not None:  # rows of one attempt, a row a skill
        attempt, _ = pd.factorize(when)
        both = cells * (attempt.max(initial=0) + 1) + attempt
        _, once = np.unique(both, return_index=True)
        once.sort()
        notes["merged_rows"] = len(cells) - len(once)
    else:
        once = np.arange(len(cells))
    student_code, item_code, answer, cells = student_code[once], item_code[once], answer[once], cells[once]
    rows, answer = deduplicate(cells, answer, on_duplicate)
    notes["repeated"] = len(cells) - len(rows)
    titles = None
    if title is not None:
        text = {_key(i): t for i, t in frame.drop_duplicates(item)[[item, title]].itertuples(index=False)}
        titles = tuple(str(text.get(_key(i), "")) for i in item_ids.tolist())
    return ResponseData(
        student_code[rows],
        item_code[rows],
        answer,
        table,
        tuple(student_ids.tolist()),
        tuple(item_ids.tolist()),
        kc_names,
        order=np.arange(len(rows)) if when is not None else None,
        titles=titles,
        notes=notes,
    )


def from_matrix(
    responses: ArrayLike,
    q: ArrayLike,
    *,
    student_ids: Sequence[Hashable] | None = None,
    item_ids: Sequence[Hashable] | None = None,
    kc_names: Sequence[str] | None = None,
) -> ResponseData:
    """A wide table: students in rows, items in columns, NaN where there is no answer.

    Parameters
    ----------
    responses : array_like or DataFrame, [S, J]
    q : array_like or DataFrame, [J, K]
        If both are frames with named items (columns of the responses, index of ``q``), they are matched by name.

    Raises
    ------
    QMatrixMismatch
        If the number or the names of the items differ.
    NonBinaryResponse

    Examples
    --------
    >>> from_matrix([[1, 0, float("nan")], [1, 1, 0]], [[1, 0], [0, 1], [1, 1]])
    ResponseData(2 students, 3 items, 2 skills, 5 responses, 83.3% of cells)
    """
    columns, index = getattr(responses, "columns", None), getattr(q, "index", None)
    if columns is not None:
        item_ids = item_ids or list(columns)
        student_ids = student_ids or list(getattr(responses, "index", []))
        if (
            index is not None
            and getattr(index, "dtype", None) == columns.dtype
            and not np.issubdtype(np.asarray(index).dtype, np.integer)
        ):
            problem = QMatrixMismatch.between(columns, index)
            if problem is not None:
                raise problem
            q = q.loc[list(columns)]  # type: ignore[union-attr]
    kc_names = kc_names or [str(c) for c in getattr(q, "columns", [])]
    table = np.asarray(responses, dtype=np.float64)
    needs = np.asarray(q, dtype=np.float64)
    if table.ndim != 2 or needs.ndim != 2:
        raise DiagnosisError(
            f"responses are [students, items] and q [items, skills]; got {list(table.shape)} and {list(needs.shape)}"
        )
    if table.shape[1] != needs.shape[0]:
        raise QMatrixMismatch(
            f"the responses have {table.shape[1]} items and the Q-matrix has {needs.shape[0]} rows; is one of "
            "them transposed?"
        )
    student, item = np.nonzero(~np.isnan(table))
    return ResponseData(
        student,
        item,
        table[student, item],
        needs,
        tuple(student_ids) if student_ids is not None and len(student_ids) else tuple(range(len(table))),
        tuple(item_ids or ()),
        tuple(kc_names or ()),
    )


def read_table(path: str | Path, q: str | Path | None = None, **options: Any) -> ResponseData:
    """A CSV file: wide (a column an item, ``q`` the file of the Q-matrix) or long (see `from_frame` for the columns).

    A wide file may begin with a column of student names. A Q-matrix file may begin with a column of item names.

    Raises
    ------
    DiagnosisError
        If the file is not there, or a wide table comes without ``q``.
    """
    import pandas as pd

    for name in (path, q):
        if name is not None and not Path(name).is_file():
            raise DiagnosisError(f"there is no file {name}")
    frame = pd.read_csv(path)
    table = None
    if q is not None:
        table = pd.read_csv(q)
        first = table.columns[0]
        if not table[first].isin((0, 1)).all() or str(first).lower() in ("item", "question", "problem", "id"):
            table = table.set_index(first)
        else:
            table.index = pd.Index([f"row {j}" for j in range(len(table))])
        table = table.fillna(0)
    if {options.get("student", "user"), options.get("item", "question")} <= set(frame.columns):
        if table is not None and "skills" not in options:
            options["skills"] = None
        return from_frame(frame, q=table, **options)
    if table is None:
        raise DiagnosisError(
            f"{path} has no columns {options.get('student', 'user')!r} and {options.get('item', 'question')!r}, "
            "so it is read as a wide table "
            "(a column an item), and that needs a Q-matrix file: q=..."
        )
    first = frame.columns[0]
    named = str(first).lower() in ("student", "user", "id", "name", "student_id", "user_id", "") or str(
        first
    ).startswith("Unnamed")
    if named or not pd.api.types.is_numeric_dtype(frame[first]):
        frame = frame.set_index(first)
    return from_matrix(frame, table if not str(table.index[0]).startswith("row ") else table.reset_index(drop=True))


# -- parts -------------------------------------------------------------------------------------------------------------


def _key(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _coded(column: pd.Series) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Names in order, and the place of each row's among them. Each name is looked at once, not each row."""
    import pandas as pd

    code, values = pd.factorize(column)
    names, place = np.unique(_keys(pd.Series(values)), return_inverse=True)
    return names, place[code]


def _keys(column: pd.Series) -> NDArray[Any]:
    """Names to sort by: integers stay integers (item 10 comes after item 9), everything else is text."""
    if column.dtype.kind in "iu":
        return column.to_numpy()
    if column.dtype.kind == "f" and len(column) and bool((column == column.round()).all()):
        return column.to_numpy().astype(np.int64)
    return np.array([_key(v) for v in column.tolist()], dtype=str)


def _q_from_column(
    column: pd.Series, item_code: NDArray[Any], n_items: int, sep: str
) -> tuple[sparse.csr_array, tuple[str, ...], NDArray[np.bool_]]:
    import pandas as pd

    code, values = pd.factorize(column, use_na_sentinel=False)
    texts = ["" if v != v else _key(v) for v in pd.Series(values).tolist()]
    split = [[part.strip() for part in text.split(sep)] for text in texts]
    names = sorted({part for parts in split for part in parts} - {"", "nan", "None"}, key=_natural)
    place = {name: k for k, name in enumerate(names)}
    pairs = np.unique(item_code.astype(np.int64) * len(texts) + code)
    cells = sorted({(int(p) // len(texts), place[s]) for p in pairs for s in split[int(p) % len(texts)] if s in place})
    if not cells:
        raise DiagnosisError("the column of skills is empty")
    rows, columns = np.array(cells).T
    q = sparse.csr_array((np.ones(len(cells)), (rows, columns)), shape=(n_items, len(names)))
    return q, tuple(names), np.diff(q.indptr) > 0


def _natural(name: str) -> tuple[int, float, str]:
    return (0, float(name), name) if name.replace(".", "", 1).isdigit() else (1, 0.0, name)


def _match(
    q: pd.DataFrame, item_ids: NDArray[Any], item_code: NDArray[Any], missing: str
) -> tuple[NDArray[np.float64], tuple[str, ...], NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Items of the log in the order of the Q-matrix's rows."""
    index = np.array([_key(i) for i in q.index])
    problem = QMatrixMismatch.between(map(_key, item_ids.tolist()), index)
    if problem is not None and missing != "drop":
        raise problem
    place = {name: j for j, name in enumerate(index)}
    code = np.array([place.get(_key(i), -1) for i in item_ids.tolist()], dtype=np.int64)[item_code]
    used = np.unique(code[code >= 0])
    new = np.full(len(index), -1)
    new[used] = np.arange(len(used))
    table = q.to_numpy(dtype=np.float64)[used]
    kept = table.any(0)
    keep = code >= 0
    return (
        table[:, kept],
        tuple(str(c) for c, k in zip(q.columns, kept, strict=True) if k),
        index[used],
        new[code],
        keep,
    )


def deduplicate(
    cells: NDArray[np.int64], answer: NDArray[np.uint8], how: str
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Rows to keep (in their order) and their answers."""
    unique, first, inverse, counts = np.unique(cells, return_index=True, return_inverse=True, return_counts=True)
    if len(unique) == len(cells):
        return np.arange(len(cells)), answer
    if how == "raise":
        raise DuplicateResponses(
            f"{int((counts > 1).sum()):,} cells are answered more than once; say which answer counts: "
            "on_duplicate='first', 'last' or 'mean'"
        )
    if how == "first":
        rows = np.sort(first)
        return rows, answer[rows]
    if how == "last":
        last = len(cells) - 1 - np.unique(cells[::-1], return_index=True)[1]
        rows = np.sort(last)
        return rows, answer[rows]
    mean = np.bincount(inverse, answer) / counts
    order = np.argsort(first)
    return first[order], (mean[order] >= 0.5).astype(np.uint8)
