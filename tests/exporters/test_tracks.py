import polars as pl

from drawing import timeline_from_text
from machines import on_machines
from stagescope.exporters.tracks import lay_out
from stagescope.model import SPANS, empty_timeline
from stagescope.model.validate import conform
from synthetic import EPOCH_NS, ISSUE_NS, Shape, awkward_timeline, message_count, pipeline_timeline

MESSAGE = {"lane": "comm", "step": 0, "microbatch": 0}


def one_message(send, receive):
    """Return the layout of one message from rank 0 to 1: (start, end) of the send and of the receive."""
    ends = [("send_forward", 0, 1, *send), ("recv_forward", 1, 0, *receive)]
    rows = [
        {
            **MESSAGE,
            "kind": kind,
            "rank": rank,
            "stage": rank,
            "peer": peer,
            "start_ns": start_ns,
            "end_ns": end_ns,
        }
        for kind, rank, peer, start_ns, end_ns in ends
    ]
    return lay_out(empty_timeline().with_spans(conform(pl.DataFrame(rows), SPANS)))


def drawn_receive(layout):
    return (
        layout.slices.filter(pl.col("kind") == "recv_forward").select("start_ns", "end_ns", "issue_ns").row(0)
    )


def test_tracks_are_ordered_within_their_rank():
    assert lay_out(pipeline_timeline(Shape(ranks=2, steps=1))).track_names == (
        "Step",
        "rank 0 (node-0, stage 0) / compute",
        "rank 0 (node-0, stage 0) / receive wait",
        "rank 0 (node-0, stage 0) / send",
        "rank 0 (node-0, stage 0) / receive",
        "rank 0 (node-0, stage 0) / micro-batches in flight",
        "rank 1 (node-0, stage 1) / compute",
        "rank 1 (node-0, stage 1) / receive wait",
        "rank 1 (node-0, stage 1) / send",
        "rank 1 (node-0, stage 1) / receive",
        "rank 1 (node-0, stage 1) / micro-batches in flight",
    )


def test_rank_with_several_stages_lists_them_and_one_without_spans_is_there_too():
    names = [group.name for group in lay_out(awkward_timeline()).groups]
    assert names[4:] == [
        'rank 4 (quo"ted, stages 0, 1)',
        "rank 5 (stage 5)",
        "rank 6 (</script>)",
        "rank 7 (silent)",
    ]


def test_actions_that_overlap_get_lanes_of_their_own():
    names = lay_out(awkward_timeline()).track_names
    assert [name.split(" / ")[1] for name in names if name.startswith("rank 4")][:2] == [
        "compute 1",
        "compute 2",
    ]


def test_no_slices_of_one_track_overlap():
    slices = lay_out(awkward_timeline()).slices
    before = slices["end_ns"].shift(1)
    same_track = slices["track"] == slices["track"].shift(1)
    assert not (same_track & (slices["start_ns"] < before)).any()


def test_every_span_wait_and_step_is_a_slice():
    timeline = awkward_timeline()
    waits = timeline.spans["wait_start_ns"].is_not_null().sum()
    steps = timeline.steps["step"].n_unique()
    assert lay_out(timeline).slices.height == timeline.spans.height + waits + steps


def test_receive_is_drawn_from_its_send_and_keeps_its_post():
    assert drawn_receive(one_message((50, 60), (10, 90))) == (50, 90, 10)


def test_receive_posted_after_the_send_is_drawn_as_it_was():
    assert drawn_receive(one_message((50, 60), (70, 90))) == (70, 90, None)


def test_message_that_ends_before_it_was_sent_gets_no_flow_and_is_counted():
    layout = one_message((50, 60), (10, 40))
    assert drawn_receive(layout) == (10, 40, None)
    assert layout.flows.is_empty()
    (diagnostic,) = layout.diagnostics
    assert (diagnostic.severity, diagnostic.rank, diagnostic.count) == ("warning", 1, 1)
    assert "before they were sent" in diagnostic.message


def test_every_message_is_a_flow_that_points_forward_in_time():
    shape = Shape()
    layout = lay_out(pipeline_timeline(shape))
    sends, receives = (layout.slices[layout.flows[side]] for side in ("send", "recv"))
    assert layout.flows.height == message_count(shape)
    assert (sends["start_ns"] <= receives["start_ns"]).all()
    assert (sends["microbatch"] == receives["microbatch"]).all()
    assert (sends["peer"] == receives["rank"]).all()
    assert set(sends["end_ns"] - sends["start_ns"]) == {ISSUE_NS}


def test_step_reaches_from_the_first_ranks_start_to_the_last_ranks_end():
    timeline = pipeline_timeline(Shape())
    first = timeline.steps.filter(pl.col("step") == 0)
    steps = lay_out(timeline).slices.filter(pl.col("kind").is_null())
    assert steps["title"].to_list() == ["step 0", "step 1"]
    assert steps.select("start_ns", "end_ns").row(0) == (EPOCH_NS, first["end_ns"].max())


def test_steps_come_from_the_spans_where_none_were_recorded():
    layout = lay_out(timeline_from_text("F0 F1 B0 B1", cell_ns=10))
    assert layout.slices.filter(pl.col("kind").is_null()).select("title", "start_ns", "end_ns").row(0) == (
        "step 0", 0, 40,
    )  # fmt: skip


def test_span_that_ends_before_it_starts_is_drawn_with_no_length_and_counted():
    timeline = timeline_from_text("F0 B0")
    layout = lay_out(timeline.with_spans(timeline.spans.with_columns(end_ns=pl.col("start_ns") - 5)))
    actions = layout.slices.filter(pl.col("kind").is_not_null())
    assert actions.select("start_ns", "end_ns").rows() == [(0, 0), (1_000, 1_000)]
    assert [(found.rank, found.count) for found in layout.diagnostics] == [(0, 2)]


def test_wait_without_its_end_is_not_drawn_and_counted():
    timeline = timeline_from_text("F0 B0")
    layout = lay_out(timeline.with_spans(timeline.spans.with_columns(wait_start_ns=pl.col("start_ns"))))
    assert not layout.slices["is_wait"].any()
    assert [(found.rank, found.count) for found in layout.diagnostics] == [(0, 2)]


def test_empty_timeline_has_an_empty_layout():
    layout = lay_out(empty_timeline())
    assert (layout.groups, layout.tracks, layout.start_ns, layout.slices.height) == ((), (), 0, 0)


def test_shifting_all_clocks_shifts_only_the_slices():
    here, there = (lay_out(awkward_timeline(origin_ns=origin)).slices for origin in (0, EPOCH_NS))
    moved = here.with_columns(pl.col("start_ns", "end_ns", "issue_ns") + EPOCH_NS)
    assert moved.equals(there)


def test_messages_and_steps_do_not_reach_from_one_clock_to_another():
    timeline = pipeline_timeline(Shape(ranks=3))
    aligned = on_machines(timeline, {0: "a", 1: "a", 2: "b"}, {"a": (0, 0), "b": (-5, 5)})
    apart = on_machines(timeline, {0: "a", 1: "a", 2: "b"}, {"a": (0, 0), "b": None})
    whole, parted = lay_out(aligned), lay_out(apart)
    assert whole.flows.equals(lay_out(timeline).flows)
    (note,) = parted.diagnostics
    assert note.message == "messages between machines with unaligned clocks are drawn without arrows"
    assert parted.flows.height == whole.flows.height - note.count > 0
    flowing = set(parted.slices["rank"].gather(pl.concat([parted.flows["send"], parted.flows["recv"]])))
    assert flowing == {0, 1}
    ends = apart.steps.filter(pl.col("rank") < 2).group_by("step").agg(pl.max("end_ns")).sort("step")
    assert parted.slices.filter(pl.col("rank").is_null())["end_ns"].to_list() == ends["end_ns"].to_list()


def test_flows_of_a_timeline_without_alignment_are_drawn_as_recorded():
    timeline = pipeline_timeline(Shape(ranks=2))
    raw = on_machines(timeline, {0: "a", 1: "b"})
    assert lay_out(raw).flows.equals(lay_out(timeline).flows)
