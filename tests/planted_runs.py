"""Runs of 1F1B pipelines with a known time for every action and message, which analyses have to recover.

`random_times` gives the times, a test changes some of them, and `run` puts them on a timeline by the rules of the
schedule: rank = pipeline * stages + stage, each step starts when the previous one has ended on all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stagescope.model import CLOCKS, RANKS, SPANS, Timeline, empty_timeline
from stagescope.model.validate import conform

ORIGIN_NS = 1_763_600_000_000_000_000
PAUSE_NS = 5_000_000
KINDS = ("forward", "backward")


@dataclass(frozen=True)
class Shape:
    """Size of a run, usual durations of its actions and messages, and their variation."""

    pipelines: int = 2
    stages: int = 4
    microbatches: int = 8
    steps: int = 20
    action_ns: tuple[int, int] = (10_000_000, 20_000_000)
    message_ns: int = 200_000
    noise: float = 0.02
    step_noise: float = 0.0


@dataclass(frozen=True)
class Times:
    """Times in ns: of actions as kind x pipeline x step x stage x micro-batch, of messages by the receiving stage."""

    shape: Shape
    action_ns: np.ndarray
    message_ns: np.ndarray
    machines: list[str] | None = None
    reduces: bool = False
    errors_ns: dict[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Ends:
    """When the pipelines of a run end each step, in ns since its start, and when the last rank of a stage does.

    `step_ns` has one value per step, `reduced_ns` is step x stage. Those of a whole run are the `latest` of its parts.
    """

    step_ns: np.ndarray
    reduced_ns: np.ndarray

    def latest(self, other: Ends) -> Ends:
        """Return the later of both."""
        return Ends(np.maximum(self.step_ns, other.step_ns), np.maximum(self.reduced_ns, other.reduced_ns))


def random_times(shape: Shape, seed: int = 0) -> Times:
    """Return random times: log-normal for actions and whole steps, exponential above a floor for messages."""
    rng = np.random.default_rng(seed)
    size = (2, shape.pipelines, shape.steps, shape.stages, shape.microbatches)
    usual = np.array(shape.action_ns).reshape(2, 1, 1, 1, 1)
    whole = rng.normal(0, 1, (1, shape.pipelines, shape.steps, 1, 1)) * shape.step_noise
    actions = usual * np.exp(rng.normal(0, 1, size) * shape.noise + whole)
    messages = shape.message_ns * (0.9 + rng.exponential(0.1, size))
    return Times(shape, np.rint(actions), np.rint(messages))


def orders(shape: Shape) -> list[list[tuple[int, int]]]:
    """Return per stage the 1F1B order of (kind, micro-batch)."""
    found = []
    for stage in range(shape.stages):
        warmup = min(shape.stages - 1 - stage, shape.microbatches)
        order = [(0, m) for m in range(warmup)]
        for m in range(shape.microbatches - warmup):
            order += [(0, warmup + m), (1, m)]
        found.append(order + [(1, m) for m in range(shape.microbatches - warmup, shape.microbatches)])
    return found


def ends_of(times: Times) -> Ends:
    """Return when the pipelines of these times end their steps."""
    start, end, free = (np.zeros(times.action_ns.shape, dtype=np.int64) for _ in range(3))
    _place(times, start, end, free)
    return Ends(end.max(axis=(0, 1, 3, 4)), end.max(axis=(0, 1, 4)))


def run(times: Times, whole: Ends | None = None) -> Timeline:
    """Return the timeline that the times give; `whole` is for pipelines that are only some of those of a run."""
    shape = times.shape
    start, end, free = (np.zeros(times.action_ns.shape, dtype=np.int64) for _ in range(3))
    _place(times, start, end, free)
    whole = whole or Ends(end.max(axis=(0, 1, 3, 4)), end.max(axis=(0, 1, 4)))
    length = whole.step_ns + PAUSE_NS
    reduced = end.max(axis=(0, 4))  # pipeline x step x stage: where a rank enters the reduction
    if times.reduces:
        length = length + PAUSE_NS
    begin = ORIGIN_NS + np.concatenate([[0], np.cumsum(length)[:-1]])
    base = begin.reshape(1, 1, -1, 1, 1)
    frames = [
        _actions(shape, start + base, end + base),
        *_messages(times, start + base, end + base, free + base),
    ]
    if times.reduces:
        after = begin.reshape(1, -1, 1)
        frames.append(_reductions(shape, reduced + after, whole.reduced_ns + after))
    spans = pl.concat(
        [frame.with_columns(pl.col("start_ns", "end_ns").cast(pl.Int64)) for frame in frames], how="diagonal"
    )
    count = shape.pipelines * shape.stages
    machines = times.machines or ["only"] * count
    ranks = pl.DataFrame(
        {
            "rank": range(count),
            "machine": machines,
            "clock": machines,
            "pp": [r % shape.stages for r in range(count)],
            "dp": [r // shape.stages for r in range(count)],
        }
    )
    clocks = pl.DataFrame(
        [
            {
                "clock": name,
                "machine": name,
                "offset_ns": 0,
                "error_lo_ns": error and -error,
                "error_hi_ns": error,
                "method": "planted",
            }
            for name, error in times.errors_ns.items()
        ]
    )
    empty = empty_timeline()
    clocks = conform(clocks, CLOCKS) if times.errors_ns else empty.clocks
    return Timeline(conform(spans, SPANS), conform(ranks, RANKS), empty.steps, clocks, empty.diagnostics)


def _place(times: Times, start: np.ndarray, end: np.ndarray, free: np.ndarray) -> None:
    """Fill in when each action starts and ends, and when its rank was free for it."""
    shape = times.shape
    todo = orders(shape)
    now = [np.zeros((shape.pipelines, shape.steps), dtype=np.int64) for _ in range(shape.stages)]
    done: set[tuple[int, int, int]] = set()
    while any(todo):
        for stage, order in enumerate(todo):
            while order:
                kind, m = order[0]
                source = stage + (1 if kind else -1)
                if 0 <= source < shape.stages and (kind, source, m) not in done:
                    break
                order.pop(0)
                own = (kind, slice(None), slice(None), stage, m)
                free[own] = now[stage]
                ready = now[stage]
                if 0 <= source < shape.stages:
                    ready = np.maximum(
                        ready, end[kind, :, :, source, m] + times.message_ns[own].astype(np.int64)
                    )
                start[own] = ready
                now[stage] = end[own] = ready + times.action_ns[own].astype(np.int64)
                done.add((kind, stage, m))


def _index(shape: Shape, mask: np.ndarray | None = None) -> dict[str, np.ndarray]:
    size = (2, shape.pipelines, shape.steps, shape.stages, shape.microbatches)
    kind, pipeline, step, stage, m = (axis.ravel() for axis in np.indices(size))
    found = {"number": kind, "pipeline": pipeline, "step": step, "stage": stage, "microbatch": m}
    return {name: values if mask is None else values[mask] for name, values in found.items()}


def _actions(shape: Shape, start: np.ndarray, end: np.ndarray) -> pl.DataFrame:
    frame = pl.DataFrame({**_index(shape), "start_ns": start.ravel(), "end_ns": end.ravel()})
    return frame.select(
        (pl.col("pipeline") * shape.stages + pl.col("stage")).alias("rank"),
        pl.lit("compute").alias("lane"),
        _kind("{}").alias("kind"),
        "step",
        "stage",
        "microbatch",
        "start_ns",
        "end_ns",
    )


def _kind(form: str) -> pl.Expr:
    return (
        pl.when(pl.col("number") == 0)
        .then(pl.lit(form.format(KINDS[0])))
        .otherwise(pl.lit(form.format(KINDS[1])))
    )


def _messages(times: Times, start: np.ndarray, end: np.ndarray, free: np.ndarray) -> list[pl.DataFrame]:
    """Return receives, asked for when their rank is free, and sends, issued when the action is done."""
    shape = times.shape
    every = _index(shape)
    source = every["stage"] + np.where(every["number"] == 0, -1, 1)
    has = (source >= 0) & (source < shape.stages)
    index = _index(shape, has)
    sent = end[index["number"], index["pipeline"], index["step"], source[has], index["microbatch"]]
    received = {"start_ns": free.ravel()[has], "end_ns": start.ravel()[has]}
    frame = pl.DataFrame({**index, "source": source[has]}).with_columns(
        pl.lit("comm").alias("lane"), bytes=pl.lit(1 << 20, pl.Int64)
    )
    first = pl.col("pipeline") * shape.stages
    common = ["lane", "step", "microbatch", "bytes"]
    receives = frame.with_columns(**{name: pl.Series(values) for name, values in received.items()}).select(
        *common,
        "stage",
        "start_ns",
        "end_ns",
        kind=_kind("recv_{}"),
        rank=first + pl.col("stage"),
        peer=first + pl.col("source"),
    )
    sends = frame.with_columns(start_ns=pl.Series(sent), end_ns=pl.Series(sent + 10_000)).select(
        *common,
        "start_ns",
        "end_ns",
        stage="source",
        kind=_kind("send_{}"),
        rank=first + pl.col("source"),
        peer=first + pl.col("stage"),
    )
    return [receives, sends]


def _reductions(shape: Shape, entered: np.ndarray, last: np.ndarray) -> pl.DataFrame:
    """Return one reduction per rank and step, which is over 1 ms after the last replica entered it."""
    pipeline, step, stage = (axis.ravel() for axis in np.indices(entered.shape))
    over = np.broadcast_to(last + 1_000_000, entered.shape)
    return pl.DataFrame(
        {
            "rank": pipeline * shape.stages + stage,
            "lane": "comm",
            "kind": "grad_reduce",
            "step": step,
            "stage": stage,
            "start_ns": entered.ravel(),
            "end_ns": over.ravel(),
        }
    )
