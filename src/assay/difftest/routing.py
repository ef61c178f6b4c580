"""Discrete decisions: a correct run may flip a near tie, and only a near tie."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass
class Flips:
    """Choices that differ between two runs.

    Attributes
    ----------
    name : str
    legal : int
        Tokens whose choice differs where the reference's margin is within twice the tolerance of its logits.
    illegal : int
        Tokens whose choice differs although the margin is larger.
    margin : float
        Largest margin among the differing ones.
    """

    name: str
    legal: int
    illegal: int
    margin: float
    tokens: Tensor | None = field(default=None, repr=False)


def compare_choices(
    name: str, reference: Int[Tensor, "*tokens k"], candidate: Int[Tensor, "*tokens k"],
    logits: Float[Tensor, "*tokens e"], tolerance: float,
) -> Flips:  # fmt: skip
    """Compare chosen experts as sets.

    Parameters
    ----------
    name : str
    reference, candidate
        Chosen entries of each token.
    logits
        Of the reference.
    tolerance : float
        Relative tolerance of the logits; a token's absolute one is that times the root mean square of its logits.

    Examples
    --------
    The second token's third best is as good as its second, so the choice may flip; the first token's may not.

    >>> logits = torch.tensor([[3.0, 2.0, 0.0], [3.0, 1.0, 1.0]])
    >>> flips = compare_choices("chosen", torch.tensor([[0, 1], [0, 1]]), torch.tensor([[0, 2], [2, 0]]), logits, 1e-3)
    >>> flips.legal, flips.illegal
    (1, 1)
    """
    a, b = reference.sort(-1).values, candidate.sort(-1).values
    differs = (a != b).any(-1)
    k = reference.shape[-1]
    taken = logits.gather(-1, reference).amin(-1)
    # the margin that was crossed: worst choice of the reference against the best that the candidate took instead
    new = torch.where(
        (candidate.unsqueeze(-1) == reference.unsqueeze(-2)).any(-1), -torch.inf, logits.gather(-1, candidate)
    )
    margin = (taken - new.amax(-1)).masked_fill(~differs, 0.0)
    finite = logits.masked_fill(logits < -1e8, 0.0)
    allowed = 2 * tolerance * finite.square().mean(-1).sqrt()
    legal = differs & (margin <= allowed)
    illegal = differs & ~legal
    worst = float(margin[differs].max()) if bool(differs.any()) else 0.0
    assert k <= logits.shape[-1]
    return Flips(name, int(legal.sum()), int(illegal.sum()), worst, legal)
