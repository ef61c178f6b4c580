"""Checkpoints: written whole to a temporary name and renamed, read as plain tensors only."""

from __future__ import annotations

import os
import pickle
import uuid
from pathlib import Path
from typing import Any

import torch

FORMAT = 1


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or belongs to another model or other settings."""


def save_checkpoint(path: str | os.PathLike[str], state: dict[str, Any]) -> Path:
    """Write tensors and plain values; a reader sees the old file or the new one, never half of it."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        with part.open("wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    return target


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote, on the CPU; code in the file is never run.

    Raises
    ------
    CheckpointError
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except (RuntimeError, EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"{path} is no checkpoint that can be read ({type(error).__name__}); remove it to start afresh"
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is a checkpoint of another format; remove it to start afresh")
    return state
