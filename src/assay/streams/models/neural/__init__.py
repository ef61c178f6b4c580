"""Neural models for rows whose features come and go (needs torch)."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("the neural stream models need torch: pip install 'assay[streams-neural]'") from error

from assay.streams.models.neural.aux_drop import AuxDropODL, AuxDropOGD
from assay.streams.models.neural.aux_net import AuxNet
from assay.streams.models.neural.hi2 import HI2
from assay.streams.models.neural.packet_lstm import PacketLSTM

__all__ = ["HI2", "AuxDropODL", "AuxDropOGD", "AuxNet", "PacketLSTM"]
