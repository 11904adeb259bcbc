"""What recordings of running processes state last, read from their ends."""

from __future__ import annotations

import json
import os
import time

import pytest

from recordings import anchor_record, encode, recording_frames, span_record
from stagescope.api import find_hang
from stagescope.cli import main
from stagescope.ingest.recording.latest import read_process_states
from stagescope.model.process_states import Call
from stagescope.record import format as fmt
from stagescope.vocabulary.errors import InputError

SECOND_NS = 10**9
BOOT_FILE = "/proc/sys/kernel/random/boot_id"


def write(path, *states, began_s=40.0, steps=4, end=False, **header):
    """Write a recording with one forward per second until 30 seconds ago, and states of now."""
    now_ns = time.time_ns()
    began_ns = now_ns - int((began_s + steps - 1) * SECOND_NS)
    spans = [
        span_record(start_ns=began_ns + step * SECOND_NS, end_ns=began_ns + step * SECOND_NS + 5, step=step)
        for step in range(steps)
    ]
    frames = recording_frames(spans, end=end, **header)
    frames[2] = (fmt.CLOCK, anchor_record(now_ns, now_ns))
    place = len(frames) - end
    frames[place:place] = [(fmt.STATE, json.dumps({"time_ns": now_ns, **state}).encode()) for state in states]
    path.write_bytes(encode(frames))
    return path


def only_state(path):
    (state,) = read_process_states([path])
    return state


def test_ages_rates_and_the_calls_in_progress(tmp_path):
    wait = {"call": "wait", "for": [{"call": "recv_forward", "stage": 1, "microbatch": 3, "peer": 0}]}
    state = {
        "step": 4,
        "calls": [wait, {"call": "forward", "stage": 1}],
        "stack": ["f (a.py:3)"],
        "groups": {"g": 2},
    }
    write(tmp_path / "rank-1.sscope", {"step": 0}, state, rank=1, world_size=2, pid=4711)
    found = only_state(tmp_path)
    assert (found.rank, found.world_size, found.pid, found.step) == (1, 2, 4711, 4)
    assert 39 < found.quiet_s < 45
    assert found.written_s < 5
    assert found.state_s < 5
    assert found.steps_per_s == pytest.approx(1.0)
    assert found.longest_gap_s == pytest.approx(1.0)
    assert found.calls == (
        Call("wait", waits_for=(Call("recv_forward", stage=1, microbatch=3, peer=0),)),
        Call("forward", stage=1),
    )
    assert (found.stack, found.groups, found.end_reason) == (("f (a.py:3)",), {"g": 2}, None)


def test_answers_and_stacks_stay_until_others_replace_them(tmp_path):
    first = {"control": {"request": "a"}, "threads": {"T": ["x"]}, "stack": ["old"]}
    write(tmp_path / "rank-0.sscope", first, {"stack": ["new"]})
    found = only_state(tmp_path)
    assert (found.request, found.threads, found.stack) == ({"request": "a"}, {"T": ("x",)}, ("new",))


def test_a_process_whose_steps_are_not_recorded_makes_progress_by_its_steps(tmp_path):
    now_ns = time.time_ns()
    path = write(
        tmp_path / "rank-0.sscope",
        {"step": 90, "is_recorded": False, "step_since_ns": now_ns - SECOND_NS, "time_ns": now_ns},
    )
    assert only_state(path).quiet_s == pytest.approx(1.0, abs=0.1)
    assert find_hang(path).outcome == "trains"
    write(
        path, {"step": 90, "is_recorded": False, "step_since_ns": now_ns - 60 * SECOND_NS, "time_ns": now_ns}
    )
    assert find_hang(path).conditions == {0: "busy"}


def test_the_end_of_a_recording_and_of_a_process(tmp_path):
    ended = write(tmp_path / "rank-0.sscope", end=True)
    assert only_state(ended).end_reason == "exit"
    with open(BOOT_FILE, encoding="ascii") as file:
        boot = file.read().strip()
    assert only_state(write(ended, boot=boot, pid=os.getpid())).exists is True
    assert only_state(write(ended, boot=boot, pid=2**22 + 1)).exists is False
    assert only_state(write(ended, boot="another", pid=1)).exists is None


def test_the_latest_recording_of_a_rank_and_its_last_file_count(tmp_path):
    write(tmp_path / "rank-0.sscope", {"step": 1}, process_start_ns=1)
    write(tmp_path / "rank-0.2.sscope", {"step": 2}, process_start_ns=1)
    write(tmp_path / "rank-0.10.sscope", {"step": 3}, process_start_ns=1)
    assert only_state(tmp_path).step == 3
    write(tmp_path / "rank-0-4711.sscope", {"step": 0}, process_start_ns=9, steps=1)
    assert only_state(tmp_path).source.endswith("rank-0-4711.sscope")


def test_a_recording_in_segments_is_not_taken_for_its_first_one(tmp_path):
    write(tmp_path / "rank-0.sscope", {"step": 1}, process_start_ns=1, segment=0, began_s=900)
    for segment in (1, 2, 10):
        write(tmp_path / f"rank-0.{segment}.sscope", {"step": segment}, process_start_ns=1, segment=segment)
    assert only_state(tmp_path).source.endswith("rank-0.10.sscope")
    assert only_state(tmp_path).step == 10


def test_a_long_recording_is_read_from_its_end(tmp_path):
    path = write(tmp_path / "rank-0.sscope", {"step": 3, "calls": [{"call": "optimizer"}]}, steps=40_000)
    assert path.stat().st_size > 3 * 2**20
    state = only_state(path)
    assert (state.step, state.calls) == (39_999, (Call("optimizer"),))


@pytest.mark.parametrize(
    "odd",
    [
        {
            "calls": 3,
            "groups": [1],
            "stack": {"a": 1},
            "threads": [[]],
            "control": "x",
            "time_ns": "now",
            "step": 1.5,
        },
        {
            "calls": [3, None, {"call": 3, "stage": "x", "peer": True, "for": {"a": 1}}],
            "groups": {"a": 1.5, "b": "c"},
        },
        {"time_ns": 10**400, "step": -5, "step_since_ns": [], "is_recorded": "no"},
        {"calls": [{"call": "wait", "for": [{"call": "wait", "for": [{"call": "wait"}]}]}] * 1000},
        {"world_size": 2**40},
        {"threads": {"a": ["x"] * 10_000, "b": 7}, "stack": [["deep"], {"a": 1}]},
        {"time_ns": -(2**62), "is_recorded": False, "step_since_ns": 2**62},
        {"calls": [{"call": "collective", "pair": -3, "name": "all_reduce in x 0-99999999999 (1)"}]},
        {"calls": [{"call": "collective", "pair": 3, "name": "all_reduce in x 0-99999999999:0 (1)"}]},
        {"calls": [{"call": "collective", "pair": 3, "name": "all_reduce in x 9-3 (1)"}]},
    ],
)
def test_odd_states_are_read_as_far_as_they_make_sense(odd, tmp_path, capsys):
    path = write(tmp_path / "rank-0.sscope", odd, world_size=odd.get("world_size", 2))
    assert main(["hang", str(path)]) in (0, 3)
    assert main(["hang", str(path), "--json", "-"]) in (0, 3)
    assert "Traceback" not in capsys.readouterr().err


def test_directories_without_readable_recordings_are_errors(tmp_path):
    with pytest.raises(InputError, match="no recording of stagescope"):
        read_process_states([tmp_path])
    (tmp_path / "rank-0.sscope").write_bytes(b"nothing")
    with pytest.raises(InputError):
        read_process_states([tmp_path])
    write(tmp_path / "rank-1.sscope", rank=1)
    assert only_state(tmp_path).rank == 1
