"""Run systems on tasks: every result is a line of JSON, written at once; what is on record is not done again."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict
from pathlib import Path

from assay.formulas.errors import TaskFileError
from assay.formulas.evaluate import Engine
from assay.formulas.execute import Judge
from assay.formulas.metrics import Report, Result, keystrokes_saved, likeness, summarise
from assay.formulas.systems.base import Suggestion, System
from assay.formulas.tasks import Task


def judged(
    task: Task,
    system: str,
    suggestions: Sequence[Suggestion],
    ms: float,
    engine: Engine,
    *,
    copies: int = 8,
    seed: int = 0,
) -> Result:
    """The result of a task: every suggestion compared as text and by execution.

    Examples
    --------
    >>> from assay.formulas import Workbook, parse_address
    >>> book = Workbook.from_cells({"S": {"A1": 1, "A2": 2, "A3": ("=A1+A2", 3.0)}})
    >>> task = Task("t", book, parse_address("S!A3"), truth="A1+A2")
    >>> result = judged(task, "mine", [Suggestion("SUM(A1:A2)", 0.9)], 1.0, Engine())
    >>> result.top1, result.suggestions[0]["exact"], result.suggestions[0]["outcome"]
    (True, False, 'right')
    """
    result = Result(task.id, system, task.abstain, task.function, ms=ms)
    if task.truth is None:
        result.suggestions = [_plain(s) for s in suggestions]
        result.top1 = result.topk = not suggestions
        return result
    judge = Judge(task, engine, copies, seed, [s.formula for s in suggestions])
    result.reproduces, result.note = judge.reproduces, judge.problem
    result.executable = not judge.problem
    rights = []
    for suggestion in suggestions:
        like = likeness(suggestion.formula, task.truth, task.cell)
        verdict = judge(suggestion.formula)
        right = like.exact or verdict.right
        rights.append(right)
        result.suggestions.append(
            {
                **_plain(suggestion), **asdict(like), "outcome": verdict.outcome, "differs_on": verdict.differs_on,
                "copies": verdict.copies, "frozen": verdict.frozen, "text_copy": verdict.text_copy, "correct": right,
            }
        )  # fmt: skip
    if rights and judge.problem == "" and result.suggestions[0]["outcome"] == "not executable" and not rights[0]:
        result.executable = False
    result.top1, result.topk = bool(rights and rights[0]), any(rights)
    return result


def _plain(suggestion: Suggestion) -> dict[str, object]:
    return {
        "formula": suggestion.formula,
        "score": float(suggestion.score),
        "source": suggestion.source,
        "ms": suggestion.ms,
        "reason": suggestion.reason,
        "evidence": [str(c) for c in suggestion.evidence],
        "parts": list(suggestion.parts),
    }


def result_key(task: Task, system: System) -> str:
    """Identity of a result: the task, the system, and the prompt where there is one."""
    prompt = getattr(system, "prompt_hash", None)
    text = f"{task.fingerprint()}|{system.name}|{prompt(task) if callable(prompt) else ''}"
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def run(
    tasks: Iterable[Task],
    systems: Sequence[System],
    out: str | os.PathLike[str],
    k: int = 5,
    *,
    resume: bool = True,
    workers: int = 1,
    timeout_s: float | None = None,
    engine: Engine | None = None,
    copies: int = 8,
    seed: int = 0,
    keystrokes: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Result]:
    """Run systems on tasks and keep every result in ``out/results.jsonl``.

    Parameters
    ----------
    resume : bool
        Results on record for the same task, system and prompt are taken over.
    workers : int
        Threads (useful for endpoints, which wait).
    timeout_s : float, optional
        Wall seconds for one call of a system; past it the task counts as failed.
    keystrokes : bool
        Also ask after every prefix of the truth.

    Returns
    -------
    list of Result, in the order of tasks, systems within
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.jsonl"
    known = {r.key: r for r in read_results(path)} if resume and path.exists() else {}
    run_engine = engine or Engine()
    jobs = [(task, system) for task in tasks for system in systems]
    done: dict[int, Result] = {}
    if resume and path.exists():
        _drop_torn_line(path)
    with path.open("a" if resume else "w", encoding="utf-8") as file:

        def keep(index: int, result: Result) -> None:
            done[index] = result
            file.write(json.dumps(asdict(result)) + "\n")
            file.flush()
            if progress is not None:
                progress(len(done), len(jobs))

        def one(task: Task, system: System, key: str) -> Result:
            result = _called(task, system, k, timeout_s, run_engine, copies, seed)
            if keystrokes and task.truth is not None and not result.error:
                result.keystrokes = keystrokes_saved(task, lambda t: _top(system, t))
            result.key = key
            return result

        waiting = []
        for index, (task, system) in enumerate(jobs):
            key = result_key(task, system)
            if key in known:
                done[index] = known[key]
                continue
            waiting.append((index, task, system, key))
        if workers <= 1:
            for index, task, system, key in waiting:
                keep(index, one(task, system, key))
        else:
            with ThreadPoolExecutor(workers) as pool:
                futures = [(index, pool.submit(one, task, system, key)) for index, task, system, key in waiting]
                for index, future in futures:
                    keep(index, future.result())
    return [done[i] for i in range(len(jobs))]


def _drop_torn_line(path: Path) -> None:
    """Cut a last line that a kill left unfinished, so that the next one starts on a line of its own."""
    with path.open("rb+") as file:
        data = file.read()
        if data and not data.endswith(b"\n"):
            file.truncate(data.rfind(b"\n") + 1)


def _top(system: System, task: Task) -> str | None:
    found = system.suggest(task, 1)
    return found[0].formula if found else None


def _called(
    task: Task, system: System, k: int, timeout_s: float | None, engine: Engine, copies: int, seed: int
) -> Result:
    began = time.perf_counter()
    try:
        if timeout_s is None:
            suggestions = system.suggest(task, k)
        else:
            pool = ThreadPoolExecutor(1)
            try:
                suggestions = pool.submit(system.suggest, task, k).result(timeout_s)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    except FutureTimeout:
        return Result(task.id, system.name, task.abstain, task.function, ms=timeout_s * 1000 if timeout_s else 0.0,
                      error=f"no answer within {timeout_s} s")  # fmt: skip
    except Exception as error:
        ms = (time.perf_counter() - began) * 1000
        return Result(
            task.id,
            system.name,
            task.abstain,
            task.function,
            ms=ms,
            error=f"{type(error).__name__}: {str(error)[:300]}",
        )
    ms = (time.perf_counter() - began) * 1000
    result = judged(task, system.name, suggestions, ms, engine, copies=copies, seed=seed)
    cost = getattr(system, "last_cost", None)
    if callable(cost):
        result.tokens, result.price = cost(task)
    return result


def read_results(path: str | os.PathLike[str]) -> list[Result]:
    """Results of a file or a folder; a last line that was cut off by a kill is left out.

    Raises
    ------
    TaskFileError
        If the file is not there, or a line in the middle is damaged.
    """
    place = Path(path)
    place = place / "results.jsonl" if place.is_dir() else place
    try:
        lines = place.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TaskFileError(f"{place} cannot be read ({error.strerror})") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(Result(**json.loads(line)))
        except (json.JSONDecodeError, TypeError) as error:
            if number == len(lines):
                break
            raise TaskFileError(f"{place} line {number} is damaged ({error})") from error
    return found


def score(run_dir: str | os.PathLike[str]) -> list[Report]:
    """Figures of every system on record in a folder of `run`."""
    by_system: dict[str, dict[str, Result]] = {}
    for result in read_results(run_dir):
        by_system.setdefault(result.system, {})[result.task] = result
    return [summarise(list(results.values())) for results in by_system.values()]
