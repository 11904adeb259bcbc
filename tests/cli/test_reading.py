"""What the commands that read a run have in common."""

import io
from contextlib import ExitStack
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from places import DATA
from stagescope.cli import main
from stagescope.cli.reading import LARGE_BYTES, MANY_FILES, Progress, reading_options
from stagescope.ingest.layout import Layout
from stagescope.ingest.reader import ReadOptions

GOT: list[ReadOptions] = []


@click.command()
@reading_options
def probe(options: ReadOptions) -> None:
    GOT.append(options)


def options_of(*arguments: str) -> ReadOptions:
    result = CliRunner().invoke(probe, arguments)
    assert result.exit_code == 0, result.output
    return GOT.pop()


def test_without_options_nothing_is_said_of_the_run():
    assert options_of() == ReadOptions()
    assert not options_of().layout.is_given


def test_sizes_order_schedule_and_microbatches_reach_the_reader():
    sizes = ["--pp", "4", "--tp", "2", "--dp", "3", "--cp", "1", "--order", "tp-pp-dp"]
    given = options_of(*sizes, "--schedule", "1f1b", "--microbatches", "8")
    assert given == ReadOptions(Layout(pp=4, tp=2, dp=3, cp=1, order="tp-pp-dp"), "1f1b", 8)


def test_the_schedule_may_be_spelled_as_ascend_does():
    assert options_of("--pp-type", "dualpipev").schedule == "dualpipev"


def test_a_size_below_one_is_wrong_usage():
    assert CliRunner().invoke(probe, ["--pp", "0"]).exit_code == 2


@pytest.mark.parametrize("command", ["show", "report", "export", "clocks"])
def test_every_command_that_reads_has_the_options(command, capsys):
    main([command, "--help"])
    text = capsys.readouterr().out
    assert all(
        option in text
        for option in ("--pp", "--tp", "--dp", "--cp", "--order", "--schedule", "--microbatches")
    )


@pytest.mark.parametrize("command", ["show", "report", "export"])
def test_every_command_that_shows_times_can_leave_them_as_they_were_read(command, capsys):
    main([command, "--help"])
    assert "--no-align" in capsys.readouterr().out


def test_a_layout_that_does_not_fit_is_one_sentence(capsys):
    recording = DATA / "recordings" / "v1"
    assert main(["report", str(recording), "--pp", "2", "--dp", "1"]) == 1
    assert capsys.readouterr().err == "stagescope: pp 2 x dp 1 make 2 ranks, but there are 4\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("files", "shown"), [(MANY_FILES, True), (MANY_FILES - 1, False)])
def test_a_bar_counts_files_where_there_are_many(monkeypatch, files, shown):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stderr", Terminal())
    with ExitStack() as until:
        progress = Progress(until)
        progress.begin(files)
        progress.advance(Path("one"))
        assert (progress._advance is not None) == shown


@pytest.mark.parametrize(("size_bytes", "shown"), [(LARGE_BYTES, True), (LARGE_BYTES - 1, False)])
def test_a_bar_is_shown_for_few_files_that_are_large(monkeypatch, tmp_path, size_bytes, shown):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stderr", Terminal())
    with (tmp_path / "rank0.json").open("wb") as file:
        file.truncate(size_bytes)
    with ExitStack() as until:
        progress = Progress(until, [tmp_path])
        progress.begin(1)
        assert (progress._advance is not None) == shown
