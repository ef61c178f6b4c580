"""The chunks of a rank: parameters, their values and names, and how everything traced is cut."""

from __future__ import annotations

import torch
from torch import nn

from assay.difftest.names import Stage
from assay.difftest.shards import ShardSpec
from assay.difftest.tensors import generate, parameter_kind
from assay.difftest.testbed.bugs import Switches
from assay.difftest.testbed.config import Config, Layout
from assay.difftest.testbed.groups import Groups
from assay.difftest.testbed.parallel.chunk import Chunk
from assay.difftest.testbed.parallel.job import Job


class Stages:
    """The chunks of this rank, their parameters filled, their names and the specifications of what is traced."""

    def __init__(self, config: Config, layout: Layout, groups: Groups, bugs: Switches) -> None:
        layout.check(config)
        self.job = Job(config, layout, groups, bugs)
        at, pp = groups.axis("pp")
        stage = Stage.even(config.layers, pp, layout.vpp, at)
        if bugs.on(8):
            each = config.layers // (pp * layout.vpp)
            stage = Stage(tuple(tuple(range(c * each, (c + 1) * each)) for c in range(at, pp * layout.vpp, pp)))
        self.stage = stage
        last = pp * layout.vpp - 1
        numbers = list(range(at, pp * layout.vpp, pp))
        self.numbers = numbers
        self.chunks = [Chunk(self.job, held, first=n == 0, last=n == last) for n, held in zip(numbers, stage.layers)]
        self.parameters: dict[str, nn.Parameter] = {}
        self.copies: dict[str, nn.Parameter] = {}  # the tied head of a last stage
        for v, chunk in enumerate(self.chunks):
            for name, parameter in chunk.named_parameters():
                path = self.canonical(v, name)
                if config.tied and path == "head.weight":
                    path = "embedding.weight"
                if path in self.parameters:
                    self.copies[path] = parameter
                else:
                    self.parameters[path] = parameter
        self.fill()

    def canonical(self, chunk: int, name: str) -> str:
        """The reference's name of a parameter of a chunk."""
        parts = name.split(".")
        if parts[0] == "layers":
            parts[1] = str(self.chunks[chunk].held[int(parts[1])])
        return ".".join(parts)

    @property
    def rules(self) -> list[tuple[str, str | None]]:
        """Name rules of this rank."""
        rules: list[tuple[str, str | None]] = []
        for v, held in enumerate(self.stage.layers):
            rules += [
                (rf"chunk{v}\.layers\.{i}(?=\.|$)(?P<rest>.*)", f"layers.{layer}{{rest}}")
                for i, layer in enumerate(held)
            ]
            if self.job.config.tied and not self.chunks[v].first:
                rules.append((rf"chunk{v}\.head\.weight", "embedding.weight"))
            rules += [(rf"chunk{v}\.layers", None), (rf"chunk{v}\.unused", "unused"), (rf"chunk{v}", None)]
            rules.append((rf"chunk{v}\.(?P<rest>.*)", "{rest}"))
        return [*rules, ("model", None)]

    def shape(self, path: str) -> tuple[int, ...]:
        """Whole shape of a parameter."""
        c = self.job.config
        leaf = path.split(".")[-2:] if "." in path else [path]
        fused = (c.heads + 2 * c.kv_heads) * c.head_dim
        table: dict[tuple[str, ...], tuple[int, ...]] = {
            ("embedding", "weight"): (c.vocab, c.width), ("head", "weight"): (c.vocab, c.width),
            ("head", "bias"): (c.vocab,),
            ("qkv", "weight"): (fused, c.width), ("qkv", "bias"): (fused,), ("proj", "weight"): (c.width, c.width),
            ("fc1", "weight"): (2 * c.ffn, c.width), ("fc1", "bias"): (2 * c.ffn,), ("fc2", "weight"): (c.width, c.ffn),
            ("core", "sink"): (c.heads,), ("router", "weight"): (c.experts, c.width),
            ("mlp", "w1"): (c.experts, 2 * c.ffn, c.width), ("mlp", "w2"): (c.experts, c.width, c.ffn),
        }  # fmt: skip
        return table.get(tuple(leaf), (c.width,))

    def spec(self, path: str) -> str:
        """How a parameter is cut."""
        c = self.job.config
        leaf = ".".join(path.split(".")[-2:])
        d = c.head_dim
        qkv = f"tp:blocks={c.heads * d}/{c.kv_heads * d}/{c.kv_heads * d}"
        fc1 = f"tp:blocks={c.ffn}/{c.ffn}"
        return {
            "embedding.weight": "v[tp] h", "head.weight": "v[tp] h", "head.bias": "v[tp]", "qkv.weight": f"o[{qkv}] h",
            "qkv.bias": f"o[{qkv}]", "proj.weight": "o h[tp]", "fc1.weight": f"o[{fc1}] h", "fc1.bias": f"o[{fc1}]",
            "fc2.weight": "o h[tp]", "core.sink": "n[tp]", "router.weight": "e h", "mlp.w1": f"e[ep] o[{fc1}] h",
            "mlp.w2": "e[ep] o h[tp]",
        }.get(leaf, "h")  # fmt: skip

    def expert(self, path: str) -> bool:
        """Whether a parameter is of the experts (reduced over fewer ranks)."""
        return path.endswith(("mlp.w1", "mlp.w2"))

    def sequence_partial(self, path: str) -> bool:
        """Whether a parameter's gradient is partial over the tensor-parallel group."""
        job = self.job
        replicated = "[tp" not in self.spec(path) and not self.expert(path) and path != "unused"
        return job.sp and replicated

    def fill(self) -> None:
        """Values by name, the same as the reference's."""
        job = self.job
        with torch.no_grad():
            for path, parameter in [*self.parameters.items(), *self.copies.items()]:
                shape, spec = self.shape(path), ShardSpec.parse(self.spec(path))
                kind = parameter_kind(path, len(shape))
                if job.bugs.on(22) and path.endswith("fc1.weight"):
                    spec = ShardSpec.parse("o[tp] h")
                local = generate(
                    path, shape, seed=job.config.seed, kind=kind, spec=spec, coords=job.coords, dtype=parameter.dtype
                )
                parameter.copy_(local)

    def specs(self) -> list[tuple[str, str]]:
        """Specifications of all that is traced, for `assay.difftest.trace`."""
        job = self.job
        c = job.config
        sequence, plain = f"b[dp] {job.sequence_axis}", f"b[dp] {job.plain_axis}"
        act = r"^(in|out|gin|gout)/"
        rules: list[tuple[str, str]] = []
        for path in [*self.parameters, *self.copies]:
            module, _, leaf = path.rpartition(".")
            place = f"{module or 'model'}/{leaf}".replace(".", r"\.")
            spec = self.spec(path)
            over = ["edp:sum", "cp:sum"] if self.expert(path) else ["dp:sum", "cp:sum"]
            if self.sequence_partial(path):
                over.append("tp:sum")
            if c.tied and path == "embedding.weight" and job.layout.pp > 1:
                over.append("pp:sum")
            rules.append((rf"^grad/{place}$", f"{spec} {{{','.join(over)}}}"))
            rules.append((rf"^(param|main_grad|param_after|optim\.\w+)/{place}$", spec))
        d = c.head_dim
        blocks = f"tp:blocks={c.heads * d}/{c.kv_heads * d}/{c.kv_heads * d}"
        fc1 = f"tp:blocks={c.ffn}/{c.ffn}"
        rules += [
            (r"^in/embedding/0", plain), (r"^in/loss/1", plain), (r"^in/.*rotary/2", plain),
            (r"^(in|gin)/loss/0", f"{plain} v[tp]"), (r"^(out|gout)/head/", f"{plain} v[tp]"),
            (r"^(out|gout)/loss/", plain),
            (r"^(out|gout)/.*attention\.qkv/", f"{plain} o[{blocks}]"), (rf"{act}.*rotary/[01]", f"{plain} n[tp] d"),
            (r"^(in|gin)/.*attention\.core/", f"{plain} n[tp] d"),
            (r"^(out|gout)/.*attention\.core/", f"{plain} h[tp]"),
            (r"^(in|gin)/.*attention\.proj/", f"{plain} h[tp]"), (r"^(out|gout)/.*mlp\.fc1/", f"{plain} o[{fc1}]"),
            (rf"{act}.*mlp\.drop/", f"{plain} h[tp]"), (r"^(in|gin)/.*mlp\.fc2/", f"{plain} h[tp]"),
            (r"^(out|gout)/.*mlp\.router/0", f"{sequence} k"), (r"^(out|gout)/.*mlp\.router/1", f"{sequence} k"),
            (rf"{act}", f"{sequence} h"),
        ]  # fmt: skip
        return rules
