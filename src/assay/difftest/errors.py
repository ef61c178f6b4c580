"""Errors of the field, by the names that its documentation uses."""

from __future__ import annotations


class DiffTestError(ValueError):
    """Base of the errors that `assay.difftest` raises."""


class UnmappedName(DiffTestError):
    """A module or parameter of the candidate has no place in the reference; the message suggests the nearest."""


class AmbiguousName(DiffTestError):
    """Two tensors of one rank were mapped to one canonical name."""


class ShardSpecError(DiffTestError):
    """A shard specification cannot be read, or does not fit the tensor; the message names tensor, axis and sizes."""


class CoverageHole(DiffTestError):
    """The inputs leave a part untouched (a vocabulary shard, an expert, a mask), and ``strict`` was asked for."""


class ReplicaConflict(DiffTestError):
    """Copies that must be equal differ. A finding of `compare`; raised only where ``strict`` was asked for."""


class StepMismatch(DiffTestError):
    """Two traces differ in their steps, their number of micro-batches or their number of tokens."""


class NotComparable(DiffTestError):
    """Two traces started from different inputs or different weights, so that nothing after them says anything."""


class TraceCorrupt(DiffTestError):
    """A file of a trace is damaged or missing; the message names the file and, where known, the offset."""


class NondeterministicReference(DiffTestError):
    """The reference differs from itself on the same input; the message names the first tensor that does."""


class LaunchError(DiffTestError):
    """A process of the test bed raised, died or did not answer in time."""


class Undecided(DiffTestError):
    """A method looked at part of what it had to look at, and found nothing in it; the message says at how much."""
