"""Errors and warnings of the field, by the names that its documentation uses."""

from __future__ import annotations

from collections.abc import Iterable


class UncertaintyError(ValueError):
    """Base of the errors that `assay.uncertainty` raises on bad input."""


class NotADistribution(UncertaintyError):
    """A row of probabilities is negative, not finite or does not sum to one; the message names the row and its sum."""


class AmbiguousAxis(UncertaintyError):
    """The axis of the members was not named, and more than one axis could be it."""


class EmptyCredalSet(UncertaintyError):
    """No distribution lies within the bounds: the lower ones sum to more than one, or the upper ones to less."""


class TargetShape(UncertaintyError):
    """Labels were given where distributions are needed, the other way round, or for another number of rows or
    classes."""


class NotSupported(UncertaintyError):
    """A measure is not defined for a representation; the message names those that are.

    Parameters
    ----------
    measure, representation : str
    works : iterable of str
        Measures that are defined for that representation.
    """

    def __init__(self, measure: str, representation: str, works: Iterable[str] = (), reason: str = "") -> None:
        known = ", ".join(works)
        text = f"the measure {measure!r} is not defined for {representation}"
        text += f": {reason}" if reason else ""
        super().__init__(text + (f"; use one of {known}" if known else ""))


class ClassMissingInCalibration(UncertaintyError):
    """A class (or group) has no calibration row, so no threshold of its own can be set."""


class NotFitted(UncertaintyError):
    """A prediction was asked for before `fit`."""


class TooFewCalibration(UserWarning):
    """There are too few calibration rows for the level asked for; the set is then infinite (all classes)."""


class FallbackWarning(UserWarning):
    """A method lacks the notion of uncertainty that was asked for, and the named next one is used."""


class MemberDropped(UserWarning):
    """A member of an ensemble did not reach its goal within its budget and is left out."""


class PriorRetuned(UserWarning):
    """The prior of a Laplace approximation is no longer the one that the weights were fitted with."""
