"""Turn a simulated step into a Timeline, so that theory is analyzed and exported by the same code as measurements.

Times are those of the simulation in nanoseconds, starting at 0. The mapping:

* An overlapped pair becomes two spans with the same times and one pair id.
* A message with a nonzero transfer time becomes a send and a receive, both from the end of the producing action to
  the arrival. The receive's wait is the time during which its rank was idle waiting for it; a blocking send waits for
  its whole length. Messages without a transfer time are omitted.
* Gradient reductions become comm spans, optimizer steps compute spans, on the participating ranks.
* A rank's chunks are numbered by the first micro-batch that runs on them, then by stage. In a bidirectional schedule
  chunk 0 is thereby the same direction on every rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stagescope.model import CLOCKS, DIAGNOSTICS, RANKS, SPANS, STEPS, Timeline
from stagescope.model.simulated import COST_UNIT_CLOCK, SIMULATED_CLOCK
from stagescope.model.validate import conform
from stagescope.vocabulary.kinds import BY_NAME, KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stagescope.schedules.simulation import Simulation

    Row = tuple[Any, ...]

STEP = 0
KIND_BY_LETTER = {kind.letter: kind.name for kind in KINDS}
DIRECTIONS = {"F": "forward", "B": "backward", "I": "backward"}
COLUMNS = {
    name: SPANS.schema[name]
    for name in ("rank", "kind", "stage", "microbatch", "pair", "peer", "bytes", "start_ns", "end_ns")
}
WAITS = {name: SPANS.schema[name] for name in ("wait_start_ns", "wait_end_ns")}


def timeline_of_simulation(
    simulation: Simulation, *, schedule: str | None = None, in_cost_units: bool = False
) -> Timeline:
    """Return the Timeline of a simulated step: its spans, one ranks row per rank, and step 0 of each.

    `schedule` is the schedule name in `ranks`. `in_cost_units` marks costs as relative (1 unit stored as 1 ms):
    figures then show no unit of time; nothing else depends on it.
    """
    clock = COST_UNIT_CLOCK if in_cost_units else SIMULATED_CLOCK
    ranks = sorted(simulation.order)
    return Timeline(
        spans=_spans(simulation),
        ranks=_ranks_table(ranks, schedule, clock),
        steps=conform(
            pl.DataFrame({"rank": ranks}, schema={"rank": pl.Int32}).with_columns(
                step=STEP, start_ns=0, end_ns=simulation.makespan_ns
            ),
            STEPS,
        ),
        clocks=conform(
            pl.DataFrame(
                {
                    "clock": [clock],
                    "offset_ns": [0],
                    "error_lo_ns": [0],
                    "error_hi_ns": [0],
                    "method": ["exact"],
                }
            ),
            CLOCKS,
        ),
        diagnostics=DIAGNOSTICS.empty(),
    )


def _ranks_table(ranks: list[int], schedule: str | None, clock: str) -> pl.DataFrame:
    numbers = pl.DataFrame(
        {"rank": ranks, "pp": range(len(ranks))}, schema={"rank": pl.Int32, "pp": pl.Int32}
    )
    facts = {
        "world_size": pl.lit(len(ranks)),
        "schedule": pl.lit(schedule, pl.String),
        "clock": pl.lit(clock),
    }
    return conform(numbers.with_columns(**facts), RANKS)


def _spans(simulation: Simulation) -> pl.DataFrame:
    actions = _frame(_action_rows(simulation), COLUMNS)
    chunks = (
        actions.group_by("rank", "stage")
        .agg(first=pl.min("microbatch"))
        .sort("rank", "first", "stage")
        .select("rank", "stage", chunk=pl.int_range(pl.len(), dtype=pl.Int32).over("rank"))
    )
    transfers = _frame(_transfer_rows(simulation), COLUMNS | WAITS)
    step_end = _frame(_step_end_rows(simulation), COLUMNS)
    spans = pl.concat([actions, transfers, step_end], how="diagonal").join(
        chunks, on=["rank", "stage"], how="left", maintain_order="left"
    )
    lanes = {name: kind.lane for name, kind in BY_NAME.items()}
    lane = pl.col("kind").cast(pl.String).replace_strict(lanes, return_dtype=SPANS.schema["lane"])
    return conform(spans.with_columns(lane=lane, step=STEP), SPANS)


def _frame(rows: Iterable[Row], columns: dict[str, Any]) -> pl.DataFrame:
    # Building column by column is several times faster than row by row when the schema has enum types.
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    return pl.DataFrame(
        [
            pl.Series(name, column, dtype)
            for (name, dtype), column in zip(columns.items(), values, strict=True)
        ]
    )


def _action_rows(simulation: Simulation) -> Iterator[Row]:
    """Yield every action; an overlapped pair as two rows with one pair id."""
    pairs = 0
    for rank, actions in simulation.order.items():
        times = zip(actions, simulation.starts_ns[rank], simulation.ends_ns[rank], strict=True)
        for (kind, stage, microbatch, partner), start_ns, end_ns in times:
            pair = None if partner is None else pairs
            yield rank, KIND_BY_LETTER[kind], stage, microbatch, pair, None, None, start_ns, end_ns
            if partner is not None:
                kind, stage, microbatch, _ = partner  # noqa: PLW2901 - the second action of the pair
                yield rank, KIND_BY_LETTER[kind], stage, microbatch, pair, None, None, start_ns, end_ns
                pairs += 1


def _transfer_rows(simulation: Simulation) -> Iterator[Row]:
    """Yield a send and a receive per message with a nonzero transfer time."""
    free_ns = _free_before(simulation)
    for transfer in simulation.transfers():
        if transfer.end_ns == transfer.start_ns:
            continue
        direction = DIRECTIONS[transfer.producer.kind]
        stage, microbatch = transfer.producer.stage, transfer.producer.microbatch
        consumer = (stage + 1 if direction == "forward" else stage - 1, microbatch)
        size = _bytes(simulation, min(stage, consumer[0]))
        times = transfer.start_ns, transfer.end_ns
        blocked = times if simulation.costs.blocking else (None, None)
        sent = f"send_{direction}", stage, microbatch, None, transfer.receiver, size
        yield transfer.sender, *sent, *times, *blocked
        fed = direction, *consumer
        waited = (free_ns[fed], transfer.end_ns) if free_ns[fed] < transfer.end_ns else (None, None)
        received = f"recv_{direction}", *consumer, None, transfer.sender, size
        yield transfer.receiver, *received, *times, *waited


def _bytes(simulation: Simulation, link: int) -> int | None:
    """Return the size of the message between a stage and the next one."""
    size = simulation.costs.message_bytes
    return size if size is None or isinstance(size, int) else size[link]


def _free_before(simulation: Simulation) -> dict[tuple[str, int, int], int]:
    """Return for each action that may receive a message the time from which its rank was idle."""
    free: dict[tuple[str, int, int], int] = {}
    blocking = simulation.transfers() if simulation.costs.blocking else ()
    released_ns = {transfer.producer: transfer.end_ns for transfer in blocking}
    for rank, actions in simulation.order.items():
        before_ns = 0
        for action, end_ns in zip(actions, simulation.ends_ns[rank], strict=True):
            free |= {
                (DIRECTIONS[part.kind], part.stage, part.microbatch): before_ns
                for part in action.parts
                if part.kind != "W"  # a weight gradient needs no message
            }
            before_ns = max(end_ns, *(released_ns.get(part, 0) for part in action.parts))
    return free


def _step_end_rows(simulation: Simulation) -> Iterator[Row]:
    """Yield the gradient reductions and the optimizer steps."""
    for reduction in simulation.reductions:
        for rank in reduction.ranks:
            yield (
                rank,
                "grad_reduce",
                reduction.stage,
                None,
                None,
                None,
                None,
                reduction.start_ns,
                reduction.end_ns,
            )
    for rank, step in simulation.optimizer_steps.items():
        yield rank, "optimizer", None, None, None, None, None, step.start_ns, step.end_ns
