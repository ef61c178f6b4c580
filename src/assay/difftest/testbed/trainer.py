"""One step of the distributed model: gradients reduced in buckets, ZeRO-1 shards, clipping, Adam."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from assay.difftest.collect import mark
from assay.difftest.testbed.bugs import Switches
from assay.difftest.testbed.config import Config, Layout
from assay.difftest.testbed.gpt import GPT, Linear, Micro
from assay.difftest.testbed.groups import Groups, all_gather, reduce_scatter
from assay.difftest.testbed.parallel import LocalMicro, Stages
from assay.difftest.testbed.pipeline import Pipeline
from assay.difftest.testbed.train import MasterAdam, reset_scaling

BUCKETS = 3


class Bucket:
    """Parameters whose FP32 gradients lie in one buffer, reduced in one call; padded to a multiple of the group."""

    def __init__(self, parameters: dict[str, nn.Parameter], groups: Groups, group: str) -> None:
        self.parameters, self.groups, self.group = parameters, groups, group
        self.size = groups.size(group)
        numel = sum(p.numel() for p in parameters.values())
        self.numel = -(-numel // self.size) * self.size
        first = next(iter(parameters.values()))
        self.buffer = torch.zeros(self.numel, device=first.device)
        self.places: dict[str, tuple[int, int]] = {}
        at = 0
        for name, parameter in parameters.items():
            self.places[name] = (at, at + parameter.numel())
            at += parameter.numel()

    def view(self, name: str) -> Tensor:
        """FP32 gradient of a parameter, in the buffer."""
        start, stop = self.places[name]
        return self.buffer[start:stop].view(self.parameters[name].shape)

    @property
    def shard(self) -> tuple[int, int]:
        """What this rank holds of the buffer under ZeRO."""
        each = self.numel // self.size
        at = self.groups.position(self.group)
        return at * each, (at + 1) * each

    def pieces(self) -> dict[str, tuple[int, int, int]]:
        """Parameter -> (start within the parameter, start within the shard, length) of what this rank's shard holds."""
        low, high = self.shard
        found = {}
        for name, (start, stop) in self.places.items():
            a, b = max(start, low), min(stop, high)
            if a < b:
                found[name] = (a - start, a - low, b - a)
        return found


class Trainer:
    """The distributed counterpart of `train.Reference`.

    Parameters
    ----------
    config, layout, bugs
    routing : dict, optional
        Chosen experts of the reference to follow.
    """

    def __init__(
        self, config: Config, layout: Layout, bugs: Switches, *, routing: dict[str, Tensor] | None = None
    ) -> None:
        self.config, self.layout, self.bugs, self.routing = config, layout, bugs, routing
        self.groups = Groups(layout)
        self.stages = Stages(config, layout, self.groups, bugs)
        self.parameters = self.stages.parameters
        self.buckets = self._make_buckets()
        self._instance = self._instance_group() if bugs.on(20) else None
        self.optimizer = MasterAdam(self._owned(), config.lr)
        self.losses: list[float] = []

    def _instance_group(self) -> Any:
        mine = None
        members = self.groups.members("data")
        half = len(members) // 2
        for start in (0, half):
            group = dist.new_group(members[start : start + half])
            if dist.get_rank() in members[start : start + half]:
                mine = group
        return mine

    def _make_buckets(self) -> list[Bucket]:
        dense = {n: p for n, p in self.parameters.items() if not self.stages.expert(n)}
        experts = {n: p for n, p in self.parameters.items() if self.stages.expert(n)}
        names = list(dense)
        each = -(-len(names) // BUCKETS)
        parts = [names[i : i + each] for i in range(0, len(names), each)]
        buckets = [Bucket({n: dense[n] for n in part}, self.groups, "data") for part in parts]
        if experts:
            buckets.append(Bucket(experts, self.groups, "edp"))
        return buckets

    def _owned(self) -> dict[str, Tensor]:
        if not self.layout.zero:
            return dict(self.parameters)
        owned = {}
        for bucket in self.buckets:
            for name, (start, _, length) in bucket.pieces().items():
                owned[name] = self.parameters[name].detach().reshape(-1)[start : start + length]
        return owned

    @property
    def models(self) -> list[nn.Module]:
        """Chunks, to be traced."""
        return list(self.stages.chunks)

    def step(self, step: int = 0, tracer: Any = None) -> float:
        """One step; the loss over all ranks."""
        for chunk in self.stages.chunks if step == 0 else []:
            reset_scaling(chunk)
        for bucket in self.buckets:
            bucket.buffer.zero_()
            for name, parameter in bucket.parameters.items():
                parameter.main_grad = bucket.view(name)  # type: ignore[attr-defined]
                parameter.grad = None
        data = self.config.data(step)
        micros = [
            LocalMicro(self.stages.job, data, m, step=step, routing=self.routing)
            for m in range(self.config.microbatches)
        ]
        self._counts: dict[str, int] = {}
        handles = [
            p.register_post_accumulate_grad_hook(self._accumulate(n))
            for n, p in self.parameters.items()
            if p.requires_grad
        ]
        handles += [p.register_post_accumulate_grad_hook(self._accumulate(n)) for n, p in self.stages.copies.items()]
        try:
            loss = Pipeline(self.stages).run(micros, tracer)
        finally:
            for handle in handles:
                handle.remove()
        total = self.groups.sum(torch.tensor(loss), "tensors") / self.layout.tp
        self._finish_model_parallel()
        shards = self._reduce()
        self._record_gradients(tracer, shards)
        norm = self._norm(shards)
        mark("gnorm", norm)
        factor = min(1.0, self.config.clip / (float(norm) + 1e-6)) if self.config.clip else 1.0
        self._update(shards, factor)
        self._record_after(tracer)
        for parameter in self.parameters.values():
            del parameter.main_grad  # type: ignore[attr-defined]
        self.losses.append(float(total))
        return float(total)

    def _accumulate(self, name: str) -> Any:
        first_bucket = name in self.buckets[0].parameters

        def hook(parameter: Tensor) -> None:
            number = self._counts.get(name, 0)
            self._counts[name] = number + 1
            into = self.parameters[name].main_grad  # type: ignore[attr-defined]
            if self.bugs.on(25) and number == self.config.microbatches - 1 and "norm" in name and self.stages.job.sp:
                into.copy_(self.groups.sum(into, "tp"))
            into.add_(parameter.grad)
            if self.bugs.on(14) and number == 0 and first_bucket:
                into.add_(parameter.grad)
            parameter.grad = None

        return hook

    def _finish_model_parallel(self) -> None:
        bugs = self.bugs
        for name, parameter in self.parameters.items():
            if not self.stages.sequence_partial(name):
                continue
            if (bugs.on(6) and name.endswith("router.weight")) or (bugs.on(12) and name.startswith("final_norm")):
                continue
            if bugs.on(25) and "norm" in name:
                continue
            gradient = parameter.main_grad  # type: ignore[attr-defined]
            gradient.copy_(self.groups.sum(gradient, "tp"))
        self._unsynced: Tensor | None = None
        if self.config.tied and self.layout.pp > 1 and "embedding.weight" in self.parameters:
            gradient = self.parameters["embedding.weight"].main_grad  # type: ignore[attr-defined]
            self._unsynced = gradient.clone()
            gradient.copy_(self.groups.sum(gradient, "edges"))

    def _reduce(self) -> list[Tensor]:
        """Reduce the buckets; the buffers, or under ZeRO this rank's shards of them."""
        shards = []
        for _number, bucket in enumerate(self.buckets):
            group = self.groups[bucket.group]
            if bucket.size > 1:
                if self.bugs.on(24) and "unused" in bucket.parameters:
                    shards.append(bucket.buffer)
                    continue
                if self.layout.zero:
                    out = torch.empty(bucket.numel // bucket.size, device=bucket.buffer.device)
                    reduce_scatter(out, bucket.buffer, group)
                    shards.append(out)
                    continue
                dist.all_reduce(bucket.buffer, group=self._instance if self._instance is not None else group)
            if self.bugs.on(4):
                # the loss carries a factor dp cp that a mean over both takes away; divided by dp alone, cp is left over
                bucket.buffer.mul_(self.layout.cp)
            shards.append(bucket.buffer if not self.layout.zero else bucket.buffer[slice(*bucket.shard)])
        return shards

    def _gradients(self, shards: list[Tensor]) -> dict[str, Tensor]:
        found = {}
        for bucket, shard in zip(self.buckets, shards):
            if not self.layout.zero:
                found.update({name: bucket.view(name) for name in bucket.parameters})
                continue
            for name, (_, at, length) in bucket.pieces().items():
                found[name] = shard[at : at + length]
        return found

    def _spec(self, name: str) -> str:
        spec = self.stages.spec(name)
        if not self.layout.zero:
            return spec
        for bucket in self.buckets:
            if name in bucket.parameters:
                start, _, length = bucket.pieces()[name]
                return f"{spec} flat[{start}+{length}]"
        return spec

    def _record_gradients(self, tracer: Any, shards: list[Tensor]) -> None:
        if tracer is None:
            return
        if self.layout.zero:
            for name, gradient in self._gradients(shards).items():
                tracer.record("main_grad", name, gradient, self._spec(name), full=self.stages.shape(name))
            tracer._stepped = True
        else:
            tracer.before_step()

    def _norm(self, shards: list[Tensor]) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        layout = self.layout
        first_stage = self.groups.axis("pp")[0] == 0
        for name, gradient in self._gradients(shards).items():
            if name == "embedding.weight" and not (first_stage or layout.pp == 1):
                continue
            copies = 1 if "[tp" in self.stages.spec(name) or self.stages.expert(name) else layout.tp
            if self.bugs.on(16) and name.endswith("sink"):
                if self.groups.axis("tp")[0] > 0:
                    continue
                copies = 1
            if not layout.zero:
                copies *= self.groups.size("edp" if self.stages.expert(name) else "data")
            total += gradient.double().square().sum() / copies
        if dist.get_world_size() > 1:
            dist.all_reduce(total)
        return total.sqrt()

    def _update(self, shards: list[Tensor], factor: float) -> None:
        gradients = {n: g * factor for n, g in self._gradients(shards).items()}
        if self.bugs.on(5) and self._unsynced is not None and self.groups.axis("pp")[0] > 0:
            own = self._own_gradient()
            if own is not None:
                gradients["embedding.weight"] = own * factor
        stale = {n: p.detach().clone() for n, p in self.parameters.items()} if self.bugs.on(7) else None
        updated = self.optimizer.step(gradients)
        with torch.no_grad():
            if not self.layout.zero:
                for name, parameter in self.parameters.items():
                    parameter.copy_(updated[name])
                return
            for bucket in self.buckets:
                self._gather(bucket, updated if stale is None else None)

    def _own_gradient(self) -> Tensor | None:
        """The head's own gradient, as its optimizer shard (if any is here) would see it without the other copy's."""
        for bucket in self.buckets:
            if "embedding.weight" in bucket.parameters and self._unsynced is not None:
                flat = bucket.buffer.clone()
                start, stop = bucket.places["embedding.weight"]
                flat[start:stop] = self._unsynced.reshape(-1)
                reduced = self.groups.sum(flat, bucket.group)[slice(*bucket.shard)]
                piece = bucket.pieces().get("embedding.weight")
                return reduced[piece[1] : piece[1] + piece[2]] if piece is not None else None
        return None

    def _gather(self, bucket: Bucket, updated: dict[str, Tensor] | None) -> None:
        dtype = self.config.torch_dtype
        low, high = bucket.shard
        local = torch.zeros(high - low, dtype=dtype)
        for name, (start, at, length) in bucket.pieces().items():
            value = self.parameters[name].reshape(-1)[start : start + length] if updated is None else updated[name]
            local[at : at + length] = value
        whole = torch.empty(bucket.numel, dtype=dtype)
        if bucket.size > 1:
            all_gather(whole, local, self.groups[bucket.group])
        else:
            whole = local
        for name, (start, stop) in bucket.places.items():
            self.parameters[name].copy_(whole[start:stop].view(self.parameters[name].shape))

    def _record_after(self, tracer: Any) -> None:
        if tracer is None:
            return
        for name, states in self.optimizer.states().items():
            for key, value in states.items():
                tracer.record(f"optim.{key}", name, value, self._spec(name), full=self.stages.shape(name))
        for name, parameter in self.parameters.items():
            tracer.record("param_after", name, parameter, self.stages.spec(name), full=self.stages.shape(name))


class FsdpTrainer:
    """The reference's network under torch's FSDP2, one shard of the batch a rank."""

    def __init__(self, config: Config, layout: Layout, bugs: Switches, **_: Any) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        layout.check(config)
        self.config, self.layout, self.bugs = config, layout, bugs
        self.mesh = init_device_mesh("cpu", (layout.dp,), mesh_dim_names=("dp",))
        self.model = GPT(config, recompute=layout.recompute)
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        for block in self.model.layers:
            fully_shard(block, mesh=self.mesh, mp_policy=policy)
        fully_shard(self.model, mesh=self.mesh, mp_policy=policy)
        for module in self.model.modules():
            if isinstance(module, Linear):
                module.reduce = self._largest
            if isinstance(module, FSDPModule):
                # gloo has no scaled sum: a plain sum, with the division (here by 1) outside of it
                module.set_force_sum_reduction_for_comms(True)
                module.set_gradient_divide_factor(1.0 if not bugs.on(21) else float(layout.dp))
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = MasterAdam({n: p.to_local() for n, p in self.parameters.items()}, config.lr)  # type: ignore[attr-defined]
        self.losses: list[float] = []

    def _largest(self, amax: Tensor) -> Tensor:
        """FP8 scales belong to the whole micro-batch."""
        out = amax.clone()
        dist.all_reduce(out, op=dist.ReduceOp.MAX)
        return out

    @property
    def models(self) -> nn.Module:
        """The model, to be traced."""
        return self.model

    def step(self, step: int = 0, tracer: Any = None) -> float:
        """One step; the loss over all ranks."""
        data = self.config.data(step)
        at, n = self.mesh.get_local_rank(), self.layout.dp
        local = [t.chunk(n, 1)[at] for t in (data.tokens, data.labels, data.mask, data.document, data.position)]
        own = type(data)(*local)
        sums: dict[str, Any] = {}
        total = torch.zeros(())
        for m in range(self.config.microbatches):
            micro = Micro(own, m, step=step)
            micro.count = data.count
            loss = self.model(micro)
            loss.backward()
            total += loss.detach()
            for name, parameter in self.parameters.items():
                if parameter.grad is not None:
                    gradient = parameter.grad.float()
                    sums[name] = sums[name] + gradient if name in sums else gradient
                    parameter.grad = None
        if tracer is not None:
            for name, gradient in sums.items():
                tracer.record("main_grad", name, gradient)
            tracer._stepped = True
        square = torch.stack([g.to_local().double().square().sum() for g in sums.values()]).sum()
        dist.all_reduce(square)
        dist.all_reduce(total)
        norm = square.sqrt()
        mark("gnorm", norm)
        factor = min(1.0, self.config.clip / (float(norm) + 1e-6)) if self.config.clip else 1.0
        updated = self.optimizer.step({n: g.to_local() * factor for n, g in sums.items()})
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.to_local().copy_(updated[name])  # type: ignore[attr-defined]
        if tracer is not None:
            for name, parameter in self.parameters.items():
                spec = "d0[dp]" + "".join(f" d{i}" for i in range(1, parameter.ndim))
                for key, value in self.optimizer.states()[name].items():
                    tracer.record(f"optim.{key}", name, value, spec, full=parameter.shape)
                tracer.record("param_after", name, parameter)
        self.losses.append(float(total))
        return float(total)

    def specs(self) -> list[tuple[str, str]]:
        """Activations are cut along the batch; parameters say it themselves."""
        return [
            (r"^in/embedding/0$|^in/loss/1$|^(out|gout)/loss/|^in/.*rotary/2", "b[dp] s"),
            (r"^(in|gin)/loss/0", "b[dp] s v"),
            (r"^(in|out|gin|gout)/.*rotary/[01]|^(in|gin)/.*core/[012]", "b[dp] s n d"),
            (r"^loss/", "{dp:sum}"), (r"^(in|out|gin|gout)/", "b[dp] s h"),
        ]  # fmt: skip
