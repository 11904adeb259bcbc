"""The stored traces of real runs are read as span tables and agree with what was published about them."""

from __future__ import annotations

import json

import polars as pl
import pytest

import stagescope
from places import DATA

FOLDER = DATA / "public_runs"
PUBLISHED = json.loads((FOLDER / "published.json").read_text())
SIZES = {
    # Replicas, ranks of a pipeline, stages, micro-batches, steps, schedule (None: its order is dynamic).
    "bytedance-ST": (2, 4, 4, 4, 32, "1f1b"),
    "bytedance-SE": (32, 2, 2, 8, 9, "1f1b"),
    "bytedance-AR": (4, 4, 4, 32, 4, "1f1b"),
    "megascan-pp": (1, 4, 16, 8, 20, "interleaved"),
    "megascan-dpp": (1, 4, 16, 8, 20, None),
    "primus-pp8": (1, 8, 8, 16, 20, "1f1b"),
    "primus-pp8_vpp2": (1, 8, 16, 16, 20, "interleaved"),
}


def actions_of(name):
    spans = stagescope.read(FOLDER / f"{name}.parquet").spans
    return spans.filter(pl.col("kind").is_in(["forward", "backward"]))


def test_every_table_is_described_and_tested():
    assert {path.stem for path in FOLDER.glob("*.parquet")} == set(SIZES)
    text = (FOLDER / "README.md").read_text()
    assert all(f"`{name}.parquet`" in text for name in SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_every_micro_batch_ran_once_on_every_stage(name):
    replicas, _, stages, microbatches, steps, _ = SIZES[name]
    actions = actions_of(name)
    assert actions.height == 2 * replicas * stages * microbatches * steps
    assert actions.select("rank", "step", "kind", "stage", "microbatch").is_unique().all()


@pytest.mark.parametrize("name", SIZES)
def test_coordinates_number_replicas_and_stages(name):
    replicas, ranks, *_ = SIZES[name]
    places = pl.read_parquet(FOLDER / f"{name}.parquet").select("rank", "dp", "pp").unique()
    assert sorted(places.select("dp", "pp").rows()) == [(d, p) for d in range(replicas) for p in range(ranks)]


@pytest.mark.parametrize("trace", PUBLISHED)
def test_steps_are_as_long_as_the_authors_program_measures(trace):
    spans = stagescope.read(FOLDER / f"bytedance-{trace}.parquet").spans
    lengths = spans.group_by("step").agg(s=(pl.max("end_ns") - pl.min("start_ns")) / 1e9)
    assert sorted(lengths["step"]) == PUBLISHED[trace]["steps"]
    assert lengths["s"].mean() == pytest.approx(PUBLISHED[trace]["stored"]["step_s"], rel=1e-5)


@pytest.mark.parametrize("trace", PUBLISHED)
def test_no_message_arrives_before_it_was_sent(trace):
    spans = stagescope.read(FOLDER / f"bytedance-{trace}.parquet").spans
    for direction in ("forward", "backward"):
        sends, receives = (spans.filter(kind=f"{way}_{direction}") for way in ("send", "recv"))
        left, right = ["step", "microbatch", "rank", "peer"], ["step", "microbatch", "peer", "rank"]
        matched = sends.join(receives, left_on=left, right_on=right)
        assert matched.height == sends.height == receives.height
        # The clocks of the machines agree to a millisecond.
        assert (matched["end_ns_right"] - matched["start_ns"]).min() > -1_000_000


def test_stored_steps_have_the_published_slowdown_within_2_percent():
    for trace in PUBLISHED.values():
        assert trace["stored"]["S"] == pytest.approx(trace["published"]["S"], rel=0.02)


@pytest.mark.parametrize("name", SIZES)
def test_schedules_of_real_runs_are_recognized(name):
    verdict = stagescope.analyze(stagescope.read(FOLDER / f"{name}.parquet")).verdict
    assert verdict.why.startswith(SIZES[name][-1] or "Pipeline")
