"""stagescope clocks: the whole story of an alignment, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace

import polars as pl
import pytest

from machines import ALIGNED, record_machines, record_strangers
from places import DATA
from planted_clocks import ClockStep
from shifted_rank import shifted_ns, unshifted_ns
from shifted_trainings import SHIFTED, STAMPS, shifted_training
from stagescope.api import bring_to_one_clock, read
from stagescope.cli import main
from stagescope.clocks import align_clocks

ONE_MACHINE = DATA / "recordings" / "v1"
WITHIN_NS = 100_000


def said(capsys, *words) -> str:
    assert main(["clocks", *map(str, words)]) == 0
    return capsys.readouterr().out


def machine_rows(text: str) -> dict[str, list[str]]:
    """Return the words of the machines' table by the machine's name."""
    table = text.split("\n\n")[1].splitlines()[1:]
    return {line.split()[0]: line.split() for line in table}


def test_a_machine_has_its_offset_drift_interval_and_evidence(tmp_path, capsys):
    planted = record_machines(tmp_path)
    text = said(capsys, tmp_path)
    assert text.startswith("2 machines on one clock; no stamp off by more than ")
    rows = machine_rows(text)
    assert rows["node-0"][1:3] == ["0-1", "reference"]
    assert rows["node-1"][1:3] == ["2-3", "aligned"]
    first = planted.timeline.spans.filter(rank=2)["start_ns"].min()
    true = planted.truth.filter(rank=2)["start_ns"].min()
    assert float(rows["node-1"][3]) == pytest.approx((true - first) / 1e6, abs=0.1)
    assert rows["node-1"][4] == "ms"


def test_json_alone_is_written_and_holds_the_same(tmp_path, capsys):
    record_machines(tmp_path)
    told = json.loads(said(capsys, tmp_path, "--json"))
    clocks = bring_to_one_clock(read(tmp_path, align=False)).clocks
    assert [machine["offset_ns"] for machine in told["machines"]] == [m.offset_ns for m in clocks.machines]
    assert [machine["state"] for machine in told["machines"]] == ["reference", "aligned"]


@pytest.mark.parametrize(("ranks_per_machine", "told"), [(1, {"node-1"}), (2, {"node-0", "node-1"})])
def test_a_clock_that_was_set_is_told_with_its_machine_or_both_where_two_cannot_tell(
    tmp_path, ranks_per_machine, told, capsys
):
    plan = replace(
        ALIGNED, ranks_per_machine=ranks_per_machine, steps=20, clock_steps=(ClockStep(1, 0.5, 5_000_000),)
    )
    record_machines(tmp_path, plan)
    text = said(capsys, tmp_path)
    (line,) = (line for line in text.splitlines() if " between " in line)
    machines, size = line.split(",")[0].split(" by ")
    assert set(machines.strip().split(" or ")) == told
    assert float(size.split()[0]) == pytest.approx(5, abs=0.2)


def test_one_machine_has_one_clock(capsys):
    assert said(capsys, ONE_MACHINE) == "All stamps are of one clock.\n"


def test_machines_that_nothing_joins_are_said_to_be_apart(tmp_path, capsys):
    record_strangers(tmp_path)
    text = said(capsys, tmp_path)
    assert text.startswith("2 machines could not be brought to one clock: node-1 (")
    assert machine_rows(text)["node-1"][2] == "apart"
    assert "not bounded" in text


def test_partial_data_are_said_and_make_the_exit_code_1(tmp_path, capsys):
    record_machines(tmp_path)
    (tmp_path / "rank-00003.sscope").unlink()
    assert main(["clocks", str(tmp_path)]) == 1
    assert "partial data" in capsys.readouterr().err


def test_the_planted_shift_can_be_undone_to_the_nanosecond():
    zero_ns = 8_208_545_620_581
    true = pl.int_range(zero_ns - 50_000, zero_ns + 100_000, eager=True)
    later = pl.int_range(zero_ns + 7_600_000_000, zero_ns + 7_600_100_000, eager=True)
    for stamps in (true, later):
        assert unshifted_ns(shifted_ns(stamps, zero_ns), zero_ns).equals(stamps)


@pytest.mark.slow
def test_a_real_run_with_two_clocks_off_is_brought_back_within_the_interval_and_100_us():
    """Ranks 2 and 3 have their recorder's clock 30 ms ahead, drifting by 50 ppm; CLOCK_MONOTONIC is the truth."""
    training = shifted_training()
    raw, truth = read(training.directory, align=False), training.true_spans()
    ahead = (raw.spans["start_ns"] - truth["start_ns"]).filter(raw.spans["rank"].is_in(SHIFTED))
    assert ahead.min() > 30_000_000 - WITHIN_NS
    assert ahead.max() - ahead.min() > 2 * WITHIN_NS, "too short a run for its drift to matter"

    numbered = raw.with_spans(raw.spans.with_columns(name=pl.int_range(pl.len()).cast(pl.String)))
    aligned = align_clocks(numbered)
    assert [machine.ranks for machine in aligned.clocks.machines] == [(0, 1), SHIFTED]
    assert not aligned.clocks.left_out
    spans = aligned.timeline.spans.join(aligned.timeline.ranks.select("rank", "clock"), on="rank")
    true = truth.with_columns(name=pl.int_range(pl.len()).cast(pl.String)).select("name", pl.col(STAMPS))
    pieces = aligned.timeline.clocks.select("clock", "start_ns", "error_lo_ns", "error_hi_ns").sort(
        "start_ns"
    )
    for stamp in STAMPS:
        stamps = spans.select("name", "clock", at_ns=stamp).drop_nulls().sort("at_ns")
        stamps = stamps.join(true.select("name", true_ns=stamp), on="name", maintain_order="left")
        known = stamps.join_asof(
            pieces, left_on="at_ns", right_on="start_ns", by="clock", check_sortedness=False
        )
        missing_ns = known["true_ns"] - known["at_ns"]
        assert missing_ns.abs().max() <= WITHIN_NS
        assert (missing_ns >= known["error_lo_ns"]).all()
        assert (missing_ns <= known["error_hi_ns"]).all()


@pytest.mark.slow
def test_the_commands_tell_of_the_real_run_what_was_planted(capsys):
    directory = shifted_training().directory
    told = json.loads(said(capsys, directory, "--json"))
    shifted = told["machines"][1]
    assert tuple(shifted["ranks"]) == SHIFTED
    assert -33_000_000 < shifted["offset_ns"] < -30_000_000
    assert main(["show", str(directory)]) == 0
    assert "2 machines on one clock" in capsys.readouterr().out
