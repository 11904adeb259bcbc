"""Convert the public traces of three projects to the span tables in tests/data/public_runs.

    python tests/truth/convert_public_runs.py bytedance StragglerAnalysis/data
    python tests/truth/convert_public_runs.py megascan MegatronApp/profiling
    python tests/truth/convert_public_runs.py primus Primus/tools/visualization/pp_vis/pp_data_example

The second argument is the folder in a checkout of the project; tests/data/public_runs/README.md has the commits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

import polars as pl

import stagescope

TARGET = Path(__file__).parents[1] / "data" / "public_runs"


class Sample(NamedTuple):
    """Which steps of a trace are kept: every `every`-th one, beginning with the one at `first`."""

    first: int
    every: int


SAMPLES = {"ST": Sample(0, 1), "SE": Sample(2, 5), "AR": Sample(5, 11)}

KINDS = {
    "forward-compute": ("compute", "forward"),
    "backward-compute": ("compute", "backward"),
    "forward-send": ("comm", "send_forward"),
    "forward-recv": ("comm", "recv_forward"),
    "backward-send": ("comm", "send_backward"),
    "backward-recv": ("comm", "recv_backward"),
    "grads-reduce-scatter": ("comm", "grad_reduce"),
    "optimizer": ("compute", "optimizer"),
}
"""Lane and kind of ByteDance's operations; the others become `other`, named as in the trace."""

TOWARDS = {"forward-send": 1, "backward-recv": 1, "forward-recv": -1, "backward-send": -1}
"""Where the peer of a transfer is: the next stage or the previous one."""


def convert_bytedance(source: Path, target: Path) -> None:
    """Write one table per trace of StragglerAnalysis.

    Its timestamps are seconds since the start of their step, in single precision. The time between steps was not
    recorded, and the steps are a sample of the run: they are placed one after the other, without gaps.
    """
    for name, sample in SAMPLES.items():
        trace = pl.read_parquet(source / f"trace-{name}.parquet").with_columns(
            pl.col("optype").cast(pl.String)
        )
        steps = trace["step"].unique().sort().gather_every(sample.every, sample.first)
        trace = _on_one_clock(trace.filter(pl.col("step").is_in(steps.implode())))
        compute, transfer = pl.col("optype").str.ends_with("-compute"), pl.col("optype").is_in(list(TOWARDS))
        kind = pl.col("optype").replace_strict(
            {key: kind for key, (_, kind) in KINDS.items()}, default="other"
        )
        lane = pl.col("optype").replace_strict(
            {key: lane for key, (lane, _) in KINDS.items()}, default="comm"
        )
        ranks = trace.select("dp_rank", pl.col("stage").cast(pl.Int64), peer="rank").unique()
        spans = trace.with_columns(
            stage=pl.col("stage").cast(pl.Int64),
            toward=pl.col("stage").cast(pl.Int64)
            + pl.col("optype").replace_strict(TOWARDS, default=None, return_dtype=pl.Int64),
        ).join(ranks, left_on=["dp_rank", "toward"], right_on=["dp_rank", "stage"], how="left")
        spans = spans.select(
            "rank", "step", "peer", "start_ns", "end_ns",
            lane=pl.when(pl.col("optype") == "gc").then(pl.lit("host")).otherwise(lane), kind=kind,
            stage=pl.when(compute | transfer).then("stage"),
            # The n-th transfer of a kind belongs to micro-batch n: all three runs are 1F1B.
            microbatch=pl.when(compute).then("mb_id").when(transfer).then("seq_id"),
            name=pl.when(kind == "other").then("optype"), dp="dp_rank", pp="stage",
        )  # fmt: skip
        _write(spans, target / f"bytedance-{name}.parquet")


def _on_one_clock(trace: pl.DataFrame) -> pl.DataFrame:
    """Return start_ns and end_ns of operations in whole microseconds, with one step after the other."""
    seconds = {"start_ns": pl.col("start_ts"), "end_ns": pl.col("start_ts") + pl.col("duration")}
    trace = trace.with_columns(pl.col("start_ts", "duration").cast(pl.Float64)).with_columns(
        **{name: (value * 1e6).round().cast(pl.Int64) * 1_000 for name, value in seconds.items()}
    )
    lengths = trace.group_by("step").agg(
        first=pl.min("start_ns"), length=pl.max("end_ns") - pl.min("start_ns")
    )
    begins = lengths.sort("step").select(
        "step", begin=pl.col("length").cum_sum().shift(1, fill_value=0) - pl.col("first")
    )
    return trace.join(begins, on="step").with_columns(pl.col("start_ns", "end_ns") + pl.col("begin"))


def convert_megascan(source: Path, target: Path) -> None:
    """Write the two MegaScan traces: forwards and backwards, and from the reduction to the end of the iteration.

    The identity of an action is in the arguments of its end event. Timestamps are microseconds.
    """
    for name in ("pp", "dpp"):
        path = source / f"data-1-pipeline-4-tensor-1-{name}-aggregated.json"
        rows, open_us = [], {}
        for event in json.loads(path.read_text()):
            key, rank, args = (event["pid"], event["name"]), event["pid"], event["args"]
            if event["ph"] == "B" or event["name"] == "reduce":
                open_us[key] = event["ts"]
            elif event["ph"] == "E":
                chunk = args["model_chunk"]
                rows.append(
                    (rank, "compute", event["name"], args["iteration"], chunk * 4 + rank, chunk, args["microbatch"],
                     None, open_us[key], event["ts"])
                )  # fmt: skip
            elif event["name"] == "iteration end":
                label = "reduce to iteration end"
                begin = open_us.pop((rank, "reduce"))
                rows.append(
                    (rank, "comm", "other", args["iteration"], None, None, None, label, begin, event["ts"])
                )
        columns = (
            "rank",
            "lane",
            "kind",
            "step",
            "stage",
            "chunk",
            "microbatch",
            "name",
            "start_ns",
            "end_ns",
        )
        spans = pl.DataFrame(rows, columns, orient="row", infer_schema_length=None)
        spans = spans.with_columns(pl.col("start_ns", "end_ns") * 1_000, dp=0, pp="rank")
        _write(spans, target / f"megascan-{name}.parquet")


def convert_primus(source: Path, target: Path) -> None:
    """Write the two Primus dumps (1F1B, and interleaved with two chunks), as stagescope reads them."""
    for name in ("pp8", "pp8_vpp2"):
        spans = stagescope.read(source / "gpu8_layer64_gbs16" / name).spans
        _write(spans.with_columns(dp=0, pp="rank"), target / f"primus-{name}.parquet")


def _write(spans: pl.DataFrame, path: Path) -> None:
    kept = [name for name in spans.columns if spans[name].null_count() < spans.height]
    small = [
        name for name in ("rank", "step", "stage", "chunk", "microbatch", "peer", "dp", "pp") if name in kept
    ]
    spans = spans.select(kept).with_columns(pl.col(small).cast(pl.Int32)).sort("rank", "start_ns", "end_ns")
    spans.write_parquet(path, compression="zstd", compression_level=22, statistics=False)
    print(f"{path.name}: {spans.height:,} spans, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    converters = {"bytedance": convert_bytedance, "megascan": convert_megascan, "primus": convert_primus}
    converters[sys.argv[1]](Path(sys.argv[2]), TARGET)
