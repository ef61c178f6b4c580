"""The numbers that describe a fitted tower, and a model of the official labels trained on them.

The model that comes with the package is fitted when it is first asked for (a few seconds) on the table
``training.npz``: features and true labels of generated shapes, made by `assay.shapes.training`. A table is stored and
not a model, because a stored model would be a pickle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from assay.shapes.files import written_whole
from assay.shapes.skeleton import Skeleton
from assay.shapes.valleys import CLUSTER_SHARE

if TYPE_CHECKING:
    from assay.shapes.classify import ShapeReport

DIMENSION = 2.0
TABLE = Path(__file__).with_name("training.npz")


def local_dimension(X: Float[np.ndarray, "n r"], neighbors: Any) -> Float[np.ndarray, " n"]:
    """Maximum-likelihood dimension at each cell from the distances to its neighbours (Levina and Bickel 2005)."""
    d = np.maximum(neighbors.distances, 1e-12)
    with np.errstate(divide="ignore"):
        return (d.shape[1] - 2) / np.maximum(np.log(d[:, -1:] / d[:, :-1]).sum(axis=1), 1e-12)


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
            trees = HistGradientBoostingClassifier(
                learning_rate=0.15, max_iter=40, max_leaf_nodes=6, min_samples_leaf=5, random_state=self.random_state
            )
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
    def train(cls, n_shapes: int = 78, random_state: int = 0) -> ShapeClassifier:
        """Train on freshly generated shapes (about a second each); see `assay.shapes.training.draw`.

        Parameters
        ----------
        n_shapes : int
        random_state : int
        """
        from assay.shapes.training import table_of_shapes

        rows, labels, _ = table_of_shapes(n_shapes, random_state)
        return cls(random_state).fit(rows, labels)

    @classmethod
    def shipped(cls) -> ShapeClassifier:
        """The model of the package.

        Examples
        --------
        >>> sorted(ShapeClassifier.shipped().models_)
        ['archetypal', 'clusters', 'multi_branch', 'simple_traj']
        """
        return _shipped()


@lru_cache(maxsize=1)
def _shipped() -> ShapeClassifier:
    rows, labels, _ = read_table(TABLE)
    return ShapeClassifier().fit(rows, labels)


def write_table(
    path: Path, rows: Sequence[Mapping[str, float]], labels: NDArray[np.bool_], rules: NDArray[np.float64]
) -> None:
    """Store a table as plain arrays."""
    names = list(rows[0])
    values = np.array([[row[name] for name in names] for row in rows], dtype=np.float32)
    with written_whole(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, names=np.array(names), features=values, labels=labels, rules=rules.astype(np.float32))


def read_table(path: Path) -> tuple[list[dict[str, float]], NDArray[np.bool_], NDArray[np.float64]]:
    """What `write_table` stored."""
    with np.load(path, allow_pickle=False) as file:
        names, values = file["names"].tolist(), file["features"].astype(np.float64)
        return [dict(zip(names, row, strict=True)) for row in values.tolist()], file["labels"], file["rules"]
