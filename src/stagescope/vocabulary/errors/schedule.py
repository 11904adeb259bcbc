"""Errors about schedules and orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors.base import StagescopeError
from stagescope.vocabulary.nearest_names import did_you_mean

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable

    from typing_extensions import Self


class ScheduleError(StagescopeError):
    """An invalid schedule, order or cost."""

    @classmethod
    def unknown(cls, name: str, known: Collection[str]) -> Self:
        """Return the error for a name that is not in the catalog."""
        return cls(f"unknown schedule {name!r}{did_you_mean(name, known)}", f"known: {', '.join(known)}")

    @classmethod
    def impossible(cls, name: str, constraint: str, found: str, source: str, nearest: str = "") -> Self:
        """Return the error for sizes or options that violate a constraint, with the nearest valid ones."""
        return cls(
            f"{name} needs {constraint} ({source}); found {found}", nearest and f"nearest valid: {nearest}"
        )

    @classmethod
    def unknown_option(cls, name: str, options: Iterable[str], known: Iterable[str]) -> Self:
        """Return the error for unknown options of a schedule."""
        return cls(f"{name} has no option {', '.join(options)}", f"options: {', '.join(known) or 'none'}")

    @classmethod
    def option_value(cls, name: str, option: str, found: object, meaning: str) -> Self:
        """Return the error for an invalid value of an option."""
        return cls(f"{name}: invalid value {found!r} for option {option}", f"{option}: {meaning}")

    @classmethod
    def faulty(cls, rank: int, action: str, what: str) -> Self:
        """Return the error for an order with a missing, repeated or contradictory action."""
        return cls(f"invalid order: rank {rank}, {action}: {what}")

    @classmethod
    def invalid_action(cls, text: str) -> Self:
        """Return the error for text that does not denote an action."""
        return cls(f"invalid action {text!r}: expected F0.3, B0.3, I0.3, W0.3, or a pair such as F0.3+B3.1")

    @classmethod
    def deadlock(cls, cycle: Iterable[str]) -> Self:
        """Return the error for an order with a cycle of actions that wait for each other."""
        return cls(f"the order deadlocks: {' waits for '.join(cycle)}")

    @classmethod
    def missing_producer(cls, waiting: str, producer: str) -> Self:
        """Return the error for an action whose input no action of the order produces."""
        return cls(f"{waiting} waits for {producer}, which no rank runs")

    @classmethod
    def repeated_action(cls, action: str, ranks: Iterable[int]) -> Self:
        """Return the error for an action that occurs twice in an order."""
        return cls(f"{action} runs more than once, on rank {' and on rank '.join(map(str, ranks))}")

    @classmethod
    def sparse(cls, stages: int, microbatches: int, actions: int) -> Self:
        """Return the error for an order whose numbers are far larger than its actions are many."""
        return cls(
            f"{actions} actions are no order of {stages} stages and {microbatches} micro-batches",
            "stages and micro-batches are numbered from 0",
        )

    @classmethod
    def too_large(cls, found: int, most: int) -> Self:
        """Return the error for sizes whose order would not fit into memory."""
        return cls(f"ranks times micro-batches times chunks is {found:,}: expected at most {most:,}")

    @classmethod
    def wrong_cost(cls, name: str, found: object, expected: str) -> Self:
        """Return the error for an invalid cost."""
        return cls(f"cost {name}: expected {expected}, found {found!r}")

    @classmethod
    def cost_count(cls, name: str, found: int, stages: int) -> Self:
        """Return the error for costs of a different number of stages than the order has."""
        return cls(f"cost {name}: {found} values for {stages} stages", "give one number, or one per stage")

    @classmethod
    def uneven_costs(cls) -> Self:
        """Return the error for costs that differ between stages, which closed forms do not support."""
        return cls(
            "closed forms need one number per cost, the same for all stages", "simulate the order instead"
        )

    @classmethod
    def no_cost(cls, action: str) -> Self:
        """Return the error for an action of the order without a cost."""
        return cls(
            f"no cost for {action}", "costs per micro-batch need an entry for every action of the order"
        )

    @classmethod
    def not_tried(cls, name: str, reasons: Iterable[str]) -> Self:
        """Return the error for a comparison with a schedule that was not simulated."""
        return cls("; ".join(reasons) or f"{name} was not among the simulated schedules")

    @classmethod
    def memory_limit_too_small(cls, name: str, limit: str) -> Self:
        """Return the error for a memory limit below the activation of one micro-batch."""
        return cls(f"{name} needs memory for one micro-batch on every rank; the memory limit is {limit}")

    @classmethod
    def too_few_layers(cls, layers: int, stages: int) -> Self:
        """Return the error for fewer layers than stages."""
        return cls(f"cannot split {layers} layers into {stages} stages: each stage needs at least one layer")

    @classmethod
    def invalid_action_in_file(cls, path: str | os.PathLike[str], line: int, word: str) -> Self:
        """Return the error for a word of an order file that does not denote an action."""
        return cls(
            f"{path}, line {line}: invalid action {word!r}",
            "expected F0.3, B0.3, I0.3, W0.3 or F0.3+B3.1, separated by blanks, "
            "or torch's CSV: 0F3,(0F3;3B1)OVERLAP_F_B",
        )

    @classmethod
    def empty_order(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for an order file without actions."""
        return cls(f"{path} contains no actions", "expected one line per rank, such as: F0.0 F0.1 B0.0 B0.1")

    @classmethod
    def bandwidth_alone(cls) -> Self:
        """Return the error for a bandwidth without message sizes."""
        return cls("cost bandwidth has no effect without message_bytes", "give message_bytes too")
