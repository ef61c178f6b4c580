"""The sketch-and-pointer transformer."""

from __future__ import annotations

import pytest
import torch

from assay.formulas import CellRef, FormulaError, SketchPointer, Task, Workbook, build_tasks, make_workbooks, parse
from assay.formulas.learned.decoding import beam
from assay.formulas.learned.features import BUCKETS, bucket, encode
from assay.formulas.learned.model import PointerConfig, PointerNet
from assay.formulas.learned.symbols import INDEX, SIZE, VOCABULARY, Machine, from_formula, to_formula
from assay.formulas.learned.training import _exchanged, examples, tensors, train_pointer
from assay.training import seeded

SMALL = PointerConfig(width=32, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0)


@pytest.fixture(scope="module")
def tasks():
    return build_tasks(make_workbooks(12, seed=6), 200, "fresh", abstain=0, per_function_cap=200)


def test_truths_are_written_and_read_back(tasks):
    written = 0
    for task in tasks:
        given = encode(task)
        if given.symbols is None:
            continue
        written += 1
        assert to_formula(given.symbols, given.choices) == parse(task.truth, task.cell).canonical()
        machine = Machine(given.choices)
        for symbol in given.symbols:
            assert machine.allowed()[symbol], VOCABULARY[symbol] if symbol < SIZE else "pointer"
            machine.push(symbol)
        assert machine.done
    assert written >= 0.9 * len(tasks)


def test_what_cannot_be_written_is_none():
    book = Workbook.from_cells({"S": {"A1": 1.0, "A2": 2.0}})
    task = Task("t", book, CellRef("S", 3, 1))
    choices = encode(task).choices
    for formula in ("SUM(A:A)", "A1*3.14159", "T[a]", "[1]S!A1", "A9", "FILTER(A1:A2,A1:A2>1)"):
        assert from_formula(parse(formula).tree, choices) is None, formula
    assert from_formula(parse("SUM(A1:A2)").tree, choices) is not None


def test_the_machine_never_points_to_the_target_or_to_blanks():
    book = Workbook.from_cells({"S": {"A1": 1.0, "A3": 2.0, "B1": 4.0}})
    choices = encode(Task("t", book, CellRef("S", 2, 1))).choices
    ends = {(i, j) for i, j in zip(*choices.ends(0, int(choices.rows[0].max())).nonzero(), strict=True)}
    for i, j in ends:
        assert not (choices.cols[i] == 1 and choices.rows[i, j] == 3 and choices.rows[0].max() == 1)
    machine = Machine(choices)
    machine.push(INDEX["CELL"])
    assert machine.allowed()[SIZE:].sum() == 3


def test_closing_is_forced():
    book = Workbook.from_cells({"S": {"A1": 1.0}})
    choices = encode(Task("t", book, CellRef("S", 2, 1))).choices
    machine = Machine(choices, limit=20)
    while not machine.done:
        allowed = machine.allowed()
        plus = INDEX["op:+"]
        machine.push(plus if allowed[plus] else int(allowed.nonzero()[0][0]))
    assert len(machine.symbols) <= 20
    parse(to_formula(machine.symbols, choices))


def test_steps_have_classes():
    assert (
        sorted({bucket(s) for s in range(-3000, 3001)})
        == list(range(BUCKETS))[: len({bucket(s) for s in range(-3000, 3001)})]
    )
    assert bucket(0) != bucket(1) != bucket(-1) and bucket(25) == bucket(40) and 0 <= bucket(-(10**6)) < BUCKETS


def test_decoding_is_a_distribution_over_formulas(tasks):
    net = seeded(1, lambda: PointerNet(SMALL)).eval()
    for task in tasks[:10]:
        found = beam(net, encode(task), 5)
        assert found and sum(f.probability for f in found) <= 1.0 + 1e-6
        assert [f.probability for f in found] == sorted((f.probability for f in found), reverse=True)
        for f in found:
            parse(f.formula, task.cell)


def test_padding_does_not_change_the_loss(tasks):
    net = seeded(2, lambda: PointerNet(SMALL)).eval()
    encoded = examples(tasks[:8], SMALL)
    together = net.loss(*tensors(encoded))
    counts = [len(e.symbols) for e in encoded]
    alone = sum(net.loss(*tensors([e])).item() * n for e, n in zip(encoded, counts, strict=True)) / sum(counts)
    assert together.item() == pytest.approx(alone, rel=1e-4)


def test_training_learns_and_a_model_survives_its_file(tasks, tmp_path):
    net, result = train_pointer(tasks[:60], SMALL, epochs=25, lr=4e-3, batch_size=16, seed=0)
    assert result.losses[-1] < 0.35 * result.losses[0]
    system = SketchPointer(net)
    few = [t for t in tasks[:60] if encode(t).symbols is not None][:12]
    before = [[s.formula for s in system.suggest(t, 2)] for t in few]
    right = sum(bool(b) and b[0] == parse(t.truth, t.cell).canonical() for t, b in zip(few, before, strict=True))
    assert right >= 4  # it has seen these
    system.save(tmp_path / "m.pt")
    again = SketchPointer.load(tmp_path / "m.pt")
    assert [[s.formula for s in again.suggest(t, 2)] for t in few] == before
    found = system.suggest(few[0], 1)[0]
    assert found.evidence and 0 < found.score <= 1


def test_weights_of_the_package_write_formulas_in_words_they_never_saw(monkeypatch):
    """Trained on the ordinary vocabulary (`assay formulas train`); the task ``unseen-fresh`` says how well."""
    monkeypatch.delenv("ASSAY_FORMULAS_MODEL", raising=False)
    system = SketchPointer()
    assert sum(p.numel() for p in system.net.parameters()) > 1_000_000
    unseen = build_tasks(make_workbooks(12, 31, vocabulary="unseen"), 30, "fresh", seed=31, abstain=0)
    first = [(t, system.suggest(t, 1)) for t in unseen]
    right = sum(bool(s) and s[0].formula == parse(t.truth, t.cell).canonical() for t, s in first)
    assert right / len(unseen) > 0.7


def test_half_precision_survives_its_file(tasks, tmp_path):
    system = SketchPointer(seeded(4, lambda: PointerNet(SMALL)))
    again = SketchPointer.load(system.save(tmp_path / "m.safetensors"))
    assert again.net.config == system.net.config
    for a, b in zip(system.net.parameters(), again.net.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=1e-4)
    (tmp_path / "m.safetensors").write_bytes(b"no")
    with pytest.raises(FormulaError, match="no model"):
        SketchPointer.load(tmp_path / "m.safetensors")


def test_exchanged_words_keep_what_is_the_same(tasks):
    features, words, _, _ = tensors(examples(tasks[:8], SMALL))
    torch.manual_seed(0)
    moved = _exchanged(features, words)
    text = ((features[..., :1] == 1) | (features[..., :1] == 2)) & (words > 0)
    assert torch.equal(moved[~text.expand_as(words)], words[~text.expand_as(words)])
    changed = [i for i in range(len(words)) if not torch.equal(moved[i], words[i])]
    assert 0 < len(changed) < len(words)
    for i in changed:  # one word goes to one word
        pairs = set(zip(words[i][text[i]].tolist(), moved[i][text[i]].tolist(), strict=True))
        assert len({a for a, _ in pairs}) == len(pairs) == len({b for _, b in pairs})
    assert moved[text].min() > 0


def test_training_repeats_from_its_seed(tasks):
    one, _ = train_pointer(tasks[:20], SMALL, epochs=1, seed=3)
    two, _ = train_pointer(tasks[:20], SMALL, epochs=1, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_bad_input_is_named(tmp_path, monkeypatch):
    with pytest.raises(FormulaError, match="width"):
        PointerConfig(width=30, heads=4)
    with pytest.raises(FormulaError, match="dense or plain"):
        PointerConfig(fmt="xml")
    (tmp_path / "x.pt").write_bytes(b"no")
    with pytest.raises(FormulaError, match="no model"):
        SketchPointer.load(tmp_path / "x.pt")
    monkeypatch.setenv("ASSAY_FORMULAS_MODEL", str(tmp_path / "none.pt"))
    with pytest.raises(FormulaError, match="no trained model"):
        SketchPointer()
    with pytest.raises(FormulaError, match="no example"):
        tensors([])
