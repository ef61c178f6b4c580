"""The library on data of one's own: problems, networks, buffers, backward policies, files, command line, pictures."""

from __future__ import annotations

import contextlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from assay.gflownets import (
    Config,
    DAGProblem,
    GFlowNet,
    Hypergrid,
    Ising,
    IsingProblem,
    Linear,
    PhyloProblem,
    Preference,
    Replay,
    Sequence,
    SequenceProblem,
    StateGraph,
    TableProblem,
    Trainer,
    buffers,
    learn_couplings,
    metrics,
)
from assay.gflownets.nets import make_net
from assay.gflownets.rollout import (
    Needs,
    back_and_forth,
    draw,
    evaluate,
    forward,
    masked_log_softmax,
    rows_of,
    uniforms,
)
from assay.gflownets.trees import greedy_parsimony, read_alignment, robinson_foulds

SMALL = {"hidden": 16}


def ones(tokens):
    return 0.8 * (tokens == 1).sum()


# -- rollouts ----------------------------------------------------------------------------------------------------------


def test_random_numbers_belong_to_step_and_position():
    key = jax.random.key(0)
    np.testing.assert_array_equal(np.asarray(uniforms(key, 7, 5))[:4, :3], np.asarray(uniforms(key, 4, 3)))


def test_illegal_actions_are_never_drawn_and_probabilities_are_right():
    scores = jnp.tile(jnp.array([[2.0, 9.0, 0.0, 1.0]]), (200_000, 1))
    mask = jnp.tile(jnp.array([[True, False, True, True]]), (200_000, 1))
    u = jax.random.uniform(jax.random.key(0), (200_000,))
    counts = np.bincount(np.asarray(draw(scores, mask, u, eps=0.3)), minlength=4) / 200_000
    p = np.exp([2.0, 0.0, 1.0])
    expected = 0.7 * p / p.sum() + 0.1
    assert counts[1] == 0
    np.testing.assert_allclose(counts[[0, 2, 3]], expected, atol=0.005)


def test_a_masked_softmax_has_finite_gradients_in_empty_rows():
    def total(scores):
        return masked_log_softmax(scores, jnp.array([[False, False], [True, False]]))[1, 0]

    gradient = jax.grad(total)(jnp.ones((2, 2)))
    assert np.isfinite(np.asarray(gradient)).all()
    assert float(total(jnp.array([[1.0, 2.0], [3.0, 4.0]]))) == 0.0


def test_back_and_forth_keeps_the_target():
    """A chain of accepted moves has the target distribution, whatever the policy."""
    env = Ising(np.array([[0, 0.4, 0.0], [0.4, 0, -0.3], [0.0, -0.3, 0]]))
    trainer = Trainer(env, config=Config(net=SMALL))
    net = trainer.model(trainer.init(5)).net

    @jax.jit
    def chain(key):
        def one(i, state):
            k = jax.random.fold_in(key, i)
            log_r = env.log_rewards(state)
            move = back_and_forth(env, net, k, state, log_r, 2)
            take = (
                jnp.log(jax.random.uniform(jax.random.fold_in(k, 9), log_r.shape))
                < move.trajectories.log_r - log_r + move.log_ratio
            )
            return jax.tree.map(lambda a, b: jnp.where(take[:, None], a, b), move.trajectories.terminal, state)

        start = forward(env, net, jax.random.fold_in(key, 10_000), 4000).terminal
        return jax.lax.fori_loop(0, 25, one, start)

    graph = StateGraph(env)
    found = metrics.empirical(graph.terminal_number(chain(jax.random.key(0))), graph.n_terminal)
    assert metrics.total_variation(found, graph.target).value < 0.04


# -- networks ----------------------------------------------------------------------------------------------------------


def test_cached_decoding_equals_reading_all_prefixes():
    env = Sequence("ABC", 5, ones)
    net = make_net("causal", env, jax.random.key(0), dim=16, layers=2, heads=2)
    traj = jax.jit(lambda key: forward(env, net, key, 6))(jax.random.key(1))
    tokens = traj.terminal.tokens
    whole = net.prefixes(tokens)
    cache, token = net.start(6), jnp.full(6, env.obs_spec.levels)
    for t in range(5):
        cache, h = net.decode(cache, token, jnp.int32(t))
        np.testing.assert_allclose(np.asarray(h), np.asarray(whole[:, t]), atol=1e-5)
        np.testing.assert_allclose(np.asarray(net.embed(traj.states.tokens[t])), np.asarray(h), atol=1e-5)
        token = tokens[:, t]


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("transformer", Sequence("AB", 3, ones, "any_order")),
        ("causal", Sequence("AB", 3, ones, variable=True)),
        ("graph", DAGProblem(np.random.default_rng(0).normal(size=(30, 3))).env),
    ],
)
def test_other_networks_train(name, env):
    options = {"dim": 16} if name == "graph" else {"dim": 16, "layers": 1, "heads": 2}
    gfn = GFlowNet(env, "tb", name, net_options=options, lr=5e-3, explore=0.1, backward="learned")
    before = gfn.total_variation()
    gfn.fit(500)
    assert gfn.total_variation() < min(0.6 * before, 0.2)


# -- objectives, backward policies, exploration ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"backward": "maxent"},
        {"backward": "tlm"},
        {"backward": "pessimistic", "buffer": Replay("uniform", 200)},
        {"local_search": 2},
        {"buffer": Replay("diverse", 50)},
        {"objective": "munchausen_dqn"},
        {"objective": "flsubtb"},
        {"objective_options": {"regression": "linex"}, "clip": 1.0},
    ],
    ids=str,
)
def test_variants_reach_the_target(settings):
    env = Sequence("AB", 3, ones, "any_order")
    gfn = GFlowNet(
        env, lr=Linear(5e-3, 5e-4, 800), explore=0.1, net_options=SMALL, **{"objective": "tb", **settings}
    ).fit(800)
    assert gfn.total_variation() < 0.08


def test_relative_trajectory_balance_multiplies_the_prior():
    env = Sequence("AB", 3, ones)
    flat = Sequence("AB", 3, lambda t: 1.0 * (t[0] == 0))
    prior = GFlowNet(flat, lr=5e-3, net_options=SMALL).fit(600)
    gfn = GFlowNet(env, "rtb", prior=prior.model.net, lr=5e-3, net_options=SMALL, explore=0.1).fit(800)
    graph = gfn.graph()
    p = prior.distribution() * np.exp(graph.log_r)
    assert metrics.total_variation(gfn.distribution(), p / p.sum()).value < 0.05


def test_a_preference_interpolates_to_a_flat_reward():
    gfn = GFlowNet(
        Sequence("AB", 3, ones), condition=Preference(), lr=3e-3, explore=0.1, net_options={"hidden": 32}
    ).fit(800)
    assert gfn.total_variation(condition=0.05) < 0.12
    assert gfn.distribution(condition=0.02).std() < gfn.distribution(condition=0.98).std()


# -- buffers -----------------------------------------------------------------------------------------------------------


def test_a_ring_keeps_the_newest_and_replays_exactly():
    env = Hypergrid(2, 5)
    net = Trainer(env, config=Config(net=SMALL)).model(Trainer(env, config=Config(net=SMALL)).init(0)).net
    replay = Replay("uniform", 10)
    buffer = buffers.empty(env, replay)
    run = jax.jit(lambda key: forward(env, net, key, 8))
    a, b = run(jax.random.key(0)), run(jax.random.key(1))
    buffer = buffers.add(env, replay, buffers.add(env, replay, buffer, a), b)
    assert int(buffer.size) == 10
    newest = np.asarray(buffer.log_r)[[(8 + i) % 10 for i in range(8)]]
    np.testing.assert_array_equal(newest, np.asarray(b.log_r))
    again = jax.jit(lambda t: buffers.retrace(env, t.actions, t.lengths, t.log_r))(b)
    for x, y in zip(
        jax.tree.leaves((again.states, again.actions, again.bactions)),
        jax.tree.leaves((b.states, b.actions, b.bactions)),
        strict=True,
    ):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_a_diverse_buffer_keeps_one_of_near_objects():
    env = Sequence("ABCD", 4, lambda t: t.sum() * 0.5)
    net = Trainer(env, config=Config(net=SMALL)).model(Trainer(env, config=Config(net=SMALL)).init(0)).net
    replay = Replay("diverse", 20, cutoff=0.3)
    buffer = buffers.empty(env, replay)
    put = jax.jit(lambda buffer, key: buffers.add(env, replay, buffer, forward(env, net, key, 16)))
    for i in range(6):
        buffer = put(buffer, jax.random.key(i))
    n = int(buffer.size)
    rows = np.asarray(buffer.terminal.tokens)[:n]
    assert n > 3
    assert len(np.unique(rows, axis=0)) == n


def test_a_prioritised_draw_has_half_from_the_best_tenth():
    replay = Replay("prioritised", 100)
    env = Hypergrid(2, 4)
    buffer = buffers.empty(env, replay)._replace(log_r=jnp.arange(100.0), size=jnp.int32(100))
    rows = np.asarray(buffers.choose(replay, buffer, jax.random.key(0), 1000))
    assert (rows[:500] >= 90).all()
    assert 0.05 < (rows[500:] >= 90).mean() < 0.15


# -- own data ----------------------------------------------------------------------------------------------------------


def test_host_rewards_are_asked_once_and_remembered_on_disk(tmp_path):
    calls = []

    def slow(items):
        calls.extend(items)
        return [float(s.count("B")) for s in items]

    first = SequenceProblem("AB", 4, slow, cache=tmp_path / "rewards.sqlite")
    first.fit(60, net_options=SMALL)
    assert len(calls) == len(set(calls)) <= 16
    before = len(calls)
    again = SequenceProblem("AB", 4, slow, cache=tmp_path / "rewards.sqlite")
    again.fit(60, net_options=SMALL)
    assert len(calls) == before  # the same seed meets the same sequences
    np.testing.assert_array_equal(again.env.reward.values(["AABB"]), [2.0])


def test_training_from_measured_data_and_asking_for_more():
    """Trajectory balance on measured objects alone is 0 wherever log P_F(tau) = log R + log P_B - log Z on theirs: for
    each Z of at least the sum of their rewards there is such a policy, so their share of the probability, sum R / Z, is
    not determined by the data (no figure for it can be asked), while p(x) = R(x) / Z must hold for each of them."""
    env = Sequence("AB", 4, lambda t: jnp.zeros(()))  # its own reward is never used
    gfn = GFlowNet(env, lr=Linear(5e-3, 2e-4, 800), log_z_lr=Linear(0.1, 1e-3, 800), net_options={"hidden": 32})
    words, log_r = ["AAAA", "AAAB", "BBBB", "ABAB"], np.array([0.0, 1.0, 2.0, 1.0])
    gfn.fit(800, data=(words, log_r))
    p = dict(zip(gfn.graph().env.objects(gfn.graph().terminal_states), gfn.distribution(), strict=True))
    found = np.log([p[w] for w in words])
    np.testing.assert_allclose(found, log_r - gfn.log_z, atol=0.02)
    np.testing.assert_allclose(found - found[0], log_r, atol=0.02)
    assert np.exp(log_r).sum() <= np.exp(gfn.log_z) * 1.02
    more = gfn.ask(3)
    assert not set(more) & set(words)
    gfn.tell(more, [3.0] * len(more)).fit(900)
    assert gfn.steps == 900


def test_samples_stream_to_json_lines(tmp_path):
    gfn = GFlowNet(Hypergrid(2, 4), net_options=SMALL)
    gfn.sample_to(tmp_path / "s.jsonl", 30)
    rows = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert len(rows) == 30
    assert set(rows[0]) == {"object", "log_reward", "log_weight"}


ALIGNED = {"a": "ACGTAC-T", "b": "ACGTTCAT", "c": "AGGTTNAT", "d": "TGGA?RAT"}


@pytest.mark.parametrize("form", ["fasta", "phylip", "interleaved", "nexus"])
def test_alignment_formats_agree(tmp_path, form):
    names = list(ALIGNED)
    text = {
        "fasta": "".join(f">{n} note\n{s[:5]}\n{s[5:]}\n" for n, s in ALIGNED.items()),
        "phylip": " 4 8\n" + "".join(f"{n}  {s}\n" for n, s in ALIGNED.items()),
        "interleaved": "4 8\n"
        + "".join(f"{n} {ALIGNED[n][:4]}\n" for n in names)
        + "\n"
        + "".join(f"{ALIGNED[n][4:]}\n" for n in names),
        "nexus": "#NEXUS\nbegin data; dimensions ntax=4 nchar=8; format datatype=dna gap=-;\nmatrix\n"
        + "".join(f"{n} {s}\n" for n, s in ALIGNED.items())
        + ";\nend;\n",
    }[form]
    file = tmp_path / "x"
    file.write_text(text)
    found = read_alignment(file)
    assert found.names == tuple(names)
    assert found.sets[0].tolist() == [1, 2, 4, 8, 1, 2, 16, 8]
    assert found.sets[2, 5] == 15
    assert found.sets[3, 5] == 5
    assert read_alignment(file, gaps="missing").sets[0, 6] == 15


def test_trees_come_out_as_newick_with_parsimony(tmp_path):
    file = tmp_path / "x.fasta"
    file.write_text("".join(f">{n}\n{s * 2}\n" for n, s in ALIGNED.items()))
    problem = PhyloProblem(file, scale=0.5)
    gfn = problem.fit(300, net_options={"dim": 16, "layers": 1, "heads": 2}, lr=3e-3)
    trees = problem.trees(gfn, 500)
    graph = gfn.graph()
    best = problem.parsimony(graph.log_r).min()
    assert trees[0][0] == best
    mutations, newick = trees[0]
    state = problem.env.states_of([newick])
    assert problem.parsimony(np.asarray(problem.env.log_rewards(state)))[0] == mutations
    assert greedy_parsimony(read_alignment(file).sets)[0] >= best
    assert robinson_foulds(newick, newick, problem.names) == 0


def test_robinson_foulds_against_dendropy():
    dendropy = pytest.importorskip("dendropy")
    from assay.gflownets import PhyloTree

    names = tuple("abcdefgh")
    env = PhyloTree(np.random.default_rng(0).choice([1, 2, 4, 8], (8, 10)), names)
    trainer = Trainer(env, "tb", "pairs", Config(net={"dim": 8, "layers": 1, "heads": 2}))
    net = trainer.model(trainer.init(0)).net
    trees = env.objects(jax.jit(lambda key: forward(env, net, key, 8))(jax.random.key(0)).terminal)
    space = dendropy.TaxonNamespace(names)
    read = [dendropy.Tree.get(data=t, schema="newick", taxon_namespace=space) for t in trees]
    for i, j in ((0, 1), (2, 3), (4, 7)):
        expected = dendropy.calculate.treecompare.symmetric_difference(read[i], read[j])
        assert robinson_foulds(trees[i], trees[j], names) == expected


def test_posterior_of_a_table_with_names():
    import pandas as pd

    rng = np.random.default_rng(1)
    a = rng.standard_normal(300)
    frame = pd.DataFrame({"rain": a, "wet": a + 0.3 * rng.standard_normal(300), "noise": rng.standard_normal(300)})
    problem = DAGProblem(frame)
    gfn = problem.fit(1500, net_options={"hidden": 32}, lr=3e-3, explore=0.2)
    exact, found = problem.exact(), problem.posterior(gfn, 4000)
    np.testing.assert_allclose(found.edge_probs(), exact.edge_probs(), atol=0.08)
    np.testing.assert_allclose(problem.exact_of(gfn).edge_probs(), exact.edge_probs(), atol=0.08)
    assert problem.names == ("rain", "wet", "noise")
    skeleton = {frozenset(edge) for edge in found.best()}
    assert frozenset(("rain", "wet")) in skeleton


def test_scores_of_other_kinds_prefer_the_true_parent():
    from assay.gflownets.rewards import bde_table, linear_gaussian_table
    from assay.gflownets.rewards.dag import with_prior

    rng = np.random.default_rng(0)
    a = rng.integers(0, 2, 500)
    b = np.where(rng.random(500) < 0.9, a, 1 - a)
    c = rng.integers(0, 3, 500)
    table = bde_table(np.stack([a, b, c], 1))
    assert table[1, 0b001] > table[1, 0] > table[1, 0b100]
    # score equivalence of BDeu
    assert table[0, 0] + table[1, 1] == pytest.approx(table[1, 0] + table[0, 2], abs=1e-9)
    x = rng.standard_normal((20, 3))
    x[:, 2] = x[:, 0] - x[:, 1] + 0.3 * rng.standard_normal(20)
    gauss = linear_gaussian_table(x)
    C = 0.1 * np.eye(20) + x[:, :2] @ x[:, :2].T
    plain = -0.5 * (20 * np.log(2 * np.pi) + np.linalg.slogdet(C)[1] + x[:, 2] @ np.linalg.solve(C, x[:, 2]))
    assert gauss[2, 0b011] == pytest.approx(plain, abs=1e-9)
    assert np.argmax(gauss[2]) == 0b011
    for prior in ("edges", "fair", "erdos_renyi"):
        assert np.isfinite(with_prior(gauss, prior)[2, :4]).all()
    assert with_prior(gauss, "edges", beta=2.0)[2, 3] == pytest.approx(gauss[2, 3] - 4.0)


def test_tables_and_couplings(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("solvent,base,yield\nwater,KOH,0.5\nwater,NaH,2\nDMF,KOH,4\n")
    gfn = TableProblem(file).fit(500, net_options=SMALL, lr=5e-3)
    p = dict(zip(gfn.env.objects(gfn.graph().terminal_states), gfn.distribution(), strict=True))
    assert p[("DMF", "KOH")] == pytest.approx(4 / 6.5, abs=0.05)
    np.save(tmp_path / "J.npy", np.array([[0, 0.5], [0.5, 0]]))
    assert IsingProblem(tmp_path / "J.npy").env.sites == 2


def test_couplings_are_learned_from_samples():
    from assay.gflownets.data import ising_samples, wolff_samples
    from assay.gflownets.envs import torus

    J = torus(3, 0.2)
    spins = ising_samples(J, 1500, rng=np.random.default_rng(0), replicas=4, burn_in=50, thin=2)
    graph = StateGraph(Ising(3, 0.2))
    x = np.asarray(graph.terminal_states.spins, float)
    exact = float(graph.target @ np.abs(x.mean(1)))
    assert metrics.magnetisation(spins).value == pytest.approx(exact, abs=0.06)
    clusters = wolff_samples(3, 0.2, 1500, rng=np.random.default_rng(1))
    assert metrics.magnetisation(clusters).value == pytest.approx(exact, abs=0.06)
    found = learn_couplings(spins, 1000, true=J, lr=3e-3, net_options={"hidden": 32})
    assert found.curve[-1][1] > metrics.log_rmse(np.zeros_like(J), J).value + 0.5
    assert 0 < found.acceptance <= 1


def test_peptide_proxy_holds_out_whole_duplicates(public):
    """Five-fold AUROC of the proxy, duplicates kept in one fold."""
    from scipy.stats import rankdata

    from assay.gflownets.data import AMINO_ACIDS, load_peptides
    from assay.gflownets.problems import encode
    from assay.gflownets.rewards import KmerProxy

    sequences, labels = public(load_peptides)
    assert len(sequences) == 5200 - 193
    distinct = {s: i for i, s in enumerate(dict.fromkeys(sequences))}
    fold = np.random.default_rng(0).permutation(len(distinct))[[distinct[s] for s in sequences]] % 5
    tokens = encode(sequences, AMINO_ACIDS, 60)
    train, test = fold != 0, fold == 0
    proxy = KmerProxy.fit(tokens[train], labels[train], 20)
    score = np.asarray(jax.jit(jax.vmap(proxy.score))(jnp.asarray(tokens[test])))
    y = labels[test] == 1
    ranks = rankdata(score)
    auroc = (ranks[y].sum() - y.sum() * (y.sum() + 1) / 2) / (y.sum() * (~y).sum())
    assert auroc > 0.85


# -- figures, pictures, command line, protocol -----------------------------------------------------------------------


def test_figures():
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.25, 0.5])
    assert metrics.total_variation(p, q).value == 0.5
    assert metrics.l1(p, q).value == 1.0
    assert metrics.mean_l1(p, q).value == pytest.approx(1 / 3)
    assert metrics.kl(p, q).value == pytest.approx(np.log(2))
    assert metrics.kl(q, p).value == np.inf
    from scipy.spatial.distance import jensenshannon

    assert metrics.jsd(p, q).value == pytest.approx(jensenshannon(p, q) ** 2)
    assert metrics.modes_found(["AB", "AB", "BB"], ["AB", "CC"]).value == 1
    assert metrics.modes_found(["AB"], ["AC"], threshold=1).value == 1
    assert metrics.distinct_modes(["AA", "AB", "BB"], np.array([3.0, 2.0, 1.0]), 0.5, 1) == ["AA", "BB"]
    reward, spread = metrics.top_k(["AA", "AA", "BB"], np.log([4.0, 4.0, 2.0]), 2)
    assert reward.value == pytest.approx(3.0)
    assert spread.value == 2.0
    w = np.random.default_rng(0).normal(0.0, 0.5, 200_000)  # log-normal weights: Z = exp(1/8)
    found = metrics.log_z_bounds(w)
    assert found.log_z.value == pytest.approx(0.125, abs=0.01)
    assert found.lower.value == pytest.approx(0.0, abs=0.01)
    assert found.upper.value == pytest.approx(0.25, abs=0.01)


def test_pictures_are_drawn(tmp_path):
    from assay.gflownets import plots

    graph = StateGraph(Hypergrid(2, 8))
    cells = np.asarray(graph.terminal_states.x)
    plots.plot_grid({"target": graph.target, "uniform": np.full(64, 1 / 64)}, cells).savefig(tmp_path / "a.png")
    plots.plot_curves(
        {"tb": [([0, 1, 2], [1, 0.5, 0.1]), ([0, 1, 2], [1, 0.6, 0.2])]}, "total variation", log=True
    ).savefig(tmp_path / "b.png")
    plots.plot_edges({"exact": np.eye(3)[::-1] * 0.7}, "abc").savefig(tmp_path / "c.png")
    plots.plot_calibration(graph.log_r - graph.log_z, graph.log_r, graph.log_z).savefig(tmp_path / "d.png")
    assert all((tmp_path / f"{x}.png").stat().st_size > 5000 for x in "abcd")


def test_command_line(tmp_path):
    from typer.testing import CliRunner

    from assay.gflownets.cli import app

    run = CliRunner().invoke
    table = tmp_path / "t.csv"
    table.write_text("a,b,value\nx,1,1\nx,2,2\ny,1,4\n")
    out = tmp_path / "fit"
    made = run(app, ["fit", "--env", "table", "--data", str(table), "--out", str(out), "--steps", "60"])
    assert made.exit_code == 0, made.output
    assert "bounds" in made.output
    assert run(app, ["resume", str(out), "--steps", "80"]).exit_code == 0
    lines = run(app, ["sample", str(out), "-n", "5"]).output.strip().splitlines()
    assert len([json.loads(line) for line in lines]) == 5
    assert "log Z" in run(app, ["eval", str(out), "--exact", "-n", "64"]).output
    assert "no scenario" in str(run(app, ["bench", "--scenario", "chess"]).exception)
    assert run(app, ["check-env", "assay.gflownets.envs:Hypergrid", "--walks", "2"]).exit_code == 0
    assert run(app, ["fit", "--env", "table", "--data", str(table), "--out", str(out), "--lr", "0.5"]).exit_code != 0


def test_the_benchmark_runs_and_says_what_does_not_apply(tmp_path):
    from assay.gflownets.benchmark import benchmark, load_space

    benchmark.tasks.pop("tiny", None)
    benchmark.add_task("tiny", load_space, kind="hypergrid", dim=2, side=4, steps=120, tags={"stop"})
    try:
        found = benchmark.run(tasks=["tiny"], methods=["uniform", "tb"], seeds=[0], store=tmp_path, progress=False)
        rows = {row.method: row.mean for row in found.leaderboard("total_variation").rows}
        assert rows["tb"] < rows["uniform"]
    finally:
        del benchmark.tasks["tiny"]
    assert benchmark.applicable(benchmark.get_task("ising-3"), benchmark.get_method("mdb"))


def test_an_interrupted_run_goes_on_with_its_curves(tmp_path, monkeypatch):
    """Stopped at the sixth of ten points; the second call does the rest, and all eleven points are there once."""
    from assay.gflownets import benchmark as field

    whole = field.Progress.point
    steps = []

    def interrupted(self, log):
        whole(self, log)
        steps.append(self.gfn.steps)
        if self.gfn.steps == 72 and steps.count(72) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(field.Progress, "point", interrupted)
    field.benchmark.add_task("tiny", field.load_space, kind="hypergrid", dim=2, side=4, steps=120, tags={"stop"})
    try:
        for _ in range(2):
            with contextlib.suppress(KeyboardInterrupt):
                found = field.benchmark.run(tasks=["tiny"], methods=["tb"], seeds=[0], store=tmp_path, progress=False)
    finally:
        del field.benchmark.tasks["tiny"]
    assert steps == [0, *range(12, 73, 12), *range(72, 121, 12)]  # the last point had come after the last checkpoint
    (curves,) = tmp_path.rglob("curves.json")
    kept = json.loads(curves.read_text())
    assert [len(kept[name]["x"]) for name in ("total variation", "mean log reward", "modes found")] == [11, 11, 11]
    assert sorted(kept["total variation"]["x"]) == kept["total variation"]["x"]
    assert found.leaderboard("total_variation").rows[0].mean < 0.5


def test_recent_samples_of_training_are_kept():
    gfn = GFlowNet(Hypergrid(2, 4), recent=500, net_options=SMALL).fit(50)
    states, n = gfn.recent()
    assert n == 500
    assert metrics.empirical(gfn.graph().terminal_number(states), 16).sum() == pytest.approx(1.0)


def test_evaluations_of_compacted_rows_are_the_full_ones():
    env = Hypergrid(2, 6)
    trainer = Trainer(env, config=Config(backward="learned", net=SMALL))
    net = trainer.model(trainer.init(0)).net
    needs = Needs(log_flow=True, q=True, log_stop=True, potential=True)

    @jax.jit
    def run(key):
        traj = forward(env, net, key, 8)
        rows = rows_of(env, net, traj, False)
        return evaluate(env, net, traj, needs, "learned"), evaluate(env, net, traj, needs, "learned", rows, 48), rows

    full, small, rows = run(jax.random.key(2))
    assert int(rows.needed) <= 48 < 11 * 8
    for a, b in zip(full[:-1], small[:-1], strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-5)
