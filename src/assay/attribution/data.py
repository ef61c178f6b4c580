"""Data sets: what needs no network, the SMS collection, generators with known artefacts and closed-form truth."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from assay.attribution.errors import AttributionError, DataFormatError
from assay.core.data import DataSource

SMS = DataSource(
    "attribution", "sms_spam_collection.tsv.gz",
    "", "b060341ac6f21d6baa9bf2197bc3d0e770f578af2993c532c006073731a16b9b",
    licence="CC BY 4.0", citation="Almeida, Gomez Hidalgo and Yamakami, SMS Spam Collection v.1, UCI (2011)",
    homepage="https://archive.ics.uci.edu/dataset/228/sms+spam+collection",
    also=("SMSSpamCollection",),
)  # fmt: skip
SOURCES = {SMS.filename: SMS}


@dataclass(frozen=True)
class Split:
    """Training and test rows with what is known of them.

    Attributes
    ----------
    X_train, y_train, X_test, y_test : arrays
    kind : {"table", "image", "text", "tokens"}
    facts : dict
        Ground truth by name: ``mislabeled``, ``artifact_train``, ``subclass_train``, ``duplicates``, ``entailment`` ...
    shown_train, shown_test : list of str
        Rows as a reader wants to see them (texts); empty where they are images or tables.
    """

    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    kind: str = "table"
    name: str = ""
    classes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    shown_train: tuple[str, ...] = ()
    shown_test: tuple[str, ...] = ()

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(max(self.y_train.max(), self.y_test.max())) + 1

    def changed(self, **parts: Any) -> Split:
        """A copy with other parts."""
        return replace(self, **parts)


def split_rows(
    X: Any, y: Any, *, test: int | float = 0.2, seed: int = 0, kind: str = "table", name: str = "",
    shown: Any = (), classes: Any = (), limit: int | None = None,
) -> Split:  # fmt: skip
    """Rows in random order (``torch.randperm`` of the seed), the last of them for the test."""
    import torch

    n = len(X)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy()
    size = test if isinstance(test, int) else round(test * n)
    if limit is not None:
        order = order[: limit + size]
    train, held = order[: len(order) - size], order[len(order) - size :]
    X, y = np.asarray(X), np.asarray(y)
    texts = list(shown)
    return Split(
        X[train], y[train], X[held], y[held], kind, name, tuple(map(str, classes)), {},
        tuple(texts[i] for i in train) if texts else (), tuple(texts[i] for i in held) if texts else (),
    )  # fmt: skip


def load_digits_split(seed: int = 0, *, train: int | None = None, test: int = 360) -> Split:
    """Optical digits (8 x 8, ten classes) in 0..1; with the defaults 1437 rows for training and 360 for the test.

    Examples
    --------
    >>> data = load_digits_split()
    >>> data.X_train.shape, data.X_test.shape
    ((1437, 64), (360, 64))
    """
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return split_rows(
        (X / 16).astype(np.float32),
        y,
        test=test,
        seed=seed,
        kind="image",
        name="digits",
        classes=range(10),
        limit=train,
    )


def load_table_split(name: str, seed: int = 0, *, test: float = 0.25) -> Split:
    """A table of scikit-learn, standardised: ``breast_cancer``, ``wine``, ``iris`` or ``diabetes`` (regression)."""
    import sklearn.datasets

    known = ("breast_cancer", "wine", "iris", "diabetes")
    if name not in known:
        raise AttributionError(f"no table is named {name!r}; there are {', '.join(known)}")
    bunch = getattr(sklearn.datasets, f"load_{name}")()
    X = (bunch.data - bunch.data.mean(0)) / bunch.data.std(0)
    y = bunch.target
    if name == "diabetes":
        y = ((y - y.mean()) / y.std()).astype(np.float32)
    return split_rows(
        X.astype(np.float32), y, test=test, seed=seed, name=name, classes=getattr(bunch, "target_names",
            ()) if name != "diabetes" else (),
    )  # fmt: skip


def load_sms() -> tuple[list[str], Int[np.ndarray, " n"]]:
    """The 5574 messages and their labels (1 = spam).

    Raises
    ------
    assay.core.errors.DataError
        If the file is not on this machine; the message says where to put it.
    """
    raw = SMS.fetch().read_bytes()
    text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
    rows = list(csv.reader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE))
    if rows and rows[0][0] == "Label":
        rows = rows[1:]
    bad = next((i for i, row in enumerate(rows) if len(row) != 2 or row[0] not in ("ham", "spam")), None)
    if bad is not None:
        raise DataFormatError(f"line {bad + 1} of the SMS collection is not 'ham' or 'spam', a tab and a text")
    return [row[1] for row in rows], np.array([row[0] == "spam" for row in rows], dtype=np.int64)


def load_sms_split(
    seed: int = 0, *, train: int = 1115, test: int = 600, words: int = 1000, tokens: int | None = None,
    keep_duplicates: bool = False,
) -> Split:  # fmt: skip
    """Messages as a bag of words (term counts) or, with ``tokens``, as sequences of word numbers of that length.

    The vocabulary is that of the training rows. Texts that occur on both sides are left out of the test, unless
    ``keep_duplicates``; then ``facts["duplicates"]`` says which training rows have the same text.
    """
    from assay.attribution.text import Vocabulary

    texts, labels = load_sms()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(texts))
    chosen = order[:train]
    rest = order[train:]
    inside: dict[str, list[int]] = {}
    for position, i in enumerate(chosen):
        inside.setdefault(texts[i].strip().lower(), []).append(position)
    twins = [i for i in rest if texts[i].strip().lower() in inside]
    if keep_duplicates:
        held = np.array(twins[:test], dtype=np.int64)
    else:
        gone = set(twins)
        held = np.array([i for i in rest if i not in gone][:test], dtype=np.int64)
    train_texts, test_texts = [texts[i] for i in chosen], [texts[i] for i in held]
    if tokens is None:
        vocabulary = Vocabulary.build(train_texts, size=words, special=())
        X, Xt = (vocabulary.counts(part) for part in (train_texts, test_texts))
        kind = "text"
    else:
        vocabulary = Vocabulary.build(train_texts, size=words)
        X, Xt = (vocabulary.encode_all(part, tokens) for part in (train_texts, test_texts))
        kind = "tokens"
    facts: dict[str, Any] = {"words": len(vocabulary)}
    if keep_duplicates:
        marks = np.zeros((len(held), len(chosen)), dtype=bool)
        for t, text in enumerate(test_texts):
            marks[t, inside[text.strip().lower()]] = True
        facts["duplicates"] = marks
    return Split(
        X, labels[chosen], Xt, labels[held], kind, "sms", ("ham", "spam"), facts, tuple(train_texts), tuple(test_texts)
    )


# -- generators ------------------------------------------------------------------------------------------------------

SHAPES = ("disc", "square", "cross", "ring", "stripes", "diamond")


def make_shapes(
    n: int = 1200, classes: int = 4, *, side: int = 16, noise: float = 0.25, seed: int = 0, channels: int = 1
) -> tuple[Float[np.ndarray, "n c h w"], Int[np.ndarray, " n"]]:
    """Gray images (n, channels, side, side) of shapes at random places and sizes, with noise.

    Parameters
    ----------
    classes : int
        Of disc, square, cross, ring, stripes, diamond.

    Examples
    --------
    >>> X, y = make_shapes(10, 3)
    >>> X.shape, y.tolist()[:3]
    ((10, 1, 16, 16), [2, 1, 1])
    """
    if not 2 <= classes <= len(SHAPES):
        raise AttributionError(f"classes is from 2 to {len(SHAPES)}, not {classes}")
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    grid = np.arange(side)
    images = np.zeros((n, channels, side, side), dtype=np.float32)
    for i, label in enumerate(y):
        size = rng.uniform(0.2, 0.32) * side
        cy, cx = rng.uniform(size, side - 1 - size, 2)
        dy, dx = np.abs(grid - cy)[:, None], np.abs(grid - cx)[None]
        far = np.hypot(dy, dx)
        mask = {
            "disc": far <= size,
            "square": np.maximum(dy, dx) <= 0.85 * size,
            "cross": (np.minimum(dy, dx) <= 0.3 * size) & (np.maximum(dy, dx) <= size),
            "ring": (far <= size) & (far >= 0.6 * size),
            "stripes": (np.maximum(dy, dx) <= size) & ((grid[:, None] + 0 * grid[None]) % 3 == 0),
            "diamond": dy + dx <= 1.1 * size,
        }[SHAPES[label]]
        images[i] = mask * rng.uniform(0.6, 1.0)
    images += noise * rng.normal(size=images.shape).astype(np.float32)
    return np.clip(images, 0, 1).astype(np.float32), y.astype(np.int64)


def load_shapes_split(seed: int = 0, *, train: int = 900, test: int = 300, classes: int = 4) -> Split:
    """Generated shapes (16 x 16), flattened by the networks themselves."""
    X, y = make_shapes(train + test, classes, seed=seed)
    return Split(X[:train], y[:train], X[train:], y[train:], "image", "shapes", SHAPES[:classes])


def make_linear(
    n: int = 200, p: int = 5, noise: float = 0.5, seed: int = 0
) -> tuple[Float[np.ndarray, "n p"], Float[np.ndarray, " n"], Float[np.ndarray, " p"]]:
    """``y = X w + noise`` with its weights; exact leave-one-out effects of a ridge fit follow in closed form
    (`ExactLOO`)."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    w = rng.normal(size=p)
    return X, X @ w + noise * rng.normal(size=n), w


# -- corruptions -----------------------------------------------------------------------------------------------------


def flip_labels(
    y: Any, p: float = 0.1, *, n_classes: int | None = None, groups: Any = None, seed: int = 0
) -> tuple[Int[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Give a share p of the rows another label at random; returns the labels and which were changed.

    Parameters
    ----------
    groups : sequence of sequences of int, optional
        Classes that are confused with each other only; default any.

    Examples
    --------
    >>> labels, bad = flip_labels(np.arange(10) % 2, 0.3)
    >>> int(bad.sum()), bool((labels[bad] != (np.arange(10) % 2)[bad]).all())
    (3, True)
    """
    if not 0 < p < 1:
        raise AttributionError(f"p lies between 0 and 1, not {p}")
    labels = np.array(y, dtype=np.int64)
    classes = n_classes or int(labels.max()) + 1
    rng = np.random.default_rng(seed)
    bad = np.zeros(len(labels), dtype=bool)
    bad[rng.choice(len(labels), max(1, round(p * len(labels))), replace=False)] = True
    for i in np.flatnonzero(bad):
        family = next((g for g in groups if labels[i] in g), None) if groups is not None else range(classes)
        others = [c for c in (family or range(classes)) if c != labels[i]]
        if not others:
            bad[i] = False
            continue
        labels[i] = rng.choice(others)
    return labels, bad


def group_classes(y: Any, n_groups: int = 2, *, seed: int = 0) -> tuple[Int[np.ndarray, " n"], dict[int, int]]:
    """Merge classes at random into superclasses of about equal size; returns the superclasses and the map."""
    labels = np.asarray(y)
    classes = np.unique(labels)
    if not 2 <= n_groups < len(classes):
        raise AttributionError(f"n_groups is at least 2 and below {len(classes)} (classes), not {n_groups}")
    order = np.random.default_rng(seed).permutation(classes)
    mapping = {int(c): i % n_groups for i, c in enumerate(order)}
    return np.array([mapping[int(c)] for c in labels], dtype=np.int64), mapping


def white_square(x: np.ndarray, size: int = 2) -> np.ndarray:
    """A bright square in the lower right corner of images (.., h, w), or of flattened square images."""
    out = np.array(x, copy=True)
    if out.ndim == 2:
        side = round(out.shape[1] ** 0.5)
        if side * side != out.shape[1]:
            raise AttributionError(f"rows of {out.shape[1]} numbers are not square images; give another artefact")
        out.reshape(len(out), side, side)[:, -size:, -size:] = 1.0
    else:
        out[..., -size:, -size:] = 1.0
    return out


def add_artifact(
    X: Any,
    y: Any,
    fn: Callable[[np.ndarray], np.ndarray] = white_square,
    p: float = 0.85,
    cls: int = 0,
    *,
    seed: int = 0,
) -> tuple[np.ndarray, Bool[np.ndarray, " n"]]:
    """Put an artefact on a share p of the rows of class ``cls``; returns the rows and which carry it."""
    labels = np.asarray(y)
    rows = np.flatnonzero(labels == cls)
    if not len(rows):
        raise AttributionError(f"no row is of class {cls}")
    chosen = np.random.default_rng(seed).choice(rows, max(1, round(p * len(rows))), replace=False)
    out = np.array(X, copy=True)
    out[chosen] = fn(out[chosen])
    marked = np.zeros(len(labels), dtype=bool)
    marked[chosen] = True
    return out, marked


def mix_source(
    X: Any, y: Any, X_other: Any, label: int, *, seed: int = 0
) -> tuple[np.ndarray, Int[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Mix rows of another source, all with one label, among the rows; returns rows, labels and which are foreign."""
    X, other = np.asarray(X), np.asarray(X_other)
    if X.shape[1:] != other.shape[1:]:
        raise AttributionError(f"rows have shape {X.shape[1:]}, those of the other source {other.shape[1:]}")
    order = np.random.default_rng(seed).permutation(len(X) + len(other))
    rows = np.concatenate([X, other.astype(X.dtype)])[order]
    labels = np.concatenate([np.asarray(y), np.full(len(other), label)])[order]
    foreign = np.concatenate([np.zeros(len(X), dtype=bool), np.ones(len(other), dtype=bool)])[order]
    return rows, labels.astype(np.int64), foreign


def duplicate_rows(
    X: Any, p: float = 0.1, *, seed: int = 0, noise: float = 0.0
) -> tuple[np.ndarray, Int[np.ndarray, " m"]]:
    """Copies (with noise, if asked for) of a share p of the rows, and which rows they copy: test rows with a known
    source."""
    X = np.asarray(X)
    rng = np.random.default_rng(seed)
    source = rng.choice(len(X), max(1, round(p * len(X))), replace=False)
    copies = X[source].copy()
    if noise:
        copies = (copies + noise * rng.normal(size=copies.shape)).astype(X.dtype)
    return copies, source
