"""Where data comes from: a cache, folders of the user's, then the network; and what data is, as a hash."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.core.errors import DataError

OFFLINE = "ASSAY_OFFLINE"
DATA_DIR = "ASSAY_DATA_DIR"
CACHE_DIR = "ASSAY_CACHE_DIR"


@dataclass(frozen=True)
class DataSource:
    """One public file: its name, address, checksum, licence and citation.

    Parameters
    ----------
    field : str
        Field that uses it; the name of its folder in the cache and in the user's folders.
    filename : str
        Name of the file, as its publisher names it.
    url : str
        Address to download from; empty for a file that only the user can get (behind a form or a licence).
    sha256 : str
        Checksum of the file; empty where the publisher changes it.
    licence, citation, homepage : str
    size : int
        Bytes, for `assay data list`; 0 if unknown.
    also : tuple of str
        Other names under which the same data is accepted in the user's folders (uncompressed, say); not checked by
        hash.

    Examples
    --------
    >>> source = DataSource("streams", "magic04.data", "https://example.org/magic04.data")
    >>> source.fetch(offline=True)                                          # doctest: +ELLIPSIS
    Traceback (most recent call last):
    assay.core.errors.DataError: magic04.data is not on this machine and downloading is switched off...
    """

    field: str
    filename: str
    url: str = ""
    sha256: str = ""
    licence: str = ""
    citation: str = ""
    homepage: str = ""
    size: int = 0
    also: tuple[str, ...] = ()

    def find(self) -> Path | None:
        """The file if it is on this machine: in the cache, else in a folder of ``ASSAY_DATA_DIR``.

        Raises
        ------
        DataError
            If a file of that name is there but is another one (checksum).
        """
        cached = self.cache_path
        if cached.is_file():
            self._verify(cached)
            return cached
        for folder in self._user_folders():
            for name in (self.filename, *self.also):
                path = folder / name
                if path.is_file():
                    if name == self.filename:
                        self._verify(path)
                    return path
        return None

    def fetch(self, *, offline: bool | None = None) -> Path:
        """The file, downloaded into the cache if need be.

        Parameters
        ----------
        offline : bool, optional
            Do not use the network; default: whether ``ASSAY_OFFLINE`` is set.

        Raises
        ------
        DataError
            Not there and offline; no network; wrong checksum; disk full. No broken file is left behind.
        """
        found = self.find()
        if found is not None:
            return found
        if offline is None:
            offline = os.environ.get(OFFLINE, "") not in ("", "0")
        if not self.url:
            raise DataError(f"{self.filename} must be got by hand{self._homepage()}. {self._where_to_put()}")
        if offline:
            raise DataError(
                f"{self.filename} is not on this machine and downloading is switched off ({OFFLINE}). Its address is "
                f"{self.url}. {self._where_to_put()}"
            )
        return self._download()

    @property
    def cache_path(self) -> Path:
        """Where the file lies once it is downloaded."""
        return cache_folder() / self.field / self.filename

    def _download(self) -> Path:
        import pooch

        target = self.cache_path
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if self.size and shutil.disk_usage(target.parent).free < self.size + 2**20:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            scheme = urllib.parse.urlsplit(self.url).scheme
            if scheme not in ("http", "https", "ftp"):
                raise DataError(f"{self.url} is not an address that can be downloaded (http, https, ftp)")
            downloader = (
                pooch.HTTPDownloader(progressbar=False, timeout=30) if scheme != "ftp" else pooch.FTPDownloader()
            )
            downloader(self.url, str(part), None)
            self._verify(part, fresh=True)
            os.replace(part, target)
        except DataError:
            raise
        except OSError as error:  # requests' exceptions are OSErrors
            if error.errno == errno.ENOSPC:
                raise DataError(
                    f"the disk is full: {self.filename} could not be saved in {target.parent}. Make room, or name "
                    f"another folder with {CACHE_DIR}"
                ) from error
            reason = " ".join(str(error).split())[:200]
            raise DataError(
                f"{self.filename} could not be downloaded from {self.url} ({reason}). {self._where_to_put()}"
            ) from error
        finally:
            part.unlink(missing_ok=True)
        return target

    def _verify(self, path: Path, *, fresh: bool = False) -> None:
        if not self.sha256:
            return
        found = sha256_of(path)
        if found != self.sha256:
            what = f"what {self.url} sent" if fresh else str(path)
            do = "Nothing was kept" if fresh else "Remove that file or put the right one in its place"
            raise DataError(f"{what} is not {self.filename}: sha256 is {found}, expected {self.sha256}. {do}")

    def _user_folders(self) -> Iterator[Path]:
        for root in os.environ.get(DATA_DIR, "").split(os.pathsep):
            if root:
                yield Path(root) / self.field
                yield Path(root)

    def _where_to_put(self) -> str:
        return f"Put the file into {self.cache_path.parent}, or into a folder named by {DATA_DIR}"

    def _homepage(self) -> str:
        return f" from {self.homepage}" if self.homepage else ""


def cache_folder() -> Path:
    """Folder of downloaded files: ``ASSAY_CACHE_DIR`` or the platform's cache folder."""
    named = os.environ.get(CACHE_DIR)
    if named:
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_cache_dir("assay"))


_hashes: dict[tuple[str, int, int], str] = {}


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, remembered while its size and time stay the same."""
    stat = path.stat()
    key = (str(path), stat.st_size, stat.st_mtime_ns)
    if key not in _hashes:
        with path.open("rb") as file:
            _hashes[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _hashes[key]


def fingerprint(value: Any) -> str:
    """A hash of data by content: the same for equal arrays, frames and plain containers, wherever they came from.

    An object with a method ``fingerprint()`` is asked. Others are hashed by their public attributes.

    Raises
    ------
    DataError
        If a part is of a kind that has no content to hash (an open file, a function).

    Examples
    --------
    >>> fingerprint({"x": np.arange(3)}) == fingerprint({"x": np.array([0, 1, 2])})
    True
    >>> fingerprint([1, 2]) == fingerprint([2, 1])
    False
    """
    digest = hashlib.sha256()
    _feed(value, digest.update, 0)
    return digest.hexdigest()[:16]


def _feed(value: Any, update: Callable[[bytes], None], depth: int) -> None:
    if depth > 20:
        raise DataError("this data is nested too deeply to be hashed; give the task a fingerprint")
    own = getattr(value, "fingerprint", None)
    if callable(own) and not isinstance(value, type):
        update(b"own" + str(own()).encode())
    elif value is None or isinstance(value, (bool, int, float, str, bytes, complex)):
        update(f"{type(value).__name__}:{value!r};".encode())
    elif isinstance(value, np.ndarray) and value.dtype != object:
        update(f"array:{value.dtype.str}{value.shape};".encode())
        update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, np.ndarray):
        update(f"objects:{value.shape};".encode())
        _feed(value.ravel().tolist(), update, depth + 1)
    elif isinstance(value, np.generic):
        _feed(value.item(), update, depth + 1)
    elif isinstance(value, Mapping):
        update(f"map:{len(value)};".encode())
        for key in sorted(value, key=repr):
            _feed(key, update, depth + 1)
            _feed(value[key], update, depth + 1)
    elif isinstance(value, (list, tuple)):
        update(f"list:{len(value)};".encode())
        for item in value:
            _feed(item, update, depth + 1)
    elif isinstance(value, (set, frozenset)):
        _feed(sorted(value, key=repr), update, depth + 1)
    elif isinstance(value, Path):
        update(b"file:" + sha256_of(value).encode()) if value.is_file() else update(f"path:{value}".encode())
    elif hasattr(value, "to_numpy") and hasattr(value, "columns"):  # a data frame
        for name in value.columns:
            _feed(str(name), update, depth + 1)
            _feed(np.asarray(value[name].to_numpy()), update, depth + 1)
    elif hasattr(value, "to_numpy"):
        _feed(np.asarray(value.to_numpy()), update, depth + 1)
    elif hasattr(value, "indptr") and hasattr(value, "indices") and hasattr(value, "data"):  # scipy.sparse
        _feed([value.shape, value.indptr, value.indices, value.data], update, depth + 1)
    elif hasattr(value, "__array__"):
        _feed(np.asarray(value), update, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        _feed({name: getattr(value, name) for name in names}, update, depth + 1)
    elif hasattr(value, "__dict__") and not callable(value):
        update(type(value).__qualname__.encode())
        _feed({k: v for k, v in vars(value).items() if not k.startswith("_")}, update, depth + 1)
    else:
        raise DataError(
            f"data of the kind {type(value).__name__} has no content that can be hashed; give the task a fingerprint"
        )


def describe(source: DataSource) -> dict[str, Any]:
    """A source as a row for a table: where it is now, and under which licence."""
    try:
        path = source.find()
        state = "here" if path else ("download" if source.url else "by hand")
    except DataError:
        path, state = None, "damaged"
    return {
        "field": source.field, "file": source.filename, "state": state, "size": source.size, "licence": source.licence,
        "citation": source.citation, "url": source.url, "path": str(path or ""),
    }  # fmt: skip


def to_json(sources: list[DataSource]) -> str:
    """Sources as JSON, for scripts."""
    return json.dumps([describe(s) for s in sources], indent=2)
