"""Run by TrainCheck's Python: checks invariants on one run within a budget, one line of JSON for each.

TrainCheck's own command checks all of them or says nothing at its end; single ones take minutes. The order is drawn at
random with a fixed seed, so that the part that was checked is a fair one. Times are CPU seconds of this process.

    python driver.py '{"trace": folder, "invariants": file, "out": file, "budget": 240, "each": 20, "only": null}'
"""

from __future__ import annotations

import json
import logging
import random
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any


class TooLong(BaseException):
    """One invariant took more than its share. No `Exception`, which the checked code may catch."""


def stop(number: int, frame: FrameType | None) -> None:
    """What the timer calls."""
    raise TooLong


def main(facts: dict[str, Any]) -> None:
    """Read, draw the order, check until the budget is spent."""
    import traincheck.utils
    from traincheck.invariant import read_inv_file
    from traincheck.trace import select_trace_implementation

    logging.disable(logging.CRITICAL)
    traincheck.utils._suppress_inner_progress = True
    _, read = select_trace_implementation("pandas")
    folder = Path(facts["trace"])
    trace = read(sorted(str(p) for p in folder.iterdir() if p.name.startswith(("trace_", "proxy_log.json"))))
    invariants = read_inv_file([facts["invariants"]])
    order = list(range(len(invariants))) if facts["only"] is None else list(facts["only"])
    if facts["only"] is None:
        random.Random(0).shuffle(order)
    signal.signal(signal.SIGPROF, stop)
    with Path(facts["out"]).open("w", encoding="utf-8") as out:
        out.write(json.dumps({"invariants": len(invariants)}) + "\n")
        began = time.process_time()
        for at in order:
            left = facts["budget"] - (time.process_time() - began)
            if left <= 0:
                break
            start = time.process_time()
            line: dict[str, Any] = {"invariant": at, "text": invariants[at].text_description}
            try:
                signal.setitimer(signal.ITIMER_PROF, min(left, facts["each"]))
                result = invariants[at].check(trace, False)
                signal.setitimer(signal.ITIMER_PROF, 0)
                line |= {"passed": bool(result.check_passed), "triggered": bool(result.triggered)}
            except TooLong:
                line |= {"passed": None, "triggered": None}
            except Exception as error:
                signal.setitimer(signal.ITIMER_PROF, 0)
                line |= {"passed": None, "triggered": None, "error": f"{type(error).__name__}: {error}"[:200]}
            line["seconds"] = round(time.process_time() - start, 2)
            out.write(json.dumps(line) + "\n")
            out.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
