"""The start-up hook, in real Python processes that do not use stagescope."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import stagescope
from children import clean_environment, contents_in, microbatches, only_contents, run_child
from stagescope.record import session, startup
from stagescope.record.launch import HOOK_DIRECTORY, recording_environment

ONE_SPAN = """
from stagescope import record
with record.span("forward", microbatch=0, stage=0):
    pass
"""


@pytest.fixture
def environment(tmp_path):
    """Return the environment of a recorded command; `inherited` is the environment of the user."""

    def make(steps=None, **inherited):
        return recording_environment(
            tmp_path / "runs", steps=steps, run="r1", inherited=clean_environment(**inherited)
        )

    return make


def python(code, environment, interpreter=sys.executable, **options):
    return subprocess.run(
        [interpreter, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def test_recorder_is_armed_before_the_first_line(environment, tmp_path):
    done = python(ONE_SPAN, environment())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    contents = only_contents(tmp_path / "runs")
    assert microbatches(contents) == [0]
    assert contents.header["run"] == "r1"


def test_process_without_spans_writes_no_file_and_starts_no_thread(environment, tmp_path):
    done = python(
        "import os; print(len(os.listdir('/proc/self/task')), len(os.listdir('/proc/self/fd')))",
        environment(),
    )
    assert (
        done.stdout
        == python("import os; print(1, len(os.listdir('/proc/self/fd')))", clean_environment()).stdout
    )
    assert not (tmp_path / "runs").exists()


def test_sys_path_is_unchanged(environment, tmp_path):
    code = "import sys; print(sys.path)"
    user = {"PYTHONPATH": str(tmp_path)}
    assert python(code, environment(**user)).stdout == python(code, clean_environment(**user)).stdout
    assert str(HOOK_DIRECTORY) not in python(code, environment()).stdout


def test_few_additional_modules_are_loaded(environment):
    code = "import sys; print(*sorted(sys.modules))"
    loaded = set(python(code, environment()).stdout.split()) - set(
        python(code, clean_environment()).stdout.split()
    )
    assert loaded.isdisjoint({"numpy", "polars", "torch", "rich", "click", "asyncio", "importlib.metadata"})


def test_grandchildren_are_armed_with_the_users_path(environment, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own_module.py").write_text(ONE_SPAN, encoding="utf-8")
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import own_module'], check=True)"
    done = python(code, environment(PYTHONPATH=str(tmp_path / "own")))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(contents_in(tmp_path / "runs")) == 1


def test_users_sitecustomize_still_runs(environment, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.own = __file__", encoding="utf-8")
    code = "import sys, sitecustomize; print(sys.own, sitecustomize.__file__)" + ONE_SPAN
    done = python(code, environment(PYTHONPATH=str(tmp_path)))
    assert done.stdout.split() == [str(tmp_path / "sitecustomize.py")] * 2
    assert len(contents_in(tmp_path / "runs")) == 1


def test_error_in_the_users_sitecustomize_is_reported(environment, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import missing_of_the_user", encoding="utf-8")
    user = {"PYTHONPATH": str(tmp_path)}
    assert (
        python("pass", environment(**user)).stderr == python("pass", clean_environment(**user)).stderr != ""
    )


@pytest.fixture(scope="module")
def bare_interpreter(tmp_path_factory):
    """Return a Python environment in which stagescope is not installed."""
    directory = tmp_path_factory.mktemp("bare")
    venv.create(directory, with_pip=False, symlinks=True)
    return directory / "bin" / "python"


def site_packages(interpreter):
    return Path(
        python(
            "import sysconfig; print(sysconfig.get_path('purelib'))", clean_environment(), interpreter
        ).stdout.strip()
    )


def test_sitecustomize_in_site_packages_still_runs(environment, bare_interpreter):
    own = site_packages(bare_interpreter) / "sitecustomize.py"
    own.write_text("import sys; sys.own = __file__", encoding="utf-8")
    try:
        done = python("import sys; print(sys.own)", environment(), bare_interpreter)
    finally:
        own.unlink()
    assert (done.stdout.strip(), done.stderr) == (str(own), "")


def test_python_without_stagescope_is_recorded_in_isolation(environment, bare_interpreter, tmp_path):
    assert python("import stagescope", clean_environment(), bare_interpreter).returncode == 1
    code = ONE_SPAN + "import importlib.util; print(importlib.util.find_spec('polars'))"
    done = python(code, environment(), bare_interpreter)
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")
    assert len(contents_in(tmp_path / "runs")) == 1


def test_deleted_working_directory_is_tolerated(environment, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"""
import os, subprocess, sys
os.rmdir({str(gone)!r})
sys.exit(subprocess.call([sys.executable, "-c", {ONE_SPAN!r}]))
"""
    done = python(code, environment(), cwd=gone)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(contents_in(tmp_path / "runs")) == 1


def test_steps_are_passed_to_the_process(environment):
    code = "from stagescope.record import session; print(session.recorder.steps)"
    assert python(code, environment("2:5")).stdout == "2:5\n"
    assert python(code, environment(STAGESCOPE_STEPS="7:8")).stdout == "0:\n"


def test_invalid_setting_is_reported_and_stops_nothing(environment):
    script = "import stagescope.record; print('training')"
    done = python(script, {**environment(), session.STEPS_VARIABLE: "five"})
    assert (done.returncode, done.stdout) == (0, "training\n")
    assert done.stderr.startswith("stagescope: cannot record this process: UsageError")


def test_broken_installation_is_reported_and_stops_nothing(environment, tmp_path):
    package = tmp_path / "copy" / "stagescope"
    shutil.copytree(
        Path(stagescope.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "static")
    )
    (package / "record" / "session.py").write_text("import nothing_of_the_kind", encoding="utf-8")
    changed = environment()["PYTHONPATH"].replace(str(HOOK_DIRECTORY), str(package / "record" / "hook"))
    script = "import importlib.util; importlib.util.find_spec('torch'); print('training')"
    done = python(script, {**environment(), "PYTHONPATH": changed})
    assert (done.returncode, done.stdout) == (0, "training\n")
    assert "nothing_of_the_kind" in done.stderr
    assert done.stderr.count("\n") == 1


def test_second_arm_has_no_effect(tmp_path, monkeypatch):
    monkeypatch.setenv(session.OUT_VARIABLE, str(tmp_path))
    monkeypatch.delenv(session.STEPS_VARIABLE, raising=False)
    try:
        startup.arm()
        armed = session.recorder
        startup.arm()
        assert session.recorder is armed is not None
    finally:
        session.stop()


def test_spawned_children_are_armed(environment, tmp_path):
    script = tmp_path / "train.py"
    body = ONE_SPAN.strip().replace("\n", "\n    ")
    script.write_text(
        f"import multiprocessing\ndef work():\n    {body}\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    process.start()\n    process.join()\n    raise SystemExit(process.exitcode)\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert only_contents(tmp_path / "runs").end["reason"] == "exit"


def test_nothing_is_armed_without_the_hook():
    assert run_child("from stagescope.record import session; print(session.recorder)").stdout == "None\n"


def test_process_without_a_framework_loads_no_recorder(environment):
    code = (
        "import json, sys, threading; print([name for name in sys.modules if name.startswith('stagescope')])"
    )
    assert python(code, environment()).stdout == "[]\n"


def test_every_framework_starts_the_recorder():
    hook = HOOK_DIRECTORY / "sitecustomize.py"
    (named,) = re.findall(r"frozenset\(\s*(\{.*?\})\s*\)", hook.read_text(encoding="utf-8"), re.DOTALL)
    assert ast.literal_eval(named) == {name.partition(".")[0] for name in session.FRAMEWORKS}
