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

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Self


class StagescopeError(Exception):
    """Base of all errors that stagescope raises on purpose."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class InputError(StagescopeError):
    """What was given cannot be read."""

    @classmethod
    def no_such_path(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for a path that does not exist."""
        return cls(f"no such file or directory: {path}")

    @classmethod
    def nothing_to_read(cls, path: str | os.PathLike[str], formats: Iterable[str]) -> Self:
        """Return the error for a directory without any file that a reader knows."""
        return cls(
            f"nothing to read in {path}: no file of a format that stagescope reads ({', '.join(formats)})",
            "record a run with: stagescope run -o DIR -- torchrun ... train.py",
        )

    @classmethod
    def not_recognized(cls, path: str | os.PathLike[str], formats: Iterable[str], head: bytes) -> Self:
        """Return the error for a file that no reader recognizes by its content."""
        begins = f"it begins with {head[:12]!r}" if head else "it is empty"
        return cls(f"{path} is not a recording or a trace that stagescope knows ({begins})",
                   f"formats it reads: {', '.join(formats)}")  # fmt: skip

    @classmethod
    def cannot_read(cls, path: str | os.PathLike[str], reason: OSError) -> Self:
        """Return the error for a file that the system refuses to open."""
        return cls(f"cannot read {path}: {reason.strerror or reason}")

    @classmethod
    def other_run(cls, path: str | os.PathLike[str], reason: str) -> Self:
        """Return the error for a file that does not go together with the others of a call."""
        return cls(f"{path} is not of the same run as the other files: {reason}", "give the files of one run")

    @classmethod
    def layout_too_small(cls, given: Mapping[str, int], ranks: int, found: int) -> Self:
        """Return the error for parallel sizes that make fewer ranks than there are."""
        return cls(f"{_sizes(given)} make {ranks} ranks, but there are {found}")

    @classmethod
    def layout_does_not_divide(cls, given: Mapping[str, int], ranks: int, found: int) -> Self:
        """Return the error for parallel sizes that do not divide the number of ranks."""
        return cls(f"{found} ranks cannot be divided by {_sizes(given)} (together {ranks})")

    @classmethod
    def name_not_text(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for a file whose name is no text in the system's encoding."""
        shown = os.fsencode(path).decode("utf-8", "replace")
        return cls(f"cannot read {shown}: its name is not valid UTF-8", "rename it, or a directory above it")

    @classmethod
    def damaged(cls, path: str | os.PathLike[str], what: str) -> Self:
        """Return the error for a file of a known format with nothing usable in it."""
        return cls(f"{path}: {what}")

    @classmethod
    def no_marks(cls, path: str | os.PathLike[str], files: int) -> Self:
        """Return the error for Ascend profiles without a mark of the pipeline's jobs."""
        which = path if files == 1 else f"{path} and {files - 1} more profiles"
        return cls(
            f"{which}: no mark of a forward or backward with a task on the device",
            "mark these functions with mstx and profile with export_type db, as docs/ascend.md tells",
        )

    @classmethod
    def newer_version(cls, path: str | os.PathLike[str], found: int, known: int) -> Self:
        """Return the error for a file written by a newer stagescope."""
        return cls(f"{path} has format version {found}; this stagescope reads up to {known}",
                   "upgrade stagescope to read it")  # fmt: skip

    @classmethod
    def duplicate_rank(cls, rank: int, sources: Iterable[str]) -> Self:
        """Return the error for two recordings that claim to be the same rank."""
        return cls(
            f"two recordings of rank {rank}: {' and '.join(sources)}",
            "give one run at a time: name one run's directory, or remove the recordings of the other run",
        )

    @classmethod
    def no_job_in_traces(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for traces of paddle.profiler in which the executor ran no pipeline job."""
        return cls(
            f"no pipeline job in {path}: no event is called like forward-0[39.575 ms]",
            "the static executor writes them, one per job of a plan, while paddle.profiler records",
        )

    @classmethod
    def no_worker_logs(cls, directory: str | os.PathLike[str]) -> Self:
        """Return the error for a directory without Paddle's worker logs."""
        return cls(
            f"no workerlog.N in {directory}",
            "paddle.distributed.launch writes them to its --log_dir; several machines are sub-directories of one",
        )

    @classmethod
    def no_profiled_jobs(cls, paths: Sequence[str | os.PathLike[str]]) -> Self:
        """Return the error for worker logs of which none holds a job."""
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        return cls(
            f"no job line in {paths[0]}{more}: the run was not profiled",
            "use job_schedule_profiler_range or switch_job_schedule_profiler (paddle.profiler.utils) in the training, "
            "or --job_schedule_profiler_start and _end of PaddleNLP, on a CUDA build of Paddle",
        )

    @classmethod
    def no_step(cls, step: int, present: Iterable[int]) -> Self:
        """Return the error for a step that was asked for and not recorded."""
        return cls(f"step {step} was not recorded; recorded: {compact_ranges(present)}")

    @classmethod
    def no_ranks(cls, ranks: Iterable[int], present: Iterable[int]) -> Self:
        """Return the error for ranks that were asked for and not recorded."""
        return cls(f"rank {compact_ranges(ranks)} was not recorded; recorded: {compact_ranges(present)}")


class OutputError(StagescopeError):
    """What was asked for cannot be written."""

    @classmethod
    def exists(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for an output that would be overwritten."""
        return cls(f"{path} already exists", "use --force to replace it, or name another output with -o")

    @classmethod
    def cannot_write(cls, path: str | os.PathLike[str], reason: OSError) -> Self:
        """Return the error for an output that the system refuses."""
        return cls(f"cannot write {path}: {reason.strerror or reason}")

    @classmethod
    def read_only(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for a file that is to be changed in place and must not be."""
        return cls(f"{path} is read-only; nothing was changed", "without --in-place copies are written")

    @classmethod
    def in_use(cls, path: str | os.PathLike[str], reason: str) -> Self:
        """Return the error for a database that another program is changing."""
        return cls(
            f"{path} is in use ({reason}); nothing was changed", "close what has it open, or write copies"
        )

    @classmethod
    def no_room(cls, path: str | os.PathLike[str], needed_bytes: int, free_bytes: int) -> Self:
        """Return the error for copies that are larger than what is free."""
        return cls(
            f"no room for copies in {path}: they take {needed_bytes / 1e9:.2f} GB, {free_bytes / 1e9:.2f} GB are free",
            "name another place with -o, fewer ranks with --rank, or change the profiles --in-place",
        )

    @classmethod
    def inside_input(cls, path: str | os.PathLike[str], read: str | os.PathLike[str]) -> Self:
        """Return the error for copies among what they are copied from."""
        return cls(f"{path} lies in {read}: the copies would be read as profiles of the same ranks next time")

    @classmethod
    def nothing_written(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for a chart of which no rank could be written."""
        return cls(f"no rank of {path} could be written")

    @classmethod
    def unknown_format(cls, name: str, known: Iterable[str]) -> Self:
        """Return the error for an export format that no writer offers."""
        said = f"no export format {name!r}" if name else "a file without a suffix tells no export format"
        return cls(
            f"{said}; known: {', '.join(known)}", "name the format with --to, or by the suffix of the file"
        )


class TableError(StagescopeError):
    """A table breaks its declaration."""

    @classmethod
    def missing_columns(cls, table: str, missing: Iterable[str], where: str = "") -> Self:
        """Return the error for a table without a required column."""
        return cls(f"{where + ': ' if where else ''}table {table} lacks the column(s) {', '.join(missing)}")

    @classmethod
    def wrong_values(cls, table: str, column: str, found: object, expected: str, where: str = "") -> Self:
        """Return the error for a column with values that its declaration does not allow."""
        at = where + ": " if where else ""
        return cls(f"{at}table {table}, column {column}: expected {expected}, found {found!r}")


class ScheduleError(StagescopeError):
    """A schedule cannot be what was asked for."""

    @classmethod
    def unknown(cls, name: str, known: Iterable[str]) -> Self:
        """Return the error for a schedule that nobody here knows."""
        return cls(f"no schedule {name!r}", f"known: {', '.join(known)}")

    @classmethod
    def impossible(cls, name: str, constraint: str, found: str, source: str, nearest: str = "") -> Self:
        """Return the error for parameters that a schedule does not allow, with the nearest that it does."""
        return cls(
            f"{name} needs {constraint} ({source}); found {found}", nearest and f"nearest valid: {nearest}"
        )

    @classmethod
    def unknown_option(cls, name: str, options: Iterable[str], known: Iterable[str]) -> Self:
        """Return the error for options that a schedule does not have."""
        return cls(f"{name} has no option {', '.join(options)}", f"options: {', '.join(known) or 'none'}")

    @classmethod
    def option_value(cls, name: str, option: str, found: object, meaning: str) -> Self:
        """Return the error for an option with a value that it cannot have."""
        return cls(f"{name}: option {option} cannot be {found!r}", f"{option}: {meaning}")

    @classmethod
    def faulty(cls, rank: int, action: str, what: str) -> Self:
        """Return the error for an order in which a job is missing, stands twice, or should not stand at all."""
        return cls(f"the order is faulty: rank {rank}, {action}: {what}")

    @classmethod
    def not_an_action(cls, text: str) -> Self:
        """Return the error for a word that is no action."""
        return cls(f"{text!r} is no action: expected F0.3, B0.3, I0.3, W0.3, or a pair such as F0.3+B3.1")

    @classmethod
    def deadlock(cls, cycle: Iterable[str]) -> Self:
        """Return the error for an order in which jobs wait for each other in a circle."""
        return cls(f"the order deadlocks: {' waits for '.join(cycle)}")

    @classmethod
    def missing_producer(cls, waiting: str, producer: str) -> Self:
        """Return the error for a job whose input nothing in the order produces."""
        return cls(f"{waiting} waits for {producer}, which no rank runs")

    @classmethod
    def repeated_job(cls, job: str, ranks: Iterable[int]) -> Self:
        """Return the error for a job that an order holds twice."""
        return cls(f"{job} runs more than once, on rank {' and on rank '.join(map(str, ranks))}")

    @classmethod
    def wrong_cost(cls, name: str, found: object, expected: str) -> Self:
        """Return the error for a cost that cannot be one."""
        return cls(f"cost {name}: expected {expected}, found {found!r}")

    @classmethod
    def cost_count(cls, name: str, found: int, stages: int) -> Self:
        """Return the error for costs given for another number of stages than the order has."""
        return cls(f"cost {name}: {found} values for {stages} stages", "give one number, or one per stage")

    @classmethod
    def uneven_costs(cls) -> Self:
        """Return the error for costs per stage where a closed form needs one number for all stages."""
        return cls(
            "closed forms need one number per cost, the same for all stages", "simulate the order instead"
        )

    @classmethod
    def no_cost(cls, action: str) -> Self:
        """Return the error for an action of the order that the costs say nothing about."""
        return cls(f"no cost for {action}", "costs per micro-batch need an entry for every job of the order")

    @classmethod
    def not_tried(cls, name: str, reasons: Iterable[str]) -> Self:
        """Return the error for a schedule that was to be compared with and has no figures."""
        return cls("; ".join(reasons) or f"{name} was not among the schedules that were tried")

    @classmethod
    def no_room(cls, name: str, limit: str) -> Self:
        """Return the error for a memory limit that does not hold a single micro-batch."""
        return cls(f"{name} needs room for one micro-batch on every rank; the memory limit is {limit}")

    @classmethod
    def too_few_layers(cls, layers: int, stages: int) -> Self:
        """Return the error for a model with fewer layers than it is to have stages."""
        return cls(f"{layers} layers cannot make {stages} stages: each needs at least one")

    @classmethod
    def not_in_file(cls, path: str | os.PathLike[str], line: int, word: str) -> Self:
        """Return the error for a word of an order's file that is no action."""
        return cls(
            f"{path}, line {line}: {word!r} is no action",
            "expected F0.3, B0.3, I0.3, W0.3 or F0.3+B3.1 with blanks between them, "
            "or torch's CSV: 0F3,(0F3;3B1)OVERLAP_F_B",
        )

    @classmethod
    def empty_order(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for an order's file without any action."""
        return cls(f"{path} holds no action", "expected one line per rank, such as: F0.0 F0.1 B0.0 B0.1")

    @classmethod
    def bandwidth_alone(cls) -> Self:
        """Return the error for a bandwidth without anything to send."""
        return cls("cost bandwidth: without message_bytes it changes nothing", "give message_bytes too")


class CommandError(StagescopeError):
    """A program that was to be started cannot be."""

    exit_code = 127

    @classmethod
    def not_found(cls, program: str) -> Self:
        """Return the error for a program that is not on PATH."""
        return cls(
            f"cannot start {program!r}: no such program", "check the spelling, or activate its environment"
        )

    @classmethod
    def cannot_start(cls, program: str, reason: OSError) -> Self:
        """Return the error for a program that the system refuses to start."""
        error = cls(f"cannot start {program!r}: {reason.strerror or reason}")
        error.exit_code = 126
        return error

    @classmethod
    def failed(cls, what: str, exit_code: int, log: str | os.PathLike[str]) -> Self:
        """Return the error for a program that was started and failed; it keeps that program's exit code."""
        error = cls(f"{what} failed with exit code {exit_code}", f"its output is in {log}")
        error.exit_code = exit_code
        return error

    @classmethod
    def missing_library(cls, library: str, purpose: str, install: str) -> Self:
        """Return the error for an optional library that a command needs."""
        error = cls(f"{purpose} needs {library}, which is not installed", f"install it with: {install}")
        error.exit_code = 1
        return error


class UsageError(StagescopeError):
    """The words of the call contradict themselves."""

    exit_code = 2

    @classmethod
    def step_range_malformed(cls, text: str) -> Self:
        """Return the error for a step range that is not written A:B."""
        return cls(
            f"steps {text!r}: expected A:B with whole numbers from 0, such as 2:5 for steps 2, 3 and 4"
        )

    @classmethod
    def one_of(cls, choices: Iterable[str], given: Iterable[str]) -> Self:
        """Return the error for a call that names none or several of things that exclude each other."""
        found = " and ".join(given) or "nothing"
        return cls(f"expected one of {', '.join(choices)}; found {found}")

    @classmethod
    def only_with(cls, option: str, other: str) -> Self:
        """Return the error for an option that goes with another thing only."""
        return cls(f"{option}: only with {other}")

    @classmethod
    def sizes_missing(cls) -> Self:
        """Return the error for a schedule without a size."""
        return cls("how large? give --ranks P and --microbatches M")

    @classmethod
    def numbers_malformed(cls, text: str) -> Self:
        """Return the error for a list of numbers that is none."""
        return cls(f"{text!r}: expected numbers and ranges with commas between them, such as 0,1,8-15")

    @classmethod
    def rank_order(cls, order: str, example: str) -> Self:
        """Return the error for an order of parallel dimensions that is none."""
        return cls(
            f"--order {order!r}: expected every dimension larger than 1 once, the fastest first, such as {example}"
        )

    @classmethod
    def mirror_unknown(cls, name: str, known: Iterable[str]) -> Self:
        """Return the error for a profiler that jobs cannot be mirrored to."""
        return cls(f"--also {name!r}: expected names with commas between, of {', '.join(known)}")

    @classmethod
    def option_malformed(cls, text: str) -> Self:
        """Return the error for an option of a schedule that is not written NAME=VALUE."""
        return cls(f"--option {text!r}: expected NAME=VALUE, such as group_size=4")

    @classmethod
    def cost_malformed(cls, text: str, names: Iterable[str]) -> Self:
        """Return the error for a cost that is not written NAME=NUMBER."""
        return cls(
            f"cost {text!r}: expected {', '.join(names)} or hop with a number from 0 on, such as F=1 or F=2.5ms, "
            "or one per stage, F=1:1:2"
        )

    @classmethod
    def cost_twice(cls, name: str) -> Self:
        """Return the error for a cost that is given twice."""
        return cls(f"cost {name} is given twice")

    @classmethod
    def costs_mixed(cls) -> Self:
        """Return the error for relative costs beside absolute ones."""
        return cls("costs are plain numbers or have units (ns, us, ms, s), all of them: found both")

    @classmethod
    def cost_without_forward(cls) -> Self:
        """Return the error for costs with units of which the forward is missing."""
        return cls("costs with units need the forward's too, such as F=2.5ms")

    @classmethod
    def bound_too_small(cls, given_bytes: int, least_bytes: int) -> Self:
        """Return the error for a bound on the size of a recording that would not hold one."""
        return cls(f"a recording cannot be kept within {given_bytes} bytes",
                   f"give at least {least_bytes} bytes a process, or 0 for no bound")  # fmt: skip

    @classmethod
    def size_malformed(cls, text: str) -> Self:
        """Return the error for a size that is none."""
        return cls(f"not a size: {text!r}", "write bytes, or as in 512MiB, 2GB or 64k; 0 is no bound")

    @classmethod
    def step_range_empty(cls, text: str, start: int, stop: int) -> Self:
        """Return the error for a step range with nothing in it."""
        return cls(f"steps {text!r}: no step lies between {start} (first) and {stop} (first one left out)")


def _sizes(given: Mapping[str, int]) -> str:
    """Return parallel sizes in words: pp 4 x tp 2."""
    return " x ".join(f"{name} {size}" for name, size in given.items())
