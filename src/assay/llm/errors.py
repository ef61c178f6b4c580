"""Errors of the client."""

from __future__ import annotations


class LLMError(ValueError):
    """Base of the errors that `assay.llm` raises."""


class EndpointMissing(LLMError):
    """No address or no model was given, or the package openai is not installed."""


class EndpointUnreachable(LLMError):
    """Nothing answers at the address, or not in time, after all retries."""


class EndpointRefused(LLMError):
    """The endpoint answered with an error: wrong key, unknown model, too long a prompt, too many requests.

    Attributes
    ----------
    status : int
    """

    def __init__(self, message: str, status: int = 0) -> None:
        self.status = status
        super().__init__(message)


class NotOnRecord(LLMError):
    """Offline, and the answer to this request is not in the cache."""
