"""Which combination of parallel axes is needed for a failure: a walk over the lattice of configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

from assay.difftest.errors import DiffTestError


@dataclass
class Bisection:
    """Outcome of `bisect`.

    Attributes
    ----------
    minimal : list of dict
        Failing configurations none of whose parts fails.
    tried : dict
        Configuration (as sorted pairs of axis and value) -> whether it passed; None where it could not run.
    errors : dict
    """

    minimal: list[dict[str, Any]] = field(default_factory=list)
    tried: dict[tuple[tuple[str, Any], ...], bool | None] = field(default_factory=dict)
    errors: dict[tuple[tuple[str, Any], ...], str] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.minimal:
            return f"no failing configuration among {len(self.tried)}"
        words = [" and ".join(f"{a}={v}" for a, v in m.items()) or "even the plain configuration" for m in self.minimal]
        said = f"fails only with {'; or with '.join(words)} ({len(self.tried)} configurations tried)"
        return "; ".join([said, *self.remarks()])

    def remarks(self) -> list[str]:
        """Where a degree fails and a smaller one of the same axis passes: then the groups are suspect, not the sums.

        Examples
        --------
        >>> bisect(lambda tp=1: tp < 4, {"tp": [1, 2, 4]}).remarks()
        ['right with tp=2 and wrong with tp=4: look at how its groups are made']
        """
        found = []
        for failing in self.minimal:
            for axis, degree in failing.items():
                if isinstance(degree, bool) or not isinstance(degree, int):
                    continue
                smaller = [
                    dict(key)[axis] for key, passed in self.tried.items()
                    if passed and dict(key) | {axis: degree} == failing and 1 < dict(key).get(axis, 0) < degree
                ]  # fmt: skip
                if smaller:
                    found.append(
                        f"right with {axis}={max(smaller)} and wrong with {axis}={degree}: "
                        f"look at how its groups are made"
                    )
        return found


def bisect(
    run: Callable[..., Any], axes: Mapping[str, Sequence[Any]], *, largest: int = 3, stop_at_first: bool = False
) -> Bisection:
    """Run each axis alone, then pairs, then triples, and report the minimal failing sets.

    A configuration that contains a failing one is not run: it would say nothing new.

    Parameters
    ----------
    run : callable
        ``run(**configuration)`` gives True (or a `Result` that is ok) where all is well. An exception counts as "could
        not run", not as a failure.
    axes : mapping
        Axis -> values; the first is the neutral one.
    largest : int
        Most axes at once.
    stop_at_first : bool
        Stop after the smallest failing size.

    Examples
    --------
    >>> run = lambda tp=1, sp=False, ep=1: not (sp and ep > 1)
    >>> print(bisect(run, {"tp": [1, 2], "sp": [False, True], "ep": [1, 2]}))
    fails only with sp=True and ep=2 (7 configurations tried)
    """
    for axis, values in axes.items():
        if not values:
            raise DiffTestError(f"the axis {axis!r} has no values; the first one is the neutral one")
    found = Bisection()
    neutral = {axis: values[0] for axis, values in axes.items()}
    for size in range(min(largest, len(axes)) + 1):
        for chosen in combinations(axes, size):
            for values in product(*(axes[a][1:] for a in chosen)):
                own = dict(zip(chosen, values))
                if any(all(own.get(a) == v for a, v in m.items()) for m in found.minimal):
                    continue
                key = tuple(sorted(own.items()))
                try:
                    outcome = run(**{**neutral, **own})
                except Exception as error:
                    found.tried[key] = None
                    found.errors[key] = f"{type(error).__name__}: {error}"
                    continue
                passed = bool(getattr(outcome, "ok", outcome))
                found.tried[key] = passed
                if not passed:
                    found.minimal.append(own)
        if stop_at_first and found.minimal:
            break
    return found
