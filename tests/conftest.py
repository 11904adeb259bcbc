"""What holds for every test."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# A deadline is a timing: on a busy machine it fails by chance.
settings.register_profile("stagescope", deadline=None)
settings.load_profile("stagescope")

# Some shells export it, and output would be laid out for their width.
os.environ.pop("COLUMNS", None)

LONG_TESTS = Path(__file__).with_name("long_tests.txt")


def long_tests() -> frozenset[str]:
    """Return the tests that only `make test-exhaustive` runs, besides those with the marker."""
    lines = LONG_TESTS.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the long tests, before tests are deselected by markers."""
    names = long_tests()
    for item in items:
        if item.nodeid in names or item.nodeid.partition("[")[0] in names:
            item.add_marker("exhaustive")
