"""The distributed model: the same network in tensor, sequence, context and expert parallel parts, in chunks.

Written apart from the reference, so that the two share no code that could hide a fault in both.
"""

from __future__ import annotations

from assay.difftest.testbed.parallel.chunk import Chunk
from assay.difftest.testbed.parallel.job import Job, LocalMicro
from assay.difftest.testbed.parallel.stages import Stages

__all__ = ["Chunk", "Job", "LocalMicro", "Stages"]
