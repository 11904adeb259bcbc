"""Marked forwards, backwards and steps."""

from __future__ import annotations

import numpy as np
import pytest

from stagescope import api as workflow
from stagescope import record
from stagescope.record import session
from stagescope.record.frameworks.runs import Runs

pytestmark = pytest.mark.usefixtures("recording_here")


def recorded(tmp_path):
    record.stop()
    spans = workflow.read(tmp_path).spans.sort("start_ns")
    return spans.select("kind", "stage", "microbatch", "chunk", "step").rows()


def test_records_every_kind_with_its_place_and_step(tmp_path):
    with record.step():
        for mark in (record.forward, record.backward, record.backward_input, record.backward_weight):
            with mark(microbatch=np.int64(3), stage=1, chunk=0):
                pass
    with record.step(7), record.forward(microbatch=0, stage=2):
        pass
    kinds = ("forward", "backward", "backward_input", "backward_weight")
    assert recorded(tmp_path) == [*((kind, 1, 3, 0, 0) for kind in kinds), ("forward", 2, 0, None, 7)]
    assert workflow.read(tmp_path).steps["step"].to_list() == [0, 7]


def test_an_exception_propagates_and_the_action_is_recorded(tmp_path):
    with pytest.raises(ZeroDivisionError), record.forward(microbatch=0, stage=0):
        _ = 1 / 0
    assert [row[0] for row in recorded(tmp_path)] == ["forward"]


def test_a_collective_in_a_marked_action_is_counted_and_belongs_to_its_stage():
    recorder = session.recorder
    with record.backward(microbatch=0, stage=4, chunk=1):
        assert (recorder.counts_collectives, recorder.stage, recorder.chunk) == (True, 4, 1)
    assert (recorder.counts_collectives, recorder.stage, recorder.chunk) == (False, -1, -1)


def test_the_wait_of_a_reduction_at_the_end_is_not_part_of_a_backward(tmp_path):
    with record.backward(microbatch=0, stage=0):
        session.recorder.computed = session.recorder.timer.begin()
        computed_ns = session.recorder.computed
    record.stop()
    timeline = workflow.read(tmp_path)
    assert timeline.spans["end_ns"].item() == computed_ns + timeline.clocks["offset_ns"].item()


def test_a_schedule_inside_a_marked_step_is_no_step_of_its_own():
    with record.step():
        run = Runs(session.recorder, "a framework").observe_step()
        next(run)
        with pytest.raises(StopIteration):
            run.send(None)
        assert session.recorder.step == 0
    assert not Runs(session.recorder).inside


def test_marks_only_run_their_body_while_nothing_is_recorded(tmp_path):
    with record.step():
        record.stop()
        with record.forward(microbatch=0, stage=0):
            pass
    with record.step(), record.backward(microbatch=0, stage=0):
        pass
    assert list(tmp_path.iterdir()) == []
