"""DynFo: a dynamic forest of decision stumps over whatever features come.

Schreckenberger, Bartelt and Stuckenschmidt, "Dynamic Forest for Learning from Data Streams with Varying Feature Spaces"
(CoopIS 2022).
"""

from assay.streams.models.dynfo.model import DynFo

__all__ = ["DynFo"]
