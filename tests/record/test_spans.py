from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from children import clean_environment, only_contents, run_child
from stagescope import record
from stagescope.record import session
from stagescope.vocabulary.kinds import BY_NAME, KIND_NAMES
from stagescope.vocabulary.recording import NONE


@pytest.fixture(autouse=True)
def recording(tmp_path, monkeypatch):
    for variable in (session.OUT_VARIABLE, session.STEPS_VARIABLE, session.RUN_VARIABLE, "RANK"):
        monkeypatch.delenv(variable, raising=False)
    record.start(tmp_path)
    yield
    record.stop()


def recorded(tmp_path):
    record.stop()
    return only_contents(tmp_path)


def column(contents, name):
    return contents.spans[name].tolist()


def names_of(contents):
    return [contents.names.get(number) for number in column(contents, "name")]


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_every_kind_can_be_marked(tmp_path, kind):
    with record.span(kind, microbatch=3, stage=1):
        pass
    contents = recorded(tmp_path)
    assert [column(contents, name) for name in ("kind", "microbatch", "stage", "name")] == [
        [BY_NAME[kind].code],
        [3],
        [1],
        [0],
    ]


def test_what_is_not_said_is_none(tmp_path):
    with record.span("optimizer"):
        pass
    contents = recorded(tmp_path)
    assert {
        column(contents, name)[0] for name in ("microbatch", "stage", "chunk", "peer", "bytes", "step")
    } == {NONE}


def test_a_span_lies_around_its_body(tmp_path):
    with record.span("forward"):
        inside_ns = session.recorder.begin_step(0)
    contents = recorded(tmp_path)
    assert column(contents, "start_ns")[0] <= inside_ns <= column(contents, "end_ns")[0]


def test_nested_spans_are_both_recorded(tmp_path):
    with record.span("other", name="outer"), record.span("forward", microbatch=0, stage=0):
        pass
    contents = recorded(tmp_path)
    starts, ends = column(contents, "start_ns"), column(contents, "end_ns")
    assert names_of(contents) == [None, "outer"]
    assert starts[1] <= starts[0] <= ends[0] <= ends[1]


@pytest.mark.parametrize("kind", ["data_loading", "", "FORWARD", 7, ["forward"], None])
def test_an_unknown_kind_is_other_with_a_name(tmp_path, kind):
    with record.span(kind, stage=2):
        pass
    contents = recorded(tmp_path)
    assert column(contents, "kind") == [BY_NAME["other"].code]
    assert column(contents, "stage") == [2]
    assert names_of(contents) == [str(kind) or None]


def test_details_have_their_fields_or_become_part_of_the_name(tmp_path):
    with record.span(
        "send_forward", microbatch=1, stage=0, chunk=2, peer=3, size_bytes=4096, name="x", tag="a", no=None
    ):
        pass
    contents = recorded(tmp_path)
    assert [column(contents, name) for name in ("chunk", "peer", "bytes")] == [[2], [3], [4096]]
    assert names_of(contents) == ["x tag=a"]


def test_integers_of_other_libraries_are_integers(tmp_path):
    one, two, three = np.int64(1), np.int32(2), np.uint8(3)
    with (
        record.profile_range(one, 1, 2) as wanted,
        record.span("forward", microbatch=three, stage=one, peer=two),
    ):
        pass
    contents = recorded(tmp_path)
    assert wanted
    assert [column(contents, name) for name in ("microbatch", "stage", "peer", "step")] == [
        [3],
        [1],
        [2],
        [1],
    ]


class Unspeakable:
    def __str__(self):
        raise ValueError("no words")


def test_nothing_that_is_said_about_a_span_raises(tmp_path):
    with record.span("forward", stage="two"):
        pass
    with record.span("forward", thing=Unspeakable(), chunk="one"):
        pass
    with record.span("forward", peer=2**70):
        pass
    contents = recorded(tmp_path)
    assert names_of(contents) == ["chunk=one thing=<Unspeakable>"] or names_of(contents) == [
        "thing=<Unspeakable> chunk=one"
    ]
    assert contents.dropped_spans == 2


def test_an_exception_passes_and_the_span_is_recorded(tmp_path):
    with pytest.raises(ZeroDivisionError), record.span("forward", microbatch=1):
        1 / 0  # noqa: B018  # raises
    assert column(recorded(tmp_path), "microbatch") == [1]


def run_loop(range_of, steps, body_inside):
    """Run a training loop with profile_range in one of its two patterns; return which steps were announced."""
    announced = []
    for step in steps:
        with record.profile_range(step, *range_of) as wanted:
            if wanted:
                announced.append(step)
            if body_inside:
                with record.span("forward", microbatch=step):
                    pass
        if not body_inside:
            with record.span("forward", microbatch=step):
                pass
    return announced


@settings(max_examples=40, deadline=None)
@given(st.integers(-2, 8), st.integers(-2, 8), st.booleans())
def test_start_is_included_and_stop_is_not(tmp_path_factory, start, stop, body_inside):
    record.stop()
    directory = tmp_path_factory.mktemp("run")
    record.start(directory)
    announced = run_loop((start, stop), range(8), body_inside)
    record.stop()
    expected = [step for step in range(8) if step in range(start, stop)]
    assert announced == expected
    files = list(directory.iterdir())
    contents = only_contents(directory) if files else None
    assert (column(contents, "microbatch") if contents else []) == expected
    assert (column(contents, "step") if contents else []) == expected


def test_a_range_starts_the_recorder(tmp_path, monkeypatch):
    record.stop()
    monkeypatch.setenv(session.OUT_VARIABLE, str(tmp_path))
    run_loop((2, 4), range(2), body_inside=True)
    assert session.recorder is None
    run_loop((2, 4), range(2, 6), body_inside=True)
    assert column(recorded(tmp_path), "step") == [2, 3]


@pytest.mark.parametrize(("steps", "expected"), [("3:9", [3]), ("0:3", [2]), ("7:9", [])])
def test_steps_of_the_command_line_limit_a_range(tmp_path, steps, expected):
    record.stop()
    record.start(tmp_path, steps=steps)
    announced = run_loop((2, 4), range(6), body_inside=True)
    record.stop()
    assert announced == expected
    files = list(tmp_path.iterdir())
    assert (column(only_contents(tmp_path), "step") if files else []) == expected


def test_an_exception_in_a_range_stays_that_exception(tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        record.profile_range(0, 0, 1),
        record.span("forward", microbatch=0),
    ):
        1 / 0  # noqa: B018  # raises
    assert column(recorded(tmp_path), "microbatch") == [0]


LOOP = """
import sys
from stagescope import record
def work(step):
    with record.span("forward", microbatch=step, stage=0):
        if step == {fails_at}:
            {failure}
for step in range(10):
    with record.profile_range(step, 2, 5, True):
        {inside}
    {after}
print("the loop has ended")
"""
PATTERNS = {"body inside": ("work(step)", "pass"), "guard only": ("pass", "work(step)")}


def run_script(tmp_path, pattern, failure="pass", fails_at=-1, **environment):
    inside, after = PATTERNS[pattern]
    script = LOOP.format(inside=inside, after=after, failure=failure, fails_at=fails_at)
    return run_child(script, env=clean_environment(STAGESCOPE_OUT=str(tmp_path), **environment))


@pytest.fixture
def no_recording():
    record.stop()


@pytest.mark.usefixtures("no_recording")
@pytest.mark.parametrize("pattern", PATTERNS)
def test_exit_after_exits_with_0_once_the_last_wanted_step_is_recorded(tmp_path, pattern):
    done = run_script(tmp_path, pattern)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    contents = only_contents(tmp_path)
    assert column(contents, "microbatch") == column(contents, "step") == [2, 3, 4]
    assert contents.end["reason"] == "stop"


@pytest.mark.usefixtures("no_recording")
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("fails_at", [0, 3, 4])
@pytest.mark.parametrize(
    ("failure", "code", "traceback"),
    [
        ("raise ValueError('mine')", 1, "ValueError: mine"),
        ("sys.exit(7)", 7, ""),
        ("import os; os._exit(9)", 9, ""),
    ],
)
def test_an_exit_code_of_the_training_is_kept(tmp_path, pattern, fails_at, failure, code, traceback):  # noqa: PLR0917  # parametrized
    done = run_script(tmp_path, pattern, failure, fails_at)
    assert done.returncode == code
    assert done.stderr.strip().endswith(traceback)
    assert ("Traceback" in done.stderr) == bool(traceback)


@pytest.mark.usefixtures("no_recording")
def test_a_training_resumed_behind_the_range_runs_on(tmp_path):
    script = LOOP.format(inside="work(step)", after="pass", failure="pass", fails_at=-1)
    done = run_child(
        script.replace("range(10)", "range(6, 10)"), env=clean_environment(STAGESCOPE_OUT=str(tmp_path))
    )
    assert (done.returncode, done.stdout) == (0, "the loop has ended\n")
    assert list(tmp_path.iterdir()) == []
