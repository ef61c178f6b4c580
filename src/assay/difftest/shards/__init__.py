"""How a rank's tensor lies in the whole one: specifications, cutting, and merging with a coverage count.

Every specification comes down to one index vector a dimension (or one flat range), so that one merge serves all.
"""

from __future__ import annotations

from assay.difftest.shards.dtensor import spec_of
from assay.difftest.shards.index import Index
from assay.difftest.shards.merge import Merged, Piece, Problem, merge
from assay.difftest.shards.placements import (
    Coords,
    Experts,
    Flat,
    Grouped,
    Interleave,
    Partial,
    Placement,
    Replicate,
    Shard,
    ZigZag,
)
from assay.difftest.shards.spec import ShardSpec

__all__ = [
    "Coords",
    "Experts",
    "Flat",
    "Grouped",
    "Index",
    "Interleave",
    "Merged",
    "Partial",
    "Piece",
    "Placement",
    "Problem",
    "Replicate",
    "Shard",
    "ShardSpec",
    "ZigZag",
    "merge",
    "spec_of",
]
