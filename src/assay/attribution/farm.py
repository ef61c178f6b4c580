"""The retraining farm: many models of one recipe on many subsets, trained at once.

Parameters of all models of a chunk are stacked along a new first axis; one batched forward pass (``torch.func.vmap``),
one backward pass and one optimiser step serve all of them. Every model starts from a fresh seeded initialisation and
follows the same order of batches as the plain loop with that seed, so the two agree to rounding. Finished chunks are
files; a killed run goes on after the last of them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.attribution.chunks import GroundTruth, load_chunk, on_file, save_chunk, write_whole
from assay.attribution.errors import (
    AttributionError,
    BudgetExceeded,
    CheckpointMismatch,
    UnsupportedModel,
)
from assay.attribution.fitting import FitSpec, MakeModel, as_tensors, batch_orders, content_hash, fit_one
from assay.attribution.outputs import check_labels, default_target, predictions, target_rows
from assay.attribution.stacked import Stack, cannot_stack, small_array, stacked_batches
from assay.attribution.subsets import checked_subsets, random_subsets
from assay.training import seeded

FORMAT = 1


@dataclass(frozen=True)
class Cost:
    """What a run would take: seconds on this machine, bytes of the largest chunk, models and steps of each."""

    seconds: float
    bytes: int
    models: int
    steps: int


class RetrainingFarm:
    """Trains models on subsets and keeps what they say about test rows.

    Parameters
    ----------
    make_model : callable
        ``() -> nn.Module``, freshly initialised.
    fit_spec : FitSpec
    n_subsets : int
    alpha : float
        Share of the rows in a random subset.
    seed : int
        Of the random subsets.
    model_seed : int
        Of initialisation and batch order, the same for all subsets; repeat r uses ``model_seed + r``.
    n_seeds : int
        Trainings of each subset, for the noise ceiling of LDS.
    folder : path, optional
        Where finished chunks are kept; a run with the same content goes on from them.
    chunk : int or "auto"
        Models trained at once; "auto" fits ``memory``.
    memory : int
        Bytes that a chunk may take.
    engine : {"auto", "vmap", "loop"}
        "auto" takes vmap unless the model has layers that it cannot stack (batch normalisation, dropout).
    budget : float, optional
        Seconds that a run may take. Before it starts the time of the models that are not on file is estimated from a
        few steps, and a run that would take longer is refused.
    vary_seed : bool
        Subset j of repeat r is trained with seed ``model_seed + r * m + j`` instead, so that models differ by
        initialisation too.

    Examples
    --------
    >>> from assay.attribution.models import ModelSpec
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> spec = FitSpec(epochs=5, lr=0.1)
    >>> farm = RetrainingFarm(ModelSpec.of("mlp", inputs=4, outputs=3, hidden=(8,)), spec, n_subsets=6)
    >>> truth = farm.run(X.astype("float32"), y, X[:9].astype("float32"), y[:9])
    >>> truth.outputs.shape, truth.subsets.shape
    ((6, 9), (6, 75))
    """

    def __init__(
        self, make_model: MakeModel, fit_spec: FitSpec | None = None, n_subsets: int = 100, alpha: float = 0.5,
        seed: int = 42, model_seed: int = 0, n_seeds: int = 1, folder: str | os.PathLike[str] | None = None,
        chunk: int | str = "auto", memory: int = 1 << 29, engine: str = "auto", vary_seed: bool = False,
        device: str | torch.device = "cpu", keep_models: bool = False, budget: float | None = None,
    ) -> None:  # fmt: skip
        if engine not in ("auto", "vmap", "loop"):
            raise AttributionError(f"engine is auto, vmap or loop, not {engine!r}")
        if n_subsets < 1 or n_seeds < 1:
            raise AttributionError(f"n_subsets and n_seeds are at least 1, not {n_subsets} and {n_seeds}")
        self.make_model, self.fit_spec = make_model, fit_spec or FitSpec()
        self.n_subsets, self.alpha, self.seed = n_subsets, alpha, seed
        self.model_seed, self.n_seeds, self.vary_seed = model_seed, n_seeds, vary_seed
        self.folder = None if folder is None else Path(folder)
        self.chunk, self.memory, self.engine, self.device = chunk, memory, engine, device
        self.keep_models, self.budget = keep_models, budget
        self.states_: list[dict[str, Tensor]] = []

    # -- running -----------------------------------------------------------------------------------------------------

    def run(
        self, X: Any, y: Any, X_test: Any, y_test: Any, *, subsets: Any = None, target: str | None = None,
        report: Callable[[int, int], None] | None = None,
    ) -> GroundTruth:  # fmt: skip
        """Train all models (those not on file yet) and evaluate them.

        Parameters
        ----------
        X, y : arrays (N, ...), (N,)
        X_test, y_test : arrays (T, ...), (T,)
        subsets : int array (m, n), optional
            Rows of each model, padded with -1; default: random subsets.
        target : str, optional
            The number that is kept of each test row; default: margin, prediction or log-probability by task.
        report : callable, optional
            ``(models done, models in all)``.

        Raises
        ------
        ShapeMismatch, LabelError
        CheckpointMismatch
            If the folder holds chunks of other data or settings.
        UnsupportedModel
            If ``engine="vmap"`` and a layer cannot be stacked.
        """
        x, labels = as_tensors(X, y, device=self.device)
        xt, yt = as_tensors(X_test, y_test, device=self.device)
        n = len(x)
        chosen = (
            random_subsets(n, self.n_subsets, self.alpha, self.seed) if subsets is None else checked_subsets(subsets, n)
        )
        target = target or default_target(self.fit_spec.task)
        jobs = self._jobs(len(chosen))
        content = self._content(x, labels, xt, yt, chosen, target)
        folder = self._open(content)
        engine, size = self._plan(x, labels, xt, chosen)
        self._afford(x, labels, chosen, folder, len(jobs))
        outputs = np.empty((len(jobs), len(xt)), dtype=np.float32)
        predicted: np.ndarray | None = None
        self.states_ = []
        done = 0
        for low, high in self._chunks(folder, len(jobs), size):
            part = jobs[low:high]
            loaded = load_chunk(folder, low, high, len(xt), self.keep_models)
            if loaded is None:
                loaded = self._train(engine, x, labels, xt, yt, chosen, part, target)
                save_chunk(folder, low, high, *loaded)
            values, guess, states = loaded
            outputs[low:high] = values
            if predicted is None:
                predicted = np.empty((len(jobs), *guess.shape[1:]), dtype=guess.dtype)
            predicted[low:high] = guess
            if self.keep_models:
                self.states_ += states
            done = high
            if report is not None:
                report(done, len(jobs))
        assert predicted is not None
        repeats = outputs.reshape(self.n_seeds, len(chosen), -1)
        return GroundTruth(
            chosen.astype(np.int32), repeats.mean(0), repeats,
            predicted.reshape(self.n_seeds, len(chosen), *predicted.shape[1:]),
            tuple(self.model_seed + r for r in range(self.n_seeds)), n,
        )  # fmt: skip

    def outputs_of(self, X_test: Any, y_test: Any, *, target: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Outputs and predictions (models, T) of the models that the last run kept (``keep_models=True``).

        Raises
        ------
        AttributionError
            If no models were kept.
        """
        if not self.states_ or not self.states_[0]:
            raise AttributionError("no models were kept; make the farm with keep_models=True and run it first")
        xt, yt = as_tensors(X_test, y_test, device=self.device)
        target = target or default_target(self.fit_spec.task)
        values, guesses = [], []
        model = seeded(self.model_seed, self.make_model).to(self.device).eval()
        for state in self.states_:
            model.load_state_dict(state)
            with torch.no_grad():
                logits = torch.cat([model(xt[i : i + 1024]) for i in range(0, len(xt), 1024)])
            values.append(target_rows(logits, yt, self.fit_spec.task, target).cpu().numpy())
            guesses.append(small_array(predictions(logits, self.fit_spec.task)))
        return np.stack(values).astype(np.float32), np.stack(guesses)

    def estimate_cost(self, X: Any, y: Any, *, subsets: Any = None, n_models: int | None = None) -> Cost:
        """Seconds and bytes of a run, from timing a few steps of one chunk; nothing is kept.

        Examples
        --------
        >>> from assay.attribution.models import ModelSpec
        >>> farm = RetrainingFarm(ModelSpec.of("mlp", inputs=4, outputs=2), FitSpec(epochs=3), n_subsets=10)
        >>> cost = farm.estimate_cost(np.zeros((100, 4), "float32"), np.zeros(100, int))
        >>> cost.models, cost.steps, cost.seconds > 0
        (10, 3, True)
        """
        x, labels = as_tensors(X, y, device=self.device)
        chosen = (
            random_subsets(len(x), self.n_subsets, self.alpha, self.seed) if subsets is None else np.asarray(subsets)
        )
        models = (n_models or len(chosen)) * self.n_seeds
        engine, size = self._plan(x, labels, x[:1], chosen)
        steps = len(batch_orders(chosen.shape[1], self.fit_spec, 0))
        rows = torch.as_tensor(chosen[:1]).long()
        if engine == "loop":
            few = FitSpec(**{**self.fit_spec.__dict__, "epochs": 1})
            began = time.perf_counter()
            fit_one(self.make_model, few, x, labels, seed=self.model_seed, rows=rows[0][rows[0] >= 0])
            each = (time.perf_counter() - began) / max(len(batch_orders(chosen.shape[1], few, 0)), 1)
            return Cost(each * steps * models, self._bytes(x, labels), models, steps)
        size = min(size, models)
        stack = Stack([seeded(self.model_seed, self.make_model) for _ in range(size)], self.fit_spec, self.device)
        index = rows[:, : self.fit_spec.batch_size].clamp(min=0).expand(size, -1)
        stack.step(x[index], labels[index], None, 0, steps)
        began = time.perf_counter()
        for _ in range(3):
            stack.step(x[index], labels[index], None, 0, steps)
        each = (time.perf_counter() - began) / 3
        return Cost(each * steps * models / size, self._bytes(x, labels) * size, models, steps)

    def _afford(self, x: Tensor, y: Tensor, subsets: np.ndarray, folder: Path | None, jobs: int) -> None:
        if self.budget is None:
            return
        done = sum(b - a for a, b in on_file(folder))
        seconds = self.estimate_cost(x, y, subsets=subsets).seconds * (jobs - done) / jobs
        if seconds > self.budget:
            raise BudgetExceeded(
                f"training {jobs - done} models would take about {seconds:.0f} s, the budget is {self.budget:g} s; "
                f"take fewer subsets or epochs, a smaller network, or a larger budget"
            )

    def _jobs(self, m: int) -> list[tuple[int, int]]:
        """(subset, seed) of each model."""
        if self.vary_seed:
            return [(j, self.model_seed + r * m + j) for r in range(self.n_seeds) for j in range(m)]
        return [(j, self.model_seed + r) for r in range(self.n_seeds) for j in range(m)]

    def _plan(self, x: Tensor, y: Tensor, xt: Tensor, subsets: np.ndarray) -> tuple[str, int]:
        probe = seeded(self.model_seed, self.make_model).to(self.device)
        names = [f"{name} ({type(m).__name__})" for name, m in probe.named_modules() if cannot_stack(m)]
        if names and self.engine == "vmap":
            raise UnsupportedModel(
                f"layers that keep running statistics or draw random numbers cannot be stacked: {', '.join(names)}; "
                f"use engine='loop', or group or layer normalisation"
            )
        with torch.no_grad():
            check_labels(probe.eval()(x[:2]), y, self.fit_spec.task)
        engine = "loop" if names or self.engine == "loop" else "vmap"
        if self.chunk != "auto":
            return engine, int(self.chunk)
        return engine, int(np.clip(self.memory // max(self._bytes(x, y), 1), 1, 64))

    def _bytes(self, x: Tensor, y: Tensor) -> int:
        """Bytes of one model in a chunk: weights, gradient, optimiser state, a batch and its activations."""
        probe = seeded(self.model_seed, self.make_model)
        weights = sum(p.numel() * p.element_size() for p in probe.parameters())
        seen: list[int] = []
        hooks = [
            m.register_forward_hook(lambda _m, _i, out: seen.append(out.numel() * out.element_size()))
            for m in probe.modules()
            if not list(m.children())
        ]
        with torch.no_grad():
            probe.eval()(x[:1].cpu())
        for hook in hooks:
            hook.remove()
        row = x[:1].numel() * x.element_size() + 3 * sum(seen)
        return int(5 * weights + self.fit_spec.batch_size * row)

    def _train(
        self, engine: str, x: Tensor, y: Tensor, xt: Tensor, yt: Tensor, subsets: np.ndarray,
        jobs: list[tuple[int, int]], target: str,
    ) -> tuple[np.ndarray, np.ndarray, list[dict[str, Tensor]]]:  # fmt: skip
        spec = self.fit_spec
        lists = [torch.as_tensor(subsets[j][subsets[j] >= 0]).long() for j, _ in jobs]
        if engine == "loop":
            values, guesses, states = [], [], []
            for rows, (_, seed) in zip(lists, jobs, strict=True):
                model, _ = fit_one(self.make_model, spec, x, y, seed=seed, rows=rows, device=self.device)
                with torch.no_grad():
                    logits = torch.cat([model(xt[i : i + 1024]) for i in range(0, len(xt), 1024)])
                values.append(target_rows(logits, yt, spec.task, target).cpu().numpy())
                guesses.append(small_array(predictions(logits, spec.task)))
                states.append(
                    {k: v.detach().clone() for k, v in model.state_dict().items()} if self.keep_models else {}
                )
            return np.stack(values).astype(np.float32), np.stack(guesses), states
        models = [seeded(seed, self.make_model) for _, seed in jobs]
        stack = Stack(models, spec, self.device)
        for step, (index, weight, totals) in enumerate(stacked_batches(lists, [seed for _, seed in jobs], spec)):
            at = index.to(x.device)
            stack.step(x[at], y[at], None if weight is None else weight.to(x.device), step, totals)
        bad = [jobs[i] for i in stack.not_finite()]
        if bad:
            raise AttributionError(
                f"training diverged for {len(bad)} models, the first on subset {bad[0][0]} with seed "
                f"{bad[0][1]}: weights "
                f"are not finite; lower lr ({spec.lr})"
            )
        values_, guesses_ = stack.evaluate(xt, yt, target, self.memory)
        return values_, guesses_, stack.states() if self.keep_models else [{} for _ in jobs]

    # -- files -------------------------------------------------------------------------------------------------------

    def _content(
        self, x: Tensor, y: Tensor, xt: Tensor, yt: Tensor, subsets: np.ndarray, target: str
    ) -> dict[str, Any]:
        model = seeded(self.model_seed, self.make_model)
        first = dict(model.state_dict())
        return {
            "format": FORMAT,
            "data": content_hash(x, y),
            "test": content_hash(xt, yt),
            "subsets": content_hash(subsets),
            "model": content_hash(str(model), *first.values()),
            "fit_spec": self.fit_spec.to_json(),
            "seeds": [self.model_seed, self.n_seeds, int(self.vary_seed)],
            "target": target,
        }

    def _open(self, content: dict[str, Any]) -> Path | None:
        if self.folder is None:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "farm.json"
        if path.exists():
            old = json.loads(path.read_text())
            other = sorted(k for k in content if old.get(k) != content[k])
            if other:
                raise CheckpointMismatch(
                    f"{self.folder} holds models of another run (different: {', '.join(other)}); name "
                    f"another folder or "
                    f"remove it"
                )
        else:
            write_whole(path, lambda part: part.write_text(json.dumps(content, indent=1)))
        return self.folder

    @staticmethod
    def _chunks(folder: Path | None, jobs: int, size: int) -> Iterator[tuple[int, int]]:
        """Ranges to train or load: those on file as they are, and what lies between in pieces of ``size``."""
        done = on_file(folder)
        at = 0
        while at < jobs:
            upcoming = next(((a, b) for a, b in done if a >= at), (jobs, jobs))
            if upcoming[0] == at and upcoming[1] > at:
                yield (at, upcoming[1])
                at = upcoming[1]
            else:
                high = min(at + size, upcoming[0])
                yield (at, high)
                at = high


def train_many(
    make_model: MakeModel, spec: FitSpec, X: Any, y: Any, seeds: Sequence[int], *, device: str | torch.device = "cpu"
) -> list[nn.Module]:
    """Models on all rows from several seeds (an ensemble for TRAK), trained at once."""
    farm = RetrainingFarm(make_model, spec, model_seed=0, keep_models=True, device=device)
    x, labels = as_tensors(X, y, device=device)
    rows = np.arange(len(x), dtype=np.int32)[None].repeat(len(seeds), 0)
    engine, size = farm._plan(x, labels, x[:1], rows)
    jobs = [(j, seed) for j, seed in enumerate(seeds)]
    states: list[dict[str, Tensor]] = []
    for low in range(0, len(jobs), size):
        part = jobs[low : low + size]
        states += farm._train(engine, x, labels, x[:1], labels[:1], rows, part, default_target(spec.task))[2]
    models = []
    for state in states:
        model = seeded(0, make_model).to(device)
        model.load_state_dict(state)
        models.append(model.eval())
    return models
