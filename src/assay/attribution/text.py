"""Words to numbers: a word tokeniser whose vocabulary is built from the user's own texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from assay.attribution.errors import AttributionError

PAD, UNKNOWN, START, END = "<pad>", "<unk>", "<s>", "</s>"
SPECIAL = (PAD, UNKNOWN, START, END)
_WORD = re.compile(r"\d+|[^\W\d_]+(?:['’-][^\W\d_]+)*|[^\w\s]", re.UNICODE)


def words_of(text: str) -> list[str]:
    """Words, numbers and signs, in lower case.

    >>> words_of("Free entry, call 08452 now!")
    ['free', 'entry', ',', 'call', '08452', 'now', '!']
    """
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """Words by number; 0 is padding, 1 unknown, 2 and 3 start and end (unless made without special words)."""

    words: tuple[str, ...]
    index: dict[str, int] = field(repr=False)

    @classmethod
    def build(
        cls, texts: Iterable[str], size: int | None = None, *, least: int = 1, special: Sequence[str] = SPECIAL
    ) -> Vocabulary:
        """The ``size`` most frequent words of the texts (equal counts in alphabetical order).

        >>> Vocabulary.build(["a b b", "b c"], size=2, special=()).words
        ('b', 'a')
        """
        counts = Counter(word for text in texts for word in words_of(text))
        ranked = sorted((w for w, c in counts.items() if c >= least), key=lambda w: (-counts[w], w))
        words = (*special, *(ranked if size is None else ranked[:size]))
        if len(words) == len(special):
            raise AttributionError("the texts hold no word")
        return cls(words, {word: i for i, word in enumerate(words)})

    def __len__(self) -> int:
        return len(self.words)

    def counts(self, texts: Sequence[str]) -> Float[np.ndarray, "n words"]:
        """Bag of words: how often each word of the vocabulary is in each text."""
        out = np.zeros((len(texts), len(self)), dtype=np.float32)
        for row, text in zip(out, texts, strict=True):
            for word in words_of(text):
                if word in self.index:
                    row[self.index[word]] += 1
        return out

    def encode(self, text: str, *, start: bool = False, end: bool = False) -> list[int]:
        """Word numbers of a text."""
        unknown = self.index.get(UNKNOWN)
        if unknown is None:
            raise AttributionError("this vocabulary has no special words; build it with them to encode sequences")
        body = [self.index.get(word, unknown) for word in words_of(text)]
        return [self.index[START]] * start + body + [self.index[END]] * end

    def encode_all(
        self, texts: Sequence[str], length: int, *, start: bool = False, end: bool = False
    ) -> Int[np.ndarray, "n length"]:
        """Word numbers (n, length), cut or padded with 0 at the end."""
        out = np.zeros((len(texts), length), dtype=np.int64)
        for row, text in zip(out, texts, strict=True):
            codes = self.encode(text, start=start, end=end)[:length]
            row[: len(codes)] = codes
        return out

    def decode(self, codes: Iterable[int]) -> str:
        """Words of numbers, without the special ones.

        >>> v = Vocabulary.build(["paris is a city"])
        >>> v.decode(v.encode("Paris is a city", start=True, end=True))
        'paris is a city'
        """
        return " ".join(self.words[int(c)] for c in codes if self.words[int(c)] not in SPECIAL)
