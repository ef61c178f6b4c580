"""What a model's output means: per-row loss, the number that is explained, and predictions.

Classification with logits ``z``: loss ``-log p_y``; explained number the margin ``z_y - logsumexp_{j != y} z_j =
log(p / (1 - p))``, because the log-probability saturates at 0 and loses the order of rows. Regression: loss ``||f -
y||^2 / 2``, explained number the prediction. Language: labels (rows, length) with -100 where a token does not count,
shifted by one inside; loss the sum of ``-log p`` over the tokens that count.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from assay.attribution.errors import AttributionError, LabelError

TASKS = ("classification", "regression", "language")
TARGETS = ("margin", "logit", "log_prob", "loss", "prediction")
IGNORE = -100


def default_target(task: str) -> str:
    """The number that is explained where nobody says."""
    return {"classification": "margin", "regression": "prediction", "language": "log_prob"}[task]


def guess_task(logits: Tensor, y: Tensor) -> str:
    """Whole-number labels mean classification (language for logits of three dimensions), others regression."""
    if y.dtype.is_floating_point:
        return "regression"
    return "language" if logits.ndim == 3 else "classification"


def two_columns(logits: Tensor) -> Tensor:
    """A single logit per row (binary classification) as two columns ``(0, z)``."""
    if logits.ndim == 1:
        logits = logits.unsqueeze(-1)
    if logits.shape[-1] == 1:
        return torch.cat([torch.zeros_like(logits), logits], -1)
    return logits


def _is(logits: Tensor, y: Tensor) -> Tensor:
    return torch.arange(logits.shape[-1], device=logits.device) == y.unsqueeze(-1)


def _picked(values: Tensor, y: Tensor) -> Tensor:
    return values.gather(-1, y.unsqueeze(-1)).squeeze(-1)


def margin(logits: Float[Tensor, "... classes"], y: Tensor) -> Float[Tensor, ...]:
    """``log(p_y / (1 - p_y))``.

    Examples
    --------
    >>> p = torch.tensor([[0.9, 0.06, 0.04]])
    >>> round(float(margin(p.log(), torch.tensor([0]))), 3)
    2.197
    """
    logits = two_columns(logits)
    others = logits.masked_fill(_is(logits, y), -torch.inf)
    return _picked(logits, y) - others.logsumexp(-1)


def loss_rows(logits: Tensor, y: Tensor, task: str) -> Tensor:
    """Loss of each row (rows,)."""
    if task == "classification":
        return -_picked(two_columns(logits).log_softmax(-1), y)
    if task == "regression":
        error = logits.reshape(logits.shape[0], -1) - y.reshape(logits.shape[0], -1)
        return 0.5 * (error**2).sum(-1)
    shifted, labels = logits[..., :-1, :], y[..., 1:]
    counts = labels != IGNORE
    return -(_picked(shifted.log_softmax(-1), labels.clamp(min=0)) * counts).sum(-1)


def target_rows(logits: Tensor, y: Tensor, task: str, target: str) -> Tensor:
    """The explained number of each row (rows,); ``target="loss"`` means the negative loss, so that larger is better."""
    if target in ("loss", "log_prob"):
        if target == "log_prob" and task == "regression":
            raise AttributionError("a regression has no log-probability; use target='prediction' or 'loss'")
        return -loss_rows(logits, y, task)
    if target == "prediction":
        if task != "regression":
            raise AttributionError(f"target='prediction' is for regression, this is {task}")
        return logits.reshape(logits.shape[0], -1).sum(-1)
    if task != "classification":
        raise AttributionError(f"target={target!r} is for classification, this is {task}")
    return margin(logits, y) if target == "margin" else _picked(two_columns(logits), y)


def predictions(logits: Tensor, task: str) -> Tensor:
    """Predicted class (rows,), predicted value, or the most likely next tokens (rows, length)."""
    if task == "regression":
        return logits.reshape(len(logits), -1).squeeze(-1)
    return two_columns(logits).argmax(-1) if task == "classification" else logits.argmax(-1)


def check_labels(logits: Tensor, y: Tensor, task: str) -> None:
    """Raise if labels cannot be those of this output.

    Raises
    ------
    LabelError
    """
    if task == "classification":
        classes = max(logits.shape[-1], 2) if logits.ndim > 1 else 2
        if y.dtype.is_floating_point or y.ndim != 1:
            raise LabelError(f"classes must be whole numbers in one dimension, not {y.dtype} of shape {tuple(y.shape)}")
        bad = torch.nonzero((y < 0) | (y >= classes)).flatten()
        if len(bad):
            raise LabelError(
                f"row {int(bad[0])} has label {int(y[bad[0]])}, but the model has {classes} classes "
                f"(0 to {classes - 1})"
            )
    elif task == "language" and (y.ndim != 2 or y.dtype.is_floating_point):
        raise LabelError(f"labels of a language model are token numbers (rows, length), not shape {tuple(y.shape)}")


def output_gradients(logits: Tensor, y: Tensor, task: str, target: str) -> Tensor:
    """Gradient of the explained number (or, for ``target="-loss"``, of the negative loss) with respect to the
    logits."""
    z = logits.detach().requires_grad_()
    with torch.enable_grad():
        total = (-loss_rows(z, y, task) if target == "-loss" else target_rows(z, y, task, target)).sum()
    (gradient,) = torch.autograd.grad(total, z)
    return gradient
