"""One step of the reference: micro-batches, gradients summed in FP32, clipping, Adam on FP32 copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from assay.difftest.collect import mark
from assay.difftest.testbed.config import Config
from assay.difftest.testbed.fp8 import Scaling
from assay.difftest.testbed.gpt import GPT, Micro


class MasterAdam:
    """Adam on FP32 copies of what it updates (whole parameters or shards), which are then written back."""

    def __init__(self, parameters: Mapping[str, Tensor], lr: float) -> None:
        self.masters = {name: p.detach().float().clone().requires_grad_() for name, p in parameters.items()}
        self.inner = torch.optim.Adam(list(self.masters.values()), lr=lr, betas=(0.9, 0.95), eps=1e-8)

    def step(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Updated FP32 values."""
        for name, master in self.masters.items():
            master.grad = gradients.get(name)
        self.inner.step()
        return {name: master.detach() for name, master in self.masters.items()}

    def states(self) -> dict[str, dict[str, Tensor]]:
        """``exp_avg``, ``exp_avg_sq`` and ``main_param`` by parameter."""
        found = {}
        for name, master in self.masters.items():
            state = self.inner.state.get(master, {})
            found[name] = {k: v for k, v in state.items() if isinstance(v, Tensor) and v.ndim}
            found[name]["main_param"] = master.detach()
        return found

    def state_dict(self) -> dict[str, Any]:
        """For putting a reference back to its start."""
        return {"inner": self.inner.state_dict(), "masters": {k: v.detach().clone() for k, v in self.masters.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse."""
        self.inner.load_state_dict(state["inner"])
        with torch.no_grad():
            for name, master in self.masters.items():
                master.copy_(state["masters"][name])


def reset_scaling(model: nn.Module) -> None:
    """Forget the FP8 history of all linear layers."""
    for module in model.modules():
        scaling = getattr(module, "scaling", None)
        if isinstance(scaling, Scaling):
            scaling.reset()


class Reference:
    """The reference model with its optimizer.

    Parameters
    ----------
    config : Config
    routing : dict, optional
        Chosen experts to follow, by layer, step and micro-batch.
    recompute : str
    """

    def __init__(self, config: Config, *, routing: dict[str, Tensor] | None = None, recompute: str = "none") -> None:
        self.config = config
        self.model = GPT(config, recompute=recompute)
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = MasterAdam(self.parameters, config.lr)
        self.routing = routing
        self.losses: list[float] = []

    def step(self, step: int = 0, tracer: Any = None) -> float:
        """Forward and backward of all micro-batches, clip, update."""
        if step == 0:
            reset_scaling(self.model)
        sums = {n: torch.zeros(p.shape, dtype=torch.float32, device=p.device) for n, p in self.parameters.items()}
        for name, parameter in self.parameters.items():
            parameter.main_grad = sums[name]  # type: ignore[attr-defined]
            parameter.grad = None
        data = self.config.data(step)
        total = 0.0
        for m in range(self.config.microbatches):
            loss = self.model(Micro(data, m, routing=self.routing, step=step))
            loss.backward()
            total += float(loss.detach())
            for name, parameter in self.parameters.items():
                if parameter.grad is not None:
                    sums[name].add_(parameter.grad)
                    parameter.grad = None
        if tracer is not None:
            tracer.before_step()
        norm = torch.sqrt(sum((g.double().square().sum() for g in sums.values()), torch.zeros((), dtype=torch.float64)))
        mark("gnorm", norm)
        factor = min(1.0, self.config.clip / (float(norm) + 1e-6)) if self.config.clip else 1.0
        updated = self.optimizer.step({n: g * factor for n, g in sums.items()})
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(updated[name])
        if tracer is not None:
            for name, states in self.optimizer.states().items():
                for key, value in states.items():
                    tracer.record(f"optim.{key}", name, value)
            for name, parameter in self.parameters.items():
                tracer.record("param_after", name, parameter)
        for parameter in self.parameters.values():
            del parameter.main_grad  # type: ignore[attr-defined]
        self.losses.append(total)
        return total
