"""Check 11 against the packages themselves, where `make bench FIELD=gflownets` has put them (build/peers/gflownets).

They are imported in a process of their own, since they bring versions of what they import.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

PEERS = Path(__file__).resolve().parents[2] / "build" / "peers" / "gflownets"


def ask(package: str, code: str) -> dict:
    """Run code that prints JSON, with the peers importable; skip where they are not installed."""
    if not (PEERS / package).is_dir():
        pytest.skip(f"{package} is not in build/peers/gflownets; benchmarks/gflownets.py installs it")
    head = f"import sys, json, warnings; warnings.simplefilter('ignore'); sys.path.append({str(PEERS)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


GFNX = """
import jax, jax.numpy as jnp, numpy as np, gfnx
from assay.gflownets import DAG, Hypergrid, Ising, PhyloTree, bit_sequences, envs
from assay.gflownets.rewards import BitModes, bge_table
from assay.gflownets.rollout import Needs, Trajectories, evaluate, forward

key = jax.random.PRNGKey(0)
out = {}


def compare(name, ours, theirs, params):
    '''Walk our environment with random scores; give gfnx the same actions and the same scores, state by state.'''
    A, B = ours.n_actions, ours.n_bactions
    rng = np.random.default_rng(1)

    class Net:
        def embed(self, obs, condition=None):
            return obs.reshape(obs.shape[0], -1).astype(jnp.float32)

        def forward(self, h):
            w = jax.random.normal(jax.random.key(5), (h.shape[1], A)) * 0.3
            return h @ w

        def backward(self, h):
            w = jax.random.normal(jax.random.key(6), (h.shape[1], B)) * 0.3
            return h @ w

    n = 8
    traj = jax.jit(lambda k: forward(ours, Net(), k, n))(jax.random.key(2))
    e = jax.jit(lambda t: evaluate(ours, Net(), t, Needs(), 'learned'))(traj)
    pf = np.zeros(n)
    pb = np.zeros(n)
    _, state = theirs.reset(n, params)
    log_r = np.zeros(n)
    lengths = np.asarray(traj.lengths)
    actions = np.asarray(traj.actions)
    step = jax.jit(theirs.step)
    for t in range(actions.shape[0]):
        now = jax.tree.map(lambda x: x[t], traj.states)
        nxt = jax.tree.map(lambda x: x[t + 1], traj.states)
        net = Net()
        scores = np.asarray(net.forward(net.embed(jax.vmap(ours.obs)(now))), np.float64)
        backs = np.asarray(net.backward(net.embed(jax.vmap(ours.obs)(nxt))), np.float64)
        act = jnp.asarray(actions[t])
        # gfnx says which actions are legal; ours gives the scores
        bad = np.asarray(theirs.get_invalid_mask(state, params))
        legal = ~bad
        _, state2, r, done, _ = step(state, act, params)
        back_bad = np.asarray(theirs.get_invalid_backward_mask(state2, params))
        back = np.asarray(theirs.get_backward_action(state, act, state2, params))
        live = t < lengths
        width = legal.shape[1]
        s = scores[:, :width]
        lp = s - np.log(np.where(legal, np.exp(s), 0).sum(1, keepdims=True))
        q = backs[:, : back_bad.shape[1]]
        with np.errstate(divide='ignore'):
            lb = q - np.log(np.where(~back_bad, np.exp(q), 0).sum(1, keepdims=True))
        row = np.arange(n)
        stop = ours.stop_action is not None and back_bad.shape[1] < B
        pf += np.where(live, lp[row, np.asarray(act)], 0)
        last = t == lengths - 1
        pb += np.where(live & ~(last & stop), lb[row, np.minimum(back, back_bad.shape[1] - 1)], 0)
        log_r = np.where(last, np.asarray(r), log_r)
        state = state2
    pairs = (e.log_pf.sum(0), pf, e.log_pb.sum(0), pb, traj.log_r, log_r)
    out[name] = [np.asarray(x, float).tolist() for x in pairs]


made = gfnx.HypergridEnvironment(gfnx.EasyHypergridRewardModule(), dim=3, side=7)
compare('hypergrid', Hypergrid(3, 7), made, made.init(key))

reward = gfnx.BitseqRewardModule(8, 2, 4, 3.0)
from gfnx.environment.bitseq import BitseqEnvironment
made = BitseqEnvironment(reward, n=8, k=2)
params = made.init(key)
modes = jnp.asarray(params.reward_params['mode_set'], jnp.int32)
words = ['00', '01', '10', '11']
ours = envs.Sequence(words, 4, BitModes(modes.reshape(modes.shape[0], -1), 2, 3.0), 'any_order')
compare('bits', ours, made, params)

made = gfnx.IsingEnvironment(gfnx.IsingRewardModule(), dim=9)
params = made.init(key)
params = params.replace(reward_params=params.reward_params.replace(J=Ising(3, 0.1).J))
compare('ising', Ising(3, 0.1), made, params)

from gfnx.reward.dag import DAGRewardModule
from gfnx.reward.dag_likelihood import BGeScore
from gfnx.reward.dag_prior import UniformDAGPrior
X = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
reward = DAGRewardModule(prior=UniformDAGPrior(4), likelihood=BGeScore(jnp.asarray(X)))
made = gfnx.DAGEnvironment(reward, num_variables=4)
compare('dag', DAG(bge_table(X.astype(float))), made, made.init(key))
print(json.dumps(out))
"""


@pytest.mark.slow
def test_check_11_probabilities_and_rewards_of_gfnx():
    """Same scores, same actions: gfnx's masks, moves and rewards give log P_F, log P_B and log R to 1e-5 (relative
    where they are larger than 1)."""
    found = ask("gfnx", GFNX)
    assert set(found) == {"hypergrid", "bits", "ising", "dag"}
    for name, values in found.items():
        for ours, theirs in zip(values[::2], values[1::2], strict=True):
            ours, theirs = np.array(ours), np.array(theirs)
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5, err_msg=name)


PHYLO = """
import jax, jax.numpy as jnp, numpy as np, gfnx
from gfnx.environment.phylogenetic_tree import PhyloTreeEnvironment
from gfnx.reward.phylogenetic_tree import PhyloTreeRewardModule
from assay.gflownets import PhyloTree

sets = np.random.default_rng(3).choice([1, 2, 4, 8, 15, 16], (6, 40)).astype(np.uint8)
made = PhyloTreeEnvironment(PhyloTreeRewardModule(6, scale=4.0, C=30.0), jnp.asarray(sets))
params = made.init(jax.random.PRNGKey(0))
ours = PhyloTree(sets, C=30.0)
rng = np.random.default_rng(0)
found = []
for _ in range(20):
    # both keep a joined tree in the left one's slot and number the pairs of slots alike
    state, (_, theirs) = ours.reset(), made.reset(1, params)
    for _ in range(5):
        action = int(rng.choice(np.flatnonzero(np.asarray(ours.mask(state)))))
        assert not bool(made.get_invalid_mask(theirs, params)[0, action])
        state = ours.step(state, jnp.int32(action))
        _, theirs, r, done, _ = made.step(theirs, jnp.asarray([action]), params)
    assert bool(done[0]) and bool(ours.done(state))
    found.append([float(ours.log_reward(state)), float(r[0])])
print(json.dumps(found))
"""


@pytest.mark.slow
def test_check_11_parsimony_of_gfnx():
    """20 random trees of six taxa with gaps and unknown letters, joined in both libraries."""
    found = np.array(ask("gfnx", PHYLO))
    assert len(np.unique(found[:, 0])) > 3
    np.testing.assert_allclose(found[:, 0], found[:, 1], rtol=1e-5)


TORCHGFN = """
import numpy as np, torch
from gfn.gym import HyperGrid
cells = np.stack(np.meshgrid(*[np.arange(9)] * 4, indexing='ij'), -1).reshape(-1, 4)
out = {}
for name, kind, given in (
    ('easy', 'original', {'R0': 1e-3, 'R1': 0.5, 'R2': 2.0}),
    ('cosine', 'cosine', {'R0': 0.1, 'R1': 0.5}),
    ('deceptive', 'deceptive', {'R0': 1e-5, 'R1': 0.1, 'R2': 2.0}),
):
    env = HyperGrid(ndim=4, height=9, reward_fn_str=kind, reward_fn_kwargs=given, validate_modes=False)
    states = env.States(torch.as_tensor(cells))
    out[name] = env.reward(states).double().tolist()
print(json.dumps(out))
"""


@pytest.mark.slow
def test_check_11_grid_rewards_of_torchgfn_itself():
    """All 6,561 cells of side 9, 4D."""
    import jax
    import jax.numpy as jnp

    from assay.gflownets.rewards import GridReward

    found = ask("gfn", TORCHGFN)
    cells = np.stack(np.meshgrid(*[np.arange(9)] * 4, indexing="ij"), -1).reshape(-1, 4)
    for family, values in found.items():
        with jax.enable_x64(True):
            ours = np.exp(np.asarray(GridReward(family)(jnp.asarray(cells), 9)))
        # torchgfn computes R0 + R1 - R1 in float32, which leaves an error of 1e-9 in its least rewards
        np.testing.assert_allclose(ours, values, rtol=1e-5, atol=2e-9, err_msg=family)
