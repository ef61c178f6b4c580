"""Shared by the tests of the field: public tables, or a skip that names the file."""

from __future__ import annotations

import pytest


@pytest.fixture
def table():
    """`load`, or a skip that names the file where it is not on this machine."""
    from assay.core.errors import DataError
    from assay.diagnosis import load

    def get(name: str):
        try:
            return load(name)
        except DataError as error:
            pytest.skip(str(error))

    return get
