from __future__ import annotations

import functools
import types

import pytest

from stagescope.record.hooks import Guard
from stagescope.record.patching import Patches


class Stage:
    def forward(self, x):
        """Do something."""
        return x + 1

    @staticmethod
    def fixed(x):
        return x

    @classmethod
    def made(cls):
        return cls

    size = 3


class Derived(Stage):
    pass


ORIGINAL = dict(vars(Stage))


@pytest.fixture(autouse=True)
def originals_are_back():
    yield
    assert {name: vars(Stage)[name] for name in ORIGINAL if name != "__dict__"} == {
        name: value for name, value in ORIGINAL.items() if name != "__dict__"
    }


CALLS = []


def note(call):
    CALLS.append(call.name)
    yield


def guard():
    return Guard(types.SimpleNamespace(), "a framework")


@pytest.fixture
def patches():
    CALLS.clear()
    patches = Patches()
    yield patches
    patches.undo()


def test_observed_method_calls_observer_and_original(patches):
    assert patches.observe(Stage, "forward", note, guard())
    assert Stage().forward(1) == 2
    assert Derived().forward(1) == 2
    assert CALLS == ["forward", "forward"]


def test_observed_method_keeps_its_metadata(patches):
    patches.observe(Stage, "forward", note, guard())
    assert Stage.forward.__name__ == "forward"
    assert Stage.forward.__doc__ == "Do something."


def test_module_globals_can_be_observed(patches):
    module = types.ModuleType("module")
    module.double = lambda x: 2 * x
    assert patches.observe(module, "double", note, guard())
    assert module.double(1) == 2
    assert CALLS == ["<lambda>"]


def test_undo_restores_the_original_object(patches):
    patches.observe(Stage, "forward", note, guard())
    patches.undo()
    assert vars(Stage)["forward"] is ORIGINAL["forward"]


def test_observing_twice_with_one_guard_observes_once(patches):
    same = guard()
    assert patches.observe(Stage, "forward", note, same)
    assert not patches.observe(Stage, "forward", note, same)
    assert not Patches().observe(Stage, "forward", note, same)
    assert Stage().forward(1) == 2
    assert CALLS == ["forward"]


def test_attribute_can_be_observed_again_after_undo(patches):
    patches.observe(Stage, "forward", note, guard())
    patches.undo()
    assert patches.observe(Stage, "forward", note, guard())
    assert Stage().forward(1) == 2
    assert CALLS == ["forward"]


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Stage, "missing"), (Derived, "forward"), (Stage, "size")],
)
def test_attributes_other_than_own_functions_are_left_alone(patches, owner, name):
    before = vars(owner).get(name)
    assert not patches.observe(owner, name, note, guard())
    assert vars(owner).get(name) is before


def test_undo_keeps_a_wrapper_installed_around_ours(patches):
    same = guard()
    patches.observe(Stage, "forward", note, same)
    ours = Stage.forward

    @functools.wraps(ours)
    def theirs(self, x):
        return -ours(self, x)

    Stage.forward = theirs
    try:
        patches.undo()
        assert Stage().forward(1) == -2
        assert not Patches().observe(Stage, "forward", note, same)
    finally:
        Stage.forward = ORIGINAL["forward"]


def test_undo_runs_in_reverse_order(patches):
    module, order = types.ModuleType("module"), []
    module.f = module.g = lambda: 0
    for number in range(3):
        patches.on_undo(functools.partial(order.append, number))
    first, second = (lambda: 1), (lambda: 2)
    patches.replace(module, "f", first)
    patches.replace(module, "f", second)
    patches.undo()
    assert order == [2, 1, 0]
    assert module.f() == 0


def test_second_undo_has_no_effect(patches):
    calls = []
    patches.on_undo(lambda: calls.append(True))
    patches.undo()
    patches.undo()
    assert calls == [True]


def test_failing_hook_removal_does_not_stop_undo(patches, capsys):
    def fail():
        raise KeyError("hook")

    calls = []
    patches.observe(Stage, "forward", note, guard())
    patches.on_undo(lambda: calls.append(True))
    patches.on_undo(fail)
    patches.undo()
    assert calls == [True]
    assert vars(Stage)["forward"] is ORIGINAL["forward"]
    assert capsys.readouterr().err == "stagescope: cannot remove a hook: KeyError('hook')\n"


def observe_entry(patches, functions, seen):
    def watch(call):
        seen.append(call.name)
        yield

    return patches.observe_entry(functions, "f", watch, Guard(types.SimpleNamespace(), "a framework"))


def test_functions_in_a_dict_are_observed_and_restored(patches):
    def double(x):
        return 2 * x

    functions, seen = {"f": double, "g": 3}, []
    assert observe_entry(patches, functions, seen)
    assert not observe_entry(patches, functions, seen)
    copied = dict(functions)
    assert not observe_entry(patches, copied, seen)
    assert functions["f"](2) == copied["f"](3) - 2 == 4
    assert seen == ["double", "double"]
    patches.undo()
    assert functions == copied == {"f": double, "g": 3}


@pytest.mark.parametrize("functions", [{}, {"f": None}, {"f": 3}])
def test_dict_without_the_function_is_left_alone(patches, functions):
    before = dict(functions)
    assert not observe_entry(patches, functions, [])
    assert functions == before


def test_entries_are_restored_when_a_block_fails_and_kept_if_replaced(patches):
    functions, kept = {"f": test_second_undo_has_no_effect}, {"f": test_second_undo_has_no_effect}

    def fail():
        with patches.all_or_none():
            observe_entry(patches, functions, [])
            observe_entry(patches, kept, [])
            kept["f"] = abs
            raise OSError("half")

    with pytest.raises(OSError, match="half"):
        fail()
    assert functions["f"] is test_second_undo_has_no_effect
    assert kept["f"] is abs
