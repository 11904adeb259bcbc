"""The wrappers of other people's functions, one for each way to see their calls; see hooks.py, which makes them.

Each calls the original once, and whatever the recorder does before and after that, its errors end in the `Guard`. They
are written out instead of sharing functions, because they are called when the training has evicted them from the
caches: another function would cost 1 us, which is 0.05 us in a loop, and each bytecode costs 10 ns. Where nothing is
unusual, which `Emitter.plain` states, an action costs two readings of the clock, two tuples and a few comparisons.
`stagescope hang` reads their variables; see process_state.py.
"""

from __future__ import annotations

from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import Call
from stagescope.record.clock import now_ns
from stagescope.record.signal_handlers import is_of_signal_handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.calls import Signature
    from stagescope.record.hooks import (
        Function,
        Guard,
        Issues,
        Observation,
        Observer,
        Predicate,
        Result,
        StageMethod,
        Timed,
        Waits,
        Watch,
    )
    from stagescope.record.recorder import Recorder

UNKNOWN: tuple[Any, Any] = (None, None)
"""The reference and the value of an object that has none; see `IdentityMap`."""


def _never() -> bool:
    return False


is_traced: Callable[[], bool] = _never
"""Whether torch.compile traces the caller; ``torch.compiler.is_compiling`` as soon as the process can compile."""


def pass_while(test: Callable[[], bool]) -> None:
    """Let all wrappers only call their originals while `test` returns True."""
    global is_traced  # noqa: PLW0603  # one compiler per process
    is_traced = test


def seen_wrapper(original: Function, see: Result, guard: Guard) -> Function:
    """Return a wrapper that passes each result that is not empty to `see`."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        try:
            if result and not guard.is_off:
                see(args, kwargs, result)
        except Exception as error:  # noqa: BLE001  # the training must go on
            guard.caught(error)
        return result

    return wrapper


def exit_wrapper(original: Function, note: Callable[[SystemExit], None]) -> Function:
    """Return a wrapper of ``sys.exit`` that passes its exception to `note`."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except SystemExit as error:
            with suppress(Exception):  # the training must exit
                note(error)
            raise

    return wrapper


def timed_wrapper(original: Function, timed: Timed, guard: Guard) -> Function:
    """Return a wrapper of a function that computes one action."""
    actions, identify, after, always, possible, *_ = timed
    recorder, expected, leave = actions.recorder, actions.expected, guard.leave
    waiting, most_waiting = recorder.waiting, recorder.most_waiting

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if guard.is_off or not possible or not (recorder.enabled or always):
            return original(*args, **kwargs)
        action = token = None
        try:
            action = identify(args, kwargs)
            outer = recorder.action
            if action is not None and (outer is None or actions.enters(action, outer)):
                recorder.action = action
                if recorder.mirror is not None:
                    actions.open(action)
                token = recorder.timer.begin()
                if expected:
                    actions.used(action, token)
        except BaseException as error:  # noqa: BLE001  # raised again if it is none of the recorder
            leave(actions, None, error)
            token = None
        if action is None or token is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException:  # re-raised
            leave(actions, action)
            raise
        try:
            plain = recorder.plain if recorder.has_actions and recorder.device_records is None else None
            if plain is not None and recorder.waiting_thread == get_ident() and len(waiting) < most_waiting:
                waiting.append((token, now_ns(), plain, action))
                recorder.action = None
            else:
                actions.end(action, token, outer)
            if after is not None:
                after(action, result)
        except BaseException as error:  # noqa: BLE001  # as above
            leave(actions, action, error)
        return result

    return wrapper


def stage_wrapper(
    original: Function, timed: Timed, method: StageMethod, unusual: Function, guard: Guard
) -> Function:
    """Return a wrapper that does what `timed_wrapper` does, for calls that only need to be recorded.

    It calls nothing of the recorder for them, nor for those that are certainly no action. All other calls go to
    `unusual`, the wrapper that is able to do all.
    """
    actions, possible = timed.actions, timed.possible
    kind_of_all, stage_at, microbatch_at, chunks, kinds, is_certain = method
    nothing: tuple[Any, ...] | None = () if is_certain else None
    recorder, expected, leave = actions.recorder, actions.expected, guard.leave
    waiting, most_waiting = recorder.waiting, recorder.most_waiting

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not possible:
            return original(*args, **kwargs)
        action = None
        try:
            is_plain = recorder.plain is not None and recorder.device_records is None
            if is_plain and recorder.action is None and not expected and not guard.is_off:
                stage = args[stage_at].stage_index
                chunk = chunks[stage]
                if chunk is None:
                    action = nothing
                elif kinds is None:
                    action = kind_of_all, stage, args[microbatch_at], chunk
                else:
                    _, microbatch = args
                    action = kinds[kwargs.get("full_backward", True)], stage, microbatch, chunk
        except Exception as error:  # a call of an unusual form, which `identify` understands
            if is_of_signal_handler(error):
                raise
        if not action:
            return unusual(*args, **kwargs) if action is None else original(*args, **kwargs)
        token = now_ns()
        recorder.action = action
        try:
            result = original(*args, **kwargs)
        except BaseException:  # re-raised
            leave(actions, action)
            raise
        try:
            plain = recorder.plain if recorder.has_actions and recorder.device_records is None else None
            if plain is not None and recorder.waiting_thread == get_ident() and len(waiting) < most_waiting:
                waiting.append((token, now_ns(), plain, action))
                recorder.action = None
            else:
                actions.end(action, token, None)
        except BaseException as error:  # noqa: BLE001  # as above
            leave(actions, action, error)
        return result

    return wrapper


def waits_wrapper(original: Function, waits: Waits, guard: Guard) -> Function:
    """Return a wrapper of a method that waits for a handle, which calls `waited` if it is one of those in `waits`."""
    values, timer = waits.values, waits.timer

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not (values and args and id(args[0]) in values) or guard.is_off or is_traced():
            return original(*args, **kwargs)
        waited = start = clock = what = None
        try:
            refer, found = values.pop(id(args[0]), UNKNOWN)
            if refer is not None and refer() is args[0]:
                waited, what, clock = found
                start = timer.begin() if clock is None else clock()
        except Exception as error:  # noqa: BLE001  # the training must go on
            guard.caught(error)
            waited = None
        if waited is None:
            return original(*args, **kwargs)
        result = original(*args, **kwargs)
        try:
            end = timer.begin() if clock is None else clock()
            if what is None:
                waited(start, end)
            else:
                waited(what, start, end)
        except Exception as error:  # noqa: BLE001  # as above
            guard.caught(error)
        return result

    return wrapper


def issues_wrapper(original: Function, issues: Issues, guard: Guard) -> Function:
    """Return a wrapper of a function that issues operations. Most of its calls are of no operation."""
    recorder, operations, issued = issues[:3]

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        found = start_ns = None
        try:
            given = args[0] if args else operations.of(args, kwargs)
            if given and recorder.enabled and not guard.is_off and isinstance(given, (list, tuple)):
                found = tuple(given)  # the function may take them out of their list
                start_ns = now_ns()
        except Exception as error:  # noqa: BLE001  # the training must go on
            guard.caught(error)
        if found is None or start_ns is None:
            return original(*args, **kwargs)
        result = original(*args, **kwargs)
        try:
            issued(found, start_ns, result)
        except Exception as error:  # noqa: BLE001  # as above
            guard.caught(error)
        return result

    return wrapper


def watched_wrapper(original: Function, watch: Watch, guard: Guard, ignores: Predicate | None) -> Function:
    """Return a wrapper that lets `watch` see each call."""
    begin, end, leave = watch.begin, watch.end, guard.leave
    outside: Recorder | None = getattr(watch, "outside_runs", None)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if guard.is_off or (outside is not None and (outside.is_in_run or not outside.enabled)):
            return original(*args, **kwargs)
        state = None
        try:
            if ignores is None or not ignores(args):
                state = begin(args, kwargs)
        except BaseException as error:  # noqa: BLE001  # raised again if it is none of the watch
            leave(watch, None, error)
            state = None
        if state is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException:  # re-raised
            leave(watch, state)
            raise
        try:
            end(state, result)
        except BaseException as error:  # noqa: BLE001  # as above
            leave(watch, state, error)
        return result

    return wrapper


def observed_wrapper(
    original: Function, signature: Signature, observer: Observer, guard: Guard, ignores: Predicate | None
) -> Function:
    """Return a wrapper that lets the generator of `observer` see each call."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if guard.is_off or is_traced():
            return original(*args, **kwargs)
        observation: Observation | None = None
        try:
            if ignores is None or not ignores(args):
                observation = observer(Call(signature, args, kwargs))
                next(observation)
        except StopIteration:
            observation = None
        except Exception as error:  # noqa: BLE001  # the training must go on
            observation = None
            guard.caught(error)
        if observation is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException:  # re-raised
            guard.abandon(observation)
            raise
        try:
            observation.send(result)
        except StopIteration:
            pass
        except Exception as error:  # noqa: BLE001  # as above
            guard.caught(error)
        return result

    return wrapper
