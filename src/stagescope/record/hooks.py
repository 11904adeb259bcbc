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

While torch.compile traces a function, wrappers are not there: a call that is compiled runs later, and often. What an
observer does cannot be traced either, so ``fullgraph=True`` would fail.
"""

from __future__ import annotations

import functools
import inspect
import signal
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import Call, Signature
from stagescope.record.patching import GUARDS, MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import CodeType

    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]
    Observation = Generator[None, Any, object]
    Observer = Callable[[Call], Observation]
    Predicate = Callable[[tuple[Any, ...]], bool]

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
    original: Function, observer: Observer, guard: Guard, ignores: Predicate | None = None
) -> Function:
    """Return a function that behaves like `original` and lets `observer` see each call.

    `ignores` receives the positional arguments of a call and returns whether it need not be observed. It is asked
    first, and costs a tenth of an observer: for functions that are called far more often than they are of interest.
    """
    signature = Signature(original)

    @functools.wraps(original)
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

    setattr(wrapper, MARK, original)
    setattr(wrapper, GUARDS, (*getattr(original, GUARDS, ()), guard))
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


def is_of_signal_handler(error: BaseException) -> bool:
    """Return whether a Python signal handler raised `error`.

    Python runs signal handlers between two instructions of the main thread, so a time-out of the training may be
    raised inside an observer.
    """
    handlers = _codes_of_signal_handlers()
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _codes_of_signal_handlers() -> set[CodeType]:
    codes = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        function = getattr(handler, "func", handler)  # of a functools.partial
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if code is None:  # an instance with __call__
            code = getattr(vars(type(function)).get("__call__"), "__code__", None)
        if code is not None:
            codes.add(code)
    return codes
