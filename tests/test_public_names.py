"""The names that `import stagescope` offers, and what importing it costs."""

import doctest
import inspect
import subprocess
import sys

import pytest

import stagescope
from places import PACKAGE
from stagescope import api as workflow


def in_fresh_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_public_names_are_these():
    assert stagescope.__all__ == [
        "Report",
        "Timeline",
        "__version__",
        "analyze",
        "compare",
        "export",
        "read",
        "record",
        "schedules",
        "what_if",
    ]


def test_every_public_name_can_be_reached_and_is_documented():
    for name in stagescope.__all__:
        assert inspect.getdoc(getattr(stagescope, name))
        assert name in dir(stagescope)


def test_a_star_import_brings_the_public_names():
    public = "{'Report', 'Timeline', 'analyze', 'export', 'read'}"
    assert in_fresh_process(f"from stagescope import *; print({public} - set(dir()))") == "set()"


@pytest.mark.parametrize("module", ["stagescope", "stagescope.cli"])
def test_importing_it_loads_no_heavy_library(module):
    heavy = "{'polars', 'numpy', 'rich', 'torch', 'scipy', 'msgspec'}"
    assert in_fresh_process(f"import sys, {module}; print({heavy} & set(sys.modules))") == "set()"


def test_no_folder_has_the_name_of_a_public_verb():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert folders & set(stagescope.__all__) == {"record", "schedules"}


def test_an_unknown_name_is_an_ordinary_attribute_error():
    with pytest.raises(AttributeError, match="module 'stagescope' has no attribute 'nothing'"):
        _ = stagescope.nothing


def test_it_says_its_version():
    assert stagescope.__version__.count(".") == 2


def test_the_examples_in_the_workflow_run():
    failed, attempted = doctest.testmod(workflow)
    assert failed == 0
    assert attempted > 5
