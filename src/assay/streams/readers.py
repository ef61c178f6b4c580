"""Streams from files and frames of the user's own: CSV, Parquet, LIBSVM, ARFF, pandas."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assay.streams.errors import StreamError, UnknownFeatureValue
from assay.streams.models.base import is_missing
from assay.streams.rows import RowBlock
from assay.streams.stream import Chunk, HaphazardStream, guess_task, sorted_classes

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")


def from_frame(
    frame: pd.DataFrame,
    label: str,
    *,
    id_columns: Sequence[str] = (),
    order_by: str | Sequence[str] | None = None,
    categorical: Sequence[str] | None = None,
    text: Sequence[str] = (),
    task: str | None = None,
    classes: Sequence[Hashable] | None = None,
    name: str = "frame",
) -> HaphazardStream:
    """A stream from a data frame.

    Parameters
    ----------
    frame : DataFrame
        NaN (None, NaT) is absence.
    label : str
        Column of the label; empty cells are missing labels.
    id_columns : sequence of str
        Columns to leave out.
    order_by : str or sequence of str, optional
        Sort the rows by these columns first (stable); they stay features unless they are in ``id_columns``.
    categorical : sequence of str, optional
        Columns whose values become features ``name=value`` with value 1. Default: columns of text, categories and
        booleans.
    text : sequence of str
        Columns of running text: each word becomes a feature ``name:word`` with its count.
    task, classes
        As in `from_arrays`.

    Raises
    ------
    StreamError
        If a named column is not there.
    UnknownFeatureValue
        If a numeric column holds something else; the message names row and column.

    Examples
    --------
    >>> frame = pd.DataFrame({"temp": [20.5, None], "valve": ["open", "shut"], "fault": [0, 1]})
    >>> [(row.to_dict(), y) for row, y in from_frame(frame, "fault")]
    [({'temp': 20.5, 'valve=open': 1.0}, 0), ({'valve=shut': 1.0}, 1)]
    """
    orders = [order_by] if isinstance(order_by, str) else list(order_by or ())
    for column in (label, *id_columns, *orders, *(categorical or ()), *text):
        if column not in frame.columns:
            raise StreamError(
                f"there is no column {column!r}; the columns are {', '.join(map(str, frame.columns[:30]))}"
            )
    if orders:
        frame = frame.sort_values(orders, kind="stable")
    labels = _labels(frame[label])
    features = [c for c in frame.columns if c != label and c not in set(id_columns)]
    if not features:
        raise StreamError("no feature column is left")
    if categorical is None:
        categorical = [c for c in features if c not in text and _is_categorical(frame[c])]
    X = np.empty((len(frame), len(features)))
    values_of: dict[int, list[str]] = {}
    words_of: dict[int, list[Counter[str]]] = {}
    for j, column in enumerate(features):
        series = frame[column]
        if column in text:
            words_of[j] = [Counter(tokenize(v)) if isinstance(v, str) else Counter() for v in series]
            X[:, j] = np.where(series.isna().to_numpy(), np.nan, np.arange(len(frame)))
        elif column in categorical:
            codes, uniques = pd.factorize(series)
            values_of[j] = [f"{column}={value}" for value in uniques]
            X[:, j] = np.where(codes < 0, np.nan, codes)
        else:
            X[:, j] = _numbers(series)
    names = [str(c) if not isinstance(c, Hashable) else c for c in features]
    task = task or guess_task(labels)
    if task == "regression":
        labels = np.array([np.nan if is_missing(v) else float(v) for v in labels])
    elif classes is None:
        classes = sorted_classes(labels)

    def chunks(size: int) -> Iterator[Chunk]:
        for start in range(0, len(X), size):
            yield X[start : start + size], labels[start : start + size]

    encode = _Encoder(names, values_of, words_of) if values_of or words_of else None
    return HaphazardStream(
        name, tuple(names), task, None if classes is None else tuple(classes), len(X), chunks=chunks, encode=encode
    )


def from_csv(path: str | os.PathLike[str], label: str, *, lazy: bool = False, **options: Any) -> HaphazardStream:
    """A stream from a CSV file with a header row (gz, bz2, xz, zip too); options as in `from_frame`.

    Parameters
    ----------
    lazy : bool
        Read in pieces at every pass, in constant memory: numeric columns only, no ``order_by``, and the classes must be
        declared (or are grown).

    Raises
    ------
    FileNotFoundError, StreamError, UnknownFeatureValue
    """
    path = Path(path)
    if not lazy:
        return from_frame(pd.read_csv(path), label, **{"name": path.name.split(".")[0], **options})
    if options.get("order_by") or options.get("categorical") or options.get("text"):
        raise StreamError("lazy reading takes numeric columns in file order; leave out order_by, categorical and text")
    head = pd.read_csv(path, nrows=1)
    if label not in head.columns:
        raise StreamError(f"{path} has no column {label!r}; its columns are {', '.join(head.columns[:30])}")
    ids = set(options.get("id_columns", ()))
    names = [c for c in head.columns if c != label and c not in ids]

    def chunks(size: int) -> Iterator[Chunk]:
        row = 0
        for piece in pd.read_csv(path, chunksize=size):
            X = np.column_stack([_numbers(piece[c], first_row=row) for c in names])
            row += len(piece)
            yield X, _labels(piece[label])

    classes = options.get("classes")
    return HaphazardStream(
        options.get("name", path.name.split(".")[0]), tuple(names), options.get("task") or "classification",
        None if classes is None else tuple(classes), options.get("n_rows"), chunks=chunks,
    )  # fmt: skip


def from_parquet(path: str | os.PathLike[str], label: str, **options: Any) -> HaphazardStream:
    """A stream from a Parquet file; options as in `from_frame`."""
    path = Path(path)
    return from_frame(pd.read_parquet(path), label, **{"name": path.stem, **options})


def from_arff(path: str | os.PathLike[str], label: str, **options: Any) -> HaphazardStream:
    """A stream from an ARFF file (nominal attributes become categories); options as in `from_frame`."""
    from scipy.io import arff

    path = Path(path)
    try:
        records, meta = arff.loadarff(str(path))
    except (arff.ArffError, NotImplementedError, ValueError, StopIteration) as error:
        reason = str(error) or "it has no line @data"
        raise StreamError(f"{path} is not an ARFF file that can be read: {reason}") from error
    frame = pd.DataFrame(records)
    for column, kind in zip(meta.names(), meta.types(), strict=True):
        if kind != "numeric":
            decoded = [v.decode() if isinstance(v, bytes) else v for v in frame[column]]
            frame[column] = pd.Series([None if v == "?" else v for v in decoded], dtype=object)
    return from_frame(frame, label, **{"name": path.stem, **options})


def from_libsvm(
    path: str | os.PathLike[str],
    *,
    n_features: int | None = None,
    zeros: str = "absent",
    task: str | None = None,
    classes: Sequence[Hashable] | None = None,
    name: str | None = None,
) -> HaphazardStream:
    """A stream from a LIBSVM / SVMlight file; features are named by their index in the file, from 1.

    Parameters
    ----------
    zeros : {"absent", "zero"}
        What an index that is not in a row means.
    """
    from sklearn.datasets import load_svmlight_file

    path = Path(path)
    if zeros not in ("absent", "zero"):
        raise StreamError(f"zeros is 'absent' or 'zero', not {zeros!r}")
    try:
        table, labels = load_svmlight_file(str(path), n_features=n_features, zero_based=False)
    except (ValueError, TypeError) as error:
        raise StreamError(f"{path} is not a LIBSVM file: {error}") from error
    table = table.tocsr()
    fill = np.nan if zeros == "absent" else 0.0
    task = task or guess_task(labels)
    if task != "regression":
        labels = np.array([int(v) if v == int(v) else v for v in labels])
        classes = classes if classes is not None else sorted_classes(labels)

    def chunks(size: int) -> Iterator[Chunk]:
        for start in range(0, table.shape[0], size):
            part = table[start : start + size]
            X = np.full(part.shape, fill)
            rows = np.repeat(np.arange(part.shape[0]), np.diff(part.indptr))
            X[rows, part.indices] = part.data
            yield X, labels[start : start + size]

    columns = tuple(range(1, table.shape[1] + 1))
    return HaphazardStream(
        name or path.stem, columns, task, None if classes is None else tuple(classes), table.shape[0], chunks=chunks
    )


def tokenize(text: str) -> list[str]:
    """Lower-case words: runs of letters and digits.

    >>> tokenize("Win a FREE prize, don't wait!")
    ['win', 'a', 'free', 'prize', "don't", 'wait']
    """
    return _WORD.findall(text.lower())


class _Encoder:
    """Turns category codes and text positions in a block into features with names."""

    def __init__(
        self, names: Sequence[Hashable], values_of: dict[int, list[str]], words_of: dict[int, list[Counter[str]]]
    ) -> None:
        self.columns: list[Hashable] = list(names)
        self.offset = np.full(len(names), -1, dtype=np.int64)
        for j, values in values_of.items():
            self.offset[j] = len(self.columns)
            self.columns.extend(values)
        self.words_of = words_of
        self.names = names
        self.code_of: dict[Hashable, int] = {}

    def __call__(self, block: RowBlock) -> RowBlock:
        category = self.offset[block.codes] >= 0
        whole = np.where(category, block.values, 0).astype(np.int64)
        codes = np.where(category, self.offset[block.codes] + whole, block.codes)
        values = np.where(category, 1.0, block.values)
        encoded = RowBlock(self.columns, block.indptr, codes, values)
        return encoded if not self.words_of else self._with_words(encoded)

    def _with_words(self, block: RowBlock) -> RowBlock:
        indptr, codes, values = [0], [], []
        for t in range(len(block)):
            for k in range(block.indptr[t], block.indptr[t + 1]):
                j = int(block.codes[k])
                if j not in self.words_of:
                    codes.append(j)
                    values.append(float(block.values[k]))
                    continue
                for word, count in self.words_of[j][int(block.values[k])].items():
                    feature = f"{self.names[j]}:{word}"
                    if feature not in self.code_of:
                        self.code_of[feature] = len(self.columns)
                        self.columns.append(feature)
                    codes.append(self.code_of[feature])
                    values.append(float(count))
            indptr.append(len(codes))
        return RowBlock(
            self.columns, np.array(indptr, np.int64), np.array(codes, np.int64), np.array(values, np.float64)
        )


def _is_categorical(series: pd.Series) -> bool:
    kind = series.dtype
    return bool(
        isinstance(kind, pd.CategoricalDtype) or pd.api.types.is_bool_dtype(kind) or pd.api.types.is_string_dtype(kind)
        or pd.api.types.is_object_dtype(kind)
    )  # fmt: skip


def _numbers(series: pd.Series, first_row: int = 0) -> NDArray[np.float64]:
    numeric = pd.to_numeric(series, errors="coerce")
    bad = numeric.isna().to_numpy() & series.notna().to_numpy()
    values = numeric.to_numpy(dtype=np.float64, na_value=np.nan)
    bad |= np.isinf(values)
    if bad.any():
        t = int(np.flatnonzero(bad)[0])
        raise UnknownFeatureValue(
            f"row {first_row + t}, column {series.name!r} holds {series.iloc[t]!r}, which is not a finite number; name "
            f"the column in categorical=[...] or text=[...], or clean it"
        )
    return values


def _labels(series: pd.Series) -> NDArray[Any]:
    if series.isna().any() and not pd.api.types.is_float_dtype(series.dtype):
        return np.array([None if is_missing(v) or v is pd.NA else v for v in series], dtype=object)
    values = series.to_numpy()
    if values.dtype.kind == "f" and len(values) and not np.isnan(values).any() and (values == np.floor(values)).all():
        values = values.astype(np.int64)
    return values if values.dtype.kind in "biufUS" else np.array(values.tolist(), dtype=object)
