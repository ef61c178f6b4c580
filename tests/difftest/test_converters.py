"""Other tools' files, made here in the form that their makers document."""

from __future__ import annotations

import struct
from collections import OrderedDict

import numpy as np
import pytest
import torch

from assay.difftest import DiffTestError, LossMonitor, Trace, TraceCorrupt, convert, generate, losses_from_tensorboard
from assay.difftest.events import masked


def varint(n: int) -> bytes:
    out = b""
    while n >= 0x80:
        out, n = out + bytes([n & 0x7F | 0x80]), n >> 7
    return out + bytes([n])


def message(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def event(step: int, tag: str, value: float, *, as_tensor: bool = False) -> bytes:
    """An ``Event``: wall time (1), step (2), summary (5) of one value: tag (1), and number (2) or tensor (8)."""
    if as_tensor:  # dtype DT_FLOAT (1), float_val (5)
        number = message(8, varint(1 << 3) + varint(1) + message(5, struct.pack("<f", value)))
    else:
        number = varint(2 << 3 | 5) + struct.pack("<f", value)
    summary = message(1, message(1, tag.encode()) + number)
    return varint(1 << 3 | 1) + struct.pack("<d", 1e9) + varint(2 << 3) + varint(step) + message(5, summary)


def record(body: bytes) -> bytes:
    length = struct.pack("<Q", len(body))
    return length + struct.pack("<I", masked(length)) + body + struct.pack("<I", masked(body))


def version() -> bytes:
    return record(varint(1 << 3 | 1) + struct.pack("<d", 1e9) + message(3, b"brain.Event:2"))


def test_tensorboard(tmp_path):
    curve = (5 - 0.01 * np.arange(300)).astype(np.float32)
    bodies = [record(event(i, "lm loss", v, as_tensor=i % 2 == 1)) for i, v in enumerate(curve.tolist())]
    noise = [record(event(i, "grad norm", 1.0)) for i in range(5)]
    (tmp_path / "events.out.tfevents.1.host").write_bytes(version() + b"".join([*noise, *bodies[:200]]))
    # the run went on from step 150, in another file, whose last record was being written when it ended
    (tmp_path / "events.out.tfevents.2.host").write_bytes(version() + b"".join(bodies[150:]) + bodies[0][:9])
    found = losses_from_tensorboard(tmp_path)
    assert np.array_equal(found, curve)
    seeds = np.stack([found + 0.01 * np.random.default_rng(s).standard_normal(300) for s in range(3)])
    assert LossMonitor().fit(seeds).alarm(found + 0.5) == 0
    with pytest.raises(DiffTestError, match="no scalar 'loss'; it has grad norm, lm loss"):
        losses_from_tensorboard(tmp_path, "loss")
    with pytest.raises(DiffTestError, match="no event file"):
        losses_from_tensorboard(tmp_path / "nowhere")
    damaged = bytearray((tmp_path / "events.out.tfevents.1.host").read_bytes())
    damaged[len(version()) + 20] ^= 1
    (tmp_path / "events.out.tfevents.1.host").write_bytes(bytes(damaged))
    with pytest.raises(TraceCorrupt, match=f"damaged at offset {len(version()) + 12}"):
        losses_from_tensorboard(tmp_path)


class LossScaler:
    """A class that the reader does not know, as DeepSpeed's files hold."""

    def __init__(self) -> None:
        self.cur_scale = 65536.0


def deepspeed_checkpoint(folder, ranks=2):
    shapes = [OrderedDict({"module.fc.weight": torch.Size([3, 4])}), OrderedDict({"module.fc.bias": torch.Size([3])})]
    values = {
        key: {name: generate(f"{key} {name}", tuple(shape)) for group in shapes for name, shape in group.items()}
        for key in ("main_param", "exp_avg", "exp_avg_sq")
    }
    step = folder / "global_step7"
    step.mkdir(parents=True)
    (folder / "latest").write_text("global_step7")
    module = {name: values["main_param"][name].bfloat16() for group in shapes for name in group}
    torch.save({"module": module, "param_shapes": shapes, "ds_version": "0.19.8"}, step / "mp_rank_00_model_states.pt")
    for r in range(ranks):

        def stretch(key, group, r=r):
            flat = torch.cat([values[key][name].reshape(-1) for name in group])
            each = -(-flat.numel() // ranks)
            return torch.nn.functional.pad(flat, (0, each * ranks - flat.numel()))[r * each : (r + 1) * each].clone()

        state = {
            "loss_scaler": LossScaler(), "zero_stage": 1, "partition_count": [ranks, ranks],
            "single_partition_of_fp32_groups": [stretch("main_param", g) for g in shapes],
            "base_optimizer_state": {
                "state": {
                    i: {"step": 7, **{k: stretch(k, g) for k in ("exp_avg", "exp_avg_sq")}}
                    for i, g in enumerate(shapes)
                }
            },
        }  # fmt: skip
        path = step / f"bf16_zero_pp_rank_{r}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": state, "ds_version": "0.19.8"}, path)
    return values


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_deepspeed(ranks, tmp_path):
    values = deepspeed_checkpoint(tmp_path / "run", ranks)
    found = convert(tmp_path / "run", tmp_path / "trace")
    assert found.meta["converted_from"] == "deepspeed" and found.steps == [7]
    assert torch.equal(found.tensor("7/-/param/fc/weight"), values["main_param"]["module.fc.weight"].bfloat16())
    for key, of in values.items():
        for leaf in ("weight", "bias"):
            assert torch.equal(found.tensor(f"7/-/optim.{key}/fc/{leaf}"), of[f"module.fc.{leaf}"])
    assert len(found.names()) == 2 + 6


def test_deepspeed_with_a_rank_missing_or_a_model_that_is_cut(tmp_path):
    deepspeed_checkpoint(tmp_path / "run", 2)
    (tmp_path / "run/global_step7/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(TraceCorrupt, match="a rank's file is missing"):
        convert(tmp_path / "run", tmp_path / "trace")
    (tmp_path / "run/global_step7/mp_rank_01_model_states.pt").write_bytes(b"")
    with pytest.raises(DiffTestError, match="holds 2 model-parallel ranks"):
        convert(tmp_path / "run", tmp_path / "trace", kind="deepspeed")


def test_deepspeed_runs_nothing_that_a_file_asks_for(tmp_path):
    class Trap:
        def __reduce__(self):
            return exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",)

    folder = tmp_path / "global_step1"
    folder.mkdir()
    torch.save({"module": {"w": torch.ones(2)}, "trap": Trap()}, folder / "mp_rank_00_model_states.pt")
    assert convert(folder, tmp_path / "trace").names() == ["1/-/param/model/w"]
    assert not (tmp_path / "ran").exists()


def test_torchtitan_and_megatron_checkpoints(tmp_path):
    """Both are DCP; torchtitan flattens optimizer states to ``optimizer.state.<parameter>.<state>``."""
    import torch.distributed.checkpoint as dcp

    titan = {
        "layers.0.attention.wq.weight": torch.ones(3),
        "optimizer.state.layers.0.attention.wq.weight.exp_avg": torch.ones(3),
        "optimizer.state.layers.0.attention.wq.weight.exp_avg_sq": torch.full((3,), 2.0),
        "optimizer.param_groups.layers.0.attention.wq.weight.lr": torch.tensor(1e-3),
        "train_state.step": torch.tensor(5), "lr_scheduler.last_epoch": torch.tensor(5),
    }  # fmt: skip
    dcp.save(titan, checkpoint_id=str(tmp_path / "titan"), no_dist=True)
    found = convert(tmp_path / "titan", tmp_path / "t1")
    path = "layers.0.attention.wq/weight"
    assert set(found.names()) == {f"0/-/param/{path}", f"0/-/optim.exp_avg/{path}", f"0/-/optim.exp_avg_sq/{path}"}
    assert found.tensor(f"0/-/optim.exp_avg_sq/{path}").tolist() == [2.0] * 3
    megatron = {"optimizer.state.exp_avg.decoder.layers.weight": torch.zeros(3), "decoder.layers.weight": torch.ones(3)}
    dcp.save(megatron, checkpoint_id=str(tmp_path / "megatron"), no_dist=True)
    names = convert(tmp_path / "megatron", tmp_path / "t2").names()
    assert set(names) == {"0/-/param/decoder.layers/weight", "0/-/optim.exp_avg/decoder.layers/weight"}
    assert Trace.open(tmp_path / "t2").meta["converted_from"] == "dcp"
