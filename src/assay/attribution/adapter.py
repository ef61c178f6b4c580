"""`TorchModel`: a network with the meaning of its outputs and the layers that count, and its per-row gradients.

Inputs and output gradients of linear and convolutional layers are caught by hooks in one forward and one backward pass
of a whole batch; parameters of other layers get flat gradients by ``vmap(grad)``. Whether the caught factors are the
whole gradient is checked once a model (a weight that is used twice, or around its layer, gets the flat form instead).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from assay.attribution.errors import AttributionError, CheckpointMismatch, UnsupportedModel
from assay.attribution.gradients.containers import Factor, Flat, Gradients
from assay.attribution.gradients.layers import factor, has_factors, layer_inputs, layer_outputs
from assay.attribution.outputs import (
    TARGETS,
    TASKS,
    check_labels,
    default_target,
    guess_task,
    loss_rows,
    output_gradients,
    predictions,
    target_rows,
)

GRAPH_BYTES = 1 << 27  # factors of rows whose graph of the gradient may be kept for further products


class TorchModel:
    """A network and how to read it.

    Parameters
    ----------
    module : nn.Module
        Evaluated in eval mode; its mode and its ``requires_grad`` flags are as before afterwards.
    task : {"classification", "regression", "language"}, optional
        Default: by the labels at the first call.
    target : {"margin", "logit", "log_prob", "loss", "prediction"}, optional
        The number that is explained; default margin, prediction or log-probability.
    layers : sequence of str, optional
        Names or patterns (``"blocks.*.up"``) of modules or parameters whose gradients count; default all.
    l2 : float
        Penalty ``l2/2 ||w||^2`` on the mean loss that the weights (not the biases) were trained with; a full Hessian
        holds it.

    Raises
    ------
    UnsupportedModel
        If no parameter matches ``layers``.
    """

    def __init__(
        self, module: nn.Module, *, task: str | None = None, target: str | None = None,
        layers: Sequence[str] | None = None, l2: float = 0.0,
    ) -> None:  # fmt: skip
        if task is not None and task not in TASKS:
            raise AttributionError(f"task is one of {', '.join(TASKS)}, not {task!r}")
        if target is not None and target not in TARGETS:
            raise AttributionError(f"target is one of {', '.join(TARGETS)}, not {target!r}")
        self.module, self.task, self._target, self.l2 = module, task, target, l2
        self.layers = None if layers is None else tuple([layers] if isinstance(layers, str) else layers)
        self.device = next((p.device for p in module.parameters()), torch.device("cpu"))
        self.dtype = next((p.dtype for p in module.parameters()), torch.float32)
        chosen = {name: p for name, p in module.named_parameters() if self._matches(name)}
        if not chosen:
            known = [name for name, _ in module.named_parameters()]
            raise UnsupportedModel(
                f"no parameter matches layers={self.layers}; there are {', '.join(known[:12])}"
                if known
                else "the model has no parameters"
            )
        self.parameters: dict[str, nn.Parameter] = chosen
        self._hooked, self._flat = self._split()
        self._checked = False
        self._row_bytes: dict[tuple[int, ...], int] = {}
        self._example: Tensor | None = None

    def _matches(self, name: str) -> bool:
        if self.layers is None:
            return True
        module = name.rpartition(".")[0]
        return any(fnmatch.fnmatch(name, p) or fnmatch.fnmatch(module, p) for p in self.layers)

    def _split(self) -> tuple[dict[str, nn.Module], list[str]]:
        uses: dict[int, int] = {}
        for _, p in self.module.named_parameters(remove_duplicate=False):
            uses[id(p)] = uses.get(id(p), 0) + 1
        hooked: dict[str, nn.Module] = {}
        covered: set[str] = set()
        for name, module in self.module.named_modules():
            prefix = f"{name}." if name else ""
            own = [f"{prefix}weight"] + ([f"{prefix}bias"] if getattr(module, "bias", None) is not None else [])
            if not has_factors(module) or any(n not in self.parameters for n in own):
                continue
            if any(uses[id(self.parameters[n])] > 1 for n in own):
                continue
            hooked[name] = module
            covered.update(own)
        return hooked, [name for name in self.parameters if name not in covered]

    @property
    def target(self) -> str:
        """The number that is explained."""
        return self._target or default_target(self.task or "classification")

    @property
    def size(self) -> int:
        """Parameters that count (P)."""
        return sum(p.numel() for p in self.parameters.values())

    # -- outputs -----------------------------------------------------------------------------------------------------

    def tensors(self, X: Any, y: Any = None) -> tuple[Tensor, Tensor | None]:
        """Rows and labels on the model's device and in its precision."""
        from assay.attribution.fitting import as_tensors

        x, labels = as_tensors(X, torch.zeros(len(X)) if y is None else y, device=self.device)
        if x.dtype.is_floating_point:
            x = x.to(self.dtype)
        if y is None:
            return x, None
        return x, labels.to(self.dtype) if labels.dtype.is_floating_point else labels

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """In eval mode, with gradients on for the parameters that count; only what differs is touched and put back."""
        mode, training = self.module.training, [m for m in self.module.modules() if m.training]
        frozen = [p for p in self.parameters.values() if not p.requires_grad]
        if training:
            self.module.eval()
        for p in frozen:
            p.requires_grad_(True)
        try:
            yield self.module
        finally:
            if training:
                self.module.train(mode)
                chosen = set(training)
                for m in self.module.modules():  # a part may have had another mode than the whole
                    m.training = m in chosen
            for p in frozen:
                p.requires_grad_(False)

    def logits(self, X: Tensor, batch_size: int = 1024) -> Tensor:
        """Outputs of the model."""
        with self.evaluating() as module, torch.no_grad():
            return torch.cat([module(X[i : i + batch_size]) for i in range(0, len(X), batch_size)])

    def settle(self, X: Tensor, y: Tensor) -> None:
        """Decide the task by the labels, where nobody has said it, and check the labels.

        Raises
        ------
        LabelError
        """
        self._example = self.logits(X[:2])
        if self.task is None:
            self.task = guess_task(self._example, y)
        check_labels(self._example, y, self.task)

    def check(self, X: Tensor, y: Tensor) -> None:
        """Raise if these cannot be labels of the model's outputs (after `settle`).

        Raises
        ------
        LabelError
        """
        check_labels(self.logits(X[:1]) if self._example is None else self._example, y, self.task or "classification")

    def predicted(self, X: Tensor) -> Tensor:
        """Predicted classes or values."""
        return predictions(self.logits(X), self.task or "classification")

    def explained(self, X: Tensor, y: Tensor) -> Tensor:
        """The explained number of each row."""
        return target_rows(self.logits(X), y, self.task or "classification", self.target)

    # -- gradients ---------------------------------------------------------------------------------------------------

    def gradients(self, X: Tensor, y: Tensor, *, of: str = "-loss", bias: bool = True) -> Gradients:
        """Gradients of each row.

        Parameters
        ----------
        of : str
            ``"-loss"``: the push of a training row, minus the gradient of its loss; else a target.
        bias : bool
            Whether biases count.
        """
        return self.many_gradients(X, y, [of], bias=bias)[0]

    def row_bytes(self, X: Tensor, y: Tensor) -> int:
        """Memory that the gradient of a row of this shape takes."""
        shape = tuple(X.shape[1:])
        if not self._checked:
            self._check_factors(X[:2], y[:2])
        if shape not in self._row_bytes:
            self._row_bytes[shape] = self.gradients(X[:2], y[:2]).row_bytes
        return self._row_bytes[shape]

    def many_gradients(self, X: Tensor, y: Tensor, of: Sequence[Any], *, bias: bool = True) -> list[Gradients]:
        """Gradients of several functions of the same rows, from one forward pass.

        An entry of ``of`` is ``"-loss"``, a target, or a function ``logits -> gradient with respect to the logits``.
        """
        assert self.task is not None
        task = self.task
        if not self._checked:
            self._check_factors(X[:2], y[:2])
        inputs, outputs, logits, owners = self._forward(X)
        found = []
        shared = [layer_inputs(module, a, bias) for module, a in zip(owners, inputs, strict=True)]
        for i, function in enumerate(of):
            if callable(function):
                seed = function(logits.detach())
            else:
                seed = output_gradients(logits, y, task, function)
            layers: list[Factor | Flat] = []
            if outputs:
                ds = torch.autograd.grad(logits, outputs, seed, retain_graph=i + 1 < len(of), allow_unused=True)
                for module, a, d, out in zip(owners, shared, ds, outputs, strict=True):
                    layers.append(Factor(a, layer_outputs(module, torch.zeros_like(out) if d is None else d)))
            if self._flat:
                layers.append(Flat(self._flat_gradients(X, y, function)))
            found.append(Gradients(layers))
        return found

    def _forward(self, X: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor, list[nn.Module]]:
        inputs: list[Tensor] = []
        outputs: list[Tensor] = []
        owners: list[nn.Module] = []

        def hook(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
            inputs.append(args[0].detach())
            outputs.append(out)
            owners.append(module)
            return out.view_as(out) if not _inplace else out.clone()

        _inplace = any(getattr(m, "inplace", False) for m in self.module.modules())
        hooks = [m.register_forward_hook(hook) for m in self._hooked.values()]
        try:
            with self.evaluating() as module, torch.enable_grad():
                logits = module(X)
        finally:
            for handle in hooks:
                handle.remove()
        return inputs, outputs, logits, owners

    def _flat_gradients(self, X: Tensor, y: Tensor, function: Any) -> Tensor:
        """``vmap(grad)`` over the parameters without factors (rows, numbers)."""
        chosen = {name: self.parameters[name].detach() for name in self._flat}
        rest = {
            name: value.detach()
            for name, value in (*self.module.named_parameters(), *self.module.named_buffers())
            if name not in chosen
        }
        assert self.task is not None
        task = self.task
        seeds: Tensor | None = None
        if callable(function):
            seeds = function(self.logits(X))

        def number(params: dict[str, Tensor], x: Tensor, label: Tensor, seed: Tensor | None) -> Tensor:
            logits = torch.func.functional_call(self.module, {**rest, **params}, (x.unsqueeze(0),))
            if seed is not None:
                return (logits * seed.unsqueeze(0)).sum()
            if function == "-loss":
                return -loss_rows(logits, label.unsqueeze(0), task).sum()
            return target_rows(logits, label.unsqueeze(0), task, function).sum()

        with self.evaluating():
            per_row = torch.func.vmap(torch.func.grad(number), in_dims=(None, 0, 0, None if seeds is None else 0))(
                chosen, X, y, seeds
            )
        return torch.cat([per_row[name].flatten(1) for name in self._flat], 1)

    def _check_factors(self, X: Tensor, y: Tensor) -> None:
        """Layers whose factors do not add up to their gradient (used twice, or around the layer) become flat."""
        with self.evaluating():  # so that weights that the user has frozen have a gradient to compare with
            self._settle_factors(X, y)
        self._checked = True

    def _settle_factors(self, X: Tensor, y: Tensor) -> None:
        assert self.task is not None
        while True:
            inputs, outputs, logits, owners = self._forward(X)
            names = {id(m): name for name, m in self._hooked.items()}
            seed = output_gradients(logits, y, self.task, "-loss")
            weights: list[Any] = [m.weight for m in self._hooked.values()]
            if not weights:
                return
            sums = torch.autograd.grad(logits, [*outputs, *weights], seed, allow_unused=True)
            ds, truth = sums[: len(outputs)], dict(zip(self._hooked, sums[len(outputs) :], strict=True))
            total: dict[str, Tensor] = {}
            wrong = set(self._hooked) - {names[id(m)] for m in owners}
            for module, a, d in zip(owners, inputs, ds, strict=True):
                name = names[id(module)]
                if name in total:
                    wrong.add(name)
                if d is not None:
                    total[name] = factor(module, a, d, False).matrix().sum(0)
            for name, value in truth.items():
                mine = total.get(name)
                if value is None and mine is None:
                    continue
                if value is None or mine is None:
                    wrong.add(name)
                    continue
                gap = (mine - value.reshape(mine.shape)).abs().max()
                if float(gap) > 1e-3 * float(value.abs().max()) + 1e-12:
                    wrong.add(name)
            if not wrong:
                caught = [
                    (layer_inputs(m, a, True), layer_outputs(m, o))
                    for m, a, o in zip(owners, inputs, outputs, strict=True)
                ]
                numbers = sum(t.numel() for pair in caught for t in pair) // len(X)
                numbers += sum(self.parameters[name].numel() for name in self._flat)
                self._row_bytes[tuple(X.shape[1:])] = max(1, numbers * logits.element_size())
                return
            for name in wrong:
                module = self._hooked.pop(name)
                prefix = f"{name}." if name else ""
                self._flat += [f"{prefix}weight"] + ([f"{prefix}bias"] if module.bias is not None else [])

    # -- states ------------------------------------------------------------------------------------------------------

    @contextmanager
    def state(self, state: dict[str, Tensor]) -> Iterator[TorchModel]:
        """With the weights of a checkpoint.

        Raises
        ------
        CheckpointMismatch
            If names or shapes are others.
        """
        own = self.module.state_dict()
        if set(own) != set(state):
            other = sorted(set(own) ^ set(state))
            raise CheckpointMismatch(f"a checkpoint has other parameters than the model: {', '.join(other[:6])}")
        bad = [name for name in own if own[name].shape != state[name].shape]
        if bad:
            raise CheckpointMismatch(
                f"{bad[0]} has shape {tuple(state[bad[0]].shape)} in a checkpoint and "
                f"{tuple(own[bad[0]].shape)} in the "
                f"model"
            )
        kept = {name: value.clone() for name, value in own.items()}
        self.module.load_state_dict(state)
        try:
            yield self
        finally:
            self.module.load_state_dict(kept)

    # -- curvature-vector products -----------------------------------------------------------------------------------

    def vector_products(
        self, X: Tensor, y: Tensor, curvature: str, batch_size: int = 4096
    ) -> Callable[[Tensor], Tensor]:
        """``V (k, P) -> C V (k, P)`` for the mean loss: ``"hessian"`` (with the penalty) or ``"gn"`` (Gauss-Newton).

        The order of the P numbers is that of ``parameters`` (``named_parameters``).
        """
        assert self.task is not None
        task = self.task
        names = list(self.parameters)
        point = tuple(self.parameters[name].detach() for name in names)
        rest = {
            name: value.detach()
            for name, value in (*self.module.named_parameters(), *self.module.named_buffers())
            if name not in self.parameters
        }
        sizes = [p.numel() for p in point]
        penalised = [0.0 if name.rpartition(".")[2] == "bias" else self.l2 for name in names]

        def logits(params: tuple[Tensor, ...], x: Tensor) -> Tensor:
            return torch.func.functional_call(self.module, {**rest, **dict(zip(names, params))}, (x,))

        def split(v: Tensor) -> tuple[Tensor, ...]:
            return tuple(part.reshape(p.shape) for part, p in zip(v.split(sizes), point))

        def one_batch(v: Tensor, x: Tensor, label: Tensor) -> Tensor:
            if curvature == "hessian":
                gradient = torch.func.grad(lambda q: loss_rows(logits(q, x), label, task).sum())
                pushed = torch.func.jvp(gradient, (point,), (split(v),))[1]
            else:
                z, change = torch.func.jvp(  # type: ignore[misc]
                    lambda q: logits(q, x), (point,), (split(v),)
                )
                inner = torch.func.grad(lambda u: loss_rows(u, label, task).sum())
                outer = torch.func.jvp(inner, (z,), (change,))[1]
                pushed = torch.func.vjp(lambda q: logits(q, x), point)[1](outer)[0]
            return torch.cat([part.flatten() for part in pushed])

        leaves = [p.clone().requires_grad_() for p in point]
        kept: list[Tensor] = []

        def gradient() -> Tensor:
            """The gradient of the summed loss with its graph: one of them serves all products with a Hessian."""
            if not kept:
                with torch.enable_grad():
                    total = loss_rows(logits(tuple(leaves), X), y, task).sum()
                    found = torch.autograd.grad(total, leaves, create_graph=True, materialize_grads=True)
                    kept.append(torch.cat([part.flatten() for part in found]))
            return kept[0]

        small = len(X) <= batch_size and len(X) * self.row_bytes(X, y) <= GRAPH_BYTES

        def product(V: Tensor) -> Tensor:
            with self.evaluating():
                out = torch.zeros_like(V)
                if curvature == "hessian" and small and len(V) <= 4:
                    for row, v in zip(out, V, strict=True):
                        pushed = torch.autograd.grad(gradient(), leaves, v, retain_graph=True, materialize_grads=True)
                        row += torch.cat([part.flatten() for part in pushed])
                else:
                    for low in range(0, len(X), batch_size):
                        x, label = X[low : low + batch_size], y[low : low + batch_size]
                        out += torch.func.vmap(one_batch, in_dims=(0, None, None))(V, x, label)
            out = out / len(X)
            if self.l2:
                out += torch.cat([p * v for p, v in zip(penalised, V.split(sizes, 1))], 1)
            return out

        return product

    def ordered_gradients(self, X: Tensor, y: Tensor, of: str, batch_size: int = 1024) -> Tensor:
        """Flat gradients (rows, P) in the order of ``parameters``, as `vector_products` has it."""
        flat = self._flat
        hooked = self._hooked
        try:
            self._flat, self._hooked = list(self.parameters), {}
            return torch.cat(
                [
                    self._flat_gradients(X[i : i + batch_size], y[i : i + batch_size], of)
                    for i in range(0, len(X), batch_size)
                ]
            )
        finally:
            self._flat, self._hooked = flat, hooked

    def inputs_of(self, name: str, X: Tensor, *, outputs: bool = False, batch_size: int = 1024) -> Tensor:
        """What goes into (or comes out of) a layer, flattened (rows, numbers).

        Raises
        ------
        UnsupportedModel
            If there is no such layer, or it is not used.
        """
        modules = dict(self.module.named_modules())
        if name not in modules:
            known = [n for n in modules if n]
            raise UnsupportedModel(f"the model has no layer {name!r}; there are {', '.join(known[:12])}")
        caught: list[Tensor] = []
        handle = modules[name].register_forward_hook(
            lambda _m, args, out: caught.append((out if outputs else args[0]).detach().flatten(1))
        )
        try:
            self.logits(X, batch_size)
        finally:
            handle.remove()
        if not caught:
            raise UnsupportedModel(f"the layer {name!r} is not used by the model's forward pass")
        return torch.cat(caught)

    @property
    def last_linear(self) -> str:
        """Name of the last linear layer.

        Raises
        ------
        UnsupportedModel
            If there is none.
        """
        names = [name for name, m in self.module.named_modules() if isinstance(m, nn.Linear)]
        if not names:
            raise UnsupportedModel(f"{type(self.module).__name__} has no linear layer")
        return names[-1]
