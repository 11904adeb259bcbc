"""The base class of all errors."""

from __future__ import annotations

from stagescope.vocabulary.place_names import with_names
from stagescope.vocabulary.printable import printable


class StagescopeError(Exception):
    """Base of all errors that stagescope raises deliberately; `exit_code` is that of the command line.

    A message quotes names of files and what is in them; an interpreter prints it as it is. Files that were fetched
    are named by their addresses.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(printable(with_names(message)))
        self.hint = printable(with_names(hint))
