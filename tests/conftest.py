"""Shared by all tests: where real data lies, and no test may use the network or the user's folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
if "ASSAY_DATA_DIR" not in os.environ and _BESIDE.is_dir():
    os.environ["ASSAY_DATA_DIR"] = str(_BESIDE)
os.environ.setdefault("ASSAY_OFFLINE", "1")
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(root / "cache"))
    monkeypatch.setenv("ASSAY_RUNS", str(root / "runs"))


@pytest.fixture
def public_stream():
    """`load`, or a skip that names the file where it is not on this machine."""
    from assay.core.errors import DataError
    from assay.streams import load

    def get(name: str, **options):
        try:
            return load(name, **options)
        except DataError as error:
            pytest.skip(str(error))

    return get


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The limit of an ordinary test does not hold for slow ones; one that hangs still ends."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))
