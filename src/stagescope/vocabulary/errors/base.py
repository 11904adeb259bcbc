"""The base class of all errors."""

from __future__ import annotations


class StagescopeError(Exception):
    """Base of all errors that stagescope raises deliberately; `exit_code` is that of the command line."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
