"""The Reeb tower against PAGA, PHATE, ElPiGraph and two Mappers on the same cells in one run, and against limits.

    make bench FIELD=shapes
    .venv/bin/python benchmarks/shapes.py warm bootstrap speed        # some parts
    .venv/bin/python benchmarks/shapes.py errors --rivals paga,elpigraph --cells 2000
    .venv/bin/python benchmarks/shapes.py grid --replicates 0-2 --out build/shapes-grid.jsonl

The rivals run in an environment of their own (build/peers/shapes, made on the first call; or the Python that
ASSAY_SHAPES_PEER names). One thread, all warm, principal components included on all sides, no bootstrap.

warm       A Y of three arms of length 3 in 50 dimensions with noise 0.15 on each axis; limits are on wall seconds.
bootstrap  Processor seconds of one bootstrap in units of a fit, 3000 cells of the same Y.
speed      The same Y against each rival, in processor seconds of the one thread.
errors     |b0| + |b1| + |leaves| errors on shapes of bench-v1 whose truth is a skeleton (all kinds but the simplex), at
           sigma 0.05 and 0.1: 2000 cells at imbalance 1 and 5, and 10 000 cells at imbalance 1. The replicates are
           ones that nothing was chosen on. The tower has its one setting; each rival has a grid of settings and is
           taken at the one with the fewest errors on these very shapes. A rival has 60 processor seconds a shape;
           where it fails or has not finished, neither side counts the shape, and how many these are is said.
large      A million cells with approximate neighbours (the Y, and at rank 15), in processes of their own with two
           threads: seconds, and the largest memory.
pcha       The residual against `archetypes` on the same cells.
grid       Not part of the race: components, loops and leaves of the tower over all of bench-v1, by cells and
           thickness. A file that is there is gone on with.

The last lines are ``shapes <what>: ratio <r> target <t> ok|short``; a ratio above the target is good.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

THREADS = "2" if "--large" in sys.argv else "1"
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
PARTS = ("warm", "bootstrap", "speed", "errors", "large", "pcha")
SPEED = {"phate": 5.0, "elpigraph": 1.0, "paga": 0.2}
RACED = {2000: ((11, 12), (1, 5)), 10_000: ((13,), (1,))}  # cells: replicates, imbalances
SIGMAS = (0.05, 0.1)

RIVALS = r"""
import json, os, signal, sys, time, warnings
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
    try:
        sc.tl.paga(a)
    except ValueError:  # it raises where no two clusters touch
        return np.zeros((a.obs["leiden"].nunique(),) * 2)
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
    "elpigraph": [("30 nodes", (30,))],
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
task, rival, found, residual = sys.argv[3], sys.argv[4], {}, None


class TooLong(Exception):
    pass


def ring(*_):
    raise TooLong("not finished in 60 s of the processor")


if task == "speed":
    for n in (3000, 10000):
        if n > 3000 and rival in ("elpigraph", "phate"):
            continue
        try:
            timed(f"{rival} {n}", RUN[rival], np.load(os.path.join(folder, f"y{n}.npy")))
        except Exception as error:
            failed[f"{rival} {n}"] = f"{type(error).__name__}: {error}"[:150]
elif task == "errors":
    signal.signal(signal.SIGPROF, ring)
    # code is compiled at the first call, which takes longer than any shape
    RUN[rival](np.load(os.path.join(folder, "g0.npy")), *((12,) if rival == "elpigraph" else ()))
    for i in json.load(open(os.path.join(folder, "shapes.json"))):
        X = np.load(os.path.join(folder, f"g{i}.npy"))
        for setting, options in SETTINGS[rival]:
            signal.setitimer(signal.ITIMER_PROF, 60)
            try:
                g = RUN[rival](X, *options)
            except Exception as error:
                failed[f"{rival} on shape {i}, {setting}"] = f"{type(error).__name__}: {error}"[:150]
                continue
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
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


def fit(X: np.ndarray, n_bootstrap: int = 0, n_jobs: int = 1) -> ReebTower:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ReebTower(n_bootstrap=n_bootstrap, n_jobs=n_jobs).fit(X)


def seconds_of(X: np.ndarray, repeats: int = REPEATS, n_bootstrap: int = 0) -> tuple[float, float]:
    """Median processor and wall seconds of a warm fit."""
    fit(X, n_bootstrap)
    cpu, wall = [], []
    for _ in range(repeats):
        began, used = time.perf_counter(), time.process_time()
        fit(X, n_bootstrap)
        cpu.append(time.process_time() - used)
        wall.append(time.perf_counter() - began)
    return statistics.median(cpu), statistics.median(wall)


def topology(tower: ReebTower) -> tuple[int, int, int]:
    b0, b1 = tower.skeleton_.betti()
    return b0, b1, len(tower.skeleton_.leaves())


def errors_of(found: Any, true: Any) -> int:
    return sum(abs(int(a) - int(b)) for a, b in zip(found, true, strict=True))


def warm() -> None:
    for n, limit in ((3000, 1.0), (10_000, 3.0), (50_000, 15.0)):
        cpu, wall = seconds_of(noisy_y(n), REPEATS if n < 50_000 else 3)
        print(f"Reeb tower, {n:6d} cells: {wall:.2f} s wall, {cpu:.2f} s processor (limit {limit:g} s)", flush=True)
        verdict(f"{n} cells within {limit:g} s", limit / wall, 1)


def bootstrap(count: int = 10) -> None:
    X = noisy_y(3000)
    without, with_ = seconds_of(X)[0], seconds_of(X, 3, count)[0]
    each = (with_ - without) / count / without
    print(f"a bootstrap takes {each:.2f} of a fit ({without:.2f} s processor, {with_:.2f} s with {count})", flush=True)
    verdict("a bootstrap within 0.3 of a fit", 0.3 / each, 1)


def wide_y(n: int, rank: int = 15) -> np.ndarray:
    """Three arms that wind through ``rank`` of 50 dimensions, so that as many singular values stand above the noise."""
    rng = np.random.default_rng(n)
    arm, at = rng.integers(3, size=n), rng.uniform(0, 3, n)
    swing = rng.normal(size=(3, rank)) * 0.6
    flat = np.sin(np.linspace(0.5, 3, rank) * at[:, None]) * swing[arm]
    angle = 2 * np.pi * arm / 3
    flat[:, :2] += np.stack([np.cos(angle), np.sin(angle)], axis=1) * at[:, None]
    axes = np.linalg.qr(rng.normal(size=(50, 50)))[0][:, :rank]
    X = rng.standard_normal((n, 50), dtype=np.float32) * np.float32(0.15)
    X += flat.astype(np.float32) @ axes.T.astype(np.float32)
    return X


def one_large(kind: str) -> None:
    """In a process of its own: print seconds, memory and what was found."""
    import resource

    X = noisy_y(MILLION) if kind == "y" else wide_y(MILLION)
    began, used = time.perf_counter(), time.process_time()
    tower = fit(X, n_jobs=2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    near = tower.points_.neighbors
    row = {
        "wall": time.perf_counter() - began,
        "cpu": time.process_time() - used,
        "gigabytes": peak,
        "topology": topology(tower),
        "rank": tower.prepared_.rank,
        "neighbours": near.method,
        "recall": near.recall,
    }
    print(json.dumps(row))


def large(kinds: list[str]) -> None:
    for kind in kinds:
        command = [sys.executable, str(Path(__file__).resolve()), "--large", kind]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        row = json.loads(done.stdout.strip().splitlines()[-1])
        print(
            f"Reeb tower, {MILLION} cells x 50 ({kind}), 2 threads: {row['wall']:.0f} s wall, {row['cpu']:.0f} s "
            f"processor, {row['gigabytes']:.1f} GB; rank {row['rank']}, {row['neighbours']} neighbours, recall "
            f"{row['recall']:.3f}; components, loops, leaves {row['topology']} (true 1, 0, 3)",
            flush=True,
        )
        verdict(f"a million cells ({kind}) within 300 s", 300 / row["wall"], 1)
        verdict(f"a million cells ({kind}) within 8 GB", 8 / row["gigabytes"], 1)


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
        print("the environment of the rivals cannot be made here; there is no race")
        return False
    return True


def ask(folder: str | Path, task: str, rival: str, repeats: int = REPEATS) -> dict[str, Any]:
    """Run a rival in its environment: seconds, topologies by setting, what failed."""
    done = subprocess.run(
        [str(PEER), "-c", RIVALS, str(folder), str(repeats), task, rival], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{rival} failed:\n{done.stderr[-1500:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def speed(rivals: list[str]) -> None:
    if not peer():
        return
    with tempfile.TemporaryDirectory() as folder:
        for n in (3000, 10_000):
            np.save(Path(folder) / f"y{n}.npy", noisy_y(n))
        own = seconds_of(noisy_y(3000))[0]
        print(f"Reeb tower, 3000 cells: {own:.2f} s processor", flush=True)
        for rival in rivals:
            found = ask(folder, "speed", rival)
            for what, reason in found["failed"].items():
                print(f"{what} failed: {reason}")
            for what, seconds in found["cpu"].items():
                print(f"{what:16s} {found['wall'][what]:.2f} s wall, {seconds:.2f} s processor", flush=True)
            if rival in SPEED and f"{rival} 3000" in found["cpu"]:
                verdict(f"time against {rival} at 3000 cells", found["cpu"][f"{rival} 3000"] / own, SPEED[rival])


def errors(rivals: list[str], cells: list[int]) -> None:
    if not peer():
        return
    for n in cells:
        with tempfile.TemporaryDirectory() as folder:
            truth, ours, kinds = [], [], []
            replicates, imbalances = RACED[n]
            for kind in KINDS:
                for sigma in SIGMAS if kind != "simplex" else ():
                    for imbalance in imbalances:
                        for replicate in replicates:
                            made = make_shape(**cell_params(kind, sigma, n, imbalance, replicate))
                            np.save(Path(folder) / f"g{len(truth)}.npy", made.X)
                            skeleton = made.skeleton.simplify()
                            truth.append((*skeleton.betti(), len(skeleton.leaves())))
                            ours.append(topology(fit(made.X)))
                            kinds.append(f"{kind} sigma {sigma} imbalance {imbalance} replicate {replicate}")
            (Path(folder) / "shapes.json").write_text(json.dumps(list(range(len(truth)))))
            own = [errors_of(a, b) for a, b in zip(ours, truth, strict=True)]
            for kind, a, b, wrong in zip(kinds, ours, truth, own, strict=True):
                if wrong:
                    print(f"    tower wrong on {kind}: components, loops, leaves {a}, true {b}")
            b1 = statistics.fmean(abs(a[1] - b[1]) for a, b in zip(ours, truth, strict=True))
            print(
                f"{n} cells, {len(own)} shapes: tower, one setting: mean topology error {statistics.fmean(own):.3f}, "
                f"of loops {b1:.3f}, all right on {own.count(0)}",
                flush=True,
            )
            verdict(f"mean b1 error against 0.05, {n} cells", 0.05 / max(b1, 1e-3), 1)
            for rival in rivals:
                against(rival, ask(folder, "errors", rival), truth, own, n)


def against(rival: str, found: dict[str, Any], truth: list[tuple[int, int, int]], own: list[int], n: int) -> None:
    reasons = Counter(found["failed"].values())
    for reason, count in reasons.items():
        print(f"{rival} failed {count} times: {reason}")
    rows = {}
    for setting, shape in found["found"].items():
        both = [int(i) for i in shape]
        theirs = statistics.fmean(errors_of(shape[str(i)], truth[i]) for i in both)
        loops = statistics.fmean(abs(shape[str(i)][1] - truth[i][1]) for i in both)
        rows[setting] = theirs, loops, statistics.fmean(own[i] for i in both), len(both)
    if not rows:
        print(f"{rival} finished no shape")
        return
    best = min(rows, key=lambda setting: rows[setting][0])
    theirs, loops, ours, count = rows[best]
    print(
        f"{rival:10s} mean topology error {theirs:.3f}, of loops {loops:.3f}, at its best of {len(rows)} settings "
        f"({best}); tower {ours:.3f}, {count} of {len(own)} shapes that both finished",
        flush=True,
    )
    verdict(f"topology errors against {rival} at its best, {n} cells", (theirs + 1e-3) / (ours + 1e-3), 1)


def against_archetypes() -> None:
    if not peer():
        return
    with tempfile.TemporaryDirectory() as folder:
        X = noisy_simplex()
        np.save(Path(folder) / "simplex.npy", X)
        found = ask(folder, "pcha", "archetypes")["residual"]
    residual = pcha(X, 4).residual
    print(f"PCHA residual {residual:.6f}, archetypes {found:.6f}")
    verdict("PCHA residual within 1 % of archetypes", 0.01 / max(abs(residual / found - 1), 1e-9), 1)


def grid(replicates: range, out: Path, cells: list[int]) -> None:
    """Topology errors of the tower over bench-v1; a line of JSON a shape."""
    out.parent.mkdir(parents=True, exist_ok=True)
    before = [line for line in out.read_text().splitlines() if line.endswith("}")] if out.is_file() else []
    out.write_text("".join(line + "\n" for line in before))  # without a line that a kill cut off
    done = {tuple(json.loads(line)["cell"]) for line in before}
    for replicate in replicates:
        for n in cells:
            for sigma in (0.02, 0.05, 0.1, 0.2, 0.4):
                for imbalance in (1, 5, 20):
                    for kind in KINDS:
                        cell = (kind, n, sigma, imbalance, replicate)
                        if cell in done:
                            continue
                        made = make_shape(**cell_params(kind, sigma, n, imbalance, replicate))
                        skeleton = made.skeleton.simplify()
                        true = (*skeleton.betti(), len(skeleton.leaves()))
                        row = {"cell": cell, "found": topology(fit(made.X)), "true": true}
                        with out.open("a") as file:
                            file.write(json.dumps(row) + "\n")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    print(
        f"{len(rows)} shapes; mean |b1 error|, and share with components, loops and leaves right (without the simplex)"
    )
    for n in sorted({row["cell"][1] for row in rows}):
        for sigma in sorted({row["cell"][2] for row in rows}):
            some = [row for row in rows if row["cell"][1] == n and row["cell"][2] == sigma]
            if some:
                b1 = statistics.fmean(abs(row["found"][1] - row["true"][1]) for row in some)
                plain = [row for row in some if row["cell"][0] != "simplex"]
                right = statistics.fmean(row["found"] == row["true"] for row in plain)
                print(f"n {n:6d} sigma {sigma:<5g} {len(some):4d} shapes  b1 {b1:.3f}  right {right:.2f}")
    low = [row for row in rows if row["cell"][1] >= 2000 and row["cell"][2] <= 0.1]
    if low:
        b1 = statistics.fmean(abs(row["found"][1] - row["true"][1]) for row in low)
        print(f"n >= 2000, sigma <= 0.1: mean |b1 error| {b1:.4f} on {len(low)} shapes")
        verdict("mean b1 error over bench-v1 against 0.05", 0.05 / max(b1, 1e-3), 1)


def main() -> None:
    arguments = argparse.ArgumentParser(description="The race of the shapes field.")
    arguments.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}, grid; all but the last by default")
    arguments.add_argument("--rivals", default="paga,elpigraph,phate,kmapper,tdamapper")
    arguments.add_argument("--cells", default="")
    arguments.add_argument("--kinds", default="y,wide", help="clouds of part large")
    arguments.add_argument("--replicates", default="0-2")
    arguments.add_argument("--out", type=Path, default=ROOT / "build" / "shapes-grid.jsonl")
    given = arguments.parse_args()
    unknown = set(given.parts) - {*PARTS, "grid"}
    if unknown:
        arguments.error(f"there is no part {', '.join(sorted(unknown))}; give some of {', '.join(PARTS)}, grid")
    rivals = given.rivals.split(",")
    cells = [int(n) for n in given.cells.split(",") if n]
    first, _, last = given.replicates.partition("-")
    run = {
        "warm": warm,
        "bootstrap": bootstrap,
        "speed": lambda: speed(rivals),
        "errors": lambda: errors([r for r in rivals if r != "phate"], cells or list(RACED)),
        "large": lambda: large(given.kinds.split(",")),
        "pcha": against_archetypes,
        "grid": lambda: grid(range(int(first), int(last or first) + 1), given.out, cells or [500, 2000, 10_000]),
    }
    for part in given.parts or PARTS:
        run[part]()
    print("\n".join(VERDICTS))


if __name__ == "__main__":
    if "--large" in sys.argv:
        one_large(sys.argv[-1])
    else:
        main()
