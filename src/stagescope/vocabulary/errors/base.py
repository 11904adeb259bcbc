"""What all errors have in common."""

from __future__ import annotations


class StagescopeError(Exception):
    """Base of all errors that stagescope raises on purpose."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
