"""Files that people have: .h5ad, .loom, 10x folders, .csv, .npz, FCS; and the parts of scShapeBench."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.shapes.errors import AnnotationColumnWarning, LabelSchemaError, ShapeError, UnknownKindError
from assay.shapes.synthetic import LABELS, Shape

if TYPE_CHECKING:
    import pandas as pd

TABLES = (".csv", ".tsv", ".txt", ".fcs")
# Words in the name of a column that say it was written beside the measurement, not measured.
WORDS = (
    "time timepoint hour hours hr hrs day days week weeks minute minutes pseudotime dpt age stage batch sample donor "
    "patient plate well replicate cluster clusters leiden louvain label labels celltype group condition treatment "
    "barcode id index counts umis umi genes mito"
)
ANNOTATIONS = frozenset(WORDS.split())
FEW_VALUES = 30
PARTS = ("scRNAseq", "synthetic", "annotations", "labels")
AGGREGATIONS = ("majority", "soft", "confidence_weighted", "union")


def read_cells(path: str | Path, *, obs: Sequence[str] = (), exclude: Sequence[str] = ()) -> Any:
    """Cells of a file, by its kind.

    Parameters
    ----------
    path : path
    obs : sequence of str
        Columns of a table that say something about the cells and are none of their features: they become ``obs``. Of
        AnnData: columns that ``obs`` must hold.
    exclude : sequence of str
        Columns of a table (or genes of AnnData) that are left out altogether.

    Returns
    -------
    AnnData or array
        AnnData for ``.h5ad``, ``.loom`` and 10x folders (``matrix.mtx``); an array for ``.csv``, ``.tsv``, ``.txt``
        (numeric columns, compressed too), ``.npy``, ``.npz`` (array ``X``) and ``.fcs``. With ``obs``, tables are
        AnnData too, whose features are those of ``use_rep="X"``.

    Raises
    ------
    ShapeError
        If there is no such file, its kind is unknown, or a column does not exist.

    Warns
    -----
    AnnotationColumnWarning
        If features of a table look like annotations; see `looks_annotated`.
    """
    path = Path(path)
    if not path.exists():
        raise ShapeError(f"there is no file {path}")
    kind = kind_of(path)
    if kind in TABLES:
        return _of_table(_table(path, kind), list(obs), list(exclude), path.name)
    if kind in (".npy", ".npz"):
        if obs or exclude:
            raise ShapeError(f"{path.name} has no names of columns; leave them out before it is written")
        return _array(path, kind)
    if path.is_dir():
        data = _tenx(path)
    elif kind == ".h5ad":
        import anndata

        data = anndata.read_h5ad(path)
    elif kind == ".loom":
        data = _loom(path)
    else:
        raise ShapeError(
            f"{path.name} is of no kind that is read here; give .h5ad, .loom, .csv, .tsv, .txt, .npy, .npz, .fcs or a 10x folder"  # noqa: E501
        )
    _all_there(obs, data.obs.columns, f"obs of {path.name}")
    _all_there(exclude, data.var_names, f"{path.name} (genes)")
    return data[:, ~data.var_names.isin(list(exclude))].copy() if exclude else data


def kind_of(path: str | Path) -> str:
    """Suffix that says what a file is, without that of its compression.

    Examples
    --------
    >>> kind_of("cells.CSV.gz")
    '.csv'
    """
    suffixes = [s.lower() for s in Path(path).suffixes if s.lower() not in (".gz", ".bz2", ".xz", ".zip")]
    return suffixes[-1] if suffixes else ""


def looks_annotated(table: pd.DataFrame) -> list[str]:
    """Numeric columns that look like annotations of the cells and not like measurements.

    By name (``time_hour``, ``leiden``, ``n_counts``), or because they hold a few whole numbers (at most 30, and at most
    one in five cells) where most other columns do not hold whole numbers.

    Examples
    --------
    >>> import pandas as pd
    >>> x = np.linspace(0, 1, 90)
    >>> looks_annotated(pd.DataFrame({"PC1": x, "PC2": x**2, "PC3": x**3, "time_hour": 24 * x, "k": np.arange(90) % 4}))
    ['time_hour', 'k']
    """
    numbers = table.select_dtypes("number")
    whole = {name: bool((column.dropna() % 1 == 0).all()) for name, column in numbers.items()}
    measured = 2 * sum(whole.values()) < len(whole)
    found = []
    for name, column in numbers.items():
        words = set(re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", str(name)).lower()))
        few = column.nunique() <= min(FEW_VALUES, len(column) / 5)
        if words & ANNOTATIONS or (measured and whole[name] and few):
            found.append(str(name))
    return found


def _table(path: Path, kind: str) -> pd.DataFrame:
    import pandas as pd

    if kind == ".fcs":
        values, names = read_fcs(path)
        return pd.DataFrame(values, columns=names)
    table = pd.read_csv(path, sep="," if kind == ".csv" else r"\s+", comment="#")
    first = str(table.columns[0])
    if first.startswith("Unnamed") or first.lower() in ("cell", "cell_id", "index", "barcode"):
        table = table.set_index(table.columns[0])
    return table


def _of_table(table: pd.DataFrame, obs: list[str], exclude: list[str], where: str) -> Any:
    table.columns = table.columns.astype(str)
    _all_there([*obs, *exclude], table.columns, where)
    rest = table.drop(columns=[*obs, *exclude]).select_dtypes("number")
    if not rest.shape[1]:
        raise ShapeError(f"{where} has no numeric column" + (" beside these" if obs or exclude else ""))
    suspects = looks_annotated(rest)
    if suspects:
        warnings.warn(AnnotationColumnWarning(suspects), stacklevel=3)
    X = rest.to_numpy(dtype=np.float64)
    if not obs:
        return X
    import anndata
    import pandas as pd

    beside = table[obs].set_index(pd.Index(table.index.astype(str)))
    return anndata.AnnData(X, obs=beside, var=pd.DataFrame(index=rest.columns))


def _all_there(names: Sequence[str], available: Any, where: str) -> None:
    known = [str(name) for name in available]
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known[:12])}"
            raise ShapeError(f"there is no column {name!r} in {where}; {hint}")


def _array(path: Path, kind: str) -> NDArray[Any]:
    if kind == ".npy":
        return np.asarray(np.load(path, allow_pickle=False))
    with np.load(path, allow_pickle=False) as file:
        if "X" not in file:
            raise ShapeError(f"{path} has no array X; it holds {', '.join(file.files)}")
        return np.asarray(file["X"])


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
