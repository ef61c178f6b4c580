"""The Reeb tower against PAGA, PHATE, ElPiGraph and Mapper on the same cells in one run, and against time limits.

    make bench FIELD=shapes

The rivals run in an environment of their own (build/peers/shapes, made on the first call; or the Python that
ASSAY_SHAPES_PEER names). One thread, all warm, principal components included on all sides. The last lines are
``shapes <what>: ratio <r> target <t> ok|short``; a ratio above the target is good.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np

from assay.shapes import ReebTower, make_shape
from assay.shapes.synthetic import KINDS, cell_params

ROOT = Path(__file__).resolve().parents[1]
PEER = Path(os.environ.get("ASSAY_SHAPES_PEER", ROOT / "build" / "peers" / "shapes" / "bin" / "python"))
VERDICTS: list[str] = []
REPEATS = 3

RIVALS = r"""
import json, os, sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np
folder, repeats = sys.argv[1], int(sys.argv[2])
out = {}


def timed(what, run, X):
    run(X)
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        run(X)
        seconds.append(time.perf_counter() - began)
    out[what] = sorted(seconds)[len(seconds) // 2]


def components(X, k=10):
    Y = X - X.mean(axis=0)
    return np.ascontiguousarray(Y @ np.linalg.svd(Y, full_matrices=False)[2][:k].T)


def paga(X, n_components=10):
    import anndata, scanpy as sc
    a = anndata.AnnData(np.asarray(X, dtype=np.float32))
    a.obsm["X_pca"] = components(X, n_components)
    sc.pp.neighbors(a, n_neighbors=15, use_rep="X_pca")
    sc.tl.leiden(a, flavor="igraph", n_iterations=2, directed=False)
    sc.tl.paga(a)
    return a.uns["paga"]["connectivities"].toarray()


def loops(adjacency):
    from scipy.sparse.csgraph import connected_components
    n = len(adjacency)
    b0 = connected_components(adjacency)[0]
    return int(np.triu(adjacency > 0, 1).sum()) - n + b0


def elpigraph_tree(X):
    import elpigraph
    return elpigraph.computeElasticPrincipalTree(components(X), 30, verbose=False)[0]


def phate_potential(X):
    import phate
    op = phate.PHATE(n_jobs=1, verbose=0, n_pca=10, random_state=0)
    op.fit(np.asarray(X))
    op.diff_potential
    return op


def mapper(X):
    import kmapper
    from sklearn.cluster import DBSCAN
    Y = components(X)
    m = kmapper.KeplerMapper(verbose=0)
    eps = float(np.median(np.linalg.norm(Y - Y.mean(0), axis=1))) / 2
    return m.map(Y[:, :2], Y, cover=kmapper.Cover(10, 0.3), clusterer=DBSCAN(eps=eps, min_samples=3))


for n in (3000, 10000):
    X = np.load(os.path.join(folder, f"y{n}.npy"))
    for what, run in (("paga", paga), ("elpigraph", elpigraph_tree), ("phate", phate_potential), ("mapper", mapper)):
        if n > 3000 and what in ("elpigraph", "phate"):
            continue
        try:
            timed(f"{what} {n}", run, X)
        except Exception as error:
            print(f"{what} at {n} failed: {type(error).__name__}: {error}"[:200], file=sys.stderr)
errors = {}
thresholds = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5)
for i, true in json.load(open(os.path.join(folder, "truth.json"))).items():
    X = np.load(os.path.join(folder, f"g{i}.npy"))
    try:
        c = paga(X)
        for t in thresholds:
            errors.setdefault(f"paga {t}", []).append(abs(loops(c >= t) - true))
    except Exception as error:
        print(f"paga on shape {i} failed: {error}"[:200], file=sys.stderr)
    errors.setdefault("elpigraph", []).append(true)
    try:
        g = mapper(X)
        names = list(g["nodes"])
        place = {v: k for k, v in enumerate(names)}
        A = np.zeros((len(names), len(names)))
        for a, bs in g["links"].items():
            for b in bs:
                A[place[a], place[b]] = A[place[b], place[a]] = 1
        errors.setdefault("mapper", []).append(abs(loops(A) - true))
    except Exception as error:
        print(f"mapper on shape {i} failed: {error}"[:200], file=sys.stderr)
print(json.dumps({"seconds": out, "errors": {k: float(np.mean(v)) for k, v in errors.items()}}))
"""


def noisy_y(n: int) -> np.ndarray:
    """Three arms of length 3 in 50 dimensions, noise 0.15 on each axis."""
    rng = np.random.default_rng(n)
    angle = 2 * np.pi * rng.integers(3, size=n) / 3
    flat = np.stack([np.cos(angle), np.sin(angle)], axis=1) * rng.uniform(0, 3, (n, 1))
    axes = np.linalg.qr(rng.normal(size=(50, 50)))[0][:, :2]
    return flat @ axes.T + rng.normal(size=(n, 50)) * 0.15


def verdict(what: str, ratio: float, target: float) -> None:
    VERDICTS.append(f"shapes {what}: ratio {ratio:.2f} target {target:g} {'ok' if ratio >= target else 'short'}")


def fit(X: np.ndarray) -> ReebTower:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ReebTower(n_bootstrap=0, n_jobs=1).fit(X)


def seconds_of(X: np.ndarray, repeats: int = REPEATS) -> float:
    fit(X)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        fit(X)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def peer() -> bool:
    if PEER.exists():
        return True
    folder = PEER.parents[1]
    print("making the environment of the rivals ...", flush=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        requirements = ROOT / "benchmarks" / "peers" / "shapes.txt"
        subprocess.run([str(PEER.parent / "pip"), "install", "-qqq", "-r", str(requirements)], check=True)
    except subprocess.CalledProcessError:
        shutil.rmtree(folder, ignore_errors=True)
        return False
    return True


def main() -> None:
    ours = {}
    for n, limit in ((3000, 1.0), (10_000, 3.0), (50_000, 15.0)):
        ours[n] = seconds_of(noisy_y(n), REPEATS if n < 50_000 else 1)
        print(f"Reeb tower, {n:6d} cells: {ours[n]:.2f} s (limit {limit:g} s)", flush=True)
        verdict(f"{n} cells against {limit:g} s", limit / ours[n], 1)
    errors, truth = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for n in (3000, 10_000):
            np.save(Path(folder) / f"y{n}.npy", noisy_y(n))
        i = 0
        for kind in KINDS:
            for sigma in (0.02, 0.05, 0.1):
                for imbalance in (1, 5, 20):
                    made = make_shape(**cell_params(kind, sigma, 2000, imbalance, 0))
                    np.save(Path(folder) / f"g{i}.npy", made.X)
                    truth[i] = made.skeleton.betti()[1]
                    errors.append(abs(fit(made.X).skeleton_.betti()[1] - truth[i]))
                    i += 1
        own = float(np.mean(errors))
        print(f"mean |b1 error| on {i} shapes of bench-v1 (n 2000, sigma <= 0.1): {own:.3f} (limit 0.05)", flush=True)
        verdict("mean b1 error against 0.05", 0.05 / max(own, 1e-3), 1)
        (Path(folder) / "truth.json").write_text(json.dumps(truth))
        if peer():
            done = subprocess.run([str(PEER), "-c", RIVALS, folder, str(REPEATS)], capture_output=True, text=True)
            print(done.stderr[-2000:], end="")
            found = json.loads(done.stdout.strip().splitlines()[-1])
            for what, seconds in found["seconds"].items():
                print(f"{what:18s} {seconds:.2f} s")
            for what, value in found["errors"].items():
                print(f"mean |b1 error| of {what:12s} {value:.3f}")
            speed = found["seconds"]
            for rival, target in (("phate", 5.0), ("elpigraph", 1.0), ("paga", 0.2), ("mapper", 1.0)):
                if f"{rival} 3000" in speed:
                    verdict(f"time against {rival} at 3000 cells", speed[f"{rival} 3000"] / ours[3000], target)
            best = min(v for k, v in found["errors"].items() if k.startswith("paga"))
            for rival, value in (
                ("paga at its best threshold", best),
                ("elpigraph", found["errors"]["elpigraph"]),
                ("mapper", found["errors"].get("mapper", np.nan)),
            ):
                verdict(f"b1 errors against {rival}", value / max(own, 1e-3), 1)
    print("\n".join(VERDICTS))


if __name__ == "__main__":
    main()
