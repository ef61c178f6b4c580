"""Files that people have: .h5ad, .loom, 10x folders, .csv, .npz, FCS; and the parts of scShapeBench."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.shapes.errors import LabelSchemaError, ShapeError, UnknownKindError
from assay.shapes.synthetic import LABELS, Shape

PARTS = ("scRNAseq", "synthetic", "annotations", "labels")
AGGREGATIONS = ("majority", "soft", "confidence_weighted", "union")


def read_cells(path: str | Path) -> Any:
    """Cells of a file, by its kind.

    Returns
    -------
    AnnData or array
        AnnData for ``.h5ad``, ``.loom`` and 10x folders (``matrix.mtx``); an array for ``.csv``, ``.tsv``, ``.txt``
        (numeric columns, compressed too), ``.npy``, ``.npz`` (array ``X``) and ``.fcs``.

    Raises
    ------
    ShapeError
        If there is no such file, or its kind is unknown.
    """
    path = Path(path)
    if not path.exists():
        raise ShapeError(f"there is no file {path}")
    suffixes = [s.lower() for s in path.suffixes if s.lower() not in (".gz", ".bz2", ".xz", ".zip")]
    kind = suffixes[-1] if suffixes else ""
    if path.is_dir():
        return _tenx(path)
    if kind == ".h5ad":
        import anndata

        return anndata.read_h5ad(path)
    if kind == ".loom":
        return _loom(path)
    if kind in (".csv", ".tsv", ".txt"):
        import pandas as pd

        table = pd.read_csv(path, sep="," if kind == ".csv" else r"\s+", comment="#")
        numbers = table.select_dtypes("number")
        first = str(table.columns[0])
        if first.startswith("Unnamed") or first.lower() in ("cell", "cell_id", "index", "barcode"):
            numbers = numbers.drop(columns=[table.columns[0]], errors="ignore")
        if not numbers.shape[1]:
            raise ShapeError(f"{path} has no numeric column")
        return numbers.to_numpy(dtype=np.float64)
    if kind == ".npy":
        return np.load(path, allow_pickle=False)
    if kind == ".npz":
        with np.load(path, allow_pickle=False) as file:
            if "X" not in file:
                raise ShapeError(f"{path} has no array X; it holds {', '.join(file.files)}")
            return file["X"]
    if kind == ".fcs":
        return read_fcs(path)[0]
    raise ShapeError(
        f"{path.name} is of no kind that is read here; give .h5ad, .loom, .csv, .tsv, .txt, .npy, .npz, .fcs or a 10x folder"  # noqa: E501
    )


def _tenx(folder: Path) -> Any:
    import anndata
    import pandas as pd
    from scipy.io import mmread

    def find(*names: str) -> Path:
        for name in names:
            for candidate in (folder / name, folder / f"{name}.gz"):
                if candidate.is_file():
                    return candidate
        raise ShapeError(f"{folder} is no 10x folder: it has no {' or '.join(names)}")

    matrix = mmread(find("matrix.mtx")).T.tocsr()
    cells = pd.read_csv(find("barcodes.tsv"), header=None, sep="\t")[0].astype(str)
    genes = pd.read_csv(find("features.tsv", "genes.tsv"), header=None, sep="\t").iloc[:, 0].astype(str)
    return anndata.AnnData(matrix, obs=pd.DataFrame(index=cells.to_numpy()), var=pd.DataFrame(index=genes.to_numpy()))


def _loom(path: Path) -> Any:
    """A loom file: ``matrix`` is genes by cells, ``col_attrs`` are of the cells."""
    import anndata
    import h5py
    import pandas as pd
    from scipy import sparse

    with h5py.File(path) as file:
        if "matrix" not in file:
            raise ShapeError(f"{path} is no loom file: it has no 'matrix'")
        X = sparse.csr_matrix(file["matrix"][()].T)
        columns = {k: _plain(v[()]) for k, v in file.get("col_attrs", {}).items() if v.ndim == 1}
        rows = {k: _plain(v[()]) for k, v in file.get("row_attrs", {}).items() if v.ndim == 1}
    obs = pd.DataFrame(columns, index=[str(i) for i in range(X.shape[0])])
    return anndata.AnnData(X, obs=obs, var=pd.DataFrame(rows, index=[str(i) for i in range(X.shape[1])]))


def _plain(values: NDArray[Any]) -> NDArray[Any]:
    return (
        np.array([v.decode() for v in values])
        if values.dtype.kind in "OS" and len(values) and isinstance(values[0], bytes)
        else values
    )


def read_fcs(path: str | Path) -> tuple[NDArray[np.float64], list[str]]:
    """Events and channel names of a flow cytometry file (FCS 3.0 and 3.1, list mode, float, double or whole numbers).

    Raises
    ------
    ShapeError
        If it is no FCS file, or of a mode that is not read here.
    """
    raw = Path(path).read_bytes()
    if not raw.startswith(b"FCS3"):
        raise ShapeError(f"{path} is no FCS 3 file")
    try:
        return _read_fcs(path, raw)
    except (KeyError, IndexError, ValueError) as error:
        if isinstance(error, ShapeError):
            raise
        raise ShapeError(f"{path} is damaged: {type(error).__name__} {error} in its header or data") from error


def _read_fcs(path: str | Path, raw: bytes) -> tuple[NDArray[np.float64], list[str]]:
    start, end = int(raw[10:18]), int(raw[18:26])
    text = raw[start : end + 1].decode("latin-1")
    mark = text[0]
    words = text[1:].replace(mark * 2, "\0").split(mark)
    keys = {k.strip().upper(): v.replace("\0", mark).strip() for k, v in zip(words[0::2], words[1::2])}
    channels, events = int(keys["$PAR"]), int(keys["$TOT"])
    if keys.get("$MODE", "L").upper() != "L":
        raise ShapeError(f"{path} is in mode {keys['$MODE']}; only list mode is read")
    begin = int(raw[26:34]) or int(keys["$BEGINDATA"])
    order = "<" if keys["$BYTEORD"].startswith("1") else ">"
    kind = keys["$DATATYPE"].upper()
    if kind in ("F", "D"):
        code = order + ("f4" if kind == "F" else "f8")
    elif kind == "I":
        bits = {int(keys[f"$P{i + 1}B"]) for i in range(channels)}
        if len(bits) != 1 or not bits <= {8, 16, 32}:
            raise ShapeError(f"{path} has whole numbers of {sorted(bits)} bits; one size of 8, 16 or 32 is read")
        code = f"{order}u{bits.pop() // 8}"
    else:
        raise ShapeError(f"{path} has data of type {kind!r}; F, D and I are read")
    wanted = channels * events * np.dtype(code).itemsize
    if channels < 1 or events < 0 or begin + wanted > len(raw):
        raise ShapeError(f"{path} is cut off: {events} events of {channels} channels need {wanted} bytes from {begin}")
    table = np.frombuffer(raw, dtype=code, count=channels * events, offset=begin)
    names = [keys.get(f"$P{i + 1}S") or keys[f"$P{i + 1}N"] for i in range(channels)]
    return table.reshape(events, channels).astype(np.float64), names


def load_scshapebench(path: str | Path, part: str = "scRNAseq", *, aggregation: str = "majority") -> Any:
    """A part of a local copy of scShapeBench.

    Parameters
    ----------
    path : path
        Folder of the data set, as on its hub (CC BY 4.0).
    part : {"scRNAseq", "synthetic", "annotations", "labels"}
    aggregation : {"majority", "soft", "confidence_weighted", "union"}
        Of ``labels``.

    Returns
    -------
    iterator of (id, AnnData)
        For ``scRNAseq``: one ``.h5ad`` at a time, backed (read from disk when used), in the order of the file names.
    iterator of (name, Shape)
        For ``synthetic``.
    DataFrame
        For ``annotations`` (one row a data set and annotator) and ``labels`` (one row a data set).

    Raises
    ------
    UnknownKindError, ShapeError, LabelSchemaError
    """
    folder = Path(path)
    if part not in PARTS:
        raise UnknownKindError(f"scShapeBench has no part {part!r}; give one of {', '.join(PARTS)}")
    if part == "scRNAseq":
        files = sorted(folder.glob("**/SCD-*.h5ad"))
        if not files:
            raise ShapeError(f"{folder} holds no SCD-*.h5ad")
        return _cells_of(files)
    if part == "synthetic":
        files = sorted(folder.glob("data/synthetic/*.npz"))
        if not files:
            raise ShapeError(f"{folder} holds no data/synthetic/*.npz")
        return ((file.stem, Shape.load(file)) for file in files)
    file = folder / "labels" / f"{part}.parquet"
    if not file.is_file():
        raise ShapeError(f"{folder} holds no labels/{part}.parquet")
    import pandas as pd

    table = pd.read_parquet(file)
    for column in ("dataset_id", *LABELS):
        if column not in table.columns:
            raise LabelSchemaError(column)
    for column in LABELS:
        values = table[column].astype(float)
        if values.isna().any() or not values.between(0, 1).all():
            raise LabelSchemaError(column, "must hold numbers between 0 and 1, without gaps")
    if part == "annotations":
        if "annotator" not in table.columns:
            raise LabelSchemaError("annotator")
        return table
    if "aggregation" not in table.columns:
        raise LabelSchemaError("aggregation")
    if aggregation not in AGGREGATIONS:
        raise UnknownKindError(f"there is no aggregation {aggregation!r}; give one of {', '.join(AGGREGATIONS)}")
    return table[table["aggregation"] == aggregation].reset_index(drop=True)


def _cells_of(files: list[Path]) -> Iterator[tuple[str, Any]]:
    import anndata

    for file in files:
        yield file.stem, anndata.read_h5ad(file, backed="r")
