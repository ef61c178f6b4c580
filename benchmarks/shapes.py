"""The Reeb tower against PAGA, PHATE, ElPiGraph and two Mappers on the same cells in one run, and against limits.

    make bench FIELD=shapes
    .venv/bin/python benchmarks/shapes.py --skip-million

The rivals run in an environment of their own (build/peers/shapes, made on the first call; or the Python that
ASSAY_SHAPES_PEER names). One thread, all warm, principal components included on all sides, no bootstrap.

1. Time: a Y of three arms of length 3 in 50 dimensions with noise 0.15 on each axis. Limits are on wall seconds; the
   races compare processor seconds of the one thread, so that another process on the machine does not decide them.
2. Errors: shapes of bench-v1 with 2000 cells. |b1 error| over all kinds at sigma 0.02, 0.05, 0.1; then, against the
   rivals, |b0| + |b1| + |leaves| errors at sigma 0.05 and 0.1 and imbalance 1 and 5, over the kinds whose truth is a
   skeleton (all but the simplex). Each rival has a grid of settings and is taken at the setting with the fewest errors
   on these very shapes.
3. A million cells in a process of its own, with two threads: seconds, and the largest memory.
4. PCHA: the residual against `archetypes` on the same cells.

The last lines are ``shapes <what>: ratio <r> target <t> ok|short``; a ratio above the target is good.
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
from typing import Any

THREADS = "2" if "--million" in sys.argv else "1"
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = THREADS

import numpy as np

from assay.shapes import ReebTower, make_shape, pcha
from assay.shapes.synthetic import KINDS, cell_params

ROOT = Path(__file__).resolve().parents[1]
PEER = Path(os.environ.get("ASSAY_SHAPES_PEER", ROOT / "build" / "peers" / "shapes" / "bin" / "python"))
VERDICTS: list[str] = []
REPEATS = 5
MILLION = 1_000_000
SIGMAS = (0.02, 0.05, 0.1)
IMBALANCES = (1, 5, 20)

RIVALS = r"""
import json, os, sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np
from scipy.sparse.csgraph import connected_components
folder, repeats = sys.argv[1], int(sys.argv[2])
cpu, wall, failed = {}, {}, {}


def timed(what, run, X):
    run(X)
    a, b = [], []
    for _ in range(repeats):
        began, used = time.perf_counter(), time.process_time()
        run(X)
        a.append(time.process_time() - used)
        b.append(time.perf_counter() - began)
    cpu[what], wall[what] = sorted(a)[len(a) // 2], sorted(b)[len(b) // 2]


def components(X, k=10):
    Y = X - X.mean(axis=0)
    return np.ascontiguousarray(Y @ np.linalg.svd(Y, full_matrices=False)[2][:k].T)


def paga(X, resolution=1.0):
    import anndata, scanpy as sc
    a = anndata.AnnData(np.asarray(X, dtype=np.float32))
    a.obsm["X_pca"] = components(X)
    sc.pp.neighbors(a, n_neighbors=15, use_rep="X_pca")
    sc.tl.leiden(a, flavor="igraph", n_iterations=2, directed=False, resolution=resolution)
    sc.tl.paga(a)
    return a.uns["paga"]["connectivities"].toarray()


def elpigraph_tree(X, nodes=30):
    import elpigraph
    return elpigraph.computeElasticPrincipalTree(components(X), nodes, verbose=False)[0]


def phate_potential(X):
    import phate
    op = phate.PHATE(n_jobs=1, verbose=0, n_pca=10, random_state=0)
    op.fit(np.asarray(X))
    op.diff_potential
    return op


def radius(Y, share):
    return share * float(np.median(np.linalg.norm(Y - Y.mean(0), axis=1)))


def kmapper_graph(X, cubes=10, overlap=0.3, share=0.5):
    import kmapper
    from sklearn.cluster import DBSCAN
    Y = components(X)
    m = kmapper.KeplerMapper(verbose=0)
    g = m.map(Y[:, :2], Y, cover=kmapper.Cover(cubes, overlap), clusterer=DBSCAN(eps=radius(Y, share), min_samples=3))
    place = {v: k for k, v in enumerate(g["nodes"])}
    return len(place), [(place[a], place[b]) for a, bs in g["links"].items() for b in bs]


def tdamapper_graph(X, cubes=10, overlap=0.3, share=0.5):
    from sklearn.cluster import DBSCAN
    from tdamapper.cover import CubicalCover
    from tdamapper.learn import MapperAlgorithm
    Y = components(X)
    cover = CubicalCover(n_intervals=cubes, overlap_frac=overlap)
    g = MapperAlgorithm(cover, DBSCAN(eps=radius(Y, share), min_samples=3), verbose=False).fit_transform(Y, Y[:, :2])
    place = {v: k for k, v in enumerate(g.nodes)}
    return len(place), [(place[a], place[b]) for a, b in g.edges]


def topology(n, pairs):
    pairs = {(min(a, b), max(a, b)) for a, b in pairs if a != b}
    A = np.zeros((n, n))
    for a, b in pairs:
        A[a, b] = A[b, a] = 1
    b0 = int(connected_components(A, directed=False)[0]) if n else 0
    return b0, len(pairs) - n + b0, int((A.sum(axis=0) == 1).sum())


def of_edges(n, edges):
    return topology(n, [tuple(e) for e in edges])


SETTINGS = {
    "paga": [(f"resolution {r}", (r,)) for r in (0.5, 1.0)],
    "elpigraph": [(f"{n} nodes", (n,)) for n in (30, 50)],
    "phate": [],
}
for name in ("kmapper", "tdamapper"):
    SETTINGS[name] = [
        (f"{c} cubes, eps {e} of the median radius", (c, 0.3, e)) for c in (8, 12) for e in (0.3, 0.6)
    ]
RUN = {
    "paga": paga, "elpigraph": elpigraph_tree, "phate": phate_potential, "kmapper": kmapper_graph,
    "tdamapper": tdamapper_graph,
}
rival, found, residual = sys.argv[3], {}, None
if rival in RUN:
    for n in (3000, 10000):
        if n > 3000 and rival in ("elpigraph", "phate"):
            continue
        try:
            timed(f"{rival} {n}", RUN[rival], np.load(os.path.join(folder, f"y{n}.npy")))
        except Exception as error:
            failed[f"{rival} {n}"] = f"{type(error).__name__}: {error}"[:150]
    for i in json.load(open(os.path.join(folder, "shapes.json"))):
        X = np.load(os.path.join(folder, f"g{i}.npy"))
        for setting, options in SETTINGS[rival]:
            try:
                g = RUN[rival](X, *options)
            except Exception as error:
                failed[f"{rival} on shape {i}"] = f"{type(error).__name__}: {error}"[:150]
                continue
            if rival == "paga":
                for t in (0.01, 0.05, 0.1, 0.2, 0.3, 0.5):
                    edges = np.argwhere(np.triu(g >= t, 1)).tolist()
                    found.setdefault(f"{setting}, threshold {t}", {})[i] = of_edges(len(g), edges)
            elif rival == "elpigraph":
                found.setdefault(setting, {})[i] = of_edges(len(g["NodePositions"]), g["Edges"][0].tolist())
            else:
                found.setdefault(setting, {})[i] = of_edges(*g)
else:
    import archetypes
    X = np.load(os.path.join(folder, "simplex.npy"))
    residual = np.inf
    for seed in range(3):
        model = archetypes.AA(4, max_iter=1000, tol=1e-7, method="pgd", init="furthest_sum", random_state=seed).fit(X)
        residual = min(residual, float(((X - model.transform(X) @ model.archetypes_) ** 2).sum()))
print(json.dumps({"cpu": cpu, "wall": wall, "found": found, "failed": failed, "residual": residual}))
"""


def noisy_y(n: int) -> np.ndarray:
    """Three arms of length 3 in 50 dimensions, noise 0.15 on each axis (float32)."""
    rng = np.random.default_rng(n)
    angle = 2 * np.pi * rng.integers(3, size=n) / 3
    flat = np.stack([np.cos(angle), np.sin(angle)], axis=1) * rng.uniform(0, 3, (n, 1))
    axes = np.linalg.qr(rng.normal(size=(50, 50)))[0][:, :2]
    X = rng.standard_normal((n, 50), dtype=np.float32) * np.float32(0.15)
    X += flat.astype(np.float32) @ axes.T.astype(np.float32)
    return X


def noisy_simplex() -> np.ndarray:
    """A tetrahedron in 10 dimensions with noise of 3 % of its diameter."""
    rng = np.random.default_rng(0)
    corners = np.zeros((4, 10))
    corners[:, :3] = [[0, 0, 0], [1, 0, 0], [0.5, 0.87, 0], [0.5, 0.29, 0.82]]
    X = rng.dirichlet([0.3] * 4, 1000) @ corners
    return X + rng.normal(size=X.shape) * 0.03 * np.linalg.norm(corners[0] - corners[1])


def verdict(what: str, ratio: float, target: float) -> None:
    VERDICTS.append(f"shapes {what}: ratio {ratio:.2f} target {target:g} {'ok' if ratio >= target else 'short'}")


def fit(X: np.ndarray, n_jobs: int = 1) -> ReebTower:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ReebTower(n_bootstrap=0, n_jobs=n_jobs).fit(X)


def seconds_of(X: np.ndarray, repeats: int = REPEATS) -> tuple[float, float]:
    """Median processor and wall seconds of a warm fit."""
    fit(X)
    cpu, wall = [], []
    for _ in range(repeats):
        began, used = time.perf_counter(), time.process_time()
        fit(X)
        cpu.append(time.process_time() - used)
        wall.append(time.perf_counter() - began)
    return statistics.median(cpu), statistics.median(wall)


def topology(tower: ReebTower) -> tuple[int, int, int]:
    b0, b1 = tower.skeleton_.betti()
    return b0, b1, len(tower.skeleton_.leaves())


def errors(found: Any, true: Any) -> int:
    return sum(abs(int(a) - int(b)) for a, b in zip(found, true, strict=True))


def million() -> None:
    """In a process of its own: print seconds, memory and what was found."""
    import resource

    X = noisy_y(MILLION)
    began, used = time.perf_counter(), time.process_time()
    tower = fit(X, n_jobs=2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(json.dumps([time.perf_counter() - began, time.process_time() - used, peak, topology(tower)]))


def peer() -> bool:
    if PEER.exists():
        return True
    folder = PEER.parents[1]
    print("making the environment of the rivals ...", flush=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        requirements = ROOT / "benchmarks" / "peers" / "shapes.txt"
        subprocess.run([str(PEER.parent / "pip"), "install", "-qqq", "-r", str(requirements)], check=True)
    except (subprocess.CalledProcessError, OSError):
        shutil.rmtree(folder, ignore_errors=True)
        return False
    return True


def time_ourselves() -> dict[int, float]:
    cpu = {}
    for n, limit in ((3000, 1.0), (10_000, 3.0), (50_000, 15.0)):
        cpu[n], wall = seconds_of(noisy_y(n), REPEATS if n < 50_000 else 3)
        print(f"Reeb tower, {n:6d} cells: {wall:.2f} s wall, {cpu[n]:.2f} s processor (limit {limit:g} s)", flush=True)
        verdict(f"{n} cells within {limit:g} s", limit / wall, 1)
    if "--skip-million" not in sys.argv:
        command = [sys.executable, str(Path(__file__).resolve()), "--million"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        wall, used, peak, found = json.loads(done.stdout.strip().splitlines()[-1])
        print(
            f"Reeb tower, {MILLION} cells x 50, 2 threads: {wall:.0f} s wall, {used:.0f} s processor, {peak:.1f} GB, "
        )
        print(f"    components, loops, leaves {found} (true 1, 0, 3)", flush=True)
        verdict("a million cells within 300 s", 300 / wall, 1)
        verdict("a million cells within 8 GB", 8 / peak, 1)
    return cpu


def make_shapes(
    folder: Path,
) -> tuple[dict[int, tuple[str, tuple[int, int, int]]], dict[int, tuple[int, int, int]], list[int]]:
    """Write the cells; return the kind and true topology of each shape, what the tower finds, and which are raced."""
    truth: dict[int, tuple[str, tuple[int, int, int]]] = {}
    ours: dict[int, tuple[int, int, int]] = {}
    raced: list[int] = []
    for kind in KINDS:
        for sigma in SIGMAS:
            for imbalance in IMBALANCES:
                i = len(truth)
                made = make_shape(**cell_params(kind, sigma, 2000, imbalance, 0))
                np.save(folder / f"g{i}.npy", made.X)
                skeleton = made.skeleton.simplify()
                truth[i] = kind, (*skeleton.betti(), len(skeleton.leaves()))
                ours[i] = topology(fit(made.X))
                if kind != "simplex" and sigma >= 0.05 and imbalance <= 5:
                    raced.append(i)
    return truth, ours, raced


def main() -> None:
    ours_cpu = time_ourselves()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for n in (3000, 10_000):
            np.save(folder / f"y{n}.npy", noisy_y(n))
        truth, ours, raced = make_shapes(folder)
        b1 = statistics.fmean(abs(ours[i][1] - truth[i][1][1]) for i in truth)
        print(f"mean |b1 error| on {len(truth)} shapes (n 2000, sigma <= 0.1): {b1:.3f} (limit 0.05)", flush=True)
        verdict("mean b1 error against 0.05", 0.05 / max(b1, 1e-3), 1)
        own = statistics.fmean(errors(ours[i], truth[i][1]) for i in raced)
        print(f"{'Reeb tower':10s} mean topology error {own:.3f} on {len(raced)} shapes, one setting")
        X = noisy_simplex()
        np.save(folder / "simplex.npy", X)
        (folder / "shapes.json").write_text(json.dumps(raced))
        if not peer():
            print("the environment of the rivals cannot be made here; there is no race")
        else:
            race(name, ours_cpu, ours, truth, raced)
            found = ask(name, "archetypes")["residual"]
            residual = pcha(X, 4).residual
            print(f"PCHA residual {residual:.6f}, archetypes {found:.6f}")
            verdict("PCHA residual within 1 % of archetypes", 0.01 / max(abs(residual / found - 1), 1e-9), 1)
    print("\n".join(VERDICTS))


def ask(folder: str, rival: str, repeats: int = REPEATS) -> dict[str, Any]:
    """Run a rival in its environment: seconds, topologies by setting, what failed."""
    done = subprocess.run([str(PEER), "-c", RIVALS, folder, str(repeats), rival], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{rival} failed:\n{done.stderr[-1500:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def race(
    folder: str,
    ours_cpu: dict[int, float],
    ours: dict[int, tuple[int, int, int]],
    truth: dict[int, tuple[str, tuple[int, int, int]]],
    raced: list[int],
    repeats: int = REPEATS,
) -> None:
    for rival, target in (("phate", 5.0), ("elpigraph", 1.0), ("paga", 0.2), ("kmapper", None), ("tdamapper", None)):
        found = ask(folder, rival, repeats)
        for what, reason in found["failed"].items():
            print(f"{what} failed: {reason}")
        for what, seconds in found["cpu"].items():
            print(f"{what:16s} {found['wall'][what]:.2f} s wall, {seconds:.2f} s processor", flush=True)
        if target is not None and f"{rival} 3000" in found["cpu"]:
            verdict(f"time against {rival} at 3000 cells", found["cpu"][f"{rival} 3000"] / ours_cpu[3000], target)
        pairs = {}
        for setting, shape in found["found"].items():
            both = [i for i in raced if str(i) in shape]  # a rival may fail on a shape; then neither side counts it
            theirs = statistics.fmean(errors(shape[str(i)], truth[i][1]) for i in both)
            pairs[setting] = theirs, statistics.fmean(errors(ours[i], truth[i][1]) for i in both), len(both)
        if pairs:
            best = min(pairs, key=lambda setting: pairs[setting][0])
            theirs, own, count = pairs[best]
            print(
                f"{rival:10s} mean topology error {theirs:.3f} at its best of {len(pairs)} settings ({best}), "
                f"tower {own:.3f}, {count} shapes"
            )
            verdict(f"topology errors against {rival} at its best", (theirs + 1e-3) / (own + 1e-3), 1)


if __name__ == "__main__":
    if "--million" in sys.argv:
        million()
    else:
        main()
