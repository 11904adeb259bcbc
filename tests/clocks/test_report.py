import json
from dataclasses import fields

from stagescope.clocks.report import (
    STATES,
    ClockReport,
    ContradictoryPair,
    MachineClock,
    Rejected,
    StepFound,
    Witness,
    report_json,
)

WITNESS = Witness("message", "a/wall", "b/wall", 0, 1, 3, 4, 1_000, 900)


def machine(name, state, low=None, high=None, *, group="a/wall"):
    return MachineClock(f"{name}/wall", name, (0,), state, group, 0, 0.0, low, high, 0, 10, 0)


def test_the_worst_error_is_the_farther_side_of_the_widest_interval():
    report = ClockReport((machine("a", "reference", -1, 1), machine("b", "aligned", -70, 30)))
    assert report.worst_error_ns == 70
    assert report.left_out == ()


def test_a_reference_alone_is_not_aligned_with_anybody():
    report = ClockReport((machine("a", "reference", -1, 1), machine("b", "apart")))
    assert report.worst_error_ns is None
    assert [left.machine for left in report.left_out] == ["b"]


def test_a_machine_that_one_side_bounds_is_left_out():
    assert len(ClockReport((machine("a", "one-sided", low=-5),)).left_out) == 1


def test_a_witness_says_which_event_of_which_ranks_it_is():
    assert str(WITNESS) == "message of micro-batch 4 in step 3 from rank 0 to rank 1"
    bare = Witness("reduction", "a", "b", 2, 5, None, None, 0, 0)
    assert str(bare) == "reduction from rank 2 to rank 5"


def test_the_report_as_json_has_every_field_and_only_plain_values():
    report = ClockReport(
        (machine("a", "reference", -1, 1), machine("b", "apart")),
        (StepFound("b/wall", 5, 9, -300, ("b/wall", "a/wall")),),
        (Rejected(WITNESS, 77),),
        (ContradictoryPair(("a/wall", "b/wall"), 12, (WITNESS,)),),
        200.0,
        0.01,
    )
    told = report_json(report)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert set(told) == {field.name for field in fields(ClockReport)} | {"worst_error_ns", "left_out"}
    assert set(told["machines"][0]) == {field.name for field in fields(MachineClock)}
    assert told["machines"][1]["error_lo_ns"] is None
    assert told["steps"][0]["suspects"] == ["b/wall", "a/wall"]
    assert told["rejected"][0]["witness"]["source_rank"] == 0
    assert told["contradictions"][0]["clocks"] == ["a/wall", "b/wall"]
    assert told["left_out"] == ["b/wall"]
    assert told["worst_error_ns"] is None


def test_one_clock_has_a_report_without_machines():
    assert report_json(ClockReport(()))["machines"] == []


def test_the_states_are_those_that_the_documents_name():
    assert STATES == ("reference", "aligned", "one-sided", "apart", "withheld")
