"""Graph models: RCD with attention over maps of relations, ORCDF over response graphs. They need torch; memory is
linear in edges.
"""

from assay.diagnosis.graph.attention import GraphAttention, segment_softmax
from assay.diagnosis.graph.orcdf import ORCDF
from assay.diagnosis.graph.rcd import RCD
from assay.diagnosis.graph.sparse import Pattern

__all__ = ["ORCDF", "RCD", "GraphAttention", "Pattern", "segment_softmax"]
