"""Critical paths."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import timeline_from_text
from golden_orders import golden_cases
from random_pipelines import arbitrary_timelines, simulated_timelines
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.graph.critical_path import CRITICAL_PATH
from stagescope.ingest.simulation import timeline_of_simulation
from stagescope.model import empty_timeline
from stagescope.schedules import simulate
from stagescope.schedules.costs import Costs
from stagescope.vocabulary.kinds import label
from waiting import added, message, path_of, slack_of


def parts(path: pl.DataFrame) -> list[tuple]:
    """Return the parts as they would be read out: action or wait, rank, and bounds."""
    return [
        (
            label(row["kind"], row["stage"], row["microbatch"]) if row["part"] == "compute" else row["part"],
            row["rank"],
            row["start_ns"],
            row["end_ns"],
        )
        for row in path.iter_rows(named=True)
    ]


def actions_on_path(text: str) -> list[str]:
    path = path_of(timeline_from_text(text, cell_ns=10))
    return [name for name, *_ in parts(path) if name[0].isupper()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("F0 F1 B0 B1", ["F0.0", "F0.1", "B0.0", "B0.1"]),
        (
            """
            F0 F1 F2 .  .  B0 .  B1 .  B2
            .  F0 F1 .  B0 F2 B1 .  B2 .
            .  .  F0 B0 F1 B1 F2 B2 .  .
            """,
            ["F0.0", "F1.0", "F2.0", "B2.0", "F2.1", "B2.1", "F2.2", "B2.2", "B1.2", "B0.2"],
        ),
        (
            """
            F0 F1 .  B0 -  B1 -
            .  F0 B0 -  F1 B1 -
            """,
            ["F0.0", "F1.0", "B1.0", "B0.0", "B0.1"],
        ),
        (
            """
            F0 F1 F2 .  .  .  .  .  .  .  .
            .  F0 -  -  F1 -  -  F2 -  -  .
            .  .  .  .  F0 .  .  F1 .  .  F2
            """,
            ["F0.0", "F1.0", "F1.1", "F1.2", "F2.2"],
        ),
    ],
    ids=["one rank", "through the last stage", "along the first stage", "along a slow stage"],
)
def test_known_paths_are_found(text, expected):
    assert actions_on_path(text) == expected


def test_waits_on_the_path_have_a_part_per_cause():
    drawn = timeline_from_text("F0 .  .  .  .  B0\n.  .  F0 B0 .  .", cell_ns=10)
    loss = {"rank": 1, "lane": "compute", "kind": "loss", "step": 0, "start_ns": 31, "end_ns": 34}
    moved = drawn.spans.with_columns(
        start_ns=pl.when((pl.col("rank") == 1) & (pl.col("kind") == "backward"))
        .then(36)
        .otherwise("start_ns")
        .cast(pl.Int64)
    )
    timeline = added(drawn.with_spans(moved), loss, *message(0, 1, 0, 10, 18), *message(1, 0, 0, 40, 50))
    path = path_of(timeline)
    assert parts(path) == [
        ("F0.0", 0, 0, 10),
        ("transfer", 1, 10, 18),
        ("launch", 1, 18, 20),
        ("F1.0", 1, 20, 30),
        ("launch", 1, 30, 31),
        ("other_work", 1, 31, 34),
        ("launch", 1, 34, 36),
        ("B1.0", 1, 36, 40),
        ("transfer", 0, 40, 50),
        ("B0.0", 0, 50, 60),
    ]
    assert path["from_rank"].drop_nulls().to_list() == [0, 1]


def test_late_receive_keeps_the_path_on_its_own_rank():
    # The second message takes 2 ns, as the first did; it is noticed at 42 because its rank was busy until 40.
    drawn = timeline_from_text("F0 F1 .  .  .  .\n.  .  F0 -  .  F1", cell_ns=10)
    late = added(drawn, *message(0, 1, 0, 10, 12), *message(0, 1, 1, 20, 42))
    assert parts(path_of(late)) == [
        ("F0.0", 0, 0, 10),
        ("transfer", 1, 10, 12),
        ("launch", 1, 12, 20),
        ("F1.0", 1, 20, 40),
        ("transfer", 1, 40, 42),
        ("launch", 1, 42, 50),
        ("F1.1", 1, 50, 60),
    ]


def test_wait_without_recorded_arrival_is_transfer_or_launch():
    assert parts(path_of(timeline_from_text("F0 . .\n. . F0", cell_ns=10))) == [
        ("F0.0", 0, 0, 10),
        ("transfer_or_launch", 1, 10, 20),
        ("F1.0", 1, 20, 30),
    ]


def test_chain_that_begins_after_its_step_has_an_unknown_part():
    # The forward on rank 0 that the last action needs was lost.
    found = parts(path_of(timeline_from_text("F7 .  .  .\n.  .  F0 B0", cell_ns=10)))
    assert found == [("unknown", 1, 0, 20), ("F1.0", 1, 20, 30), ("B1.0", 1, 30, 40)]


def test_effect_before_its_cause_shortens_the_cause():
    found = parts(path_of(timeline_from_text("F0 -  -  .\n.  .  F0 -", cell_ns=10)))
    assert found == [("F0.0", 0, 0, 20), ("F1.0", 1, 20, 40)]


def test_every_pipeline_and_step_has_its_own_path():
    spans = [
        timeline_from_text("F0 B0", cell_ns=10, step=step, origin_ns=1_000 * step).spans for step in (0, 1)
    ]
    timeline = timeline_from_text("F0 B0")
    path = path_of(timeline.with_spans(pl.concat(spans)))
    assert path.select("step", "place", "start_ns").rows() == [
        (0, 0, 0),
        (0, 1, 10),
        (1, 0, 1_000),
        (1, 1, 1_010),
    ]


def test_timeline_without_actions_has_no_path():
    path = path_of(empty_timeline())
    assert path.is_empty()
    assert dict(path.schema) == dict(CRITICAL_PATH.schema)


@settings(max_examples=30, deadline=None)
@given(st.one_of(arbitrary_timelines(), simulated_timelines()))
def test_parts_are_contiguous_from_first_start_to_last_end(timeline):
    table, path = find_actions(timeline).table, path_of(timeline)
    assert dict(path.schema) == dict(CRITICAL_PATH.schema)
    bounds = [pl.min("start_ns"), pl.max("end_ns")]
    key = ["pipeline", "step"]
    assert path.group_by(key).agg(bounds).sort(key).equals(table.group_by(key).agg(bounds).sort(key))
    follows = path["place"] > 0
    assert (path["start_ns"] == path["end_ns"].shift(1)).filter(follows).all()
    assert (path["end_ns"] >= path["start_ns"]).all()


@pytest.mark.parametrize(
    "reference",
    [
        "deepseek_dualpipe",
        "deepseek_dualpipev",
        "megatron_1f1b_vpp",
        "torch_interleaved_zb1p",
        "torch_zbv",
        "chimera",
        "victarry_1f1b_batch_overlap",
    ],
)
def test_paths_of_reference_orders_are_as_long_as_the_step(
    reference,
):
    *_, order = golden_cases(reference)[0]
    step = simulate(order, Costs(forward=10, backward_input=13, backward_weight=7, overlapped=25, hop=2))
    timeline = timeline_of_simulation(step)
    path = path_of(timeline)
    assert set(path["part"].cast(pl.String)) == {"compute", "transfer"}
    assert (path["end_ns"] - path["start_ns"]).sum() == step.makespan_ns
    on_path = slack_of(timeline).join(path.filter(pl.col("part") == "compute").select("action"), on="action")
    assert set(on_path["slack_ns"]) == {0}


@settings(max_examples=20, deadline=None)
@given(simulated_timelines())
def test_simulated_path_has_actions_and_transfers_only(timeline):
    assert set(path_of(timeline)["part"].cast(pl.String)) <= {"compute", "transfer"}


@settings(max_examples=20, deadline=None)
@given(arbitrary_timelines(), st.integers(2, 1_000))
def test_scaling_time_preserves_every_path(timeline, factor):
    times = pl.col("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")
    scaled = path_of(timeline.with_spans(timeline.spans.with_columns(times * factor)))
    actions = ["pipeline", "step", "action"]
    computes = pl.col("part") == "compute"
    before = path_of(timeline).filter(computes).select(actions)
    assert scaled.filter(computes).select(actions).equals(before)
