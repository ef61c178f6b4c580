"""The store: a run is a file, and a leaderboard is a query over the files.

    runs/<benchmark>/<key>/run.json         a run, beside its artifacts; written under .staging and renamed
    runs/<benchmark>/.staging/              runs in progress; what a dead process left there is swept by the next one
    runs/<benchmark>/.checkpoints/<key>/    files of an unfinished run, for the next try
    runs/<benchmark>/.claims/<key>          a run that some process is at, touched every 20 seconds
    runs/<benchmark>/.index.parquet         the columns of all run.json, only to be fast: rebuilt wherever a file is
    newer

Any number of processes and machines may write to one folder: renaming is atomic, the first result of a key wins, and a
claim keeps two of them from doing the same work.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from assay.core.errors import StoreError
from assay.core.run import RunRecord

LOW_SPACE = 64 * 2**20
CLAIM_SECONDS = 120.0
HEARTBEAT_SECONDS = 20.0
_HOST = socket.gethostname()


@dataclass(frozen=True)
class Problem:
    """A file in the store that is not a run: what it is, and what is wrong with it."""

    path: Path
    reason: str


class Store:
    """A folder of runs.

    Parameters
    ----------
    root : path, optional
        Default ``$ASSAY_RUNS``, else ``runs`` in the working directory.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = Path(root or os.environ.get("ASSAY_RUNS") or "runs")

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    def folder(self, benchmark: str) -> Path:
        """Folder of the runs of a benchmark."""
        return self.root / benchmark

    def run_folder(self, benchmark: str, key: str) -> Path:
        """Folder of one run."""
        return self.root / benchmark / key

    def benchmarks(self) -> list[str]:
        """Names of the benchmarks that have a folder here."""
        if not self.root.is_dir():
            return []
        return sorted(p.name for p in self.root.iterdir() if p.is_dir() and not p.name.startswith("."))

    # -- writing ---------------------------------------------------------------------------------------------------

    def prepare(self, benchmark: str) -> None:
        """Make the folders, and fail now rather than after hours if nothing can be written.

        Raises
        ------
        StoreError
        """
        folder = self.folder(benchmark)
        try:
            for name in (".staging", ".checkpoints", ".claims"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            probe = folder / ".staging" / f".probe-{uuid.uuid4().hex[:8]}"
            probe.write_bytes(b"\0" * 4096)
            probe.unlink()
            free = shutil.disk_usage(folder).free
        except OSError as error:
            raise StoreError(
                f"cannot write to the folder of runs {folder} ({error.strerror or error}); name another one with "
                f"--store or ASSAY_RUNS. Nothing was run"
            ) from error
        if free < LOW_SPACE:
            raise StoreError(
                f"{free / 2**20:.0f} MiB are free where {folder} lies; make room (at least {LOW_SPACE // 2**20} MiB) "
                f"or name another folder with --store. Nothing was run"
            )
        self._sweep(folder)

    def stage(self, benchmark: str, key: str) -> Path:
        """A new empty folder for a run in progress."""
        staged = self.folder(benchmark) / ".staging" / f"{key}.{_HOST}.{os.getpid()}.{uuid.uuid4().hex[:6]}"
        staged.mkdir(parents=True)
        return staged

    def checkpoints(self, benchmark: str, key: str) -> Path:
        """Where an unfinished run keeps its checkpoints."""
        return self.folder(benchmark) / ".checkpoints" / key

    def commit(self, record: RunRecord, staged: Path) -> RunRecord:
        """Write ``run.json`` and move the staged folder to its name; if a finished run is there already, that one
        stays.

        Returns
        -------
        RunRecord
            The record that is in the store now.

        Raises
        ------
        StoreError
            If the disk is full or the folder cannot be written.
        """
        target = self.run_folder(record.benchmark, record.key)
        try:
            record.artifacts = sorted(str(p.relative_to(staged)) for p in staged.rglob("*") if p.is_file())
            (staged / "run.json").write_text(record.model_dump_json(), encoding="utf-8")
            for _ in range(3):
                try:
                    os.rename(staged, target)
                    break
                except OSError:
                    if not target.exists():
                        raise
                present = self.read(record.benchmark, record.key)
                if present is not None and (present.status == "ok" or record.status != "ok"):
                    shutil.rmtree(staged, ignore_errors=True)
                    return present
                # A failed run gives way to a better one. A folder that is no run is set aside, never deleted.
                aside = ".staging/old" if present is not None else "set-aside"
                old = self.folder(record.benchmark) / f"{aside}.{record.key}.{uuid.uuid4().hex[:6]}"
                os.rename(target, old)
                if present is not None:
                    shutil.rmtree(old, ignore_errors=True)
            else:
                raise StoreError(f"{target} is being replaced by another process again and again")
        except OSError as error:
            shutil.rmtree(staged, ignore_errors=True)
            raise StoreError(
                f"cannot save the run {target}: {error.strerror or error}. Runs saved before are safe"
            ) from error
        if record.status == "ok":
            shutil.rmtree(self.checkpoints(record.benchmark, record.key), ignore_errors=True)
        return record

    def _sweep(self, folder: Path) -> None:
        for left in (folder / ".claims").glob(".*"):
            try:
                if self._now(left.parent) - left.stat().st_mtime > CLAIM_SECONDS:
                    left.unlink(missing_ok=True)
            except FileNotFoundError:
                continue
        for staged in (folder / ".staging").iterdir():
            parts = staged.name.rsplit(".", 3)
            if len(parts) == 4 and parts[1] == _HOST and parts[2].isdigit() and not _alive(int(parts[2])):
                shutil.rmtree(staged, ignore_errors=True)

    # -- claims ----------------------------------------------------------------------------------------------------

    @contextmanager
    def claim(self, benchmark: str, key: str) -> Iterator[bool]:
        """Mark a run as being worked on by this process; yields False if another living process has it."""
        path = self.folder(benchmark) / ".claims" / key
        if not self._take(path):
            yield False
            return
        _heart.add(path)
        try:
            yield True
        finally:
            _heart.remove(path)
            path.unlink(missing_ok=True)

    def claimed_elsewhere(self, benchmark: str, key: str) -> bool:
        """Whether a living process has claimed the run."""
        path = self.folder(benchmark) / ".claims" / key
        return path.exists() and not self._stale(path)

    def _take(self, path: Path) -> bool:
        # A claim appears whole (a link to a file that is written), so a process killed in between leaves none behind.
        mine = path.with_name(f".new-{uuid.uuid4().hex[:12]}")
        try:
            mine.write_text(f"{_HOST} {os.getpid()} {_born(os.getpid())}", encoding="utf-8")
            for _ in range(2):
                try:
                    os.link(mine, path)
                    return True
                except FileExistsError:
                    if not self._stale(path):
                        return False
                    self._remove_stale(path)
                except OSError:  # a file system without links
                    try:
                        with path.open("x", encoding="utf-8") as file:
                            file.write(mine.read_text(encoding="utf-8"))
                        return True
                    except FileExistsError:
                        if not self._stale(path):
                            return False
                        self._remove_stale(path)
            return False
        finally:
            mine.unlink(missing_ok=True)

    def _remove_stale(self, path: Path) -> None:
        """Take a stale claim away; one that another process has just put in its place goes back."""
        try:
            import fcntl
        except ImportError:  # no such locks on this system
            pass
        else:  # one at a time: what is stale under the lock can only be replaced by its holder
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX)
                if path.exists() and self._stale(path):
                    path.unlink(missing_ok=True)
            finally:
                os.close(folder)
            return
        aside = path.with_name(f".old-{uuid.uuid4().hex[:12]}")
        try:
            os.rename(path, aside)
        except FileNotFoundError:
            return
        try:
            if not self._stale(aside):
                os.link(aside, path)
        except OSError:
            pass
        finally:
            aside.unlink(missing_ok=True)

    def _stale(self, path: Path) -> bool:
        try:
            host, pid, born = [*path.read_text(encoding="utf-8").split(" "), "", "", ""][:3]
            age = self._now(path.parent) - path.stat().st_mtime
        except FileNotFoundError:
            return True
        if host == _HOST and pid.isdigit():
            return not _alive(int(pid)) or (born != "" and born != _born(int(pid)))
        return age > (CLAIM_SECONDS if host else 5.0)

    def _now(self, folder: Path) -> float:
        # The file server's clock, which need not be this machine's.
        probe = folder / f".now-{uuid.uuid4().hex[:8]}"
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink(missing_ok=True)
        return now

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, benchmark: str, key: str) -> RunRecord | None:
        """The record of a run, None if there is none or its file cannot be trusted."""
        record, _ = self._load(self.run_folder(benchmark, key))
        return record

    def finished(self, benchmark: str, keys: Iterable[str], *, retry: Collection[str] = ()) -> dict[str, str]:
        """Status of those of the keys that have a record, but for those whose status is to be tried again."""
        known = self._index_status(benchmark)
        done = {}
        for key in keys:
            status = known.get(key)
            if status is not None and status not in retry:
                done[key] = status
        return done

    def problems(self, benchmark: str) -> list[Problem]:
        """Folders that are not runs, or not whole."""
        found = []
        for entry in self._entries(benchmark):
            _, reason = self._load(Path(entry))
            if reason:
                found.append(Problem(Path(entry), reason))
        return found

    def records(self, benchmark: str, keys: Iterable[str] | None = None) -> list[RunRecord]:
        """All readable records (of these keys)."""
        names = [Path(e).name for e in self._entries(benchmark)] if keys is None else list(keys)
        records = (self.read(benchmark, name) for name in names)
        return [record for record in records if record is not None]

    def connect(self, benchmark: str) -> Any:
        """A DuckDB connection with the table ``runs``: one row a run, one column ``m:<metric>`` a metric.

        Examples
        --------
        >>> store = Store("runs")                                             # doctest: +SKIP
        >>> store.connect("streams").sql('SELECT method, avg("m:auroc") FROM runs GROUP BY method')   # doctest: +SKIP
        """
        import duckdb

        index = self._refresh(benchmark)
        connection = duckdb.connect()
        if index is None:
            connection.execute(
                "CREATE TABLE runs (key VARCHAR, task VARCHAR, method VARCHAR, seed BIGINT, status VARCHAR)"
            )
        else:
            connection.execute(f"CREATE VIEW runs AS SELECT * EXCLUDE (stamp) FROM read_parquet({_quoted(index)})")
        return connection

    def _load(self, folder: Path) -> tuple[RunRecord | None, str]:
        path = folder / "run.json"
        try:
            record = RunRecord.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None, "holds no run.json" if folder.is_dir() else ""
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "file"
            return None, f"run.json cannot be read ({where}: {first['msg']})"
        except OSError as error:
            return None, f"run.json cannot be read ({error.strerror})"
        if record.key != folder.name or record.benchmark != folder.parent.name:
            return None, f"run.json is of the run {record.benchmark}/{record.key}, not of this folder"
        return record, ""

    def _entries(self, benchmark: str) -> list[str]:
        folder = self.folder(benchmark)
        if not folder.is_dir():
            return []
        with os.scandir(folder) as entries:
            return sorted(e.path for e in entries if not e.name.startswith((".", "set-aside.")) and e.is_dir())

    # -- the index -------------------------------------------------------------------------------------------------

    def _index_status(self, benchmark: str) -> dict[str, str]:
        connection = self.connect(benchmark)
        try:
            return dict(connection.execute("SELECT key, status FROM runs").fetchall())
        finally:
            connection.close()

    def _refresh(self, benchmark: str) -> Path | None:
        """Bring the index up to the files; returns its path, None where there is no run."""
        import duckdb

        index = self.folder(benchmark) / ".index.parquet"
        stamps = {}
        for path in self._entries(benchmark):
            try:
                stat = os.stat(path + "/run.json")
            except OSError:
                continue
            stamps[path.rpartition(os.sep)[2]] = f"{stat.st_size}.{stat.st_mtime_ns}"
        connection = duckdb.connect()
        try:
            known: dict[str, str] = {}
            if index.exists():
                try:
                    known = dict(
                        connection.execute(f"SELECT key, stamp FROM read_parquet({_quoted(index)})").fetchall()
                    )
                except duckdb.Error:
                    known = {}
            changed = [key for key, stamp in stamps.items() if known.get(key) != stamp]
            if not changed and len(known) == len(stamps):
                return index if known else None
            rows = [row for key in changed if (row := self._index_row(benchmark, key, stamps[key])) is not None]
            kept = [key for key, stamp in stamps.items() if known.get(key) == stamp]
            if not rows and not kept:
                return None
            return self._write_index(connection, index, rows, len(kept) > 0, changed, stamps)
        finally:
            connection.close()

    def _index_row(self, benchmark: str, key: str, stamp: str) -> dict[str, Any] | None:
        record = self.read(benchmark, key)
        if record is None:
            return None
        row: dict[str, Any] = {
            "key": key,
            "stamp": stamp,
            "task": record.task,
            "method": record.method,
            "params": json.dumps(record.params, sort_keys=True),
            "seed": record.seed,
            "status": record.status,
            "version": record.version,
            "data": record.data_fingerprint,
            "started": record.started,
            "wall_seconds": record.wall_seconds,
            "cpu_seconds": record.cpu_seconds,
            "peak_memory_bytes": record.peak_memory_bytes,
            "failure": record.failure.message if record.failure else None,
        }
        row.update({f"m:{name}": value for name, value in record.metrics.items()})
        return row

    def _write_index(
        self,
        connection: Any,
        index: Path,
        rows: list[dict[str, Any]],
        keep: bool,
        changed: list[str],
        stamps: dict[str, str],
    ) -> Path:
        token = uuid.uuid4().hex[:8]
        folder = index.parent if os.access(index.parent, os.W_OK) else Path(tempfile.gettempdir())
        lines = folder / f".index-{token}.ndjson"
        fresh = folder / f".index-{token}.parquet"
        names = sorted({name for row in rows for name in row if name.startswith("m:")})
        types = dict.fromkeys(names, "DOUBLE") | _INDEX_TYPES
        try:
            with lines.open("w", encoding="utf-8") as file:
                for row in rows:
                    file.write(json.dumps(row) + "\n")
            columns = ", ".join(f"'{name.replace(chr(39), chr(39) * 2)}': '{kind}'" for name, kind in types.items())
            new = f"SELECT * FROM read_json({_quoted(lines)}, format='newline_delimited', columns={{{columns}}})"
            if keep:
                connection.execute("CREATE TEMP TABLE changed (key VARCHAR)")
                _insert_keys(connection, "changed", changed)
                connection.execute("CREATE TEMP TABLE present (key VARCHAR)")
                _insert_keys(connection, "present", list(stamps))
                old = (
                    f"SELECT * FROM read_parquet({_quoted(index)}) WHERE key NOT IN (SELECT key FROM changed) "
                    f"AND key IN (SELECT key FROM present)"
                )
                new = f"{old} UNION ALL BY NAME {new}" if rows else old
            connection.execute(f"COPY ({new}) TO {_quoted(fresh)} (FORMAT parquet)")
            try:
                os.replace(fresh, index)
                return index
            except OSError:
                return fresh
        finally:
            lines.unlink(missing_ok=True)


_INDEX_TYPES = {
    "key": "VARCHAR", "stamp": "VARCHAR", "task": "VARCHAR", "method": "VARCHAR", "params": "VARCHAR", "seed": "BIGINT",
    "status": "VARCHAR", "version": "VARCHAR", "data": "VARCHAR", "started": "VARCHAR", "wall_seconds": "DOUBLE",
    "cpu_seconds": "DOUBLE", "peak_memory_bytes": "BIGINT", "failure": "VARCHAR",
}  # fmt: skip


def _insert_keys(connection: Any, table: str, keys: list[str]) -> None:
    connection.execute(f"INSERT INTO {table} SELECT unnest(?)", [keys])


def _alive(pid: int) -> bool:
    """Whether a process lives; one that has ended and was not yet collected by its parent does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _born(pid: int) -> str:
    """When a process started, so that a number used again by the system is not taken for the old process."""
    try:
        return f"{psutil.Process(pid).create_time():.2f}"
    except psutil.Error:
        return ""


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


class _Heart:
    """Touches the claims of this process while they last (one thread, started with the first claim)."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()
        self.lock = threading.Lock()
        self.owner = 0

    def add(self, path: Path) -> None:
        with self.lock:
            self.paths.add(path)
            if self.owner != os.getpid():  # a fork does not take threads along
                self.owner = os.getpid()
                threading.Thread(target=self._beat, daemon=True, name="assay-claims").start()

    def remove(self, path: Path) -> None:
        with self.lock:
            self.paths.discard(path)

    def _beat(self) -> None:
        while True:
            time.sleep(HEARTBEAT_SECONDS)
            with self.lock:
                paths = list(self.paths)
            for path in paths:
                try:
                    os.utime(path)
                except OSError:
                    continue


_heart = _Heart()
