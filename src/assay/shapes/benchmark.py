"""The benchmark of the field: generated skeletons by topology-aware scores, real sets by their known shape."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.benchmark import Benchmark, Method, Metric, Task
from assay.core.run import RunContext
from assay.shapes.baselines import METHODS, Found
from assay.shapes.data import DATASETS, load
from assay.shapes.labels import label_scores
from assay.shapes.metrics import score_skeleton
from assay.shapes.skeleton import Skeleton
from assay.shapes.synthetic import KINDS, LABELS, cell_params, make_shape

GENERATED_GROUPS = ("topology", "features", "surface", "persistence", "cells", "edit")


@dataclass(frozen=True)
class ShapeTask:
    """Generated cells (a fresh replicate for each seed), or a real set."""

    kind: str = ""
    sigma: float = 0.1
    n: int = 2000
    imbalance: float = 1.0
    dataset: str = ""

    def fingerprint(self) -> str:
        """Parameters of the generator, or the hash of the data."""
        if self.dataset:
            from assay.core.data import fingerprint

            return fingerprint(load(self.dataset).X)
        return f"bench-v1/{self.kind}/{self.sigma}/{self.n}/{self.imbalance}"


@dataclass
class ReebMethod:
    """`ReebTower` and its verdict."""

    n_bootstrap: int = 0
    n_neighbors: int = 15

    def __call__(self, X: NDArray[Any], seed: int) -> tuple[Found, dict[str, float]]:
        from assay.shapes.classify import judge
        from assay.shapes.reeb.tower import ReebTower

        tower = ReebTower(n_bootstrap=self.n_bootstrap, n_neighbors=self.n_neighbors, n_jobs=1, random_state=seed).fit(
            X
        )
        return Found(tower.skeleton_, tower.edge_of_cell_, tower.t_), judge(tower, random_state=seed).official()


@dataclass
class Baseline:
    """A method of `assay.shapes.baselines`; its labels are read off its skeleton."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, X: NDArray[Any], seed: int) -> tuple[Found, dict[str, float]]:
        options = dict(self.options)
        if self.name != "mapper":
            options["random_state"] = seed
        found = METHODS[self.name](X, **options)
        return found, labels_of(found.skeleton, archetypal=self.name == "archetypal")


def labels_of(skeleton: Skeleton, archetypal: bool = False) -> dict[str, float]:
    """The official labels that a skeleton stands for by its topology alone."""
    b0, _ = skeleton.betti()
    branches = len(skeleton.branch_points()) > 0
    return {
        "archetypal": float(archetypal),
        "multi_branch": float(branches and not archetypal),
        "simple_traj": float(not branches and not archetypal and len(skeleton.edges) > 0),
        "clusters": float(b0 >= 2),
    }


def make_method(name: str = "reeb", **options: Any) -> Any:
    """A method by name: ``reeb`` or one of the baselines."""
    if name == "reeb":
        return ReebMethod(**options)
    return Baseline(name, tuple(sorted(options.items())))


def evaluate(task: Task, method: Method, context: RunContext) -> Mapping[str, float]:
    """One method on one task; generated tasks draw the replicate of the run's seed."""
    spec: ShapeTask = task.data()
    run = method.make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if spec.dataset:
            real = load(spec.dataset)
            found, labels = run(real.X, context.integer_seed("method") if context.seed else 0)
            truth = np.array([[float(name in real.labels) for name in LABELS]])
            context.note(labels=labels)
            found.skeleton.save(context.artifact("skeleton.npz"))
            return _label_part(labels, truth)
        params = cell_params(spec.kind, spec.sigma, spec.n, spec.imbalance, context.seed)
        made = make_shape(**params)
        found, labels = run(made.X, 0)
        scores = score_skeleton(
            found.skeleton,
            made.skeleton,
            metrics=GENERATED_GROUPS,
            cells_pred=(found.edge_of_cell, found.t),
            cells_true=(made.edge_of_cell, made.t),
        )
    found.skeleton.save(context.artifact("skeleton.npz"))
    made.skeleton.save(context.artifact("truth.npz"))
    context.note(labels=labels, true_labels=made.labels, skeleton=repr(found.skeleton))
    scores = {name: value for name, value in scores.items() if name in benchmark.metrics}
    return {**scores, **_label_part(labels, made.label[None].astype(float))}


def _label_part(labels: Mapping[str, float], truth: NDArray[np.float64]) -> dict[str, float]:
    scores = label_scores(np.array([[labels[name] for name in LABELS]]), truth)
    return {"labels_right": scores["subset_accuracy"], "label_brier": scores["brier"], "label_f1": scores["micro_f1"]}


def _generated(
    name: str,
    higher: bool,
    title: str = "",
    format: str = ".3f",
    bounds: tuple[float, float] | None = None,
) -> Metric:
    bounds = bounds or ((0.0, 1.0) if higher else (0.0, math.inf))  # scores are shares, errors and distances are not
    return Metric(name, higher, title=title, format=format, may_be_undefined=True, bounds=bounds)


benchmark = Benchmark(
    "shapes",
    "The shape of single-cell data",
    [
        Metric("label_f1", True, "label F1 (micro)", bounds=(0, 1)),
        _generated("overall", True),
        _generated("b0_error", False, "components, error", ".2f"),
        _generated("b1_error", False, "loops, error", ".2f"),
        _generated("topology_right", True, "topology right"),
        _generated("degree_distance", False, format=".2f"),
        _generated("leaf_f1", True, "leaf F1"),
        _generated("branch_f1", True, "branch point F1"),
        _generated("branches_f1", True, "branch assignment F1"),
        _generated("geodesic_spearman", True, bounds=(-1, 1)),
        _generated("pseudotime_spearman", True, bounds=(-1, 1)),
        _generated("edit_distance", False, "graph edit distance", ".2f"),
        _generated("chamfer", False),
        _generated("hausdorff", False),
        _generated("bottleneck", False),
        _generated("wasserstein", False),
        Metric("labels_right", True, "all labels right", bounds=(0, 1)),
        Metric("label_brier", False, "label Brier score", bounds=(0, 1)),
    ],
    evaluate,
    description="Generated skeletons are compared by topology and place; real sets by the shape that is known of them.",
    packages=("scikit-learn", "igraph", "leidenalg"),
    default_seeds=range(1),  # 120 generated tasks: pairs enough for the tests
)
for _kind in KINDS:
    for _n in (500, 2000, 10_000):
        for _sigma in (0.02, 0.05, 0.1, 0.2, 0.4):
            for _imbalance in (1, 5, 20):
                benchmark.add_task(
                    f"{_kind}-n{_n}-s{_sigma:g}-i{_imbalance}",
                    partial(ShapeTask, _kind),
                    title=f"{_kind}, n {_n}, sigma {_sigma:g}, imbalance {_imbalance}:1",
                    tags={"generated", _kind},
                    sigma=_sigma,
                    n=_n,
                    imbalance=float(_imbalance),
                )
for _name in DATASETS:
    benchmark.add_task(_name, partial(ShapeTask, dataset=_name), title=_name, tags={"real"})

benchmark.add_method("reeb", partial(make_method, "reeb"), title="Reeb tower")
benchmark.add_method("paga", partial(make_method, "paga"), title="PAGA, threshold 0.05")
benchmark.add_method("paga_strict", partial(make_method, "paga", threshold=0.3), title="PAGA, threshold 0.3")
benchmark.add_method("mapper", partial(make_method, "mapper"), title="Mapper, two components")
benchmark.add_method(
    "mapper_eccentricity", partial(make_method, "mapper", lens="eccentricity", n_cubes=20), title="Mapper, eccentricity"
)
benchmark.add_method(
    "mapper_knn", partial(make_method, "mapper", lens="knn"), title="Mapper, density and one component"
)
benchmark.add_method("minimum_tree", partial(make_method, "minimum_tree"), title="minimum spanning tree")
benchmark.add_method("principal_tree", partial(make_method, "principal_tree"), title="principal tree")
benchmark.add_method("archetypal", partial(make_method, "archetypal"), title="always a simplex")
benchmark.add_method("always_clusters", partial(make_method, "always_clusters"), title="always clusters", baseline=True)

benchmark.quick(
    tasks=[
        "iris",
        "digits",
        "tree-n500-s0.05-i1",
        "cycle-n500-s0.05-i1",
        "clusters-n500-s0.05-i1",
        "path-n500-s0.1-i1",
    ],
    methods=["reeb", "paga", "mapper", "minimum_tree", "always_clusters"],
    seeds=(0, 1),
)
benchmark.full(
    tasks=["digits", "iris", *(t for t in benchmark.tasks if "-n2000-" in t)],
    methods=list(benchmark.methods),
)
