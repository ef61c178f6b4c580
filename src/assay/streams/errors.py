"""Errors and warnings of the field, by the names that its documentation uses."""

from __future__ import annotations


class StreamError(ValueError):
    """Base of the errors that `assay.streams` raises on bad input."""


class UnknownFeatureValue(StreamError):
    """A feature value is infinite or not a number where a number is expected. NaN is absence, never an error."""


class LabelOutOfRange(StreamError):
    """A label is not one of the declared classes, or a binary model met a third class."""


class RegimeError(StreamError):
    """A regime was asked for something that it cannot make."""


class StateLimitExceeded(StreamError):
    """A model with ``on_limit="raise"`` met more features than ``max_features`` allows."""


class CheckpointMismatch(StreamError):
    """A checkpoint was written by another model, other parameters, another stream or another version."""


class NotCausal(StreamError):
    """A model's score at row t changed when rows after t changed."""


class SingleClassWarning(UserWarning):
    """A metric that needs two classes saw one; it is reported as NaN."""
