"""Benchmarks of a user's own data in one call: ground truth made, model trained, everything on file, judged by kind.

A benchmark is a folder: ``benchmark.json`` (settings and content hash), ``data.npz``, ``model.pt`` (final state and
five checkpoints), ``farm/`` (retrained models' outputs) and ``attributions/`` (finished blocks of methods that were
judged).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.attribution.chunks import GroundTruth, write_whole
from assay.attribution.data import (
    Split,
    add_artifact,
    duplicate_rows,
    flip_labels,
    group_classes,
    mix_source,
    split_rows,
    white_square,
)
from assay.attribution.errors import AttributionError, CheckpointMismatch, ShapeMismatch
from assay.attribution.farm import RetrainingFarm
from assay.attribution.fitting import FitSpec, MakeModel, as_tensors, content_hash, fit_one
from assay.attribution.methods.base import Attributor
from assay.attribution.metrics import detection, ground_truth, heuristics
from assay.attribution.metrics.result import MetricResult
from assay.attribution.models import ModelSpec
from assay.attribution.subsets import leave_out

KINDS = (
    "lds", "loo", "brittleness", "removal", "class", "subclass", "mislabel", "shortcut", "mixed", "topk",
    "randomization",
    "duplicate",
)  # fmt: skip
FORMAT = 1
CHECKPOINTS = 5


class AttributionBenchmark:
    """A data set with ground truth, a trained model, and the metric that goes with it.

    Made by `build` or `load`.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    data : Split
        As the model saw it (with flipped labels, artefacts, ...); ``data.facts`` holds what is known.
    model : nn.Module
    states : list of dict
        Five checkpoints, evenly over the epochs.
    truth : GroundTruth or None
    """

    def __init__(
        self, kind: str, data: Split, make_model: MakeModel, fit_spec: FitSpec, seed: int, folder: Path | None,
        options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.kind, self.data, self.make_model, self.fit_spec = kind, data, make_model, fit_spec
        self.seed, self.folder, self.options = seed, folder, dict(options)
        #: folder of the models that methods train on these rows, which benchmarks on the same rows may share
        self.shared: Path | None = None
        self.model: nn.Module = nn.Identity()
        self.states: list[dict[str, Tensor]] = []
        self.truth: GroundTruth | None = None
        self.predictions: np.ndarray = np.zeros(0)

    # -- making ------------------------------------------------------------------------------------------------------

    @classmethod
    def build(
        cls, kind: str, X: Any, y: Any, make_model: MakeModel, fit_spec: FitSpec | None = None, *, seed: int = 0,
        folder: str | Path | None = None, X_test: Any = None, y_test: Any = None, test: int | float = 0.2,
        report: Callable[[int, int], None] | None = None, **options: Any,
    ) -> AttributionBenchmark:  # fmt: skip
        """Make a benchmark from rows and labels.

        Parameters
        ----------
        kind : str
        X, y : arrays
            All rows, or the training rows where ``X_test`` and ``y_test`` are given.
        folder : path, optional
            Where everything is kept; a second call with the same content goes on there.
        test : int or float
            Test rows, or their share.
        options
            By kind. lds: ``n_subsets=100, alpha=0.5, n_seeds=2``; loo: ``rows`` (number of training rows left out,
            default 200); brittleness: ``k=(10, 20), n_test=20``; removal: ``mode="remove_high"``; subclass:
            ``n_groups=2``; mislabel: ``p=0.1, groups``; shortcut: ``fn, p=0.85, cls=0``; mixed: ``X_other, label=0``;
            duplicate: ``p=0.1, noise``; class, subclass, topk: ``s`` or ``k=5``.

        Raises
        ------
        AttributionError, ShapeMismatch, CheckpointMismatch
        """
        data = (
            split_rows(X, y, test=test, seed=seed)
            if X_test is None
            else Split(np.asarray(X), np.asarray(y), np.asarray(X_test), np.asarray(y_test))
        )
        return cls.from_split(kind, data, make_model, fit_spec, seed=seed, folder=folder, report=report, **options)

    @classmethod
    def from_split(
        cls, kind: str, data: Split, make_model: MakeModel, fit_spec: FitSpec | None = None, *, seed: int = 0,
        folder: str | Path | None = None, report: Callable[[int, int], None] | None = None, **options: Any,
    ) -> AttributionBenchmark:  # fmt: skip
        """The same from a `Split`."""
        if kind not in KINDS:
            raise AttributionError(f"kind is one of {', '.join(KINDS)}, not {kind!r}")
        if len(data.X_train) != len(data.y_train) or len(data.X_test) != len(data.y_test):
            raise ShapeMismatch(
                f"{len(data.X_train)} training rows with {len(data.y_train)} labels, {len(data.X_test)} test rows with "
                f"{len(data.y_test)}"
            )
        spec = fit_spec or FitSpec()
        if isinstance(make_model, nn.Module):
            raise AttributionError("make_model is a function that makes a fresh network, not a network")
        changed = _corrupt(kind, data, seed, options)
        self = cls(kind, changed, make_model, spec, seed, None if folder is None else Path(folder), options)
        x, y = as_tensors(changed.X_train, changed.y_train)
        saved = self._saved()
        if saved is None:
            at = sorted({max(1, round(spec.epochs * (i + 1) / CHECKPOINTS)) for i in range(CHECKPOINTS)})
            self.model, self.states = fit_one(make_model, spec, x, y, seed=seed, checkpoints=at)
            self._save()
        else:
            self._take(saved)
        self._finish(report)
        return self

    @classmethod
    def load(cls, folder: str | Path, make_model: MakeModel | None = None) -> AttributionBenchmark:
        """A benchmark from its folder.

        Parameters
        ----------
        make_model : callable, optional
            Needed where the network was not a `ModelSpec`.

        Raises
        ------
        CheckpointMismatch
            If the folder holds no benchmark, or its data is not what its hash says.
        """
        root = Path(folder)
        try:
            notes = json.loads((root / "benchmark.json").read_text())
            with np.load(root / "data.npz", allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointMismatch(f"{root} holds no benchmark that can be read: {error}") from error
        if notes.get("format") != FORMAT:
            raise CheckpointMismatch(f"{root} has format {notes.get('format')}, this version reads {FORMAT}")
        if make_model is None:
            if notes["model"] is None:
                raise CheckpointMismatch(f"the network of {root} is not one of ours; give make_model")
            make_model = ModelSpec.from_json(notes["model"])
        facts = {name.removeprefix("fact_"): value for name, value in arrays.items() if name.startswith("fact_")}
        facts.update(notes["facts"])
        data = Split(
            arrays["X_train"], arrays["y_train"], arrays["X_test"], arrays["y_test"], notes["kind_of_rows"],
                notes["name"],
            tuple(notes["classes"]), facts, tuple(notes["shown_train"]), tuple(notes["shown_test"]),
        )  # fmt: skip
        self = cls(
            notes["kind"], data, make_model, FitSpec.from_json(notes["fit_spec"]), notes["seed"], root, notes["options"]
        )
        if self.content_hash() != notes["content_hash"]:
            raise CheckpointMismatch(f"the data in {root} is not what was saved (content hash differs)")
        saved = self._saved()
        if saved is None:
            raise CheckpointMismatch(f"{root} holds no trained model; build the benchmark again")
        self._take(saved)
        self._finish(None)
        return self

    def content_hash(self) -> str:
        """Hash of rows, labels, ground truth, recipe, network and seed."""
        facts = {k: v for k, v in self.data.facts.items() if isinstance(v, np.ndarray)}
        names = sorted(facts)
        return content_hash(
            self.kind, self.data.X_train, self.data.y_train, self.data.X_test, self.data.y_test, names,
            *[facts[n] for n in names], self.fit_spec.to_json(), _network(self.make_model), self.seed,
            _plain(self.options),
        )  # fmt: skip

    def farm(self, n_subsets: int = 100, alpha: float = 0.5, seed: int = 42, **options: Any) -> RetrainingFarm:
        """A retraining farm with this benchmark's recipe."""
        return RetrainingFarm(
            self.make_model, self.fit_spec, n_subsets=n_subsets, alpha=alpha, seed=seed, model_seed=self.seed, **options
        )

    def _finish(self, report: Callable[[int, int], None] | None) -> None:
        from assay.attribution.outputs import predictions

        data, o = self.data, self.options
        with torch.no_grad():
            xt, _ = as_tensors(data.X_test, data.y_test)
            logits = torch.cat([self.model(xt[i : i + 1024]) for i in range(0, len(xt), 1024)])
        self.predictions = predictions(logits, self.fit_spec.task).cpu().numpy()
        place = None if self.folder is None else self.folder / "farm"
        if self.kind == "lds":
            farm = self.farm(o.get("n_subsets", 100), o.get("alpha", 0.5), o.get("subset_seed", 42))
            farm.n_seeds, farm.folder = o.get("n_seeds", 2), place
            self.truth = farm.run(data.X_train, data.y_train, data.X_test, data.y_test, report=report)
        elif self.kind == "loo":
            n = len(data.X_train)
            count = min(n, o.get("rows", 200))
            left = np.sort(np.random.default_rng(self.seed).choice(n, count, replace=False))
            farm = self.farm(folder=place, n_seeds=o.get("n_seeds", 2))
            subsets = leave_out(n, [[int(i)] for i in left] + [[]])
            self.truth = farm.run(data.X_train, data.y_train, data.X_test, data.y_test, subsets=subsets, report=report)
            self.data.facts["left_out"] = left

    # -- files -------------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        data = self.data
        arrays = {"X_train": data.X_train, "y_train": data.y_train, "X_test": data.X_test, "y_test": data.y_test}
        arrays.update({f"fact_{k}": v for k, v in data.facts.items() if isinstance(v, np.ndarray)})
        notes = {
            "format": FORMAT, "kind": self.kind, "seed": self.seed, "options": _plain(self.options),
            "fit_spec": self.fit_spec.to_json(),
            "model": self.make_model.to_json() if isinstance(self.make_model, ModelSpec) else None,
            "content_hash": self.content_hash(), "kind_of_rows": data.kind, "name": data.name,
            "classes": list(data.classes), "shown_train": list(data.shown_train), "shown_test": list(data.shown_test),
            "facts": {k: v for k, v in data.facts.items() if isinstance(v, (int, float, str))},
        }  # fmt: skip

        def write_arrays(part: Path) -> None:
            with part.open("wb") as file:
                np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

        write_whole(self.folder / "data.npz", write_arrays)
        state = {"final": self.model.state_dict(), "checkpoints": self.states}
        write_whole(self.folder / "model.pt", lambda part: torch.save(state, part))
        # last, so that a folder with this file is complete
        write_whole(self.folder / "benchmark.json", lambda part: part.write_text(json.dumps(notes, indent=1)))

    def _saved(self) -> dict[str, Any] | None:
        if self.folder is None or not (self.folder / "benchmark.json").exists():
            return None
        notes = json.loads((self.folder / "benchmark.json").read_text())
        if notes.get("content_hash") != self.content_hash():
            raise CheckpointMismatch(
                f"{self.folder} holds a benchmark with other data or settings; name another folder or remove it"
            )
        try:
            saved: dict[str, Any] = torch.load(self.folder / "model.pt", weights_only=True)
        except Exception as error:
            raise CheckpointMismatch(f"{self.folder / 'model.pt'} cannot be read: {error}") from error
        return saved

    def _take(self, saved: dict[str, Any]) -> None:
        from assay.training import seeded

        self.model = seeded(self.seed, self.make_model)
        try:
            self.model.load_state_dict(saved["final"])
        except RuntimeError as error:
            raise CheckpointMismatch(
                f"the saved weights are of another network: {str(error).splitlines()[0]}"
            ) from error
        self.model.eval()
        self.states = list(saved["checkpoints"])

    # -- judging -----------------------------------------------------------------------------------------------------

    def fit(self, attributor: Attributor) -> Attributor:
        """Fit a method on this benchmark's model and rows; methods that retrain get a farm of its recipe.

        Their subsets come from another seed than the ground truth's.
        """
        names = attributor.get_params(deep=False)
        if names.get("farm", 0) is None:
            count = {"DataOOB": 0, "ExactLOO": 0}.get(type(attributor).__name__, 100)
            attributor.farm = self.farm(max(count, 1), seed=1_000 + self.seed)
            if self.shared is not None:
                rows = content_hash(
                    self.data.X_train, self.data.y_train, self.fit_spec.to_json(), _network(self.make_model), self.seed
                )
                attributor.farm.folder = self.shared / f"{type(attributor).__name__}-{rows}"
        if "make_model" in names and names["make_model"] is None and names.get("n_models", 1) > 1:
            attributor.make_model, attributor.fit_spec = self.make_model, self.fit_spec
        data = self.data
        attributor.fit(self.model, data.X_train, data.y_train, checkpoints=self.states)
        return attributor

    def evaluate(
        self, attributor: Attributor, *, n_eval: int = 1000, resume: bool = True, fitted: bool = False
    ) -> MetricResult:
        """Judge a method.

        Parameters
        ----------
        attributor : Attributor
        n_eval : int
            Test rows that are looked at, at most.
        resume : bool
            Use blocks of attributions that are on file.
        fitted : bool
            Whether ``fit`` was called already.

        Returns
        -------
        MetricResult

        Raises
        ------
        NoEligibleSamples
            If every test row was filtered out.
        """
        if not fitted:
            self.fit(attributor)
        data, o, kind = self.data, self.options, self.kind
        if kind == "mislabel":
            return detection.mislabel_detection(attributor.suspicion(), data.facts["mislabeled"])
        few = slice(0, n_eval)
        y_test = data.y_test[few]
        if kind == "brittleness":
            few = slice(0, min(n_eval, o.get("n_test", 20)))
            y_test = data.y_test[few]
        targets = y_test
        if kind == "shortcut":
            targets = np.full(len(y_test), o.get("cls", 0))
        if kind == "removal":
            worth = attributor.attribute_set(data.X_test[few], y_test)
            return ground_truth.point_removal(
                worth, self.farm(), data.X_train, data.y_train, data.X_test[few], y_test,
                mode=o.get("mode", "remove_high"),
            )  # fmt: skip
        A = self.attributions(attributor, data.X_test[few], targets, resume=resume)
        predicted = self.predictions[few]
        if kind == "lds":
            assert self.truth is not None
            return ground_truth.lds(A, self.truth.rows(few))
        if kind == "loo":
            assert self.truth is not None
            effects = (self.truth.repeats[:, -1:] - self.truth.repeats[:, :-1])[:, :, few]
            ceiling = 1.0
            if len(effects) > 1:
                r = float(np.nanmean(ground_truth.rank_correlation(effects[0].T, effects[1].T)))
                ceiling = float(np.sqrt(max(2 * r / (1 + r), 0.0)))
            return ground_truth.loo_correlation(A, effects.mean(0).T, rows=data.facts["left_out"], ceiling=ceiling)
        if kind == "brittleness":
            return ground_truth.brittleness(
                A, self.farm(), data.X_train, data.y_train, data.X_test[few], y_test, k=o.get("k", (10, 20))
            )
        if kind == "class":
            return detection.class_detection(A, data.y_train, y_test, s=o.get("s", 5))
        if kind == "subclass":
            return detection.subclass_detection(
                A, data.facts["subclass_train"], data.facts["subclass_test"][few], s=o.get("s", 5)
            )
        if kind == "shortcut":
            return detection.shortcut_detection(
                A, data.facts["artifact_train"], data.y_train, o.get("cls", 0), data.facts["artifact_test"][few],
                    y_test,
                predicted,
            )  # fmt: skip
        if kind == "mixed":
            return detection.mixed_datasets(
                A, data.facts["foreign_train"], data.y_train, data.facts["foreign_test"][few], predictions=predicted
            )
        if kind == "duplicate":
            return detection.duplicate_detection(A, data.facts["duplicates"][few])
        if kind == "topk":
            return heuristics.topk_cardinality(A, k=o.get("k", 5))
        return self._randomization(attributor, A, few)

    def _randomization(self, attributor: Attributor, A: np.ndarray, few: slice) -> MetricResult:
        from sklearn.base import clone

        other = clone(attributor)
        for name in ("farm", "make_model", "fit_spec"):
            if hasattr(attributor, name):
                setattr(other, name, getattr(attributor, name))
        twin = heuristics.randomized_copy(self.model, self.seed)
        states = [
            {k: v.clone() for k, v in heuristics.randomized_copy(_with(self.model, s), self.seed).state_dict().items()}
            for s in self.states
        ]
        other.fit(twin, self.data.X_train, self.data.y_train, checkpoints=states)
        return heuristics.model_randomization(A, other.attribute(self.data.X_test[few], self.data.y_test[few]))

    def attributions(
        self, attributor: Attributor, X: Any, targets: Any, *, resume: bool = True, block: int = 256
    ) -> np.ndarray:
        """(T, N) scores; with a folder, each block of test rows is on file once it is done."""
        if self.folder is None:
            return attributor.attribute(X, targets)
        shown = {k: repr(v)[:2000] for k, v in sorted(attributor.get_params(deep=False).items()) if k != "farm"}
        key = content_hash(type(attributor).__name__, shown, self.content_hash())
        place = self.folder / "attributions" / f"{type(attributor).__name__}-{key}"
        place.mkdir(parents=True, exist_ok=True)
        parts = []
        for low in range(0, len(X), block):
            rows = slice(low, min(low + block, len(X)))
            path = (
                place
                / f"rows_{rows.start}_{rows.stop}-{content_hash(np.asarray(X[rows]), np.asarray(targets[rows]))}.npy"
            )
            if resume and path.exists():
                parts.append(np.load(path, allow_pickle=False))
                continue
            A = attributor.attribute(X[rows], targets[rows])

            def write(part: Path, values: np.ndarray = A) -> None:
                with part.open("wb") as file:
                    np.save(file, values)

            write_whole(path, write)
            parts.append(A)
        return np.concatenate(parts)


def _with(model: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    import copy

    twin = copy.deepcopy(model)
    twin.load_state_dict(state)
    return twin


def _network(make_model: MakeModel) -> Any:
    return make_model.to_json() if isinstance(make_model, ModelSpec) else str(type(make_model).__name__)


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, np.ndarray):
            out[name] = f"array {content_hash(value)}"
        elif callable(value):
            out[name] = getattr(value, "__qualname__", repr(value))
        else:
            out[name] = list(value) if isinstance(value, tuple) else value
    return out


def _corrupt(kind: str, data: Split, seed: int, o: Mapping[str, Any]) -> Split:
    """The data as the model will see it, with its ground truth among the facts."""
    facts = dict(data.facts)
    if kind == "mislabel":
        y, bad = flip_labels(data.y_train, o.get("p", 0.1), n_classes=data.n_classes, groups=o.get("groups"), seed=seed)
        return replace(data, y_train=y, facts={**facts, "mislabeled": bad, "clean_labels": data.y_train})
    if kind == "subclass":
        groups, mapping = group_classes(np.concatenate([data.y_train, data.y_test]), o.get("n_groups", 2), seed=seed)
        cut = len(data.y_train)
        del mapping
        return replace(
            data, y_train=groups[:cut], y_test=groups[cut:],
            facts={**facts, "subclass_train": data.y_train, "subclass_test": data.y_test},
        )  # fmt: skip
    if kind == "shortcut":
        fn, cls = o.get("fn", white_square), o.get("cls", 0)
        X, marked = add_artifact(data.X_train, data.y_train, fn, o.get("p", 0.85), cls, seed=seed)
        everything = np.ones(len(data.X_test), dtype=bool)
        return replace(
            data,
            X_train=X,
            X_test=fn(data.X_test),
            facts={**facts, "artifact_train": marked, "artifact_test": everything},
        )
    if kind == "mixed":
        if "X_other" not in o:
            raise AttributionError("kind 'mixed' needs X_other, rows of another source")
        other = np.asarray(o["X_other"], dtype=data.X_train.dtype).reshape(-1, *data.X_train.shape[1:])
        cut = max(1, len(other) * 2 // 3)
        label = o.get("label", 0)
        X, y, foreign = mix_source(data.X_train, data.y_train, other[:cut], label, seed=seed)
        Xt = np.concatenate([data.X_test, other[cut:]])
        yt = np.concatenate([data.y_test, np.full(len(other) - cut, label)])
        foreign_test = np.arange(len(Xt)) >= len(data.X_test)
        # foreign rows first, so that a limit on the test rows keeps them
        order = np.argsort(~foreign_test, kind="stable")
        return replace(
            data, X_train=X, y_train=y, X_test=Xt[order], y_test=yt[order], shown_train=(), shown_test=(),
            facts={**facts, "foreign_train": foreign, "foreign_test": foreign_test[order]},
        )  # fmt: skip
    if kind == "duplicate" and "duplicates" not in facts:
        copies, source = duplicate_rows(data.X_train, o.get("p", 0.1), seed=seed, noise=o.get("noise", 0.0))
        marks = np.zeros((len(copies), len(data.X_train)), dtype=bool)
        marks[np.arange(len(copies)), source] = True
        return replace(
            data, X_test=copies, y_test=data.y_train[source], facts={**facts, "duplicates": marks}, shown_test=()
        )
    return replace(data, facts=facts)
