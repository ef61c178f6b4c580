"""Data by name: tables with labels, real first-order (label-distribution) data, and readers of public annotation
formats."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.data import DataSource
from assay.uncertainty.errors import TargetShape, UncertaintyError
from assay.uncertainty.generators import GaussianClasses, noisy_curve
from assay.uncertainty.simplex import as_probabilities

Array = NDArray[np.float64]
LDL = "https://github.com/SpriteMisaka/PyLDL"
LDL_CITE = "Geng, Label Distribution Learning, IEEE TKDE 28 (2016)"


@dataclass(frozen=True)
class Table:
    """Rows with labels, numbers or distributions.

    Attributes
    ----------
    X : float64[n, D] or None
        None where only targets are public.
    y : int64[n], float64[n] or float64[n, K]
        Class codes, numbers, or first-order targets.
    kind : {"labels", "numbers", "distributions"}
    ordered : bool
        Whether the classes have an order.
    counts : int64[n, K] or None
        Votes behind the distributions.
    """

    name: str
    X: Array | None
    y: NDArray[Any]
    kind: str
    ordered: bool = False
    counts: NDArray[np.int64] | None = None


def _sklearn(loader: str, kind: str = "labels") -> Callable[[str], Table]:
    def read(name: str) -> Table:
        import sklearn.datasets

        bunch = getattr(sklearn.datasets, loader)()
        y = np.asarray(bunch.target, dtype=np.int64 if kind == "labels" else np.float64)
        return Table(name, np.asarray(bunch.data, dtype=np.float64), y, kind)

    return read


def _gaussians(name: str) -> Table:
    """Four Gaussian classes in six dimensions, exact posteriors as targets."""
    made = GaussianClasses.make(k=4, d=6, separation=0.7, seed=11)
    X, _ = made.sample(1500, seed=12)
    return Table(name, X, made.posterior(X), "distributions")


def _curve(name: str) -> Table:
    """A sine with noise that grows, and no rows in the middle."""
    X, y, _ = noisy_curve(600, seed=21)
    return Table(name, X, y, "numbers")


def _letter(name: str) -> Table:
    source = DATASETS[name].source
    assert source is not None
    found = read_table(source.find() or source.fetch(), "class")
    return replace(found, name=name)


def _ldl(name: str) -> Table:
    source = DATASETS[name].source
    assert source is not None
    with np.load(source.find() or source.fetch(), allow_pickle=False) as file:
        X, target = np.asarray(file["features"], dtype=np.float64), np.asarray(file["target"], dtype=np.float64)
    return Table(name, X, as_probabilities(target, renormalize=True, what=name), "distributions", name in _ORDERED)


def _cifar10h(name: str) -> Table:
    source = DATASETS[name].source
    assert source is not None
    with np.load(source.find() or source.fetch(), allow_pickle=False) as file:
        counts = np.asarray(file["counts"], dtype=np.int64)
    return Table(name, None, as_probabilities(counts, renormalize=True, what=name), "distributions", counts=counts)


@dataclass(frozen=True)
class Dataset:
    """A data set by name: title, reader, shape (rows, columns, classes), file (None: embedded), kind of targets."""

    name: str
    title: str
    read: Callable[[str], Table]
    shape: tuple[int, int, int]
    source: DataSource | None = None
    kind: str = "labels"


_ORDERED = ("movie", "m2b", "scut_fbp")
_SHA = {
    "emotion6": "c085c53f57ac4e23dda089cfedfa82de80461f7458e625a0b47a106a5522da34",
    "m2b": "2b0b571cc12724c12f2c1c524086ee081fb67e23240f791388256f5ac625f26d",
    "movie": "84deb09a3c6bd364544292686f4ebac5d2a074c10026f01ea2802010ab58aaba",
    "painting": "c2f8a0000788f72b0d9e2e6a173305e53202c230f7b77ad28117333890f962d0",
    "sbu3dfe": "316545d55064387973868646af827cca91a6ecce2aeeba88120232e762c3cf9d",
    "scut_fbp": "230e7e9deb2b9c22d6eb5346621c252b3c819d09c7c807e0404b28c84225cb11",
    "sjaffe": "01fd1661da9bfeb469aa6393a2f814c903867dd8131c612d2d3b6fdd07c894cf",
    "yeast_cold": "3cff3f246be8b1ed9b5dad40e73af1a8a20e3df8c543b62db8d4645ab28dd2ae",
    "yeast_spo5": "e804067ed5ca4d01656259d36cd0b2290ef30b378559b8b0deadff4cb6d0c45e",
}
_FIRST_ORDER = (
    ("movie", "Ratings of films", (7755, 1869, 5)),
    ("sbu3dfe", "Facial expressions, SBU 3DFE", (2500, 243, 6)),
    ("sjaffe", "Facial expressions, JAFFE", (213, 243, 6)),
    ("yeast_spo5", "Yeast gene expression, spo5", (2465, 24, 3)),
    ("yeast_cold", "Yeast gene expression, cold", (2465, 24, 4)),
    ("emotion6", "Emotions in pictures", (1980, 168, 7)),
    ("m2b", "Facial beauty, M2B", (1240, 250, 5)),
    ("painting", "Emotions in abstract paintings", (280, 142, 8)),
    ("scut_fbp", "Facial beauty, SCUT-FBP", (1500, 300, 5)),
)
_CIFAR = DataSource(
    "uncertainty", "cifar10h_counts.npz", "", "81ada123a282e83bc1fa24707082939c492f65f7c4df74c1815e8f5c71309b1e",
    "CC BY-NC-SA 4.0 (non-commercial)", "Peterson et al., ICCV 2019", "https://github.com/jcpeterson/cifar-10h",
)  # fmt: skip
_LETTER = DataSource(
    "uncertainty", "letter.arff", "", "", "public (UCI)", "Frey and Slate, Machine Learning 6 (1991)",
    "https://www.openml.org/d/6",
)  # fmt: skip
DATASETS: dict[str, Dataset] = {
    d.name: d
    for d in (
        Dataset("digits", "Optical digits, 8 x 8", _sklearn("load_digits"), (1797, 64, 10)),
        Dataset("breast_cancer", "Breast Cancer Wisconsin (Diagnostic)", _sklearn("load_breast_cancer"), (569, 30, 2)),
        Dataset("wine", "Wine recognition", _sklearn("load_wine"), (178, 13, 3)),
        Dataset(
            "diabetes", "Diabetes progression", _sklearn("load_diabetes", "numbers"), (442, 10, 0), None, "numbers"
        ),
        Dataset("curve", "A noisy sine with a gap", _curve, (600, 1, 0), None, "numbers"),
        Dataset(
            "gaussians", "Four Gaussian classes, exact posteriors", _gaussians, (1500, 6, 4), None, "distributions"
        ),
        Dataset("letter", "Letter recognition", _letter, (20000, 16, 26), _LETTER),
        *(
            Dataset(
                name,
                title,
                _ldl,
                shape,
                DataSource(
                    "uncertainty", f"ldl_{name}.npz", "", _SHA[name], "see homepage (repository MIT)", LDL_CITE, LDL
                ),
                "distributions",
            )
            for name, title, shape in _FIRST_ORDER
        ),
        Dataset(
            "cifar10h", "Human labels of the CIFAR-10 test images", _cifar10h, (10000, 0, 10), _CIFAR, "distributions"
        ),
    )
}
SOURCES: dict[str, DataSource] = {d.source.filename: d.source for d in DATASETS.values() if d.source is not None}


def load(name: str) -> Table:
    """A data set by name.

    Parameters
    ----------
    name : str
        One of `DATASETS`; ``digits, breast_cancer, wine, diabetes, curve`` and ``gaussians`` need no file.

    Raises
    ------
    UncertaintyError
        If there is no such set, or a file has another shape than the published one.
    DataError
        If a file is not there; the message names it and where to put it.

    Examples
    --------
    >>> table = load("gaussians")
    >>> table.X.shape, table.y.shape, table.kind
    ((1500, 6), (1500, 4), 'distributions')
    """
    if name not in DATASETS:
        near = get_close_matches(name.lower(), list(DATASETS), n=3, cutoff=0.4) or sorted(DATASETS)
        raise UncertaintyError(f"there is no data set {name!r}; did you mean {', '.join(near)}?")
    data = DATASETS[name]
    table = data.read(name)
    n, d, k = data.shape
    classes = table.y.shape[1] if table.y.ndim == 2 else len(np.unique(table.y)) if k else 0
    shape = (len(table.y), 0 if table.X is None else table.X.shape[1], classes)
    if shape != (n, d, k):
        raise UncertaintyError(f"{name} has {n} rows, {d} columns and {k} classes as published; this file gave {shape}")
    return table


def read_dcic(folder: str | Path) -> dict[str, NDArray[np.int64]]:
    """Votes of the DCIC benchmark (Schmarje et al., 2022): ``annotations.json``, counts by image path.

    The file is a list of ``{"name": annotator, "annotations": [{"image_path": ..., "class_label": ...}]}``. Returns
    counts ``int64[K]`` an image, classes in alphabetical order.

    Raises
    ------
    UncertaintyError
    """
    path = Path(folder) / "annotations.json"
    if not path.is_file():
        raise UncertaintyError(f"{path} is not there; a DCIC folder holds annotations.json beside its folds")
    try:
        votes = [
            (a["image_path"], str(a["class_label"]))
            for person in json.loads(path.read_text())
            for a in person["annotations"]
        ]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise UncertaintyError(f"{path} is not in the DCIC format: {type(error).__name__} {error}") from error
    classes = sorted({label for _, label in votes})
    places = {c: k for k, c in enumerate(classes)}
    counts: dict[str, NDArray[np.int64]] = {}
    for image, label in votes:
        counts.setdefault(image, np.zeros(len(classes), dtype=np.int64))[places[label]] += 1
    return counts


def read_chaosnli(path: str | Path) -> tuple[list[str], NDArray[np.int64]]:
    """Votes of ChaosNLI (Nie, Zhou and Bansal, EMNLP 2020): uids and counts ``int64[n, 3]`` for entailment, neutral,
    contradiction.

    Raises
    ------
    UncertaintyError
        With the number of the line that cannot be read.
    """
    uids, counts = [], []
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                uids.append(str(row["uid"]))
                counts.append([int(row["label_counter"].get(c, 0)) for c in "enc"])
            except (KeyError, ValueError, AttributeError) as error:
                raise UncertaintyError(
                    f"{path}, line {number}: not a ChaosNLI row ({type(error).__name__}: {error})"
                ) from error
    return uids, np.array(counts, dtype=np.int64).reshape(-1, 3)


def read_ldl_mat(path: str | Path) -> Table:
    """A label-distribution file ``.mat`` with ``features`` and ``labels``."""
    from scipy.io import loadmat

    found = loadmat(str(path))
    if "features" not in found or "labels" not in found:
        raise UncertaintyError(
            f"{path} holds {sorted(k for k in found if not k.startswith('__'))}, not features and labels"
        )
    target = as_probabilities(np.asarray(found["labels"], dtype=np.float64), renormalize=True, what=str(path))
    return Table(Path(path).stem, np.asarray(found["features"], dtype=np.float64), target, "distributions")


def read_table(path: str | Path, label: str) -> Table:
    """A numeric CSV or ARFF file (OpenML) with a column of labels.

    Raises
    ------
    UncertaintyError
        If the column is not there or a cell is not a number.
    """
    path = Path(path)
    with path.open(encoding="utf-8", newline="") as file:
        names, rows = _arff(file) if path.suffix.lower() == ".arff" else _csv(file)
    lower = [n.lower() for n in names]
    if label.lower() not in lower:
        raise UncertaintyError(f"{path} has no column {label!r}; its columns are {', '.join(names[:12])}")
    at = lower.index(label.lower())
    try:
        X = np.array([[float(v) for i, v in enumerate(row) if i != at] for row in rows])
    except ValueError as error:
        raise UncertaintyError(f"{path}: {error}; only numeric columns can be read") from error
    values = np.array([row[at] for row in rows])
    return Table(path.stem, X, np.unique(values, return_inverse=True)[1].astype(np.int64), "labels")


def _csv(lines: Iterable[str]) -> tuple[list[str], list[list[str]]]:
    rows = [row for row in csv.reader(lines) if row]
    return rows[0], rows[1:]


def _arff(lines: Iterable[str]) -> tuple[list[str], list[list[str]]]:
    names: list[str] = []
    body: list[str] = []
    started = False
    for line in lines:
        text = line.strip()
        if not text or text.startswith("%"):
            continue
        if started:
            body.append(text)
        elif text.lower().startswith("@attribute"):
            rest = text.split(None, 1)[1].strip()
            names.append(rest[1 : rest.index(rest[0], 1)] if rest[0] in "'\"" else rest.split()[0])
        elif text.lower().startswith("@data"):
            started = True
    return names, [[cell.strip().strip("'\"") for cell in row] for row in csv.reader(body)]


def check_first_order(table: Table) -> None:
    """Raise `TargetShape` unless the targets are distributions."""
    if table.kind != "distributions":
        raise TargetShape(f"{table.name} has {table.kind}; first-order targets (distributions) are needed")
