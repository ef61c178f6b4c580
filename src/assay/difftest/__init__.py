"""Find silent bugs in distributed training by comparing it with a trusted reference."""
from assay.difftest.check import compare
from assay.difftest.collect import Tracer, mark, trace
from assay.difftest.store import Trace
