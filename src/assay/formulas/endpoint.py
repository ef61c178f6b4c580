"""A language model as a system: a context, a prompt, an answer read leniently; calls go through `assay.llm`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from assay.formulas.context import strategy as make_strategy
from assay.formulas.context.base import Context
from assay.formulas.errors import EndpointError, FormulaError
from assay.formulas.grammar import parse, parse_r1c1
from assay.formulas.systems.base import Suggestion, timed
from assay.formulas.tasks import Task
from assay.llm import Client, Completion, LLMError

_FORMATS = {
    "dense": (
        "One line a block of cells: its address, a letter, its content. H headers, n numbers (n% percent, n$ currency, "
        "nd dates), s texts, f a formula in R1C1 notation, b logical, e error."
    ),
    "compressed": "Each line is a content and the cells that hold it.",
}
_ROWS = "Each line is a row number and its cells, column:content."
_ASK = (
    "You complete spreadsheets. You are shown a part of a workbook and a target cell. Answer with the formula that "
    'belongs in the target cell, as JSON: {"formula": "=..."}, in A1 notation. If no formula belongs there, answer '
    '{"formula": null}. Answer with nothing else.'
)


@dataclass(frozen=True)
class Prompt:
    """What would be sent.

    Attributes
    ----------
    messages : list of dict
    context : Context
    """

    messages: list[dict[str, str]]
    context: Context

    def text(self) -> str:
        """All of it as one text."""
        return "\n\n".join(f"[{m['role']}]\n{m['content']}" for m in self.messages)


class Endpoint:
    """Any endpoint that speaks the OpenAI protocol.

    Parameters
    ----------
    base_url, model : str, optional
        Default: from the environment (`assay.llm.Client`).
    strategy : str
        Context strategy.
    budget : int, optional
        Tokens of context.
    redact : bool
        No value of the workbook leaves the machine: placeholders of their types do.
    client : Client, optional
    samples : int
        Answers asked for; equal ones add up to the score.

    Raises
    ------
    EndpointError
        Without an endpoint; or (from ``suggest``) if it cannot be reached or refuses.
    """

    def __init__(
        self,
        base_url: str | None = None,
        model: str | None = None,
        strategy: str = "dense",
        budget: int | None = 1024,
        *,
        redact: bool = False,
        client: Client | None = None,
        samples: int = 1,
        max_tokens: int = 200,
    ) -> None:
        if samples < 1:
            raise FormulaError(f"samples is at least 1, not {samples}")
        try:
            self.client = client or Client(base_url, model)
        except LLMError as error:
            raise EndpointError(str(error)) from error
        self.strategy, self.budget, self.redact, self.samples = strategy, budget, redact, samples
        self.max_tokens = max_tokens
        self._gather = make_strategy(strategy, budget, redact=redact)
        self.name = f"llm:{self.client.model}:{strategy}"
        self.workers = self.client.concurrency
        self._costs: dict[str, tuple[float, float]] = {}

    def preview(self, task: Task, hint: str = "") -> Prompt:
        """What would leave the machine for this task; nothing is sent.

        Parameters
        ----------
        hint : str
            What the user wants, in a sentence.
        """
        context = self._gather(task)
        how = _FORMATS.get(self.strategy.partition("(")[0], _ROWS)
        text = f"{how}\n\n{context.text}"
        if hint:
            text += f"\nThe user wants: {hint}"
        return Prompt([{"role": "system", "content": _ASK}, {"role": "user", "content": text}], context)

    def prompt_hash(self, task: Task) -> str:
        """Identity of the request."""
        return self.client.key(self.preview(task).messages, max_tokens=self.max_tokens)

    def last_cost(self, task: Task) -> tuple[float, float]:
        """Tokens and price of the answers to a task."""
        return self._costs.get(task.id, (0.0, 0.0))

    def suggest(self, task: Task, k: int = 5) -> list[Suggestion]:
        """See `System.suggest`."""
        return self.told(task, "", k)

    def told(self, task: Task, hint: str, k: int = 5) -> list[Suggestion]:
        """Suggestions when the intent is told in a sentence."""
        return timed(lambda t: self._answers(t, hint), task, k, self.name)

    def _answers(self, task: Task, hint: str) -> list[Suggestion]:
        prompt = self.preview(task, hint)
        answers: list[Completion] = []
        try:
            for i in range(self.samples):
                extra: dict[str, Any] = {} if i == 0 else {"temperature": 0.7, "seed": i}
                answers.append(self.client.complete(prompt.messages, max_tokens=self.max_tokens, **extra))
        except LLMError as error:
            raise EndpointError(str(error)) from error
        self._costs[task.id] = (
            float(sum(a.prompt_tokens + a.completion_tokens for a in answers)), sum(a.price for a in answers)
        )  # fmt: skip
        votes: dict[str, float] = {}
        for answer in answers:
            for i, formula in enumerate(read_answer(answer.text, task)):
                votes[formula] = votes.get(formula, 0.0) + 0.5**i / len(answers)
        shown = f"{self.client.model} on {len(prompt.context.cells)} cells of context"
        return [
            Suggestion(formula, min(0.99, 0.9 * weight), self.name, reason=f"answer of {shown}")
            for formula, weight in votes.items()
        ]


_FENCE = re.compile(r"```[a-zA-Z]*\n?|```")
_OBJECT = re.compile(r"\{[^{}]*\}", re.DOTALL)


def read_answer(text: str, task: Task) -> list[str]:
    """Formulas of an answer: JSON, a code block, or lines that begin with ``=``; none where the answer is none.

    R1C1 notation is taken too.

    Examples
    --------
    >>> from assay.formulas import Workbook, parse_address
    >>> task = Task("t", Workbook.from_cells({"S": {}}), parse_address("S!C3"))
    >>> read_answer('Sure: {"formula": "=A3*B3"}', task), read_answer("```\\n=RC[-2]*2\\n```", task)
    (['A3*B3'], ['A3*2'])
    >>> read_answer('{"formula": null}', task), read_answer("I cannot tell.", task)
    ([], [])
    """
    plain = _FENCE.sub("", text).strip()
    candidates: list[Any] = []
    found_object = False
    for match in [plain, *(m[0] for m in _OBJECT.finditer(plain))]:
        try:
            data = json.loads(match)
        except json.JSONDecodeError:
            continue
        if isinstance(data, dict):
            found_object = True
            for key in ("formula", "formulas", "answer"):
                value = data.get(key)
                candidates += value if isinstance(value, list) else [value]
        elif isinstance(data, list):
            candidates += data
        elif isinstance(data, str):
            candidates.append(data)
    if not found_object and not candidates:
        for line in plain.splitlines():
            stripped = line.strip().strip("`").strip()
            if stripped.startswith("="):
                candidates.append(stripped)
            elif (inner := re.search(r"`(=[^`]+)`", line)) is not None:
                candidates.append(inner[1])
    formulas = []
    for candidate in candidates:
        if not isinstance(candidate, str) or not candidate.strip().lstrip("=").strip():
            continue
        body = candidate.strip().lstrip("=").strip()
        if body.lower() in ("none", "null", "n/a", "abstain"):
            continue
        try:
            if re.search(r"(?<![A-Za-z])R(\[-?\d+\]|\d*)C(\[-?\d+\]|\d*)(?![A-Za-z(])", body):
                body = parse_r1c1(body, task.cell).to_a1()
            else:
                parse(body)
        except FormulaError:
            continue
        if body not in formulas:
            formulas.append(body)
    return formulas


def restricted(task: Task, context: Context) -> Task:
    """The task with nothing in sight but the cells of a context (for systems that do not read text)."""
    book = task.view
    gone = set(task.removed)
    for sheet in book.sheets.values():
        for row, col in sheet.cells:
            place = type(task.cell)(sheet.name, row, col)
            if place not in context.cells:
                gone.add(place)
    return replace(task, removed=frozenset(gone))
