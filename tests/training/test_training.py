"""The training loop: resume to the last bit, early stopping, schedules, seeds, named errors."""

from __future__ import annotations

from typing import ClassVar

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
from torch import nn  # noqa: E402

from assay.training import (  # noqa: E402
    CheckpointError,
    TrainConfig,
    TrainingDiverged,
    load_checkpoint,
    reset_parameters,
    seeded,
    tensor_batches,
    train,
)


def network(seed=0):
    return seeded(
        seed, lambda: nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
    )


def data(n=90):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=g)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def loss(model, batch, step):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def state(model):
    return torch.cat([v.double().ravel() for v in model.state_dict().values()])


class Killed(Exception):
    pass


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_killed_run_resumes_to_the_last_bit(tmp_path, schedule, optimizer):
    config = TrainConfig(epochs=6, lr=0.01, schedule=schedule, optimizer=optimizer, clip_norm=1.0, seed=3)
    batches = tensor_batches(*data(), batch_size=32)
    whole = network()
    reference = train(whole, loss, batches, config)

    def kill(progress):
        if progress.epoch == 3:
            raise Killed

    broken = network()
    with pytest.raises(Killed):
        train(broken, loss, batches, config, checkpoint=tmp_path / "run.pt", callback=kill)
    resumed = network(seed=9)  # other weights: all must come from the file
    result = train(resumed, loss, batches, config, checkpoint=tmp_path / "run.pt")
    assert torch.equal(state(resumed), state(whole))
    assert result.losses == reference.losses
    assert result.steps == 18


def test_a_finished_run_is_not_trained_again(tmp_path):
    config = TrainConfig(epochs=2, seed=0)
    model = network()
    train(model, loss, tensor_batches(*data()), config, checkpoint=tmp_path / "run.pt")
    again = network(5)
    result = train(again, loss, tensor_batches(*data()), config, checkpoint=tmp_path / "run.pt")
    assert torch.equal(state(model), state(again))
    assert len(result.losses) == 2


def test_early_stopping_goes_back_to_the_best_weights():
    values = iter([3.0, 1.0, 2.0, 2.0, 0.5])
    seen = []

    def validate(model):
        seen.append(state(model).clone())
        return next(values)

    model = network()
    result = train(model, loss, tensor_batches(*data()), TrainConfig(epochs=9, patience=2, seed=0), validate=validate)
    assert (result.stopped, result.best_epoch, len(result.losses)) == ("patience", 2, 4)
    assert torch.equal(state(model), seen[1])


def test_the_global_random_state_is_untouched_and_seeds_decide():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    runs = []
    for seed in (1, 1, 2):
        model = network()
        train(model, loss, tensor_batches(*data(), batch_size=30), TrainConfig(epochs=2, seed=seed))
        runs.append(state(model))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_clipping_bounds_a_step_and_groups_scale_the_rate():
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    config = TrainConfig(epochs=1, lr=1.0, optimizer="sgd", momentum=0.0, clip_norm=0.25)
    train(model, lambda m, b, s: (m(b[0]) * 1e3).sum(), tensor_batches(torch.ones(1, 1)), config)
    assert model.weight.item() == pytest.approx(0.75, abs=1e-4)
    train(
        model,
        lambda m, b, s: m(b[0]).sum(),
        tensor_batches(torch.ones(1, 1)),
        TrainConfig(epochs=1, lr=1.0, optimizer="sgd", momentum=0.0),
        parameters=[{"params": [model.weight], "lr_scale": 0.25}],
    )
    assert model.weight.item() == pytest.approx(0.5, abs=1e-4)


def test_accumulated_batches_equal_one_large_batch():
    x, y = data(64)
    results = []
    for size, accumulate in ((64, 1), (16, 4)):
        model = seeded(0, lambda: nn.Linear(4, 2))
        train(
            model, loss, tensor_batches(x, y, batch_size=size, shuffle=False),
            TrainConfig(epochs=3, lr=0.1, optimizer="sgd", accumulate=accumulate),
        )  # fmt: skip
        results.append(state(model))
    torch.testing.assert_close(results[0], results[1], atol=1e-6, rtol=1e-6)


def test_schedules():
    cosine = TrainConfig(schedule="cosine", warmup=0.1)
    factors = [cosine.rate(s, 100) for s in range(100)]
    assert factors[:3] == pytest.approx([0.1, 0.2, 0.3])
    assert factors[10] == 1.0
    assert factors[-1] < 0.001
    assert [TrainConfig(schedule="step").rate(s, 10) for s in (0, 3, 6, 8)] == pytest.approx([1, 0.2, 0.04, 0.008])
    assert TrainConfig(schedule="linear").rate(5, 10) == 0.5


@pytest.mark.parametrize(
    "bad",
    [
        {"lr": -1},
        {"epochs": -1},
        {"optimizer": "lion"},
        {"warmup": 1.0},
        {"clip_norm": 0},
        {"patience": 0},
        {"schedule": "x"},
    ],
)
def test_settings_are_checked_where_they_are_made(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        TrainConfig(**bad)


def test_errors_say_what_to_do(tmp_path):
    batches = tensor_batches(*data())
    with pytest.raises(ValueError, match="validate"):
        train(network(), loss, batches, TrainConfig(patience=1))
    with pytest.raises(TrainingDiverged, match="epoch 1"):
        train(network(), lambda m, b, s: loss(m, b, s) * float("nan"), batches, TrainConfig(epochs=1))
    path = tmp_path / "run.pt"
    train(network(), loss, batches, TrainConfig(epochs=1), checkpoint=path)
    with pytest.raises(CheckpointError, match=r"lr=0\.001"):
        train(network(), loss, batches, TrainConfig(epochs=2, lr=0.5), checkpoint=path)
    with pytest.raises(CheckpointError, match="another model"):
        train(nn.Linear(4, 2), loss, batches, TrainConfig(epochs=2), checkpoint=path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="remove it"):
        load_checkpoint(path)
    with pytest.raises(ValueError, match="rows"):
        tensor_batches(torch.zeros(3), torch.zeros(4))


def test_a_checkpoint_never_runs_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "pwned"), "w"))

    torch.save({"format": 1, "x": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointError):
        load_checkpoint(tmp_path / "evil.pt")
    assert not (tmp_path / "pwned").exists()


def test_reset_gives_new_weights_by_seed():
    model = network()
    first = state(reset_parameters(model, 4)).clone()
    assert torch.equal(first, state(reset_parameters(model, 4)))
    assert not torch.equal(first, state(reset_parameters(model, 5)))


def test_few_rows_go_on_until_they_have_made_the_least_number_of_steps():
    x = torch.linspace(-1, 1, 12)[:, None]
    loss = lambda net, batch, _step: torch.nn.functional.mse_loss(net(batch[0]), batch[1])  # noqa: E731
    for least, steps in ((0, 6), (7, 9), (50, 51)):  # three steps an epoch, two epochs asked for
        config = TrainConfig(epochs=2, min_steps=least, lr=0.01)
        result = train(torch.nn.Linear(1, 1), loss, tensor_batches(x, x, batch_size=4), config)
        assert (result.steps, len(result.losses)) == (steps, steps // 3)
    with pytest.raises(ValueError, match="min_steps"):
        TrainConfig(min_steps=-1)


def test_a_model_may_clip_in_its_own_way():
    class Own(torch.nn.Linear):
        asked: ClassVar[list[float]] = []

        def clip_grad_norm_(self, max_norm):
            self.asked.append(max_norm)

    x = torch.ones(4, 1)
    loss = lambda net, batch, _step: net(batch[0]).mean()  # noqa: E731
    train(Own(1, 1), loss, tensor_batches(x, batch_size=2), TrainConfig(epochs=1, clip_norm=2.5))
    assert Own.asked == [2.5, 2.5]
