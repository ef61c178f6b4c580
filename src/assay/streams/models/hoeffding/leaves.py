"""What a leaf predicts: its class shares, or naive Bayes on the features present."""

from __future__ import annotations

import math

import numpy as np

from assay.streams.jit import njit
from assay.streams.models.hoeffding.observers import add_gaussian, add_histogram
from assay.streams.models.hoeffding.state import BAYES, SHARES


@njit
def _class_shares(leaf, out, tree):
    total = 0.0
    for c in range(len(out)):
        total += tree.stats[leaf, c]
    for c in range(len(out)):
        out[c] = tree.stats[leaf, c] / total if total > 0.0 else 0.0


@njit
def _naive_bayes(slots, values, leaf, out, tree, settings):
    """Posterior of the classes met in the leaf, from the features of the row that the leaf has seen."""
    classes = len(out)
    total = 0.0
    for c in range(classes):
        total += tree.stats[leaf, c]
    for c in range(classes):
        weight = tree.stats[leaf, c]
        out[c] = math.log(weight / total) if weight > 0.0 else -np.inf
    for k in range(len(slots)):
        cells = tree.cells[leaf, slots[k]]
        if settings.histogram:
            add_histogram(cells, values[k], out, settings.bins)
        else:
            add_gaussian(cells, values[k], out)
    highest = -np.inf
    for c in range(classes):
        highest = max(highest, out[c])
    total = 0.0
    for c in range(classes):
        out[c] = math.exp(out[c] - highest) if highest > -np.inf else 0.0
        total += out[c]
    for c in range(classes):
        out[c] /= max(total, 1.0)


@njit
def leaf_shares(slots, values, leaf, tree, settings, room):
    """What the leaf predicts, and fills ``room.shares`` and ``room.bayes``."""
    _class_shares(leaf, room.shares, tree)
    if settings.leaf == SHARES:
        return room.shares
    _naive_bayes(slots, values, leaf, room.bayes, tree, settings)
    if settings.leaf == BAYES or tree.correct[leaf, 1] >= tree.correct[leaf, 0]:
        return room.bayes
    return room.shares


@njit
def leaf_weight(leaf, tree, settings):
    """Weight of the rows of a leaf."""
    if settings.regression:
        return tree.stats[leaf, 0]
    total = 0.0
    for c in range(tree.stats.shape[1]):
        total += tree.stats[leaf, c]
    return total
