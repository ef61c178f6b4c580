"""Counting tokens: an estimate by classes of characters, tiktoken, or a function of the user's."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from assay.formulas.errors import FormulaError

Counter = Callable[[str], int]
_PIECE = re.compile(r"[A-Za-z]+|[0-9]+|[^\x00-\x7f]+|[^\sA-Za-z0-9]|\n")


def byte_classes(text: str) -> int:
    """Estimated tokens: four letters, three digits or two other bytes a token, one for every sign and line break.

    >>> byte_classes("B2:B40 n 12,8..31\\n")
    13
    """
    total = 0
    for piece in _PIECE.findall(text):
        first = piece[0]
        if first.isascii():
            if first.isalpha():
                total += -(-len(piece) // 4)
            elif first.isdigit():
                total += -(-len(piece) // 3)
            else:
                total += 1
        else:
            total += -(-len(piece.encode()) // 2)
    return total


@lru_cache(maxsize=8)
def _tiktoken(name: str) -> Counter:
    try:
        import tiktoken
    except ImportError as error:
        raise FormulaError(f"the tokenizer tiktoken:{name} needs the package tiktoken: pip install tiktoken") from error
    try:
        encoding = tiktoken.get_encoding(name)
    except Exception as error:
        raise FormulaError(
            f"tiktoken cannot load {name!r} ({type(error).__name__}); its vocabulary is fetched from the network once "
            "and kept in TIKTOKEN_CACHE_DIR"
        ) from error
    return lambda text: len(encoding.encode(text, disallowed_special=()))


def counter(tokenizer: str | Counter) -> Counter:
    """The function that counts: ``bytes4`` (the estimate), ``tiktoken:<encoding>``, or a callable.

    Raises
    ------
    FormulaError
    """
    if callable(tokenizer):
        return tokenizer
    if tokenizer == "bytes4":
        return byte_classes
    if tokenizer.startswith("tiktoken:"):
        return _tiktoken(tokenizer.partition(":")[2])
    raise FormulaError(f"there is no tokenizer {tokenizer!r}; give bytes4, tiktoken:<encoding> or a function")
