"""One pool of processes and one set of references for all tests of the field."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def pool():
    from assay.difftest.testbed.pool import Pool

    with Pool(2) as made:
        yield made


@pytest.fixture(scope="session")
def references(tmp_path_factory):
    from assay.difftest.testbed.suite import References

    return References(tmp_path_factory.mktemp("references"))


@pytest.fixture
def candidate(pool, references, tmp_path):
    """``candidate(config, layout, bug=...)`` gives (result, reference, candidate trace)."""
    from assay.difftest import compare
    from assay.difftest.testbed.launch import launch

    def run(config, layout, folder="candidate", **options):
        reference, tolerance = references.get(config)
        trace = launch(config, layout, tmp_path / folder, reference=reference.folder, pool=pool, **options)
        return compare(reference, trace, tolerance), reference, trace

    return run
