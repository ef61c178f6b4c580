"""Files are written whole: to a temporary name in the same folder, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """A temporary path with the same ending; it becomes ``path`` when the block ends, and goes when it fails.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with written_whole(folder / "a.txt") as partial:
    ...     _ = partial.write_text("whole")
    >>> [p.name for p in folder.iterdir()], (folder / "a.txt").read_text()
    (['a.txt'], 'whole')
    """
    path = Path(path)
    partial = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
