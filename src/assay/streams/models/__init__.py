"""The models, one file each."""

from assay.streams.models.base import StreamModel, learn_many
from assay.streams.models.logistic import MaskedLogistic

__all__ = ["MaskedLogistic", "StreamModel", "learn_many"]
