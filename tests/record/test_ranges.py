from __future__ import annotations

import inspect

import pytest

from stagescope import record
from stagescope.record import session
from stagescope.record.run_identity import RUN_VARIABLE


@pytest.fixture(autouse=True)
def nothing_is_left_recording(tmp_path, monkeypatch):
    for variable in (session.STEPS_VARIABLE, RUN_VARIABLE, "RANK"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(session.OUT_VARIABLE, str(tmp_path))
    yield
    record.stop()


def loop(start, end, exit_after_prof):
    announced = []
    for step in range(8):
        with record.job_schedule_profiler_range(step, start, end, exit_after_prof) as wanted:
            announced.append(wanted)
            with record.span("forward", microbatch=step):
                pass
    return announced


def test_signature_matches_paddles():
    signature = inspect.signature(record.job_schedule_profiler_range)
    assert [(one.name, one.default) for one in signature.parameters.values()] == [
        ("iter_id", inspect.Parameter.empty),
        ("start", inspect.Parameter.empty),
        ("end", inspect.Parameter.empty),
        ("exit_after_prof", True),
    ]


def test_range_includes_start_and_excludes_end():
    assert loop(3, 6, exit_after_prof=False) == [False] * 3 + [True] * 3 + [False] * 2


def test_empty_range_records_nothing():
    assert loop(3, 3, exit_after_prof=True) == [False] * 8


def test_process_exits_with_0_after_the_last_step():
    with pytest.raises(SystemExit) as end:
        loop(3, 6, exit_after_prof=True)
    assert end.value.code == 0


def test_exception_in_the_last_step_propagates():
    with pytest.raises(ZeroDivisionError), record.job_schedule_profiler_range(5, 3, 6, exit_after_prof=True):
        1 / 0  # noqa: B018  # raises
