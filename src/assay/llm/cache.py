"""Answers on disk, one file a request, written whole; and the log of what was spent."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def request_key(request: Mapping[str, Any]) -> str:
    """Identity of a request: model, address, messages and options.

    >>> request_key({"model": "m", "messages": []}) == request_key({"messages": [], "model": "m"})
    True
    """
    text = json.dumps(request, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class DiskCache:
    """Answers by key, in folders of the key's first two letters. A damaged file counts as none.

    >>> import tempfile
    >>> cache = DiskCache(tempfile.mkdtemp())
    >>> cache.put("ab12", {"text": "hi"}); cache.get("ab12")
    {'text': 'hi'}
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def path(self, key: str) -> Path:
        """File of a key."""
        return self.folder / key[:2] / f"{key}.json"

    def get(self, key: str) -> dict[str, Any] | None:
        """The answer, None where there is none."""
        try:
            found = json.loads(self.path(key).read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError, UnicodeDecodeError):
            return None
        return found if isinstance(found, dict) else None

    def put(self, key: str, answer: Mapping[str, Any]) -> None:
        """Keep an answer."""
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
        try:
            part.write_text(json.dumps(dict(answer), ensure_ascii=False), encoding="utf-8")
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


@dataclass
class Spent:
    """Sums over requests.

    Attributes
    ----------
    requests, cached, failed : int
    prompt_tokens, completion_tokens : int
        Of requests that were sent.
    price : float
    seconds : float
    """

    requests: int = 0
    cached: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    price: float = 0.0
    seconds: float = 0.0


class Ledger:
    """What was spent, in memory and as lines of JSON in a file. No prompt, answer or key is written."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = Path(path) if path is not None else None
        self.spent = Spent()
        self._lock = threading.Lock()

    def add(
        self,
        key: str,
        model: str,
        *,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        price: float = 0.0,
        seconds: float = 0.0,
        cached: bool = False,
        error: str = "",
    ) -> None:
        """Enter one request."""
        with self._lock:
            s = self.spent
            s.requests += 1
            s.cached += cached
            s.failed += bool(error)
            if not cached:
                s.prompt_tokens += prompt_tokens
                s.completion_tokens += completion_tokens
                s.price += price
                s.seconds += seconds
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                line = {
                    "at": time.time(),
                    "model": model,
                    "key": key[:16],
                    "prompt_tokens": prompt_tokens,
                    "completion_tokens": completion_tokens,
                    "price": 0.0 if cached else price,
                    "seconds": round(seconds, 4),
                    "cached": cached,
                    "error": error,
                }
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
