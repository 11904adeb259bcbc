"""The start-up file, in real processes of a Python of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from children import clean_environment
from hooked_python import hooked_python
from stagescope import api
from stagescope.cli import main
from stagescope.record import startup_file
from stagescope.record.startup_file import FILE, install_hook, remove_hook
from stagescope.vocabulary.errors import OutputError

ONE_SPAN = """
from stagescope import record
with record.span("forward", microbatch=0, stage=0):
    pass
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Return a function that runs code in a Python with the start-up file, given its environment and options."""
    interpreter = hooked_python(tmp_path_factory.mktemp("python"))

    def run(code, *options, **variables):
        command = [interpreter, *options, "-c", code]
        done = subprocess.run(
            command,
            check=False,
            env=clean_environment(**variables),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done

    return run


def test_only_processes_with_the_variable_are_recorded(python, tmp_path):
    done = python(ONE_SPAN, "-X", "dev", STAGESCOPE_RECORD=str(tmp_path / "rec"))
    assert (done.stdout, done.stderr) == ("", "")
    assert api.read(tmp_path / "rec").spans.height == 1
    code = "import sys; assert not any('stagescope' in name for name in sys.modules); assert len(sys.meta_path) == 3"
    assert python(code).stderr == ""


def test_a_process_that_trains_nothing_records_nothing(python, tmp_path):
    assert python("import json", STAGESCOPE_RECORD=str(tmp_path / "rec")).stderr == ""
    assert not (tmp_path / "rec").exists()


def test_the_directory_of_the_run_command_comes_first(python, tmp_path):
    hook = {"PYTHONPATH": str(startup_file.HOOK.parent), "STAGESCOPE_OUT": str(tmp_path / "run")}
    python(ONE_SPAN, STAGESCOPE_RECORD=str(tmp_path / "rec"), **hook)
    assert api.read(tmp_path / "run").spans.height == 1
    assert not (tmp_path / "rec").exists()


def test_one_line_of_a_script_records_where_the_variable_states(tmp_path):
    code = "import stagescope.record.auto" + ONE_SPAN
    for directory in (str(tmp_path / "rec"), ""):
        environment = clean_environment(STAGESCOPE_RECORD=directory)
        subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True, timeout=60)
    assert api.read(tmp_path / "rec").spans.height == 1
    assert [path.name for path in tmp_path.iterdir()] == ["rec"]


def test_a_hook_without_its_package_is_reported_and_changes_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(startup_file, "HOOK", tmp_path / "gone.py")
    monkeypatch.setenv("STAGESCOPE_RECORD", str(tmp_path))
    exec(startup_file.startup_line(), {})  # noqa: S102 - as site does
    assert capfd.readouterr().err.startswith("stagescope: cannot record this process: FileNotFoundError")


def test_the_command_writes_and_removes_the_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(startup_file, "packages_directory", lambda: tmp_path)
    assert main(["install-hook"]) == 0
    assert main(["install-hook"]) == 0
    assert (tmp_path / FILE).read_text().startswith("import ")
    assert main(["install-hook", "--remove"]) == 0
    assert main(["install-hook", "--remove"]) == 0
    printed = capsys.readouterr().out.splitlines()
    wrote = f"wrote {tmp_path / FILE}: processes with STAGESCOPE_RECORD=DIR record themselves"
    assert printed == [wrote, wrote, f"removed {tmp_path / FILE}", f"no hook in {tmp_path}"]


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(OutputError, match="cannot write"):
        install_hook(tmp_path / "missing")
    (tmp_path / FILE).mkdir()
    with pytest.raises(OutputError, match="cannot write"):
        remove_hook(tmp_path)
    assert os.listdir(tmp_path) == [FILE]
