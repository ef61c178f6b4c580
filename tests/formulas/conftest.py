"""Shared by the field's tests: public workbooks where they lie on this machine, made tasks, a local endpoint."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from assay.core.errors import DataError
from assay.formulas import Workbook, build_tasks, make_workbooks
from assay.formulas.data import SOURCES


@pytest.fixture(scope="session")
def public():
    """A public workbook by name, or a skip that names the file where it is not on this machine."""
    known = {}

    def get(name: str) -> Workbook:
        if name not in known:
            try:
                known[name] = Workbook.open(SOURCES[name].fetch(offline=True))
            except DataError as error:
                pytest.skip(str(error))
        return known[name]

    return get


@pytest.fixture(scope="session")
def public_path():
    def get(name: str):
        try:
            return SOURCES[name].fetch(offline=True)
        except DataError as error:
            pytest.skip(str(error))

    return get


@pytest.fixture(scope="session")
def made_books():
    return make_workbooks(24, seed=2)


@pytest.fixture(scope="session")
def fresh(made_books):
    return build_tasks(made_books, 120, "fresh", seed=2)


@pytest.fixture(scope="session")
def extend(made_books):
    return build_tasks(made_books, 120, "extend", seed=2)


class LocalEndpoint:
    """A server on loopback that speaks the protocol; ``answer(body) -> (status, text)`` says what it says."""

    def __init__(self):
        self.requests = []
        self.answer = lambda body: (200, "ok")
        self.busy = self.peak = 0
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.requests.append((self.path, body, dict(self.headers)))
                    outer.busy += 1
                    outer.peak = max(outer.peak, outer.busy)
                status, text = outer.answer(body)
                if status == 200:
                    data = {
                        "id": "x",
                        "object": "chat.completion",
                        "created": 1,
                        "model": body["model"],
                        "choices": [
                            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
                        ],
                        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
                    }
                else:
                    data = {"error": {"message": text, "type": "x"}}
                raw = json.dumps(data).encode()
                with lock:
                    outer.busy -= 1
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def endpoint():
    server = LocalEndpoint()
    yield server
    server.close()
