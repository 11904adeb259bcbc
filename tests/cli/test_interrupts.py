"""Ctrl-C ends a command as interrupted, whatever a library makes of the KeyboardInterrupt."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from stagescope import api
from stagescope.cli import main

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a process sends itself SIGINT")

PROGRAM = """
import importlib.machinery, signal, sys, time, types
import click
from stagescope import cli
from stagescope.vocabulary.errors import UsageError

def interrupt():
    signal.raise_signal(signal.SIGINT)

class Destroyed:
    def __del__(self):
        interrupt()

def swallow():
    try:
        interrupt()
    except BaseException:
        pass

def destroy():
    Destroyed()

def replace():
    try:
        interrupt()
    except BaseException:
        raise ImportError("of the library that was being loaded")

def refuse():
    try:
        interrupt()
    except BaseException:
        raise UsageError("of the program")

class Panic(BaseException):
    pass

def panic():
    try:
        interrupt()
    except BaseException:
        raise Panic("of the library that was being loaded")

def load():
    library = sys.modules["polars"] = types.ModuleType("polars")
    library.__spec__ = importlib.machinery.ModuleSpec("polars", None)
    library.__spec__._initializing = True
    interrupt()
    print("loads")
    library.__spec__._initializing = False

@click.command("planted")
@click.argument("how")
@click.argument("rest", type=float)
def command(how, rest):
    globals()[how]()
    print("goes on")
    end = time.monotonic() + rest
    while time.monotonic() < end:
        time.sleep(rest)
    print("ended")

sys.modules["planted"] = sys.modules["__main__"]
cli.COMMANDS = (cli.Command("planted", "planted", "A command."),)
sys.exit(cli.main())
"""
LONG_S = "100"


def outcome(how: str, rest: str = LONG_S) -> tuple[int, str, str]:
    command = [sys.executable, "-c", PROGRAM, "planted", how, rest]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("how", ["interrupt", "swallow", "destroy", "replace", "refuse", "panic", "load"])
def test_a_command_ends_as_interrupted_whatever_became_of_the_interrupt(how):
    code, output, errors = outcome(how)
    assert code in {130, -signal.SIGINT}
    assert "ended" not in output
    assert errors.endswith("stagescope: interrupted\n")
    assert "ImportError" not in errors
    assert ("loads\n" in output) == (how == "load")


def test_a_command_that_ended_without_noticing_is_reported_as_interrupted():
    code, output, errors = outcome("swallow", "0")
    assert code == 130
    assert output == "goes on\nended\n"
    assert errors == "stagescope: interrupted\n"


def test_ctrl_c_that_is_ignored_stays_ignored():
    ignoring = f"import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{PROGRAM}"
    command = [sys.executable, "-c", ignoring, "planted", "interrupt", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "goes on\nended\n", "")


INTERRUPTED_IMPORT = """
import runpy, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
sys.argv = ["stagescope", "report"]
runpy.run_module("stagescope", run_name="__main__")
"""


def test_an_interrupt_while_commands_are_imported_prints_no_traceback():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stagescope: interrupted\n")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_store_states_after_ctrl_c_that_it_can_go_on(monkeypatch, tmp_path, capsys, language):
    def interrupted(*_, **__):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(api, "store", interrupted)
    monkeypatch.setenv("STAGESCOPE_LANG", language)
    assert main(["store", str(tmp_path), "-o", str(tmp_path / "run.stagescope")]) == 130
    hint = {
        "en": "stagescope: interrupted\n  run the same `stagescope store` command again: it goes on where it stopped\n",
        "zh": "stagescope: 已中断\n  请再次运行同一条 `stagescope store` 命令：会从中断处继续\n",
    }
    assert capsys.readouterr().err == hint[language]


@pytest.mark.parametrize(("command", "case"), [("watch", ("Watcher", 0)), ("receive", ("TraceReceiver", 1))])
def test_commands_that_end_with_ctrl_c_do_so_while_they_start(monkeypatch, tmp_path, capsys, command, case):
    """The exit code is that of a later Ctrl-C; nothing is received in this time, which is 1."""
    started, code = case
    original = getattr(api, started)

    def interrupted(*args, **keywords):
        signal.raise_signal(signal.SIGINT)
        return original(*args, **keywords)

    monkeypatch.setattr(api, started, interrupted)
    options = (
        ["-o", str(tmp_path), "--port", "0"] if command == "receive" else [str(tmp_path), "--metrics", "0"]
    )
    assert main([command, *options]) == code
    printed = capsys.readouterr().err
    assert "interrupted" not in printed
    assert "metrics at" not in printed  # nothing was opened any more
