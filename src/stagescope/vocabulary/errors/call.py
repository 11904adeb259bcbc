"""Errors about arguments, and about programs that stagescope starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors.base import StagescopeError
from stagescope.vocabulary.nearest_names import did_you_mean

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable

    from typing_extensions import Self


class CommandError(StagescopeError):
    """A program could not be started, or failed."""

    exit_code = 127

    @classmethod
    def not_found(cls, program: str) -> Self:
        """Return the error for a program that is not on PATH."""
        return cls(
            f"cannot start {program!r}: no such program", "check the spelling, or activate its environment"
        )

    @classmethod
    def cannot_start(cls, program: str, reason: OSError) -> Self:
        """Return the error for a program that the operating system refuses to start."""
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
    def needs_linux(cls, what: str, system: str) -> Self:
        """Return the error for recording on another system; `system` is that of `sys.platform`."""
        error = cls(f"{what} needs Linux, and this is {system}", "recordings of a cluster can be read here")
        error.exit_code = 126
        return error

    @classmethod
    def cannot_listen(
        cls, host: str, port: int, reason: OSError, hint: str = "omit --port to pick a free port"
    ) -> Self:
        """Return the error for an address on which no server can listen."""
        error = cls(f"cannot listen on port {port} of {host}: {reason.strerror or reason}", hint)
        error.exit_code = 1
        return error

    @classmethod
    def missing_library(cls, library: str, purpose: str, install: str) -> Self:
        """Return the error for an optional library that a command needs."""
        error = cls(f"{purpose} needs {library}, which is not installed", f"install it with: {install}")
        error.exit_code = 1
        return error

    @classmethod
    def workers_killed(cls, item: str, tries: int) -> Self:
        """Return the error for an item of work whose workers were killed again and again."""
        error = cls(
            f"{tries} workers were killed while they worked on {item}, perhaps because memory was short",
            "use fewer --workers; what is complete is kept, and the same command goes on with the rest",
        )
        error.exit_code = 1
        return error

    @classmethod
    def result_too_large(cls, item: str, size_bytes: int, most_bytes: int) -> Self:
        """Return the error for a result that would have to pass through the scheduler of a cluster."""
        sizes = f"{size_bytes:,} bytes, the most is {most_bytes:,}"
        error = cls(f"the result for {item} is too large for a cluster ({sizes})", "run without --cluster")
        error.exit_code = 1
        return error

    @classmethod
    def cluster_lost(cls, address: str, reason: str) -> Self:
        """Return the error for a cluster that cannot be reached, or no longer."""
        error = cls(
            f"the cluster {address} cannot be reached: {reason}",
            "what is complete is kept: the same command goes on with the rest, also without --cluster",
        )
        error.exit_code = 1
        return error

    @classmethod
    def cluster_versions(cls, address: str, differences: str) -> Self:
        """Return the error for workers with other versions, whose results might differ."""
        error = cls(
            f"the workers of {address} do not have the versions of this process: {differences}",
            "install the same versions of Python, stagescope and Polars on all machines",
        )
        error.exit_code = 1
        return error


class UsageError(StagescopeError):
    """Invalid or contradictory arguments."""

    exit_code = 2

    @classmethod
    def step_range_malformed(cls, text: str) -> Self:
        """Return the error for a step range that is not written A:B."""
        return cls(
            f"steps {text!r}: expected A:B with whole numbers from 0, such as 2:5 for steps 2, 3 and 4"
        )

    @classmethod
    def fact_of_stored_run(cls, path: str | os.PathLike[str], name: str) -> Self:
        """Return the error for a fact that is given when a stored run is read."""
        return cls(
            f"--{name} cannot change {path}, which is a stored run", f"give --{name} to `stagescope store`"
        )

    @classmethod
    def stored_aligned(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for timestamps as recorded, of a run that was stored with aligned clocks."""
        return cls(f"the clocks of {path} were aligned when it was stored", "store it with --no-align")

    @classmethod
    def cluster_malformed(cls, address: str, known: Iterable[str]) -> Self:
        """Return the error for a cluster that is not written in one of the known ways."""
        return cls(f"--cluster {address}: expected {', '.join(known)}")

    @classmethod
    def cluster_not_trusted(cls, address: str, trusted: str) -> Self:
        """Return the error for a scheduler that anyone in its network can make run anything."""
        return cls(
            f"--cluster {address}: workers behind an unauthenticated address run whatever anyone in its network sends",
            f"use tls://, or state that the network is trusted: --cluster {trusted}",
        )

    @classmethod
    def not_a_query(cls, query: str) -> Self:
        """Return the error for a statement that is not a query."""
        return cls(f"{query!r} is not a query", "begin with SELECT, WITH or FROM; --help lists the tables")

    @classmethod
    def query_failed(cls, reason: str) -> Self:
        """Return the error for a query that the engine refuses."""
        return cls(f"the query failed: {reason}", "stagescope sql --help lists the tables")

    @classmethod
    def query_output(cls, path: str | os.PathLike[str], known: Iterable[str]) -> Self:
        """Return the error for a file that the result of a query cannot be written to."""
        return cls(f"cannot write {path}: expected a name that ends with {', '.join(known)}")

    @classmethod
    def not_loopback(cls, host: str, loopback: Iterable[str]) -> Self:
        """Return the error for a server that other machines could reach."""
        return cls(
            f"--host {host}: expected one of {', '.join(loopback)}: the viewer only serves this machine",
            "from another machine, forward the port: ssh -L 8000:127.0.0.1:8000 HOST, with --port 8000 here",
        )

    @classmethod
    def receiver_not_loopback(cls, host: str, loopback: Iterable[str]) -> Self:
        """Return the error for a receiver to which other machines could send."""
        return cls(
            f"--host {host}: expected one of {', '.join(loopback)}: only this machine may send",
            "on other machines, let an OpenTelemetry Collector write files",
        )

    @classmethod
    def picture_size_malformed(cls, text: str) -> Self:
        """Return the error for a size that is not written as ``1600`` or ``1600x900``."""
        return cls(f"--size {text!r}: expected WIDTH or WIDTHxHEIGHT in pixels, such as 1600x900")

    @classmethod
    def figure_too_small(cls, size: str, least: str, ranks: int) -> Self:
        """Return the error for a picture that is too small to be readable."""
        return cls(
            f"a picture of {size} is too small for {ranks} ranks, which need {least}",
            "draw fewer with --ranks",
        )

    @classmethod
    def no_figure(cls, format_name: str, pictures: Iterable[str]) -> Self:
        """Return the error for an option of pictures with another format."""
        return cls(
            "--ranks, --size, --width, --title, --no-title, --legend and --font-size only apply to pictures "
            f"({', '.join(pictures)}), not to {format_name}"
        )

    @classmethod
    def unknown_legend(cls, legend: str, known: Iterable[str]) -> Self:
        """Return the error for a place of the legend that does not exist."""
        return cls(f"unknown place of the legend '{legend}'; expected one of {', '.join(known)}")

    @classmethod
    def font_size_impossible(cls, points: float, least: float, most: float) -> Self:
        """Return the error for a font that no one can read."""
        return cls(f"a font size of {points:g} points: expected {least:g} to {most:g}")

    @classmethod
    def width_malformed(cls, text: str) -> Self:
        """Return the error for a width without a unit."""
        return cls(f"--width {text!r}: expected a number and in, cm, mm, pt or px, such as 3.3in")

    @classmethod
    def no_table(cls, table: str, tables: Iterable[str], format_name: str, formats: Iterable[str]) -> Self:
        """Return the error for --table with an unknown table, or with a format that has no tables."""
        if table in tables:
            return cls(f"--table only applies to tables ({', '.join(formats)}), not to {format_name}")
        return cls(f"unknown table '{table}'; expected one of {', '.join(tables)}")

    @classmethod
    def one_of(cls, choices: Iterable[str], given: Iterable[str]) -> Self:
        """Return the error for none or several of mutually exclusive arguments."""
        found = " and ".join(given) or "nothing"
        return cls(f"expected one of {', '.join(choices)}; found {found}")

    @classmethod
    def no_change(cls) -> Self:
        """Return the error for a request to a running training that asks for nothing."""
        return cls("nothing to change: expected --pause, --resume, --steps, --detail or --stacks")

    @classmethod
    def unusable_value(cls, option: str, text: str, reason: str) -> Self:
        """Return the error for a value of an option."""
        return cls(f"{option} {text!r}: {reason}")

    @classmethod
    def only_with(cls, option: str, other: str) -> Self:
        """Return the error for an option that requires another one."""
        return cls(f"{option}: only with {other}")

    @classmethod
    def only_one_of(cls, *options: str) -> Self:
        """Return the error for options that contradict each other."""
        return cls(f"give only one of {' and '.join(options)}")

    @classmethod
    def sizes_missing(cls) -> Self:
        """Return the error for a schedule without its size."""
        return cls("missing --ranks and --microbatches")

    @classmethod
    def numbers_malformed(cls, text: str) -> Self:
        """Return the error for a malformed list of numbers."""
        return cls(f"{text!r}: expected numbers and ranges with commas between them, such as 0,1,8-15")

    @classmethod
    def layers_malformed(cls, text: str) -> Self:
        """Return the error for malformed numbers of layers."""
        return cls(
            f"--layers {text!r}: expected one number, or one per stage with commas between them, such as 8,8,7"
        )

    @classmethod
    def rank_order(cls, order: str, example: str) -> Self:
        """Return the error for a malformed order of parallel dimensions."""
        return cls(
            f"--order {order!r}: expected every dimension larger than 1 once, the fastest first, such as {example}"
        )

    @classmethod
    def pattern_malformed(cls, text: str, fields: Iterable[str]) -> Self:
        """Return the error for a name pattern without the kind of an action."""
        words = ", ".join("{" + field + "}" for field in fields)
        return cls(
            f"--pattern {text!r}: expected {{kind}} exactly once, and no other fields than {words}, at most once each"
        )

    @classmethod
    def expression_malformed(cls, text: str, at: int, expected: str, found: str) -> Self:
        """Return the error for a malformed expression of a mapping; `at` is a position from 1."""
        return cls(f"expression {text!r}, character {at}: expected {expected}, found {found}")

    @classmethod
    def text_pattern_malformed(cls, text: str, expected: str) -> Self:
        """Return the error for a malformed pattern of a mapping."""
        return cls(f"pattern {text!r}: expected {expected}")

    @classmethod
    def mapping_malformed(cls, where: str, expected: str) -> Self:
        """Return the error for a mapping that is not as docs/mapping.md describes; `where` is the file and the key."""
        return cls(f"{where}: expected {expected}", "docs/mapping.md describes the format")

    @classmethod
    def value_malformed(cls, option: str, text: str, expected: str) -> Self:
        """Return the error for a malformed value of an option."""
        return cls(f"{option} {text!r}: expected {expected}")

    @classmethod
    def change_malformed(cls, option: str, text: str) -> Self:
        """Return the error for a change of costs that is not written as ``stage=3:10%``."""
        return cls(
            f"{option} {text!r}: expected a percentage, optionally preceded by what it applies to",
            f"such as {option} 10%, {option} stage=3:10%, or {option} rank=2,kind=backward:5%",
        )

    @classmethod
    def factor_not_positive(cls, factor: float) -> Self:
        """Return the error for actions that are to take no time or less."""
        return cls(
            f"factor {factor:g} of a change: expected a positive number",
            "factor=0.9 takes 0.9 times as long, factor=1.5 takes 50 % longer",
        )

    @classmethod
    def change_kind_unknown(cls, kind: str, known: Iterable[str]) -> Self:
        """Return the error for a change of actions of an unknown kind."""
        return cls(f"unknown kind of action {kind!r} in a change", f"kinds are {', '.join(known)}")

    @classmethod
    def condition_malformed(cls, option: str, text: str, quantities: Iterable[str]) -> Self:
        """Return the error for a condition that is not written QUANTITY>NUMBER."""
        return cls(
            f"{option} {text!r}: expected a quantity, >, >=, < or <=, and a number, such as bubble>0.3",
            f"quantities are {', '.join(quantities)}",
        )

    @classmethod
    def quantity_unknown(cls, option: str, text: str, name: str, quantities: Collection[str]) -> Self:
        """Return the error for a condition on a quantity that does not exist."""
        return cls(
            f"{option} {text!r}: unknown quantity {name!r}{did_you_mean(name, quantities)}",
            f"quantities are {', '.join(quantities)}",
        )

    @classmethod
    def condition_unit(cls, option: str, text: str, units: Iterable[str]) -> Self:
        """Return the error for a condition whose unit does not match its quantity."""
        return cls(f"{option} {text!r}: expected a number with {' or '.join(units)}")

    @classmethod
    def mirror_unknown(cls, name: str, known: Iterable[str]) -> Self:
        """Return the error for a profiler that actions cannot be mirrored to."""
        return cls(f"--also {name!r}: expected a comma-separated list of {', '.join(known)}")

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
        """Return the error for relative and absolute costs in one call."""
        return cls("costs mix plain numbers and units (ns, us, ms, s): use one or the other for all")

    @classmethod
    def cost_without_forward(cls) -> Self:
        """Return the error for costs with units that lack the cost of a forward."""
        return cls("costs with units require the cost of a forward, such as F=2.5ms")

    @classmethod
    def bound_too_small(cls, given_bytes: int, least_bytes: int) -> Self:
        """Return the error for a size limit that is too small for a recording."""
        return cls(f"a limit of {given_bytes} bytes is too small for a recording",
                   f"use at least {least_bytes} bytes per process, or 0 for no limit")  # fmt: skip

    @classmethod
    def limit_unknown(cls, name: str, known: Iterable[str]) -> Self:
        """Return the error for a limit that does not exist."""
        return cls(f"--limit {name}: expected NAME=VALUE with one of the names {', '.join(known)}")

    @classmethod
    def limit_malformed(cls, name: str, value: object) -> Self:
        """Return the error for a malformed value of a limit."""
        return cls(
            f"--limit {name}={value}: expected a number from 0 on, such as 5000000 or 5M; 0 for no limit"
        )

    @classmethod
    def size_malformed(cls, text: str) -> Self:
        """Return the error for a malformed size."""
        return cls(
            f"invalid size {text!r}",
            "use a number of bytes, or for example 512MiB, 2GB or 64k; 0 for no limit",
        )

    @classmethod
    def step_range_empty(cls, text: str, start: int, stop: int) -> Self:
        """Return the error for an empty step range."""
        return cls(f"steps {text!r}: the range from {start} (inclusive) to {stop} (exclusive) is empty")
