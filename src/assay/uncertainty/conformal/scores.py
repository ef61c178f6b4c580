"""Conformity scores of every label: LAC, APS, RAPS, SAPS. Ranks count from 1.

With ``p_(1) >= p_(2) >= ...`` the sorted probabilities, r the rank of label y and u uniform, one number a row:

* LAC (Sadinle, Lei and Wasserman, JASA 2019): ``1 - p_y``.
* APS (Romano, Sesia and Candes, NeurIPS 2020): ``sum_{j < r} p_(j) + u p_(r)``.
* RAPS (Angelopoulos et al., ICLR 2021): ``APS + lam max(0, r - k_reg)``.
* SAPS (Huang et al., ICML 2024): ``u p_(1)`` for r = 1, else ``p_(1) + (r - 2 + u) lam``.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from assay.uncertainty.errors import UncertaintyError

SCORES = ("lac", "aps", "raps", "saps")


def label_scores(
    probs: Float[np.ndarray, "rows classes"], score: str, u: Float[np.ndarray, " rows"] | None = None, *,
    lam: float = 0.1, k_reg: int = 0,
) -> Float[np.ndarray, "rows classes"]:  # fmt: skip
    """The score of each label of each row; higher is stranger.

    Parameters
    ----------
    probs : float64[rows, classes]
    score : {"lac", "aps", "raps", "saps"}
    u : float64[rows], optional
        Randomisation, one number a row, shared by its labels; None is u = 1 (not randomised).
    lam, k_reg : float, int
        Penalty of a rank (RAPS, SAPS), and ranks without one (RAPS).

    Examples
    --------
    >>> label_scores(np.array([[0.5, 0.3, 0.2]]), "raps").round(6).tolist()
    [[0.6, 1.0, 1.3]]
    >>> label_scores(np.array([[0.5, 0.3, 0.2]]), "saps").round(6).tolist()
    [[0.5, 0.6, 0.7]]
    """
    if score not in SCORES:
        raise UncertaintyError(f"score is one of {', '.join(SCORES)}, not {score!r}")
    if score == "lac":
        return np.asarray(1 - probs)
    noise = np.ones((len(probs), 1)) if u is None else np.asarray(u)[:, None]
    order = np.argsort(-probs, axis=1, kind="stable")
    ordered = np.take_along_axis(probs, order, axis=1)
    rank = np.arange(1, probs.shape[1] + 1)
    if score == "saps":
        by_rank = np.where(rank == 1, noise * ordered[:, :1], ordered[:, :1] + (rank - 2 + noise) * lam)
    else:
        by_rank = np.cumsum(ordered, axis=1) - (1 - noise) * ordered
        if score == "raps":
            by_rank = by_rank + lam * np.maximum(0, rank - k_reg)
    out = np.empty_like(by_rank)
    np.put_along_axis(out, order, by_rank, axis=1)
    return out
