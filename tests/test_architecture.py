"""The package obeys the architecture rules of tests/architecture.py, and each rule can fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from architecture import LEVEL, RULES, THIRD_PARTY, Finding, Module, modules

PACKAGE = Path(__file__).parents[1] / "src" / "stagescope"

EXCEPTIONS: dict[tuple[str, str, str], str] = {
    # (rule, module, the thing in it): reason
    ("parameters_stay_few", "api/reading.py", "read"): (
        "the public keywords: help(), editors and type checkers show them only if they are parameters"
    ),
    ("parameters_stay_few", "api/writing.py", "export"): "same",
    ("parameters_stay_few", "api/ascend_chart.py", "export_pp_chart"): "same",
    ("parameters_stay_few", "api/simulation.py", "simulate"): "same",
    ("parameters_stay_few", "api/serving.py", "open"): "same",
    ("parameters_stay_few", "api/serving.py", "prepare_viewer"): "same",
    ("parameters_stay_few", "api/storing.py", "store"): "same",
    ("parameters_stay_few", "api/running.py", "control"): "same",
    ("parameters_stay_few", "record/session.py", "start"): "same",
    ("parameters_stay_few", "record/emitter.py", "emit"): (
        "runs once per span inside the training process: passing plain fields avoids allocating an object"
    ),
    ("parameters_stay_few", "record/emitter.py", "emit_action"): "same",
    ("parameters_stay_few", "record/timing.py", "_end_on_host"): "same: it passes them on",
    ("parameters_stay_few", "record/devices/device_timer.py", "end"): "same",
    ("only_the_recorder_needs_linux", "execution/spawning.py", "signal.pthread_sigmask"): (
        "not used where a system does not have it: workers only ignore Ctrl-C there"
    ),
    ("only_the_recorder_needs_linux", "cli/interrupts.py", "signal.pthread_kill"): (
        "not used on Windows, which has no system calls that a signal ends"
    ),
    ("only_the_recorder_needs_linux", "execution/spawning.py", "os.sched_getaffinity"): (
        "used where it exists, see test_platforms.py"
    ),
    ("only_the_recorder_needs_linux", "viewer/tiles/levels.py", "os.pread"): "same",
    ("only_the_recorder_needs_linux", "viewer/server/connections.py", "resource"): "same",
    (
        "only_the_recorder_needs_linux",
        "api/query_process.py",
        "resource",
    ): "memory is bounded where it can be",
    ("only_the_recorder_needs_linux", "viewer/tiles/cache.py", "os.kill"): "not called on Windows",
}

HEAVY = ("numpy", "polars", "pyarrow", "resvg_py", "rich", "scipy", "starlette", "torch", "uvicorn")


@cache
def parsed_modules(package: Path) -> tuple[Module, ...]:
    """Return the modules of a package; parsing 400 files takes two CPU seconds, so each package is parsed once."""
    return tuple(modules(package))


@cache
def violations(package: Path, rule) -> tuple[Finding, ...]:
    """Return what a rule finds in a package; three tests ask for the same."""
    return tuple(finding for module in parsed_modules(package) for finding in rule(module))


def findings(package: Path, *rules) -> list[tuple[str, Finding]]:
    return [(rule.__name__, finding) for rule in rules for finding in violations(package, rule)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_package_obeys_the_rule(rule):
    broken = [
        str(finding)
        for name, finding in findings(PACKAGE, rule)
        if (name, finding.path, finding.thing) not in EXCEPTIONS
    ]
    assert broken == []


def test_every_exception_is_still_needed():
    used = {(name, finding.path, finding.thing) for name, finding in findings(PACKAGE, *RULES)}
    assert set(EXCEPTIONS) - used == set()


def test_every_folder_has_a_row():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    known = {finding.thing for _, finding in findings(PACKAGE, *RULES) if "no row" in finding.sentence}
    assert folders & known == set()


def test_document_lists_the_rows_that_the_rules_enforce():
    text = (PACKAGE.parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| `(\w+)` \|.*\| ([\w, ]+) \|$", text, re.MULTILINE)
    drawn = {part: (int(row), used.lower().replace("standard library", "")) for row, part, used in rows}
    held = {part: (level + 1, THIRD_PARTY[part]) for part, level in LEVEL.items()}
    assert {part: (row, set(filter(None, used.split(", ")))) for part, (row, used) in drawn.items()} == held


def imported_by(*code: str) -> set[str]:
    """Return the heavy libraries that a new process has loaded after running some code."""
    report = f"import json; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(["import sys", *code, report])],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        timeout=60,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("module", ["stagescope", "stagescope.record", "stagescope.cli"])
def test_import_loads_no_heavy_library(module):
    assert imported_by(f"import {module}") == set()


def test_help_loads_no_heavy_library():
    call = ["from stagescope.cli import main", "sys.argv = ['stagescope', '--help']"]
    attempt = ["try:", "    main()", "except SystemExit:", "    pass"]
    assert imported_by(*call, *attempt) == set()


def test_import_check_detects_a_heavy_library():
    assert imported_by("import numpy") == {"numpy"}


DEEP = """
def walk(rows):
    for row in rows:
        if row:
            with row:
                while row:
                    row.pop()
"""
LEVEL_WITH_ELIF = """
def choose(rows):
    for row in rows:
        if row == 1:
            pass
        elif row == 2:
            pass
        elif row == 3:
            while row:
                row.pop()
"""
NESTED_FUNCTION = """
def outer(rows):
    for row in rows:
        if row:
            def inner():
                for cell in row:
                    if cell:
                        yield cell
"""
WIDE_COMMAND = """
import click
@click.command()
@click.option("--a")
def command(a, b, c, d, e, f):
    pass
"""
LONG_FUNCTION = "def long():\n" + "    x = 1\n" * 61
LONG_DOCSTRING = 'def short():\n    """Return nothing.\n' + "\n    more\n" * 61 + '    """\n    return None\n'
REASONED = "try:\n    pass\nexcept Exception:  # noqa: BLE001 - recording never stops a training\n    pass\n"
REASONED_BELOW = "try:\n    pass\nexcept Exception:\n    # recording never stops a training\n    pass\n"

VIOLATIONS = {
    "imports up": ("model/a.py", "import stagescope.cli", "model must not import cli"),
    "imports sideways": (
        "ingest/a.py",
        "from stagescope.analysis import bubbles",
        "ingest must not import analysis",
    ),
    "imports sideways by a relative path": (
        "record/a.py",
        "from ..model import x",
        "record must not import model",
    ),
    "imports up inside a function": (
        "exporters/a.py",
        "def f():\n    from stagescope import viewer",
        "must not import viewer",
    ),
    "imports up for the type checker": (
        "clocks/a.py",
        "if TYPE_CHECKING:\n    from stagescope.api import x",
        "clocks must not import api",
    ),
    "imports up by a literal name": (
        "schedules/a.py",
        "import importlib\nimportlib.import_module('stagescope.reports')",
        "schedules must not import reports",
    ),
    "imports an entry module": ("reports/a.py", "from stagescope import read", "is in no row"),
    "island imports the package": (
        "demo/a.py",
        "from stagescope.vocabulary import kinds",
        "demo must not import vocabulary",
    ),
    "lower row imports an island": (
        "reports/a.py",
        "import stagescope.demo.train",
        "reports must not import demo",
    ),
    "reader imports reader": (
        "ingest/nsight/a.py",
        "from ..kineto import b",
        "nsight must not import its sibling kineto",
    ),
    "writer imports writer": (
        "exporters/perfetto/a.py",
        "from stagescope.exporters.chrome import x",
        "perfetto must not import its sibling chrome",
    ),
    "recorder uses a library": ("record/a.py", "def f():\n    import numpy", "record must not import numpy"),
    "torch outside the recorder": ("analysis/a.py", "import torch.nn", "analysis must not import torch"),
    "torch beside the frameworks": ("record/steps.py", "import torch", "record must not import torch"),
    "command computes": ("cli/a.py", "import polars as pl", "cli must not import polars"),
    "folder without a row": ("plots/a.py", "", "plots is in no row"),
    "module without a row": ("plots.py", "", "plots is in no row"),
    "module name without content": ("model/string_utils.py", "", "'utils' does not describe"),
    "folder name without content": ("model/common/a.py", "", "'common' does not describe"),
    "long module": ("reports/a.py", "x = 1\n" * 401, "401 lines, at most 400"),
    "long function": ("reports/a.py", LONG_FUNCTION, "long has 61 lines"),
    "many parameters": ("reports/a.py", "def f(a, b, c, *, d, e, f): ...", "f has 6 parameters"),
    "many parameters beside self": (
        "reports/a.py",
        "class A:\n    def f(self, a, b, c, d, e, f): ...",
        "f has 6 parameters",
    ),
    "wide command outside the command line": ("reports/a.py", WIDE_COMMAND, "command has 6 parameters"),
    "nests deep": ("reports/a.py", DEEP, "walk nests 4 deep"),
    "prints": ("reports/a.py", "print(1)", "reports must not print"),
    "prints past the console": ("cli/a.py", "import click\nclick.echo('a')", "prints past cli/console.py"),
    "imports a module of POSIX": ("ingest/a.py", "import fcntl", "fcntl is not available"),
    "calls a function of POSIX": ("viewer/a.py", "import os\nos.pread(0, 1, 2)", "os.pread is not available"),
    "catches everything": (
        "reports/a.py",
        "try:\n    pass\nexcept Exception:\n    pass",
        "without giving a reason",
    ),
    "catches everything bare": (
        "reports/a.py",
        "try:\n    pass\nexcept:\n    pass",
        "without giving a reason",
    ),
    "catches everything in a tuple": (
        "reports/a.py",
        "try:\n    pass\nexcept (OSError, BaseException):  # noqa: BLE001\n    pass",
        "without giving a reason",
    ),
}


def plant(package: Path, path: str, text: str) -> Path:
    target = package / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return package


@pytest.mark.parametrize("violation", VIOLATIONS)
def test_rules_find_a_planted_violation(violation, tmp_path):
    path, text, sentence = VIOLATIONS[violation]
    found = findings(plant(tmp_path, path, text), *RULES)
    assert any(sentence in str(finding) for _, finding in found), found


def test_every_rule_is_violated_by_some_planted_module(tmp_path):
    broken = set()
    for number, (path, text, _) in enumerate(VIOLATIONS.values()):
        broken |= {name for name, _ in findings(plant(tmp_path / str(number), path, text), *RULES)}
    assert broken == {rule.__name__ for rule in RULES}


CORRECT = {
    "imports down": ("cli/a.py", "from stagescope.model import SPANS"),
    "command imports an island": ("cli/demo.py", "from stagescope.demo.names import SCHEDULES"),
    "imports its own folder": ("analysis/a.py", "from stagescope.model.bubbles import x"),
    "entry module imports all": ("__init__.py", "from stagescope.api import read"),
    "reads the version": ("exporters/perfetto/a.py", "from stagescope import __version__"),
    "registry imports the family": ("ingest/registry.py", "from stagescope.ingest import kineto, nsight"),
    "typing library for the type checker": (
        "vocabulary/a.py",
        "if TYPE_CHECKING:\n    from typing_extensions import Self",
    ),
    "framework in its place": ("record/frameworks/a.py", "def f():\n    import torch"),
    "wide command": ("cli/a.py", WIDE_COMMAND),
    "long docstring": ("reports/a.py", LONG_DOCSTRING),
    "elif beside if": ("reports/a.py", LEVEL_WITH_ELIF),
    "function in a function": ("reports/a.py", NESTED_FUNCTION),
    "island prints": ("demo/a.py", "import torch\nprint(1)"),
    "catches everything for a reason": ("record/a.py", REASONED),
    "catches everything for a reason given below": ("record/a.py", REASONED_BELOW),
}


@pytest.mark.parametrize("case", CORRECT)
def test_rules_accept_correct_modules(case, tmp_path):
    path, text = CORRECT[case]
    assert findings(plant(tmp_path, path, text), *RULES) == []
