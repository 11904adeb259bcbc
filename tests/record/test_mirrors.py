from __future__ import annotations

import sys
import types

import pytest
from click.testing import CliRunner

from children import clean_environment, contents_in, run_child
from observing import during
from places import TESTS
from stagescope import record
from stagescope.cli.run import command
from stagescope.record import mirrors, session, spans
from stagescope.record.frameworks.runs import FORWARD, OPTIMIZER, Place, Runs
from stagescope.record.mirrors import Mirrors, install, parse_profilers
from stagescope.record.patching import Patches
from stagescope.vocabulary.errors import UsageError
from stagescope.vocabulary.kinds import BY_NAME


class Ranges:
    """A fake profiler that notes the opened ranges in order, and whether all were closed."""

    def __init__(self):
        self.opened, self.open = [], []

    def push(self, name, *_stream):
        self.opened.append(name)
        self.open.append(name)
        return len(self.opened)

    def pop(self, *_number):
        self.open.pop()


@pytest.fixture
def nvtx(monkeypatch):
    ranges = Ranges()
    cuda = types.SimpleNamespace(nvtx=types.SimpleNamespace(range_push=ranges.push, range_pop=ranges.pop))
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    return ranges


@pytest.fixture
def mstx(monkeypatch):
    ranges = Ranges()
    own = types.SimpleNamespace(range_start=ranges.push, range_end=ranges.pop)
    npu = types.SimpleNamespace(mstx=own, current_stream=lambda: "stream")
    monkeypatch.setitem(sys.modules, "torch_npu", types.SimpleNamespace(npu=npu))
    return ranges


@pytest.mark.parametrize(
    ("text", "names"), [("nvtx", ("nvtx",)), ("NVTX, kineto", ("nvtx", "kineto")), ("mstx,mstx", ("mstx",))]
)
def test_profiler_list_is_parsed(text, names):
    assert parse_profilers(text) == names


@pytest.mark.parametrize(("text", "wrong"), [("nvtx,itt", "itt"), ("", ""), (",", ",")])
def test_unknown_profiler_is_named_in_the_error(text, wrong):
    with pytest.raises(UsageError) as failure:
        parse_profilers(text)
    assert str(failure.value) == f"--also {wrong!r}: expected a comma-separated list of kineto, mstx, nvtx"


def test_actions_use_the_usual_notation(recorder, nvtx):
    recorder.mirror = Mirrors(recorder, ("nvtx",))
    recorder.begin_step(2)
    runs = Runs(recorder)
    assert during(runs.observe_action(FORWARD, Place(1, 3)), lambda: list(nvtx.open)) == ["F1.3 step 2"]
    during(runs.observe_action(OPTIMIZER, Place()), lambda: None)
    during(runs.observe_pair(Place(0, 5), Place(3, 1)), lambda: None)
    assert nvtx.opened == ["F1.3 step 2", "optimizer step 2", "F0.5 step 2", "B3.1 step 2"]
    assert nvtx.open == []


@pytest.mark.parametrize(
    ("kind", "stage", "microbatch", "name"),
    [
        ("backward_weight", 1, 2, "W1.2"),
        ("backward_input", 1, -1, "I1"),
        ("loss", -1, 4, "L.4"),
        ("grad_reduce", -1, -1, "grad_reduce"),
    ],
)
def test_unknown_parts_of_a_name_are_omitted(recorder, kind, stage, microbatch, name):
    assert Mirrors(recorder, ()).name_of(BY_NAME[kind].code, stage, microbatch) == name


def test_several_profilers_get_the_same_ranges(recorder, nvtx, mstx):
    recorder.mirror = Mirrors(recorder, ("nvtx", "mstx"))
    during(Runs(recorder).observe_action(FORWARD, Place(0, 0)), lambda: None)
    assert nvtx.opened == mstx.opened == ["F0.0"]
    assert nvtx.open == mstx.open == []


def test_exception_in_an_action_closes_its_range(recorder, nvtx):
    recorder.mirror = Mirrors(recorder, ("nvtx",))
    with pytest.raises(ZeroDivisionError):
        during(Runs(recorder).observe_action(FORWARD, Place(0, 0)), lambda: 1 / 0)
    assert nvtx.opened == ["F0.0"]
    assert nvtx.open == []


def test_missing_library_is_reported_once_and_others_continue(recorder, nvtx, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    recorder.mirror = Mirrors(recorder, ("mstx", "nvtx"))
    runs = Runs(recorder)
    for number in range(3):
        during(runs.observe_action(FORWARD, Place(0, number)), lambda: None)
    assert (
        capsys.readouterr().err
        == "stagescope: mstx ranges are no longer written: the training has not imported torch_npu\n"
    )
    assert nvtx.opened == ["F0.0", "F0.1", "F0.2"]


@pytest.mark.usefixtures("nvtx")
def test_failing_library_is_not_called_again(recorder, capsys):
    def fail(_name):
        raise RuntimeError("NVTX functions not installed")

    sys.modules["torch"].cuda.nvtx.range_push = fail
    recorder.mirror = Mirrors(recorder, ("nvtx",))
    assert [during(Runs(recorder).observe_action(FORWARD, Place(0, 0)), lambda: 7) for _ in range(2)] == [
        7,
        7,
    ]
    assert capsys.readouterr().err.count("NVTX functions not installed") == 1


def test_no_ranges_outside_the_selected_steps(recorder, nvtx):
    recorder.mirror = Mirrors(recorder, ("nvtx",))
    recorder.enabled = False
    during(Runs(recorder).observe_action(FORWARD, Place(0, 0)), lambda: None)
    assert nvtx.opened == []


def test_manually_marked_spans_are_shown_and_recorded(tmp_path, nvtx, monkeypatch):
    monkeypatch.setenv(session.ALSO_VARIABLE, "nvtx")
    record.start(tmp_path)
    try:
        with record.span("forward", microbatch=3, stage=1), record.span("loading", stage=2, name="x"):
            assert nvtx.open == ["F1.3", "loading"]
        assert nvtx.open == []
    finally:
        record.stop()
    (contents,) = contents_in(tmp_path)
    assert contents.spans["microbatch"].tolist() == [-1, 3]


def test_no_mirror_without_the_option(tmp_path):
    record.start(tmp_path)
    assert session.recorder.mirror is None
    record.stop()


def test_undo_restores_the_plain_span(recorder):
    patches, original = Patches(), type(spans.span("forward"))
    install(("nvtx",), recorder, patches)
    assert type(spans.span("forward")) is not original
    patches.undo()
    assert type(spans.span("forward")) is original


def test_unrecorded_span_closes_no_other_range(recorder, nvtx):
    mirror = Mirrors(recorder, ("nvtx",))
    mirror.open(FORWARD, 0, 0)
    recorder.enabled = False
    mirror.open_span("forward", {})
    mirror.close()
    assert nvtx.open == ["F0.0"]
    mirror.close()
    assert nvtx.open == []


KINETO = """
import json, os, runpy, sys
import torch
from stagescope.record.startup import arm
arm()
from stagescope import record
sys.argv = ["one_process_training.py", sys.argv[1]]
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    with record.span("forward", stage=7, microbatch=9):
        torch.ones(2).sum()
    runpy.run_path(os.environ["TRAINING"], run_name="__main__")
names = [event.name for event in profiler.events()]
print(json.dumps([name for name in names if name.split()[0] in ("F7.9", "F0.0", "B0.1", "L0.1")]))
"""


@pytest.mark.slow
def test_kineto_shows_the_actions_of_a_real_training(tmp_path):
    done = run_child(
        KINETO,
        tmp_path / "own",
        env=clean_environment(
            STAGESCOPE_OUT=str(tmp_path / "rec"),
            STAGESCOPE_ALSO="kineto",
            GLOO_SOCKET_IFNAME="lo",
            TRAINING=str(TESTS / "one_process_training.py"),
        ),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    shown = done.stdout.splitlines()[-1]
    assert '"F7.9"' in shown
    for name in ('"F0.0 step 0"', '"B0.1 step 0"', '"L0.1 step 0"'):
        assert name in shown, shown


def test_help_lists_every_profiler():
    text = CliRunner().invoke(command, ["--help"]).output
    assert all(name in text for name in mirrors.PROFILERS)
