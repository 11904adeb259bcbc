from __future__ import annotations

import threading
from collections import deque

import pytest

from stagescope.ingest.recording.frames import read_contents
from stagescope.record import waiting
from stagescope.record.buffers import ChunkPool
from stagescope.record.format import NONE
from stagescope.record.recording import Recording
from stagescope.record.records import plain_middle
from stagescope.record.waiting import Waiting
from stagescope.record.writer import Writer
from stagescope.vocabulary.kinds import BY_NAME, STEP_CODE

pytestmark = pytest.mark.usefixtures("way")

SPAN_COLUMNS = (
    "start_ns", "end_ns", "wait_start_ns", "wait_end_ns", "bytes", "step", "microbatch", "peer", "pair", "name",
    "chunk", "thread", "kind", "lane",
)  # fmt: skip
FORWARD, SEND = BY_NAME["forward"].code, BY_NAME["send_forward"].code


def stored(recorder):
    assert recorder.flush()
    with open(recorder.path, "rb") as file:
        return read_contents(file.read())


def test_waiting_spans_have_the_fields_of_those_that_are_packed_at_once(recorder):
    recorder.begin_step(5)
    for stage, thread in enumerate((recorder.waiting_thread, 0)):
        recorder.waiting_thread = thread
        recorder.emit_action(FORWARD, 10**15, 10**15 + 7, stage, 3, 1)
        recorder.emit_action(FORWARD, 10**15, 10**15 + 7, stage, 3, 1, recorder.name_id("a name"))
        recorder.emit(SEND, 1, 2, stage, 4, 5, 6, 2**40, 8, 9, 0, 11, step=12)
        assert len(recorder.waiting) == (3 if thread else 0)
        assert recorder.flush()
    spans = stored(recorder).spans
    assert spans["stage"].tolist() == [0, 0, 0, 1, 1, 1]
    for name in SPAN_COLUMNS:
        assert spans[name][:3].tolist() == spans[name][3:].tolist()
    assert spans["step"][:3].tolist() == [5, 5, 12]
    assert spans["bytes"][2] == 2**40


def test_spans_of_the_training_thread_keep_their_order(recorder):
    recorder.begin_step(0)
    for number in range(10):
        recorder.emit_action(FORWARD, number, number + 1, 0, number, 0)
        recorder.emit(SEND, number, number + 1, 0, number)
    assert stored(recorder).spans["microbatch"].tolist() == [number // 2 for number in range(20)]


def test_other_threads_leave_nothing_to_the_writer(recorder):
    recorder.begin_step(0)
    other = threading.Thread(target=recorder.emit_action, args=(FORWARD, 1, 2, 0, 1, 0))
    other.start()
    other.join()
    assert not recorder.waiting
    recorder.emit_action(FORWARD, 1, 2, 0, 0, 0)
    spans = stored(recorder).spans
    assert sorted(zip(spans["microbatch"].tolist(), spans["thread"].tolist(), strict=True)) == [
        (0, 0),
        (1, 1),
    ]


def test_spans_beyond_the_most_that_may_wait_are_packed_at_once(recorder, monkeypatch):
    recorder.begin_step(0)
    assert recorder.flush()
    monkeypatch.setattr(recorder._writer, "_store", lambda: None)  # held up by a disk
    for number in range(recorder.most_waiting + 10):
        recorder.emit_action(FORWARD, number, number + 1, 0, number, 0)
    assert len(recorder.waiting) == recorder.most_waiting
    monkeypatch.undo()
    found = stored(recorder)
    assert sorted(found.spans["microbatch"].tolist()) == list(range(recorder.most_waiting + 10))
    assert found.dropped_spans == 0


def test_values_that_do_not_fit_their_fields_are_counted(recorder):
    recorder.begin_step(0)
    recorder.emit_action(FORWARD, 1, 2, 2**40, 0, 0)
    recorder.emit_action(FORWARD, 1, 2, 0, "a text", 0)
    recorder.emit_action(FORWARD, 1, 2, 0, 0, [])
    recorder.emit(2**10, 1, 2)
    recorder.emit_action(FORWARD, 1, 2, 0, 0, 0)
    found = stored(recorder)
    assert len(found.spans) == 1
    assert found.dropped_spans == 4


def test_no_span_waits_in_a_forked_child_or_after_the_end(recorder):
    recorder.begin_step(0)
    recorder.emit_action(FORWARD, 1, 2, 0, 0, 0)
    recorder.begin_empty()  # what a child does
    assert not recorder.waiting
    recorder.emit_action(FORWARD, 1, 2, 0, 0, 0)
    assert not recorder.waiting
    recorder.begin_step(1)
    assert recorder.waiting_thread
    recorder.stop("test")
    assert not recorder.waiting_thread


def test_waiting_spans_count_as_seen_until_they_are_forgotten(recorder):
    recorder.begin_step(0)
    assert not recorder.has_spans
    recorder.emit_action(FORWARD, 1, 2, 0, 0, 0)
    assert recorder.has_spans
    assert recorder.forget_spans()
    assert not recorder.has_spans


def test_what_could_not_be_written_is_taken_again():
    queue = deque([(1, 2, plain_middle(0), 0, 0, 0, FORWARD, 0, 0)])
    waits = Waiting(queue)
    assert len(waits.take()) == 1  # and the writer fails
    queue.append((3, 4, plain_middle(0), 0, 1, 0, FORWARD, 0, 0))
    assert [each[0] for each in waits.take()] == [1]
    waits.done()
    assert [each[0] for each in waits.take()] == [3]
    waits.done()
    assert waits.take() == []


def test_the_bytes_of_few_kinds_are_kept(monkeypatch):
    monkeypatch.setattr(waiting, "MOST_TAILS", 1)
    waits = Waiting(deque())
    spans = [(1, 2, plain_middle(0), 0, 0, 0, FORWARD, chunk, 0) for chunk in range(3)]
    assert len(waits.pack(spans)[0]) == 3 * len(waits.pack(spans[:1])[0])
    assert len(waits._tails) == 1


def test_no_record_of_a_step_is_written_after_that_of_its_end(tmp_path):
    """The training ends its step while the writer is writing: all of the step then follows with the next flush."""
    queue, pool, written = deque(), ChunkPool(), []
    recording = Recording(str(tmp_path))
    recording.write_spans = written.append
    pool.waiting = Waiting(queue)
    writer = Writer(recording, pool, [], lambda _: None)
    writer.stop("test")
    full = pool.take()
    full.used = 1
    pool.full.append(full)
    queue.append((1, 2, plain_middle(0), 0, 0, 0, FORWARD, 0, 0))

    def write(records):
        written.append(records)
        if len(written) == 1:  # the chunk
            queue.append((2, 3, plain_middle(0), 0, 1, 0, FORWARD, 0, 0))
            queue.append((1, 3, plain_middle(0), NONE, NONE, 0, STEP_CODE, NONE, 0))

    recording.write_spans = write
    writer._store()
    assert len(queue) == 2
    writer._store()
    assert [len(records) // 72 for records in written] == [0, 1, 2]
