"""What the benchmark makes its methods with: the trivial baseline, classes by their names, scaling."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np


class Frequencies:
    """The trivial baseline: every row gets the shares of the classes (mean and variance of the targets), equally
    unsure."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, X: Any, y: Any) -> Frequencies:
        """Take the shares."""
        y = np.asarray(y)
        self.numbers_ = y.dtype.kind == "f" and y.ndim == 1
        if self.numbers_:
            self.mean_, self.var_ = float(y.mean()), float(y.var())
        elif y.ndim == 2:
            self.classes_, self.share_ = np.arange(y.shape[1]), y.mean(0)
        else:
            self.classes_, counts = np.unique(y, return_counts=True)
            self.share_ = counts / counts.sum()
        return self

    def predict(self, X: Any) -> Any:
        """The same for every row."""
        from assay.uncertainty.representations import Categorical, GaussianSample

        n = len(X)
        if self.numbers_:
            return GaussianSample(np.full((n, 1), self.mean_), np.full((n, 1), self.var_))
        return Categorical(np.tile(self.share_, (n, 1))).named(self.classes_.tolist())


@dataclass(frozen=True)
class Named:
    """Makes a method by the path of its class; its module is imported at the first call.

    Keywords of the inner method are those of the class that trains (a credal wrapper hands them on).
    """

    path: str
    inner: str = ""
    keywords: tuple[tuple[str, Any], ...] = ()
    scaled: bool = False

    def __call__(self, seed: int = 0, **params: Any) -> Any:
        settings = {**dict(self.keywords), **params}
        if self.inner:
            outer = {k: settings.pop(k) for k in ("alpha",) if k in settings}
            return _class(self.path)(_made(self.inner, seed, settings, False), **outer)
        return _made(self.path, seed, settings, self.scaled)

    def parameter_names(self) -> list[str]:
        """Parameters that the class takes."""
        import inspect

        path = self.inner or self.path
        names = list(inspect.signature(_class(path).__init__).parameters)
        if path.startswith("transforms_torch"):
            names += ["epochs", "lr", "min_steps"]
        return [n for n in (*names, *(("alpha",) if self.inner else ())) if n not in ("self", "seed", "config")]


def _class(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(
        import_module(module if module.startswith(("sklearn", "assay")) else f"assay.uncertainty.{module}"), name
    )


def _made(path: str, seed: int, settings: dict[str, Any], scaled: bool) -> Any:
    kind = _class(path)
    if path.startswith("transforms_torch"):
        from dataclasses import replace

        from assay.uncertainty.transforms_torch.base import DEFAULT

        # A few dozen rows make an epoch of one step: without a least number of steps networks are hardly trained.
        config = replace(
            DEFAULT,
            epochs=settings.pop("epochs", 30),
            min_steps=settings.pop("min_steps", 150),
            lr=settings.pop("lr", 5e-3),
        )
        return kind(config=config, seed=seed, **{"batch_size": 128, **settings})
    if path.startswith("cases."):
        return kind(seed=seed, **settings)
    if path.startswith("transforms_flax"):
        return kind(seed=seed, epochs=settings.pop("epochs", 30), **settings)
    base = settings.pop("base", None)
    if base is not None:
        estimator = _class(base)()
        if "random_state" in estimator.get_params():
            estimator.set_params(random_state=seed)
        if "max_iter" in estimator.get_params():
            estimator.set_params(max_iter=500)
        if "n_estimators" in estimator.get_params():
            estimator.set_params(n_estimators=settings.pop("trees", 50))
        settings["forest" if path.endswith("ForestEnsemble") else "base"] = estimator
    import inspect

    if "seed" in inspect.signature(kind.__init__).parameters:
        settings["seed"] = seed
    method = kind(**settings)
    return Scaled(method) if scaled else method


class Scaled:
    """Standardises the columns by the training rows before a method that does not do so itself."""

    def __init__(self, method: Any) -> None:
        self.method = method

    def fit(self, X: Any, y: Any) -> Scaled:
        """Scale and fit."""
        x = np.asarray(X, dtype=np.float64)
        self.center_, spread = x.mean(0), x.std(0)
        self.spread_ = np.where(spread > 1e-8, spread, 1)
        self.method.fit((x - self.center_) / self.spread_, y)
        return self

    def predict(self, X: Any) -> Any:
        """Scale and predict."""
        return self.method.predict((np.asarray(X, dtype=np.float64) - self.center_) / self.spread_)
