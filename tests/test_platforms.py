"""Reading, analysis, export and viewing work where the standard library has no POSIX, as on a laptop with Windows."""

from __future__ import annotations

import subprocess
import sys

import pytest

from architecture import POSIX_MODULES, POSIX_USES
from places import DATA
from stagescope.cli import main
from stagescope.viewer.tiles import cache, levels

RECORDING = DATA / "recordings" / "v1"

WITHOUT_POSIX = f"""
import asyncio, multiprocessing.resource_tracker, multiprocessing.synchronize, os, pathlib, re, select, shutil, signal
import socket, subprocess, sys, tempfile, time, uuid, webbrowser
import polars, scipy.optimize, starlette.routing, starlette.responses, uvicorn, uvicorn.protocols.http.h11_impl
import stagescope.cli  # which checks the system of the process only in commands that record

for name in {sorted(POSIX_MODULES)}:
    sys.modules[name] = None
for use in {sorted(POSIX_USES - {"time.clock_gettime", "time.CLOCK_MONOTONIC"})}:
    module, _, name = use.partition(".")
    if hasattr(sys.modules[module], name) and name not in ("kill", "waitpid", "poll", "epoll", "AF_UNIX"):
        delattr(sys.modules[module], name)
"""
"""Libraries use some of these, with their own checks of the system; the package is imported after they are gone.

The names that are kept are those that the standard library calls when Windows would call something else.
"""

USE = f"""
from stagescope.api.serving import Viewer, prepare_viewer
from urllib.request import urlopen

def call(*words):
    code = stagescope.cli.main([str(word) for word in words])
    assert code in (0, 1), (words, code)

for command in ("show", "clocks", "what-if"):
    call(command, {str(RECORDING)!r})
call("report", {str(RECORDING)!r}, "--json", "report.json")
for suffix in ("svg", "html", "json", "pftrace", "parquet"):
    call("export", {str(RECORDING)!r}, "-o", "out." + suffix)
call("simulate", "1f1b", "--ranks", "2", "--microbatches", "2")
with prepare_viewer({str(RECORDING)!r}) as viewer:
    viewer.start()
    assert urlopen(viewer.link, timeout=30).status == 200
assert b"\\r" not in pathlib.Path("report.json").read_bytes()
assert "stagescope.record.launch" not in sys.modules
"""


def test_everything_but_recording_works_without_posix(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "", "HOME": str(tmp_path)}
    words = [sys.executable, "-W", "error", "-c", WITHOUT_POSIX + USE]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for name in (path.name for path in tmp_path.iterdir()):
        assert not set(name) & set('<>:"|?*\\'), (
            name
        )  # characters that file names must not contain on Windows


@pytest.mark.parametrize("words", [("run", "--", "true"), ("demo",)])
def test_recording_on_another_system_is_refused_with_a_reason(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "win32")
    assert main(list(words)) == 126
    assert "needs Linux, and this is win32" in capsys.readouterr().err


def test_files_are_read_at_a_place_without_pread(tmp_path, monkeypatch):
    path = tmp_path / "records"
    path.write_bytes(bytes(range(100)))
    with path.open("rb") as file:
        monkeypatch.delattr("os.pread")
        assert levels._read_at(file.fileno(), 3, 40) == bytes([40, 41, 42])


def test_an_unfinished_folder_is_abandoned_on_windows_after_a_day(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr("os.kill", None)
    folder = tmp_path / f"{cache.UNFINISHED}1-x"
    folder.mkdir()
    assert not cache._is_abandoned(folder)
    monkeypatch.setattr("time.time", lambda: folder.stat().st_mtime + cache.DAY_S + 1)
    assert cache._is_abandoned(folder)
