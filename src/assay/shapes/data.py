"""Real data by name.

``digits`` and ``iris`` are in scikit-learn; three sets are files of the scanpy wheel, which is found without being
imported; the others are looked for as `assay.core.data` does.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.data import DataSource
from assay.core.errors import DataError
from assay.shapes.errors import UnknownKindError

_VIA: dict[str, Any] = {
    "licence": "MIT",
    "citation": "Stassen et al., VIA, 2021",
    "homepage": "https://github.com/ShobiStassen/VIA",
}
_SCANPY: dict[str, Any] = {
    "licence": "BSD-3-Clause",
    "citation": "Wolf et al., scanpy, 2018",
    "homepage": "https://pypi.org/project/scanpy/ (a file of the wheel)",
}
SOURCES = {
    "bcell": DataSource(
        "shapes",
        "Bcell_200PCs.csv.gz",
        sha256="5ee8aa60611b0031560f874af3b3195dc6dfbf6f6fdfb46ddbb0c1b38bef8183",
        **_VIA,
    ),
    "eb": DataSource(
        "shapes",
        "EB_phate_embedding.csv.gz",
        sha256="0de2ef13d4272bfbd6a7ed3cec16562e8a26490795985eed6152cad2065bb3ea",
        **_VIA,
    ),
    "mcf7": DataSource(
        "shapes",
        "mcf7_38features.csv.gz",
        sha256="1a507e80509e047e59cf46cc23180f4c09a447cc103ac83090b3f98ff8927092",
        **_VIA,
    ),
    "mcf7_phases": DataSource(
        "shapes",
        "mcf7_phases.csv.gz",
        sha256="587d63bfe37d7204834b1ccd253fa8311550f584d59353a3a793baa841bb374a",
        **_VIA,
    ),
    "pbmc68k": DataSource("shapes", "10x_pbmc68k_reduced.h5ad", **_SCANPY),
    "krumsiek11": DataSource("shapes", "krumsiek11.txt", **_SCANPY),
    "toggleswitch": DataSource("shapes", "toggleswitch.txt", **_SCANPY),
}


@dataclass(frozen=True)
class RealShape:
    """Cells with what is known of them.

    Attributes
    ----------
    name : str
    X : float array[n, d]
    labels : tuple of str
        Official labels that hold.
    cells : dict of str to array[n]
        Known columns: time, phase, cell type.
    """

    name: str
    X: NDArray[Any]
    labels: tuple[str, ...]
    cells: dict[str, NDArray[Any]] = field(default_factory=dict)


def load(name: str) -> RealShape:
    """A real data set.

    Parameters
    ----------
    name : str
        ``digits`` and ``iris`` need no file; ``bcell`` (pre-B cells, 6 times over 24 h), ``eb`` (embryoid bodies, PHATE
        coordinates), ``mcf7`` (imaging cytometry with cell-cycle phases), ``pbmc68k``, ``krumsiek11``,
        ``toggleswitch``.

    Raises
    ------
    UnknownKindError
    DataError
        If a file is not on this machine; the message says where to get it and where to put it.

    Examples
    --------
    >>> cells = load("iris")
    >>> cells.X.shape, cells.labels, cells.cells["species"][0].item()
    ((150, 4), ('clusters',), 'setosa')
    """
    if name not in LOADERS:
        near = get_close_matches(name, LOADERS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"give one of {', '.join(LOADERS)}"
        raise UnknownKindError(f"there is no data set {name!r}; {hint}")
    return LOADERS[name]()


def _bcell() -> RealShape:
    import pandas as pd

    table = pd.read_csv(SOURCES["bcell"].fetch())
    X = table.drop(columns=["cell", "time_hour"]).to_numpy(dtype=np.float64)
    return RealShape("bcell", X, ("simple_traj",), {"time_hour": table["time_hour"].to_numpy(dtype=np.float64)})


def _digits() -> RealShape:
    from sklearn.datasets import load_digits

    data = load_digits()
    return RealShape("digits", data.data / 16.0, ("clusters",), {"digit": data.target})


def _iris() -> RealShape:
    from sklearn.datasets import load_iris

    data = load_iris()
    return RealShape("iris", data.data, ("clusters",), {"species": data.target_names[data.target]})


def _eb() -> RealShape:
    import pandas as pd

    table = pd.read_csv(SOURCES["eb"].fetch())
    return RealShape("eb", table[["Phate_x", "Phate_y"]].to_numpy(dtype=np.float64), ("multi_branch",))


def _mcf7() -> RealShape:
    import pandas as pd

    table = pd.read_csv(SOURCES["mcf7"].fetch(), index_col=0)
    phases = pd.read_csv(SOURCES["mcf7_phases"].fetch(), index_col=0)
    names = {"T1_M1": "G1", "T1_M2": "S", "T1_M3": "G2/M"}
    return RealShape(
        "mcf7",
        table.to_numpy(dtype=np.float64),
        ("simple_traj",),
        {"phase": phases["phase"].map(names).to_numpy(dtype=str)},
    )


def _pbmc() -> RealShape:
    import anndata

    data = anndata.read_h5ad(scanpy_file("pbmc68k"))
    return RealShape(
        "pbmc68k",
        np.asarray(data.obsm["X_pca"], dtype=np.float64),
        ("clusters",),
        {"cell_type": np.asarray(data.obs["bulk_labels"].astype(str))},
    )


def _simulated(name: str, labels: tuple[str, ...]) -> Callable[[], RealShape]:
    def read() -> RealShape:
        lines = scanpy_file(name).read_text().splitlines()
        rows = [line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        rows = [row for row in rows if _is_number(row[0])]
        table = np.array(rows, dtype=np.float64)
        time, X = (
            (table[:, 0], table[:, 1:]) if table.shape[1] > 2 else (np.arange(len(table), dtype=np.float64), table)
        )
        return RealShape(name, X, labels, {"step": time})

    return read


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def scanpy_file(name: str) -> Path:
    """A file of the scanpy wheel: where the package lies, else where `assay.core.data` looks.

    Raises
    ------
    DataError
    """
    source = SOURCES[name]
    try:
        found = importlib.util.find_spec("scanpy")
    except (ImportError, ValueError):
        found = None
    if found is not None and found.origin:
        path = Path(found.origin).parent / "datasets" / source.filename
        if path.is_file():
            return path
    here = source.find()
    if here is None:
        raise DataError(
            f"{source.filename} is a file of the scanpy wheel (datasets/), which is not installed here. {source._where_to_put()}"  # noqa: E501
        )
    return here


LOADERS: dict[str, Callable[[], RealShape]] = {
    "bcell": _bcell,
    "digits": _digits,
    "iris": _iris,
    "eb": _eb,
    "mcf7": _mcf7,
    "pbmc68k": _pbmc,
    "krumsiek11": _simulated("krumsiek11", ("multi_branch",)),
    "toggleswitch": _simulated("toggleswitch", ("multi_branch",)),
}
DATASETS = tuple(LOADERS)
