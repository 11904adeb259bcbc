from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import pytest

from stagescope import api as workflow
from stagescope.record import compiled
from stagescope.record.garbage import GarbageCollections
from stagescope.record.recorder import Recorder

needs_extension = pytest.mark.skipif(
    compiled.extension() is None, reason="the extension has not been built here"
)
INTERRUPTED = """
import _thread, gc, sys
import stagescope.record as record

class Interrupting:
    __del__ = _thread.interrupt_main  # as if SIGINT arrived during the collection

    def __init__(self):
        self.itself = self

record.start(sys.argv[1])
try:
    Interrupting()
    gc.collect()
except KeyboardInterrupt:
    print("interrupted")
"""


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


@needs_extension
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


@needs_extension
def test_collections_are_not_noted_after_the_end(recorder):
    before = list(gc.callbacks)
    garbage = GarbageCollections(recorder)
    garbage.watch()
    assert len(gc.callbacks) == len(before) + 1
    garbage.ignore()
    assert gc.callbacks == before


@needs_extension
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


@pytest.mark.parametrize("is_compiled", ["0", "1"])
def test_interrupt_during_a_collection_is_not_lost(is_compiled, tmp_path):
    """Python ignores what a callback of the collector raises, also KeyboardInterrupt."""
    environment = {**os.environ, compiled.VARIABLE: is_compiled}
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


@needs_extension
def test_the_last_collections_of_many_are_kept(recorder):
    """Each has taken 0 ns or more."""
    collections = compiled.collections(recorder, 0)
    recorder.begin_step()
    for number in range(5000):
        collections("start", {})
        collections("stop", {"generation": number, "collected": 0})
    assert len(collections) == 4096
    taken = collections.take()
    assert [generation for _, _, generation, _ in taken] == [*range(5000 - 4096, 5000)]
    assert all(start_ns <= end_ns and step == 0 for start_ns, end_ns, _, step in taken)
    assert collections.take() == []


@needs_extension
def test_collections_are_kept_while_steps_are_recorded_only(recorder):
    collections = compiled.collections(recorder, 0)
    for change in (None, recorder.begin_step, lambda: recorder.switch(on=False)):
        if change is not None:
            change()
        collections("start", {})
        collections("stop", {})
    assert len(collections) == 1
