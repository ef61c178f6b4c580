"""The tests of uncertainty: selective prediction, foreign inputs, active learning, first-order data. Each gives a
`Result`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.uncertainty import metrics as m
from assay.uncertainty.conformal.classification import SplitConformal
from assay.uncertainty.credal import enclosing, hull_coverage, interval_coverage
from assay.uncertainty.errors import TargetShape, UncertaintyError
from assay.uncertainty.measures import quantify
from assay.uncertainty.measures.sample import shannon
from assay.uncertainty.representations import (
    GaussianSample,
    Hull,
    Intervals,
    LevelSet,
    NormalInverseGamma,
    Representation,
    Sample,
    TVBall,
)
from assay.uncertainty.simplex import as_probabilities

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]


@dataclass
class Result:
    """Figures with intervals.

    Attributes
    ----------
    scores : dict of str to float
    curves : dict of str to (x, y)
    ci : dict of str to (low, high)
        95 % bootstrap intervals over rows.
    n, dropped : int
        Rows used, and rows left out because their outcome is not known (NaN).
    rows : dict of str to array
        Values a row, for `compare`.
    """

    scores: dict[str, float]
    curves: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    ci: dict[str, tuple[float, float]] = field(default_factory=dict)
    n: int = 0
    dropped: int = 0
    rows: dict[str, Array] = field(default_factory=dict, repr=False)

    def to_frame(self) -> pd.DataFrame:
        """A data frame: value, low, high."""
        import pandas as pd

        nothing = (float("nan"), float("nan"))
        rows = [(v, *self.ci.get(name, nothing)) for name, v in self.scores.items()]
        return pd.DataFrame(rows, columns=["value", "low", "high"], index=list(self.scores))

    def compare(self, other: Result, score: str, *, resamples: int = 500, seed: int = 0) -> m.intervals.Paired:
        """Paired test of one score between two results on the same rows.

        Raises
        ------
        UncertaintyError
            If a result keeps no rows for that score.
        """
        statistics = _STATISTICS.get(score)
        if statistics is None or any(name not in r.rows for r in (self, other) for name in statistics[0]):
            raise UncertaintyError(f"{score!r} cannot be compared row by row; use one of {', '.join(_STATISTICS)}")
        names, function = statistics
        a, b = (np.stack([r.rows[name] for name in names], axis=1) for r in (self, other))
        return m.paired_difference(a, b, function, resamples=resamples, seed=seed)


_STATISTICS: dict[str, tuple[tuple[str, ...], Callable[[Array], float]]] = {
    "aurc": (("uncertainty", "loss"), lambda v: m.aurc(v[:, 0], v[:, 1])),
    "excess_aurc": (("uncertainty", "loss"), lambda v: m.excess_aurc(v[:, 0], v[:, 1])),
    "augrc": (("uncertainty", "loss"), lambda v: m.augrc(v[:, 0], v[:, 1])),
    "risk": (("loss",), lambda v: float(v[:, 0].mean())),
    "auroc": (("uncertainty", "outside"), lambda v: m.auroc(v[v[:, 1] == 0, 0], v[v[:, 1] == 1, 0])),
    "tv": (("tv",), lambda v: float(v[:, 0].mean())),
    "kl": (("kl",), lambda v: float(v[:, 0].mean())),
    "coverage": (("covered",), lambda v: float(v[:, 0].mean())),
    "efficiency": (("efficiency",), lambda v: float(v[:, 0].mean())),
}


def selective_prediction(
    uncertainty: ArrayLike,
    loss: ArrayLike,
    *,
    coverage: float = 0.8,
    risk: float = 0.05,
    resamples: int = 200,
    seed: int = 0,
) -> Result:
    """How well an uncertainty orders rows for turning some away.

    Parameters
    ----------
    uncertainty : array_like, (rows)
        Higher is less sure.
    loss : array_like, (rows)
        Loss of the prediction (bool: wrong or not); rows with NaN are left out and counted.
    coverage, risk : float
        Where the curve is read: risk at that coverage, coverage at that risk.

    Returns
    -------
    Result
        Scores ``aurc, excess_aurc, augrc, rejection_area, error_auroc, risk, risk_at_coverage, coverage_at_risk``.

    Examples
    --------
    >>> result = selective_prediction(np.arange(10), [0] * 8 + [1, 1])
    >>> {k: round(result.scores[k], 4) for k in ("aurc", "excess_aurc", "augrc", "error_auroc")}
    {'aurc': 0.0311, 'excess_aurc': 0.0, 'augrc': 0.03, 'error_auroc': 1.0}
    """
    u, l = np.asarray(uncertainty, dtype=np.float64), np.asarray(loss, dtype=np.float64)
    if u.shape != l.shape or u.ndim != 1:
        raise TargetShape(f"uncertainty {u.shape} and loss {l.shape}: one of both a row is needed")
    known = ~np.isnan(l)
    u, l = u[known], l[known]

    def scores(uu: Array, ll: Array) -> dict[str, float]:
        wrong = ll > 0
        binary = bool(np.isin(ll, (0, 1)).all())
        both = binary and wrong.any() and not wrong.all()
        return {
            "aurc": m.aurc(uu, ll),
            "excess_aurc": m.excess_aurc(uu, ll),
            "augrc": m.augrc(uu, ll),
            "rejection_area": m.rejection_area(uu, ll) if binary else float("nan"),
            "error_auroc": m.auroc(uu[~wrong], uu[wrong]) if both else float("nan"),
            "risk": float(ll.mean()),
            "risk_at_coverage": m.risk_at_coverage(uu, ll, coverage),
            "coverage_at_risk": m.coverage_at_risk(uu, ll, risk),
        }

    found = scores(u, l)
    x, y = m.risk_coverage_curve(u, l)
    curves = {"risk_coverage": (x, y), "accuracy_rejection": (1 - x[::-1], 1 - y[::-1])}
    ci = _intervals(lambda rows: scores(u[rows], l[rows]), len(u), resamples, seed)
    return Result(found, curves, ci, len(u), int((~known).sum()), {"uncertainty": u, "loss": l})


def ood_detection(inside: ArrayLike, outside: ArrayLike, *, resamples: int = 200, seed: int = 0) -> Result:
    """How well an uncertainty tells foreign inputs from familiar ones.

    Returns
    -------
    Result
        Scores ``auroc, aupr_out, aupr_in, fpr95, detection_error``; ties count half.

    Examples
    --------
    >>> result = ood_detection(np.zeros(50), np.zeros(50))
    >>> result.scores["auroc"], result.scores["aupr_out"], result.scores["fpr95"]
    (0.5, 0.5, 1.0)
    """
    a, b = np.asarray(inside, dtype=np.float64).ravel(), np.asarray(outside, dtype=np.float64).ravel()
    found = m.detection_scores(a, b)
    rng = np.random.default_rng(seed)
    draws: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(resamples):  # each group is resampled within itself
        one = m.detection_scores(a[rng.integers(0, len(a), len(a))], b[rng.integers(0, len(b), len(b))])
        for name, value in one.items():
            draws[name].append(value)
    ci = (
        {name: (float(np.quantile(v, 0.025)), float(np.quantile(v, 0.975))) for name, v in draws.items()}
        if resamples
        else {}
    )
    thresholds = np.unique(np.concatenate([a, b]))[::-1]
    false = np.array([0.0, *(1 - np.searchsorted(np.sort(a), thresholds, side="left") / len(a))])
    true = np.array([0.0, *(1 - np.searchsorted(np.sort(b), thresholds, side="left") / len(b))])
    rows = {"uncertainty": np.concatenate([a, b]), "outside": np.concatenate([np.zeros(len(a)), np.ones(len(b))])}
    return Result(found, {"roc": (false, true)}, ci, len(a) + len(b), 0, rows)


def _intervals(
    scores: Callable[[NDArray[np.int64]], dict[str, float]], n: int, resamples: int, seed: int
) -> dict[str, tuple[float, float]]:  # fmt: skip
    if not resamples:
        return {}
    rng = np.random.default_rng(seed)
    draws: dict[str, list[float]] = {}
    for _ in range(resamples):
        for name, value in scores(rng.integers(0, n, n)).items():
            draws.setdefault(name, []).append(value)
    out = {}
    for name, values in draws.items():
        kept = np.array(values)[~np.isnan(values)]
        out[name] = (
            (float(np.quantile(kept, 0.025)), float(np.quantile(kept, 0.975)))
            if len(kept) > resamples / 2
            else (np.nan, np.nan)
        )
    return out


# -- active learning -------------------------------------------------------------------------------------------------

STRATEGIES = ("random", "entropy", "least_confident", "margin", "uncertainty", "badge")


def active_learning(
    make: Callable[[int], Any],
    X: ArrayLike,
    y: ArrayLike,
    X_test: ArrayLike,
    y_test: ArrayLike,
    *,
    strategy: str = "uncertainty",
    start: int = 100,
    step: int = 100,
    rounds: int = 10,
    seed: int = 0,
    measure: str = "entropy",
) -> Result:
    """Label some rows, train, label those that the strategy asks for, train again.

    Parameters
    ----------
    make : callable
        ``seed -> method`` with ``fit(X, y)`` and ``predict(X) -> Representation``.
    strategy : {"random", "entropy", "least_confident", "margin", "uncertainty", "badge"}
        ``uncertainty`` is the epistemic part of ``measure`` (for a sample and entropy: BALD, the mutual information);
        ``badge`` spreads over gradient embeddings (Ash et al., ICLR 2020), with the inputs as features of the last
        layer.
    start, step, rounds : int
        Rows labelled at first, in each round, and rounds.

    Returns
    -------
    Result
        Scores ``area`` (normalised area under the accuracy curve) and ``final``; curve ``accuracy`` over labelled rows.

    Raises
    ------
    UncertaintyError
    """
    if strategy not in STRATEGIES:
        raise UncertaintyError(f"strategy is one of {', '.join(STRATEGIES)}, not {strategy!r}")
    x, labels, xt, yt = np.asarray(X), np.asarray(y), np.asarray(X_test), np.asarray(y_test)
    if start + step * rounds > len(x) or start < 1:
        raise UncertaintyError(f"{start} + {rounds} x {step} rows are asked for; there are {len(x)}")
    rng = np.random.default_rng(seed)
    # One row of every class first: a model cannot ask for a class that it has never seen.
    order = rng.permutation(len(x))
    firsts = [order[np.flatnonzero(labels[order] == c)[0]] for c in np.unique(labels)]
    rest = order[~np.isin(order, firsts)]
    chosen = np.concatenate([firsts, rest])[: max(start, len(firsts))]
    sizes, accuracies = [], []
    for r in range(rounds + 1):
        model = make(int(rng.integers(2**31))).fit(x[chosen], labels[chosen])
        sizes.append(len(chosen))
        accuracies.append(float((model.predict(xt).predict() == yt).mean()))
        if r == rounds:
            break
        pool = np.setdiff1d(np.arange(len(x)), chosen)
        rep = model.predict(x[pool]) if strategy != "random" else None
        picked = query(rep, x[pool], strategy, step, rng, measure)
        chosen = np.concatenate([chosen, pool[picked]])
    sx, sy = np.array(sizes, dtype=np.float64), np.array(accuracies)
    area = float(np.trapezoid(sy, sx) / (sx[-1] - sx[0])) if rounds else float(sy[0])
    return Result(
        {"area": area, "final": float(sy[-1])},
        {"accuracy": (sx, sy)},
        {},
        len(yt),
        0,
        {"labelled": chosen.astype(np.float64)},
    )


def query(
    rep: Representation | None, X: ArrayLike, strategy: str, n: int, rng: np.random.Generator, measure: str = "entropy"
) -> NDArray[np.int64]:  # fmt: skip
    """Rows of the pool to label next; ties are broken at random."""
    x = np.asarray(X, dtype=np.float64).reshape(len(np.asarray(X)), -1)
    if strategy == "random" or rep is None:
        return np.asarray(rng.permutation(len(x))[:n])
    p = np.asarray(rep.mean())
    if strategy == "badge":
        return _badge(p, x, n, rng)
    if strategy == "uncertainty":
        score = quantify(rep, measure).get("epistemic")
    elif strategy == "entropy":
        score = shannon(p)
    elif strategy == "least_confident":
        score = -p.max(1)
    else:
        top = np.sort(p, axis=1)[:, -2:]
        score = top[:, 0] - top[:, 1]
    return np.asarray(np.lexsort((rng.random(len(score)), -score))[:n])


def _badge(p: Array, x: Array, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """k-means++ seeding on ``(p - onehot) (x) x``; inner products factor, so the embedding is never made."""
    g = p.copy()
    g[np.arange(len(p)), p.argmax(1)] -= 1
    x = np.concatenate([x / max(float(np.abs(x).max()), 1e-12), np.ones((len(x), 1))], axis=1)
    norms = (g**2).sum(1) * (x**2).sum(1)
    picked = [int(norms.argmax())]
    nearest = np.full(len(p), np.inf)
    while len(picked) < min(n, len(p)):
        i = picked[-1]
        distance = norms + norms[i] - 2 * (g @ g[i]) * (x @ x[i])
        nearest = np.minimum(nearest, np.maximum(distance, 0))
        nearest[picked] = 0
        total = nearest.sum()
        if total > 0:
            picked.append(int(rng.choice(len(p), p=nearest / total)))
        else:
            left = np.setdiff1d(np.arange(len(p)), picked)
            picked.append(int(rng.choice(left)))
    return np.array(picked)


# -- first-order data ------------------------------------------------------------------------------------------------


def first_order(
    rep: Representation,
    target: ArrayLike,
    *,
    epsilon: float = 0.0005,
    draws: int = 10,
    bins: int = 15,
    resamples: int = 200,
    seed: int = 0,
) -> Result:
    """Predictions against true distributions.

    Parameters
    ----------
    rep : Representation
        A credal set, or a second-order distribution, whose hull (members) or mean is then looked at.
    target : array_like, (rows, classes)
    epsilon : float
        L1 distance to a hull that still counts as inside.
    draws, bins : int
        Of the calibration error with labels drawn from the targets.

    Returns
    -------
    Result
        ``tv, l1, kl`` of the mean prediction; ``ece``; ``coverage`` and ``efficiency`` of sets;
        ``aleatoric_correlation`` (Spearman, aleatoric uncertainty with the target's entropy) and
        ``epistemic_correlation`` (epistemic uncertainty with the excess risk ``KL(target || mean)``).

    Raises
    ------
    TargetShape
        If the targets are labels.
    """
    p = np.asarray(rep.mean())
    if np.asarray(target).shape != p.shape:
        raise TargetShape(
            f"first-order targets of shape {p.shape} are needed, not {np.asarray(target).shape} (labels?)"
        )
    y = as_probabilities(target, what="targets")
    rows: dict[str, Array] = {"l1": np.abs(p - y).sum(1)}
    rows["tv"] = rows["l1"] / 2
    rows["kl"] = (y * (np.log(np.maximum(y, 1e-300)) - np.log(np.maximum(p, 1e-12)))).sum(1)
    if isinstance(rep, (Intervals, TVBall, LevelSet)):
        box = enclosing(rep)
        inside = interval_coverage(box, y) if not isinstance(rep, TVBall) else rows["tv"] <= rep.radius + 1e-12
        rows["covered"], rows["efficiency"] = inside.astype(np.float64), 1 - (box.upper - box.lower).mean(1)
    elif isinstance(rep, (Hull, Sample)):
        hull = rep if isinstance(rep, Hull) else Hull(rep.probs)
        box = hull.intervals()
        rows["covered"] = hull_coverage(hull, y, epsilon=epsilon).astype(np.float64)
        rows["efficiency"] = 1 - (box.upper - box.lower).mean(1)
    parts = quantify(rep)
    target_entropy = shannon(y)
    rng = np.random.default_rng(seed)
    drawn = (np.cumsum(y, 1)[None] < rng.random((draws, len(y), 1))).sum(-1).clip(max=y.shape[1] - 1)

    def scores(r: NDArray[np.int64]) -> dict[str, float]:
        out = {name: float(v[r].mean()) for name, v in rows.items()}
        if "covered" in out:
            out["coverage"] = out.pop("covered")
        out["ece"] = float(np.mean([m.expected_calibration_error(p[r], d[r], bins=bins) for d in drawn]))
        if parts.aleatoric is not None:
            out["aleatoric_correlation"] = _spearman(parts.aleatoric[r], target_entropy[r])
        if parts.epistemic is not None:
            out["epistemic_correlation"] = _spearman(parts.epistemic[r], rows["kl"][r])
        return out

    everything = np.arange(len(y))
    return Result(scores(everything), {}, _intervals(scores, len(y), resamples, seed), len(y), 0, rows)


def first_order_conformal(
    probs: ArrayLike,
    target: ArrayLike,
    *,
    score: str = "aps",
    alpha: float = 0.1,
    splits: int = 10,
    randomized: bool = True,
    seed: int = 0,
) -> Result:
    """Label sets calibrated on labels drawn from the targets, judged by the true mass they hold; half of the rows
    calibrate.

    Returns
    -------
    Result
        ``marginal_coverage, conditional_satisfaction, set_size``, means over the splits; intervals over the splits.
    """
    p, y = as_probabilities(probs), as_probabilities(target, what="targets")
    if p.shape != y.shape:
        raise TargetShape(f"probabilities {p.shape} and first-order targets {y.shape} must have one shape")
    rng = np.random.default_rng(seed)
    found: list[dict[str, float]] = []
    for _ in range(splits):
        order = rng.permutation(len(p))
        cal, test = order[: len(p) // 2], order[len(p) // 2 :]
        labels = (np.cumsum(y[cal], 1) < rng.random((len(cal), 1))).sum(1).clip(max=p.shape[1] - 1)
        method = SplitConformal(score, alpha, randomized=randomized, random_state=int(rng.integers(2**31)))
        found.append(m.first_order_coverage(method.fit(p[cal], labels).predict(p[test]), y[test], alpha))
    names = list(found[0])
    values = {name: np.array([f[name] for f in found]) for name in names}
    reach = {
        name: 1.96 * float(v.std(ddof=1)) / np.sqrt(splits) if splits > 1 else np.nan for name, v in values.items()
    }
    mean = {name: float(v.mean()) for name, v in values.items()}
    return Result(mean, {}, {name: (mean[name] - reach[name], mean[name] + reach[name]) for name in names}, len(p))


def regression_quality(
    rep: GaussianSample | NormalInverseGamma, y: ArrayLike, *, alpha: float = 0.1, resamples: int = 200, seed: int = 0
) -> Result:
    """Normal predictions (their first two moments) against numbers.

    Returns
    -------
    Result
        ``rmse, crps, nll, interval_score, coverage, aurc`` (squared error ordered by total variance).
    """
    from scipy.stats import norm

    values = np.asarray(y, dtype=np.float64)
    mean, parts = np.asarray(rep.mean()), quantify(rep, "variance")
    if values.shape != mean.shape:
        raise TargetShape(f"{mean.shape} predictions and {values.shape} targets")
    variance = np.maximum(parts.get("total"), 1e-12)
    sd = np.sqrt(variance)
    z = float(norm.ppf(1 - alpha / 2))
    rows = {
        "squared": (values - mean) ** 2,
        "crps": m.crps_gaussian(mean, sd, values),
        "nll": -norm.logpdf(values, mean, sd),
        "interval": m.interval_score(mean - z * sd, mean + z * sd, values, alpha),
        "covered": (np.abs(values - mean) <= z * sd).astype(np.float64),
    }

    def scores(r: NDArray[np.int64]) -> dict[str, float]:
        return {
            "rmse": float(np.sqrt(rows["squared"][r].mean())),
            "crps": float(rows["crps"][r].mean()),
            "nll": float(rows["nll"][r].mean()),
            "interval_score": float(rows["interval"][r].mean()),
            "coverage": float(rows["covered"][r].mean()),
            "aurc": m.aurc(variance[r], rows["squared"][r]),
        }

    everything = np.arange(len(values))
    rows |= {"uncertainty": variance, "loss": rows["squared"]}
    return Result(scores(everything), {}, _intervals(scores, len(values), resamples, seed), len(values), 0, rows)


def _spearman(a: Array, b: Array) -> float:
    from scipy.stats import rankdata

    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])
