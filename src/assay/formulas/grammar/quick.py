"""A quick reader for the formulas that most cells hold; it gives up (None) on everything else.

One expression splits the text, and one loop with two stacks builds the tree that the full parser would build, without
a call for each level. It knows cells, ranges, plain sheets, table columns, functions, names, numbers, texts,
parentheses and all operators but those between references. What it does not know, and what is wrong, is left to the
full parser, which also says what is wrong; the tests hold the two against each other.
"""

from __future__ import annotations

import re

from assay.formulas.grammar.cells import MAX_ROW, column_number
from assay.formulas.grammar.nodes import (
    Binary,
    Bool,
    Call,
    Missing,
    Name,
    Node,
    Number,
    Paren,
    Postfix,
    Ref,
    String,
    StructuredRef,
    Unary,
)

_BLANKS = r"[ \t\r\n\xa0]*+"
_IDENT = r"[^\W\d][\w.?\\]*+"
_END = r"(?![\w.(\[!?\\])"
_COL, _ROW = r"\$?[A-Za-z]{1,3}+", r"\$?[0-9]{1,7}+"
_TOKEN = re.compile(
    # 1 operator, with the blanks after it
    rf"([-+*/^&=%,()]|<[>=]?|>=?){_BLANKS}"
    # 2 to 5: column and row of a cell, and of the other corner
    rf"|({_COL})({_ROW})(?::({_COL})({_ROW}){_END}|{_END})"
    # 6 identifier; 7 makes it a function or a sheet, 8 and 9 or 10 a column of a table
    rf"|({_IDENT})(?:(\({_BLANKS}|!)"
    r"|\[(?:(\[\#This\ Row\],)\[([^\[\]'\#@]++)\]|([^\[\]'\#@\s][^\[\]'\#@]*+))\]"
    rf"|{_END})"
    # 11 and 12: whole columns behind a dollar; 13 a text or a number; and all else, without a group
    rf"|(\$[A-Za-z]{{1,3}}+):(\$?[A-Za-z]{{1,3}}+){_END}"
    r'|("[^"]*+(?:""[^"]*+)*+"|(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[Ee][-+]?[0-9]+)?)'
    r"|[\s\S]"
)  # fmt: skip
_PREFIX = "prefix"
_BINDING = {
    "(": 0, "=": 20, "<>": 20, "<": 20, ">": 20, "<=": 20, ">=": 20, "&": 30, "+": 40, "-": 40, "*": 50, "/": 50,
    "^": 60, "%": 65, _PREFIX + "-": 70, _PREFIX + "+": 70,
}  # fmt: skip
_DEEPEST = 190
"""Open operators before the full parser takes over, which admits 200 (operators of rising binding add at most five)."""

_columns: dict[str, int] = {}


def _column(text: str) -> int:
    """Four times the number of a column such as ``$AB``, and 2 more where it is fixed; 0 where there is none."""
    number = column_number(text.lstrip("$"))
    _columns[text] = known = number and 4 * number + 2 * (text[0] == "$")
    return known


def quick_tree(text: str, start: int) -> Node | None:
    """The tree of a formula in A1 notation that begins at an offset, None where the full parser has to read it."""
    tokens = _TOKEN.findall(text, start)
    columns, bindings = _columns, _BINDING
    done: list[Node] = []
    operators = ["("]
    calls: list[Call | None] = [None]
    wanted = True
    sheet: str | None = None
    for op, col, row, col2, row2, word, mark, this_row, own, column, first, last, constant in tokens:
        if op:
            if sheet is not None:
                return None
            if wanted:
                if len(operators) > _DEEPEST:
                    return None
                if op == "(":
                    operators.append(op)
                    calls.append(None)
                    continue
                if op == "-" or op == "+":
                    operators.append(_PREFIX + op)
                    continue
                # an empty argument
                call = calls[-1]
                if call is None or operators[-1] != "(":
                    return None
                if op == ",":
                    call.args.append(Missing())
                elif op == ")":
                    if call.args:
                        call.args.append(Missing())
                    operators.pop()
                    done.append(call)
                    calls.pop()
                    wanted = False
                else:
                    return None
                continue
            binding = bindings[op] if op != "," and op != ")" else 1
            if not binding:
                return None
            top = operators[-1]
            while bindings[top] >= binding:
                right = done.pop()
                if bindings[top] == 70:
                    done.append(Unary(top[-1], right))
                else:
                    done[-1] = Binary(top, done[-1], right)
                operators.pop()
                top = operators[-1]
            if binding > 1:
                if op == "%":
                    done[-1] = Postfix(op, done[-1])
                else:
                    operators.append(op)
                    wanted = True
                continue
            call = calls[-1]
            if op == ",":
                if call is None:
                    return None
                call.args.append(done.pop())
                wanted = True
                continue
            if len(operators) == 1:
                return None
            operators.pop()
            calls.pop()
            if call is None:
                done[-1] = Paren(done[-1])
            else:
                call.args.append(done.pop())
                done.append(call)
            continue
        if not wanted:
            return None
        wanted = False
        if col:
            left = columns.get(col) or _column(col)
            if row[0] == "$":
                line = int(row[1:])
                left += 1
            else:
                line = int(row)
            if left < 4 or not 0 < line <= MAX_ROW:
                return None
            if col2:
                right_side = columns.get(col2) or _column(col2)
                if row2[0] == "$":
                    line2 = int(row2[1:])
                    right_side += 1
                else:
                    line2 = int(row2)
                if right_side < 4 or not 0 < line2 <= MAX_ROW:
                    return None
                done.append(
                    Ref("range", line, left >> 2, line2, right_side >> 2, (left & 3) + 4 * (right_side & 3), sheet)
                )
            else:
                number = left >> 2
                done.append(Ref("cell", line, number, line, number, (left & 3) * 5, sheet))
            sheet = None
        elif word:
            if mark and mark[0] == "(":
                if sheet is not None or len(operators) > _DEEPEST:
                    return None
                operators.append("(")
                calls.append(Call(word, []))
                wanted = True
            elif sheet is not None:
                return None
            elif mark:
                sheet = word
                wanted = True
            elif own:
                done.append(StructuredRef(word, ("#This Row",), own, None, f"[{this_row}[{own}]]"))
            elif column:
                done.append(StructuredRef(word, (), column, None, f"[{column}]"))
            else:
                truth = word.upper()
                done.append(Bool(truth == "TRUE") if truth in ("TRUE", "FALSE") else Name(word))
        elif constant:
            if sheet is not None:
                return None
            if constant[0] == '"':
                done.append(String(constant[1:-1].replace('""', '"')))
            else:
                done.append(Number(float(constant), constant))
        elif first:
            left, right_side = columns.get(first) or _column(first), columns.get(last) or _column(last)
            if not (left and right_side):
                return None
            done.append(Ref("cols", 0, left >> 2, 0, right_side >> 2, (left & 2) + 4 * (right_side & 2), sheet))
            sheet = None
        else:
            return None
    if wanted or len(calls) != 1:
        return None
    for top in reversed(operators[1:]):
        right = done.pop()
        if bindings[top] == 70:
            done.append(Unary(top[-1], right))
        else:
            done[-1] = Binary(top, done[-1], right)
    return done[0]
