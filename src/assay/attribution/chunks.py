"""What retrained models say about test rows, and the chunks of it on file from which a killed run goes on."""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.attribution.errors import CheckpointMismatch


@dataclass(frozen=True)
class GroundTruth:
    """Outputs of retrained models.

    Attributes
    ----------
    subsets : int array (m, n)
        Training rows of each model, padded with -1 where sizes differ.
    outputs : float32 array (m, T)
        The explained number of each test row under each model, mean over ``n_seeds`` trainings.
    repeats : float32 array (n_seeds, m, T)
        The same by seed.
    predictions : array (n_seeds, m, T)
        Predicted classes (or values).
    seeds : tuple of int
    n_train : int
    """

    subsets: Int[np.ndarray, "m n"]
    outputs: Float[np.ndarray, "m t"]
    repeats: Float[np.ndarray, "s m t"]
    predictions: np.ndarray
    seeds: tuple[int, ...]
    n_train: int

    def masks(self) -> Bool[np.ndarray, "m n_train"]:
        """Whether each training row is in each subset."""
        mask = np.zeros((len(self.subsets), self.n_train), dtype=bool)
        rows, columns = np.nonzero(self.subsets >= 0)
        mask[rows, self.subsets[rows, columns]] = True
        return mask

    def counts(self) -> Int[np.ndarray, "m n_train"]:
        """How often each training row is in each subset (bootstrap samples repeat rows)."""
        out = np.zeros((len(self.subsets), self.n_train), dtype=np.int64)
        for j, subset in enumerate(self.subsets):
            out[j] = np.bincount(subset[subset >= 0], minlength=self.n_train)
        return out

    def rows(self, test_rows: Any) -> GroundTruth:
        """The same for some of the test rows."""
        return GroundTruth(
            self.subsets, self.outputs[:, test_rows], self.repeats[:, :, test_rows],
            self.predictions[:, :, test_rows], self.seeds, self.n_train,
        )  # fmt: skip


def on_file(folder: Path | None) -> list[tuple[int, int]]:
    """Ranges of models whose chunk is on file."""
    if folder is None:
        return []
    names = (p.stem.split("_")[1:] for p in folder.glob("chunk_*_*.npz"))
    return sorted((int(a), int(b)) for a, b in names)


def write_whole(path: Path, write: Callable[[Path], Any]) -> Path:
    """Write to a temporary name beside the file, then rename."""
    part = path.with_name(f".{uuid.uuid4().hex[:8]}.{path.name}")
    try:
        write(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def save_chunk(
    folder: Path | None, low: int, high: int, values: Any, guess: Any, states: list[dict[str, Tensor]]
) -> None:
    if folder is None:
        return
    if any(states):
        write_whole(folder / f"models_{low}_{high}.pt", lambda part: torch.save(states, part))

    def write(part: Path) -> None:
        with part.open("wb") as file:
            np.savez(file, outputs=values, predictions=guess)

    write_whole(folder / f"chunk_{low}_{high}.npz", write)


def load_chunk(folder: Path | None, low: int, high: int, tests: int, states: bool) -> Any:
    if folder is None:
        return None
    path, weights = folder / f"chunk_{low}_{high}.npz", folder / f"models_{low}_{high}.pt"
    if not path.exists() or (states and not weights.exists()):
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            values, guess = file["outputs"], file["predictions"]
    except (OSError, ValueError, KeyError) as error:
        warnings.warn(f"{path} cannot be read ({error}); its models are trained again", stacklevel=2)
        return None
    if values.shape != (high - low, tests):
        raise CheckpointMismatch(f"{path} has shape {values.shape}, expected {(high - low, tests)}; remove it")
    kept = torch.load(weights, weights_only=True) if states else []
    return values, guess, kept
