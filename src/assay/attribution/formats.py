"""Readers of what users have: tables, texts, MNIST and CIFAR files, image folders, checkpoints. No file runs code."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.attribution.errors import CheckpointMismatch, DataFormatError

PathLike = str | os.PathLike[str]
LARGEST_IMAGE = 50_000_000  # pixels


@dataclass(frozen=True)
class TableData:
    """Rows as numbers, labels as codes, and the names to show them by.

    Attributes
    ----------
    X : float32 array (N, features)
    y : int64 array (N,) or float32 for regression
    classes : list
        Label of each code; empty for regression.
    features : list of str
    rows : list of dict
        The rows as they were read.
    """

    X: Float[np.ndarray, "n d"]
    y: np.ndarray
    classes: list[Any]
    features: list[str]
    rows: list[dict[str, Any]] = field(default_factory=list, repr=False)


def _exists(path: PathLike) -> Path:
    target = Path(path)
    if not target.exists():
        raise DataFormatError(f"there is no file {target}")
    return target


def _bytes(path: Path) -> bytes:
    raw = path.read_bytes()
    try:
        return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError) as error:
        raise DataFormatError(f"{path} starts like a gzip file but cannot be unpacked: {error}") from error


def read_table(path: PathLike, label: str, *, drop: Sequence[str] = (), regression: bool | None = None) -> TableData:
    """A CSV, TSV or parquet table: numbers standardised, empty cells the median (and a column that says so), categories
    one-hot (up to 50 values), free text left out.

    Parameters
    ----------
    label : str
        Column of the label.
    regression : bool, optional
        Default: whether the label is a number with more than 20 values, not all whole.

    Raises
    ------
    DataFormatError
        No such file or column, no feature left, an empty label, or one class only.
    """
    import pandas as pd

    target = _exists(path)
    try:
        if target.suffix == ".parquet":
            frame = pd.read_parquet(target)
        else:
            separator = "\t" if ".tsv" in target.suffixes or target.suffix == ".tsv" else ","
            frame = pd.read_csv(target, sep=separator)
    except (ValueError, OSError, pd.errors.ParserError) as error:
        raise DataFormatError(f"{target} cannot be read as a table: {str(error).splitlines()[0]}") from error
    if label not in frame.columns:
        raise DataFormatError(f"{target} has no column {label!r}; it has {', '.join(map(str, frame.columns[:20]))}")
    missing = frame[label].isna()
    if missing.any():
        raise DataFormatError(
            f"{target}: {int(missing.sum())} rows have no label, the first is row "
            f"{int(np.flatnonzero(missing.to_numpy())[0])}"
        )
    unknown = [name for name in drop if name not in frame.columns]
    if unknown:
        raise DataFormatError(f"{target} has no column {unknown[0]!r} to drop")
    return from_frame(frame, label, drop=drop, regression=regression, where=str(target))


def from_frame(
    frame: Any, label: str, *, drop: Sequence[str] = (), regression: bool | None = None, where: str = "the table"
) -> TableData:
    """The same from a data frame."""
    import pandas as pd

    columns: list[np.ndarray] = []
    names: list[str] = []
    for name in frame.columns:
        if name == label or name in drop:
            continue
        cells = frame[name]
        if pd.api.types.is_bool_dtype(cells) or pd.api.types.is_numeric_dtype(cells):
            values = cells.to_numpy(dtype=float, na_value=np.nan)
            empty = ~np.isfinite(values)
            middle = float(np.median(values[~empty])) if (~empty).any() else 0.0
            values = np.where(empty, middle, values)
            spread = values.std()
            if spread > 0:
                columns.append((values - values.mean()) / spread)
                names.append(str(name))
            if empty.any() and (~empty).any():
                columns.append(empty.astype(float))
                names.append(f"{name} is empty")
            continue
        texts = cells.astype(str).where(~cells.isna(), "")
        kinds = sorted(texts.unique())
        if 1 < len(kinds) <= 50:
            for kind in kinds:
                columns.append((texts == kind).to_numpy(dtype=float))
                names.append(f"{name}={kind}")
    if not columns:
        raise DataFormatError(f"{where} has no column that varies and is a number or a category, beside {label!r}")
    X = np.stack(columns, 1).astype(np.float32)
    cells = frame[label]
    number = pd.api.types.is_float_dtype(cells)
    if regression is None:
        regression = number and cells.nunique() > 20 and bool((cells != cells.round()).any())
    rows = frame.to_dict("records")
    if regression:
        if not pd.api.types.is_numeric_dtype(cells):
            raise DataFormatError(f"{where}: the label {label!r} is not a number, so this is no regression")
        return TableData(X, cells.to_numpy(dtype=np.float32), [], names, rows)
    classes, codes = np.unique(cells.to_numpy(), return_inverse=True)
    if len(classes) < 2:
        raise DataFormatError(f"{where}: the label {label!r} has one value only, {classes[0]!r}")
    if len(classes) > len(frame) / 2:
        raise DataFormatError(
            f"{where}: the label {label!r} has {len(classes)} values in {len(frame)} rows; name another column, or "
            f"say that it is a regression"
        )
    return TableData(X, codes.astype(np.int64), classes.tolist(), names, rows)


def read_mnist(images: PathLike, labels: PathLike | None = None) -> tuple[np.ndarray, np.ndarray | None]:
    """IDX files (plain or gzip): images (N, rows, columns) in 0..1 and labels.

    Raises
    ------
    DataFormatError
    """
    X = _idx(_exists(images))
    if X.ndim != 3:
        raise DataFormatError(f"{images} holds an array of {X.ndim} dimensions, images have 3 (is it the label file?)")
    if labels is None:
        return (X / 255).astype(np.float32), None
    y = _idx(_exists(labels))
    if y.ndim != 1 or len(y) != len(X):
        raise DataFormatError(f"{labels} has shape {y.shape}, expected ({len(X)},)")
    return (X / 255).astype(np.float32), y.astype(np.int64)


def _idx(path: Path) -> np.ndarray:
    raw = _bytes(path)
    kinds = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in kinds:
        raise DataFormatError(f"{path} is not an IDX file (its first bytes are {raw[:4].hex()})")
    axes = raw[3]
    if len(raw) < 4 + 4 * axes:
        raise DataFormatError(f"{path} ends within its header")
    shape = struct.unpack(f">{axes}I", raw[4 : 4 + 4 * axes])
    kind = np.dtype(kinds[raw[2]])
    wanted = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if len(raw) - 4 - 4 * axes != wanted:
        raise DataFormatError(f"{path} holds {len(raw) - 4 - 4 * axes} bytes of data, its header says {wanted}")
    return np.frombuffer(raw, dtype=kind, offset=4 + 4 * axes).reshape(shape)


class _ArraysOnly(pickle.Unpickler):
    """Plain containers, texts and numpy arrays; any other name in the file is an error and is not called."""

    _ALLOWED: ClassVar = {
        ("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"),
    }  # fmt: skip

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise DataFormatError(f"the file asks for {module}.{name}; only arrays, texts and lists are read")
        if module == "numpy.core.multiarray":
            module = "numpy._core.multiarray"
        return super().find_class(module, name)


def read_cifar(files: PathLike | Sequence[PathLike]) -> tuple[np.ndarray, np.ndarray]:
    """CIFAR-10 batches of the Python version: images (N, 3, 32, 32) in 0..1 and labels.

    The files are pickles; they are read by an unpickler that knows arrays and plain containers only.

    Raises
    ------
    DataFormatError
    """
    paths = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    images, labels = [], []
    for name in paths:
        path = _exists(name)
        try:
            batch = _ArraysOnly(io.BytesIO(_bytes(path)), encoding="bytes").load()
            data = np.asarray(batch[b"data"])
            y = batch.get(b"labels", batch.get(b"fine_labels"))
        except DataFormatError as error:
            raise DataFormatError(f"{path}: {error}") from error
        except Exception as error:
            raise DataFormatError(f"{path} is not a CIFAR batch ({type(error).__name__}: {error})") from error
        if data.ndim != 2 or data.shape[1] != 3072 or y is None or len(y) != len(data):
            raise DataFormatError(f"{path} holds an array {data.shape}; a CIFAR batch is (N, 3072) with N labels")
        images.append((data.reshape(-1, 3, 32, 32) / 255).astype(np.float32))
        labels.append(np.asarray(y, dtype=np.int64))
    return np.concatenate(images), np.concatenate(labels)


def read_image_folder(
    folder: PathLike, size: tuple[int, int] = (32, 32), *, gray: bool = False
) -> tuple[np.ndarray, np.ndarray, list[str], list[str]]:
    """One folder a class: images (N, channels, height, width) in 0..1, labels, class names, file names.

    Raises
    ------
    DataFormatError
        No folder, no class folder with images, an image that cannot be read or is larger than 50 million pixels.
    """
    from PIL import Image

    root = _exists(folder)
    if not root.is_dir():
        raise DataFormatError(f"{root} is not a folder")
    classes = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    images, labels, names = [], [], []
    for code, name in enumerate(classes):
        for path in sorted((root / name).iterdir()):
            if path.suffix.lower() not in (
                ".png",
                ".jpg",
                ".jpeg",
                ".bmp",
                ".gif",
                ".webp",
                ".tif",
                ".tiff",
                ".ppm",
                ".pgm",
            ):
                continue
            try:
                with Image.open(path) as image:
                    if image.width * image.height > LARGEST_IMAGE:
                        raise DataFormatError(
                            f"{path} has {image.width} x {image.height} pixels, more than {LARGEST_IMAGE:,}"
                        )
                    shown = image.convert("L" if gray else "RGB").resize((size[1], size[0]))
                    array = np.asarray(shown, dtype=np.float32) / 255
            except (OSError, ValueError, Image.DecompressionBombError) as error:
                if isinstance(error, DataFormatError):
                    raise
                raise DataFormatError(f"{path} cannot be read as an image: {error}") from error
            images.append(array[None] if gray else array.transpose(2, 0, 1))
            labels.append(code)
            names.append(str(path.relative_to(root)))
    if not images:
        raise DataFormatError(f"{root} has no folder with images in it (expected {root}/<class>/<image>)")
    return np.stack(images), np.array(labels, dtype=np.int64), classes, names


def read_tsv(
    path: PathLike, text: Sequence[str], label: str, *, delimiter: str = "\t"
) -> tuple[list[str], np.ndarray, list[str]]:
    """A tab-separated file with a header, quotes taken as they are (GLUE's QNLI and MRPC): texts (joined by `` [SEP]
    ``), codes of the labels, class names.

    Lines with another number of cells than the header are an error that names the line.
    """
    target = _exists(path)
    lines = _decoded(target).splitlines()
    if not lines:
        raise DataFormatError(f"{target} is empty")
    reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    header = next(reader)
    for name in [*text, label]:
        if name not in header:
            raise DataFormatError(f"{target} has no column {name!r}; it has {', '.join(header)}")
    texts, labels = [], []
    for number, cells in enumerate(reader, start=2):
        if len(cells) != len(header):
            raise DataFormatError(f"{target}, line {number}: {len(cells)} cells, the header has {len(header)}")
        row = dict(zip(header, cells, strict=True))
        texts.append(" [SEP] ".join(row[name] for name in text))
        labels.append(row[label])
    if not texts:
        raise DataFormatError(f"{target} has a header and no rows")
    classes, codes = np.unique(labels, return_inverse=True)
    return texts, codes.astype(np.int64), [str(c) for c in classes]


def read_jsonl(path: PathLike, text: str = "text", label: str | None = None) -> tuple[list[str], list[Any] | None]:
    """A file with one JSON object a line: its texts, and its labels if a key is named."""
    target = _exists(path)
    texts: list[str] = []
    labels: list[Any] = []
    for number, line in enumerate(_decoded(target).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            texts.append(str(row[text]))
            if label is not None:
                labels.append(row[label])
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise DataFormatError(f"{target}, line {number}: {type(error).__name__}: {error}") from error
    if not texts:
        raise DataFormatError(f"{target} has no rows")
    return texts, labels if label is not None else None


def _decoded(path: Path) -> str:
    try:
        return _bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataFormatError(f"{path} is not UTF-8 (byte {error.start})") from error


def read_state(path: PathLike) -> dict[str, Tensor]:
    """Weights from a ``.safetensors`` file or a torch file; code in the file is never run.

    Raises
    ------
    CheckpointMismatch
        If it is neither, or holds anything else than tensors.
    """
    target = Path(path)
    if not target.exists():
        raise CheckpointMismatch(f"there is no checkpoint {target}")
    try:
        if target.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(target))
        state = torch.load(target, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointMismatch(f"{target} is no checkpoint that can be read: {str(error).splitlines()[0]}") from error
    for key in ("state_dict", "model", "model_state_dict"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not state or not all(isinstance(v, Tensor) for v in state.values()):
        raise CheckpointMismatch(f"{target} holds no state_dict (names and tensors)")
    return dict(state)
