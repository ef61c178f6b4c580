"""Formulas as trees: parse, print, A1 and R1C1, canonical form, sketches.

>>> f = parse("=SUM(B2:B9)*Rate", at="D10")
>>> f.to_r1c1(), f.sketch()
('SUM(R[-8]C[-2]:R[-1]C[-2])*Rate', 'SUM(COLRANGE)*NAME')
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.formulas.grammar.cells import (
    MAX_COL,
    MAX_ROW,
    CellRef,
    column_name,
    column_number,
    parse_address,
    parse_area,
    quote_sheet,
)
from assay.formulas.grammar.nodes import Call, Name, Node, Ref, StructuredRef
from assay.formulas.grammar.parser import parse_tree
from assay.formulas.grammar.printer import a1, canonical_text, need_at, r1c1, sketch_text, text_of

__all__ = [
    "MAX_COL", "MAX_ROW", "CellRef", "Formula", "Ref", "column_name", "column_number", "parse", "parse_address",
    "parse_area", "parse_r1c1", "quote_sheet", "same_formula",
]  # fmt: skip


@dataclass(slots=True)
class Formula:
    """A parsed formula and the cell that it stands in.

    Attributes
    ----------
    tree : Node
    at : CellRef or None
    """

    tree: Node
    at: CellRef | None = None

    def to_a1(self) -> str:
        """In A1 notation, without ``=``, layout removed."""
        return text_of(self.tree, a1)

    def to_r1c1(self) -> str:
        """In R1C1 notation.

        Raises
        ------
        CellRefError
            Without the cell that the formula stands in.
        """
        at = need_at(self.at)
        return text_of(self.tree, lambda ref: r1c1(ref, at))

    def canonical(self, dollars: bool = True) -> str:
        """The form in which formulas are compared; ``dollars=False`` looks at positions only.

        >>> parse("=_xlfn.concat( (B2:A1) , 1.50 )").canonical()
        'CONCAT(A1:B2,1.5)'
        """
        return canonical_text(self.tree, self.at.sheet if self.at else "", lambda ref: a1(ref, dollars))

    def canonical_r1c1(self) -> str:
        """The canonical form in R1C1 notation: equal for copies of one formula."""
        at = need_at(self.at)
        return canonical_text(self.tree, at.sheet, lambda ref: r1c1(ref, at))

    def sketch(self) -> str:
        """The formula with typed holes (CELL, ROWRANGE, COLRANGE, BLOCK, COL, ROW, NAME, TABLECOL, NUM, STR)."""
        return sketch_text(self.tree)

    def references(self) -> list[Ref]:
        """Cells, ranges, whole rows and columns, from left to right."""
        return [node for node in self.tree.walk() if isinstance(node, Ref)]

    def structured(self) -> list[StructuredRef]:
        """References to tables."""
        return [node for node in self.tree.walk() if isinstance(node, StructuredRef)]

    def names(self) -> list[Name]:
        """Defined names and variables."""
        return [node for node in self.tree.walk() if isinstance(node, Name)]

    def functions(self) -> list[str]:
        """Function names in upper case, without prefixes, from left to right."""
        return [node.function for node in self.tree.walk() if isinstance(node, Call)]

    def moved(self, to: CellRef) -> Formula:
        """The formula as it reads after copying it to another cell.

        Raises
        ------
        CellRefError
            If a reference would leave the grid.

        Examples
        --------
        >>> parse("=B2*C$1", at="D2").moved(parse_address("D9")).to_a1()
        'B9*C$1'
        """
        return Formula(parse_tree(self.to_r1c1(), to, r1c1=True), to)


def _where(at: str | CellRef | tuple[int, int] | None) -> CellRef | None:
    if at is None or isinstance(at, CellRef):
        return at
    return parse_address(at) if isinstance(at, str) else CellRef("", *at)


def parse(text: str, at: str | CellRef | tuple[int, int] | None = None) -> Formula:
    """Read a formula in A1 notation.

    Parameters
    ----------
    text : str
        With or without ``=``. Separator is the comma, decimals have a point (as in the file format).
    at : str, CellRef or (row, column), optional
        The cell that it stands in; R1C1 notation needs it.

    Raises
    ------
    FormulaSyntaxError
        With ``position`` and ``expected``.
    CellRefError

    Examples
    --------
    >>> parse("=-2^2").tree                                             # the minus binds first: 4
    Binary(op='^', left=Unary(op='-', operand=Number(value=2.0, text='2')), right=Number(value=2.0, text='2'))
    """
    return Formula(parse_tree(text, None), _where(at))


def parse_r1c1(text: str, at: str | CellRef | tuple[int, int]) -> Formula:
    """Read a formula in R1C1 notation, seen from a cell.

    >>> parse_r1c1("R[-2]C1*2", at="C3").to_a1()
    '$A1*2'
    """
    where = _where(at)
    return Formula(parse_tree(text, where, r1c1=True), where)


def same_formula(a: str, b: str, at: CellRef, dollars: bool = True) -> bool:
    """Whether two texts are the same formula in canonical form; one that cannot be read is equal to none."""
    from assay.formulas.errors import FormulaError

    try:
        return parse(a, at).canonical(dollars) == parse(b, at).canonical(dollars)
    except FormulaError:
        return False
