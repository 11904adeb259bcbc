"""The names that `import stagescope` offers, and the cost of importing it."""

import doctest
import inspect
import subprocess
import sys

import pytest

import stagescope
import stagescope.api
from places import PACKAGE
from stagescope.api import analyses, reading, serving, simulation, writing


def in_fresh_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_public_names():
    assert stagescope.__all__ == [
        "ClockReport",
        "CommandError",
        "Comparison",
        "Costs",
        "EqualStages",
        "FreeTransfers",
        "InputError",
        "MachineClock",
        "OtherSchedule",
        "OutputError",
        "Report",
        "ScheduleError",
        "SimulatedStep",
        "Slower",
        "StagescopeError",
        "TableError",
        "Timeline",
        "UsageError",
        "Viewer",
        "WhatIf",
        "__version__",
        "analyze",
        "compare",
        "export",
        "open",
        "read",
        "record",
        "schedules",
        "simulate",
        "sql",
        "store",
        "what_if",
    ]


@pytest.mark.parametrize("name", stagescope.__all__)
def test_every_public_name_exists_and_is_documented(name):
    assert inspect.getdoc(getattr(stagescope, name))
    assert name in dir(stagescope)


def test_every_lazy_name_is_public():
    names = {*stagescope._MODULE_OF, *stagescope._FOLDERS, "__version__"}
    assert names == set(stagescope.__all__)


def test_every_lazy_name_of_the_api_is_one_of_its_names():
    assert stagescope.api._MODULE_OF.keys() == set(stagescope.api.__all__)
    assert all(name in dir(stagescope.api) for name in stagescope.api.__all__)


def test_workers_that_analyze_ranges_do_not_load_readers_and_pages():
    others = "{'stagescope.api.formats', 'stagescope.viewer', 'stagescope.ingest.kineto', 'starlette'}"
    code = f"import sys, stagescope.api.range_reports; print({others} & set(sys.modules))"
    assert in_fresh_process(code) == "set()"


def test_results_have_their_notebook_representations_with_the_first_name_of_the_api():
    code = "from stagescope.api import read; from stagescope import model; print(model.Timeline._repr_html_.__name__)"
    assert in_fresh_process(code) == "timeline_html"


def test_a_star_import_imports_the_public_names():
    public = "{'Report', 'Timeline', 'analyze', 'export', 'read'}"
    assert in_fresh_process(f"from stagescope import *; print({public} - set(dir()))") == "set()"


@pytest.mark.parametrize("module", ["stagescope", "stagescope.cli"])
def test_importing_it_loads_no_heavy_library(module):
    heavy = "{'polars', 'numpy', 'rich', 'torch', 'scipy', 'msgspec'}"
    assert in_fresh_process(f"import sys, {module}; print({heavy} & set(sys.modules))") == "set()"


def test_errors_are_importable_without_heavy_libraries():
    code = "import sys; from stagescope import InputError; print({'polars', 'numpy'} & set(sys.modules))"
    assert in_fresh_process(code) == "set()"


def test_no_folder_has_the_name_of_a_public_verb():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert folders & set(stagescope.__all__) == {"record", "schedules"}


def test_an_unknown_name_raises_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'stagescope' has no attribute 'nothing'"):
        _ = stagescope.nothing


def test_version():
    assert stagescope.__version__.count(".") == 2


@pytest.mark.parametrize("module", [analyses, reading, serving, simulation, writing])
def test_the_examples_of_the_api_run(module):
    failed, attempted = doctest.testmod(module)
    assert failed == 0
    assert attempted > 0
