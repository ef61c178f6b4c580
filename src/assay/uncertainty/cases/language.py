"""A small language model on questions of known ambiguity: does semantic entropy find how many answers there are?

The grammar has facts ``the <attribute> of <entity>``. Each question has one, two or three true answers with known
shares, and every answer can be worded in several ways. A recurrent network learns texts ``question ? answer``; answers
are drawn from it, clustered by meaning (the grammar knows which wordings mean the same), and their entropy is compared
with the true one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from assay.training import TrainConfig, seeded, tensor_batches, train
from assay.uncertainty.language import Generations, semantic_entropy, spectral_uncertainty, string_entropy
from assay.uncertainty.protocols import _spearman

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


def run(
    *, seed: int = 0, texts: int = 3000, epochs: int = 12, draws: int = 40, draw: bool = False
) -> tuple[dict[str, float], Figure | None]:
    """Train, ask every question, and correlate entropies with the true one (Spearman over questions)."""
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
    true, semantic, rao, plain, spectral = [], [], [], [], []
    for number, entity in enumerate(ENTITIES):
        prompt = torch.tensor([places[w] for w in f"what color is {entity} ?".split()])
        answers, logs, states = _answers(model, prompt, draws, length, seed * 1000 + number, names)
        found = Generations.make(answers, same_meaning, logs)
        true.append(grammar.entropy(entity))
        semantic.append(semantic_entropy(found))
        rao.append(semantic_entropy(found, "rao"))
        plain.append(string_entropy(answers))
        spectral.append(spectral_uncertainty(states, gamma=2.0).total)
    goal = np.array(true)
    return {
        "loss of the model (nats a word)": result.losses[-1],
        "semantic entropy, Spearman with the truth": _spearman(np.array(semantic), goal),
        "semantic entropy (Rao), Spearman": _spearman(np.array(rao), goal),
        "spectral uncertainty, Spearman": _spearman(np.array(spectral), goal),
        "string entropy, Spearman": _spearman(np.array(plain), goal),
        "semantic entropy, mean absolute error (nats)": float(np.abs(np.array(semantic) - goal).mean()),
        "string entropy, mean absolute error (nats)": float(np.abs(np.array(plain) - goal).mean()),
    }, None


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
