"""Sets of distributions (credal) and sets of outcomes (conformal)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.uncertainty.errors import EmptyCredalSet, NotSupported, UncertaintyError
from assay.uncertainty.representations.base import Representation, positive
from assay.uncertainty.simplex import as_probabilities, blocks

if TYPE_CHECKING:
    import pandas as pd


SCORES = ("kl", "inner", "wasserstein")


class Intervals(Representation):
    """Probability intervals: all distributions with ``lower <= p <= upper``; arrays ``(..., K)``.

    Raises
    ------
    EmptyCredalSet
        If some row has no distribution within its bounds.

    Examples
    --------
    >>> Intervals([[0.0, 0.5, 0.1]], [[1.0, 0.8, 0.3]]).reachable().upper.round(3).tolist()
    [[0.4, 0.8, 0.3]]
    """

    def __init__(self, lower: ArrayLike, upper: ArrayLike) -> None:
        self.lower, self.upper = np.broadcast_arrays(
            np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)
        )
        k = self.lower.shape[-1]
        low, high = self.lower.reshape(-1, k), self.upper.reshape(-1, k)
        clean = True
        for part in blocks(len(low), k):  # in blocks, so that memory maps stay what they are
            clean = self._check(low[part], high[part], part.start) and clean
        if not clean:
            self.lower, self.upper = np.clip(self.lower, 0, 1), np.clip(np.maximum(self.upper, self.lower), 0, 1)

    def _check(self, lower: NDArray[np.float64], upper: NDArray[np.float64], first: int) -> bool:
        def place(row: int) -> Any:
            at = np.unravel_index(first + row, self.lower.shape[:-1]) if self.lower.ndim > 1 else (0,)
            return int(at[0]) if len(at) == 1 else tuple(int(i) for i in at)

        for name, values in (("lower", lower), ("upper", upper)):
            bad = ~((values >= -1e-12) & (values <= 1 + 1e-12))
            if bad.any():
                row, j = (int(i) for i in np.argwhere(bad)[0])
                raise UncertaintyError(
                    f"{name} of row {place(row)}, class {j} is {values[row, j]}; bounds lie between 0 and 1"
                )
        low, high = lower.sum(-1), upper.sum(-1)
        bad = (low > 1 + 1e-9) | (high < 1 - 1e-9) | (lower > upper + 1e-12).any(-1)
        if bad.any():
            row = int(bad.argmax())
            raise EmptyCredalSet(
                f"row {place(row)} holds no distribution: lower bounds sum to {low[row]:.6g} (at most 1), "
                f"upper ones to {high[row]:.6g} (at least 1), and no lower one may be above its upper one"
            )
        return bool((lower >= 0).all() and (upper <= 1).all() and (lower <= upper).all())

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape without the axis of classes."""
        return self.lower.shape[:-1]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.lower.shape[-1]

    def reachable(self) -> Intervals:
        """The tightest intervals of the same set: ``l_k <- max(l_k, 1 - sum_{j != k} u_j)``, and the same for u_k."""
        rest_upper = self.upper.sum(-1, keepdims=True) - self.upper
        rest_lower = self.lower.sum(-1, keepdims=True) - self.lower
        lower = np.clip(np.maximum(self.lower, 1 - rest_upper), 0, 1)
        upper = np.clip(np.minimum(self.upper, 1 - rest_lower), 0, 1)
        return Intervals(np.minimum(lower, upper), upper).named(self.classes, self.index)

    def mean(self) -> NDArray[np.float64]:
        """The point of the set that divides every interval in the same ratio (intersection probability, Cuzzolin
        2009)."""
        low = self.lower.sum(-1, keepdims=True)
        width = (self.upper - self.lower).sum(-1, keepdims=True)
        share = np.where(width > 0, (1 - low) / np.where(width > 0, width, 1), 0)
        p = self.lower + share * (self.upper - self.lower)
        return np.asarray(p / p.sum(-1, keepdims=True))


class Hull(Representation):
    """The convex hull of distributions: ``vertices (..., M, K)``; M = 1 is a singleton.

    With ``convex=False`` the set holds the vertices alone (a discrete credal set).
    """

    def __init__(self, vertices: ArrayLike, *, convex: bool = True, renormalize: bool = False) -> None:
        self.vertices = as_probabilities(vertices, renormalize=renormalize, what="vertices")
        if self.vertices.ndim < 2:
            raise UncertaintyError(f"vertices have shape {self.vertices.shape}; (..., members, classes) is needed")
        self.convex = convex

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape without the axes of vertices and classes."""
        return self.vertices.shape[:-2]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.vertices.shape[-1]

    def intervals(self) -> Intervals:
        """The enclosing probability intervals."""
        return Intervals(self.vertices.min(-2), self.vertices.max(-2)).reachable().named(self.classes, self.index)

    def mean(self) -> NDArray[np.float64]:
        """Mean of the vertices."""
        return np.asarray(self.vertices.mean(-2))


class TVBall(Representation):
    """All distributions within total variation ``radius (...)`` of ``center (..., K)``; TV is half the L1 distance."""

    def __init__(self, center: ArrayLike, radius: ArrayLike) -> None:
        self.center = as_probabilities(center, what="center")
        self.radius = np.broadcast_to(np.asarray(radius, dtype=np.float64), self.center.shape[:-1])
        positive("radius", self.radius, strict=False)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape without the axis of classes."""
        return self.center.shape[:-1]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.center.shape[-1]

    def intervals(self) -> Intervals:
        """The enclosing probability intervals (a larger set)."""
        r = self.radius[..., None]
        return Intervals(np.maximum(self.center - r, 0), np.minimum(self.center + r, 1)).named(self.classes, self.index)

    def mean(self) -> NDArray[np.float64]:
        """The centre."""
        return self.center


class LevelSet(Representation):
    """All distributions whose Dirichlet density is at least ``tau`` times the largest: ``alpha (..., K)``, ``tau
    (...)`` in (0, 1].

    With all alpha at least 1 this is ``{q: KL(mode || q) <= -log(tau) / sum(alpha - 1)}``, a convex set; its entropies
    raise `NotSupported` otherwise.
    """

    def __init__(self, alpha: ArrayLike, tau: ArrayLike) -> None:
        self.alpha = np.asarray(alpha, dtype=np.float64)
        positive("alpha", self.alpha)
        self.tau = np.broadcast_to(np.asarray(tau, dtype=np.float64), self.alpha.shape[:-1])
        if not ((self.tau > 0) & (self.tau <= 1)).all():
            raise UncertaintyError(f"tau lies in (0, 1], not {self.tau.min()} ... {self.tau.max()}")

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape without the axis of classes."""
        return self.alpha.shape[:-1]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.alpha.shape[-1]

    def mean(self) -> NDArray[np.float64]:
        """Mean of the Dirichlet distribution."""
        return np.asarray(self.alpha / self.alpha.sum(-1, keepdims=True))

    def covers(self, q: ArrayLike) -> NDArray[np.bool_]:
        """Whether each set holds its distribution ``q (..., K)``.

        >>> LevelSet([[3.0, 2.0]], 0.9).covers([[0.6, 0.4]]).tolist(), LevelSet([[3.0, 2.0]], 0.9).covers([[1, 0]])[0]
        ([True], np.False_)
        """
        y = as_probabilities(q, what="distributions")
        power = self.alpha - 1
        if (power < 0).any():
            raise NotSupported("covers", "LevelSet", (), "with alpha below 1 the density has no largest value")
        total = power.sum(-1, keepdims=True)
        mode = np.where(total > 0, power / np.where(total > 0, total, 1), 1 / self.n_classes)
        with np.errstate(divide="ignore", invalid="ignore"):
            fall = np.where(power > 0, power * (np.log(mode) - np.log(y)), 0.0).sum(-1)
        return np.asarray(fall <= -np.log(self.tau) + 1e-9)


class ScoreBall(Representation):
    """All distributions whose score against ``center (..., K)`` is at most ``radius (...)``: a first-order conformal
    set.

    Parameters
    ----------
    center : array_like, (..., K)
    radius : array_like, (...)
        Infinity holds the whole simplex.
    score : {"kl", "inner", "wasserstein"}
        ``KL(q || center)``; ``1 - center . q``; Wasserstein-1 over ordered classes, in steps. (`TVBall` is the fourth.)

    Raises
    ------
    EmptyCredalSet
        If no distribution has so small a score (``inner`` only).

    Examples
    --------
    >>> ScoreBall([[0.5, 0.3, 0.2]], 0.1, "wasserstein").covers([[0.45, 0.3, 0.25]]).tolist()
    [True]
    """

    def __init__(self, center: ArrayLike, radius: ArrayLike, score: str) -> None:
        if score not in SCORES:
            raise UncertaintyError(f"score is one of {', '.join(SCORES)}, not {score!r}")
        self.center = as_probabilities(center, what="center")
        self.radius = np.broadcast_to(np.asarray(radius, dtype=np.float64), self.center.shape[:-1])
        if np.isnan(self.radius).any() or (self.radius < 0).any():
            raise UncertaintyError("radius is at least 0 and not NaN")
        self.score = score
        if score == "inner":
            least = 1 - self.center.max(-1)
            bad = self.radius < least - 1e-12
            if bad.any():
                at = tuple(int(i) for i in np.argwhere(bad)[0])
                raise EmptyCredalSet(
                    f"row {at[0] if len(at) == 1 else at} holds no distribution: its score is at least "
                    f"{least[at]:.6g}, the radius {self.radius[at]:.6g}"
                )

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape without the axis of classes."""
        return self.center.shape[:-1]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.center.shape[-1]

    def covers(self, q: ArrayLike) -> NDArray[np.bool_]:
        """Whether each set holds its distribution ``q (..., K)``."""
        from assay.uncertainty.credal.score_balls import score_of

        y = as_probabilities(q, what="distributions")
        return np.asarray(score_of(self.score, self.center, y) <= self.radius + 1e-12)

    def mean(self) -> NDArray[np.float64]:
        """The prediction, which for ``inner`` need not lie in the set."""
        return self.center


class LabelSet(Representation):
    """Sets of classes: ``mask (..., K)``, bool."""

    def __init__(self, mask: ArrayLike) -> None:
        mask = np.asarray(mask)
        if mask.dtype != bool:
            raise UncertaintyError(f"a label set is a mask of bool (..., classes), not {mask.dtype}")
        self.mask = mask

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape without the axis of classes."""
        return self.mask.shape[:-1]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.mask.shape[-1]

    @property
    def size(self) -> NDArray[np.int64]:
        """Classes in each set."""
        return np.asarray(self.mask.sum(-1))

    def labels(self) -> list[list[Any]]:
        """Each set as a list of class names (codes, where classes have no names).

        Examples
        --------
        >>> LabelSet(np.array([[True, False, True]])).named(["cat", "dog", "fox"]).labels()
        [['cat', 'fox']]
        """
        names = self.classes if self.classes is not None else tuple(range(self.n_classes))
        return [[names[k] for k in np.flatnonzero(row)] for row in self.mask.reshape(-1, self.n_classes)]

    def covers(self, y: ArrayLike) -> NDArray[np.bool_]:
        """Whether each set holds the true class (a code, or a name where classes have names)."""
        codes = np.asarray(y)
        if self.classes is not None:
            places = {name: k for k, name in enumerate(self.classes)}
            codes = np.array([places[v.item() if isinstance(v, np.generic) else v] for v in codes.ravel()]).reshape(
                codes.shape
            )
        return np.take_along_axis(self.mask, codes[..., None].astype(np.int64), -1)[..., 0]

    def to_frame(self) -> pd.DataFrame:
        """A data frame with the row names of the input: one column of bool a class, and the size."""
        import pandas as pd

        names = list(self.classes) if self.classes is not None else list(range(self.n_classes))
        frame = pd.DataFrame(self.mask.reshape(-1, self.n_classes), columns=pd.Index(names), index=self.index)
        return frame.assign(size=self.size.ravel())


class IntervalSet(Representation):
    """Prediction intervals: ``lower, upper (...)``; infinite ends are allowed."""

    def __init__(self, lower: ArrayLike, upper: ArrayLike) -> None:
        self.lower, self.upper = np.broadcast_arrays(
            np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)
        )
        if np.isnan(self.lower).any() or np.isnan(self.upper).any():
            raise UncertaintyError("the ends of an interval must not be NaN")

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the ends."""
        return self.lower.shape

    @property
    def width(self) -> NDArray[np.float64]:
        """Length; 0 for an empty interval (lower end above the upper one)."""
        return np.maximum(self.upper - self.lower, 0)

    def covers(self, y: ArrayLike) -> NDArray[np.bool_]:
        """Whether each interval holds the true value."""
        y = np.asarray(y)
        return np.asarray((self.lower <= y) & (y <= self.upper))

    def to_frame(self) -> pd.DataFrame:
        """A data frame with the row names of the input: lower, upper, width."""
        import pandas as pd

        return pd.DataFrame(
            {"lower": self.lower.ravel(), "upper": self.upper.ravel(), "width": self.width.ravel()}, index=self.index
        )
