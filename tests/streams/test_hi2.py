import numpy as np
import pytest
import torch

from assay.streams import load, run
from assay.streams.contract import check_model, easy_stream
from assay.streams.errors import StreamError
from assay.streams.models.neural import HI2
from assay.streams.models.neural.pictures import bars, crossed_bars, pie
from assay.streams.models.neural.vision import BasicBlock, Block, PictureNorm, ResNet34, ViTSmall
from assay.streams.rows import Row

COLOURS = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.0], [0.0, 0.8, 0.6]], dtype=np.float32)


def of(picture, colour):
    """Pixels of a colour."""
    return (np.abs(picture - colour[:, None, None]) < 1e-6).all(axis=0)


@pytest.mark.parametrize("picture", ["bar", "cross"])
def test_holds_the_contract(picture):
    check_model(lambda: HI2(picture, size=16), auroc=0.8, n=240, rows=18)


def test_bars_by_hand():
    picture = bars(np.array([1.5, -3.0, 9.0]), COLOURS, 224)
    assert picture.shape == (3, 224, 224)
    assert picture.dtype == np.float32
    width = 224 / (3 + 4 * 0.3)
    for k, (up, down) in enumerate([(56, 0), (0, 111), (112, 0)]):  # the line takes one row of the middle
        where = of(picture, COLOURS[k])
        rows, columns = np.flatnonzero(where.any(axis=1)), np.flatnonzero(where.any(axis=0))
        assert abs(len(columns) - width) < 1
        assert abs(columns.mean() + 0.5 - width * (0.3 + 0.5 + 1.3 * k)) < 1
        assert where.sum() == len(columns) * (up + down)  # a filled rectangle
        assert (rows.min(), rows.max()) == ((112 - up, 111) if up else (113, 223))
    line = np.zeros(3, dtype=np.float32)
    assert of(picture, line).sum() == 224
    assert of(picture, np.ones(3)).sum() == 224 * 224 - 224 - sum(of(picture, c).sum() for c in COLOURS)


def test_crosses_stand_where_a_feature_is_absent():
    present = np.array([True, False, True])
    picture = crossed_bars(np.array([1.0, 7.0, -1.0]), present, COLOURS, 224)
    red = of(picture, np.array([1.0, 0.0, 0.0]))
    assert not of(picture, COLOURS[1]).any()
    assert of(picture, COLOURS[0]).sum() > 1000
    columns = np.flatnonzero(red.any(axis=0))
    assert columns.mean() + 0.5 == pytest.approx(112, abs=0.6)  # the middle one of three
    assert abs(np.flatnonzero(red.any(axis=1)).mean() - 112) < 1
    np.testing.assert_array_equal(red[:, :112], red[:, :111:-1])  # symmetric
    np.testing.assert_array_equal(
        crossed_bars(np.ones(3), ~present | present, COLOURS, 64), bars(np.ones(3), COLOURS, 64)
    )


def test_a_pie_shares_its_area():
    picture = pie(np.array([1.0, 2.0, 5.0]), COLOURS, 224)
    areas = np.array([of(picture, c).sum() for c in COLOURS])
    assert areas.sum() == pytest.approx(np.pi * (0.45 * 224) ** 2, rel=0.005)
    np.testing.assert_allclose(areas / areas.sum(), [0.125, 0.25, 0.625], atol=0.003)
    shifted = pie(np.array([-3.0, 1.0, 1.0]), COLOURS, 224)  # widths above the smallest: 0, 4, 4
    assert not of(shifted, COLOURS[0]).any()
    equal = pie(np.zeros(3), COLOURS, 224)
    np.testing.assert_allclose([of(equal, c).sum() / areas.sum() for c in COLOURS], 1 / 3, atol=0.003)
    assert pie(np.empty(0), COLOURS[:0], 32).min() == 1.0


def test_thin_bars_are_averaged_not_lost():
    colours = np.zeros((500, 3), dtype=np.float32)
    picture = bars(np.full(500, 3.0), colours, 32)
    ink = 1.0 - picture[:, :16].mean()
    assert ink == pytest.approx(1 / 1.3, abs=0.01)  # bars and gaps
    assert bars(np.empty(0), colours[:0], 32)[:, 0].min() == 1.0


def test_a_feature_keeps_its_colour_and_order_of_columns_does_not_matter():
    model = HI2(size=32)
    model.learn_one(Row(("a", "b"), np.array([1.0, 2.0])), 1)
    colours = model._colours[:2].copy()
    before = model.draw(Row(("a", "b"), np.array([1.0, 2.0])))
    np.testing.assert_array_equal(model.draw(Row(("b", "a"), np.array([2.0, 1.0]))), before)
    for t in range(20):
        model.learn_one(Row((f"n{t}",), np.ones(1)), t % 2)
    np.testing.assert_array_equal(model._colours[:2], colours)
    np.testing.assert_array_equal(model.draw(Row(("a", "b"), np.array([1.0, 2.0]))), before)
    np.testing.assert_array_equal(model.draw(Row(("a", "unknown"), np.ones(2))), model.draw(Row(("a",), np.ones(1))))


def test_wdbc():
    result = run(HI2(), load("wdbc").masked("probabilistic", p=0.5, seed=0))
    assert result.metrics["auroc"] > 0.9


def test_multi_class_and_regression():
    X, _ = easy_stream(360, d=2)
    y = np.where(X[:, 0] > 0.5, 2, np.where(X[:, 0] < -0.5, 0, 1))
    scores = HI2(size=16, rate=3e-3).run_arrays(X, y)
    assert scores.shape == (360, 3)
    assert (scores[180:].argmax(axis=1) == y[180:]).mean() > 0.7
    predicted = HI2(size=16, rate=3e-3, task="regression").run_arrays(X, 1000.0 * X[:, 0] + 5e4)
    assert np.mean((predicted[180:] / 1000.0 - 50.0 - X[180:, 0]) ** 2) < 0.35


def test_pies_learn_which_feature_is_larger():
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 1.0, (400, 2))
    y = (X[:, 0] > X[:, 1]).astype(int)
    scores = HI2("pie", size=16, rate=3e-3).run_arrays(X, y)
    assert ((scores[200:] > 0) == y[200:]).mean() > 0.9


def numbers(module):
    return sum(p.numel() for p in module.parameters())


def test_the_networks_have_the_published_number_of_parameters():
    """21,797,672 and 22,050,664 with their heads of 1000 classes."""
    with torch.device("meta"):
        resnet, vit = ResNet34(), ViTSmall()
    assert numbers(resnet) == 21_797_672 - (512 * 1000 + 1000)
    assert numbers(vit) == 22_050_664 - (384 * 1000 + 1000)
    names = set(resnet.state_dict())
    assert {"bn1.running_var", "layer1.2.conv2.weight", "layer2.0.downsample.1.bias", "layer4.2.bn2.weight"} <= names
    assert "layer1.0.downsample.0.weight" not in names
    names = set(vit.state_dict())
    assert {
        "cls_token",
        "pos_embed",
        "patch_embed.proj.bias",
        "blocks.11.attn.qkv.bias",
        "blocks.0.mlp.fc1.weight",
    } <= names
    assert tuple(vit.pos_embed.shape) == (1, 197, 384)


def test_a_transformer_block_equals_torch():
    torch.manual_seed(0)
    mine = Block(24, 3)
    theirs = torch.nn.TransformerEncoderLayer(24, 3, 96, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True)
    named = {"norm1": "norm1", "attn.proj": "self_attn.out_proj", "norm2": "norm2", "mlp.fc1": "linear1"}
    named["mlp.fc2"] = "linear2"
    state = {}
    for old, new in named.items():
        state |= {f"{new}.{part}": mine.state_dict()[f"{old}.{part}"] for part in ("weight", "bias")}
    state |= {"self_attn.in_proj_weight": mine.attn.qkv.weight, "self_attn.in_proj_bias": mine.attn.qkv.bias}
    theirs.load_state_dict(state)
    x = torch.randn(2, 5, 24)
    torch.testing.assert_close(mine(x), theirs(x), atol=1e-5, rtol=1e-5)


def test_a_residual_block_and_its_two_normalisations():
    torch.manual_seed(0)
    x = torch.randn(1, 4, 6, 6)
    reference = torch.nn.BatchNorm2d(4)
    torch.testing.assert_close(PictureNorm(4, frozen=False)(x), reference(x))  # in training: the picture's own
    frozen = PictureNorm(4, frozen=True)
    frozen.load_state_dict(reference.state_dict())
    torch.testing.assert_close(frozen(x), reference.eval()(x))
    assert (frozen(x) - PictureNorm(4, frozen=False)(x)).abs().max() > 0.1
    block = BasicBlock(4, 8, 2, frozen=False)
    main = torch.nn.Sequential(block.conv1, block.bn1, torch.nn.ReLU(), block.conv2, block.bn2)
    torch.testing.assert_close(block(x), torch.relu(main(x) + block.downsample(x)))
    assert block(x).shape == (1, 8, 3, 3)


@pytest.mark.parametrize(("backbone", "size"), [("resnet34", 64), ("vit_small", 32)])
def test_large_networks_learn_a_row(backbone, size):
    X, y = easy_stream(3)
    model = HI2(backbone=backbone, size=size, rate=1e-3)
    scores = model.run_arrays(X, y)
    assert np.isfinite(scores).all()
    assert scores[0] == 0.0
    assert scores[2] != 0.0
    row = Row(tuple(range(5)), np.ones(5))
    statistics = {name: value.clone() for name, value in model._net.items() if name.endswith("running_mean")}
    assert model.score_one(row) == model.score_one(row)
    for name, value in statistics.items():
        torch.testing.assert_close(model._net[name], value, atol=0, rtol=0)


def checkpoint(backbone):
    """A file's worth of parameters under the public names, heads and counters included."""
    module = ResNet34() if backbone == "resnet34" else ViTSmall(32)
    state = {
        name: torch.randn(value.shape) * 0.05 if value.is_floating_point() else value
        for name, value in module.state_dict().items()
    }
    head = "fc" if backbone == "resnet34" else "head"
    return state | {f"{head}.weight": torch.zeros(1000, 512), f"{head}.bias": torch.zeros(1000)}


def test_weights_come_from_the_file(tmp_path):
    path = tmp_path / "resnet34.pth"
    state = checkpoint("resnet34")
    torch.save(state, path)
    model = HI2(backbone="resnet34", size=64, weights=str(path), batch_norm="frozen")
    for name in ("conv1.weight", "layer3.5.bn2.weight", "layer4.0.downsample.1.running_mean"):
        torch.testing.assert_close(model._net["body." + name], state[name])
    assert "body.fc.weight" not in model._net
    del state["layer2.1.conv1.weight"]
    torch.save(state, path)
    with pytest.raises(StreamError, match=r"has no 'layer2.1.conv1.weight'"):
        HI2(backbone="resnet34", size=64, weights=str(path))


def test_bad_weight_files(tmp_path):
    path = tmp_path / "vit.pth"
    torch.save({"model": checkpoint("vit_small")}, path)
    assert HI2(backbone="vit_small", size=32, weights=str(path))._net["body.norm.weight"].std() > 0.01
    with pytest.raises(StreamError, match=r"'pos_embed' of shape \(1, 5, 384\), expected \(1, 17, 384\)"):
        HI2(backbone="vit_small", size=64, weights=str(path))
    with pytest.raises(StreamError, match="is not a file"):
        HI2(backbone="vit_small", size=32, weights=str(tmp_path / "nowhere.pth"))
    torch.save({"conv1.weight": Row((), np.empty(0))}, path)  # needs code to load
    with pytest.raises(StreamError, match="not a readable checkpoint"):
        HI2(backbone="vit_small", size=32, weights=str(path))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"picture": "scatter"}, "picture must be one of 'bar', 'cross', 'pie'"),
        ({"backbone": "vgg"}, "backbone must be one of"),
        ({"batch_norm": "batch"}, "batch_norm"),
        ({"size": 20}, "size must be a multiple of 8 for 'small', not 20"),
        ({"backbone": "resnet34", "size": 32}, r"size must be a whole number in \[64"),
        ({"rate": 0}, "rate"),
    ],
)
def test_bad_arguments(params, message):
    with pytest.raises(StreamError, match=message):
        HI2(**params)
