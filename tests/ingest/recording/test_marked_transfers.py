"""Steps and transfers of marked loops: planted runs of which everything but the actions is hidden."""

from __future__ import annotations

import polars as pl
import pytest

from simulated_loops import MESSAGE, hidden, run_of
from stagescope.ingest.recording.marked_messages import merge_marked
from stagescope.ingest.recording.marked_steps import divide_into_steps
from stagescope.ingest.recording.marked_transfers import place_transfers
from stagescope.model import SPANS
from stagescope.model.validate import conform
from stagescope.vocabulary.kinds import PLAIN_TRANSFERS, RECEIVES, SENDS
from truth.orders import SCHEDULES

COMPARED = ["kind", "step", "stage", "microbatch"]


def recovered(spans):
    stepped, notes = divide_into_steps(spans)
    placed, more = place_transfers(stepped)
    return placed, {note.code: note.count for note in (*notes, *more)}


@pytest.mark.parametrize("schedule", sorted({*SCHEDULES} - {"dualpipev"}))
@pytest.mark.parametrize("ranks", [2, 4])
def test_recovers_steps_and_transfers_of_every_schedule(schedule, ranks):
    spans = run_of(schedule, ranks=ranks, tensors=2, replicas=2)
    placed, notes = recovered(hidden(spans))
    assert placed.select(COMPARED).equals(spans.select(COMPARED))
    assert notes == {"steps.divided": 3}


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_a_transfer_that_is_marked_around_its_calls_is_one_transfer_in_the_step_of_its_action(schedule):
    spans = run_of(schedule, tensors=2).with_columns(
        pl.when(MESSAGE).then("wait_start_ns").alias("wait_start_ns")
    )
    is_awaited = MESSAGE & pl.col("wait_start_ns").is_not_null()
    # Some marks are around the call alone, others around the wait for it.
    around = pl.when(is_awaited & (pl.col("microbatch") % 2 == 1)).then("wait_start_ns").otherwise("start_ns")
    marks = spans.filter(MESSAGE).with_columns(
        start_ns=around - 5, end_ns=around + 1, wait_start_ns=None, wait_end_ns=None, bytes=None, step=None, peer=None
    ).unique(["rank", "kind", "start_ns"])  # fmt: skip
    both = conform(pl.concat([marks.select(spans.columns), hidden(spans)], how="vertical_relaxed"), SPANS)
    merged = merge_marked(both.sort("rank", "start_ns"))
    placed = divide_into_steps(merged)[0].filter(MESSAGE)
    once = spans.filter(MESSAGE).group_by(*COMPARED, "rank", "peer").agg(pl.sum("bytes"), pl.max("end_ns"))
    columns = ["rank", *COMPARED, "peer", "bytes", "end_ns"]
    assert placed.select(columns).sort(columns).equals(once.select(columns).sort(columns))


def test_recovers_sends_that_are_issued_after_all_forwards_and_receives_that_are_awaited_before_them():
    spans = run_of("gpipe")
    forwards = spans.filter(pl.col("kind") == "forward").group_by("rank", "step").agg(
        first_ns=pl.min("start_ns"), last_ns=pl.max("end_ns")
    )  # fmt: skip
    joined = hidden(spans).with_columns(true_kind=spans["kind"], step_=spans["step"]).join(
        forwards, left_on=["rank", "step_"], right_on=["rank", "step"], how="left", maintain_order="left"
    )  # fmt: skip
    place = pl.col("pair").cast(pl.Int64)
    late, early = pl.col("true_kind") == "send_forward", pl.col("true_kind") == "recv_forward"
    moved = joined.with_columns(
        start_ns=pl.when(late)
        .then(pl.col("last_ns") + place)
        .when(early)
        .then(pl.col("first_ns") - 200 + place)
        .otherwise("start_ns"),
        wait_start_ns=pl.when(early).then(pl.col("first_ns") - 200 + place).otherwise("wait_start_ns"),
        end_ns=pl.when(early).then(pl.col("first_ns") - 100 + place).otherwise("end_ns"),
    )
    placed, notes = recovered(moved.select(spans.columns))
    assert placed.select(COMPARED).equals(spans.select(COMPARED))
    assert notes == {"steps.divided": 3}


def test_messages_of_overlapping_actions_stay_unplaced():
    spans = run_of("dualpipev")
    placed, notes = recovered(hidden(spans))
    assert not placed["kind"].is_in([*SENDS, *RECEIVES]).any()
    assert notes == {"steps.divided": 3, "transfers.unplaced": spans.filter(MESSAGE).height}


def test_an_additional_message_stays_unplaced_and_confuses_no_other():
    spans = run_of("1f1b", ranks=2)
    first = spans.filter(pl.col("kind").is_in(["send_forward", "recv_forward"])).group_by("kind").first()
    early = first.with_columns(
        start_ns=pl.lit(spans["start_ns"].min() - 100),
        end_ns=pl.lit(spans["start_ns"].min() - 50),
        wait_start_ns=None,
        wait_end_ns=None,
        bytes=pl.lit(1, pl.Int64),
    )
    every = pl.concat([early.select(spans.columns), spans], how="vertical_relaxed").sort("rank", "start_ns")
    placed, notes = recovered(hidden(every))
    assert notes == {"steps.divided": 3, "transfers.unplaced": 2}
    assert placed.filter(pl.col("kind").is_in(PLAIN_TRANSFERS))["bytes"].to_list() == [1, 1]
    others = pl.col("bytes").ne_missing(1)
    assert placed.filter(others).select(COMPARED).equals(every.filter(others).select(COMPARED))


def test_warns_of_actions_that_contain_the_wait_for_their_input():
    spans = run_of("1f1b")
    needs = (
        pl.col("wait_start_ns")
        .filter(pl.col("kind") == "recv_forward")
        .min()
        .over("rank", "step", "microbatch")
    )
    moved = spans.with_columns(
        start_ns=pl.when(kind="forward").then(pl.min_horizontal("start_ns", needs)).otherwise("start_ns")
    )
    placed, notes = recovered(hidden(moved))
    assert placed.select(COMPARED).equals(spans.select(COMPARED))
    assert notes == {
        "steps.divided": 3,
        "actions.contain_receive": (moved["start_ns"] < spans["start_ns"]).sum(),
    }


def test_transfers_without_any_action_are_a_warning():
    spans = hidden(run_of("1f1b")).filter(pl.col("lane") != "compute")
    assert recovered(spans) == (
        spans,
        {"actions.unmarked": spans.filter(pl.col("kind").is_in(PLAIN_TRANSFERS)).height},
    )


def test_transfers_of_a_framework_are_left_as_they_are():
    spans = run_of("1f1b")
    stray = hidden(spans).filter(pl.col("kind") == "send").head(1)
    every = pl.concat([spans, stray], how="vertical_relaxed")
    assert place_transfers(every) == (every, [])


def test_an_evaluation_between_two_steps_is_a_step_of_its_own():
    spans = run_of("gpipe").filter(~MESSAGE)
    kept = spans.filter((pl.col("step") != 1) | pl.col("kind").is_in(["forward", "other"]))
    stepped, _ = divide_into_steps(hidden(kept))
    actions = pl.col("lane") == "compute"
    assert stepped.filter(actions)["step"].equals(kept.filter(actions)["step"])
    assert divide_into_steps(hidden(kept).filter(pl.col("kind") == "forward"))[1] == []


def test_micro_batches_numbered_through_the_run_count_from_0_in_each_step():
    spans = run_of("1f1b")
    numbered = spans.with_columns(microbatch=pl.col("microbatch") + 8 * pl.col("step"))
    placed, notes = recovered(hidden(numbered))
    assert placed.select(COMPARED).equals(spans.select(COMPARED))
    assert notes == {"steps.divided": 3}


def test_steps_that_overlap_are_divided_by_repetition():
    spans = run_of("1f1b").filter(~MESSAGE & ~pl.col("kind").is_in(["optimizer"]))
    last = (pl.col("kind") == "backward") & (pl.col("microbatch") == 7) & (pl.col("step") == 0)
    following = spans.filter(kind="forward", step=1, microbatch=1).select("rank", next_ns="start_ns")
    late = spans.join(following, on="rank").with_columns(
        start_ns=pl.when(last).then(pl.col("next_ns") - 10).otherwise("start_ns")
    ).select(spans.columns).sort("rank", "start_ns")  # fmt: skip
    stepped, _ = divide_into_steps(hidden(late))
    actions = pl.col("kind").is_in(["forward", "backward"])
    assert stepped.filter(actions)["step"].equals(late.filter(actions)["step"])


def test_micro_batches_of_a_single_step_keep_their_numbers():
    spans = run_of("1f1b").filter(pl.col("step") == 0).with_columns(microbatch=pl.col("microbatch") + 5)
    stepped, _ = divide_into_steps(hidden(spans.filter(~MESSAGE)))
    assert stepped["microbatch"].equals(spans.filter(~MESSAGE)["microbatch"])
