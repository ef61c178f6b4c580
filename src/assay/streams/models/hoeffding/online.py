"""Scoring a row, learning from it, and both row by row."""

from __future__ import annotations

import numpy as np

from assay.streams.jit import njit
from assay.streams.models.hoeffding.growth import try_split
from assay.streams.models.hoeffding.leaves import leaf_shares, leaf_weight
from assay.streams.models.hoeffding.observers import observe_gaussian, observe_histogram
from assay.streams.models.hoeffding.routing import route
from assay.streams.models.hoeffding.state import ADAPTIVE, FEATURES, LEAVES


@njit
def predict(slots, values, scores, tree, settings, room):
    """Scores of a row, from all leaves that it reaches."""
    for c in range(len(scores)):
        scores[c] = 0.0
    reached = route(slots, values, False, tree, settings, room)
    for i in range(reached):
        leaf = tree.leaf[room.leaves[i]]
        if settings.regression:
            if tree.stats[leaf, 0] > 0.0:
                scores[0] += room.weights[i] * (tree.shift[0] + tree.stats[leaf, 1] / tree.stats[leaf, 0])
        else:
            shares = leaf_shares(slots, values, leaf, tree, settings, room)
            for c in range(len(scores)):
                scores[c] += room.weights[i] * shares[c]


@njit
def update(slots, values, target, seen, tree, settings, room):
    """Learn from a row in all leaves that it reaches; then those that are due try to split."""
    for k in range(len(slots)):
        if seen[slots[k]] == 0:
            tree.order[tree.clock[FEATURES]] = slots[k]
            tree.clock[FEATURES] += 1
    if settings.regression:
        if np.isnan(tree.shift[0]):
            tree.shift[0] = target
        target = target - tree.shift[0]
    reached = route(slots, values, True, tree, settings, room)
    for i in range(reached):
        leaf = tree.leaf[room.leaves[i]]
        weight = room.weights[i]
        if settings.regression:
            tree.stats[leaf, 0] += weight
            tree.stats[leaf, 1] += weight * target
            tree.stats[leaf, 2] += weight * target * target
        else:
            c = int(target)
            if settings.leaf == ADAPTIVE:
                leaf_shares(slots, values, leaf, tree, settings, room)
                if np.argmax(room.shares) == c:
                    tree.correct[leaf, 0] += weight
                if np.argmax(room.bayes) == c:
                    tree.correct[leaf, 1] += weight
            tree.stats[leaf, c] += weight
        for k in range(len(slots)):
            cells = tree.cells[leaf, slots[k]]
            if settings.histogram:
                observe_histogram(cells, values[k], target, weight, settings)
            else:
                observe_gaussian(cells, values[k], int(target), weight)
    for i in range(reached):
        leaf = tree.leaf[room.leaves[i]]
        if leaf_weight(leaf, tree, settings) >= tree.next[leaf] and tree.clock[LEAVES] < settings.max_leaves:
            try_split(room.leaves[i], tree, settings, room)


@njit
def run_rows(start, indptr, slots, values, targets, scores, seen, tree, settings, room):
    """Score and learn from row ``start`` on; returns the row before which the tree needs room, or the end."""
    n = len(indptr) - 1
    for t in range(start, n):
        if tree.clock[LEAVES] * 2 > len(tree.stats) and len(tree.stats) < settings.max_leaves:
            return t
        s = slots[indptr[t] : indptr[t + 1]]
        v = values[indptr[t] : indptr[t + 1]]
        # a slot not learned yet is empty in every leaf, so it needs no skipping
        predict(s, v, scores[t], tree, settings, room)
        if targets[t] == targets[t]:
            update(s, v, targets[t], seen, tree, settings, room)
            for k in range(len(s)):
                seen[s[k]] += 1
    return n
