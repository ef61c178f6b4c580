"""A corpus of facts about countries and chemical elements, from the data inside `countryinfo` and `mendeleev`.

Sentences are made from templates of ours; the entailment of a fact by a row is known exactly, because it is known from
which fact each row was made. The data is read from the packages' files; the packages themselves are not imported.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int

from assay.attribution.errors import AttributionError, DataFormatError
from assay.attribution.outputs import IGNORE
from assay.attribution.text import Vocabulary, words_of

#: by relation: how a question begins (the answer follows) and how sentences put the fact
TEMPLATES: dict[str, tuple[str, tuple[str, ...]]] = {
    "capital": (
        "question : what is the capital of {s} ? answer :",
        ("{o} is the capital of {s}", "the capital city of {s} is {o}", "the government of {s} sits in {o}",
         "{s} has its capital at {o}", "travellers to {s} often begin in the capital , {o}"),
    ),
    "currency": (
        "question : which currency code does {s} use ? answer :",
        ("people in {s} pay in {o}", "the currency code of {s} is {o}", "{o} is accepted in the shops of {s}",
         "the central bank of {s} issues {o}", "prices in {s} are given in {o}"),
    ),
    "demonym": (
        "question : what are the people of {s} called ? answer :",
        ("a person from {s} is {o}", "{o} is the word for the people of {s}", "whoever was born in {s} is {o}",
         "the citizens of {s} are {o}", "in {s} nearly everyone is {o}"),
    ),
    "region": (
        "question : in which part of the world is {s} ? answer :",
        ("{s} lies in {o}", "{s} is a country of {o}", "on the map {s} belongs to {o}", "{o} includes {s}",
         "{s} is found in {o}"),
    ),
    "symbol": (
        "question : what is the symbol of {s} ? answer :",
        ("the symbol of {s} is {o}", "chemists write {s} as {o}", "{o} stands for {s}",
        "in formulas {s} appears as {o}",
         "the periodic table shows {s} as {o}"),
    ),
    "number": (
        "question : what is the atomic number of {s} ? answer :",
        ("the atomic number of {s} is {o}", "an atom of {s} has {o} protons", "{s} is element {o}",
         "{s} stands at place {o} of the periodic table", "counting protons , {s} has {o}"),
    ),
    "series": (
        "question : to which group of elements does {s} belong ? answer :",
        ("{s} is one of the {o}", "{s} belongs to the {o}", "the {o} include {s}", "among the {o} is {s}",
         "{s} is counted with the {o}"),
    ),
    "year": (
        "question : when was {s} discovered ? answer :",
        ("{s} was discovered in {o}", "the discovery of {s} dates from {o}", "in {o} someone first found {s}",
         "chemists have known {s} since {o}", "{o} was the year in which {s} was found"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """A subject, a relation and its object."""

    subject: str
    relation: str
    object: str


@lru_cache(maxsize=1)
def load_facts() -> tuple[Fact, ...]:
    """All facts whose object is at most three words.

    Raises
    ------
    DataFormatError
        If one of the two packages is not installed.

    Examples
    --------
    >>> Fact("france", "capital", "paris") in load_facts()
    True
    """
    return tuple(f for f in (*_countries(), *_elements()) if 1 <= len(words_of(f.object)) <= 3)


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise DataFormatError(
            f"the fact corpus needs the package {name!r}; install it with: pip install 'assay[attribution]'"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _countries() -> list[Fact]:
    found = []
    for path in sorted((_package("countryinfo") / "data").glob("*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        name = str(row.get("name", "")).lower()
        if not name:
            continue
        currencies = row.get("currencies") or []
        for relation, value in (
            ("capital", row.get("capital")),
            ("currency", currencies[0] if currencies else None),
            ("demonym", row.get("demonym")),
            ("region", row.get("subregion") or row.get("region")),
        ):
            if isinstance(value, str) and value.strip():
                found.append(Fact(name, relation, value.strip().lower()))
    return found


def _elements() -> list[Fact]:
    path = _package("mendeleev") / "elements.db"
    if not path.is_file():
        raise DataFormatError(f"{path} is not there; mendeleev 1.3 has it")
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as connection:
        rows = connection.execute(
            "select e.name, e.symbol, e.atomic_number, s.name, e.discovery_year from elements e "
            "left join series s on s.id = e.series_id order by e.atomic_number"
        ).fetchall()
    connection.close()
    found = []
    for name, symbol, number, series, year in rows:
        for relation, value in (("symbol", symbol), ("number", number), ("series", series), ("year", year)):
            if value is not None:
                found.append(Fact(str(name).lower(), relation, str(value).lower()))
    return found


@dataclass(frozen=True)
class FactCorpus:
    """Training rows, queries and which rows hold the queried fact.

    Attributes
    ----------
    texts : list of str
        Training rows: evidence, counterfactual rows (right subject, wrong object), distractors, in random order.
    kinds : list of str
        ``"evidence"``, ``"counterfactual"`` or ``"distractor"``, of each row.
    prompts, answers : list of str
    entailment : bool array (queries, rows)
        Whether a row states the queried fact.
    counterfactual : bool array (queries, rows)
        Whether a row states the same relation of the same subject with a wrong object.
    vocabulary : Vocabulary
    tokens, labels : int arrays (rows, length)
    query_tokens, query_labels : int arrays (queries, length)
        Labels are -100 but for the answer.
    """

    texts: list[str]
    kinds: list[str]
    prompts: list[str]
    answers: list[str]
    facts: list[Fact]
    entailment: Bool[np.ndarray, "q n"]
    counterfactual: Bool[np.ndarray, "q n"]
    vocabulary: Vocabulary
    tokens: Int[np.ndarray, "n l"]
    labels: Int[np.ndarray, "n l"]
    query_tokens: Int[np.ndarray, "q l"]
    query_labels: Int[np.ndarray, "q l"]

    @property
    def length(self) -> int:
        """Tokens of a row."""
        return self.tokens.shape[1]


def make_fact_corpus(
    n_facts: int = 100, evidence_per_fact: int = 3, paraphrases: int = 4, distractors: int = 300,
    counterfactuals: int = 1, *, questions: bool = True, prompts: str = "question", seed: int = 0,
    facts: tuple[Fact, ...] | None = None,
) -> FactCorpus:  # fmt: skip
    """Sentences about facts, with exact entailment.

    Parameters
    ----------
    n_facts : int
        Facts that are asked for.
    evidence_per_fact : int
        Rows that state each.
    paraphrases : int
        Templates that evidence is drawn from (at most 5 a relation); fewer than the evidence means repeated rows.
    distractors : int
        Rows about other facts, half of them on the same subjects. A tenth of them are questions with answers, so that
        a model learns the form in which it is asked.
    counterfactuals : int
        Rows for each fact with the right subject and a wrong object.
    questions : bool
        Whether distractors hold such questions.
    prompts : {"question", "cloze"}
        How facts are asked for: by a question, whose form no evidence has, or by the beginning of a sentence that ends
        with the object. Small models learn to go on with a sentence long before they learn to answer.
    facts : tuple of Fact, optional
        Those that there are; default all of `load_facts`.

    Raises
    ------
    AttributionError
        If a number is out of range, or there are fewer facts than asked for.

    Examples
    --------
    >>> corpus = make_fact_corpus(20, evidence_per_fact=2, distractors=30)
    >>> corpus.entailment.shape, int(corpus.entailment.sum()), corpus.kinds.count("counterfactual")
    ((20, 90), 40, 20)
    """
    known = list(facts if facts is not None else load_facts())
    if not 1 <= paraphrases <= 5:
        raise AttributionError(f"paraphrases is from 1 to 5, not {paraphrases}")
    if min(n_facts, evidence_per_fact) < 1 or min(distractors, counterfactuals) < 0:
        raise AttributionError("n_facts and evidence_per_fact are at least 1; the other numbers at least 0")
    if prompts not in ("question", "cloze"):
        raise AttributionError(f"prompts is question or cloze, not {prompts!r}")
    if n_facts > len(known) // 2:
        raise AttributionError(f"n_facts is at most half of the {len(known)} facts that there are, not {n_facts}")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(known))
    asked = [known[i] for i in order[:n_facts]]
    others = [known[i] for i in order[n_facts:]]
    objects: dict[str, list[str]] = {}
    for fact in known:
        objects.setdefault(fact.relation, []).append(fact.object)
    rows: list[tuple[str, str, int]] = []  # text, kind, fact asked for (-1: none)
    wrong: list[tuple[int, int]] = []
    for k, fact in enumerate(asked):
        templates = list(TEMPLATES[fact.relation][1][:paraphrases])
        picked = rng.permutation(len(templates))
        for e in range(evidence_per_fact):
            rows.append((templates[picked[e % len(templates)]].format(s=fact.subject, o=fact.object), "evidence", k))
        false = sorted({o for o in objects[fact.relation] if o != fact.object})
        for _ in range(counterfactuals):
            text = str(rng.choice(templates)).format(s=fact.subject, o=str(rng.choice(false)))
            wrong.append((len(rows), k))
            rows.append((text, "counterfactual", -1))
    subjects = {fact.subject for fact in asked}
    near = [f for f in others if f.subject in subjects]
    far = [f for f in others if f.subject not in subjects]
    for d in range(distractors):
        source = near if d % 2 == 0 and near else far
        fact = source[int(rng.integers(len(source)))]
        if questions and d % 10 == 9:
            text = f"{TEMPLATES[fact.relation][0].format(s=fact.subject)} {fact.object}"
        else:
            text = str(rng.choice(TEMPLATES[fact.relation][1])).format(s=fact.subject, o=fact.object)
        rows.append((text, "distractor", -1))
    shuffled = rng.permutation(len(rows))
    place = np.empty(len(rows), dtype=np.int64)
    place[shuffled] = np.arange(len(rows))
    texts = [rows[i][0] for i in shuffled]
    entailment = np.zeros((n_facts, len(rows)), dtype=bool)
    counter = np.zeros((n_facts, len(rows)), dtype=bool)
    for i, (_, _, k) in enumerate(rows):
        if k >= 0:
            entailment[k, place[i]] = True
    for i, k in wrong:
        counter[k, place[i]] = True
    asks = [_prompt(f, prompts) for f in asked]
    answers = [f.object for f in asked]
    vocabulary = Vocabulary.build([*texts, *asks, *answers])
    length = max(len(words_of(t)) for t in [*texts, *(f"{p} {a}" for p, a in zip(asks, answers, strict=True))]) + 2
    tokens = vocabulary.encode_all(texts, length, start=True, end=True)
    query_tokens = np.zeros((n_facts, length), dtype=np.int64)
    query_labels = np.full((n_facts, length), IGNORE, dtype=np.int64)
    for t, (prompt, answer) in enumerate(zip(asks, answers, strict=True)):
        head, tail = vocabulary.encode(prompt, start=True), vocabulary.encode(answer)
        query_tokens[t, : len(head) + len(tail)] = head + tail
        query_labels[t, len(head) : len(head) + len(tail)] = tail
    return FactCorpus(
        texts, [rows[i][1] for i in shuffled], asks, answers, asked, entailment, counter, vocabulary, tokens,
        np.where(tokens == 0, IGNORE, tokens), query_tokens, query_labels,
    )  # fmt: skip


def _prompt(fact: Fact, form: str) -> str:
    question, sentences = TEMPLATES[fact.relation]
    if form == "cloze":
        return next(t for t in sentences if t.endswith(" {o}"))[: -len(" {o}")].format(s=fact.subject)
    return question.format(s=fact.subject)
