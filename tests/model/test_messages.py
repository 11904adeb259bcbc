import tracemalloc

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from random_pipelines import arbitrary_timelines
from stagescope.model import SPANS, row_numbers
from stagescope.model.messages import MESSAGE_KEY, match_messages
from stagescope.vocabulary.kinds import RECEIVES, SENDS
from synthetic import Shape, message_count, pipeline_timeline

TIMES = ["start_ns", "end_ns"]


def joined(spans):
    """Reference implementation: a plain join of both ends by their keys."""
    rows = {}
    known = spans.with_row_index("row").filter(pl.col("peer").is_not_null() & pl.col("stage").is_not_null())
    for kinds, side in ((SENDS, "send"), (RECEIVES, "recv")):
        forward = pl.col("kind") == kinds[0]
        shift = pl.when(forward).then(1).otherwise(-1) if side == "send" else 0
        here, there = ("rank", "peer") if side == "send" else ("peer", "rank")
        ends = known.filter(pl.col("kind").is_in(kinds)).sort("start_ns", maintain_order=True)
        key = [name for name in MESSAGE_KEY if name != "occurrence"]
        rows[side] = ends.with_columns(
            source=here,
            target=there,
            to_stage=pl.col("stage") + shift,
            direction=pl.when(forward).then(pl.lit("forward")).otherwise(pl.lit("backward")),
        ).with_columns(occurrence=pl.int_range(pl.len()).over(key))
    renamed = [
        rows[side].rename({name: f"{side}_{name}" for name in ("row", *TIMES)}) for side in ("send", "recv")
    ]
    sends = renamed[0].select(*MESSAGE_KEY, "bytes", "send_row", "send_start_ns", "send_end_ns")
    own = ("recv_row", "recv_start_ns", "recv_end_ns", "wait_start_ns", "wait_end_ns")
    return sends.join(renamed[1].select(*MESSAGE_KEY, *own), on=MESSAGE_KEY, nulls_equal=True)


def assert_same(found, expected):
    assert found["send_start_ns"].is_sorted()
    assert_frame_equal(found.sort("send_row"), expected.sort("send_row"), check_column_order=False)


def some_ends():
    """Ends of messages among a few ranks with many equal keys, some of them incomplete."""
    end = st.fixed_dictionaries(
        {
            "rank": st.integers(0, 2),
            "peer": st.sampled_from([0, 1, 2, None]),
            "kind": st.sampled_from([*SENDS, *RECEIVES, "forward"]),
            "stage": st.sampled_from([0, 1, 2, None]),
            "step": st.sampled_from([0, 1, None]),
            "microbatch": st.sampled_from([0, 1, None]),
            "start_ns": st.integers(0, 5),
        }
    )
    return st.lists(end, max_size=40).map(_spans)


def _spans(rows):
    schema = {name: SPANS.schema[name] for name in ("rank", "peer", "kind", "stage", "step", "microbatch")}
    frame = pl.DataFrame(rows, schema={**schema, "start_ns": pl.Int64})
    end_ns = pl.col("start_ns") + 1
    return frame.with_columns(
        end_ns=end_ns, wait_start_ns="start_ns", wait_end_ns=end_ns, bytes=pl.lit(8, pl.Int64)
    )


@settings(deadline=None, max_examples=150)
@given(some_ends())
def test_messages_are_those_of_a_plain_join(spans):
    assert_same(match_messages(spans), joined(spans))


@settings(deadline=None, max_examples=50)
@given(arbitrary_timelines())
def test_messages_of_arbitrary_timelines_are_those_of_a_plain_join(timeline):
    assert_same(match_messages(timeline.spans), joined(timeline.spans))


@settings(deadline=None, max_examples=50)
@given(some_ends())
def test_numbers_far_apart_are_matched_like_those_side_by_side(spans):
    far = spans.with_columns(
        pl.col("step", "microbatch") * 2_000_000_000, pl.col("rank", "peer", "stage") * 1_000_000
    )
    # A neighboring stage is one away, so only a rank's own numbers may be stretched.
    far = far.with_columns(spans["stage"])
    rows = ["send_row", "recv_row", "occurrence"]
    assert match_messages(far).select(rows).equals(match_messages(spans).select(rows))


@settings(deadline=None, max_examples=50)
@given(some_ends())
def test_a_small_table_gives_the_same_messages(spans):
    widest = row_numbers.WIDEST_TABLE
    row_numbers.WIDEST_TABLE = 4
    try:
        found = match_messages(spans)
    finally:
        row_numbers.WIDEST_TABLE = widest
    assert found.equals(match_messages(spans))


def test_every_message_of_a_run_is_matched_once_with_the_times_of_its_ends():
    shape = Shape(ranks=4, microbatches=6, steps=3)
    spans = pipeline_timeline(shape).spans
    messages = match_messages(spans)
    assert messages.height == message_count(shape)
    for side, kinds in (("send", SENDS), ("recv", RECEIVES)):
        ends = spans[messages[f"{side}_row"]]
        assert ends["kind"].is_in(kinds).all()
        assert ends["start_ns"].to_list() == messages[f"{side}_start_ns"].to_list()
        assert ends["end_ns"].to_list() == messages[f"{side}_end_ns"].to_list()
    assert messages["send_row"].n_unique() == messages["recv_row"].n_unique() == messages.height


def test_several_tensors_between_two_stages_are_counted_by_their_starts():
    common = {"step": 0, "microbatch": 0}
    send = {**common, "rank": 0, "peer": 1, "kind": "send_forward", "stage": 0}
    receive = {**common, "rank": 1, "peer": 0, "kind": "recv_forward", "stage": 1}
    rows = [
        {**send, "start_ns": 30},
        {**send, "start_ns": 10},
        {**receive, "start_ns": 5},
        {**receive, "start_ns": 6},
    ]
    found = match_messages(_spans(rows)).select("occurrence", "send_row", "recv_row").rows()
    assert found == [(0, 1, 2), (1, 0, 3)]


def test_no_spans_have_no_messages():
    empty = match_messages(SPANS.empty())
    assert empty.is_empty()
    assert set(MESSAGE_KEY) < set(empty.columns)


def test_memory_depends_on_the_messages_and_not_on_their_numbers():
    shape = Shape(ranks=64, microbatches=16, steps=4)
    spans = pipeline_timeline(shape).spans
    tracemalloc.start()
    try:
        messages = match_messages(spans)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert messages.height == message_count(shape)
    # A table of all codes that these ranks, stages, steps and micro-batches could have took 144 MB.
    assert peak_bytes < 1000 * messages.height
