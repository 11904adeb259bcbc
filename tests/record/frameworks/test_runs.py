from __future__ import annotations

import gc
import weakref

import pytest

from stagescope import api as workflow
from stagescope.record.frameworks.runs import (
    BACKWARD,
    BACKWARD_INPUT,
    FORWARD,
    UNKNOWN,
    IdentityMap,
    Place,
    Runs,
)
from stagescope.record.recorder import Recorder


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(str(tmp_path))
    yield recorder
    recorder.stop("test")


def recorded(recorder, tmp_path):
    recorder.stop("test")
    return workflow.read(tmp_path)


class Thing:
    """Something that can be forgotten, and that no dictionary takes as a key."""

    __hash__ = None


def test_what_is_kept_is_found_by_the_very_object():
    kept, one, other = IdentityMap(), Thing(), Thing()
    kept.keep(one, 1)
    assert (kept.find(one), kept.find(other), kept.find(None)) == (1, None, None)
    assert (kept.take(one, 7), kept.take(one, 7)) == (1, 7)
    kept.keep(None, 3)
    assert kept.find(None) is None


def test_what_can_be_referred_to_weakly_is_not_held():
    kept, thing = IdentityMap(), Thing()
    ref = weakref.ref(thing)
    kept.keep(thing, "place")
    del thing
    gc.collect()
    assert ref() is None


def test_an_object_that_has_taken_a_dead_ones_number_is_not_taken_for_it():
    kept, thing = IdentityMap(), Thing()
    kept.keep(thing, "place")
    number, other = id(thing), Thing()
    del thing
    kept._values[id(other)] = kept._values.pop(number)
    assert kept.find(other) is None
    assert kept.take(other, "none") == "none"


def test_what_cannot_be_is_held_until_it_is_taken_or_cleared():
    kept, thing = IdentityMap(), Thing()
    ref = weakref.ref(thing)
    holder = {"hidden": thing}
    kept.keep(holder, "place")
    number = id(holder)
    del thing, holder
    gc.collect()
    assert ref() is not None
    assert number in kept._values
    kept.clear()
    gc.collect()
    assert ref() is None


def test_the_outermost_call_is_the_step_across_frameworks(recorder, tmp_path):
    outer, inner = Runs(recorder), Runs(recorder)
    for _ in range(2):
        assert outer.step(lambda: inner.step(lambda: inner.inside)) is True
    assert not inner.inside
    assert recorded(recorder, tmp_path).steps["step"].to_list() == [0, 1]


def test_an_evaluation_has_no_step_and_the_count_goes_on(recorder, tmp_path):
    runs = Runs(recorder)
    for run in (runs.step, runs.evaluation, runs.step):
        run(lambda: runs.action(FORWARD, Place(0, 0), lambda: None))
    timeline = recorded(recorder, tmp_path)
    assert timeline.spans["step"].to_list() == [0, None, 1]
    assert timeline.steps["step"].to_list() == [0, 1]


@pytest.mark.parametrize("run", ["step", "evaluation"])
def test_a_run_that_fails_is_over(recorder, run):
    runs = Runs(recorder)
    with pytest.raises(ZeroDivisionError):
        getattr(runs, run)(lambda: 1 / 0)
    assert not runs.inside
    assert runs.step(lambda: runs.inside)


def test_numbers_count_per_kind_and_chunk_and_begin_anew_with_each_run(recorder):
    runs = Runs(recorder)

    def numbers():
        return [runs.next_number(FORWARD, chunk) for chunk in (0, 1, 0)] + [runs.next_number(BACKWARD, 0)]

    assert [runs.step(numbers) for _ in range(2)] == [[0, 0, 1, 0]] * 2


def test_a_action_is_recorded_where_it_belongs_and_returns_what_it_did(recorder, tmp_path):
    runs = Runs(recorder)
    assert runs.action(BACKWARD, Place(3, 2, 1), lambda: "gradient", lambda: BACKWARD_INPUT) == "gradient"
    with pytest.raises(ZeroDivisionError):
        runs.action(FORWARD, UNKNOWN, lambda: 1 / 0)
    rows = recorded(recorder, tmp_path).spans.select("kind", "stage", "microbatch", "chunk").rows()
    assert rows == [("backward_input", 3, 2, 1)]


def test_a_pair_is_two_actions_with_one_number_and_the_same_times(recorder, tmp_path):
    runs = Runs(recorder)
    for number in range(2):
        assert runs.pair(Place(0, number), Place(1, number), lambda: "both") == "both"
    spans = recorded(recorder, tmp_path).spans.sort("pair", "kind")
    assert spans["kind"].to_list() == ["forward", "backward"] * 2
    assert spans.group_by("pair").len()["len"].to_list() == [2, 2]
    assert spans["start_ns"].to_list()[::2] == spans["start_ns"].to_list()[1::2]


def test_nothing_is_recorded_while_recording_is_off(recorder, tmp_path):
    runs = Runs(recorder)
    runs.action(FORWARD, Place(0, 0), lambda: None)
    recorder.enabled = False
    assert runs.action(FORWARD, Place(0, 1), lambda: 5) == runs.pair(Place(0, 2), Place(), lambda: 5) == 5
    assert recorded(recorder, tmp_path).spans["microbatch"].to_list() == [0]
