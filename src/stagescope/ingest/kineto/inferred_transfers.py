"""Which transfer belongs to which job that no annotation holds, and which to none.

A send belongs to the job before it, a receive to the job behind it (torch 2.13.0, schedules.py,
`Schedule1F1B._step_microbatches`). Between the two there is no other work with transfers of its own, as the forwards of
an evaluation are, and no new step. In the first step of a run the stages tell each other the shapes of what they will
send: they run one forward and one backward more, whose results go along as objects (stage.py, `_shape_inference`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.kineto.annotated import RECEIVED, SENT
from stagescope.ingest.kineto.operator_classes import PACKING, RECEIVE, SEND, SPLITTING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Times = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

NEVER = np.iinfo(np.int64).max


class Surroundings(NamedTuple):
    """What happened on a rank besides its jobs, each in the order of time.

    `run_start_ns` and `run_end_ns` are of all runs of operators, jobs or not. `call_ns` are the calls of sends and
    receives, `is_send` tells which is what; `message_ns` has their annotations too. `boundary_ns` are moments between
    steps: where the batch is split, and where an optimizer steps. `packing_ns` are when tensors were made of bytes.
    """

    run_start_ns: Times
    run_end_ns: Times
    message_ns: Times
    call_ns: Times
    is_send: Flags
    boundary_ns: Times
    packing_ns: Times

    @classmethod
    def of(cls, tables: Mapping[str, pl.DataFrame], runs: pl.DataFrame) -> Surroundings:
        """Return the surroundings in the tables of one trace, whose runs of operators are `runs`."""
        operators, annotations = tables["operators"], tables["annotations"]
        calls = operators.filter(pl.col("what").is_in([SEND, RECEIVE])).sort("start_ns")
        splits, packings = (
            operators.filter(pl.col("what") == sort)["start_ns"] for sort in (SPLITTING, PACKING)
        )
        works = annotations.filter(pl.col("name").str.contains(f"{RECEIVED}|{SENT}"))["start_ns"]
        optimizers = annotations.filter(pl.col("name").str.starts_with("Optimizer."))["start_ns"]
        ordered = runs.sort("start_ns")
        return cls(
            ordered["start_ns"].to_numpy(),
            ordered["end_ns"].to_numpy(),
            pl.concat([calls["start_ns"], works]).sort().to_numpy(),
            calls["start_ns"].to_numpy(),
            (calls["what"] == SEND).to_numpy(),
            pl.concat([splits, optimizers]).sort().to_numpy(),
            packings.sort().to_numpy(),
        )


def find_transfers(
    annotations: pl.DataFrame, jobs: pl.DataFrame, around: Surroundings
) -> tuple[pl.DataFrame, int]:
    """Return the transfers with the kind and the order of the job that they feed or empty, and how many are of none.

    Columns: kind, order, start_ns, end_ns, title. A stage receives for all jobs of a kind, or for none, and so it
    sends: a transfer that others of its kind lack is of no job.
    """
    found = [
        _attached(annotations.filter(pl.col("name").str.contains(pattern)), jobs, around, is_send=is_send)
        for pattern, is_send in ((RECEIVED, False), (SENT, True))
    ]
    every = pl.concat(found)
    own = every.drop_nulls("order")
    have = own.group_by("kind").agg(have=pl.col("order").n_unique())
    count = {backward: max((jobs["is_backward"] == backward).sum(), 1) for backward in (False, True)}
    usual = have.filter(
        2 * pl.col("have")
        >= pl.when(pl.col("kind").str.ends_with("backward")).then(count[True]).otherwise(count[False])
    )
    kept = own.join(usual, on="kind", how="semi").sort("start_ns")
    return kept, every.height - kept.height


def _attached(
    works: pl.DataFrame, jobs: pl.DataFrame, around: Surroundings, *, is_send: bool
) -> pl.DataFrame:
    """Return sends or receives with kind and order of the job beside them; null where it is another's."""
    moment_ns = works["start_ns"].to_numpy()
    if is_send:
        row = np.searchsorted(jobs["end_ns"].to_numpy(), moment_ns, side="right") - 1
        beside = row >= 0
        since_ns = jobs["end_ns"].to_numpy()[row] if jobs.height else moment_ns
        run = np.searchsorted(around.run_start_ns, moment_ns) - 1
        until_ns = np.maximum(around.run_start_ns[run], since_ns)
        foreign = _any_between(around.message_ns, since_ns, until_ns)
        parted = _any_between(around.boundary_ns, since_ns, moment_ns)
    else:
        row = np.searchsorted(jobs["start_ns"].to_numpy(), moment_ns)
        beside = row < jobs.height
        row = np.minimum(row, jobs.height - 1)
        until_ns = jobs["start_ns"].to_numpy()[row]
        run = np.minimum(np.searchsorted(around.run_start_ns, moment_ns), len(around.run_start_ns) - 1)
        since_ns = np.minimum(around.run_end_ns[run], until_ns)
        foreign = _any_between(around.message_ns, since_ns, until_ns)
        parted = _any_between(around.boundary_ns, moment_ns, until_ns)
    own = pl.Series(beside & ~foreign & ~parted)
    picked = jobs.select("order", "is_backward")[np.clip(row, 0, None)]
    side = "backward", "forward"
    verb = "send" if is_send else "recv"
    kind = (
        pl.when(picked["is_backward"])
        .then(pl.lit(f"{verb}_{side[0]}"))
        .otherwise(pl.lit(f"{verb}_{side[1]}"))
    )
    return works.select(
        "start_ns", "end_ns", title="name", kind=kind, order=pl.when(own).then(picked["order"])
    )


def _any_between(moments: Times, since_ns: Times, until_ns: Times) -> Flags:
    """Tell for each stretch whether one of the sorted moments lies in it, its end not included."""
    return np.searchsorted(moments, until_ns) > np.searchsorted(moments, since_ns)


def without_first_exchange(jobs: pl.DataFrame, around: Surroundings) -> pl.DataFrame:
    """Return the jobs without those whose result was sent as an object: made to bytes, and sent behind its length."""
    if jobs.is_empty():
        return jobs
    end_ns = jobs["end_ns"].to_numpy()
    inside_ns = np.where(jobs["is_backward"].to_numpy(), end_ns, jobs["graph_ns"].fill_null(NEVER).to_numpy())
    first = np.searchsorted(around.call_ns, end_ns)
    calls_ns, sends = np.append(around.call_ns, [NEVER, NEVER]), np.append(around.is_send, [False, False])
    packed_ns = np.append(around.packing_ns, NEVER)[np.searchsorted(around.packing_ns, inside_ns)]
    is_exchange = (packed_ns < calls_ns[first]) & sends[first] & sends[first + 1]
    orders = jobs.filter(pl.Series(is_exchange))["order"]
    return jobs.filter(~pl.col("order").is_in(orders.implode()))
