from __future__ import annotations

import re

import numpy as np
import pytest

from places import DOCS
from stagescope import api as workflow
from stagescope import record
from stagescope.record import session

pytestmark = pytest.mark.usefixtures("recording_here")


def recorded(tmp_path):
    record.stop()
    spans = workflow.read(tmp_path).spans.sort("start_ns")
    return spans.select("kind", "stage", "microbatch", "chunk", "name").rows()


class Stage:
    @record.action("forward", stage=1)
    def forward(self, x, microbatch):
        """Compute."""
        return x + microbatch

    @record.action("backward")
    def backward(self, *, stage, microbatch=0, chunk=None):
        return stage, microbatch, chunk


def test_decorated_function_returns_its_result():
    stage = Stage()
    assert stage.forward(1, 2) == stage.forward(x=1, microbatch=2) == 3
    assert (Stage.forward.__name__, Stage.forward.__doc__) == ("forward", "Compute.")
    record.stop()
    assert stage.forward(1, 2) == 3


def test_collectives_are_counted_in_passes_and_recorded_in_other_work():
    def is_counted(**_):
        return session.recorder.counts_collectives

    assert record.action("forward", stage=0)(is_counted)()
    assert not record.action("data loading")(is_counted)()
    assert not is_counted()
    session.recorder.is_detailed = True
    assert not record.action("forward", stage=0)(is_counted)()


def test_numbers_come_from_decorator_or_call_arguments(tmp_path):
    stage = Stage()
    stage.forward(0, 5)
    stage.forward(0, microbatch=np.int64(6))
    stage.backward(stage=np.int32(3), microbatch=7, chunk=1)
    assert recorded(tmp_path) == [
        ("forward", 1, 5, None, None),
        ("forward", 1, 6, None, None),
        ("backward", 3, 7, 1, None),
    ]


def test_non_integer_arguments_are_recorded_as_unknown(tmp_path):
    @record.action("optimizer")
    def step(microbatch, stage=None):
        return microbatch, stage

    step("all of them")
    step(2.5, stage=None)
    assert recorded(tmp_path) == [("optimizer", None, None, None, None)] * 2


def test_unknown_kind_is_recorded_as_other_with_that_name(tmp_path):
    @record.action("loading")
    def load(microbatch):
        return microbatch

    load(3)
    assert recorded(tmp_path) == [("other", None, 3, None, "loading")]


def test_builtin_function_is_timed(tmp_path):
    largest = record.action("loss", microbatch=4)(max)
    assert largest(1, 2) == 2
    assert recorded(tmp_path) == [("loss", None, 4, None, None)]


def test_exception_propagates_and_ends_the_action(tmp_path):
    @record.action("forward", microbatch=1)
    def fail():
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        fail()
    assert recorded(tmp_path) == [("forward", None, 1, None, None)]


def test_nothing_is_recorded_outside_the_selected_steps(tmp_path):
    stage = Stage()
    for step in range(4):
        with record.profile_range(step, 1, 2):
            stage.forward(0, microbatch=step)
    assert [row[2] for row in recorded(tmp_path)] == [1]


def test_action_is_timed_by_the_timer(monkeypatch):
    ended = []
    timer = session.recorder.timer
    monkeypatch.setattr(timer, "begin", lambda: "a moment of the device")
    monkeypatch.setattr(timer, "end", lambda *given: ended.append(given))
    Stage().forward(0, 2)
    assert ended[0][:5] == ("a moment of the device", 1, 1, 2, -1)


DOCUMENT = DOCS / "recording.md"
EXAMPLES = re.findall(
    r"^```python\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


def test_pipeline_example_of_the_docs_records_its_actions(tmp_path, monkeypatch):
    record.stop()
    monkeypatch.chdir(tmp_path)
    (example,) = [text for text in EXAMPLES if "record.action" in text]
    exec(compile(example, "recording.md", "exec"), {})  # noqa: S102 - code of the documentation
    actions = (
        workflow.read(tmp_path / "recordings").spans.sort("start_ns").select("step", "kind", "microbatch")
    )
    assert actions.rows() == [
        (step, kind, number) for step in range(2) for kind in ("forward", "backward") for number in range(3)
    ]


def test_other_examples_of_the_docs_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for example in EXAMPLES:
        if "record.action" not in example:
            exec(compile(example, "recording.md", "exec"), {})  # noqa: S102 - as above
