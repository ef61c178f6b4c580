"""The comparison that the field is about: equal search budgets, stopping as a factor, prediction beside diagnosis.

`assay run diagnosis` runs the same cells through the store of runs; this is for a script of one's own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.diagnosis.errors import DiagnosisError, UnknownName
from assay.diagnosis.estimator import DiagnosisModel
from assay.diagnosis.evaluation import DIAGNOSIS, figures, scored
from assay.diagnosis.irt import IRT
from assay.diagnosis.metrics import auc, log_loss, rank_agreement
from assay.diagnosis.models import model_class
from assay.diagnosis.responses import ResponseData, Split

if TYPE_CHECKING:
    import pandas as pd

NEURAL = ("NCDM", "KaNCD", "CDMFKC", "KSCD", "HierCDF", "IDCDF", "RCD", "ORCDF", "GradientDINA")
_ADAM: dict[str, Any] = {"lr": (5e-4, 1e-2), "weight_decay": [0.0, 1e-5, 5e-4]}
_LAYERS: dict[str, Any] = {"dropout": [0.0, 0.2, 0.5], "scale": [1.0, 10.0]}
SEARCH_SPACES: Mapping[str, dict[str, Any]] = {
    "ItemMean": {"strength": (1.0, 30.0)},
    "StudentItemLogit": {"strength": (1.0, 30.0)},
    "KCAccuracy": {"strength": (1.0, 30.0)},
    "Rasch": {"estimator": ["map", "em"], "score": ["eap", "map"]},
    "IRT": {"model": ["1pl", "2pl", "3pl"], "estimator": ["map", "em"]},
    "MIRT": {"correlation": [0.0, 0.25, 0.5, 0.75, 0.9]},
    "DINA": {"monotone": [True, False], "starts": [1, 3]},
    "DINO": {"monotone": [True, False], "starts": [1, 3]},
    "GDINA": {"rule": ["GDINA", "ACDM", "LLM", "RRUM"], "monotone": [True, False]},
    "NCDM": _ADAM | _LAYERS,
    "CDMFKC": _ADAM | _LAYERS,
    "KaNCD": _ADAM | _LAYERS | {"dim": [16, 32, 64], "form": ["gmf", "mf"]},
    "KSCD": _ADAM | {"dim": [16, 32, 64]},
    "HierCDF": _ADAM | {"hidden": [1, 16, 32]},
    "IDCDF": _ADAM | {"dropout": [0.0, 0.2, 0.5]},
    "GradientDINA": _ADAM | {"anneal": [20, 40, 80]},
    "RCD": _ADAM | {"layers": [1, 2, 3]},
    "ORCDF": _ADAM | _LAYERS | {"dim": [16, 32, 64], "layers": [1, 2, 3], "head": ["ncdm", "kancd"]},
}
# Training answers a second on one core, and epochs of a run with default settings: for estimates only.
_RATES = {
    "NCDM": 3e4,
    "KaNCD": 5e4,
    "CDMFKC": 3e4,
    "KSCD": 1e5,
    "HierCDF": 1.5e5,
    "IDCDF": 4e4,
    "RCD": 1.5e5,
    "ORCDF": 4e4,
    "GradientDINA": 2e5,
}
_EPOCHS = 40


@dataclass(frozen=True)
class SearchResult:
    """What a search found: the chosen parameters, the fitted model, and every trial with its validation figure."""

    params: dict[str, Any]
    model: DiagnosisModel
    trials: tuple[dict[str, Any], ...]


def search(
    model: DiagnosisModel,
    split: Split,
    *,
    trials: int = 20,
    seed: int = 0,
    select: str = "log_loss",
    folder: str | Path | None = None,
) -> SearchResult:
    """Random search with the same number of trials for every model, judged on the validation answers.

    The first trial is the model as given. With a ``folder`` finished trials are kept, and a killed search goes on.

    Parameters
    ----------
    model : DiagnosisModel
    split : Split
        Trials are fitted on ``train`` and judged on ``valid``; ``test`` is not touched.
    select : {"log_loss", "auc"}

    Raises
    ------
    DiagnosisError
        If there are no validation answers.

    Examples
    --------
    >>> from assay.diagnosis import KCAccuracy, search, simulate_platform
    >>> split = simulate_platform(200, 20, 3, seed=0).data.split(seed=0)
    >>> found = search(KCAccuracy(), split, trials=4)
    >>> len(found.trials), found.params["strength"] > 0
    (4, True)
    """
    if not len(split.valid):
        raise DiagnosisError("a search needs validation answers; split with valid > 0")
    if select not in ("log_loss", "auc"):
        raise UnknownName.of("figure to select by", select, ("log_loss", "auc"))
    space = SEARCH_SPACES.get(type(model).__name__, {})
    rng = np.random.default_rng(seed)
    done: list[dict[str, Any]] = []
    name = (
        f"search-{type(model).__name__}-{split.hash}-{seed}-{hashlib.sha256(repr(model).encode()).hexdigest()[:8]}.json"
    )
    file = Path(folder) / name if folder is not None else None
    if file is not None and file.is_file():
        done = json.loads(file.read_text())
    best: tuple[float, dict[str, Any], DiagnosisModel | None] = (np.inf, {}, None)
    for number in range(trials):
        drawn = {key: _draw(values, rng) for key, values in space.items()}
        if number < len(done):
            record = done[number]
            value, params, fitted = record["value"], record["params"], None
        else:
            params = {} if number == 0 else drawn
            fitted = model.clone(**params).fit(split.train, split.valid)
            p = fitted.predict_proba(split.valid.student, split.valid.item)
            value = log_loss(split.valid.correct, p) if select == "log_loss" else -auc(split.valid.correct, p)
            done.append({"params": params, "value": value})
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                part = file.with_suffix(".part")
                part.write_text(json.dumps(done))
                part.replace(file)
        if value < best[0]:
            best = (value, params, fitted)
    chosen = best[2] if best[2] is not None else model.clone(**best[1]).fit(split.train, split.valid)
    return SearchResult({k: v for k, v in chosen.get_params().items() if k in space}, chosen, tuple(done[:trials]))


def _draw(values: Any, rng: np.random.Generator) -> Any:
    if isinstance(values, tuple):
        return float(np.exp(rng.uniform(np.log(values[0]), np.log(values[1]))))
    return values[int(rng.integers(len(values)))]


def estimate_seconds(
    models: Sequence[str], data: ResponseData, *, seeds: int = 1, trials: int = 1, stopping: int = 1
) -> float:
    """Rough seconds of a comparison on one core; models without training epochs count a second each.

    >>> from assay.diagnosis import load
    >>> estimate_seconds(["NCDM", "IRT"], load("lsat7")) > 1
    True
    """
    total = 0.0
    for name in models:
        rate = _RATES.get(name)
        factor = trials * (stopping if rate else 1)
        total += factor * (len(data) * 0.7 * _EPOCHS / rate if rate else 1.0)
    return total * seeds


@dataclass(frozen=True, eq=False)
class Comparison:
    """Cells of a comparison.

    Attributes
    ----------
    cells : DataFrame
        A row a model, stopping rule and seed, with all figures.
    """

    cells: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """Mean and standard deviation over seeds of each figure."""
        keys = ["model", "stopping"]
        numbers = self.cells.drop(columns=["seed", "split", "epochs"]).groupby(keys, sort=False)
        mean, sd = numbers.mean(), numbers.std(ddof=1)
        return mean.join(sd.add_suffix("_sd")).reset_index()

    def rankings(self, by: str = "auc") -> pd.DataFrame:
        """How the ranking by ``by`` agrees with the ranking by each diagnostic figure (mean over seeds, first
        stopping rule).
        """
        import pandas as pd

        mean = self._means()
        rows = []
        for name in DIAGNOSIS:
            if (
                name in mean
                and mean[name].notna().sum() > 1
                and name not in ("monotonicity_violations", "identifiability")
            ):
                rows.append(
                    {
                        "metric": name,
                        **rank_agreement(mean[by].tolist(), mean[name].tolist()),
                        "winner": mean[name].idxmax(),
                        f"winner_by_{by}": mean[by].idxmax(),
                    }
                )
        return pd.DataFrame(rows)

    def stopping_table(self, metric: str = "auc") -> pd.DataFrame:
        """Mean of a figure for each model under each stopping rule, and the range between rules."""
        table = self.cells.pivot_table(index="model", columns="stopping", values=metric, aggfunc="mean", sort=False)
        neural = table.drop(columns="none", errors="ignore").dropna()
        return neural.assign(range=neural.max(axis=1) - neural.min(axis=1))

    def _means(self) -> pd.DataFrame:
        cells = self.cells
        first = cells.groupby("model", sort=False)["stopping"].transform("first")
        return cells[cells["stopping"] == first].groupby("model", sort=False).mean(numeric_only=True)


def compare(
    models: Sequence[str] | Mapping[str, DiagnosisModel],
    data: ResponseData,
    *,
    scheme: str = "student",
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    stopping: Sequence[str] = ("valid_logloss",),
    trials: int = 1,
    metrics: str | Sequence[str] = "all",
    ratings: Any = None,
    alpha: Any = None,
    folder: str | Path | None = None,
) -> Comparison:
    """Fit every model under every stopping rule and seed on the same splits with the same search budget.

    Parameters
    ----------
    models : names or dict of name to model
    stopping : sequence of str
        Rules for the models that are trained in epochs; others run once.
    trials : int
        Trials of the search a cell; 1 runs the model as it is.
    folder : path, optional
        Finished cells, trials and splits (rows and hash) are kept there, and cells are not run again.

    Returns
    -------
    Comparison
        Its cells hold all figures, and ``gain_over_2pl``: log loss of the 2PL minus the model's, with bounds of 95 per
        cent from resampled students.

    Examples
    --------
    >>> from assay.diagnosis import IRT, ItemMean, compare, load
    >>> models = {"mean": ItemMean(), "2pl": IRT(estimator="em")}
    >>> found = compare(models, load("lsat7"), seeds=[0, 1], metrics=["auc", "doa"])
    >>> found.table()[["model", "auc"]].round(3).values.tolist()
    [['mean', 0.633], ['2pl', 0.68]]
    """
    import pandas as pd

    named = {n: model_class(n)() for n in models} if not isinstance(models, Mapping) else dict(models)
    rows = []
    references: dict[str, DiagnosisModel] = {}
    for seed in seeds:
        split = data.split(scheme, seed)
        if folder is not None:
            _keep_split(split, Path(folder))
        for name, model in named.items():
            epochs = "stopping" in model._parameter_names()
            for rule in stopping if epochs else ("none",):
                changes = ({"stopping": rule} if epochs else {}) | (
                    {"seed": seed} if "seed" in model._parameter_names() else {}
                )
                cell = model.clone(**changes)
                key = hashlib.sha256(
                    repr((name, repr(cell), rule, seed, split.hash, trials, metrics)).encode()
                ).hexdigest()[:20]
                file = Path(folder) / f"cell-{key}.json" if folder is not None else None
                if file is not None and file.is_file():
                    rows.append(json.loads(file.read_text()))
                    continue
                if trials > 1:
                    cell = search(cell, split, trials=trials, folder=folder).model
                else:
                    cell.fit(split.train, split.valid)
                row = {
                    "model": name,
                    "stopping": rule,
                    "seed": int(seed),
                    "split": split.hash,
                    "epochs": len(getattr(cell, "history_", [])) if epochs else 0,
                }
                row |= figures(cell, split, metrics, ratings=ratings, alpha=alpha, seed=seed)
                if split.hash not in references:
                    references[split.hash] = IRT().fit(split.train)
                gain = paired_bootstrap(cell, references[split.hash], split, np.random.default_rng(seed))
                row |= {"gain_over_2pl": gain["difference"], "gain_low": gain["low"], "gain_high": gain["high"]}
                rows.append(row)
                if file is not None:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    part = file.with_suffix(".part")
                    part.write_text(json.dumps(row))
                    part.replace(file)
    return Comparison(pd.DataFrame(rows))


def _keep_split(split: Split, folder: Path) -> None:
    file = folder / f"split-{split.hash}.npz"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".split-{split.hash}.part.npz"
        split.save(part)
        part.replace(file)


def paired_bootstrap(
    first: DiagnosisModel,
    second: DiagnosisModel,
    split: Split,
    rng: np.random.Generator,
    *,
    draws: int = 1000,
    level: float = 0.95,
) -> dict[str, float]:
    """Difference in log loss (second minus first, positive: first is better), with an interval from resampled students.

    Examples
    --------
    >>> from assay.diagnosis import IRT, ItemMean, load
    >>> split = load("lsat7").split(seed=0)
    >>> models = [m.fit(split.train) for m in (IRT(estimator="em"), ItemMean())]
    >>> found = paired_bootstrap(*models, split, np.random.default_rng(0))
    >>> found["low"] < found["difference"] < found["high"]
    True
    """
    test = split.test
    difference = _row_loss(second, split) - _row_loss(first, split)
    n = np.bincount(test.student, minlength=test.n_students)
    total = np.bincount(test.student, difference, test.n_students)
    there = np.flatnonzero(n)
    values = np.empty(draws)
    for d in range(draws):
        chosen = rng.choice(there, len(there))
        values[d] = total[chosen].sum() / n[chosen].sum()
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return {"difference": float(difference.mean()), "low": float(low), "high": float(high)}


def _row_loss(model: DiagnosisModel, split: Split) -> NDArray[np.float64]:
    p = np.clip(
        scored(model, split).predict_proba(split.test.student, split.test.item).astype(np.float64), 1e-7, 1 - 1e-7
    )
    loss: NDArray[np.float64] = -np.where(split.test.correct == 1, np.log(p), np.log1p(-p))
    return loss


def learning_curve_diagnosis(model: DiagnosisModel) -> str:
    """In words: did a trained model stop too early, go on too long, or is it well?

    Examples
    --------
    >>> from assay.diagnosis import NCDM, load
    >>> split = load("lsat7").split(seed=0)
    >>> learning_curve_diagnosis(NCDM(hidden=(16, 8), stopping="fixed(2)").fit(split.train, split.valid))[:12]
    'undertrained'
    """
    history = getattr(model, "history_", None)
    if history is None or np.ndim(history) != 2:
        return "this model is not trained in epochs"
    train, valid = history[:, 0], history[:, 2]
    mean = model.mean_
    entropy = -(mean * np.log(mean) + (1 - mean) * np.log1p(-mean))
    last = valid[-1] if np.isfinite(valid[-1]) else train[-1]
    if np.nanmin(valid if np.isfinite(valid).any() else train) > 0.99 * entropy:
        return (
            f"undertrained: the validation loss was still that of a constant prediction after {len(train)} epochs; "
            "train longer or raise lr"
        )
    if not np.isfinite(valid).any():
        return "no validation answers: give valid to see whether it overfits"
    best = int(np.nanargmin(valid)) + 1
    if best == len(valid):
        return f"undertrained: the validation loss was still falling after {len(valid)} epochs; train longer"
    if getattr(model, "best_epoch_", best) > best and last > 1.02 * np.nanmin(valid):
        rise = last / np.nanmin(valid) - 1
        return f"overtrained: the validation loss was best at epoch {best} and rose by {rise:.0%} after"
    return f"well: the validation loss was best at epoch {best} of {len(valid)}"
