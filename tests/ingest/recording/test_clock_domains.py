"""Which recordings share a clock: real processes in other time and host name namespaces, and planted anchors."""

from __future__ import annotations

import json
import subprocess
import sys

import polars as pl
import pytest

from children import LIMIT_S, clean_environment
from recordings import anchor_record, encode, recording_frames, span_record
from stagescope import api
from stagescope.cli import main
from stagescope.ingest.recording.reader import read_recordings
from stagescope.record import format as fmt

S = 10**9
TRAINING = """
import os, sys, time
import stagescope.record as record
record.start(sys.argv[1])
for step in range(4):
    for microbatch in range(2):
        with record.span("forward", microbatch=microbatch, stage=int(os.environ["RANK"])):
            time.sleep(0.01)
"""


def can_unshare(*options):
    try:
        return subprocess.run(["unshare", *options, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def run_ranks(directory, *prefixes, code=TRAINING):
    """Run one rank per prefix of its command, all at the same time."""
    running = [
        subprocess.Popen(
            [*prefix, sys.executable, "-c", code, str(directory)],
            env=clean_environment(RANK=str(rank), WORLD_SIZE=str(len(prefixes))),
        )
        for rank, prefix in enumerate(prefixes)
    ]
    assert [process.wait(LIMIT_S) for process in running] == [0] * len(prefixes)


@pytest.mark.skipif(not can_unshare("--time"), reason="needs the permission to create a time namespace")
def test_a_time_namespace_is_a_clock_of_its_own(tmp_path, capsys):
    run_ranks(tmp_path, [], ["unshare", "--time", "--monotonic", "5000"])
    timeline = api.read(tmp_path)
    assert timeline.ranks["clock"].n_unique() == 2
    assert timeline.ranks["machine"].n_unique() == 2
    starts = timeline.spans.group_by("rank").agg(pl.min("start_ns"))["start_ns"]
    assert starts.max() - starts.min() < 60 * S
    main(["clocks", str(tmp_path)])
    assert "one clock" not in capsys.readouterr().out


@pytest.mark.skipif(not can_unshare("--uts"), reason="needs the permission to create a UTS namespace")
def test_containers_with_different_host_names_keep_their_names(tmp_path):
    named = [
        ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh"] for name in ("pod-a", "pod-b")
    ]
    run_ranks(tmp_path, *named)
    timeline = api.read(tmp_path)
    assert timeline.ranks["machine"].to_list() == ["pod-a", "pod-b"]
    assert timeline.clocks.select("machine", "method").rows() == [("pod-a, pod-b", "one clock")]


def recordings(directory, *anchors_by_rank, **header):
    """Write one recording per rank with the given anchors (monotonic_ns, realtime_ns) and a span between them."""
    paths = []
    for rank, anchors in enumerate(anchors_by_rank):
        first, last = anchors[0][0], anchors[-1][0]
        frames = recording_frames(
            [span_record(start_ns=first, end_ns=last, step=0, stage=rank, microbatch=0)],
            rank=rank, world_size=len(anchors_by_rank), **header,
        )  # fmt: skip
        frames[2:3] = [(fmt.CLOCK, anchor_record(*anchor)) for anchor in anchors]
        paths.append(directory / f"rank-{rank:05d}.sscope")
        paths[-1].write_bytes(encode(frames))
    return paths


def test_contradictory_anchors_of_one_boot_are_two_clocks(tmp_path):
    late = [(5000 * S + n * S, 10**18 + n * S) for n in (0, 10)]
    timeline = read_recordings(recordings(tmp_path, [(n * S, 10**18 + n * S) for n in (0, 10)], late))
    assert timeline.ranks["machine"].to_list() == ["node-a (clock 1)", "node-a (clock 2)"]
    assert timeline.spans["start_ns"].to_list() == [10**18] * 2
    (note,) = timeline.diagnostics.rows(named=True)
    assert (note["code"], note["severity"]) == ("clock.namespaces", "warning")
    assert "the clock of rank 1 differs by 5000 s from that of rank 0" in note["message"]


@pytest.mark.parametrize("shift_s", [0.01, 2, 5000])
def test_contradictions_between_overlapping_recordings_are_noticed(tmp_path, shift_s):
    anchors = [(n * S, 10**18 + n * S) for n in range(0, 10_000, 10)]
    shifted = [(at_ns + int(shift_s * S), wall_ns) for at_ns, wall_ns in anchors]
    assert read_recordings(recordings(tmp_path, anchors, shifted)).ranks["clock"].n_unique() == 2


def test_a_wall_clock_that_is_set_during_the_run_leaves_one_clock(tmp_path):
    def wall_ns(at_s):
        return 10**18 + at_s * S + (3600 * S if at_s > 25 else 0)

    anchors = [[(n * S, wall_ns(n)) for n in range(begin, 60, 10)] for begin in (0, 3, 27)]
    timeline = read_recordings(recordings(tmp_path, *anchors))
    assert timeline.clocks["method"].to_list() == ["one clock"]
    assert timeline.diagnostics.is_empty()


def test_a_wall_clock_that_was_set_between_recordings_leaves_one_clock(tmp_path):
    anchors = [(0, 10**18), (S, 10**18 + S)], [(60 * S, 10**18 + 7260 * S), (61 * S, 10**18 + 7261 * S)]
    assert read_recordings(recordings(tmp_path, *anchors)).ranks["clock"].n_unique() == 1


def test_the_namespace_is_part_of_the_clock(tmp_path):
    anchors = [(0, 10**18), (S, 10**18 + S)]
    paths = recordings(tmp_path, anchors, anchors)
    frames = recording_frames([span_record()], rank=1, world_size=2, time_namespace="time:[4026532177]")
    paths[1].write_bytes(encode(frames))
    clocks = read_recordings(paths).clocks["clock"].to_list()
    assert clocks == ["boot-a/CLOCK_MONOTONIC", "boot-a/CLOCK_MONOTONIC/time:[4026532177]"]
    assert json.loads(frames[0][1])["time_namespace"] == "time:[4026532177]"
