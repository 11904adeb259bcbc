"""Every error that stagescope raises on purpose.

    StagescopeError                     exit code 1
      InputError                        what was given cannot be read
      OutputError                       what was asked for cannot be written
      TableError                        a table breaks its declaration
      ScheduleError                     a schedule cannot be what was asked for
      CommandError                      a program that was to be started cannot be
      UsageError                        exit code 2: the words of the call contradict themselves

Messages are built from facts by the named constructors. `hint` says what to try next; the command line
prints it after the message, a library user can ignore it.
"""

from stagescope.vocabulary.errors.base import StagescopeError
from stagescope.vocabulary.errors.call import CommandError, UsageError
from stagescope.vocabulary.errors.input import InputError, TableError
from stagescope.vocabulary.errors.output import OutputError
from stagescope.vocabulary.errors.schedule import ScheduleError

__all__ = [
    "CommandError",
    "InputError",
    "OutputError",
    "ScheduleError",
    "StagescopeError",
    "TableError",
    "UsageError",
]
