"""Data sets: the public workbooks of Apache POI, made workbooks, and the files of other benchmarks that users have."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from assay.core.data import DataSource
from assay.core.errors import DataError
from assay.formulas.errors import FormulaError
from assay.formulas.poi import FILES
from assay.formulas.tasks import Task, build_tasks
from assay.formulas.workbook.model import Workbook

_ADDRESS = "https://raw.githubusercontent.com/apache/poi/REL_5_3_0/test-data/spreadsheet/"
SOURCES = {
    name: DataSource(
        "formulas",
        f"xlsx/{name}",
        _ADDRESS + name,
        sha256=sha,
        licence="Apache-2.0",
        citation="Apache POI test data, Copyright 2003-2024 The Apache Software Foundation",
        homepage="https://github.com/apache/poi",
    )
    for name, sha in FILES.items()
}
SMALL = (
    "simple-monthly-budget.xlsx", "table-sample.xlsx", "54206.xlsx", "45544.xlsx", "xlookup.xlsx",
    "55906-MultiSheetRefs.xlsx",
)  # fmt: skip
# Workbooks that are tables of function or format tests: no sheet that a person works in.
TEST_SHEETS = frozenset(
    name for name in FILES if name.startswith(("FormulaEval", "MatrixFormula")) or name.endswith(("Tests.xlsx",))
)


@dataclass
class TaskSet:
    """Tasks of one data set.

    Attributes
    ----------
    name : str
    tasks : list of Task
    missing : str
        Why there are none: the file that is not on this machine.
    """

    name: str
    tasks: list[Task] = field(default_factory=list)
    missing: str = ""

    def fingerprint(self) -> str:
        """Hash of the tasks and the workbooks' formulas."""
        digest = hashlib.sha256(self.missing.encode())
        for task in self.tasks:
            digest.update(task.fingerprint().encode())
        return digest.hexdigest()[:24]


def poi_workbooks(names: Sequence[str] | None = None) -> list[Workbook]:
    """Public workbooks by name, all 62 by default.

    Raises
    ------
    DataError
        If one is not on this machine and cannot be downloaded; the message says where it may be put.
    """
    chosen = list(SOURCES) if names is None else list(names)
    unknown = [n for n in chosen if n not in SOURCES]
    if unknown:
        raise FormulaError(f"{', '.join(unknown)} is not among the {len(SOURCES)} public workbooks")
    return [Workbook.open(SOURCES[name].fetch()) for name in chosen]


@functools.lru_cache(maxsize=8)
def _made(n: int, seed: int, vocabulary: str) -> tuple[Workbook, ...]:
    from assay.formulas.generator import make_workbooks

    return tuple(make_workbooks(n, seed, vocabulary=vocabulary))


def made_tasks(
    mode: str = "fresh",
    books: int = 40,
    n: int = 200,
    seed: int = 1,
    abstain: float = 0.1,
    vocabulary: str = "ordinary",
) -> TaskSet:
    """Tasks from made workbooks (seeds below 1,000 are for tests, 9,001 is the corpus of retrieval, 9,500 on train).

    With the vocabulary ``unseen`` they share no word with the corpus of retrieval, the trained model and the
    calibration of the cascade.
    """
    tasks = build_tasks(list(_made(books, seed, vocabulary)), n, mode, seed=seed, abstain=abstain)
    return TaskSet(f"{'made' if vocabulary == 'ordinary' else vocabulary}-{mode}", tasks)


def public_tasks(mode: str = "extend", names: tuple[str, ...] | None = None, n: int = 500, seed: int = 0) -> TaskSet:
    """Tasks from the public workbooks; empty, with the reason, where they are not on this machine."""
    chosen = names or tuple(name for name in FILES if name not in TEST_SHEETS)
    try:
        books = poi_workbooks(chosen)
    except DataError as error:
        return TaskSet(f"public-{mode}", [], str(error))
    return TaskSet(f"public-{mode}", build_tasks(books, n, mode, seed=seed))
