"""Data files: where they are looked for, and what is said when one is not there or not right."""

from __future__ import annotations

import functools
import hashlib
import http.server
import threading
from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.data import DataSource, describe, fingerprint
from assay.core.errors import DataError

CONTENT = b"1,2,3\n"
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server(tmp_path):
    """A small server on this machine."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "a.csv").write_bytes(CONTENT)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("ASSAY_DATA_DIR", raising=False)
    monkeypatch.delenv("ASSAY_OFFLINE", raising=False)
    return tmp_path / "cache" / "f"


def left(folder) -> list[str]:
    return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []


def test_a_file_is_downloaded_once_and_checked(server, cache):
    source = DataSource("f", "a.csv", f"{server}/a.csv", SHA)
    assert describe(source)["state"] == "download"
    assert source.fetch().read_bytes() == CONTENT
    assert left(cache) == ["a.csv"]
    assert DataSource("f", "a.csv", "http://127.0.0.1:1/a.csv", SHA).fetch() == cache / "a.csv"
    assert describe(source)["state"] == "here"


def test_a_wrong_checksum_is_an_error_and_leaves_nothing(server, cache):
    with pytest.raises(DataError, match=f"is not a.csv: sha256 is {SHA}, expected 000.*Nothing was kept"):
        DataSource("f", "a.csv", f"{server}/a.csv", "0" * 64).fetch()
    assert left(cache) == []


def test_no_network_names_the_file_its_address_and_the_folder(cache):
    with pytest.raises(DataError) as caught:
        DataSource("f", "a.csv", "http://127.0.0.1:1/a.csv", SHA).fetch()
    message = str(caught.value)
    assert "a.csv could not be downloaded from http://127.0.0.1:1/a.csv" in message
    assert str(cache) in message
    assert "ASSAY_DATA_DIR" in message
    assert left(cache) == []


def test_a_page_that_is_not_there_leaves_nothing(server, cache):
    with pytest.raises(DataError, match="404"):
        DataSource("f", "b.csv", f"{server}/b.csv").fetch()
    assert left(cache) == []


def test_a_full_disk_is_said_and_leaves_nothing(server, cache, monkeypatch):
    import shutil

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 10, 0))
    with pytest.raises(DataError, match="the disk is full"):
        DataSource("f", "a.csv", f"{server}/a.csv", SHA, size=1000).fetch()
    assert left(cache) == []


def test_a_disk_that_fills_up_during_the_download_leaves_nothing(server, cache, monkeypatch):
    import pooch

    def half(self, url, output_file, pooch):
        with open(output_file, "wb") as file:
            file.write(b"1,")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", half)
    with pytest.raises(DataError, match="the disk is full"):
        DataSource("f", "a.csv", f"{server}/a.csv", SHA).fetch()
    assert left(cache) == []


def test_a_folder_of_the_users_comes_before_the_network(cache, tmp_path, monkeypatch):
    mirror = tmp_path / "mirror"
    (mirror / "f").mkdir(parents=True)
    (mirror / "f" / "a.csv").write_bytes(CONTENT)
    monkeypatch.setenv("ASSAY_DATA_DIR", f"{tmp_path / 'none'}:{mirror}")
    monkeypatch.setenv("ASSAY_OFFLINE", "1")
    assert DataSource("f", "a.csv", "http://127.0.0.1:1/a.csv", SHA).fetch() == mirror / "f" / "a.csv"
    with pytest.raises(DataError, match="Remove that file"):
        DataSource("f", "a.csv", "", "0" * 64).fetch()
    assert DataSource("f", "other.csv", also=("a.csv",)).fetch() == mirror / "f" / "a.csv"


def test_switched_off_and_by_hand_say_what_to_do(cache, monkeypatch):
    monkeypatch.setenv("ASSAY_OFFLINE", "1")
    with pytest.raises(DataError, match="downloading is switched off"):
        DataSource("f", "a.csv", "http://127.0.0.1:1/a.csv").fetch()
    with pytest.raises(DataError, match="must be got by hand from https://example.org/f"):
        DataSource("f", "a.csv", homepage="https://example.org/f").fetch()
    with pytest.raises(DataError, match="not an address"):
        DataSource("f", "a.csv", "file:///etc/passwd").fetch(offline=False)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
        max_leaves=20,
    )
)
def test_equal_data_has_an_equal_fingerprint(value):
    import copy

    assert fingerprint(value) == fingerprint(copy.deepcopy(value))


def test_different_data_has_a_different_fingerprint():
    import pandas as pd
    import scipy.sparse as sp

    values = [
        np.arange(4), np.arange(4.0), np.arange(4).reshape(2, 2), [0, 1, 2, 3], [[0, 1], [2, 3]], "0123", b"0123",
        {"a": 1}, {"a": 2}, {"b": 1}, 1, 1.0, True, None, pd.DataFrame({"a": [1, 2]}), pd.DataFrame({"b": [1, 2]}),
        sp.eye(2).tocsr(), np.array(["a", None], dtype=object),
    ]  # fmt: skip
    assert len({fingerprint(v) for v in values}) == len(values)
    with pytest.raises(DataError, match="give the task a fingerprint"):
        fingerprint(lambda: 0)
