"""Raw marks of a generated Ascend cluster, from which marks can be removed, and the planted names."""

from __future__ import annotations

import ast

import polars as pl

from ascend_profiles import write_cluster
from stagescope.ingest.ascend.naming import name_actions
from stagescope.ingest.ascend.pipeline_info import RAW_ACTIONS, PipelineInfo
from stagescope.model import RANKS, SPANS
from stagescope.model.validate import conform

UNSPLIT = {"split_cooldown": False}
MARKERS = {
    "forward_step": "forward",
    "forward_step_with_model_graph": "forward",
    "backward_step": "backward",
    "backward_step_with_model_graph": "backward",
    "WeightGradStore.pop": "weight",
    "forward_backward_overlaping": "overlap",
}
NAMES = ["stage", "chunk", "microbatch"]


class MarkedRun:
    """Raw marks of a cluster and their planted names; marks can be removed."""

    def __init__(self, directory, cluster):
        self.cluster = cluster
        self.truth = write_cluster(directory, cluster).actions
        fields = [ast.literal_eval(text) for text in self.truth["message"]]
        self.raw = (
            self.truth.with_columns(
                message=pl.Series([each["name"] for each in fields]),
                marker=pl.Series([MARKERS[each["name"]] for each in fields]),
                recorded_microbatch=pl.Series(
                    [each.get("current_microbatch") for each in fields], dtype=pl.Int32
                ),
                recorded_chunk=pl.Series([each.get("model_chunk_id") for each in fields], dtype=pl.Int32),
            )
            .unique(["rank", "start_ns"], keep="first", maintain_order=True)
            .select(*RAW_ACTIONS)
        )

    def without(self, rank, *indices, step=0):
        """Return the raw marks without some of a rank and step, by their place in it."""
        nth = pl.int_range(pl.len()).over("rank", "step")
        lost = (pl.col("rank") == rank) & (pl.col("step") == step) & nth.is_in(indices)
        return self.raw.filter(~lost)

    def name(self, raw=None, *, schedule=..., microbatches=..., placed=True, clock="a"):
        cluster, width = self.cluster, self.cluster.width
        declared = PipelineInfo(
            cluster.schedule if schedule is ... else schedule,
            cluster.microbatches if microbatches is ... else microbatches,
        )
        ranks = pl.DataFrame({"rank": range(cluster.world_size)}).with_columns(
            pp=pl.col("rank") // width if placed else pl.lit(None),
            dp=pl.col("rank") % width,
            tp=0,
            cp=0,
            clock=pl.lit(clock),
        )
        spans, notes = name_actions(self.raw if raw is None else raw, conform(ranks, RANKS), declared)
        conform(spans, SPANS)
        return spans, notes

    def wrong(self, spans):
        """Return how many spans are named otherwise than they should be, and how many are not named."""
        key = ["rank", "start_ns", "kind"]
        joined = spans.cast({"kind": pl.String}).join(
            self.truth, on=key, how="left", suffix="_true", nulls_equal=True
        )
        false = joined.filter(
            pl.any_horizontal(
                pl.col(name).is_not_null() & pl.col(name).ne_missing(pl.col(f"{name}_true")) for name in NAMES
            )
        )
        return false.height, joined["microbatch"].null_count()
