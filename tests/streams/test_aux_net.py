import subprocess
import sys

import numpy as np
import pytest
import torch

from assay.streams import load, run
from assay.streams.contract import check_model, easy_stream
from assay.streams.errors import StreamError
from assay.streams.models.neural import AuxNet
from assay.streams.rows import Row


def three_classes(X):
    return np.where(X[:, 0] > 0.5, 2, np.where(X[:, 0] < -0.5, 0, 1))


@pytest.mark.parametrize(
    "params",
    [{}, {"base": 0}, {"base": [1, 4, 9]}, {"base_layers": 1, "end_layers": 1}, {"discount": 0.9, "rate": 0.03}],
)
def test_holds_the_contract(params):
    check_model(lambda: AuxNet(hidden=8, **params), auroc=0.8, rows=60)


def test_holds_the_contract_on_torch():
    make = lambda: AuxNet(hidden=8, base_layers=2, end_layers=2, engine="torch")  # noqa: E731
    check_model(make, auroc=0.8, n=160, rows=20)


@pytest.mark.parametrize("params", [{}, {"base": 0}, {"base": [3, 1, "never"]}, {"base_layers": 1, "end_layers": 1}])
def test_engines_agree(params):
    X, y = easy_stream(60)
    X[7] = np.nan
    for task, labels in (("classification", y), ("classification", three_classes(X)), ("regression", 30 * X[:, 0] + 5)):
        fast = AuxNet(hidden=7, task=task, engine="compiled", **params).run_arrays(X, labels)
        slow = AuxNet(hidden=7, task=task, engine="torch", **params).run_arrays(X, labels)
        np.testing.assert_allclose(fast, slow, rtol=0, atol=1e-9)
        assert abs(fast).max() > 1e-3


def learned(n=40, **params):
    X, y = easy_stream(n)
    model = AuxNet(hidden=6, base_layers=2, end_layers=2, **params)
    model.run_arrays(X, y)
    return model


def test_forward_pass_against_torch_modules():
    """Base features 0 (present) and 1 (its last value), feature layers of 2 and 4, an absent one, an unknown one."""
    model = learned(base=[0, 1])
    net = {name: torch.tensor(array) for name, array in model._net.items()}
    relu = torch.relu
    x = {0: 0.7, 2: -1.2, 4: 2.0}
    stem = [relu(torch.tensor([x[0], model._last[1]]) @ net["stem_in"] + net["stem_b"][0])]
    stem.append(relu(stem[0] @ net["stem"][0] + net["stem_b"][1]))
    stem.append(relu(stem[1] @ net["stem"][1] + net["stem_b"][2]))
    rows = [int(model._place[model._index.slot_of[name]]) for name in (2, 4)]
    aux = [relu(x[name] * net["aux"][row] + net["aux_b"][row]) for name, row in zip((2, 4), rows)]
    alpha = net["alpha"]
    joined = torch.stack([alpha[2], *(alpha[5 + row] for row in rows)])
    joined = joined / joined.sum()
    first = joined[0] * stem[2] @ net["join_middle"] + net["end_b"][0]
    for weight, row, output in zip(joined[1:], rows, aux):
        first = first + weight * output @ net["join"][row]
    end = [relu(first)]
    end.append(relu(end[0] @ net["end"][0] + net["end_b"][1]))
    heads = [0, 1, 2, 3, 4, *(5 + row for row in rows)]
    logits = torch.stack([h @ net["head"][i] + net["head_bias"][i] for h, i in zip([*stem, *end, *aux], heads)])
    score = alpha[heads] / alpha[heads].sum() @ logits
    row = Row((2, "unknown", 0, 4), np.array([-1.2, 9.0, 0.7, 2.0]))
    assert model.score_one(row) == pytest.approx(float(score[1] - score[0]), abs=1e-12)


def test_layers_of_absent_features_are_not_changed():
    model = learned(base=[0])
    place = int(model._place[model._index.slot_of[3]])
    layer = {name: model._net[name][place].copy() for name in ("aux", "aux_b", "join")}
    head = model._net["head"][5 + place].copy()
    model.learn_one(Row((0, 1), np.array([0.2, 1.0])), 1)
    for name, before in layer.items():
        np.testing.assert_array_equal(model._net[name][place], before)
    np.testing.assert_array_equal(model._net["head"][5 + place], head)
    model.learn_one(Row((0, 3), np.array([0.2, 1.0])), 1)
    assert (model._net["aux"][place] != layer["aux"]).any()


@pytest.mark.parametrize("engine", ["compiled", "torch"])
def test_check_8_hedge_weights_sum_to_one_and_keep_their_floor(engine):
    """Also while layers are added: after each row the L layers so far hold the bound s / (L (1 + s))."""
    rng = np.random.default_rng(0)
    model = AuxNet(hidden=4, base=1, base_layers=2, end_layers=2, discount=0.3, smoothing=0.4, engine=engine)
    near = np.inf
    for t in range(80):
        names = np.unique(rng.integers(0, 2 + t // 4, 4))
        model.learn_one(Row(tuple(names.tolist()), rng.standard_normal(len(names))), int(rng.integers(2)))
        L = 5 + int(model._learned[0])
        alpha = np.asarray(model._net["alpha"])[:L]
        assert alpha.sum() == pytest.approx(1.0, abs=1e-12)
        bound = 0.4 / (L * 1.4)
        assert alpha.min() >= bound - 1e-15
        near = min(near, alpha.min() / bound)
    assert L > 15
    assert near < 2  # 3.5 where all weights are equal


def test_base_features_are_the_first_learned_or_those_named():
    rows = [Row(("x",), np.array([1.0])), Row(("y", "x"), np.array([2.0, 3.0])), Row(("z",), np.array([4.0]))]
    counted, named = AuxNet(base=2, hidden=4), AuxNet(base=["z", "later"], hidden=4)
    for t, row in enumerate(rows):
        counted.learn_one(row, t % 2)
        named.learn_one(row, t % 2)
    assert counted._last.tolist() == [3.0, 2.0]  # the last value of x and of y
    assert counted._learned.tolist() == [1, 2]
    assert named._last.tolist() == [4.0, 0.0]  # never seen: 0
    assert named._learned[0] == 2


def test_growth_leaves_old_weights_alone():
    model = learned()
    old = {name: array.copy() for name, array in model._net.items()}
    model._grow(50)
    model._labels.code(7)
    model._grow_classes(3)
    for name in ("aux", "aux_b", "join", "alpha"):
        np.testing.assert_array_equal(model._net[name][: len(old[name])], old[name])
    np.testing.assert_array_equal(model._net["head"][: len(old["head"]), :, :2], old["head"])
    assert not model._net["head"][..., 2].any()


def test_multi_class_and_regression():
    X, _ = easy_stream(1000, d=3)
    y = three_classes(X)
    scores = AuxNet(hidden=16).run_arrays(X, y)
    assert scores.shape == (1000, 3)
    assert (scores[500:].argmax(axis=1) == y[500:]).mean() > 0.75
    small = AuxNet(hidden=16, task="regression").run_arrays(X, X[:, 0])
    large = AuxNet(hidden=16, task="regression").run_arrays(X, 1000.0 * X[:, 0] + 5e4)
    np.testing.assert_allclose(large[1:], 1000.0 * small[1:] + 5e4, rtol=1e-6)
    assert np.mean((small[500:] - X[500:, 0]) ** 2) < 0.25


def test_wdbc():
    for seed in range(3):
        result = run(AuxNet(), load("wdbc").masked("probabilistic", p=0.5, seed=seed))
        assert result.metrics["auroc"] > 0.94  # haphazard 1.2.8: 0.49 to 0.51


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"base": -1}, r"base must be a whole number in \[0"),
        ({"base": "temperature"}, "base must be a number or a sequence of feature ids"),
        ({"base": ["a", "a"]}, "base must name each feature once"),
        ({"base_layers": 0}, "base_layers"),
        ({"end_layers": 0}, "end_layers"),
        ({"hidden": 1.5}, "hidden must be a whole number"),
        ({"rate": -1}, "rate"),
        ({"clip": 0}, "clip"),
        ({"discount": 0}, "discount"),
        ({"smoothing": 2}, "smoothing"),
    ],
)
def test_bad_arguments(params, message):
    with pytest.raises(StreamError, match=message):
        AuxNet(**params)


def test_without_torch_the_message_says_what_to_install():
    program = "import sys; sys.modules['torch'] = None; import assay.streams.models.neural"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "ImportError: the neural stream models need torch: pip install 'assay[streams-neural]'" in done.stderr
