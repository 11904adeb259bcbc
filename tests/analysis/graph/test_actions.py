import polars as pl
from hypothesis import given, settings

from delayed_runs import run
from drawing import timeline_from_text
from random_pipelines import arbitrary_timelines, one_f_one_b, timeline_of
from stagescope.analysis.graph.actions import ACTIONS, NEEDS, PARTNERS, find_actions
from stagescope.model import empty_timeline
from stagescope.vocabulary.kinds import label


def names(actions):
    table = actions.table.select("kind", "stage", "microbatch")
    return [label(*row) for row in table.iter_rows()]


def needs(actions):
    named = names(actions)
    return {
        (named[action], named[producer], direction)
        for action, producer, direction in actions.needs.select("action", "needs", "direction").iter_rows()
    }


def test_drawn_pipeline_follows_the_dependency_rule():
    actions = find_actions(timeline_from_text("F0 F1 . . B0 B1\n. F0 F1 I0 I1 W0 W1"))
    assert names(actions) == [
        "F0.0",
        "F0.1",
        "B0.0",
        "B0.1",
        "F1.0",
        "F1.1",
        "I1.0",
        "I1.1",
        "W1.0",
        "W1.1",
    ]
    assert needs(actions) == {
        *(("F1." + m, "F0." + m, "forward") for m in "01"),
        *(("B0." + m, "I1." + m, "backward") for m in "01"),
        *(("B0." + m, "F0." + m, "own") for m in "01"),
        *(("I1." + m, "F1." + m, "own") for m in "01"),
        *(("W1." + m, "I1." + m, "own") for m in "01"),
    }
    assert actions.table["place"].to_list() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]
    assert actions.diagnostics == ()


def test_tables_are_as_declared_and_sorted():
    actions = find_actions(run(one_f_one_b(3, 4), lambda action, rank: 10, hop_ns=3, steps=2))
    for frame, table in (
        (actions.table, ACTIONS),
        (actions.needs, NEEDS),
        (actions.partners, PARTNERS),
    ):
        assert dict(frame.schema) == dict(table.schema)
        assert frame.equals(frame.sort(table.order))


def test_transfer_times_belong_to_their_need():
    actions = find_actions(run({0: ["F0.0", "B0.0"], 1: ["F1.0", "B1.0"]}, lambda action, rank: 10, hop_ns=3))
    remote = actions.needs.filter("is_remote").select("direction", "sent_ns", "arrived_ns").rows()
    assert sorted(remote) == [("backward", 33, 36), ("forward", 10, 13)]
    assert actions.needs.filter(~pl.col("is_remote"))["arrived_ns"].null_count() == 2


def test_rows_refer_to_spans():
    timeline = run(one_f_one_b(3, 4), lambda action, rank: 10 + rank, hop_ns=3, steps=2)
    actions = find_actions(timeline)
    columns = ["rank", "kind", "step", "stage", "microbatch", "start_ns", "end_ns"]
    assert timeline.spans[actions.table["row"]].select(columns).equals(actions.table.select(columns))


def test_pair_is_one_action_with_the_needs_of_both():
    order = {
        0: ["F0.0", "F0.1", "F0.2+B0.0", "B0.1", "B0.2"],
        1: ["F1.0", "B1.0", "F1.1", "B1.1", "F1.2", "B1.2"],
    }
    actions = find_actions(run(order, lambda action, rank: 10, hop_ns=1))
    pair = actions.table.filter("is_pair").row(0, named=True)
    assert (pair["kind"], pair["stage"], pair["microbatch"], pair["rank"]) == ("forward", 0, 2, 0)
    partner = actions.partners.row(0, named=True)
    assert (partner["action"], partner["kind"], partner["microbatch"]) == (pair["action"], "backward", 0)
    found = needs(actions)
    assert ("F0.2", "B1.0", "backward") in found
    assert ("F0.2", "F0.0", "own") in found
    assert ("F1.2", "F0.2", "forward") in found
    assert actions.table.height == 11


def test_sequential_pair_is_two_actions():
    timeline = timeline_from_text("F0 F1 B0 B1")
    timeline = timeline.with_spans(
        timeline.spans.with_columns(pair=pl.Series([None, 3, 3, None], dtype=pl.Int32))
    )
    actions = find_actions(timeline)
    assert actions.table.height == 4
    assert not actions.table["is_pair"].any()


def test_single_span_of_a_pair_is_not_a_pair():
    timeline = timeline_from_text("F0 B0")
    timeline = timeline.with_spans(timeline.spans.with_columns(pair=pl.Series([3, None], dtype=pl.Int32)))
    actions = find_actions(timeline)
    assert actions.table["is_pair"].to_list() == [False, False]
    assert actions.partners.is_empty()


def test_unplaced_actions_are_counted_and_left_out():
    timeline = timeline_from_text("F0 B0 F1 B1")
    spans = timeline.spans.with_columns(
        microbatch=pl.Series([None, 0, 1, 1], dtype=pl.Int32),
        lane=pl.Series(["compute", "compute", "host", "compute"], dtype=timeline.spans.schema["lane"]),
    )
    actions = find_actions(timeline.with_spans(spans))
    assert names(actions) == ["B0.0", "B0.1"]
    assert {(row.message.split(";")[0], row.count) for row in actions.diagnostics} == {
        ("forward or backward spans are only launches on the host lane", 1),
        ("forward or backward spans have no stage or micro-batch", 1),
        ("actions need the result of an action that was not recorded (first: B0.0 of step 0, rank 0)", 2),
    }


def test_duplicate_action_is_not_a_producer():
    actions = find_actions(timeline_from_text("F0 F0 . B0\n. . F0 B0"))
    # F0.0 ran twice: which of them an action needs is ambiguous.
    assert needs(actions) == {("B0.0", "B1.0", "backward"), ("B1.0", "F1.0", "own")}
    assert [row.count for row in actions.diagnostics if row.code == "actions.duplicate"] == [2]


def test_effect_before_its_cause_is_reported_beyond_the_clock_error():
    timeline = timeline_from_text("F0 - . B0\nF0 - B0 .")
    found = find_actions(timeline).diagnostics[-1]
    assert (found.severity, found.message) == (
        "warning",
        "actions started up to 2.000 µs before their input was computed; check the clock alignment",
    )
    clocks = pl.DataFrame(
        {"clock": ["a", "b"], "offset_ns": [0, 0], "method": ["x", "x"], "error_lo_ns": [-1000, -1000],
         "error_hi_ns": [1000, 1000]}
    )  # fmt: skip
    doubtful = timeline_of(timeline.spans.to_dicts(), 2)
    doubtful = type(doubtful)(
        doubtful.spans,
        doubtful.ranks.with_columns(clock=pl.Series(["a", "b"])),
        doubtful.steps,
        pl.concat([doubtful.clocks, clocks], how="diagonal_relaxed"),
        doubtful.diagnostics,
    )
    assert find_actions(doubtful).diagnostics == ()


@settings(deadline=None, max_examples=25)
@given(arbitrary_timelines())
def test_random_timelines_give_consistent_actions(timeline):
    actions = find_actions(timeline)
    table, found = actions.table, actions.needs
    assert table["action"].to_list() == list(range(table.height))
    assert found.filter(pl.col("action") == pl.col("needs")).is_empty()
    assert table.filter(pl.col("end_ns") < pl.col("start_ns")).is_empty()
    both = found.join(table, on="action").join(table, left_on="needs", right_on="action", suffix="_producer")
    assert both.select((pl.col("step") == pl.col("step_producer")).all()).item()
    assert both.select((pl.col("microbatch") == pl.col("microbatch_producer")).all()).item()
    assert both.select(((pl.col("rank") != pl.col("rank_producer")) == pl.col("is_remote")).all()).item()


def test_renumbered_ranks_give_the_same_actions():
    timeline = run(one_f_one_b(3, 4), lambda action, rank: 10 + rank, hop_ns=3)
    new = {0: 2, 1: 0, 2: 1}
    renumbered = [
        {**row, "rank": new[row["rank"]], "peer": None if row["peer"] is None else new[row["peer"]]}
        for row in timeline.spans.to_dicts()
    ]
    assert needs(find_actions(timeline_of(renumbered, 3))) == needs(find_actions(timeline))


def test_sparse_ids_give_the_same_needs_as_dense_ones():
    timeline = run(one_f_one_b(3, 4), lambda action, rank: 10 + rank, hop_ns=3)
    far = timeline.spans.with_columns(
        microbatch=pl.col("microbatch") * 400_000_000, step=pl.lit(2_000_000_000, pl.Int32)
    )
    assert find_actions(timeline.with_spans(far)).needs.equals(find_actions(timeline).needs)


def test_empty_timeline_has_no_actions():
    actions = find_actions(empty_timeline())
    assert actions.table.is_empty()
    assert actions.needs.is_empty()
    assert actions.diagnostics == ()
