import polars as pl
import pytest

from drawing import timeline_from_text
from stagescope.analysis.graph.dependencies import find_dependencies
from stagescope.vocabulary.kinds import label

COLUMNS = ["pipeline", "step", "rank", "kind", "stage", "microbatch"]


def actions_of(text, **columns):
    actions = timeline_from_text(text).spans.with_columns(pipeline=pl.lit(0, pl.Int32), **columns)
    return actions.select(*COLUMNS, "start_ns", "end_ns", "wait_start_ns", "wait_end_ns")


def found(actions, transfers=None):
    """Return the needs as names, and the diagnostics."""
    dependencies = find_dependencies(actions, actions.clear() if transfers is None else transfers)
    names = [label(*row) for row in actions.select("kind", "stage", "microbatch").iter_rows()]
    rows = dependencies.rows.select("action", "needs", "direction").iter_rows()
    return {(names[action], names[need], way) for action, need, way in rows}, dependencies.diagnostics


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("F0\n. F0", {("F1.0", "F0.0", "forward")}),
        ("F0 B0", {("B0.0", "F0.0", "own")}),
        ("F0 I0 W0", {("I0.0", "F0.0", "own"), ("W0.0", "I0.0", "own")}),
        ("F0 . . I0\n. F0 B0 .", {("F1.0", "F0.0", "forward"), ("B1.0", "F1.0", "own"),
                                 ("I0.0", "B1.0", "backward"), ("I0.0", "F0.0", "own")}),
    ],
)  # fmt: skip
def test_needs_follow_the_dependency_rule(text, needs):
    assert found(actions_of(text)) == (needs, ())


def test_pipelines_and_steps_do_not_depend_on_each_other():
    actions = actions_of("F0\n. F0")
    for name in ("pipeline", "step"):
        separate = actions.with_columns(pl.Series(name, [0, 1], dtype=pl.Int32))
        needs, diagnostics = found(separate)
        assert needs == set()
        assert [row.count for row in diagnostics] == [1]  # F1.0 has no producer in its pipeline and step


def test_duplicate_action_is_counted_and_needed_by_no_action():
    needs, (doubled,) = found(actions_of("F0 F0 B0\n. . ."))
    assert needs == set()
    assert doubled.message.startswith(
        "actions were recorded more than once in a step (first: F0.0 of step 0, rank 0)"
    )
    assert doubled.count == 2


def test_missing_producer_is_counted_per_action_that_needs_it():
    needs, (missing,) = found(actions_of(". .\n. F0 F1 B0 B1").filter(pl.col("stage") == 1))
    assert needs == {("B1.0", "F1.0", "own"), ("B1.1", "F1.1", "own")}
    assert (
        missing.message
        == "actions need the result of an action that was not recorded (first: F1.0 of step 0, rank 1)"
    )
    assert missing.count == 2


def transfer(kind, rank, start_ns, end_ns, stage=None):
    return {
        "pipeline": 0, "step": 0, "rank": rank, "kind": kind, "stage": rank if stage is None else stage,
        "microbatch": 0, "start_ns": start_ns, "end_ns": end_ns, "wait_start_ns": None, "wait_end_ns": None,
    }  # fmt: skip


def times(text, rows):
    actions = actions_of(text)
    transfers = pl.DataFrame(rows, schema=actions.schema)
    return find_dependencies(actions, transfers).rows.select("sent_ns", "arrived_ns").rows()


def test_first_send_and_last_arrival_of_several_tensors_count():
    rows = [
        transfer("send_forward", 0, 1000, 1001),
        transfer("send_forward", 0, 1002, 1003),
        transfer("recv_forward", 1, 900, 1500),
        transfer("recv_forward", 1, 901, 1400),
    ]
    assert times("F0\n. F0", rows) == [(1000, 1500)]


def test_wait_of_a_sender_and_posting_of_the_receive_are_kept():
    sent = {**transfer("send_forward", 0, 1000, 1700), "wait_start_ns": 1000, "wait_end_ns": 1600}
    actions = actions_of("F0\n. F0")
    transfers = pl.DataFrame([sent, transfer("recv_forward", 1, 900, 1500)], schema=actions.schema)
    row = find_dependencies(actions, transfers).rows.row(0, named=True)
    assert (row["posted_ns"], row["awaited_ns"], row["released_ns"]) == (900, 1000, 1600)


def test_unrecorded_end_of_a_message_is_null():
    assert times("F0\n. F0", [transfer("recv_forward", 1, 900, 1500)]) == [(None, 1500)]
    assert times("F0\n. F0", [transfer("send_forward", 0, 1000, 1001)]) == [(1000, None)]


def test_transfers_of_other_stages_or_ranks_are_ignored():
    rows = [transfer("recv_forward", 0, 900, 1500, stage=1), transfer("recv_forward", 1, 900, 1600, stage=0)]
    assert times("F0\n. F0", rows) == [(None, None)]


def test_result_that_stays_on_its_rank_has_no_times():
    actions = actions_of("F0.0 F1.0")
    transfers = pl.DataFrame([transfer("recv_forward", 0, 0, 5, stage=1)], schema=actions.schema)
    row = find_dependencies(actions, transfers).rows.row(0, named=True)
    assert (row["is_remote"], row["direction"], row["arrived_ns"]) == (False, "forward", None)


def test_empty_input_has_no_needs():
    actions = actions_of("F0")
    assert found(actions.clear()) == (set(), ())
    transfers = pl.DataFrame([transfer("send_forward", 0, 0, 5)], schema=actions.schema)
    assert found(actions.clear(), transfers) == (set(), ())
