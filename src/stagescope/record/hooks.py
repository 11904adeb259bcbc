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
by a `Timed`, a `Watch`, `Waits`, a `Creation`, `Issues` or a `Result`, made once for each function by a method marked
with `prepared`. The wrappers themselves are in wrappers.py, and in C for usual calls; see compiled.py.

While torch.compile traces a function, these wrappers are not there: a call that is compiled runs later, and often.
What an observer does cannot be traced either, so ``fullgraph=True`` would fail.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from stagescope.record import compiled, wrappers
from stagescope.record.calls import Signature
from stagescope.record.patching import GUARDS, MARK
from stagescope.record.signal_handlers import is_of_signal_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping

    from stagescope.record.calls import Call, Parameter
    from stagescope.record.compiled import Pending, Transfers
    from stagescope.record.recorder import Recorder
    from stagescope.record.timing import Timer

    Function = Callable[..., Any]
    Arguments = tuple[Any, ...]
    Keywords = dict[str, Any]
    Observation = Generator[None, Any, object]
    Observer = Callable[[Call], Observation]
    Action = tuple[int, int, int, int]  # kind, stage, micro-batch, chunk
    Result = Callable[[Arguments, Keywords, Any], None]
    Preparation = Callable[[Signature], "Watch | Timed | Waits | Creation | Issues | Result"]
    Predicate = Callable[[Arguments], bool]

MAX_ERRORS = 10
"""Errors after which the hooks of a framework are turned off. A few may be due to one odd step; more repeat at every
action, and a recording with most of its actions missing would only mislead.
"""


Prepared = TypeVar("Prepared", bound="Callable[..., Any]")


class Actions(Protocol):
    """The actions of one framework that are in progress; see frameworks/actions_in_progress.py."""

    recorder: Recorder
    expected: Collection[Any]
    pending: Pending | None

    def enters(self, action: Action, outer: Action) -> bool:
        """Return whether an action that begins inside of `outer` is none of those in progress."""

    def leave(self, action: Action, outer: Action | None) -> None:
        """End an action that began inside of `outer`, or while another thread began or ended one."""

    def used(self, action: Action, token: Any) -> None:
        """Note that an action begins at `token`, whose data is `expected`."""

    def end(self, action: Action, token: Any, outer: Action | None) -> None:
        """Record an action from `token` until now, and end it in any case, such as in an overlapped pair."""

    def open(self, action: Action) -> None:
        """Show the beginning of an action in other profilers."""

    def abandon(self, state: Action | None) -> None:
        """Leave an action that has failed; None if it is unknown which."""


class StageMethod(NamedTuple):
    """How the wrapper finds the action of a usual call without asking `identify`, which it asks for all other calls.

    The argument at `stage_at` has a `stage_index`, that at `microbatch_at` is the micro-batch. `chunks` has the chunk
    of each stage, None for stages of which `identify` must be asked, or, if it `is_certain`, that compute nothing. If
    there are `kinds`, the function is called with two arguments by position, and its keyword ``full_backward`` states
    which kind the action has; True is the default.
    """

    kind: int
    stage_at: int
    microbatch_at: int
    chunks: Mapping[int, int | None]
    kinds: Mapping[Any, int] | None = None
    is_certain: bool = False


class Timed(NamedTuple):
    """What sees the calls of a function that computes one action.

    `identify` returns the action of a call, None if it is none. `after` receives an action that has ended and its
    result. With `always`, `identify` is asked outside of the recorded steps, too, where it returns None. While
    `possible` is empty, no call is an action. With a `method`, there is no `after`. A wrapper in C takes usual calls if
    there is one for them: `usual` has its kind, and what it needs besides the recorder and the actions.
    """

    actions: Actions
    identify: Callable[[Arguments, Keywords], Action | None]
    after: Callable[[Action, Any], None] | None = None
    always: bool = False
    possible: Collection[int] = (0,)
    method: StageMethod | None = None
    usual: tuple[str, tuple[Any, ...], tuple[int, ...]] | None = None


class Waits(NamedTuple):
    """What sees the waits for those handles that are known.

    `values` has, by the id of a handle, a reference to it and three things: the function that receives the moments at
    which the wait began and ended, its first argument unless that is None, and the clock that the moments are read
    from, None for that of the `timer`. Handles of `pending` messages and `transfers` are known besides; `ended`
    receives those of the former that a wrapper in C cannot record.
    """

    values: dict[int, tuple[Callable[[], object], Any]]
    timer: Timer
    pending: Pending | None = None
    ended: Callable[..., None] | None = None
    transfers: Transfers | None = None


class Creation(NamedTuple):
    """What sees the calls of a method of a stage that creates operations, each of which moves one tensor.

    `see` is a `Result`, which notes a message of `kind` for each operation; the micro-batch is the argument at
    `microbatch_at`. In usual calls, a wrapper in C adds them to `pending` instead; see frameworks/torch_messages.py.
    """

    recorder: Recorder
    kind: int
    microbatch_at: int
    pending: Pending | None
    see: Result


class Issues(NamedTuple):
    """What sees the calls of a function that issues a list of operations, its parameter `operations`.

    `issued` receives these, when the call began, and its result. A wrapper in C notes handles in `pending` instead, if
    no operation was left to Python and their class is known: `known` has the former and these classes.
    """

    recorder: Recorder
    operations: Parameter
    issued: Callable[[Arguments, int, Any], None]
    pending: Pending | None
    known: tuple[dict[int, Any], set[type]]


class Watch(Protocol):
    """Sees the calls of one function, without an object for each call.

    With an attribute `outside_runs`, a recorder, calls are seen only while it is recording and outside of a run. With
    one `usual`, as that of a `Timed`, a wrapper in C takes usual calls; it needs the watch and its `recorder`.
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

    It returns a `Watch`, a `Timed`, `Waits`, a `Creation`, `Issues`, or a function that receives arguments and result
    of each call with a result that is not empty.
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
            if self.is_off or wrappers.is_traced():
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
            wrapper = wrappers.timed_wrapper(original, watch, guard)
            if watch.method is not None:
                wrapper = wrappers.stage_wrapper(original, watch, watch.method, wrapper, guard)
        elif isinstance(watch, Waits):
            wrapper = wrappers.waits_wrapper(original, watch, guard)
        elif isinstance(watch, Issues):
            wrapper = wrappers.issues_wrapper(original, watch, guard)
        elif isinstance(watch, Creation):
            wrapper = wrappers.seen_wrapper(original, watch.see, guard)
        elif callable(watch):
            wrapper = wrappers.seen_wrapper(original, watch, guard)
        else:
            wrapper = wrappers.watched_wrapper(original, watch, guard, ignores)
        wrapper = compiled.plain_wrapper(original, wrapper, watch, guard)
    else:
        wrapper = wrappers.observed_wrapper(original, signature, observer, guard, ignores)  # type: ignore[arg-type]  # not marked
    functools.update_wrapper(wrapper, original)
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
