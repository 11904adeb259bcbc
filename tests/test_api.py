"""The steps in a row: what reading does with the clocks of several machines."""

import polars as pl
import pytest

from machines import move_traces, record_machines
from places import DATA
from stagescope.api import bring_to_one_clock, read

ONE_MACHINE = DATA / "recordings" / "v1"
TRACES = DATA / "kineto"


def test_reading_brings_all_machines_to_one_clock_within_the_stated_interval(tmp_path):
    planted = record_machines(tmp_path)
    timeline = read(tmp_path)
    assert timeline.clocks["error_hi_ns"].null_count() == 0
    true = planted.truth.sort("rank", "kind", "step", "microbatch")["start_ns"]
    found = timeline.spans.sort("rank", "kind", "step", "microbatch")["start_ns"]
    assert (found - 1_000_000 - true).abs().max() < timeline.clocks["error_hi_ns"].max()


def test_raw_stamps_are_as_recorded_and_said_to_be_on_wall_clocks(tmp_path):
    planted = record_machines(tmp_path)
    raw = read(tmp_path, align=False)
    stamps = planted.timeline.spans["start_ns"].sort() + 1_000_000
    assert raw.spans["start_ns"].sort().equals(stamps, check_names=False)
    (note,) = raw.diagnostics["message"]
    assert note.startswith("2 machines are merged by their wall clocks")


def test_what_was_found_of_the_clocks_is_said_once(tmp_path):
    record_machines(tmp_path)
    timeline = read(tmp_path)
    (note,) = timeline.diagnostics["message"]
    assert note.startswith("Clocks of 2 machines aligned")


def test_the_report_of_the_clocks_comes_with_the_same_timeline(tmp_path):
    record_machines(tmp_path)
    aligned = bring_to_one_clock(read(tmp_path, align=False))
    assert aligned.timeline.spans.equals(read(tmp_path).spans)
    assert aligned.timeline.diagnostics.equals(read(tmp_path).diagnostics)
    assert [machine.machine for machine in aligned.clocks.machines] == ["node-0", "node-1"]


def test_a_run_of_one_machine_passes_through_unchanged():
    raw = read(ONE_MACHINE, align=False)
    aligned = bring_to_one_clock(raw)
    assert aligned.clocks.machines == ()
    assert aligned.timeline.spans is raw.spans
    for name in ("spans", "ranks", "steps", "clocks", "diagnostics"):
        assert getattr(raw, name).equals(getattr(read(ONE_MACHINE), name)), name


@pytest.mark.parametrize("schedule", ["ZBVZeroBubble"])
def test_real_traces_of_which_half_claim_another_host_are_brought_back_within_the_stated_interval(
    tmp_path, schedule
):
    """The traces are of one host, so that its own stamps are the truth."""
    move_traces(TRACES / schedule, tmp_path, ranks=(2, 3), ahead_ns=30_000_000)
    aligned = read(tmp_path)
    true_ns, found_ns = (
        timeline.spans.group_by("rank").agg(pl.min("start_ns")).sort("rank")["start_ns"]
        for timeline in (read(TRACES / schedule), aligned)
    )
    missing_ns = true_ns - found_ns
    assert missing_ns.to_list()[:2] == [0, 0]
    assert missing_ns.abs().max() < 10_000_000
    clock = aligned.clocks.filter(machine="another-host")
    assert clock["error_lo_ns"].min() <= missing_ns[2:].min()
    assert missing_ns[2:].max() <= clock["error_hi_ns"].max()
