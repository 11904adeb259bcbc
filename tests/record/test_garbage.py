from __future__ import annotations

import gc
import time

import pytest

from stagescope import api as workflow
from stagescope.record.garbage import GarbageCollections
from stagescope.record.recorder import Recorder


class SlowToDelete:
    """An object in a cycle whose end takes 2 ms."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        time.sleep(0.002)


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(str(tmp_path))
    yield recorder
    recorder.stop("stop")


def collected(recorder, tmp_path):
    recorder.stop("stop")
    spans = workflow.read(tmp_path).spans
    return spans.filter(spans["kind"] == "other").select("name", "step").rows()


def test_long_collection_is_a_span_of_its_step(recorder, tmp_path):
    garbage = GarbageCollections(recorder)
    garbage.watch()
    try:
        start_ns = recorder.begin_step()
        SlowToDelete()
        gc.collect()
        recorder.end_step(start_ns)
        recorder.begin_step()  # before the writer has written anything
    finally:
        garbage.ignore()
    assert ("garbage collection of generation 2", 0) in collected(recorder, tmp_path)


def test_process_that_records_nothing_else_records_no_collection(recorder, tmp_path):
    garbage = GarbageCollections(recorder)
    garbage.watch()
    SlowToDelete()
    gc.collect()
    garbage.ignore()
    recorder.stop("stop")
    assert list(tmp_path.iterdir()) == []


def test_collections_are_not_noted_after_the_end(recorder):
    before = list(gc.callbacks)
    garbage = GarbageCollections(recorder)
    garbage.watch()
    assert len(gc.callbacks) == len(before) + 1
    garbage.ignore()
    assert gc.callbacks == before


def test_collection_of_one_step_is_no_span_of_the_next(recorder):
    """profile_range finds out from the spans inside of it whether those of its step follow it."""
    garbage = GarbageCollections(recorder)
    garbage.watch()
    try:
        recorder.begin_step()
        recorder.emit(1, 0, 1)
        SlowToDelete()
        gc.collect()
        recorder.forget_spans()
        recorder.begin_step()
    finally:
        garbage.ignore()
    assert recorder.has_recorded
    assert not recorder.has_spans
