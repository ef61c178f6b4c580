"""Every named error, raised by the bad input that it is about."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from assay.gflownets import (
    DAGProblem,
    GFlowNet,
    Hypergrid,
    Ising,
    PhyloProblem,
    PhyloTree,
    Replay,
    Sequence,
    SequenceProblem,
    StateGraph,
    TableProblem,
    Temperature,
    make_objective,
)
from assay.gflownets.envs import Constraints
from assay.gflownets.errors import (
    BadAlignment,
    CheckpointMismatch,
    DeadEnd,
    DivergedLoss,
    DuplicateTaxa,
    GFlowNetError,
    NonPositiveReward,
    NotEnumerable,
    RewardShape,
)
from assay.gflownets.rewards import bge_table
from assay.gflownets.trees import read_alignment

SMALL = {"net_options": {"hidden": 8}}


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bad_reward_names_its_object(bad):
    problem = SequenceProblem("AB", 2, lambda s: [bad if x == "AB" else 1.0 for x in s], log=False)
    with pytest.raises(NonPositiveReward, match="'AB'"):
        problem.env.reward.values(["AA", "AB"])


def test_a_bad_reward_stops_training():
    problem = SequenceProblem("AB", 2, lambda s: [0.0 if x == "AB" else 1.0 for x in s], log=False)
    with pytest.raises(NonPositiveReward, match="'AB'"):
        problem.fit(50, **SMALL)


def test_a_floor_raises_small_rewards_and_leaves_nan_an_error():
    problem = SequenceProblem("AB", 2, lambda s: [0.0 for _ in s], log=False, floor=1e-3)
    np.testing.assert_allclose(problem.env.reward.values(["AA"]), np.log(1e-3))
    with pytest.raises(NonPositiveReward):
        SequenceProblem("AB", 2, lambda s: [float("nan")] * len(s), log=False, floor=1e-3).env.reward.values(["AA"])


def test_a_failed_step_keeps_the_last_good_state():
    calls = []

    def fails_later(items):
        calls.append(len(items))
        return [0.0 if len(calls) > 3 else 1.0 for _ in items]

    gfn = SequenceProblem("ABCD", 6, fails_later, log=False).gflownet(batch=4, **SMALL)
    with pytest.raises(NonPositiveReward):
        gfn.fit(500)
    assert all(np.isfinite(np.asarray(x)).all() for x in (gfn.state.params.log_z, gfn.state.params.net.first.weight))


@pytest.mark.parametrize("wrong", [lambda s: [1.0], lambda s: [[1.0]] * len(s), lambda s: ["x"] * len(s)])
def test_reward_shape(wrong):
    problem = SequenceProblem("AB", 2, wrong)
    with pytest.raises(RewardShape):
        problem.env.reward.values(["AA", "AB"])


def test_an_exception_of_the_reward_is_the_users_own():
    def broken(items):
        raise KeyError("my oracle")

    with pytest.raises(KeyError, match="my oracle"):
        SequenceProblem("AB", 2, broken).fit(10, **SMALL)


def test_dead_end_of_constraints():
    with pytest.raises(DeadEnd):
        Sequence("AB", 4, None, constraints=Constraints(forbidden=("A", "B")))


def test_not_enumerable():
    with pytest.raises(NotEnumerable, match="more than 100 states"):
        StateGraph(Hypergrid(3, 8), limit=100)
    with pytest.raises(NotEnumerable):
        DAGProblem(np.random.default_rng(0).normal(size=(20, 6))).exact()


def test_alignments(tmp_path):
    file = tmp_path / "a.fasta"
    file.write_text(">a\nACGT\n>b\nACG\n")
    with pytest.raises(BadAlignment, match=r"record 2 \('b'\) has 3 columns"):
        PhyloProblem(file)
    file.write_text(">a\nACGT\n>b\nACJT\n")
    with pytest.raises(BadAlignment, match=r"record 2 \('b'\) holds 'J' in column 3"):
        read_alignment(file)
    file.write_text(">a\nACGT\n>a\nACGT\n")
    with pytest.raises(DuplicateTaxa, match="'a'"):
        read_alignment(file)
    file.write_text("hello\n")
    with pytest.raises(BadAlignment, match="neither FASTA"):
        read_alignment(file)
    file.write_text(">a\nACGT\n")
    with pytest.raises(BadAlignment, match="at least two"):
        read_alignment(file)


def test_diverged_loss_keeps_the_last_good_state():
    gfn = GFlowNet(Hypergrid(2, 4), lr=1e30, log_z_lr=1e30, **SMALL)
    with pytest.raises(DivergedLoss, match="lower the learning rates|Lower the learning rates"):
        gfn.fit(400)
    assert np.isfinite(np.asarray(gfn.state.params.net.first.weight)).all()


def test_checkpoint_mismatch(tmp_path):
    gfn = GFlowNet(Hypergrid(2, 4), **SMALL)
    gfn.save(tmp_path / "c.npz")
    with pytest.raises(CheckpointMismatch, match="another environment"):
        GFlowNet(Hypergrid(2, 5), **SMALL).load(tmp_path / "c.npz")
    with pytest.raises(CheckpointMismatch):
        GFlowNet(Hypergrid(2, 4), "db", **SMALL).load(tmp_path / "c.npz")
    (tmp_path / "no.npz").write_bytes(b"garbage")
    with pytest.raises(CheckpointMismatch):
        gfn.load(tmp_path / "no.npz")


@pytest.mark.parametrize(
    "call",
    [
        lambda: make_objective("tbb"),
        lambda: make_objective("subtb", lamda=1),
        lambda: make_objective("tb", regression="cubic"),
        lambda: GFlowNet(Hypergrid(2, 4), backward="sideways"),
        lambda: GFlowNet(Hypergrid(2, 4), net="lstm"),
        lambda: GFlowNet(Hypergrid(2, 4), net="pairs"),
        lambda: GFlowNet(Ising(3), "mdb"),
        lambda: GFlowNet(Hypergrid(2, 4), learning_rate=1),
        lambda: GFlowNet(Hypergrid(2, 4), batch=0),
        lambda: GFlowNet(Hypergrid(2, 4), buffer="lifo"),
        lambda: GFlowNet(Hypergrid(2, 4), buffer=Replay("uniform", 0)),
        lambda: GFlowNet(Hypergrid(2, 4), backward="pessimistic"),
        lambda: GFlowNet(Hypergrid(2, 4), "db", backward="tlm"),
        lambda: GFlowNet(Hypergrid(2, 4), condition=Temperature(2.0, 1.0)),
        lambda: Hypergrid(0, 4),
        lambda: Hypergrid(2, 4, "hills"),
        lambda: Ising(2),
        lambda: Ising(np.array([[0, 1], [0, 0]])),
        lambda: Sequence("AA", 3, None),
        lambda: Sequence("AB", 3, None, "sideways"),
        lambda: Sequence("AB", 3, None, "any_order", variable=True),
        lambda: Sequence("AB", 3, None, "insert", constraints=Constraints(("AA",))),
        lambda: Sequence("AB", 3, None).states_of(["ABX"]),
        lambda: Sequence("AB", 3, None).states_of(["AB"]),
        lambda: PhyloTree(np.array([[1, 2]])),
        lambda: bge_table(np.full((5, 2), np.nan)),
        lambda: DAGProblem(np.zeros((5, 2)), score="aic"),
        lambda: DAGProblem(np.zeros((5, 2)) + 1.0, prior="flat"),
        lambda: TableProblem(([("a",), ("a",)], [1.0, 2.0])),
    ],
)
def test_what_makes_no_sense_is_said_at_once(call):
    with pytest.raises(GFlowNetError):
        call()


def test_table_values_must_be_positive():
    with pytest.raises(NonPositiveReward, match="row 1"):
        TableProblem(([("a",), ("b",)], [1.0, 0.0]))
    assert TableProblem(([("a",), ("b",)], [1.0, 0.0]), floor=0.5).env.n_actions == 2


def test_measured_data_must_fit(tmp_path):
    gfn = GFlowNet(Sequence("AB", 2, lambda t: jnp.zeros(())), **SMALL)
    with pytest.raises(RewardShape):
        gfn.tell(["AA"], [1.0, 2.0])
    with pytest.raises(RewardShape, match="'AB'"):
        gfn.tell(["AA", "AB"], [1.0, np.nan])
