"""Model state as a plain tree, and that tree as one file without pickle.

A tree is made of dict, list, tuple, set, deque, str, bytes, int, float, bool, None, NumPy arrays and scalars and NumPy
generators. On disk it is an ``.npz``: the arrays as they are, the rest as JSON beside them, so that loading runs no
code.
"""

from __future__ import annotations

import json
import os
import uuid
import zipfile
from collections import deque
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np

from assay.streams.errors import CheckpointMismatch

_FORMAT = "assay-streams-state-1"


def copy_tree(value: Any) -> Any:
    """A deep copy of a state tree (arrays and generators included)."""
    arrays: list[np.ndarray] = []
    return _decode(_encode(value, arrays), [array.copy() for array in arrays])


def tree_bytes(value: Any) -> int:
    """Bytes that the numbers and names of a state tree take (arrays exactly, Python objects by a flat estimate)."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, dict):
        return 64 + sum(tree_bytes(k) + tree_bytes(v) for k, v in value.items())
    if isinstance(value, (list, tuple, set, deque)):
        return 56 + sum(8 + tree_bytes(v) for v in value)
    if isinstance(value, (str, bytes)):
        return 49 + len(value)
    return 32


def save_tree(path: str | os.PathLike[str], value: Any) -> None:
    """Write a state tree to ``path``, whole or not at all."""
    path = Path(path)
    arrays: list[np.ndarray] = []
    text = json.dumps({"format": _FORMAT, "tree": _encode(value, arrays)})
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with temporary.open("wb") as file:
            named: dict[str, Any] = {f"a{i}": a for i, a in enumerate(arrays)}
            np.savez(file, json=np.frombuffer(text.encode(), dtype=np.uint8), **named)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_tree(path: str | os.PathLike[str]) -> Any:
    """Read what `save_tree` wrote.

    Raises
    ------
    CheckpointMismatch
        If the file is damaged or is no state file.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            head = json.loads(file["json"].tobytes().decode())
            if head.get("format") != _FORMAT:
                raise CheckpointMismatch(f"{path} has format {head.get('format')!r}, this version reads {_FORMAT!r}")
            return _decode(head["tree"], _Lazy(file))
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, (CheckpointMismatch, FileNotFoundError)):
            raise
        raise CheckpointMismatch(f"{path} is not a readable state file ({error}); delete it to start afresh") from error


class _Lazy:
    def __init__(self, file: Any) -> None:
        self.file = file

    def __getitem__(self, i: int) -> np.ndarray:
        return self.file[f"a{i}"]


def _encode(value: Any, arrays: list[np.ndarray]) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else {"big": str(value)}
    if isinstance(value, float):
        return value if np.isfinite(value) else {"float": repr(value)}
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            raise TypeError("state trees hold no arrays of objects")
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, np.generic):
        return {"scalar": value.dtype.str, "value": _encode(value.item(), arrays)}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, list):
        return {"list": [_encode(v, arrays) for v in value]}
    if isinstance(value, tuple):
        return {"tuple": [_encode(v, arrays) for v in value]}
    if isinstance(value, (set, frozenset)):
        return {"set": [_encode(v, arrays) for v in sorted(value, key=repr)]}
    if isinstance(value, deque):
        return {"deque": [_encode(v, arrays) for v in value], "maxlen": value.maxlen}
    if isinstance(value, dict):
        return {"dict": [[_encode(k, arrays), _encode(v, arrays)] for k, v in value.items()]}
    if isinstance(value, np.random.Generator):
        return {"generator": _encode(value.bit_generator.state, arrays)}
    raise TypeError(
        f"a state tree cannot hold a {type(value).__name__}; feature ids are str, int, float, bool or tuples of them"
    )


def _decode(value: Any, arrays: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "big" in value:
        return int(value["big"])
    if "float" in value:
        return float(value["float"])
    if "array" in value:
        return arrays[value["array"]]
    if "scalar" in value:
        return np.dtype(value["scalar"]).type(_decode(value["value"], arrays))
    if "bytes" in value:
        return bytes.fromhex(value["bytes"])
    if "list" in value:
        return [_decode(v, arrays) for v in value["list"]]
    if "tuple" in value:
        return tuple(_decode(v, arrays) for v in value["tuple"])
    if "set" in value:
        return {_decode(v, arrays) for v in value["set"]}
    if "deque" in value:
        return deque((_decode(v, arrays) for v in value["deque"]), maxlen=value["maxlen"])
    if "dict" in value:
        pairs: list[list[Any]] = value["dict"]
        decoded: dict[Hashable, Any] = {_decode(k, arrays): _decode(v, arrays) for k, v in pairs}
        return decoded
    if "generator" in value:
        state = _decode(value["generator"], arrays)
        generator = np.random.Generator(getattr(np.random, state["bit_generator"])())
        generator.bit_generator.state = state
        return generator
    raise CheckpointMismatch(f"unknown entry {sorted(value)} in a state file")
