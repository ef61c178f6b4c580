import numpy as np
import pytest
import torch

from assay.streams import load, run
from assay.streams.contract import check_model, easy_stream
from assay.streams.errors import StateLimitExceeded, StreamError
from assay.streams.models.neural import PacketLSTM
from assay.streams.models.neural.adamw import adamw, adamw_tensor, sized
from assay.streams.rows import Row
from assay.streams.state import load_tree, save_tree


def three_classes(X):
    return np.where(X[:, 0] > 0.5, 2, np.where(X[:, 0] < -0.5, 0, 1))


@pytest.mark.parametrize("params", [{}, {"max_features": 100}, {"rate": 0.01, "decay": 0.0}])
def test_holds_the_contract(params):
    check_model(lambda: PacketLSTM(hidden=8, **params), auroc=0.8, n=1000, rows=60)


def test_holds_the_contract_on_torch():
    check_model(lambda: PacketLSTM(hidden=8, rate=0.01, engine="torch"), auroc=0.8, n=160, rows=20)


@pytest.mark.parametrize("cap", [None, 3])
def test_engines_agree(cap):
    X, y = easy_stream(60)
    X[7] = np.nan
    X[np.cumsum(~np.isnan(X), axis=1) > 3] = np.nan
    for task, labels in (("classification", y), ("classification", three_classes(X)), ("regression", 30 * X[:, 0] + 5)):
        fast = PacketLSTM(hidden=7, rate=0.01, task=task, max_features=cap, engine="compiled").run_arrays(X, labels)
        slow = PacketLSTM(hidden=7, rate=0.01, task=task, max_features=cap, engine="torch").run_arrays(X, labels)
        np.testing.assert_allclose(fast, slow, rtol=0, atol=1e-9)
        assert abs(fast).max() > 1e-3


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def test_a_row_by_the_published_equations():
    """Feature a, last seen three rows before, and b, seen in the row before: memory, h and score of the row."""
    model = PacketLSTM(hidden=5, rate=0.01)
    one, other = Row(("a",), np.array([1.5])), Row(("b",), np.array([-0.5]))
    for row, label in ((one, 1), (other, 0), (other, 1)):
        model.learn_one(row, label)
    net = {name: array.copy() for name, array in model._net.items()}
    c, new_c, new_h = net["c"], [], []
    for cell, x, elapsed in ((0, 0.3, 3), (1, 2.0, 1)):
        vec, h = net["vec"][cell], net["h"][cell]
        own_i, own_new, own_o = np.split(h @ net["mat"][cell], 3)
        i = sigmoid(vec[0] * x + vec[5] + own_i + vec[10] * c)
        t1 = sigmoid(vec[1] * x + vec[6] + sigmoid(vec[12] * elapsed))
        t2 = sigmoid(vec[2] * x + vec[7] + sigmoid(vec[13] * elapsed))
        new = np.tanh(vec[3] * x + vec[8] + own_new)
        mixed = (1 - i * t1) * c + i * t1 * new
        new_c.append((1 - i) * c + i * t2 * new)
        o = sigmoid(vec[4] * x + vec[9] + own_o + vec[11] * mixed + vec[14] * elapsed)
        new_h.append(o * np.tanh(mixed))
    packet = np.concatenate([np.max(new_c, axis=0), np.max(new_h, axis=0)])
    logits = np.tanh(packet @ net["join"] + net["join_bias"]) @ net["head"] + net["head_bias"]
    row = Row(("a", "b"), np.array([0.3, 2.0]))
    assert model.score_one(row) == pytest.approx(logits[1] - logits[0], abs=1e-12)
    model.learn_one(row, 0)
    np.testing.assert_allclose(model._net["c"], packet[:5], atol=1e-12)
    np.testing.assert_allclose(model._net["h"][:2], new_h, atol=1e-12)


def test_adamw_equals_torch():
    rng = np.random.default_rng(0)
    start, gradients = rng.standard_normal(6), rng.standard_normal((5, 6))
    parameter = torch.nn.Parameter(torch.tensor(start))
    optimizer = torch.optim.AdamW([parameter], lr=0.02, weight_decay=0.1)
    mine, m, v = start.copy(), np.zeros(6), np.zeros(6)
    stacked, first, second = torch.tensor(start), torch.zeros(6).double(), torch.zeros(6).double()
    for step, gradient in enumerate(gradients, start=1):
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        adamw(mine, 0.5, 2.0 * gradient, m, v, *sized(step, 0.02), 1.0 - 0.02 * 0.1)
        adamw_tensor(stacked, torch.tensor(gradient), first, second, float(step), 0.02, 0.1)
    np.testing.assert_allclose(mine, parameter.detach().numpy(), atol=1e-12)
    np.testing.assert_allclose(stacked.numpy(), parameter.detach().numpy(), atol=1e-12)


def test_cells_that_were_not_there_are_not_changed():
    model = PacketLSTM(hidden=6, rate=0.01)
    X, y = easy_stream(30)
    model.run_arrays(X, y)
    cell = int(model._place[model._index.slot_of[2]])
    names = ("vec", "mat", "m_vec", "m_mat", "v_vec", "v_mat", "h")
    before = {name: model._net[name][cell].copy() for name in names}
    steps = int(model._times[cell, 1])
    assert steps == np.count_nonzero(~np.isnan(X[:, 2]))
    model.learn_one(Row((0, 1), np.array([1.0, 1.0])), 1)
    for name in names:
        np.testing.assert_array_equal(model._net[name][cell], before[name])
    model.learn_one(Row((0, 2), np.array([1.0, 1.0])), 1)
    assert model._times[cell, 1] == steps + 1
    assert (model._net["mat"][cell] != before["mat"]).any()


def test_the_time_weight_of_the_first_gate_stays_below_its_bound():
    X, y = easy_stream(200)
    model = PacketLSTM(hidden=6, rate=0.05)
    assert model.run_arrays(X, y).any()
    assert model._net["vec"][:5, 12].max() <= -0.01
    assert model._net["vec"][:5, 13].max() > 0.01


def test_the_cap_forgets_the_least_seen():
    model = PacketLSTM(hidden=4, max_features=3)
    for names in (("a", "b"), ("a", "b"), ("a", "c")):
        model.learn_one(Row(names, np.ones(len(names))), 1)
    kept = {name: model._net["mat"][model._place[model._index.slot_of[name]]].copy() for name in "ab"}
    model.learn_one(Row(("d",), np.ones(1)), 0)
    assert model.features_ == ["a", "b", "d"]
    for name, before in kept.items():
        np.testing.assert_array_equal(model._net["mat"][model._place[model._index.slot_of[name]]], before)
    assert model._counts.tolist() == [4, 3, 4]  # rows, live cells, cells ever made
    model.learn_one(Row(("c",), np.ones(1)), 0)  # comes back as a new feature, in place of d
    assert model.features_ == ["a", "b", "c"]
    assert model._times[model._place[model._index.slot_of["c"]], 1] == 1


def test_the_cap_bounds_memory_and_can_raise():
    rng = np.random.default_rng(0)
    model = PacketLSTM(hidden=4, max_features=8)
    sizes = []
    for t in range(60):
        model.run_arrays(rng.standard_normal((1, 3)), [t % 2], columns=[t, t + 1, t + 2])
        sizes.append(model.memory_bytes())
    assert len(model.features_) == 8
    assert max(sizes[20:]) - min(sizes[20:]) < 1000
    strict = PacketLSTM(hidden=4, max_features=2, on_limit="raise").learn_one(Row(("a", "b"), np.ones(2)), 1)
    with pytest.raises(StateLimitExceeded, match="max_features is 2"):
        strict.learn_one(Row(("c",), np.ones(1)), 1)


def test_multi_class_and_regression():
    X, _ = easy_stream(1500, d=3)
    y = three_classes(X)
    scores = PacketLSTM(hidden=16, rate=0.005).run_arrays(X, y)
    assert scores.shape == (1500, 3)
    assert (scores[750:].argmax(axis=1) == y[750:]).mean() > 0.75
    predicted = PacketLSTM(hidden=16, rate=0.005, task="regression").run_arrays(X, 1000.0 * X[:, 0] + 5e4)
    assert np.mean((predicted[750:] / 1000.0 - 50.0 - X[750:, 0]) ** 2) < 0.25


def test_wdbc():
    for seed in range(2):
        result = run(PacketLSTM(), load("wdbc").masked("probabilistic", p=0.5, seed=seed))
        assert result.metrics["auroc"] > 0.86


def test_state_moves_through_a_file_and_between_engines(tmp_path):
    X, y = easy_stream(60)
    model = PacketLSTM(hidden=8, engine="torch")
    model.run_arrays(X[:30], y[:30])
    save_tree(tmp_path / "state.npz", model.state_dict())
    rest = model.run_arrays(X[30:], y[30:])
    state = load_tree(tmp_path / "state.npz")
    same = PacketLSTM(hidden=8, engine="torch").load_state_dict(state).run_arrays(X[30:], y[30:])
    np.testing.assert_array_equal(same, rest)
    other = PacketLSTM(hidden=8, engine="compiled").load_state_dict(state).run_arrays(X[30:], y[30:])
    np.testing.assert_allclose(other, rest, atol=1e-9)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"hidden": 0}, "hidden must be a whole number"),
        ({"rate": float("nan")}, "rate"),
        ({"decay": -1.0}, "decay"),
        ({"max_features": 0}, r"max_features must be a whole number in \[1"),
        ({"on_limit": "panic"}, "on_limit must be one of 'evict', 'raise'"),
    ],
)
def test_bad_arguments(params, message):
    with pytest.raises(StreamError, match=message):
        PacketLSTM(**params)
