"""Samples of transfer times."""

import polars as pl

from planted_runs import Shape, random_times, run
from stagescope.analysis.statistics.action_samples import choose_sampling
from stagescope.analysis.statistics.link_samples import sample_links
from stagescope.model.messages import match_messages


def sampled(timeline):
    messages = match_messages(timeline.spans)
    return messages, sample_links(timeline, messages, choose_sampling(messages["step"], 8))


def test_link_takes_the_median_of_messages_with_posted_receives():
    times = random_times(Shape(pipelines=1, stages=2, steps=4))
    times.message_ns[0, :, :, 1] = 700_000
    messages, found = sampled(run(times))
    forward = found.table.filter(pl.col("direction") == "forward")
    assert forward["median_ns"].to_list() == [700_000.0] * 4
    (late,) = found.diagnostics
    assert found.table["messages"].sum() + late.count == messages.height


def test_links_have_machines_and_clocks():
    times = random_times(Shape(pipelines=1, stages=3, steps=4))
    object.__setattr__(times, "machines", ["a", "a", "b"])
    object.__setattr__(times, "errors_ns", {"a": 300, "b": 500})
    links = sampled(run(times))[1].links.filter(pl.col("direction") == "forward").sort("source")
    assert links.select("source", "crosses_machines", "error_ns").rows() == [(0, False, 0), (1, True, 800)]


def test_unknown_clock_error_is_reported():
    times = random_times(Shape(pipelines=1, stages=2, steps=4))
    object.__setattr__(times, "machines", ["a", "b"])
    object.__setattr__(times, "errors_ns", {"a": 300, "b": None})
    found = sampled(run(times))[1]
    assert found.links["error_ns"].to_list() == [None, None]
    assert found.diagnostics[-1].count == 2
