"""The messages that actions must have exchanged."""

import polars as pl
import pytest

from ascend_profiles import Cluster, write_cluster
from drawing import timeline_from_text
from stagescope import schedules
from stagescope.ingest.ascend.messages import expect_messages
from stagescope.ingest.simulation import timeline_of_simulation


def places(count, absent=()):
    columns = {"rank": range(count), "pp": range(count), **{name: [0] * count for name in ("dp", "tp", "cp")}}
    frame = pl.DataFrame(columns, schema_overrides=dict.fromkeys(columns, pl.Int32))
    clock = pl.when(pl.col("rank").is_in(list(absent))).then(None).otherwise(pl.lit("c"))
    return frame.with_columns(clock=clock)


def spans_of(name, ranks, microbatches, **options):
    order = schedules.order(name, ranks=ranks, microbatches=microbatches, **options)
    costs = schedules.Costs(forward=1_000, backward=2_000, hop=10)
    return timeline_of_simulation(schedules.simulate(order, costs)).spans


@pytest.mark.parametrize(
    ("name", "options"),
    [("1f1b", {}), ("interleaved", {"chunks": 2}), ("dualpipev", {}), ("zb-v", {}), ("zb-h1", {})],
)
def test_every_message_of_a_simulation_is_expected_and_no_other(name, options):
    spans = spans_of(name, 4, 8, **options)
    messages = expect_messages(spans.filter(pl.col("lane") == "compute"), places(4))
    sent = spans.filter(pl.col("kind").is_in(["send_forward", "send_backward"])).with_columns(
        direction=pl.col("kind").cast(pl.String).str.strip_prefix("send_")
    )
    columns = ["direction", "stage", "microbatch"]
    expected = sent.select(*columns, source="rank", target="peer", ready_ns="start_ns").sort(pl.all())
    assert messages.select(expected.columns).sort(pl.all()).rows() == expected.rows()
    assert (messages["ready_ns"] <= messages["needed_ns"]).all()
    assert messages["shares_clock"].all()


def test_messages_of_one_pair_are_in_sending_order():
    messages = expect_messages(spans_of("dualpipev", 4, 10).filter(pl.col("lane") == "compute"), places(4))
    apart = messages.filter(pl.col("sent_ns") < pl.col("sent_ns").shift(1).over("source", "target"))
    assert apart.is_empty()
    at_once = messages.filter(pl.len().over("source", "target", "ready_ns") > 1)
    first = at_once.group_by("source", "target", "ready_ns", maintain_order=True).first()
    assert set(first["direction"]) == {"forward"}


def test_an_unknown_action_has_null_times():
    actions = spans_of("1f1b", 3, 4).filter(pl.col("lane") == "compute")
    lost = (pl.col("rank") == 1) & (pl.col("kind") == "forward") & (pl.col("microbatch") == 2)
    messages = expect_messages(actions.filter(~lost), places(3))
    assert messages.height == expect_messages(actions, places(3)).height
    open_ones = messages.filter(pl.col("ready_ns").is_null() | pl.col("needed_ns").is_null())
    assert open_ones.select("source", "target", "microbatch").rows() == [(0, 1, 2), (1, 2, 2)]


def test_a_missing_rank_still_receives():
    actions = spans_of("1f1b", 3, 4).filter(pl.col("lane") == "compute", pl.col("rank") != 2)
    messages = expect_messages(actions, places(3, absent=[2]))
    assert messages.filter(target=2).height == 4
    assert messages.filter(source=2).height == 4
    assert not messages.filter(target=2)["shares_clock"].any()


def test_several_kinds_of_messages_from_a_missing_rank_have_no_known_order():
    actions = spans_of("dualpipev", 4, 8).filter(pl.col("lane") == "compute", pl.col("rank") != 0)
    messages = expect_messages(actions, places(4, absent=[0]))
    assert messages.filter(source=0).is_empty()
    assert not messages.filter(target=0).is_empty()


def test_replicas_exchange_no_messages(tmp_path):
    truth = write_cluster(tmp_path, Cluster(dp=2, transfers="none"))
    actions = truth.actions.with_columns(lane=pl.lit("compute"))
    coordinates = pl.DataFrame(
        [(rank, rank // 2, rank % 2, 0, 0, "c") for rank in range(8)],
        schema={**dict.fromkeys(("rank", "pp", "dp", "tp", "cp"), pl.Int32), "clock": pl.String},
        orient="row",
    )
    messages = expect_messages(actions, coordinates)
    assert messages.height == 2 * 2 * 3 * 8 * 2
    assert (messages["source"] % 2 == messages["target"] % 2).all()


def test_a_duplicate_action_is_ignored():
    actions = timeline_from_text("F0 F0 . B0\n. F0 B0 .").spans
    messages = expect_messages(actions, places(2))
    assert messages.filter(direction="forward")["ready_ns"].to_list() == [None]


def test_a_message_of_two_unknown_actions_is_expected():
    actions = spans_of("1f1b", 3, 4).filter(pl.col("lane") == "compute")
    lost = (pl.col("kind") == "forward") & (pl.col("microbatch") == 2) & (pl.col("rank") < 2)
    messages = expect_messages(actions.filter(~lost), places(3)).filter(source=0, target=1)
    assert messages["microbatch"].to_list() == [0, 1, 2, 3]
    assert messages.select("ready_ns", "needed_ns").row(2) == (None, None)
    assert not messages["is_open"].any()


def test_a_message_without_a_known_sender_opens_the_places_around_it():
    actions = spans_of("interleaved", 2, 4, chunks=2).filter(pl.col("lane") == "compute")
    lost = (pl.col("kind") == "forward") & (pl.col("microbatch") == 1) & (pl.col("stage") == 0)
    messages = expect_messages(actions.filter(~lost), places(2)).filter(source=0, target=1)
    kind = messages.filter(direction="forward", to_stage=1)
    assert kind["microbatch"].to_list() == [0, 2, 3]
    assert kind["is_open"].to_list() == [True, True, False]
