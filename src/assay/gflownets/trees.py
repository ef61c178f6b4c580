"""Alignments and trees: reading FASTA, PHYLIP and NEXUS, Newick, Robinson-Foulds distances, greedy parsimony."""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from assay.gflownets.errors import BadAlignment, DuplicateTaxa, GFlowNetError

A, C, G, T, GAP = 1, 2, 4, 8, 16
CODES = {
    "A": A,
    "C": C,
    "G": G,
    "T": T,
    "U": T,
    "R": A | G,
    "Y": C | T,
    "S": C | G,
    "W": A | T,
    "K": G | T,
    "M": A | C,
    "B": C | G | T,
    "D": A | G | T,
    "H": A | C | T,
    "V": A | C | G,
    "N": 15,
    "?": 15,
    "X": 15,
}


class Alignment(NamedTuple):
    """Taxa and their Fitch sets (bits A 1, C 2, G 4, T 8, gap 16)."""

    names: tuple[str, ...]
    sets: Integer[np.ndarray, "taxa sites"]


def read_alignment(path: str | Path, *, gaps: str = "state") -> Alignment:
    """Read aligned nucleotides (FASTA, PHYLIP or NEXUS, by content; ``.gz`` too).

    Parameters
    ----------
    gaps : {"state", "missing"}
        A gap is a fifth state, or nothing known. ``N`` and ``?`` are any of ACGT, other letters the IUPAC ambiguities.

    Raises
    ------
    BadAlignment
        Unequal lengths, an unknown character (with record and column), fewer than two records.
    DuplicateTaxa
    """
    if gaps not in ("state", "missing"):
        raise GFlowNetError(f"gaps must be 'state' or 'missing', not {gaps!r}")
    raw = Path(path).read_bytes()
    text = (
        (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8", errors="replace").replace("\r", "\n")
    )
    head = text.lstrip()[:6].upper()
    if head.startswith(">"):
        records = _fasta(text)
    elif head == "#NEXUS":
        records = _nexus(text)
    else:
        records = _phylip(text)
    return alignment(records, gaps=gaps)


def alignment(records: Sequence[tuple[str, str]], *, gaps: str = "state") -> Alignment:
    """Named sequences as an `Alignment`; errors as in `read_alignment`."""
    if len(records) < 2:
        raise BadAlignment(f"an alignment needs at least two records, this one has {len(records)}")
    names = [name for name, _ in records]
    for name in names:
        if names.count(name) > 1:
            raise DuplicateTaxa(f"the name {name!r} occurs {names.count(name)} times; make names unique")
    length = len(records[0][1])
    codes = {**CODES, "-": GAP if gaps == "state" else 15, ".": GAP if gaps == "state" else 15}
    sets = np.zeros((len(records), length), np.uint8)
    for row, (name, letters) in enumerate(records):
        if len(letters) != length or not length:
            raise BadAlignment(
                f"record {row + 1} ({name!r}) has {len(letters)} columns, the first one has {length}; align the "
                f"sequences first"
            )
        for column, letter in enumerate(letters.upper()):
            if letter not in codes:
                raise BadAlignment(
                    f"record {row + 1} ({name!r}) holds {letter!r} in column {column + 1}, which is no nucleotide code"
                )
            sets[row, column] = codes[letter]
    return Alignment(tuple(names), sets)


def _fasta(text: str) -> list[tuple[str, str]]:
    records = []
    for part in text.split(">")[1:]:
        head, _, body = part.partition("\n")
        records.append((head.split()[0] if head.split() else "", "".join(body.split())))
    return records


def _phylip(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.split("\n") if line.strip()]
    counts = lines[0].split() if lines else []
    if len(counts) < 2 or not all(c.isdigit() for c in counts[:2]):
        raise BadAlignment("this is neither FASTA (>), NEXUS (#NEXUS) nor PHYLIP (two counts in the first line)")
    n, length = int(counts[0]), int(counts[1])
    found: list[list[str]] = []
    for line in lines[1:]:
        if len(found) < n and (
            not found or sum(map(len, found[-1][1:])) >= length or len(found) == 0 or " " in line.strip()
        ):
            name, *rest = line.split()
            if len(found) and sum(map(len, found[-1][1:])) < length and not _interleaved(lines, n):
                found[-1].append("".join(line.split()))
                continue
            found.append([name, "".join(rest)])
        elif len(found) < n:
            found[-1].append("".join(line.split()))
        else:  # interleaved blocks
            shortest = min(range(n), key=lambda i: sum(map(len, found[i][1:])))
            found[shortest].append("".join(line.split()))
    if len(found) != n:
        raise BadAlignment(f"the first line promises {n} records, {len(found)} were found")
    return [(name, "".join(parts)) for name, *parts in found]


def _interleaved(lines: list[str], n: int) -> bool:
    return (len(lines) - 1) % n == 0 and len(lines) - 1 > n


def _nexus(text: str) -> list[tuple[str, str]]:
    text = re.sub(r"\[[^\]]*\]", "", text)
    match = re.search(r"\bmatrix\b(.*?);", text, re.IGNORECASE | re.DOTALL)
    if match is None:
        raise BadAlignment("this NEXUS file has no MATRIX")
    found: dict[str, str] = {}
    for line in match.group(1).split("\n"):
        parts = re.match(r"\s*('(?:[^']|'')*'|\S+)\s+(.*)", line)
        if parts is not None:
            name = parts.group(1).strip("'").replace("''", "'")
            found[name] = found.get(name, "") + "".join(parts.group(2).split())
    return list(found.items())


def parse_newick(text: str, number: Mapping[str, int]) -> list[tuple[int, int]]:
    """Merges (slots i < j, children before parents) of a rooted binary tree; lengths and inner labels are ignored.

    Raises
    ------
    GFlowNetError
        If the tree is not binary, or names an unknown taxon or one twice.
    """
    tokens = re.findall(r"'(?:[^']|'')*'|[(),;]|:[^(),;]*|[^(),:;\s]+", text)
    merges: list[tuple[int, int]] = []
    stack: list[list[int]] = [[]]
    seen: set[int] = set()
    closed = False
    for token in tokens:
        if token == "(":
            stack.append([])
            closed = False
        elif token == ")":
            children = stack.pop()
            if len(children) != 2 or not stack:
                raise GFlowNetError(f"an inner node has {len(children)} children; only rooted binary trees can be read")
            i, j = sorted(children)
            merges.append((i, j))
            stack[-1].append(i)
            closed = True
        elif token in ",;":
            closed = False
        elif token.startswith(":") or closed:
            continue
        else:
            name = token[1:-1].replace("''", "'") if token.startswith("'") else token
            if name not in number:
                raise GFlowNetError(f"the tree names {name!r}, which is not in the alignment")
            if number[name] in seen:
                raise GFlowNetError(f"the tree names {name!r} twice")
            seen.add(number[name])
            stack[-1].append(number[name])
    return merges


def splits(newick: str, names: Sequence[str]) -> frozenset[frozenset[int]]:
    """Unrooted splits of a tree: for each inner edge the side without the first taxon."""
    number = {name: i for i, name in enumerate(names)}
    clade: dict[int, frozenset[int]] = {i: frozenset([i]) for i in range(len(names))}
    everyone = frozenset(range(len(names)))
    found = set()
    for i, j in parse_newick(newick, number):
        clade[i] = clade[i] | clade[j]
        side = clade[i] if 0 not in clade[i] else everyone - clade[i]
        if 1 < len(side) < len(names) - 1:
            found.add(side)
    return frozenset(found)


def robinson_foulds(a: str, b: str, names: Sequence[str]) -> int:
    """Number of splits that only one of two trees has (Robinson and Foulds 1981), unrooted.

    >>> robinson_foulds("(((a,b),c),(d,e));", "(((a,c),b),(d,e));", "abcde")
    2
    """
    return len(splits(a, names) ^ splits(b, names))


def parsimony(sets: Integer[np.ndarray, "taxa sites"], merges: Sequence[tuple[int, int]]) -> int:
    """Mutations of a tree given as merges of slots (Fitch 1971)."""
    slot = dict(enumerate(np.asarray(sets)))
    total = 0
    for i, j in merges:
        common = slot[i] & slot[j]
        total += int((common == 0).sum())
        slot[i] = np.where(common == 0, slot[i] | slot.pop(j), common)
    return total


def greedy_parsimony(
    sets: Integer[np.ndarray, "taxa sites"], rng: np.random.Generator | None = None
) -> tuple[int, list[tuple[int, int]]]:
    """Join the cheapest pair again and again; ties by the generator, or the first pair.

    Returns
    -------
    mutations : int
    merges : list of (int, int)
    """
    patterns, weights = np.unique(np.asarray(sets).T, axis=0, return_counts=True)
    slot = {i: patterns[:, i].copy() for i in range(patterns.shape[1])}

    def cost(i: int, j: int) -> int:
        return int(weights[(slot[i] & slot[j]) == 0].sum())

    price = {(i, j): cost(i, j) for i in slot for j in slot if i < j}
    total, merges = 0, []
    while len(slot) > 1:
        least = min(price.values())
        best = [pair for pair, value in price.items() if value == least]
        i, j = best[int(rng.integers(len(best)))] if rng is not None else best[0]
        common = slot[i] & slot[j]
        total += least
        merges.append((i, j))
        slot[i] = np.where(common == 0, slot[i] | slot[j], common)
        del slot[j]
        price = {pair: value for pair, value in price.items() if i not in pair and j not in pair}
        price.update({(min(i, k), max(i, k)): cost(i, k) for k in slot if k != i})
    return total, merges
