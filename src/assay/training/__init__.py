"""The one torch training loop of the library, on top of `accelerate`; it knows no field.

>>> import torch
>>> from assay.training import TrainConfig, seeded, tensor_batches, train
>>> x = torch.linspace(-1, 1, 64)[:, None]
>>> model = seeded(0, lambda: torch.nn.Linear(1, 1))
>>> loss = lambda net, batch, step: torch.nn.functional.mse_loss(net(batch[0]), batch[1])
>>> result = train(model, loss, tensor_batches(x, 3 * x + 1, batch_size=16), TrainConfig(epochs=100, lr=0.05, seed=0))
>>> round(model.weight.item(), 2), round(model.bias.item(), 2), result.stopped
(3.0, 1.0, 'epochs')
"""

from assay.training.batches import tensor_batches
from assay.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from assay.training.config import TrainConfig
from assay.training.loop import Progress, TrainingDiverged, TrainResult, train
from assay.training.seeding import reset_parameters, seeded

__all__ = [
    "CheckpointError",
    "Progress",
    "TrainConfig",
    "TrainResult",
    "TrainingDiverged",
    "load_checkpoint",
    "reset_parameters",
    "save_checkpoint",
    "seeded",
    "tensor_batches",
    "train",
]
