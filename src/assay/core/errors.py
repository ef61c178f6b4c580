"""Named errors of the protocol. A message says what was wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class AssayError(Exception):
    """Base of all errors that the protocol raises on purpose."""


class UnknownNameError(AssayError, KeyError):
    """A field, task, method, metric or parameter that does not exist.

    Examples
    --------
    >>> print(UnknownNameError("method", "olvd", ["olvf", "nb3"], "streams"))
    streams has no method 'olvd'; did you mean olvf?
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], where: str = "assay") -> None:
        known = sorted(known)
        near = get_close_matches(name.lower(), known, n=3, cutoff=0.5)
        if near:
            hint = f"did you mean {', '.join(near)}?"
        elif len(known) <= 12:
            hint = f"there is {', '.join(known)}" if known else "there is none"
        else:
            hint = f"there are {len(known)}, among them {', '.join(known[:8])}"
        super().__init__(f"{where} has no {kind} {name!r}; {hint}")

    def __str__(self) -> str:  # KeyError would print the repr
        return str(self.args[0])


class MissingExtraError(AssayError, ImportError):
    """A part needs packages that are not installed; the message holds the command that installs them."""

    def __init__(self, what: str, extra: str, missing: str) -> None:
        super().__init__(f"{what} needs the package {missing!r}; install it with: pip install 'assay[{extra}]'")


class StoreError(AssayError):
    """The folder of runs cannot be used."""


class DataError(AssayError):
    """A data file is missing, cannot be fetched, or is not the file that it should be."""


class PluginError(AssayError):
    """A plug-in file cannot be loaded, or adds nothing."""


class MethodError(AssayError):
    """A method returned something that cannot be a result: NaN, the wrong shape, an unknown metric."""


class RunTimeout(AssayError):
    """A run took longer than its limit and was ended."""


class MemoryLimit(AssayError):
    """A run used more memory than its limit and was ended."""


class WorkerDied(AssayError):
    """The process of a run ended without a word (killed by the kernel, a crash in compiled code)."""


class SkipRun(AssayError):
    """Raised by a task or a method to say that a run makes no sense here; the message is the reason."""
