"""Errors about schedules and orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors.base import StagescopeError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from typing_extensions import Self


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
    def repeated_action(cls, job: str, ranks: Iterable[int]) -> Self:
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
