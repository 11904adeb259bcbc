"""Recognizes exceptions that a signal handler of the training raised while the recorder was running."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType


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
