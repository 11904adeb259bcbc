"""The properties of a measured order that do not depend on any schedule.

These are the number of micro-batches, whether weight gradients and overlapped pairs were recorded, the stages of each
rank, the group sizes of an interleaved schedule, and the faults of the order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stagescope.schedules.action import Action, read_actions
from stagescope.schedules.recognition.encoding import EncodedOrder, F, decode, encode, encode_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MeasuredOrders = Mapping[int, Sequence["Action | str"]]

MIN_STAGE_FRACTION = 1 / 8
"""A rank holds a stage if it runs at least this fraction of the actions of the stage; fewer are stray actions."""

MAX_FAULTS = 5


@dataclass(frozen=True)
class Evidence:
    """A measured order with its properties.

    `actions` are the orders as given; `orders` the encoded actions of each rank that has any, without duplicates;
    `held` the stages of each rank. `weights` is whether any W was recorded apart from its B, `paired` whether any
    overlapped pair was. `repeated` counts the duplicates, `renumbered` the actions of ranks that do not count their
    micro-batches from 0. `faults` are sentences, the first few of each sort.
    """

    actions: dict[int, list[Action]]
    orders: dict[int, EncodedOrder]
    held: dict[int, frozenset[int]]
    microbatches: int
    weights: bool
    paired: bool
    repeated: int
    renumbered: int
    faults: tuple[str, ...]

    @property
    def action_count(self) -> int:
        """The number of actions including duplicates; a B counts as two if any W was recorded."""
        return sum(len(order.codes) for order in self.orders.values()) + self.repeated


def read_evidence(measured: MeasuredOrders) -> Evidence:
    """Return the properties of the orders of all ranks; raises ScheduleError for text that is not an action."""
    parsed = {rank: read_actions(actions) for rank, actions in measured.items()}
    # One W anywhere means that the trace separates weight gradients. Then a full B must count as I and W on all ranks,
    # or ranks that fuse the two would look as if half of their backward were missing.
    weights = any(
        part.kind == "W" for actions in parsed.values() for action in actions for part in action.parts
    )
    encoded = {rank: encode_order(actions, weights=weights) for rank, actions in parsed.items() if actions}
    # `dict.fromkeys` keeps the first occurrence of each action, in order.
    orders = {
        rank: EncodedOrder(list(dict.fromkeys(order.codes)), order.pairs) for rank, order in encoded.items()
    }
    microbatches = count_microbatches(orders.values())
    orders, faults, renumbered = _renumber(orders, microbatches)
    held = _held_stages(orders)
    return Evidence(
        actions=parsed,
        orders=orders,
        held=held,
        microbatches=microbatches,
        weights=weights,
        paired=any(order.pairs for order in orders.values()),
        repeated=sum(len(encoded[rank].codes) - len(order.codes) for rank, order in orders.items()),
        renumbered=renumbered,
        faults=(
            *_first_few(f"rank {rank} is empty" for rank, actions in measured.items() if not actions),
            *_first_few(_repetitions(encoded)),
            *faults,
            *_first_few(_out_of_range(orders, microbatches)),
            *_first_few(_strays(orders, held)),
        ),
    )


def count_microbatches(orders: Iterable[EncodedOrder]) -> int:
    """Return the number of micro-batches, one more than the largest index with enough actions.

    An index counts if it has at least half of the median number of actions per micro-batch. Otherwise a single
    misread number, such as F0.907, would make all schedules far longer than the measured order.
    """
    counts = Counter(decode(code).microbatch for order in orders for code in order.codes)
    if not counts:
        return 0
    median = sorted(counts.values())[(len(counts) - 1) // 2]
    return 1 + max(microbatch for microbatch, count in counts.items() if 2 * count >= median)


def group_sizes(evidence: Evidence) -> list[int]:
    """Return up to three possible group sizes of an interleaved schedule, most frequent first.

    Each rank votes with the number of micro-batches that go through its first chunk before another chunk has its turn.
    """
    votes = Counter(_first_run(order, min(evidence.held[rank])) for rank, order in evidence.orders.items())
    return [size for size, _ in votes.most_common(3) if size]


def _first_run(order: EncodedOrder, stage: int) -> int:
    """Return one more than the last micro-batch of a stage before the first forward of another stage."""
    last = -1
    for action in map(decode, order.codes):
        if action.kind == F:
            if action.stage != stage:
                break
            last = action.microbatch
    return last + 1


def _renumber(
    orders: dict[int, EncodedOrder], microbatches: int
) -> tuple[dict[int, EncodedOrder], list[str], int]:
    """Return the orders with all micro-batches counted from 0, the faults, and the number of changed actions.

    torch 2.13 itself does this: its list for 1F1B numbers the forwards of the last rank from 1 to m
    (docs/schedules.md). The sequence is still right, so the order is compared with corrected numbers.
    `Evidence.renumbered` keeps the recognizer from naming a schedule on this basis.
    """
    renumbered: dict[int, EncodedOrder] = {}
    faults: list[str] = []
    changed = 0
    for rank, order in orders.items():
        shifts = _shifts(order, microbatches)
        changed += sum(code in shifts for code in order.codes)
        codes = [shifts.get(code, code) for code in order.codes]
        pairs = {shifts.get(f, f): shifts.get(b, b) for f, b in order.pairs.items()}
        renumbered[rank] = EncodedOrder(codes, pairs)
        if shifts:
            first = decode(next(iter(shifts)))
            count = len(shifts)
            faults.append(
                f"rank {rank} counts {'FBW'[first.kind]}{first.stage} from {first.microbatch} "
                f"to {first.microbatch + count - 1}, not from 0 to {count - 1}"
            )
    return renumbered, faults, changed


def _shifts(order: EncodedOrder, microbatches: int) -> dict[int, int]:
    """Return old to new codes for the first kind and stage with contiguous micro-batches that exceed the range.

    Only a complete and contiguous run is shifted: anything else may be single misread numbers, which are faults.
    """
    runs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for action in map(decode, order.codes):
        runs[action.kind, action.stage].append(action.microbatch)
    for (kind, stage), run in runs.items():
        first = min(run)
        if max(run) >= microbatches == len(run) and sorted(run) == list(range(first, first + len(run))):
            return {encode(kind, stage, i): encode(kind, stage, i - first) for i in sorted(run)}
    return {}


def _held_stages(orders: dict[int, EncodedOrder]) -> dict[int, frozenset[int]]:
    """Return the stages of each rank, without those of which it runs only stray actions."""
    by_rank = {rank: Counter(decode(code).stage for code in order.codes) for rank, order in orders.items()}
    total: Counter[int] = Counter()
    for stages in by_rank.values():
        total.update(stages)
    return {
        rank: frozenset(
            stage for stage, count in stages.items() if count >= MIN_STAGE_FRACTION * total[stage]
        )
        for rank, stages in by_rank.items()
    }


def _repetitions(encoded: dict[int, EncodedOrder]) -> Iterator[str]:
    for rank, order in encoded.items():
        repeated = Counter(order.codes) if len(set(order.codes)) < len(order.codes) else Counter()
        yield from (
            f"rank {rank} runs {_text(code)} {count} times" for code, count in repeated.items() if count > 1
        )
    where: dict[int, int] = {}
    for rank, order in encoded.items():
        for code in set(order.codes):
            if where.setdefault(code, rank) != rank:
                yield f"{_text(code)} runs on rank {where[code]} and on rank {rank}"


def _out_of_range(orders: dict[int, EncodedOrder], microbatches: int) -> Iterator[str]:
    for rank, order in orders.items():
        for code in order.codes:
            if decode(code).microbatch >= microbatches:
                yield f"rank {rank}, {_text(code)}: micro-batches are 0 to {microbatches - 1}"


def _strays(orders: dict[int, EncodedOrder], held: dict[int, frozenset[int]]) -> Iterator[str]:
    for rank, order in orders.items():
        for code in order.codes:
            if decode(code).stage not in held[rank]:
                yield f"rank {rank}, {_text(code)}: the stage belongs to another rank"


def _text(code: int) -> str:
    return str(decode(code))


def _first_few(sentences: Iterable[str]) -> list[str]:
    """Return the first few sentences, and one that counts the rest."""
    every = list(sentences)
    more = len(every) - MAX_FAULTS
    return [*every[:MAX_FAULTS], *([f"{more} more like this"] if more > 0 else [])]
