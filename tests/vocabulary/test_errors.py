from __future__ import annotations

import errno
import inspect

import pytest

from stagescope.vocabulary import errors
from stagescope.vocabulary.errors import (
    CommandError,
    InputError,
    OutputError,
    StagescopeError,
    TableError,
    UsageError,
)

FULL = OSError(errno.ENOSPC, "No space left on device")
NEW = {
    "input": InputError.nothing_to_read("runs", ["recording", "csv"]),
    "unknown": InputError.not_recognized("a.bin", ["recording"], b"PK\x03\x04"),
    "empty": InputError.not_recognized("a.bin", ["recording"], b""),
    "step": InputError.no_step(9, [0, 1, 2, 5]),
    "exists": OutputError.exists("runs"),
    "full": OutputError.cannot_write("runs", FULL),
    "columns": TableError.missing_columns("spans", ["rank", "kind"], "a.parquet"),
    "program": CommandError.not_found("torchrunn"),
    "denied": CommandError.cannot_start("train.py", OSError(errno.EACCES, "Permission denied")),
    "steps": UsageError.step_range_empty("5:2", 5, 2),
}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("input", "no readable file in runs: none is in a supported format (recording, csv)"),
        (
            "unknown",
            "a.bin is not a recording or trace in a supported format (it begins with b'PK\\x03\\x04')",
        ),
        ("empty", "a.bin is not a recording or trace in a supported format (it is empty)"),
        ("step", "step 9 was not recorded; recorded: 0-2, 5"),
        ("exists", "runs already exists"),
        ("full", "cannot write runs: No space left on device"),
        ("columns", "a.parquet: table spans lacks the column(s) rank, kind"),
        ("program", "cannot start 'torchrunn': no such program"),
        ("denied", "cannot start 'train.py': Permission denied"),
        ("steps", "steps '5:2': the range from 5 (inclusive) to 2 (exclusive) is empty"),
    ],
)
def test_messages_are_built_from_facts(name, message):
    assert str(NEW[name]) == message


@pytest.mark.parametrize("name", ["input", "unknown", "exists", "program"])
def test_errors_hint_at_the_next_step(name):
    assert NEW[name].hint


@pytest.mark.parametrize(
    ("name", "code"),
    [("input", 1), ("full", 1), ("columns", 1), ("program", 127), ("denied", 126), ("steps", 2)],
)
def test_exit_codes_follow_the_shell(name, code):
    assert NEW[name].exit_code == code


def test_every_error_is_in_the_tree_of_the_documentation():
    classes = [
        thing
        for _, thing in inspect.getmembers(errors, inspect.isclass)
        if thing.__module__.startswith(errors.__name__)
    ]
    assert all(issubclass(thing, StagescopeError) for thing in classes)
    assert all(thing.__name__ in errors.__doc__ for thing in classes)
