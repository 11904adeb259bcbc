from __future__ import annotations

import importlib
import os
import signal
import sys
import types

import pytest

from children import contents_in, microbatches, only_contents, run_child
from recorder_threads import remaining_threads
from stagescope import record
from stagescope.record import session
from stagescope.record.imports import ImportWatch
from stagescope.record.installation import Installation
from stagescope.record.run_identity import RUN_VARIABLE
from stagescope.vocabulary.errors import UsageError
from stagescope.vocabulary.steps import StepRange


@pytest.fixture(autouse=True)
def nothing_is_left_recording(monkeypatch):
    for variable in (session.OUT_VARIABLE, session.STEPS_VARIABLE, RUN_VARIABLE, "RANK"):
        monkeypatch.delenv(variable, raising=False)
    yield
    record.stop()
    assert remaining_threads() == []
    assert not any(isinstance(finder, ImportWatch) for finder in sys.meta_path)


def one_span(microbatch=0):
    with record.span("forward", microbatch=microbatch, stage=0):
        pass


def test_session_stores_its_spans(tmp_path):
    one_span(0)
    record.start(tmp_path)
    one_span(1)
    record.stop()
    one_span(2)
    assert microbatches(only_contents(tmp_path)) == [1]
    assert only_contents(tmp_path).end["reason"] == "stop"


def test_second_start_has_no_effect(tmp_path):
    record.start(tmp_path / "first")
    record.start(tmp_path / "second")
    one_span()
    record.stop()
    assert len(contents_in(tmp_path / "first")) == 1
    assert not (tmp_path / "second").exists()


def test_stop_without_a_running_session_has_no_effect(tmp_path):
    record.stop()
    record.start(tmp_path)
    one_span()
    record.stop()
    record.stop()
    assert len(contents_in(tmp_path)) == 1


def test_restart_creates_a_second_file(tmp_path):
    for microbatch in range(2):
        record.start(tmp_path)
        one_span(microbatch)
        record.stop()
    assert sorted(map(microbatches, contents_in(tmp_path))) == [[0], [1]]
    assert all(contents.end for contents in contents_in(tmp_path))


def test_no_spans_create_no_file(tmp_path):
    record.start(tmp_path / "runs")
    record.stop()
    assert not (tmp_path / "runs").exists()


def test_session_restores_signal_handlers(tmp_path):
    before = signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)
    record.start(tmp_path)
    one_span()
    assert signal.getsignal(signal.SIGTERM) != before[0]
    record.stop()
    assert (signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)) == before


def test_directory_is_read_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv(session.OUT_VARIABLE, str(tmp_path / "a"))
    record.start()
    one_span()
    record.stop()
    assert len(contents_in(tmp_path / "a")) == 1


@pytest.mark.parametrize("variable", [None, ""])
def test_default_directory_is_below_the_working_directory(tmp_path, monkeypatch, variable):
    monkeypatch.chdir(tmp_path)
    if variable is not None:
        monkeypatch.setenv(session.OUT_VARIABLE, variable)
    record.start()
    one_span()
    record.stop()
    assert len(contents_in(tmp_path / "stagescope-recording")) == 1


def test_changing_the_working_directory_keeps_the_output_directory(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    record.start("runs")
    monkeypatch.chdir(tmp_path / "elsewhere")
    one_span()
    record.stop()
    assert len(contents_in(tmp_path / "runs")) == 1


def test_start_works_in_a_deleted_working_directory(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    done = run_child(
        """
        import os, sys
        from stagescope import record
        os.rmdir(os.getcwd())
        record.start("runs")
        with record.span("forward"):
            pass
        record.stop()
        sys.exit(4)
        """,
        cwd=gone,
    )
    assert done.returncode == 4
    assert "cannot record into runs" in done.stderr
    assert "Traceback" not in done.stderr


def test_rank_and_steps_are_in_the_header(tmp_path):
    record.start(tmp_path, rank=3, world_size=8, steps="0:5")
    one_span()
    record.stop()
    header = only_contents(tmp_path).header
    assert (header["rank"], header["world_size"], header["steps"]) == (3, 8, "0:5")
    assert next(tmp_path.iterdir()).name == "rank-00003.sscope"


@pytest.mark.parametrize(("given", "variable", "bound"), [
    (None, None, 2**30), (None, "2MiB", 2**21), (None, "", 2**30), (2**20, "2MiB", 2**20), ("4MiB", None, 2**22),
    (None, str(2**23), 2**23),
])  # fmt: skip
def test_size_limit_comes_from_the_argument_or_the_environment(tmp_path, monkeypatch, given, variable, bound):
    monkeypatch.delenv(session.MAX_BYTES_VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(session.MAX_BYTES_VARIABLE, variable)
    record.start(tmp_path, max_bytes=given)
    one_span()
    record.stop()
    assert only_contents(tmp_path).header["max_bytes"] == bound


def test_limit_0_means_unlimited(tmp_path):
    record.start(tmp_path, max_bytes=0)
    one_span()
    record.stop()
    assert "max_bytes" not in only_contents(tmp_path).header


@pytest.mark.parametrize("bound", [1, 2**20 - 1, "5k", "much"])
def test_too_small_limit_is_an_error_and_starts_nothing(tmp_path, bound):
    with pytest.raises(UsageError):
        record.start(tmp_path, max_bytes=bound)
    assert session.recorder is None


def test_each_of_several_machines_has_its_own_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    record.start(tmp_path)
    one_span()
    record.stop()
    [directory] = tmp_path.iterdir()
    assert directory.name == os.uname().nodename
    assert only_contents(directory).header["host"] == directory.name


def test_steps_may_be_text_or_step_range(tmp_path):
    for steps in ("1:2", StepRange(1, 2)):
        record.start(tmp_path, steps=steps)
        assert session.recorder.steps == StepRange(1, 2)
        record.stop()


def test_invalid_steps_are_an_error_and_start_nothing(tmp_path):
    with pytest.raises(UsageError):
        record.start(tmp_path, steps="five")
    assert session.recorder is None


@pytest.fixture
def framework(monkeypatch):
    """A framework ``toy_framework`` and a module that instruments it."""
    toy = types.ModuleType("toy_framework")
    toy.step = lambda: "stepped"
    ours = types.ModuleType("toy_instrumentation")

    def instrument(module, recorder, patches):
        def step(call):
            del call
            recorder.emit(1, 1, 2)
            yield

        patches.observe(module, "step", step, Installation(recorder, patches).guard("toy"))

    ours.instrument = instrument
    monkeypatch.setattr(session, "FRAMEWORKS", {"toy_framework": "toy_instrumentation"})
    monkeypatch.setitem(sys.modules, "toy_framework", toy)
    monkeypatch.setitem(sys.modules, "toy_instrumentation", ours)
    return toy


def test_framework_is_instrumented_and_restored(tmp_path, framework):
    step = framework.step
    record.start(tmp_path)
    assert framework.step() == "stepped"
    record.stop()
    assert framework.step is step
    assert len(only_contents(tmp_path).spans) == 1


def test_framework_works_when_instrumentation_fails(tmp_path, framework, monkeypatch, capsys):
    monkeypatch.delattr(sys.modules["toy_instrumentation"], "instrument")
    record.start(tmp_path)
    assert framework.step() == "stepped"
    record.stop()
    assert "toy_framework (unknown version): cannot be observed: AttributeError" in capsys.readouterr().err


def test_failing_hook_removal_does_not_prevent_storing(tmp_path, capsys):
    def fail():
        raise RuntimeError("hook")

    record.start(tmp_path)
    session._session.patches.on_undo(fail)
    one_span()
    record.stop()
    assert only_contents(tmp_path).end["reason"] == "stop"
    assert "cannot remove a hook" in capsys.readouterr().err


def test_stop_in_another_thread_stores_everything_and_sigterm_still_works(tmp_path):
    done = run_child(
        """
        import os, signal, sys, threading, time
        from stagescope import record
        record.start(sys.argv[1])
        with record.span("forward", microbatch=0, stage=0):
            pass
        thread = threading.Thread(target=record.stop)
        thread.start()
        thread.join()
        own = [os.open(os.path.join(sys.argv[1], f"own{number}"), os.O_CREAT | os.O_WRONLY) for number in range(8)]
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
        """,
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")
    assert only_contents(tmp_path).end["reason"] == "stop"
    assert all((tmp_path / f"own{number}").stat().st_size == 0 for number in range(8))


def test_repeated_sessions_leak_no_descriptor(tmp_path):
    done = run_child(
        """
        import gc, os, sys
        from stagescope import record
        def cycle():
            record.start(sys.argv[1])
            with record.span("forward"):
                pass
            record.stop()
            gc.collect()
            return len(os.listdir("/proc/self/fd"))
        first = cycle()
        sys.exit(cycle() + cycle() - 2 * first)
        """,
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_recording_imports_only_the_standard_library():
    done = run_child(
        """
        import sys
        import stagescope.record
        print(sorted({"numpy", "polars", "torch", "rich", "ctypes", "importlib.abc"} & set(sys.modules)))
        """,
    )
    assert done.stdout == "[]\n"
    assert done.stderr == ""


@pytest.mark.parametrize("module", sorted(set(session.FRAMEWORKS.values())))
def test_every_listed_framework_has_an_instrument_function(module):
    assert callable(importlib.import_module(module).instrument)
