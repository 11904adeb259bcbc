"""stagescope open, in a process of its own that Ctrl-C ends."""

import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import polars as pl
import pytest

from drawing import timeline_from_text
from places import DATA
from running_server import PATIENCE_S, Visitor
from stagescope.cli import main
from stagescope.cli.open import TileBar, warn_partial

RECORDING = DATA / "recordings" / "v1"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "run.parquet"
    timeline_from_text("F0 F1 B0 B1\n. F0 B0 F1 B1").spans.write_parquet(path)
    return path


@contextmanager
def opened(path, tmp_path, *words, **environment):
    """Start the command and yield the process, a client of its server, and the first line; Ctrl-C ends it."""
    own = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), **environment}
    command = [sys.executable, "-W", "error", "-m", "stagescope", "open", str(path), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own)
    try:
        printed = [process.stdout.readline() for _ in range(3)]
        link = re.fullmatch(r"open (http://127\.0\.0\.1:(\d+)/\?token=[\w-]{43})\n", printed[1])
        assert printed[2] == "  this link works once; Ctrl-C ends the server\n"
        assert link, (printed, process.stderr.read() if process.poll() is not None else "")
        visitor = Visitor(int(link[2]), link[1])
        yield process, visitor, printed[0]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
        process.stdout.close()
        process.stderr.close()


def enter(visitor):
    visitor.enter()
    visitor.version = visitor.ask("/")[1]["location"].split("/")[2]
    return visitor


def wait_until(condition):
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_serves_a_run_until_ctrl_c_and_prints_no_traceback(table, tmp_path):
    with opened(table, tmp_path, "--no-browser") as (process, visitor, title):
        assert title == "Pipeline · 2 ranks · 2 micro-batches · 1 step · 8 spans\n"
        assert enter(visitor).json("meta")["span_count"] == 8
        assert b"stagescope" in visitor.ask("/viewer.js")[2]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, err) == (0, "")
        assert out == "ended\n"


def test_more_connections_than_files_may_be_open_print_no_traceback(table, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as ending:
        ending.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))  # below what the server reserves
        process, visitor, _ = ending.enter_context(opened(table, tmp_path, "--no-browser"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with ExitStack() as burst:
            for _ in range(200):
                one = burst.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex(("127.0.0.1", visitor.port))
            time.sleep(0.2)
        assert enter(visitor).json("meta")["span_count"] == 8
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out, err) == (0, "ended\n", "")


def test_ctrl_c_while_the_link_is_printed_ends_the_server(table, tmp_path):
    for _ in range(3):
        with opened(table, tmp_path, "--no-browser") as (process, _, _title):
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE_S)
            assert (process.returncode, out, err) == (0, "ended\n", "")


def test_tiles_are_reused_from_the_cache_directory(table, tmp_path):
    for _ in range(2):
        with opened(table, tmp_path, "--no-browser") as (_, visitor, _title):
            enter(visitor)
        (folder,) = (tmp_path / "cache" / "stagescope" / "levels").iterdir()
        assert folder.name == visitor.version
        made = folder.joinpath("spans").stat().st_mtime_ns
    assert folder.joinpath("spans").stat().st_mtime_ns == made


def test_a_growing_recording_is_read_again_while_open_pages_keep_their_version(tmp_path):
    whole, growing = tmp_path / "whole", tmp_path / "growing"
    shutil.copytree(RECORDING, growing)
    shutil.copytree(RECORDING, whole)
    first = min(growing.rglob("*.ssr*"), default=None) or min(
        one for one in growing.rglob("*") if one.is_file()
    )
    first.write_bytes(first.read_bytes()[: first.stat().st_size // 2])
    with opened(growing, tmp_path, "--no-browser") as (_, visitor, _title):
        before = enter(visitor).json("meta")
        assert visitor.json("version") == {"version": visitor.version, "problem": None}
        # Appended, as a recorder writes it: a file that is replaced could be read while it is empty.
        rest = (whole / first.relative_to(growing)).read_bytes()[first.stat().st_size :]
        with first.open("ab") as file:
            file.write(rest)
        wait_until(lambda: visitor.json("version")["version"] != before["version"])
        assert visitor.json("meta") == before
        assert visitor.api("details", id=0)[0] == 200
        old = visitor.version
        visitor.version = visitor.ask(f"/run/{old}/")[1]["location"].split("/")[2]
        after = visitor.json("meta")
        assert after["version"] == visitor.version != old
        assert after["span_count"] > before["span_count"]


def test_deleted_files_leave_the_run_unchanged_and_report_the_problem(table, tmp_path):
    with opened(table, tmp_path, "--no-browser") as (_, visitor, _title):
        enter(visitor)
        table.unlink()
        wait_until(lambda: visitor.json("version")["problem"] is not None)
        problem = visitor.json("version")
        assert "no such file" in problem["problem"]
        assert "没有该文件" in problem["translations"]["zh"][problem["problem"]]
        assert visitor.json("meta")["span_count"] == 8


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS ignores BROWSER")
def test_opens_the_browser_without_the_token_in_its_command_line(table, tmp_path):
    seen = tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(
        f'#!/bin/sh\necho "$@" > {seen}.part\ncat "${{1#file://}}" >> {seen}.part\nmv {seen}.part {seen}\n'
    )
    browser.chmod(0o700)
    with opened(table, tmp_path, BROWSER=str(browser), DISPLAY=":99") as (_, visitor, _title):
        wait_until(seen.exists)
        words, _, page = seen.read_text().partition("\n")
        assert re.fullmatch(r"file://\S+\.html", words)
        assert visitor.link in page
    assert not Path(words.removeprefix("file://")).exists()


def test_starts_no_browser_without_a_display(table, tmp_path):
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    browser.chmod(0o700)
    nowhere = {"BROWSER": str(browser), "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    with opened(table, tmp_path, **nowhere) as (_, visitor, _title):
        assert enter(visitor).json("meta")["span_count"] == 8
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.com"])  # noqa: S104 - rejected
def test_rejects_a_host_that_other_machines_can_reach_before_reading(tmp_path, capsys, host):
    assert main(["open", str(tmp_path / "nothing"), "--host", host]) == 2
    error = capsys.readouterr().err.splitlines()
    assert (
        error[0]
        == f"stagescope: --host {host}: expected one of 127.0.0.1, localhost, ::1: the viewer only serves this machine"
    )
    assert error[1].startswith("  from another machine, forward the port: ssh -L ")


def test_reports_a_missing_path(tmp_path, capsys):
    assert main(["open", str(tmp_path / "nothing"), "--no-browser"]) == 1
    assert "no such file or directory" in capsys.readouterr().err


def test_reports_a_port_in_use(table, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with opened(table, tmp_path, "--no-browser") as (_, visitor, _title):
        assert main(["open", str(table), "--no-browser", "--port", str(visitor.port)]) == 1
    error = capsys.readouterr().err
    assert error == (
        f"stagescope: cannot listen on port {visitor.port} of 127.0.0.1: Address already in use\n"
        "  omit --port to pick a free port\n"
    )


def test_reports_a_cache_that_cannot_be_written(table, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main(["open", str(table), "--no-browser"]) == 1
    assert f"cannot write {tmp_path}/file/stagescope/levels" in capsys.readouterr().err


def test_warns_about_partial_data_first(tmp_path):
    spans = timeline_from_text("F0 B0").spans
    path = tmp_path / "run.csv"
    spans.with_columns(end_ns=pl.when(pl.col("kind") == "backward").then(0).otherwise("end_ns")).write_csv(
        path
    )
    with opened(path, tmp_path, "--no-browser") as (process, visitor, _title):
        enter(visitor)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE_S)[1].startswith("stagescope: partial data: ")


def test_counts_further_errors(capsys):
    rows = [{"severity": "error", "message": "first"}, {"severity": "error", "message": "second"}]
    warn_partial({"diagnostics": [*rows, {"severity": "info", "message": "third"}]})
    assert capsys.readouterr().err == "stagescope: partial data: first (and 1 more, see the viewer)\n"


def test_shows_a_bar_only_for_many_spans_and_on_a_terminal(monkeypatch):
    with ExitStack() as shown:
        bar = TileBar(shown)
        bar.show(1, 10_000_000)
        assert bar._update is None
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        bar.show(1, 1000)
        assert bar._update is None
        bar.show(1, 10_000_000)
        assert bar._update is not None


def test_compares_with_an_earlier_run(table, tmp_path):
    before = tmp_path / "before.parquet"
    timeline_from_text("F0 F1 B0 B1\n. F0 B0 F1 . B1").spans.write_parquet(before)
    with opened_compared(table, before, tmp_path) as (visitor, printed):
        assert printed[1] == "compared with Pipeline · 2 ranks · 2 micro-batches · 1 step · 8 spans\n"
        assert enter(visitor).json("other/meta")["span_count"] == 8
        words = visitor.json("section", name="comparison")["sentences"]
    done = subprocess.run(
        [sys.executable, "-m", "stagescope", "compare", str(before), str(table)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    printed = " ".join(done.stdout.split())
    assert words
    assert all(sentence in printed for sentence in words)


@contextmanager
def opened_compared(path, before, tmp_path):
    own = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [
        sys.executable,
        "-m",
        "stagescope",
        "open",
        str(path),
        "--compare",
        str(before),
        "--no-browser",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own)
    try:
        printed = [process.stdout.readline() for _ in range(4)]
        link = re.fullmatch(r"open (http://127\.0\.0\.1:(\d+)/\?token=[\w-]{43})\n", printed[2])
        yield Visitor(int(link[2]), link[1]), printed
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "ended\n", "")


@pytest.mark.parametrize("wrong", ["missing", "text"])
def test_a_second_run_that_cannot_be_read_is_one_sentence(wrong, table, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = tmp_path / wrong
    if wrong == "text":
        before.write_text("no run", encoding="utf-8")
    assert main(["open", str(table), "--compare", str(before), "--no-browser"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert str(before) in err
    assert err.startswith("stagescope: ")
    assert "Traceback" not in err
