"""Models with vectors of skills, KaNCD and KSCD: a skill without answers is inferred through its vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from assay.diagnosis.neural.base import NeuralModel, choice
from assay.diagnosis.neural.layers import Head, PosLinear, PosMLP, Tables
from assay.diagnosis.neural.ncdm import POSITIVE

FORMS = ("gmf", "mf", "ncf1", "ncf2")


class _Interaction(nn.Module):
    """f(l, e_k) for all skills: mf (inner product), gmf (weighted inner product), ncf1 and ncf2 (one and two layers
    on both).
    """

    def __init__(self, form: str, dim: int) -> None:
        super().__init__()
        self.form = form
        if form == "gmf":
            self.last = nn.Linear(dim, 1)
        elif form == "ncf1":
            self.first, self.other = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)
            self.last = nn.Linear(dim, 1)
        elif form == "ncf2":
            self.first, self.other = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)
            self.second, self.last = nn.Linear(dim, dim // 2), nn.Linear(dim // 2, 1)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight)

    def forward(self, latent: Tensor, skills: Tensor) -> Tensor:
        if self.form == "mf":
            return latent @ skills.T
        if self.form == "gmf":
            out: Tensor = (latent * self.last.weight) @ skills.T + self.last.bias
            return out
        x = torch.sigmoid(self.first(latent)[:, None, :] + self.other(skills)[None, :, :])
        if self.form == "ncf2":
            x = torch.sigmoid(self.second(x))
        result: Tensor = self.last(x).squeeze(-1)
        return result


class KaNCDHead(Head):
    """Mastery sig(f(l_i, e_k)), difficulty sig(f'(l_j, e_k)), then the layers of NCDM (KaNCD, TKDE 2022)."""

    def __init__(
        self, q: Tensor, dim: int, form: str, hidden: tuple[int, ...], dropout: float, scale: float, positive: str
    ) -> None:
        super().__init__(q, dim)
        k = q.shape[1]
        self.table("latent", dim)
        self.table("discrimination", 1)
        self.skills = nn.Parameter(nn.init.xavier_normal_(torch.empty(k, dim)))
        self.of_student, self.of_item = _Interaction(form, dim), _Interaction(form, dim)
        self.scale = scale
        self.layers = PosMLP((k, *hidden, 1), activation="tanh", dropout=dropout, mode=positive)

    def mastery(self, states: Tensor) -> Tensor:
        return torch.sigmoid(self.of_student(states, self.skills))

    def from_mastery(self, mastery: Tensor, item: Tensor, tables: Tables | None = None) -> Tensor:
        difficulty = torch.sigmoid(self.of_item(self.row("latent", item, tables), self.skills))
        disc = self.scale * torch.sigmoid(self.row("discrimination", item, tables))
        logit: Tensor = self.layers(disc * (mastery - difficulty) * self.q[item])
        return logit


class KaNCD(NeuralModel):
    """Knowledge-association NCDM (Wang et al., TKDE 2022).

    Parameters
    ----------
    dim : int
        Length of the vectors of students, items and skills.
    form : {"gmf", "mf", "ncf1", "ncf2"}
        How a vector meets a skill's.
    hidden, dropout, scale, positive
        As in `NCDM`.
    epochs, lr, batch_size, weight_decay, stopping, patience, seed, device, checkpoint
        See `NeuralModel`.
    """

    def __init__(
        self,
        dim: int = 20,
        form: str = "gmf",
        hidden: tuple[int, ...] = (256, 128),
        dropout: float = 0.5,
        scale: float = 1.0,
        positive: str = "abs",
        epochs: int = 200,
        lr: float = 0.002,
        batch_size: int | None = None,
        weight_decay: float = 0.0,
        stopping: str = "valid_logloss",
        patience: int = 10,
        seed: int = 0,
        device: str = "cpu",
        checkpoint: str | None = None,
    ) -> None:
        super().__init__(epochs, lr, batch_size, weight_decay, stopping, patience, seed, device, checkpoint)
        self.dim = dim
        self.form = form
        self.hidden = hidden
        self.dropout = dropout
        self.scale = scale
        self.positive = positive

    def _head(self, q: Tensor) -> Head:
        choice(self.positive, POSITIVE, "way to keep weights positive")
        return KaNCDHead(
            q, self.dim, choice(self.form, FORMS, "form"), tuple(self.hidden), self.dropout, self.scale, self.positive
        )


class KSCDHead(Head):
    """o_k = sig(w3 . (phi(W1 [m; e_k]) - phi(W2 [b; e_k]))) for the required skills k; P is their mean (KSCD, CIKM
    2022).

    W1 and W2 act on m (b) and on e_k apart, so that only required skills are computed: batch x required x width
    numbers, never batch x K x (K + d).
    """

    def __init__(self, q: Tensor, dim: int, phi: str, positive: str, *, direct: bool = False) -> None:
        k = q.shape[1]
        super().__init__(q, k if direct else dim)
        self.direct = direct
        self.table("latent", k if direct else dim)
        self.skills = nn.Parameter(nn.init.xavier_normal_(torch.empty(k, dim)))
        self.phi = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}[phi]
        self.of_mastery, self.mastery_skill = (
            PosLinear(k, k, mode=positive),
            PosLinear(dim, k, bias=False, mode=positive),
        )
        self.of_difficulty, self.difficulty_skill = (
            PosLinear(k, k, mode=positive),
            PosLinear(dim, k, bias=False, mode=positive),
        )
        self.last = PosLinear(k, 1, mode=positive)
        skills, counts = [row.nonzero().squeeze(1) for row in q.bool()], q.sum(1).long()
        self.register_buffer("needed", torch.cat(skills), persistent=False)
        self.register_buffer("first", torch.cumsum(counts, 0) - counts, persistent=False)
        self.register_buffer("counts", counts, persistent=False)

    needed: Tensor
    first: Tensor
    counts: Tensor

    def mastery(self, states: Tensor) -> Tensor:
        return torch.sigmoid(states if self.direct else states @ self.skills.T)

    def from_mastery(self, mastery: Tensor, item: Tensor, tables: Tables | None = None) -> Tensor:
        skills = tables["skills"] if tables is not None and "skills" in tables else self.skills
        latent = self.row("latent", item, tables)
        difficulty = torch.sigmoid(latent if self.direct else latent @ skills.T)
        counts = self.counts[item]
        row = torch.repeat_interleave(torch.arange(len(item), device=item.device), counts)
        place = torch.arange(len(row), device=item.device) - torch.repeat_interleave(
            torch.cumsum(counts, 0) - counts, counts
        )
        k = self.needed[self.first[item][row] + place]
        p = self.phi(self.of_mastery(mastery)[row] + self.mastery_skill(skills)[k])
        d = self.phi(self.of_difficulty(difficulty)[row] + self.difficulty_skill(skills)[k])
        o = torch.sigmoid(self.last(p - d).squeeze(1))
        total = torch.zeros(len(item), device=o.device).index_add(0, row, o)
        return torch.logit(total / counts.clamp_min(1), eps=1e-6)


class KSCD(NeuralModel):
    """Knowledge-sensed cognitive diagnosis (Ma et al., CIKM 2022).

    Parameters
    ----------
    dim : int
        Length of the vectors.
    phi : {"sigmoid", "tanh"}
        Activation; the paper's is sigmoid.
    positive : {"abs", "clip"}
    epochs, lr, batch_size, weight_decay, stopping, patience, seed, device, checkpoint
        See `NeuralModel`.
    """

    def __init__(
        self,
        dim: int = 20,
        phi: str = "sigmoid",
        positive: str = "abs",
        epochs: int = 200,
        lr: float = 0.002,
        batch_size: int | None = None,
        weight_decay: float = 0.0,
        stopping: str = "valid_logloss",
        patience: int = 10,
        seed: int = 0,
        device: str = "cpu",
        checkpoint: str | None = None,
    ) -> None:
        super().__init__(epochs, lr, batch_size, weight_decay, stopping, patience, seed, device, checkpoint)
        self.dim = dim
        self.phi = phi
        self.positive = positive

    def _head(self, q: Tensor) -> Head:
        choice(self.positive, POSITIVE, "way to keep weights positive")
        return KSCDHead(q, self.dim, choice(self.phi, ("sigmoid", "tanh"), "activation"), self.positive)
