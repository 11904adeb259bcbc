"""The wrappers of other people's functions, one for each way to see their calls; see hooks.py, which makes them.

Each calls the original once, and whatever the recorder does before and after that, its errors end in the `Guard`. They
are written out instead of sharing functions, because they are called when the training has evicted them from the
caches: another function would cost 1 us, which is 0.05 us in a loop. `stagescope hang` reads their variables; see
process_state.py.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import Call
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.waiting import MOST_WAITING

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.calls import Signature
    from stagescope.record.hooks import (
        Function,
        Guard,
        Observation,
        Observer,
        Predicate,
        Result,
        Timed,
        Waits,
        Watch,
    )

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


def timed_wrapper(original: Function, timed: Timed, guard: Guard) -> Function:  # noqa: PLR0915  # see above
    """Return a wrapper of a function that computes one action."""
    actions, identify, after, always, possible = timed
    recorder, expected, leave = actions.recorder, actions.expected, guard.leave
    waiting, seen = recorder.waiting, recorder.seen

    def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: PLR0912  # same
        if guard.is_off or not possible or not (recorder.enabled or always):
            return original(*args, **kwargs)
        action = token = None
        try:
            action = identify(args, kwargs)
            outer = actions.current
            if action is not None and (outer is None or actions.enters(action, outer)):
                actions.current = action
                if recorder.mirror is not None:
                    actions.open(action)
                kind, stage, microbatch, chunk = action
                recorder.stage, recorder.chunk, recorder.computed = stage, chunk, None
                recorder.counts_collectives = not recorder.is_detailed
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
            if recorder.timer.device is None and recorder.computed is None and recorder.pair == NONE:
                if recorder.waiting_thread == get_ident() and len(waiting) < MOST_WAITING:
                    waiting.append((token, now_ns(), recorder.plain_middle, stage, microbatch,
                                    recorder.thread_index, kind, chunk, 0))  # fmt: skip
                else:
                    recorder.emit_action(kind, token, now_ns(), stage, microbatch, chunk)
            else:
                actions.end(action, token)
            if not recorder.has_actions:
                recorder.has_actions = seen.spans = True
            if actions.note is not None:
                actions.note(action)
            if outer is None and actions.current is action:
                actions.current = None
            else:
                actions.leave(action, outer)
            recorder.stage = recorder.chunk = NONE
            recorder.counts_collectives = False
            if recorder.mirror is not None:
                recorder.mirror.close()
            if after is not None:
                after(action, result)
        except BaseException as error:  # noqa: BLE001  # as above
            leave(actions, action, error)
        return result

    return wrapper


def waits_wrapper(original: Function, waits: Waits, guard: Guard) -> Function:
    """Return a wrapper of a method that waits for a handle, which calls `waited` if it is one of those in `waits`."""
    values, timer = waits

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


def watched_wrapper(original: Function, watch: Watch, guard: Guard, ignores: Predicate | None) -> Function:
    """Return a wrapper that lets `watch` see each call."""
    begin, end, leave = watch.begin, watch.end, guard.leave
    of_lists = getattr(watch, "of_lists", False)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if guard.is_off or (of_lists and args and args[0].__class__ is list and not args[0]):
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
