from __future__ import annotations

import gc
import weakref

import polars as pl
import pytest

from observing import during
from stagescope import api as workflow
from stagescope.record.frameworks.collectives import collectives_of
from stagescope.record.frameworks.megatron_overlap import Overlap, Part
from stagescope.record.frameworks.runs import (
    BACKWARD,
    BACKWARD_INPUT,
    FORWARD,
    UNKNOWN,
    IdentityMap,
    Place,
    Runs,
)


def recorded(recorder, tmp_path):
    recorder.stop("test")
    return workflow.read(tmp_path)


class Thing:
    """An unhashable object with weak references."""

    __hash__ = None


def test_value_is_found_by_object_identity():
    kept, one, other = IdentityMap(), Thing(), Thing()
    kept.keep(one, 1)
    assert (kept.find(one), kept.find(other), kept.find(None)) == (1, None, None)
    assert (kept.take(one, 7), kept.take(one, 7)) == (1, 7)
    kept.keep(None, 3)
    assert kept.find(None) is None


def test_weakly_referenced_objects_are_not_held():
    kept, thing = IdentityMap(), Thing()
    ref = weakref.ref(thing)
    kept.keep(thing, "place")
    del thing
    gc.collect()
    assert ref() is None


def test_reused_id_does_not_match_a_dead_object():
    kept, thing = IdentityMap(), Thing()
    kept.keep(thing, "place")
    number, other = id(thing), Thing()
    del thing
    kept.values[id(other)] = kept.values.pop(number)
    assert kept.find(other) is None
    assert kept.take(other, "none") == "none"


def test_other_objects_are_held_until_taken_or_cleared():
    kept, thing = IdentityMap(), Thing()
    ref = weakref.ref(thing)
    holder = {"hidden": thing}
    kept.keep(holder, "place")
    number = id(holder)
    del thing, holder
    gc.collect()
    assert ref() is not None
    assert number in kept.values
    kept.clear()
    gc.collect()
    assert ref() is None


def test_outermost_call_is_the_step_across_frameworks(recorder, tmp_path):
    outer, inner = Runs(recorder), Runs(recorder)
    for _ in range(2):
        assert during(outer.observe_step(), lambda: during(inner.observe_step(), lambda: inner.inside))
    assert not inner.inside
    assert recorded(recorder, tmp_path).steps["step"].to_list() == [0, 1]


def test_evaluation_has_no_step_and_counting_continues(recorder, tmp_path):
    runs = Runs(recorder)
    for run in (runs.observe_step, runs.observe_evaluation, runs.observe_step):
        during(run(), lambda: during(runs.observe_action(FORWARD, Place(0, 0)), lambda: None))
    timeline = recorded(recorder, tmp_path)
    forwards = timeline.spans.filter(kind="forward")
    assert forwards["step"].to_list() == [0, None, 1]
    activity = timeline.spans.filter(name="evaluation").row(0, named=True)
    assert activity["step"] == 0
    assert activity["start_ns"] <= forwards["start_ns"][1] <= forwards["end_ns"][1] <= activity["end_ns"]
    assert timeline.steps["step"].to_list() == [0, 1]


@pytest.mark.parametrize("run", ["observe_step", "observe_evaluation"])
def test_failed_run_has_ended(recorder, run):
    runs = Runs(recorder)
    with pytest.raises(ZeroDivisionError):
        during(getattr(runs, run)(), lambda: 1 / 0)
    assert not runs.inside
    assert during(runs.observe_step(), lambda: runs.inside)


def test_numbers_count_per_kind_and_chunk_and_restart_with_each_run(recorder):
    runs = Runs(recorder)

    def numbers():
        return [runs.next_number(FORWARD, chunk) for chunk in (0, 1, 0)] + [runs.next_number(BACKWARD, 0)]

    assert [during(runs.observe_step(), numbers) for _ in range(2)] == [[0, 0, 1, 0]] * 2


def test_action_is_recorded_at_its_place_and_returns_its_result(recorder, tmp_path):
    runs = Runs(recorder)
    split = runs.observe_action(BACKWARD, Place(3, 2, 1), lambda: BACKWARD_INPUT)
    assert during(split, lambda: "gradient") == "gradient"
    with pytest.raises(ZeroDivisionError):
        during(runs.observe_action(FORWARD, UNKNOWN), lambda: 1 / 0)
    rows = recorded(recorder, tmp_path).spans.select("kind", "stage", "microbatch", "chunk").rows()
    assert rows == [("backward_input", 3, 2, 1)]


def test_pair_is_two_actions_with_one_number_and_equal_times(recorder, tmp_path):
    runs = Runs(recorder)
    for number in range(2):
        assert during(runs.observe_pair(Place(0, number), Place(1, number)), lambda: "both") == "both"
    spans = recorded(recorder, tmp_path).spans.sort("pair", "kind")
    assert spans["kind"].to_list() == ["forward", "backward"] * 2
    assert spans.group_by("pair").len()["len"].to_list() == [2, 2]
    assert spans["start_ns"].to_list()[::2] == spans["start_ns"].to_list()[1::2]


@pytest.mark.parametrize("is_detailed", [False, True])
def test_collectives_are_counted_in_actions_unless_the_recording_is_detailed(recorder, is_detailed):
    recorder.is_detailed = is_detailed
    runs, collectives = Runs(recorder), collectives_of(recorder)
    for observation in (
        runs.observe_action(FORWARD, Place(0, 0)),
        runs.observe_pair(Place(0, 1), Place(1, 1)),
        Overlap(recorder).observe([Part(FORWARD, Place(0, 2), waits=False, sends=False)]),
    ):
        assert during(observation, lambda: recorder.counts_collectives) is not is_detailed
        assert not recorder.counts_collectives

    def reduce():
        with collectives.reducing():
            inside = recorder.counts_collectives
        return inside, recorder.counts_collectives

    assert during(runs.observe_action(FORWARD, Place(0, 3)), reduce) == (False, not is_detailed)


def test_nothing_is_recorded_while_recording_is_off(recorder, tmp_path):
    runs = Runs(recorder)
    during(runs.observe_action(FORWARD, Place(0, 0)), lambda: None)
    recorder.enabled = False
    assert during(runs.observe_action(FORWARD, Place(0, 1)), lambda: 5) == 5
    assert during(runs.observe_pair(Place(0, 2), Place()), lambda: 5) == 5
    assert recorded(recorder, tmp_path).spans["microbatch"].to_list() == [0]


def test_step_without_an_action_is_reported(recorder, tmp_path, capsys):
    runs = Runs(recorder, "Fake")
    during(runs.observe_step(), lambda: during(runs.observe_action(FORWARD, Place(0, 0)), lambda: None))
    for _ in range(2):
        during(runs.observe_step(), lambda: None)
    during(runs.observe_evaluation(), lambda: None)
    assert capsys.readouterr().err.count("Fake: step 1 ended without a recorded action") == 1
    notes = recorded(recorder, tmp_path).diagnostics.filter(pl.col("code") == "steps.without_actions")
    assert notes["count"].to_list() == [2]
