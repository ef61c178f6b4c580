"""Safetensors files written as the tensors arrive, so that memory is free again before the file is complete."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assay.difftest.errors import TraceCorrupt

ROOM = 64 << 10  # bytes kept free for the header, which comes first in the file and is known last
_CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.complex64: "C64",
}  # fmt: skip


class PartFile:
    """One file of tensors, under a temporary name until it is complete.

    Different from `safetensors.torch.save_file`, which wants all tensors at once and takes .07 ms of Python for each,
    with the interpreter's lock, for which the step that is being traced waits. Headers are filled up with blanks, which
    the format allows. Tensors whose size is no multiple of 8 bytes come last, so that all others stay aligned.

    Parameters
    ----------
    target : path
    header : int
        Bytes for the header; longer names need a file of their own (`full`).

    Examples
    --------
    >>> import tempfile
    >>> from safetensors.torch import load_file
    >>> path = Path(tempfile.mkdtemp(), "a.safetensors")
    >>> part = PartFile(path)
    >>> part.add("b", torch.tensor([True, False, True])), part.add("a", torch.arange(4.0))
    (False, True)
    >>> part.add('"c"', torch.tensor(2.0)), part.add("d", torch.ones(2, 4, dtype=torch.bfloat16))
    (False, True)
    >>> part.close()
    >>> {name: tensor.tolist() for name, tensor in sorted(load_file(path).items())}
    {'"c"': 2.0, 'a': [0.0, 1.0, 2.0, 3.0], 'b': [True, False, True], 'd': [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]}
    """

    def __init__(self, target: Path, header: int = ROOM) -> None:
        self.target = target
        self._part = target.with_name(f".{target.name}.{os.getpid()}.part")
        self._room = header
        self._header: dict[str, Any] = {}
        self._length = 2
        self._late: list[tuple[str, Tensor]] = []
        self.size = 0
        self._end = 0
        self._file = self._part.open("wb", buffering=1 << 16)
        self._file.seek(8 + header)

    def __contains__(self, name: str) -> bool:
        return name in self._header or any(name == late for late, _ in self._late)

    def full(self, name: str, tensor: Tensor) -> bool:
        """Whether the header has no room for one more tensor."""
        return bool(self._header or self._late) and self._length + self._words(name, tensor) > self._room

    def add(self, name: str, tensor: Tensor) -> bool:
        """Write a tensor; False where it has to be kept until `close`.

        Raises
        ------
        TraceCorrupt
            For types that the format does not have.
        """
        if tensor.dtype not in _CODES:
            raise TraceCorrupt(f"{name}: a safetensors file cannot hold {tensor.dtype}")
        self._length += self._words(name, tensor)
        size = tensor.numel() * tensor.element_size()
        self.size += size
        if size % 8:
            self._late.append((name, tensor))
            return False
        self._write(name, tensor, size)
        return True

    def close(self, *, fsync: bool = False) -> None:
        """Complete the file and give it its name."""
        for name, tensor in sorted(self._late, key=lambda item: -item[1].element_size()):
            self._write(name, tensor, tensor.numel() * tensor.element_size())
        text = json.dumps(self._header, separators=(",", ":")).encode()
        if len(text) > self._room:
            raise TraceCorrupt(f"{self.target}: the names in it are longer than its header has room for")
        self._file.seek(0)
        self._file.write(struct.pack("<Q", self._room) + text + b" " * (self._room - len(text)))
        self._file.flush()
        if fsync:
            os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._part, self.target)

    def drop(self) -> None:
        """Give it up."""
        self._file.close()
        self._part.unlink(missing_ok=True)

    def _words(self, name: str, tensor: Tensor) -> int:
        """Bytes in the header, at most."""
        plain = name.isascii() and name.isprintable() and '"' not in name and "\\" not in name
        return len(name) * (1 if plain else 6) + 22 * tensor.ndim + 90

    def _write(self, name: str, tensor: Tensor, size: int) -> None:
        begin, self._end = self._end, self._end + size
        self._header[name] = {
            "dtype": _CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, self._end],
        }  # fmt: skip
        if size:
            # NumPy does not know BF16
            whole = tensor.contiguous()
            self._file.write((whole.view(torch.int16) if tensor.dtype == torch.bfloat16 else whole).numpy().data)
