"""The examples in the texts of the package are true; tests/test_docs.py holds the page to the catalog."""

import doctest

from stagescope import schedules
from stagescope.schedules import catalog


def test_examples_in_the_package_run():
    for module in (schedules, catalog):
        assert doctest.testmod(module).failed == 0
