"""What shape is it: a multi-label verdict with its evidence, and the pipeline that fits.

The rules are ours. Each score is in [0, 1] and comes with the figures it was made from. Several may hold; none may
(``undetermined``).
"""

from __future__ import annotations

import warnings as warning_module
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import sparse

from assay.shapes.archetypes import ArchetypeTest, simplex_test
from assay.shapes.errors import ShapeError
from assay.shapes.prepare import is_anndata
from assay.shapes.reeb.tower import ReebTower
from assay.shapes.skeleton import Skeleton

SHAPES = ("clusters", "simple_traj", "multi_branch", "archetypal", "cycle")
HOLDS = 0.5
CLUSTER_SHARE = 0.02
PATH_SHARE = 0.6
TUBE = 4.0
DIMENSION = 2.0
DIMENSION_SHARE = 0.5
UNEXPLAINED = 0.6
ALPHA = 0.01
MODULARITY_CELLS = 3000

PIPELINES = {
    "clusters": "Cluster and compare groups: Leiden or Seurat, marker genes by cluster. Do not order cells in pseudotime across clusters.",  # noqa: E501
    "simple_traj": "One trajectory: DPT or the pseudotime given here; with time labels MIOFlow or conditional flow matching.",  # noqa: E501
    "multi_branch": "A branching trajectory: Slingshot, PAGA with DPT, ElPiGraph, Monocle 3; CellRank where there is velocity.",  # noqa: E501
    "archetypal": "A continuum between extremes: archetypal analysis (PCHA here, or AAnet); clusters would be cut arbitrarily.",  # noqa: E501
    "cycle": "A closed trajectory: an angle along the loop instead of pseudotime; check whether it is the cell cycle.",
}


@dataclass
class ShapeReport:
    """What `detect_shape` says.

    Attributes
    ----------
    scores : dict of str to float
        In [0, 1], for `SHAPES`.
    labels : list of str
        Shapes whose score is at least 0.5, best first; ``["undetermined"]`` where none is.
    evidence : dict of str to str
        The figures behind each score, and what they mean.
    recommendation : list of str
    skeleton : Skeleton
    tower : ReebTower
    components : list of dict
        Verdict of each component: cells, share, shape, evidence.
    regions : list of dict
        Verdict of each edge or isolated vertex: cells, share, length over width, confidence, kind.
    features : dict of str to float
        The 25 numbers that `ShapeClassifier` uses.
    model : dict of str to float
        Probabilities of the calibrated model, empty where it was not asked for.
    warnings : list of str
    """

    scores: dict[str, float]
    labels: list[str]
    evidence: dict[str, str]
    recommendation: list[str]
    skeleton: Skeleton
    tower: ReebTower
    components: list[dict[str, Any]] = field(default_factory=list)
    regions: list[dict[str, Any]] = field(default_factory=list)
    features: dict[str, float] = field(default_factory=dict)
    model: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    archetypes: ArchetypeTest | None = None
    stability: dict[str, float] = field(default_factory=dict)

    def official(self) -> dict[str, float]:
        """Scores under the four names of scShapeBench: a cycle counts as ``simple_traj``."""
        out = {name: self.scores[name] for name in ("archetypal", "multi_branch", "simple_traj", "clusters")}
        out["simple_traj"] = max(out["simple_traj"], self.scores["cycle"])
        return out

    def summary(self) -> str:
        """A few lines for a terminal."""
        lines = [f"shape: {', '.join(self.labels)}", repr(self.skeleton)]
        for name in sorted(self.scores, key=lambda k: -self.scores[k]):
            lines.append(f"  {name:13s} {self.scores[name]:.2f}  {self.evidence[name]}")
        lines += [f"  -> {line}" for line in self.recommendation]
        lines += [f"  warning: {line}" for line in self.warnings]
        return "\n".join(lines)

    def to_html(self, path: str | Path, embedding: NDArray[Any] | None = None) -> None:
        """One static file: skeleton over the embedding, persistence, verdict with reasons."""
        from assay.shapes.page import write_report

        write_report(path, self, embedding)


@dataclass
class GroupedReport:
    """One report a group, and how far their skeletons are from each other.

    Attributes
    ----------
    reports : dict of str to ShapeReport
    distances : float64[g, g]
        Root of the Gromov-Wasserstein discrepancy over the mean total length.
    failed : dict of str to str
        Groups that could not be judged, and why.
    """

    reports: dict[str, ShapeReport]
    distances: Float[np.ndarray, "g g"]
    failed: dict[str, str] = field(default_factory=dict)


def detect_shape(
    data: Any,
    *,
    use_rep: str | None = None,
    groupby: str | Sequence[Any] | NDArray[Any] | None = None,
    batch: str | Sequence[Any] | NDArray[Any] | None = None,
    covariates: Mapping[str, Any] | None = None,
    stability: bool = False,
    classifier: Any = None,
    random_state: int = 0,
    **options: Any,
) -> ShapeReport | GroupedReport:
    """What shape these cells have.

    Parameters
    ----------
    data : array[n, d], sparse matrix, AnnData, or path of a file that `assay.shapes.readers.read_cells` reads
    use_rep : str, optional
    groupby : str or array[n], optional
        Column of ``obs``, or a value a cell: one report a group.
    batch : str or array[n], optional
        Column of ``obs``, or a value a cell; a warning says whether the skeleton follows it.
    covariates : dict of str to array[n], optional
        Technical columns (total counts, share of mitochondrial reads); with AnnData ``total_counts`` and
        ``pct_counts_mt`` are taken.
    stability : bool
        Also refit on subsamples, with fewer and more neighbours and with other ranks (6 fits).
    classifier : ShapeClassifier, optional
        A trained model; its probabilities are reported beside the rules.
    **options
        Of `ReebTower`.

    Returns
    -------
    ShapeReport, or GroupedReport with ``groupby``

    Examples
    --------
    >>> from assay.shapes import make_shape
    >>> report = detect_shape(make_shape("path", 800, sigma=0.05, seed=3).X, n_bootstrap=5)
    >>> report.labels
    ['simple_traj']
    """
    if isinstance(data, (str, Path)):
        from assay.shapes.readers import read_cells

        data = read_cells(data)
    if groupby is not None:
        return _by_group(data, groupby, use_rep, batch, covariates, stability, classifier, random_state, options)
    caught: list[str] = []
    with warning_module.catch_warnings(record=True) as raised:
        warning_module.simplefilter("always")
        tower = ReebTower(random_state=random_state, **options).fit(data, use_rep=use_rep)
    for item in raised:
        warning_module.warn(item.message, stacklevel=2)
        if type(item.message).__module__.startswith("assay."):
            caught.append(str(item.message))
    report = judge(tower, random_state=random_state)
    report.warnings += caught
    from assay.shapes.confounders import confounding

    report.warnings += confounding(tower, data, batch, covariates, random_state=random_state)
    if stability:
        from assay.shapes.stability import stability_of

        report.stability = stability_of(data, tower, use_rep=use_rep, random_state=random_state)
    if classifier is not None:
        report.model = classifier.predict_one(report.features)
    return report


def _by_group(
    data: Any,
    groupby: Any,
    use_rep: str | None,
    batch: Any,
    covariates: Any,
    stability: bool,
    classifier: Any,
    random_state: int,
    options: dict[str, Any],
) -> GroupedReport:
    from assay.shapes.metrics import skeleton_distance_matrix

    values = column_of(data, groupby)
    matrix = data if is_anndata(data) or sparse.issparse(data) else np.asarray(data)
    reports, failed = {}, {}
    batch_values = None if batch is None else column_of(data, batch)
    for name in dict.fromkeys(values.tolist()):
        rows = np.flatnonzero(values == name)
        part = matrix[rows].copy() if is_anndata(matrix) else matrix[rows]
        try:
            found = detect_shape(
                part,
                use_rep=use_rep,
                batch=None if batch_values is None else batch_values[rows],
                covariates=None if covariates is None else {k: np.asarray(v)[rows] for k, v in covariates.items()},
                stability=stability,
                classifier=classifier,
                random_state=random_state,
                **options,
            )
        except ShapeError as error:
            failed[str(name)] = str(error)
            continue
        assert isinstance(found, ShapeReport)
        reports[str(name)] = found
    distances = (
        skeleton_distance_matrix([r.tower.working_skeleton_ for r in reports.values()]) if reports else np.empty((0, 0))
    )
    return GroupedReport(reports, distances, failed)


def column_of(data: Any, column: Any) -> NDArray[Any]:
    """A column of ``obs`` by name, or an array of one value a cell.

    Raises
    ------
    ShapeError
    """
    if isinstance(column, str):
        if not is_anndata(data) or column not in data.obs:
            raise ShapeError(f"there is no column {column!r} in obs; give its values as an array")
        values = np.asarray(data.obs[column])
    else:
        values = np.asarray(column)
    n = data.shape[0] if hasattr(data, "shape") else len(data)
    if len(values) != n:
        raise ShapeError(f"a column needs one value for each of the {n} cells, not {len(values)}")
    return values


def judge(tower: ReebTower, *, random_state: int = 0) -> ShapeReport:
    """The verdict on a fitted tower."""
    skeleton = tower.working_skeleton_
    shares = np.array([float(c.weights.sum()) for c in tower.components_]) / float(tower.prepared_.weights.sum())
    parts = [_component(tower, i, float(shares[i])) for i in range(len(shares))]
    scores, evidence = {}, {}
    valley = density_valleys(tower, random_state)
    heavy = int((shares >= CLUSTER_SHARE).sum())
    separate = 1.0 if heavy >= 2 else 0.0
    thin = float(np.clip((np.average(tower.explained_, weights=shares) - 0.9) / 0.1, 0, 1))
    valley["score"] *= 1 - 0.7 * thin  # along a thin curve valleys are changes of pace, not of kind
    scores["clusters"] = max(0.95 * separate, valley["score"])
    evidence["clusters"] = (
        f"{heavy} separate components of at least {CLUSTER_SHARE:.0%} of the cells; inside, {valley['text']}"
    )
    paths = [p for p in parts if p["shape"] == "path"]
    best = max(paths, key=lambda p: p["share"], default=None)
    if best is None:
        scores["simple_traj"], evidence["simple_traj"] = 0.0, "no component's skeleton is a single path"
    else:
        scores["simple_traj"] = (
            _graded(best["share"] / PATH_SHARE) * _graded(best["tube"] / TUBE) * (1 - 0.6 * valley["score"])
        )
        evidence["simple_traj"] = (
            f"a path holds {best['share']:.0%} of the cells (60 % needed), {best['tube']:.1f} times as long as wide (4 needed)"  # noqa: E501
        )
    branched = [p for p in parts if p["branch_points"] >= 1 and p["loops"] == 0 and p["confirmed"]]
    share = sum(p["share"] for p in branched)
    confidence = min((p["confidence"] for p in branched), default=0.0)
    scores["multi_branch"] = (0.5 + 0.5 * confidence) * min(1.0, share / 0.2) if branched else 0.0
    evidence["multi_branch"] = (
        f"{sum(p['branch_points'] for p in branched)} confirmed branch points, {sum(p['leaves'] for p in branched)} ends, in components of "  # noqa: E501
        f"{share:.0%} of the cells; weakest arc back in {confidence:.0%} of bootstraps"
        if branched
        else "no vertex of degree 3 or more stands above what Gaussian clouds leave"
    )
    loops = [p for p in parts if p["loops"] >= 1 and p["confirmed"]]
    confidence = min((p["confidence"] for p in loops), default=0.0)
    scores["cycle"] = (0.5 + 0.5 * confidence) * min(1.0, sum(p["share"] for p in loops) / 0.2) if loops else 0.0
    evidence["cycle"] = (
        f"{sum(p['loops'] for p in loops)} confirmed loops, back in {confidence:.0%} of bootstraps"
        if loops
        else "no loop stands above what Gaussian clouds leave"
    )
    scores["archetypal"], evidence["archetypal"], test = _archetypal(tower, scores, random_state)
    labels = [name for name in sorted(scores, key=lambda k: -scores[k]) if scores[name] >= HOLDS]
    regions = _regions(tower)
    if labels:
        recommendation = [PIPELINES[name] for name in labels]
    else:
        labels = ["undetermined"]
        top = max(scores, key=lambda k: scores[k])
        recommendation = [
            f"No shape holds (the nearest is {top} at {scores[top]:.2f}). The cells look like one cloud without structure at this depth: "  # noqa: E501
            "check the number of components and of cells before any clustering or ordering."
        ]
    report = ShapeReport(
        scores, labels, evidence, recommendation, tower.skeleton_, tower, parts, regions, {}, {}, [], test
    )
    report.features = shape_features(report, valley, shares, skeleton)
    if tower.points_.neighbors.method == "approximate":
        report.warnings.append(f"neighbours are approximate, recall {tower.points_.neighbors.recall:.3f}")
    return report


def _graded(ratio: float) -> float:
    """1 at what is needed and above, 0 at 2/5 of it, logarithmic between."""
    return float(np.clip(1 + np.log(max(ratio, 1e-9)) / np.log(2.5), 0, 1))


def _component(tower: ReebTower, i: int, share: float) -> dict[str, Any]:
    skeleton, owner = tower.working_skeleton_, tower.component_
    edges = np.unique(tower.edge_of_cell_[(owner == i) & (tower.edge_of_cell_ >= 0)])
    used = skeleton.edges[edges]
    rows = tower.persistence_[tower.persistence_["component"] == i]
    if not len(edges):
        shape, leaves, branches, loops = "vertex", 0, 0, 0
    else:
        degree = np.bincount(used.ravel(), minlength=len(skeleton.vertices))
        leaves, branches = int((degree == 1).sum()), int((degree >= 3).sum())
        loops = len(edges) - int((degree > 0).sum()) + 1
        shape = "path" if leaves == 2 and branches == 0 else ("cycle" if loops else "tree")
    confirmed = rows[rows["confirmed"]]
    confidences = confirmed["confidence"]
    return {
        "component": i,
        "cells": int((owner == i).sum()),
        "share": share,
        "shape": shape,
        "leaves": leaves,
        "branch_points": branches,
        "loops": loops,
        "tube": float(tower.elongation_[i]),
        "explained": float(tower.explained_[i]),
        "spectral": float(tower.spectral_[i]),
        "confirmed": bool(len(confirmed)),
        "confidence": float(np.nanmin(confidences)) if len(confidences) and np.isfinite(confidences).any() else 1.0,
        "lens": tower.towers_[i].lens_name,
    }


def _regions(tower: ReebTower) -> list[dict[str, Any]]:
    """Which part is what: one verdict for each edge, and for each component that is one vertex."""
    skeleton = tower.working_skeleton_
    degree = skeleton.degrees()
    n = len(tower.edge_of_cell_)
    out = []
    assert skeleton.length is not None and skeleton.width is not None and skeleton.confidence is not None
    for e, (a, b) in enumerate(skeleton.edges.tolist()):
        cells = int((tower.edge_of_cell_ == e).sum())
        tube = float(skeleton.length[e] / max(2 * skeleton.width[e], 1e-12))
        ends = sum(degree[v] == 1 for v in (a, b))
        kind = "loop" if a == b else ("whole trajectory" if ends == 2 else ("branch" if ends == 1 else "trunk"))
        out.append(
            {
                "region": f"edge {e}",
                "kind": kind if tube >= 1 else "short piece",
                "cells": cells,
                "share": cells / n,
                "tube": tube,
                "confidence": float(skeleton.confidence[e]),
            }
        )
    for i in range(len(tower.components_)):
        inside = tower.component_ == i
        if (tower.edge_of_cell_[inside] < 0).all():
            out.append(
                {
                    "region": f"component {i}",
                    "kind": "cluster",
                    "cells": int(inside.sum()),
                    "share": float(inside.mean()),
                    "tube": 0.0,
                    "confidence": 1.0,
                }
            )
    return out


def density_valleys(tower: ReebTower, random_state: int = 0) -> dict[str, Any]:
    """Clusters that still touch: Leiden modularity above that of a unimodal cloud, and dips of density between
    neighbours.

    Each component of at least 100 points is partitioned by Leiden at resolution 0.5 and compared with the mean
    modularity of three Gaussian clouds with the same covariance. Between each two neighbouring clusters of at least 2 %
    of the cells the cells near the axis that joins their means are projected on it, and Hartigan's dip is compared with
    that of uniform samples.
    """
    from assay.shapes.baselines import leiden
    from assay.shapes.kernel import nearest_neighbors

    rng = np.random.default_rng([random_state, 3])
    found, excess, valleys, pairs = 0, 0.0, 0, 0
    total = float(tower.prepared_.weights.sum())
    for part in tower.components_:
        share = float(part.weights.sum()) / total
        cells = np.flatnonzero(np.isin(tower.points_.point_of, part.points))
        if len(cells) < 100 or share < 0.2:
            continue
        cells = np.sort(rng.choice(cells, MODULARITY_CELLS, replace=False)) if len(cells) > MODULARITY_CELLS else cells
        X = tower.prepared_.X[cells]

        def partition(Y: NDArray[np.float64]) -> tuple[NDArray[np.int64], float]:
            graph = nearest_neighbors(Y, 15).graph()
            graph.data[:] = 1.0
            labels = leiden(graph, 0.5, random_state)
            return labels, modularity(graph, labels)

        labels, own = partition(X)
        spread = np.linalg.cholesky(np.cov(X, rowvar=False) + 1e-9 * np.eye(X.shape[1]) * X.var())
        null = [partition(rng.normal(size=X.shape) @ spread.T)[1] for _ in range(3)]
        excess = max(excess, own - float(np.mean(null)))
        sizes = np.bincount(labels)
        big = np.flatnonzero(sizes >= CLUSTER_SHARE * len(labels))
        found += len(big)
        for i, a in enumerate(big):
            means = [float(np.linalg.norm(X[labels == a].mean(axis=0) - X[labels == b].mean(axis=0))) for b in big]
            order = [b for b in big[np.argsort(means)] if b != a][:2]
            for b in order:
                if b < a and i > 0 and a in _nearest(X, labels, big, int(b)):
                    continue
                pairs += 1
                valleys += has_valley(X, labels, int(a), int(b), rng)
    share = valleys / pairs if pairs else 0.0
    score = float(np.clip(excess / 0.1, 0, 1) * np.clip((share - 0.2) / 0.4, 0, 1)) if found >= 2 else 0.0
    text = f"{found} Leiden clusters, modularity {excess:+.2f} against a unimodal cloud, density valleys between {valleys} of {pairs} neighbouring pairs"  # noqa: E501
    return {"score": score, "excess": excess, "valleys": share, "clusters": float(found), "text": text}


def _nearest(X: NDArray[np.float64], labels: NDArray[np.int64], big: NDArray[np.int64], b: int) -> list[int]:
    means = [float(np.linalg.norm(X[labels == b].mean(axis=0) - X[labels == c].mean(axis=0))) for c in big]
    return [int(c) for c in big[np.argsort(means)] if c != b][:2]


def modularity(graph: sparse.csr_array, labels: NDArray[np.int64]) -> float:
    """Newman's modularity of a partition of a symmetric graph."""
    degree = np.asarray(graph.sum(axis=1)).ravel()
    whole = degree.sum()
    coo = graph.tocoo()
    rows, columns = coo.coords
    inside = coo.data[labels[rows] == labels[columns]].sum() / whole
    return float(inside - ((np.bincount(labels, degree) / whole) ** 2).sum())


def has_valley(X: NDArray[np.float64], labels: NDArray[np.int64], a: int, b: int, rng: np.random.Generator) -> bool:
    """Whether cells of two clusters, projected on the discriminant axis between them, have two modes (Hartigan's dip,
    5 %).
    """
    one, two = X[labels == a], X[labels == b]
    size = min(len(one), len(two), 300)
    if size < 10:
        return False
    one, two = one[rng.choice(len(one), size, replace=False)], two[rng.choice(len(two), size, replace=False)]
    within = np.cov(one, rowvar=False) + np.cov(two, rowvar=False)
    within = np.atleast_2d(within) + 1e-6 * np.trace(np.atleast_2d(within)) * np.eye(X.shape[1])
    axis = np.linalg.solve(within, one.mean(axis=0) - two.mean(axis=0))
    values = np.concatenate([one, two]) @ axis
    return dip_statistic(values) > dip_bound(len(values))


def dip_statistic(values: Float[np.ndarray, " n"]) -> float:
    """Hartigan's dip: the least largest distance of the empirical distribution from a unimodal one.

    Taken over all places of the mode by the greatest convex minorant before and the least concave majorant after it.

    Examples
    --------
    >>> round(dip_statistic(np.array([0.0, 0.01, 0.02, 1.0, 1.01, 1.02])), 3)
    0.245
    """
    x = np.sort(np.asarray(values, dtype=np.float64))
    n = len(x)
    low, high = np.arange(n) / n, np.arange(1, n + 1) / n
    best = np.inf
    for m in np.unique(np.linspace(0, n - 1, min(n, 25)).astype(int)):
        left = _hull_gap(x[: m + 1], low[: m + 1], high[: m + 1], convex=True)
        right = _hull_gap(x[m:], low[m:], high[m:], convex=False)
        best = min(best, max(left, right))
    return float(best) / 2


def _hull_gap(x: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], convex: bool) -> float:
    """Largest distance of a distribution function's steps from its convex minorant (concave majorant)."""
    if len(x) < 2 or x[-1] == x[0]:
        return 0.0
    y = low if convex else -high
    hull = [0]
    for i in range(1, len(x)):
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) >= (y[i] - y[a]) * (x[b] - x[a]):
                hull.pop()
            else:
                break
        hull.append(i)
    line = np.interp(x, x[hull], y[hull])
    return float(np.max(high - line)) if convex else float(np.max(-line - low))


def dip_bound(n: int) -> float:
    """95th percentile of the dip of n uniform values: Hartigan's table, as c / sqrt(n) (0.47 at 20 values, 0.52 past
    1000).
    """
    return float(
        np.interp(np.log(n), np.log([20, 50, 100, 200, 500, 1000]), [0.48, 0.499, 0.508, 0.515, 0.519, 0.522])
        / np.sqrt(n)
    )


def local_dimension(X: Float[np.ndarray, "n r"], neighbors: Any) -> Float[np.ndarray, " n"]:
    """Maximum-likelihood dimension at each cell from the distances to its neighbours (Levina and Bickel 2005)."""
    d = np.maximum(neighbors.distances, 1e-12)
    with np.errstate(divide="ignore"):
        return (d.shape[1] - 2) / np.maximum(np.log(d[:, -1:] / d[:, :-1]).sum(axis=1), 1e-12)


def _archetypal(
    tower: ReebTower, scores: Mapping[str, float], random_state: int
) -> tuple[float, str, ArchetypeTest | None]:
    X = tower.prepared_.X
    dimension = local_dimension(X, tower.points_.neighbors)
    full = float(np.mean(dimension >= DIMENSION))
    explained = float(np.average(tower.explained_, weights=[c.weights.sum() for c in tower.components_]))
    text = f"{full:.0%} of the cells have a local dimension of 2 or more (50 % needed), the skeleton explains {explained:.0%} of the variance (below 60 % needed)"  # noqa: E501
    largest = tower.components_[0]
    share = float(largest.weights.sum()) / float(tower.prepared_.weights.sum())
    if full < DIMENSION_SHARE or explained >= UNEXPLAINED or share < PATH_SHARE or X.shape[1] < 2:
        return 0.0, text, None
    test = simplex_test(X, random_state=random_state)
    text += f"; simplex of {test.k} at {test.t_ratio:.2f} of the hull, p = {test.p_value:.3f} against shuffled columns"
    score = 0.95 if test.p_value < ALPHA else float(np.clip(0.4 * (1 - test.p_value), 0, 0.4))
    return score, text, test


def shape_features(
    report: ShapeReport, valley: Mapping[str, Any], shares: NDArray[np.float64], skeleton: Skeleton
) -> dict[str, float]:
    """The 25 numbers that a model is trained on; none depends on the units or the number of cells directly."""
    tower = report.tower
    main = report.components[0]
    rows = tower.persistence_
    leaves, loops = rows[rows["kind"] == "leaf"], rows[rows["kind"] == "loop"]
    strong = np.sort(leaves["persistence"])[::-1]
    dimension = local_dimension(tower.prepared_.X, tower.points_.neighbors)
    values = tower.components_[0].diffusion.eigenvalues
    gaps = 1 - values[1:6] if len(values) > 5 else np.pad(1 - values[1:], (0, 5))[:5]
    b0, b1 = skeleton.betti()
    features = {
        "components": float(b0),
        "components_2_percent": float((shares >= CLUSTER_SHARE).sum()),
        "largest_share": float(shares.max()),
        "share_entropy": float(-(shares * np.log(np.maximum(shares, 1e-12))).sum()),
        "loops": float(b1),
        "leaves": float(len(skeleton.leaves())),
        "branch_points": float(len(skeleton.branch_points())),
        "largest_degree": float(skeleton.degrees().max()),
        "tube": float(np.log1p(main["tube"])),
        "explained": main["explained"],
        "spectral": main["spectral"],
        "third_leaf": float(strong[2]) if len(strong) > 2 else 0.0,
        "largest_loop": float(loops["persistence"].max()) if len(loops) else 0.0,
        "vertices_alone": float(sum(p["shape"] == "vertex" for p in report.components)),
        "path_share": float(sum(p["share"] for p in report.components if p["shape"] == "path")),
        "modularity_excess": float(valley["excess"]),
        "valleys": float(valley["valleys"]),
        "leiden": float(valley["clusters"]),
        "dimension_median": float(np.median(dimension)),
        "dimension_2_share": float(np.mean(dimension >= DIMENSION)),
        "rank": float(tower.prepared_.rank),
        "gap_2": float(gaps[1] / max(gaps[0], 1e-12)) if gaps[0] else 0.0,
        "gap_3": float(gaps[2] / max(gaps[0], 1e-12)) if gaps[0] else 0.0,
        "t_ratio": report.archetypes.t_ratio if report.archetypes else 0.0,
        "simplex_p": report.archetypes.p_value if report.archetypes else 1.0,
    }
    return features


class ShapeClassifier:
    """A calibrated gradient-boosted model of the four official labels, trained on generated shapes.

    Parameters
    ----------
    random_state : int

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> rows = [{"a": float(x)} for x in rng.normal(size=60)]
    >>> truth = np.array([[row["a"] > 0, row["a"] <= 0, row["a"] > 1, False] for row in rows])
    >>> model = ShapeClassifier().fit(rows, truth)
    >>> model.predict_one({"a": 2.0})["archetypal"] > 0.5
    True
    """

    def __init__(self, random_state: int = 0) -> None:
        self.random_state = random_state

    def fit(self, features: Sequence[Mapping[str, float]], labels: NDArray[np.bool_]) -> ShapeClassifier:
        """Train on feature dictionaries and labels in the order of `assay.shapes.synthetic.LABELS`.

        Each label has its own boosted trees with isotonic-free (sigmoid) calibration over 3 folds; one that never
        varies is its share.
        """
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.ensemble import HistGradientBoostingClassifier

        from assay.shapes.synthetic import LABELS

        self.names_ = list(features[0])
        X = self._matrix(features)
        self.models_: dict[str, Any] = {}
        for name, y in zip(LABELS, np.asarray(labels, dtype=bool).T, strict=True):
            if min(y.sum(), (~y).sum()) < 6:
                self.models_[name] = float(y.mean())
                continue
            trees = HistGradientBoostingClassifier(max_iter=60, min_samples_leaf=5, random_state=self.random_state)
            self.models_[name] = CalibratedClassifierCV(trees, method="sigmoid", cv=3).fit(X, y)
        return self

    def predict_one(self, features: Mapping[str, float]) -> dict[str, float]:
        """Probability of each label."""
        X = self._matrix([features])
        return {
            name: model if isinstance(model, float) else float(model.predict_proba(X)[0, 1])
            for name, model in self.models_.items()
        }

    def _matrix(self, features: Sequence[Mapping[str, float]]) -> NDArray[np.float64]:
        return np.array([[row[name] for name in self.names_] for row in features], dtype=np.float64)

    @classmethod
    def train(cls, n_shapes: int = 80, n: int = 600, random_state: int = 0) -> ShapeClassifier:
        """Train on freshly generated shapes (a few seconds each 10)."""
        from assay.shapes.synthetic import KINDS, make_shape

        rng = np.random.default_rng(random_state)
        rows, truth = [], []
        for i in range(n_shapes):
            made = make_shape(
                KINDS[i % len(KINDS)],
                n,
                30,
                sigma=float(rng.choice([0.02, 0.05, 0.1, 0.2, 0.4])),
                imbalance=float(rng.choice([1, 5, 20])),
                seed=int(rng.integers(2**31)),
            )
            with warning_module.catch_warnings():
                warning_module.simplefilter("ignore")
                report = judge(
                    ReebTower(n_bootstrap=0, n_jobs=1, random_state=random_state).fit(made.X), random_state=random_state
                )
            rows.append(report.features)
            truth.append(made.label)
        return cls(random_state).fit(rows, np.array(truth))
