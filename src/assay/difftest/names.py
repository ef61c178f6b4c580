"""Canonical names of traced tensors, and the rules that map a candidate's names to them.

A name is ``step/microbatch/phase/module.path[#call]/slot``; module paths are those of the reference.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from assay.difftest.errors import AmbiguousName, DiffTestError, UnmappedName

PHASES = ("in", "out", "gout", "gin", "param", "grad", "main_grad", "param_after", "loss", "gnorm", "mark")
RECOMPUTE = "+recompute"


@dataclass(frozen=True)
class Name:
    """The canonical name of one tensor of one step.

    Parameters
    ----------
    step : int
    microbatch : int or None
        None for tensors that belong to the whole step (parameters, states of the optimizer).
    phase : str
        One of `PHASES` or ``optim.<state>``; with ``+recompute`` behind it for the second pass of a checkpointed part.
    module : str
        Path of the module in the reference; the root is ``model``.
    slot : str
        Position of a tensor among the module's inputs or outputs (``0``, ``1``, ``key``), or the parameter's name.
    call : int
        Number of the call, for a module that is called more than once in a pass.

    Examples
    --------
    >>> name = Name.parse("0/1/out/layers.2.attention#1/0")
    >>> name.module, name.call, name.microbatch
    ('layers.2.attention', 1, 1)
    >>> str(name)
    '0/1/out/layers.2.attention#1/0'
    """

    step: int
    microbatch: int | None
    phase: str
    module: str
    slot: str = "0"
    call: int = 0

    def __str__(self) -> str:
        microbatch = "-" if self.microbatch is None else str(self.microbatch)
        call = f"#{self.call}" if self.call else ""
        return f"{self.step}/{microbatch}/{self.phase}/{self.module}{call}/{self.slot}"

    @classmethod
    def parse(cls, text: str) -> Name:
        """Read the text form.

        Raises
        ------
        DiffTestError
            If the text does not have the five parts.
        """
        parts = text.split("/")
        if len(parts) != 5 or not parts[0].isdigit() or not (parts[1] == "-" or parts[1].isdigit()):
            raise DiffTestError(f"{text!r} is no canonical name; write step/microbatch/phase/module[#call]/slot")
        module, _, call = parts[3].partition("#")
        phase = parts[2]
        base = phase.removesuffix(RECOMPUTE)
        if base not in PHASES and not base.startswith("optim."):
            raise DiffTestError(f"{text!r}: unknown phase {phase!r}; the phases are {', '.join(PHASES)}, optim.<state>")
        microbatch = None if parts[1] == "-" else int(parts[1])
        return cls(int(parts[0]), microbatch, phase, module, parts[4], int(call) if call else 0)

    @property
    def recompute(self) -> bool:
        """Whether this is of the second pass of a checkpointed part."""
        return self.phase.endswith(RECOMPUTE)

    @property
    def parameter(self) -> str:
        """``module.slot`` for phases of parameters: the name that the parameter has in the reference."""
        return f"{self.module}.{self.slot}" if self.module != "model" else self.slot

    def first_pass(self) -> Name:
        """The name of the same tensor in the first pass."""
        return replace(self, phase=self.phase.removesuffix(RECOMPUTE))


@dataclass(frozen=True)
class Stage:
    """Which global layers a pipeline rank holds, a tuple a virtual chunk.

    Examples
    --------
    >>> Stage.even(layers=4, pp=2, vpp=2, rank=1).layers
    ((1,), (3,))
    >>> Stage.even(layers=5, pp=2, vpp=1, rank=0).layers      # the first stages take what is over
    ((0, 1, 2),)
    """

    layers: tuple[tuple[int, ...], ...]

    @classmethod
    def even(cls, layers: int, pp: int, vpp: int, rank: int) -> Stage:
        """Layers in order over ``pp * vpp`` chunks; rank r holds chunks r, r + pp, ...; the first take the rest."""
        chunks = pp * vpp
        bounds = [0]
        for c in range(chunks):
            bounds.append(bounds[-1] + layers // chunks + (c < layers % chunks))
        held = (tuple(range(bounds[c], bounds[c + 1])) for c in range(rank, chunks, pp))
        return cls(tuple(held))

    def rules(self, prefix: str = "layers", chunk: str = "chunk") -> list[Rule]:
        """Rules from ``chunk{v}.layers.{i}`` of this rank to ``layers.{global}``."""
        rules = []
        for v, chunk_layers in enumerate(self.layers):
            for i, layer in enumerate(chunk_layers):
                pattern = rf"{chunk}{v}\.{prefix}\.{i}(?=\.|$)(?P<rest>.*)"
                rules.append(Rule(pattern, f"{prefix}.{layer}{{rest}}"))
        return rules


@dataclass(frozen=True)
class Microbatch:
    """Micro-batch ``index`` of ``count``; the index may be that of a rank's own order."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise DiffTestError(f"micro-batch {self.index} of {self.count} does not exist")


@dataclass(frozen=True)
class Rule:
    """A regular expression for a whole module path (or ``path.parameter``), and what it becomes.

    ``{group}`` is a named group, ``{2*v+i}`` integer arithmetic over named groups and the map's constants. A template
    of None leaves the tensor out of the comparison, on purpose.
    """

    pattern: str
    template: str | None

    def apply(self, name: str, constants: Mapping[str, int]) -> tuple[bool, str | None]:
        """``(matched, result)``."""
        match = re.fullmatch(self.pattern, name)
        if match is None:
            return False, None
        if self.template is None:
            return True, None
        groups = {k: v or "" for k, v in match.groupdict().items()}
        return True, re.sub(r"\{([^{}]*)\}", lambda m: _evaluated(m.group(1), groups, constants), self.template)


_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip


def _evaluated(expression: str, groups: Mapping[str, str], constants: Mapping[str, int]) -> str:
    if expression in groups:
        return groups[expression]

    def value(node: ast.AST) -> int:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            found = groups.get(node.id, constants.get(node.id))
            if found is not None and str(found).lstrip("-").isdigit():
                return int(found)
        raise DiffTestError(
            f"cannot work out {{{expression}}}: it may hold + - * // %, integers, and the names "
            f"{sorted([*groups, *constants])} where they are integers"
        )

    try:
        return str(value(ast.parse(expression, mode="eval").body))
    except SyntaxError as error:
        raise DiffTestError(f"cannot read {{{expression}}} in a template") from error


@dataclass(frozen=True)
class Split:
    """One tensor of the candidate that is several of the reference, or, read backwards, several that are one.

    Parameters
    ----------
    pattern : str
        Regular expression for the candidate's ``path.parameter``.
    templates : sequence of str
        The reference's names, in order.
    cut : callable
        ``(tensor) -> sequence of tensors`` along the order of the templates.
    join : callable
        The inverse: ``(tensors) -> tensor``.
    """

    pattern: str
    templates: Sequence[str]
    cut: Callable[[Any], Sequence[Any]]
    join: Callable[[Sequence[Any]], Any]


def grouped_qkv(pattern: str, templates: Sequence[str], heads: int, groups: int) -> Split:
    """Megatron's fused QKV (a group's queries, its key, its value, group by group) against separate q, k and v.

    Parameters
    ----------
    pattern, templates
        As in `Split`; three templates.
    heads, groups : int
        Query heads and key-value groups held by the tensor (that is, of the shard, if it is one).

    Examples
    --------
    >>> import torch
    >>> split = grouped_qkv("qkv.weight", ["q.weight", "k.weight", "v.weight"], heads=4, groups=2)
    >>> [part.tolist() for part in split.cut(torch.arange(8))]      # head size 1: q0 q1 k0 v0 q2 q3 k1 v1
    [[0, 1, 4, 5], [2, 6], [3, 7]]
    >>> split.join(split.cut(torch.arange(8))).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    per = heads // groups

    def cut(fused: Any) -> Sequence[Any]:
        size = fused.shape[0] // (heads + 2 * groups)
        blocks = fused.reshape(groups, per + 2, size, *fused.shape[1:])
        tail = fused.shape[1:]
        return [
            blocks[:, :per].reshape(-1, *tail), blocks[:, per].reshape(-1, *tail), blocks[:, per + 1].reshape(-1, *tail)
        ]  # fmt: skip

    def join(parts: Sequence[Any]) -> Any:
        import torch

        q, k, v = parts
        size, tail = k.shape[0] // groups, q.shape[1:]
        pieces = [q.reshape(groups, per, size, *tail), k.reshape(groups, 1, size, *tail)]
        pieces.append(v.reshape(groups, 1, size, *tail))
        return torch.cat(pieces, 1).reshape(-1, *tail)

    return Split(pattern, templates, cut, join)


def halves(pattern: str, templates: Sequence[str]) -> Split:
    """A fused gate-up weight against gate and up.

    >>> import torch
    >>> [p.tolist() for p in halves("fc1.weight", ["gate.weight", "up.weight"]).cut(torch.arange(4))]
    [[0, 1], [2, 3]]
    """

    def join(parts: Sequence[Any]) -> Any:
        import torch

        return torch.cat(list(parts), 0)

    return Split(pattern, templates, lambda fused: list(fused.chunk(2, 0)), join)


def unstacked(pattern: str, template: str, ids: Sequence[int]) -> Split:
    """Grouped experts ``[experts, ...]`` against a list of experts; ``{e}`` in the template is the global id.

    >>> import torch
    >>> unstacked("experts.w1", "experts.{e}.w1", ids=[2, 3]).templates
    ['experts.2.w1', 'experts.3.w1']
    """

    def join(parts: Sequence[Any]) -> Any:
        import torch

        return torch.stack(list(parts))

    return Split(pattern, [template.replace("{e}", str(e)) for e in ids], lambda t: list(t.unbind(0)), join)


@dataclass
class NameMap:
    """Ordered rules from a candidate's module paths to those of the reference. The first that matches counts.

    Parameters
    ----------
    rules : sequence of Rule or of (pattern, template)
    constants : mapping of str to int
        Values that templates may use, such as the pipeline rank ``p``.
    splits : sequence of Split
    identity : bool
        Whether a path that no rule matches stays as it is.

    Examples
    --------
    Local layer i of chunk v on pipeline rank p, two chunks of two layers on each of two ranks:

    >>> pattern = r"module\\.(?P<v>\\d)\\.layers\\.(?P<i>\\d+)(?P<rest>.*)"
    >>> names = NameMap([(pattern, "layers.{v*4+p*2+i}{rest}")], {"p": 1})
    >>> names.module("module.1.layers.0.mlp")
    'layers.6.mlp'
    """

    rules: Sequence[Rule | tuple[str, str | None]] = ()
    constants: Mapping[str, int] = field(default_factory=dict)
    splits: Sequence[Split] = ()
    identity: bool = True

    def __post_init__(self) -> None:
        self.rules = [rule if isinstance(rule, Rule) else Rule(*rule) for rule in self.rules]
        for rule in self._rules:
            try:
                re.compile(rule.pattern)
            except re.error as error:
                raise DiffTestError(f"the pattern {rule.pattern!r} of a name rule is no regular expression") from error

    @property
    def _rules(self) -> list[Rule]:
        return [rule for rule in self.rules if isinstance(rule, Rule)]

    def module(self, path: str) -> str | None:
        """The reference's path; None where a rule leaves it out.

        Raises
        ------
        UnmappedName
            If no rule matches and ``identity`` is off.
        """
        for rule in self._rules:
            matched, result = rule.apply(path, self.constants)
            if matched:
                return result
        if self.identity:
            return path
        raise UnmappedName(f"no name rule matches {path!r}; add a rule, or (pattern, None) to leave it out")

    def split(self, parameter: str) -> Split | None:
        """The split for a parameter of the candidate, with its templates filled in."""
        for split in self.splits:
            match = re.fullmatch(split.pattern, parameter)
            if match is not None:
                groups = match.groupdict()
                templates = [
                    re.sub(r"\{([^{}]*)\}", lambda m: _evaluated(m.group(1), groups, self.constants), t)  # noqa: B023
                    for t in split.templates
                ]
                return replace(split, templates=templates)
        return None

    def check(self, candidate: Iterable[str], reference: Iterable[str]) -> None:
        """Every candidate's path has one place in the reference, and no two share one.

        Raises
        ------
        UnmappedName
        AmbiguousName
        """
        known = set(reference)
        taken: dict[str, str] = {}
        for path in candidate:
            result = self.module(path)
            if result is None:
                continue
            if result not in known:
                near = get_close_matches(result, sorted(known), n=3, cutoff=0.4)
                hint = f"did you mean {', '.join(near)}?" if near else "the reference has nothing like it"
                raise UnmappedName(f"{path!r} becomes {result!r}, which the reference does not have; {hint}")
            if result in taken and taken[result] != path:
                raise AmbiguousName(f"{path!r} and {taken[result]!r} both become {result!r}; make the rules disjoint")
            taken[result] = path

    def with_rules(self, rules: Sequence[Rule | tuple[str, str | None]]) -> NameMap:
        """A copy with more rules in front."""
        return NameMap([*rules, *self.rules], self.constants, self.splits, self.identity)


def preset(name: str, **constants: int) -> NameMap:
    """The map of a well-known framework.

    Parameters
    ----------
    name : str
        ``megatron`` (constants ``layers``, ``pp``, ``vpp``, ``p``), ``fsdp2`` and ``dtensor`` (wrappers' prefixes are
        taken off), ``hf-llama`` (Llama of transformers), ``deepspeed`` (the engine's prefix is taken off).

    Examples
    --------
    >>> preset("megatron", layers=4, pp=2, vpp=1, p=1).module("module.decoder.layers.0.self_attention.linear_qkv")
    'layers.2.attention.qkv'
    >>> preset("hf-llama").module("model.layers.3.self_attn.o_proj")
    'layers.3.attention.proj'
    """
    unwrap = r"(?:_orig_mod\.|_fsdp_wrapped_module\.|_checkpoint_wrapped_module\.|module\.)*"
    if name in ("fsdp2", "dtensor", "deepspeed"):
        return NameMap([(unwrap + r"(?P<rest>(?!module\.|_orig_mod).*)", "{rest}")], constants)
    if name == "megatron":
        layers, pp, vpp, p = (constants.get(k, d) for k, d in (("layers", 0), ("pp", 1), ("vpp", 1), ("p", 0)))
        size = max(1, layers // (pp * vpp))
        parts = {
            "self_attention.linear_qkv": "attention.qkv", "self_attention.linear_proj": "attention.proj",
            "self_attention.core_attention": "attention.core", "self_attention": "attention",
            "input_layernorm": "norm1", "pre_mlp_layernorm": "norm2", "mlp.linear_fc1": "mlp.fc1",
            "mlp.linear_fc2": "mlp.fc2", "mlp.router": "mlp.router", "mlp.experts": "mlp.experts", "mlp": "mlp",
        }  # fmt: skip
        rules: list[Rule | tuple[str, str | None]] = []
        head = rf"{unwrap}(?:chunk(?P<v>\d+)\.)?{unwrap}decoder\."
        for theirs, ours in parts.items():
            rest = rf"layers\.(?P<i>\d+)\.{re.escape(theirs)}(?P<rest>(?:\..*)?)"
            shifted = f"layers.{{v*{size * pp}+{p * size}+i}}.{ours}{{rest}}"
            rules.append(Rule(rf"{unwrap}chunk(?P<v>\d+)\.{unwrap}decoder\.{rest}", shifted))
            rules.append(Rule(rf"{unwrap}decoder\.{rest}", f"layers.{{{p * size}+i}}.{ours}{{rest}}"))
        rules.append(Rule(rf"{unwrap}chunk(?P<v>\d+)\.{unwrap}decoder\.layers\.(?P<i>\d+)",
                          f"layers.{{v*{size * pp}+{p * size}+i}}"))  # fmt: skip
        rules.append(Rule(rf"{unwrap}decoder\.layers\.(?P<i>\d+)", f"layers.{{{p * size}+i}}"))
        rules.append(Rule(head + r"final_layernorm(?P<rest>(?:\..*)?)", "final_norm{rest}"))
        embedding = rf"{unwrap}(?:chunk\d+\.)?{unwrap}embedding\.word_embeddings(?P<rest>(?:\..*)?)"
        rules.append(Rule(embedding, "embedding{rest}"))
        rules.append(Rule(rf"{unwrap}(?:chunk\d+\.)?{unwrap}output_layer(?P<rest>(?:\..*)?)", "head{rest}"))
        return NameMap(rules, constants)
    if name == "hf-llama":
        pairs = {
            "self_attn.o_proj": "attention.proj", "self_attn.q_proj": "attention.q", "self_attn.k_proj": "attention.k",
            "self_attn.v_proj": "attention.v", "self_attn": "attention", "input_layernorm": "norm1",
            "post_attention_layernorm": "norm2", "mlp.gate_proj": "mlp.gate", "mlp.up_proj": "mlp.up",
            "mlp.down_proj": "mlp.fc2", "mlp": "mlp",
        }  # fmt: skip
        llama: list[Rule | tuple[str, str | None]] = [
            Rule(rf"model\.layers\.(?P<i>\d+)\.{re.escape(a)}(?P<rest>(?:\..*)?)", f"layers.{{i}}.{b}{{rest}}")
            for a, b in pairs.items()
        ]
        llama += [
            Rule(r"model\.layers\.(?P<i>\d+)", "layers.{i}"), Rule(r"model\.embed_tokens(?P<r>.*)", "embedding{r}"),
            Rule(r"model\.norm(?P<r>(?:\..*)?)", "final_norm{r}"), Rule(r"lm_head(?P<r>(?:\..*)?)", "head{r}"),
        ]  # fmt: skip
        return NameMap(llama, constants)
    known = ("deepspeed", "dtensor", "fsdp2", "hf-llama", "megatron")
    raise DiffTestError(f"there is no name preset {name!r}; there are {', '.join(known)}")
