"""Answers of students to items, the Q-matrix that says which skills an item needs, and splits of them."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from assay.diagnosis.errors import (
    DiagnosisError,
    DuplicateResponses,
    EmptyKC,
    NonBinaryResponse,
    QMatrixMismatch,
    UnknownName,
)  # fmt: skip

SCHEMES = ("student", "response", "new_students", "new_items")
_FIELDS = ("student", "item", "correct")


def QMatrix(
    table: ArrayLike | sparse.sparray, *, allow_empty: bool = False, names: Sequence[str] | None = None
) -> sparse.csr_array:
    """A checked Q-matrix: ``uint8`` csr of shape [items, skills].

    Parameters
    ----------
    table : array_like or sparse array, [items, skills]
        1 where the item needs the skill.
    allow_empty : bool
        Accept skills that no item needs.
    names : sequence of str, optional
        Names of the skills, for the message of the error.

    Raises
    ------
    EmptyKC
        If a column is empty.
    DiagnosisError
        If an entry is neither 0 nor 1, or the table has not two dimensions.

    Examples
    --------
    >>> QMatrix([[1, 0], [1, 1]]).sum(axis=0).tolist()
    [2, 1]
    """
    if sparse.issparse(table):
        q = sparse.csr_array(table)
    else:
        dense = np.asarray(table)
        if dense.ndim != 2:
            raise DiagnosisError(f"a Q-matrix has the shape [items, skills], this one is {list(dense.shape)}")
        q = sparse.csr_array(dense.astype(np.float64))
    q.eliminate_zeros()
    if q.nnz and not np.all(q.data == 1):
        raise DiagnosisError(
            f"a Q-matrix holds 0 and 1; this one also holds {sorted(set(q.data.tolist()) - {1.0})[:5]}"
        )
    q = sparse.csr_array(q.astype(np.uint8))
    q.sort_indices()
    if not allow_empty:
        empty = np.flatnonzero(np.bincount(q.indices, minlength=q.shape[1]) == 0)
        if len(empty):
            shown = [str(names[k]) if names is not None else f"column {k}" for k in empty[:5]]
            raise EmptyKC(
                f"no item needs {len(empty)} of the {q.shape[1]} skills ({', '.join(shown)}); drop these columns"
            )
    return q


@dataclass(frozen=True, eq=False)
class ResponseData:
    """A log of answers with its Q-matrix. What is not in the log was not answered; it is never read as wrong.

    Attributes
    ----------
    student, item : int32[n]
        Who answered what, by position in ``student_ids`` and ``item_ids``.
    correct : uint8[n]
        1 for a right answer.
    q : csr uint8[J, K]
        1 where the item needs the skill.
    student_ids, item_ids, kc_names : tuple
    order : int64[n], optional
        Place in time of each answer.
    titles : tuple of str, optional
        Text of each item, for judges of difficulty.
    prerequisites : tuple of (int, int)
        Pairs (skill, skill that builds on it).
    notes : dict
        How the data was made: counts before and after preprocessing.

    Raises
    ------
    NonBinaryResponse, DuplicateResponses, QMatrixMismatch, EmptyKC

    Examples
    --------
    >>> data = ResponseData([0, 0, 1], [0, 1, 0], [1, 0, 1], [[1, 0], [0, 1]])
    >>> data
    ResponseData(2 students, 2 items, 2 skills, 3 responses, 75.0% of cells)
    >>> data.matrix().tolist()
    [[1.0, 0.0], [1.0, nan]]
    """

    student: NDArray[Any]
    item: NDArray[Any]
    correct: NDArray[Any]
    q: sparse.csr_array
    student_ids: tuple[Hashable, ...] = ()
    item_ids: tuple[Hashable, ...] = ()
    kc_names: tuple[str, ...] = ()
    order: NDArray[np.int64] | None = None
    titles: tuple[str, ...] | None = None
    prerequisites: tuple[tuple[int, int], ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        answers = np.asarray(self.correct)
        values = np.unique(answers)
        if not np.isin(values, (0, 1)).all():
            shown = ", ".join(f"{v:g}" for v in values[~np.isin(values, (0, 1))][:5])
            raise NonBinaryResponse(
                f"responses must be 0 or 1; there is also {shown}. Leave unanswered cells out (NaN in a table); "
                "for points "
                "between 0 and 1 choose a threshold (from_frame(..., threshold=0.5)) or use a graded response model"
            )
        put("student", _index(self.student, "student"))
        put("item", _index(self.item, "item"))
        put("correct", answers.astype(np.uint8))
        if not len(self.student) == len(self.item) == len(self.correct):
            raise DiagnosisError(
                f"student, item and correct differ in length: {len(self.student)}, {len(self.item)}, "
                f"{len(self.correct)}"
            )
        names = self.kc_names or None
        put("q", QMatrix(self.q, names=names))
        n_items, n_kcs = self.q.shape
        if len(self.item) and self.item.max() >= n_items:
            raise QMatrixMismatch(
                f"item {int(self.item.max())} is answered and the Q-matrix has only {n_items} rows; every item "
                "needs one"
            )
        highest = int(self.student.max(initial=-1)) + 1
        put("student_ids", tuple(self.student_ids) or tuple(range(highest)))
        put("item_ids", tuple(self.item_ids) or tuple(range(n_items)))
        put("kc_names", tuple(map(str, self.kc_names)) or tuple(f"skill{k + 1}" for k in range(n_kcs)))
        if highest > len(self.student_ids):
            raise DiagnosisError(
                f"student {highest - 1} answered and there are only {len(self.student_ids)} student names"
            )
        if len(self.item_ids) != n_items or len(self.kc_names) != n_kcs:
            raise QMatrixMismatch(
                f"the Q-matrix is {n_items} x {n_kcs}, and there are {len(self.item_ids)} item names and "
                f"{len(self.kc_names)} skill names"
            )
        keys = self.cells()
        ordered = np.sort(keys)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            i, j = divmod(int(twice[0]), n_items)
            raise DuplicateResponses(
                f"{len(np.unique(twice)):,} cells are answered more than once, the first by student "
                f"{self.student_ids[i]!r} on item "
                f"{self.item_ids[j]!r}; say which answer counts: on_duplicate='first', 'last' or 'mean'"
            )
        for name in (*_FIELDS, "order"):
            array = getattr(self, name)
            if array is not None:
                array.flags.writeable = False

    def __repr__(self) -> str:
        share = len(self) / max(1, self.n_students * self.n_items)
        return (
            f"ResponseData({self.n_students:,} students, {self.n_items:,} items, {self.n_kcs:,} skills, "
            f"{len(self):,} responses, "
            f"{share:.1%} of cells)"
        )

    def __len__(self) -> int:
        return len(self.student)

    @property
    def n_students(self) -> int:
        return len(self.student_ids)

    @property
    def n_items(self) -> int:
        return int(self.q.shape[0])

    @property
    def n_kcs(self) -> int:
        return int(self.q.shape[1])

    def cells(self) -> NDArray[np.int64]:
        """``int64[n]``: student x items + item, a number a cell."""
        return self.student.astype(np.int64) * self.n_items + self.item

    def take(self, rows: NDArray[Any] | slice) -> ResponseData:
        """The answers of a mask or an index, with the same students, items and skills."""
        fresh = object.__new__(ResponseData)
        fresh.__dict__.update(self.__dict__)
        for name in (*_FIELDS, "order"):
            array = getattr(self, name)
            fresh.__dict__[name] = None if array is None else array[rows]
        return fresh

    def only_students(self, students: ArrayLike) -> ResponseData:
        """The answers of some students (positions), renumbered from 0 in that order."""
        chosen = np.asarray(students, dtype=np.int64)
        place = np.full(self.n_students, -1, dtype=np.int32)
        place[chosen] = np.arange(len(chosen), dtype=np.int32)
        part = self.take(place[self.student] >= 0)
        part.__dict__["student"] = place[part.student]
        part.__dict__["student_ids"] = tuple(self.student_ids[i] for i in chosen)
        return part

    def with_correct(self, correct: ArrayLike) -> ResponseData:
        """The same cells with other answers."""
        return replace(self, correct=np.asarray(correct))

    def matrix(self, *, as_sparse: bool = False) -> Any:
        """Answers as ``float32[S, J]`` with NaN where there is none; or two csr arrays (right, wrong)."""
        shape = (self.n_students, self.n_items)
        if as_sparse:
            return tuple(
                sparse.csr_array((np.ones(int(m.sum()), np.float32), (self.student[m], self.item[m])), shape=shape)
                for m in (self.correct == 1, self.correct == 0)
            )
        table = np.full(shape, np.nan, dtype=np.float32)
        table[self.student, self.item] = self.correct
        return table

    def dense_q(self) -> NDArray[np.bool_]:
        """The Q-matrix as ``bool[J, K]``."""
        return self.q.toarray().astype(bool)

    def per_skill(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each answer once for every skill of its item: (row of the log, skill)."""
        counts = np.diff(self.q.indptr)[self.item]
        rows = np.repeat(np.arange(len(self)), counts)
        offset = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, self.q.indices[self.q.indptr[self.item[rows]] + offset].astype(np.int64)

    def fingerprint(self) -> str:
        """Hash of the answers and the Q-matrix."""
        digest = hashlib.sha256()
        for array in (
            self.student,
            self.item,
            self.correct,
            self.q.indptr.astype(np.int64),
            self.q.indices.astype(np.int64),
        ):
            digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(repr((self.n_students, self.q.shape)).encode())
        return digest.hexdigest()[:16]

    def split(self, scheme: str = "student", seed: int = 0, *, test: float = 0.2, valid: float = 0.1) -> Split:
        """Divide the answers into train, valid and test; see `Split` for the schemes.

        Examples
        --------
        >>> from assay.diagnosis import load
        >>> split = load("lsat7").split("student", seed=0)
        >>> len(split.train), len(split.valid), len(split.test)
        (3000, 1000, 1000)
        """
        return make_split(self, scheme, seed, test=test, valid=valid)


@dataclass(frozen=True, eq=False)
class Split:
    """Answers for training, validation and testing; all three keep the numbering of students and items.

    Schemes: ``student`` takes round(test x m) and round(valid x m) of each student's m answers; ``response`` takes them
    over all rows (``p = default_rng(seed).permutation(n)``, test first); ``new_students`` and ``new_items`` keep 20 per
    cent of the students (items) out of training. Of a new student, four fifths of the answers are ``support``, from
    which `transform` scores the student, and the others are the test.

    Attributes
    ----------
    train, valid, test : ResponseData
    support : ResponseData or None
        Answers of new students that may be used to score them.
    hash : str
        Identity of data, scheme and rows; the same for two splits that agree cell by cell.
    """

    train: ResponseData
    valid: ResponseData
    test: ResponseData
    scheme: str
    seed: int
    hash: str
    support: ResponseData | None = None

    def fingerprint(self) -> str:
        """The hash, for the protocol."""
        return self.hash

    def save(self, path: str | Path) -> None:
        """Write rows and hash as .npz, to be read with `Split.load`."""
        part = {
            name: getattr(self, name).cells()
            for name in ("train", "valid", "test", "support")
            if getattr(self, name) is not None
        }
        np.savez_compressed(path, scheme=self.scheme, seed=self.seed, hash=self.hash, **part)

    @classmethod
    def load(cls, path: str | Path, data: ResponseData) -> Split:
        """Read a split of the data.

        Raises
        ------
        DiagnosisError
            If the data is not the one that was split: the hash differs.
        """
        with np.load(path, allow_pickle=False) as stored:
            parts = {
                name: np.isin(data.cells(), stored[name])
                for name in ("train", "valid", "test", "support")
                if name in stored
            }
            scheme, seed, expected = str(stored["scheme"]), int(stored["seed"]), str(stored["hash"])
        split = _assemble(data, scheme, seed, parts)
        if split.hash != expected:
            raise DiagnosisError(
                f"{path} is a split of other data: its hash is {expected}, this data gives {split.hash}"
            )
        return split


def make_split(data: ResponseData, scheme: str, seed: int, *, test: float = 0.2, valid: float = 0.1) -> Split:
    """Divide answers; see `Split`.

    Raises
    ------
    UnknownName
        If there is no such scheme.
    DiagnosisError
        If the shares are no shares.
    """
    if scheme not in SCHEMES:
        raise UnknownName.of("split", scheme, SCHEMES)
    if not (0 < test < 1 and 0 <= valid < 1 and test + valid < 1):
        raise DiagnosisError(f"test={test} and valid={valid} must be shares that leave something to train on")
    n = len(data)
    rng = np.random.default_rng(seed)
    kind = np.zeros(n, dtype=np.int8)  # 0 train, 1 valid, 2 test, 3 support
    if scheme == "response":
        p = rng.permutation(n)
        kind[p[: int(test * n)]] = 2
        kind[p[int(test * n) : int((test + valid) * n)]] = 1
    elif scheme == "student":
        _within(kind, data.student, np.arange(n), rng, ((2, test), (1, valid)))
    else:
        group = data.student if scheme == "new_students" else data.item
        size = data.n_students if scheme == "new_students" else data.n_items
        away = rng.permutation(size)[: max(1, round(test * size))]
        out = np.isin(group, away)
        if scheme == "new_students":
            kind[out] = 3
            _within(kind, data.student, np.flatnonzero(out), rng, ((2, test),))
        else:
            kind[out] = 2
        _within(kind, data.student, np.flatnonzero(~out), rng, ((1, valid),))
    names = {"train": 0, "valid": 1, "test": 2} | ({"support": 3} if scheme == "new_students" else {})
    return _assemble(data, scheme, seed, {name: kind == code for name, code in names.items()})


def _within(
    kind: NDArray[np.int8],
    group: NDArray[Any],
    rows: NDArray[Any],
    rng: np.random.Generator,
    shares: tuple[tuple[int, float], ...],
) -> None:
    """Mark a rounded share (halves up) of each group's rows, taken at random."""
    shuffled = rows[rng.permutation(len(rows))]
    ordered = shuffled[np.argsort(group[shuffled], kind="stable")]
    _, first, counts = np.unique(group[ordered], return_index=True, return_counts=True)
    place = np.arange(len(ordered)) - np.repeat(first, counts)
    low = np.zeros(len(counts))
    for code, share in shares:
        high = low + np.floor(share * counts + 0.5)
        kind[ordered[(place >= np.repeat(low, counts)) & (place < np.repeat(high, counts))]] = code
        low = high


def _assemble(data: ResponseData, scheme: str, seed: int, masks: dict[str, NDArray[np.bool_]]) -> Split:
    digest = hashlib.sha256(f"{data.fingerprint()}/{scheme}/{seed}".encode())
    for name in sorted(masks):
        digest.update(name.encode() + np.packbits(masks[name]).tobytes())
    parts = {name: data.take(mask) for name, mask in masks.items()}
    return Split(
        parts["train"], parts["valid"], parts["test"], scheme, seed, digest.hexdigest()[:16], parts.get("support")
    )


def preprocess(data: ResponseData, *, min_logs: int = 15, min_item_logs: int = 5) -> ResponseData:
    """Drop items without a skill, students with few answers and items with few, again until nothing changes; renumber.

    Parameters
    ----------
    data : ResponseData
    min_logs : int
        Answers that a student must have.
    min_item_logs : int
        Answers that an item must have.

    Returns
    -------
    ResponseData
        ``notes["preprocess"]`` holds counts before and after; the names of students and items stay.

    Raises
    ------
    DiagnosisError
        If nothing is left.

    Examples
    --------
    >>> from assay.diagnosis import simulate_platform
    >>> data = preprocess(simulate_platform(200, 40, 4, density=0.3, seed=0).data, min_logs=15)
    >>> data.notes["preprocess"]["before"]["students"], data.n_students
    (200, 72)
    """
    keep = np.diff(data.q.indptr)[data.item] > 0
    while True:
        students = np.bincount(data.student[keep], minlength=data.n_students)
        items = np.bincount(data.item[keep], minlength=data.n_items)
        still = keep & (students >= min_logs)[data.student] & (items >= min_item_logs)[data.item]
        if still.sum() == keep.sum():
            break
        keep = still
    if not keep.any():
        raise DiagnosisError(
            f"no answer is left: no student has {min_logs} answers on items with {min_item_logs}; lower min_logs "
            "or min_item_logs"
        )
    who, student = np.unique(data.student[keep], return_inverse=True)
    what, item = np.unique(data.item[keep], return_inverse=True)
    q = data.q[what]
    skills = np.unique(q.indices)
    place = {int(old): new for new, old in enumerate(skills)}
    before = {"students": data.n_students, "items": data.n_items, "skills": data.n_kcs, "responses": len(data)}
    after = {"students": len(who), "items": len(what), "skills": len(skills), "responses": int(keep.sum())}
    return replace(
        data,
        student=student,
        item=item,
        correct=data.correct[keep],
        q=sparse.csr_array(q[:, skills]),
        student_ids=tuple(data.student_ids[i] for i in who),
        item_ids=tuple(data.item_ids[j] for j in what),
        kc_names=tuple(data.kc_names[k] for k in skills),
        order=None if data.order is None else data.order[keep],
        titles=None if data.titles is None else tuple(data.titles[j] for j in what),
        prerequisites=tuple((place[a], place[b]) for a, b in data.prerequisites if a in place and b in place),
        notes={
            **data.notes,
            "preprocess": {"before": before, "after": after, "min_logs": min_logs, "min_item_logs": min_item_logs},
        },
    )


def _index(values: ArrayLike, what: str) -> NDArray[np.int32]:
    array = np.asarray(values)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise DiagnosisError(
            f"{what} must be a list of positions (integers in one dimension), not "
            f"{array.dtype}{list(array.shape)}; use from_frame for names"
        )
    if len(array) and array.min() < 0:
        raise DiagnosisError(f"{what} has the position {int(array.min())}; positions start at 0")
    return array.astype(np.int32)
