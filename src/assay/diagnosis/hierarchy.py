"""Which skills build on which: a directed acyclic graph over skills, and the classes that it allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from assay.diagnosis.errors import CyclicHierarchy, DiagnosisError, TooManyClasses

MAX_SKILLS = 15


class Hierarchy:
    """Prerequisites between skills.

    Parameters
    ----------
    n_kcs : int
    edges : iterable of (int, int)
        Pairs (skill, skill that builds on it).
    names : sequence of str, optional
        For messages.

    Raises
    ------
    CyclicHierarchy
        If the prerequisites form a cycle; the message prints it.
    DiagnosisError
        If an edge names a skill that does not exist.

    Examples
    --------
    >>> Hierarchy(3, [(0, 1), (1, 2)]).classes().astype(int).tolist()
    [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """

    def __init__(self, n_kcs: int, edges: Iterable[Sequence[int]] = (), names: Sequence[str] | None = None) -> None:
        self.n_kcs = n_kcs
        self.edges = tuple(dict.fromkeys((int(a), int(b)) for a, b in edges))
        self.names = tuple(names) if names is not None else tuple(str(k) for k in range(n_kcs))
        for a, b in self.edges:
            if not (0 <= a < n_kcs and 0 <= b < n_kcs):
                raise DiagnosisError(
                    f"the prerequisite {(a, b)} names a skill that does not exist; there are {n_kcs}, from 0"
                )
        self.order = self._topological()

    def parents(self, skill: int) -> list[int]:
        """Skills that this one builds on."""
        return [a for a, b in self.edges if b == skill]

    def in_order(self) -> list[tuple[int, int]]:
        """Edges sorted so that a skill's parents are done before it is a parent."""
        rank = {k: r for r, k in enumerate(self.order)}
        return sorted(self.edges, key=lambda e: rank[e[1]])

    def classes(self) -> NDArray[np.bool_]:
        """``bool[L, K]``: the classes in which each mastered skill has its prerequisites, the empty one first.

        Raises
        ------
        TooManyClasses
            If there are more than 2^15.
        """
        rows = np.zeros((1, self.n_kcs), dtype=bool)
        for k in self.order:
            allowed = rows[:, self.parents(k)].all(1)
            more = rows[allowed].copy()
            more[:, k] = True
            rows = np.vstack([rows, more])
            if len(rows) > 2**MAX_SKILLS:
                raise TooManyClasses(
                    f"{self.n_kcs} skills{' under this hierarchy' if self.edges else ''} make more than "
                    f"2^{MAX_SKILLS} classes; use "
                    "DINA(method='variational'), give a hierarchy, or merge skills"
                )
        weight = 2 ** np.arange(self.n_kcs, dtype=np.int64)
        return rows[np.lexsort((rows @ weight, rows.sum(1)))]

    def _topological(self) -> list[int]:
        children: dict[int, list[int]] = {k: [] for k in range(self.n_kcs)}
        waiting = [0] * self.n_kcs
        for a, b in self.edges:
            children[a].append(b)
            waiting[b] += 1
        ready = [k for k in range(self.n_kcs) if not waiting[k]]
        order = []
        while ready:
            k = ready.pop(0)
            order.append(k)
            for child in children[k]:
                waiting[child] -= 1
                if not waiting[child]:
                    ready.append(child)
        if len(order) < self.n_kcs:
            stuck = set(range(self.n_kcs)) - set(order)
            node = min(stuck)
            path = [node]
            while True:  # every stuck skill has a stuck parent; walking up must come round
                node = next(a for a, b in self.edges if b == node and a in stuck)
                if node in path:
                    cycle = [*path[path.index(node) :], node][::-1]
                    break
                path.append(node)
            raise CyclicHierarchy(
                f"the prerequisites form a cycle: {' -> '.join(self.names[k] for k in cycle)}; remove one of "
                "these edges"
            )
        return order
