import json
from dataclasses import fields

from stagescope.clocks.report import (
    STATES,
    ClockAdjustment,
    ClockReport,
    InconsistentPair,
    MachineClock,
    Observation,
    Outlier,
    report_json,
)

OBSERVATION = Observation("message", "a/wall", "b/wall", 0, 1, 3, 4, 1_000, 900)


def machine(name, state, low=None, high=None, *, group="a/wall"):
    return MachineClock(f"{name}/wall", name, (0,), state, group, 0, 0.0, low, high, 0, 10, 0)


def test_the_worst_error_is_the_larger_side_of_the_widest_bound():
    report = ClockReport((machine("a", "reference", -1, 1), machine("b", "aligned", -70, 30)))
    assert report.worst_error_ns == 70
    assert report.unaligned == ()


def test_a_single_aligned_machine_has_no_worst_error():
    report = ClockReport((machine("a", "reference", -1, 1), machine("b", "unaligned")))
    assert report.worst_error_ns is None
    assert [each.machine for each in report.unaligned] == ["b"]


def test_a_machine_with_a_bound_on_one_side_counts_as_unaligned():
    assert len(ClockReport((machine("a", "one-sided", low=-5),)).unaligned) == 1


def test_an_observation_as_text_names_its_kind_and_ranks():
    assert str(OBSERVATION) == "message of micro-batch 4 in step 3 from rank 0 to rank 1"
    bare = Observation("reduction", "a", "b", 2, 5, None, None, 0, 0)
    assert str(bare) == "reduction from rank 2 to rank 5"


def test_the_report_as_json_has_every_field_and_only_plain_values():
    report = ClockReport(
        (machine("a", "reference", -1, 1), machine("b", "unaligned")),
        (ClockAdjustment("b/wall", 5, 9, -300, ("b/wall", "a/wall")),),
        (Outlier(OBSERVATION, 77),),
        (InconsistentPair(("a/wall", "b/wall"), 12, (OBSERVATION,)),),
        200.0,
        0.01,
    )
    plain = report_json(report)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    computed = {"worst_error_ns", "estimated_error_ns", "unaligned"}
    assert set(plain) == {field.name for field in fields(ClockReport)} | computed
    assert set(plain["machines"][0]) == {field.name for field in fields(MachineClock)}
    assert plain["machines"][1]["error_lo_ns"] is None
    assert plain["adjustments"][0]["candidates"] == ["b/wall", "a/wall"]
    assert plain["outliers"][0]["observation"]["source_rank"] == 0
    assert plain["inconsistent_pairs"][0]["clocks"] == ["a/wall", "b/wall"]
    assert plain["unaligned"] == ["b/wall"]
    assert plain["worst_error_ns"] is None


def test_one_clock_has_a_report_without_machines():
    assert report_json(ClockReport(()))["machines"] == []


def test_the_states_are_those_of_the_documentation():
    assert STATES == ("reference", "aligned", "one-sided", "unaligned", "inconsistent")
