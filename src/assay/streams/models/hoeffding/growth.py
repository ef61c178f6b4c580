"""The Hoeffding bound, and the leaf that becomes a node."""

from __future__ import annotations

import math

from assay.streams.jit import njit
from assay.streams.models.hoeffding.leaves import leaf_weight
from assay.streams.models.hoeffding.merit import copy, find_threshold, side_weight
from assay.streams.models.hoeffding.observers import totals
from assay.streams.models.hoeffding.state import FEATURES, LEAVES, NODES


@njit
def try_split(node, tree, settings, room):
    """Split the leaf at a node if the bound says that the best feature is."""
    leaf = tree.leaf[node]
    stats = tree.stats[leaf]
    total = leaf_weight(leaf, tree, settings)
    tree.next[leaf] = total + settings.grace
    spread = 1.0
    if not settings.regression:
        met = 0
        for c in range(len(stats)):
            if stats[c] > 0.0:
                met += 1
        if met < 2:
            return
        spread = math.log2(met)
    best_merit = 0.0
    second_merit = 0.0  # "no split" competes too
    best_feature = -1
    best_threshold = 0.0
    for i in range(tree.clock[FEATURES]):
        f = tree.order[i]
        merit, threshold = find_threshold(tree.cells[leaf, f], total, settings, room)
        if merit > best_merit:
            second_merit = best_merit
            best_merit = merit
            best_feature = f
            best_threshold = threshold
            copy(room.shares, room.best)
        elif merit > second_merit:
            second_merit = merit
    bound = spread * math.sqrt(settings.log_delta / (2.0 * total))
    if best_feature < 0 or (best_merit - second_merit <= bound and bound >= settings.tau):
        return

    # the leaf becomes a node; its left child takes over its row, the right child gets the next one
    totals(tree.cells[leaf, best_feature], room.right, settings)
    left = room.best
    right = room.right
    for c in range(len(left)):
        right[c] -= left[c]
    left_weight = side_weight(left, settings)
    right_weight = side_weight(right, settings)
    share = left_weight / (left_weight + right_weight)
    tree.feature[node] = best_feature
    tree.threshold[node] = best_threshold
    tree.observed[node, 0] = left_weight
    tree.observed[node, 1] = right_weight
    other = tree.clock[LEAVES]
    first = tree.clock[NODES]
    tree.clock[LEAVES] += 1
    tree.clock[NODES] += 2
    tree.children[node, 0] = first
    tree.children[node, 1] = first + 1
    tree.leaf[first] = leaf
    tree.leaf[first + 1] = other
    for c in range(len(left)):
        absent = stats[c] - left[c] - right[c]
        tree.stats[other, c] = right[c] + (1.0 - share) * absent
        stats[c] = left[c] + share * absent
    for row in (leaf, other):
        for i in range(tree.clock[FEATURES]):
            cells = tree.cells[row, tree.order[i]]
            for k in range(len(cells)):
                cells[k] = 0.0
        tree.correct[row, 0] = 0.0
        tree.correct[row, 1] = 0.0
        tree.next[row] = leaf_weight(row, tree, settings) + settings.grace
