"""A person's own problem in a few lines: sequences with a reward function, a table of data, an alignment, couplings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from assay.gflownets.envs import DAG, Constraints, Environment, Ising, PhyloTree, TableReward
from assay.gflownets.envs import Sequence as SequenceEnv
from assay.gflownets.errors import GFlowNetError, NonPositiveReward
from assay.gflownets.graphs import Posterior, adjacency, exact_posterior
from assay.gflownets.model import GFlowNet
from assay.gflownets.rewards import (
    BitModes,
    HostReward,
    KmerProxy,
    TokenTable,
    bde_table,
    bge_table,
    linear_gaussian_table,
)
from assay.gflownets.rewards.dag import with_prior
from assay.gflownets.rewards.sequence import bit_modes


class Problem:
    """An environment and settings that suit it.

    Attributes
    ----------
    env : Environment
    defaults : dict
        Settings of `GFlowNet`; those given to `gflownet` or `fit` come first.
    """

    env: Environment
    defaults: dict[str, Any]

    def gflownet(self, **settings: Any) -> GFlowNet:
        """An untrained sampler."""
        return GFlowNet(self.env, **{**self.defaults, **settings})

    def fit(self, steps: int = 10_000, *, checkpoint: str | Path | None = None, **settings: Any) -> GFlowNet:
        """A trained sampler; with ``checkpoint`` it is saved there, and goes on from there."""
        return self.gflownet(**settings).fit(steps, checkpoint=checkpoint)


class SequenceProblem(Problem):
    """Sequences over an alphabet, with a reward of your own.

    Parameters
    ----------
    alphabet : str or sequence of str
    max_len : int
    reward : callable
        ``list of sequences -> numbers`` in plain Python (called once a batch, equal sequences once); or, with
        ``jax=True``, ``int32[max_len] tokens -> log R``, compiled in.
    log : bool
        Whether the function gives log rewards.
    floor : float, optional
        Least reward.
    cache : path, optional
        SQLite file that remembers rewards.
    mode, variable, min_len, constraints
        As in `envs.Sequence`.

    Examples
    --------
    >>> def count_gc(sequences):
    ...     return [1.0 + s.count("G") + s.count("C") for s in sequences]
    >>> problem = SequenceProblem("ACGT", 4, count_gc, log=False)
    >>> gfn = problem.fit(300, net_options={"hidden": 32}, lr=3e-3, batch=32)
    >>> len(gfn.sample(5).objects[0])
    4
    """

    env: SequenceEnv

    def __init__(
        self,
        alphabet: str | Sequence[str],
        max_len: int,
        reward: Callable[..., Any],
        *,
        log: bool = True,
        floor: float | None = None,
        cache: str | Path | None = None,
        jax: bool = False,
        mode: str = "append",
        variable: bool = False,
        min_len: int = 1,
        constraints: Constraints | None = None,
    ) -> None:
        shape: dict[str, Any] = {"mode": mode, "variable": variable, "min_len": min_len, "constraints": constraints}
        if jax:
            self.env = SequenceEnv(alphabet, max_len, reward, **shape)
        else:
            decode = SequenceEnv(alphabet, max_len, None, **shape).decode
            self.env = SequenceEnv(
                alphabet, max_len, HostReward(reward, decode, log=log, floor=floor, cache=cache), **shape
            )
        self.defaults = {"objective": "tb", "batch": 32, "lr": 1e-3, "log_z_lr": 0.1}


class DAGProblem(Problem):
    """Structures of a Bayesian network, given data.

    Parameters
    ----------
    data : DataFrame or float[rows, variables]
        Numbers (``bge``, ``linear_gaussian``) or categories (``bde``).
    score : {"bge", "linear_gaussian", "bde"}
    prior : {"uniform", "edges", "fair", "erdos_renyi"}
    max_parents : int, optional

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> a = rng.standard_normal(200)
    >>> X = np.stack([a, 2 * a + rng.standard_normal(200), rng.standard_normal(200)], 1)
    >>> problem = DAGProblem(X)
    >>> skeleton = problem.exact().edge_probs() + problem.exact().edge_probs().T
    >>> bool(skeleton[0, 1] > 0.99)
    True
    """

    env: DAG

    def __init__(
        self,
        data: Any,
        score: str = "bge",
        *,
        prior: str = "uniform",
        max_parents: int | None = None,
        names: Sequence[str] = (),
        **options: Any,
    ) -> None:
        columns = getattr(data, "columns", None)
        values = data.to_numpy() if hasattr(data, "to_numpy") else np.asarray(data)
        if values.ndim != 2:
            raise GFlowNetError(f"data must be a table of rows and variables, not {values.shape}")
        tables: dict[str, Callable[..., Any]] = {
            "bge": bge_table,
            "linear_gaussian": linear_gaussian_table,
            "bde": bde_table,
        }
        if score not in tables:
            raise GFlowNetError(f"there is no score {score!r}; there is {', '.join(tables)}")
        if score != "bde":
            try:
                values = values.astype(np.float64)
            except (TypeError, ValueError) as error:
                raise GFlowNetError(
                    f"the score {score!r} needs numbers ({error}); use score='bde' for categories"
                ) from error
        self.names = (
            tuple(map(str, columns))
            if columns is not None
            else tuple(names) or tuple(f"x{i}" for i in range(values.shape[1]))
        )
        self.table = with_prior(tables[score](values, **options), prior)
        # only differences matter to the sampler, so each variable's score is counted from its score without parents
        self.env = DAG(self.table - self.table[:, :1], max_parents)
        self.log_r_empty = float(self.table[:, 0].sum())
        self.defaults = {"objective": "mdb", "batch": 16, "lr": 1e-3, "explore": 0.1}

    def exact(self) -> Posterior:
        """The posterior over all graphs (at most five variables).

        Raises
        ------
        NotEnumerable
        """
        return exact_posterior(self.table, self.names)

    def posterior(self, gfn: GFlowNet, n: int = 10_000) -> Posterior:
        """Samples of a trained policy as a distribution over graphs."""
        found = gfn.sample(n)
        graphs, counts = np.unique(np.asarray(found.states.edges), axis=0, return_counts=True)
        return Posterior(graphs, np.log(counts / n), gfn.log_z + self.log_r_empty, self.names)

    def exact_of(self, gfn: GFlowNet) -> Posterior:
        """The policy's exact distribution (spaces that can be enumerated)."""
        graph = gfn.graph()
        p = gfn.distribution()
        with np.errstate(divide="ignore"):
            return Posterior(
                np.asarray(graph.terminal_states.edges), np.log(p), gfn.log_z + self.log_r_empty, self.names
            )

    def all_graphs(self) -> np.ndarray:
        """Adjacency matrices of all graphs over as many variables."""
        from assay.gflownets.graphs import all_parents

        return adjacency(all_parents(self.env.d))


class PhyloProblem(Problem):
    """Trees of an alignment by parsimony.

    Parameters
    ----------
    alignment : path or Alignment
        FASTA, PHYLIP or NEXUS.
    gaps : {"state", "missing"}
    scale : float
        Temperature: log R = (C - parsimony) / scale.
    C : float, optional
        Default: 1.02 times the parsimony of a greedy tree, so that good trees have positive log rewards.
    """

    env: PhyloTree

    def __init__(self, alignment: Any, *, gaps: str = "state", scale: float = 4.0, C: float | None = None) -> None:
        from assay.gflownets.trees import greedy_parsimony, read_alignment

        found = alignment if hasattr(alignment, "sets") else read_alignment(alignment, gaps=gaps)
        self.names = found.names
        self.greedy, _ = greedy_parsimony(found.sets)
        self.env = PhyloTree(found.sets, found.names, 1.02 * self.greedy if C is None else C, scale)
        self.defaults = {
            "objective": "fldb",
            "net": "pairs",
            "batch": 32,
            "lr": 3e-4,
            "explore": 0.05,
            "clip": 10.0,
        }

    def parsimony(self, log_r: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Mutations of trees with given log rewards."""
        return np.rint(self.env.C - np.asarray(log_r, np.float64) * self.env.scale).astype(np.int64)

    def trees(self, gfn: GFlowNet, n: int = 1000) -> list[tuple[int, str]]:
        """Distinct sampled trees as (mutations, Newick), best first."""
        found = gfn.sample(n)
        return sorted(set(zip(self.parsimony(found.log_r).tolist(), found.objects, strict=True)))


class TableProblem(Problem):
    """Combinations of factors with measured values.

    Parameters
    ----------
    table : path, DataFrame or (rows, values)
        A CSV file or frame whose last column (or ``value=``) is the value.
    log : bool
        Whether values are log rewards; otherwise they must be positive, or raised to ``floor``.
    beta : float
        Reward to this power.
    """

    env: TableReward

    def __init__(
        self, table: Any, *, value: str | None = None, log: bool = False, floor: float | None = None, beta: float = 1.0
    ) -> None:
        if isinstance(table, tuple):
            rows, values = list(table[0]), np.asarray(table[1], np.float64)
        else:
            import pandas as pd

            frame = table if hasattr(table, "columns") else pd.read_csv(table)
            column = value or frame.columns[-1]
            if column not in frame.columns:
                raise GFlowNetError(f"the table has no column {column!r}; it has {', '.join(map(str, frame.columns))}")
            try:
                values = frame[column].to_numpy(dtype=np.float64)
            except (TypeError, ValueError) as error:
                raise GFlowNetError(f"the column {column!r} holds something that is no number: {error}") from error
            rows = list(frame.drop(columns=[column]).itertuples(index=False, name=None))
        if not log:
            raised = values if floor is None else np.where(np.isnan(values), values, np.maximum(values, floor))
            if not (np.isfinite(raised) & (raised > 0)).all():
                bad = int(np.argmin(np.isfinite(raised) & (raised > 0)))
                raise NonPositiveReward(
                    f"the value of row {bad} ({tuple(rows[bad])!r}) is {values[bad]}; values must be positive. "
                    f"Give floor= or log=True"
                )
            values = np.log(raised)
        self.env = TableReward(rows, beta * values)
        self.defaults = {"objective": "tb", "batch": 32}


class IsingProblem(Problem):
    """Spins with given couplings.

    Parameters
    ----------
    J : int, path or float[sites, sites]
        Side of a torus, a ``.npy`` file, or a symmetric matrix.
    sigma : float
        Coupling of the torus.
    """

    env: Ising

    def __init__(self, J: Any, sigma: float = 0.1, field: Any = None) -> None:
        if isinstance(J, (str, Path)):
            J = np.load(J, allow_pickle=False)
        self.env = Ising(J, sigma, field)
        self.defaults = {"objective": "tb", "batch": 64, "lr": 1e-3}


# -- public problems ---------------------------------------------------------------------------------------------------


def tfbind8() -> SequenceProblem:
    """DNA 8-mers that bind to a transcription factor (65,536, all measured)."""
    from assay.gflownets.data import tfbind8_log_reward

    problem = SequenceProblem("ACGT", 8, TokenTable(tfbind8_log_reward(), 4), jax=True)
    problem.defaults.update(lr=5e-4, log_z_lr=0.05)
    return problem


def qm9_small(floor_on: str = "gap", mode: str = "prepend_append") -> SequenceProblem:
    """Molecules of five out of eleven blocks (161,051), by predicted gap."""
    from assay.gflownets.data import QM9_BLOCKS, qm9_small_log_reward

    problem = SequenceProblem(
        QM9_BLOCKS, 5, TokenTable(qm9_small_log_reward(floor_on=floor_on), 11), jax=True, mode=mode
    )
    problem.defaults.update(lr=5e-4, log_z_lr=0.05)
    return problem


def bit_sequences(
    n: int = 120, k: int = 8, mode: str = "any_order", *, modes: int = 60, beta: float = 3.0, seed: int = 0
) -> SequenceProblem:
    """Bit sequences of ``n`` bits in words of ``k``, with hidden modes (Malkin et al. 2022).

    Raises
    ------
    GFlowNetError
        If ``k`` does not divide ``n``.
    """
    if n < 1 or k < 1 or n % k or k > 16:
        raise GFlowNetError(f"words of k bits (at most 16) must fill n bits, not n={n}, k={k}")
    reward = BitModes(jnp.asarray(bit_modes(n, modes, seed)), k, beta)
    words = [format(i, f"0{k}b") for i in range(2**k)]
    problem = SequenceProblem(words, n // k, reward, jax=True, mode=mode)
    problem.defaults.update(log_z_lr=0.05, explore=1e-3, weight_decay=1e-5)
    return problem


def peptides(max_len: int = 60, min_len: int = 1) -> SequenceProblem:
    """Antimicrobial peptides, scored by a `KmerProxy` that is fitted to the public set here."""
    from assay.gflownets.data import AMINO_ACIDS, load_peptides

    sequences, labels = load_peptides(max_len)
    proxy = KmerProxy.fit(encode(sequences, AMINO_ACIDS, max_len), labels, len(AMINO_ACIDS))
    problem = SequenceProblem(AMINO_ACIDS, max_len, proxy, jax=True, variable=True, min_len=min_len)
    problem.defaults.update(explore=1e-2, log_z_lr=0.64, weight_decay=1e-4)
    return problem


def proteins(
    sequences: Sequence[str],
    values: Sequence[float],
    *,
    alphabet: str = "ACDEFGHIKLMNPQRSTVWY",
    ridge: float = 10.0,
    floor: float = 1e-6,
) -> SequenceProblem:
    """Sequences of fixed length (GFP: 237) with log rewards predicted by a `KmerProxy` regression on measured ones.

    Raises
    ------
    GFlowNetError
        If the sequences are not of one length.
    """
    lengths = {len(s) for s in sequences}
    if len(lengths) != 1 or len(sequences) != len(values):
        raise GFlowNetError(
            f"measured proteins must have one length and one value each; lengths are {sorted(lengths)[:5]}"
        )
    length = lengths.pop()
    proxy = KmerProxy.fit(
        encode(sequences, alphabet, length),
        np.asarray(values),
        len(alphabet),
        ridge=ridge,
        floor=floor,
        regression=True,
    )
    return SequenceProblem(alphabet, length, proxy, jax=True)


def encode(sequences: Sequence[str], alphabet: str, length: int) -> Int[np.ndarray, "rows length"]:
    """Tokens of strings, padded with ``len(alphabet)``."""
    lookup = np.full(256, len(alphabet), np.int32)
    lookup[np.frombuffer(alphabet.encode(), np.uint8)] = np.arange(len(alphabet))
    out = np.full((len(sequences), length), len(alphabet), np.int32)
    for row, text in enumerate(sequences):
        if len(text) > length or not set(text) <= set(alphabet):
            raise GFlowNetError(
                f"sequence {row} ({text[:20]!r}...) is longer than {length} or has letters outside {alphabet}"
            )
        out[row, : len(text)] = lookup[np.frombuffer(text.encode(), np.uint8)]
    return out


def phylogeny(name: str, taxa: int | None = None) -> PhyloProblem:
    """DS1 .. DS8 with the published constants, or their first ``taxa``."""
    from assay.gflownets.data import PHYLO_C, load_alignment
    from assay.gflownets.trees import Alignment

    found = load_alignment(name)
    if taxa is not None:
        found = Alignment(found.names[:taxa], found.sets[:taxa])
    return PhyloProblem(found, C=PHYLO_C[name] if taxa is None else 0.0)
