"""A quick key under which copies of one formula are equal, without building the tree.

It is used to group the formulas of a sheet; where two groups meet, canonical R1C1 text decides.
"""

from __future__ import annotations

import re
from functools import lru_cache

from assay.formulas.grammar.cells import column_number

_REFERENCE = re.compile(
    r"\"[^\"]*(?:\"\"[^\"]*)*\"|'[^']*(?:''[^']*)*'!|\[[^\]]*\]"
    r"|(?<![\w.\\])(\$?)([A-Za-z]{1,3})(\$?)([0-9]{1,7})(?![\w.(\[!?\\])"
    r"|(?<![\w.\\$:])(\$?)([A-Za-z]{1,3}):(\$?)([A-Za-z]{1,3})(?![\w.(\[!?\\])"
    r"|(?<![\w.\\$:])(\$?)([0-9]{1,7}):(\$?)([0-9]{1,7})(?![\w.(\[!?\\])"
)
_BLANKS = re.compile(r"[ \t\r\n]+(?=[-+*/^&=<>,;:(){}%])|(?<=[-+*/^&=<>,;:(){}%])[ \t\r\n]+|^\s+|\s+$")


def relative_key(text: str, row: int, col: int) -> str:
    """Key of a formula in a cell.

    >>> relative_key("B2*$C$1", 2, 4) == relative_key("B3*$C$1", 3, 4) != relative_key("B2*$C$1", 3, 4)
    True
    """

    def relative(match: re.Match[str]) -> str:
        d1, letters, d2, digits, d3, col1, d4, col2, d5, row1, d6, row2 = match.groups()
        if letters is not None:
            number = column_number(letters)
            if not number:
                return match[0]
            down = f"\x01{digits}" if d2 else f"\x02{int(digits) - row}"
            return down + (f"\x03{number}" if d1 else f"\x04{number - col}")
        if col1 is not None:
            one, two = column_number(col1), column_number(col2)
            return (f"\x03{one}" if d3 else f"\x04{one - col}") + ":" + (f"\x03{two}" if d4 else f"\x04{two - col}")
        if row1 is not None:
            first = f"\x01{row1}" if d5 else f"\x02{int(row1) - row}"
            return first + ":" + (f"\x01{row2}" if d6 else f"\x02{int(row2) - row}")
        return match[0]

    if " " in text or "\n" in text:
        text = _unspaced(text)
    return _REFERENCE.sub(relative, text)


_TEXT = re.compile(r"(\"[^\"]*(?:\"\"[^\"]*)*\"|'[^']*(?:''[^']*)*'!|\[[^\]]*\])")


@lru_cache(maxsize=4096)
def _unspaced(text: str) -> str:
    """Layout around operators removed, texts and names left alone."""
    parts = _TEXT.split(text)
    return "".join(part if i % 2 else _BLANKS.sub("", part) for i, part in enumerate(parts))
