"""Requests to processes that are recording: what is valid, who may write them, and that all ranks change together."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import time
from contextlib import ExitStack
from types import SimpleNamespace

import polars as pl
import pytest

from children import child, clean_environment
from places import DATA
from stagescope import api, record
from stagescope.cli import main
from stagescope.record.control import CONTROL_FILE, KERNELS, MEMORY, NEVER, Control, Request, parse_request
from stagescope.record.format import NONE
from stagescope.record.recorder import Recorder
from stagescope.record.requests import new_request, send
from stagescope.vocabulary.errors import InputError, UsageError
from stagescope.vocabulary.steps import StepRange

LIMIT_S = 30
TRAINING = """
import sys, threading, time
from stagescope import record

record.start()
rank, pause_s = int(sys.argv[1]), float(sys.argv[2])
running = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), running.set()), daemon=True).start()
with record.step(), record.forward(microbatch=0, stage=rank):
    pass
print("ready", flush=True)
while not running.is_set():
    with record.step(), record.forward(microbatch=0, stage=rank):
        time.sleep(pause_s)
"""


@pytest.mark.parametrize(
    "request_",
    [
        Request("a1"),
        Request("a1", 7, StepRange(3, 9)),
        Request("a1", 7, NEVER, frozenset({MEMORY}), wants_stacks=True),
        Request("a1", 0, None, frozenset()),
        Request("a1", 7, StepRange(3, 23), frozenset({KERNELS})),
        new_request(5, is_paused=False),
    ],
)
def test_a_request_is_read_as_it_was_written(request_):
    assert parse_request(request_.text()) == request_


def changed(**facts):
    return json.dumps(json.loads(Request("a1", 7).text()) | facts)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"\xff\x00", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no control file"),
        ("{}", "no control file"),
        (changed(version=2), "version 1 is expected"),
        (changed(request="../x"), "no identifier"),
        (changed(request=3), "no identifier"),
        (changed(request="a" * 65), "no identifier"),
        (changed(from_step=-1), "from_step is no step"),
        (changed(from_step=1.5), "from_step is no step"),
        (changed(from_step=True), "from_step is no step"),
        (changed(from_step=2**70), "from_step is no step"),
        (changed(steps=[1, 2]), "steps are no range"),
        (changed(steps="9:3:1"), "steps are no range"),
        (changed(details="memory"), "details are not among"),
        (changed(details=[["memory"]]), "details are not among"),
        (changed(details=["os.system"]), "details are not among"),
        (changed(stacks="yes"), "neither true nor false"),
        (changed(details=["kernels"]), "kernels are traced in at most 20 steps"),
        (changed(details=["kernels"], steps="3:24"), "kernels are traced in at most 20 steps"),
        (changed(details=["kernels"], steps="none"), "kernels are traced in at most 20 steps"),
        (changed(details=[{"kernels": 1}]), "details are not among"),
        (changed(steps="__import__('os').system('touch pwned')"), "steps are no range"),
        (changed(steps="1:" + "9" * 5000), "steps are no range"),
        (changed(version=[1]), "version 1 is expected"),
        ("{" + '"format": "stagescope control", ' * 3000 + "}", "not JSON"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_request(text)


@pytest.fixture
def process(tmp_path):
    """Return a recorder that is in no step, and what it was asked to apply."""
    recorder = SimpleNamespace(
        directory=str(tmp_path), training_thread=0, requested=None, applied_step=NONE, asked=[]
    )

    def apply(request):
        recorder.asked.append(request)
        recorder.requested = None

    recorder.apply = apply
    return recorder


def test_a_file_that_more_users_may_write_than_the_directory_is_refused(tmp_path, process):
    tmp_path.chmod(0o755)
    send(tmp_path, new_request(0, is_paused=True))
    (tmp_path / CONTROL_FILE).chmod(0o646)
    control = Control(process)
    assert control.look() == {"refused": "more users may write the file than the directory"}
    assert control.look() is None
    assert not process.asked


def test_a_file_of_another_user_in_a_directory_of_everybody_is_refused(tmp_path, process, monkeypatch):
    tmp_path.chmod(0o1777)
    send(tmp_path, new_request(0, is_paused=True))
    facts = os.fstat
    monkeypatch.setattr(os, "fstat", lambda file: os.stat_result((*facts(file)[:4], 12345, *facts(file)[5:])))
    assert Control(process).look() == {
        "refused": "another user wrote it, in a directory that everybody may write to"
    }
    assert not process.asked
    tmp_path.chmod(0o700)
    assert "request" in Control(process).look()


def test_links_and_other_files_are_not_opened(tmp_path, process):
    target = tmp_path / "target"
    target.write_text(new_request(0, is_paused=True).text())
    (tmp_path / CONTROL_FILE).symlink_to(target)
    assert "refused" in Control(process).look()
    (tmp_path / CONTROL_FILE).unlink()
    os.mkfifo(tmp_path / CONTROL_FILE)
    assert Control(process).look() == {"refused": "it is no small regular file"}
    (tmp_path / CONTROL_FILE).unlink()
    (tmp_path / CONTROL_FILE).write_bytes(b" " * 2**17)
    assert Control(process).look() == {"refused": "it is no small regular file"}
    assert not process.asked


def test_the_file_is_replaced_as_a_whole_and_taken_once(tmp_path, process):
    control = Control(process)
    assert control.look() is None
    request = new_request(0, is_paused=True)
    send(tmp_path, request)
    assert sorted(path.name for path in tmp_path.iterdir()) == [CONTROL_FILE]
    assert control.look() == {
        "request": request.number,
        "from_step": 0,
        "is_applied": True,
        "applied_step": NONE,
    }
    send(tmp_path, request)
    assert control.look() is None
    assert process.asked == [request]


EARLY = """
import sys, time
from stagescope import record
from stagescope.record import session

record.start(rank=0, steps=sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for step in range(2000):
    with record.step(), record.forward(microbatch=0, stage=0):
        time.sleep(0.005)
    if step % 50 == 0:
        print(step, flush=True)
"""


def test_a_request_from_before_the_first_step_holds_in_the_first_step(tmp_path, capsys):
    with child(EARLY, "0:2000", env=clean_environment(STAGESCOPE_OUT=str(tmp_path))) as process:
        assert main(["control", str(tmp_path), "--steps", "7:9", "--wait", "0"]) == 1
        assert capsys.readouterr().out == "no process has begun a step yet: the request waits for them\n"
        process.stdin.write("go\n")
        process.stdin.flush()
        wait_for(
            lambda: recordings(tmp_path) == 1 and api.find_hang(tmp_path).states[0].request.get("request")
        )
    assert set(api.read(tmp_path).spans["step"]) == {7, 8}


def test_a_process_answers_before_its_first_span(tmp_path):
    with child(EARLY, "1900:2000", env=clean_environment(STAGESCOPE_OUT=str(tmp_path))) as process:
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "0\n"
        assert not list(tmp_path.glob("*.sscope"))
        answers = api.control(tmp_path, details=["memory"], patience_s=LIMIT_S)
        assert answers.accepted == (0,)
    assert api.find_hang(tmp_path).states[0].request["request"] == answers.request.number


def test_steps_that_are_over_before_all_ranks_can_change_are_refused(tmp_path, capsys):
    with child(TRAINING, 0, 0.01, env=clean_environment(RANK="0", STAGESCOPE_OUT=str(tmp_path))) as process:
        wait_for(lambda: recordings(tmp_path) == 1)
        wait_for(lambda: any(state.step for state in api.find_hang(tmp_path).states))
        assert main(["control", str(tmp_path), "--steps", "0:1"]) == 2
        assert "--steps '0:1': the first step that all ranks can reach is " in capsys.readouterr().err
        assert not (tmp_path / CONTROL_FILE).exists()
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0


def test_a_request_of_an_earlier_attempt_waits_for_its_step(tmp_path):
    send(tmp_path, new_request(5, is_paused=True))
    recorder = Recorder(str(tmp_path))
    recorded = []
    for _ in range(8):
        recorder.end_step(recorder.begin_step())
        recorded.append(recorder.enabled)
    recorder.stop("stop")
    assert recorded == [True] * 5 + [False] * 3


@pytest.fixture
def traced(tmp_path):
    """Return a function that trains steps with torch, of which a request asks for the kernels of steps 2 and 3."""
    torch = pytest.importorskip("torch")
    send(tmp_path, new_request(0, steps=StepRange(2, 4), details=[KERNELS]))
    record.start(tmp_path, rank=3)

    def train(steps=6):
        for _ in range(steps):
            with record.step():
                for microbatch in range(2):
                    with record.forward(microbatch=microbatch, stage=3):
                        torch.ones(8, 8) @ torch.ones(8, 8)
        record.stop()
        return api.read(tmp_path)

    yield train
    record.stop()


def test_kernels_are_named_after_a_recording_that_the_writer_has_yet_to_begin(tmp_path, traced, monkeypatch):
    begun, path, flush = [], Recorder.path.fget, Recorder.flush
    monkeypatch.setattr(Recorder, "path", property(lambda self: path(self) if begun else None))
    monkeypatch.setattr(Recorder, "flush", lambda self: begun.append(flush(self)))
    traced()
    (trace,) = tmp_path.rglob("*.json.gz")
    assert trace.name == "rank-00003.pt.trace.json.gz"


def test_kernels_of_the_requested_steps_are_written_beside_the_recording(tmp_path, traced):
    recorded = traced()
    assert set(recorded.spans.filter(kind="forward")["step"]) == {2, 3}
    assert recorded.spans.filter(name="kernel trace").height == 1
    (path,) = tmp_path.rglob("*.json.gz")
    assert path.relative_to(tmp_path).as_posix() == "kernels-2-3/rank-00003.pt.trace.json.gz"
    assert path.stat().st_mode & 0o777 == 0o600
    assert "aten::mm" in gzip.decompress(path.read_bytes()).decode()
    kernels = api.read(path.parent)
    columns = ["rank", "step", "kind", "stage", "microbatch"]
    assert kernels.spans.select(columns).sort(columns).rows() == [
        (3, step, "forward", 3, microbatch) for step in (2, 3) for microbatch in (0, 1)
    ]
    assert len(list(tmp_path.rglob("*unfinished*"))) == 0


def test_a_profiler_of_the_training_is_left_alone(tmp_path, traced, capsys):
    torch = pytest.importorskip("torch")
    own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    recorded = traced()
    assert set(recorded.spans.filter(kind="forward")["step"]) == {2, 3}
    assert not list(tmp_path.rglob("*.json.gz"))
    assert "no kernels are traced: the training has a profiler of its own" in capsys.readouterr().err
    with own:
        torch.ones(1)


def test_random_control_files_are_refused_or_valid_and_nothing_else_happens(tmp_path, process):
    generator = random.Random(22)  # noqa: S311 - test data
    valid = Request("a1", 7, StepRange(3, 9), frozenset({MEMORY})).text().encode()
    control = Control(process)
    for _ in range(500):
        data = bytearray(valid)
        for _ in range(generator.choice((1, 2, 8))):
            data[generator.randrange(len(data))] = generator.randrange(256)
        (tmp_path / CONTROL_FILE).unlink(missing_ok=True)
        (tmp_path / CONTROL_FILE).write_bytes(data)
        answer = control.look()
        assert answer is None or "refused" in answer or answer["from_step"] >= 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [CONTROL_FILE]
    for request in process.asked:
        assert request.details is None or request.details <= {"collectives", "memory", "kernels"}


def wait_for(condition):
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.1)


def recordings(directory):
    return len([path for path in directory.glob("*.sscope") if path.stat().st_size > 0])


def recorded_until(directory):
    """Return the last step that all ranks have recorded: they run at rates of their own."""
    return api.read(directory).spans.filter(kind="forward").group_by("rank").agg(pl.max("step"))["step"].min()


def is_quiet(directory):
    before = api.read(directory).spans.height
    time.sleep(1.5)
    return api.read(directory).spans.height == before


@pytest.mark.exhaustive
def test_all_ranks_pause_and_resume_at_the_same_step(tmp_path, capsys):
    with ExitStack() as stack:
        processes = []
        for rank, pause_s in enumerate((0.01, 0.012)):
            facts = {"RANK": str(rank), "WORLD_SIZE": "2", "STAGESCOPE_OUT": str(tmp_path)}
            process = stack.enter_context(child(TRAINING, rank, pause_s, env=clean_environment(**facts)))
            processes.append(process)
        wait_for(lambda: recordings(tmp_path) == 2)
        assert main(["control", str(tmp_path), "--pause", "--wait", str(LIMIT_S)]) == 0
        assert capsys.readouterr().out.startswith(
            "ranks 0-1 accepted the request, which takes effect at step "
        )
        wait_for(lambda: is_quiet(tmp_path))
        wait_for(lambda: not any(state.is_recorded for state in api.find_hang(tmp_path).states))
        report = api.find_hang(tmp_path, quiet_after_s=1.0)
        assert (report.outcome, report.conditions) == ("trains", {0: "running", 1: "running"})
        answers = api.control(tmp_path, resume=True, details=["collectives"], patience_s=LIMIT_S)
        assert answers.accepted == (0, 1)
        wait_for(lambda: recorded_until(tmp_path) > answers.request.from_step)
        wait_for(lambda: len(api.control(tmp_path, stacks=True, patience_s=LIMIT_S).accepted) == 2)
        states = api.find_hang(tmp_path).states
        assert all(state.stack for state in states)
        assert all(
            "<lambda>" in "".join(state.threads) for state in states
        )  # the thread that reads the input
        for process in processes:
            process.stdin.close()
            assert process.wait(LIMIT_S) == 0
    steps = api.read(tmp_path).spans.filter(kind="forward").group_by("rank").agg("step").sort("rank")["step"]
    missing = [sorted(set(range(max(each))) - set(each)) for each in steps.to_list()]
    assert missing[0] == missing[1] == list(range(missing[0][0], answers.request.from_step))
    assert set(api.control(tmp_path, pause=True, patience_s=0).ended) == {0, 1}


def test_a_request_to_a_training_that_has_ended_is_no_error(tmp_path, capsys):
    shutil.copytree(DATA / "recordings" / "v1", tmp_path, dirs_exist_ok=True)
    assert main(["control", str(tmp_path), "--pause"]) == 0
    assert capsys.readouterr().out == (
        "ranks 0-3 ended before\nno process is running: the request is for those that record here later\n"
    )


def test_requests_that_ask_for_nothing_or_for_two_things_are_errors(tmp_path, capsys):
    with pytest.raises(UsageError, match="nothing to change"):
        api.control(tmp_path)
    with pytest.raises(UsageError, match="found --pause and --steps"):
        api.control(tmp_path, pause=True, steps="3:5")
    with pytest.raises(InputError, match="absent: No such file or directory"):
        api.control(tmp_path / "absent", pause=True)
    with pytest.raises(UsageError, match="--detail kernels: only with --steps A:B with at most 20 steps"):
        api.control(tmp_path, details=["kernels"], steps="3:99")
    assert main(["control", str(tmp_path), "--detail", "everything"]) == 2
    assert "'everything' is not one of" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_process_without_steps_changes_at_once(tmp_path):
    code = TRAINING.replace("record.step(), ", "")
    with child(code, 0, 0.01, env=clean_environment(STAGESCOPE_OUT=str(tmp_path))) as process:
        wait_for(lambda: recordings(tmp_path) == 1)
        assert api.control(tmp_path, pause=True, patience_s=LIMIT_S).applied == {0: NONE}
        wait_for(lambda: is_quiet(tmp_path))
        api.control(tmp_path, resume=True, patience_s=LIMIT_S)
        wait_for(lambda: not is_quiet(tmp_path))
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0
