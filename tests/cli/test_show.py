"""stagescope show, and behavior that all commands share: errors, exit codes, --help."""

import os
import pty
import subprocess
import sys
from importlib import import_module

import click
import polars as pl
import pytest

from drawing import timeline_from_text
from stagescope.api import READERS
from stagescope.cli import COMMANDS, commands, main

PICTURE = """
F0 F1 .  B0 -  B1 -
.  F0 B0 -  F1 B1 -
"""
BUBBLE = "14.3 %"


@pytest.fixture
def spans(tmp_path):
    """Return the path of a table of two steps."""
    steps = [timeline_from_text(PICTURE, step=step, origin_ns=step * 10_000).spans for step in (0, 1)]
    path = tmp_path / "spans.csv"
    pl.concat(steps).write_csv(path)
    return path


@pytest.fixture
def partial(tmp_path):
    """Return the path of a table with a span that ends before it starts."""
    path = tmp_path / "partial.csv"
    timeline_from_text(PICTURE).spans.write_csv(path)
    path.write_text(path.read_text() + "0,compute,forward,0,0,0,9,,,,5000,4000,,,\n")
    return path


def test_prints_chart_and_tables_only(spans, capsys):
    assert main(["show", str(spans)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert "2 ranks" in lines[0]
    assert lines[1].split()[0] == "0"
    assert [line.split()[0] for line in lines if line.endswith(BUBBLE)][:2] == [lines[0].split()[0], "0"]
    assert max(map(len, lines)) <= 80


def test_draws_the_chosen_step(spans, capsys):
    assert main(["show", str(spans), "--step", "1"]) == 0
    assert "step 1" in capsys.readouterr().out.splitlines()[0]


def test_a_missing_step_is_an_error(spans, capsys):
    assert main(["show", str(spans), "--step", "7"]) == 1
    assert capsys.readouterr().err == "stagescope: step 7 was not recorded; recorded: 0-1\n"


def test_ascii_output_is_ascii_and_within_the_width(spans, capsys):
    assert main(["show", str(spans), "--ascii", "--width", "60"]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert max(map(len, out.splitlines())) <= 60
    assert "B1" in out


def test_uses_ascii_if_the_output_encoding_has_no_block_characters(spans):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "stagescope", "show", spans], capture_output=True, env=environment, check=True
    )
    assert done.stdout.isascii()


def test_warns_about_partial_data_first_and_exits_with_1(partial, capsys):
    assert main(["show", str(partial)]) == 1
    out, err = capsys.readouterr()
    assert err.splitlines() == [
        "stagescope: partial data: spans end before they start and were dropped",
        "  the results are for the data that were recorded; the exit code is 1",
    ]
    assert BUBBLE in out
    where = f"{partial}, rank 0, first start_ns 5000"
    assert out.splitlines()[-1] == f"error: spans end before they start and were dropped [{where}]"


def test_a_table_without_actions_is_not_an_error(tmp_path, capsys):
    path = tmp_path / "host.csv"
    path.write_text("rank,lane,kind,start_ns,end_ns\n0,host,other,0,5\n")
    assert main(["show", str(path)]) == 0
    assert "no steps to measure" in capsys.readouterr().out


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """Return the output of a command on a pseudo-terminal."""
    controller, terminal = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    process = subprocess.Popen(
        [sys.executable, "-m", "stagescope", *arguments],
        stdin=terminal, stdout=terminal, stderr=terminal,
        env={**inherited, "TERM": "xterm-256color", **environment},
    )  # fmt: skip
    os.close(terminal)
    printed = b""
    while True:
        try:
            chunk = os.read(controller, 65536)
        except OSError:  # the terminal is gone when the process has ended
            chunk = b""
        if not chunk:
            break
        printed += chunk
    os.close(controller)
    process.wait()
    return printed.decode()


def test_uses_color_on_a_terminal_unless_disabled(spans):
    colored = on_a_terminal("show", str(spans), COLUMNS="100")
    assert "\x1b[" in colored
    assert "\x1b[" not in on_a_terminal("show", str(spans), "--no-color")
    assert "\x1b[" not in on_a_terminal("show", str(spans), NO_COLOR="1")


# Behavior that all commands share.


def test_help_lists_every_command_with_its_summary(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    width = max(len(command.name) for command in COMMANDS)
    for command in COMMANDS:
        assert f"  {command.name.ljust(width)}  {command.summary}" in out


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_every_module_has_a_command_of_the_listed_name_with_examples(entry):
    command = import_module(entry.module).command
    assert isinstance(command, click.Command)
    assert command.name == entry.name
    assert "Examples:" in command.epilog


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_every_command_has_help(entry, capsys):
    assert main([entry.name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: stagescope {entry.name}")


def test_prints_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"stagescope {import_module('stagescope').__version__}\n"


def test_prints_an_error_as_a_sentence_and_a_hint_on_standard_error(tmp_path, capsys):
    assert main(["show", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    formats = ", ".join(reader.name for reader in READERS)
    assert err.splitlines() == [
        f"stagescope: no readable file in {tmp_path}: none is in a supported format ({formats})",
        "  record a run with: stagescope run -o DIR -- torchrun ... train.py",
    ]


@pytest.mark.parametrize("arguments", [["shw"], ["show"], ["show", "x", "--step", "-1"], ["--nothing"]])
def test_wrong_usage_exits_with_2(arguments, capsys):
    assert main(arguments) == 2
    assert "Usage: stagescope" in capsys.readouterr().err


def test_an_interrupt_prints_one_line_and_exits_with_130(monkeypatch, spans, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("stagescope.api.read", interrupt)
    assert main(["show", str(spans)]) == 130
    assert capsys.readouterr().err == "stagescope: interrupted\n"


def test_a_closed_pipe_ends_the_command_silently(spans):
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.Popen(
        [sys.executable, "-m", "stagescope", "show", spans], stdout=writing, stderr=subprocess.PIPE
    )
    os.close(writing)
    _, err = process.communicate()
    assert (process.returncode, err) == (141, b"")


def test_imports_a_command_only_when_it_runs():
    code = (
        "import sys; from stagescope.cli import main; main(['--help']); "
        "found = [name for name in sys.modules if name.startswith('stagescope.cli.')]; "
        "assert sorted(found) == ['stagescope.cli.help_language', 'stagescope.cli.interrupts'], found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_an_unknown_command_does_not_exist():
    assert commands.get_command(click.Context(commands), "nothing") is None


@pytest.mark.parametrize("file_count", [3, 64])
def test_shows_progress_on_a_terminal_while_reading_many_files(tmp_path, file_count):
    for rank in range(file_count):
        table = f"rank,lane,kind,start_ns,end_ns\n{rank},compute,forward,0,5\n"
        (tmp_path / f"rank{rank}.csv").write_text(table)
    shown = on_a_terminal("show", str(tmp_path), "--no-color")
    assert ("reading 64 files" in shown) == (file_count == 64)


def test_prints_a_path_that_cannot_be_encoded_with_question_marks(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.svg"
    (tmp_path / "spans.csv").write_text("rank,lane,kind,start_ns,end_ns\n0,compute,forward,0,5\n")
    call = [sys.executable, "-m", "stagescope", "export", tmp_path, "-o", path]
    done = subprocess.run(call, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?.svg: " in done.stdout
