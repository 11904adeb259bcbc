"""stagescope clocks: the report of clock alignment as text and JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import polars as pl
import pytest

from machines import ALIGNED, record_machines, record_strangers
from places import DATA
from planted_clocks import ClockStep
from shifted_ranks import shifted_ns, unshifted_ns
from shifted_trainings import SHIFTED, TIMESTAMPS, shifted_training
from stagescope.api import read
from stagescope.cli import main
from stagescope.clocks import align_clocks

ONE_MACHINE = DATA / "recordings" / "v1"
WITHIN_NS = 100_000
"""Real runs are aligned within this, or within the estimated error where that is larger: on a busy machine, processes
wait for a processor when their messages arrive, so that no delay is short."""
USEFUL_NS = 3_000_000
"""A tenth of the planted offset: a larger estimated error would be useless."""


def printed(capsys, *words) -> str:
    assert main(["clocks", *map(str, words)]) == 0
    return capsys.readouterr().out


def machine_rows(text: str) -> dict[str, list[str]]:
    """Return the words of the machines' table by the machine's name."""
    table = text.split("\n\n")[1].splitlines()[1:]
    return {line.split()[0]: line.split() for line in table}


def test_each_machine_has_its_ranks_state_and_offset(tmp_path, capsys):
    planted = record_machines(tmp_path)
    text = printed(capsys, tmp_path)
    assert text.startswith("Clocks of 2 machines aligned; maximum error ")
    rows = machine_rows(text)
    assert rows["node-0"][1:3] == ["0-1", "reference"]
    assert rows["node-1"][1:3] == ["2-3", "aligned"]
    first = planted.timeline.spans.filter(rank=2)["start_ns"].min()
    true = planted.truth.filter(rank=2)["start_ns"].min()
    assert float(rows["node-1"][3]) == pytest.approx((true - first) / 1e6, abs=0.1)
    assert rows["node-1"][4] == "ms"


def test_json_has_the_same_values_and_nothing_else_is_written(tmp_path, capsys):
    record_machines(tmp_path)
    found = json.loads(printed(capsys, tmp_path, "--json"))
    clocks = read(tmp_path).alignment
    assert [machine["offset_ns"] for machine in found["machines"]] == [m.offset_ns for m in clocks.machines]
    assert [machine["state"] for machine in found["machines"]] == ["reference", "aligned"]


@pytest.mark.parametrize(("ranks_per_machine", "candidates"), [(1, {"node-1"}), (2, {"node-0", "node-1"})])
def test_a_clock_adjustment_names_the_machine_or_both_if_there_are_only_two(
    tmp_path, ranks_per_machine, candidates, capsys
):
    plan = replace(
        ALIGNED, ranks_per_machine=ranks_per_machine, steps=20, clock_steps=(ClockStep(1, 0.5, 5_000_000),)
    )
    record_machines(tmp_path, plan)
    text = printed(capsys, tmp_path)
    (line,) = (line for line in text.splitlines() if " between " in line)
    machines, size = line.split(",")[0].split(" by ")
    assert set(machines.strip().split(" or ")) == candidates
    assert float(size.split()[0]) == pytest.approx(5, abs=0.2)


def test_a_run_on_one_machine_has_one_clock(capsys):
    assert printed(capsys, ONE_MACHINE) == "All timestamps come from one clock.\n"


def test_machines_without_messages_between_them_are_reported_as_unaligned(tmp_path, capsys):
    record_strangers(tmp_path)
    text = printed(capsys, tmp_path)
    assert text.startswith("Clocks of 2 machines could not be aligned: node-1 (")
    assert machine_rows(text)["node-1"][2] == "unaligned"
    assert "not bounded" in text


def test_partial_data_are_reported_with_exit_code_1(tmp_path, capsys):
    record_machines(tmp_path)
    (tmp_path / "rank-00003.sscope").unlink()
    assert main(["clocks", str(tmp_path)]) == 1
    assert "partial data" in capsys.readouterr().err


def test_the_planted_shift_can_be_undone_to_the_nanosecond():
    zero_ns = 8_208_545_620_581
    true = pl.int_range(zero_ns - 50_000, zero_ns + 100_000, eager=True)
    later = pl.int_range(zero_ns + 7_600_000_000, zero_ns + 7_600_100_000, eager=True)
    for timestamps in (true, later):
        assert unshifted_ns(shifted_ns(timestamps, zero_ns), zero_ns).equals(timestamps)


@pytest.mark.slow
def test_a_real_run_is_aligned_within_the_guaranteed_bound_and_the_estimated_error():
    """Ranks 2 and 3 have their recorder's clock 30 ms ahead, drifting by 50 ppm; CLOCK_MONOTONIC is the truth."""
    training = shifted_training()
    raw, truth = read(training.directory, align=False), training.true_spans()
    ahead = (raw.spans["start_ns"] - truth["start_ns"]).filter(raw.spans["rank"].is_in(SHIFTED))
    assert ahead.min() > 30_000_000 - WITHIN_NS
    assert ahead.max() - ahead.min() > 2 * WITHIN_NS, "too short a run for its drift to matter"

    numbered = raw.with_spans(raw.spans.with_columns(name=pl.int_range(pl.len()).cast(pl.String)))
    aligned = align_clocks(numbered)
    assert [machine.ranks for machine in aligned.clocks.machines] == [(0, 1), SHIFTED]
    assert not aligned.clocks.unaligned
    spans = aligned.timeline.spans.join(aligned.timeline.ranks.select("rank", "clock"), on="rank")
    true = truth.with_columns(name=pl.int_range(pl.len()).cast(pl.String)).select("name", pl.col(TIMESTAMPS))
    errors = ("error_lo_ns", "error_hi_ns", "estimated_error_ns")
    pieces = aligned.timeline.clocks.select("clock", "start_ns", *errors).sort("start_ns")
    assert pieces["estimated_error_ns"].max() < USEFUL_NS
    for column in TIMESTAMPS:
        timestamps = spans.select("name", "clock", at_ns=column).drop_nulls().sort("at_ns")
        timestamps = timestamps.join(true.select("name", true_ns=column), on="name", maintain_order="left")
        known = timestamps.join_asof(
            pieces, left_on="at_ns", right_on="start_ns", by="clock", check_sortedness=False
        )
        missing_ns = known["true_ns"] - known["at_ns"]
        estimated_ns = known["estimated_error_ns"].fill_null(0).clip(lower_bound=WITHIN_NS)
        assert (missing_ns.abs() <= estimated_ns).all()
        assert (missing_ns >= known["error_lo_ns"]).all()
        assert (missing_ns <= known["error_hi_ns"]).all()


@pytest.mark.slow
def test_the_commands_report_the_planted_offset_of_a_real_run(capsys):
    training = shifted_training()
    raw, truth = read(training.directory, align=False), training.true_spans()
    # The planted drift adds to the offset until the first span is recorded, which takes longer on a busy machine.
    first = raw.spans.with_row_index("row").filter(pl.col("rank").is_in(SHIFTED)).sort("start_ns")["row"][0]
    planted_ns = truth["start_ns"][first] - raw.spans["start_ns"][first]
    found = json.loads(printed(capsys, training.directory, "--json"))
    shifted = found["machines"][1]
    assert tuple(shifted["ranks"]) == SHIFTED
    error_ns = planted_ns - shifted["offset_ns"]
    assert shifted["error_lo_ns"] <= error_ns <= shifted["error_hi_ns"]
    assert shifted["estimated_error_ns"] < USEFUL_NS
    assert abs(error_ns) <= max(WITHIN_NS, shifted["estimated_error_ns"])
    assert main(["show", str(training.directory)]) == 0
    assert "Clocks of 2 machines aligned" in capsys.readouterr().out
