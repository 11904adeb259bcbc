"""What differs between a training and the same training under recording, and what its recording lacks.

The trainings print the lines that `trainings/ranks.py` describes.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from stagescope.model.messages import match_messages
from stagescope.vocabulary.kinds import ACTION_KINDS, SENDS, TRANSFERS, label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import polars as pl

PLAN = re.compile(
    r"^PLAN rank=(\d+) stages=([\d,]+) microbatches=(\d+) steps=(\d+) backward=(full|split|mixed)$",
    re.MULTILINE,
)
FULL, SPLIT = ("backward",), ("backward_input", "backward_weight")

Action = tuple[int, int, int, int, str]
"""Step, rank, stage, micro-batch, kind."""
MESSAGE = ["step", "direction", "source", "target", "to_stage", "microbatch"]


class Outcome(NamedTuple):
    """How a training ended; the exit code is None if it did not end in time."""

    exit_code: int | None
    output: str
    errors: str = ""

    @property
    def values(self) -> list[str]:
        """The losses and digests, in the order of the text."""
        return sorted(line for line in self.output.splitlines() if line.startswith("VALUE "))

    @property
    def versions(self) -> str:
        """What the training imported."""
        return next(
            (line[9:] for line in self.output.splitlines() if line.startswith("VERSIONS ")), "unknown"
        )


class Plan(NamedTuple):
    """What a rank executes in each step."""

    rank: int
    stages: tuple[int, ...]
    microbatches: int
    steps: int
    backward: str


def read_plans(output: str) -> list[Plan]:
    """Return what the ranks of a training execute."""
    return [
        Plan(int(rank), tuple(map(int, stages.split(","))), int(microbatches), int(steps), backward)
        for rank, stages, microbatches, steps, backward in PLAN.findall(output)
    ]


def differing_outcomes(plain: Outcome, recorded: Outcome) -> list[str]:
    """Return how the two runs of a training differ; a run without recording must succeed."""
    faults = []
    for name, outcome in (("plain", plain), ("recorded", recorded)):
        if outcome.exit_code is None:
            faults.append(f"the {name} run did not end in time")
        elif outcome.exit_code != 0:
            faults.append(f"the {name} run ended with {outcome.exit_code}: {last_error(outcome.errors)}")
    expected = sum(plan.steps for plan in read_plans(plain.output))
    if not expected or len(plain.values) != expected:
        faults.append(f"the plain run printed {len(plain.values)} of {expected} values")
    unequal = sum(line not in recorded.values for line in plain.values)
    if unequal or len(recorded.values) != len(plain.values):
        faults.append(f"{unequal} of {len(plain.values)} values differ or are missing under recording")
    return faults


def last_error(errors: str) -> str:
    """Return the last line that looks like the text of an exception, or the last line."""
    lines = [line for line in errors.splitlines() if line.strip()]
    found = [line for line in lines if re.search(r"\b\w*(Error|Exception)\b.*:", line)]
    return (found or lines or ["no message"])[-1].strip()


def wrong_actions(spans: pl.DataFrame, plans: Sequence[Plan]) -> list[str]:
    """Return what is not recorded exactly once: each action of each stage, micro-batch and step of each rank."""
    rows = spans.filter(spans["kind"].cast(str).is_in(ACTION_KINDS))
    found = Counter(rows.select("step", "rank", "stage", "microbatch", "kind").iter_rows())
    expected = {action for plan in plans for action in _actions(plan, found)}
    return _wrong(found, expected, _describe_action, "actions")


def _actions(plan: Plan, found: Counter[Action]) -> Iterable[Action]:
    """Yield the actions of a plan; where backward passes may be split, those that were recorded decide."""
    for step in range(plan.steps):
        for stage in plan.stages:
            for microbatch in range(plan.microbatches):
                place = (step, plan.rank, stage, microbatch)
                is_full = plan.backward == "full" or (plan.backward == "mixed" and (*place, *FULL) in found)
                for kind in ("forward", *(FULL if is_full else SPLIT)):
                    yield (*place, kind)


def _describe_action(action: Action) -> str:
    step, rank, stage, microbatch, kind = action
    return f"{label(kind, stage, microbatch)} of rank {rank} in step {step}"


def wrong_messages(spans: pl.DataFrame, plans: Sequence[Plan]) -> list[str]:
    """Return which messages are not recorded exactly once, are received before they are sent, or have one end only."""
    messages = match_messages(spans)
    found = Counter(messages.select(MESSAGE).iter_rows())
    expected, within_a_rank = _messages(plans)
    faults = _wrong(found, expected, _describe_message, "messages", allowed=within_a_rank)
    ends = int(spans["kind"].cast(str).is_in(TRANSFERS).sum())
    if ends != 2 * messages.height:
        faults.append(f"{ends - 2 * messages.height} of {ends} transfers have no counterpart")
    early = int((messages["recv_end_ns"] < messages["send_start_ns"]).sum())
    if early:
        faults.append(f"{early} of {messages.height} receives end before the send begins")
    return faults


def _messages(plans: Sequence[Plan]) -> tuple[set[tuple], set[tuple]]:
    """Return the messages between ranks, and those from a rank to itself, which not every release sends."""
    owner = {stage: plan.rank for plan in plans for stage in plan.stages}
    between, within = set(), set()
    for stage in sorted(owner)[:-1]:
        here, there = owner[stage], owner[stage + 1]
        for step in range(plans[0].steps):
            for microbatch in range(plans[0].microbatches):
                (within if here == there else between).update(
                    (
                        (step, "forward", here, there, stage + 1, microbatch),
                        (step, "backward", there, here, stage, microbatch),
                    )
                )
    return between, within


def _describe_message(message: tuple) -> str:
    step, direction, source, target, to_stage, microbatch = message
    return f"{direction} of micro-batch {microbatch} to stage {to_stage}, rank {source} to {target}, in step {step}"


def _wrong(
    found: Counter, expected: set, describe: Callable[[tuple], str], what: str, *, allowed: Iterable = ()
) -> list[str]:
    """Return one text each for missing, unexpected and doubled keys, with the first of them."""
    groups = {
        "missing": expected - found.keys(),
        "not planned": found.keys() - expected - set(allowed),
        "recorded more than once": {key for key, count in found.items() if count > 1},
    }
    return [
        f"{len(keys)} {what} {how}, such as {describe(min(keys, key=str))}"
        for how, keys in groups.items()
        if keys
    ]


def counts(spans: pl.DataFrame) -> tuple[int, int, int]:
    """Return the number of actions, of messages with both ends, and of sends."""
    kinds = spans["kind"].cast(str)
    return (
        int(kinds.is_in(ACTION_KINDS).sum()), match_messages(spans).height, int(kinds.is_in(SENDS).sum()),
    )  # fmt: skip
