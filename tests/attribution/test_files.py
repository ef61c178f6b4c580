"""Readers, the command line, tables ranked by suspicion, pages and plots."""

from __future__ import annotations

import csv
import gzip
import pickle
import struct

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from assay.attribution import (
    CheckpointMismatch,
    DataFormatError,
    GradDot,
    Influence,
    Vocabulary,
    compare,
    explain_html,
    flip_labels,
    plot_comparison,
    plot_curve,
    plot_rows,
    plot_tradeoff,
    rank_rows,
    read_cifar,
    read_image_folder,
    read_jsonl,
    read_mnist,
    read_state,
    read_table,
    read_tsv,
    tradeoff_chart,
    write_report,
)
from assay.attribution.cli import app
from assay.attribution.metrics.result import from_rows


def idx(array, kind=8):
    return struct.pack(">HBB", 0, kind, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def test_mnist_files(tmp_path, rng):
    images, labels = rng.integers(0, 256, (5, 28, 28), dtype=np.uint8), np.arange(5, dtype=np.uint8)
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx(images)))
    (tmp_path / "y").write_bytes(idx(labels))
    X, y = read_mnist(tmp_path / "x.gz", tmp_path / "y")
    np.testing.assert_allclose(X * 255, images, atol=1e-4)
    assert y.tolist() == [0, 1, 2, 3, 4]
    (tmp_path / "cut").write_bytes(idx(images)[:-7])
    with pytest.raises(DataFormatError, match="its header says 3920"):
        read_mnist(tmp_path / "cut")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(DataFormatError, match="not an IDX file"):
        read_mnist(tmp_path / "text")
    with pytest.raises(DataFormatError, match="label file"):
        read_mnist(tmp_path / "y")


def test_cifar_batches_are_read_without_running_what_is_in_them(tmp_path, rng):
    data = rng.integers(0, 256, (4, 3072), dtype=np.uint8)
    (tmp_path / "batch").write_bytes(pickle.dumps({b"data": data, b"labels": [1, 2, 3, 4]}, protocol=2))
    X, y = read_cifar(tmp_path / "batch")
    assert X.shape == (4, 3, 32, 32) and y.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(X.reshape(4, -1) * 255, data, atol=1e-4)

    class Evil:
        def __reduce__(self):
            import os

            return os.system, (f"touch {tmp_path / 'pwned'}",)

    (tmp_path / "evil").write_bytes(pickle.dumps({b"data": Evil()}))
    with pytest.raises(DataFormatError, match="only arrays, texts and lists are read"):
        read_cifar(tmp_path / "evil")
    assert not (tmp_path / "pwned").exists()
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(DataFormatError, match="not a CIFAR batch"):
        read_cifar(tmp_path / "junk")


def test_image_folders(tmp_path, rng):
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(2):
            Image.fromarray(rng.integers(0, 256, (9, 11, 3), dtype=np.uint8)).save(tmp_path / name / f"{i}.png")
    X, y, classes, names = read_image_folder(tmp_path, (8, 8))
    assert (
        X.shape == (4, 3, 8, 8) and y.tolist() == [0, 0, 1, 1] and classes == ["cat", "dog"] and names[3] == "dog/1.png"
    )
    (tmp_path / "dog" / "bad.png").write_bytes(b"no image")
    with pytest.raises(DataFormatError, match="bad.png cannot be read"):
        read_image_folder(tmp_path)


def test_texts(tmp_path):
    (tmp_path / "qnli.tsv").write_text('index\tquestion\tsentence\tlabel\n0\tWho "?\tHe.\tentailment\n1\tA\tB\tnot\n')
    texts, y, classes = read_tsv(tmp_path / "qnli.tsv", ["question", "sentence"], "label")
    assert texts[0] == 'Who "? [SEP] He.' and y.tolist() == [0, 1] and classes == ["entailment", "not"]
    (tmp_path / "bad.tsv").write_text("a\tb\n1\n")
    with pytest.raises(DataFormatError, match="line 2: 1 cells"):
        read_tsv(tmp_path / "bad.tsv", ["a"], "b")
    (tmp_path / "x.jsonl").write_text('{"text": "hello", "y": 1}\n\n{"text": "bye", "y": 0}\n')
    assert read_jsonl(tmp_path / "x.jsonl", label="y") == (["hello", "bye"], [1, 0])
    (tmp_path / "y.jsonl").write_text('{"text": 1}\n{oops}\n')
    with pytest.raises(DataFormatError, match="line 2"):
        read_jsonl(tmp_path / "y.jsonl")
    words = Vocabulary.build(["a b b c", "b a"], size=2)
    assert words.encode_all(["a z b"], 5, start=True).tolist() == [[2, 5, 1, 4, 0]]
    assert Vocabulary.build(["a b b"], special=()).counts(["b b a q"]).tolist() == [[2, 1]]


def test_states(tmp_path):
    from safetensors.torch import save_file

    state = {"weight": torch.ones(2, 2)}
    save_file(state, tmp_path / "a.safetensors")
    torch.save({"model": state}, tmp_path / "b.pt")
    for name in ("a.safetensors", "b.pt"):
        assert torch.equal(read_state(tmp_path / name)["weight"], state["weight"])
    torch.save({"epoch": 3}, tmp_path / "c.pt")
    with pytest.raises(CheckpointMismatch, match="no state_dict"):
        read_state(tmp_path / "c.pt")


@pytest.fixture
def table(tmp_path, rng):
    """A table with numbers, a category, an empty cell, free text and 12 wrong labels."""
    n = 150
    kind = rng.integers(0, 2, n)
    labels, bad = flip_labels(kind, 0.08)
    path = tmp_path / "train.csv"
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["size", "colour", "note", "label"])
        for i in range(n):
            size = "" if i == 3 else f"{3 * kind[i] + rng.normal():.3f}"
            out.writerow(
                [
                    size,
                    "red" if rng.random() < 0.9 - 0.8 * kind[i] else "blue",
                    f"=cell {i}",
                    ["ok", "fault"][labels[i]],
                ]
            )
    return path, bad


def test_tables(table, tmp_path):
    path, _ = table
    found = read_table(path, "label")
    assert found.classes == ["fault", "ok"]
    assert found.features == ["size", "size is empty", "colour=blue", "colour=red"]
    assert abs(found.X[:, 0].mean()) < 1e-6
    with pytest.raises(DataFormatError, match="no column 'y'"):
        read_table(path, "y")
    with pytest.raises(DataFormatError, match="there is no file"):
        read_table(tmp_path / "gone.csv", "y")
    (tmp_path / "one.csv").write_text("a,y\n1,x\n2,x\n")
    with pytest.raises(DataFormatError, match="one value only"):
        read_table(tmp_path / "one.csv", "y")
    (tmp_path / "hole.csv").write_text("a,y\n1,x\n2,\n")
    with pytest.raises(DataFormatError, match="row 1"):
        read_table(tmp_path / "hole.csv", "y")


@pytest.mark.parametrize("way", ["combined", "out-of-fold", "linear", "self-influence", "ekfac", "gradcos", "knn"])
def test_wrong_labels_come_first(table, way):
    path, bad = table
    found = rank_rows(read_table(path, "label"), way=way)
    first = bad[found.order[: bad.sum()]].mean()
    assert first > (0.7 if way == "combined" else 0.25)  # prevalence is 0.08
    assert sorted(found.order.tolist()) == list(range(150))


def test_rank_in_one_command(table, tmp_path):
    path, bad = table
    out = tmp_path / "suspicious.csv"
    done = CliRunner().invoke(app, ["rank", "--data", str(path), "--label", "label", "--out", str(out)])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 150
    assert np.mean([bad[int(r["row"])] for r in rows[: bad.sum()]]) > 0.7
    assert rows[0]["note"].startswith("'=cell")  # no formula for a spreadsheet to run
    assert rows[0]["suggested_label"] in ("ok", "fault")
    assert "most suspicious first" in done.output


def test_rank_of_a_regression(tmp_path, rng):
    x = rng.normal(size=(120, 3))
    y = x @ [1.0, 2.0, -1.0] + 0.1 * rng.normal(size=120)
    y[[5, 50]] += 8
    rows = "\n".join(",".join(f"{v:.4f}" for v in (*a, b)) for a, b in zip(x, y, strict=True))
    (tmp_path / "r.csv").write_text(f"a,b,c,price\n{rows}\n")
    found = rank_rows(read_table(tmp_path / "r.csv", "price"))
    assert {5, 50} <= set(found.order[:5].tolist())


def test_bench_and_report_on_the_command_line(tmp_path):
    from sklearn.datasets import load_iris

    X, y = load_iris(return_X_y=True)
    np.savez(tmp_path / "iris.npz", X=X, y=y)
    words = [
        "bench", "--kind", "mislabel", "--kind", "class", "--data", str(tmp_path / "iris.npz"), "--out",
            str(tmp_path / "run"),
        "--methods", "random,graddot,influence", "--epochs", "5", "--hidden", "8",
    ]  # fmt: skip
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "report.html").read_text().startswith("<!doctype html>")
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 0
    shown = CliRunner().invoke(app, ["report", str(tmp_path / "run")])
    assert "influence" in shown.output and "best" in shown.output
    np.savez(tmp_path / "z.npz", Z=X)
    with pytest.raises(DataFormatError, match="it needs X and y"):
        CliRunner().invoke(
            app,
            ["bench", "-k", "class", "--data", str(tmp_path / "z.npz"), "-o", str(tmp_path / "q")],
            catch_exceptions=False,
        )


def test_the_command_of_the_root_gives_one_line_and_2(tmp_path):
    import subprocess
    import sys

    words = [sys.executable, "-m", "assay", "attribution", "rank", "--data", str(tmp_path / "no.csv"), "--label", "y"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no file" in done.stderr and "Traceback" not in done.stderr


def test_pages_escape_what_they_show(small, tmp_path):
    data = small.data
    method = Influence().fit(small.model, data.X_train, data.y_train)
    texts = [f"<script>alert({i})</script>" for i in range(300)]
    page = explain_html(
        method, data.X_test[:2], data.y_test[:2], data.X_train, data.y_train, k=3, kind="text", texts=texts,
        test_texts=["<b>a</b>", "b"], classes=[f"<{c}>" for c in range(10)], path=tmp_path / "page.html",
    )  # fmt: skip
    assert "<script>" not in page and "&lt;script&gt;" in page and "<b>a</b>" not in page
    assert (tmp_path / "page.html").read_text() == page
    assert page.count("proponents</th>") == 2
    for kind in ("image", "table"):
        shown = explain_html(method, data.X_test[:2], data.y_test[:2], data.X_train, data.y_train, kind=kind)
        assert ("data:image/png" in shown) == (kind == "image")
    best = int(method.top_k(data.X_test[:1], data.y_test[:1], 1)[0][0, 0])
    assert f'<td class="n">{best}</td>' in page


def test_plots_show_what_they_are_given(small, tmp_path, rng):
    base = rng.random(30)
    found = compare({
        "a": {"lds": from_rows("lds", base, 0.0, 1.0), "class": from_rows("class", base, 0.0, 1.0)},
        "b": {"lds": from_rows("lds", base - 0.2, 0.0, 1.0), "class": from_rows("class", base + 0.1, 0.0, 1.0)},
    })  # fmt: skip
    axes = plot_comparison(found)
    assert [t.get_text() for t in axes.get_yticklabels()] == list(found.mean_rank())
    axes = plot_tradeoff(found, "lds", "class")
    assert {t.get_text() for t in axes.texts} == {"a", "b"}
    chart = tradeoff_chart(found, "lds", "class").to_dict()
    assert len(chart["layer"]) == 4
    axes = plot_curve({"x": np.linspace(0, 1, 10)}, x_label="rows", y_label="found", chance=([0, 1], [0, 1]))
    assert len(axes.lines) == 2
    method = GradDot().fit(small.model, small.data.X_train, small.data.y_train)
    indices, scores = method.top_k(small.data.X_test[:3], small.data.y_test[:3], 4)
    figure = plot_rows(small.data.X_test[:3], small.data.X_train, indices, scores, labels=small.data.y_train)
    assert len(figure.axes) == 15
    page = write_report(found, tmp_path)
    assert "not told apart" in page.read_text() or "all others are worse" in page.read_text()
    assert found.plot() is not None
