"""A small language model on questions of known ambiguity: does semantic entropy find how many answers there are?

The grammar has facts ``the <attribute> of <entity>``. Each question has one, two or three true answers with known
shares, and every answer can be worded in several ways. A recurrent network learns texts ``question ? answer``; answers
are drawn from it, clustered by meaning (the grammar knows which wordings mean the same), and their entropy is compared
with the true one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from assay.training import TrainConfig, seeded, tensor_batches, train
from assay.uncertainty.errors import UncertaintyError
from assay.uncertainty.language import Generations, semantic_entropy, spectral_uncertainty, string_entropy
from assay.uncertainty.protocols import spearman

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENTITIES = (
    "arda",
    "belo",
    "cirin",
    "doma",
    "elva",
    "farun",
    "gorim",
    "hesta",
    "ilmo",
    "jorak",
    "keth",
    "lumen",
    "mirza",
    "nolan",
    "orin",
    "pelta",
    "quill",
    "rosta",
    "selva",
    "tarn",
    "umbra",
    "velim",
    "wodan",
    "xanti",
)
VALUES = ("red", "blue", "green", "white", "black", "gold", "grey", "pink")
WORDINGS = ("{v}", "it is {v}", "the color is {v}", "{v} , i think")
SHARES = ((1.0,), (0.5, 0.5), (0.7, 0.3), (0.4, 0.3, 0.3))


@dataclass(frozen=True)
class Grammar:
    """Entities with their true answers and shares."""

    answers: dict[str, dict[str, float]]

    @classmethod
    def make(cls, seed: int) -> Grammar:
        """Answers drawn for every entity."""
        rng = np.random.default_rng(seed)
        answers = {}
        for i, entity in enumerate(ENTITIES):
            shares = SHARES[i % len(SHARES)]
            answers[entity] = dict(zip(rng.choice(VALUES, len(shares), replace=False).tolist(), shares, strict=True))
        return cls(answers)

    def entropy(self, entity: str) -> float:
        """True entropy over meanings."""
        p = np.array(list(self.answers[entity].values()))
        return float(-(p * np.log(p)).sum())

    def text(self, entity: str, rng: np.random.Generator) -> tuple[list[str], list[str]]:
        """Words of a question and of one answer."""
        values, shares = zip(*self.answers[entity].items(), strict=True)
        wording = WORDINGS[rng.integers(len(WORDINGS))].format(v=rng.choice(values, p=shares))
        return f"what color is {entity} ?".split(), wording.split()


def meaning(text: str) -> str:
    """The value that an answer names; the text itself if it names none."""
    named = [w for w in text.split() if w in VALUES]
    return named[0] if len(named) == 1 else text


def same_meaning(a: str, b: str) -> bool:
    """Entailment in this grammar."""
    return meaning(a) == meaning(b)


class WordModel(nn.Module):
    """Embedding, one GRU layer, logits of the next word."""

    def __init__(self, vocabulary: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits ``(n, length, vocabulary)``."""
        return self.out(self.rnn(self.embed(tokens))[0])


@dataclass(frozen=True)
class Question:
    """A question put to the model: the true entropy over meanings, what it answered, and how.

    Attributes
    ----------
    truth : float
        Nats.
    answers : tuple of str
    log_probs : float64[draws]
    states : float64[draws, width]
        Embeddings of the answers.
    """

    truth: float
    answers: tuple[str, ...]
    log_probs: np.ndarray
    states: np.ndarray


@lru_cache(maxsize=8)
def asked(seed: int = 0, texts: int = 3000, epochs: int = 12, draws: int = 40) -> tuple[tuple[Question, ...], float]:
    """Train a model on texts of the grammar and draw answers to every question; also its last training loss in nats a
    word."""
    grammar = Grammar.make(seed)
    rng = np.random.default_rng(seed + 1)
    pairs = [grammar.text(ENTITIES[rng.integers(len(ENTITIES))], rng) for _ in range(texts)]
    words = sorted({w for q, a in pairs for w in (*q, *a)} | set(ENTITIES))
    places = {w: i + 2 for i, w in enumerate(words)}  # 0 pads, 1 ends
    length = max(len(q) + len(a) for q, a in pairs) + 1
    tokens = np.zeros((texts, length), dtype=np.int64)
    learn = np.zeros((texts, length), dtype=np.float32)
    for row, mask, (q, a) in zip(tokens, learn, pairs, strict=True):
        codes = [places[w] for w in (*q, *a)] + [1]
        row[: len(codes)] = codes
        mask[len(q) : len(codes)] = 1
    model = seeded(seed, lambda: WordModel(len(words) + 2))

    def loss(net: nn.Module, batch: tuple[Tensor, ...], _step: int) -> Tensor:
        text, mask = batch
        logp = torch.log_softmax(net(text[:, :-1]), -1).gather(-1, text[:, 1:, None])[..., 0]
        return -(logp * mask[:, 1:]).sum() / mask[:, 1:].sum()

    batches = tensor_batches(torch.tensor(tokens), torch.tensor(learn), batch_size=64)
    result = train(model, loss, batches, TrainConfig(epochs=epochs, lr=5e-3, schedule="cosine", seed=seed))
    names = {i: w for w, i in places.items()}
    out = []
    for number, entity in enumerate(ENTITIES):
        prompt = torch.tensor([places[w] for w in f"what color is {entity} ?".split()])
        answers, logs, states = _answers(model, prompt, draws, length, seed * 1000 + number, names)
        out.append(Question(grammar.entropy(entity), tuple(answers), logs, states))
    return tuple(out), result.losses[-1]


ESTIMATES = ("semantic", "rao", "spectral", "string")


def estimate(question: Question, kind: str) -> float:
    """One estimate of the entropy over meanings, in nats.

    Parameters
    ----------
    question : Question
    kind : {"semantic", "rao", "spectral", "string"}
        Clusters by counts, or by the model's probabilities; spectrum of the embeddings; distinct texts.
    """
    if kind == "string":
        return string_entropy(question.answers)
    if kind == "spectral":
        return spectral_uncertainty(question.states, gamma=2.0).total
    found = Generations.make(question.answers, same_meaning, question.log_probs)
    return semantic_entropy(found, "count" if kind == "semantic" else kind)


class OfAnswers:
    """An estimate of the entropy of answers, for the benchmark.

    Parameters
    ----------
    kind : {"semantic", "rao", "spectral", "string"}
    draws : int
        Answers a question.
    seed : int
        Not used: the seed of a run makes grammar, model and answers.
    """

    def __init__(self, kind: str = "semantic", *, draws: int = 40, seed: int = 0) -> None:
        if kind not in ESTIMATES:
            raise UncertaintyError(f"kind is one of {', '.join(ESTIMATES)}, not {kind!r}")
        self.kind, self.draws, self.seed = kind, draws, seed

    def judged(self, *, seed: int, curve: Callable[..., None]) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        """Metrics and values of questions, for the grammar of a seed."""
        questions, _ = asked(seed, draws=self.draws)
        goal = np.array([q.truth for q in questions])
        found = np.array([estimate(q, self.kind) for q in questions])
        order = np.argsort(goal, kind="stable")
        curve("estimate over true entropy", goal[order], found[order], "true entropy (nats)")
        error = np.abs(found - goal)
        figures = {"headline": spearman(found, goal), "entropy_error": float(error.mean())}
        return figures, {"entropy_error": error}


def run(
    *, seed: int = 0, texts: int = 3000, epochs: int = 12, draws: int = 40, draw: bool = False
) -> tuple[dict[str, float], Figure | None]:
    """Train, ask every question, and correlate entropies with the true one (Spearman over questions)."""
    questions, loss = asked(seed, texts, epochs, draws)
    goal = np.array([q.truth for q in questions])
    found = {kind: np.array([estimate(q, kind) for q in questions]) for kind in ESTIMATES}
    figures = {
        "loss of the model (nats a word)": loss,
        "semantic entropy, Spearman with the truth": spearman(found["semantic"], goal),
        "semantic entropy (Rao), Spearman": spearman(found["rao"], goal),
        "spectral uncertainty, Spearman": spearman(found["spectral"], goal),
        "string entropy, Spearman": spearman(found["string"], goal),
        "semantic entropy, mean absolute error (nats)": float(np.abs(found["semantic"] - goal).mean()),
        "string entropy, mean absolute error (nats)": float(np.abs(found["string"] - goal).mean()),
    }
    return figures, _picture(goal, found) if draw else None


def _picture(goal: np.ndarray, found: dict[str, np.ndarray]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.6), layout="constrained")
    axes = figure.subplots()
    top = float(max(v.max() for v in found.values()))
    axes.plot([0, top], [0, top], color="0.75", lw=1, zorder=0)
    names = {"semantic": "semantic (counts)", "rao": "semantic (Rao)", "spectral": "spectral", "string": "texts"}
    for kind, values in found.items():
        axes.scatter(goal, values, s=14, alpha=0.75, label=names[kind])
    axes.set_xlabel("true entropy over meanings (nats)")
    axes.set_ylabel("estimate (nats)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _answers(
    model: WordModel, prompt: Tensor, n: int, length: int, seed: int, names: dict[int, str]
) -> tuple[list[str], np.ndarray, np.ndarray]:  # fmt: skip
    """Drawn answers, their log-probabilities, and bag-of-words embeddings of the words that carry meaning, from the
    model's table."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        tokens = prompt.repeat(n, 1)
        logs = torch.zeros(n)
        alive = torch.ones(n, dtype=torch.bool)
        for _ in range(length - len(prompt)):
            logp = torch.log_softmax(model(tokens)[:, -1], -1)
            word = torch.multinomial(logp.exp(), 1, generator=generator)[:, 0]
            word = torch.where(alive, word, torch.zeros_like(word))
            logs += torch.where(alive, logp.gather(1, word[:, None])[:, 0], torch.zeros(n))
            tokens = torch.cat([tokens, word[:, None]], 1)
            alive &= word > 1
        table = nn.functional.normalize(model.embed.weight, dim=1).numpy()
    texts, states = [], []
    for row in tokens[:, len(prompt) :].tolist():
        kept = [names[w] for w in row if w in names]
        texts.append(" ".join(kept))
        carrying = [w for w in row if names.get(w) in VALUES] or [w for w in row if w in names] or [1]
        states.append(table[carrying].mean(0))
    return texts, logs.double().numpy(), np.array(states)
