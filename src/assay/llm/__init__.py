"""One client for endpoints that speak the OpenAI protocol: retries, bounded concurrency, disk cache, costs, replay.

>>> from assay.llm import Client
>>> client = Client("http://127.0.0.1:9/v1", "small", cache=False, retries=0)
>>> client.request([{"role": "user", "content": "2+2"}])["temperature"]
0.0
"""

from assay.llm.cache import DiskCache, Spent, request_key
from assay.llm.client import Client, Completion, cache_folder
from assay.llm.errors import EndpointMissing, EndpointRefused, EndpointUnreachable, LLMError, NotOnRecord

__all__ = [
    "Client", "Completion", "DiskCache", "EndpointMissing", "EndpointRefused", "EndpointUnreachable", "LLMError",
    "NotOnRecord", "Spent", "cache_folder", "request_key",
]  # fmt: skip
