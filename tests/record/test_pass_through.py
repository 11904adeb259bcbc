"""Every hook of every framework leaves every call as it is, with any arguments and whatever the recorder raises."""

from __future__ import annotations

import importlib
import types

import pytest

from stagescope.record import compiled
from stagescope.record.hooks import Guard, observed
from stagescope.record.patching import Patches
from stagescope.record.points import all_parts

HOOKED = [(part, point) for part in all_parts() for point in part.points if point.hook]


class OriginalError(Exception):
    """Raised by a framework."""


class Odd:
    """An argument of an unknown version: no attribute works."""

    def __getattr__(self, name):
        raise LookupError(name)

    def __bool__(self):
        raise LookupError("bool")

    def __iter__(self):
        raise LookupError("iter")

    def __eq__(self, other):
        raise LookupError("eq")

    __hash__ = None


def argument_lists(point):
    """Yield positional and keyword arguments: plausible, of odd types, too few, and by other names."""
    values = {name: index for index, name in enumerate(point.reads)}
    yield (), {}
    yield (object(),), values
    yield (Odd(), Odd(), Odd(), Odd(), Odd()), {}
    yield (types.SimpleNamespace(),), dict.fromkeys(point.reads, Odd())
    yield (None, [None], {}, (), 0, -1, "x"), {"of_a_later_version": object()}
    yield tuple(range(12)), {}


class BrokenTimer:
    """A timer whose every use raises."""

    device = None

    def __getattr__(self, name):
        raise RuntimeError(f"timer.{name}")


class BrokenRecorder:
    """A recorder whose every use raises, but for what the hooks only look up."""

    enabled = True
    actions = 0
    mirror = None
    step = 0
    pair = 0

    def __init__(self):
        self.guards = {}
        self.timer = BrokenTimer()

    def __getattr__(self, name):
        raise RuntimeError(name)


def hook_of(part, point, recorder):
    instrumentation = importlib.import_module(part.instrumentation).Instrumentation(recorder, Patches())
    return getattr(instrumentation, point.hook)


def check(hook, point, recorder, *, raises):
    """Call a stub through the hook with all argument lists; assert that the stub and the caller notice nothing."""
    for args, kwargs in argument_lists(point):
        seen, result = [], object()

        def original(*args, seen=seen, result=result, **kwargs):
            seen.append((args, kwargs))
            if raises:
                raise OriginalError
            return result

        original.__name__ = point.name
        wrapper = observed(original, hook, Guard(recorder, "a framework"))
        if raises:
            with pytest.raises(OriginalError) as caught:
                wrapper(*args, **kwargs)
            assert caught.value.__context__ is None
        else:
            assert wrapper(*args, **kwargs) is result
        [(got_args, got_kwargs)] = seen
        assert len(got_args) == len(args)
        assert all(got is given for got, given in zip(got_args, args, strict=True))
        assert got_kwargs.keys() == kwargs.keys()
        assert all(got_kwargs[name] is value for name, value in kwargs.items())


def cases():
    """Return each hook in its usual way, and those that the extension takes part in also without it."""
    torch = [(part, point) for part, point in HOOKED if part.framework.startswith("torch.distributed")]
    ways = [(part, point, True) for part, point in HOOKED] + [(*case, False) for case in torch]
    names = {True: "", False: " in Python"}
    return [pytest.param(*case, id=f"{case[0].framework} {case[1].path}{names[case[2]]}") for case in ways]


@pytest.fixture(autouse=True)
def way(is_compiled, monkeypatch):
    if not is_compiled:
        monkeypatch.setattr(compiled, "extension", lambda: None)


@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize(("part", "point", "is_compiled"), cases())
def test_hook_does_not_take_part_in_a_call(recorder, part, point, raises):
    check(hook_of(part, point, recorder), point, recorder, raises=raises)


@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize(("part", "point", "is_compiled"), cases())
def test_hook_of_a_broken_recorder_does_not_take_part_in_a_call(recorder, part, point, raises, monkeypatch):
    hook = hook_of(part, point, recorder)
    for name in ("emit", "begin_step", "end_step", "describe", "warn", "name_id", "new_pair", "flush_soon"):
        monkeypatch.setattr(recorder, name, BrokenRecorder().__getattr__)
    monkeypatch.setattr(recorder, "timer", BrokenTimer())
    check(hook, point, recorder, raises=raises)
    monkeypatch.undo()
