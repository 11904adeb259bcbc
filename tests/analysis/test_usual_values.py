"""What is usual in a run, joined from groups of its pipelines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from planted_runs import Shape, random_times, run
from stagescope.analysis.graph.blocking_sends import NO_GATES
from stagescope.analysis.idle.data_lengths import ROW
from stagescope.analysis.intermediates import Intermediates, intermediates_of
from stagescope.analysis.step_results import usual_durations
from stagescope.analysis.usual_values import join_usual
from stagescope.analysis.windows import Windows

SHAPE = Shape(pipelines=6, stages=3, microbatches=6, steps=4, noise=0.01)
GROUPS = [(0, 3), (6, 9), (12, 15)]


def planted(lengths=1.0):
    times = random_times(SHAPE, seed=2)
    return run(replace(times, action_ns=np.rint(times.action_ns * lengths)))


def of_pipelines(timeline, known, chosen):
    """Return the intermediate results of some pipelines."""
    pipelines = known.windows.pipelines.filter(pl.col("pipeline").is_in(chosen))
    spans = timeline.spans.filter(pl.col("rank").is_in(pipelines["rank"].implode()))
    bubbles = known.windows.bubbles.filter(pl.col("pipeline").is_in(chosen))
    return Intermediates(timeline.with_spans(spans), Windows(pipelines, bubbles, []))


def learned(known):
    return known.learned._replace(durations=usual_durations(known, range(SHAPE.steps)))


@pytest.fixture(scope="module", params=[False, True], ids=["equal data", "data of different lengths"])
def parts_and_whole(request):
    rng = np.random.default_rng(1)
    lengths = rng.uniform(0.6, 1.4, (1, SHAPE.pipelines, SHAPE.steps, 1, SHAPE.microbatches))
    timeline = planted(lengths if request.param else 1.0)
    known = intermediates_of(timeline)
    return [learned(of_pipelines(timeline, known, group)) for group in GROUPS], learned(known)


@pytest.fixture
def parts(parts_and_whole):
    return parts_and_whole[0]


def test_what_belongs_to_ranks_is_that_of_an_analysis_at_once(parts_and_whole):
    parts, whole = parts_and_whole
    joined = join_usual(parts)
    assert_frame_equal(joined.transfers.sends, whole.transfers.sends)
    assert_frame_equal(joined.transfers.lags.links, whole.transfers.lags.links)
    assert_frame_equal(joined.causes.delays.sends, whole.causes.delays.sends)
    assert joined.causes.receivers == whole.causes.receivers
    means = whole.causes.lengths.means
    assert (joined.causes.lengths.means is None) == (means is None)
    if means is not None:
        assert_frame_equal(joined.causes.lengths.means, means.sort(ROW))
    assert joined.durations.actions == whole.durations.actions
    keys = ["rank", "stage", "kind", "is_pair", "mean_ns"]
    assert_frame_equal(joined.durations.classes.select(keys), whole.durations.classes.select(keys))


def test_what_the_run_has_one_value_of_is_close_to_an_analysis_at_once(parts_and_whole):
    parts, whole = parts_and_whole
    joined = join_usual(parts)
    for name in ("gates", "waits_most", "trusts_late"):
        assert getattr(joined.transfers, name) == getattr(whole.transfers, name)
    everywhere_ns = joined.transfers.lags.everywhere_ns
    assert everywhere_ns == pytest.approx(whole.transfers.lags.everywhere_ns, rel=0.02)
    assert joined.causes.delays.launch_ns == pytest.approx(whole.causes.delays.launch_ns, rel=0.05, abs=1000)
    alone = joined.causes.lengths.alone.join(whole.causes.lengths.alone, on=["kind", "stage"])
    assert alone.height == whole.causes.lengths.alone.height
    assert (alone["alone_ns"] / alone["alone_ns_right"] - 1).abs().max() < 0.1
    lengths, expected = joined.causes.lengths.microbatches, whole.causes.lengths.microbatches
    assert (lengths is None) == (expected is None)
    if expected is not None:
        assert lengths.ratio == pytest.approx(expected.ratio, rel=0.3)
        assert_frame_equal(lengths.of_row.select(ROW), expected.of_row.select(ROW).sort(ROW))
        assert (lengths.of_row["weight"] - expected.of_row.sort(ROW)["weight"]).abs().max() < 0.05


def test_one_group_is_the_run(parts):
    assert join_usual(parts[:1]) is parts[0]


def test_durations_are_unknown_if_they_are_in_a_group(parts):
    assert join_usual([parts[0], parts[1]._replace(durations=None)]).durations is None


def with_transfers(part, **values):
    return part._replace(transfers=part.transfers._replace(**values))


@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        ([NO_GATES, NO_GATES, 2], 2),
        ([NO_GATES, NO_GATES, NO_GATES], NO_GATES),
        ([1, 3, 3], 3),
        ([3, 1, 1, 3], 1),
    ],
)
def test_groups_that_recognized_gates_vote_on_them(parts, gates, expected):
    voting = [with_transfers(parts[0], gates=each) for each in gates]
    assert join_usual(voting).transfers.gates == expected


def test_groups_without_blocking_sends_do_not_vote(parts):
    without = with_transfers(parts[0], waits_most=False, trusts_late=True)
    assert without.transfers.sends.is_empty()
    sends = pl.DataFrame({"rank": [6], "usual_ns": [1000]}, schema=without.transfers.sends.schema)
    most = with_transfers(parts[1], sends=sends, waits_most=True, trusts_late=False)
    joined = join_usual([without, without, most]).transfers
    assert (joined.waits_most, joined.trusts_late) == (True, False)
    assert joined.sends.rows() == [(6, 1000)]
    joined = join_usual([without, without]).transfers
    assert (joined.waits_most, joined.trusts_late) == (False, True)


def test_lags_and_launches_are_medians_of_the_groups_that_know_them(parts):
    def changed(part, everywhere_ns, launch_ns):
        causes = part.causes
        lags = part.transfers.lags._replace(everywhere_ns=everywhere_ns)
        delays = causes.delays._replace(launch_ns=launch_ns)
        return with_transfers(part, lags=lags)._replace(causes=causes._replace(delays=delays))

    known = [changed(*each) for each in zip(parts, (None, 100.0, 300.0), (10, 5000, 20), strict=True)]
    joined = join_usual(known)
    assert joined.transfers.lags.everywhere_ns == 200
    assert joined.causes.delays.launch_ns == 20
    assert join_usual([changed(parts[0], None, 1)] * 2).transfers.lags.everywhere_ns is None
    lengths = parts[0].causes.lengths
    lengths = lengths._replace(alone=lengths.alone.clear(), means=None)
    idle = changed(parts[0], None, 0)
    idle = idle._replace(causes=idle.causes._replace(lengths=lengths))
    assert join_usual([idle, idle, known[1]]).causes.delays.launch_ns == 5000


def test_lengths_are_unknown_unless_most_groups_know_them():
    rng = np.random.default_rng(1)
    timeline = planted(rng.uniform(0.6, 1.4, (1, SHAPE.pipelines, SHAPE.steps, 1, SHAPE.microbatches)))
    known = intermediates_of(timeline)
    one, two, three = (of_pipelines(timeline, known, group).learned for group in GROUPS)

    def without(part):
        lengths = part.causes.lengths._replace(microbatches=None)
        return part._replace(causes=part.causes._replace(lengths=lengths))

    assert join_usual([one, without(two), without(three)]).causes.lengths.microbatches is None
    joined = join_usual([one, two, without(three)]).causes.lengths.microbatches
    assert joined is not None
    assert sorted(joined.of_row["rank"].unique()) == [*range(12)]


def test_receivers_are_those_of_all_groups_and_unknown_if_a_group_does_not_know_them(parts):
    one, two, unknown = (
        each._replace(causes=each.causes._replace(receivers=receivers))
        for each, receivers in zip(parts, ({1: 0}, {6: 8}, None), strict=True)
    )
    assert join_usual([one, two]).causes.receivers == {1: 0, 6: 8}
    assert join_usual([one, two, unknown]).causes.receivers is None
