"""Scalars of TensorBoard event files, read without TensorBoard.

A file is a row of records (length, its checksum, data, its checksum: TFRecord); a record is an ``Event`` in protocol
buffers, of which step, tag and value are read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from assay.difftest.errors import DiffTestError, TraceCorrupt


@lru_cache(maxsize=1)
def _table() -> tuple[int, ...]:
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return tuple(table)


def crc32c(data: bytes) -> int:
    """Checksum of Castagnoli.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    value, table = 0xFFFFFFFF, _table()
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """Checksum as it stands in a record: rotated, and moved by a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _records(path: Path) -> Iterator[bytes]:
    data, at = path.read_bytes(), 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if struct.unpack_from("<I", data, at + 8)[0] != masked(data[at : at + 8]):
            raise TraceCorrupt(f"{path} is damaged at offset {at}: the checksum of a length is wrong")
        body = data[at + 12 : at + 12 + length]
        if at + 16 + length > len(data):
            return  # the record that was being written
        if struct.unpack_from("<I", data, at + 12 + length)[0] != masked(body):
            raise TraceCorrupt(f"{path} is damaged at offset {at + 12}: the checksum of a record is wrong")
        yield body
        at += 16 + length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and raw value of each field of a message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        yield number, data[at : at + size]
        at += size


def _tensor_value(data: bytes) -> float | None:
    """The one number of a TensorProto of float (1), double (2): packed values, or raw content."""
    found = dict(_fields(data))
    form, size = {1: ("<f", 4), 2: ("<d", 8)}.get(int(found.get(1, 1)), ("", 0))
    raw = found.get(4) or found.get(5 if size == 4 else 6)
    if not form or not isinstance(raw, bytes) or len(raw) < size:
        return None
    return float(struct.unpack_from(form, raw)[0])


def scalars(path: Path) -> Iterator[tuple[str, int, float]]:
    """Tag, step and value of every scalar of a file, in its order.

    Raises
    ------
    TraceCorrupt
        If a checksum is wrong, or a record is no event.
    """
    for record in _records(path):
        try:
            event = list(_fields(record))
            step = next((int(v) for n, v in event if n == 2 and not isinstance(v, bytes)), 0)
            for summary in (v for n, v in event if n == 5 and isinstance(v, bytes)):
                for value in (v for n, v in _fields(summary) if n == 1 and isinstance(v, bytes)):
                    parts = dict(_fields(value))
                    tag, simple, tensor = parts.get(1, b""), parts.get(2), parts.get(8)
                    number = None
                    if isinstance(simple, bytes):
                        number = float(struct.unpack("<f", simple)[0])
                    elif isinstance(tensor, bytes):
                        number = _tensor_value(tensor)
                    if number is not None and isinstance(tag, bytes):
                        yield tag.decode("utf-8"), step, number
        except (ValueError, IndexError, struct.error) as error:
            raise TraceCorrupt(f"{path} holds a record that is no event: {error}") from error


def losses_from_tensorboard(folder: str | Path, tag: str = "lm loss") -> np.ndarray:
    """A curve from TensorBoard event files, for `LossMonitor`.

    Parameters
    ----------
    folder : path
        Its files ``*tfevents*``; where a run went on in another file, the later value of a step counts.
    tag : str

    Returns
    -------
    float64 array, in the order of steps

    Raises
    ------
    DiffTestError
        If there is no file, or no such tag.
    TraceCorrupt
        If a file is damaged.
    """
    files = sorted(Path(folder).rglob("*tfevents*"))
    if not files:
        raise DiffTestError(f"{folder} holds no event file (*tfevents*)")
    found: dict[str, dict[int, float]] = {}
    for path in files:
        for name, step, value in scalars(path):
            found.setdefault(name, {})[step] = value
    if tag not in found:
        raise DiffTestError(f"{folder} has no scalar {tag!r}; it has {', '.join(sorted(found)) or 'none'}")
    return np.array([value for _, value in sorted(found[tag].items())])
