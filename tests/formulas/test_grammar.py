"""The formula layer beyond the numbered checks."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.formulas import CellRef, CellRefError, FormulaSyntaxError, parse, parse_address, parse_area, parse_r1c1
from assay.formulas.grammar import column_name, column_number, quote_sheet, same_formula
from assay.formulas.grammar.classes import relative_key
from assay.formulas.grammar.nodes import (
    Apply,
    Array,
    Binary,
    Call,
    ErrorLiteral,
    Missing,
    Name,
    Paren,
    Postfix,
    Ref,
    StructuredRef,
    Unary,
)
from assay.formulas.grammar.parser import full_tree
from assay.formulas.grammar.quick import quick_tree

AT = CellRef("S", 10, 5)


@pytest.mark.parametrize(
    "text",
    [
        "SUM(Sheet1:Sheet3!A1)",
        "'Q1 data:Q4 data'!B2",
        "[1]Data!A1",
        "'[2]My Data'!$A$1:B2",
        "[0]!Name",
        "'C:\\dir\\[book.xlsx]S'!A1",
        "T[[#This Row],[a]:[b]]",
        "T[@Qty]*2",
        "\\_Prime.1[calc='#*'#]",
        "T[#Totals]",
        '{1,2;-3,"a"}',
        "#REF!",
        "Sheet1!#REF!",
        "#REF!A1",
        "SUM(A1#)",
        "A1#:B2",
        "@A1:A10",
        "_xlfn.LET(_xlpm.x,1,_xlpm.x+1)",
        "LAMBDA(x,x+1)(3)",
        "A:A",
        "$1:3",
        "A1:OFFSET(A1,1,0)",
        "SUM((A1,B1),C1)",
        "A1:C3 B2:D4",
        "IF(A1,,)",
        "-A1%",
        "--A1",
        "+A1",
        "LOG10(2)",
        '"a""b"&C1',
        "1E+3*.5",
        "A1<>B1",
        "TRUE()",
        "TRUE",
        "Übersicht!A1",
        "'it''s'!A1",
        "SUM(INDEX(A:A,1):B2)",
    ],
)
def test_everything_prints_as_it_was(text):
    read = parse(text, AT)
    assert read.to_a1() == text
    assert parse(read.to_a1(), AT).tree == read.tree
    assert parse_r1c1(read.to_r1c1(), AT).tree == read.tree
    assert parse(read.canonical(), AT).canonical() == read.canonical()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("A1 B1", Binary),
        ("T[a]", StructuredRef),
        ("{1}", Array),
        ("f(1)(2)", Apply),
        ("(A1)", Paren),
        ("5%", Postfix),
        ("@A1", Unary),
        ("Rate", Name),
        ("#N/A", ErrorLiteral),
        ("R1", Ref),
        ("LOG10", Ref),
        ("ABCD1", Name),
        ("XFE1", Name),
    ],
)
def test_kinds_of_nodes(text, kind):
    assert isinstance(parse(text).tree, kind)


def test_three_dimensions_and_corners():
    ref = parse("SUM(Jan:Mar!$B$2:C9)").references()[0]
    assert (ref.sheet, ref.last_sheet, ref.kind, ref.fixed) == ("Jan", "Mar", "range", 3)
    assert (ref.row1, ref.col1, ref.row2, ref.col2) == (2, 2, 9, 3)
    assert parse("SUM(A:$C)").references()[0].fixed == 8
    assert parse("SUM(5:$7)").references()[0].box() == (5, 1, 7, 16_384)


def test_commas_separate_arguments_and_join_only_in_their_own_parentheses():
    call = parse("SUM((A1,B1),C1,)").tree
    assert isinstance(call, Call) and len(call.args) == 3 and isinstance(call.args[2], Missing)
    assert call.args[0].inner.op == ","


def test_canonical_form():
    same = [
        ("=sum(b2:a1)", "SUM(A1:B2)"),
        ("((A1))+(B1*C1)", "A1+B1*C1"),
        ("1.50+2e2", "1.5+200"),
        ("_xlfn.XLOOKUP(A1,B:B,C:C)", "XLOOKUP(A1,B:B,C:C)"),
        ("(A1+B1)*C1", "(A1+B1)*C1"),
        ("A1-(B1-C1)", "A1-(B1-C1)"),
        ("(A1-B1)-C1", "A1-B1-C1"),
        ("-(2^2)", "-(2^2)"),
        ("(-2)^2", "-2^2"),
        ("t[[#this row],[a b]]", "T[[#THIS ROW],[A B]]"),
        ("$B$2:A1", "A1:$B$2"),
    ]
    for text, wanted in same:
        assert parse(text, AT).canonical() == wanted, text
    assert parse("S!A1", AT).canonical() == "A1"
    assert parse("$A$1").canonical(dollars=False) == parse("A1").canonical(dollars=False)
    assert not same_formula("A1+B1", "B1+A1", AT)
    assert not same_formula("A1+", "A1+", AT)


def test_sketch():
    assert parse('IF(SUM(A1:A9)>2,B1:D1,"x")+C1:D4+A:A+Rate+T[a]').sketch() == (
        "IF(SUM(COLRANGE)>NUM,ROWRANGE,STR)+BLOCK+COL+NAME+TABLECOL"
    )


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("=SUM(A1", 7),
        ("=A1+", 4),
        ("=)", 1),
        ("=1 2", 3),
        ("=A1!", 4),
        ("={1,A1}", 4),
        ("={1,2;3}", 7),
        ('="abc', 1),
        ("=A1~", 3),
    ],
)
def test_syntax_errors_say_where_and_what(text, position):
    with pytest.raises(FormulaSyntaxError) as caught:
        parse(text)
    assert caught.value.position == position or abs(caught.value.position - position) <= 1
    assert caught.value.expected and str(caught.value.position) in str(caught.value)


def test_addresses():
    assert str(parse_address("$B$3", "My S")) == "'My S'!B3"
    assert parse_area("D40:C10") == (CellRef("", 10, 3), CellRef("", 40, 4))
    for bad in ("A0", "A1048577", "XFE1", "1A", "", "A1:B2!"):
        with pytest.raises(CellRefError):
            parse_address(bad)
    with pytest.raises(CellRefError):
        parse("=A1:A1048577")
    with pytest.raises(CellRefError):
        parse("=A1").to_r1c1()
    with pytest.raises(CellRefError):
        parse_r1c1("R[-5]C", "A3")
    assert quote_sheet("R1C1") == "'R1C1'" and quote_sheet("2024") == "'2024'"


def test_nesting_and_length_are_bounded():
    assert parse("(" * 150 + "1" + ")" * 150)
    for deep in ("(" * 5000 + "1" + ")" * 5000, "-" * 5000 + "1", "SUM(" * 3000 + "1" + ")" * 3000, "A1" * 40_000):
        with pytest.raises(FormulaSyntaxError):
            parse(deep)


_cell = st.builds(
    lambda d1, c, d2, r: f"{d1}{column_name(c)}{d2}{r}",
    st.sampled_from(["", "$"]),
    st.integers(1, 16384),
    st.sampled_from(["", "$"]),
    st.integers(1, 1_048_576),
)
_leaf = st.one_of(
    _cell,
    st.integers(0, 10**6).map(str),
    st.text(string.ascii_letters + ' "', max_size=6).map(lambda s: '"' + s.replace('"', '""') + '"'),
    st.sampled_from(["TRUE", "Rate", "T[a]", "Data!B2", "'a b'!C3:D4", "#N/A"]),
)
_tree = st.recursive(
    _leaf,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "^", "&", "=", "<>", "<="]), inner).map("".join),
        inner.map(lambda x: f"({x})"),
        inner.map(lambda x: f"-{x}"),
        st.lists(inner, min_size=1, max_size=3).map(lambda xs: f"SUM({','.join(xs)})"),
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(_tree, st.integers(1, 1_048_576), st.integers(1, 16_384))
def test_any_formula_goes_to_r1c1_and_back(text, row, col):
    at = CellRef("S", row, col)
    read = parse(text, at)
    assert read.to_a1() == text
    assert parse_r1c1(read.to_r1c1(), at).tree == read.tree
    canonical = parse(read.canonical(), at)
    assert canonical.canonical() == read.canonical()


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("A1$:(),;{}[]!'\"#@%^&*-+=<> .TRC\\\n"), max_size=30))
def test_any_text_is_a_formula_or_a_named_error(text):
    try:
        read = parse(text, AT)
    except (FormulaSyntaxError, CellRefError):
        return
    assert parse(read.to_a1(), AT).tree == read.tree


_FRAGMENTS = [
    "A1", "$B$2", "A1:B2", "a:b", "$A:C", "1:3", "Sheet1!", "'x y'!", "T[a]", "T[[#This Row],[b c]]", "T[ a]", "[@a]",
    "SUM(", "LOG10(", "F (", "(", ")", ",", "+", "-", "*", "^", "&", "<=", "=", "%", "#", "@", "{1,2}", "2.5", ".5",
    "1E3", "1.", '"a"', '""""', "TRUE", "Rate", "x.y", "#REF!", " ", "\n", "XFE1", "A0", "A01", "A1048577", "A1B2", "!",
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.one_of(_tree, st.lists(st.sampled_from(_FRAGMENTS), min_size=1, max_size=9).map("".join)))
def test_the_quick_reader_builds_the_tree_of_the_full_one_or_gives_up(text):
    quick = quick_tree(text, 0)
    if quick is not None:
        assert repr(quick) == repr(full_tree(text))


def test_the_quick_reader_knows_what_most_cells_hold():
    for text in ("$A5*I$2", "-SUM(A1:B2, 3)%^2", 'IF(T[[#This Row],[a]]=List!$B$3,F(,),"x""")', "V(Q!$A:$N,TRUE)>=(x)"):
        quick = quick_tree("=" + text, 1)
        assert quick is not None and repr(quick) == repr(full_tree(text))
    for text in ("A1:B2:C3", "SUM(A1 B1)", "#REF!", "{1}", "A1#", "@A1", "F(1", "1+", "A0", "(A1,B2)", "F()(1)", "A1)"):
        assert quick_tree(text, 0) is None


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 16384))
def test_columns(col):
    assert column_number(column_name(col)) == col


@pytest.mark.parametrize(
    "text", ["B2*$C$1", "SUM(B$2:B9)", "A:A", "$1:2", '"A1"&B2', "'A1'!B2", "Sheet1!B2+T[A1]", "LOG10(B2)"]
)
def test_the_quick_key_agrees_with_copies(text):
    one, two = CellRef("S", 12, 4), CellRef("S", 15, 6)
    copy = parse(text, one).moved(two).to_a1()
    assert relative_key(text, one.row, one.col) == relative_key(copy, two.row, two.col)
