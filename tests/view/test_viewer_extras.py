import polars as pl

from drawing import timeline_from_text
from stagescope.timeline import empty_timeline
from stagescope.timeline.bubbles import step_bubbles
from stagescope.timeline.pipelines import find_pipelines
from stagescope.view.viewer_extras import gather_extras
from synthetic import Shape, pipeline_timeline

RUN = pipeline_timeline(Shape(ranks=4, microbatches=8, steps=3))


def test_idle_time_by_cause_is_that_of_the_bubble_but_for_what_waits_for_nothing():
    extras = gather_extras(RUN)
    gaps = extras.gaps.with_columns(long=pl.col("end_ns") - pl.col("start_ns"))
    idle = step_bubbles(RUN.spans, find_pipelines(RUN.spans, RUN.ranks))
    first = gaps.filter(pl.col("rank") == 0).group_by("step").agg(pl.sum("long")).sort("step")
    of_rank = idle.filter(pl.col("rank") == 0).sort("step")
    assert (
        first["long"].to_list() == of_rank["idle_ns"].to_list()
    )  # rank 0 ends each step: no idle time after it
    assert set(gaps["cause"]) <= {
        "waits for compute",
        "transfer",
        "launch",
        "transfer or launch",
        "other work",
        "not known",
    }


def test_every_gap_that_waits_for_a_job_names_one_of_another_rank():
    gaps = gather_extras(RUN).gaps.drop_nulls("waits_for")
    kinds = RUN.spans[gaps["waits_for"].to_list()]
    assert set(kinds["kind"]) == {"forward", "backward"}
    assert (kinds["rank"] != gaps["rank"]).all()


def test_the_ledger_adds_up_to_the_time_of_the_steps():
    ledger = gather_extras(RUN).objects["ledger"]
    assert sum(part["ns"] for part in ledger["parts"]) == ledger["total_ns"]
    assert all(part["meaning"] for part in ledger["parts"])


def test_the_ideal_is_the_same_jobs_and_ends_no_later():
    ideal = gather_extras(RUN).ideal
    jobs = RUN.spans.filter(pl.col("kind").is_in(["forward", "backward"]))
    key = ["rank", "kind", "step", "stage", "microbatch"]
    assert ideal.select(key).sort(key).equals(jobs.select(key).sort(key))
    lasts = ideal.group_by("step").agg(pl.max("end_ns")).sort("step")["end_ns"]
    assert (lasts <= jobs.group_by("step").agg(pl.max("end_ns")).sort("step")["end_ns"]).all()


def test_a_run_without_jobs_has_nothing_to_say():
    extras = gather_extras(empty_timeline())
    assert (extras.gaps, extras.critical_path, extras.ideal, dict(extras.objects)) == (None, None, None, {})


def test_one_rank_has_no_gap_that_waits_for_another():
    extras = gather_extras(timeline_from_text("F0 B0 . F1 B1"))
    assert extras.gaps["waits_for"].null_count() == extras.gaps.height
