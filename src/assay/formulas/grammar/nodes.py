"""Nodes of the formula tree. References hold integers (absolute positions from 1) and what was fixed by ``$``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


class Node:
    """Base of all nodes."""

    __slots__ = ()

    def children(self) -> tuple[Node, ...]:
        """Nodes below this one, from left to right."""
        return ()

    def walk(self) -> Iterator[Node]:
        """This node and all below it, from left to right."""
        stack: list[Node] = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children()))


@dataclass(slots=True)
class Number(Node):
    """A number, with the text that it was written as."""

    value: float
    text: str = field(compare=False)


@dataclass(slots=True)
class String(Node):
    """A text, without its quotes."""

    value: str


@dataclass(slots=True)
class Bool(Node):
    """TRUE or FALSE."""

    value: bool


@dataclass(slots=True)
class ErrorLiteral(Node):
    """``#N/A`` and its kind; ``Sheet1!#REF!`` has a sheet."""

    kind: str
    sheet: str | None = None


@dataclass(slots=True)
class Missing(Node):
    """An argument left empty."""


@dataclass(slots=True)
class Ref(Node):
    """A cell, a range, whole columns or whole rows.

    Attributes
    ----------
    kind : {"cell", "range", "cols", "rows"}
    row1, col1, row2, col2 : int
        From 1; 0 where there is none (rows of whole columns, columns of whole rows). A cell has both corners equal.
    fixed : int
        Bits 1, 2, 4, 8: row1, col1, row2, col2 stand behind a ``$``.
    sheet, last_sheet, book : str or None
        ``last_sheet`` for 3-D references ``Jan:Mar!A1``; ``book`` for ``[1]Data!A1``.
    """

    kind: str
    row1: int
    col1: int
    row2: int
    col2: int
    fixed: int = 0
    sheet: str | None = None
    last_sheet: str | None = None
    book: str | None = None

    def box(self) -> tuple[int, int, int, int]:
        """Smallest row, smallest column, largest row, largest column; open ends are 1 and the limit of the grid."""
        row1, row2 = (1, 1_048_576) if self.kind == "cols" else sorted((self.row1, self.row2))
        col1, col2 = (1, 16_384) if self.kind == "rows" else sorted((self.col1, self.col2))
        return row1, col1, row2, col2


@dataclass(slots=True)
class Name(Node):
    """A defined name, a table name that stands alone, or a variable of LET and LAMBDA."""

    name: str
    sheet: str | None = None
    book: str | None = None


@dataclass(slots=True)
class StructuredRef(Node):
    """``Table[[#This Row],[a]:[b]]``.

    Attributes
    ----------
    table : str or None
        None inside the table itself.
    items : tuple of str
        ``#All``, ``#Data``, ``#Headers``, ``#Totals``, ``#This Row`` (``@`` is read as the last).
    first, last : str or None
        Columns, without escapes.
    text : str
        As written.
    """

    table: str | None
    items: tuple[str, ...]
    first: str | None
    last: str | None
    text: str = field(compare=False)
    book: str | None = None


@dataclass(slots=True)
class Call(Node):
    """A function with its arguments; the name as written."""

    name: str
    args: list[Node]

    def children(self) -> tuple[Node, ...]:
        return tuple(self.args)

    @property
    def function(self) -> str:
        """Upper case, without the prefixes of the file format.

        >>> Call("_xlfn._xlws.Filter", []).function
        'FILTER'
        """
        return plain_function(self.name)


@dataclass(slots=True)
class Apply(Node):
    """A value called as a function: ``LAMBDA(x, x + 1)(2)``."""

    target: Node
    args: list[Node]

    def children(self) -> tuple[Node, ...]:
        return (self.target, *self.args)


@dataclass(slots=True)
class Unary(Node):
    """``-x``, ``+x`` or ``@x``."""

    op: str
    operand: Node

    def children(self) -> tuple[Node, ...]:
        return (self.operand,)


@dataclass(slots=True)
class Postfix(Node):
    """``x%`` or the spill range ``A1#``."""

    op: str
    operand: Node

    def children(self) -> tuple[Node, ...]:
        return (self.operand,)


@dataclass(slots=True)
class Binary(Node):
    """An operator between two operands; ``" "`` is intersection, ``","`` is union."""

    op: str
    left: Node
    right: Node

    def children(self) -> tuple[Node, ...]:
        return (self.left, self.right)


@dataclass(slots=True)
class Paren(Node):
    """Parentheses as written."""

    inner: Node

    def children(self) -> tuple[Node, ...]:
        return (self.inner,)


@dataclass(slots=True)
class Array(Node):
    """An array constant, by rows."""

    rows: list[list[Node]]

    def children(self) -> tuple[Node, ...]:
        return tuple(x for row in self.rows for x in row)


def plain_function(name: str) -> str:
    """Name of a function in upper case without ``_xlfn.``, ``_xlws.`` and the like."""
    plain = name.upper()
    while plain.startswith(("_XLFN.", "_XLWS.", "_XLUDF.", "_XLPM.")):
        plain = plain[plain.index(".") + 1 :]
    return plain
