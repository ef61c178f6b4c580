"""A training state as one file: written whole or not at all, read without executing anything."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import uuid
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from assay.gflownets.errors import CheckpointMismatch

FORMAT = 1


def digest(*parts: Any) -> str:
    """A short hash of arrays and of the text of everything else."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(parts):
        if isinstance(leaf, (np.ndarray, jax.Array)):
            array = np.asarray(leaf)
            found.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        else:
            found.update(_text(leaf).encode())
    return found.hexdigest()[:16]


def _text(value: Any) -> str:
    if callable(value) and not isinstance(value, type):
        return getattr(
            value, "__qualname__", type(value).__qualname__
        )  # addresses in a repr would differ from process to process
    return repr(value)


def save(path: str | Path, state: Any, about: dict[str, Any]) -> None:
    """Write the arrays of a state and a dictionary of plain values.

    A temporary file in the same folder is renamed over the old one, so that a killed process leaves the old one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    arrays = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
    text = json.dumps({**about, "format": FORMAT})
    try:
        with part.open("wb") as file:
            np.savez(file, about=np.frombuffer(text.encode(), np.uint8), **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def about(path: str | Path) -> dict[str, Any]:
    """The dictionary of a checkpoint.

    Raises
    ------
    CheckpointMismatch
        If the file is no checkpoint.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            found: dict[str, Any] = json.loads(file["about"].tobytes().decode())
            return found
    except (KeyError, ValueError, EOFError) as error:
        raise CheckpointMismatch(f"{path} is no checkpoint of this library: {error}") from error


def load(path: str | Path, like: Any, identity: str) -> tuple[Any, dict[str, Any]]:
    """A state of the same form as ``like``.

    Raises
    ------
    CheckpointMismatch
        If the checkpoint belongs to something else.
    """
    facts = about(path)
    if facts.get("format") != FORMAT or facts.get("identity") != identity:
        raise CheckpointMismatch(
            f"{path} belongs to another environment, objective, network or setting ({facts.get('title', '?')}); "
            f"load it with what it was "
            "trained with, or train afresh in another folder"
        )
    leaves, structure = jax.tree.flatten(like)
    with np.load(path, allow_pickle=False) as file:
        found = [file[f"leaf{i}"] for i in range(len(leaves)) if f"leaf{i}" in file]
    same = len(found) == len(leaves) and all(
        a.shape == np.shape(b) and a.dtype == b.dtype for a, b in zip(found, leaves, strict=True)
    )
    if not same:
        raise CheckpointMismatch(f"{path} holds arrays of other sizes; it was written with another network or buffer")
    return jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in found]), facts


def described(value: Any) -> str:
    """Everything of an environment but its arrays, as text that is the same in every process (no addresses)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [f"{f.name}={described(getattr(value, f.name))}" for f in dataclasses.fields(value)]
        return f"{type(value).__qualname__}({', '.join(parts)})"
    if isinstance(value, (int, float, str, bool, tuple, type(None))):
        return repr(value)
    return getattr(value, "__qualname__", type(value).__qualname__)
