"""The race against captum 0.9, kronfluence 1.0.1 and dattri 0.3: the same digits model, the same rows, one thread.

    make bench FIELD=attribution
    python benchmarks/attribution.py farm graddot      # parts of it
    python benchmarks/attribution.py tables            # no rival: wrong labels found in tables, by way of ranking
    python benchmarks/attribution.py held-out          # the same on tables and kinds of noise that chose nothing
    python benchmarks/attribution.py held-out=wbc,german   # on these tables only
    python benchmarks/attribution.py facts             # no rival: what a small language model knows, and its sources

Recipe: digits / 16, ``randperm(1797, seed 0)``, 1437 rows for training and 360 for the test, MLP 64-64-10 with 20
epochs of SGD; matrices are (360, 1437). LDS is against 50 retrained models, the same for both sides. Times are medians
of repeats that alternate between the sides; both are warmed up first. For kronfluence the damping is the best of 1e-8,
1e-3, 1e-2 and its default by LDS; ours is ``Influence()`` as it is. dattri's time hangs on its batches: with 32 rows it
takes about what the target was set on (28 s), and 512 are the fastest here. Farm: 20 models, two epochs, vmap against a
plain loop of torch.

The rivals are installed into build/peers/attribution, without their dependencies, on the first call.
"""

from __future__ import annotations

import contextlib
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from assay.attribution import (
    EKFAC,
    FitSpec,
    GradDot,
    Influence,
    ModelSpec,
    RetrainingFarm,
    TracInLast,
    as_tensors,
    fit_one,
    lds,
    load_digits_split,
)

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "build" / "peers" / "attribution"
PARTS = ("farm", "graddot", "last", "influence", "ekfac", "self")
EXTRA = ("tables", "held-out", "facts")
warnings.simplefilter("ignore")

Run = Callable[[], Any]
verdicts: list[str] = []


def race(name: str, ours: Run, theirs: Run, target: float, repeats: int = 7, their_repeats: int | None = None) -> Any:
    """Both sides in turn; the ratio of the medians is kept for the last lines. Returns both results."""
    mine, other = ours(), theirs()
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(max(repeats, their_repeats or repeats)):
        for side, run in enumerate((ours, theirs)):
            if i < (repeats if side == 0 else their_repeats or repeats):
                began = time.perf_counter()
                run()
                times[side].append(time.perf_counter() - began)
    a, b = (statistics.median(t) for t in times)
    print(f"{name:52s}{1e3 * b:11.2f} ms{1e3 * a:11.2f} ms{b / a:9.1f}", flush=True)
    keep(name, b / a, target)
    return mine, other


def keep(name: str, ratio: float, target: float) -> None:
    """A line for the end."""
    verdicts.append(f"attribution {name}: ratio {ratio:.2f} target {target:g} {'ok' if ratio >= target else 'short'}")


@contextlib.contextmanager
def quiet() -> Any:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


# -- the rivals ------------------------------------------------------------------------------------------------------


class Rivals:
    """captum, dattri and kronfluence on one model and its rows."""

    def __init__(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, xt: torch.Tensor, yt: torch.Tensor) -> None:
        self.model, self.xt, self.yt = model, xt, yt
        self.train, self.test = TensorDataset(x, y), TensorDataset(xt, yt)
        self.folder = tempfile.mkdtemp()
        self.calls = 0
        self.common: dict[str, Any] = {
            "checkpoints": ["final"], "checkpoints_load_func": lambda net, path: 1.0, "batch_size": 2048,
        }  # fmt: skip

    def tracin(self) -> torch.Tensor:
        from captum.influence import TracInCP

        method = TracInCP(
            self.model, self.train, loss_fn=nn.CrossEntropyLoss(reduction="sum"), sample_wise_grads_per_batch=True,
            **self.common,
        )  # fmt: skip
        return method.influence((self.xt, self.yt))

    def tracin_fast(self) -> torch.Tensor:
        from captum.influence import TracInCPFast

        method = TracInCPFast(
            self.model, self.model[-1], self.train, loss_fn=nn.CrossEntropyLoss(reduction="sum"), **self.common
        )
        return method.influence((self.xt, self.yt))

    def arnoldi(self) -> torch.Tensor:
        from captum.influence._core.arnoldi_influence_function import ArnoldiInfluenceFunction

        with quiet():
            method = ArnoldiInfluenceFunction(
                self.model, self.train, "final", lambda net, path: 1.0, loss_fn=nn.CrossEntropyLoss(reduction="sum"),
                batch_size=2048, sample_wise_grads_per_batch=True, projection_dim=50, arnoldi_dim=100, seed=0,
            )  # fmt: skip
            return method.influence((self.xt, self.yt))

    def dattri_tracin(self, batch: int = 32) -> torch.Tensor:
        from dattri.algorithm import TracInAttributor
        from dattri.task import AttributionTask

        def loss(params: Any, data: Any) -> torch.Tensor:
            rows, labels = data
            logits = torch.func.functional_call(self.model, params, (rows.unsqueeze(0),))
            return nn.functional.cross_entropy(logits, labels.unsqueeze(0).long())

        with quiet():
            task = AttributionTask(loss_func=loss, model=self.model, checkpoints=[self.model.state_dict()])
            method = TracInAttributor(task=task, weight_list=torch.ones(1), normalized_grad=False, device="cpu")
            return method.attribute(
                DataLoader(self.train, batch_size=batch, shuffle=False),
                DataLoader(self.test, batch_size=batch, shuffle=False),
            )

    def kronfluence(self, damping: float | None) -> np.ndarray:
        import copy

        from kronfluence.analyzer import Analyzer, prepare_model
        from kronfluence.arguments import FactorArguments, ScoreArguments
        from kronfluence.task import Task

        class Digits(Task):
            def compute_train_loss(self, batch: Any, model: nn.Module, sample: bool = False) -> torch.Tensor:
                rows, labels = batch
                logits = model(rows)
                if sample:
                    with torch.no_grad():
                        labels = torch.multinomial(logits.detach().softmax(-1), 1).flatten()
                return nn.functional.cross_entropy(logits, labels, reduction="sum")

            def compute_measurement(self, batch: Any, model: nn.Module) -> torch.Tensor:
                rows, labels = batch
                logits = model(rows)
                at = torch.arange(len(labels))
                others = logits.clone()
                others[at, labels] = -torch.inf
                return -(logits[at, labels] - others.logsumexp(-1)).sum()

        self.calls += 1
        with quiet():
            torch.manual_seed(0)
            model = prepare_model(copy.deepcopy(self.model), Digits())
            analyzer = Analyzer(
                f"race{self.calls}", model, Digits(), cpu=True, disable_tqdm=True, output_dir=self.folder, log_level=40
            )
            analyzer.fit_all_factors(
                "ekfac", self.train, per_device_batch_size=512, factor_args=FactorArguments(strategy="ekfac"),
                overwrite_output_dir=True,
            )  # fmt: skip
            analyzer.compute_pairwise_scores(
                "scores", "ekfac", self.test, self.train, per_device_query_batch_size=360,
                per_device_train_batch_size=512,
                score_args=ScoreArguments(damping_factor=damping), overwrite_output_dir=True,
            )  # fmt: skip
            # its scores are positive for rows that raise minus the measurement's loss, in our sign
            return analyzer.load_pairwise_scores("scores")["all_modules"].numpy()


def ready() -> bool:
    if not (PEERS / "kronfluence").is_dir():
        print("installing the rivals into build/peers/attribution ...", flush=True)
        words = [
            sys.executable, "-m", "pip", "install", "-qqq", "--no-deps", "--target", str(PEERS), "-r",
            str(ROOT / "benchmarks/peers/attribution.txt"),
        ]  # fmt: skip
        if subprocess.run(words, check=False).returncode:
            return False
    sys.path.insert(0, str(PEERS))
    return True


# -- the contests ----------------------------------------------------------------------------------------------------


def farms(data: Any) -> None:
    contests = [
        ("farm, MLP, batch 64", "mlp", 64, 2.5), ("farm, MLP, batch 16", "mlp", 16, 4.0),
        ("farm, CNN, batch 64", "cnn", 64, 1.5), ("farm, CNN, batch 16", "cnn", 16, 3.0),
    ]  # fmt: skip
    for name, kind, batch, target in contests:
        make = ModelSpec.of("mlp", inputs=64, outputs=10) if kind == "mlp" else ModelSpec.of("cnn", side=8, outputs=10)
        spec = FitSpec(epochs=2, batch_size=batch, lr=0.05 if kind == "mlp" else 0.01)

        def run(engine: str, make: Any = make, spec: FitSpec = spec) -> Any:
            farm = RetrainingFarm(make, spec, n_subsets=20, engine=engine)
            return farm.run(data.X_train, data.y_train, data.X_test, data.y_test)

        a, b = race(name, lambda run=run: run("vmap"), lambda run=run: run("loop"), target, repeats=3)
        print(f"{'':4s}largest difference of a margin {np.abs(a.outputs - b.outputs).max():.1e}")


def tables() -> None:
    """Average precision of each way of ranking rows, with a tenth of the labels flipped."""
    import sklearn.datasets
    from sklearn.metrics import average_precision_score

    from assay.attribution import TableData, flip_labels, rank_rows
    from assay.attribution.tables import WAYS

    print(f"{'table':15s}{'seed':>5s}" + "".join(f"{way:>16s}" for way in WAYS))
    for name in ("wine", "breast_cancer", "digits", "iris"):
        X, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
        X = ((X - X.mean(0)) / np.maximum(X.std(0), 1e-6)).astype(np.float32)[:800]
        for seed in (0, 1):
            labels, bad = flip_labels(y[:800], 0.1, seed=seed)
            table = TableData(X, labels, list(range(int(y.max()) + 1)), [])
            found = [average_precision_score(bad, rank_rows(table, way=way).suspicion) for way in WAYS]
            print(f"{name:15s}{seed:5d}" + "".join(f"{v:16.2f}" for v in found), flush=True)


def facts(methods: Sequence[str] = ("random", "bm25", "graddot", "ekfac")) -> None:
    """Fact tracing on the corpus and the model of the task ``facts`` with seed 0."""
    from assay.attribution.benchmark import benchmark, load_task, prepared

    tracing = prepared(load_task("facts", "facts"), 0)
    known = tracing.answer_probability().mean()
    print(f"exact match {tracing.exact_match():.2f}, mean probability of the answer {known:.2f}")
    for name in methods:
        found = tracing.evaluate(benchmark.methods[name].make(), lr=1e-3)
        shown = "".join(f"{what:>14s} {v.score:+.3f} (chance {v.chance:+.3f})" for what, v in found.items())
        print(f"{name:10s}{shown}", flush=True)


HELD_OUT = ("wbc", "wpbc", "ionosphere", "australian", "diabetes_f", "german", "spambase", "krvskp")
NOISES = ("any row", "one class", "near the border")


def flipped(X: np.ndarray, y: np.ndarray, noise: str, seed: int, share: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Labels of two classes with a share of them wrong, and which."""
    from sklearn.ensemble import RandomForestClassifier

    rng = np.random.default_rng(seed)
    weight = np.ones(len(y))
    if noise == "one class":  # rows of the larger class get the label of the smaller one
        weight = (y == np.bincount(y).argmax()).astype(float)
    if noise == "near the border":  # the less sure a forest is of a row out of bag, the likelier is its label wrong
        forest = RandomForestClassifier(200, oob_score=True, random_state=seed).fit(X, y)
        weight = np.exp(-8 * np.abs(forest.oob_decision_function_[:, 1] - 0.5))
    bad = np.zeros(len(y), dtype=bool)
    bad[rng.choice(len(y), round(share * len(y)), replace=False, p=weight / weight.sum())] = True
    return np.where(bad, 1 - y, y), bad


def held_out(names: Sequence[str] = HELD_OUT) -> None:
    """Average precision on tables, seeds and kinds of noise that played no part in choosing how evidence is joined.

    Beside it: the same networks' probability of the own label out of fold (the self-confidence of confident learning),
    that of a logistic regression in 5 folds, and KNN-Shapley. A random order has the share of wrong labels, 0.10.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import average_precision_score
    from sklearn.model_selection import cross_val_predict

    from assay.attribution import TableData, rank_rows
    from assay.core.errors import DataError
    from assay.streams import load

    columns = ("combined", "self-confidence", "logistic, 5 folds", "KNN-Shapley")
    print(f"{'table':12s}{'noise':>17s}" + "".join(f"{c:>19s}" for c in columns))
    cells: dict[str, list[np.ndarray]] = {}
    for name in names:
        try:
            X, y = load(name).arrays()[:2]
        except DataError as error:
            print(f"{name:12s} left out: {error}")
            continue
        X, y = np.asarray(X, dtype=np.float64)[:400], np.asarray(y)[:400].astype(np.int64)
        X = np.nan_to_num((X - np.nanmean(X, 0)) / np.maximum(np.nanstd(X, 0), 1e-6)).astype(np.float32)
        for noise in NOISES:
            found = []
            for seed in (2, 3):
                labels, bad = flipped(X, y, noise, seed)
                table = TableData(X, labels, [0, 1], [])
                ranked = rank_rows(table, seed=seed)
                p = cross_val_predict(LogisticRegression(max_iter=500), X, labels, cv=5, method="predict_proba")
                assert ranked.confidence is not None
                signals = (
                    ranked.suspicion, -ranked.confidence, -p[np.arange(len(labels)), labels],
                    rank_rows(table, way="knn").suspicion,
                )  # fmt: skip
                found.append([average_precision_score(bad, s) for s in signals])
            cells.setdefault(name, []).append(np.array(found))
            print(f"{name:12s}{noise:>17s}" + "".join(f"{v:19.3f}" for v in np.mean(found, 0)), flush=True)
    if not cells:
        return
    every = np.array(list(cells.values()))  # (tables, noises, seeds, signals)
    print(f"{'mean':12s}{'':>17s}" + "".join(f"{v:19.3f}" for v in every.mean((0, 1, 2))))
    rng = np.random.default_rng(0)
    for k in range(1, len(columns)):
        gaps = (every[..., 0] - every[..., k]).mean((1, 2))  # by table: the tables are what is drawn
        draws = gaps[rng.integers(0, len(gaps), (10_000, len(gaps)))].mean(1)
        low, high = np.quantile(draws, [0.025, 0.975])
        won = int((every[..., 0].mean(2) > every[..., k].mean(2)).sum())
        cases = every.shape[0] * every.shape[1]
        print(f"combined minus {columns[k]}: {gaps.mean():+.3f} [{low:+.3f}, {high:+.3f}], ahead in {won} of {cases}")


def main() -> None:
    words = [word.partition("=") for word in sys.argv[1:]]
    chosen = {part: tuple(names.split(",")) for part, _, names in words if names}
    wanted = [part for part, _, _ in words] or list(PARTS)
    unknown = [p for p in wanted if p not in (*PARTS, *EXTRA)]
    if unknown:
        sys.exit(f"no part is named {unknown[0]!r}; there are {', '.join((*PARTS, *EXTRA))}")
    torch.set_num_threads(1)
    if "tables" in wanted:
        tables()
    if "held-out" in wanted:
        held_out(chosen.get("held-out", HELD_OUT))
    if "facts" in wanted:
        facts()
    if not set(wanted) & set(PARTS):
        return
    if not ready():
        sys.exit("the rivals could not be installed")
    torch.set_num_threads(1)
    data = load_digits_split()
    make, spec = ModelSpec.of("mlp", inputs=64, outputs=10), FitSpec()
    x, y = as_tensors(data.X_train, data.y_train)
    xt, yt = as_tensors(data.X_test, data.y_test)
    model, _ = fit_one(make, spec, x, y)
    truth = RetrainingFarm(make, spec, n_subsets=50).run(data.X_train, data.y_train, data.X_test, data.y_test)
    rivals = Rivals(model, x, y, xt, yt)
    print(f"{os.cpu_count()} processors, one used\n")
    print(f"{'':52s}{'rival':>14s}{'ours':>14s}{'ratio':>9s}")

    def score(A: Any) -> float:
        return lds(A, truth).score

    def ours(method: Any) -> Run:
        return lambda: method.fit(model, x, y).attribute(xt, yt, batch_size=360)

    if "farm" in wanted:
        farms(data)
    if "graddot" in wanted:
        a, b = race("GradDot against captum TracInCP", ours(GradDot(target="loss")), rivals.tracin, 10)
        gap = float((torch.as_tensor(a) - b).abs().max() / b.abs().max())
        print(f"{'':4s}largest difference {gap:.1e} of the largest score")
        _, c = race("GradDot against dattri TracIn", ours(GradDot(target="loss")), rivals.dattri_tracin, 100, 7, 1)

        def largest() -> torch.Tensor:
            return rivals.dattri_tracin(512)

        race("GradDot against dattri TracIn in batches of 512", ours(GradDot(target="loss")), largest, 100)
        print(f"{'':4s}LDS {score(a):.3f} ours, {score(b):.3f} captum, {score(c.detach().T):.3f} dattri")
    if "last" in wanted:
        last = TracInLast(bias=False, target="loss")
        a, b = race("TracInLast against captum TracInCPFast", ours(last), rivals.tracin_fast, 5)
        gap = float((torch.as_tensor(a) - b.detach()).abs().max() / b.abs().max())
        print(f"{'':4s}largest difference {gap:.1e} of the largest score")
    if "influence" in wanted or "ekfac" in wanted:
        by_damping = {d: score(rivals.kronfluence(d)) for d in (1e-8, 1e-3, 1e-2, None)}
        best = max(by_damping, key=lambda d: by_damping[d])
        shown = ", ".join(f"{'default' if d is None else f'{d:g}'} {v:.3f}" for d, v in by_damping.items())
        print(f"{'':4s}kronfluence EK-FAC, LDS by damping: {shown}")

        def strongest() -> np.ndarray:
            return rivals.kronfluence(best)

    if "influence" in wanted:
        a, _ = race("Influence (dual) against kronfluence EK-FAC", ours(Influence()), strongest, 10, 7, 3)
        _, c = race("Influence (dual) against captum Arnoldi", ours(Influence()), rivals.arnoldi, 10, 7, 1)
        mine, top = score(a), by_damping[best]
        print(
            f"{'':4s}LDS {mine:.3f} ours, {top:.3f} kronfluence at its best damping, "
            f"{score(c.detach()):.3f} captum Arnoldi"
        )
        keep("LDS of Influence over that of kronfluence's best minus 0.01", mine / (top - 0.01), 1)
        keep("LDS of Influence over 0.50", mine / 0.5, 1)
    if "ekfac" in wanted:
        a, b = race("EKFAC against kronfluence EK-FAC", ours(EKFAC()), strongest, 2, 7, 3)
        sampled = score(ours(EKFAC(labels="sampled"))())
        print(f"{'':4s}LDS {score(a):.3f} ours with exact labels, {sampled:.3f} sampled, {score(b):.3f} kronfluence")
    if "self" in wanted:
        from torch.func import functional_call, grad, vmap

        params = {k: v.detach() for k, v in model.named_parameters()}
        per_row = vmap(
            grad(lambda p, r, t: nn.functional.cross_entropy(functional_call(model, p, (r[None],)), t[None])),
            in_dims=(None, 0, 0),
        )
        race(
            "self-influence against one pass of per-row gradients",
            lambda: GradDot(target="loss").fit(model, x, y).self_influence(), lambda: per_row(params, x, y), 1,
        )  # fmt: skip
    print()
    print("\n".join(verdicts))


if __name__ == "__main__":
    main()
