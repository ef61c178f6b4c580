"""A Hoeffding tree whose rows may lack the feature that a node splits on.

Domingos and Hulten, "Mining high-speed data streams" (KDD 2000), for the tree; Quinlan, "C4.5: Programs for Machine
Learning" (1993), for absent values: the gain of a split counts by the share of rows that have the feature, and a row
without it goes down both branches, weighted by the shares of the rows that had it.
"""

from assay.streams.models.hoeffding.model import MaskedHoeffdingTree

__all__ = ["MaskedHoeffdingTree"]
