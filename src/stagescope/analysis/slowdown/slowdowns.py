"""The slowdowns of a run, as defined in "Understanding Stragglers in Large Model Training Using What-if Analysis".

Lin et al., OSDI 2025 (arXiv 2505.05713), with their program ByteDance-Seed/StragglerAnalysis (8efcd7f) deciding where
the paper leaves a choice. Ideally every operation of a type takes the same time: the mean over all ranks and steps of
an action or any other computation, the median of a transfer or collective. All operations are replayed
(operation_replay.py) without delays between them; T is the mean step with measured times, T_ideal that with ideal ones.

    S        T / T_ideal
    S_t      the same with ideal times but for the operations of type t; S_stage and S_dp: but for those of one
             pipeline rank, or of one data-parallel replica
    S_w      of a worker: the smaller one of its S_stage and S_dp
    M_S      the fraction of T - T_ideal that is gone if the last pipeline rank has ideal times
    M_W      the same for the slowest 3 % of the workers by S_w, at least one
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.slowdown.operation_replay import PAIR, Costs, prepare_operation_replay
from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from numpy.typing import NDArray

    from stagescope.analysis.slowdown.operation_replay import OperationReplay
    from stagescope.model import Timeline

    Floats = NDArray[np.float64]
    Mask = NDArray[np.bool_]

METRICS = ("S", "S_t", "S_stage", "S_dp", "S_w", "M_S", "M_W")
MetricType = pl.Enum(list(METRICS))

SLOWEST_WORKERS_PERCENT = 3
MOST_REPLAYED_ACTIONS = 20_000_000
"""Actions times replays; beyond, only some of the steps are replayed, equally far apart."""
MOST_OF_A_STEP = 100
"""How many times more one step may be; a step beyond, of very many replicas, is not replayed at all."""

SLOWDOWNS = Table(
    "slowdowns",
    "one slowdown metric of ByteDance's what-if analysis",
    (),
    (
        Column(
            "metric",
            MetricType,
            "",
            "`S` of the run; `S_t` of a type of operation, `S_stage` of a pipeline rank, `S_dp` of a replica, `S_w` of "
            "a worker: with ideal times but for these; `M_S`, `M_W`: the fraction of the slowdown that is gone if the "
            "last pipeline rank, or the slowest 3 % of the workers, have ideal times.",
        ),
        Column("operation", pl.String, "", "Type of operation of `S_t`.", nullable=True),
        Column("pp_rank", pl.Int32, "", "Place in the pipeline, of `S_stage` and `S_w`.", nullable=True),
        Column("dp_rank", pl.Int32, "", "Number of the replica, of `S_dp` and `S_w`.", nullable=True),
        Column("rank", pl.Int32, "", "Global rank, of `S_w`.", nullable=True),
        Column("value", pl.Float64, "", "The metric; null: there is no slowdown to divide.", nullable=True),
        Column("step_ns", pl.Float64, "ns", "Mean step of its replay; of `S` with measured times.", nullable=True),
        Column("ideal_step_ns", pl.Float64, "ns", "Mean step with ideal times only."),
        Column("steps", pl.UInt32, "", "Steps that were replayed."),
    ),
)  # fmt: skip


def measure_slowdowns(
    timeline: Timeline, pipelines: pl.DataFrame, steps: Collection[int], every: pl.Series | None = None
) -> pl.DataFrame:
    """Return the table SLOWDOWNS of some steps. `pipelines` is from find_pipelines.

    For some pipelines of a run, `every` is the pipeline of each rank of the run: replicas keep the numbers that they
    have there, and the slowest workers are a share of all of them.

    It is empty without actions, and if replaying a single step once per replica would take minutes.
    """
    chosen = _sample(timeline.spans, pipelines, sorted(steps))
    spans = timeline.spans.filter(
        pl.col("step").is_in(chosen) & pl.col("rank").is_in(pipelines["rank"].implode())
    )
    replay = prepare_operation_replay(timeline.with_spans(spans), pipelines)
    if replay is None:
        return SLOWDOWNS.empty()
    rows = pl.DataFrame(list(_Slowdowns(replay, every).rows()), infer_schema_length=None)
    shared = {"ideal_step_ns": rows["ideal_step_ns"][0], "steps": len(chosen)}
    return rows.with_columns(**{name: pl.lit(value) for name, value in shared.items()}).select(
        (pl.col(name) if name in rows.columns or name in shared else pl.lit(None).alias(name)).cast(dtype)
        for name, dtype in SLOWDOWNS.schema.items()
    )


def _sample(spans: pl.DataFrame, pipelines: pl.DataFrame, steps: list[int]) -> list[int]:
    """Return the steps to replay: all, as many as can be replayed in a few seconds, or none."""
    replicas = pipelines["pipeline"].n_unique()
    replays = len(METRICS) + replicas + pipelines.height // max(replicas, 1)
    actions = spans.filter(pl.col("microbatch").is_not_null()).height
    share = MOST_REPLAYED_ACTIONS / max(actions * replays, 1)
    if share * len(steps) * MOST_OF_A_STEP < 1:
        return []
    most = max(round(share * len(steps)), 1)
    if most >= len(steps):
        return steps
    return [steps[round(number)] for number in np.linspace(0, len(steps) - 1, most)]


class _Slowdowns:
    """The replays of one run with measured and ideal times, and what they are for which operations."""

    def __init__(self, replay: OperationReplay, every: pl.Series | None) -> None:
        self.replay, self.measured = replay, replay.measured
        table, needs = replay.actions.table, replay.actions.needs
        kinds = pl.when("is_pair").then(pl.lit(PAIR)).otherwise(pl.col("kind").cast(pl.String))
        self.action_types = table.select(kinds).to_series().to_numpy()
        self.transfer_types = (needs["direction"].cast(pl.String) + " transfer").to_numpy()
        pipelines = replay.ranks["pipeline"]
        replicas = (pipelines if every is None else every).unique().sort()
        self.dp_rank = replicas.search_sorted(pipelines).cast(pl.Int32).to_numpy()
        self.workers = replay.ranks["rank"].n_unique() if every is None else len(every)
        self.pp_rank = replay.ranks["place"].to_numpy()
        self.ideal = self._idealized()
        self.ideal_ns = replay.step_ns(self.ideal)
        self.measured_ns = replay.step_ns(self.measured)

    def rows(self) -> Iterator[dict[str, object]]:
        """Yield the rows of SLOWDOWNS."""
        yield {**self._ratio(self.measured_ns), "metric": "S", "ideal_step_ns": self.ideal_ns}
        for operation in self._types():
            yield {
                **self._ratio(self._only(self._of_type(operation))),
                "metric": "S_t",
                "operation": operation,
            }
        of_stage, of_replica = (
            {
                int(number): self._ratio(self._only(self._of_rows(numbers == number)))
                for number in np.unique(numbers)
            }
            for numbers in (self.pp_rank, self.dp_rank)
        )
        yield from ({**row, "metric": "S_stage", "pp_rank": number} for number, row in of_stage.items())
        yield from ({**row, "metric": "S_dp", "dp_rank": number} for number, row in of_replica.items())
        ranks = self.replay.ranks.select("rank").with_columns(pp_rank=self.pp_rank, dp_rank=self.dp_rank)
        workers = [
            (min(of_stage[pp_rank]["value"], of_replica[dp_rank]["value"]), rank, pp_rank, dp_rank)
            for rank, pp_rank, dp_rank in ranks.unique("rank").sort("rank").iter_rows()
        ]
        for value, rank, pp_rank, dp_rank in workers:
            yield {"metric": "S_w", "rank": rank, "pp_rank": pp_rank, "dp_rank": dp_rank, "value": value}
        yield {**self._removed(self.pp_rank == self.pp_rank.max()), "metric": "M_S"}
        slowest = sorted(workers, key=lambda worker: (-worker[0], worker[1]))
        slowest = slowest[: -(-self.workers * SLOWEST_WORKERS_PERCENT // 100)]
        is_slow = ranks["rank"].is_in([rank for _, rank, *_ in slowest]).to_numpy()
        yield {**self._removed(is_slow), "metric": "M_W"}

    def _ratio(self, step_ns: float) -> dict[str, float]:
        return {"value": step_ns / self.ideal_ns if self.ideal_ns else 1.0, "step_ns": step_ns}

    def _removed(self, is_ideal: Mask) -> dict[str, float | None]:
        """Return the fraction of the slowdown that is gone if some ranks have ideal times."""
        step_ns = self.replay.step_ns(self._mixed(self._of_rows(is_ideal), self.ideal, self.measured))
        slowdown_ns = self.measured_ns - self.ideal_ns
        return {
            "value": (self.measured_ns - step_ns) / slowdown_ns if slowdown_ns else None,
            "step_ns": step_ns,
        }

    def _only(self, masks: tuple[Mask, Mask, list[Mask]]) -> float:
        """Return the mean step in which only some operations take their measured time."""
        return self.replay.step_ns(self._mixed(masks, self.measured, self.ideal))

    def _mixed(self, masks: tuple[Mask, Mask, list[Mask]], inside: Costs, outside: Costs) -> Costs:
        actions, transfers, slots = masks
        return Costs(
            np.where(actions, inside.actions_ns, outside.actions_ns),
            np.where(transfers, inside.transfers_ns, outside.transfers_ns),
            [
                np.where(mask, one, other)
                for mask, one, other in zip(slots, inside.operations_ns, outside.operations_ns, strict=True)
            ],
        )

    def _types(self) -> list[str]:
        messages = self.transfer_types[self.replay.needs_message]
        slots = [slot.operation for slot in self.replay.operations.slots]
        return list(dict.fromkeys([*np.unique(self.action_types), *np.unique(messages), *slots]))

    def _of_type(self, operation: str) -> tuple[Mask, Mask, list[Mask]]:
        slots = [
            np.full(len(slot.place), slot.operation == operation) for slot in self.replay.operations.slots
        ]
        return self.action_types == operation, self.transfer_types == operation, slots

    def _of_rows(self, rows: Mask) -> tuple[Mask, Mask, list[Mask]]:
        slots = [rows[slot.place] for slot in self.replay.operations.slots]
        return rows[self.replay.row_of_action], rows[self.replay.row_of_need], slots

    def _idealized(self) -> Costs:
        """Return the ideal times: the mean of a computation, the median of a transfer or collective."""
        measured, slots = self.measured, self.replay.operations.slots
        actions_ns = _by_type(self.action_types, measured.actions_ns, np.mean)
        transfers_ns = np.zeros_like(measured.transfers_ns)
        known = self.replay.needs_message
        transfers_ns[known] = _by_type(self.transfer_types[known], measured.transfers_ns[known], np.median)
        usual = {}
        for operation in {slot.operation for slot in slots}:
            own = [slot for slot in slots if slot.operation == operation]
            times_ns = np.concatenate([slot.cost_ns for slot in own])
            usual[operation] = np.median(times_ns) if own[0].is_collective else np.mean(times_ns)
        operations_ns = [np.full(len(slot.place), usual[slot.operation]) for slot in slots]
        return Costs(actions_ns, transfers_ns, operations_ns)


def _by_type(types: NDArray[np.object_], times_ns: Floats, usual: Callable[[Floats], np.floating]) -> Floats:
    """Return what operations of the same type usually take."""
    found = np.empty_like(times_ns)
    for each in np.unique(types):
        found[types == each] = usual(times_ns[types == each])
    return found
