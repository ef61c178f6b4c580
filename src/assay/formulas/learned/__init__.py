"""The sketch-and-pointer transformer: features, grammar, network, decoding, training."""

from assay.formulas.learned.model import PointerConfig, PointerNet
from assay.formulas.learned.system import SketchPointer
from assay.formulas.learned.training import train_pointer, training_tasks

__all__ = ["PointerConfig", "PointerNet", "SketchPointer", "train_pointer", "training_tasks"]
