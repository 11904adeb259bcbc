"""The hooks of a framework are installed as a whole or not at all, and the recording states which."""

from __future__ import annotations

import sys
import types

import polars as pl
import pytest

from stagescope import api
from stagescope.record import session
from stagescope.record.installation import Installation, required_faults
from stagescope.record.patching import MARK, Patches
from stagescope.record.points import Part, Point
from stagescope.record.recorder import Recorder

POINTS = (
    Point("fake.schedules:Schedule", "forward", "watch", reads=("microbatch",)),
    Point("fake.schedules:Schedule", "backward", "watch"),
    Point("fake.p2p", "send", "watch", any_of="transfers"),
    Point("fake.p2p", "send_all", "watch", any_of="transfers"),
    Point("fake.schedules", "reduce", "watch", required=False, shows="gradient reductions"),
    Point("fake.schedules:Schedule", "LIMIT"),
)
PART = Part("Fake", "fake-schedules", "1.0-1.2", "fake.schedules", "nowhere", POINTS)


class Hooks:
    def __init__(self, recorder):
        self.recorder = recorder
        self.seen = []

    def watch(self, call):
        self.seen.append(call.name)
        self.recorder.timer.end(self.recorder.timer.begin(), 1, 0, 0)
        yield


def fake_framework():
    class Schedule:
        LIMIT = 4

        def forward(self, microbatch):
            return microbatch

        def backward(self):
            return self

    schedules, p2p = types.ModuleType("fake.schedules"), types.ModuleType("fake.p2p")
    schedules.Schedule = Schedule
    schedules.reduce = lambda: 1
    p2p.send = lambda: 2
    return {"fake.schedules": schedules, "fake.p2p": p2p}


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(str(tmp_path / "recording"))
    yield recorder
    recorder.stop("test")


def install(recorder, modules, more=None):
    patches, hooks = Patches(), Hooks(recorder)
    return Installation(recorder, patches).install(PART, hooks, modules, more), patches, hooks


def wrapped(modules):
    owners = [*modules.values(), getattr(modules["fake.schedules"], "Schedule", Recorder)]
    return [name for owner in owners for name, value in vars(owner).items() if hasattr(value, MARK)]


def test_all_points_of_a_fitting_version_are_observed(recorder):
    modules = fake_framework()
    fits, patches, hooks = install(recorder, modules)
    assert fits
    schedule = modules["fake.schedules"].Schedule()
    assert schedule.forward(3) == 3
    assert schedule.backward() is schedule
    assert hooks.seen == ["forward", "backward"]
    patches.undo()
    assert not wrapped(modules)
    assert recorder.coverage.frameworks["Fake"] == {"version": None, "recorded": True, "missing": []}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda m: delattr(m["fake.schedules"].Schedule, "backward"),
            "`fake.schedules:Schedule.backward` not found",
        ),
        (
            lambda m: setattr(m["fake.schedules"].Schedule, "forward", lambda self, mb: mb),
            "`fake.schedules:Schedule.forward` has no parameter `microbatch`",
        ),
        (
            lambda m: delattr(m["fake.p2p"], "send"),
            "`fake.p2p:send` not found and `fake.p2p:send_all` not found",
        ),
        (
            lambda m: delattr(m["fake.schedules"], "Schedule"),
            "`fake.schedules:Schedule` not found; ",
        ),
        (lambda m: m.pop("fake.p2p"), "`fake.p2p` not found"),
        (
            lambda m: setattr(m["fake.schedules"].Schedule, "backward", property(lambda self: self)),
            "`fake.schedules:Schedule.backward` is not a plain function",
        ),
    ],
    ids=["renamed", "parameter", "alternatives", "class", "module", "property"],
)
def test_version_that_does_not_fit_is_left_alone_and_named(recorder, capsys, change, reason):
    modules = fake_framework()
    change(modules)
    assert not install(recorder, modules)[0]
    assert not wrapped(modules)
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert reason in printed
    assert "supported 1.0-1.2: nothing of it is recorded" in printed
    recorder.stop("test")
    notes = api.read(recorder.directory).diagnostics
    assert notes.filter(pl.col("code") == "framework.refused").height == 1


def test_optional_function_is_named_when_it_is_missing(recorder):
    modules = fake_framework()
    del modules["fake.schedules"].reduce
    assert install(recorder, modules)[0]
    assert recorder.coverage.frameworks["Fake"]["missing"] == ["gradient reductions"]


def test_failure_halfway_restores_everything(recorder, capsys):
    def fail():
        raise ImportError("no such module")

    modules = fake_framework()
    assert not install(recorder, modules, fail)[0]
    assert not wrapped(modules)
    assert "no such module" in capsys.readouterr().err


def test_one_of_several_alternatives_is_enough():
    unfit = {POINTS[2]: "first"}
    assert required_faults(POINTS, unfit) == []
    assert required_faults(POINTS, {POINTS[2]: "first", POINTS[3]: "second"}) == ["first and second"]


def test_hooks_are_inert_after_the_recording_has_stopped(recorder):
    modules = fake_framework()
    _, patches, hooks = install(recorder, modules)
    kept = modules["fake.schedules"].Schedule.forward  # as code that imported it by name keeps it
    patches.undo()
    assert kept(None, 2) == 2
    assert not hooks.seen


def test_session_undoes_a_half_installed_framework(tmp_path, monkeypatch, capsys):
    modules = fake_framework()

    def instrument(module, recorder, patches):
        patches.observe(
            module.Schedule, "forward", Hooks(recorder).watch, Installation(recorder, patches).guard("x")
        )
        raise AttributeError("another version")

    monkeypatch.setitem(session.FRAMEWORKS, "fake.schedules", "fake_instrumentation")
    monkeypatch.setitem(sys.modules, "fake_instrumentation", types.SimpleNamespace(instrument=instrument))
    monkeypatch.setitem(sys.modules, "fake.schedules", modules["fake.schedules"])
    session.start(tmp_path)
    session.stop()
    assert not wrapped(modules)
    assert "another version" in capsys.readouterr().err
