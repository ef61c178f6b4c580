"""One call for every representation and measure."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.uncertainty import credal
from assay.uncertainty.errors import FallbackWarning, NotSupported, UncertaintyError
from assay.uncertainty.measures.dirichlet import dirichlet_three
from assay.uncertainty.measures.sample import GENERATORS, MEASURES, additive, entropy_three, shannon, total_variation
from assay.uncertainty.representations import (
    Categorical,
    Dirichlet,
    DirichletMixture,
    Gaussian,
    GaussianLogits,
    GaussianMixture,
    GaussianSample,
    Hull,
    Intervals,
    IntervalSet,
    LabelSet,
    LevelSet,
    NormalInverseGamma,
    Representation,
    Sample,
    ScoreBall,
    SparseLogCategorical,
    TVBall,
    WithDensity,
)
from assay.uncertainty.simplex import blocks, log_base

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
_IN_NATS = ("entropy", "ordinal_entropy", "labelwise", "hartley", "differential")


@dataclass(frozen=True)
class Decomposition:
    """Uncertainty of each row and its two parts.

    Attributes
    ----------
    total, aleatoric, epistemic : float64[...], or None
        None where the representation has no such notion.
    additive : bool
        Whether ``total = aleatoric + epistemic`` holds.
    measure : str
    index : optional
        Row names of the input.
    """

    total: Array | None
    aleatoric: Array | None
    epistemic: Array | None
    additive: bool
    measure: str = ""
    index: Any = None

    def get(self, notion: str) -> Array:
        """One notion, or the named next one with a warning: epistemic, then total, then aleatoric.

        Raises
        ------
        UncertaintyError
            If there is no such notion, or none at all is present.
        """
        order = {
            "epistemic": ("epistemic", "total", "aleatoric"),
            "total": ("total", "epistemic", "aleatoric"),
            "aleatoric": ("aleatoric", "total", "epistemic"),
        }
        if notion not in order:
            raise UncertaintyError(f"the notions are total, aleatoric and epistemic, not {notion!r}")
        for name in order[notion]:
            values = getattr(self, name)
            if values is not None:
                if name != notion:
                    warnings.warn(
                        f"this prediction has no {notion} uncertainty; its {name} uncertainty is used",
                        FallbackWarning,
                        stacklevel=2,
                    )
                return np.asarray(values)
        raise UncertaintyError("this prediction has no uncertainty at all")

    def to_frame(self) -> pd.DataFrame:
        """A data frame, a column a notion, with the row names of the input."""
        import pandas as pd

        columns = {n: np.ravel(v) for n in ("total", "aleatoric", "epistemic") if (v := getattr(self, n)) is not None}
        return pd.DataFrame(columns, index=self.index)


def quantify(
    rep: Representation | ArrayLike,
    measure: str = "entropy",
    *,
    base: int | float | str | None = None,
    chunk: int | None = None,
    samples: int = 1000,
    seed: int = 0,
    force: bool = False,
) -> Decomposition:
    """Total, aleatoric and epistemic uncertainty of each prediction.

    Parameters
    ----------
    rep : Representation
        Or an array, which is taken as class probabilities ``(..., K)``.
    measure : str
        ``entropy, brier, zero_one, spherical, tv, variance, ordinal_entropy, ordinal_variance, labelwise`` for
        second-order distributions (a Dirichlet also ``vacuity, differential``; normal logits also ``dempster_shafer``);
        ``entropy, hartley, zero_one, spread, imprecision`` for credal sets; ``size`` for conformal sets; ``variance``
        for regression.
    base : float or "normalize", optional
        Base of the logarithm (entropies only); default nats.
    chunk : int, optional
        Rows at a time; default: what fits the cache. Results do not depend on it, and a memory map is never read whole.
    samples, seed : int
        Draws where a measure has no closed form (normal logits; mixtures and spherical scores of Dirichlet
        distributions).
    force : bool
        Compute Hartley measures for more than 16 classes.

    Returns
    -------
    Decomposition

    Raises
    ------
    NotSupported
        If that measure is not defined for that representation; the message names those that are.

    Examples
    --------
    >>> from assay.uncertainty import Sample
    >>> parts = quantify(Sample([[[0.9, 0.1], [0.1, 0.9]]]))
    >>> [round(float(v[0]), 6) for v in (parts.total, parts.aleatoric, parts.epistemic)]
    [0.693147, 0.325083, 0.368064]
    """
    if not isinstance(rep, Representation):
        rep = Categorical(rep)
    floats = _floats_a_row(rep, measure)
    if floats and len(rep.batch_shape) == 1:
        pieces = list(blocks(len(rep), floats, chunk)) or [slice(0, 0)]
        found = _joined([_one(rep.take(p), measure, chunk, samples, seed, force) for p in pieces], len(rep))
    else:
        found = _one(rep, measure, chunk, samples, seed, force)
    if base is not None:
        if measure not in _IN_NATS:
            raise UncertaintyError(f"base belongs to entropies; {measure!r} is none")
        by = log_base(base, getattr(rep, "n_classes", 2))
        parts = {n: None if (v := getattr(found, n)) is None else v / by for n in ("total", "aleatoric", "epistemic")}
        found = replace(found, **parts)  # type: ignore[arg-type]
    return replace(found, measure=measure, index=rep.index)


def _floats_a_row(rep: Representation, measure: str) -> int:
    """Numbers that a row takes while it is measured; 0 for those that go through blocks of their own."""
    if isinstance(rep, (Sample, Dirichlet, DirichletMixture, GaussianLogits, SparseLogCategorical)):
        return 0
    k = getattr(rep, "n_classes", 1)
    if measure == "hartley":
        return int(2**k)
    if isinstance(rep, Hull):
        m = rep.vertices.shape[-2]
        return int(m * (k + 2 * m))
    shape = max((np.shape(v)[1:] for v in vars(rep).values() if isinstance(v, np.ndarray)), key=len, default=())
    return int(16 * np.prod(shape, dtype=np.int64))


def _joined(parts: list[Decomposition], n: int) -> Decomposition:
    first = parts[0]
    columns: dict[str, Array | None] = {}
    for name in ("total", "aleatoric", "epistemic"):
        if getattr(first, name) is None:
            columns[name] = None
            continue
        out = np.empty(n)
        low = 0
        for part in parts:
            values = getattr(part, name)
            out[low : low + len(values)] = values
            low += len(values)
        columns[name] = out
    return replace(first, **columns)  # type: ignore[arg-type]


def _one(
    rep: Representation, measure: str, chunk: int | None, samples: int, seed: int, force: bool
) -> Decomposition:  # fmt: skip
    if isinstance(rep, Sample):
        return _sample(rep, measure, chunk)
    if isinstance(rep, (Dirichlet, DirichletMixture)):
        return _dirichlet(rep, measure, chunk, samples, seed)
    if isinstance(rep, GaussianLogits):
        return _logits(rep, measure, chunk, samples, seed)
    if isinstance(rep, (Intervals, Hull, TVBall, LevelSet, ScoreBall)):
        return _credal(rep, measure, chunk, force)
    if isinstance(rep, (Categorical, WithDensity)):
        return _first_order(rep, measure)
    if isinstance(rep, SparseLogCategorical):
        _only(rep, measure, ("entropy",))
        return Decomposition(rep.entropy(), None, None, False)
    if isinstance(rep, (Gaussian, GaussianMixture, GaussianSample, NormalInverseGamma)):
        return _regression(rep, measure)
    if isinstance(rep, LabelSet):
        _only(rep, measure, ("size", "log_size"))
        size = rep.size.astype(np.float64)
        return Decomposition(size if measure == "size" else np.log(np.maximum(size, 1e-300)), None, None, False)
    if isinstance(rep, IntervalSet):
        _only(rep, measure, ("size",))
        return Decomposition(rep.width, None, None, False)
    raise NotSupported(measure, type(rep).__name__)


def uncertainty_of(rep: Representation, notion: str = "epistemic", measure: str | None = None, **options: Any) -> Array:
    """One number a row: the notion asked for, with the usual measure of the representation.

    Examples
    --------
    >>> from assay.uncertainty import Dirichlet
    >>> uncertainty_of(Dirichlet([[1.0, 1.0], [50.0, 50.0]]), "epistemic").round(4).tolist()
    [0.1931, 0.005]
    """
    if measure is None:
        regression = isinstance(rep, (Gaussian, GaussianMixture, GaussianSample, NormalInverseGamma))
        measure = "size" if isinstance(rep, (LabelSet, IntervalSet)) else "variance" if regression else "entropy"
    return quantify(rep, measure, **options).get(notion)


def _only(rep: Representation, measure: str, works: tuple[str, ...]) -> None:
    if measure not in works:
        raise NotSupported(measure, type(rep).__name__, works)


def _in_blocks(rows: int, floats: int, chunk: int | None, one: Any) -> tuple[Array, Array, Array]:
    out = np.empty((3, rows))
    for part in blocks(rows, floats, chunk):
        out[0, part], out[1, part], out[2, part] = one(part)
    return out[0], out[1], out[2]


def _sample(rep: Sample, measure: str, chunk: int | None) -> Decomposition:
    _only(rep, measure, MEASURES)
    m, k = rep.n_members, rep.n_classes
    flat = rep.probs.reshape(-1, m, k)
    w = rep.weights
    w = w.reshape(-1, m) if w is not None and w.ndim > 1 else w

    # Blocks of a quarter of a megabyte stay in the second-level cache with their logarithms.
    rows = chunk or max(1, (1 << 15) // (m * k))
    scratch = np.empty((min(rows, len(flat)), m, k)) if measure == "entropy" else None

    def one(part: slice) -> tuple[Array, Array, Array]:
        p = np.ascontiguousarray(flat[part])
        weights = w if w is None or w.ndim == 1 else w[part]
        if scratch is not None:
            return entropy_three(p, weights, scratch)
        return total_variation(p, weights) if measure == "tv" else additive(p, weights, measure)

    t, a, e = (v.reshape(rep.batch_shape) for v in _in_blocks(len(flat), m * k, rows, one))
    return Decomposition(t, a, e, additive=measure != "tv")


def _dirichlet(
    rep: Dirichlet | DirichletMixture, measure: str, chunk: int | None, samples: int, seed: int
) -> Decomposition:
    if isinstance(rep, DirichletMixture):
        _only(rep, measure, MEASURES)
        rng = np.random.default_rng(seed)
        m, k = rep.alpha.shape[-2:]
        alpha = rep.alpha.reshape(-1, m, k)
        pick = (rng.random((len(alpha), samples, 1)) > np.cumsum(rep.weights.reshape(-1, 1, m), axis=-1)[..., :-1]).sum(
            -1
        )
        drawn = Dirichlet(np.take_along_axis(alpha, pick[..., None], axis=1)).sample(1, rng).probs[:, :, 0]
        return _sample(Sample(drawn.reshape(*rep.batch_shape, samples, k)), measure, chunk)
    if measure == "spherical":
        return _sample(rep.sample(samples, np.random.default_rng(seed)), measure, chunk)
    flat = rep.alpha.reshape(-1, rep.n_classes)
    found = _in_blocks(len(flat), 200 * rep.n_classes, chunk, lambda part: dirichlet_three(flat[part], measure))
    t, a, e = (None if np.isnan(v).all() and v.size else v.reshape(rep.batch_shape) for v in found)
    return Decomposition(t, a, e, additive=measure not in ("tv", "vacuity", "differential"))


def _logits(rep: GaussianLogits, measure: str, chunk: int | None, samples: int, seed: int) -> Decomposition:
    if measure == "dempster_shafer":
        # K / (K + sum exp(mu / sqrt(1 + pi/8 var))), Liu et al. (SNGP, 2020)
        strength = np.exp(np.minimum(rep.mu / np.sqrt(1 + np.pi / 8 * rep.var), 700)).sum(-1)
        return Decomposition(None, None, rep.n_classes / (rep.n_classes + strength), False)
    _only(rep, measure, (*MEASURES, "dempster_shafer"))
    k = rep.n_classes
    mu, var = rep.mu.reshape(-1, k), rep.var.reshape(-1, k)
    z = np.random.default_rng(seed).standard_normal((samples, k))  # the same draws for every row: no batch effect

    def one(part: slice) -> tuple[Array, Array, Array]:
        logits = mu[part, None] + np.sqrt(var[part, None]) * z
        logits -= logits.max(-1, keepdims=True)
        np.exp(logits, out=logits)
        logits /= logits.sum(-1, keepdims=True)
        return total_variation(logits, None) if measure == "tv" else additive(logits, None, measure)

    t, a, e = (v.reshape(rep.batch_shape) for v in _in_blocks(len(mu), samples * k, chunk, one))
    return Decomposition(t, a, e, additive=measure != "tv")


def _first_order(rep: Categorical | WithDensity, measure: str) -> Decomposition:
    _only(rep, measure, tuple(GENERATORS))
    value = shannon(rep.probs) if measure == "entropy" else GENERATORS[measure](rep.probs)
    if isinstance(rep, WithDensity):
        return Decomposition(None, np.maximum(value, 0.0), -rep.log_density, False)
    return Decomposition(np.maximum(value, 0.0), None, None, False)


def _regression(rep: Representation, measure: str) -> Decomposition:
    _only(rep, measure, ("variance",))
    if isinstance(rep, Gaussian):
        return Decomposition(rep.var.copy(), None, None, False)
    if isinstance(rep, NormalInverseGamma):
        aleatoric = rep.beta / (rep.alpha - 1)
        epistemic = aleatoric / rep.nu
        return Decomposition(aleatoric + epistemic, aleatoric, epistemic, True)
    assert isinstance(rep, (GaussianSample, GaussianMixture))
    center = rep.mean()
    aleatoric = (rep.weights * rep.var).sum(-1)
    spread = (rep.weights * (rep.loc - center[..., None]) ** 2).sum(-1)
    if isinstance(rep, GaussianMixture):
        return Decomposition(aleatoric + spread, None, None, False)
    return Decomposition(aleatoric + spread, aleatoric, spread, True)


def _credal(rep: credal.CredalSet, measure: str, chunk: int | None, force: bool) -> Decomposition:
    works = ("entropy", "hartley", "zero_one", "spread", "imprecision")
    _only(rep, measure, works)
    if measure == "entropy":
        high, low = credal.upper_entropy(rep, chunk=chunk), credal.lower_entropy(rep, chunk=chunk)
        return Decomposition(high, low, np.maximum(high - low, 0.0), True)
    if measure == "hartley":
        high, hartley = credal.upper_entropy(rep, chunk=chunk), credal.hartley(rep, force=force)
        return Decomposition(high, high - hartley, hartley, True)
    if measure == "zero_one":
        high, low = credal.zero_one_bounds(rep)
        return Decomposition(high, low, high - low, True)
    box = credal.enclosing(rep)
    width = box.upper - box.lower
    return Decomposition(None, None, width.max(-1) if measure == "spread" else width.sum(-1), False)
