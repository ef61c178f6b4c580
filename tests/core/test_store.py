"""The folder of runs: what is trusted, what is named and left alone, and the index over it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from assay.core.run import RunRecord
from assay.core.store import Store


def save(
    store: Store, key: str, seed: int = 0, *, status: str = "ok", value: float = 0.5, benchmark: str = "b"
) -> RunRecord:
    store.prepare(benchmark)
    metrics = {"acc": value} if status == "ok" else {}
    record = RunRecord(
        key=key, benchmark=benchmark, version="1", task="t", method="m", seed=seed, status=status, metrics=metrics
    )
    return store.commit(record, store.stage(benchmark, key))


def rows(store: Store) -> list[tuple]:
    connection = store.connect("b")
    try:
        return connection.execute("SELECT key, seed, status FROM runs ORDER BY key").fetchall()
    finally:
        connection.close()


def test_a_record_comes_back_as_it_was(tmp_path):
    store = Store(tmp_path)
    saved = save(store, "k1", 3, value=0.1 + 0.2)
    assert store.read("b", "k1") == saved
    assert store.read("b", "k1").metrics["acc"] == 0.1 + 0.2


def test_the_default_folder_is_the_one_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("ASSAY_RUNS", str(tmp_path / "x"))
    assert Store().root == tmp_path / "x"


def test_the_first_result_of_a_key_stays(tmp_path):
    store = Store(tmp_path)
    save(store, "k1", value=0.25)
    assert save(store, "k1", value=0.75).metrics["acc"] == 0.25
    assert store.read("b", "k1").metrics["acc"] == 0.25


def test_a_failed_run_gives_way_to_a_good_one_and_not_the_other_way_round(tmp_path):
    store = Store(tmp_path)
    save(store, "k1", status="failed")
    assert rows(store) == [("k1", 0, "failed")]
    save(store, "k1", value=0.5)
    assert rows(store) == [("k1", 0, "ok")]
    assert save(store, "k1", status="failed").status == "ok"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"key": "k2", "benchm', "cannot be read"),
        (b"", "cannot be read"),
        (b'{"some": "other file"}', "cannot be read"),
        (b"\x00\xff\x00", "cannot be read"),
    ],
)
def test_a_truncated_or_foreign_file_is_named_skipped_and_kept(tmp_path, content, reason):
    store = Store(tmp_path)
    save(store, "k1")
    folder = tmp_path / "b" / "k2"
    folder.mkdir()
    (folder / "run.json").write_bytes(content)
    (tmp_path / "b" / "k3").mkdir()
    (tmp_path / "b" / "k3" / "holiday.jpg").write_bytes(b"jpg")
    assert [row[0] for row in rows(store)] == ["k1"]
    assert store.finished("b", ["k1", "k2", "k3"]) == {"k1": "ok"}
    problems = {p.path.name: p.reason for p in store.problems("b")}
    assert sorted(problems) == ["k2", "k3"]
    assert reason in problems["k2"]
    assert problems["k3"] == "holds no run.json"
    save(store, "k2", 2)  # the run is done again; the strange folder is set aside, not deleted
    assert [row[0] for row in rows(store)] == ["k1", "k2"]
    (aside,) = (tmp_path / "b").glob("set-aside.k2.*")
    assert (aside / "run.json").read_bytes() == content
    assert (tmp_path / "b" / "k3" / "holiday.jpg").exists()


def test_a_record_in_the_wrong_folder_is_not_trusted(tmp_path):
    store = Store(tmp_path)
    save(store, "k1")
    os.rename(tmp_path / "b" / "k1", tmp_path / "b" / "k9")
    assert store.read("b", "k9") is None
    assert "is of the run b/k1" in store.problems("b")[0].reason
    assert rows(store) == []


def test_the_index_follows_files_that_come_change_and_go(tmp_path):
    import shutil

    store = Store(tmp_path)
    for i in range(5):
        save(store, f"k{i}", i)
    assert len(rows(store)) == 5
    shutil.rmtree(tmp_path / "b" / "k0")
    save(store, "k7", 7)
    path = tmp_path / "b" / "k1" / "run.json"
    record = store.read("b", "k1")
    record.seed = 99
    path.write_text(record.model_dump_json())
    assert rows(store) == [("k1", 99, "ok"), ("k2", 2, "ok"), ("k3", 3, "ok"), ("k4", 4, "ok"), ("k7", 7, "ok")]
    (tmp_path / "b" / ".index.parquet").write_bytes(b"not a parquet file")
    assert len(rows(store)) == 5


def test_new_metrics_get_columns_of_their_own(tmp_path):
    store = Store(tmp_path)
    save(store, "k1")
    rows(store)
    record = RunRecord(
        key="k2", benchmark="b", version="1", task="t'x", method='m"y', seed=1, status="ok", metrics={"loss'": 2.0}
    )
    store.commit(record, store.stage("b", "k2"))
    connection = store.connect("b")
    assert connection.execute('SELECT "m:acc", "m:loss\'" FROM runs ORDER BY key').fetchall() == [
        (0.5, None),
        (None, 2.0),
    ]


def test_a_store_that_cannot_be_written_can_be_read(tmp_path):
    store = Store(tmp_path)
    save(store, "k1")
    (tmp_path / "b").chmod(0o555)
    try:
        assert rows(store) == [("k1", 0, "ok")]
    finally:
        (tmp_path / "b").chmod(0o755)


def test_a_claim_keeps_others_out_while_its_process_lives(tmp_path):
    store = Store(tmp_path)
    store.prepare("b")
    with store.claim("b", "k1") as mine:
        assert mine
        with Store(tmp_path).claim("b", "k1") as theirs:
            assert not theirs
        assert store.claimed_elsewhere("b", "k1")
    assert not store.claimed_elsewhere("b", "k1")


def test_the_claim_of_a_dead_process_is_taken_over(tmp_path):
    store = Store(tmp_path)
    store.prepare("b")
    code = (
        "import os, sys; from assay.core.store import Store; s = Store(sys.argv[1]); "
        "c = s.claim('b', 'k1'); assert c.__enter__(); os._exit(1)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 1
    assert (tmp_path / "b" / ".claims" / "k1").exists()
    with store.claim("b", "k1") as mine:
        assert mine


def test_the_claim_of_another_machine_holds_while_it_is_fresh(tmp_path):
    store = Store(tmp_path)
    store.prepare("b")
    path = tmp_path / "b" / ".claims" / "k1"
    path.write_text("another-machine 1")
    with store.claim("b", "k1") as mine:
        assert not mine
    old = time.time() - 1000
    os.utime(path, (old, old))
    with store.claim("b", "k1") as mine:
        assert mine


def test_what_a_dead_process_left_half_done_is_swept(tmp_path):
    import socket

    store = Store(tmp_path)
    store.prepare("b")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = tmp_path / "b" / ".staging" / f"k1.{socket.gethostname()}.{dead.pid}.abc"
    other = tmp_path / "b" / ".staging" / f"k1.another-machine.{dead.pid}.abc"
    left.mkdir()
    other.mkdir()
    store.prepare("b")
    assert not left.exists()
    assert other.exists()


def test_a_claim_that_was_never_written_whole_does_not_hold_for_long(tmp_path):
    store = Store(tmp_path)
    store.prepare("b")
    path = tmp_path / "b" / ".claims" / "k1"
    path.touch()
    old = time.time() - 10
    os.utime(path, (old, old))
    with store.claim("b", "k1") as mine:
        assert mine
        assert path.read_text().split(" ")[1] == str(os.getpid())
    assert list(path.parent.iterdir()) == []


def test_of_many_takers_of_a_stale_claim_one_gets_it(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    store = Store(tmp_path)
    store.prepare("b")
    for round_ in range(20):
        path = tmp_path / "b" / ".claims" / f"k{round_}"
        path.write_text("another-machine 1 0")
        old = time.time() - 1000
        os.utime(path, (old, old))
        with ThreadPoolExecutor(8) as pool:
            taken = list(pool.map(lambda _, path=path: store._take(path), range(8)))
        assert sum(taken) == 1
