"""`SketchPointer`: the trained network as a system."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from assay.formulas.errors import FormulaError
from assay.formulas.grammar import CellRef
from assay.formulas.learned.decoding import beam
from assay.formulas.learned.features import encode
from assay.formulas.learned.model import PointerConfig, PointerNet
from assay.formulas.learned.symbols import SIZE
from assay.formulas.systems.base import Suggestion, timed
from assay.formulas.tasks import Task
from assay.training import load_checkpoint, save_checkpoint

MODEL = "ASSAY_FORMULAS_MODEL"
SHIPPED = Path(__file__).with_name("weights.safetensors")


class SketchPointer:
    """A small transformer that writes grammar symbols and points to cells.

    Parameters
    ----------
    net : PointerNet, optional
        Default: the file that the environment variable ``ASSAY_FORMULAS_MODEL`` names, else the weights of the package
        (`assay formulas train` made both).

    Raises
    ------
    FormulaError
        If there is no trained model.
    """

    name = "sketch_pointer"

    def __init__(self, net: PointerNet | None = None) -> None:
        if net is None:
            path = os.environ.get(MODEL, "") or SHIPPED
            if not Path(path).is_file():
                raise FormulaError(
                    f"there is no trained model: train one (assay formulas train -o FILE) and name it in {MODEL}"
                )
            net = type(self).load(path).net
        self.net: PointerNet = net.eval()

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str = "cpu") -> SketchPointer:
        """Read a trained model; code in the file is never run.

        Raises
        ------
        FormulaError
            If the file is no model of this kind.
        """
        try:
            state = _read(path)
            net = PointerNet(PointerConfig(**state["settings"]))
            net.load_state_dict(state["weights"])
        except FileNotFoundError as error:
            raise FormulaError(f"there is no trained model {path}") from error
        except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise FormulaError(
                f"{path} is no model of this kind ({type(error).__name__}: {str(error)[:120]})"
            ) from error
        return cls(net.to(torch.device(device)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the weights and the configuration; a name that ends in ``.safetensors`` gets them in half precision."""
        if Path(path).suffix == ".safetensors":
            half = {name: t.half().contiguous() for name, t in self.net.state_dict().items()}
            save_file(half, path, {"settings": json.dumps(self.net.settings())})
            return Path(path)
        return save_checkpoint(path, {"settings": self.net.settings(), "weights": self.net.state_dict()})

    def suggest(self, task: Task, k: int = 5) -> list[Suggestion]:
        """See `System.suggest`."""
        return timed(lambda t: self._written(t, k), task, k, self.name)

    def _written(self, task: Task, k: int) -> list[Suggestion]:
        encoded = encode(task, self.net.config.fmt, self.net.config.budget)
        found = []
        for decoded in beam(self.net, encoded, k):
            places = [encoded.choices.items[s - SIZE] for s in decoded.symbols if s >= SIZE]
            evidence = tuple(dict.fromkeys(CellRef(p.sheet, p.row1, p.col) for p in places))
            found.append(
                Suggestion(
                    decoded.formula, decoded.probability, self.name,
                    reason="written by the trained model, which pointed to these cells", evidence=evidence,
                )
            )  # fmt: skip
        return found


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    if Path(path).suffix != ".safetensors":
        return load_checkpoint(path)
    with safe_open(path, "pt") as file:
        weights = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
        return {"settings": json.loads(file.metadata()["settings"]), "weights": weights}
