"""`SketchPointer`: the trained network as a system."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

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


class SketchPointer:
    """A small transformer that writes grammar symbols and points to cells.

    Parameters
    ----------
    net : PointerNet, optional
        Default: the file that the environment variable ``ASSAY_FORMULAS_MODEL`` names (`assay formulas train`).

    Raises
    ------
    FormulaError
        If there is no trained model.
    """

    name = "sketch_pointer"

    def __init__(self, net: PointerNet | None = None) -> None:
        if net is None:
            path = os.environ.get(MODEL, "")
            if not path:
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
            state: dict[str, Any] = load_checkpoint(path)
            net = PointerNet(PointerConfig(**state["settings"]))
            net.load_state_dict(state["weights"])
        except FileNotFoundError as error:
            raise FormulaError(f"there is no trained model {path}") from error
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            raise FormulaError(
                f"{path} is no model of this kind ({type(error).__name__}: {str(error)[:120]})"
            ) from error
        return cls(net.to(torch.device(device)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the weights and the configuration."""
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
