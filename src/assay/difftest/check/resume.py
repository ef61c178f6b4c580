"""Verdicts on disk, so that a comparison that was ended goes on where it was."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from assay.difftest.check.result import Verdict
from assay.difftest.shards import Problem


class Resume:
    def __init__(self, path: str | Path | None) -> None:
        self.path = Path(path) if path is not None else None
        self.known: dict[str, Verdict] = {}
        self._file: Any = None
        if self.path is None:
            return
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                try:
                    raw = json.loads(line)
                    raw["problems"] = [
                        Problem(**{**p, "ranks": tuple(p["ranks"]), "axes": tuple(p["axes"])}) for p in raw["problems"]
                    ]
                    self.known[raw["name"]] = Verdict(**raw)
                except (json.JSONDecodeError, TypeError, KeyError):
                    continue  # the line that was being written when the comparison was ended
        self._file = self.path.open("a", encoding="utf-8")
        if self.known:
            self._file.write("\n")

    def get(self, name: str) -> Verdict | None:
        return self.known.get(name)

    def put(self, verdict: Verdict) -> None:
        if self._file is not None:
            self._file.write(json.dumps(asdict(verdict)) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
