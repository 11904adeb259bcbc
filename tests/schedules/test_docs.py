"""The examples in docstrings run; tests/test_docs.py compares the document with the catalog."""

import doctest

from stagescope import schedules
from stagescope.schedules import catalog


def test_examples_in_the_package_run():
    for module in (schedules, catalog):
        assert doctest.testmod(module).failed == 0
