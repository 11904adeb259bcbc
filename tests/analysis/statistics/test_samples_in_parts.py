"""Comparisons do not depend on the parts that samples come in, nor on how many are looked at together."""

from dataclasses import fields
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_array_equal
from polars.testing import assert_frame_equal

from planted_runs import Shape, random_times, run
from stagescope.analysis.statistics import estimates, peer_excess
from stagescope.analysis.statistics.action_samples import ActionSamples, sample_actions
from stagescope.analysis.statistics.link_samples import LinkSamples, sample_links
from stagescope.analysis.statistics.stragglers import (
    DEFAULT_LIMITS,
    claim_subjects,
    measure_subjects,
)
from stagescope.model.messages import match_messages
from stagescope.model.pipelines import find_pipelines

MACHINES = list("aabbccddeeff")


@pytest.fixture(scope="module")
def planted():
    times = random_times(Shape(pipelines=3, steps=24))
    times.action_ns[:, 1, :, 2] *= 1.05
    times.message_ns[0, 1, :, 1] *= 4
    timeline = run(times)
    machines = pl.Series("machine", MACHINES[: timeline.ranks.height])
    return timeline.with_spans(timeline.spans), timeline.ranks.with_columns(machines)


def divided(table, bounds=(5, 6, 20)):
    """Return the rows of some samples after those of others."""
    ends = (0, *bounds, table["sample"].max() + 1)
    return [table.filter(pl.col("sample").is_between(*each, closed="left")) for each in pairwise(ends)]


def claimed(*measured):
    return claim_subjects(measure_subjects(*measured))


def compared(timeline, ranks, divide=lambda table: [table], compare=claimed):
    samples = sample_actions(timeline.spans)
    links = sample_links(timeline, match_messages(timeline.spans), samples.sampling)
    parts = divide(samples.table)
    every = [table.rename({"sample": "step"}) for table in parts]
    samples = ActionSamples(parts, samples.sampling, samples.diagnostics, every)
    links = LinkSamples(divide(links.table), links.links, links.diagnostics)
    pipelines = find_pipelines(timeline.spans, timeline.ranks)
    return compare(ranks, pipelines, (samples, links))


@pytest.mark.parametrize("at_once", [1, 500, 1_000_000])
def test_all_comparisons_are_equal(planted, at_once, monkeypatch):
    whole = compared(*planted)
    assert {"rank", "link"} <= set(whole.table.filter("is_claimed")["subject"])
    monkeypatch.setattr(peer_excess, "CELLS_AT_ONCE", at_once)
    monkeypatch.setattr(estimates, "SAMPLES_AT_ONCE", at_once)
    parts = compared(*planted, divided)
    for field in fields(whole):
        found, expected = getattr(parts, field.name), getattr(whole, field.name)
        if isinstance(expected, pl.DataFrame):
            assert_frame_equal(found, expected, check_exact=True)
        else:
            assert found == expected


def test_what_costs_too_little_is_not_claimed(planted):
    measured, whole = compared(*planted, compare=measure_subjects), compared(*planted)
    claimed = whole.table.filter("is_claimed")
    least_ns = claimed["extra_ns_per_step"].max()
    found = claim_subjects(measured, DEFAULT_LIMITS._replace(least_cost_ns=least_ns))
    assert claimed.height > 1
    assert found.table.filter("is_claimed").rows() == claimed.head(1).rows()
    assert (found.changing["extra_ns_per_step"] >= least_ns).all()
    assert_frame_equal(
        found.table.sort(pl.all()).drop("is_claimed"), whole.table.sort(pl.all()).drop("is_claimed")
    )


def test_medians_of_others_in_blocks(monkeypatch):
    values = np.random.default_rng(0).normal(size=(7, 50))
    values[2, 10:20] = np.nan
    whole = estimates.medians_of_others(values)
    monkeypatch.setattr(estimates, "SAMPLES_AT_ONCE", 20)
    assert_array_equal(estimates.medians_of_others(values), whole)
