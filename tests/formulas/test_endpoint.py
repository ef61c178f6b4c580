"""The endpoint system against a server on loopback."""

from __future__ import annotations

import json

import pytest

from assay.formulas import CellRef, Endpoint, EndpointError, Engine, Task, Workbook, build_tasks, run
from assay.formulas.endpoint import read_answer, restricted
from assay.formulas.failures import explain_failures
from assay.formulas.runs import judged
from assay.llm import Client


@pytest.fixture
def task():
    cells = {"A1": "Qty", "B1": "Price", "C1": "Total", "A2": 2.0, "B2": 3.5, "A3": "Ada", "B3": 52_000.0}
    book = Workbook.from_cells({"S": cells | {"C2": ("=A2*B2", 7.0)}})
    at = CellRef("S", 2, 3)
    return Task("t", book, at, truth="A2*B2", removed=frozenset([at]))


def _system(endpoint, tmp_path, **options):
    client = Client(endpoint.url, "tiny", cache=tmp_path / "cache", prices=(1.0, 2.0), retries=0)
    return Endpoint(client=client, **options)


def test_a_suggestion_its_cost_and_its_prompt(endpoint, task, tmp_path):
    endpoint.answer = lambda body: (200, '{"formula": "=A2*B2"}')
    system = _system(endpoint, tmp_path)
    found = system.suggest(task)
    assert [s.formula for s in found] == ["A2*B2"] and found[0].source == "llm:tiny:dense"
    path, body, _ = endpoint.requests[0]
    assert path == "/v1/chat/completions"
    sent = body["messages"][1]["content"]
    assert "target S!C2 ?" in sent and "A1:C1 H Qty|Price|Total" in sent and "A2*B2" not in sent
    assert sent == system.preview(task).messages[1]["content"]
    assert system.last_cost(task) == (15.0, pytest.approx(20e-6))
    system.suggest(task)
    assert len(endpoint.requests) == 1  # from the disk


@pytest.mark.parametrize("name", ["dense", "window", "compressed", "region", "sheet_outline", "used_range"])
def test_redacted_prompts_hold_no_value(endpoint, task, tmp_path, name):
    endpoint.answer = lambda body: (200, "=A2*B2")
    system = _system(endpoint, tmp_path, strategy=name, redact=True)
    system.suggest(task)
    sent = json.dumps(endpoint.requests[0][1])
    assert "Ada" not in sent and "52000" not in sent and "3.5" not in sent
    assert "number" in sent


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"formula": "=SUM(A1:A2)"}', ["SUM(A1:A2)"]),
        ('```json\n{"formula": "A1+1"}\n```', ["A1+1"]),
        ("=A1*2\n=A1*3", ["A1*2", "A1*3"]),
        ("The formula is `=A1*2`.", ["A1*2"]),
        ('{"formulas": ["=A1", "=A2"]}', ["A1", "A2"]),
        ('{"formula": "=SUM(A1"}', []),
        ('{"formula": ""}', []),
        ("none", []),
        ('{"formula": "=RC[-1]*2"}', ["B2*2"]),
    ],
)
def test_answers_are_read_leniently(task, text, wanted):
    assert read_answer(text, task) == wanted


def test_circular_and_broken_answers_are_not_shown(endpoint, task, tmp_path):
    endpoint.answer = lambda body: (200, '{"formulas": ["=SUM(C1:C9)", "=A2*", "=A2+B2"]}')
    assert [s.formula for s in _system(endpoint, tmp_path).suggest(task)] == ["A2+B2"]


def test_errors_have_a_name(endpoint, task, tmp_path, monkeypatch):
    endpoint.answer = lambda body: (404, "no such model")
    with pytest.raises(EndpointError, match="404"):
        _system(endpoint, tmp_path).suggest(task)
    for name in ("ASSAY_LLM_BASE_URL", "ASSAY_LLM_MODEL", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EndpointError, match="no endpoint"):
        Endpoint()


def test_samples_vote(endpoint, task, tmp_path):
    answers = iter(["=A2+B2", "=A2*B2", "=A2*B2"])
    endpoint.answer = lambda body: (200, next(answers))
    found = _system(endpoint, tmp_path, samples=3).suggest(task)
    assert [s.formula for s in found] == ["A2*B2", "A2+B2"] and found[0].score > found[1].score


def test_runs_are_keyed_by_the_prompt(endpoint, task, tmp_path):
    endpoint.answer = lambda body: (200, "=A2*B2")
    dense, window = (_system(endpoint, tmp_path, strategy=s) for s in ("dense", "window"))
    assert dense.prompt_hash(task) != window.prompt_hash(task)
    results = run([task], [dense, window], tmp_path / "out", workers=2)
    assert [r.top1 for r in results] == [True, True] and results[0].tokens == 15.0
    run([task], [dense, window], tmp_path / "out")
    assert len(endpoint.requests) == 2


def test_the_failure_split_probes_an_endpoint(endpoint, tmp_path):
    """A model that knows the answer only with the oracle context, one that must be told, one that never knows."""
    cells = {"A1": "Qty", "B1": "Price", "C1": "Total"}
    for i in range(2, 6):
        cells |= {f"A{i}": float(i), f"B{i}": 2.0}
    book = Workbook.from_cells({"S": cells | {f"C{i}": (f"=A{i}*B{i}", 2.0 * i) for i in range(2, 6)}})
    (task,) = build_tasks([book], abstain=0)
    engine = Engine()

    def split(answer):
        endpoint.answer = answer
        endpoint.requests.clear()
        count = sum(1 for _ in tmp_path.iterdir())
        first = _system(endpoint, tmp_path / str(count), budget=200)
        (tmp_path / str(count)).mkdir()
        result = judged(task, "x", first.suggest(task), 0.0, engine)
        assert not result.top1

        def rerun(task, name):
            return _system(endpoint, tmp_path / str(count), strategy=name, budget=None)

        (found,) = explain_failures([task], [result], "dense", 200, rerun=rerun, engine=engine).by_task.values()
        return found

    def said(body):
        return body["messages"][1]["content"]

    wrong, right = "=A2+B2", "=A2*B2"
    assert split(lambda b: (200, wrong if "H Qty" in said(b) else right)) == "understand context"
    assert (
        split(lambda b: (200, right if "wants: the product of Qty and Price" in said(b) else wrong))
        == "understand intent"
    )
    assert split(lambda b: (200, wrong)) == "write formula"
    endpoint.answer = lambda b: (200, wrong)
    result = judged(task, "x", _system(endpoint, tmp_path / "g").suggest(task), 0.0, engine)
    assert explain_failures([task], [result], "dense", 12).counts["gather context"] == 1


def test_systems_that_do_not_read_text_see_the_context_only(task, tmp_path):
    from assay.formulas import strategy

    small = restricted(task, strategy("row_col_headers", None)(task))
    assert small.view.value(CellRef("S", 1, 3)) == "Total" and small.view.value(CellRef("S", 3, 1)) is None
