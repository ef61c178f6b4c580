"""Errors of the field, by the names that its documentation uses."""

from __future__ import annotations


class AttributionError(ValueError):
    """Base of the errors that `assay.attribution` raises on bad input."""


class ShapeMismatch(AttributionError):
    """Arrays that belong together have different numbers of rows, or a matrix is not (test rows, training rows)."""


class LabelError(AttributionError):
    """Labels do not fit: out of range, of the wrong kind, or marked rows that are not all of the class they must be."""


class NoEligibleSamples(AttributionError):
    """Every test row was filtered out, so there is nothing to average; a metric never answers 0.0 for that."""


class ConstantOutput(NoEligibleSamples):
    """A rank correlation is undefined on every test row, because outputs or scores do not vary."""


class NonFiniteAttribution(AttributionError):
    """Scores are NaN or infinite; the message names the rows and what the method knows of the cause."""


class UnsupportedModel(AttributionError):
    """A method cannot take this model; the message names the layer or the kind of estimator."""


class CheckpointMismatch(AttributionError):
    """A saved file belongs to another model, other data or other settings."""


class NotFitted(AttributionError):
    """``attribute`` was called before ``fit``."""


class DataFormatError(AttributionError):
    """A file is not in the format that its reader expects; the message names the file and the place."""


class BudgetExceeded(AttributionError):
    """A run would take longer than it may; the message has the estimate and what makes it shorter."""


class ConstantOutputWarning(UserWarning):
    """Test rows were dropped because a rank correlation is undefined on them; the result counts them."""
