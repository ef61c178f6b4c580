"""Neighbours and diffusion bases kept on disk, by a hash of what they were made from.

A second call on the same cells (other bootstraps, another lens, a report instead of a skeleton) then pays for neither.
Files hold plain arrays, and are written whole to a temporary name and renamed, so several processes may share a folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.shapes.files import written_whole

FORMAT = 1


class BasisCache:
    """A folder of arrays.

    Parameters
    ----------
    folder : path
        Made when something is first written to it.

    Attributes
    ----------
    hits, misses : int

    Examples
    --------
    >>> import tempfile
    >>> cache = BasisCache(tempfile.mkdtemp())
    >>> key = cache.key("squares", np.arange(3), 2)
    >>> for _ in range(2):
    ...     found = cache.get(key, lambda: {"x": np.arange(3) ** 2})
    >>> found["x"].tolist(), cache.hits, cache.misses
    ([0, 1, 4], 1, 1)
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.hits = self.misses = 0

    def key(self, what: str, *parts: Any) -> str:
        """A name made from the bytes, types and shapes of arrays and the text of anything else."""
        digest = hashlib.sha256(f"{FORMAT}/{what}".encode())
        for part in parts:
            if isinstance(part, np.ndarray):
                digest.update(f"{part.dtype}{part.shape}".encode())
                digest.update(np.ascontiguousarray(part).data)
            else:
                digest.update(f"/{part!r}".encode())
        return f"{what}-{digest.hexdigest()[:24]}"

    def get(self, key: str, make: Callable[[], dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
        """What is stored under a key; made and stored where there is none, or where the file cannot be read."""
        path = self.folder / f"{key}.npz"
        if path.is_file():
            try:
                with np.load(path, allow_pickle=False) as file:
                    found = {name: file[name] for name in file.files}
            except (OSError, ValueError, EOFError):
                found = {}
            if found:
                self.hits += 1
                return found
        self.misses += 1
        made = make()
        self.folder.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as partial, partial.open("wb") as file:
            np.savez(file, **made)  # type: ignore[arg-type]
        return made
