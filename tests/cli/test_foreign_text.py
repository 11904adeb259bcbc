"""No text of a file reaches the terminal or an exported file as a command: every command, with hostile names."""

from __future__ import annotations

import html.parser
import io
import json
from datetime import datetime, timezone
from xml.etree import ElementTree as ET

import polars as pl
import pytest
from rich.text import Text

from ascend_profiles import Cluster, add_mark, write_cluster
from paddle_logs import PaddleRun, write_worker_logs
from recordings import anchor_record, encode, recording_frames, span_record, step_record
from stagescope import api
from stagescope.api.serving import Viewer
from stagescope.cli import COMMANDS, main
from stagescope.cli.console import print_styled
from stagescope.cli.receive import _print_process
from stagescope.cli.run_summary import print_summary
from stagescope.record import format as fmt
from stagescope.record.launch import Ended
from stagescope.vocabulary.errors import StagescopeError

CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07\x9b2J\u202e"
"""OSC 52, which writes the clipboard; CSI as a C1 character, which clears the screen; right to left."""

HOSTILE = f"{CLIPBOARD}\x7f\r\b\u2066\u2028</script><img onerror=x>&]]>\"'\ufffe\x00=1\nstagescope: forged"
"""With line breaks, the ends of a script and of CDATA, and characters that XML and file names do not allow."""

FOLDER = f"run{CLIPBOARD}\n"
WITHOUT_FILES = {"demo", "install-hook"}
"""Commands that read nothing."""


def write_hostile_recording(folder):
    """Write the recordings of two ranks on two machines; every text in them is hostile, and every file name."""
    folder.mkdir(parents=True)
    for rank in range(2):
        spans = [
            span_record("forward", 1_000 + rank * 2_000, 3_000 + rank * 2_000, step=0, microbatch=0, stage=rank),
            span_record("backward", 7_000 - rank * 2_000, 9_000 - rank * 2_000, step=0, microbatch=0, stage=rank),
            span_record(250, 9_000, 9_200, step=0, name=1),
            step_record(0, 500, 9_500),
        ]  # fmt: skip
        facts = {
            "host": f"node{rank}{HOSTILE}",
            "boot": f"boot{rank}{HOSTILE}",
            "schedule": {"name": HOSTILE, "microbatches": 1},
            "parallel": {"pp": rank, "pp_size": 2},
            "frameworks": {HOSTILE: {"version": HOSTILE, "recorded": False, "missing": [HOSTILE]}},
        }
        frames = recording_frames(spans, rank=rank, world_size=2, device=HOSTILE, **facts)
        frames[1] = (fmt.NAMES, json.dumps({"first": 1, "names": [HOSTILE, HOSTILE]}).encode())
        frames.insert(3, (fmt.CLOCK, anchor_record(10_000, 1_010_000)))
        (folder / f"{rank}{FOLDER}.sscope").write_bytes(encode(frames))
    return folder


@pytest.fixture
def recording(tmp_path):
    return write_hostile_recording(tmp_path / FOLDER)


@pytest.fixture
def printed(capsys):
    """Return a function that runs a command and returns its exit code and all that it printed, line by line.

    It fails if any of that is not printable, or if a line could be taken for one of stagescope's own.
    """

    def call(*words):
        code = main([str(word) for word in words])
        return code, check(capsys)

    return call


def check(capsys):
    lines = "".join(capsys.readouterr()).split("\n")
    assert [line for line in lines if not line.isprintable()] == []
    assert [line for line in lines if line.startswith("stagescope: forged")] == []
    return lines


READING = {
    "show": ((), ("--ascii",), ("--step", "7")),
    "report": (("--full",), ("--markdown",), ("--json", "-")),
    "clocks": ((), ("--json",)),
    "what-if": ((), ("--json", "-"), ("--to-schedule", HOSTILE.replace("\0", "")), ("--faster", CLIPBOARD)),
    "sql": (("select * from ranks",), ("select * from diagnostics",), (CLIPBOARD,), (f"select {CLIPBOARD}",)),
    "store": (("-o", f"{FOLDER}.stagescope"), ("-o", f"{FOLDER}.stagescope", "--schedule", CLIPBOARD)),
    "watch": (
        ("--seconds", "0"),
        ("--seconds", "0", "--json"),
        ("--alert", CLIPBOARD),
        ("--webhook", CLIPBOARD),
    ),
    "hang": ((), ("--stacks",), ("--json", "-")),
    "control": (("--pause", "--wait", "0"), ("--steps", CLIPBOARD), ("--detail", CLIPBOARD)),
    "export": (("--to", CLIPBOARD, "-o", "out"), ("-o", f"{FOLDER}.svg"), ("-o", f"{FOLDER}.svg")),
}


@pytest.mark.parametrize("command", READING)
def test_a_command_prints_no_control_characters_of_a_recording(
    command, recording, printed, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for words in READING[command]:
        code, lines = printed(command, recording, *words)
        assert any(lines), words
        assert code in (0, 1, 2), lines


def test_states_of_processes_print_no_control_characters(printed, tmp_path):
    call = {"call": HOSTILE, "name": HOSTILE, "stage": 3}
    state = {
        "time_ns": 5_000,
        "calls": [
            {"call": "wait", "for": [call, {"call": "collective", "pair": 3, "name": f"a in {HOSTILE}"}]}
        ],
        "stack": [HOSTILE],
        "threads": {HOSTILE: [HOSTILE]},
        "groups": {HOSTILE: 3},
        "control": {"refused": HOSTILE},
    }
    for rank in range(2):
        frames = recording_frames([span_record(step=0)], rank=rank, world_size=3, end=False, host=HOSTILE)
        calls = state["calls"] if rank else [call]
        frames.append((fmt.STATE, json.dumps(state | {"calls": calls}).encode()))
        (tmp_path / f"{rank}{FOLDER}.sscope").write_bytes(encode(frames))
    watches = (("watch", "--seconds", "0"), ("watch", "--seconds", "0", "--json"))
    for words in (*watches, ("hang",), ("hang", "--stacks"), ("control", "--resume", "--wait", "0")):
        assert printed(words[0], tmp_path, *words[1:])[0] in (0, 1, 3)


def test_a_comparison_prints_no_control_characters(recording, printed):
    for words in ((), ("--json", "-")):
        assert printed("compare", recording, recording, *words)[0] in (0, 1)


def test_a_simulation_prints_no_control_characters(printed, tmp_path):
    order = tmp_path / f"{FOLDER}.csv"
    order.write_text(f"0F0,{CLIPBOARD}\n", encoding="utf-8")
    assert printed("simulate", "--order", order)[0] != 0
    assert printed("simulate", CLIPBOARD, "--ranks", "2", "--microbatches", "2")[0] != 0


def test_the_viewer_prints_no_control_characters(recording, printed, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(Viewer, "run", lambda self: self.close())
    code, lines = printed("open", recording, "--no-browser")
    assert (code, "ended" in lines) == (0, True)


def test_the_summary_of_a_recording_prints_no_control_characters(recording, capsys):
    print_summary(recording, set(recording.iterdir()), Ended(0, None))
    assert sum("not recorded: " in line for line in check(capsys)) == 1


def test_profiles_of_other_tools_print_no_control_characters(printed, tmp_path):
    logs, profiles = tmp_path / f"logs{FOLDER}", tmp_path / f"profiles{FOLDER}"
    write_worker_logs(logs, PaddleRun(devices=2, microbatches=2, steps=1))
    log = logs / "workerlog.0"
    text = log.read_text(encoding="utf-8")
    log.write_text(text + text.replace("forward", f"forward{CLIPBOARD}"), encoding="utf-8")
    assert printed("paddle", "--log_dir", logs)[0] in (0, 1)
    databases = write_cluster(profiles, Cluster(pp=2, microbatches=2, steps=1)).databases
    add_mark(databases[0], HOSTILE.replace("\0", ""), 5, 7)
    assert printed("pp-chart", "-d", profiles)[0] in (0, 1)


def test_an_inspection_prints_no_control_characters(printed, tmp_path):
    trace = tmp_path / f"{FOLDER}.json"
    events = [
        {"ph": "X", "name": HOSTILE, "cat": HOSTILE, "pid": 0, "tid": HOSTILE, "ts": 1, "dur": 2,
         "args": {HOSTILE: HOSTILE}},
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": HOSTILE}},
    ]  # fmt: skip
    trace.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    for words in ((), ("--toml",), ("--json", "-")):
        assert printed("inspect", trace, *words)[0] in (0, 1)


def test_a_receiver_prints_no_control_characters(printed, tmp_path, capsys):
    _print_process(3, HOSTILE)
    check(capsys)
    for words in (
        ("-o", tmp_path / FOLDER, "--host", CLIPBOARD),
        ("-o", tmp_path / FOLDER, "--most", CLIPBOARD),
    ):
        assert printed("receive", *words)[0] != 0


def test_the_list_of_the_cache_prints_no_control_characters(printed, tmp_path, monkeypatch):
    monkeypatch.setenv("STAGESCOPE_CACHE", str(tmp_path / FOLDER))
    kept = api.CacheEntry("stored run", 10, datetime.now(timezone.utc), HOSTILE, tmp_path)
    monkeypatch.setattr(api, "cache_entries", lambda: [kept])
    assert printed("cache")[0] == 0


def test_every_command_is_tested():
    tested = {
        *READING,
        "compare",
        "simulate",
        "open",
        "run",
        "paddle",
        "pp-chart",
        "inspect",
        "receive",
        "cache",
    }
    assert tested == {command.name for command in COMMANDS} - WITHOUT_FILES


def test_arguments_that_are_names_of_files_are_printed_without_control_characters(printed, tmp_path):
    for words in (("show", tmp_path / CLIPBOARD), ("show", f"--{CLIPBOARD}"), (CLIPBOARD,), ("show",)):
        assert printed(*words)[0] in (1, 2)


def test_a_name_that_is_not_utf_8_is_an_error_and_printable(printed, tmp_path):
    folder = write_hostile_recording(tmp_path / "run\udcff\x9b")
    write_worker_logs(folder, PaddleRun(devices=2, microbatches=2, steps=1))
    for words in (
        ("show",),
        ("open",),
        ("export", "-o", "out.svg"),
        ("pp-chart", "-d"),
        ("paddle", "--log_dir"),
    ):
        assert printed(*words, folder)[0] == 1


def test_colored_text_keeps_its_styles_and_no_escape_sequence(monkeypatch):
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("TERM", "xterm-256color")
    print_styled(Text(f"a{CLIPBOARD}b", style="red"), 40)
    assert stream.getvalue() == "\x1b[31ma?]52;c;ZXZpbA==?2J?b\x1b[0m\n"


def test_errors_are_printable_where_an_interpreter_prints_them():
    error = StagescopeError(HOSTILE, hint=HOSTILE)
    assert str(error).isprintable()
    assert error.hint.isprintable()


class Tags(html.parser.HTMLParser):
    """The tags of a page, as a parser sees them."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, _attrs):
        self.found.append(tag)


def test_no_text_of_a_recording_is_markup_in_an_exported_file(recording, printed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for suffix in ("svg", "html", "json", "csv"):
        code, lines = printed("export", recording, "-o", f"out.{suffix}")
        assert code in (0, 1), lines
    assert {element.tag.rpartition("}")[2] for element in ET.parse("out.svg").iter()} & {
        "img",
        "script",
    } == set()
    assert "img" not in Tags((tmp_path / "out.html").read_text(encoding="utf-8")).found
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["traceEvents"]
    assert HOSTILE in pl.read_csv("out.csv")["name"].to_list()
