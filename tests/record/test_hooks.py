"""A wrapper is indistinguishable from its original, whatever the observer does."""

from __future__ import annotations

import functools
import inspect
import pickle
import signal
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.record.hooks import MAX_ERRORS, Guard, can_be_observed, observed
from stagescope.record.patching import Patches

pytestmark = pytest.mark.usefixtures("way")


class Recorder:
    """What a guard needs of a recorder."""

    def __init__(self):
        self.reported = []
        self.coverage = types.SimpleNamespace(failed=self.failed)

    def failed(self, name, error, errors, *, is_off):
        self.reported.append((name, repr(error), errors, is_off))


def new_guard():
    return Guard(Recorder(), "a framework")


def watch(call):
    del call
    yield


def fail_before(call):
    raise RuntimeError(call.name)
    yield


def fail_after(call):
    yield
    raise RuntimeError(call.name)


def fail_always(call):
    try:
        yield
    finally:
        raise RuntimeError(call.name)


def ignore(call):
    if call is None:
        yield


def yield_twice(call):
    del call
    yield
    yield


def return_other(call):
    del call
    yield
    return "another result"


def no_generator(call):
    del call


OBSERVERS = (
    watch,
    fail_before,
    fail_after,
    fail_always,
    ignore,
    yield_twice,
    return_other,
    no_generator,
)


class Broken(BaseException):
    """Not an Exception, like KeyboardInterrupt and SystemExit."""


arguments = st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=4)
keywords = st.dictionaries(st.sampled_from(["a", "b", "self", "call", "name", "observer"]), st.integers())


@given(st.sampled_from(OBSERVERS), arguments, keywords, st.booleans())
def test_original_gets_the_arguments_once_and_its_result_is_returned(observer, args, kwargs, as_objects):
    given_args = [[value] for value in args] if as_objects else args
    calls, result = [], object()

    def original(*args, **kwargs):
        calls.append((args, kwargs))
        return result

    assert observed(original, observer, new_guard())(*given_args, **kwargs) is result
    assert len(calls) == 1
    assert calls[0] == (tuple(given_args), kwargs)
    assert all(got is put for got, put in zip(calls[0][0], given_args, strict=True))


def test_calls_that_are_ignored_are_not_observed():
    seen = []

    def observer(call):
        seen.append(call.arguments)
        yield

    wrapper = observed(lambda *args: args, observer, new_guard(), lambda args: args[0] == "often")
    assert wrapper("often", 1) == ("often", 1)
    assert wrapper("seldom", 2) == ("seldom", 2)
    assert seen == [("seldom", 2)]


def test_error_in_the_decision_to_ignore_a_call_is_counted_and_the_call_takes_place():
    guard = new_guard()
    wrapper = observed(lambda *args: args, watch, guard, lambda args: args[0] > 1)
    assert wrapper() == ()
    assert wrapper("text") == ("text",)
    assert guard.errors == 2


@given(
    st.sampled_from(OBSERVERS),
    st.sampled_from([ValueError, StopIteration, GeneratorExit, KeyboardInterrupt, SystemExit, Broken]),
)
def test_exception_of_the_original_is_let_through(observer, error_type):
    error = error_type("from the original")

    def original():
        raise error

    with pytest.raises(error_type) as caught:
        observed(original, observer, new_guard())()
    assert caught.value is error
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


def random_signatures():
    names = ["a", "b", "c"]
    for defaults in range(4):
        for keyword_only in (False, True):
            for more in (False, True):
                given = [
                    f"{name}=None" if 3 - place <= defaults else name for place, name in enumerate(names)
                ]
                given += ["*args"] if more else ["*"] if keyword_only else []
                given += ["k=7"] if keyword_only else []
                given += ["**kwargs"] if more else []
                yield ", ".join(given)


@pytest.mark.parametrize("signature", list(random_signatures()))
def test_any_signature_accepts_and_refuses_the_same_calls(signature):
    scope = {}
    exec(f"def original({signature}):\n    return dict(locals())", scope)  # noqa: S102
    wrapper = observed(scope["original"], watch, new_guard())
    assert inspect.signature(wrapper) == inspect.signature(scope["original"])
    for args in ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)):
        for kwargs in ({}, {"k": 1}, {"c": 2}, {"b": 3, "c": 4}, {"unknown": 5}):
            assert outcome(wrapper, args, kwargs) == outcome(scope["original"], args, kwargs)


def outcome(function, args, kwargs):
    """Return what a call returns, or the text of the error for wrong arguments."""
    try:
        return function(*args, **kwargs)
    except TypeError as error:
        return str(error)


def module_function(x):
    """Do something."""
    return x


def test_metadata_and_pickling_are_those_of_the_original():
    module, patches, original = sys.modules[__name__], Patches(), module_function
    patches.observe(module, "module_function", watch, new_guard())
    try:
        wrapper = module.module_function
        assert wrapper is not original
        for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
            assert getattr(wrapper, attribute) == getattr(original, attribute)
        assert inspect.unwrap(wrapper) is original
        assert pickle.loads(pickle.dumps(wrapper)) is module.module_function  # noqa: S301  # our own
        assert pickle.loads(pickle.dumps(functools.partial(wrapper, 1)))() == 1  # noqa: S301  # same
        assert module.module_function is wrapper  # an `is` of a framework holds as long as nothing is undone
    finally:
        patches.undo()
    assert module.module_function is original


def test_generators_and_coroutines_are_returned_untouched():
    async def coroutine():
        return 1

    def generator():
        yield 1

    assert not can_be_observed(coroutine)
    assert not can_be_observed(generator)
    made = observed(generator, watch, new_guard())()
    assert inspect.isgenerator(made)
    assert list(made) == [1]
    awaited = observed(coroutine, watch, new_guard())()
    assert inspect.iscoroutine(awaited)
    awaited.close()


class Owner:
    size = 3

    def method(self):
        return self

    @classmethod
    def of_class(cls, x):
        return cls, x

    @staticmethod
    def static(x):
        return x

    @property
    def value(self):
        return 4

    async def coroutine(self):
        return self

    def generator(self):
        yield self


class Derived(Owner):
    pass


def test_only_functions_that_a_class_defines_itself_are_replaced():
    patches, guard, before = Patches(), new_guard(), dict(vars(Owner))
    observed_names = {
        name for name in (*vars(Owner), "missing") if patches.observe(Owner, name, watch, guard)
    }
    assert {"method", "of_class", "static"} <= observed_names
    assert observed_names.isdisjoint({"size", "value", "coroutine", "generator", "missing"})
    assert not patches.observe(Derived, "method", watch, guard)
    assert not patches.observe(Owner, "method", watch, guard)
    assert Derived.of_class(1) == (Derived, 1)
    assert Derived.static(2) == Derived().static(2) == 2
    assert Derived().value == 4
    owner = Derived()
    assert owner.method() is owner
    patches.undo()
    assert all(vars(Owner)[name] is value for name, value in before.items() if not name.startswith("__"))


def test_function_that_is_imported_by_another_framework_is_observed_by_the_hooks_of_both():
    seen = []

    def note(name):
        def observer(call):
            yield
            seen.append((name, call.get("x")))

        return observer

    first, second = types.ModuleType("first"), types.ModuleType("second")
    first.function = lambda x: x
    patches, one, other = Patches(), new_guard(), new_guard()
    assert patches.observe(first, "function", note("first"), one)
    second.function = first.function
    assert not patches.observe(second, "function", note("second"), one)
    assert patches.observe(second, "function", note("second"), other)
    assert second.function(3) == 3
    assert seen == [("first", 3), ("second", 3)]
    patches.undo()
    assert second.function(4) == 4
    assert len(seen) == 3


def test_observer_sees_arguments_and_result():
    seen = []

    def observer(call):
        result = yield
        seen.append((call.name, call.owner, call.get("b"), call.get("c", "none"), result))

    def original(a, b=None):
        return a + (b or 0)

    assert observed(original, observer, new_guard())(1, b=2) == 3
    assert seen == [("original", 1, 2, "none", 3)]


def test_failing_observer_is_reported_and_then_turned_off():
    guard, runs = new_guard(), []

    def original():
        runs.append(1)

    wrapper = observed(original, fail_after, guard)
    for _ in range(MAX_ERRORS + 5):
        wrapper()
    assert len(runs) == MAX_ERRORS + 5
    assert guard.errors == MAX_ERRORS
    assert guard.is_off
    reported = guard.recorder.reported
    assert [errors for _, _, errors, _ in reported] == list(range(1, MAX_ERRORS + 1))
    assert [is_off for *_, is_off in reported] == [False] * (MAX_ERRORS - 1) + [True]


def test_recorder_that_cannot_even_report_is_turned_off():
    guard = new_guard()
    guard.recorder.coverage = None
    assert observed(lambda: 5, fail_before, guard)() == 5
    assert guard.is_off


def test_callback_returns_none_and_never_raises():
    guard = new_guard()

    def callback(value):
        return value / 0 if value == 0 else value

    wrapped = guard.callback(callback)
    assert wrapped(1) is None
    assert wrapped(0) is None
    assert guard.errors == 1


class TimedOutError(Exception):
    """Raised by the training's own alarm."""


@pytest.mark.parametrize("kind", ["function", "method", "partial", "object"])
def test_exception_of_a_signal_handler_inside_an_observer_belongs_to_the_training(kind):
    class Alarm:
        def ring(self, *_):
            raise TimedOutError

        def __call__(self, *_):
            raise TimedOutError

    def ring(*_):
        raise TimedOutError

    handlers = {
        "function": ring,
        "method": Alarm().ring,
        "partial": functools.partial(ring),
        "object": Alarm(),
    }

    def interrupted(call):
        del call
        signal.raise_signal(signal.SIGUSR1)
        yield

    before = signal.signal(signal.SIGUSR1, handlers[kind])
    try:
        guard = new_guard()
        with pytest.raises(TimedOutError):
            observed(lambda: None, interrupted, guard)()
        assert not guard.errors
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_installation_that_fails_leaves_nothing_behind():
    patches, before = Patches(), Owner.method
    removed = []

    def install():
        with patches.all_or_none():
            patches.observe(Owner, "method", watch, new_guard())
            patches.on_undo(lambda: removed.append(1))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        install()
    assert Owner.method is before
    assert removed == [1]
