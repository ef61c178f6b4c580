"""Errors and warnings of the field, by the names that its documentation uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class DiagnosisError(ValueError):
    """Base of the errors that `assay.diagnosis` raises on bad input."""


class QMatrixMismatch(DiagnosisError):
    """Responses and Q-matrix speak of different items; the message names those missing on either side."""

    @classmethod
    def between(cls, in_responses: Iterable[object], in_q: Iterable[object]) -> QMatrixMismatch | None:
        """The error for two lists of items, or None where they agree."""
        responses, q = list(map(str, in_responses)), list(map(str, in_q))
        no_q = sorted(set(responses) - set(q))
        no_response = sorted(set(q) - set(responses))
        if not no_q and not no_response:
            return None
        parts = []
        if no_q:
            parts.append(f"{len(no_q)} items have responses and no row in the Q-matrix ({_some(no_q)})")
        if no_response:
            parts.append(f"{len(no_response)} rows of the Q-matrix have no response ({_some(no_response)})")
        return cls("; ".join(parts) + ". Give both the same item names, or drop these items with missing='drop'")


class EmptyKC(DiagnosisError):
    """A knowledge component that no item needs; the message names it."""


class NonBinaryResponse(DiagnosisError):
    """A response is neither 0 nor 1; the message shows the values."""


class DuplicateResponses(DiagnosisError):
    """A student answered an item more than once and nothing says which answer counts."""


class TooManyClasses(DiagnosisError):
    """An exact diagnostic classification model would need more than 2^15 latent classes."""


class CyclicHierarchy(DiagnosisError):
    """Prerequisites form a cycle; the message prints it."""


class LeakageError(DiagnosisError):
    """Test answers reached the training of a model: its parameters, graph or input rows."""


class NotFitted(DiagnosisError):
    """A model was asked for results before ``fit``."""


class UnknownName(DiagnosisError):
    """A data set, model, rule, metric or stopping rule that does not exist."""

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str]) -> UnknownName:
        from difflib import get_close_matches

        names = sorted(known)
        near = get_close_matches(name, names, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else f"there is {', '.join(names)}"
        return cls(f"there is no {kind} {name!r}; {hint}")


class NotConverged(UserWarning):
    """An optimiser stopped at its limit of steps; the message holds the norm of the gradient or the last gain."""


class UndefinedMetric(UserWarning):
    """A figure has no value on this input (constant mastery, a single class of answers) and is NaN."""


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f", and {len(names) - most} more" if len(names) > most else "")
