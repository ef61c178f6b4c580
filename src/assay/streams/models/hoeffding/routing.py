"""The way of a row down the tree, divided where it lacks the feature of a node."""

from __future__ import annotations

from assay.streams.jit import njit

LIGHTEST = 0.01  # a row is not divided into parts lighter than this


@njit
def route(slots, values, learn, tree, settings, room):
    """Leaves that the row reaches, with its weight in each; returns their number."""
    for k in range(len(slots)):
        room.cell[slots[k]] = k
    room.nodes[0] = 0
    room.parts[0] = 1.0
    waiting = 1
    reached = 0
    while waiting > 0:
        waiting -= 1
        node = room.nodes[waiting]
        weight = room.parts[waiting]
        f = tree.feature[node]
        if f < 0:
            room.leaves[reached] = node
            room.weights[reached] = weight
            reached += 1
            continue
        k = room.cell[f]
        if k >= 0:
            side = 0 if values[k] <= tree.threshold[node] else 1
            if learn:
                tree.observed[node, side] += weight
            room.nodes[waiting] = tree.children[node, side]
            room.parts[waiting] = weight
            waiting += 1
            continue
        share = tree.observed[node, 0] / (tree.observed[node, 0] + tree.observed[node, 1])
        if not settings.branches or weight * min(share, 1.0 - share) < LIGHTEST:
            share = 1.0 if share >= 0.5 else 0.0
        for side in range(1, -1, -1):
            part = weight * (share if side == 0 else 1.0 - share)
            if part > 0.0:
                room.nodes[waiting] = tree.children[node, side]
                room.parts[waiting] = part
                waiting += 1
    for k in range(len(slots)):
        room.cell[slots[k]] = -1
    return reached
