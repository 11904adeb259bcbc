"""Actions that need nothing but a record are timed in a short way; whatever is unusual is recorded as before."""

from __future__ import annotations

import threading
import types
from collections import deque
from functools import partial
from pathlib import Path

import pytest

from framework_trainings import only_contents
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.actions_in_progress import ActionsInProgress
from stagescope.record.frameworks.collectives import collectives_of
from stagescope.record.hooks import MAX_ERRORS, Guard, StageMethod, Timed, observed, prepared
from stagescope.record.process_state import process_state
from stagescope.record.timing import Timer
from stagescope.record.waiting import FIELDS_OF_ACTION
from stagescope.vocabulary.kinds import BY_NAME

FORWARD, BACKWARD, BACKWARD_INPUT, COLLECTIVE = (
    BY_NAME[name].code for name in ("forward", "backward", "backward_input", "collective")
)
CHUNKS = {0: 0, 3: 1, 5: None}
KINDS = {True: BACKWARD, False: BACKWARD_INPUT}

pytestmark = pytest.mark.usefixtures("way")


class Stage:
    def __init__(self, stage_index):
        self.stage_index = stage_index
        self.inside = bool

    def forward(self, microbatch, data=None, *, keep=True):
        del microbatch, data, keep
        return self.inside()

    def evaluate(self, microbatch):
        return microbatch

    def backward(self, microbatch, loss=None, full_backward=True, last_backward=False):  # noqa: FBT002  # as torch has it
        del microbatch, loss, full_backward, last_backward
        return self.inside()


@pytest.fixture
def actions(recorder):
    return ActionsInProgress(recorder)


@pytest.fixture
def asked():
    """The stages of the calls that were not taken the short way."""
    return []


@pytest.fixture
def stages(recorder, actions, asked, monkeypatch):
    """Two stages of one rank whose functions are observed, after one action of a step."""

    def identify(args, kwargs):
        asked.append(args[0].stage_index)
        microbatch = args[1] if len(args) > 1 else kwargs["microbatch"]
        return FORWARD, args[0].stage_index, microbatch, CHUNKS[args[0].stage_index] or 0

    def identify_backward(args, kwargs):
        asked.append(args[0].stage_index)
        full = kwargs.get("full_backward", args[3] if len(args) > 3 else True)
        return KINDS[full], args[0].stage_index, args[1], 0

    guard = Guard(recorder, "a framework")
    recorder.guards["a framework"] = guard
    certain = StageMethod(FORWARD, 0, 1, CHUNKS, is_certain=True)
    for name, find, method in (
        ("evaluate", identify, certain),
        ("forward", identify, StageMethod(FORWARD, 0, 1, CHUNKS)),
        ("backward", identify_backward, StageMethod(BACKWARD, 0, 1, CHUNKS, KINDS)),
    ):
        timed = Timed(actions, find, method=method)
        seen = prepared(partial(lambda timed, _: timed, timed))
        monkeypatch.setattr(Stage, name, observed(vars(Stage)[name], seen, guard))
    recorder.begin_step(0)
    stages = Stage(0), Stage(3)
    stages[0].forward(0)
    asked.clear()
    return stages


def recorded(recorder):
    """Return the kind, stage, micro-batch and chunk of the actions in the file."""
    recorder.stop("test")
    spans = only_contents(Path(recorder.directory)).spans
    rows = zip(*(spans[name].tolist() for name in ("kind", "stage", "microbatch", "chunk")), strict=True)
    return [row for row in rows if row[0] in (FORWARD, BACKWARD, BACKWARD_INPUT)]


def test_an_action_of_a_usual_call_is_found_without_asking(recorder, stages, asked):
    stages[1].forward(7, None, keep=False)
    stages[0].backward(7, loss=None, full_backward=False)
    stages[0].backward(8, loss=None)
    assert not asked
    assert recorder.action is None
    if isinstance(recorder.waiting, deque):
        assert all(len(each) == FIELDS_OF_ACTION for each in list(recorder.waiting)[-3:])
    assert recorded(recorder) == [
        (FORWARD, 0, 0, 0), (FORWARD, 3, 7, 1), (BACKWARD_INPUT, 0, 7, 0), (BACKWARD, 0, 8, 0),
    ]  # fmt: skip


def test_calls_of_an_unusual_form_are_asked_about(recorder, stages, asked):
    stages[0].forward(microbatch=1)
    stages[0].backward(2, None, False)  # a subclass of the training may do so
    Stage(5).forward(3)
    assert asked == [0, 0, 5]
    assert recorded(recorder)[1:] == [(FORWARD, 0, 1, 0), (BACKWARD_INPUT, 0, 2, 0), (FORWARD, 5, 3, 0)]
    assert all(guard.errors == 0 for guard in recorder.guards.values())


def test_calls_that_are_certainly_no_action_are_not_asked_about(recorder, stages, asked):
    assert Stage(5).evaluate(3) == 3
    stages[0].evaluate(4)
    assert not asked
    assert recorded(recorder)[1:] == [(FORWARD, 0, 4, 0)]


def test_error_of_a_call_of_an_unusual_form_has_no_other_in_its_context(stages):
    stages[0].inside = lambda: {}[1]
    with pytest.raises(KeyError) as raised:
        stages[0].forward(microbatch=1)
    assert raised.value.__context__ is None


def test_a_call_of_which_nothing_is_known_is_counted_as_an_error(recorder, stages):
    unknown = types.SimpleNamespace(inside=bool)
    assert Stage.forward(unknown, 1) is False
    assert recorder.guards["a framework"].errors == 1
    assert recorder.action is None
    stages[0].forward(1)
    assert recorded(recorder)[1:] == [(FORWARD, 0, 1, 0)]


def test_hooks_that_are_off_record_nothing(recorder, stages):
    recorder.guards["a framework"].errors = MAX_ERRORS
    recorder.guards["a framework"].is_off = True
    stages[0].forward(1)
    assert recorded(recorder) == [(FORWARD, 0, 0, 0)]


def test_an_action_that_fails_is_not_recorded_and_the_next_one_is(recorder, stages, asked):
    stages[0].inside = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        stages[0].forward(1)
    assert recorder.action is None
    stages[0].inside = bool
    stages[0].forward(2)
    assert not asked
    assert recorded(recorder)[1:] == [(FORWARD, 0, 2, 0)]


def test_an_action_in_another_one_is_recorded_before_it(recorder, stages, asked):
    stages[0].inside = lambda: stages[1].forward(1)
    stages[0].forward(1)
    assert asked == [3]
    assert recorder.action is None
    stages[1].forward(2)
    assert asked == [3]
    assert recorded(recorder)[1:] == [(FORWARD, 3, 1, 1), (FORWARD, 0, 1, 0), (FORWARD, 3, 2, 1)]


def test_an_action_of_another_thread_has_the_index_of_that_thread(recorder, stages):
    other = threading.Thread(target=stages[0].forward, args=(1,))
    other.start()
    other.join()
    stages[0].forward(2)
    recorder.stop("test")
    spans = only_contents(Path(recorder.directory)).spans
    found = dict(zip(spans["microbatch"].tolist(), spans["thread"].tolist(), strict=True))
    assert found[0] == found[2] != found[1]


def test_nothing_is_recorded_after_recording_was_switched_off(recorder, stages):
    recorder.switch(on=False)
    stages[0].forward(1)
    recorder.switch(on=True)
    stages[0].inside = lambda: recorder.switch(on=False)
    stages[0].forward(2)
    stages[0].forward(3)
    assert [microbatch for _, _, microbatch, _ in recorded(recorder)] == [0, 2]


def test_an_action_has_the_step_in_which_it_ends(recorder, stages):
    stages[0].forward(1)
    stages[0].inside = lambda: recorder.begin_step(1)
    stages[0].forward(2)
    recorder.stop("test")
    assert only_contents(Path(recorder.directory)).spans["step"].tolist() == [0, 0, 1]


def test_an_action_ends_where_it_began_to_wait_for_a_reduction(recorder, stages, asked):
    def reduce():
        recorder.computed = recorder.timer.begin()
        moments.append(recorder.computed)

    moments = []
    stages[0].inside = reduce
    stages[0].backward(1)
    reduce()  # of a model that is no stage: outside of actions it is not asked for
    assert moments.pop() is None
    stages[0].inside = bool
    stages[0].backward(2)
    assert not asked
    recorder.stop("test")
    spans = only_contents(Path(recorder.directory)).spans
    assert spans["end_ns"].tolist()[1] == moments[0]
    assert spans["end_ns"].tolist()[2] > moments[0]


def test_an_action_after_a_reduction_outside_of_actions_has_its_own_end(recorder, stages):
    reducing = collectives_of(recorder).observe_reduction(3)
    next(reducing)
    recorder.computed = recorder.timer.begin()
    reducing.close()
    stages[1].backward(1)
    recorder.stop("test")
    spans = only_contents(Path(recorder.directory)).spans
    assert spans["end_ns"].tolist()[1] > spans["start_ns"].tolist()[1]


def test_actions_beyond_the_most_that_may_wait_are_packed_at_once(recorder, stages, monkeypatch):
    assert recorder.flush()
    monkeypatch.setattr(recorder._writer, "_store", lambda: None)  # held up by a disk
    for number in range(recorder.most_waiting + 10):
        stages[0].forward(number)
    assert len(recorder.waiting) == recorder.most_waiting
    monkeypatch.undo()
    assert len(recorded(recorder)) == 1 + recorder.most_waiting + 10


def test_actions_are_shown_in_other_profilers_from_the_next_one_on(recorder, stages):
    shown = []
    recorder.mirror = types.SimpleNamespace(open=lambda *action: shown.append(action), close=bool)
    recorder.plain = None
    stages[0].forward(1)
    recorder.mirror = None
    stages[0].forward(2)
    assert shown == [(FORWARD, 0, 1)]


def test_an_action_of_a_pair_has_its_number(recorder, stages):
    recorder.pair, recorder.plain = 4, None
    stages[0].forward(1)
    stages[0].backward(1)
    recorder.pair = NONE
    stages[0].forward(2)
    recorder.stop("test")
    assert only_contents(Path(recorder.directory)).spans["pair"].tolist() == [NONE, 4, 4, NONE]


def test_actions_are_timed_on_the_device_as_soon_as_there_is_one(recorder, stages, monkeypatch):
    timed = []
    device = types.SimpleNamespace(
        begin=lambda: "a moment", end=lambda *action: timed.append(action), resolve=None,
        name="x", model="X", device=None, harvest=bool, finish=bool, is_waiting=False,
    )  # fmt: skip
    monkeypatch.setattr(Timer, "follow_details", lambda timer: setattr(timer, "end", device.end))
    recorder.timer._use_device(device)
    stages[0].forward(1)
    stages[0].forward(2)
    assert [action[:4] for action in timed] == [("a moment", FORWARD, 0, 1), ("a moment", FORWARD, 0, 2)]
    recorder.timer._use_host()


def test_what_is_in_progress_can_be_read_by_another_thread(recorder, stages):
    def read():
        other = threading.Thread(target=lambda: found.append(process_state(recorder)))
        other.start()
        other.join()

    found = []
    stages[0].inside = lambda: stages[1].forward(2)
    stages[1].inside = read
    before_ns = now_ns()
    stages[0].forward(1)
    inner, outer = found[0]["calls"]
    assert inner.pop("since_ns") >= outer.pop("since_ns") >= before_ns
    assert inner == {"call": "forward", "stage": 3, "microbatch": 2, "chunk": 1}
    assert outer == {"call": "forward", "stage": 0, "microbatch": 1, "chunk": 0}
    assert "calls" not in process_state(recorder) or not process_state(recorder)["calls"]
