"""Schedules that are known but not recorded are named, and nothing of them is recorded in part."""

from __future__ import annotations

import types

import pytest

from stagescope import api as workflow
from stagescope.record.frameworks import unrecorded
from stagescope.record.frameworks.runs import FORWARD, Place, Runs
from stagescope.record.hooks import Guard
from stagescope.record.points import all_parts
from stagescope.record.points.unrecorded import PARTS
from stagescope.record.session import FRAMEWORKS

ENTRIES = [(part, point.name) for part in PARTS for point in part.points]


def make(name, entry):
    """Return a module with one schedule, which calls a function that it imported from Megatron."""
    module = types.ModuleType(name)

    def forward_step(microbatch):
        return f"output {microbatch}"

    def schedule(*, num_microbatches=2, forward_only=False):
        assert forward_only in (False, True)
        return [module.forward_step(number) for number in range(num_microbatches)]

    schedule.__name__ = entry
    module.forward_step = forward_step
    setattr(module, entry, schedule)
    return module


def observe_as_megatron(module, recorder, patches):
    """Observe the imported function as Megatron's hooks do; return their Runs."""
    runs = Runs(recorder, "Megatron-core")

    def forward(call):
        return (yield from runs.observe_action(FORWARD, Place(0, call.get("microbatch"), 0)))

    patches.observe(module, "forward_step", forward, Guard(recorder, "Megatron-core"))
    return runs


def module_of(part):
    return part.trigger.rpartition(".")[2]


def codes(timeline):
    return sorted(timeline.diagnostics["code"].to_list())


@pytest.mark.parametrize("part_and_entry", ENTRIES, ids=[f"{part.trigger}:{name}" for part, name in ENTRIES])
def test_schedule_is_named_once_and_has_steps_but_no_actions(
    tmp_path, recorder, patches, capsys, part_and_entry
):
    part, entry = part_and_entry
    module = make(part.trigger, entry)
    observe_as_megatron(module, recorder, patches)
    unrecorded.instrument(module, recorder, patches)
    for _ in range(3):
        assert getattr(module, entry)() == ["output 0", "output 1"]
    assert getattr(module, entry)(forward_only=True) == ["output 0", "output 1"]
    printed = capsys.readouterr().err
    assert printed.count(f"{part.framework}: the schedule {module_of(part)}.{entry} is not recorded") == 1
    assert "without a recorded action" not in printed
    recorder.stop("test")
    timeline = workflow.read(tmp_path)
    assert timeline.spans["name"].unique().to_list() == ["evaluation"]
    assert timeline.steps["step"].to_list() == [0, 1, 2]
    assert "schedule.unrecorded" in codes(timeline)
    assert "steps.without_actions" not in codes(timeline)


def test_schedule_inside_the_step_of_megatron_is_named_instead_of_the_empty_step(
    tmp_path, recorder, patches, capsys
):
    part, entry = ENTRIES[0]
    module = make(part.trigger, entry)
    runs = observe_as_megatron(module, recorder, patches)

    def train_step():
        return getattr(module, entry)()

    module.train_step = train_step
    patches.observe(module, "train_step", lambda _: runs.observe_step(), Guard(recorder, "Megatron-core"))
    unrecorded.instrument(module, recorder, patches)
    assert module.train_step() == ["output 0", "output 1"]
    module.train_step()
    assert "without a recorded action" not in capsys.readouterr().err
    recorder.stop("test")
    timeline = workflow.read(tmp_path)
    assert timeline.steps["step"].to_list() == [0, 1]
    assert "schedule.unrecorded" in codes(timeline)


def test_actions_outside_of_such_a_schedule_are_recorded(tmp_path, recorder, patches):
    part, entry = ENTRIES[0]
    module = make(part.trigger, entry)
    runs = observe_as_megatron(module, recorder, patches)
    unrecorded.instrument(module, recorder, patches)
    getattr(module, entry)()
    module.megatrons_schedule = lambda: module.forward_step(5)
    patches.observe(
        module, "megatrons_schedule", lambda _: runs.observe_step(), Guard(recorder, "Megatron-core")
    )
    module.megatrons_schedule()
    recorder.stop("test")
    assert workflow.read(tmp_path).spans["microbatch"].drop_nulls().to_list() == [5]


def test_module_of_another_version_without_the_schedule_is_left_alone(recorder, patches, capsys):
    part, entry = ENTRIES[0]
    module = make(part.trigger, entry)
    delattr(module, entry)
    before = dict(vars(module))
    unrecorded.instrument(module, recorder, patches)
    assert vars(module) == before
    assert not capsys.readouterr().err


def test_import_of_every_declared_module_is_watched():
    assert {part.trigger for part in all_parts()} <= set(FRAMEWORKS)
