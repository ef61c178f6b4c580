"""Public response tables by name.

``lsat6`` and ``lsat7`` are embedded: the published counts of the 32 answer patterns of 1,000 examinees on five items of
sections 6 and 7 of the Law School Admission Test (Bock and Lieberman, 1970). The others are files that are looked for
in the cache and in ``ASSAY_DATA_DIR``. Logs of platforms are read with `assay.diagnosis.formats`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from assay.core.data import DataSource
from assay.diagnosis.errors import DiagnosisError, UnknownName
from assay.diagnosis.readers import from_matrix
from assay.diagnosis.responses import ResponseData

# Counts of the patterns 00000, 00001, ..., 11111 (first item first).
LSAT6 = (
    3, 6, 2, 11, 1, 1, 3, 4, 1, 8, 0, 16, 0, 3, 2, 15, 10, 29, 14, 81, 3, 28, 15, 80, 16, 56, 21, 173, 11, 61, 28, 298,
)  # fmt: skip
LSAT7 = (
    12,
    19,
    1,
    7,
    3,
    19,
    3,
    17,
    10,
    5,
    3,
    7,
    7,
    23,
    8,
    28,
    7,
    39,
    11,
    34,
    14,
    51,
    15,
    90,
    6,
    25,
    7,
    35,
    18,
    136,
    32,
    308,
)
BOCK = "Bock, Lieberman: Fitting a response model for n dichotomously scored items. Psychometrika 35, 1970"


def _cdm(filename: str, sha256: str, citation: str) -> DataSource:
    return DataSource(
        "diagnosis",
        filename,
        sha256=sha256,
        licence="GPL-2.0-or-later",
        citation=citation,
        homepage="https://github.com/alexanderrobitzsch/CDM",
    )


TATSUOKA = "Tatsuoka: Analysis of errors in fraction addition and subtraction problems. 1984"
TEMPLIN = "Templin, Hoffman: Obtaining diagnostic classification model estimates using Mplus. EM:IP 32(2), 2013"
MULLIS = "Mullis et al.: TIMSS 2011 international results in mathematics. 2012"
LEE = "Lee, Park, Taylan: A cognitive diagnostic modeling of attribute mastery. IJT 11(2), 2011"
BRADSHAW = "Bradshaw et al.: Diagnosing teachers' understandings of rational numbers. EM:IP 33(1), 2014"
SOURCES = {
    source.filename: source
    for source in (
        _cdm("frcsub_responses.csv.gz", "7b4413e9c8061ae13949b9cdbb75b3539af7f2006a2a6c7007ef31b599fe53a1", TATSUOKA),
        _cdm("frcsub_q.csv.gz", "0276157514b11d38c93ab140f125367c97923f6b1511ffd58793f391ea74cc80", TATSUOKA),
        _cdm(
            "fraction15_responses.csv.gz", "b32668eba2c16fa2cac98122cd19c2e06b3152552fddaf3d927ecef7c7868094", TATSUOKA
        ),
        _cdm("fraction15_q.csv.gz", "fa61e61a8c0e334a5086152758d9fa0628e99ba8554b5e116356dde69d012924", TATSUOKA),
        _cdm("ecpe_responses.csv.gz", "b0516999d91777b589a0f2b0829d214b67642a226fb21c84603edfba08b9570d", TEMPLIN),
        _cdm("ecpe_q.csv.gz", "ba2bae2131800ce8b88acfe0bbf8bfa405b835b811bf21f6884d7216d43e2fc7", TEMPLIN),
        _cdm(
            "timss11_aut_responses.csv.gz", "795c722781bf134cc9a08e73dfa9dbe7cca0830ebfad60cbb3e93dbb75b41a8f", MULLIS
        ),
        _cdm("timss11_aut_q1.csv.gz", "be422d40803ebf2eb86c5040d6ad550c14c49d7122d314d1ad797189a27702e2", MULLIS),
        _cdm("timss11_aut_q2.csv.gz", "59b56181ff235c721838dd628eb5df89605244657eeb2acc955742f4be0c82aa", MULLIS),
        _cdm("timss11_aut_q3.csv.gz", "842406f18f84653c6cf11d1f8e501bed15ee177fb32cf5a8d37d737ac3f63899", MULLIS),
        _cdm("timss07_aut_responses.csv.gz", "b1bf8481986e7b2a729d4cfba9bd6983caf05a6607cabad4bbce8de9fe225b99", LEE),
        _cdm("timss07_aut_q.csv.gz", "876f3eeb1f37d83fffc64bf654db7cf333e37348ebc83e729ce006cbd0b296b9", LEE),
        _cdm("dtmr_sim_responses.csv.gz", "9c1112a4942d76386f527d4a239169a11a9b4b9f12b0f074ba3571121dbd89f0", BRADSHAW),
        _cdm("dtmr_sim_q.csv.gz", "01070a45aaac17209c0244dc2178ee49e2e2beb37d56653bceef5e6e9bde6154", BRADSHAW),
        _cdm(
            "dtmr_sim_skill_distribution.csv.gz",
            "6668b54e3d3da771fbfbba063098910c2ea5da72c77431f62b5eed07976b3d01",
            BRADSHAW,
        ),
    )
}


@dataclass(frozen=True)
class ResponseTable:
    """A named data set: how it is read, and what must come out."""

    name: str
    title: str
    shape: tuple[int, int, int]
    read: Callable[[], ResponseData]
    sources: tuple[DataSource, ...] = ()
    simulated: bool = False
    min_logs: int = 1

    @property
    def licence(self) -> str:
        return self.sources[0].licence if self.sources else "counts published in the literature"

    @property
    def citation(self) -> str:
        return self.sources[0].citation if self.sources else BOCK


def load(name: str) -> ResponseData:
    """A public response table.

    Parameters
    ----------
    name : str
        One of `DATASETS`; ``lsat6`` and ``lsat7`` need no file.

    Raises
    ------
    UnknownName
        If there is no such set.
    DataError
        If a file is not there; the message names it, where it is published, and where to put it.
    DiagnosisError
        If the file has another number of students, items or skills than the published one.

    Examples
    --------
    >>> load("lsat7")
    ResponseData(1,000 students, 5 items, 1 skills, 5,000 responses, 100.0% of cells)
    """
    if name not in DATASETS:
        raise UnknownName.of("data set", name, DATASETS)
    table = DATASETS[name]
    data = table.read()
    found = (data.n_students, data.n_items, data.n_kcs)
    if found != table.shape:
        raise DiagnosisError(
            f"{name} has {table.shape} students, items and skills as published; these files give {found}"
        )
    return replace(data, notes={**data.notes, "name": name})


def load_groups(name: str) -> np.ndarray:
    """``int64[S]``: 1 for girls, in TIMSS 2007 and 2011; for studies of differential item functioning."""
    columns = {
        "timss07": ("timss07_aut_responses.csv.gz", "girl"),
        "timss11": ("timss11_aut_responses.csv.gz", "female"),
    }
    if name not in columns:
        raise UnknownName.of("data set with groups", name, columns)
    filename, column = columns[name]
    return pd.read_csv(SOURCES[filename].fetch())[column].to_numpy(np.int64)


def _patterns(counts: tuple[int, ...], name: str) -> ResponseData:
    bits = (np.arange(32)[:, None] >> np.arange(4, -1, -1)) & 1
    table = np.repeat(bits, counts, axis=0)
    return from_matrix(table, np.ones((5, 1)), item_ids=[f"{name} item {j + 1}" for j in range(5)], kc_names=[name])


def _files(responses: str, q: str, drop: tuple[str, ...] = ()) -> ResponseData:
    table = pd.read_csv(SOURCES[responses].fetch()).drop(columns=list(drop))
    needs = pd.read_csv(SOURCES[q].fetch())
    if "item" in needs.columns:
        return from_matrix(table, needs.set_index("item"))
    return from_matrix(table.to_numpy(), needs.to_numpy(), item_ids=list(table.columns), kc_names=list(needs.columns))


def _table(
    name: str, title: str, shape: tuple[int, int, int], stem: str, q: str, drop: tuple[str, ...] = (), **options: bool
) -> ResponseTable:
    files = (f"{stem}_responses.csv.gz", f"{stem}_{q}.csv.gz")
    return ResponseTable(name, title, shape, partial(_files, *files, drop), tuple(SOURCES[f] for f in files), **options)


DATASETS = {
    table.name: table
    for table in (
        ResponseTable("lsat6", "LSAT section 6", (1000, 5, 1), partial(_patterns, LSAT6, "LSAT 6")),
        ResponseTable("lsat7", "LSAT section 7", (1000, 5, 1), partial(_patterns, LSAT7, "LSAT 7")),
        _table("frcsub", "Fraction subtraction, 20 items, 8 skills", (536, 20, 8), "frcsub", "q"),
        _table("fraction15", "Fraction subtraction, 15 items, 5 skills", (536, 15, 5), "fraction15", "q"),
        _table("ecpe", "ECPE grammar", (2922, 28, 3), "ecpe", "q"),
        _table(
            "timss11",
            "TIMSS 2011 Austria, content by cognition",
            (4668, 174, 9),
            "timss11_aut",
            "q1",
            ("booklet", "female"),
        ),
        _table(
            "timss11-content", "TIMSS 2011 Austria, content", (4668, 174, 3), "timss11_aut", "q2", ("booklet", "female")
        ),
        _table(
            "timss11-cognition",
            "TIMSS 2011 Austria, cognition",
            (4668, 174, 3),
            "timss11_aut",
            "q3",
            ("booklet", "female"),
        ),
        _table("timss07", "TIMSS 2007 Austria", (698, 25, 15), "timss07_aut", "q", ("idbook", "girl")),
        _table("dtmr", "DTMR, simulated from published parameters", (5000, 27, 4), "dtmr_sim", "q", simulated=True),
    )
}
