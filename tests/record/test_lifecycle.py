"""All ways in which a process can end, with real processes. Spans are numbered by micro-batch."""

from __future__ import annotations

import signal
import time

import pytest

from children import child, contents_in, end_of, microbatches, only_contents, run_child
from stagescope.ingest.recording.frames import read_contents

TEN_SPANS = """
import os, signal, sys, time, threading
from stagescope import record
from stagescope.record import session
def emit(microbatches):
    for microbatch in microbatches:
        with record.span("forward", microbatch=microbatch, stage=0):
            pass
{before}
record.start(sys.argv[1])
emit(range(10))
{after}
"""
READY = 'print("ready", flush=True)'


def program(after, before="pass"):
    return TEN_SPANS.format(before=before, after=after)


@pytest.mark.parametrize(
    ("end", "code", "printed", "exception"),
    [
        ("pass", 0, "", None),
        ("sys.exit(3)", 3, "", None),
        ("sys.exit('a message')", 1, "a message", None),
        ("raise ValueError('mine')", 1, "ValueError: mine", "ValueError"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_exit_keeps_code_and_output_and_is_recorded(tmp_path, end, code, printed, exception):
    done = run_child(program(end), tmp_path)
    bare = run_child(f"import sys; {end}")
    assert (done.returncode, done.stdout) == (bare.returncode, bare.stdout) == (code, "")
    assert (
        done.stderr.strip().splitlines()[-1:]
        == bare.stderr.strip().splitlines()[-1:]
        == [printed][: len(printed)]
    )
    contents = only_contents(tmp_path)
    assert microbatches(contents) == list(range(10))
    status = {"exit_status": code} if code else {}
    reason = (
        {"reason": "exit", **status} if exception is None else {"reason": "exception", "exception": exception}
    )
    assert contents.end == {"spans": 10, "dropped_spans": 0, **reason}


@pytest.mark.parametrize(
    ("body", "exception"),
    [
        ("raise KeyError(1)", "KeyError"),
        ("try: 1 / 0\n    except ArithmeticError: sys.exit(1)", "ZeroDivisionError"),
        ("try: 1 / 0\n    except ArithmeticError: sys.exit(0)", None),
        ("pass", None),
    ],
)
def test_the_exception_that_ends_a_child_of_multiprocessing_is_recorded(tmp_path, body, exception):
    code = f"""
import multiprocessing, sys
from stagescope import record
def work(directory):
    record.start(directory)
    with record.span("forward", microbatch=0, stage=0):
        pass
    {body}
if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=work, args=(sys.argv[1],))
    child.start()
    child.join()
"""
    assert run_child(code, tmp_path).returncode == 0
    assert only_contents(tmp_path).end.get("exception") == exception


def test_an_exception_that_was_handled_or_has_an_unusual_type_ends_a_recording_like_any_other(tmp_path):
    handled = "try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass"
    assert run_child(program(handled), tmp_path / "handled").returncode == 0
    assert only_contents(tmp_path / "handled").end["reason"] == "exit"
    unusual = "class Unusual(Exception):\n    __module__ = None\nraise Unusual"
    done, bare = run_child(program(unusual), tmp_path / "unusual"), run_child(unusual)
    assert done.returncode == bare.returncode == 1
    assert done.stderr.splitlines()[-1] == bare.stderr.splitlines()[-1]
    assert only_contents(tmp_path / "unusual").end["exception"].endswith("Unusual")


def test_spans_of_threads_that_outlive_the_main_thread_are_stored(tmp_path):
    end = """
def late():
    time.sleep(0.1)
    emit([10])
threading.Thread(target=late).start()
"""
    assert run_child(program(end), tmp_path).returncode == 0
    assert microbatches(only_contents(tmp_path)) == list(range(11))


BUSY = f"{READY}\nwhile True:\n    time.sleep(0.001)"
IN_A_LOCK = f"lock = threading.Lock(); lock.acquire(); {READY}; lock.acquire()"


@pytest.mark.parametrize("stuck", [BUSY, IN_A_LOCK], ids=["running", "in a lock"])
def test_sigterm_stores_everything_and_ends_the_process(tmp_path, stuck):
    with child(program(stuck), tmp_path) as process:
        assert end_of(process) == -signal.SIGTERM
        assert process.stderr.read() == ""
    contents = only_contents(tmp_path)
    assert microbatches(contents) == list(range(10))
    assert contents.end["reason"] == "sigterm"


def test_sigterm_ends_a_process_stuck_in_c_code(tmp_path):
    stuck = f"""
import ctypes
libc = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(128)
libc.pthread_mutex_init(mutex, None)
libc.pthread_mutex_lock(mutex)
{READY}
libc.pthread_mutex_lock(mutex)
"""
    with child(program(stuck), tmp_path) as process:
        assert end_of(process) == -signal.SIGTERM
        assert process.stderr.read() == ""
    assert microbatches(only_contents(tmp_path)) == list(range(10))


def test_sigterm_works_when_another_thread_recorded_first(tmp_path):
    code = f"""
import sys, threading, time
from stagescope import record
record.start(sys.argv[1])
def work(microbatch):
    with record.span("forward", microbatch=microbatch, stage=0):
        pass
thread = threading.Thread(target=work, args=(0,))
thread.start()
thread.join()
work(1)
{READY}
time.sleep(60)
"""
    with child(code, tmp_path) as process:
        assert end_of(process) == -signal.SIGTERM
    contents = only_contents(tmp_path)
    assert sorted(microbatches(contents)) == [0, 1]
    assert contents.end["reason"] == "sigterm"


HANDLER = """
def handler(number, frame):
    emit([10])
    print("handled", number == signal.SIGTERM, frame is not None, flush=True)
    {then}
signal.signal(signal.SIGTERM, handler)
"""


@pytest.mark.parametrize("installed", ["before", "after"])
@pytest.mark.parametrize(("then", "code"), [("sys.exit(5)", 5), ("raise KeyError", 1)])
def test_handler_of_the_training_decides_on_sigterm(tmp_path, installed, then, code):
    handler = HANDLER.format(then=then)
    before, after = (handler, BUSY) if installed == "before" else ("pass", handler + BUSY)
    with child(program(after, before), tmp_path) as process:
        assert end_of(process) == code
        assert process.stdout.read() == "handled True True\n"
    assert microbatches(only_contents(tmp_path)) == list(range(11))


def test_everything_is_stored_before_a_handler_that_exits_immediately(tmp_path):
    with child(program(BUSY, HANDLER.format(then="os._exit(6)")), tmp_path) as process:
        assert end_of(process) == 6
    assert microbatches(only_contents(tmp_path)) == list(range(10))


def test_process_continues_when_the_handler_does_not_exit(tmp_path):
    before = HANDLER.format(then="os.environ['GO'] = 'on'")
    after = f"{READY}\nwhile 'GO' not in os.environ:\n    time.sleep(0.01)\ntime.sleep(1.5)\nemit([11])"
    with child(program(after, before), tmp_path) as process:
        assert end_of(process) == 0
    contents = only_contents(tmp_path)
    assert microbatches(contents) == list(range(12))
    assert contents.end["reason"] == "exit"


CHAINED = """
before = signal.getsignal(signal.SIGTERM)
def handler(number, frame):
    if callable(before):
        before(number, frame)
    emit([10])
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, handler)
"""


@pytest.mark.parametrize("stopped", ["", "record.stop()\n"])
def test_later_handler_that_chains_to_ours_completes(tmp_path, stopped):
    with child(program(CHAINED + stopped + BUSY), tmp_path) as process:
        assert end_of(process) == 0
        assert process.stdout.read() == "saved\n"
    assert microbatches(only_contents(tmp_path)) == list(range(10 if stopped else 11))


def test_earlier_handler_is_still_reached_after_stop(tmp_path):
    before = "signal.signal(signal.SIGTERM, lambda *_: print('first', flush=True))"
    with child(program(CHAINED + "record.stop()\n" + BUSY, before), tmp_path) as process:
        assert end_of(process) == 0
        assert process.stdout.read() == "first\nsaved\n"


def test_ignored_sigterm_stays_ignored(tmp_path):
    after = f"{READY}\nsys.stdin.readline()\nemit([10])"
    with child(program(after, "signal.signal(signal.SIGTERM, signal.SIG_IGN)"), tmp_path) as process:
        process.send_signal(signal.SIGTERM)
        process.communicate("go on\n", timeout=60)
        assert process.returncode == 0
    assert microbatches(only_contents(tmp_path)) == list(range(11))


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.03, 0.1, 0.3, 0.7])
def test_flushed_spans_are_readable_after_sigkill(tmp_path, delay_s):
    after = f"""
{READY}
for number in range(10, 10_000_000):
    emit([number])
    if number % 100 == 0:
        session.recorder.flush()
        print(number, flush=True)
"""
    with child(program(after), tmp_path) as process:
        time.sleep(delay_s)
        assert end_of(process, signal.SIGKILL) == -signal.SIGKILL
        flushed = [int(line) for line in process.stdout.read().splitlines() if line.endswith("00")]
    contents = only_contents(tmp_path) if list(tmp_path.iterdir()) else None
    stored = microbatches(contents) if contents else []
    assert stored == list(range(len(stored)))
    assert len(stored) > max(flushed, default=-1)
    if contents:
        assert contents.end is None
        assert len(contents.gaps) <= 1


def test_os_exit_keeps_flushed_spans(tmp_path):
    after = "session.recorder.flush_soon()\ntime.sleep(0.3)\nos._exit(4)"
    assert run_child(program(after), tmp_path).returncode == 4
    contents = only_contents(tmp_path)
    assert microbatches(contents) == list(range(10))
    assert contents.end is None


def forked(child_does, parent_does="pass"):
    return f"""
pid = os.fork()
if pid == 0:
    {child_does}
    sys.stdout.flush()
    sys.exit(0)
{parent_does}
assert os.waitpid(pid, 0)[1] == 0
emit([10])
"""


def by_pid(tmp_path, parent_first):
    """Return the micro-batches of the parent (which has `parent_first` of them) and of its child."""
    parent, *others = sorted(
        contents_in(tmp_path), key=lambda contents: microbatches(contents)[0] != parent_first
    )
    return microbatches(parent), [microbatches(other) for other in others]


def test_forked_child_without_spans_has_no_file_and_no_thread(tmp_path):
    done = run_child(
        program(forked("print(threading.active_count(), len(os.listdir('/proc/self/task')))")), tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 1\n", "")
    assert by_pid(tmp_path, 0) == (list(range(11)), [])


def test_forked_child_writes_its_own_file_without_the_parents_spans(tmp_path):
    done = run_child(program(forked("emit(range(100, 105))", "emit(range(20, 25))")), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert by_pid(tmp_path, 0) == ([*range(10), *range(20, 25), 10], [list(range(100, 105))])
    assert len({contents.header["pid"] for contents in contents_in(tmp_path)}) == 2
    assert all(contents.end["reason"] == "exit" for contents in contents_in(tmp_path))


def test_fork_during_writes_neither_hangs_nor_duplicates_spans(tmp_path):
    after = """
stop = threading.Event()
def keep_busy(first):
    number = first
    while not stop.is_set():
        emit([number])
        number += 1
        session.recorder.name_id(f"name {number % 1000}")
        if number % 50 == 0:
            session.recorder.flush_soon()
threads = [threading.Thread(target=keep_busy, args=(first,)) for first in (1_000_000, 1_000_000_000)]
for thread in threads:
    thread.start()
for attempt in range(15):
    with record.span("backward", microbatch=attempt, stage=1):
        pid = os.fork()
        if pid == 0:
            emit([100 + attempt])
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(1)
        status = os.waitpid(pid, 0)[1]
    assert os.WTERMSIG(status) == signal.SIGTERM, status
stop.set()
for thread in threads:
    thread.join()
"""
    done = run_child(program(after), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    seen = [
        m
        for contents in contents_in(tmp_path)
        for m in zip(microbatches(contents), contents.spans["kind"], strict=True)
    ]
    contents = {path.name: read_contents(path.read_bytes()) for path in sorted(tmp_path.iterdir())}
    sizes = {name: (len(one.spans), len(set(microbatches(one))), one.end) for name, one in contents.items()}
    assert len(seen) == len(set(seen)), f"file: (spans, distinct micro-batches, end frame): {sizes}"
    files = sorted(contents_in(tmp_path), key=lambda contents: len(contents.spans))
    assert sorted(m for contents in files[:-1] for m in microbatches(contents)) == list(range(100, 115))
    assert all(contents.gaps == [] and contents.lost_frames == 0 for contents in files)
    assert {m for m, kind in seen if kind == 2} == set(range(15))


def test_sigterm_to_a_new_child_does_not_end_the_parent(tmp_path):
    after = """
import multiprocessing
fork = multiprocessing.get_context("fork")
codes = []
for _ in range(60):
    process = fork.Process(target=time.sleep, args=(60,))
    process.start()
    process.terminate()
    process.join()
    codes.append(process.exitcode)
assert set(codes) == {-signal.SIGTERM}, codes
time.sleep(1.5)
emit([10])
"""
    done = run_child(program(after), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert by_pid(tmp_path, 0) == (list(range(11)), [])


def test_forked_child_ends_by_sigterm(tmp_path):
    after = """
pid = os.fork()
if pid == 0:
    time.sleep(60)
os.kill(pid, signal.SIGTERM)
assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGTERM
blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
assert signal.SIGTERM not in blocked
"""
    assert run_child(program(after), tmp_path).stderr == ""


def test_fork_keeps_the_signal_mask_of_the_training(tmp_path):
    after = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
pid = os.fork()
blocked = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
if pid == 0:
    os._exit(0 if blocked else 1)
assert os.waitpid(pid, 0)[1] == 0
assert blocked
"""
    assert run_child(program(after), tmp_path).stderr == ""


MULTIPROCESSING = """
import multiprocessing, sys, os
from stagescope import record
def work(directory, number):
    os.environ["RANK"] = str(number)
    record.start(directory)
    for microbatch in range(5):
        with record.span("forward", microbatch=microbatch, stage=number):
            pass
    if number == 2:
        raise SystemExit(3)
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[2])
    if sys.argv[3] == "recording":
        record.start(sys.argv[1])
        with record.span("forward", microbatch=99, stage=9):
            pass
    processes = [context.Process(target=work, args=(sys.argv[1], number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print([process.exitcode for process in processes])
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("parent", ["idle", "recording"])
def test_multiprocessing_children_store_their_recordings(tmp_path, method, parent):
    script = tmp_path / "train.py"
    script.write_text(MULTIPROCESSING, encoding="utf-8")
    done = run_child(
        "import runpy, sys; sys.argv[:] = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
        if method == "fork"
        else "import os, sys; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])",
        script, tmp_path / "runs", method, parent,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("[0, 0, 3]\n", "")
    recordings = contents_in(tmp_path / "runs")
    ours = [contents for contents in recordings if microbatches(contents) == list(range(5))]
    assert sorted(contents.header["rank"] for contents in ours) == [0, 1, 2]
    assert all(contents.end["reason"] == "exit" for contents in ours)
    others = [microbatches(contents) for contents in recordings if contents not in ours]
    assert others == ([[99]] if parent == "recording" else [])


ASYNCIO = """
import asyncio
async def main():
    loop = asyncio.get_running_loop()
    terminated, alarmed = asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, terminated.set)
    {inside}
    {ready}
    await terminated.wait()
    loop.call_later(0.05, alarmed.set)
    await alarmed.wait()
    emit([10])
    return signal.getsignal(signal.SIGTERM)
"""


@pytest.mark.parametrize("order", ["loop first", "recorder first"])
def test_event_loop_signal_handlers_keep_working(tmp_path, order):
    if order == "recorder first":
        code = program(ASYNCIO.format(inside="pass", ready=READY) + "asyncio.run(main())")
    else:
        code = TEN_SPANS.format(
            before=ASYNCIO.format(inside="record.start(sys.argv[1]); emit(range(10))", ready=READY)
            + "asyncio.run(main()); sys.exit(0)",
            after="pass",
        )
    with child(code, tmp_path) as process:
        process.send_signal(signal.SIGUSR1)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
    contents = only_contents(tmp_path)
    assert microbatches(contents) == list(range(11))
    assert contents.end["reason"] == "exit"


def test_stop_keeps_a_wakeup_fd_installed_later(tmp_path):
    after = """
import socket
one, other = socket.socketpair()
one.setblocking(False)
signal.set_wakeup_fd(one.fileno())
record.stop()
assert signal.set_wakeup_fd(-1) == one.fileno()
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
one.close(), other.close()
"""
    assert run_child(program(after), tmp_path).stderr == ""


def test_stop_removes_our_wakeup_fd_under_a_later_handler(tmp_path):
    after = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
record.stop()
assert signal.set_wakeup_fd(-1) == -1
assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
"""
    assert run_child(program(after), tmp_path).stderr == ""


def test_process_ends_although_the_disk_hangs(tmp_path):
    hang = """
import stagescope.record.recording as recording, stagescope.record.recorder as recorder
import stagescope.record.writer as writer
writer.STOP_TIMEOUT_S = 0.2
recording.Recording.write_spans = lambda *_: time.sleep(60)
"""
    done = run_child(program("sys.exit(3)", hang), tmp_path)
    assert (done.returncode, done.stderr) == (3, "")


def test_subprocess_is_unaffected(tmp_path):
    after = """
import subprocess
asks = "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, preexec_fn=lambda: None)
assert done.stdout == "True\\n", done
emit([10])
"""
    done = run_child(program(after), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert microbatches(only_contents(tmp_path)) == list(range(11))
