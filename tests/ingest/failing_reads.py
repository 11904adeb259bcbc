"""Functions for worker processes of test_processes.py, which have to import them from a module."""

import os
import signal
import time


def read_and_die(_, __):
    """End the worker as the system does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def read_and_fail(path, _):
    """Fail with an error that is not one of stagescope's."""
    raise ZeroDivisionError(path.name)


def read_first_and_hang(path, _):
    """Fail for rank 0 and never return for the others."""
    if path.name == "rank0.json":
        raise ZeroDivisionError
    time.sleep(600)


def read_or_die(path, _):
    """Read any file but that of rank 1, which ends the worker."""
    if "rank1" in path.name:
        os._exit(9)
    return path.name


def read_and_name_the_process(_, __):
    """Return which process reads a file."""
    return os.getpid()


def read_or_die_of_even_ranks(path, _):
    """Read the files of odd ranks; the others end the worker."""
    if int(path.stem.removeprefix("rank")) % 2 == 0:
        os._exit(9)
    return path.name


def read_slowly(path, _):
    """Read for a while."""
    time.sleep(0.1)
    return path.name
