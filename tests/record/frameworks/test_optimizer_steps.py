"""One optimizer step is one span, however many hooks observe it."""

from __future__ import annotations

import pytest
import torch
from torch.optim import optimizer as torch_optimizers

import framework_trainings as trainings
from stagescope.record.frameworks.optimizer_steps import optimizer_steps
from stagescope.record.hooks import Guard, observed
from stagescope.record.patching import Patches
from stagescope.record.recorder import Recorder


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(str(tmp_path))
    recorder.begin_step()
    yield recorder
    recorder.stop("test")


@pytest.fixture
def steps(recorder, patches):
    steps = optimizer_steps(recorder)
    steps.register(patches, Guard(recorder, "a framework"))
    return steps


@pytest.fixture
def recorded(recorder, tmp_path):
    def count():
        recorder.stop("test")
        return trainings.spans_in(tmp_path, "step")

    return count


def sgd():
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    return torch.optim.SGD([weight], lr=0.5)


def watched(steps, function):
    return observed(function, steps.step, Guard(steps.recorder, "a framework"))


def test_torch_optimizer_step_is_recorded(steps, recorded):
    assert steps is not None
    sgd().step()
    assert recorded() == [("optimizer", 0)]


def test_two_frameworks_in_one_process_record_a_step_once(steps, recorder, patches, recorded):
    assert optimizer_steps(recorder) is steps
    optimizer_steps(recorder).register(patches, Guard(recorder, "another framework"))
    sgd().step()
    assert recorded() == [("optimizer", 0)]


def test_framework_step_around_a_torch_step_is_one_step(steps, recorded):
    inner = sgd()
    outer = watched(steps, watched(steps, lambda: inner.step() or "done"))
    assert outer() == "done"
    inner.step()
    assert recorded() == [("optimizer", 0)] * 2


def test_failed_step_is_not_recorded_and_the_next_is(steps, recorded):
    def fail():
        raise FloatingPointError

    optimizer = sgd()
    with pytest.raises(FloatingPointError):
        optimizer.step(fail)
    with pytest.raises(FloatingPointError):
        watched(steps, fail)()
    steps.forget()
    optimizer.step()
    assert recorded() == [("optimizer", 0)]


def test_torch_hooks_are_removed(recorder):
    def hooks():
        return len(torch_optimizers._global_optimizer_pre_hooks), len(
            torch_optimizers._global_optimizer_post_hooks
        )

    before, patches = hooks(), Patches()
    optimizer_steps(recorder).register(patches, Guard(recorder, "another framework"))
    assert hooks() == (before[0] + 1, before[1] + 1)
    patches.undo()
    assert hooks() == before


def test_recorders_have_separate_optimizer_steps(recorder, tmp_path):
    other = Recorder(str(tmp_path / "other"))
    assert optimizer_steps(other) is not optimizer_steps(recorder)
    other.stop("test")


def test_hooks_of_torch_return_nothing_and_survive_a_broken_timer(steps, recorder, monkeypatch, capsys):
    """What an optimizer's pre-hook returns replaces the arguments of the step."""
    monkeypatch.setattr(recorder.timer, "begin", lambda: 1 / 0)
    optimizer = sgd()
    assert all(
        hook(optimizer, (), {}) is None for hook in torch_optimizers._global_optimizer_pre_hooks.values()
    )
    optimizer.step()
    assert [parameter.item() for parameter in optimizer.param_groups[0]["params"]] == [0.5]
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert steps is not None
