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
from assay.shapes.errors import ShapeError, UnknownKindError
from assay.shapes.model import DIMENSION, ShapeClassifier, local_dimension, shape_features
from assay.shapes.prepare import column_of, is_anndata, permutation_rank
from assay.shapes.reeb.tower import ReebTower
from assay.shapes.skeleton import Skeleton
from assay.shapes.valleys import CLUSTER_SHARE, density_valleys

SHAPES = ("clusters", "simple_traj", "multi_branch", "archetypal", "cycle")
HOLDS = 0.5
PATH_SHARE = 0.6
TUBE = 4.0
DIMENSION_SHARE = 0.5
UNEXPLAINED = 0.6
ALPHA = 0.01

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
    rank : dict of str to int
        ``working``; ``above_threshold``: singular values above the Gavish-Donoho threshold, before it is clipped;
        ``permutation``: those above shuffled columns, which keeps none of principal components.
    features : dict of str to float
        The 25 numbers that `ShapeClassifier` uses.
    model : dict of str to float
        Probabilities of the calibrated model, empty where it was not asked for.
    warnings : list of str
    archetypes : ArchetypeTest, optional
        Where the test was made.
    stability : dict of str to float
        Shares of refits with the same topology.
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
    rank: dict[str, int] = field(default_factory=dict)

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
        if self.model:
            lines.append("  model: " + ", ".join(f"{name} {value:.2f}" for name, value in self.model.items()))
        if self.stability:
            lines.append(f"  stability: {self.stability['all']:.0%} of changed refits have the same topology")
        lines += [f"  -> {line}" for line in self.recommendation]
        lines += [f"  warning: {line}" for line in self.warnings]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the skeleton and the tower, as plain values for JSON."""
        return {
            "labels": self.labels,
            "scores": self.scores,
            "evidence": self.evidence,
            "recommendation": self.recommendation,
            "model": self.model,
            "rank": self.rank,
            "stability": self.stability,
            "components": self.components,
            "regions": self.regions,
            "features": self.features,
            "warnings": self.warnings,
            "betti": [int(b) for b in self.skeleton.betti()],
        }

    def to_html(
        self, path: str | Path, embedding: NDArray[Any] | None = None, colors: Mapping[str, Any] | None = None
    ) -> None:
        """One static file: skeleton over the embedding, persistence, verdict with reasons.

        Parameters
        ----------
        path : path
        embedding : array[n, 2], optional
        colors : dict of str to array[n], optional
            Columns that the cells can be coloured by.
        """
        from assay.shapes.page import write_report

        write_report(path, self, embedding, colors)


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
    stability: bool = True,
    classifier: ShapeClassifier | str | None = "shipped",
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
        Also refit on subsamples, with fewer and more neighbours and with other ranks (6 fits, of at most 5000 cells).
    classifier : ShapeClassifier, "shipped" or None
        A trained model, or that of the package; its probabilities are reported beside the rules.
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
    caught: list[str] = []
    with warning_module.catch_warnings(record=True) as raised:
        warning_module.simplefilter("always")
        if isinstance(data, (str, Path)):
            from assay.shapes.readers import read_cells

            data = read_cells(data)
        if groupby is None:
            tower = ReebTower(random_state=random_state, **options).fit(data, use_rep=use_rep)
    for item in raised:
        warning_module.warn(item.message, stacklevel=2)
        if type(item.message).__module__.startswith("assay."):
            caught.append(str(item.message))
    if groupby is not None:
        return _by_group(data, groupby, use_rep, batch, covariates, stability, classifier, random_state, options)
    report = judge(tower, random_state=random_state)
    report.warnings += caught
    from assay.shapes.confounders import confounding

    report.warnings += confounding(tower, data, batch, covariates, random_state=random_state)
    if stability:
        from assay.shapes.stability import stability_of

        report.stability = stability_of(tower, random_state=random_state)
    if classifier is not None:
        model = ShapeClassifier.shipped() if isinstance(classifier, str) else classifier
        report.model = model.predict_one(report.features)
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


def judge(tower: ReebTower, *, random_state: int = 0) -> ShapeReport:
    """The verdict on a fitted tower."""
    skeleton = tower.working_skeleton_
    shares = np.array(tower.share_)
    parts = [_component(tower, i, float(shares[i])) for i in range(len(shares))]
    scores, evidence = {}, {}
    valley = density_valleys(tower, random_state)
    heavy = int((shares >= CLUSTER_SHARE).sum())
    separate = 1.0 if heavy >= 2 else 0.0
    thin = float(np.clip((np.average(tower.explained_, weights=shares) - 0.9) / 0.1, 0, 1))
    valley["score"] *= 1 - 0.7 * thin  # along a thin curve valleys are changes of pace, not of kind
    scores["clusters"] = max(0.95 * separate, valley["score"])
    evidence["clusters"] = (
        f"{_count(heavy, 'separate component')} of at least {CLUSTER_SHARE:.0%} of the cells; inside, {valley['text']}"
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
    scores["multi_branch"] = (
        (0.5 + 0.5 * confidence) * min(1.0, share / 0.2) * (1 - 0.6 * valley["score"]) if branched else 0.0
    )
    evidence["multi_branch"] = (
        f"{_count(sum(p['branch_points'] for p in branched), 'confirmed branch point')}, {sum(p['leaves'] for p in branched)} ends, in components of "  # noqa: E501
        f"{share:.0%} of the cells; weakest arc {_back(tower, confidence)}"
        if branched
        else "no vertex of degree 3 or more stands above what Gaussian clouds leave"
    )
    loops = [p for p in parts if p["loops"] >= 1 and p["confirmed"]]
    confidence = min((p["confidence"] for p in loops), default=0.0)
    scores["cycle"] = (0.5 + 0.5 * confidence) * min(1.0, sum(p["share"] for p in loops) / 0.2) if loops else 0.0
    evidence["cycle"] = (
        f"{_count(sum(p['loops'] for p in loops), 'confirmed loop')}, {_back(tower, confidence)}"
        if loops
        else "no loop stands above what Gaussian clouds leave"
    )
    scores["archetypal"], evidence["archetypal"], test = _archetypal(tower, scores, random_state)
    labels = [name for name in sorted(scores, key=lambda k: -scores[k]) if scores[name] >= HOLDS] or ["undetermined"]
    regions = _regions(tower)
    recommendation = recommend(scores)
    report = ShapeReport(
        scores, labels, evidence, recommendation, tower.skeleton_, tower, parts, regions, {}, {}, [], test
    )
    report.rank = {
        "working": tower.prepared_.rank,
        "above_threshold": tower.prepared_.above_threshold,
        "permutation": permutation_rank(tower.prepared_.features, random_state=random_state),
    }
    report.features = shape_features(report, valley, shares, skeleton)
    if tower.points_.neighbors.method == "approximate":
        report.warnings.append(f"neighbours are approximate, recall {tower.points_.neighbors.recall:.3f}")
    report.warnings += tower.prepared_.notes
    strays = int(tower.stray_.sum())
    if strays:
        report.warnings.append(f"{strays} cells lie alone: they shape nothing, and are on the edge nearest to them")
    return report


def recommend(scores: Mapping[str, float]) -> list[str]:
    """The pipelines that fit: one line a shape whose score is at least 0.5, best first.

    Parameters
    ----------
    scores : dict of str to float
        For names of `SHAPES`.

    Examples
    --------
    >>> recommend({"clusters": 0.9, "multi_branch": 0.2})[0][:27]
    'Cluster and compare groups:'
    """
    unknown = set(scores) - set(PIPELINES)
    if unknown or not scores:
        raise UnknownKindError(f"there is no pipeline for {sorted(unknown)}; give scores of {', '.join(PIPELINES)}")
    held = [name for name in sorted(scores, key=lambda k: -scores[k]) if scores[name] >= HOLDS]
    if held:
        return [PIPELINES[name] for name in held]
    top = max(scores, key=lambda k: scores[k])
    return [
        f"No shape holds (the nearest is {top} at {scores[top]:.2f}). The cells look like one cloud without structure at this depth: "  # noqa: E501
        "check the number of components and of cells before any clustering or ordering."
    ]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _back(tower: ReebTower, confidence: float) -> str:
    return f"back in {confidence:.0%} of bootstraps" if tower.n_bootstrap else "not bootstrapped"


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
