"""The examples in docstrings run, and no module hides a public name; tests/test_docs.py compares the document."""

import doctest
import pkgutil

from stagescope import schedules
from stagescope.schedules import catalog


def test_examples_in_the_package_run():
    for module in (schedules, catalog):
        assert doctest.testmod(module).failed == 0


def test_no_submodule_has_the_name_of_a_public_function():
    submodules = {module.name for module in pkgutil.walk_packages(schedules.__path__)}
    assert not submodules & set(schedules.__all__)
