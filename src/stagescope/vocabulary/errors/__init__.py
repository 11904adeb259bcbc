"""All errors that stagescope raises deliberately.

    StagescopeError                     base class; exit code 1 unless noted
    ├── InputError                      an input file cannot be read or used
    ├── OutputError                     an output file cannot be written
    ├── TableError                      a table does not match its declaration
    ├── ScheduleError                   a schedule, an order of actions or its costs are invalid
    ├── CommandError                    a program could not be started (126, 127) or failed (its own exit code)
    └── UsageError                      invalid or contradictory arguments; exit code 2

Named constructors build the messages from facts. `hint` suggests the next step; the command line prints it after the
message. An error that only one source of ingest can raise is defined next to that reader.
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
