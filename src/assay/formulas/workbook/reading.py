"""Opening files: first the guard (format, size, encryption), then openpyxl for the package, or the reader of .ods."""

from __future__ import annotations

import io
import os
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

from assay.formulas.errors import FormulaError, WorkbookError
from assay.formulas.workbook.model import Workbook

MAX_BYTES = 1 << 30
MAX_CELLS = 5_000_000
MAX_RATIO = 1000
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def open_workbook(
    source: str | os.PathLike[str] | bytes, max_bytes: int = MAX_BYTES, max_cells: int = MAX_CELLS
) -> Workbook:
    """See `Workbook.open`."""
    path = "" if isinstance(source, bytes) else os.fspath(source)
    if isinstance(source, bytes):
        data = source
    else:
        try:
            size = os.path.getsize(path)
            if size > max_bytes:
                raise WorkbookError(
                    f"{path} has {size:,} bytes, the limit is {max_bytes:,}; raise max_bytes to read it"
                )
            data = Path(path).read_bytes()
        except OSError as error:
            raise WorkbookError(f"{path} cannot be read ({error.strerror}); give the path of a workbook") from error
    label = path or "the workbook"
    archive = _guarded(data, label, max_bytes)
    try:
        with archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            names = set(archive.namelist())
            if "[Content_Types].xml" in names:
                from assay.formulas.workbook.xlsx import read_xlsx

                return read_xlsx(data, archive, path, max_cells)
            if "content.xml" in names:
                from assay.formulas.workbook.ods import read_ods

                return read_ods(archive, path, max_cells)
    except FormulaError:
        raise
    except (MemoryError, RecursionError) as error:
        raise WorkbookError(f"{label} needs more memory than there is; lower max_cells") from error
    except Exception as error:
        raise WorkbookError(
            f"{label} is damaged or not a workbook that can be read ({type(error).__name__}: {_short(error)}); "
            "open it in a spreadsheet program and save it again"
        ) from error
    raise WorkbookError(f"{label} is a zip archive without a workbook; .xlsx, .xlsm and .ods can be read")


def _short(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0][:160] if lines else ""


def _guarded(data: bytes, label: str, max_bytes: int) -> zipfile.ZipFile:
    if data[:8] == _OLE:
        if "EncryptedPackage".encode("utf-16-le") in data:
            raise WorkbookError(f"{label} is encrypted; open it with its password and save it without one")
        raise WorkbookError(f"{label} is in the old .xls format; convert it: soffice --headless --convert-to xlsx FILE")
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise WorkbookError(f"{label} is no workbook: not a zip archive, or a damaged one ({error})") from error
    entries = archive.infolist()
    total = 0
    for entry in entries:
        total += entry.file_size
        if entry.flag_bits & 1:
            raise WorkbookError(f"{label} is encrypted (part {entry.filename}); save it without a password")
        if entry.file_size > 50_000_000 and entry.file_size > MAX_RATIO * max(entry.compress_size, 1):
            raise WorkbookError(
                f"{label} looks like a zip bomb: part {entry.filename} unpacks from {entry.compress_size:,} to "
                f"{entry.file_size:,} bytes"
            )
    if total > max_bytes:
        raise WorkbookError(
            f"{label} unpacks to {total:,} bytes, the limit is {max_bytes:,} (a zip bomb, or raise max_bytes)"
        )
    if len(entries) > 20_000:
        raise WorkbookError(f"{label} has {len(entries):,} parts, more than a workbook has")
    for entry in entries:
        if entry.filename.lower().endswith((".xml", ".rels")):
            try:
                with archive.open(entry) as part:
                    head = part.read(4096)
            except Exception as error:
                raise WorkbookError(f"{label} is damaged: part {entry.filename} cannot be unpacked") from error
            if re.search(rb"<!(?:DOCTYPE|ENTITY)", head) or b"<\x00!\x00D\x00O\x00C" in head:
                raise WorkbookError(f"{label} holds a document type in {entry.filename}, which no workbook does")
    return archive


def parts_of(names: set[str]) -> frozenset[str]:
    """What a package holds beside cells."""
    found = set()
    known = {
        "xl/vbaProject.bin": "macros", "xl/charts/": "charts", "xl/externalLinks/": "external links",
        "xl/pivotTables/": "pivot tables", "xl/media/": "pictures", "xl/embeddings/": "embedded objects",
        "xl/slicers/": "slicers", "xl/ctrlProps/": "controls", "xl/activeX/": "controls", "xl/diagrams/": "diagrams",
        "xl/threadedComments/": "threaded comments", "xl/timelines/": "timelines", "xl/chartsheets/": "chart sheets",
        "xl/richData/": "linked data types", "xl/connections.xml": "data connections", "xl/model/": "data model",
        "xl/customData/": "custom data", "xl/queryTables/": "queries", "xl/dialogsheets/": "dialog sheets",
        "xl/macrosheets/": "macros",
    }  # fmt: skip
    for name in names:
        for start, what in known.items():
            if name.startswith(start):
                found.add(what)
    return frozenset(found)


def style_letter(code: str) -> str:
    """One letter for a number format: ``%``, ``$`` (currency), ``d`` (date or time) or nothing.

    >>> [style_letter(c) for c in ("0.0%", "#,##0.00 [$€-407]", "dd/mm/yyyy", "0.00", '"day "0')]
    ['%', '$', 'd', '', '']
    """
    plain = re.sub(r'"[^"]*"|\\.|_.|\*.', "", code)
    if "%" in plain:
        return "%"
    if re.search(r"\[\$[^\]-]|[$€£¥₹]", plain):
        return "$"
    bare = re.sub(r"\[(?!h|m|s)[^\]]*\]", "", plain, flags=re.IGNORECASE)
    return "d" if re.search(r"[dmyhs]", bare, re.IGNORECASE) and "General" not in bare else ""


def limit_error(path: str, cells: int) -> Any:
    """The error of a workbook with too many cells."""
    return WorkbookError(f"{path or 'the workbook'} holds more than {cells:,} cells; raise max_cells to read it")
