"""When the state of a process is written: often while it changes, seldom while it does not."""

from types import SimpleNamespace

import pytest

from stagescope.record import process_state, state_reports
from stagescope.record.state_reports import AT_LEAST_EVERY_S, SAME_EVERY_S, StateReports

DAY_S = 86_400


class Recording:
    """A recording that keeps what it gets."""

    def __init__(self):
        self.spans_written, self.states, self.keeps_without_spans = 10, [], False

    def write_state(self, state):
        self.states.append(state)


class Requests:
    """Requests to a process: none, or one answer."""

    answer, wants_stacks = None, False

    def __init__(self, _):
        pass

    def look(self):
        answer, Requests.answer = Requests.answer, None
        return answer


@pytest.fixture
def process(monkeypatch):
    """Return a process whose clock and state the test sets, its recording, and what looks at it."""
    now = SimpleNamespace(s=1000.0)
    recorder = SimpleNamespace(step=7, enabled=True, calls=["forward"])
    monkeypatch.setattr(state_reports, "Control", Requests)
    monkeypatch.setattr(state_reports, "time", SimpleNamespace(monotonic=lambda: now.s))
    monkeypatch.setattr(
        process_state,
        "process_state",
        lambda of, all_threads: {"time_ns": int(now.s * 1e9), "step": of.step, "calls": list(of.calls)},
    )
    recording = Recording()
    reports = StateReports(recorder, recording)

    def wait(seconds):
        until_s = now.s + seconds
        while now.s < until_s:
            reports.look()
            now.s += 0.5

    return SimpleNamespace(recorder=recorder, recording=recording, wait=wait)


def test_an_unchanged_state_of_a_hang_is_written_every_ten_minutes(process):
    process.wait(DAY_S / 4)
    assert len(process.recording.states) == pytest.approx(DAY_S / 4 / SAME_EVERY_S, abs=4)


def test_a_state_that_changes_is_written_as_soon_as_it_is_looked_at(process):
    process.wait(3600)
    process.recorder.calls = ["recv_forward"]
    before = len(process.recording.states)
    process.wait(AT_LEAST_EVERY_S + 1)
    assert process.recording.states[before]["calls"] == ["recv_forward"]


def test_answers_to_requests_are_written_at_once(process):
    process.wait(3600)
    Requests.answer = {"request": "a"}
    before = len(process.recording.states)
    process.wait(1)
    assert [state.get("control") for state in process.recording.states[before:]] == [{"request": "a"}]


def test_a_step_that_is_not_recorded_is_reported_every_time(process):
    process.recorder.enabled = False
    process.wait(3600)
    assert len(process.recording.states) == pytest.approx(3600 / AT_LEAST_EVERY_S, abs=6)


def test_a_second_hang_in_the_same_place_is_reported(process):
    process.wait(100)
    process.recording.spans_written += 5
    process.recorder.step = 8
    before = len(process.recording.states)
    process.wait(5)
    assert process.recording.states[before]["step"] == 8
