"""The client against a server on loopback that speaks the same protocol."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from assay.llm import (
    Client,
    EndpointMissing,
    EndpointRefused,
    EndpointUnreachable,
    LLMError,
    NotOnRecord,
)

ASK = [{"role": "user", "content": "2+2"}]


class Server:
    """Answers with ``status, text, headers`` from a function of the body and the number of the request."""

    def __init__(self, answer):
        self.count = self.busy = self.peak = 0
        self.bodies, self.headers = [], []
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.count += 1
                    number = outer.count
                    outer.busy += 1
                    outer.peak = max(outer.peak, outer.busy)
                    outer.bodies.append(body)
                    outer.headers.append({k.lower(): v for k, v in self.headers.items()})
                status, text, headers = answer(body, number)
                message = {"role": "assistant", "content": text}
                data = {
                    "id": "1",
                    "object": "chat.completion",
                    "created": 0,
                    "model": body["model"],
                    "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                    "usage": {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500},
                }
                raw = json.dumps(data if status == 200 else {"error": {"message": text}}).encode()
                with lock:
                    outer.busy -= 1
                self.send_response(status)
                for name, value in {
                    "Content-Type": "application/json",
                    "Content-Length": str(len(raw)),
                    **headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def serve(monkeypatch):
    for name in (
        "ASSAY_LLM_BASE_URL",
        "ASSAY_LLM_MODEL",
        "ASSAY_LLM_API_KEY",
        "ASSAY_LLM_CACHE",
        "ASSAY_LLM_OFFLINE",
        "OPENAI_BASE_URL",
        "OPENAI_API_KEY",
    ):
        monkeypatch.delenv(name, raising=False)
    servers = []

    def make(answer=lambda body, number: (200, "4", {})):
        servers.append(Server(answer))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def test_an_answer_its_tokens_and_its_price(serve, tmp_path):
    server = serve()
    client = Client(server.url, "small", "secret-key", cache=tmp_path, prices=(2.0, 6.0))
    answer = client.complete(ASK, max_tokens=7)
    assert (answer.text, answer.prompt_tokens, answer.completion_tokens, answer.cached) == ("4", 1000, 500, False)
    assert answer.price == pytest.approx(0.005)
    assert server.bodies[0]["max_tokens"] == 7 and server.bodies[0]["temperature"] == 0.0
    assert server.headers[0]["authorization"] == "Bearer secret-key"
    log = (tmp_path / "log.jsonl").read_text()
    assert json.loads(log)["prompt_tokens"] == 1000
    assert "secret-key" not in log and "2+2" not in log
    assert all("secret-key" not in p.read_text() for p in tmp_path.rglob("*.json"))


def test_the_same_request_is_bought_once(serve, tmp_path):
    server = serve()
    first = Client(server.url, "small", cache=tmp_path)
    first.complete(ASK)
    again = Client(server.url, "small", cache=tmp_path).complete(ASK)
    assert again.cached and again.text == "4" and server.count == 1
    first.complete(ASK, temperature=0.5)
    first.complete([{"role": "user", "content": "3+3"}])
    Client(server.url, "other", cache=tmp_path).complete(ASK)
    assert server.count == 4
    assert first.spent.requests == 3 and first.spent.prompt_tokens == 3000


def test_offline_replays_what_is_on_record(serve, tmp_path):
    server = serve()
    Client(server.url, "small", cache=tmp_path).complete(ASK)
    offline = Client(server.url, "small", cache=tmp_path, offline=True)
    assert offline.complete(ASK).text == "4"
    with pytest.raises(NotOnRecord, match="not in the cache"):
        offline.complete([{"role": "user", "content": "new"}])
    assert server.count == 1


def test_a_damaged_file_of_the_cache_is_no_answer(serve, tmp_path):
    server = serve()
    client = Client(server.url, "small", cache=tmp_path)
    client.complete(ASK)
    client.cache.path(client.key(ASK)).write_text('{"text": "4')
    assert client.complete(ASK).text == "4" and server.count == 2


def test_errors_that_pass_are_tried_again(serve):
    server = serve(lambda body, number: (200, "4", {}) if number == 3 else (503, "busy", {"Retry-After": "0"}))
    assert Client(server.url, "small", cache=False, retries=3).complete(ASK).text == "4"
    assert server.count == 3


def test_errors_that_do_not_pass_are_named_and_not_repeated(serve):
    server = serve(lambda body, number: (401, "wrong key", {}))
    client = Client(server.url, "small", cache=False, retries=3)
    with pytest.raises(EndpointRefused, match="401: .*wrong key") as caught:
        client.complete(ASK)
    assert caught.value.status == 401 and server.count == 1
    assert client.spent.failed == 1


def test_nothing_there_and_no_answer_in_time(serve):
    with pytest.raises(EndpointUnreachable, match="nothing answers"):
        Client("http://127.0.0.1:9/v1", "small", cache=False, retries=0).complete(ASK)

    def slow(body, number):
        time.sleep(0.6)
        return 200, "late", {}

    server = serve(slow)
    with pytest.raises(EndpointUnreachable, match=r"within 0\.2 s"):
        Client(server.url, "small", cache=False, retries=0, timeout=0.2).complete(ASK)


def test_no_more_requests_at_once_than_allowed(serve):
    def wait(body, number):
        time.sleep(0.05)
        return 200, body["messages"][0]["content"], {}

    server = serve(wait)
    client = Client(server.url, "small", cache=False, concurrency=3)
    texts = [str(i) for i in range(10)]
    seen = []
    found = client.complete_many(
        [[{"role": "user", "content": t}] for t in texts], progress=lambda done, total: seen.append((done, total))
    )
    assert [a.text for a in found] == texts
    assert 2 <= server.peak <= 3
    assert seen[-1] == (10, 10)


def test_one_failure_does_not_stop_the_others(serve):
    server = serve(lambda body, number: (400, "no", {}) if body["messages"][0]["content"] == "bad" else (200, "ok", {}))
    found = Client(server.url, "small", cache=False).complete_many(
        [[{"role": "user", "content": t}] for t in ("a", "bad", "b")]
    )
    assert isinstance(found[1], EndpointRefused) and found[0].text == found[2].text == "ok"


def test_the_same_request_from_two_threads_is_sent_once(serve, tmp_path):
    def wait(body, number):
        time.sleep(0.1)
        return 200, "4", {}

    server = serve(wait)
    client = Client(server.url, "small", cache=tmp_path)
    found = client.complete_many([ASK] * 4)
    assert {a.text for a in found} == {"4"} and server.count == 1


def test_settings_come_from_the_environment(serve, monkeypatch, tmp_path):
    with pytest.raises(EndpointMissing, match="ASSAY_LLM_BASE_URL and ASSAY_LLM_MODEL"):
        Client()
    server = serve()
    monkeypatch.setenv("ASSAY_LLM_BASE_URL", server.url)
    monkeypatch.setenv("ASSAY_LLM_MODEL", "small")
    monkeypatch.setenv("ASSAY_LLM_API_KEY", "k")
    monkeypatch.setenv("ASSAY_LLM_CACHE", str(tmp_path))
    client = Client()
    client.complete(ASK)
    assert client.cache is not None and server.headers[0]["authorization"] == "Bearer k"
    assert "k" not in repr(client).replace("small", "")


@pytest.mark.parametrize(
    "options", [{"concurrency": 0}, {"retries": -1}, {"timeout": 0}, {"timeout": float("inf")}, {"prices": (-1, 0)}]
)
def test_settings_are_checked(options):
    with pytest.raises(LLMError):
        Client("http://127.0.0.1:9/v1", "small", cache=False, **options)


def test_an_answer_that_is_none(serve):
    server = serve()
    original = server.server.RequestHandlerClass.do_POST

    def empty(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        raw = b'{"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": []}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    assert original is not empty
    server.server.RequestHandlerClass.do_POST = empty
    with pytest.raises(EndpointRefused, match="without a choice"):
        Client(server.url, "small", cache=False, retries=0).complete(ASK)
