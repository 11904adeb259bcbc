"""Observes calls of other people's functions without taking part in them.

Everything that the recorder wraps is wrapped here. A wrapper calls the original once, with the same arguments, and
returns its result or lets its exception through. What the recorder does before and after the call is an *observer*: a
generator function that receives the arguments and yields once.

    def forward(self, call):
        token = self.recorder.timer.begin()
        result = yield                        # the original runs here
        self.recorder.timer.end(token, FORWARD, NONE, call.get("microbatch"))

The part before the ``yield`` runs before the call, the part after it runs afterwards and receives the result. If the
original raises, the observer is closed at its ``yield``, so only its ``finally`` clauses run. An observer that returns
before its ``yield`` ignores the call. An exception of the observer never reaches the training: its `Guard` counts it,
reports the first one, and turns the hooks of that framework off after `MAX_ERRORS`.

A generator and the object of a call cost 3 us. Functions that are called for each action or message are therefore seen
by a `Timed`, a `Watch` or a `Result`, made once for each function by a method marked with `prepared`.

While torch.compile traces a function, these wrappers are not there: a call that is compiled runs later, and often.
What an observer does cannot be traced either, so ``fullgraph=True`` would fail.
"""

from __future__ import annotations

import functools
import inspect
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from stagescope.record.calls import Call, Signature
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.patching import GUARDS, MARK
from stagescope.record.signal_handlers import is_of_signal_handler
from stagescope.record.waiting import MOST_WAITING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator

    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]
    Arguments = tuple[Any, ...]
    Keywords = dict[str, Any]
    Observation = Generator[None, Any, object]
    Observer = Callable[[Call], Observation]
    Action = tuple[int, int, int, int]  # kind, stage, micro-batch, chunk
    Result = Callable[[Arguments, Keywords, Any], None]
    Preparation = Callable[[Signature], "Watch | Timed | Result"]
    Predicate = Callable[[Arguments], bool]

MAX_ERRORS = 10
"""Errors after which the hooks of a framework are turned off. A few may be due to one odd step; more repeat at every
action, and a recording with most of its actions missing would only mislead.
"""


def _never() -> bool:
    return False


is_traced: Callable[[], bool] = _never
"""Whether torch.compile traces the caller; ``torch.compiler.is_compiling`` as soon as the process can compile."""


def pass_while(test: Callable[[], bool]) -> None:
    """Let all wrappers only call their originals while `test` returns True."""
    global is_traced  # noqa: PLW0603  # one compiler per process
    is_traced = test


Prepared = TypeVar("Prepared", bound="Callable[..., Any]")


class Actions(Protocol):
    """The actions of one framework that are in progress; see frameworks/actions_in_progress.py.

    `current` is the last of them that has begun. Each that has been recorded is passed to `note`, if there is one.
    """

    recorder: Recorder
    current: Action | None
    note: Callable[[Action], object] | None
    expected: Collection[Any]

    def enters(self, action: Action, outer: Action) -> bool:
        """Return whether an action that begins inside of `outer` is none of those in progress."""

    def leave(self, action: Action, outer: Action | None) -> None:
        """End an action that began inside of `outer`, or while another thread began or ended one."""

    def used(self, action: Action, token: Any) -> None:
        """Note that an action begins at `token`, whose data is `expected`."""

    def end(self, action: Action, token: Any) -> None:
        """Record an action from `token` until now in any case, such as that of an overlapped pair."""

    def open(self, action: Action) -> None:
        """Show the beginning of an action in other profilers."""

    def abandon(self, state: Action | None) -> None:
        """Leave an action that has failed; None if it is unknown which."""


class Timed(NamedTuple):
    """What sees the calls of a function that computes one action.

    `identify` returns the action of a call, None if it is none. `after` receives an action that has ended and its
    result. With `always`, `identify` is asked outside of the recorded steps, too, where it returns None.
    """

    actions: Actions
    identify: Callable[[Arguments, Keywords], Action | None]
    after: Callable[[Action, Any], None] | None = None
    always: bool = False


class Watch(Protocol):
    """Sees the calls of one function, without an object for each call.

    Its attribute `may_be_traced` states that a function that torch.compile traces may contain such a call; asking about
    that costs as much as the rest. With an attribute `watched`, only calls are seen whose first argument has one of
    these ids.
    `abandon` must have no effect where `begin` or `end` has already ended what it ends.
    """

    def begin(self, args: Arguments, kwargs: Keywords) -> Any:
        """Return what the other methods need to know of a call that begins, None to ignore the call."""

    def end(self, state: Any, result: Any) -> None:
        """See the result of a call."""

    def abandon(self, state: Any) -> None:
        """Forget a call that raised, or during which `begin` or `end` raised; `state` is then None."""


def prepared(method: Prepared) -> Prepared:
    """Mark a method that prepares for the calls of a function, whose `Signature` it receives, once.

    It returns a `Watch`, a `Timed`, or a function that receives arguments and result of each call with a result that
    is not empty.
    """
    setattr(method, PREPARED, True)
    return method


PREPARED = "__stagescope_prepared__"
"""Attribute of the methods that are marked so."""


class Guard:
    """Catches what the hooks of one framework raise, and turns them off when it happens too often.

    While `is_off`, wrappers only call their originals.
    """

    __slots__ = ("errors", "is_off", "name", "recorder")

    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder = recorder
        self.name = name
        self.errors = 0
        self.is_off = False

    def caught(self, error: Exception) -> None:
        """Count an error of an observer. Raises it again if it came from a signal handler of the training."""
        if is_of_signal_handler(error):
            raise error
        self.errors += 1
        self.is_off = self.is_off or self.errors >= MAX_ERRORS
        try:
            self.recorder.coverage.failed(self.name, error, self.errors, is_off=self.is_off)
        except Exception:  # noqa: BLE001  # the recorder is in such a state that it cannot even report this
            self.is_off = True

    def abandon(self, observation: Observation) -> None:
        """Close an observer after a call that raised."""
        try:
            observation.close()
        except Exception as error:  # noqa: BLE001  # as above
            self.caught(error)

    def leave(self, watch: Watch | Actions, state: Any, error: BaseException | None = None) -> None:
        """Let a watch abandon a call, and count `error` if it is one of the watch."""
        try:
            watch.abandon(state)
        except Exception as other:  # noqa: BLE001  # as above
            self.caught(other)
        if isinstance(error, Exception):
            self.caught(error)
        elif error is not None:
            raise error

    def callback(self, function: Function) -> Function:
        """Return `function` for registration with a framework: it returns None whatever happens in it."""

        @functools.wraps(function)
        def call_back(*args: Any, **kwargs: Any) -> None:
            if self.is_off or is_traced():
                return
            try:
                function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  # as above
                self.caught(error)

        return call_back


def observed(
    original: Function, observer: Observer | Preparation, guard: Guard, ignores: Predicate | None = None
) -> Function:
    """Return a function that behaves like `original` and lets `observer` see each call.

    `observer` is the function of an observer, or a method marked with `prepared`. `ignores` receives the positional
    arguments of a call and returns whether it need not be observed. It is asked first, and costs a tenth of an
    observer: for functions that are called far more often than they are of interest.
    """
    signature = Signature(original)
    if getattr(observer, PREPARED, False):
        watch: Any = observer(signature)  # type: ignore[arg-type]  # marked: a preparation
        if isinstance(watch, Timed):
            wrapper = _timed(original, watch, guard)
        elif callable(watch):
            wrapper = _seen(original, watch, guard)
        else:
            wrapper = _watched(original, watch, guard, ignores)
    else:
        wrapper = _observed(original, signature, observer, guard, ignores)  # type: ignore[arg-type]  # not marked
    functools.update_wrapper(wrapper, original)
    setattr(wrapper, MARK, original)
    setattr(wrapper, GUARDS, (*getattr(original, GUARDS, ()), guard))
    return wrapper


def _seen(original: Function, see: Result, guard: Guard) -> Function:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        try:
            if result and not guard.is_off:
                see(args, kwargs, result)
        except Exception as error:  # noqa: BLE001  # the training must go on
            guard.caught(error)
        return result

    return wrapper


def _timed(original: Function, timed: Timed, guard: Guard) -> Function:  # noqa: PLR0915  # see below
    """Return a wrapper that does everything in one function.

    It is called for each action, when the training has evicted it from the caches: another function would cost 1 us,
    which is 0.05 us in a loop.
    """
    actions, identify, after, always = timed
    recorder, expected, leave = actions.recorder, actions.expected, guard.leave
    waiting, seen = recorder.waiting, recorder.seen

    def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: PLR0912  # same
        if guard.is_off or not (recorder.enabled or always):
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


def _watched(original: Function, watch: Watch, guard: Guard, ignores: Predicate | None) -> Function:
    begin, end, leave = watch.begin, watch.end, guard.leave
    may_be_traced = getattr(watch, "may_be_traced", False)
    watched = getattr(watch, "watched", None)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if guard.is_off or (watched is not None and not (watched and args and id(args[0]) in watched)):
            return original(*args, **kwargs)
        if may_be_traced and is_traced():
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


def _observed(
    original: Function, signature: Signature, observer: Observer, guard: Guard, ignores: Predicate | None
) -> Function:
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


def can_be_observed(function: object) -> bool:
    """Return whether a call of `function` does its work before it returns.

    A generator function or a coroutine function returns immediately and works later, so its calls show nothing.
    """
    return callable(function) and not (
        inspect.isgeneratorfunction(function)
        or inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
    )
