"""`Client`: chat completions of any endpoint that speaks the OpenAI protocol, through the openai SDK."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.llm.cache import DiskCache, Ledger, Spent, request_key
from assay.llm.errors import EndpointMissing, EndpointRefused, EndpointUnreachable, LLMError, NotOnRecord

BASE_URL, MODEL, KEY = "ASSAY_LLM_BASE_URL", "ASSAY_LLM_MODEL", "ASSAY_LLM_API_KEY"
CACHE, OFFLINE = "ASSAY_LLM_CACHE", "ASSAY_LLM_OFFLINE"
Message = Mapping[str, str]


@dataclass(frozen=True)
class Completion:
    """An answer.

    Attributes
    ----------
    text : str
    prompt_tokens, completion_tokens : int
        As the endpoint counts.
    price : float
        By the prices of the client; of a cached answer what it cost when it was bought.
    seconds : float
    cached : bool
    finish : str
        ``stop``, ``length``, ...
    """

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    price: float = 0.0
    seconds: float = 0.0
    cached: bool = False
    finish: str = ""


class Client:
    """Chat completions with retries, bounded concurrency, a disk cache, a log of costs, and replay offline.

    Parameters
    ----------
    base_url, model, api_key : str, optional
        Default: the environment variables ``ASSAY_LLM_BASE_URL``, ``ASSAY_LLM_MODEL``, ``ASSAY_LLM_API_KEY``, and for
        address and key also those of the SDK (``OPENAI_BASE_URL``, ``OPENAI_API_KEY``). A local server needs no key.
    cache : path, False or None
        Folder of answers; default ``ASSAY_LLM_CACHE``, else none. False switches it off.
    offline : bool, optional
        Answer from the cache only; default ``ASSAY_LLM_OFFLINE``.
    concurrency : int
        Requests at once, over all threads that share the client.
    retries : int
        After errors that may pass (timeouts, 429, 5xx), with growing pauses; ``Retry-After`` is obeyed.
    timeout : float
        Seconds for one request.
    prices : (float, float)
        Of a million prompt and completion tokens.
    log : path, optional
        Lines of JSON with tokens and price, no content; default ``log.jsonl`` in the cache.

    Raises
    ------
    EndpointMissing
        Without an address or a model.
    LLMError
        If a number is out of range.
    """

    def __init__(
        self,
        base_url: str | None = None,
        model: str | None = None,
        api_key: str | None = None,
        *,
        cache: str | os.PathLike[str] | bool | None = None,
        offline: bool | None = None,
        concurrency: int = 4,
        retries: int = 4,
        timeout: float = 60.0,
        prices: tuple[float, float] = (0.0, 0.0),
        log: str | os.PathLike[str] | None = None,
    ) -> None:
        self.base_url = base_url or os.environ.get(BASE_URL) or os.environ.get("OPENAI_BASE_URL") or ""
        self.model = model or os.environ.get(MODEL) or ""
        if not self.base_url or not self.model:
            lacks = [name for name, value in ((BASE_URL, self.base_url), (MODEL, self.model)) if not value]
            raise EndpointMissing(f"no endpoint: set {' and '.join(lacks)}, or give base_url and model")
        for name, value, least in (("concurrency", concurrency, 1), ("retries", retries, 0)):
            if value < least:
                raise LLMError(f"{name} is at least {least}, not {value}")
        if not (timeout > 0 and math.isfinite(timeout)):
            raise LLMError(f"timeout is a number of seconds above 0, not {timeout}")
        if min(prices) < 0:
            raise LLMError(f"prices are at least 0, not {prices}")
        self._key = api_key or os.environ.get(KEY) or os.environ.get("OPENAI_API_KEY") or "none"
        folder = os.environ.get(CACHE) if cache is None else cache
        self.cache = DiskCache(folder) if folder and not isinstance(folder, bool) else None
        self.offline = os.environ.get(OFFLINE, "") not in ("", "0") if offline is None else offline
        self.concurrency, self.retries, self.timeout, self.prices = concurrency, retries, timeout, prices
        self.ledger = Ledger(log if log is not None else (self.cache.folder / "log.jsonl" if self.cache else None))
        self._slots = threading.BoundedSemaphore(concurrency)
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()
        self._sdk: Any = None

    def __repr__(self) -> str:
        return f"Client({self.base_url!r}, {self.model!r})"

    @property
    def spent(self) -> Spent:
        """Sums of tokens, price and time."""
        return self.ledger.spent

    def request(self, messages: Sequence[Message], **options: Any) -> dict[str, Any]:
        """What would be sent, as plain data."""
        chosen = {"temperature": 0.0, "max_tokens": 256, **options}
        return {"model": self.model, "messages": [dict(m) for m in messages], **chosen}

    def key(self, messages: Sequence[Message], **options: Any) -> str:
        """Identity of a request in the cache."""
        return request_key({"base_url": self.base_url.rstrip("/"), **self.request(messages, **options)})

    def complete(self, messages: Sequence[Message], **options: Any) -> Completion:
        """The answer to a conversation.

        Parameters
        ----------
        messages : sequence of {"role": ..., "content": ...}
        **options
            ``temperature`` (0 by default), ``max_tokens`` (256), ``seed``, ``stop``, ``response_format``, ...

        Raises
        ------
        EndpointUnreachable, EndpointRefused, NotOnRecord, EndpointMissing
        """
        key = self.key(messages, **options)
        with self._lock_of(key):  # the same request from two threads is sent once
            found = self.cache.get(key) if self.cache is not None else None
            if found is not None and isinstance(found.get("text"), str):
                answer = Completion(
                    found["text"],
                    int(found.get("prompt_tokens", 0)),
                    int(found.get("completion_tokens", 0)),
                    float(found.get("price", 0.0)),
                    float(found.get("seconds", 0.0)),
                    True,
                    str(found.get("finish", "")),
                )
                self.ledger.add(
                    key, self.model, prompt_tokens=answer.prompt_tokens, completion_tokens=answer.completion_tokens,
                    price=answer.price, seconds=answer.seconds, cached=True,
                )  # fmt: skip
                return answer
            if self.offline:
                raise NotOnRecord(
                    f"offline, and the answer to request {key[:12]} is not in the cache"
                    + (
                        f" {self.cache.folder}"
                        if self.cache is not None
                        else " (there is no cache; set ASSAY_LLM_CACHE)"
                    )
                )
            try:
                answer = self._send(self.request(messages, **options))
            except LLMError as error:
                self.ledger.add(key, self.model, error=type(error).__name__)
                raise
            self.ledger.add(
                key, self.model, prompt_tokens=answer.prompt_tokens, completion_tokens=answer.completion_tokens,
                price=answer.price, seconds=answer.seconds,
            )  # fmt: skip
            if self.cache is not None:
                self.cache.put(
                    key,
                    {
                        "text": answer.text, "prompt_tokens": answer.prompt_tokens, "finish": answer.finish,
                        "completion_tokens": answer.completion_tokens, "price": answer.price, "seconds": answer.seconds,
                        "model": self.model,
                    },
                )  # fmt: skip
            return answer

    def complete_many(
        self,
        conversations: Sequence[Sequence[Message]],
        *,
        progress: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> list[Completion | LLMError]:
        """Answers to many conversations, in their order; where one failed, its error stands in its place."""

        def one(messages: Sequence[Message]) -> Completion | LLMError:
            try:
                return self.complete(messages, **options)
            except LLMError as error:
                return error

        found: list[Completion | LLMError] = []
        with ThreadPoolExecutor(self.concurrency) as pool:
            for answer in pool.map(one, conversations):
                found.append(answer)
                if progress is not None:
                    progress(len(found), len(conversations))
        return found

    def _lock_of(self, key: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(key, threading.Lock())

    def _client(self) -> Any:
        with self._guard:
            if self._sdk is None:
                try:
                    import openai
                except ImportError as error:
                    raise EndpointMissing("the package openai is not installed: pip install 'assay[llm]'") from error
                self._sdk = openai.OpenAI(
                    base_url=self.base_url, api_key=self._key, timeout=self.timeout, max_retries=self.retries
                )
            return self._sdk

    def _send(self, request: dict[str, Any]) -> Completion:
        sdk = self._client()
        import openai

        with self._slots:
            began = time.perf_counter()
            try:
                answer = sdk.chat.completions.create(**request)
            except openai.APITimeoutError as error:
                raise EndpointUnreachable(f"{self.base_url} did not answer within {self.timeout:g} s") from error
            except openai.APIConnectionError as error:
                raise EndpointUnreachable(f"nothing answers at {self.base_url} ({error.__cause__ or error})") from error
            except openai.APIStatusError as error:
                raise EndpointRefused(
                    f"{self.base_url} answered {error.status_code}: {_said(error)}", error.status_code
                ) from error
            except openai.APIError as error:
                raise EndpointRefused(
                    f"{self.base_url} answered with what is no completion ({_said(error)})"
                ) from error
            seconds = time.perf_counter() - began
        choices = getattr(answer, "choices", None)
        if not choices:
            raise EndpointRefused(f"{self.base_url} answered without a choice; is it an endpoint for chat completions?")
        usage = getattr(answer, "usage", None)
        prompt, completion = (int(getattr(usage, n, 0) or 0) for n in ("prompt_tokens", "completion_tokens"))
        price = (prompt * self.prices[0] + completion * self.prices[1]) / 1e6
        text = choices[0].message.content or ""
        return Completion(text, prompt, completion, price, seconds, False, str(choices[0].finish_reason or ""))


def _said(error: Exception) -> str:
    return " ".join(str(getattr(error, "message", "") or error).split())[:200]


def cache_folder(name: str) -> Path:
    """A folder of answers beside the other caches of this user.

    >>> cache_folder("mine").name
    'mine'
    """
    given = os.environ.get("ASSAY_CACHE_DIR")
    if given:
        return Path(given) / "llm" / name
    from platformdirs import user_cache_path

    return Path(user_cache_path("assay")) / "llm" / name
