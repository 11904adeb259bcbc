"""The exit status that a recording states, from real processes that exit in different ways."""

from __future__ import annotations

from pathlib import Path

import pytest

import stagescope
from children import clean_environment, only_contents, run_child

PROGRAM = """
import contextlib, os, sys, threading
from stagescope import record
record.start(sys.argv[1])
with record.span("forward", microbatch=0, stage=0):
    pass
def leave():
    sys.exit(3)
@contextlib.contextmanager
def held():
    try:
        yield
    finally:
        pass
{body}
"""
ENVIRONMENT = clean_environment(PYTHONPATH=str(Path(stagescope.__file__).parents[1]))


@pytest.mark.parametrize(
    ("body", "code", "status"),
    [
        ("leave()", 3, 3),
        ("with held(): leave()", 3, 3),
        ("sys.exit('giving up')", 1, 1),
        ("sys.exit(-1)", 255, 255),
        ("sys.exit()", 0, None),
        ("sys.exit(0)", 0, None),
        ("pass", 0, None),
        ("try: leave()\nexcept SystemExit: pass", 0, None),
        ("try: leave()\nexcept SystemExit: sys.exit(5)", 5, 5),
        ("try: leave()\nexcept SystemExit: sys.exit(0)", 0, None),
        ("try: leave()\nexcept SystemExit: raise ValueError", 1, None),
        ("raise SystemExit(7)", 7, None),  # which is known to no one
        ("thread = threading.Thread(target=leave); thread.start(); thread.join()", 0, None),
    ],
)
def test_the_status_is_recorded_as_far_as_it_is_known_and_not_changed(tmp_path, body, code, status):
    done = run_child(PROGRAM.format(body=body), tmp_path, env=ENVIRONMENT)
    bare = run_child(PROGRAM.format(body=body).replace("record.start(sys.argv[1])", ""), env=ENVIRONMENT)
    assert (done.returncode, done.stdout) == (bare.returncode, bare.stdout) == (code, "")
    assert only_contents(tmp_path).end.get("exit_status") == status


def test_sys_exit_is_restored_when_recording_stops(tmp_path):
    body = """
import sys
from stagescope import record
original = sys.exit
record.start(sys.argv[1])
with record.span("forward", microbatch=0, stage=0):
    pass
assert sys.exit is not original
record.stop()
assert sys.exit is original
"""
    assert run_child(body, tmp_path, env=ENVIRONMENT).returncode == 0


def test_a_child_of_multiprocessing_states_its_status(tmp_path):
    body = """
import multiprocessing, sys
from stagescope import record
def work(directory):
    record.start(directory)
    with record.span("forward", microbatch=0, stage=0):
        pass
    sys.exit(4)
if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=work, args=(sys.argv[1],))
    child.start()
    child.join()
    assert child.exitcode == 4
"""
    assert run_child(body, tmp_path, env=ENVIRONMENT).returncode == 0
    end = only_contents(tmp_path).end
    assert (end["reason"], end["exit_status"]) == ("exit", 4)
