"""Options, progress bars and warnings that the commands which read a run share."""

import io
from contextlib import ExitStack

import click
import numpy as np
import pytest
from click.testing import CliRunner

from drawing import timeline_from_text
from places import DATA
from stagescope import api
from stagescope.cli import main
from stagescope.cli.reading import LARGE_BYTES, MANY_FILES, FileBar, reading_options

GOT: list[dict] = []


@click.command()
@reading_options
def probe(facts: dict) -> None:
    GOT.append(facts)


def facts_of(*arguments: str) -> dict:
    result = CliRunner().invoke(probe, arguments)
    assert result.exit_code == 0, result.output
    return GOT.pop()


def test_without_options_all_facts_have_the_defaults_of_read():
    facts = facts_of()
    assert facts.pop("order") == "tp-cp-ep-dp-pp"
    assert facts.pop("kernels") is False
    assert set(facts.values()) == {None}


def test_sizes_order_schedule_and_microbatches_are_keywords_of_read():
    sizes = ["--pp", "4", "--tp", "2", "--dp", "3", "--cp", "1", "--order", "tp-pp-dp"]
    assert facts_of(*sizes, "--schedule", "1f1b", "--microbatches", "8") == {
        "pp": 4, "tp": 2, "dp": 3, "cp": 1, "order": "tp-pp-dp",
        "schedule": "1f1b", "microbatches": 8, "pattern": None, "attempt": None, "pipeline": None, "limits": None,
        "map": None, "mapping": None, "only": None, "kernels": False, "steps": None,
    }  # fmt: skip


def test_steps_to_read_are_a_keyword_of_read():
    assert facts_of("--steps", "100:110")["steps"] == "100:110"


def test_accepts_the_spelling_of_ascend_for_the_schedule():
    assert facts_of("--pp-type", "dualpipev")["schedule"] == "dualpipev"


def test_limits_are_given_by_name_and_the_option_can_be_repeated():
    assert facts_of("--limit", "unpacked=20GB", "--limit", "spans=5M")["limits"] == {
        "unpacked": 20 * 10**9,
        "spans": 5_000_000,
    }
    assert CliRunner().invoke(probe, ["--limit", "unpacked"]).exit_code != 0


def test_rejects_a_size_below_one():
    assert CliRunner().invoke(probe, ["--pp", "0"]).exit_code == 2


@pytest.mark.parametrize("command", ["show", "report", "export", "clocks"])
def test_every_command_that_reads_has_the_options(command, capsys):
    main([command, "--help"])
    text = capsys.readouterr().out
    assert all(
        option in text
        for option in ("--pp", "--tp", "--dp", "--cp", "--order", "--schedule", "--microbatches", "--limit")
    )


@pytest.mark.parametrize("command", ["show", "report", "export"])
def test_every_command_that_shows_times_can_skip_alignment(command, capsys):
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
def test_shows_a_bar_for_many_files(monkeypatch, files, shown):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stderr", Terminal())
    with ExitStack() as until:
        bar = FileBar(until)
        bar.show(0, files)
        bar.show(1, files)
        assert (bar._update is not None) == shown


@pytest.mark.parametrize(("size_bytes", "shown"), [(LARGE_BYTES, True), (LARGE_BYTES - 1, False)])
def test_shows_a_bar_for_a_large_file(monkeypatch, tmp_path, size_bytes, shown):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stderr", Terminal())
    with (tmp_path / "rank0.json").open("wb") as file:
        file.truncate(size_bytes)
    with ExitStack() as until:
        bar = FileBar(until, [tmp_path])
        bar.show(0, 1)
        assert (bar._update is not None) == shown


@pytest.mark.parametrize(
    "words", [["report"], ["hang"], ["watch", "--seconds", "0"], ["control", "--pause", "--wait", "0"]]
)
def test_a_name_that_is_longer_than_the_system_allows_is_one_sentence(words, capsys):
    assert main([words[0], "a" * 5000, *words[1:]]) in (1, 2)
    printed = capsys.readouterr().err
    assert "File name too long" in printed or "does not exist" in printed
    assert "Traceback" not in printed


@pytest.fixture
def run_without_a_stage(tmp_path):
    """Return spans of three stages, of which the middle one was not recorded; nothing declares the number of ranks."""
    spans = timeline_from_text("F0 F1 B0 B1\nF0 F1 B0 B1\nF0 F1 B0 B1").spans
    path = tmp_path / "spans.csv"
    spans.filter(spans["rank"] != 1).write_csv(path)
    return path


MISSING = "error: stage 1 missing: no recorded rank runs it"
PRINTED = {"report": True, "show": True, "export": True, "clocks": False, "sql": False, "what-if": False}
"""Commands, and whether they print diagnostics on standard output."""


@pytest.mark.parametrize("name", PRINTED)
def test_a_missing_stage_is_printed_and_makes_the_exit_code_1(run_without_a_stage, tmp_path, capsys, name):
    words = {"export": ["-o", str(tmp_path / "run.json")], "sql": ["select count(*) as n from spans"]}
    assert main([name, str(run_without_a_stage), *words.get(name, [])]) == 1
    out, err = capsys.readouterr()
    shown, other = (out, err) if PRINTED[name] else (err, out)
    assert shown.splitlines().count(MISSING) == 1
    assert MISSING not in other


def test_a_comparison_states_the_missing_stage_of_either_run(run_without_a_stage, capsys):
    assert main(["compare", str(run_without_a_stage), str(run_without_a_stage)]) == 1
    lines = capsys.readouterr().err.splitlines()
    for which in ("first", "second"):
        assert lines.count(MISSING.replace("error: ", f"error: {which} run: ")) == 1


def test_every_error_is_printed_by_a_command_without_diagnostics(run_without_a_stage, capsys):
    run_without_a_stage.write_text(
        run_without_a_stage.read_text() + "2,compute,forward,0,2,0,9,,,,50,40,,,\n"
    )
    assert main(["sql", str(run_without_a_stage), "select count(*) as n from spans"]) == 1
    out, err = capsys.readouterr()
    assert out.split() == ["n", "8"]
    assert "spans end before they start" in err
    assert MISSING in err
    assert err.count("the exit code is 1") == 1


def test_a_table_that_does_not_fit_into_memory_ends_a_command_without_a_traceback(monkeypatch, capsys):
    monkeypatch.setattr(api, "read", lambda *_, **__: np.zeros(10**15))
    assert main(["report", "--no-cache", str(DATA / "recordings" / "v1")]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(
        "stagescope: this needs more memory than there is (Unable to allocate 7.11 PiB for an array"
    )
    assert (
        second == "  read some steps, as with --steps 0:10, or some of the files, or store recordings first"
    )
